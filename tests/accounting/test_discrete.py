"""(ε, δ) guarantees as discrete losses: against enumeration, convolution and dp_accounting."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import mpmath
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting import mechanisms
from dpjax.accounting.loss_distribution.grid import delta_bound, epsilon_bound
from dpjax.accounting.loss_distribution.step import Pair
from dpjax.accounting.pairs import guarantee, uses
from dpjax.accounting.pairs.finite_profile import discrete_delta
from dpjax.accounting.pairs.protocol import SampledRelease

PureDP, ApproximateDP = mechanisms.PureDP, mechanisms.ApproximateDP
ADD, REPLACE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE


class Guarantee(NamedTuple):
    """ε, δ and the rate of sampling."""

    epsilon: float
    delta: float
    rate: float


def repeated(own, count, *, symmetric=False, **options):
    release = SampledRelease(guarantee.GUARANTEE, (own.epsilon, own.delta), own.rate, symmetric)
    return uses.repeat_release(release, count, **options)


def four_outcomes(epsilon, delta, rate=1, sign=1):
    """The two distributions, in exact arithmetic: a sampled record's, and without it."""
    e = mpmath.exp(epsilon)
    likely, rare = (1 - delta) * e / (1 + e), (1 - delta) / (1 + e)
    record, without = [delta, likely, rare, mpmath.mpf(0)], [mpmath.mpf(0), rare, likely, delta]
    mixed = [(1 - rate) * m + rate * r for m, r in zip(without, record, strict=True)]
    return (mixed, without) if sign > 0 else (without, mixed)


def enumerated(steps, epsilon):
    """δ(ε) of [(P, Q, count)]: the products of all outcomes, equal ones counted by multinomials."""
    joint = [(mpmath.mpf(1), mpmath.mpf(1))]
    for p, q, count in steps:
        places = [i for i in range(len(p)) if p[i] > 0]
        combined = []
        for parts in itertools.product(range(count + 1), repeat=len(places) - 1):
            last = count - sum(parts)
            if last < 0:
                continue
            ways = mpmath.factorial(count)
            a = b = mpmath.mpf(1)
            for i, n in zip(places, (*parts, last), strict=True):
                ways /= mpmath.factorial(n)
                a, b = a * p[i] ** n, b * q[i] ** n
            combined.append((ways * a, ways * b))
        joint = [(a * c, b * d) for a, b in joint for c, d in combined]
    return sum(max(a - mpmath.exp(epsilon) * b, mpmath.mpf(0)) for a, b in joint)


def test_ten_thousand_pure_releases_cost_what_their_exact_composition_does():
    run = acc.Repeated(PureDP(0.01), 10_000)
    found = acc.epsilon(run, 1e-5, adjacency=REPLACE, method="pld")
    assert found == pytest.approx(4.376384509, abs=2e-9)
    assert acc.epsilon(run, 1e-5, adjacency=REPLACE) <= found  # the best is the best
    with mpmath.workdps(40):  # the sum itself, term by term, at the answer and just below
        p = mpmath.exp(mpmath.mpf("0.01")) / (1 + mpmath.exp(mpmath.mpf("0.01")))

        def exact(epsilon):
            total, mass = mpmath.mpf(0), p**10_000
            for flips in range(10_001):
                loss = (10_000 - 2 * flips) * mpmath.mpf("0.01")
                if loss <= epsilon:
                    break
                total += mass * -mpmath.expm1(epsilon - loss)
                mass *= (1 - p) / p * (10_000 - flips) / (flips + 1)
            return total

        assert exact(mpmath.mpf(found)) <= 1e-5
        assert exact(mpmath.mpf(found) * (1 - mpmath.mpf("1e-9"))) > 1e-5


def test_random_mixtures_of_guarantees_lie_between_the_bounds():
    generator = np.random.default_rng(3)
    for _ in range(200):
        groups = []
        for _ in range(generator.integers(1, 4)):
            epsilon = float(10 ** generator.uniform(-3, 0.7))
            delta = float(generator.choice([0.0, 10 ** generator.uniform(-9, -1)]))
            rate = float(generator.choice([1.0, generator.uniform(0, 1)]))
            groups.append((Guarantee(epsilon, delta, rate), int(generator.integers(1, 5))))
        sign = int(generator.choice([1, -1]))
        total = sum(g.epsilon * n for g, n in groups) * generator.uniform(0, 1)
        with mpmath.workdps(30):
            pairs = [(*four_outcomes(*(mpmath.mpf(v) for v in g), sign), n) for g, n in groups]
            exact = enumerated(pairs, mpmath.mpf(total))
        low, high = (
            delta_bound(
                [repeated(g, n, sign=sign, upper=upper) for g, n in groups], total, upper=upper
            )
            for upper in (False, True)
        )
        # d's mass, at most δ a step, is rounded when sampling; ε is by 2e-13·(1 + ε).
        rounded = sum(n * g.delta for g, n in groups if g.rate < 1)
        assert low <= min(exact, 1) <= high, groups
        assert high - low <= 1e-9 * exact + rounded + 1e-12, groups


