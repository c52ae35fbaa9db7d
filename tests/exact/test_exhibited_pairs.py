"""Every lower end of ε against the two distributions that its docstring names, integrated here.

A lower end is right if neighbours attain a pair of outputs that needs so much: the hockey-stick
divergence of that pair, at the claimed ε, is at least δ. The pairs are written down from the
definitions of the mechanisms (two sums of clipped contributions and their noise), as masses of
fine cells, and know nothing of the accountant.
"""

from __future__ import annotations

import functools
import itertools
import warnings

import numpy as np
import pytest
from scipy import stats

from dpjax import accounting as acc
from dpjax import correlation
from dpjax.accounting.answers.methods import METHODS
from tests.accounting.mechanism_examples import EXAMPLES

ADD_REMOVE, REPLACE_ONE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE


def cells(*laws):
    """Masses of fine cells under mixtures of normal laws, each a list of (weight, mean, std)."""
    reach = [(m - 10 * s, m + 10 * s, s) for law in laws for _, m, s in law]
    low, high = min(r[0] for r in reach), max(r[1] for r in reach)
    edges = np.linspace(low, high, 4001)
    edges[[0, -1]] = -np.inf, np.inf

    def mass(mean, std):  # of the nearer tail, where a difference would cancel
        left, right = (edges[:-1] - mean) / std, (edges[1:] - mean) / std
        above = stats.norm.sf(left) - stats.norm.sf(right)
        return np.where(left > 0, above, stats.norm.cdf(right) - stats.norm.cdf(left))

    return [sum(w * mass(m, s) for w, m, s in law if w > 0) for law in laws]


def gaussian(shift, std=1.0):
    return cells([(1, 0, std)], [(1, shift, std)])


def sampled(rate, std, first, second=None):
    """The record takes part with a chance: its contribution is `first`, or `second`."""
    there = [(1 - rate, 0, std), (rate, first, std)]
    other = [(1, 0, std)] if second is None else [(1 - rate, 0, std), (rate, second, std)]
    return cells(there, other)


def staircase(epsilon, gamma, shift):
    """Cells in which the noise's density and its shift's are constant."""
    units = np.arange(int(80 / epsilon))
    steps = np.concatenate([gamma + units, -gamma - units])
    edges = np.unique(np.concatenate([steps, steps + shift]))
    middle, b = (edges[1:] + edges[:-1]) / 2, np.exp(-epsilon)
    scale = np.diff(edges) * (1 - b) / (2 * (gamma + b * (1 - gamma)))
    return [scale * b ** np.ceil(np.maximum(np.abs(middle - s) - gamma, 0)) for s in (0, shift)]


def coin(epsilon, delta=0.0):
    """Randomised response, and with probability δ an answer that gives all away."""
    high = (1 - delta) * np.exp(epsilon) / (1 + np.exp(epsilon))
    return np.array([delta, high, 1 - delta - high, 0]), np.array(
        [0, 1 - delta - high, high, delta]
    )


def intervals(rate, displacement, both):
    """U(−1, 1) with and without a record that moves it by ±displacement, taking part at a rate."""
    moves = [displacement / 2, -displacement / 2] if both else [displacement, None]
    ends = sorted({-1.0, 1.0, *(e + m for m in moves if m is not None for e in (-1, 1))})
    middle, width = (np.array(ends)[:-1] + np.array(ends)[1:]) / 2, np.diff(ends)

    def law(move):
        part = 0.0 if move is None else rate
        hit = part * (np.abs(middle - (move or 0)) < 1) if part else 0.0
        return ((1 - part) * (np.abs(middle) < 1) + hit) * width / 2

    return law(moves[0]), law(moves[1])


def last_iterate(steps, step_size, noise_std, sensitivity, curvature):
    """Noisy gradient descent on two quadratics whose gradients are the sensitivity apart."""
    gap = variance = 0.0
    for _ in range(steps):
        gap = (1 - step_size * curvature) * gap + step_size * sensitivity
        variance = (1 - step_size * curvature) ** 2 * variance + 2 * step_size * noise_std**2
    return gaussian(gap, np.sqrt(variance))


