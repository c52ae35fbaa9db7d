"""Right guesses against a trade-off curve: linear programmes, enumeration and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom, norm

from dpjax import accounting as acc
from dpjax import audit


def _programme(curve, m, r, v):
    """The largest tail P[S ≥ v] that the inequalities of the lemma allow, by linear programming."""
    epsilon, delta = curve.lines()
    number = np.arange(r + 1)
    rows, limits = [], []
    for t in range(1, r + 1):
        right = np.where(number >= t, number, 0) / m
        wrong = np.where(number >= t - 1, r - number, 0) / m
        for one, extra in zip(epsilon, delta, strict=True):
            # e^(−ε)·(R − δ) ≤ H and 1 − δ − e^ε·(1 − R) ≤ H.
            rows += [right - math.exp(one) * wrong, math.exp(one) * right - wrong]
            limits += [extra, math.exp(one) - 1.0 + extra]
    found = linprog(
        -(number >= v).astype(float), np.array(rows), limits, np.ones((1, r + 1)), [1.0]
    )
    assert found.status == 0
    return -found.fun


@pytest.mark.parametrize(
    ("m", "r", "v"), [(1, 1, 1), (2, 2, 2), (5, 3, 2), (6, 6, 5), (12, 8, 8), (30, 20, 17)]
)
@pytest.mark.parametrize(
    "curve",
    [
        audit.PiecewiseCurve(1.0, 0.0),
        audit.PiecewiseCurve(0.5, 0.01),
        audit.PiecewiseCurve(*audit.GaussianCurve(1.0).lines(20)),
    ],
)
def test_the_recursion_is_the_optimum_of_the_programme(curve, m, r, v):
    found = audit.curve_p_value(curve, canaries=m, guesses=r, correct=v)
    truth = _programme(curve, m, r, v)
    assert found >= truth - 1e-7
    assert found == pytest.approx(truth, rel=1e-6, abs=1e-7)


def _random_channel(rng, m, outputs, sharpness):
    """P[output | coins], [2^m, outputs], of a mechanism that mixes all coins."""
    logits = sharpness * rng.normal(size=(2**m, outputs))
    rows = np.exp(logits)
    return rows / rows.sum(axis=1, keepdims=True)


def _own_curve(channel, m):
    """The channel's own δ(ε) over all coins, outcomes of the others and both directions."""
    epsilon = np.linspace(0.0, 6.0, 41)
    delta = np.zeros_like(epsilon)
    for coins, j in itertools.product(range(2**m), range(m)):
        p, q = channel[coins], channel[coins ^ (1 << j)]
        excess = np.maximum(p[None] - np.exp(epsilon)[:, None] * q[None], 0.0).sum(axis=1)
        delta = np.maximum(delta, excess)
    return audit.PiecewiseCurve(epsilon, np.minimum(delta + 1e-15, 1.0))


def _best_tail(channel, m, r, v):
    """The largest P[at least v of r guesses right] of any attacker, by trying every guess."""
    coins = np.array(list(itertools.product((0, 1), repeat=m)))[:, ::-1]  # bit j of the row
    guesses = [
        (list(chosen), np.array(said))
        for chosen in itertools.combinations(range(m), r)
        for said in itertools.product((0, 1), repeat=r)
    ]
    # Which outcomes of the coins are guessed well enough, by guess.
    good = np.array([(coins[:, c] == s).sum(axis=1) >= v for c, s in guesses], float)
    return float(np.max(good @ (channel / 2**m), axis=0).sum())


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("sharpness", [0.1, 0.5, 2.0])
def test_no_attacker_on_a_random_mechanism_exceeds_its_p_value(m, sharpness):
    rng = np.random.default_rng(10 * m + int(10 * sharpness))
    for _ in range(25):
        channel = _random_channel(rng, m, int(rng.integers(2, 7)), sharpness)
        curve = _own_curve(channel, m)
        for r in range(1, m + 1):
            for v in range(1, r + 1):
                bound = audit.curve_p_value(curve, canaries=m, guesses=r, correct=v)
                assert _best_tail(channel, m, r, v) <= bound


