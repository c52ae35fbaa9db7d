"""Shifted interpolation against quadratic programmes, exact quadratics and density evolution."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from dpjax import accounting as acc
from dpjax._numerics.scope import enable_x64
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.accounting.gaussian import shifted_interpolation as si


def value(function, *arguments):
    with enable_x64(True):
        return float(jnp.sqrt(function(*(jnp.asarray(float(a)) for a in arguments))))


def numeric_programme(contractions, displacements, noises):
    """The quadratic programme by a general solver, in the variables a_k."""

    def distances(a):
        z, found = 0.0, []
        for c, d, x in zip(contractions, displacements, a, strict=True):
            z = c * z + d - x
            found.append(z)
        return np.array(found)

    found = scipy.optimize.minimize(
        lambda a: np.sum((a / noises) ** 2),
        np.asarray(displacements) + 1e-3,
        jac=lambda a: 2 * a / np.square(noises),
        method="SLSQP",
        constraints=[
            {"type": "ineq", "fun": lambda a: distances(a)[:-1]},
            {"type": "eq", "fun": lambda a: distances(a)[-1]},
        ],
        options={"maxiter": 2000, "ftol": 1e-12},
    )
    assert abs(distances(found.x)[-1]) < 1e-8
    assert np.all(distances(found.x) > -1e-8)
    return np.sqrt(found.fun)


def test_programme_solves_the_quadratic_programme():
    rng = np.random.default_rng(0)
    for _ in range(12):
        t = int(rng.integers(2, 9))
        c = rng.uniform(0.3, 1.05, t)
        d = rng.uniform(0, 1, t) * (rng.random(t) < 0.5)
        d[rng.integers(t)] = 1.0
        s = rng.uniform(0.5, 2.0, t)
        assert si.programme_mu(c, d, s) == pytest.approx(numeric_programme(c, d, s), rel=1e-5)


def test_cyclic_closed_form_is_the_programme():
    rng = np.random.default_rng(1)
    for _ in range(60):
        batches, uses = int(rng.integers(1, 9)), int(rng.integers(1, 9))
        since = int(rng.integers(1, batches + 1))
        gap = float(rng.choice([0.0, 1e-4, 1e-2, 0.1, 0.5, 0.9]))
        steps = (uses - 1) * batches + since
        moved = np.zeros(steps)
        moved[::batches][:uses] = 1.0
        truth = si.programme_mu(np.full(steps, 1 - gap), moved, np.ones(steps))
        found = value(si.cyclic_mu2, gap, since, uses, batches, 1.0)
        assert found == pytest.approx(truth, rel=1e-9), (batches, uses, since, gap)


def test_descent_is_the_programme_and_the_exact_quadratic():
    for gap, steps in ((0.0, 7), (0.01, 30), (0.3, 12), (0.9, 4)):
        c = 1 - gap
        found = value(si.descent_mu2, gap, steps, 0.3)
        truth = si.programme_mu(np.full(steps, c), np.full(steps, 0.3), np.ones(steps))
        assert found == pytest.approx(truth, rel=1e-10)
        # θ ← cθ + shift + noise: the last iterate is Gaussian, with this mean and variance.
        powers = c ** np.arange(steps)
        exact = 0.3 * powers.sum() / np.sqrt(np.sum(powers**2))
        assert found == pytest.approx(exact, rel=1e-11)
        assert found >= exact


def test_bounded_form_is_the_best_whole_number():
    rng = np.random.default_rng(2)
    for _ in range(40):
        gap = float(rng.choice([0.0, 1e-3, 0.05]))
        steps, shift = int(rng.integers(1, 200)), float(rng.uniform(0.005, 0.1))
        noise, diameter = float(rng.uniform(0.1, 1)), float(rng.uniform(0.1, 2))
        counts = np.arange(1, steps + 1)
        powers = (1 - gap) ** counts
        sums = counts if gap == 0 else (1 - powers) / gap
        squares = counts if gap == 0 else (1 - powers**2) / (1 - (1 - gap) ** 2)
        brute = np.min((powers * diameter + shift * sums) / np.sqrt(squares)) / noise
        found = value(si.bounded_descent_mu2, gap, steps, shift, noise, diameter)
        assert found == pytest.approx(brute, rel=1e-10)


def test_bounded_form_is_never_above_the_published_one(oracles):
    for row in oracles["hidden_gd_convex_bounded_mu_paper"]:
        p = row["params"]
        shift = p["eta"] * p["L"] / p["n"]
        found = value(si.bounded_descent_mu2, 0.0, 10**9, shift, p["eta"] * p["sigma"], p["D"])
        assert 0.5 * row["value"] < found <= row["value"] * (1 + 1e-12)


def test_oracles(oracles):
    for row in oracles["hidden_gd_strongly_convex_mu"]:
        p = row["params"]
        found = value(si.descent_mu2, 1 - p["c"], p["t"], p["L_over_n_sigma"])
        assert found == pytest.approx(row["value"], rel=1e-11)
    for row in oracles["hidden_cgd_strongly_convex_mu"]:
        p = row["params"]
        found = value(si.cyclic_mu2, 1 - p["c"], 1, p["E"], p["l"], p["L_over_b_sigma"])
        assert found == pytest.approx(row["value"], rel=1e-11)
    for row in oracles["hidden_cgd_mu_by_position"]:
        p = row["params"]
        since = p["l"] - p["position"] + 1
        found = value(si.cyclic_mu2, 1 - p["c"], since, p["E"], p["l"], p["L_over_b_sigma"])
        assert found == pytest.approx(row["value"], rel=1e-11)
    for row in oracles["hidden_gd_shifted_interpolation_optimal_mu"]:
        p = row["params"]
        shift, noise = p["shift_eta_L_over_n"], p["eta"] * p["sigma"]
        found = min(
            value(si.bounded_descent_mu2, 1 - p["c"], p["t"], shift, noise, p["D"]),
            value(si.descent_mu2, 1 - p["c"], p["t"], shift / noise),
        )
        assert found == pytest.approx(row["value"], rel=1e-11)
    for row in oracles["hidden_noisysgd_wor_eps"]:
        p = row["params"]
        past, _ = si.sampled_split(
            1 - p["c"], p["L_over_b_sigma"], 10**9, window=p["nu"], share=p["theta"]
        )
        assert past == pytest.approx(p["mu_G"], rel=1e-10)


# --- density evolution: the exact law of a one-dimensional last iterate --------------------------

GRID = np.linspace(-5.0, 5.0, 801)
CELL = GRID[1] - GRID[0]
RIDGE, STEP, NOISE = 0.3, 0.8, 0.25


def gradient(theta, x, y):
    """Regularised logistic loss: strongly convex 0.3, smooth 0.55 for |x| <= 1; |ℓ'x| <= 1."""
    return -y * x / (1 + np.exp(y * x * theta)) + RIDGE * theta


