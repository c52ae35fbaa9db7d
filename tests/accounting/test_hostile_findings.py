"""Defects found by attacking the accountant, each against a truth of its own."""

from __future__ import annotations

import math

import jax
import mpmath as mp
import numpy as np
import pytest

from dpjax import accounting as acc


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2)])
def test_an_empty_sweep_has_an_empty_answer(shape):
    def run(noise):
        return acc.Repeated(acc.PoissonSampled(acc.Gaussian(noise), 0.03), 5)

    empty = run(np.ones(shape))
    assert acc.epsilon(empty, 1e-5).shape == shape
    assert acc.delta(empty, 1.0).shape == shape
    assert [np.shape(end) for end in acc.epsilon_interval(empty, 1e-5)] == [shape, shape]
    assert acc.tradeoff(empty, [0.1, 0.2]).shape == (*shape, 2)


_BY_CURVES = {
    "zero-concentrated": lambda x: acc.ZeroConcentrated(x),
    "best of": lambda x: acc.BestOf(acc.Gaussian(1 / x), 10.0),
    "randomised": lambda x: acc.BestOf(acc.RandomizedSensitivity([0.1], [1.0], 1 / x), 5.0),
    "objective": lambda x: acc.Repeated(acc.ObjectivePerturbation(1 / x, 50.0, 0.25, 1.0), 2),
    "sum": lambda x: acc.Composed(
        (acc.ZeroConcentrated(x), acc.PoissonSampled(acc.Gaussian(1 / x), 0.1))
    ),
}


@pytest.mark.parametrize("make", _BY_CURVES.values(), ids=_BY_CURVES)
def test_a_sweep_of_curves_finds_the_order_that_its_settings_find(make):
    fields, deltas = np.geomspace(0.02, 2.0, 5), np.array([1e-3, 1e-5, 1e-9])
    sweep = acc.epsilon(make(fields[:, None]), deltas)
    singles = [[acc.epsilon(make(float(x)), float(d)) for d in deltas] for x in fields]
    np.testing.assert_allclose(sweep, singles, rtol=1e-9)


@pytest.mark.parametrize("law", ["geometric", "logarithmic", "poisson"])
def test_a_sweep_of_deltas_finds_the_orders_that_each_finds(law):
    run, deltas = acc.BestOf(acc.Gaussian(3.0), 10.0, law), np.array([[1e-3, 1e-5], [1e-7, 1e-9]])
    singles = [[acc.epsilon(run, float(d)) for d in row] for row in deltas]
    np.testing.assert_allclose(acc.epsilon(run, deltas), singles, rtol=1e-9)


@pytest.mark.parametrize(("rho", "delta"), [(0.1, 1e-5), (0.02728333, 1e-5), (1.0, 1e-8)])
def test_the_derivative_of_a_sum_of_curves_is_the_best_order(rho, delta):
    def slope(order):  # of ρα + log(1 − 1/α) − log(δα)/(α − 1), 0 at the best order
        return rho + mp.log(delta * order) / (order - 1) ** 2

    rho, delta = float(np.float32(rho)), float(np.float32(delta))
    order = mp.findroot(slope, 1 + math.sqrt(-math.log(delta) / rho))
    found = jax.grad(lambda rho: acc.epsilon(acc.ZeroConcentrated(rho), delta))(rho)
    np.testing.assert_allclose(float(found), float(order), rtol=2e-3)


@pytest.mark.parametrize(("records", "batch_size"), [(0, 100), (-1000, -100.1), (1000, 99), (2, 0)])
def test_a_declared_batch_of_too_few_records_contradicts_the_rate(records, batch_size):
    run = acc.PoissonSampled(acc.Gaussian(4.0), 0.1)
    with pytest.raises(acc.CertificateError, match="declared"):
        acc.certify(run, 1e-5, declared={"records": records, "batch_size": batch_size})
    acc.certify(run, 1e-5, declared={"records": 1000, "batch_size": 100})


def _one_step(sigma, rate, epsilon):
    """δ(ε) of one Poisson-sampled Gaussian step when a record is removed, in closed form."""
    sigma, rate, odds = mp.mpf(sigma), mp.mpf(rate), mp.exp(epsilon)
    t = sigma**2 * mp.log((odds - 1 + rate) / rate) + mp.mpf(1) / 2
    present = (1 - rate) * mp.ncdf(-t / sigma) + rate * mp.ncdf((1 - t) / sigma)
    return present - odds * mp.ncdf(-t / sigma)


@pytest.mark.parametrize(
    ("sigma", "rate", "delta"),
    [
        (37.56958293854035, 9.922475693327657e-05, 1.1564216102180107e-13),
        (0.48511416965619536, 2.355867459954182e-06, 2.3680071894474446e-08),
        (0.32004073743969, 0.70200505609627, 2.2489225130466e-11),
    ],
)
def test_one_step_that_no_line_resolves_is_priced_in_closed_form(sigma, rate, delta):
    run = acc.PoissonSampled(acc.Gaussian(sigma), rate)
    lower, upper = acc.epsilon_interval(run, delta)
    with mp.workdps(50):
        assert _one_step(sigma, rate, upper) <= delta <= _one_step(sigma, rate, lower)
    assert upper - lower <= 1e-9 * upper


