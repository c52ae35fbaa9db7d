"""Privacy of users with several records: mpmath, enumeration, closed forms and dp_accounting."""

from __future__ import annotations

import functools

import jax
import mpmath as mp
import numpy as np
import pytest
from scipy import special

from dpjax import accounting as acc
from dpjax.accounting.pairs.added_records import AddedRecordsPair
from dpjax.accounting.pairs.count_law import Binomial, merge_weights, relative_weight_error
from dpjax.accounting.pairs.on_grid import log_linear_sum, loss, places
from dpjax.accounting.pairs.uses import binomial

ADD_REMOVE, REPLACE_ONE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE


def _sampled(sigma, rate, records):
    return acc.UserLevel(acc.PoissonSampled(acc.Gaussian(sigma), rate), records)


@functools.cache
def _truth(sigma, rate, records, epsilon):
    """The hockey-stick divergence of both directions: where the densities cross, by 30 digits."""
    with mp.workdps(30):
        mu, q, grow = 1 / mp.mpf(sigma), mp.mpf(rate), mp.exp(mp.mpf(epsilon))
        weight = [
            mp.binomial(records, j) * q**j * (1 - q) ** (records - j) for j in range(records + 1)
        ]

        def ratio(y):
            terms = (w * mp.exp(j * mu * y - (j * mu) ** 2 / 2) for j, w in enumerate(weight))
            return sum(terms)

        def cross(level):
            low, high = mp.mpf(-400), mp.mpf(400)
            for _ in range(110):
                middle = (low + high) / 2
                low, high = (middle, high) if ratio(middle) < level else (low, middle)
            return low

        def above(t, shift=0):
            return mp.erfc((t - shift) / mp.sqrt(2)) / 2

        t = cross(grow)
        mixed = sum(w * above(t, j * mu) for j, w in enumerate(weight))
        remove, add = mixed - grow * above(t), mp.mpf(0)
        if weight[0] < 1 / grow:
            t = cross(1 / grow)
            add = above(-t) - grow * sum(w * above(-t, -j * mu) for j, w in enumerate(weight))
        return float(max(remove, add))


@pytest.mark.parametrize(
    ("sigma", "rate", "records", "epsilon"),
    [
        (1.0, 0.1, 3, 0.5),
        (2.0, 0.01, 6, 0.1),
        (0.7, 0.5, 4, 2.0),
        (5.0, 0.3, 12, 1.0),
        (20.0, 1e-3, 5, 1e-3),
        (0.3, 0.9, 2, 0.7),
        (3.0, 1.0, 4, 1.5),
    ],
)
def test_one_step_is_the_mixture_of_as_many_records_as_were_drawn(sigma, rate, records, epsilon):
    truth = _truth(sigma, rate, records, epsilon)
    run = _sampled(sigma, rate, records)
    found = acc.delta(run, epsilon)
    assert truth * (1 - 1e-12) <= found <= truth * (1 + 1e-4) + 1e-12
    low, high = acc.epsilon_interval(run, truth)
    assert low * (1 - 1e-9) <= epsilon <= high * (1 + 1e-9)
    assert high - low <= 1e-3 * epsilon + 1e-5


def test_random_settings_are_never_below_the_truth():
    draw = np.random.default_rng(0)
    for _ in range(3):
        sigma = float(np.exp(draw.uniform(-1, 2)))
        rate, records = float(np.exp(draw.uniform(-6, 0))), int(draw.integers(1, 9))
        epsilon = float(np.exp(draw.uniform(-2, 1)))
        found = acc.delta(_sampled(sigma, rate, records), epsilon, method="pld")
        assert found >= _truth(sigma, rate, records, epsilon) * (1 - 1e-12)


def test_the_rare_tail_of_delta_is_resolved():
    sigma, rate, records, epsilon = 2.0, 0.02, 3, 1.45
    truth = _truth(sigma, rate, records, epsilon)
    assert 1e-14 < truth < 1e-11
    found = acc.delta(_sampled(sigma, rate, records), epsilon)
    assert truth * (1 - 1e-12) <= found <= truth * 1.01


