"""δ(ε) undoes ε(δ), and both ends of an answer agree: over every family of runs at once."""

from __future__ import annotations

import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting.answers import risks
from dpjax.accounting.contour import method as contour
from dpjax.accounting.contour import users
from dpjax.accounting.contour.rare_steps import _rounded_bound
from dpjax.accounting.loss_distribution.grid import epsilon_bound
from dpjax.accounting.loss_distribution.step import Pair
from tests.accounting.mechanism_examples import EXAMPLES, WRAPPERS

_SWAP = acc.Adjacency.REPLACE_ONE


def _run(*steps):
    parts = (acc.Repeated(acc.PoissonSampled(acc.Gaussian(s), q), n) for s, q, n in steps)
    return acc.Composed(tuple(parts))


# Steps by which a record is hardly ever drawn, alone and beside others; some of 10^8 steps.
_ONE = _run((0.64, 1.418e-9, 2_305_079))
_RARE = [
    (_run((2.42, 5.043e-8, 10**8)), 5.89e-9, _SWAP),
    (_ONE, 5.19e-9, acc.Adjacency.ADD_REMOVE),
    (
        _run((1.048, 2.859e-6, 1_740_733), (11.05, 0.0296, 51), (0.88, 1.792e-6, 1_898)),
        2.98e-9,
        acc.Adjacency.ADD_REMOVE,
    ),
    (
        _run((10.731, 1.423e-8, 10**8), (1.874, 2.493e-5, 541_436), (1.451, 0.00203, 40)),
        1.66e-9,
        acc.Adjacency.ADD_REMOVE,
    ),
    (_run((3.488, 2e-7, 37_067_733), (2.858, 1.553e-3, 9)), 7.31e-10, _SWAP),
    (_run((0.772, 2.333e-9, 10**8)), 5.08e-8, _SWAP),
]


@pytest.mark.parametrize(("run", "delta", "adjacency"), _RARE)
@pytest.mark.at_length(every=6)
def test_of_rare_steps_both_ends_are_close_and_delta_undoes_epsilon(run, delta, adjacency):
    low, high = acc.epsilon_interval(run, delta, adjacency=adjacency)
    assert 0 < low <= high < low * 1.002
    # What is above ε has at most this δ, what is below it at least.
    assert acc.delta(run, high, adjacency=adjacency) <= delta * 1.005
    assert acc.delta(run, low, adjacency=adjacency) >= delta * (1 - 1e-12)


def test_of_a_record_that_is_hardly_ever_drawn_delta_is_what_epsilon_said():
    # Was 6.45e-7, where ε(5.19e-9) is below 2.0e-5.
    assert acc.epsilon(_ONE, 5.19e-9) < 2.0e-5
    assert 4.9e-9 < acc.delta(_ONE, 2.0e-5) < 5.19e-9


@pytest.mark.at_length
def test_risks_of_rare_steps_follow():
    # A line e^ε α + δ is a bound of every attack: of one ε that `epsilon` states, too.
    lines = [np.exp(acc.epsilon(_ONE, d)) * 1e-3 + d for d in (5.19e-9, 3e-8)]
    ends = 1e-5, 3e-5
    found, _ = risks.strongest_attack(_ONE, 1e-3, acc.Adjacency.ADD_REMOVE, ends, queries=4)
    assert found <= min(lines) * (1 + 1e-6)


@pytest.mark.filterwarnings("ignore:noise uniform in a ball")
@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
@pytest.mark.at_length(every=2)
def test_of_every_family_delta_undoes_epsilon(adjacency):
    wrong = []
    for step in EXAMPLES:
        for run in (step, WRAPPERS["Repeated"](step)):
            try:
                low, high = acc.epsilon_interval(run, 1e-5, adjacency=adjacency)
                if high == np.inf:
                    continue
                ends = (acc.delta(run, e, adjacency=adjacency) for e in (high, low))
                least, most = (float(np.asarray(end)) for end in ends)
            except acc.UnsupportedQuery:
                continue
            # Both are upper bounds: at the lower end of ε, δ is no less than what was asked.
            undone = least <= 1e-5 * (1 + 1e-3) and (low == 0 or most >= 1e-5 * (1 - 1e-9))
            if not (undone and low <= high):
                wrong.append((run, low, high, least, most))
    assert not wrong


