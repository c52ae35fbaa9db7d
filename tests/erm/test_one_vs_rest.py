"""One binary problem per class; the budget is that of all of them together."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax import erm


@pytest.fixture(scope="module")
def three():
    rng = np.random.default_rng(0)
    centres = np.array([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]])
    labels = rng.integers(0, 3, 600)
    rows = (centres[labels] + 0.3 * rng.normal(size=(600, 3))).astype(np.float32)
    return erm.logistic_regression(rows, labels == 0, l2=0.01), rows, labels


@pytest.mark.parametrize(
    ("solver", "settings", "adjacency"),
    [
        (erm.dp_gd, {"steps": 20, "step_size": 4.0}, "add-remove"),
        (erm.output_perturbed_gd, {"steps": 20, "step_size": 4.0}, "replace-one"),
        (erm.objective_perturbation, {}, "add-remove"),
    ],
)
def test_classes_share_one_budget(solver, settings, adjacency, three):
    problem, rows, labels = three
    run = erm.one_vs_rest(
        solver, problem, jax.random.key(1), classes=3, class_labels=labels, epsilon=4.0,
        delta=1e-5, adjacency=adjacency, **settings,
    )  # fmt: skip
    assert run.params.shape == (4, 3)
    assert 0.98 * 4 < acc.epsilon(run.mechanism, delta=1e-5, adjacency=adjacency) <= 4.0
    tier = "conditional" if solver is not erm.dp_gd else "proven"
    assert acc.certify(run.mechanism, 1e-5, adjacency=adjacency).tier == tier
    accuracy = np.mean(np.asarray(erm.predict_class(problem, run.params, rows)) == labels)
    assert accuracy > 0.8


def test_pure_budgets_add_up(three):
    problem, _rows, labels = three
    run = erm.one_vs_rest(
        erm.objective_perturbation, problem, jax.random.key(2), classes=3, class_labels=labels,
        epsilon=3.0, delta=0, adjacency="replace-one",
    )  # fmt: skip
    spent = acc.epsilon(run.mechanism, delta=1e-12, adjacency="replace-one")
    assert spent == pytest.approx(3.0, rel=1e-6)


@pytest.mark.parametrize("delta", [0, 1e-5])
@pytest.mark.parametrize("epsilon", ["a", [1.0, 2.0], True, float("nan"), -1.0])
def test_a_budget_is_one_positive_number(epsilon, delta, three):
    problem, _rows, labels = three
    with pytest.raises((TypeError, ValueError), match="epsilon must be"):
        erm.one_vs_rest(
            erm.objective_perturbation, problem, jax.random.key(2), classes=3, class_labels=labels,
            epsilon=epsilon, delta=delta, adjacency="replace-one",
        )  # fmt: skip


def test_without_noise_each_column_is_its_binary_problem(three):
    problem, rows, labels = three
    settings = {"steps": 5, "step_size": 1.0, "noise_multiplier": 0.0}
    run = erm.one_vs_rest(
        erm.dp_gd, problem, jax.random.key(0), classes=3, class_labels=labels, **settings
    )
    one = erm.logistic_regression(rows, labels == 2, l2=0.01)
    alone = erm.dp_gd(one, jax.random.key(0), **settings).params
    np.testing.assert_allclose(run.params[:, 2], alone, rtol=1e-4, atol=1e-6)


def test_bad_classes_raise(three):
    problem, _, labels = three
    call = {"classes": 2, "class_labels": labels, "steps": 2, "step_size": 1.0}
    with pytest.raises(ValueError, match="got 0 to 2"):
        erm.one_vs_rest(erm.dp_gd, problem, jax.random.key(0), noise_multiplier=1.0, **call)
    with pytest.raises(ValueError, match=r"class_labels must have shape .* got \(3,\)"):
        erm.one_vs_rest(
            erm.dp_gd, problem, jax.random.key(0), noise_multiplier=1.0,
            **{**call, "class_labels": jnp.arange(3)},
        )  # fmt: skip
