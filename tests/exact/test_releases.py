"""Laplace, discrete and selection noise: against sums and closed forms in exact arithmetic.

The truths are written down from the definitions of the noise: two lists of masses, or an integral,
in mpmath. `DPJAX_ALL_RELEASES=1` asks a thousand random settings a mechanism instead of a few.
"""

from __future__ import annotations

import itertools
import os

import mpmath
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax._numerics.float64 import float64_scope
from dpjax.accounting.contour.lattice import _Lattice, _lattice_error
from dpjax.accounting.contour.saddle import Composition
from dpjax.accounting.pairs.discrete_gaussian import ShiftedGaussian
from dpjax.accounting.pairs.finite import CELLS

ADD, REPLACE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE
SETTINGS = 1_000 if os.environ.get("DPJAX_ALL_RELEASES") else 12


def discrete_laplace(scale, shift):
    reach = int(90 * scale) + 2
    mass = {k: mpmath.exp(-abs(k) / mpmath.mpf(scale)) for k in range(-reach, reach + shift + 1)}
    total = (1 + mpmath.exp(-1 / mpmath.mpf(scale))) / (1 - mpmath.exp(-1 / mpmath.mpf(scale)))
    return (
        [mpmath.exp(-abs(k - shift) / mpmath.mpf(scale)) / total for k in mass],
        [m / total for m in mass.values()],
    )


def discrete_gaussian(sigma, shift):
    reach = int(16 * sigma) + 3
    weight = lambda k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(sigma) ** 2))  # noqa: E731
    places = range(-reach, reach + shift + 1)
    total = mpmath.fsum(weight(k) for k in range(-reach, reach + 1))
    return [weight(k - shift) / total for k in places], [weight(k) / total for k in places]


def response(epsilon, categories):
    e = mpmath.exp(mpmath.mpf(epsilon))
    rare = 1 / (e + categories - 1)
    other = [rare] * (categories - 2)
    return [e * rare, rare, *other], [rare, e * rare, *other]


def profile(pair, epsilon, rate=1):
    """The larger direction of the hockey-stick divergence of a sampled pair."""
    with_record = [(1 - rate) * q + rate * p for p, q in zip(*pair, strict=True)]
    grow, found = mpmath.exp(epsilon), []
    for p, q in ((with_record, pair[1]), (pair[1], with_record)):
        found.append(mpmath.fsum(max(a - grow * b, 0) for a, b in zip(p, q, strict=True)))
    return max(found)


def renyi(pair, order):
    moment = mpmath.fsum(
        p ** mpmath.mpf(order) * q ** (1 - mpmath.mpf(order)) for p, q in zip(*pair, strict=True)
    )
    return mpmath.log(moment) / (mpmath.mpf(order) - 1)


def laplace_profile(theta, epsilon, rate=1):
    """By the three pieces of the line, the middle one by its antiderivative."""
    theta, grow = mpmath.mpf(theta), mpmath.exp(epsilon)
    mix = lambda y: (1 - rate) * noise(y) + rate * noise(y - theta)  # noqa: E731
    noise = lambda y: mpmath.exp(-abs(y)) / 2  # noqa: E731
    ends = [-mpmath.inf, -60, 0, theta, theta + 60, mpmath.inf]
    found = []
    for p, q in ((mix, noise), (noise, mix)):
        # the sign of p − e^ε q changes at most once, on (0, θ)
        gap = lambda y: p(y) - grow * q(y)  # noqa: E731, B023
        low, high = mpmath.mpf(0), theta
        points = list(ends)
        if gap(low) * gap(high) < 0:
            for _ in range(90):
                middle = (low + high) / 2
                low, high = (middle, high) if gap(low) * gap(middle) > 0 else (low, middle)
            points = sorted([*ends, low])
        parts = [mpmath.quad(gap, [a, b]) for a, b in itertools.pairwise(points) if a < b]
        found.append(mpmath.fsum(max(part, 0) for part in parts))
    return max(found)


def drawn(seed):
    generator = np.random.default_rng(seed)
    for _ in range(SETTINGS):
        yield generator, REPLACE if generator.integers(2) else ADD


