"""Calibration: as full as possible, never over."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import accounting as acc
from dpjax.accounting.answers import pricing
from dpjax.accounting.answers.root_search import Calibration, CalibrationQuestion


def by_noise(sigma):
    return acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), 0.01), 1_000)


def by_steps(steps):
    return acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), steps)


def by_rate(rate):
    return acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), rate), 1_000)


def by_batch(batch):
    return acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(4.0), batch, 60_000), 1_000)


def price(run, **options):
    return acc.epsilon(run, 1e-5, method="rdp", **options)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_noise_is_full_and_never_over(epsilon):
    sigma = acc.calibrate(by_noise, epsilon, 1e-5, method="rdp")
    assert isinstance(sigma, float)
    assert float(np.float32(sigma)) == sigma  # survives a float32 program
    assert price(by_noise(sigma)) <= epsilon
    assert price(by_noise(sigma * (1 - 1e-6))) > epsilon


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 5.0])
def test_the_next_float_spends_too_much(epsilon):
    sigma = acc.calibrate(by_noise, epsilon, 1e-5, method="rdp")
    assert price(by_noise(float(np.nextafter(np.float32(sigma), np.float32(0))))) > epsilon
    rate = acc.calibrate(by_rate, epsilon, 1e-5, method="rdp")
    assert price(by_rate(rate)) <= epsilon
    assert price(by_rate(float(np.nextafter(np.float32(rate), np.float32(1))))) > epsilon


def test_few_prices_are_asked(monkeypatch):
    """Two of them are the answer's and its neighbour's, which say that it is as full as can be."""
    asked, ask = [], pricing.epsilon
    monkeypatch.setattr(pricing, "epsilon", lambda *a, **how: asked.append(a) or ask(*a, **how))
    for epsilon in (0.1, 0.5, 1, 2, 3, 4, 8):
        asked.clear()
        acc.calibrate(by_noise, epsilon, 1e-5, method="rdp")
        assert len(asked) <= 8, epsilon


def test_known_noise():
    # contour integration, recorded with the oracles: σ = 1.414619 at ε = 1
    np.testing.assert_allclose(acc.calibrate(by_noise, 1.0, 1e-5), 1.414619, rtol=1e-6)
    # analytic Gaussian (Balle and Wang 2018), 20 digits: ε = 0.05, δ = 1e-5
    sigma = acc.calibrate(acc.Gaussian, 0.05, 1e-5)
    np.testing.assert_allclose(sigma, 57.77069524456454, rtol=1e-6)


def test_recorded_gaussian_noise(oracles):
    rows = oracles["gaussian_sigma_unit_sens"]
    epsilon, delta = (np.array([r["params"][k] for r in rows]) for k in ("eps", "delta"))
    sigma = acc.calibrate(acc.Gaussian, epsilon, delta)
    want = np.array([r["value"] for r in rows])
    assert np.all(sigma >= want * (1 - 1e-12))
    np.testing.assert_allclose(sigma, want, rtol=1e-6)


def test_whole_parameters_come_back_whole():
    steps = acc.calibrate(by_steps, 2.0, 1e-5, method="rdp")
    assert isinstance(steps, int)
    assert price(by_steps(steps)) <= 2.0 < price(by_steps(steps + 1))
    replace = acc.Adjacency.REPLACE_ONE
    batch = acc.calibrate(by_batch, 2.0, 1e-5, method="rdp", adjacency=replace)
    assert isinstance(batch, int)
    assert price(by_batch(batch), adjacency=replace) <= 2.0
    assert price(by_batch(batch + 1), adjacency=replace) > 2.0


def test_rate_and_its_natural_limit():
    rate = acc.calibrate(by_rate, 2.0, 1e-5, method="rdp")
    assert price(by_rate(rate)) <= 2.0 < price(by_rate(rate * (1 + 1e-6)))
    assert acc.calibrate(by_rate, 1e6, 1e-5, method="rdp") == 1.0  # more than all is not to be had


def test_targets_in_an_array_equal_a_loop():
    epsilon = np.array([[0.5, 1.0], [2.0, 4.0]])
    together = acc.calibrate(by_noise, epsilon, 1e-5, method="rdp")
    assert together.shape == epsilon.shape
    apart = [acc.calibrate(by_noise, e, 1e-5, method="rdp") for e in epsilon.ravel()]
    np.testing.assert_allclose(together.ravel(), apart, rtol=3e-7)
    assert np.all(price(by_noise(together)) <= epsilon)


def test_impossible_budget_says_the_smallest():
    with pytest.raises(acc.ImpossibleBudget, match=r"smallest reachable epsilon is \d.*steps"):
        acc.calibrate(by_noise, 0.01, 1e-5, method="rdp", bounds=(0.5, 2.0))
    with pytest.raises(acc.ImpossibleBudget, match="raise the noise"):
        acc.calibrate(lambda t: acc.Repeated(acc.Gaussian(0.1), t), 1.0, 1e-5, method="rdp")


@pytest.mark.at_length
def test_a_budget_of_almost_nothing_warns_of_nothing():
    """Between two parameters of one price the slope is 0; warnings are errors here."""

    def make(noise):
        return acc.Repeated(acc.PoissonSampled(acc.Gaussian(noise), 0.01), 100)

    noise = acc.calibrate(make, 1e-9, 1e-4)
    assert acc.epsilon(make(noise), 1e-4) <= 1e-9 < acc.epsilon(make(0.9 * noise), 1e-4)


def test_not_monotone_is_refused():
    def make(s):  # the most noise in the middle, less of it at the upper end than at the lower
        s = np.asarray(s, float)
        return acc.Gaussian(np.where(s < 1.0, 2 * s, 1.0 / s))

    between = price(make(0.3))
    assert price(make(5.0)) > between > price(make(1.0))
    with pytest.raises(ValueError, match="does both"):
        acc.calibrate(make, between, 1e-5, method="rdp", bounds=(0.4, 1e3))


@pytest.mark.parametrize("budget", [0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
def test_five_prices_at_most_and_the_answer_is_full(monkeypatch, budget):
    asked, epsilon = [], pricing.epsilon
    monkeypatch.setattr(
        pricing,
        "epsilon",
        lambda run, *args, **how: asked.append(run) or epsilon(run, *args, **how),
    )
    sigma = acc.calibrate(by_noise, budget, 1e-5, method="rdp")
    assert len(asked) <= 5
    less = float(np.nextafter(np.float32(sigma), np.float32(0)))
    assert price(by_noise(sigma)) <= budget < price(by_noise(less))


@pytest.mark.parametrize("off", [0.0, 1e-9, 1e-7, 1e-6, 1e-4])
def test_the_next_parameter_exceeds_the_budget_where_bounds_are_rough(off):
    """A grid's bounds are off by their rounding: here by as much, at each noise by its own part."""

    def roughen(run):
        sigma = float(run.noise_multiplier)
        part = np.random.default_rng(abs(hash((sigma, seed)))).uniform(-1, 1)
        return (1.3 / sigma + 0.2 / sigma**2) * (1 + off * part)

    for seed in range(40):
        target = np.asarray(0.37 * (1 + 1e-3 * seed))
        settings = (False, 1e-5, acc.Adjacency.ADD_REMOVE, "best", roughen)
        question = CalibrationQuestion(acc.Gaussian, *settings)
        sigma = float(Calibration(question, target, None).solve()[0])
        less = float(np.nextafter(np.float32(sigma), np.float32(0)))
        assert roughen(acc.Gaussian(sigma)) <= target < roughen(acc.Gaussian(less))


