"""Where the contour's line goes, from a coarse look at the transform."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics.logarithm import log1p
from dpjax.accounting import composition, pairs
from dpjax.accounting.composition import Composition
from dpjax.accounting.pairs import Family

_LEAST_TILT, _MOST_TILT, _TILTS = 2e-3, 6e3, 20
_CLOSE = np.geomspace(1 / 3, 3.0, 9)  # tilts that are tried around the saddle point, the fifth
# Nodes of the search for c, which need not be exact: every c gives a bound.
_GLANCE, _COARSE = 48, 64
_KEPT = 36.0  # what weighs less than e^{−36} of the largest value is left out
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


def _terms(
    family: Family, sign: Array, mu: Array, rate: Array, c: Array, y: Array
) -> tuple[Array, Array]:
    """Exponent of e^{cL}dP over the Lebesgue measure at y, and the loss L; two each if folded."""
    log_r = pairs.log_ratio(y, mu, rate)
    base = -0.5 * y * y - 0.5 * np.log(2 * np.pi)
    if family == "poisson":
        return base + jnp.where(sign > 0, c + 1, -c) * log_r, sign * log_r
    if family == "replace":
        mirrored = pairs.log_ratio(-y, mu, rate)
        return base + (c + 1) * log_r - c * mirrored, log_r - mirrored
    both = jnp.stack([base + (c + 1) * log_r, base - c * log_r])
    return both, jnp.stack([log_r, -log_r])


def _look(
    family: Family, sign: Array, mu: Array, rate: Array, c: Array
) -> tuple[Array, Array, Array, Array]:
    """log-moment, mean, variance of the loss at a tilt, and the distance of the nodes.

    Twice: what weighs nothing on nodes over all that could matter is left out of the second look.
    """
    low, high = pairs.reach(family, sign, mu, rate, c)
    at = np.linspace(0.0, 1.0, _GLANCE)
    value, _ = _terms(family, sign, mu, rate, c, low + (high - low) * at)
    value = value.max(0) if family == "symmetrised" else value
    heavy = value > jnp.max(value) - _KEPT
    width = (high - low) / (_GLANCE - 1)
    first = jnp.argmax(heavy) - 1
    last = _GLANCE - jnp.argmax(heavy[::-1])
    low, high = low + width * jnp.maximum(first, 0), low + width * jnp.minimum(last, _GLANCE - 1)
    if family == "symmetrised":  # a half-line, its start included, and an atom at 0
        y = 0.5 * (low + high) + 0.5 * (high - low) * _GAUSS_NODES
        weight = 0.5 * (high - low) * _GAUSS_WEIGHTS
        atom = (1 - rate) * jax.lax.erf(mu / np.sqrt(8.0))
    else:
        y = low + (high - low) * np.linspace(0.0, 1.0, _COARSE)
        weight, atom = (high - low) / (_COARSE - 1), 0.0
    value, loss = _terms(family, sign, mu, rate, c, y)
    value, loss, weight = jax.lax.optimization_barrier((value, loss, weight))
    top = jnp.max(value)
    mass = weight * jnp.exp(value - top)
    total = jnp.sum(mass) + atom * jnp.exp(-top)
    mean = jnp.sum(mass * loss) / total
    variance = jnp.sum(mass * loss * loss) / total - mean * mean
    return top + jnp.log(total), mean, variance, (high - low) / (_COARSE - 1)


def _moments(run: Composition, sign: Array, tilts: Array) -> _Moments:
    # Without the barrier the compiler repeats the search for these tilts at every node.
    tilts = jax.lax.optimization_barrier(tilts)

    def moments(family: Family, mu: Array, rate: Array, _: Array) -> tuple[Array, Array, Array]:
        found, mean, variance, spacing = jax.vmap(lambda c: _look(family, sign, mu, rate, c))(tilts)
        # Far out the coarse nodes can miss the upper mode, whose size is known.
        mode = (tilts + 1) * jnp.log(rate) + 0.5 * tilts * (tilts + 1) * mu * mu
        missed = mode > found
        missed = missed & (sign > 0) if family == "poisson" else missed
        slope = jnp.log(rate) + (tilts + 0.5) * mu * mu
        # Nodes that lie far apart can miss the centre too: there the loss is about qμy.
        one = (rate * mu) ** 2
        centre = 0.5 * tilts * (tilts + 1) * one
        blind = (spacing > 0.4) & (centre > jnp.where(missed, mode, found))
        return (
            jnp.where(blind, centre, jnp.where(missed, mode, found)),
            jnp.where(blind, (tilts + 0.5) * one, jnp.where(missed, slope, mean)),
            jnp.where(blind, one, jnp.where(missed, mu * mu, variance)),
        )

    mu2 = run.gaussian_mu2 * jnp.ones_like(tilts)
    plain = 0.5 * mu2 * tilts * (tilts + 1), mu2 * (tilts + 0.5), mu2
    return _Moments(*composition.weighted_sum(moments, run, plain))


def _heights(found: _Moments, tilts: Array) -> Array:
    """log δ·e^{cε} by the saddle-point approximation, had every c been a saddle."""
    # Between two modes the variance is their distance, and says nothing of the curvature.
    curvature = jnp.minimum(found.variance, 64 / tilts**2) + 1 / tilts**2 + 1 / (tilts + 1) ** 2
    return found.total - jnp.log(tilts) - log1p(tilts) - 0.5 * jnp.log(2 * np.pi * curvature)


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
    # Answers do not depend on where the line is, and nor do their derivatives.
    run, sign, log_delta, epsilon = jax.lax.stop_gradient((run, sign, log_delta, epsilon))
    # Losses of rarely sampled records under much noise are tiny, and the tilts as large.
    narrow = run.gaussian_mu2
    for group in run.steps.values():
        one = group.rate * jnp.minimum(group.mu, 1.0)
        narrow = narrow + jnp.sum(group.count * one * one)
    most = jnp.clip(20.0 / jnp.sqrt(jnp.maximum(narrow, 1e-30)), _MOST_TILT, 1e12)
    tilts = _LEAST_TILT * (most / _LEAST_TILT) ** np.linspace(0.0, 1.0, _TILTS)
    wide = _moments(run, sign, tilts)
    # Convex in c: the best Chernoff bound lies where the tilted mean passes the bound's ε.
    at = wide.mean - 1 / tilts - 1 / (tilts + 1)
    height = _heights(wide, tilts)
    goal = epsilon * jnp.ones_like(tilts) if epsilon is not None else (height - log_delta) / tilts  # pyrefly: ignore
    past = at >= jnp.maximum(goal, 0.0)
    i = jnp.clip(jnp.where(jnp.any(past), jnp.argmax(past), _TILTS), 1, _TILTS - 1)
    behind, ahead = (jnp.maximum(goal[k], 0.0) - at[k] for k in (i - 1, i))
    part = jnp.clip(jnp.nan_to_num(behind / jnp.maximum(behind - ahead, 1e-300)), 0.0, 1.0)
    start = tilts[i - 1] * (tilts[i] / tilts[i - 1]) ** part

    near = start * _CLOSE
    close = _moments(run, sign, near)
    height = _heights(close, near)
    if epsilon is None:
        epsilon = jnp.maximum(jnp.min((height - log_delta) / near), 0.0)  # pyrefly: ignore
        depth = -log_delta  # pyrefly: ignore
    else:
        depth = jnp.maximum(-jnp.min(height - near * epsilon), 0.0)
    waste = jnp.maximum(height - near * epsilon + depth, 0.0)
    left = (depth + margin + 2.0) / near
    every, moment = jnp.append(tilts, near), jnp.append(wide.total, close.total)
    rise = moment - close.total[:, None] + margin + waste[:, None]
    further = every - near[:, None]
    reach = jnp.where(further > 0.02 * near[:, None], rise / further, jnp.inf)
    right = jnp.min(reach, axis=1) - epsilon
    period = jnp.maximum(left, right) * jnp.exp(jnp.maximum(waste - _WASTE, 0.0))
    # The saddle itself wastes nothing: leave it for a line that is much shorter only.
    k = jnp.where(period[4] <= 1.5 * jnp.min(period), 4, jnp.argmin(period))
    deviation = jnp.sqrt(jnp.maximum(close.variance[k], 1e-290))
    found = Saddle(near[k], jnp.asarray(depth), deviation, jnp.asarray(epsilon), waste[k])
    return jax.lax.optimization_barrier(jax.lax.stop_gradient(found))