def test_two_steps_are_the_convolution():
    """Cells of the loss on a fine grid, all pairs of them: no transform, no rounding."""
    sigma, rate, records, epsilon = 1.5, 0.2, 3, 0.8
    run = acc.UserLevel(acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), 2), records)
    from scipy import stats

    y = np.linspace(-9, 9 + records / sigma, 2001)
    j = np.arange(records + 1)
    weight = stats.binom.pmf(j, records, rate)
    shifted = np.diff(stats.norm.cdf(y[:, None] - j / sigma), axis=0)
    p, q = shifted @ weight, shifted[:, 0]
    truth = max(
        np.maximum(np.outer(a, a) - np.exp(epsilon) * np.outer(b, b), 0).sum()
        for a, b in ((p, q), (q, p))
    )
    # Lumps are below the truth by the square of their width.
    assert truth <= acc.delta(run, epsilon) <= truth * (1 + 1e-4)
    other = acc.Composed((run.mechanism.mechanism, run.mechanism.mechanism))
    assert acc.delta(acc.UserLevel(other, records), epsilon) == acc.delta(run, epsilon)


@pytest.mark.parametrize("records", [1, 3])
def test_the_moments_are_those_of_the_mixture_in_both_directions(records):
    sigma, rate, orders = 1.3, 0.05, [1.1, 2.0, 7.5, 60.0]
    found = acc.rdp(_sampled(sigma, rate, records), orders)
    with mp.workdps(17):
        mu, q = 1 / mp.mpf(sigma), mp.mpf(rate)
        weight = [
            mp.binomial(records, j) * q**j * (1 - q) ** (records - j) for j in range(records + 1)
        ]

        def moment(power):
            def f(y):
                terms = (w * mp.exp(j * mu * y - (j * mu) ** 2 / 2) for j, w in enumerate(weight))
                return mp.npdf(y) * sum(terms) ** power

            far = abs(power) * records * mu
            return mp.quad(f, mp.linspace(-14 - (far if power < 0 else 0), 14 + far, 12))

        truth = [
            max(float(mp.log(moment(p)) / (mp.mpf(a) - 1)) for p in (mp.mpf(a), 1 - mp.mpf(a)))
            for a in orders[:3]
        ]
    assert np.all(found[:3] >= np.array(truth) * (1 - 1e-13))
    assert found[:3] == pytest.approx(truth, rel=1e-7)
    if records == 1:
        plain = acc.rdp(acc.PoissonSampled(acc.Gaussian(sigma), rate), orders)
        assert found == pytest.approx(plain, rel=1e-7)
    assert np.all(np.diff(found) > 0)


def test_rare_records_that_are_all_in_one_batch_count_at_high_orders():
    # At q^k e^{(α−1)k²μ²/2} ≈ 1 the moment lies beyond 35 deviations, where r^α exceeds e^300.
    # By the trapezoid rule in 40 digits: 5.732466593957977e-4.
    found = acc.rdp(_sampled(1.203, 2.65559e-6, 5), [8.3564569])[0]
    assert 5.732466593957977e-4 <= found <= 5.7324665998e-4


def test_the_rarest_orders_keep_their_digits():
    orders = np.array([2.0, 3.0])
    found = acc.rdp(_sampled(20.0, 1e-4, 5), orders)
    # E[r²] − 1 = (1 + q²(e^{μ²} − 1))^k − 1, as r is a product over the records' posterior draws.
    with mp.workdps(40):
        excess = sum(
            mp.binomial(5, i)
            * mp.binomial(5, j)
            * mp.mpf("1e-4") ** (i + j)
            * (1 - mp.mpf("1e-4")) ** (10 - i - j)
            * mp.expm1(mp.mpf(i * j) / 400)
            for i in range(6)
            for j in range(6)
        )
        assert found[0] >= float(mp.log1p(excess))
        assert found[0] == pytest.approx(float(mp.log1p(excess)), abs=1e-10)


def test_dp_accounting_agrees_for_the_same_mixture():
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    from scipy import stats

    sigma, rate, records, steps, delta = 1.1, 0.02, 3, 8, 1e-6
    j = np.arange(records + 1)
    peer = pld.from_mixture_gaussian_mechanism(
        standard_deviation=sigma,
        sensitivities=j,
        sampling_probs=stats.binom.pmf(j, records, rate),
        value_discretization_interval=2e-3,
    ).self_compose(steps)
    run = acc.UserLevel(acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps), records)
    low, high = acc.epsilon_interval(run, delta)
    assert low <= peer.get_epsilon_for_delta(delta)  # theirs is pessimistic
    assert high == pytest.approx(peer.get_epsilon_for_delta(delta), rel=2e-3)
    assert high <= peer.get_epsilon_for_delta(delta) * (1 + 1e-6)