def test_many_different_guarantees_go_through_the_transform():
    """Two hundred different ε: bracketed, and by a convolution on a grid of their own."""
    generator = np.random.default_rng(5)
    grid = 2.0**-12
    whole = generator.integers(40, 1200, 200)  # in units of the grid: exact convolution
    mass = np.ones(1)
    for k in whole:
        p = 1 / (1 + np.exp(-k * grid))
        mass = np.pad((1 - p) * mass, (0, 2 * k)) + np.pad(p * mass, (2 * k, 0))
    losses = grid * (np.arange(len(mass)) - whole.sum())

    def exact(epsilon):
        return np.sum(mass * -np.expm1(np.minimum(epsilon - losses, 0.0)))

    for delta in (1e-3, 1e-6, 1e-9):
        low, high = (
            epsilon_bound(
                [repeated(Guarantee(k * grid, 0.0, 1.0), 1, upper=upper) for k in whole],
                delta,
                upper=upper,
            )
            for upper in (False, True)
        )
        assert exact(low) >= delta * (1 - 1e-7)
        assert exact(high) <= delta * (1 + 1e-7)
        assert low <= high <= low * (1 + 2e-3)


def test_the_transform_agrees_with_the_closed_form():
    """Randomised response beside a Gaussian that says next to nothing."""
    known = Guarantee(0.3, 1e-7, 1.0)
    for upper in (False, True):
        own = repeated(known, 40, upper=upper)
        alone = epsilon_bound([own], 1e-5, upper=upper)
        beside = epsilon_bound([Pair("gaussian", 1, 1e-7, 1.0, 1), own], 1e-5, upper=upper)
        assert beside == pytest.approx(alone, rel=2e-4)
        assert (beside >= alone) == upper or beside == pytest.approx(alone, rel=1e-12)


def test_guarantees_beside_gaussians_by_convolution():
    """δ₁₂(ε) = E_{L₂}[δ₁(ε − L₂)]: randomised response given the Gaussian's closed form."""
    mu, known, count = 0.7, Guarantee(0.2, 1e-4, 1.0), 12

    def gaussian(epsilon):
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(
            -mu / 2 - epsilon / mu
        )

    with mpmath.workdps(30):
        keep = (1 - mpmath.mpf(known.delta)) ** count
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(known.epsilon)))
        for epsilon in (0.0, 0.5, 2.0, 4.0):
            exact = 1 - keep
            for j in range(count + 1):
                loss = (2 * j - count) * mpmath.mpf(known.epsilon)
                weight = mpmath.binomial(count, j) * p**j * (1 - p) ** (count - j)
                exact += keep * weight * gaussian(mpmath.mpf(epsilon) - loss)
            pairs = [Pair("gaussian", 1, mu, 1.0, 1)]
            low, high = (
                delta_bound([*pairs, repeated(known, count, upper=upper)], epsilon, upper=upper)
                for upper in (False, True)
            )
            assert low <= exact <= high
            assert high - low <= 2e-4 * exact


def test_mixtures_lie_where_dp_accounting_puts_them():
    from dp_accounting.pld import privacy_loss_distribution as theirs

    sigma, rate, steps, known, uses = 1.5, 0.05, 100, 0.15, 30
    run = acc.Composed(
        (
            acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps),
            acc.Repeated(PureDP(known, "add-remove"), uses),
        )
    )
    ends = []
    for pessimistic in (False, True):
        interval = 1e-4
        gaussian = theirs.from_gaussian_mechanism(
            sigma,
            sampling_prob=rate,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=interval,
            use_connect_dots=pessimistic,
        ).self_compose(steps)
        pure = theirs.from_randomized_response(  # keeps the truth with e^ε/(1 + e^ε)
            2 / (1 + np.exp(known)),
            2,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=interval,
        ).self_compose(uses)
        ends.append(gaussian.compose(pure).get_epsilon_for_delta(1e-6))
    found = acc.epsilon(run, 1e-6, method="pld")
    assert ends[0] <= found <= ends[1] + 1e-6