@pytest.mark.parametrize("method", ["rdp", "rdp_classic", "gdp"])
def test_formulas_are_rounded_far_below_a_float32_step(method):
    """So that a root tells where the next parameter is, without its price."""
    make = acc.Gaussian if method == "gdp" else by_noise
    for start in (0.7, 3.0):
        noise = [np.float32(start)]
        for _ in range(15):
            noise.append(np.nextafter(noise[-1], np.float32(9)))
        costs = [acc.epsilon(make(float(s)), 1e-5, method=method) for s in noise]
        place = np.arange(16.0)
        line = np.polyfit(place, costs, 1)
        assert np.max(np.abs(costs - np.polyval(line, place))) < 1e-3 * abs(line[0])


def test_rates_without_an_answer_below_those_with_one_are_passed_over():
    """The contour has none at rates around 1e-7, where the search outwards may come by."""
    rate = acc.calibrate(by_rate, 2.0, 1e-5, method="contour")
    assert 2.0 * (1 - 1e-5) <= acc.epsilon(by_rate(rate), 1e-5, method="contour") <= 2.0
    assert acc.epsilon(by_rate(1e-7), 1e-5, method="contour") == np.inf


def test_no_answer_is_not_a_high_one():
    """Of one record in a batch the contour has no answer, and ε rises with the batch size."""

    def make(batch):
        return acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(1.4), batch, 25_000), 100)

    settings = {"adjacency": acc.Adjacency.REPLACE_ONE, "method": "contour"}
    assert acc.epsilon(make(1), 1e-6, **settings) == np.inf
    batch = acc.calibrate(make, 6.6, 1e-6, **settings)
    costs = [acc.epsilon(make(size), 1e-6, **settings) for size in (batch, batch + 1)]
    assert costs[0] <= 6.6 < costs[1]