@pytest.mark.at_length
def test_rounded_steps_agree_with_lines_of_their_densities():
    # Two ways to one number: where lines of the densities are fine both ends hold of either.
    rng = np.random.default_rng(8)
    compared = 0
    for _ in range(8):
        sigma, rate = float(rng.uniform(0.8, 3.0)), float(10 ** rng.uniform(-7, -4))
        run = _run((sigma, rate, int(10 ** rng.uniform(1, 3) / rate)), (4.0, 0.02, 30))
        adjacency = acc.Adjacency.ADD_REMOVE if rng.random() < 0.5 else _SWAP
        delta = float(10 ** rng.uniform(-9, -4))
        high = float(contour._upper("epsilon", np.inf)(run, delta, adjacency))
        low = float(contour._contour_lower(run, delta, adjacency))
        if not 0 < low <= high < low * 1.001:
            continue
        compared += 1
        ends = [
            float(users.as_host_part("epsilon", upper, _rounded_bound)(run, delta, adjacency))
            for upper in (False, True)
        ]
        spent = float(users.as_host_part("delta", True, _rounded_bound)(run, low, adjacency))
        assert ends[0] <= high * (1 + 1e-12), (run, delta)
        assert ends[1] >= low * (1 - 1e-12), (run, delta)
        assert ends[1] < ends[0] * 1.002, (run, delta)
        assert delta * (1 - 1e-9) <= spent <= delta * 1.02, (run, delta)
    assert compared > 3


def test_a_composition_with_a_rare_part_is_what_a_longer_grid_says():
    steps = (1.048, 2.859e-6, 1_740_733), (11.05, 0.0296, 51), (0.88, 1.792e-6, 1_898)
    low, _ = acc.epsilon_interval(_run(*steps), 2.98e-9)
    grid = max(
        epsilon_bound(
            [Pair("poisson", sign, 1 / s, q, float(n)) for s, q, n in steps],
            2.98e-9,
            upper=True,
            bins=1 << 21,
        )
        for sign in (1, -1)
    )
    assert grid * 0.999 < low <= grid


@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-4, 0.01, 0.1])
@pytest.mark.parametrize(
    ("sampled", "adjacency"),
    [
        (lambda noise: acc.PoissonSampled(acc.Gaussian(noise), 1e-3), acc.Adjacency.ADD_REMOVE),
        (lambda noise: acc.PoissonSampled(acc.Gaussian(noise), 1e-3), _SWAP),
        (lambda noise: acc.FixedBatchSampled(acc.Gaussian(noise), 1, 1000), _SWAP),
    ],
)
@pytest.mark.at_length(every=4)
def test_with_hardly_any_noise_a_record_that_takes_part_is_told(noise, sampled, adjacency):
    drawn = 1 - (1 - 1e-3) ** 3  # in three samples at least once
    run = acc.Repeated(sampled(noise), 3)
    found = acc.delta(run, 1.0, adjacency=adjacency)
    # At noise .1 a record that takes part is not seen with probability Φ(−10 + 5 + .8) = 1.4e-5.
    assert drawn * (1 - (2e-5 if noise == 0.1 else 1e-12)) <= found <= drawn * (1 + 1e-7)
    assert acc.epsilon(run, drawn * 1.001, adjacency=adjacency) < 1e-9


def test_of_a_sweep_and_of_a_composition_the_loud_steps_alone_are_told():
    noise, rate = np.array([1e-9, 1.0, 0.0]), np.array([1e-3, 0.01, 1e-3])
    found = acc.delta(acc.Repeated(acc.PoissonSampled(acc.Gaussian(noise), rate), 3), 1.0)
    each = [
        acc.delta(acc.Repeated(acc.PoissonSampled(acc.Gaussian(float(n)), float(q)), 3), 1.0)
        for n, q in zip(noise, rate, strict=True)
    ]
    np.testing.assert_allclose(found, each, rtol=1e-12)
    quiet = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 100)
    both = acc.Composed((quiet, acc.PoissonSampled(acc.Gaussian(1e-9), 1e-6)))
    alone = acc.delta(quiet, 1.0)
    # One of independent causes: δ₁ + δ₂ − δ₁δ₂.
    assert acc.delta(both, 1.0) == pytest.approx(alone + 1e-6 - alone * 1e-6, rel=1e-3)


@pytest.mark.filterwarnings("ignore:noise uniform in a ball")
def test_beyond_every_epsilon_delta_is_a_number():
    for run in EXAMPLES:
        try:
            found = float(np.asarray(acc.delta(run, np.inf)))
        except acc.UnsupportedQuery:
            continue
        assert 0 <= found <= 1, run