def kernel(batch):
    moved = GRID - STEP * np.mean([gradient(GRID, x, y) for x, y in batch], axis=0)
    density = scipy.stats.norm.pdf(GRID[:, None], moved[None, :], NOISE)
    return density / density.sum(axis=0, keepdims=True)


def hockey_stick(first, second, epsilon):
    forward = np.maximum(first - np.exp(epsilon) * second, 0).sum()
    return max(forward, np.maximum(second - np.exp(epsilon) * first, 0).sum())


START = np.eye(len(GRID))[len(GRID) // 2]
EPSILONS = (0.0, 0.3, 1.0, 2.0)
# One record replaced by its worst opposite: the gradients differ by at most |x − x'| <= 2.
DATA = [(1.0, 1.0), (0.6, -1.0), (-0.4, 1.0), (0.9, 1.0)]
OTHER = [(1.0, -1.0), *DATA[1:]]
GAP = min(STEP * RIDGE, 2 - STEP * (RIDGE + 0.25))


def run_all(batches):
    law = START
    for batch in batches:
        law = kernel(batch) @ law
    return law


@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_full_batch_bound_holds_for_logistic_regression(steps):
    first, second = (run_all([data] * steps) for data in (DATA, OTHER))
    mu = value(si.descent_mu2, GAP, steps, STEP * 2.0 / 4 / NOISE)
    for epsilon in EPSILONS:
        true = hockey_stick(first, second, epsilon)
        assert true <= gaussian_dp.delta(mu, epsilon) + 1e-9
    assert hockey_stick(first, second, 0.0) > 0.3 * gaussian_dp.delta(mu, 0.0)


@pytest.mark.parametrize("position", [1, 2, 3, 4])
def test_cyclic_bound_holds_at_every_position(position):
    uses, batches = 4, 4
    order = [*DATA[1:position], DATA[0], *DATA[position:]]
    changed = [*DATA[1:position], OTHER[0], *DATA[position:]]
    first = run_all([[record] for record in order] * uses)
    second = run_all([[record] for record in changed] * uses)
    since = batches - position + 1
    mu = value(si.cyclic_mu2, GAP, since, uses, batches, STEP * 2.0 / NOISE)
    for epsilon in EPSILONS:
        assert hockey_stick(first, second, epsilon) <= gaussian_dp.delta(mu, epsilon) + 1e-9


def test_shuffled_once_bound_holds():
    uses, batches = 3, 3
    data, other = DATA[:3], OTHER[:3]
    laws = []
    for records in (data, other):
        orders = itertools.permutations(range(3))
        laws.append(
            np.mean([run_all([[records[i]] for i in order] * uses) for order in orders], axis=0)
        )
    mus = [
        value(si.cyclic_mu2, GAP, since, uses, batches, STEP * 2.0 / NOISE) for since in (1, 2, 3)
    ]
    for epsilon in EPSILONS:
        bound = np.mean(gaussian_dp.delta(np.array(mus), epsilon))
        assert hockey_stick(*laws, epsilon) <= bound + 1e-9


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("share", [0.5, 0.85])
def test_sampled_split_bound_holds(window, share):
    """Batches of one of four records, drawn afresh each step."""
    steps = 6
    laws = []
    for records in (DATA, OTHER):
        mixed = np.mean([kernel([record]) for record in records], axis=0)
        law = START
        for _ in range(steps):
            law = mixed @ law
        laws.append(law)
    ratio = STEP * 2.0 / NOISE
    past, update = si.sampled_split(GAP, ratio, steps, window=window, share=share)
    releases = acc.Composed(
        (
            acc.Gaussian(2 / past),
            acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(2 / update), 1, 4), window),
        )
    )
    for epsilon in (0.5, 2.0):
        bound = acc.delta(releases, epsilon=epsilon, adjacency="replace-one", method="rdp")
        assert hockey_stick(*laws, epsilon) <= bound + 1e-9