def test_answers_at_one_end_of_the_bounds_do_not_hide_the_direction():
    """The contour answers rates from 1e-4 on: one answer told that ε falls with the rate."""

    def make(rate):
        return acc.Repeated(acc.PoissonSampled(acc.Gaussian(15.5), rate), 1_544)

    settings = {"delta": 1.1e-14, "method": "contour"}
    rate = acc.calibrate(make, 0.0033, bounds=(5e-5, 0.01), **settings)
    dearer = float(np.nextafter(np.float32(rate), np.float32(1)))
    costs = [acc.epsilon(make(value), **settings) for value in (rate, dearer)]
    assert costs[0] <= 0.0033 < costs[1]
    assert np.isinf(acc.epsilon(make(5e-5), **settings))


@pytest.fixture
def answered(monkeypatch):
    """A method asked by name answers the noise that a test says, as the contour some rates."""
    ask, known = pricing.epsilon, lambda noise: noise < np.inf

    def some(run, *rest, method="best", **how):
        answers = (method == "best") | known(np.asarray(run.noise_multiplier))
        return np.where(answers, ask(run, *rest, method=method, **how), np.inf)

    def say(which):
        nonlocal known
        known = which

    monkeypatch.setattr(pricing, "epsilon", some)
    return say


def test_answers_that_the_search_passes_are_found(answered):
    full = acc.calibrate(acc.Gaussian, 0.5, 1e-5, method="gdp")
    answered(lambda noise: noise < 1.001 * full)
    assert acc.calibrate(acc.Gaussian, 0.5, 1e-5, method="gdp") == full
    several = acc.calibrate(acc.Gaussian, [4.0, 0.5], 1e-5, method="gdp")
    np.testing.assert_allclose(several[1], full, rtol=3e-7)


def test_no_answer_is_not_an_impossible_budget(answered):
    answered(lambda noise: noise < 3.0)
    for target in (0.5, [4.0, 0.5]):
        with pytest.raises(acc.UnsupportedQuery) as refusal:
            acc.calibrate(acc.Gaussian, target, 1e-5, method="rdp")
        assert str(refusal.value) == (
            "Gaussian has no epsilon by method 'rdp' about parameter 7.03183, where epsilon=0.5 is "
            "kept; method='gdp' answers"
        )
    # A trace cannot raise.
    assert jax.jit(lambda e: acc.calibrate(acc.Gaussian, e, 1e-5, method="rdp"))(0.5) == np.inf
    with pytest.raises(acc.ImpossibleBudget, match=r"smallest reachable epsilon is 0\.3\d+, at"):
        acc.calibrate(acc.Gaussian, 0.3, 1e-5, method="rdp", bounds=(1.0, 9.0))


def test_monotone_up_to_small_steps_is_accepted():
    def make(s):  # as two methods that take over from each other might
        s = np.asarray(s, float)
        return acc.Gaussian(s * (1 + 1e-3 * np.sign(np.sin(40 * s))))

    sigma = acc.calibrate(make, 1.0, 1e-5, method="rdp", bounds=(0.5, 50.0))
    assert 0.99 <= price(make(sigma)) <= 1.0


@pytest.mark.parametrize(
    ("epsilon", "delta", "name"),
    [
        (0.0, 1e-5, "epsilon"),
        (-1.0, 1e-5, "epsilon"),
        (np.nan, 1e-5, "epsilon"),
        (1.0, 0.0, "delta"),
    ],
)
def test_bad_budgets(epsilon, delta, name):
    with pytest.raises(ValueError, match=name):
        acc.calibrate(by_noise, epsilon, delta)


@pytest.mark.at_length
def test_under_a_trace_with_exact_derivative():
    def f(e):
        return acc.calibrate(by_noise, e, 1e-5, method="rdp")

    np.testing.assert_allclose(jax.jit(f)(2.0), f(2.0), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(f)(jnp.array([1.0, 2.0])), [f(1.0), f(2.0)], rtol=1e-6)
    slope = (f(2.02) - f(1.98)) / 0.04
    np.testing.assert_allclose(jax.grad(f)(2.0), slope, rtol=2e-3)


