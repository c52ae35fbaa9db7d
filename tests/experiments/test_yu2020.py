"""yu2020: records as encoded, settings chosen on rows that are not reported, AMP's ridge."""

from __future__ import annotations

import json
import lzma

import jax
import numpy as np
import pandas as pd
import pytest

from dpjax import accounting as acc
from dpjax import erm
from experiments import data_sets, widening
from experiments.yu2020 import (
    cells,
    curvature,
    protocol,
    records,
    sparse_records,
    stochastic,
    utility_rates,
    wider_grid,
)
from experiments.yu2020.bound import excess_risk
from experiments.yu2020.convex import averaged
from experiments.yu2020.methods import method_for
from experiments.yu2020.paths import (
    DESCENTS,
    curvatures_along,
    momenta,
    restricted,
    underdetermined,
)

pytestmark = pytest.mark.usefixtures("lenient_promotion")
_GRID = {
    "steps": (8,),
    "step size": (0.1, 2.0),
    "ridge": (1.0, 10.0),
    "passes": (1,),
    "output step size": (1.0,),
    "draws to choose": 2,
    "epsilon": 4.0,
    "seeds": 0,
    "repeats": 3,
    "data": "made up",
}


def _made_up(*, flipped: bool) -> records.Task:
    rng = np.random.default_rng(0)
    features = rng.random((1_200, 3)).astype(np.float32)
    labels = (features @ np.array([1.0, -1.0, 0.5]) > 0.25).astype(np.int32)
    parts = [(features[a:b], labels[a:b]) for a, b in ((0, 800), (800, 1_000), (1_000, 1_200))]
    if flipped:
        parts[1] = (parts[1][0], 1 - parts[1][1])
    return records.Task(*parts, 2, 2.0)


def test_adult_is_encoded_by_its_columns_maxima(data_dir):
    found = records.task("Adult", data_dir, 0)
    features, labels = found.train
    assert features.shape == (36_177, 104)
    every = [part[1] for part in (found.train, found.choose, found.report)]
    assert [len(part) for part in every] == [36_177, 4_522, 4_523]
    assert sum(int(part.sum()) for part in every) == 11_208
    # Rows are not normalised: eight categories alone give them norm √8.
    norms = np.linalg.norm(features, axis=1)
    assert norms.min() >= 8**0.5
    assert norms.max() <= (found.row_norm**2 - 1) ** 0.5
    assert features[:, 0].min() == pytest.approx(17 / 90)  # of the maximum, not of the range
    np.testing.assert_allclose(features.max(0), 1.0, atol=0.05)
    assert set(np.unique(labels)) == {0, 1}