def check(run, exact, adjacency, limit, loose=1e-6, chord=0.0):
    """ε and δ of every method: not below the exact profile, and tight where one says so.

    Where the profile is flat its inverse says little of ε, and the δ at the upper end is compared.
    """
    for share in (0.0, 0.3, 0.9):
        epsilon = share * limit
        truth = exact(epsilon)
        for method in ("closed_form", "pld", "rdp"):
            if method not in acc.methods(run, adjacency):
                continue
            found = acc.delta(run, epsilon, adjacency=adjacency, method=method)
            assert found >= truth * (1 - mpmath.mpf("1e-14")), (run, epsilon, method)
            if method != "rdp":
                most = truth * (1 + loose) + (1 - truth) * chord + 1e-13
                assert found <= most, (run, epsilon, method)
        if 1e-12 < truth < 1:
            low, high = acc.epsilon_interval(run, float(truth), adjacency=adjacency)
            assert low <= epsilon * (1 + 1e-12) + 1e-12, (run, epsilon)
            assert epsilon * (1 - 1e-12) - 1e-12 <= high, (run, epsilon)
            near = high <= epsilon * (1 + 1e-6) + 1e-6
            assert near or exact(high) >= truth * (1 - mpmath.mpf("1e-11")), (run, epsilon, high)


def test_laplace_is_never_below_its_integral():
    for generator, adjacency in drawn(1):
        noise = float(10 ** generator.uniform(-1, 2))
        theta = (2 if adjacency is REPLACE else 1) / noise
        with mpmath.workdps(25):
            # the profile 1 − √x·e^{−θ/2} in x = e^ε lies within Δx²·max|f''|/8 of its chords
            chord = (2 * theta / CELLS) ** 2 / 32 * (1 + 2 * theta / CELLS)
            exact = lambda e, t=theta: laplace_profile(t, e)  # noqa: E731
            check(acc.Laplace(noise), exact, adjacency, theta, 1e-12, chord)


def test_discrete_laplace_is_never_below_its_sum():
    for generator, adjacency in drawn(2):
        noise, sensitivity = float(10 ** generator.uniform(-1, 0.6)), int(generator.integers(1, 5))
        shift = (2 if adjacency is REPLACE else 1) * sensitivity
        with mpmath.workdps(40):
            pair = discrete_laplace(noise * sensitivity, shift)
            run = acc.DiscreteLaplace(noise, sensitivity)
            check(run, lambda e, p=pair: profile(p, e), adjacency, shift / (noise * sensitivity))


def test_discrete_gaussian_is_never_below_its_sum():
    for generator, adjacency in drawn(3):
        noise, sensitivity = (
            float(10 ** generator.uniform(-0.7, 0.8)),
            int(generator.integers(1, 6)),
        )
        shift = (2 if adjacency is REPLACE else 1) * sensitivity
        mu = shift / (noise * sensitivity)
        with mpmath.workdps(40):
            pair = discrete_gaussian(noise * sensitivity, shift)
            run = acc.DiscreteGaussian(noise, sensitivity)
            top = 3 * mu + mu * mu / 2
            # a loss that is rounded up by 1e-12 of itself moves δ by as much of a loss
            loose = 1e-12 * max(10.0, top)
            check(run, lambda e, p=pair: profile(p, e), adjacency, top, loose)


def test_randomised_response_is_never_below_its_sum():
    for generator, adjacency in drawn(4):
        epsilon, categories = float(10 ** generator.uniform(-2, 1)), int(generator.integers(2, 40))
        with mpmath.workdps(40):
            pair = response(epsilon, categories)
            run = acc.RandomizedResponse(epsilon, categories)
            check(run, lambda e, p=pair: profile(p, e), adjacency, epsilon, 1e-11)


def test_selection_is_never_below_the_worst_of_its_ranges():
    """Two candidates whose log-odds are anywhere and move by ε: the worst of a grid of them."""
    for generator, adjacency in drawn(5):
        epsilon = float(10 ** generator.uniform(-2, 1))
        moved = 2 * epsilon if adjacency is REPLACE else epsilon
        odds = np.linspace(-moved - 9.0, 9.0, 40_001)
        p, q = (1 / (1 + np.exp(-o)) for o in (odds + moved, odds))
        run = acc.Exponential(epsilon)
        for share in (0.0, 0.4, 0.8):
            grow = np.exp(share * moved)
            truth = np.max(np.maximum(p - grow * q, (1 - q) - grow * (1 - p)))
            for method in ("closed_form", "pld"):
                found = acc.delta(run, share * moved, adjacency=adjacency, method=method)
                assert truth * (1 - 1e-12) <= found <= truth * (1 + 1e-4), (run, share, method)