@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE_ONE])
def test_what_moves_in_proportion_is_the_same_release_with_less_noise(adjacency):
    k, delta = 3, 1e-6
    for wrapped, same in [
        (acc.Gaussian(2.0), acc.Gaussian(2.0 / 3)),
        (acc.Repeated(acc.Gaussian(2.0), 5), acc.Repeated(acc.Gaussian(2.0 / 3), 5)),
        (acc.Laplace(2.0), acc.Laplace(2.0 / 3)),
        (acc.DiscreteLaplace(2.0, 4), acc.DiscreteLaplace(2.0 / 3, 12)),
        (acc.DiscreteGaussian(2.0, 4), acc.DiscreteGaussian(2.0 / 3, 12)),
        (acc.Exponential(0.5), acc.Exponential(1.5)),
        (acc.PureDP(0.5, adjacency.value), acc.PureDP(1.5, adjacency.value)),
        (acc.ZeroConcentrated(0.1, adjacency.value), acc.ZeroConcentrated(0.9, adjacency.value)),
        (acc.RandomizedResponse(0.5, 4), acc.Repeated(acc.RandomizedResponse(0.5, 4), 3)),
        (
            acc.Composed((acc.Laplace(3.0), acc.Gaussian(3.0))),
            acc.Composed((acc.Laplace(1.0), acc.Gaussian(1.0))),
        ),
    ]:
        found = acc.epsilon(acc.UserLevel(wrapped, k), delta, adjacency=adjacency)
        assert found == pytest.approx(acc.epsilon(same, delta, adjacency=adjacency), rel=1e-9)
        assert found >= acc.epsilon(same, delta, adjacency=adjacency) * (1 - 1e-15)
        one = acc.epsilon(acc.UserLevel(wrapped, 1), delta, adjacency=adjacency)
        assert one == pytest.approx(acc.epsilon(wrapped, delta, adjacency=adjacency), rel=1e-10)


def test_a_chain_of_guarantees_is_charged_and_no_lower_end_is_read_off_it():
    run = acc.UserLevel(acc.ApproximateDP(0.1, 1e-6, "add-remove"), 3)
    share = 1e-6 * (1 + np.exp(0.1) + np.exp(0.2))
    assert share <= acc.delta(run, 0.3 * (1 + 1e-12)) <= share * (1 + 1e-9)
    for stated in (run, acc.UserLevel(acc.PureDP(0.5, "add-remove"), 3)):
        assert acc.epsilon_interval(stated, 1e-4)[0] == 0
    assert acc.delta(acc.UserLevel(acc.ApproximateDP(500.0, 1e-6, "add-remove"), 3), 1.0) == 1


@pytest.mark.parametrize(
    ("inner", "adjacency"),
    [
        (acc.BestOf(acc.Gaussian(4.0), 3.0), ADD_REMOVE),
        (acc.BestOf(acc.Gaussian(4.0), 3.0), REPLACE_ONE),
        (acc.PoissonSampled(acc.Laplace(2.0), 0.1), ADD_REMOVE),
        (acc.RandomAllocation(acc.Gaussian(2.0), 10), ADD_REMOVE),
    ],
)
def test_the_rest_is_charged_step_by_step(inner, adjacency):
    """The stated δ is checked at the ε that is found, from the inner profile alone."""
    k, delta = 3, 1e-5
    found, used = acc.price(acc.UserLevel(inner, k), delta, adjacency=adjacency)
    assert used.name == "group"
    one = found / k
    spent = acc.delta(inner, one, adjacency=adjacency) * sum(np.exp(i * one) for i in range(k))
    assert spent <= delta
    assert spent >= 0.9 * delta
    assert acc.delta(acc.UserLevel(inner, k), found, adjacency=adjacency) == pytest.approx(
        spent, rel=1e-9
    )