@pytest.mark.parametrize("sigma", [1e-9, 1e-14, 1e-16, 1.9e-20])
@pytest.mark.at_length(every=4)
def test_the_price_of_next_to_no_noise_is_no_less_than_it_is(sigma):
    # Orders as near to one as they are best here have moments that lose all their digits.
    for rate, delta in ((1.0, 1e-300), (1.0, 1e-13), (0.5, 1e-13), (1e-6, 1e-300)):
        run = acc.PoissonSampled(acc.Gaussian(sigma), rate)
        with mp.workdps(120):
            assert _one_step(sigma, rate, acc.epsilon(run, delta)) <= delta
            for method in ("rdp", "pld"):
                found = acc.epsilon(run, delta, method=method)
                assert found == math.inf or _one_step(sigma, rate, found) <= delta


def test_the_slopes_of_one_step_are_those_of_the_closed_form():
    # A line that holds ε to 1e-10 here is off by 1.1 % in its slopes.
    sigma, rate, delta = 2.3787403106689453, 0.3861621618270874, 5.200157374929404e-06
    given = (sigma, rate, delta)
    found = jax.grad(
        lambda s, q, d: acc.epsilon(acc.PoissonSampled(acc.Gaussian(s), q), d), (0, 1, 2)
    )
    epsilon = mp.findroot(lambda e: mp.log(_one_step(sigma, rate, e) / delta), 0.93645707)
    by_epsilon = mp.diff(lambda e: _one_step(sigma, rate, e), epsilon)
    by_sigma = mp.diff(lambda s: _one_step(s, rate, epsilon), sigma)
    by_rate = mp.diff(lambda q: _one_step(sigma, q, epsilon), rate)
    truth = [float(v) for v in (-by_sigma / by_epsilon, -by_rate / by_epsilon, 1 / by_epsilon)]
    np.testing.assert_allclose(found(*given), truth, rtol=1e-5)


_AT_ANY_LOSS = {
    "one": acc.PoissonSampled(acc.Gaussian(1.0), 0.1),
    "seven": acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.1), 7),
    "pure": acc.PureDP(1.0, "add-remove"),
    "approximate": acc.ApproximateDP(1.0, 1e-6, "add-remove"),
    "both": acc.Composed((acc.Gaussian(3.0), acc.PureDP(1.0, "add-remove"))),
}


@pytest.mark.parametrize("run", _AT_ANY_LOSS.values(), ids=_AT_ANY_LOSS)
def test_delta_at_huge_losses_is_small_and_never_nothing_for_gaussian_noise(run):
    found = np.array([acc.delta(run, e) for e in (60.0, 800.0, 1e7, 1e308, np.inf)])
    pure = {"pure": 0.0, "approximate": 1e-6}
    known = next((v for k, v in pure.items() if run is _AT_ANY_LOSS[k]), None)
    if known is not None:
        np.testing.assert_allclose(found, known, rtol=1e-9)
        assert not np.any(np.signbit(found))
    else:  # the truth is below every float, and above 0
        assert np.all((found > 0) & (found < 1e-100))


def test_what_is_no_budget_is_calibrated_to_noise_without_end_under_a_trace():
    def noise(epsilon, delta):
        return acc.calibrate(acc.Gaussian, epsilon, delta)

    for given in ((np.nan, 1e-5), (-1.0, 1e-5), (1.0, np.nan), (1.0, 0.0), (1.0, 1.5)):
        assert jax.jit(noise)(*given) == np.inf


def test_a_sum_of_curves_is_rounded_up_in_the_programs_own_precision():
    """ε was 5e-9 below the truth in a float32 program, δ was 0, and a cast overflowed."""
    made = {
        "pure": lambda v: acc.PureDP(v, "add-remove"),
        "laplace": lambda v: acc.Repeated(acc.Laplace(v), 20),
        "zero": lambda v: acc.Composed((acc.ZeroConcentrated(v), acc.ZeroConcentrated(0.1))),
    }
    for name, make in made.items():
        for value in (0.0625, 0.3, 1.0):
            given = np.float32(value)
            exact = acc.epsilon(make(float(given)), 1e-3, method="rdp")
            found = float(jax.jit(lambda v: acc.epsilon(make(v), 1e-3, method="rdp"))(given))  # noqa: B023
            assert exact <= found <= exact * (1 + 3e-4), (name, value)
            exact = acc.delta(make(float(given)), 1.5, method="rdp")
            found = float(jax.jit(lambda v: acc.delta(make(v), 1.5, method="rdp"))(given))  # noqa: B023
            assert exact <= found <= max(exact * (1 + 1e-2), 1e-37), (name, value)
    assert jax.jit(lambda v: acc.delta(acc.ZeroConcentrated(v), 5.0))(np.float32(0.01)) > 0


@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
@pytest.mark.parametrize("noiseless", [acc.DiscreteGaussian(0.0, 1), acc.Laplace(1e-200)])
def test_a_release_without_noise_beside_sampled_steps_has_no_price(noiseless, adjacency):
    run = acc.Composed((noiseless, acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.5), 0.06), 9)))
    assert acc.epsilon(run, 1e-5, adjacency=adjacency) == math.inf
    assert acc.delta(run, 1.0, adjacency=adjacency) == 1.0


@pytest.mark.at_length(every=3)
@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
@pytest.mark.parametrize("stddev", [1e12, 1e15, 1e300])
def test_counts_that_tell_nothing_cost_nothing(stddev, adjacency):
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.5), 0.06), 200)
    whole = acc.Composed((acc.Histogram(stddev), run))
    alone, found = (acc.epsilon(one, 1e-5, adjacency=adjacency) for one in (run, whole))
    assert alone <= found <= alone * (1 + 1e-9)
    assert acc.delta(whole, 1e9, adjacency=adjacency) > 0