def permute_and_flip(scores, scale):
    """Law of the choice, by all orders: the first candidate kept, each with e^{−gap/scale}."""
    chance = np.exp((scores - scores.max()) / scale)
    law = np.zeros(len(scores))
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        alive = 1 / len(orders)
        for k in order:
            law[k] += alive * chance[k]
            alive *= 1 - chance[k]
    return law


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
def test_permute_and_flip_is_never_below_any_scores_of_up_to_five_candidates(monotone, adjacency):
    rng, near = np.random.default_rng(8), 0.0
    for _ in range(200):
        epsilon, share = 10 ** rng.uniform(-1, 0.7), rng.uniform(0, 0.9)
        scale = (1 if monotone else 2) / epsilon
        run = acc.Exponential(epsilon, monotone=monotone, permute_and_flip=True)
        given = share * epsilon * (2 if adjacency is REPLACE else 1)
        one = acc.delta(run, given, adjacency=adjacency)
        orders = np.array([1.3, 2.0, 8.0])
        curve = acc.rdp(run, orders, adjacency=adjacency)
        for _ in range(10):
            count = int(rng.integers(2, 6))
            scores = scale * rng.choice([0.0, 1.0, 3.0]) * rng.normal(size=count)
            if monotone:
                moved = scores + rng.choice([0.0, 1.0], count)
                moved = moved - rng.choice([0.0, 1.0], count) * (adjacency is REPLACE)
            else:
                far = 2 if adjacency is REPLACE else 1
                moved = scores + far * rng.choice([-1.0, 0.0, 1.0], count)
            p, q = permute_and_flip(scores, scale), permute_and_flip(moved, scale)
            for a, b in ((p, q), (q, p)):
                found = np.maximum(a - np.exp(given) * b, 0).sum()
                assert found <= one * (1 + 1e-12) + 1e-14
                near = max(near, found / one)
                moments = np.log((a[:, None] ** orders * b[:, None] ** (1 - orders)).sum(0))
                assert np.all(moments / (orders - 1) <= curve * (1 + 1e-12) + 1e-14)
    assert near > 0.9  # two candidates attain it


@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
def test_renyi_curves_are_never_below_their_sums(adjacency):
    factor = 2 if adjacency is REPLACE else 1
    orders = [1.02, 1.5, 2.0, 7.3, 60.0]
    with mpmath.workdps(40):
        for noise, sensitivity in ((0.3, 1), (0.55, 3), (2.0, 2), (8.0, 1)):
            scale, shift = noise * sensitivity, factor * sensitivity
            for run, pair in (
                (acc.DiscreteLaplace(noise, sensitivity), discrete_laplace(scale, shift)),
                (acc.DiscreteGaussian(noise, sensitivity), discrete_gaussian(scale, shift)),
                (acc.RandomizedResponse(1 / noise, 3), response(1 / noise, 3)),
            ):
                for order, found in zip(
                    orders, acc.rdp(run, orders, adjacency=adjacency), strict=True
                ):
                    # far out the window of the sum is short of the moment's mass
                    if isinstance(run, acc.DiscreteGaussian) and order * shift > 8 * scale:
                        exact = order * mpmath.mpf(shift / scale) ** 2 / 2
                        assert found <= exact * (1 + 2e-9)
                        continue
                    exact = renyi(pair, order)
                    assert exact <= found <= exact * (1 + 2e-9) + 1e-11, (run, order)
        for noise in (1e-2, 0.3, 5.0, 1e4):
            theta = mpmath.mpf(factor) / mpmath.mpf(noise)
            for order, found in zip(
                orders, acc.rdp(acc.Laplace(noise), orders, adjacency=adjacency), strict=True
            ):
                a = mpmath.mpf(order)  # Mironov 2017, Table II
                exact = mpmath.log(
                    a / (2 * a - 1) * mpmath.exp((a - 1) * theta)
                    + (a - 1) / (2 * a - 1) * mpmath.exp(-a * theta)
                ) / (a - 1)
                assert exact <= found <= exact * (1 + 2e-9) + 2e-15


def test_many_permute_and_flips_cost_less_than_pure_releases():
    flips = acc.epsilon(acc.Repeated(acc.Exponential(0.5, permute_and_flip=True), 30), 1e-6)
    noises = acc.epsilon(acc.Repeated(acc.Laplace(2.0), 30), 1e-6)
    pure = acc.epsilon(acc.Repeated(acc.PureDP(0.5, "add-remove"), 30), 1e-6)
    assert [f"{e:.2f}" for e in (flips, pure)] == ["13.07", "13.95"]
    assert flips == pytest.approx(noises, rel=1e-12)