def test_the_exact_pair_is_below_the_step_by_step_charge():
    inner = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 100)
    run = acc.UserLevel(inner, 4)
    best, charged, curve = (acc.epsilon(run, 1e-5, method=m) for m in ("pld", "group", "rdp"))
    assert best < min(curve, charged)
    low, high = acc.epsilon_interval(run, 1e-5)
    assert high - low < 0.01 * high


def test_a_sweep_of_records_is_its_settings():
    inner, records = acc.PoissonSampled(acc.Gaussian(2.0), 0.1), [1.0, 3.0]
    sweep = acc.epsilon(acc.UserLevel(inner, records), 1e-5, method="rdp")
    single = [acc.epsilon(acc.UserLevel(inner, k), 1e-5, method="rdp") for k in records]
    assert sweep.tolist() == single
    assert sweep[1] > sweep[0]
    by_rate = acc.UserLevel(acc.PoissonSampled(acc.Gaussian([2.0, 3.0]), 0.1), np.array([[1], [2]]))
    assert acc.epsilon(by_rate, 1e-5, method="rdp").shape == (2, 2)


def test_records_are_drawn_and_users_never():
    for inner in (acc.Gaussian(2.0), acc.Laplace(2.0)):
        for wrong in (
            acc.PoissonSampled(acc.UserLevel(inner, 2), 0.1),
            acc.FixedBatchSampled(acc.UserLevel(inner, 2), 1, 10),
            acc.RandomAllocation(acc.UserLevel(inner, 2), 4),
            acc.TruncatedPoissonSampled(acc.UserLevel(inner, 2), 0.1, 10, 2),
        ):
            for adjacency in acc.Adjacency:
                with pytest.raises(acc.UnsupportedQuery):
                    acc.epsilon(wrong, 1e-5, adjacency=adjacency)
    cut = acc.UserLevel(acc.TruncatedPoissonSampled(acc.Gaussian(1.0), 0.1, 10, 2), 2)
    with pytest.raises(acc.UnsupportedQuery, match="data of one size"):
        acc.epsilon(cut, 1e-5)
    partly = acc.Composed((acc.UserLevel(acc.BestOf(acc.Gaussian(4.0), 3.0), 2), acc.Gaussian(1.0)))
    with pytest.raises(acc.UnsupportedQuery, match="put UserLevel around all of it"):
        acc.epsilon(partly, 1e-5)


def test_corners():
    gaussian = acc.Gaussian(1.0)
    assert acc.epsilon(_sampled(1.0, 0.0, 3), 1e-5) == 0
    assert acc.epsilon(_sampled(0.0, 0.1, 3), 1e-5) == np.inf
    assert acc.epsilon(_sampled(1e-3, 0.5, 3), 1e-5) > 1e4
    assert acc.epsilon(_sampled(1e6, 0.5, 3), 1e-5) < 1e-5
    assert acc.epsilon(acc.UserLevel(acc.Composed(()), 3), 1e-5) == 0
    assert acc.delta(_sampled(1.0, 0.1, 3), 0.0) <= 1
    certain = acc.epsilon(_sampled(1.0, 1.0, 3), 1e-13)
    exact = acc.epsilon(acc.Gaussian(1 / 3), 1e-13)
    assert exact * (1 - 1e-12) <= certain <= exact * (1 + 1e-4)
    for wrong in (0, 1.5, np.nan, -1, np.inf, 1e300):
        with pytest.raises(ValueError, match=r"UserLevel\.records"):
            acc.UserLevel(gaussian, wrong)
    with pytest.raises(TypeError, match=r"UserLevel\.records"):
        acc.UserLevel(gaussian, None)
    with pytest.raises(TypeError, match=r"UserLevel\.mechanism"):
        acc.UserLevel(1.0, 2)
    traced = jax.jit(lambda k: acc.epsilon(acc.UserLevel(gaussian, k), 1e-5))
    assert float(traced(1.5)) == np.inf
    assert float(traced(3.0)) >= acc.epsilon(acc.Gaussian(1 / 3), 1e-5)


def test_many_records_are_lumped_towards_more_for_an_upper_bound():
    for records, rate in ((5_000.0, 0.3), (20.0, 0.5), (1e6, 1e-3)):
        (j, up), (i, low) = (
            merge_weights(Binomial(records, rate), upper) for upper in (True, False)
        )
        assert len(j) <= 258
        assert up.sum() == pytest.approx(1, abs=1e-12)
        assert low.sum() == pytest.approx(1, abs=1e-12)
        assert i @ low * (1 - 1e-12) <= records * rate <= j @ up * (1 + 1e-12)