def test_sampled_pure_releases():
    """The sampled pair itself: never more than the amplified guarantee, composed as it is."""
    rate, epsilon, steps = 0.01, 1.0, 1_000
    run = acc.Repeated(acc.PoissonSampled(PureDP(epsilon, "add-remove"), rate), steps)
    low, high = acc.epsilon_interval(run, 1e-5)
    amplified = acc.Repeated(PureDP(np.log1p(rate * np.expm1(epsilon)), "add-remove"), steps)
    assert high < 0.7 * acc.epsilon(amplified, 1e-5, method="pld")
    assert low <= high <= low * (1 + 1e-9)
    once = acc.PoissonSampled(PureDP(epsilon, "add-remove"), rate)
    worst = np.log1p(rate * np.expm1(epsilon))  # no δ at all
    assert acc.epsilon(once, 1e-300, method="pld") == np.inf  # below what is computed
    assert acc.epsilon(once, 1e-30, method="pld") == pytest.approx(worst, rel=1e-9)
    nested = acc.PoissonSampled(acc.PoissonSampled(PureDP(epsilon, "add-remove"), 0.1), 0.1)
    assert acc.epsilon(nested, 1e-6, method="pld") == pytest.approx(
        acc.epsilon(once, 1e-6, method="pld"), rel=1e-12
    )


def test_fixed_batches_of_pure_releases_by_the_amplified_profile():
    """δ'(log(1 + q(e^ε − 1))) = qδ(ε): three losses, whose sums are laid out here."""
    rate, steps = 0.01, 500
    run = acc.Repeated(acc.FixedBatchSampled(PureDP(1.0), 10, 1_000), steps)
    found = acc.epsilon(run, 1e-5, adjacency=REPLACE, method="pld")
    worst = np.log1p(rate * np.expm1(1.0))
    high = (rate * np.e + 1 - rate) / (1 + np.e)
    step, mass = [high * np.exp(-worst), 1 - high * (1 + np.exp(-worst)), high], np.ones(1)
    for _ in range(steps):
        mass = np.convolve(mass, step)
    gap = found - worst * np.arange(-steps, steps + 1)
    exact = np.sum(mass * -np.expm1(np.minimum(gap, 0.0)))
    assert 1e-5 * (1 - 1e-4) <= exact <= 1e-5
    amplified = acc.Repeated(PureDP(worst), steps)  # of the guarantee alone
    assert found < acc.epsilon(amplified, 1e-5, adjacency=REPLACE, method="pld")


def test_sweeps_of_guarantees():
    run = acc.Repeated(PureDP(np.array([0.01, 0.1])), np.array([[10], [100]]))
    found = acc.epsilon(run, 1e-5, adjacency=REPLACE, method="pld")
    single = acc.epsilon(acc.Repeated(PureDP(0.1), 10), 1e-5, adjacency=REPLACE, method="pld")
    assert found.shape == (2, 2)
    assert found[0, 1] == single
    nothing = acc.Composed((PureDP(0.0), acc.Repeated(PureDP(1.0), 0)))
    assert acc.epsilon(nothing, 1e-5, adjacency=REPLACE, method="pld") == 0.0


