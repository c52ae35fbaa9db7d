"""A sweep is the loop over its runs, in few programs, within its memory."""

from __future__ import annotations

import jax
import numpy as np
import pandas as pd
import pytest

from dpjax import accounting as acc
from dpjax import erm
from dpjax.erm import gradient_perturbation

_GRID = {"steps": [2, 5], "step_size": [0.5, 1.0]}


def test_every_row_is_the_run_it_names(logistic, rows):
    result = erm.sweep(
        erm.dp_gd, logistic, _GRID, repeats=3, key=jax.random.key(0), epsilon=1.0, delta=1e-5,
        test=rows, progress=False,
    )  # fmt: skip
    assert list(result.table.columns[:4]) == ["setting", "epsilon", "delta", "steps"]
    assert len(result.table) == 12
    keys = jax.random.split(jax.random.key(0), (4, 3))
    for row in (0, 5, 11):
        line = result.table.iloc[row]
        alone = erm.dp_gd(
            logistic,
            keys[int(line.setting), int(line["repeat"])],
            steps=int(line.steps),
            step_size=line.step_size,
            noise_multiplier=line.noise,
        ).params
        np.testing.assert_allclose(result.params[row], alone, rtol=1e-4, atol=1e-5)
        assert line.objective == pytest.approx(float(logistic.objective(alone)), rel=1e-4)
        assert line.accuracy == pytest.approx(float(logistic.accuracy(alone, *rows)), abs=0.02)
    for mechanism in result.mechanisms:
        assert acc.epsilon(mechanism, delta=1e-5) <= 1.0


def test_one_program_per_integer_setting_and_none_more_when_chunked(logistic):
    kept = {"repeats": 4, "key": jax.random.key(1), "noise_multiplier": 2.0, "progress": False}
    whole = erm.sweep(erm.dp_gd, logistic, _GRID, **kept)
    before = gradient_perturbation._add_gaussians._cache_size()
    tight = 3.5 * (8 * 203 * 4 + 64 * 6 * 4)  # for three runs at a time
    chunked = erm.sweep(
        erm.dp_gd, logistic, _GRID, memory_budget=tight, **{**kept, "key": jax.random.key(1)}
    )
    assert gradient_perturbation._add_gaussians._cache_size() <= before + 2
    np.testing.assert_allclose(whole.params, chunked.params, rtol=1e-5, atol=1e-6)


def test_budgets_may_be_an_axis(logistic):
    result = erm.sweep(
        erm.rsgd_ar, logistic, {"epsilon": [0.5, 2.0], "step_size": [0.5, 1.0]}, repeats=2,
        key=jax.random.key(2), delta=1e-5, epochs=4, batch_size=70, average_every=2,
        progress=False,
    )  # fmt: skip
    noise = result.summary()["noise"].to_numpy()
    assert noise[0] > noise[2]
    assert noise[1] > noise[3]
    for setting, mechanism in zip(result.settings, result.mechanisms, strict=True):
        spent = acc.epsilon(mechanism, delta=1e-5, adjacency="replace-one")
        assert 0.99 * setting["epsilon"] < spent <= setting["epsilon"]


def test_solvers_in_float64_are_swept_one_by_one(logistic):
    result = erm.sweep(
        erm.objective_perturbation, logistic, {"noise_std": [1.0, 5.0]}, repeats=2,
        key=jax.random.key(3), progress=False,
    )  # fmt: skip
    means = result.table.groupby("noise_std")["objective"].mean()
    assert means[1.0] < means[5.0]


def test_the_best_setting_is_labelled_and_a_private_choice_is_priced(logistic, rows, tmp_path):
    result = erm.sweep(
        erm.dp_gd, logistic, {"noise_multiplier": [500.0, 0.5]}, repeats=3, key=jax.random.key(4),
        steps=5, step_size=1.0, test=rows, progress=False,
    )  # fmt: skip
    best = result.best()
    assert (best.private, best.mechanism) == (False, None)
    assert best.setting["noise_multiplier"] == 0.5
    assert "NOT PRIVATE" in best.note
    choice = result.choose_privately(jax.random.key(5), noise_multiplier=0.5)
    assert choice.private
    assert choice.setting["noise_multiplier"] == 0.5
    alone = acc.epsilon(result.mechanisms[1], delta=1e-5)
    assert acc.epsilon(choice.mechanism, delta=1e-5) > alone
    result.to_csv(tmp_path / "sweep.csv")
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "sweep.csv"), result.table, check_dtype=False
    )
    figure = result.plot()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "noise_multiplier 500",
        "noise_multiplier 0.5",
    ]


def test_the_adaptive_solver_is_swept_under_either_adjacency(logistic):
    noise = {}
    for adjacency in acc.Adjacency:
        result = erm.sweep(
            erm.dp_agd, logistic, {"epsilon": [0.5, 1.0]}, repeats=2, key=jax.random.key(6),
            delta=1e-5, adjacency=adjacency, planned_steps=5, progress=False,
        )  # fmt: skip
        for mechanism, epsilon in zip(result.mechanisms, (0.5, 1.0), strict=True):
            spent = acc.epsilon(mechanism, delta=1e-5, adjacency=adjacency)
            assert 0.99 * epsilon < spent <= epsilon
        noise[adjacency] = result.table["noise"].to_numpy()
    # The noise is in units of the whole budget ρ, which is the same; the steps double theirs.
    np.testing.assert_allclose(*noise.values(), rtol=1e-5)


def test_points_may_be_given_instead_of_a_grid(logistic):
    kept = {"repeats": 2, "key": jax.random.key(8), "noise_multiplier": 2.0, "progress": False}
    points = [{"steps": 2, "step_size": 0.5}, {"steps": 5, "step_size": 1.0}]
    result = erm.sweep(erm.dp_gd, logistic, points, **kept)
    assert result.names == ("steps", "step_size")
    assert result.table[["steps", "step_size"]].drop_duplicates().to_dict("records") == points
    with pytest.raises(ValueError, match="same hyperparameters"):
        erm.sweep(erm.dp_gd, logistic, [{"steps": 2}, {"step_size": 0.5}], **kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": {}}, "grid must have a"),
        ({"grid": []}, "grid must have a"),
        ({"solver": erm.gradient_descent}, "one of the private ones"),
        ({"epsilon": 1.0, "delta": 1e-5}, "not both"),
        ({"repeats": 0}, "repeats must .* got 0"),
    ],
)
def test_bad_sweeps_raise(change, message, logistic):
    call = {
        "solver": erm.dp_gd,
        "grid": {"steps": [2]},
        "repeats": 1,
        "step_size": 1.0,
        "noise_multiplier": 1.0,
    } | change
    solver, grid = call.pop("solver"), call.pop("grid")
    with pytest.raises(ValueError, match=message):
        erm.sweep(solver, logistic, grid, key=jax.random.key(0), progress=False, **call)