def test_a_bound_without_the_canaries_that_were_not_guessed_would_be_wrong():
    # One coin in ten is shown: of ten, one guess that is right. With m = r = 1 that is refuted.
    shown, m = 0.1, 10
    curve = audit.PiecewiseCurve(0.0, shown)
    truth = 1.0 - (1.0 - shown) ** m / 2.0  # any coin that is shown, or a fair one
    assert audit.curve_p_value(curve, canaries=m, guesses=1, correct=1) >= truth
    assert audit.curve_p_value(curve, canaries=1, guesses=1, correct=1) < truth


def test_one_coin_is_guessed_as_well_as_the_curve_allows():
    # Where f(α) = α: Φ(μ/2) of a Gaussian, and e^ε/(1 + e^ε) of randomised response.
    bound = audit.curve_p_value(audit.GaussianCurve(2.0), canaries=1, guesses=1, correct=1)
    assert bound == pytest.approx(0.8413447460685429, rel=1e-9)
    curve = audit.PiecewiseCurve(1.0, 0.0)
    bound = audit.curve_p_value(curve, canaries=1, guesses=1, correct=1)
    assert bound == pytest.approx(math.e / (1 + math.e), rel=1e-9)


@pytest.mark.parametrize("v", [60, 75, 90])
def test_randomised_response_stays_below_its_p_value(v):
    tail = binom.sf(v - 1, 100, 1 / (1 + math.exp(-1.0)))
    curve = audit.PiecewiseCurve(1.0, 0.0)
    bound = audit.curve_p_value(curve, canaries=100, guesses=100, correct=v)
    assert tail <= bound <= 20 * tail


