"""What is composed in one setting, and where the line of its profile goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from dpjax._numerics.arrays import Numbers, namespace, tree_map
from dpjax._numerics.quadrature import gauss_legendre
from dpjax.accounting.contour import tilt as tilts
from dpjax.accounting.contour.tilt import least, or_infinite, pick
from dpjax.accounting.pairs.mixtures import Mixture
from dpjax.accounting.pairs.pair import Atoms, Folded

Step = Mixture | Folded | Atoms  # what a run is composed of
Sums = TypeVar("Sums")  # any tree of arrays

MARGIN = 26.0  # aliases are about e^{−26} of the sum
_TILTS, _LEAST_TILT, _MOST_TILT = 28, 2e-3, 1e6  # of the search for the saddle point
_CLOSE = np.geomspace(1 / 2.3, 2.3, 9)
_ROUGH = 36.0  # what weighs less than e^{−36} is left out of the search, which proves nothing
_LARGE = -2.5  # log of a δ that the approximation may miss
_FLAT = 0.3  # deviations of the loss over 1/c, below which a tilt is none
_RAMP, _LOG_WEIGHTS = gauss_legendre(96)
_RAMP, _LOG_WEIGHTS = 0.5 * (1 + _RAMP), np.log(0.5 * _LOG_WEIGHTS)
_SPARE = 4.0  # natural digits that a shorter line may cost


class Group(NamedTuple):
    """Steps of one kind: their pairs, stacked along a first axis, and how many of each."""

    pair: Step
    count: Numbers


class Composition(NamedTuple):
    """What is composed, in one setting: Σμ² of the plain Gaussian steps, and the other steps."""

    gaussian_mu2: Numbers
    groups: tuple[Group, ...]


class Rounded(Protocol):
    """A run whose steps are rounded to outcomes, which each line chooses where it weighs."""

    def rough(self) -> Composition:
        """Return about the run, to look where a line goes; no bound rests on it."""
        ...

    def few(self, tilt: float, delta: float) -> Composition:
        """Return a run that dominates it, made for lines of about this tilt and δ."""
        ...


def reversed_run(run: Composition) -> Composition:
    """Return the run with P and Q exchanged in every step."""
    return Composition(
        run.gaussian_mu2, tuple(Group(g.pair.reversed(), g.count) for g in run.groups)
    )


def sum_over(function: Callable[[Step, Numbers], Sums], run: Composition, plain: Sums) -> Sums:
    """Return `plain` plus the sum over all steps of count·function(pair, count)."""
    xp = namespace(run, plain)
    for pair, count in run.groups:
        rows = np.shape(count)[0]
        if rows == 1:
            found = function(tree_map(lambda v: v[0], pair), count[0])
            found = tree_map(lambda v, n=count[0]: n * v, found)
        else:
            batch = min(rows, 16)
            found = xp.map(lambda row: function(*row), (pair, count), batch_size=batch)
            found = tree_map(lambda v, n=count: xp.tensordot(n, v, axes=1), found)
        plain = tree_map(lambda a, b: a + b, plain, found)
    return plain


class Saddle(NamedTuple):
    """Where the line goes; every c gives a bound, only how tight it is depends on these.

    Fields:
        c: the tilt.
        epsilon: about ε, or what was given.
        deviation: of the composed loss under the tilt.
        depth: about −log δ, or what was given.
        waste: by how many natural digits the integrand is larger than at the saddle point.
    """

    c: Numbers
    epsilon: Numbers
    deviation: Numbers
    depth: Numbers
    waste: Numbers


def _look_at(pair: Step, at: Numbers, nodes: int = 80) -> tuple[Numbers, Numbers, Numbers]:
    """Return about K, its slope and its curvature at several tilts; no bound rests on them.

    Twice: what weighs nothing on nodes over all that could matter is left out of the second look.
    """
    xp = namespace(pair, at)
    c = at[:, None]
    if isinstance(pair, Atoms):
        size, loss = c * pair.loss + xp.log(pair.mass), pair.loss
        top = xp.max(size, axis=1, keepdims=True)
        front = top[:, 0]
    elif isinstance(pair, Folded):
        # One half of the line stands for both: every node has a mirror image of the loss −L.
        low, high = pair.start, tilts.reach(pair.pair, c)[1]
        for _ in range(2):
            y = low + (high - low) * _RAMP
            a, b = pair.pair.logs(y)
            size, loss = xp.barrier((((c + 1) * (a - b) - 0.5 * y * y), a - b))
            size = xp.concatenate([size, -c * loss - 0.5 * y * y], axis=1)
            top = xp.max(size, axis=1, keepdims=True)
            heavy = xp.maximum(*xp.split(size, 2, axis=1)) > top - _ROUGH
            size = size + np.tile(_LOG_WEIGHTS, 2) + xp.log((high - low) / math.sqrt(2 * math.pi))
            low = xp.maximum(xp.min(xp.where(heavy, y, np.inf), axis=1, keepdims=True) - 0.2, low)
            high = xp.max(xp.where(heavy, y, -np.inf), axis=1, keepdims=True) + 0.5
        none = 0.0 * c
        size = xp.concatenate([size, xp.maximum(xp.log(pair.atom), -700.0) + none], axis=1)
        loss = xp.concatenate([loss, -loss, none], axis=1)
        top = xp.max(size, axis=1, keepdims=True)
        front = top[:, 0]
    else:
        low, high = tilts.reach(pair, c)
        for _ in range(2):
            y = low + (high - low) * np.linspace(0, 1, nodes)
            a, b = pair.logs(y)
            # The tilted density P·e^{cL}, of P = e^a·φ and L = a − b, without the constant of φ.
            size, loss = xp.barrier(((c + 1) * a - c * b - 0.5 * y * y, a - b))
            top = xp.max(size, axis=1, keepdims=True)
            heavy = size > top - _ROUGH
            w = (high - low) / (nodes - 1)
            high = xp.max(xp.where(heavy, y, -np.inf), axis=1, keepdims=True) + w
            low = xp.min(xp.where(heavy, y, np.inf), axis=1, keepdims=True) - w
        # What all nodes have in common: the width of the rule, and the constant of φ.
        front = top[:, 0] + xp.log(w[:, 0] / math.sqrt(2 * math.pi))
    mass = xp.exp(size - top)  # of the heaviest node's, so that nothing overflows
    total = xp.sum(mass, axis=1)
    # A difference of squares loses digits, as it may here.
    mean = xp.sum(mass * loss, axis=1) / total
    variance = xp.sum(mass * loss**2, axis=1) / total - mean**2
    return front + xp.log(total), mean, variance


def approximate_moments(run: Composition, at: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return about ΣnK, the loss's mean and its variance at several tilts."""
    xp = namespace(run, at)
    mu2 = run.gaussian_mu2 * xp.ones_like(at)
    plain = 0.5 * mu2 * at * (at + 1), mu2 * (at + 0.5), mu2
    moment, mean, variance = sum_over(lambda pair, _: _look_at(pair, at), run, plain)
    return moment, mean, xp.maximum(variance, 1e-12 * mean**2 + 1e-300)