def test_the_curve_of_a_selection_is_the_worst_of_its_ranges():
    for epsilon in (0.1, 1.0, 6.0):
        odds = np.linspace(-epsilon - 30.0, 30.0, 40_001)
        p, q = (1 / (1 + np.exp(-o)) for o in (odds + epsilon, odds))
        orders = [1.1, 2.0, 9.0]
        for order, found in zip(orders, acc.rdp(acc.Exponential(epsilon), orders), strict=True):
            moment = p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)
            worst = np.log(np.max(moment)) / (order - 1)
            assert worst * (1 - 1e-9) <= found <= worst * (1 + 1e-4)
    tiny = 1e-4  # where αε²/8 is taken
    np.testing.assert_allclose(acc.rdp(acc.Exponential(tiny), [3.0]), 3 * tiny**2 / 8, rtol=1e-6)


@pytest.mark.parametrize("rate", [0.0, 1e-4, 0.3, 1.0])
@pytest.mark.parametrize(
    ("run", "pair"),
    [
        (acc.DiscreteLaplace(1.5, 2), lambda: discrete_laplace(3.0, 2)),
        (acc.DiscreteGaussian(0.8, 2), lambda: discrete_gaussian(1.6, 2)),
        (acc.RandomizedResponse(1.2, 5), lambda: response(1.2, 5)),
        (acc.Laplace(0.7), None),
    ],
    ids=lambda v: type(v).__name__,
)
def test_poisson_samples_are_mixtures(run, pair, rate):
    sampled = acc.PoissonSampled(run, rate)
    with mpmath.workdps(40):
        for epsilon in (0.0, 0.2 * rate, 0.5):
            if pair is None:
                exact = laplace_profile(1 / 0.7, epsilon, rate)
            else:
                exact = profile(pair(), epsilon, mpmath.mpf(rate))
            found = acc.delta(sampled, epsilon)
            assert exact * (1 - mpmath.mpf("1e-12")) <= found <= exact * (1 + 1e-6) + 1e-12


