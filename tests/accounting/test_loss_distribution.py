"""Discretised loss distributions: both ends around known values, and around the contour's."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting.loss_distribution import grid as pld
from dpjax.accounting.loss_distribution.step import Pair, discretise

# pair, δ, ε (closed form, or contour in long double)
KNOWN = [
    (Pair("gaussian", 1, 1.0, 1.0, 1), 1e-5, 4.377178095681226),
    (Pair("poisson", 1, 1.0, 0.01, 1_000), 1e-5, 1.8282366665165795),
    (Pair("poisson", -1, 1.0, 0.01, 1_000), 1e-8, 1.8784190061349273),
    (Pair("replace", 1, 1.0, 0.01, 1_000), 1e-5, 2.8434402593),
    (Pair("poisson", 1, 2.0, 0.01, 1_000), 1e-5, 13.360823985349608),
    (Pair("symmetrised", 1, 2.0, 0.01, 1_000), 1e-5, 14.82066687),
    (Pair("replace", 1, 0.1, 1.0, 100), 1e-5, 9.997256146434301),
    (Pair("poisson", 1, 1 / 0.3, 1e-6, 1e6), 2.417023572476808e-07, 8.0),
]


def both_ends(bound, *args, **options):
    return tuple(bound(*args, upper=upper, **options) for upper in (False, True))


@pytest.mark.parametrize(("pair", "delta", "exact"), KNOWN)
def test_bracket_holds_and_is_narrow(pair, delta, exact):
    low, high = both_ends(pld.epsilon_bound, [pair], delta)
    assert low <= exact * (1 + 1e-9)
    assert high >= exact * (1 - 1e-9)
    assert high <= exact * (1 + 3e-4)
    assert low >= exact * (1 - 1e-2)


@pytest.mark.parametrize("epsilon", [1e-3, 3e-3, 1e-2])
def test_a_direction_without_such_losses_costs_nothing(epsilon):
    # A record that was added loses at most −ln(1 − q), and rarely gains much: there δ(ε) is 0.
    rate, mu = 2e-4, 1.9
    with mpmath.workdps(40):
        moved = mpmath.log1p(mpmath.expm1(epsilon) / rate) / mu
        beyond = mpmath.exp(mu * moved) * mpmath.ncdf(-mu / 2 - moved)
        exact = float(rate * (mpmath.ncdf(mu / 2 - moved) - beyond))
    found = acc.delta(acc.PoissonSampled(acc.Gaussian(1 / mu), rate), epsilon, method="pld")
    assert exact <= found <= exact * (1 + 1e-3)


def test_bracket_narrows_with_more_bins():
    pair, delta, _ = KNOWN[1]
    widths = []
    for bins in (1 << 15, 1 << 17, 1 << 19):
        low, high = both_ends(pld.epsilon_bound, [pair], delta, bins=bins)
        widths.append(high - low)
    assert widths[0] > 3 * widths[1] > 9 * widths[2]


def test_recorded_deltas_are_bracketed(oracles):
    families = {
        "add_remove_dirA": ("poisson", 1, 1.0),
        "add_remove_dirB": ("poisson", -1, 1.0),
        "poisson_replace_one": ("replace", 1, 1.0),
        "wor_replace_one_symmetric_Cp_upper": ("symmetrised", 1, 2.0),
    }
    for name, (family, sign, reach) in families.items():
        for row in oracles[f"composed_delta_{name}"][::6]:
            p = row["params"]
            pair = Pair(family, sign, reach / p["sigma"], p["q"], p["T"])
            low, high = both_ends(pld.delta_bound, [pair], p["eps"], bins=1 << 17)
            assert low <= row["value"] * (1 + 1e-6) <= high * (1 + 2e-6), row["id"]


def test_delta_of_1e_15_is_resolved():
    low, high = both_ends(pld.epsilon_bound, [Pair("poisson", 1, 1.0, 0.01, 1_000)], 1e-15)
    assert 0 < high - low < 2e-3


@pytest.mark.parametrize("sigma", [0.01, 0.03, 0.2])
def test_little_noise_needs_no_more_memory(sigma):
    pair = Pair("poisson", 1, 1 / sigma, 0.01, 1_000)
    run = pld.compose_losses([pair], delta=1e-5, bins=1 << 16)
    assert len(run.losses) == 1 << 16
    low, high = both_ends(pld.epsilon_bound, [pair], 1e-5, bins=1 << 16)
    # up to some 26 hits, the tail of a binomial of mean 10, of 1/(2σ²) + log q each
    assert low <= high < 40 / sigma**2
    assert low > 3 / sigma**2


def test_different_steps_compose():
    steps = [Pair("poisson", 1, 1.0, 0.01, 400), Pair("poisson", 1, 1.0, 0.01, 600)]
    low, high = both_ends(pld.epsilon_bound, steps, 1e-5)
    assert low <= 1.8282366665165795 <= high
    _, alone = both_ends(pld.epsilon_bound, [Pair("poisson", 1, 1.0, 0.01, 1_000)], 1e-5)
    assert high == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("family", ["gaussian", "poisson", "replace", "symmetrised"])
@pytest.mark.parametrize("rate", [1e-4, 0.5])
def test_rounding_up_dominates_and_rounding_down_is_dominated(family, rate):
    """Profiles of one step on the grid, against a grid 64 times finer."""
    pair = Pair(family, 1, 1.3, rate, 1)

    def profile(losses, mass, infinite, epsilon):
        inner = np.where(losses > epsilon, mass * -np.expm1(np.minimum(epsilon - losses, 0)), 0)
        return infinite + inner.sum()

    def profiles(h, epsilon):
        for upper in (False, True):
            step = discretise(pair, h, upper=upper)
            grid = step.origin + h * (step.start + np.arange(len(step.mass)))
            yield profile(grid, step.mass, step.infinite, epsilon + step.shift)

    for epsilon in np.linspace(-1.0, 3.0, 23):
        down, up = profiles(2e-2, epsilon)
        down_fine, up_fine = profiles(2e-2 / 64, epsilon)
        assert down <= up_fine + 1e-12
        assert down_fine <= up + 1e-12


@pytest.mark.at_length
def test_contour_lies_within_the_bracket_on_random_settings():
    generator = np.random.default_rng(7)
    n = 12
    sigma = np.exp(generator.uniform(np.log(0.5), np.log(8), n))
    rate = 10 ** generator.uniform(-3.5, -0.5, n)
    steps = np.floor(10 ** generator.uniform(1.5, 4, n))
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)
    upper = np.asarray(acc.epsilon(run, delta=1e-6, method="contour"))
    for i in range(n):
        ends = [
            both_ends(
                pld.epsilon_bound, [Pair("poisson", s, 1 / sigma[i], rate[i], steps[i])], 1e-6
            )
            for s in (1, -1)
        ]
        assert upper[i] >= max(e[0] for e in ends) * (1 - 1e-12)


def test_method_prices_fixed_batches_from_both_sides():
    run = acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(1.0), 10, 1_000), 1_000)
    relation = acc.Adjacency.REPLACE_ONE
    assert 14.82 < acc.epsilon(run, delta=1e-5, adjacency=relation, method="pld") < 14.83
    low, high = acc.epsilon_interval(run, delta=1e-5, adjacency=relation)
    assert 13.3 < low < high < 14.83


def test_method_answers_arrays_and_mixtures():
    sigmas = np.array([1.0, 2.0])
    run = acc.Composed(
        (acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigmas), 0.01), 1_000), acc.Gaussian(5.0))
    )
    found = acc.epsilon(run, delta=1e-5, method="pld")
    tight = acc.epsilon(run, delta=1e-5, method="contour")
    np.testing.assert_allclose(found, tight, rtol=1e-4)
    assert np.all(found >= tight)


def test_method_answers_a_trace_as_it_answers_a_number():
    import jax

    def ask(sigma):
        run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), 0.01), 10)
        return acc.epsilon(run, delta=1e-5, method="pld")

    concrete, traced = ask(1.0), float(jax.jit(ask)(1.0))  # rounded up to float32
    assert concrete <= traced <= concrete * (1 + 2e-7)


def test_no_noise_and_no_steps():
    assert both_ends(pld.epsilon_bound, [Pair("poisson", 1, np.inf, 0.1, 3)], 1e-5) == (0.0, np.inf)
    assert both_ends(pld.epsilon_bound, [Pair("poisson", 1, 1.0, 0.1, 0)], 1e-5) == (0.0, 0.0)
    assert both_ends(pld.delta_bound, [], 1.0) == (0.0, 0.0)


@pytest.mark.parametrize("step", [1e-4, 0.3, 50.0])
def test_sums_of_decaying_masses_are_those_of_their_definition(step):
    from dpjax.accounting.loss_distribution.grid import _sum_decaying

    mass = np.random.default_rng(0).exponential(size=301)
    gap = np.arange(301)[None, :] - np.arange(301)[:, None]
    weights = np.where(gap >= 0, np.exp(-step * np.maximum(gap, 0)), 0.0)
    np.testing.assert_allclose(_sum_decaying(mass, step), weights @ mass, rtol=1e-13)