def test_kddcup99_is_drawn_from_the_subset(data_dir):
    features, labels, classes, row_norm = records.kddcup99(data_dir)
    assert (features.shape, classes) == ((70_000, 118), 2)
    # The share of attacks within four standard errors of the subset's.
    share = 396_743 / 494_021
    assert abs(labels.mean() - share) < 4 * (share * (1 - share) / 70_000) ** 0.5
    assert (features.min(), features.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(features[:, 38:].sum(1), 3)  # one value of each category
    assert np.linalg.norm(features, axis=1).max() ** 2 + 1 <= row_norm**2


def test_settings_are_chosen_on_rows_that_are_not_reported(monkeypatch):
    chosen = {}
    for flipped in (False, True):
        monkeypatch.setattr(cells, "task", lambda *_, flipped=flipped: _made_up(flipped=flipped))
        (row,) = cells.private({**_GRID, "methods": "DP-GD, add/remove"}, None)
        chosen[flipped] = row
    # With the labels to choose by flipped the other setting is chosen, and reported on true ones.
    assert chosen[False]["setting"] != chosen[True]["setting"]
    assert chosen[True]["accuracy"] > 0.6
    certificate = acc.Certificate.from_json(chosen[False]["certificate"])
    assert 3.9 < certificate.epsilon <= 4.0
    assert certificate.delta == 800.0**-2
    assert any("hyperparameters" in sentence for sentence in certificate.not_covered)
    assert json.loads(chosen[False]["certificate"])["declared"]["records"] == 800


def test_a_widened_grid_has_its_best_inside(monkeypatch):
    asked = []

    def run(method, problem, test, noises, *, repeats, key):
        """Accuracies that fall with the distance from 100 steps of size 0.2, in octaves."""
        (row,) = noises
        asked.append((row["setting"], test is task.report))
        point = row["point"]
        off = abs(np.log2(point["steps"] / 100)) + abs(np.log2(point["step_size"] / 0.2))
        return pd.DataFrame({"accuracy": 0.9 - 0.01 * off + 1e-6 * np.arange(repeats)})

    task = _made_up(flipped=False)
    monkeypatch.setattr(wider_grid.comparison, "run_method", run)
    (row,) = wider_grid.private(
        {**_GRID, "step size": (1.0, 5.0), "methods": "DP-GD"}, None, lambda *_: task
    )
    assert row["setting"] == "steps=128, step_size=0.25"
    assert (row["edge"], row["runs"]) == ("", 3)
    # One setting is reported, and it was tried on the rows that choose.
    assert [s for s, on_report in asked if on_report] == [row["setting"]]
    assert row["settings tried"] == len(asked) - 1
    certificate = acc.Certificate.from_json(row["certificate"])
    assert 3.9 < certificate.epsilon <= 4.0


@pytest.mark.parametrize(
    ("rate", "found", "edge"),
    [
        (1 / 300, 1 / 256, ""),  # below the first grid, of which the least is 1/64
        (1 / 7, 1 / 8, ""),
        (5.0, 1.0, ""),  # more than all records are in no batch
        (1e-9, 1 / 2_000, ""),  # a batch of one record on average
    ],
)
def test_the_best_sampling_rate_is_inside_what_was_tried_or_at_a_natural_end(rate, found, edge):
    axes = utility_rates.axes_of("DP-SGD", 2_000)
    asked = []

    def risks(point, keys):
        asked.append(point)
        aim = (rate, 32.0, 0.5)
        return np.full(3, sum(abs(np.log2(x / y)) for x, y in zip(point, aim, strict=True)))

    chosen = utility_rates.choose(axes, risks, keys=jax.random.key(0))
    assert chosen.best == pytest.approx((found, 32.0, 0.5))
    assert chosen.edge == edge
    # Both ends of every range are whole batches or one record, or worse than what lies inside.
    beside = {point[0] for point in asked if point[1:] == chosen.best[1:]}
    assert max(beside) > chosen.best[0] or chosen.best[0] == 1.0
    assert min(beside) < chosen.best[0] or chosen.best[0] == 1 / 2_000


@pytest.mark.parametrize(
    ("better", "edge"),
    [
        ((-1, 0, 0), "sampling rate (least)"),
        ((0, 1, 0), "steps (largest)"),
        ((0, 0, -1), "step size (least)"),
    ],
)
def test_a_search_that_ends_too_early_says_which_setting_is_the_last_one(better, edge, monkeypatch):
    monkeypatch.setattr(utility_rates, "_AT_MOST", 49)
    axes = utility_rates.axes_of("DP-SGD", 10**9)

    def risks(point, keys):
        aim = (1 / 8, 8.0, 0.5)
        off = [np.log2(x / y) for x, y in zip(point, aim, strict=True)]
        return np.full(3, sum(-b * o if b else abs(o) for b, o in zip(better, off, strict=True)))

    chosen = utility_rates.choose(axes, risks, keys=jax.random.key(0))
    assert edge in chosen.edge.split(", ")


def test_least_risks_are_chosen_by_some_draws_and_reported_by_others(monkeypatch):
    monkeypatch.setattr(utility_rates, "_STEPS", (4, 8))
    monkeypatch.setattr(utility_rates, "_STEPS_OF_BATCHES", (4, 8))
    monkeypatch.setattr(utility_rates, "_RATES", (0.25, 1.0))
    monkeypatch.setattr(utility_rates, "_SIZES", (0.5,))
    monkeypatch.setattr(utility_rates, "_AT_MOST", 4)
    seen = []
    choose = utility_rates.choose
    monkeypatch.setattr(
        utility_rates, "choose", lambda *args: seen.append(choose(*args)) or seen[-1]
    )
    settings = {
        "data": "logistic regression", "records": 400, "dimension": 2, "epsilon": 2.0,
        "delta": 1e-6, "l2": 0.3, "seeds": 0, "repeats": 25, "draws to choose": 3,
    }  # fmt: skip
    rows = utility_rates.cell(settings, None)
    assert [row["method"] for row in rows] == [*utility_rates.METHODS]
    assert all(0 < row["excess risk"] < 1 for row in rows)
    for row, found in zip(rows[1:], seen[1:], strict=True):
        assert -found.tried[found.best] == min(-s for s in found.tried.values())
        assert row["excess risk"] != pytest.approx(-found.tried[found.best], rel=1e-3)
        assert row["settings tried"] == len(found.tried)
        assert (row["rate"] is None) == (row["method"] != "DP-SGD")


def test_whole_batches_of_dp_sgd_have_the_noise_of_dp_gd():
    problem = utility_rates.problem_for("logistic regression", 400, 2, 0.3, 0)
    spent = {"epsilon": 2.0, "delta": 1e-6, "adjacency": acc.Adjacency.REPLACE_ONE}
    spent |= {"steps": 8, "step_size": 0.1, "clip_norm": problem.gradient_bound}
    whole = erm.calibrate_noise(utility_rates.halved_dp_sgd, problem, **spent, rate=1.0)
    assert float(whole) == pytest.approx(
        float(erm.calibrate_noise(erm.dp_gd, problem, **spent)), rel=1e-3
    )


def test_no_ridge_below_the_least_is_tried():
    method, _ = method_for("AMP", _GRID, 2)
    (axis,) = wider_grid.axes_of(method)
    found = widening.search([axis], lambda points: [-x for (x,) in points])
    assert (found.best, found.edge) == ((1.0,), "")
    assert wider_grid.at(method, (3.0,)).grid == {"ridge": [3.0]}


def test_table_4_runs_on_the_users_files_as_libsvm_publishes_them(tmp_path, data_dir):
    """A thousand rows of RCV1 in Vowpal Wabbit's format, written as LIBSVM's."""
    with lzma.open(data_dir / "rcv1-vw-small" / "rcv1_small.dat.xz", "rt") as file:
        text = file.read()
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "rcv1_train.binary").write_text(text.replace(" |f", ""))
    table = {t.name: t for t in protocol.TABLES}["sparse"]
    assert [*tmp_path.glob(table.needs.format(data="rcv1"))]
    settings = {"data": "rcv1", "seeds": 0}
    levels = {row["method"]: row for row in sparse_records.baseline(settings, tmp_path)}
    assert levels["non-private"]["records"] == 800
    assert levels["non-private"]["accuracy"] > levels["majority"]["accuracy"] + 0.2
    settings |= {**_GRID, "data": "rcv1", "methods": "DP-GD", "clip norm": 0.5, "epsilon": 500.0}
    settings |= {"steps": (8, 16), "step size": (2.0, 8.0)}
    (row,) = sparse_records.private(settings, tmp_path)
    assert row["accuracy"] > levels["majority"]["accuracy"] + 0.1
    certificate = acc.Certificate.from_json(row["certificate"])
    assert certificate.declared["records"] == 800
    assert certificate.epsilon <= 500.0
    with pytest.raises(FileNotFoundError, match="real-sim: no file"):
        sparse_records.baseline({"data": "real-sim", "seeds": 0}, tmp_path)


