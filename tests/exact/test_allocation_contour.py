"""Contour integration of random allocation: against brute force, exact sums and other bounds."""

from __future__ import annotations

import itertools
import os

import jax
import mpmath
import numpy as np
import pytest

from benchmarks import random_allocation
from dpjax import accounting as acc
from dpjax.accounting.answers.methods import METHODS
from dpjax.accounting.contour.allocation import bounds
from dpjax.accounting.contour.composition import Composition, Steps
from dpjax.accounting.pairs import (
    allocation_inversion,
    allocation_line,
    allocation_powers,
    allocation_rays,
    allocation_series,
    allocation_transform,
)
from dpjax.accounting.pairs import allocation_moments as moments
from dpjax.accounting.pairs.allocation_line import AllocationLine
from dpjax.accounting.pairs.allocation_transform import moment, values
from tests.accounting.allocation_truth import delta_of_two

SETTINGS = 300 if os.environ.get("DPJAX_ALL_RELEASES") else 3
ADD_REMOVE = acc.Adjacency.ADD_REMOVE


def _run(sigma, steps, epochs=1, chosen=1):
    return acc.Repeated(acc.RandomAllocation(acc.Gaussian(sigma), steps, chosen), epochs)


def _interval(run, delta, name):
    """Both ends by one method."""
    method = next(m for m in METHODS if m.name == name and m.supports(run, ADD_REMOVE))
    ends = (f(run, delta, ADD_REMOVE) for f in (method.epsilon_lower, method.epsilon))
    return tuple(float(v) for v in ends)


def _delta(sigma, steps, epochs, epsilon, sign):
    """The certified ends of δ(ε) in one direction."""
    group = Steps(np.array([1 / sigma]), np.array([1 / steps]), np.array([float(epochs)]))
    return bounds("delta", Composition(np.float64(0), {"allocation": group}), epsilon, (sign,))


# --- the moments


@pytest.mark.parametrize(("mu", "t"), [(1.0, 3), (0.3, 5), (3.0, 2)])
def test_whole_moments_are_multinomial_sums(mu, t):
    known = moments.whole_moments(mu, float(t), 6)
    with mpmath.workdps(40):
        for m in range(7):
            total = mpmath.mpf(0)
            for powers in itertools.product(range(m + 1), repeat=t):
                if sum(powers) == m:
                    ways = mpmath.factorial(m)
                    for k in powers:
                        ways /= mpmath.factorial(k)
                    rise = sum(k * (k - 1) for k in powers)
                    total += ways * mpmath.exp(mpmath.mpf(mu) ** 2 * rise / 2)
            exact = mpmath.log(total / mpmath.mpf(t) ** m)
            assert abs(known[m] - exact) <= 1e-13 * (1 + exact)


def test_both_ways_to_the_whole_moments_agree():
    """By repeated squaring at few steps, by the recurrence at many."""
    few = moments.whole_moments(0.7, 100.0, 120)
    many = moments.whole_moments(0.7, 100.0, 99)
    np.testing.assert_allclose(few[:100], many, rtol=1e-12, atol=1e-12)


def _brute(mu, t, p, y):
    """E[W^p] and E[W^{p−iy}]/E[W^p] of two or three steps, by the trapezoid rule in all of them."""
    h = 0.1 if t == 2 else 0.3
    z = np.arange(-11.0 + min(p, 0) * mu, 11.0 + max(p, 0) * mu, h)
    ratio = np.exp(mu * z - mu * mu / 2) / t
    mass = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * h
    total, weight = ratio, mass
    for _ in range(t - 1):
        total, weight = np.add.outer(total, ratio), np.multiply.outer(weight, mass)
    loss = np.log(total).ravel()
    weight = weight.ravel() * np.exp(p * loss)
    return np.log(weight.sum()), np.exp(-1j * np.outer(y, loss)) @ weight / weight.sum()


@pytest.mark.parametrize(
    ("mu", "t", "p"),
    [
        (1.0, 2, 2.5),
        (1.0, 2, -1.3),
        (0.4, 2, 6.3),
        (2.0, 2, 3.1),
        (2.0, 2, -0.4),
        (0.5, 3, 2.2),
        (0.05, 2, -190.3),  # Γ(190.3) is larger than any number
    ],
)
def test_complex_moments_are_those_of_brute_force_within_their_bound(mu, t, p):
    count, step = 12, 1.8
    exact, line = _brute(mu, t, p, step * np.arange(count))
    found = values(mu, float(t), p, step, count)
    assert abs(found.log_moment - exact) <= found.moment_error + 2e-13
    assert found.moment_error <= 1e-10
    assert np.all(np.abs(found.value - line) <= found.error + 1e-13)
    assert np.all(found.error <= 1e-10)


