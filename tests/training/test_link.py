"""The probabilities of clipped training against the minimum of its loss, found by search."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from dpjax import training
from dpjax.training import ClippedLink


def _clipped_loss(score: float, label: int, bound: float) -> float:
    """The loss whose derivative is the clipped residual: the integral of it from 0, by pieces."""
    grid = np.linspace(0.0, score, 4_001)
    residuals = np.clip(1 / (1 + np.exp(-grid)) - label, -bound, bound)
    return float(np.trapezoid(residuals, grid))


@pytest.mark.parametrize("bound", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("chance", [0.03, 0.4, 0.5, 0.88])
def test_two_classes_are_as_likely_as_where_the_expected_clipped_loss_is_least(chance, bound):
    def expected(score):
        parts = [_clipped_loss(score, label, bound) for label in (0, 1)]
        return (1 - chance) * parts[0] + chance * parts[1]

    score = optimize.minimize_scalar(expected, bounds=(-30, 30), method="bounded").x
    # A row of norm 3/5 beside a bias feature of 4/5: the record's gradient has the residual's norm.
    link = ClippedLink(bound, 0.8)
    logits = link.of_logistic(jnp.asarray(score, jnp.float32), jnp.asarray([0.0, 0.6]))
    assert float(jax.nn.softmax(logits)[1]) == pytest.approx(chance, abs=1e-3)


@pytest.mark.parametrize("bound", [0.3, 0.5, 0.9])
@pytest.mark.parametrize(
    "chances", [(0.2, 0.8), (0.7, 0.2, 0.1), (0.9, 0.05, 0.03, 0.02), (0.1, 0.15, 0.2, 0.25, 0.3)]
)
def test_several_classes_are_as_likely_as_where_the_mean_clipped_gradient_vanishes(chances, bound):
    pi = np.asarray(chances)

    def mean_gradient(scores):
        p = np.exp(scores - scores.max())
        p /= p.sum()
        residuals = p - np.eye(len(pi))  # a row for each class that a record may have
        norms = np.linalg.norm(residuals, axis=1)
        return pi @ (residuals * np.minimum(1, bound / norms)[:, None])

    # By small steps downhill, as training goes, and the last digits by a solver.
    scores = np.log(pi)
    for _ in range(2_000):
        scores = scores - mean_gradient(scores)
    found = optimize.root(lambda s: mean_gradient(s) + (s.sum() - scores.sum()) / 10, scores)
    scores = np.asarray(found.x if found.success else scores)
    assert np.linalg.norm(mean_gradient(scores)) < 1e-6
    link = ClippedLink(bound, 0.0)
    got = jax.nn.softmax(link.of_softmax(jnp.asarray(scores, jnp.float32), jnp.asarray([1.0])))
    np.testing.assert_allclose(got, pi, atol=2e-4)


def test_a_longer_row_is_clipped_earlier():
    link = ClippedLink(0.5, 0.0)
    short, long = (jax.nn.softmax(link.of_logistic(jnp.asarray(2.0), jnp.asarray([x])))
                   for x in (0.5, 1.0))  # fmt: skip
    # Residuals up to 1 of the short row are not clipped: the plain logistic function.
    assert float(short[1]) == pytest.approx(1 / (1 + np.exp(-2.0)), abs=1e-6)
    assert float(long[1]) == pytest.approx(0.5 / (0.5 + 1 / (1 + np.exp(2.0))), abs=1e-6)


@pytest.mark.parametrize("score", [-100.0, -30.0, 0.0, 30.0, 100.0])
def test_extreme_scores_give_finite_logits(score):
    link, x = ClippedLink(0.5, 0.1), jnp.ones(1)
    assert np.isfinite(link.of_logistic(jnp.asarray(score), x)).all()
    assert np.isfinite(link.of_softmax(jnp.asarray([score, 0.0, -score]), x)).all()


@pytest.mark.parametrize("make", [training.logistic, lambda d, link: training.softmax(d, 3, link)])
def test_a_saved_model_keeps_its_link(tmp_path, make):
    model = make(2, ClippedLink(0.5, 0.25))
    draw = np.random.default_rng(0).normal
    params = {
        n: 3 * draw(size=s.shape).astype(np.float32)
        for n, s in jax.eval_shape(model.init, jax.random.key(0)).items()
    }
    folder = training.save_model(tmp_path / "model", params, model)
    found, rows = training.load_model(folder), [[0.6, 0.8], [-1.0, 0.0]]
    expected = training.probabilities(model, params, rows)
    np.testing.assert_array_equal(training.probabilities(found.model, found.params, rows), expected)
    # One of an earlier version says nothing of a link, and predicts as it did.
    text = json.loads((folder / "model.json").read_text())
    del text["architecture"]["link"]
    (folder / "model.json").write_text(json.dumps(text))
    plain = training.load_model(folder)
    scores = np.asarray(rows) @ np.asarray(params["weights"]) + np.asarray(params["bias"])
    scores = np.stack([0 * scores, scores], 1) if scores.ndim == 1 else scores
    np.testing.assert_allclose(
        training.probabilities(plain.model, plain.params, rows),
        np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True),
        atol=1e-6,
    )
    assert abs(expected - training.probabilities(plain.model, plain.params, rows)).max() > 0.05


@pytest.mark.parametrize("link", [None, {}, {"clip_norm": 0.0, "bias_feature": 0.1},
                                  {"clip_norm": 1.0, "bias_feature": "x"},
                                  {"clip_norm": 1.0, "bias_feature": 0.1, "more": 1}])  # fmt: skip
def test_a_damaged_link_is_refused(link):
    from dpjax.training.models import build_model

    with pytest.raises((TypeError, ValueError), match=r"clip_norm|bias_feature"):
        build_model({"kind": "logistic", "features": 2, "link": link})


def test_a_perceptron_has_no_link():
    from dpjax.training.models import build_model

    described = {"kind": "mlp", "features": 2, "classes": 2, "hidden": [3]}
    with pytest.raises(ValueError, match=r"must be .* of a logistic or softmax model"):
        build_model({**described, "link": {"clip_norm": 0.5, "bias_feature": 0.1}})