@pytest.mark.parametrize(
    ("run", "adjacency"),
    [
        (PureDP(1.0, "replace-one"), ADD),
        (acc.PoissonSampled(PureDP(1.0), 0.1), REPLACE),
        (acc.PoissonSampled(PureDP(1.0, "add-remove"), 0.1), REPLACE),
        (acc.FixedBatchSampled(PureDP(1.0, "add-remove"), 1, 10), ADD),
        (acc.PoissonSampled(acc.Repeated(PureDP(1.0, "add-remove"), 2), 0.1), ADD),
        (acc.FixedBatchSampled(acc.FixedBatchSampled(PureDP(1.0), 1, 2), 1, 10), REPLACE),
    ],
)
def test_what_has_no_theorem_is_refused(run, adjacency):
    with pytest.raises(acc.UnsupportedQuery):
        acc.epsilon(run, 1e-5, adjacency=adjacency, method="pld")


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("delta", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("rate", [1e-9, 0.3, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 50.0, 800.0, 1e5])
def test_extremes_are_bounds(epsilon, rate, delta, sign):
    for upper in (False, True):
        own = repeated(Guarantee(epsilon, delta, rate), 3, sign=sign, upper=upper)
        assert np.all(own.masses >= 0)
        assert (own.masses.sum() >= 1) if upper else (own.masses.sum() <= 1)
    with mpmath.workdps(30):
        pair = four_outcomes(*(mpmath.mpf(v) for v in (epsilon, delta, rate)), sign)
        exact = enumerated([(*pair, 3)], mpmath.mpf("0.5"))
    low, high = (
        delta_bound(
            [repeated(Guarantee(epsilon, delta, rate), 3, sign=sign, upper=upper)],
            0.5,
            upper=upper,
        )
        for upper in (False, True)
    )
    assert low <= min(exact, 1) <= high  # which is rounded at its last digit too


def composed(epsilon, delta, count, total):
    """δ of `count` uses of an (ε, δ)-private release at a total ε, in the worst case."""
    return discrete_delta(repeated(Guarantee(epsilon, delta, 1.0), count), total)


def test_optimal_composition_oracles(oracles):
    for row in oracles["kov_homogeneous_delta"]:
        p = row["params"]
        found = composed(p["eps"], p["delta"], p["k"], p["eps_g"])
        assert 0 <= found / row["value"] - 1 < 1e-10


def test_optimal_composition_by_brute_force():
    """Every outcome of k randomised responses, laid out."""
    epsilon, delta, k, total = 0.4, 0.01, 6, 0.9
    p = np.array([delta, 0.0, *((1 - delta) * np.array([np.e**epsilon, 1]) / (1 + np.e**epsilon))])
    q = np.array([0.0, delta, *((1 - delta) * np.array([1, np.e**epsilon]) / (1 + np.e**epsilon))])
    joint_p, joint_q = np.ones(1), np.ones(1)
    for _ in range(k):
        joint_p, joint_q = np.outer(joint_p, p).ravel(), np.outer(joint_q, q).ravel()
    truth = np.maximum(joint_p - np.exp(total) * joint_q, 0).sum()
    assert composed(epsilon, delta, k, total) == pytest.approx(truth, rel=1e-10)


@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_approximate_releases_compose_as_their_worst_pair(rate):
    step = ApproximateDP(0.4, 1e-3, "add-remove")
    run = acc.Repeated(acc.PoissonSampled(step, rate) if rate < 1 else step, 6)
    found = acc.delta(run, 0.9, method="pld")
    with mpmath.workdps(30):
        values = [
            enumerated([(*four_outcomes(*map(mpmath.mpf, (0.4, 1e-3, rate)), sign), 6)], 0.9)
            for sign in (1, -1)
        ]
    assert max(values) <= found <= max(values) + (6e-3 * (1 - rate)) + 1e-12
    if rate == 1:
        assert found == pytest.approx(composed(0.4, 1e-3, 6, 0.9), rel=1e-9)
    if rate < 1:  # no theorem for samples of a promise under replace-one
        with pytest.raises(acc.UnsupportedQuery):
            acc.delta(run, 0.9, method="pld", adjacency=REPLACE)


@pytest.mark.parametrize(("epsilon", "steps"), [(1e-9, 1e15), (1e300, 1e9), (1e308, 10)])
def test_beyond_what_can_be_laid_out_there_is_no_bound_and_no_crash(epsilon, steps):
    run = acc.Repeated(PureDP(epsilon), steps)
    assert acc.epsilon(run, 1e-5, adjacency=REPLACE, method="pld") == np.inf
    known = repeated(Guarantee(epsilon, 0.0, 1.0), steps, upper=False)
    assert epsilon_bound([known], 1e-5, upper=False) == 0.0


def test_fixed_batches_lower_end_is_below_the_upper_one():
    generator = np.random.default_rng(9)
    for _ in range(20):
        known = Guarantee(*10 ** generator.uniform([-2, -9, -3], [0.5, -5, 0]))
        count, delta = int(10 ** generator.uniform(0, 3)), float(10 ** generator.uniform(-6, -2))
        high = epsilon_bound([repeated(known, count, symmetric=True)], delta, upper=True)
        for sign in (1, -1):
            own = repeated(known, count, sign=sign, upper=False)
            assert epsilon_bound([own], delta, upper=False) <= high


@pytest.mark.parametrize(("epsilon", "steps"), [(2.0, 3000), (8.0, 1000), (300.0, 10)])
def test_losses_too_large_for_their_exponentials_keep_their_roots(epsilon, steps):
    """The exact δ of the lower end is not below the δ asked for, nor that of the upper above it."""
    run = acc.Repeated(acc.PureDP(epsilon, "add-remove"), steps)
    low, high = acc.epsilon_interval(run, delta=0.5)
    with mpmath.workdps(50):
        e = mpmath.mpf(epsilon)
        keep = 1 / (1 + mpmath.exp(-e))

        def exact(at):
            total, mass = mpmath.mpf(0), keep**steps
            for lies in range(steps + 1):
                loss = (steps - 2 * lies) * e
                if loss <= at:
                    break
                total += mass * -mpmath.expm1(at - loss)
                mass *= mpmath.exp(-e) * (steps - lies) / (lies + 1)
            return total

        assert exact(mpmath.mpf(float(low))) >= 0.5 >= exact(mpmath.mpf(float(high)))
    assert high - low <= 1e-9 * high