def find_saddle(run: Composition, log_delta: Numbers | None, epsilon: Numbers | None) -> Saddle:
    """Return a tilt near the saddle point at a target δ, ε or both, whose line is short.

    The line's points are as many as its period is long: to the left that is −log δ/c, to the right
    as far as the tilted loss reaches.
    """
    xp = namespace(run, log_delta, epsilon)
    # As far as the deviation says; and further where under that tilt it is smaller, as of losses
    # whose rare large values are negative.
    most = 1e-3 + 0.0 * run.gaussian_mu2
    deviation = xp.sqrt(approximate_moments(run, most * np.ones(1))[2][0])
    for _ in range(3):
        variance = approximate_moments(run, most * np.ones(1))[2][0]
        most = xp.maximum(most, xp.minimum(20 / xp.sqrt(variance) + 50, _MOST_TILT))
    # At equal ratios: the tilts of interest differ by many powers of ten.
    wide = _LEAST_TILT * (most / _LEAST_TILT) ** np.linspace(0, 1, _TILTS)

    target = run.gaussian_mu2 if log_delta is None else log_delta  # where ε is not given

    def heights(at: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        moment, _, variance = approximate_moments(run, at)
        # Between two modes the variance is their distance, and says nothing of the curvature.
        bend = xp.minimum(variance, 64 / at**2) + 1 / at**2 + 1 / (at + 1) ** 2
        # log δ is about height − c·ε: the poles at 0 and −1 divide by c and c + 1.
        height = moment - xp.log(at) - xp.log1p(at) - 0.5 * xp.log(2 * math.pi * bend)
        need = height - at * epsilon if epsilon is not None else xp.abs(height - target) / at
        # Where the exponential hardly tilts the loss the approximation ends at δ = 0.4.
        steep = at * xp.sqrt(variance) >= _FLAT
        flat = xp.any(steep) & (at < xp.min(xp.where(steep, at, np.inf)))
        about = log_delta if log_delta is not None else xp.min(or_infinite(need))
        flat = flat & (at * deviation < _FLAT) & (about > _LARGE)
        need = xp.where(flat | ~xp.isfinite(need), np.inf, need)
        return moment, variance, height, need

    far_moment, _, _, need = heights(wide)
    near = pick(least(need), wide) * _CLOSE
    moment, variance, height, need = heights(near)
    lowest = xp.min(need)
    e = xp.maximum(lowest, 0.0) if epsilon is None else epsilon
    depth = -log_delta if log_delta is not None else xp.maximum(-lowest, 0.0)
    waste = height - near * e - (target if epsilon is None else lowest)
    waste = xp.maximum(or_infinite(waste), 0)
    every, found = xp.concatenate([wide, near]), xp.concatenate([far_moment, moment])
    further = every - near[:, None]
    rise = found - moment[:, None] + MARGIN + waste[:, None]
    reach = xp.where(further > 0.02 * near[:, None], rise / xp.maximum(further, 1e-300), np.inf)
    period = xp.maximum(xp.min(reach, axis=1) - e, (depth + 28) / near)
    period = or_infinite(period * xp.exp(xp.maximum(waste - _SPARE, 0)))
    # The saddle point itself wastes nothing: it is left for a much shorter line only.
    best, shortest = least(need), least(period)
    k = xp.where(pick(best, period) <= 1.5 * xp.min(period), best, shortest)
    found = Saddle(pick(k, near), e, xp.sqrt(pick(k, variance)), depth + 0.0 * e, pick(k, waste))
    return Saddle(*xp.barrier(tuple(found)))