def test_amp_takes_its_ridge_in_multiples_of_the_least():
    task = _made_up(flipped=False)
    method, bounded = method_for("AMP", _GRID, 2)
    assert bounded
    problem = cells.problem_for(task, 1.0)
    least = method.at_epsilon(problem, 0.5, 1e-6)["least_ridge"]
    # 2c/ε of the unnormalised problem, c the smoothness of one record's loss: 1/4 at norm 1.
    assert least == pytest.approx(2 * 0.25 / (0.5 * 800), rel=1e-5)
    noises = cells.comparison.calibrate(method, problem, [0.5], 1e-6)
    # A larger ridge leaves more of ε to the noise, so that less noise is needed.
    assert noises[0]["noise"] > 1.2 * noises[1]["noise"]
    assert [row["setting"] for row in noises] == ["ridge=1", "ridge=10"]


def test_excess_risk_stays_below_the_bound_by_expected_curvature(monkeypatch):
    rng = np.random.default_rng(0)
    features = data_sets._unit(rng.random((500, 5)))
    made_up = data_sets.DataSet("made up", features, (features[:, 0] > 0.4).astype(np.int32))
    monkeypatch.setattr(data_sets, "adult", lambda _: made_up)
    given = {"epsilon": 1.0, "steps": 8, "repeats": 4, "seeds": 0, "records": 500}
    rows = excess_risk({**given, "data": "Adult"}, None)
    drawn = excess_risk({**given, "data": "logistic regression"}, None)
    assert [row["records"] for row in (*rows, *drawn)] == [500] * len([*rows, *drawn])
    for row in (*rows, *drawn):
        assert row["excess risk"] < row["bound, curvature along the path"]
        chain = [value for name, value in row.items() if name.startswith("bound")]
        assert len(chain) == 3
        assert (np.diff(chain) >= -1e-9 * np.array(chain[:-1])).all()