@pytest.mark.parametrize(("mu", "t"), [(1.0, 20.0), (0.1, 1e3), (2.0, 1e5), (0.02, 10.0), (2.0, 4)])
def test_the_integral_gives_the_whole_moments_it_does_not_read(mu, t):
    """At a whole p the ray's sum is an independent way to the multinomial sum."""
    from dpjax.accounting.pairs.allocation_rays import band

    known = moments.whole_moments(mu, float(t))
    for p in (2.0, 3.0, 5.0, 9.0):
        if known[int(p) + 3] > 500:
            continue
        value, error = band(mu, float(t), p, np.zeros(1), None)
        exact = np.exp(known[int(p)] - moments.lower(mu, float(t), p))
        assert abs(value[0] - exact) <= error[0] + 1e-12 * exact
        assert error[0] <= 1e-8 * exact


def test_much_noise_over_many_epochs_is_resolved():
    """Here the contour once had no answer: the loss distribution brackets it."""
    for sigma in (40.0, 20.0):
        run = _run(sigma, 1_000, 100)
        low, high = _interval(run, 1e-6, "contour")
        assert 0 < high - low <= 1e-9 * high
    coarse = _interval(run, 1e-6, "pld")
    assert coarse[0] <= high
    assert low <= coarse[1] <= high * (1 + 1e-3)


def test_more_derivatives_give_the_same_values(monkeypatch):
    """From |Im w| = 300 on n is larger than it need be."""
    monkeypatch.setattr(allocation_series, "REACH", 0.0)  # which would have them all
    mu, t, p, step = 0.05, 1e3, 20.4, 40.0
    found = values(mu, t, p, step, 9, 100.0)  # y up to 320
    few = values(mu, t, p, step, 7, 100.0)  # and up to 240
    assert np.all(found.error < 1e-8)
    assert np.all(np.abs(found.value[:7] - few.value) <= found.error[:7] + few.error)
    assert np.any(found.value[1:7] != few.value[1:])


def test_the_kept_intervals_are_met_again():
    """Cheap ones of the settings of `python -m benchmarks.random_allocation --intervals`."""
    every = random_allocation.kept()
    assert len(every) == 100
    cheap = [case for case in every if case[0][1] > 100 and case[0][2] > 20 and case[0][0] < 5]
    for setting, low, high in cheap[:5]:
        assert random_allocation.against(setting, low, high)[0] == "same"
        assert random_allocation.against(setting, high * 1.01, high * 1.02)[0] == "apart"
        middle = 0.5 * (low + high)
        narrow = random_allocation.against(setting, middle, middle)[0]
        assert narrow == ("wider" if high - low > 1e-11 * high else "same")


def test_a_bound_that_is_a_tenth_would_be_seen():
    """The bounds on the moments are not so wide that any value would pass."""
    for p in (1.4, 7.7, -2.5):
        _, error = moment(1.0, 20.0, p)
        above, below = (moment(1.0, 20.0, p + d)[0] for d in (1e-6, -1e-6))
        assert error < 1e-10 < abs(above - below)


def test_moments_are_between_their_cheap_bounds():
    for mu, t, p in [(1.0, 20.0, 2.5), (0.3, 7.0, 11.4), (2.0, 1e3, 3.3)]:
        log, error = moment(mu, t, p)
        assert moments.lower(mu, t, p) <= log + error
        assert log - error <= moments.upper(mu, t, p)
    for mu, t, p in [(1.0, 20.0, -2.5), (0.3, 7.0, -11.4), (2.0, 1e3, -0.3)]:
        log, error = moment(mu, t, p)
        assert log + error > 0
        assert log - error <= moments.negative_upper(mu, t, -p)


