"""The contour: resolutions, both adjacencies, and δ = 1e-16, against independent values."""

import functools

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import accounting as acc
from dpjax._numerics import float64
from dpjax.accounting.contour import method
from dpjax.accounting.loss_distribution.grid import epsilon_bound
from dpjax.accounting.loss_distribution.step import Pair
from dpjax.accounting.pairs import atoms as pair_atoms
from dpjax.accounting.pairs.protocol import StepGroup

ADD, REPLACE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE


def dpsgd(sigma, rate, steps):
    return acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)


# few records ever hit, heavy and light tails: what the resolutions have to settle between them
HARD = (
    np.array([2.1, 3.43, 1.16, 0.796, 5.05, 1.0, 1.35, 0.627]),
    np.array([5e-4, 2.57e-4, 1.44e-4, 1.36e-3, 3.17e-4, 0.01, 5.04e-4, 4.18e-4]),
    np.array([4589.0, 3522.0, 9941.0, 890.0, 116.0, 1000.0, 59.0, 78.0]),
    np.array([5.7e-7, 1.5e-9, 8.1e-8, 2.9e-8, 1e-5, 1e-5, 1e-5, 8.2e-7]),
)


def test_a_sweep_is_what_its_settings_are_one_by_one():
    sigma, rate, steps, delta = HARD
    together = acc.epsilon(dpsgd(sigma, rate, steps), delta)
    for k in (0, 5):
        one = acc.epsilon(dpsgd(*(float(v[k]) for v in HARD[:3])), float(delta[k]))
        assert together[k] == pytest.approx(one, rel=1e-8)


@pytest.mark.parametrize("method", ["rdp", "contour"])
def test_a_compiled_sweep_is_what_numpy_says_of_its_settings(method):
    rng = np.random.default_rng(0)
    sigma, rate = rng.uniform(0.6, 8, 300), 10 ** rng.uniform(-3, -1, 300)
    steps, delta = np.round(10 ** rng.uniform(1.5, 4, 300)), 10 ** rng.uniform(-9, -4, 300)
    together = acc.epsilon(dpsgd(sigma, rate, steps), delta, method=method)
    few = slice(0, 20)
    apart = acc.epsilon(dpsgd(sigma[few], rate[few], steps[few]), delta[few], method=method)
    np.testing.assert_allclose(together[few], apart, rtol=1e-8)


def test_loss_distributions_bracket_the_hard_settings():
    sigma, rate, steps, delta = HARD
    run = dpsgd(sigma, rate, steps)
    upper = acc.epsilon(run, delta)
    by_pld = acc.epsilon(run, delta, method="pld")
    lower = acc.methods(run)["pld"].epsilon_lower(run, delta, ADD)
    assert np.all(upper >= lower)
    assert np.all(upper <= by_pld * (1 + 1e-4))
    # once answered 0.238
    assert upper[0] == pytest.approx(0.0632982471, rel=1e-6)


def test_merging_keeps_the_best_end_of_each():
    old = method.Bounds(*(np.array(v) for v in ([1.0, 0.0], [2.0, 5.0])))
    new = method.Bounds(*(np.array(v) for v in ([0.5, 3.0], [3.0, 4.0])))
    kept = method._merge(old, new)
    np.testing.assert_array_equal(kept.lower, [1.0, 3.0])
    np.testing.assert_array_equal(kept.upper, [2.0, 4.0])


def test_poor_is_what_is_neither_close_nor_settled():
    upper = np.array([1.0, 1.0, 0.0, np.inf, np.nan, 9e3, 2e4])
    lower = np.array([1.0 - 1e-12, 0.5, 0.0, 0.0, 0.0, 1.0, 1.0])
    poor = method._needs_refinement(method.Bounds(lower, upper))
    # At ε = 20,000 nobody is helped by a finer line.
    np.testing.assert_array_equal(poor, [False, True, False, True, True, True, False])