def test_a_certificate_says_whose_privacy_it_is():
    certificate = acc.certify(acc.UserLevel(acc.Gaussian(2.0), 3), delta=1e-5)
    assert "no user owns more than the stated number of records" in certificate.assumptions
    assert "users of up to 3 records" in certificate.mechanism.describe()
    assert acc.Certificate.from_json(certificate.to_json()) == certificate
    certificate.verify()
    stated = acc.UserLevel(acc.PureDP(0.5, "add-remove"), 3)
    acc.certify(stated, delta=1e-5).verify()
    assert acc.certify(stated, delta=1e-5).tier == "conditional"


def _divergence(shifts, weights, level):
    """The hockey-stick divergence of a mixture from N(0, I), larger direction, by a fine grid."""
    axis, dimension = np.linspace(-9, 9, 181), shifts.shape[1]
    points = np.meshgrid(*[axis] * dimension, indexing="ij")
    y = np.stack(points, -1).reshape(-1, dimension)
    cell = (axis[1] - axis[0]) ** dimension / (2 * np.pi) ** (dimension / 2)
    one = cell * np.exp(-0.5 * (y**2).sum(1))
    mixed = sum(
        w * cell * np.exp(-0.5 * ((y - s) ** 2).sum(1))
        for w, s in zip(weights, shifts, strict=True)
    )
    there, back = (np.maximum(a - level * b, 0).sum() for a, b in ((mixed, one), (one, mixed)))
    return max(there, back)


@pytest.mark.parametrize(
    "records",
    [
        [[1.0], [-1.0]],
        [[1.0], [0.3]],
        [[1.0, 0.0], [0.0, 1.0]],
        [[1.0, 0.0], [-0.6, 0.8]],
        [[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]],
    ],
)
def test_contributions_that_are_not_aligned_cost_no_more(records):
    """Every subset of the records, by its probability: in one and two dimensions, by a grid."""
    x = np.array(records)
    k = len(x)
    drawn = np.array([[(s >> i) & 1 for i in range(k)] for s in range(2**k)])
    for sigma, rate in ((0.8, 0.1), (2.0, 0.6)):
        weights = np.prod(np.where(drawn == 1, rate, 1 - rate), axis=1)
        for epsilon in (0.0, 0.2, 1.0):
            truth = _divergence(drawn @ x / sigma, weights, np.exp(epsilon))
            found = _truth(sigma, rate, k, epsilon)
            assert truth <= found * (1 + 1e-9) + 1e-12
            # The grid sees the aligned pair itself, so that it would see a worse one.
            aligned = drawn.sum(1)[:, None] / sigma
            assert _divergence(aligned, weights, np.exp(epsilon)) == pytest.approx(found, rel=0.1)


def test_users_of_a_run_of_stated_guarantees():
    """These once failed: the sum of pure releases met a step that was still wrapped."""
    run = acc.UserLevel(acc.Repeated(acc.PureDP(0.5, "add-remove"), 2), 3)
    # Two answers by randomised response of ε = 1.5: both true with p², and then of loss 3.
    truth = 3 + np.log1p(-1e-4 * (1 + np.exp(-1.5)) ** 2)
    assert acc.epsilon_interval(run, 1e-4) == (0, pytest.approx(truth, rel=1e-9))
    assert acc.epsilon(run, 1e-4, method="closed_form") >= truth


@pytest.mark.parametrize(
    "stated", [acc.PureDP(0.5, "add-remove"), acc.ApproximateDP(0.5, 1e-6, "add-remove")]
)
def test_no_lower_end_of_a_chain_is_shown_by_any_method(stated):
    for run in (
        acc.UserLevel(stated, 3),
        acc.UserLevel(acc.Repeated(stated, 2), 3),
        acc.Composed((acc.UserLevel(stated, 3), acc.Laplace(3.0))),
    ):
        lower = [m.epsilon_lower for m in acc.methods(run).values() if m.epsilon_lower]
        assert lower
        assert [float(ask(run, 1e-4, ADD_REMOVE)) for ask in lower] == [0] * len(lower)