def test_averaged_iterates_stay_below_the_bound_without_curvature(monkeypatch):
    rng = np.random.default_rng(0)
    features = data_sets._unit(rng.random((500, 5)))
    made_up = data_sets.DataSet("made up", features, rng.integers(0, 2, 500))
    monkeypatch.setattr(data_sets, "adult", lambda _: made_up)
    theorem, calibrated = averaged({"epsilon": 1.0, "repeats": 4, "seeds": 0}, None)
    # T = nβε/√p with β = 1/4 and p = 6, the intercept counted; its σ is 2√2·√(T ln(1/δ))/ε.
    assert theorem["steps"] == round(500 * 0.25 / 6**0.5)
    expected = (8 * theorem["steps"] * np.log(500.0**2)) ** 0.5
    assert theorem["noise multiplier"] == pytest.approx(expected)
    assert calibrated["noise multiplier"] < theorem["noise multiplier"]
    for row in (theorem, calibrated):
        assert 0 < row["excess risk"] < row["bound"]
        assert acc.Certificate.from_json(row["certificate"]).epsilon <= 1.0


@pytest.mark.parametrize("name", protocol.REGRESSIONS)
def test_curvatures_of_table_2(name, data_dir):
    (row,) = curvature.extremes({"data": name}, data_dir)
    # Three digits, as printed.
    assert row["minimum measured"] == pytest.approx(row["minimum published"], rel=2e-3)
    # Two digits; Sonar's are cut, not rounded.
    assert row["average measured"] == pytest.approx(row["average published"], abs=8e-3)


_THEOREM_2 = {"records": 200, "batch": 20, "steps": 150, "epsilon": 4.0, "repeats": 4, "seeds": 0}


