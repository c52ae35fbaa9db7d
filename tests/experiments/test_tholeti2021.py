"""tholeti2021: δ of the ball by simulation, and the landscape of Theorem 2 against its Hessians."""

from __future__ import annotations

import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from dpjax import accounting as acc
from dpjax.accounting.geometric import ball_delta
from experiments import tholeti2021
from experiments.tholeti2021 import landscape, privacy
from experiments.tholeti2021.published import odd_dimension

pytestmark = pytest.mark.usefixtures("lenient_promotion")
HERE = pathlib.Path(tholeti2021.__file__).parent


@pytest.fixture(scope="module")
def known() -> landscape.Landscape:
    return landscape.landscape(0)


def test_ball_noise_matches_its_simulation():
    rows = []
    for dimension in (1, 5, 100):
        settings = {"dimension": dimension, "points": 4, "samples": 2_000}
        rows += privacy.one_step(settings, pathlib.Path())
    table = pd.DataFrame(rows)
    # Three standard errors a point, 12 points: one may lie outside by chance.
    outside = (table["delta"] - table["simulated"]).abs() > table["simulated error"] + 1e-3
    assert outside.sum() <= 1


@pytest.mark.parametrize(("dimension", "sensitivity"), [(1, 0.3), (5, 0.7), (51, 0.1)])
def test_the_papers_series_is_the_ball_delta(dimension, sensitivity):
    printed = odd_dimension(sensitivity, dimension)
    assert printed == pytest.approx(float(ball_delta(sensitivity, dimension)), rel=1e-9)


def test_ball_noise_costs_more_than_gaussian_noise_of_the_same_delta():
    settings = {"records and steps": [60_000, 6], "price": "rdp", "dimension": [10]}
    (row,) = privacy.whole_run(settings, pathlib.Path())
    assert row["its std per coordinate/Δ"] > 5 * row["Gaussian std/Δ for (1, 1e-5)"]
    for certificate in map(acc.Certificate.from_json, row["certificates"]):
        # A run of the ball is (0, δ): its ε is 0.
        assert certificate.epsilon <= certificate.declared["target epsilon"]


def _hessian(vectors: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Of ‖wwᵀ − M‖²/4, written out: ‖w‖²I + 2wwᵀ − M."""
    values = np.zeros(len(w))
    values[: len(landscape.EIGENVALUES)] = landscape.EIGENVALUES
    matrix = (vectors * values) @ vectors.T
    return (w @ w) * np.eye(len(w)) + 2 * np.outer(w, w) - matrix


@pytest.mark.parametrize("radius", [0.5, 4.0])
def test_noise_only_where_the_gradient_is_small_tells_two_data_sets_apart(radius):
    n, draws, rng = 10, 20_000, np.random.default_rng(0)

    def step(gradients: np.ndarray, threshold: float) -> np.ndarray:
        mean = gradients.mean()
        noise = rng.uniform(-radius, radius, draws) if abs(mean) <= threshold else np.zeros(draws)
        return -(mean + noise)

    same, other = np.zeros(n), np.eye(n)[0]
    shares = [np.mean(step(data, 0.5 / n) == -1.0 / n) for data in (same, other)]
    assert shares == [0.0, 1.0]  # an event of probability 0 and 1: δ = 1 at every ε
    # With noise at every step the best event is an end of the interval: Δ/2 by simulation too.
    edge = radius - 1.0 / n
    shares = [np.mean(step(data, math.inf) < -edge) for data in (same, other)]
    error = 4 * math.sqrt(shares[1] / draws)
    assert abs(shares[1] - shares[0] - float(ball_delta(1.0 / (n * radius), 1))) < error


def test_the_saddle_is_strict_and_the_minimum_is_one(known):
    for point, negative in ((known.saddle, 1), (known.minimum, 0)):
        w = jnp.asarray(point, jnp.float32)
        assert float(jnp.linalg.norm(known.problem.gradient(w))) < 1e-6
        found = np.asarray(jax.hessian(known.problem.objective)(w))
        np.testing.assert_allclose(found, _hessian(known.vectors, point), atol=2e-6)
        curvatures = np.linalg.eigvalsh(_hessian(known.vectors, point))
        assert (curvatures < -0.1).sum() == negative
        assert np.abs(curvatures).min() > 0.1
    assert known.problem.n == 1_600


@pytest.mark.parametrize("size", [0.005, 0.3])
def test_the_stationary_distance_is_that_of_the_recursion(known, size):
    shrink = np.eye(landscape.SIDE) - size * _hessian(known.vectors, known.minimum)
    spread = np.zeros_like(shrink)
    for _ in range(round(30 / size)):
        spread = shrink @ spread @ shrink + size**2 / (landscape.SIDE + 2) * np.eye(len(shrink))
    assert landscape.stationary_distance(size, 1.0) == pytest.approx(np.trace(spread) ** 0.5)


def test_runs_are_measured(known):
    # At the saddle for 9 steps, then at −√λ₁v₁ + 0.3v₃ for 3.
    path = np.stack([known.saddle] * 9 + [0.3 * known.vectors[:, 2] - known.minimum] * 3)
    assert landscape._measured(path, known, 12) == (pytest.approx(0.3), 10.0)
    stays = np.stack([known.saddle] * 12)
    assert landscape._measured(stays, known, 12) == (pytest.approx(1.5**0.5), np.inf)


def test_only_noise_leaves_the_saddle():
    settings = {"step size": 0.02, "radius": 1.0, "time": 12.0, "seeds": 0, "repeats": 1}
    left = {}
    for method in ("all records, ball", "all records"):
        (row,) = landscape.cell({**settings, "methods": method}, pathlib.Path())
        left[method] = row["runs that leave the saddle"]
    assert left == {"all records, ball": 1, "all records": 0}


def test_runs_with_the_ball_end_at_the_exact_distance():
    table = pd.read_csv(HERE / "theorem2.csv")
    mine = table[table["method"] == "all records, ball"]
    assert len(mine) >= 4
    for row in mine.to_dict("records"):
        exact = landscape.stationary_distance(row["step size"], row["radius"])
        # The exact one is of the quadratic part of F; the curvature changes over the distance.
        allowed = 4 * row["standard error"] + 0.02 * exact
        assert abs(row["distance to a minimum"] - exact) < allowed
        assert allowed < 0.25 * exact  # a factor √2 in the noise would be told apart


def test_a_run_that_ends_elsewhere_is_counted_and_has_no_distance(monkeypatch):
    settings = {"step size": 0.5, "radius": 1.0, "time": 1.0, "seeds": 0, "repeats": 2}
    cases = {((0.1, 5.0), (0.2, 6.0)): (2, 0.025**0.5), ((0.1, 5.0), (33.0, 6.0)): (1, None)}
    for measured, (near, distance) in cases.items():
        found = iter(measured)
        monkeypatch.setattr(landscape, "_measured", lambda *_, found=found: next(found))
        (row,) = landscape.cell({**settings, "methods": "one record"}, pathlib.Path())
        assert row["runs that end near a minimum"] == near
        assert row["distance to a minimum"] == (distance and pytest.approx(distance))
        assert (row["largest distance"] is None) == (distance is None)