@pytest.mark.at_length
def test_under_a_trace_an_impossible_budget_is_the_end_that_spends_nothing():
    """Noise without end, no steps; no NaN, also in the derivative, and the others are answered."""

    def noise(e):
        return acc.calibrate(by_noise, e, 1e-5, method="rdp", bounds=(0.5, 2.0))

    def steps(e):
        run = lambda t: acc.Repeated(acc.Gaussian(0.1), t)  # noqa: E731
        return acc.calibrate(run, e, 1e-5, method="rdp")

    value, slope = jax.vmap(jax.value_and_grad(noise))(jnp.array([0.01, 2.0, -1.0, jnp.nan]))
    np.testing.assert_array_equal(value, np.array([np.inf, noise(2.0), np.inf, np.inf], "f4"))
    assert np.all(np.isfinite(slope))
    assert slope[1] < 0
    assert jax.jit(steps)(1.0) == 0.0


@settings(max_examples=10)
@given(st.floats(0.05, 20.0), st.floats(1e-10, 1e-2), st.floats(1e-4, 1.0), st.integers(1, 5_000))
def test_any_budget_is_kept(epsilon, delta, rate, steps):
    def make(sigma):
        return acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sigma = acc.calibrate(make, epsilon, delta, method="rdp")
        assert acc.epsilon(make(sigma), delta, method="rdp") <= epsilon
        assert acc.epsilon(make(float(np.float32(sigma))), delta, method="rdp") <= epsilon


@pytest.mark.parametrize(("sigma", "epsilon"), [(50.0, 0.05), (50.0, 0.3), (100.0, 0.02)])
def test_steps_are_full_where_the_first_ones_cost_nothing(sigma, epsilon):
    """Against Gaussian composition: one step of noise σ/√t."""
    steps = acc.calibrate(lambda t: acc.Repeated(acc.Gaussian(sigma), t), epsilon, 0.01)
    for more, over in ((0, False), (1, True)):
        whole = acc.Gaussian(sigma / np.sqrt(steps + more))
        assert (acc.epsilon(whole, 0.01) > epsilon) is over


@pytest.mark.parametrize("epsilon", [2.0, 50.0])
def test_a_parameter_that_does_not_matter_at_first_is_searched_to_its_end(epsilon):
    """Noise of 1 up to 20, of a tenth of the parameter from there on."""
    make = lambda s: acc.Gaussian(1.0 if s < 20 else s / 10)  # noqa: E731
    found = acc.calibrate(make, epsilon, 1e-5)
    assert acc.epsilon(make(found), 1e-5) <= epsilon
    assert found == (2.0**-40 if epsilon == 50 else 20.0)


@pytest.mark.parametrize("bounds", [None, (1, 10_000)])
@pytest.mark.parametrize("budgets", [np.array([1.0, 2.0]), 2.0], ids=["two", "one"])
@pytest.mark.at_length(every=4)
def test_steps_without_an_answer_do_not_end_the_search(budgets, bounds):
    """The contour answers one step (the closed form) and four, and none between them."""
    price = functools.partial(acc.epsilon, delta=1e-5, method="contour")
    assert np.isfinite(price(by_steps(1)))
    assert np.isinf(price(by_steps(2)))
    found = acc.calibrate(by_steps, budgets, 1e-5, method="contour", bounds=bounds)
    assert np.shape(found) == np.shape(budgets)
    for steps, budget in zip(np.ravel(found).tolist(), np.ravel(budgets), strict=True):
        assert price(by_steps(steps)) <= budget < price(by_steps(steps + 1))


_BY_NOISE = lambda s: acc.Repeated(acc.PoissonSampled(acc.Gaussian(s), 0.01), 5)  # noqa: E731
_BY_RATE = lambda q: acc.PoissonSampled(acc.Gaussian(1e-3), q)  # noqa: E731


@pytest.mark.parametrize(
    ("make", "bounds", "least"),
    [
        (_BY_NOISE, (0.5, 3.0), 0.5),
        (_BY_NOISE, None, 2.0**-40),
        (_BY_RATE, (0.01, 0.05), 0.05),
    ],
    ids=["of noise within bounds", "of noise", "of a rate"],
)
@pytest.mark.at_length(every=2)
def test_a_budget_that_any_noise_keeps_takes_the_least(make, bounds, least):
    """At most a tenth of the records are ever seen, so that δ = 0.1 allows ε = 0 at any noise."""
    assert acc.calibrate(make, 1.0, 0.1, bounds=bounds) == least