def test_theorem_2_with_curvature_bounds_the_run_that_takes_its_step_sizes():
    rows = stochastic.theorem2({**_THEOREM_2, "data": "logistic regression"}, None)
    assert [row["curvature"] for row in rows] == ["expected ν", "minimum μ = λ"]
    for row in rows:
        # The curvature that the steps are made from is there along the whole path.
        assert row["curvature used"] <= row["smallest along the path"]
        # 17G²(1 + ln T)/(νT), G² = (1 + λ·radius)² + (b + pσ²)/b².
        size = (1.0 + 4e-3) ** 2 + (20 + 3 * row["noise multiplier"] ** 2) / 20**2
        expected = 17 * size * (1 + np.log(150)) / (150 * row["curvature used"])
        assert row["bound"] == pytest.approx(expected)
        assert 0 < row["excess risk"] + 2 * row["standard error"] < row["bound"]
        assert 3.9 < acc.Certificate.from_json(row["certificate"]).epsilon <= 4.0
    assert rows[0]["curvature used"] > 10 * rows[1]["curvature used"]


def test_theorem_2_without_curvature_is_run_on_the_dot_product():
    given = {**_THEOREM_2, "records": 40, "batch": 1, "steps": stochastic.AS_PRINTED}
    (row,) = stochastic.theorem2({**given, "data": "dot product"}, None)
    assert row["steps"] == (40 * 4) ** 2
    size = 1.0 + (1 + 3 * row["noise multiplier"] ** 2)
    expected = 2 * size**0.5 * (2 + np.log(25_600)) / 160
    assert row["bound"] == pytest.approx(expected)
    assert 0 < row["excess risk"] < row["at the start"] < row["bound"]
    # Nothing of the hinge but its straight piece lies in the ball, where the minimum is on the rim.
    problem, best, flat = stochastic.case("dot product", 40, 0, None)
    assert flat
    np.testing.assert_allclose(problem.gradient(best), problem.gradient(-best), rtol=1e-6)
    assert np.linalg.norm(best) == pytest.approx(0.5)


def test_theorem_2_at_the_remarks_number_of_steps():
    given = {**_THEOREM_2, "records": 40, "batch": 1, "steps": stochastic.ROOT}
    (row,) = stochastic.theorem2({**given, "data": "dot product"}, None)
    assert row["steps"] == round(40 * 4 / 3**0.5)


@pytest.mark.parametrize("descent", DESCENTS)
def test_curvature_along_a_descent_is_that_of_simulated_runs(descent):
    values, start, size, noise = np.array([0.02, 0.3, 1.0]), np.array([1.0, -1.0, 0.5]), 0.9, 0.2
    found, risk = curvatures_along(values, start, descent, 40, size, noise)
    rng = np.random.default_rng(0)
    here = before = np.tile(start, (20_000, 1))
    simulated = []
    for gamma in momenta(descent, 40):
        ahead = here + gamma * (here - before)
        at = here if descent == "heavy ball" else ahead
        simulated.append((values * at**2).sum() / (at**2).sum())
        moved = ahead - size * (values * at + noise * rng.normal(size=here.shape))
        here, before = moved, here
    np.testing.assert_allclose(found, simulated, rtol=0.03)
    assert risk == pytest.approx((values * here**2).sum(1).mean() / 2, rel=0.03)


def test_a_flat_minimum_has_curvature_from_its_nearest_point_alone():
    settings = {"data": "made up", "records": 3_000, "epsilon": 4.0, "repeats": 6, "seeds": 0}
    (row,) = restricted(settings, None)
    problem, values = underdetermined(3_000, 0)
    every = np.linalg.eigvalsh(np.cov(np.asarray(problem.features).T, bias=True))
    assert len(values) == 10
    assert every[:30].max() < 1e-6 < values[0] == row["restricted coefficient"]
    assert (
        row["ν from the nearest minimiser"]
        >= row["restricted coefficient"]
        > row["ν from one minimiser"]
    )
    assert row["excess risk"] < row["bound by ν"] <= row["bound by the restricted coefficient"]
    assert 3.9 < acc.Certificate.from_json(row["certificate"]).epsilon <= 4.0