def test_pairs_and_directions():
    one = np.ones(1)
    steps = StepGroup(one, one, one)
    with float64.float64_scope():
        for atoms, adjacency, lower, families, signs in (
            (pair_atoms.GroupedSteps(one[0], {"poisson": steps}), ADD, False, {"poisson"}, (1, -1)),
            (
                pair_atoms.GroupedSteps(one[0], {"poisson": steps}),
                REPLACE,
                False,
                {"replace"},
                (1,),
            ),
            (
                pair_atoms.GroupedSteps(one[0], {"fixed": steps}),
                REPLACE,
                False,
                {"symmetrised"},
                (1,),
            ),
            (
                pair_atoms.GroupedSteps(one[0], {"fixed": steps}),
                REPLACE,
                True,
                {"poisson"},
                (1, -1),
            ),
        ):
            run, found = method.collect_pairs(atoms, adjacency, lower)
            assert set(run.sampled) == families
            assert found == signs


@functools.cache
def _mpmath_delta(adjacency, sigma, rate, steps, epsilon):
    """δ by the contour in 40 digits, on a line and grids of its own."""
    with mpmath.workdps(40):
        h = mpmath.mpf(1) / 12
        q, s = mpmath.mpf(rate), mpmath.mpf(sigma)
        r = lambda y: 1 - q + q * mpmath.exp(y / s - 1 / (2 * s * s))  # noqa: E731
        nodes = [h * k for k in range(-12 * 14, 12 * 24)]
        losses = [mpmath.log(r(y)) for y in nodes]
        masses = [h * mpmath.npdf(y) * r(y) for y in nodes]
        if adjacency is REPLACE:
            losses = [loss - mpmath.log(r(-y)) for loss, y in zip(losses, nodes, strict=True)]
        c, step, total = mpmath.mpf(6), mpmath.mpf(1) / 7, mpmath.mpf(0)
        tilted = [m * mpmath.exp(c * v) for m, v in zip(masses, losses, strict=True)]
        turn = [mpmath.expj(step * v) for v in losses]
        for k in range(200):
            z = mpmath.mpc(c, step * k)
            value = mpmath.fsum(tilted) ** steps * mpmath.exp(-z * epsilon) / (z * (z + 1))
            total += value.real * (mpmath.mpf(1) / 2 if k == 0 else 1)
            tilted = [w * u for w, u in zip(tilted, turn, strict=True)]
        return total * step / mpmath.pi


@pytest.mark.parametrize(("adjacency", "guess"), [(ADD, 5.3), (REPLACE, 7.1)])
def test_a_delta_of_1e_16(adjacency, guess):
    """ε right to 1e-6 and not below the truth, which is where mpmath's δ crosses 1e-16."""
    found = acc.epsilon(dpsgd(1.0, 0.01, 1_000), 1e-16, adjacency=adjacency, method="contour")
    assert found == pytest.approx(guess, abs=1.0)
    above = _mpmath_delta(adjacency, 1.0, 0.01, 1_000, mpmath.mpf(found))
    below = _mpmath_delta(adjacency, 1.0, 0.01, 1_000, mpmath.mpf(found) - mpmath.mpf("1e-6"))
    assert above <= mpmath.mpf("1e-16") * (1 + mpmath.mpf("1e-12"))
    assert below > mpmath.mpf("1e-16")


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0.5, 20.0),
    st.floats(1e-4, 1.0),
    st.integers(1, 10_000),
    st.floats(1e-10, 1e-3),
    st.floats(1.05, 3.0),
    st.sampled_from([ADD, REPLACE]),
)
def test_epsilon_is_monotone_in_every_parameter(sigma, rate, steps, delta, factor, adjacency):
    # The setting, and it with more noise, a lower rate, more steps, a smaller δ.
    found = acc.epsilon(
        dpsgd(
            sigma * np.array([1, factor, 1, 1, 1]),
            rate / np.array([1, 1, factor, 1, 1]),
            steps * np.array([1, 1, 1, 2, 1]),
        ),
        delta / np.array([1, 1, 1, 1, factor]),
        adjacency=adjacency,
        method="contour",
    )
    assert np.all(found >= 0)
    # Each is within 1e-5 of the truth, or infinite where the line could not settle it.
    base, quieter, rarer, longer, stricter = found
    if np.isfinite(base):
        for better in (quieter, rarer):
            assert better == np.inf or better <= base * (1 + 1e-5) + 1e-12
        for worse in (longer, stricter):
            assert worse >= base * (1 - 1e-5)


