"""The certified kernel against enumeration, mpmath and closed forms."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.optimize import brentq

from dpjax import accounting as acc
from dpjax.accounting.contour import interval
from dpjax.accounting.contour import users as user_lines
from dpjax.accounting.contour.saddle import Composition, Group
from dpjax.accounting.contour.tilt import EPS, normalise
from dpjax.accounting.pairs.count_law import Binomial, merge_weights
from dpjax.accounting.pairs.mixtures import Mixture, added_records, poisson_mixture, replace_one
from dpjax.accounting.pairs.pair import Atoms


def _run(*steps, mu2=0.0):
    groups = [
        Group(type(pair)(*(np.asarray(v)[None] for v in pair)), np.array([float(count)]))
        for pair, count in steps
    ]
    return Composition(np.float64(mu2), tuple(groups))


def _holds(found, truth, width=np.inf):
    assert found.lower <= truth * (1 + 1e-12)
    assert found.upper >= truth * (1 - 1e-12)
    assert found.upper - found.lower <= width * truth


def _atoms_delta(pair, count, epsilon):
    """By listing all outcomes of all steps, and what Q never gives."""
    total = 1 - (1 - float(pair.infinite)) ** count
    every = list(zip(pair.loss.tolist(), pair.mass.tolist(), strict=True))
    for outcome in itertools.product(every, repeat=count):
        loss = math.fsum(value for value, _ in outcome)
        mass = math.prod(m for _, m in outcome)
        total += mass * max(-math.expm1(epsilon - loss), 0.0)
    return total


def _atoms(loss, mass, infinite=0.0):
    """A pair of finitely many outcomes, of which P weighs 1 and Q at most 1."""
    loss, mass = np.asarray(loss, np.float64), np.asarray(mass, np.float64)
    other = float(mass @ np.exp(-loss))
    assert abs(mass.sum() + infinite - 1) <= 1e-12
    assert other <= 1 + 1e-12
    never = 0.0 if other >= 1 - 1e-12 else 1 - other
    return Atoms(loss[mass > 0], mass[mass > 0], np.float64(infinite), np.float64(never))


_RESPONSE = _atoms([3.0, -3.0], [1 / (1 + math.exp(-3)), 1 / (1 + math.exp(3))])
_LOSSY = _atoms([0.5, -0.5], [0.7 * 0.99, 0.3 * 0.99], infinite=0.01)


@pytest.mark.parametrize(("pair", "count"), [(_RESPONSE, 5), (_RESPONSE, 1), (_LOSSY, 8)])
@pytest.mark.parametrize("share", [0.3, 0.55, 0.9])
def test_atoms_are_what_enumeration_says(pair, count, share):
    most = count * float(np.max(pair.loss))
    epsilon = share * most
    truth = _atoms_delta(pair, count, epsilon)
    run = _run((pair, count))
    _holds(interval.line_delta(run, epsilon), truth, 1e-6)
    _holds(interval.line_epsilon(run, truth), epsilon, 1e-6)


def test_a_lower_end_that_was_blurred_is_none_too_high():
    # δ is concave in ε between atoms: Jensen's inequality in ε gave 0.33346 here
    delta = 0.9978736424598755
    truth = brentq(lambda e: _atoms_delta(_RESPONSE, 5, e) - delta, 0.0, 3.0, xtol=1e-15)
    assert truth == pytest.approx(0.133599, abs=1e-6)
    _holds(interval.line_epsilon(_run((_RESPONSE, 5)), delta), truth, 1e-6)


def test_mass_at_infinite_loss_counts_at_every_epsilon():
    run = _run((_LOSSY, 30))
    mass = 1 - 0.99**30
    assert interval.line_epsilon(run, mass * 0.9).lower == np.inf
    assert interval.line_delta(run, 50.0).lower == pytest.approx(mass, rel=1e-9)
    assert interval.line_delta(run, 50.0).upper == pytest.approx(mass, rel=1e-9)
    two = _atoms([0.0, 1.0], [0.5, 0.49], infinite=0.01)
    assert interval.line_epsilon(_run((two, 2)), 0.01).lower == np.inf
    assert interval.line_epsilon(_run((two, 2)), 0.0199 * 0.999).upper == np.inf
    # in the other direction it is what P never gives
    other = two.reversed()
    assert float(other.infinite) == pytest.approx(1 - 0.5 - 0.49 / math.e)


def _mixture_delta(pair, epsilon):
    """δ(ε) of one step by quadrature in 30 digits."""
    mpmath.mp.dps = 30
    means, p, q = ([mpmath.mpf(float(v)) for v in row] for row in pair)
    grow = mpmath.exp(mpmath.mpf(epsilon))

    def excess(y):
        terms = ((a - grow * b) * mpmath.npdf(y, m) for m, a, b in zip(means, p, q, strict=True))
        return max(mpmath.fsum(terms), mpmath.mpf(0))

    points = [float(min(means)) - 12 + 0.25 * k for k in range(int(4 * (24 + 2 * max(means))))]
    # the integrand has a kink where p = e^ε q: found, so that the pieces are smooth
    f = lambda y: float(  # noqa: E731
        mpmath.fsum((a - grow * b) * mpmath.npdf(y, m) for m, a, b in zip(means, p, q, strict=True))
    )
    signs = [f(y) for y in points]
    kinks = [
        mpmath.mpf(brentq(f, a, b, xtol=1e-15))
        for a, b, u, v in zip(points, points[1:], signs, signs[1:], strict=False)
        if u * v < 0
    ]
    return float(mpmath.quad(excess, sorted([*map(mpmath.mpf, points[::4]), *kinks])))


@pytest.mark.at_length(every=3)
@pytest.mark.parametrize(
    "pair",
    [
        poisson_mixture(np.float64(1.0), np.float64(0.1)),
        poisson_mixture(np.float64(1.0), np.float64(0.1)).reversed(),
        replace_one(np.float64(0.7), np.float64(0.3)),
        added_records(0.8, *merge_weights(Binomial(3.0, 0.2), False)),
        added_records(0.8, *merge_weights(Binomial(3.0, 0.2), False)).reversed(),
    ],
)
@pytest.mark.parametrize("epsilon", [0.01, 0.09])
def test_one_step_is_what_quadrature_says(pair, epsilon):
    truth = _mixture_delta(pair, epsilon)
    _holds(interval.line_delta(_run((pair, 1)), epsilon), truth, 1e-11)
    _holds(interval.line_epsilon(_run((pair, 1)), truth), epsilon, 2e-10)


def test_ten_million_steps_with_one_rare_outcome_are_what_a_binomial_sum_says():
    # Rounded by 1e-16 of what the loss turns a weight by, not of the weight: else 3e-7 wide.
    count, rare, gain, mp = 10**7, 1e-7, 3e-2, mpmath.mp.clone()
    mp.dps = 40
    p = mp.mpf(rare)
    usual = mp.log((1 - p) / (1 - p * mp.exp(-gain)))
    pair = _atoms([gain, float(usual)], [rare, 1 - rare])

    def delta(epsilon):
        found, chance = mp.mpf(0), (1 - p) ** count
        for k in range(120):
            loss = k * mp.mpf(gain) + (count - k) * usual
            found += chance * max(-mp.expm1(epsilon - loss), 0)
            chance *= p / (1 - p) * (count - k) / (k + 1)
        return float(found)

    for epsilon in (0.03, 0.15, 0.25):
        _holds(interval.line_delta(_run((pair, count)), epsilon), delta(epsilon), 8e-8)


def test_rounded_weights_move_a_transform_by_no_more_than_they_are_charged():
    rng, tightest = np.random.default_rng(5), 0.0
    for _ in range(200):
        n = int(rng.integers(2, 60))
        loss = rng.normal(size=n) * 10.0 ** rng.uniform(-6, 2, n)
        size, units = 10 * rng.normal(size=n), 10.0 ** rng.uniform(0, 7, n)
        moment, weight, (whole, by_loss), _ = normalise(size, units, loss)
        # The worst signs, or any.
        moved = np.expm1(1j * 10.0 ** rng.uniform(-3, 6) * loss)
        t = np.max(np.abs(moved) / np.abs(loss))
        turn = np.exp(1j * rng.uniform(0, 2 * np.pi))
        sign = np.sign(np.real(turn * moved)) if rng.random() < 0.7 else rng.choice([-1, 1], n)
        exact = np.exp(size + sign * units * EPS - moment)
        assert abs(np.sum(exact) - 1) <= whole
        off = abs((exact / np.sum(exact) - weight) @ moved)
        assert off <= min(2 * whole, t * by_loss) * (1 + 1e-6) + 1e-14
        tightest = max(tightest, off / min(2 * whole, t * by_loss))
    assert tightest > 0.3


def test_few_rare_steps_have_their_ends_in_order():
    pair = poisson_mixture(np.float64(1 / 6.897), np.float64(1.31e-7)).reversed()
    found = interval.line_epsilon(_run((pair, 2)), 3.55e-9)
    assert 0 <= found.lower <= found.upper


def _gaussian_delta(mu, epsilon):
    mpmath.mp.dps = 40
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
    below = mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
    return float(mpmath.ncdf(mu / 2 - epsilon / mu) - below)


@pytest.mark.parametrize(("mu", "count"), [(0.01, 3), (5.0, 3), (30.0, 3), (300.0, 1), (700.0, 2)])
def test_caps_are_no_bounds_where_means_lie_far_apart(mu, count):
    # a plain release as a table of weights: all of P at the other mean
    pair = Mixture(np.array([0.0, mu]), np.array([0.0, 1.0]), np.array([1.0, 0.0]))
    total = mu * math.sqrt(count)
    for z in (-1.5, 3.0):
        epsilon = total * total / 2 + z * total
        if epsilon <= 0:
            continue
        truth = _gaussian_delta(total, epsilon)
        found = interval.line_delta(_run((pair, count)), epsilon)
        _holds(found, truth)
        _holds(interval.line_epsilon(_run((pair, count)), truth), epsilon)


def test_gaussian_steps_compose_with_all_others():
    plain = Mixture(np.array([0.0, 0.6]), np.array([0.0, 1.0]), np.array([1.0, 0.0]))
    sampled = poisson_mixture(np.float64(0.9), np.float64(0.05))
    exact = interval.line_epsilon(_run((sampled, 50), mu2=4 * 0.36), 1e-6)
    as_steps = interval.line_epsilon(_run((sampled, 50), (plain, 4)), 1e-6)
    assert exact.upper == pytest.approx(as_steps.upper, rel=1e-9)
    # the same steps stacked in one group, padding among them
    rows = poisson_mixture(np.array([0.9, 0.9, 1.0]), np.array([0.05, 0.05, 0.1]))
    run = Composition(np.float64(4 * 0.36), (Group(rows, np.array([20.0, 30.0, 0.0])),))
    assert interval.line_epsilon(run, 1e-6).upper == pytest.approx(exact.upper, rel=1e-9)


def test_atoms_and_sampled_steps_compose():
    # of one sampled step and one response δ is a mean of the step's own over the response
    step, epsilon = poisson_mixture(np.float64(1.0), np.float64(0.2)), 1.0
    size = 0.4
    pair = _atoms([size, -size], [1 / (1 + math.exp(-size)), 1 / (1 + math.exp(size))])
    truth = sum(
        m * _mixture_delta(step, epsilon - value)
        for value, m in zip(pair.loss.tolist(), pair.mass.tolist(), strict=True)
    )
    found = interval.line_delta(_run((step, 1), (pair, 1)), epsilon)
    _holds(found, truth, 1e-4)


def test_a_pair_of_atoms_is_reversed_twice_to_itself():
    pair = _LOSSY.reversed().reversed()
    for a, b in zip(pair, Atoms(*_LOSSY), strict=True):
        assert a == pytest.approx(b, abs=1e-15)


def test_weights_that_are_known_to_an_error_cost_it_at_epsilon_zero_too(monkeypatch):
    """δ(ε) is read at ε less what the weights may be off by, and falls strictly, below 0 too."""
    monkeypatch.setattr(user_lines, "relative_weight_error", lambda law: 0.005)
    run = acc.UserLevel(acc.PoissonSampled(acc.Gaussian(2.0), 0.1), 3)
    shift = float(np.log1p(0.01) - np.log1p(-0.01))
    at = [acc.delta(run, e, method="contour") for e in (0.0, 0.5 * shift, shift)]
    assert at[0] > at[1] > at[2] > 0