def convolved(pair, count, width):
    """Σ of the losses of `count` uses, on a grid that holds all of them exactly."""
    mass = np.ones(1)
    own = np.zeros(int(2 * max(abs(float(loss)) for loss, _ in pair) / width + 0.5) + 1)
    for loss, p in pair:
        own[round(float(loss) / width) + len(own) // 2] += float(p)
    for _ in range(count):
        mass = np.convolve(mass, own)
    return width * (np.arange(len(mass)) - len(mass) // 2), mass


@pytest.mark.parametrize("count", [1, 7, 60, 400])
def test_uses_compose_as_their_losses_add(count):
    """On the lattice of discrete Laplace noise, and of the discrete Gaussian, laid out here."""
    for run, width, pair in (
        (
            acc.DiscreteLaplace(10.0, 3),
            2 / 30,
            [(k / 30, m) for k, m in zip((-3, -1, 1, 3), _masses(10.0, 3), strict=True)],
        ),
        (
            acc.DiscreteGaussian(4.0, 1),
            1 / 16,
            [((y - 0.5) / 16, np.exp(-((y - 1) ** 2) / 32) / _theta(4.0)) for y in range(-40, 42)],
        ),
    ):
        losses, mass = convolved_half(pair, count, width)
        for delta in (1e-2, 1e-6):
            low, high = acc.epsilon_interval(acc.Repeated(run, count), delta)
            exact = lambda e: np.sum(mass * -np.expm1(np.minimum(e - losses, 0)))  # noqa: B023, E731
            assert exact(high) <= delta * (1 + 1e-7)
            assert exact(low) >= delta * (1 - 1e-7) or low == 0
            assert high == 0 or exact(high * (1 - 1e-4)) > delta  # as tight as it says
            assert low <= high <= low * (1 + 1e-2) + 1e-9


def _masses(noise, shift):
    r = np.exp(-1 / (noise * shift))
    inner = [(1 - r) / (1 + r) * r ** (shift - y) for y in range(1, shift)]
    return [r**shift / (1 + r), *inner, 1 / (1 + r)]


def _theta(sigma):
    return np.sum(np.exp(-(np.arange(-200, 201) ** 2) / (2 * sigma * sigma)))


def convolved_half(pair, count, width):
    """As `convolved`, for losses at odd multiples of half the width."""
    masses = np.array([float(p) for _, p in pair])
    mass = np.ones(1)
    for _ in range(count):
        mass = np.convolve(mass, masses)
    return count * float(pair[0][0]) + width * np.arange(len(mass)), mass


def test_a_vector_costs_no_more_than_a_number():
    """Discrete Laplace noise: two coordinates that share the shift, outcome by outcome."""
    for scale, a, b in ((1.0, 1, 1), (2.5, 3, 1), (0.7, 2, 2), (4.0, 5, 3)):
        y = np.arange(-int(40 * scale), int(40 * scale) + a + b)

        def law(shift, y=y, scale=scale):
            return np.exp(-np.abs(y - shift) / scale) * np.tanh(0.5 / scale)

        both = np.outer(law(a), law(b)), np.outer(law(0), law(0))
        one = law(a + b), law(0)
        for share in (-0.5, 0.0, 0.2, 0.5, 0.8, 0.99):
            grow = np.exp(share * (a + b) / scale)
            vector, number = (np.sum(np.maximum(p - grow * q, 0)) for p, q in (both, one))
            assert vector <= number * (1 + 1e-12)


@pytest.mark.parametrize(
    "make",
    [
        acc.Laplace,
        acc.DiscreteLaplace,
        acc.DiscreteGaussian,
        lambda n: acc.DiscreteGaussian(n, 10**6),
        lambda n: acc.DiscreteLaplace(n, 10**6),
        lambda n: acc.RandomizedResponse(1 / n if n else 1e308, 3),
        lambda n: acc.Exponential(1 / n if n else 1e308),
        lambda n: acc.Exponential(1 / n if n else 1e308, permute_and_flip=True),
    ],
)
def test_corners_are_bounds(make):
    """No noise, next to none, and so much that nothing is told; never NaN, never negative."""
    for noise in (0.0, 1e-300, 1e-9, 1e-3, 1e6, 1e12, 1e300):
        for adjacency in (ADD, REPLACE):
            run = make(noise)
            for given in (run, acc.Repeated(run, 3), acc.Repeated(run, 0)):
                for delta in (1e-13, 0.5):
                    low, high = acc.epsilon_interval(given, delta, adjacency=adjacency)
                    assert 0 <= low <= high, (given, delta)
                found = acc.delta(given, 1.0, adjacency=adjacency)
                assert 0 <= found <= 1
                assert not np.isnan(acc.rdp(given, [1.5, 8.0], adjacency=adjacency)).any()
            if noise >= 1e6:
                assert acc.epsilon(run, 1e-5, adjacency=adjacency) < 1e-5
            if noise < 1e-3:
                assert acc.delta(run, 1.0, adjacency=adjacency) > 0.99


def test_discrete_gaussian_in_blocks_agrees_with_the_sum_and_the_gaussian():
    """Just below and above where integers are taken together; for large σ, the Gaussian's ε."""
    for noise in (0.7, 3.0):
        below = acc.DiscreteGaussian(noise, int(9_990 / noise))
        above = acc.DiscreteGaussian(noise, int(10_010 / noise))
        for delta in (1e-3, 1e-8):
            gaussian = acc.epsilon(acc.Gaussian(noise), delta)
            for run in (below, above, acc.DiscreteGaussian(noise, 10**9)):
                low, high = acc.epsilon_interval(run, delta)
                assert low <= gaussian * (1 + 1e-6)
                assert high == pytest.approx(gaussian, rel=1e-4)
                assert high <= low * (1 + 1e-3)


def test_sweeps_and_traces_of_releases():
    import jax

    noise = np.array([1.0, 2.0])
    found = acc.epsilon(acc.Laplace(noise), np.array([[1e-5], [1e-2]]))
    assert found.shape == (2, 2)
    assert found[1, 0] == acc.epsilon(acc.Laplace(1.0), 1e-2)
    run = acc.Repeated(acc.DiscreteGaussian(noise, np.array([[1], [3]])), 5)
    found = acc.epsilon(run, 1e-5)
    assert found[1, 0] == acc.epsilon(acc.Repeated(acc.DiscreteGaussian(1.0, 3), 5), 1e-5)
    with float64_scope():
        slope = jax.grad(lambda n: acc.epsilon(acc.Laplace(n), 1e-5))(2.0)
        np.testing.assert_allclose(slope, -0.25, rtol=1e-6)
        traced = float(jax.jit(lambda n: acc.epsilon(acc.DiscreteLaplace(n, 3), 1e-3))(2.0))
    np.testing.assert_allclose(traced, acc.epsilon(acc.DiscreteLaplace(2.0, 3), 1e-3), rtol=1e-12)


def test_beside_subsampled_gaussians_in_one_run():
    """δ₁₂(ε) = E_{L₂}[δ₁(ε − L₂)], L₂ of discrete Laplace noise, δ₁ of the sampled steps alone."""
    steps = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.05), 20)
    run = acc.Composed((steps, acc.DiscreteLaplace(5.0, 3)))
    masses, losses = _masses(5.0, 3), np.array([-3, -1, 1, 3]) / 15
    for epsilon in (0.3, 1.0):
        exact = sum(
            m * acc.delta(steps, epsilon - loss) for m, loss in zip(masses, losses, strict=True)
        )
        found = acc.delta(run, epsilon)
        assert exact * (1 - 1e-4) <= found <= exact * (1 + 1e-3)


