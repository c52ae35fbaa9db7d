"""Objective perturbation's price against the densities themselves, and the published constants."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax._numerics.scope import enable_x64
from dpjax.accounting import ObjectivePerturbation, PureDP, ZeroConcentrated
from dpjax.erm.objective_perturbation import chaudhuri_constants
from experiments import published_constants

REPLACE = acc.Adjacency.REPLACE_ONE


def test_reference_values(oracles):
    for row in oracles["objpert_glm_rdp_log1p"]:
        p = row["params"]
        run = ObjectivePerturbation(p["L"], p["sigma"], p["beta"], p["lam"])
        assert acc.rdp(run, [p["alpha"]])[0] == pytest.approx(row["value"], rel=1e-7)
    (row,) = oracles["objpert_glm_delta_log1p"]
    p = row["params"]
    run = ObjectivePerturbation(p["L"], p["sigma"], p["beta"], p["lam"])
    found = acc.delta(run, epsilon=p["eps"])
    assert row["value"] <= found <= row["value"] * (1 + 1e-9)
    # The determinant's exact ratio is a little better than the published bound on it.
    assert found < oracles["objpert_glm_delta_redberg"][0]["value"]


def test_golden_values_hold_without_the_folder():
    run = ObjectivePerturbation(1.0, 50.0, 0.25, 100.0)
    assert acc.delta(run, epsilon=0.1) == pytest.approx(4.352998959888953e-09, rel=1e-9)
    assert acc.rdp(run, [64.0])[0] == pytest.approx(0.024559051709863562, rel=1e-7)
    assert published_constants.kifer_noise_std(
        gradient_bound=1.0, epsilon=0.1, delta=1e-5
    ) == pytest.approx(99.01948351927584, rel=1e-13)
    assert published_constants.kifer_noise_std(
        gradient_bound=1.0, epsilon=0.1, delta=1e-5, adjacency=REPLACE
    ) == pytest.approx(2 * 99.01948351927584, rel=1e-13)
    ridge, tilt, output = published_constants.amp_constants(
        n=36176, gradient_bound=1.0, smoothness=0.25, epsilon=1.0, delta=1e-8
    )
    assert (ridge, tilt, output) == pytest.approx(
        (5.05050505050505, 0.0004387680003063518, 0.004261543023093189), rel=1e-12
    )
    assert chaudhuri_constants(n=1000, l2=1e-3, smoothness=0.25, epsilon=0.1) == pytest.approx(
        (0.05, 0.008875520827908066), rel=1e-12
    )


def test_published_constants_reproduce_the_reference_values(oracles):
    for row in oracles["objpert_kifer_sigma_total_objective"]:
        p = row["params"]
        found = published_constants.kifer_noise_std(
            gradient_bound=p["zeta"], epsilon=p["eps"], delta=p["delta"]
        )
        assert found == pytest.approx(row["value"], rel=1e-13)
    for name, index in (("amp_Lambda", 0), ("amp_sigma1", 1), ("amp_sigma2", 2)):
        for row in oracles[name]:
            p = row["params"]
            found = published_constants.amp_constants(
                n=p["n"],
                gradient_bound=p["L"],
                smoothness=p["beta"],
                epsilon=p["eps"],
                delta=p["delta"],
            )[index]
            assert found == pytest.approx(row["value"], rel=1e-12)


# --- brute force --------------------------------------------------------------------------------


def _tilt(w, points, ridge):
    """The b whose minimiser is w, with weights on a line: −(Σ∇ℓ + λw), and its derivative."""
    total, bend = ridge * w, ridge + 0.0 * w
    for x, y in points:
        p = 1 / (1 + np.exp(y * x * w))
        total, bend = total - y * x * p, bend + x * x * p * (1 - p)
    return -total, bend


def _density(w, points, ridge, std):
    b, bend = _tilt(w, points, ridge)
    return np.exp(-0.5 * (b / std) ** 2) / (std * np.sqrt(2 * np.pi)) * bend


def _hockey_stick(one, other, ridge, std, epsilon):
    w = np.linspace(-12 * std / ridge, 12 * std / ridge, 200_001)
    gap = _density(w, one, ridge, std) - np.exp(epsilon) * _density(w, other, ridge, std)
    return np.sum(np.maximum(gap, 0)) * (w[1] - w[0])


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_no_pair_of_data_sets_on_a_line_beats_the_bound(adjacency):
    ridge, std = 2.0, 1.5
    run = ObjectivePerturbation(1.0, std, 0.25, ridge)
    rng = np.random.default_rng(1)
    fixed = [[], [(1.0, 1.0)] * 3, [(1.0, -1.0)] * 2, [(-0.5, 1.0), (1.0, 1.0), (0.3, -1.0)]]
    fixed += [[(rng.uniform(-1, 1), rng.choice([-1.0, 1.0])) for _ in range(4)] for _ in range(4)]
    records = [(1.0, 1.0), (1.0, -1.0), (0.4, 1.0)]
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        worst = 0.0
        for rest in fixed:
            if adjacency == "add-remove":
                pairs = [([*rest, z], rest) for z in records] + [
                    (rest, [*rest, z]) for z in records
                ]
            else:
                pairs = [([*rest, a], [*rest, b]) for a, b in itertools.permutations(records, 2)]
            for one, other in pairs:
                worst = max(worst, _hockey_stick(one, other, ridge, std, epsilon))
        bound = acc.delta(run, epsilon=epsilon, adjacency=adjacency)
        assert worst <= bound
        if adjacency == "add-remove":
            assert worst > bound / 60  # a bound, and not an absurd one


def test_no_orthogonal_records_in_the_plane_beat_the_replace_one_bound():
    # The corner of the proof that one dimension cannot see: x and x' at a right angle.
    ridge, std, epsilon = 1.5, 1.2, 0.8
    grid = np.linspace(-9.0, 9.0, 1201)
    u, v = np.meshgrid(grid, grid, indexing="ij")

    def density(x):
        score = x[0] * u + x[1] * v
        p = 1 / (1 + np.exp(score))
        b = (p * x[0] - ridge * u, p * x[1] - ridge * v)
        determinant = ridge * (ridge + p * (1 - p))
        return np.exp(-0.5 * (b[0] ** 2 + b[1] ** 2) / std**2) / (2 * np.pi * std**2) * determinant

    cell = (grid[1] - grid[0]) ** 2
    base = density((1.0, 0.0))
    assert np.sum(base) * cell == pytest.approx(1.0, abs=1e-6)
    bound = acc.delta(
        ObjectivePerturbation(1.0, std, 0.25, ridge), epsilon=epsilon, adjacency=REPLACE
    )
    for other in ((0.0, 1.0), (-1.0, 0.0), (np.sqrt(0.5), np.sqrt(0.5)), (1.0, 1e-9)):
        gap = base - np.exp(epsilon) * density(other)
        assert np.sum(np.maximum(gap, 0)) * cell <= bound


# --- behaviour ----------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_epsilon_and_delta_are_inverse_and_monotone(adjacency):
    run = ObjectivePerturbation(1.0, np.array([5.0, 10.0, 40.0]), 0.25, 36.0)
    epsilons = acc.epsilon(run, delta=1e-6, adjacency=adjacency)
    assert np.all(np.diff(epsilons) < 0)
    for sigma, epsilon in zip((5.0, 10.0, 40.0), epsilons, strict=True):
        one = ObjectivePerturbation(1.0, sigma, 0.25, 36.0)
        back = acc.delta(one, epsilon=epsilon, adjacency=adjacency)
        assert 0.99e-6 < back <= 1e-6 * (1 + 1e-9)


def test_the_price_rises_with_curvature_residual_and_bound():
    price = lambda *a: acc.epsilon(ObjectivePerturbation(*a), delta=1e-6)  # noqa: E731
    base = price(1.0, 10.0, 0.25, 36.0)
    assert price(1.1, 10.0, 0.25, 36.0) > base
    assert price(1.0, 10.0, 0.50, 36.0) > base
    assert price(1.0, 10.0, 0.25, 18.0) > base
    assert price(1.0, 10.0, 0.25, 36.0, 0.05) > base
    # Without curvature what is left is twice a Gaussian's profile.
    flat = acc.delta(ObjectivePerturbation(1.0, 10.0, 0.0, 1.0), epsilon=0.2)
    assert flat == pytest.approx(2 * acc.delta(acc.Gaussian(10.0), epsilon=0.2), rel=1e-6)


def test_replace_one_costs_at_least_add_remove():
    run = ObjectivePerturbation(1.0, 20.0, 0.25, 36.0)
    assert acc.epsilon(run, delta=1e-6, adjacency=REPLACE) > acc.epsilon(run, delta=1e-6)
    orders = [2.0, 8.0, 64.0]
    assert np.all(acc.rdp(run, orders, adjacency=REPLACE) > acc.rdp(run, orders))


def test_no_noise_is_no_privacy():
    run = ObjectivePerturbation(1.0, 0.0, 0.25, 36.0)
    assert acc.epsilon(run, delta=1e-6) == np.inf
    assert acc.delta(run, epsilon=1.0) == 1.0


def test_exactness_beats_the_published_noise_at_the_same_budget():
    for epsilon in (0.1, 1.0):
        for adjacency in acc.Adjacency:
            published = published_constants.kifer_noise_std(
                gradient_bound=1.0, epsilon=epsilon, delta=1e-8, adjacency=adjacency
            )
            run = ObjectivePerturbation(1.0, published, 0.25, 2 * 0.25 / epsilon)
            assert acc.epsilon(run, delta=1e-8, adjacency=adjacency) <= epsilon


def test_pure_releases_add_up_and_trade_by_randomised_response():
    assert acc.epsilon(PureDP(0.7), delta=1e-12, adjacency=REPLACE) == pytest.approx(0.7, abs=1e-9)
    run = acc.Composed((PureDP(0.2), acc.Repeated(PureDP(0.1), 3)))
    assert acc.epsilon(run, delta=1e-15, adjacency=REPLACE) == pytest.approx(0.5, abs=1e-9)
    p = np.exp(0.7) / (1 + np.exp(0.7))
    assert acc.delta(PureDP(0.7), epsilon=0.3, adjacency=REPLACE) == pytest.approx(
        p - np.exp(0.3) * (1 - p), rel=1e-9
    )
    two = p**2 / (1 - p) + (1 - p) ** 2 / p  # E_Q (P/Q)^2 of randomised response
    assert acc.rdp(PureDP(0.7), [2.0], adjacency=REPLACE)[0] == pytest.approx(np.log(two), rel=1e-8)
    with pytest.raises(acc.UnsupportedQuery):
        acc.epsilon(PureDP(0.7, "replace-one"), delta=1e-6)


def test_zero_concentrated_is_its_line_and_only_for_its_adjacency():
    run = ZeroConcentrated(0.05)
    np.testing.assert_allclose(acc.rdp(run, [2.0, 9.0]), [0.1, 0.45], rtol=1e-8)
    assert acc.epsilon(run, delta=1e-6) == pytest.approx(acc.zcdp_to_epsilon(0.05, 1e-6), rel=1e-3)
    with pytest.raises(acc.UnsupportedQuery):
        acc.epsilon(
            ZeroConcentrated(0.05, "replace-one"), delta=1e-6, adjacency=acc.Adjacency.ADD_REMOVE
        )


def test_it_composes_with_gaussians():
    run = acc.Composed((ObjectivePerturbation(1.0, 20.0, 0.25, 36.0), acc.Gaussian(30.0)))
    alone = acc.epsilon(run.mechanisms[0], delta=1e-6)
    assert alone < acc.epsilon(run, delta=1e-6) < 2 * alone


@pytest.mark.parametrize(
    "call",
    [
        lambda: ObjectivePerturbation(1.0, -1.0, 0.25, 1.0),
        lambda: ObjectivePerturbation(1.0, 1.0, 0.25, 0.0),
        lambda: PureDP(-0.1),
        lambda: PureDP(0.1, "sideways"),
        lambda: ZeroConcentrated(float("nan")),
    ],
)
def test_bad_fields_raise(call):
    with pytest.raises(ValueError, match="must be"):
        call()


@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
def test_derivatives_against_finite_differences(adjacency):
    rng = np.random.default_rng(11)
    n = 60
    noise, ridge = 10 ** rng.uniform(0, 2, n), 10 ** rng.uniform(0, 3, n)
    delta = 10 ** rng.uniform(-12, -2, n)

    def price(noise, ridge, delta):
        run = ObjectivePerturbation(1.0, noise, 0.25, ridge, 0.1)
        return acc.epsilon(run, delta, adjacency=adjacency, method="closed_form")

    found = price(noise, ridge, delta)
    run = ObjectivePerturbation(1.0, noise, 0.25, ridge, 0.1)
    back = acc.delta(run, found, adjacency=adjacency, method="closed_form")
    assert np.all(back <= delta * (1 + 1e-9))
    with enable_x64(True):
        slopes = jax.jit(jax.vmap(jax.grad(price, argnums=(0, 1, 2))))(noise, ridge, delta)
        slopes = [np.asarray(slope) for slope in slopes]
    # ε has a kink where it is cut at 0 or the worst cell of the angle changes: its halves differ.
    smooth = found > 1e-3
    given = [noise, ridge, delta]
    for k in range(3):
        h = 1e-5 * given[k]
        up, down = (price(*[g + s * h * (i == k) for i, g in enumerate(given)]) for s in (1, -1))
        kink = abs((up - found) - (found - down)) > 1e-3 * abs(up - down)
        assert np.mean(kink[smooth]) < 0.05
        plain = smooth & ~kink
        wanted = ((up - down) / (2 * h))[plain]
        scale = (found / given[k])[plain]
        np.testing.assert_array_less(
            abs(slopes[k][plain] - wanted), 1e-5 * abs(wanted) + 1e-7 * scale
        )
        assert np.all(np.isfinite(slopes[k]))