def both(*pairs):
    """The product of independent releases."""
    first = second = np.ones(1)
    for a, b in pairs:
        coarse = max(1, len(a) // 1000)  # merging cells loses information: still a lower bound
        a, b = (np.add.reduceat(v, np.arange(0, len(v), coarse)) for v in (a, b))
        first, second = np.outer(first, a).ravel(), np.outer(second, b).ravel()
    return first, second


def allocated(steps, std):
    """The record moves one of so many coordinates, drawn at random."""
    there, absent = (np.add.reduceat(v, np.arange(0, len(v), 4)) for v in gaussian(1, std)[::-1])
    laws = [[there if i == j else absent for j in range(steps)] for i in range(steps)]
    mixed = sum(functools.reduce(np.multiply.outer, law).ravel() for law in laws) / steps
    return mixed, functools.reduce(np.multiply.outer, [absent] * steps).ravel()


def shifted(law, shift):
    """Noise on the integers, and the same moved."""
    y = np.arange(-400.0, 401.0 + shift)
    p, q = law(y - shift), law(y)
    return p / p.sum(), q / q.sum()


def laplace(theta):
    """Cells of the line: the middle one, and everything on either side of it."""
    y = np.linspace(0, theta, 4001)
    p = np.concatenate([[np.exp(-theta) / 2], np.diff(np.exp(y - theta)) / 2, [0.5]])
    return p, p[::-1]


def response(epsilon, categories):
    p = np.array([np.exp(epsilon), *[1.0] * (categories - 1)])
    p /= p.sum()
    return p, np.roll(p, 1)


def part_of_the_time(rate, pair):
    return (1 - rate) * pair[1] + rate * pair[0], pair[1]


def _noise(scale):
    return lambda y: np.exp(-np.abs(y) / scale)


def _normal(sigma):
    return lambda y: np.exp(-y * y / (2 * sigma * sigma))


_G, _P = acc.Gaussian, acc.PoissonSampled
_FIXED = acc.FixedBatchSampled
PAIRS = {
    (_G(1.3), ADD_REMOVE): gaussian(1, 1.3),
    (_G(1.3), REPLACE_ONE): gaussian(2, 1.3),
    (acc.Repeated(_G(2.0), 5), ADD_REMOVE): gaussian(np.sqrt(5), 2.0),
    (acc.Composed((_G(2.0), _G(4.0))), REPLACE_ONE): gaussian(np.sqrt(1.25), 1.0),
    (_P(_G(0.8), 0.2), ADD_REMOVE): sampled(0.2, 0.8, 1),
    (_P(_G(0.8), 0.2), REPLACE_ONE): sampled(0.2, 0.8, 1, -1),
    (_P(_G(0.8), 1.0), ADD_REMOVE): gaussian(1, 0.8),
    (_FIXED(_G(0.8), 3, 10), REPLACE_ONE): sampled(0.3, 0.8, 2),
    (_FIXED(_G(1.0), 1, 1), REPLACE_ONE): gaussian(2, 1.0),
    (acc.Repeated(_P(_G(0.8), 0.2), 2), ADD_REMOVE): both(*[sampled(0.2, 0.8, 1)] * 2),
    (acc.Repeated(_P(_G(0.8), 0.2), 2), REPLACE_ONE): both(*[sampled(0.2, 0.8, 1, -1)] * 2),
    (acc.RandomAllocation(_G(0.8), 2), ADD_REMOVE): allocated(2, 0.8),
    # 0 to 3 records of one user, all of one direction
    (acc.UserLevel(_P(_G(2.0), 0.1), 3), ADD_REMOVE): cells(
        [(float(stats.binom.pmf(j, 3, 0.1)), j, 2.0) for j in range(4)], [(1, 0, 2.0)]
    ),
    (acc.UserLevel(_G(2.0), 3), REPLACE_ONE): gaussian(6, 2.0),
    # and each replaced by its opposite
    (acc.UserLevel(_P(_G(2.0), 0.1), 3), REPLACE_ONE): cells(
        *[
            [(float(stats.binom.pmf(j, 3, 0.1)), sign * j, 2.0) for j in range(4)]
            for sign in (1, -1)
        ]
    ),
    # 0 to 2 records of one user among others that contribute what the replacements do
    (acc.UserLevel(_FIXED(_G(2.0), 3, 10), 2), REPLACE_ONE): cells(
        [(float(stats.hypergeom.pmf(j, 10, 2, 3)), 2 * j, 2.0) for j in range(3)], [(1, 0, 2.0)]
    ),
    (acc.UserLevel(acc.WithReplacement(_G(3.0), 3, 10), 2), REPLACE_ONE): cells(
        [(float(stats.binom.pmf(j, 3, 0.2)), 2 * j, 3.0) for j in range(4)], [(1, 0, 3.0)]
    ),
    (acc.UserLevel(acc.RandomizedResponse(0.5, 4), 2), ADD_REMOVE): both(
        response(0.5, 4), response(0.5, 4)
    ),
    (acc.Repeated(_FIXED(_G(0.8), 3, 10), 2), REPLACE_ONE): both(*[sampled(0.3, 0.8, 2)] * 2),
    # all others contribute what the replacement does, and so do the draws of them
    (acc.WithReplacement(_G(2.0), 3, 10), REPLACE_ONE): cells(
        [(float(stats.binom.pmf(j, 3, 0.1)), 2 * j, 2.0) for j in range(4)], [(1, 0, 2.0)]
    ),
    (acc.PureDP(0.5, "add-remove"), ADD_REMOVE): coin(0.5),
    (acc.ApproximateDP(0.5, 1e-3, "add-remove"), ADD_REMOVE): coin(0.5, 1e-3),
    (acc.Composed((acc.PureDP(0.5, "add-remove"), _G(2.0))), ADD_REMOVE): both(
        coin(0.5), gaussian(1, 2.0)
    ),
    (acc.Laplace(1.3), ADD_REMOVE): laplace(1 / 1.3),
    (acc.Laplace(1.3), REPLACE_ONE): laplace(2 / 1.3),
    (_P(acc.Laplace(1.3), 0.2), ADD_REMOVE): part_of_the_time(0.2, laplace(1 / 1.3)),
    (acc.Staircase(0.5, 0.3, 2), ADD_REMOVE): staircase(0.5, 0.3, 2),
    (acc.Staircase(0.5, 0.7), REPLACE_ONE): staircase(0.5, 0.7, 2),
    (_P(acc.Staircase(1.3), 0.2), ADD_REMOVE): part_of_the_time(
        0.2, staircase(1.3, 1 / (1 + np.exp(0.65)), 1)
    ),
    (acc.DiscreteLaplace(1.3, 2), ADD_REMOVE): shifted(_noise(2.6), 2),
    (acc.DiscreteLaplace(1.3, 2), REPLACE_ONE): shifted(_noise(2.6), 4),
    (acc.DiscreteGaussian(1.3, 2), ADD_REMOVE): shifted(_normal(2.6), 2),
    (acc.DiscreteGaussian(1.3, 2), REPLACE_ONE): shifted(_normal(2.6), 4),
    (_P(acc.DiscreteGaussian(1.3, 2), 0.2), ADD_REMOVE): part_of_the_time(
        0.2, shifted(_normal(2.6), 2)
    ),
    (acc.Repeated(acc.DiscreteGaussian(3.0, 1), 2), ADD_REMOVE): both(
        *[shifted(_normal(3.0), 1)] * 2
    ),
    (acc.Histogram(3.0), ADD_REMOVE): shifted(_normal(3.0), 1),
    # the cell that the record leaves, and the one that it enters
    (acc.Histogram(3.0), REPLACE_ONE): both(*[shifted(_normal(3.0), 1)] * 2),
    (acc.RandomizedResponse(0.7, 4), ADD_REMOVE): response(0.7, 4),
    (acc.RandomizedResponse(0.7, 4), REPLACE_ONE): response(0.7, 4),
    # two candidates whose log-odds change sign
    (acc.Exponential(0.7), ADD_REMOVE): coin(0.35),
    (acc.Exponential(0.7), REPLACE_ONE): coin(0.7),
    (acc.UniformBall(0.3, 1), ADD_REMOVE): intervals(1.0, 0.3, both=False),
    (acc.UniformBall(0.3, 1), REPLACE_ONE): intervals(1.0, 0.3, both=True),
    (_P(acc.UniformBall(0.3, 1), 0.4), ADD_REMOVE): intervals(0.4, 0.3, both=False),
    (_P(acc.UniformBall(0.3, 1), 0.4), REPLACE_ONE): intervals(0.4, 0.3, both=True),
    (acc.NoisyGradientDescent(40, 0.1, 0.1, 0.1, 1.0, 2.0), ADD_REMOVE): last_iterate(
        40, 0.1, 0.1, 0.1, 1.0
    ),
    (acc.NoisyGradientDescent(40, 0.1, 0.1, 0.1, 0.0, 2.0), REPLACE_ONE): last_iterate(
        40, 0.1, 0.1, 0.1, 0.0
    ),
    # of ten records, one moves the mean by its largest contribution, or from one end to the other
    (acc.RecentredGaussian(1.0, 0.1, 10), ADD_REMOVE): gaussian(0.1, 0.1),
    (acc.RecentredGaussian(1.0, 0.1, 10), REPLACE_ONE): gaussian(0.2, 0.1),
    (acc.TangentBall(0.1, 0.1, 10), ADD_REMOVE): gaussian(0.01, 0.1),
    (acc.TangentBall(0.1, 0.1, 10), REPLACE_ONE): gaussian(0.02, 0.1),
    # a corner of the box: three angles at ±0.1π/2, the last at ±0.1π
    (acc.BoxedAngles(0.1, 0.1, 10, 5), ADD_REMOVE): gaussian(0.01 * np.pi * np.sqrt(1.75), 0.1),
    (acc.BoxedAngles(0.1, 0.1, 10, 5), REPLACE_ONE): gaussian(0.02 * np.pi * np.sqrt(1.75), 0.1),
    (acc.Anisotropic(1.0, 0.1, 0.1, 0.2, 10), ADD_REMOVE): both(
        gaussian(0.1, 0.1), gaussian(0.01, 0.2)
    ),
    (acc.Anisotropic(1.0, 0.1, 0.1, 0.2, 10), REPLACE_ONE): both(
        gaussian(0.2, 0.1), gaussian(0.02, 0.2)
    ),
}
# Mechanisms that hold arrays have no hash.
ALSO = [
    ((run, adjacency), pair)
    for adjacency, size in ((ADD_REMOVE, 1), (REPLACE_ONE, 2))
    for run, pair in (
        # uses 4 steps apart of 1, ½, ¼: no row in common, and the last column is cut after 2 rows
        (
            acc.CorrelatedGaussian(2.0, [1.0, 0.5, 0.25], 6, 4),
            gaussian(size * np.sqrt(1.3125 + 1.25), 2.0),
        ),
        # uses at steps 0 and 1 of 1, 1: rows 1, 2, 1
        (
            acc.CorrelatedGaussian(3.0, [1.0, 1.0], 9, 1, 2.0),
            gaussian(size * np.sqrt(6), 3.0),
        ),
        # a record of step 0 is in the blocks 1, 1–2 and 1–4 of a tree
        (
            acc.MatrixGaussian(2.0, correlation.Tree(), 4, 4),
            gaussian(size * np.sqrt(3), 2.0),
        ),
        (
            acc.MatrixGaussian(2.0, [1.0, 2.0, 5.0], 2, 1),
            gaussian(size * 2.0, 2.0),
        ),
        (
            acc.CyclicPoissonCorrelated(2.0, [2.0, 1.0, 1.0], 4, 0.2),
            sampled(0.2, 2.0, np.sqrt(6), None if size == 1 else -np.sqrt(6)),
        ),
    )
]
_KNOWN = [*PAIRS.items(), *ALSO]
_CASES = [pytest.param(*key, pair, id=f"{key[0]}-{key[1].value}") for key, pair in _KNOWN]


def divergence(pair, epsilon):
    """δ(ε) of a pair, the larger of its two directions; of ε = ∞ the mass on one side only."""
    found = []
    for p, q in (pair, pair[::-1]):
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.where(q > 0, np.exp(min(epsilon, 700.0)) * q, 0.0)
        found.append(np.sum(np.maximum(p - scaled, 0.0)))
    return max(found)


@pytest.mark.parametrize(("run", "adjacency", "pair"), _CASES)
def test_the_pair_needs_what_the_lower_end_says(run, adjacency, pair):
    assert abs(sum(pair[0]) - 1) < 1e-12
    assert abs(sum(pair[1]) - 1) < 1e-12
    said = 0
    for delta, method in itertools.product((1e-6, 1e-2, 0.15), METHODS):
        if method.epsilon_lower is None or not method.supports(run, adjacency):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            lower = float(np.asarray(method.epsilon_lower(run, delta, adjacency)))
        assert lower >= 0
        if lower > 0:
            said += 1
            # the cells are a coarser view of the outputs: what they lose is below 1e-4 of ε
            assert divergence(pair, lower * (1 - 1e-4) - 1e-6) >= delta * (1 - 1e-9), method.name
    assert said, "no method has a lower end here"


def test_the_check_notices_a_lower_end_that_is_too_high():
    for (run, adjacency), pair in _KNOWN:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            upper = acc.epsilon_interval(run, 1e-2, adjacency=adjacency)[1]
        if np.isfinite(upper):
            assert divergence(pair, upper * 1.01 + 1e-3) < 1e-2, run


@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
@pytest.mark.parametrize("run", EXAMPLES, ids=lambda run: type(run).__name__)
def test_no_lower_end_where_no_pair_is_known(run, adjacency):
    """Every other mechanism says 0, unless its kind has a pair above."""
    kinds = {(type(known), side) for (known, side), _ in _KNOWN}
    for method in METHODS:
        if method.epsilon_lower is None or not method.supports(run, adjacency):
            continue
        lower = float(np.asarray(method.epsilon_lower(run, 1e-3, adjacency)))
        if method.name == "selection":
            continue  # `test_best_of.py` holds it below what a score attains
        assert lower == 0 or (type(run), adjacency) in kinds, method.name