@pytest.mark.parametrize(
    ("run", "adjacency"),
    [
        (acc.PoissonSampled(acc.Laplace(1.0), 0.1), REPLACE),
        (acc.FixedBatchSampled(acc.Laplace(1.0), 1, 10), ADD),
        (acc.PoissonSampled(acc.Repeated(acc.Laplace(1.0), 2), 0.1), ADD),
    ],
)
def test_what_has_no_theorem_is_refused(run, adjacency):
    with pytest.raises(acc.UnsupportedQuery):
        acc.epsilon(run, 1e-5, adjacency=adjacency)


def test_fixed_batches_take_the_profile_under_replace_one():
    """Balle, Barthe and Gaboardi 2018, Theorem 9: δ'(log(1 + q(e^ε − 1))) ≤ qδ(ε)."""
    for inner in (acc.Laplace(2.0), acc.DiscreteGaussian(2.0, 3), acc.DiscreteLaplace(2.0, 3)):
        run = acc.FixedBatchSampled(inner, 3, 100)
        for epsilon in (0.0, 0.3, 0.9):
            exact = 0.03 * acc.delta(inner, epsilon, adjacency=REPLACE)
            amplified = np.log1p(0.03 * np.expm1(epsilon))
            found = acc.delta(run, amplified, adjacency=REPLACE)
            assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-6) + 1e-12
        low, high = acc.epsilon_interval(acc.Repeated(run, 30), 1e-4, adjacency=REPLACE)
        assert 0 < low <= high


def counts_and_gaussian(sigma, cells, mu, epsilon):
    """δ(ε) of counts, of which some move by one, and of a Gaussian pair: a sum over their losses.

    δ = Σ P(l)·δ_μ(ε − l) over the counts' losses l = Σ(2y − 1)/2σ², δ_μ the Gaussian's profile.
    """
    masses = discrete_gaussian(sigma, 1)[0]
    one = {2 * y - 1: m for y, m in enumerate(masses, -int(16 * sigma) - 3) if m > 1e-28}
    total = {0: mpmath.mpf(1)}
    for _ in range(cells):
        before, total = total, {}
        for (a, first), (b, second) in itertools.product(before.items(), one.items()):
            total[a + b] = total.get(a + b, 0) + first * second
    mu, found = mpmath.mpf(mu), mpmath.mpf(0)
    for place, mass in total.items():
        rest = epsilon - place / (2 * mpmath.mpf(sigma) ** 2)
        tails = (mpmath.ncdf(way * mu / 2 - rest / mu) for way in (1, -1))
        found += mass * (next(tails) - mpmath.exp(rest) * next(tails))
    return found