# Few steps at small rates: one direction's line is over in a few dozen of its points.
SHORT_LINES = [(1.8810, 5.1715e-4, 96), (0.69909, 1.6451e-3, 54), (1.0935, 4.0812e-4, 100)]


@pytest.mark.parametrize(("sigma", "rate", "steps"), SHORT_LINES)
def test_a_line_that_ends_before_its_points_do_is_resolved(sigma, rate, steps):
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)
    found = acc.epsilon(run, 1e-5, method="contour")
    assert np.isfinite(found)
    for factor, holds in ((1.02, True), (0.98, False)):  # loss distributions are 1 % wide here
        assert (acc.delta(run, factor * found, method="pld") <= 1e-5) == holds


# Of the benchmark's settings, where a few hundredths of a draw to a tenth of one are expected.
FEW_DRAWS = [
    (0.67446, 1.6960e-3, 50),
    (1.17210, 4.4410e-4, 42),
    (0.94083, 3.7080e-4, 77),
    (0.95651, 4.4930e-4, 63),
    (0.74533, 6.8080e-4, 74),
    (0.71508, 3.3490e-4, 251),
]


@pytest.mark.parametrize(("sigma", "rate", "steps"), FEW_DRAWS)
def test_few_draws_are_resolved(sigma, rate, steps):
    """Both ends known, and a loss distribution's lower end below the upper one, with no slack."""
    run = dpsgd(sigma, rate, steps)
    found = acc.epsilon(run, 1e-5, method="contour")
    lower = method._contour_lower(run, 1e-5, ADD)
    assert 0 < lower <= found <= lower * (1 + 1e-5)
    for sign in (1, -1):
        pair = Pair("poisson", sign, 1 / sigma, rate, steps)
        assert epsilon_bound([pair], 1e-5, upper=False, bins=1 << 16) <= found


def test_delta_beyond_the_largest_loss_of_the_direction_that_adds():
    """There that direction's δ is 0, and its own line says nothing; "remove" is what counts."""
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(0.4939541), 0.3713251), 116)
    found = acc.delta(run, 99.07, method="contour")
    assert found == pytest.approx(acc.delta(run, 99.07, method="pld"), rel=1e-3)
    assert found < 6e-4


@pytest.mark.parametrize("question", ["epsilon", "delta"])
def test_both_directions_are_covered_in_whichever_order_they_are_asked(question):
    """A short line may say of the second direction only that it is no worse."""
    rng = np.random.default_rng(21)
    unlike = 0
    for _ in range(12):
        mu, rate = np.exp(rng.uniform(-2, 0.5)), 10 ** rng.uniform(-3, -0.05)
        step = StepGroup(*np.array([[mu], [rate], [np.floor(10 ** rng.uniform(1, 3))]]))
        run = pair_atoms.GroupedSteps(np.float64(0.0), {"poisson": step})
        with np.errstate(all="ignore"):
            given = np.float64(10 ** rng.uniform(-9, -2))
            if question == "delta":
                given = method.bound("epsilon", run, given, (1,), 0).upper
            one, other, *both = (
                method.bound(question, run, given, signs, 0)
                for signs in ((1,), (-1,), (1, -1), (-1, 1))
            )
        unlike += one.lower > 1.001 * other.upper
        for bounds in both:
            assert bounds.upper >= max(one.lower, other.lower)
            assert bounds.lower <= max(one.upper, other.upper)
    assert unlike > 6
