"""Where the contour's line goes, from a coarse look at the transform."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics.arrays import namespace
from dpjax.accounting.contour import composition
from dpjax.accounting.contour.composition import Composition
from dpjax.accounting.pairs.protocol import Pair
from dpjax.accounting.pairs.table import TRANSFORMS

_LEAST_TILT, _MOST_TILT, _TILTS = 2e-3, 6e3, 16
_CLOSE = np.geomspace(1 / 3, 3.0, 9)  # tilts that are tried around the saddle point, the fifth
# Nodes of the search for c, which need not be exact: every c gives a bound.
_ROUGH, _COARSE = 48, 64
_KEPT = 36.0  # what weighs less than e^{−36} of the largest value is left out
_FIRST_NODES, _NODES = np.linspace(0.0, 1.0, _ROUGH), np.linspace(0.0, 1.0, _COARSE)
_RAMP = np.linspace(0.0, 1.0, _TILTS)
_GAUSS_NODES, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(_COARSE)
_WASTE = 4.0  # digits (natural) of the sum that a shorter line may cost


class Saddle(NamedTuple):
    """Where the line goes; only its efficiency depends on these being accurate.

    Fields:
        c: tilt near the saddle point.
        depth: estimate of −log δ.
        deviation: rough size of the composed loss's tilted standard deviation.
        epsilon: estimate of ε, or its given value.
        waste: how much larger the integrand is than at the saddle, in natural digits.
    """

    c: Float[Array, ""]
    depth: Float[Array, ""]
    deviation: Float[Array, ""]
    epsilon: Float[Array, ""]
    waste: Float[Array, ""]


class _Moments(NamedTuple):
    """log-moment, mean, variance of the composed loss at tilts, on coarse nodes."""

    total: Array
    mean: Array
    variance: Array


def _look(
    pair: Pair, sign: Array, mu: Array, rate: Array, tilts: Array
) -> tuple[Array, Array, Array, Array]:
    """log-moment, mean, variance of the loss at every tilt, and the distance of the nodes.

    Twice: what weighs nothing on nodes over all that could matter is left out of the second look.
    """
    xp: Any = namespace(sign, mu, rate, tilts)
    c = tilts[:, None]  # a row a tilt; the two halves of a folded line in front
    low, high = pair.reach(sign, mu, rate, c)
    value, _ = pair.terms(sign, mu, rate, c, low + (high - low) * _FIRST_NODES)
    value = xp.max(value, axis=0) if pair.folded else value
    heavy = value > xp.max(value, axis=1, keepdims=True) - _KEPT
    width = (high - low) / (_ROUGH - 1)
    first = xp.argmax(heavy, axis=1)[:, None] - 1
    last = _ROUGH - xp.argmax(heavy[:, ::-1], axis=1)[:, None]
    low, high = low + width * xp.maximum(first, 0), low + width * xp.minimum(last, _ROUGH - 1)
    if pair.folded:  # a half-line, its start included, and an atom at 0
        y = 0.5 * (low + high) + 0.5 * (high - low) * _GAUSS_NODES
        weight = 0.5 * (high - low) * _GAUSS_WEIGHTS
    else:
        y = low + (high - low) * _NODES
        weight = (high - low) / (_COARSE - 1)
    value, loss = pair.terms(sign, mu, rate, c, y)
    value, loss, weight = xp.barrier((value, loss, weight))
    over = (0, 2) if pair.folded else 1
    top = xp.max(value, axis=over)
    mass = weight * xp.exp(value - top[:, None])
    total = xp.sum(mass, axis=over) + pair.atom(mu, rate) * xp.exp(-top)
    mean = xp.sum(mass * loss, axis=over) / total
    variance = xp.sum(mass * loss * loss, axis=over) / total - mean * mean
    return top + xp.log(total), mean, variance, ((high - low) / (_COARSE - 1))[:, 0]


def _moments(run: Composition, sign: Array, tilts: Array) -> _Moments:
    # Without the barrier the compiler repeats the search for these tilts at every node.
    xp: Any = namespace(run, sign, tilts)
    tilts = xp.barrier(tilts)

    def moments(pair: Any, mu: Array, rate: Array, _: Array) -> tuple[Array, Array, Array]:
        if hasattr(pair, "look"):
            return pair.look(sign, mu, rate, tilts)
        found, mean, variance, spacing = _look(pair, sign, mu, rate, tilts)
        # Far out the coarse nodes can miss the upper mode, whose size is known.
        mode = (tilts + 1) * xp.log(rate) + 0.5 * tilts * (tilts + 1) * mu * mu
        missed = mode > found
        missed = missed & (sign > 0) if pair.directed else missed
        slope = xp.log(rate) + (tilts + 0.5) * mu * mu
        # Nodes that lie far apart can miss the centre too: there the loss is about qμy.
        one = (rate * mu) ** 2
        centre = 0.5 * tilts * (tilts + 1) * one
        blind = (spacing > 0.4) & (centre > xp.where(missed, mode, found))
        return (
            xp.where(blind, centre, xp.where(missed, mode, found)),
            xp.where(blind, (tilts + 0.5) * one, xp.where(missed, slope, mean)),
            xp.where(blind, one, xp.where(missed, mu * mu, variance)),
        )

    mu2 = run.gaussian_mu2 * xp.ones_like(tilts)
    plain = 0.5 * mu2 * tilts * (tilts + 1), mu2 * (tilts + 0.5), mu2
    return _Moments(*composition.weighted_sum(moments, run, plain))


def _heights(found: _Moments, tilts: Array) -> Array:
    """log δ·e^{cε} by the saddle-point approximation, had every c been a saddle."""
    xp: Any = namespace(found, tilts)
    # Between two modes the variance is their distance, and says nothing of the curvature.
    curvature = xp.minimum(found.variance, 64 / tilts**2) + 1 / tilts**2 + 1 / (tilts + 1) ** 2
    return found.total - xp.log(tilts) - xp.log1p(tilts) - 0.5 * xp.log(2 * np.pi * curvature)


def find(
    run: Composition,
    sign: Array,
    log_delta: Array | None,
    epsilon: Array | None,
    margin: float,
) -> Saddle:
    """Where to integrate for a target δ or ε: near the saddle, where the line is shortest.

    The number of points goes with the period. To the left it has to reach −log δ/c; to the right as
    far as the tilted loss, which past a jump to a second mode of rare outcomes is very far.
    """
    xp: Any = namespace(run, sign, log_delta, epsilon, margin)
    # Losses of rarely sampled records under much noise are tiny, and the tilts as large.
    narrow = run.gaussian_mu2
    known = xp.inf
    for name, group in run.steps.items():
        pair = composition.line_of(name)
        if name not in TRANSFORMS:
            one = group.rate * xp.minimum(group.mu, 1.0)
            narrow = narrow + xp.sum(group.count * one * one)
        else:
            rows = list(zip(group.mu, group.rate, group.count, strict=True))
            variance = xp.stack([pair.variance(*row[:2]) for row in rows])
            narrow = narrow + xp.sum(group.count * variance)
            known = min(known, *(pair.most_tilt(sign, *row) for row in rows))
    most = xp.clip(20.0 / xp.sqrt(xp.maximum(narrow, 1e-30)), _MOST_TILT, 1e12)
    most = xp.minimum(most, known)
    tilts = _LEAST_TILT * (most / _LEAST_TILT) ** _RAMP
    wide = _moments(run, sign, tilts)
    # Convex in c: the best Chernoff bound lies where the tilted mean passes the bound's ε.
    at = wide.mean - 1 / tilts - 1 / (tilts + 1)
    height = _heights(wide, tilts)
    goal = epsilon * xp.ones_like(tilts) if epsilon is not None else (height - log_delta) / tilts  # pyrefly: ignore
    past = at >= xp.maximum(goal, 0.0)
    i = xp.clip(xp.where(xp.any(past), xp.argmax(past), _TILTS), 1, _TILTS - 1)
    behind, ahead = (xp.maximum(goal[k], 0.0) - at[k] for k in (i - 1, i))
    part = xp.fmin(xp.fmax(behind / xp.maximum(behind - ahead, 1e-300), 0.0), 1.0)
    start = tilts[i - 1] * (tilts[i] / tilts[i - 1]) ** part

    near = xp.minimum(start * _CLOSE, known)
    close = _moments(run, sign, near)
    height = _heights(close, near)
    if epsilon is None:
        epsilon = xp.maximum(xp.min((height - log_delta) / near), 0.0)  # pyrefly: ignore
        depth = -log_delta  # pyrefly: ignore
    else:
        depth = xp.maximum(-xp.min(height - near * epsilon), 0.0)
    waste = xp.maximum(height - near * epsilon + depth, 0.0)
    left = (depth + margin + 2.0) / near
    every, moment = xp.append(tilts, near), xp.append(wide.total, close.total)
    rise = moment - close.total[:, None] + margin + waste[:, None]
    further = every - near[:, None]
    far = further > 0.02 * near[:, None]
    reach = xp.where(far, rise / xp.where(far, further, 1.0), xp.inf)
    right = xp.min(reach, axis=1) - epsilon
    period = xp.maximum(left, right) * xp.exp(xp.maximum(waste - _WASTE, 0.0))
    # The saddle itself wastes nothing: leave it for a line that is much shorter only.
    k = xp.where(period[4] <= 1.5 * xp.min(period), 4, xp.argmin(period))
    deviation = xp.sqrt(xp.maximum(close.variance[k], 1e-290))
    found = Saddle(near[k], xp.asarray(depth), deviation, xp.asarray(epsilon), waste[k])
    return xp.barrier(found)