@pytest.mark.parametrize(("records", "rate"), [(20, 0.01), (1e6, 0.3), (1e9, 0.5), (1e9, 1e-6)])
def test_the_masses_are_as_exact_as_is_said(records, rate):
    first, mass = binomial(records, rate / (1 - rate))
    mean, spread = records * rate, (records * rate * (1 - rate)) ** 0.5
    with mp.workdps(40):
        for z in (-8, -3, 0, 3, 12):
            j = np.floor(mean + z * spread)
            if j < 0:
                continue
            n, i, q = mp.mpf(records), mp.mpf(j), mp.mpf(rate)
            ways = mp.loggamma(n + 1) - mp.loggamma(i + 1) - mp.loggamma(n - i + 1)
            truth = mp.exp(ways + i * mp.log(q) + (n - i) * mp.log1p(-q))
            found = mass[int(j - first)]
            assert abs(float(found / truth - 1)) <= relative_weight_error(Binomial(records, rate))


def test_sums_of_exponentials_leave_out_nothing_that_shows():
    """Few of many terms weigh at any one point: against SciPy's sums of all of them."""
    draw = np.random.default_rng(7)
    for _ in range(25):
        terms, points = draw.integers(1, 300), draw.integers(1, 5000)
        slope = np.sort(draw.uniform(0, draw.choice([0.1, 1, 30]), terms))
        level = draw.normal(0, draw.choice([1, 30, 500]), terms) - slope**2 / 2
        y = np.sort(draw.uniform(-1, 1, points) * draw.choice([1, 30, 300]))
        value, rise = log_linear_sum(y, slope, level)
        exponent = y[:, None] * slope + level
        truth = special.logsumexp(exponent, axis=1)
        np.testing.assert_allclose(value, truth, rtol=1e-14, atol=1e-13)
        mean = np.exp(exponent - truth[:, None]) @ slope
        np.testing.assert_allclose(rise, mean, rtol=1e-11)


def test_users_of_users_of_very_many_records_end():
    (j, weight) = merge_weights(Binomial(1e18, 0.01), True)
    assert weight.sum() == pytest.approx(1, abs=1e-6)
    assert j @ weight >= 1e16 * (1 - 1e-12)


@pytest.mark.parametrize(
    ("mu", "records", "rate"), [(38.481565, 50, 0.0338449), (12.832426, 34, 0.0912723)]
)
def test_outcomes_of_a_loss_have_that_loss_where_numbers_of_records_lie_far_apart(
    mu, records, rate
):
    """One step's loss changes its slope at once: the outcome of 1,483 had a loss of 1,483.08."""
    mixture = AddedRecordsPair(mu, Binomial(records, rate)).side(1, mu, rate, 9.0, True)
    least, most = mixture.loss_range(1, mu, rate, 9.0)
    losses = np.linspace(max(least, 0.0), most, 10_001)[1:]
    found = loss(mixture.pair, places(mixture.pair, losses))[0]
    np.testing.assert_allclose(found, losses, rtol=1e-12)


def test_a_closed_form_of_wrapped_records_has_a_lower_end_when_asked_directly():
    """This once raised KeyError: the release inside was not looked for."""
    for inner, same in (
        (acc.Laplace(3.0), acc.Laplace(1.0)),
        (acc.Exponential(0.5), acc.Exponential(1.5)),
    ):
        ends = [
            [float(f(run, 1e-5, ADD_REMOVE)) for f in (method.epsilon_lower, method.epsilon)]
            for run in (acc.UserLevel(inner, 3), same)
            for method in [acc.methods(run)["closed_form"]]
        ]
        assert ends[0] == pytest.approx(ends[1], rel=1e-12)
        assert ends[0][0] <= ends[0][1]


def test_very_many_records_are_priced_between_ends_that_are_close():
    run = acc.UserLevel(acc.Repeated(acc.PoissonSampled(acc.Gaussian(1e3), 0.01), 100), 1e6)
    low, high = acc.epsilon_interval(run, 1e-5)
    # All steps draw 10,000 ± 100 records: a Gaussian release of a few more, and of a few less.
    more, less = (
        acc.epsilon(acc.Repeated(acc.Gaussian(1e3 / n), 100), 1e-5) for n in (11_000, 9_000)
    )
    assert less <= low <= high <= more
    assert high - low <= 2e-3 * high