def _gaussian_guesses(rng, mu, m, r):
    included = rng.random(m) < 0.5
    order = np.argsort(mu * included + rng.normal(size=m))
    return int(included[order[-(r // 2) :]].sum() + (~included[order[: r // 2]]).sum())


@pytest.mark.parametrize(("m", "r"), [(200, 20), (400, 100), (60, 60)])
def test_honest_gaussian_canaries_keep_the_level(m, r):
    rng, curve = np.random.default_rng(m), audit.GaussianCurve(1.0)
    values = {}
    found = []
    for _ in range(400):
        v = _gaussian_guesses(rng, 1.0, m, r)
        if v not in values:
            values[v] = audit.curve_p_value(curve, canaries=m, guesses=r, correct=v)
        found.append(values[v])
    for level in (0.05, 0.2):
        # P[Binomial(400, level) above this] < 1e-4.
        assert np.mean(np.array(found) <= level) * 400 <= binom.isf(1e-4, 400, level)


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
@pytest.mark.parametrize(("m", "r"), [(1, 1), (8, 3), (8, 8), (30, 30)])
def test_guesses_that_all_follow_one_noisy_sum_stay_below_their_p_value(mu, m, r):
    # All canaries in one sum with normal noise of 1/μ: the first r guessed "in" where it is above
    # m/2. All are right together, as independent guesses never are.
    first, rest = np.arange(r + 1)[:, None], np.arange(m - r + 1)[None]
    chance = binom.pmf(first, r, 0.5) * binom.pmf(rest, m - r, 0.5)
    above = norm.sf(mu * (m / 2 - first - rest))
    for v in sorted({1, r // 2 + 1, r}):
        truth = np.sum(chance * (above * (first >= v) + (1.0 - above) * (r - first >= v)))
        for curve in (audit.GaussianCurve(mu), audit.claimed_curve(acc.Gaussian(1.0 / mu))):
            bound = audit.curve_p_value(curve, canaries=m, guesses=r, correct=v)
            assert truth <= bound * (1.0 + 1e-12)


@pytest.mark.parametrize("delta", [0.0, 1e-13, 1e-4, 0.3, 0.999999, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 8.0])
def test_coins_that_are_shown_together_or_one_by_one_stay_below_their_p_value(epsilon, delta):
    curve, right = audit.PiecewiseCurve(epsilon, delta), 1.0 / (1.0 + math.exp(-epsilon))
    for m, r in ((1, 1), (5, 5), (40, 4), (40, 40)):
        shown = np.arange(m + 1)
        known = np.minimum(shown, r)
        for v in sorted({1, r // 2 + 1, r}):
            bound = audit.curve_p_value(curve, canaries=m, guesses=r, correct=v)
            # All coins with probability δ, or each by itself: the shown ones are guessed first, and
            # where nothing is shown a coin is guessed from randomised response.
            together = delta + (1.0 - delta) * binom.sf(v - 1, r, right)
            alone = np.sum(binom.pmf(shown, m, delta) * binom.sf(v - known - 1, r - known, right))
            assert together <= bound * (1.0 + 1e-12)
            assert alone <= bound * (1.0 + 1e-12)


def _guessed_right(rng, kind, mu, m, r):
    """Right guesses of one honest run: the surest, the extremes, ties, or one canary's say."""
    included = rng.random(m) < 0.5
    sure = mu * included + rng.normal(size=m) - mu / 2
    if kind == "ties":
        sure = np.round(sure)
    if kind == "one decides":  # all guesses as the first score says
        return int((included[:r] == (sure[0] > 0)).sum())
    if kind == "extremes":
        order = np.argsort(sure, kind="stable")
        half = r // 2
        return int(included[order[m - (r - half) :]].sum() + (~included[order[:half]]).sum())
    order = np.argsort(-np.abs(sure), kind="stable")[:r]
    return int(((sure > 0) == included)[order].sum())


@pytest.mark.exact
@pytest.mark.parametrize("kind", ["surest", "extremes", "ties", "one decides"])
@pytest.mark.parametrize(
    ("mu", "m", "r"), [(1.0, 1, 1), (1.0, 40, 40), (0.5, 100, 10), (2.0, 60, 20), (1.0, 9, 0)]
)
def test_ten_thousand_honest_runs_keep_every_level(kind, mu, m, r):
    rng, runs, delta = np.random.default_rng(m + r), 10_000, 1e-5
    right = np.array([_guessed_right(rng, kind, mu, m, r) for _ in range(runs)])
    curves = audit.GaussianCurve(mu), audit.claimed_curve(acc.Gaussian(1.0 / mu))
    epsilon = float(acc.epsilon(acc.Gaussian(1.0 / mu), delta))
    counts = {"canaries": m, "guesses": r}
    wrong = {}
    for v, times in zip(*np.unique(right, return_counts=True), strict=True):
        counts["correct"] = int(v)
        values = [audit.curve_p_value(curve, **counts) for curve in curves]
        assert values[0] <= values[1] * (1.0 + 1e-9)
        for level in (0.5, 0.05, 1e-3):
            wrong[level] = wrong.get(level, 0) + times * (values[0] <= level)
            level_of = {"delta": delta, "confidence": 1.0 - level}
            bounds = [
                audit.one_run_curve_bound(**counts, **level_of).evidence.mu / mu,
                audit.one_run_curve_bound(**counts, **level_of, family="approximate").epsilon
                / epsilon,
                audit.one_run_bound(**counts, **level_of).epsilon / epsilon,
            ]
            for name, bound in enumerate(bounds):
                wrong[level, name] = wrong.get((level, name), 0) + times * (bound > 1.0)
    for key, times in wrong.items():
        level = key[0] if isinstance(key, tuple) else key
        assert times <= binom.isf(1e-6, runs, level), key


def test_a_gaussian_mistake_is_found_that_guesses_against_epsilon_do_not_find():
    # σ = 1/4 where 1 is claimed: μ = 4, ε(1e-5) = 4.38 claimed.
    rng, m, r = np.random.default_rng(0), 5_000, 1_000
    counts = {"canaries": m, "guesses": r}
    wrong, honest = (_gaussian_guesses(rng, mu, m, r) for mu in (4.0, 1.0))
    claim = audit.GaussianCurve(1.0)
    assert audit.curve_p_value(claim, **counts, correct=wrong) < 1e-3
    assert audit.curve_p_value(claim, **counts, correct=honest) > 0.05
    by_curve = audit.one_run_curve_bound(**counts, correct=wrong, delta=1e-5)
    assert by_curve.contradicts(4.3772)
    assert not audit.one_run_bound(**counts, correct=wrong, delta=1e-5).contradicts(4.3772)
    assert not audit.one_run_curve_bound(**counts, correct=honest, delta=1e-5).contradicts(4.3772)
    assert by_curve.assumption == "the trade-off curve is Gaussian"


@pytest.mark.parametrize("family", ["gaussian", "approximate"])
def test_the_bound_is_where_the_p_value_reaches_the_level(family):
    counts = {"canaries": 300, "guesses": 100, "correct": 85}
    bound = audit.one_run_curve_bound(**counts, delta=1e-4, confidence=0.99, family=family)
    sizes = bound.evidence.mu if family == "gaussian" else bound.epsilon

    def value(size):
        if family == "gaussian":
            return audit.curve_p_value(audit.GaussianCurve(size), **counts)
        return audit.curve_p_value(audit.PiecewiseCurve(size, 1e-4), **counts)

    assert sizes > 0.0
    assert value(0.999 * sizes) < 0.01 < value(1.001 * sizes)
    assert value(sizes) == pytest.approx(0.01, rel=1e-6)
    assert bound.method == "one_run_curve"
    assert (bound.assumption == "") is (family == "approximate")


def test_the_bound_keeps_its_confidence_on_gaussian_canaries():
    rng = np.random.default_rng(5)
    mus = [
        audit.one_run_curve_bound(
            canaries=300,
            guesses=60,
            correct=_gaussian_guesses(rng, 1.0, 300, 60),
            delta=1e-5,
            confidence=0.9,
        ).evidence.mu
        for _ in range(200)
    ]
    assert sum(mu > 1.0 for mu in mus) <= binom.isf(1e-4, 200, 0.1)
    assert max(mus) > 0.3


def test_the_curve_of_a_run_is_refuted_as_its_claim_would_be():
    counts = {"canaries": 1_000, "guesses": 200, "correct": 199}
    steps = acc.Repeated(acc.Gaussian(4.0), 16)  # μ = 1
    close = audit.curve_p_value(audit.claimed_curve(steps), **counts)
    exact = audit.curve_p_value(audit.GaussianCurve(1.0), **counts)
    assert exact <= close <= 3 * exact


def test_corners():
    curve = audit.GaussianCurve(1.0)
    assert audit.curve_p_value(curve, canaries=5, guesses=0, correct=0) == 1.0
    assert audit.curve_p_value(curve, canaries=5, guesses=5, correct=0) == 1.0
    assert audit.curve_p_value(audit.GaussianCurve(math.inf), canaries=9, guesses=9, correct=9) == 1
    assert (
        audit.curve_p_value(audit.PiecewiseCurve(0.0, 1.0), canaries=9, guesses=9, correct=9) == 1
    )
    # Nothing is claimed to leak: fair coins, and the lemma's bound is not below their tail.
    nothing = audit.curve_p_value(audit.PiecewiseCurve(0.0, 0.0), canaries=9, guesses=9, correct=9)
    assert 2.0**-9 <= nothing < 0.05
    tiny = audit.PiecewiseCurve(0.0, 1e-13)
    assert audit.curve_p_value(tiny, canaries=9, guesses=9, correct=9) >= nothing
    many = audit.curve_p_value(curve, canaries=20_000, guesses=2_000, correct=2_000)
    assert 0.0 < many < 1e-3
    none = audit.one_run_curve_bound(canaries=5, guesses=0, correct=0, delta=1e-5)
    assert (none.epsilon, none.evidence.mu) == (0.0, 0.0)
    assert audit.one_run_curve_bound(canaries=1, guesses=1, correct=1, delta=1e-13).epsilon == 0.0


@pytest.mark.parametrize(
    "counts", [(10, 5, 6), (3, 5, 2), (0, 0, 0), (5, -1, -1), (5, 4, 2.5), (5, True, 1)]
)
def test_impossible_counts_are_refused(counts):
    named = dict(zip(("canaries", "guesses", "correct"), counts, strict=True))
    with pytest.raises(ValueError, match=r"canaries|guesses|correct"):
        audit.curve_p_value(audit.GaussianCurve(1.0), **named)
    with pytest.raises(ValueError, match=r"canaries|guesses|correct"):
        audit.one_run_curve_bound(**named, delta=1e-5)


def test_a_family_is_checked():
    with pytest.raises(ValueError, match="family must be"):
        audit.one_run_curve_bound(canaries=2, guesses=2, correct=2, delta=1e-5, family="exact")