def test_a_ray_that_turns_far_is_not_lost_in_its_size():
    """Its integral is larger than any number: 3.6 to 5 deviations of the loss to the side."""
    mu, t = 1 / 28, 1e3
    step = 0.09 / allocation_series.deviation(mu, t)
    found = values(mu, t, -380.0, step, 56)
    assert np.all(found.error <= 1e-9)
    near = np.exp(-0.5 * (0.09 * np.arange(56)) ** 2)  # W is about a normal variable
    assert np.all(np.abs(np.abs(found.value) - near) <= 0.02 * near + 1e-9)


def test_one_step_is_the_gaussian():
    found = values(0.7, 1.0, 3.2, 0.5, 9)
    y = 0.5 * np.arange(9)
    w = 3.2 - 1j * y
    exact = np.exp(0.5 * 0.49 * (w * (w - 1) - 3.2 * 2.2))
    np.testing.assert_allclose(found.value, exact, atol=1e-14)


def test_rises_bound_the_moments():
    line = AllocationLine()
    more = np.array([0.1, 0.3, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0])
    for sign, c in ((1, 3.3), (-1, 2.2)):
        rises = line.rises(sign, 1.0, 1 / 50, c, more)
        at = c + 1 if sign > 0 else -c
        low, _ = moment(1.0, 50.0, at)
        for alpha, rise in zip(more[:6], rises, strict=False):
            high, error = moment(1.0, 50.0, at + sign * alpha)
            assert high - error - low <= rise + 1e-12


# --- δ and ε


@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 0.5), (0.6, 2.0), (3.0, 0.3), (28.0, 0.13)])
def test_two_steps_by_quadrature(sigma, epsilon):
    for sign, exact in zip((1, -1), delta_of_two(sigma, epsilon), strict=True):
        found = _delta(sigma, 2, 1, epsilon, sign)
        assert found.lower <= exact * (1 + 1e-14)
        assert exact * (1 - 1e-14) <= found.upper
        assert found.upper - found.lower <= 1e-8 * exact


# sigma, steps, epochs, epsilon, δ remove, δ add: an independent, unbounded implementation
_KNOWN = [
    (1.0, 20, 1, 0.5, 7.937e-3, 3.935e-3),
    (2.0, 20, 1, 0.2, 2.595e-3, 2.388e-3),
    (1.0, 100, 10, 2.0, 7.276e-7, 4.198e-8),
]


@pytest.mark.parametrize("setting", _KNOWN)
def test_known_values(setting):
    *asked, remove, add = setting
    for sign, known in ((1, remove), (-1, add)):
        found = _delta(*asked, sign)
        assert abs(found.upper / known - 1) < 2e-4  # four digits are known
        assert found.upper - found.lower <= 1e-8 * found.upper


# Feldman and Shenfeld 2026: sigma, steps, the interval of ε at δ = 1e-5 that their package reports
@pytest.mark.parametrize(
    ("sigma", "steps", "low", "high"),
    [(2.0, 20, 0.4184, 0.4278), (1.0, 20, 1.6062, 1.6163), (1.0, 100, 0.6172, 0.6279)],
)
def test_published_intervals_contain_ours(sigma, steps, low, high):
    lower, upper = acc.epsilon_interval(_run(sigma, steps), delta=1e-5)
    assert low <= lower <= upper <= high
    assert upper - lower <= 1e-7 * upper


def test_a_line_beyond_the_whole_moments_is_met_by_one_within_them(monkeypatch):
    """W varies so little that the saddle lies far beyond the largest whole moment computed."""
    line, run = AllocationLine(), (40.0, 1_000, 50)
    best = [_delta(*run, 0.02, sign) for sign in (1, -1)]
    for sign in (1, -1):
        assert line.most_tilt(sign, 1 / 40, 1e-3, 50.0) > 1_000
    monkeypatch.setattr(allocation_line, "_summed", lambda *_: 0.0)
    monkeypatch.setattr(allocation_series, "REACH", 0.0)
    monkeypatch.setattr(allocation_inversion, "LEAST", np.inf)
    allocation_transform._moment.cache_clear()
    for sign, close in zip((1, -1), best, strict=True):
        rays = _delta(*run, 0.02, sign)
        assert rays.lower <= close.upper
        assert close.lower <= rays.upper
        assert close.upper - close.lower <= 1e-9 * close.upper < 0.1 * (rays.upper - rays.lower)
    allocation_transform._moment.cache_clear()