def test_projected_linear_loss_on_an_interval():
    """Convex, not strongly: θ ← clip(θ − η g + noise) on [−1/2, 1/2]."""
    grid = np.linspace(-0.5, 0.5, 401)
    shift, noise, steps = 0.05, 0.2, 200
    laws = []
    for push in (-shift / 2, shift / 2):
        law = np.eye(401)[200]
        edges = np.concatenate([[-np.inf], (grid[1:] + grid[:-1]) / 2, [np.inf]])
        matrix = np.diff(scipy.stats.norm.cdf(edges[:, None], grid[None, :] + push, noise), axis=0)
        for _ in range(steps):
            law = matrix @ law
        laws.append(law)
    mu = value(si.bounded_descent_mu2, 0.0, steps, shift, noise, 1.0)
    assert mu < value(si.descent_mu2, 0.0, steps, shift / noise)
    for epsilon in EPSILONS:
        assert hockey_stick(*laws, epsilon) <= gaussian_dp.delta(mu, epsilon) + 1e-9


def test_bad_schedules_are_refused():
    with pytest.raises(ValueError, match="shape"):
        si.programme_mu(0.5, 1.0, 1.0)
    with pytest.raises(ValueError, match=">= 0"):
        si.programme_mu([0.5], [-1.0], [1.0])
    with pytest.raises(ValueError, match="window"):
        si.sampled_split(0.1, 1.0, 5, window=6, share=0.5)
    assert si.programme_mu([0.5, 0.5], [0.0, 0.0], [1.0, 1.0]) == 0.0
    assert si.programme_mu([0.5], [1.0], [0.0]) == np.inf
