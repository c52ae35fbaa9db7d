"""Rényi curves against exact values: mpmath references, closed forms, binomial sums."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax import accounting as acc
from dpjax.accounting.pairs.atoms import GroupedSteps
from dpjax.accounting.pairs.protocol import StepGroup
from dpjax.accounting.renyi import moments, user_curves

REPLACE = acc.Adjacency.REPLACE_ONE
ADJACENCY = {"remove": acc.Adjacency.ADD_REMOVE, "replace": REPLACE}


def curve(pair, mu, rate, order):
    """RDP of one subsampled step, before its final inflation."""

    def one(mu, rate, order):
        step = StepGroup(*(np.array([float(v)]) for v in (mu, rate, 1.0)))
        atoms = GroupedSteps(np.zeros(()), {"poisson": step})
        with np.errstate(all="ignore"):
            return moments.log_moments(atoms, ADJACENCY[pair], np.array([order]))[0] / (order - 1)

    return np.vectorize(one, otypes=[float])(mu, rate, order)


def exact(pair, mu, rate, order):
    """The divergence by the trapezoid rule in 40 digits, or None where that takes too long.

    The step is far below what the rule needs: halving it once more changes nothing in 30 digits.
    """
    with mpmath.workdps(40):
        mu, q, a = mpmath.mpf(float(mu)), mpmath.mpf(float(rate)), mpmath.mpf(float(order))

        def ratio(z):
            return 1 - q + q * mpmath.exp(mu * z - mu * mu / 2)

        def integrand(z):
            value = mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mpmath.pi) * ratio(z) ** a
            return value if pair == "remove" else value * ratio(-z) ** (1 - a)

        low, high = -16 - mu, (a if pair == "remove" else 2 * a - 1) * mu + 16
        step = min(mpmath.mpf(1) / 4, 1 / (2 * mu))
        if pair == "replace":
            step = min(step, 1 / mpmath.sqrt(1 + (a - 1) * mu * mu / 4)) / 2
        nodes = int((high - low) / step) + 1
        if nodes > 3_000:
            return None
        total = step * mpmath.fsum(integrand(low + k * step) for k in range(nodes))
        return mpmath.log(total) / (a - 1)


@pytest.mark.parametrize("pair", ["remove", "replace"])
def test_never_below_the_truth_in_any_corner(pair):
    """Rates 1e-9 … 1, σ 0.2 … 1,000, orders 1 + 1e-6 … 1e4, against 40 digits."""
    rng = np.random.default_rng(3)
    checked = 0
    while checked < 40:
        sigma, order = 10 ** rng.uniform(-0.7, 3), 1 + 10 ** rng.uniform(-6, 4)
        rate = 10 ** rng.uniform(-9, 0) if rng.random() < 0.6 else 1 - 10 ** rng.uniform(-6, -0.3)
        truth = exact(pair, 1 / sigma, rate, order)
        if truth is None:
            continue
        checked += 1
        run = acc.PoissonSampled(acc.Gaussian(sigma), rate)
        found = acc.rdp(run, [order], adjacency=ADJACENCY[pair])[0]
        assert mpmath.mpf(float(found)) >= truth, (sigma, rate, order)
        # Tight to the inflation by 1e-9 and 1e-15, and 1e-20 of the moment near order one.
        slack = truth * mpmath.mpf(1.5e-9) + 3e-15 + 1e-20 / (order - 1)
        assert found <= truth + slack, (sigma, rate, order)


@pytest.mark.parametrize("pair", ["remove", "replace"])
def test_never_below_a_closed_lower_bound_beyond_any_quadrature(pair):
    # E[r^α] ≥ q^α e^{α(α−1)μ²/2} from r ≥ q·e^w, and no moment is below 1. `replace` divides by at
    # most 1 where z ≥ −μ/2, which is more than half of the mass around αμ.
    rng = np.random.default_rng(4)
    sigma, order = 10 ** rng.uniform(-2, 3, 300), 1 + 10 ** rng.uniform(-6, 8, 300)
    rate = 10 ** rng.uniform(-9, 0, 300)
    lower = order * (np.log(rate) / (order - 1) + 0.5 / sigma**2)
    lower = lower - (math.log(2) / (order - 1) if pair == "replace" else 0.0)
    for s, q, a, low in zip(sigma, rate, order, lower, strict=True):
        run = acc.PoissonSampled(acc.Gaussian(s), q)
        found = acc.rdp(run, [a], adjacency=ADJACENCY[pair])[0]
        assert max(low * (1 - 1e-12), 0.0) <= found <= 4 * a / (2 * s * s) * (1 + 1e-8) + 1e-14


def binomial(mu, rate, order):
    """Exact divergence of the remove pair at a whole order, 60 digits (Mironov et al. 2019)."""
    with mpmath.workdps(60):
        q, m = mpmath.mpf(rate), mpmath.mpf(mu)
        total = mpmath.fsum(
            mpmath.binomial(order, k)
            * (1 - q) ** (order - k)
            * q**k
            * mpmath.exp((k * k - k) * m * m / 2)
            for k in range(order + 1)
        )
        return float(mpmath.log(total) / (order - 1))


@pytest.mark.parametrize(
    ("family", "pair", "reach"),
    [
        ("sgm_rdp_add_remove_dirA", "remove", 1.0),
        ("sgm_rdp_poisson_replace_one", "replace", 1.0),
        ("sgm_rdp_wor_replace_one_dirA", "remove", 2.0),
    ],
)
def test_reference_values(oracles, family, pair, reach):
    rows = oracles[family]
    q, sigma, order = (np.array([r["params"][k] for r in rows]) for k in ("q", "sigma", "alpha"))
    want = np.array([r["value"] for r in rows])
    got = curve(pair, reach / sigma, q, order)
    # relative 2e-11, and an absolute 2e-17 that only K < 1e-15 can see
    np.testing.assert_allclose(got, want, rtol=2e-11, atol=5e-17 / (order.min() - 1))


@pytest.mark.parametrize(
    ("family", "reach"), [("sgm_rdp_add_remove_dirB", 1.0), ("sgm_rdp_wor_replace_one_dirB", 2.0)]
)
def test_the_priced_direction_dominates_the_recorded_reverse(oracles, family, reach):
    rows = oracles[family]
    q, sigma, order = (np.array([r["params"][k] for r in rows]) for k in ("q", "sigma", "alpha"))
    reverse = np.array([r["value"] for r in rows])
    assert np.all(curve("remove", reach / sigma, q, order) >= reverse * (1 - 1e-12))


@pytest.mark.parametrize("order", [2, 3, 8, 32, 256])
@pytest.mark.parametrize(("sigma", "rate"), [(0.5, 1e-3), (1.0, 0.01), (4.0, 0.3), (50.0, 1e-6)])
def test_whole_orders_equal_the_binomial_sum(order, sigma, rate):
    want = binomial(1 / sigma, rate, order)
    got = acc.rdp(acc.PoissonSampled(acc.Gaussian(sigma), rate), [float(order)])[0]
    assert got >= want
    np.testing.assert_allclose(got, want, rtol=1.1e-9, atol=2e-15)


def test_golden_values():
    # exact binomials (mpmath, 60 digits): σ=1, q=0.01 at α = 2, 8, 64
    got = acc.rdp(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), [2.0, 8.0, 64.0])
    np.testing.assert_allclose(got[0], 1.7181342207409e-4, rtol=1e-8)
    np.testing.assert_allclose(
        got[1:], [binomial(1.0, 0.01, 8), binomial(1.0, 0.01, 64)], rtol=2e-9
    )
    # replace-one by mpmath quadrature: q=1e-4, σ=1, α=3 → 7.0489635758e-8; q=0.01, σ=1, α=1.1
    run = acc.PoissonSampled(acc.Gaussian(1.0), 1e-4)
    np.testing.assert_allclose(acc.rdp(run, [3.0], adjacency=REPLACE), 7.04896357584e-8, rtol=1e-7)
    run = acc.PoissonSampled(acc.Gaussian(1.0), 0.01)
    np.testing.assert_allclose(acc.rdp(run, [1.1], adjacency=REPLACE), 2.512743923126e-4, rtol=1e-8)
    # fixed batches, n=100, B=1, σ=2 (displacement 1): the remove pair at rate 0.01
    run = acc.FixedBatchSampled(acc.Gaussian(2.0), 1, 100)
    np.testing.assert_allclose(
        acc.rdp(run, [8.0], adjacency=REPLACE), binomial(1.0, 0.01, 8), rtol=2e-9
    )


@pytest.mark.parametrize(("pair", "factor"), [("remove", 1), ("replace", 4)])
def test_rate_one_is_the_plain_gaussian(pair, factor):
    order = np.array([1.001, 1.5, 2.0, 30.0, 1e4])
    np.testing.assert_allclose(
        curve(pair, 1 / 0.7, 1.0, order), factor * order / (2 * 0.49), rtol=1e-13
    )


def test_rate_zero_and_no_steps_cost_nothing():
    assert np.all(acc.rdp(acc.PoissonSampled(acc.Gaussian(0.5), 0.0), [1.5, 100.0]) == 0)
    assert np.all(acc.rdp(acc.Repeated(acc.PoissonSampled(acc.Gaussian(0.5), 0.1), 0), [2.0]) == 0)
    assert np.all(acc.rdp(acc.Composed(()), [2.0]) == 0)


@pytest.mark.parametrize("pair", ["remove", "replace"])
def test_no_order_is_lost_anywhere_in_the_range(pair):
    sigma = np.array([0.2, 0.5, 2.0, 17.7, 100.0])
    rate = np.array([1e-7, 4e-3, 0.5, 1.0])
    order = 1 + np.logspace(-3, 4, 8)
    s, q, a = (v.ravel() for v in np.meshgrid(sigma, rate, order))
    value = curve(pair, 1 / s, q, a)
    assert np.all(np.isfinite(value))
    assert np.all(value >= 0)
    # never above the unsampled Gaussian, never below 0
    shift = 2 if pair == "replace" else 1
    assert np.all(value <= a * shift**2 / (2 * s * s) * (1 + 1e-12) + 1e-12)


def test_tiny_log_moments_keep_their_digits():
    # K(2) = log(1 + q²(e^{1/σ²} − 1)): plain log-sum-exp has no digit left at q = 1e-6, σ = 50
    want = math.log1p(1e-12 * math.expm1(1 / 2500))
    np.testing.assert_allclose(curve("remove", 1 / 50, 1e-6, 2.0), want, rtol=1e-12, atol=1e-17)


def test_orders_at_or_below_one_and_infinity():
    got = acc.rdp(acc.Gaussian(1.0), [0.5, 1.0, np.inf, 2.0])
    assert np.all(np.isinf(got[:3]))
    np.testing.assert_allclose(got[3], 1.0, rtol=2e-9)
    with pytest.raises(ValueError, match="orders must be a number, got nan"):
        acc.rdp(acc.Gaussian(1.0), [2.0, np.nan])
    assert acc.rdp(acc.Gaussian(1.0), []).shape == (0,)


def test_curves_of_a_sweep_and_of_a_composition():
    sigma = np.array([1.0, 2.0])
    orders = [1.5, 4.0, 32.0]
    sweep = acc.rdp(acc.PoissonSampled(acc.Gaussian(sigma), 0.1), orders)
    assert sweep.shape == (2, 3)
    one, two = (acc.rdp(acc.PoissonSampled(acc.Gaussian(s), 0.1), orders) for s in sigma)
    np.testing.assert_allclose(sweep, [one, two], rtol=1e-12)
    both = acc.Composed(
        tuple(acc.Repeated(acc.PoissonSampled(acc.Gaussian(s), 0.1), 7) for s in sigma)
    )
    np.testing.assert_allclose(acc.rdp(both, orders), 7 * (one + two), rtol=1e-9)


@given(st.floats(0.3, 20.0), st.floats(1e-6, 1.0), st.floats(1.05, 500.0), st.floats(1.01, 2.0))
def test_monotone_in_noise_rate_and_order(sigma, rate, order, factor):
    def at(s, q, a):
        return acc.rdp(acc.PoissonSampled(acc.Gaussian(s), q), [a])[0]

    base = at(sigma, rate, order)
    slack = 1 - 2e-9
    assert at(sigma * factor, rate, order) * slack <= base + 2e-15
    assert at(sigma, rate / factor, order) * slack <= base + 2e-15
    assert at(sigma, rate, 1 + (order - 1) * factor) + 2e-15 >= base * slack
    assert base >= 0


def test_a_users_records_at_a_rate_without_digits_have_no_curve_but_infinity():
    user = acc.UserLevel(acc.PoissonSampled(acc.Gaussian(0.05), 1e-200), 7)
    assert np.all(np.isinf(acc.rdp(user, [2.0, 1000.0])))  # E r^α ≥ q^{kα} e^{α(α−1)k²/2σ²}


@pytest.mark.parametrize(
    ("sigma", "rate", "records", "order"), [(3.4, 3.1e-5, 222, 1.85), (2.0, 1e-3, 40, 1.3)]
)
@pytest.mark.at_length(every=2)
def test_a_users_many_records_of_which_hardly_any_is_drawn_cost_little(sigma, rate, records, order):
    # Where the tail of how many are drawn counted as all of them, the first was 3,736.
    mp = mpmath.mp.clone()
    mp.dps = 30
    mu, q = 1 / mp.mpf(sigma), mp.mpf(rate)
    law = [mp.binomial(records, j) * q**j * (1 - q) ** (records - j) for j in range(records + 1)]

    def moment(power):
        def density(y):
            ratio = sum(w * mp.exp(mu * j * (y - mu * j / 2)) for j, w in enumerate(law[:41]))
            return mp.npdf(y) * ratio**power

        return mp.quad(density, [-12, -6, 0, 3, 6, 12, 24])

    truth = max(float(mp.log(moment(p)) / (order - 1)) for p in (order, 1 - order))
    found = acc.rdp(acc.UserLevel(acc.PoissonSampled(acc.Gaussian(sigma), rate), records), [order])
    assert truth <= found[0] <= truth * (1 + 1e-6)


def test_numbers_of_records_that_are_hardly_ever_drawn_are_bounded_together():
    # Σ of at most ten binomial weights times norms, by 30 digits.
    mp = mpmath.mp.clone()
    mp.dps = 30
    for mu, records, rate, first, order in [(0.5, 9, 0.01, 4, 3.0), (2.0, 30, 1e-4, 25, 1.1)]:
        truth = mp.log(
            sum(
                mp.binomial(records, j)
                * mp.mpf(rate) ** j
                * (1 - mp.mpf(rate)) ** (records - j)
                * mp.exp((mp.mpf(order) - 1) * (mu * j) ** 2 / 2)
                for j in range(first, records + 1)
            )
        )
        (found,) = user_curves._log_rare(mu, records, rate, first, np.array([order]))
        assert truth <= found <= truth + 1e-9