def test_loss_distributions_agree_in_corners():
    rng = np.random.default_rng(7)
    for number in range(SETTINGS):
        # the first ones are settings that the contour resolves
        few = number < 3
        spread = (np.log(0.5), np.log(3)) if few else (np.log(0.15), np.log(30))
        sigma, epochs = np.exp(rng.uniform(*spread)), int(rng.integers(1, 60))
        steps, delta = (
            int(np.exp(rng.uniform(np.log(2), np.log(300)))),
            10.0 ** rng.uniform(-12, -2),
        )
        run = _run(float(sigma), steps, epochs)
        lower, upper = _interval(run, delta, "contour")
        pld = _interval(run, delta, "pld")
        assert pld[0] <= upper * (1 + 1e-12), (run, delta)
        assert lower <= pld[1] * (1 + 1e-12), (run, delta)
        assert upper - lower <= 1e-6 * upper or not few, (run, delta)


def test_one_step_of_one_is_one_release():
    for run in (_run(1.3, 1, 5), _run(1.3, 4, 5, chosen=4)):
        plain = acc.Repeated(acc.Gaussian(1.3), 5 if run.mechanism.steps == 1 else 20)
        assert acc.epsilon(run, delta=1e-6, method="contour") == pytest.approx(
            acc.epsilon(plain, delta=1e-6), rel=1e-8
        )


def test_several_chosen_are_as_many_shorter_runs():
    parts = acc.Composed((_run(1.0, 3, 2), _run(1.0, 4, 1)))
    ours = acc.epsilon(_run(1.0, 10, 1, chosen=3), delta=1e-5, method="contour")
    assert ours == pytest.approx(acc.epsilon(parts, delta=1e-5, method="contour"), rel=1e-9)


def test_a_mixed_run_lies_within_the_loss_distributions():
    sampled = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 100)
    run = acc.Composed((_run(1.0, 100, 10), acc.Gaussian(5.0), sampled))
    lower, upper = _interval(run, 1e-5, "contour")
    pld = _interval(run, 1e-5, "pld")
    assert pld[0] <= upper
    assert lower <= pld[1]
    assert upper - lower <= 1e-8 * upper


def test_much_noise_over_many_steps_lies_within_the_loss_distributions():
    run = _run(40.0, 3000, 1)
    lower, upper = _interval(run, 1e-9, "contour")
    pld = _interval(run, 1e-9, "pld")
    assert pld[0] <= upper
    assert lower <= pld[1]
    assert 0 < upper - lower <= 1e-8 * upper


@pytest.mark.parametrize("steps", [1e9])
def test_very_many_steps_are_valid(steps):
    found = acc.epsilon(_run(1.0, steps, 100), delta=1e-8, method="contour")
    assert found >= _interval(_run(1.0, steps, 100), 1e-8, "pld")[0]


@pytest.mark.parametrize(
    "run", [_run(1e3, 7), _run(1e3, 7, 3), _run(50.0, 1e9, 1e6), _run(1e120, 2)]
)
def test_no_question_is_too_easy_for_an_answer(run):
    """An ε far beyond what is lost: no saddle is found, and δ is bounded nevertheless."""
    found = acc.delta(run, epsilon=0.1, method="contour")
    assert 0 <= found <= 1
    assert acc.epsilon(run, delta=1e-13, method="contour") >= 0
    assert acc.delta(run, epsilon=0.1) <= acc.delta(acc.Gaussian(50.0), epsilon=0.1)


def test_under_jit_vmap_and_grad():
    ask = lambda s: acc.epsilon(_run(s, 20, 2), delta=1e-5, method="contour")  # noqa: E731
    plain = [ask(1.0), ask(2.0)]
    np.testing.assert_allclose(jax.jit(ask)(1.0), plain[0], rtol=1e-6)
    both = jax.jit(jax.vmap(ask))(jax.numpy.array([1.0, 2.0]))
    np.testing.assert_allclose(both, plain, rtol=1e-6)
    slope = (ask(1.0005) - ask(0.9995)) / 1e-3
    np.testing.assert_allclose(jax.grad(ask)(1.0), slope, rtol=1e-4)


# --- Rényi curves


def test_rdp_at_whole_orders_is_the_multinomial_sum():
    """Two steps, orders 2 and 3, by hand: E[W²] = (1 + e^{μ²})/2, E[W³] = (e^{3μ²} + 3e^{μ²})/4."""
    grown = np.exp(0.25)
    exact = [np.log((1 + grown) / 2), np.log((grown**3 + 3 * grown) / 4) / 2]
    ours = acc.rdp(_run(2.0, 2), np.array([2.0, 3.0]))
    np.testing.assert_allclose(ours, exact, rtol=2e-9)
    assert np.all(ours >= exact)