@pytest.mark.parametrize(("sigma", "shift"), [(1.0, 1), (1.5, 4), (3.0, 2)])
def test_the_transform_of_whole_numbers_is_a_gaussian_s_up_to_the_stated_error(sigma, shift):
    end, error = acc.DiscreteGaussian.release.lattice(ShiftedGaussian(shift / sigma, shift))
    assert end == pytest.approx(np.pi * sigma**2 / (2 * shift))
    with mpmath.workdps(40):
        masses, mu2 = discrete_gaussian(sigma, shift)[0], (mpmath.mpf(shift) / sigma) ** 2
        losses = [
            mu2 / shift * (y - mpmath.mpf(shift) / 2)
            for y, _ in enumerate(masses, -int(16 * sigma) - 3)
        ]
        for z in (mpmath.mpc(2.5, 0), mpmath.mpc(0.3, end / 2), mpmath.mpc(1.1, end)):
            whole = mpmath.fsum(
                m * mpmath.exp(z * loss) for m, loss in zip(masses, losses, strict=True)
            )
            quotient = whole / mpmath.exp(mu2 * z * (z + 1) / 2)
            assert abs(quotient - 1) <= error + mpmath.mpf(10) ** -38
        assert abs(quotient - 1) > 1e-3 * error**2  # nor is it far less


@pytest.mark.parametrize("noise", [1.0, 2.0])
@pytest.mark.parametrize(("sigma", "adjacency"), [(4.0, ADD), (3.0, REPLACE)])
def test_counts_beside_gaussians_are_on_the_contour_and_exact(sigma, adjacency, noise):
    cells = 2 if adjacency is REPLACE else 1
    run = acc.Composed((acc.Histogram(sigma), acc.Gaussian(noise)))
    ends = acc.epsilon_interval(run, 1e-5, adjacency=adjacency)
    assert acc.price(run, 1e-5, adjacency=adjacency)[1].name == "contour"
    with mpmath.workdps(30):
        low, high = (counts_and_gaussian(sigma, cells, cells / noise, end) / 1e-5 for end in ends)
    assert 1 - 2e-9 < high <= 1 <= low < 1 + 2e-9


def test_counts_with_too_little_beside_them_are_left_to_their_atoms():
    # Here the Gaussian in their place would cost too little.
    counts, replaced = acc.Histogram(3.0), acc.Gaussian(3.0)
    run, replaced = (acc.Composed((one, acc.Gaussian(1e4))) for one in (counts, replaced))
    claims = [0.13 * k for k in range(1, 10)]
    with mpmath.workdps(30):
        truths = [float(counts_and_gaussian(3.0, 1, 1e-4, claim)) for claim in claims]
    assert any(acc.delta(replaced, e) < 0.999 * t for e, t in zip(claims, truths, strict=True))
    for claim, truth in zip(claims, truths, strict=True):
        assert truth <= acc.delta(run, claim) <= 1.001 * truth
        assert acc.delta(run, claim, method="contour") == 1.0
    assert acc.epsilon(run, 1e-5, method="contour") == np.inf


def test_what_rounding_leaves_of_the_counts_is_no_decay():
    # Of a run of nothing but counts ρ is 1, however far V is.
    lattice = _Lattice(1e9, 0.0, 0.01)
    found = _lattice_error(Composition(np.float64(0.01 * (1 + 1e-15)), ()), 1.0, 5.0, lattice)
    assert found >= 2 / (np.pi * 1e9) * np.exp(0.01 * 5 * 6 / 2 - 5.0)
    other = _lattice_error(Composition(np.float64(0.02), ()), 1.0, 5.0, lattice)
    assert other < 1e-300  # a Gaussian beside them decays


@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
@pytest.mark.parametrize(
    "looks", [acc.Repeated(acc.Histogram(40.0), 20), acc.DiscreteGaussian(3.0, 4)]
)
def test_a_run_with_a_table_is_priced_on_the_contour_and_as_by_gaussians(looks, adjacency):
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.5), 0.06), 200)
    noise = 3.0
    if isinstance(looks, acc.Repeated):
        noise = 40.0 / np.sqrt(20) * (np.sqrt(2.0) if adjacency is REPLACE else 1.0)
    whole, gaussian = (acc.Composed((one, run)) for one in (looks, acc.Gaussian(noise)))
    found, method = acc.price(whole, 1e-5, adjacency=adjacency)
    assert method.name == "contour"
    assert found == pytest.approx(acc.epsilon(gaussian, 1e-5, adjacency=adjacency), rel=1e-6)
    # By their atoms, and as a sweep.
    low, high = acc.epsilon_interval(whole, 1e-5, adjacency=adjacency)
    assert high * (1 - 1e-9) <= low <= acc.epsilon(whole, 1e-5, adjacency=adjacency, method="pld")
    assert acc.delta(whole, high, adjacency=adjacency) <= 1e-5
    swept = acc.epsilon(whole, np.array([1e-7, 1e-5]), adjacency=adjacency)
    assert swept[1] == found < swept[0]
