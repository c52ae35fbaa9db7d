"""Calibration to what an attack may reach, against exact attacks and error integrals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from dpjax import accounting as acc
from dpjax.accounting.answers import pricing, risks

_SWAP = acc.Adjacency.REPLACE_ONE


def _sampled(noise):
    return acc.Repeated(acc.PoissonSampled(acc.Gaussian(noise), 0.01), 1_000)


def _fewest_errors(mu, prior):
    """Of telling N(μ, 1), of this prior, from N(0, 1): where the two densities are even."""
    threshold = mu / 2 + math.log((1 - prior) / prior) / mu
    return (1 - prior) * ndtr(-threshold) + prior * ndtr(threshold - mu)


@pytest.mark.parametrize("moves", [1, 2])
@pytest.mark.parametrize(
    ("risk", "reached"),
    [
        ({"advantage": 0.1}, lambda mu: 2 * ndtr(mu / 2) - 1),
        ({"advantage": 0.97}, lambda mu: 2 * ndtr(mu / 2) - 1),
        (
            {"true_positive_rate": 0.01, "false_positive_rate": 1e-3},
            lambda mu: ndtr(ndtri(1e-3) + mu),
        ),
        (
            {"true_positive_rate": 0.97, "false_positive_rate": 0.4},
            lambda mu: ndtr(ndtri(0.4) + mu),
        ),
        ({"bayes_risk": 0.45, "prior": 0.5}, lambda mu: _fewest_errors(mu, 0.5)),
        ({"bayes_risk": 0.19, "prior": 0.8}, lambda mu: _fewest_errors(mu, 0.8)),
        ({"bayes_risk": 0.01, "prior": 0.02}, lambda mu: _fewest_errors(mu, 0.02)),
    ],
)
def test_of_a_gaussian_the_risk_is_reached_and_not_passed(risk, reached, moves):
    adjacency = acc.Adjacency.ADD_REMOVE if moves == 1 else _SWAP
    noise = acc.calibrate(acc.Gaussian, **risk, adjacency=adjacency)
    found, asked = reached(moves / noise), next(iter(risk.values()))
    allowed = found >= asked if "bayes_risk" in risk else found <= asked * (1 + 1e-14)
    assert allowed
    assert found == pytest.approx(asked, rel=2e-6)


def _attack(noise, rate, alarms):
    """One sampled step: the best tests of record present against absent, and the other way."""
    at = -ndtri(alarms) * noise  # threshold of N(0, σ²)
    present = (1 - rate) * alarms + rate * ndtr((1 - at) / noise)

    def false_alarms(threshold):  # of the test that says "absent" for low outputs
        return (1 - rate) * ndtr(threshold / noise) + rate * ndtr((threshold - 1) / noise) - alarms

    return max(present, ndtr(brentq(false_alarms, -40 * noise, 40 * noise, xtol=1e-14) / noise))


@pytest.mark.parametrize(("alarms", "rate"), [(1e-3, 0.2), (0.01, 0.05), (1e-4, 0.5)])
@pytest.mark.at_length(every=3)
def test_of_one_sampled_step_the_best_test_finds_what_was_allowed(alarms, rate):
    asked = alarms * 3
    noise = acc.calibrate(
        lambda s: acc.PoissonSampled(acc.Gaussian(s), rate),
        true_positive_rate=asked,
        false_positive_rate=alarms,
    )
    # Above it stays only what a convex hull of the two directions adds, which is nothing here.
    assert _attack(noise, rate, alarms) <= asked * (1 + 1e-12)
    assert _attack(noise, rate, alarms) == pytest.approx(asked, rel=1e-5)


def test_of_a_sampled_run_all_lines_of_a_fine_grid_agree():
    asked, alarms = 0.01, 1e-3
    noise = acc.calibrate(_sampled, true_positive_rate=asked, false_positive_rate=alarms)
    grid = np.linspace(1.8, 2.2, 21)
    lines = [math.exp(e) * alarms + acc.delta(_sampled(noise), e) for e in grid.tolist()]
    assert min(lines) >= asked * (1 - 1e-5)  # nothing fuller keeps the risk
    assert acc.tradeoff(_sampled(noise), [alarms])[0] <= 1 - asked * (1 - 1e-5)
    # By the exact lower end of the profile: a smaller noise permits more than was asked.
    assert acc.delta(_sampled(noise), 2.0142) + math.exp(2.0142) * alarms <= asked * (1 + 1e-6)
    noise = acc.calibrate(_sampled, advantage=0.1)
    assert acc.delta(_sampled(noise), 0.0) <= 0.1 < acc.delta(_sampled(noise * (1 - 1e-6)), 0.0)
    noise = acc.calibrate(_sampled, bayes_risk=0.4, prior=0.5)
    assert acc.delta(_sampled(noise), 0.0) <= 0.2 < acc.delta(_sampled(noise * (1 - 1e-6)), 0.0)


def test_steps_and_losses_with_atoms_are_calibrated_too():
    steps = acc.calibrate(
        lambda t: acc.Repeated(acc.Gaussian(50.0), t),
        true_positive_rate=0.01,
        false_positive_rate=1e-3,
    )
    most = (50 * (ndtri(0.01) - ndtri(1e-3))) ** 2
    assert isinstance(steps, int)
    assert steps == math.floor(most)
    # Randomised response over two answers: TPR at a small α is e^ε α.
    epsilon = acc.calibrate(
        lambda e: acc.PureDP(e, "add-remove"), true_positive_rate=0.02, false_positive_rate=0.01
    )
    assert epsilon == pytest.approx(math.log(2), rel=1e-6)
    assert math.exp(epsilon) * 0.01 <= 0.02
    # Over all ε its total variation is (e^ε − 1)/(e^ε + 1).
    epsilon = acc.calibrate(lambda e: acc.PureDP(e, "add-remove"), advantage=0.5)
    assert epsilon == pytest.approx(math.log(3), rel=1e-6)


def test_the_summary_of_a_gaussian_is_its_closed_forms():
    found = acc.summary(acc.Repeated(acc.Gaussian(4.0), 4), adjacency=_SWAP)
    mu = 1.0  # 2·√4 / 4
    assert found.mu == pytest.approx(mu, rel=1e-12)
    assert (found.regret, found.mu_delta) == (0.0, 0.0)
    assert found.advantage == pytest.approx(2 * ndtr(mu / 2) - 1, rel=1e-8)
    for delta, epsilon in found.epsilons:
        spent = ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon) * ndtr(-epsilon / mu - mu / 2)
        assert spent == pytest.approx(delta, rel=1e-6)
    for rate, caught in found.true_positive_rates:
        truth = ndtr(ndtri(rate) + mu)
        assert truth * (1 - 1e-12) <= caught <= truth * (1 + 1e-4)
    assert len(str(found).splitlines()) == len(found.rows()) == 8


def test_the_mu_of_a_sampled_run_is_the_least_whose_profile_is_above_its_own():
    run = _sampled(1.0)
    found = acc.summary(run)
    grid = np.linspace(0.01, 3.3, 60)
    own = np.asarray([acc.delta(run, e) for e in grid.tolist()])

    def profile(mu):
        return ndtr(-grid / mu + mu / 2) - np.exp(grid) * ndtr(-grid / mu - mu / 2)

    assert np.all(own <= profile(found.mu) + found.mu_delta)
    assert np.any(own > profile(0.99 * found.mu))  # and hardly more than that
    assert found.mu_delta == pytest.approx(1e-10, rel=1e-3)
    # The regret is the most of the gap: at the middle of the curves it is half of the advantages'.
    gap = (2 * ndtr(found.mu / 2) - 1 - acc.delta(run, 0.0)) / 2
    assert gap <= found.regret <= 1.1 * gap + 3e-4


@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("counts", [0, 16])
def test_the_summary_of_fixed_batches_asks_little_and_is_that_of_many_questions(
    counts, monkeypatch
):
    run = acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(2.0), 500, 10_000), 200)
    run = acc.Composed((run, acc.Repeated(acc.Histogram(60.0), counts))) if counts else run
    asked, delta = [], pricing.delta

    def counted(*run, **how):
        asked.append(run)
        return delta(*run, **how)

    monkeypatch.setattr(risks.pricing, "delta", counted)
    found = acc.summary(run, adjacency=_SWAP)
    assert len(asked) <= 9  # the profile is read off lines that are drawn once
    grid = np.linspace(0.0, 9.0, 40)
    own = np.asarray([acc.delta(run, e, adjacency=_SWAP) for e in grid.tolist()])
    assert found.advantage == pytest.approx(own[0], rel=1e-8)
    for rate, caught in found.true_positive_rates:
        lines = np.exp(grid) * rate + own
        assert 0.98 * lines.min() <= caught <= lines.min()
    fitted = [
        ndtr(-grid / mu + mu / 2) - np.exp(grid) * ndtr(-grid / mu - mu / 2)
        for mu in (found.mu, 0.98 * found.mu)
    ]
    assert np.all(own <= fitted[0] + found.mu_delta)
    assert np.any(own > fitted[1] + found.mu_delta)


def test_the_summary_of_pure_privacy_is_that_of_its_one_corner():
    found = acc.summary(acc.PureDP(1.0, "add-remove"))
    corner = 1 / (1 + math.e)  # where the curve of (1, 0) turns
    assert found.mu == pytest.approx(-2 * ndtri(corner), rel=1e-6)
    assert found.advantage == pytest.approx(1 - 2 * corner, rel=1e-6)
    rates = {rate: math.e * rate for rate in (1e-3, 1e-2)}
    assert dict(found.true_positive_rates) == pytest.approx(rates, rel=1e-3)
    # Its largest gap lies along u = 2α − 1 + …: found by bisection over κ and all α.
    alphas = np.linspace(1e-6, 1 - 1e-6, 20_001)
    curve = ndtr(-ndtri(alphas) - found.mu)

    def above(kappa):
        a = np.minimum(alphas + kappa, 1.0)
        return np.all(np.maximum(1 - math.e * a, (1 - a) / math.e) - kappa <= curve)

    least = next(k for k in np.arange(0.0, 0.2, 1e-4) if above(k))
    assert least - 1e-4 <= found.regret <= least + 4e-4


@pytest.mark.at_length
def test_the_summary_of_a_promise_that_may_fail_is_that_of_its_four_outcomes():
    """One of them tells all, with probability δ; the others are those of pure privacy."""
    found = acc.summary(acc.ApproximateDP(1.0, 1e-3, "add-remove"))
    corner = 1 / (1 + math.e)
    assert found.advantage == pytest.approx(1e-3 + 0.999 * (1 - 2 * corner), rel=1e-6)
    rates = {rate: math.e * rate + 1e-3 for rate in (1e-3, 1e-2)}
    assert dict(found.true_positive_rates) == pytest.approx(rates, rel=1e-3)
    assert all(caught >= rates[rate] for rate, caught in found.true_positive_rates)
    # A corner: rejecting the likelier outcomes, misses less by 1e-3; no other but its mirror image.
    alarms, missed = 0.999 * corner, 1 - 0.999 * math.e * corner
    assert found.mu == pytest.approx(-ndtri(alarms) - ndtri(missed), rel=1e-6)
    assert found.mu_delta == pytest.approx(1e-3, rel=1e-5)
    assert [epsilon for _, epsilon in found.epsilons] == [math.inf] * 3
    # Beside other releases: the profile is below that of μ, but for the probability.
    run = acc.Composed((acc.Gaussian(2.0), acc.ApproximateDP(0.1, 1e-4, "add-remove")))
    found = acc.summary(run)
    grid = np.linspace(0.0, 8.0, 60)
    own = np.asarray([acc.delta(run, e) for e in grid.tolist()])

    def profile(mu):
        return ndtr(-grid / mu + mu / 2) - np.exp(grid) * ndtr(-grid / mu - mu / 2)

    assert 1e-4 < found.mu_delta <= 1.001e-4
    assert np.all(own <= profile(found.mu) + found.mu_delta)
    assert np.any(own > profile(0.9 * found.mu) + found.mu_delta)


def test_a_summary_says_where_nothing_is_known_and_adds_what_is_reserved():
    none = acc.summary(acc.Gaussian(0.0))
    assert (none.mu, none.advantage) == (math.inf, 1.0)
    assert none.rows()[0][1:] == ("inf", "nothing is promised")
    run = acc.Gaussian(2.0)
    plain, less = acc.summary(run), acc.summary(run, reserved=1e-6)
    assert less.advantage == pytest.approx(plain.advantage + 1e-6, rel=1e-12)
    assert less.epsilons[0][1] == acc.epsilon(run, 1e-5 - 1e-6)
    assert [epsilon for _, epsilon in less.epsilons[1:]] == [math.inf] * 2
    with pytest.raises(ValueError, match=r"deltas must be in \(0, 1\), got 0"):
        acc.summary(run, deltas=(1e-5, 0))


@pytest.mark.parametrize(("noise", "rate", "steps"), [(0.7, 0.05, 30), (1.5, 0.3, 12)])
def test_the_estimate_of_a_last_iterate_is_the_price_of_its_sum(noise, rate, steps):
    """A user of T records, each in one noisy sum at rate q, moves it by Binomial(T, q)."""
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(noise), rate), steps)
    whole = acc.PoissonSampled(acc.Gaussian(noise * math.sqrt(steps)), rate)
    low, high = acc.epsilon_interval(acc.UserLevel(whole, records=steps), 1e-5)
    found = acc.estimate_last_iterate(run, 1e-5)
    assert low * (1 - 1e-6) <= found <= high * (1 + 1e-6)
    assert high <= low * (1 + 1e-6)
    assert found < 0.96 * acc.epsilon(run, 1e-5)


def test_where_a_last_iterate_says_nothing_less_the_estimate_is_the_price():
    run = acc.Repeated(acc.Gaussian(3.0), 16)  # every record in every step: the sum is sufficient
    for priced in (run, acc.Gaussian(0.5), acc.PoissonSampled(acc.Gaussian(2.0), 0.1)):
        proven = acc.epsilon(priced, 1e-6)
        assert acc.estimate_last_iterate(priced, 1e-6) == pytest.approx(proven, rel=1e-6)
    assert acc.estimate_last_iterate(acc.Gaussian(0.0), 1e-6) == math.inf
    for other in (acc.Laplace(1.0), acc.Composed((run, run)), acc.Repeated(acc.Laplace(1.0), 3)):
        with pytest.raises(acc.UnsupportedQuery, match="no estimate of its last iterate"):
            acc.estimate_last_iterate(other, 1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give epsilon and delta, or advantage"),
        ({"epsilon": 1.0}, "got epsilon and delta"),
        ({"advantage": 0.1, "bayes_risk": 0.2, "prior": 0.5}, "got advantage and bayes_risk"),
        ({"true_positive_rate": 0.1}, "give epsilon"),
        ({"bayes_risk": 0.1}, "give epsilon"),
        ({"advantage": 1.0}, r"advantage must be in \(0, 1\), got 1.0"),
        ({"advantage": [0.1, 0.2]}, "advantage must be one number"),
        (
            {"true_positive_rate": 0.1, "false_positive_rate": 0.1},
            r"true_positive_rate must be in \(0.1, 1\), got 0.1",
        ),
        ({"bayes_risk": 0.2, "prior": 0.9}, r"bayes_risk must be in \(0, 0.1\), got 0.2"),
    ],
)
def test_what_is_no_risk_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        acc.calibrate(acc.Gaussian, **given)


@pytest.mark.parametrize(
    ("given", "least"),
    [
        ({"advantage": 1e-4}, 2 * ndtr(0.1) - 1),
        ({"true_positive_rate": 0.0011, "false_positive_rate": 1e-3}, ndtr(ndtri(1e-3) + 0.2)),
        ({"bayes_risk": 0.4999, "prior": 0.5}, 1 - ndtr(0.1)),
    ],
)
def test_a_risk_that_no_parameter_keeps_names_the_nearest(given, least):
    with pytest.raises(acc.ImpossibleBudget, match="est reachable") as found:
        acc.calibrate(lambda t: acc.Repeated(acc.Gaussian(5.0), t), **given)
    assert found.value.reachable == pytest.approx(least, rel=1e-6)
    assert found.value.parameter == 1.0


@pytest.mark.at_length
def test_a_summary_reads_the_profile_by_a_method_that_has_an_answer():
    """At so rare a rate the contour, tightest elsewhere, has none."""
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 1e-7), 1_000)
    assert acc.epsilon(run, 1e-10, method=next(iter(acc.methods(run)))) == math.inf
    assert acc.summary(run).advantage <= 1.001 * acc.delta(run, 0.0)