def test_rdp_at_real_orders_is_that_of_brute_force():
    for order in (1.3, 2.7, 6.4):
        exact = max(_brute(0.8, 2, p, np.zeros(1))[0] for p in (order, 1 - order)) / (order - 1)
        ours = float(acc.rdp(_run(1.25, 2, 7), np.array([order]))[0])
        assert 7 * exact <= ours <= 7 * exact * (1 + 1e-8)


def test_rdp_is_above_the_tight_answer_and_near_it():
    run = _run(1.0, 20, 2)
    tight = acc.epsilon(run, delta=1e-5)
    assert tight < acc.epsilon(run, delta=1e-5, method="rdp") < 1.6 * tight
    more = acc.Composed((run, acc.ZeroConcentrated(0.01)))
    assert acc.epsilon(more, delta=1e-5) > tight


def test_rdp_of_one_step_and_beyond_every_order():
    orders = np.array([1.0, 1.5, 300.0, np.inf])
    one = acc.rdp(_run(1.0, 1), orders)
    np.testing.assert_allclose(one[1:3], [0.75, 150.0], rtol=1e-8)
    assert one[0] == one[3] == np.inf
    assert acc.rdp(_run(1.0, 50), orders)[2] <= 150.0 * (1 + 1e-8)


@pytest.mark.parametrize("steps", [2, 3, 49, 999_999_999, 2_000_000_001, 10**12 + 1])
def test_no_step_is_added_to_those_there_are(steps):
    """Of 10⁹ − 1 steps the contour made 10⁹, whose loss is smaller."""
    assert moments.steps_of(1 / steps) == steps


@pytest.mark.parametrize(("mu", "t", "p", "step"), [(0.2, 1e3, 68.7, 4.0), (0.1, 300.0, 40.2, 3.0)])
def test_a_power_is_bounded_where_few_terms_and_points_are_computed(mu, t, p, step, monkeypatch):
    """Beside all orders, for one use: sums of other terms."""
    uses, count = 100.0, 60
    short = values(mu, t, p, step, count, uses)
    assert allocation_powers._terms(mu, t, int(p) + 3, 0.5) < p / 2
    monkeypatch.setattr(allocation_powers, "_terms", lambda mu, t, n, real: n)
    whole = values(mu, t, p, step, count)
    assert np.all(np.abs(short.value - whole.value) <= short.error + whole.error)
    ended = short.value == 0
    assert 0 < np.sum(ended) < count - 5
    # There the power is nothing, and so is its error.
    assert np.all(short.error[ended] ** uses < 1e-17)
    assert np.all(short.error[~ended] < 1e-8)


def test_much_noise_over_many_epochs_has_a_narrow_interval():
    for sigma, width in ((5.0, 1e-8), (10.0, 1e-6)):
        run = _run(sigma, 1_000, 100)
        low, high = _interval(run, 1e-6, "contour")
        assert 0 < high - low <= width * high
        other = _interval(run, 1e-6, "pld")
        assert other[0] <= high
        assert low <= other[1]


@pytest.mark.parametrize(
    ("sigma", "p"), [(225.0, -600.0), (41.0, -467.0), (20.0, -500.0), (81.0, -1110.0)]
)
def test_factors_below_the_least_float_are_told(sigma, p):
    """Two steps, W = e^{−μ²/2 + μu}cosh μv: b_0 = e^{−s/2} may be less than any float."""
    mu = 1 / sigma
    v = np.arange(-30.0, 30.0, 0.01)
    kept = -0.5 * v * v + p * np.log(np.cosh(mu * v / np.sqrt(2)))
    kept = np.log(0.01 / np.sqrt(2 * np.pi)) + np.logaddexp.reduce(kept)
    exact = -0.5 * mu * mu * p + 0.25 * mu * mu * p * p + kept
    value, error = allocation_rays.band(mu, 2.0, p, np.zeros(1), None)
    assert abs(value[0].real * np.exp(-exact) - 1) <= error[0] * np.exp(-exact) + 1e-12
    assert error[0] <= 1e-9 * abs(value[0]) or p < -1000
