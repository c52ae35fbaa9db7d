"""The constants that privacy proofs rest on, checked against the functions they speak of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

from dpjax import erm
from dpjax.erm.losses import HuberHinge, Logistic, Softmax, Squared
from tests.contractions import coarse_products

_RNG = np.random.default_rng(3)
_ROWS = (_RNG.normal(size=(40, 4)) * _RNG.exponential(size=(40, 1))).astype(np.float32)
_SIGNS = (_RNG.random(40) < 0.5).astype(int)
_CLASSES = _RNG.integers(0, 3, 40)


def _problems(features=_ROWS, feature_norm=1.5, radius=2.0):
    kept = {"l2": 0.1, "feature_norm": feature_norm, "radius": radius}
    return {
        "logistic": erm.logistic_regression(features, _SIGNS, **kept),
        "huber": erm.huber_svm(features, _SIGNS, width=0.3, **kept),
        "squared": erm.linear_regression(features, 3 * _RNG.normal(size=40), **kept),
        "softmax": erm.softmax_regression(features, _CLASSES, classes=3, **kept),
    }


@pytest.mark.parametrize("name", ["logistic", "huber", "squared", "softmax"])
@pytest.mark.at_length(every=2)
def test_constants_hold_at_random_parameters_and_are_nearly_reached(name):
    problem = _problems()[name]
    index = jnp.arange(problem.n)

    def record_loss(w, i):
        return problem.batch(i[None]).losses(w)[0]

    def measure(w):
        w = problem.project(w)
        gradients = jax.vmap(jax.grad(record_loss), in_axes=(None, 0))(w, index)
        hessians = jax.vmap(
            lambda i: jax.hessian(lambda v: record_loss(v.reshape(problem.shape), i))(w.ravel())
        )(index)
        return (
            jnp.max(jnp.linalg.norm(gradients.reshape(problem.n, -1), axis=1)),
            jnp.max(jnp.linalg.eigvalsh(hessians)),
            jnp.linalg.eigvalsh(
                jax.hessian(lambda v: problem.objective(v.reshape(problem.shape)))(w.ravel())
            ),
        )

    draws = 30 * jax.random.normal(jax.random.key(0), (60, *problem.shape))
    draws = draws * jnp.logspace(-3, 0, 60).reshape(-1, *[1] * len(problem.shape))
    slopes, bends, spectrum = jax.jit(jax.vmap(measure))(draws)
    assert slopes.max() <= problem.gradient_bound * (1 + 1e-5)
    assert bends.max() + problem.l2 <= problem.smoothness * (1 + 1e-5)
    assert spectrum.min() >= problem.strong_convexity * (1 - 1e-3)
    # A constant ten times too large would pass the lines above and cost ten times the noise.
    assert slopes.max() > 0.4 * problem.gradient_bound
    assert bends.max() + problem.l2 > 0.4 * problem.smoothness


@pytest.mark.parametrize("name", ["logistic", "huber", "squared", "softmax"])
def test_gradient_is_the_derivative_of_the_objective(name):
    problem = _problems()[name]
    w = 0.3 * jax.random.normal(jax.random.key(1), problem.shape)
    np.testing.assert_allclose(
        problem.gradient(w), jax.grad(problem.objective)(w), rtol=2e-4, atol=1e-6
    )


@pytest.mark.parametrize("name", ["logistic", "huber", "squared", "softmax"])
@pytest.mark.at_length(every=3)
def test_sparse_rows_agree_with_dense_ones(name):
    mask = _RNG.random(_ROWS.shape) < 0.5
    dense_rows = np.where(mask, _ROWS, 0.0).astype(np.float32)
    dense_rows[7] = 0.0  # an empty row
    sparse_rows = sparse.BCOO.fromdense(jnp.asarray(dense_rows), nse=int(mask.sum()) + 5)
    labels = {"squared": np.linspace(-1, 1, 40), "softmax": _CLASSES}.get(name, _SIGNS)
    make = {
        "logistic": erm.logistic_regression,
        "huber": erm.huber_svm,
        "squared": erm.linear_regression,
        "softmax": lambda *a, **k: erm.softmax_regression(*a, classes=3, **k),
    }[name]
    dense, thin = (make(f, labels, l2=0.1, feature_norm=0.7) for f in (dense_rows, sparse_rows))
    w = jax.random.normal(jax.random.key(2), dense.shape)
    weights = jnp.linspace(0.0, 1.0, 40)
    for clip in (None, 0.2):
        np.testing.assert_allclose(
            thin.gradient_sum(w, clip_norm=clip, weights=weights),
            dense.gradient_sum(w, clip_norm=clip, weights=weights),
            atol=2e-5,
        )
    np.testing.assert_allclose(thin.objective(w), dense.objective(w), rtol=1e-5)
    np.testing.assert_allclose(thin.scores(w, sparse_rows), dense.scores(w, dense_rows), atol=1e-5)
    chosen = jnp.array([3, 1, 39])
    np.testing.assert_allclose(
        thin.batch(chosen).gradient(w), dense.batch(chosen).gradient(w), atol=1e-5
    )
    np.testing.assert_allclose(
        thin.slice(jnp.asarray(5), 4).gradient(w),
        dense.slice(jnp.asarray(5), 4).gradient(w),
        atol=1e-5,
    )


def test_rows_are_clipped_after_the_intercept_is_appended():
    problem = erm.logistic_regression([[3.0, 4.0], [0.1, 0.0], [1e30, -1e30]], [0, 1, 1], l2=0.1)
    norms = np.linalg.norm(np.asarray(problem.features, np.float64), axis=1)
    assert np.all(norms <= 1.0)
    np.testing.assert_allclose(norms, 1.0, rtol=1e-6)
    np.testing.assert_allclose(problem.features[0], np.array([3, 4, 1]) / np.sqrt(26), rtol=1e-5)


def test_non_finite_rows_become_zero_and_contribute_nothing():
    problem = erm.logistic_regression([[np.nan, 1.0], [np.inf, 0.0], [0.5, 0.5]], [0, 1, 1], l2=0.0)
    alone = erm.logistic_regression([[0.5, 0.5]], [1], l2=0.0)
    w = jnp.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(problem.gradient_sum(w), alone.gradient_sum(w), rtol=1e-6)


@pytest.mark.parametrize("clip", [1e-3, 0.3, 0.9, 5.0])
def test_clipped_gradients_match_brute_force_and_never_exceed_the_bound(clip):
    for problem in _problems().values():
        w = 2 * jax.random.normal(jax.random.key(5), problem.shape)
        each = jnp.stack(
            [
                problem.batch(jnp.array([i])).gradient_sum(w, clip_norm=clip).ravel()
                for i in range(8)
            ]
        )
        plain = jnp.stack([problem.batch(jnp.array([i])).gradient_sum(w).ravel() for i in range(8)])
        norms = np.linalg.norm(np.asarray(each, np.float64), axis=1)
        assert np.all(norms <= clip)
        size = np.linalg.norm(np.asarray(plain, np.float64), axis=1, keepdims=True)
        expected = np.asarray(plain) * np.minimum(1.0, clip / np.maximum(size, 1e-30))
        np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-6)


def test_clipping_one_score_keeps_a_convex_equally_smooth_function():
    # Hidden-state bounds need this: the clipped slope of a scalar loss is monotone and β-Lipschitz.
    problem = _problems()["logistic"]
    field = jax.jit(lambda w: problem.gradient_sum(w, clip_norm=0.2) / problem.n)
    a, b = 5 * jax.random.normal(jax.random.key(9), (2, 200, 5))
    for u, v in zip(a, b, strict=True):
        gap, step = field(u) - field(v), u - v
        inner, size = jnp.sum(gap * step), jnp.linalg.norm(gap)
        assert inner >= -1e-6
        smooth = problem.smoothness - problem.l2
        assert size**2 <= smooth * inner * (1 + 1e-3) + 1e-6  # co-coercivity


def test_projection_is_onto_the_ball():
    problem = _problems(radius=2.0)["logistic"]
    far, near = jnp.full(5, 9.0), jnp.full(5, 0.1)
    np.testing.assert_allclose(jnp.linalg.norm(problem.project(far)), 2.0, rtol=1e-6)
    np.testing.assert_array_equal(problem.project(near), near)
    assert problem.lipschitz == pytest.approx(1.5 + 0.1 * 2.0)


@pytest.mark.parametrize(
    ("loss", "slope", "bend"),
    [(Logistic(), 1.0, 0.25), (HuberHinge(0.5), 1.0, 1.0), (HuberHinge(0.1), 1.0, 5.0)],
)
def test_loss_derivatives_reach_their_bounds(loss, slope, bend):
    scores = jnp.linspace(-30, 30, 4001)
    labels = jnp.ones_like(scores)
    assert jnp.max(jnp.abs(loss.slope(scores, labels))) == pytest.approx(slope, rel=1e-4)
    assert jnp.max(loss.curvature(scores, labels)) == pytest.approx(bend, rel=1e-3)
    assert (loss.slope_bound, loss.smoothness) == (slope, pytest.approx(bend))


def test_softmax_bounds_are_reached():
    loss = Softmax(4)
    wrong = jnp.array([[40.0, 0.0, 0.0, 0.0]])
    assert jnp.linalg.norm(loss.slope(wrong, jnp.array([1]))) == pytest.approx(np.sqrt(2), rel=1e-5)
    p = jnp.array([0.5, 0.5, 0.0, 0.0])
    assert jnp.linalg.eigvalsh(jnp.diag(p) - jnp.outer(p, p)).max() == pytest.approx(0.5)


def test_huber_pieces_join():
    loss = HuberHinge(0.5)
    for z in (0.5, 1.5):
        pair = jnp.array([z - 1e-4, z + 1e-4])
        value, slope = loss.value(pair, jnp.ones(2)), loss.slope(pair, jnp.ones(2))
        assert abs(value[1] - value[0]) < 3e-4
        assert abs(slope[1] - slope[0]) < 3e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: erm.logistic_regression([[1.0]], [2], l2=0.1), "of two classes"),
        (
            lambda: erm.logistic_regression([[1.0]], [1, 0], l2=0.1),
            r"labels must have shape .* got \(2,\)",
        ),
        (lambda: erm.logistic_regression([[1.0]], [1], l2=-0.1), "l2 must .* got -0.1"),
        (
            lambda: erm.logistic_regression([1.0], [1], l2=0.1),
            "features must be a matrix .* got 1 axes",
        ),
        (
            lambda: erm.logistic_regression([[1.0]], [1], l2=0.1, feature_norm=0),
            "feature_norm must .* got 0",
        ),
        (lambda: erm.huber_svm([[1.0]], [1], l2=0.1, width=0.0), "width must .* got 0.0"),
        (lambda: erm.softmax_regression([[1.0]], [3], classes=3, l2=0.1), "classes=3"),
        (lambda: erm.linear_regression([[1.0]], [0.5], l2=0.1, radius=-1), "radius must .* got -1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_regression_without_a_ball_has_no_gradient_bound():
    assert Squared().slope_bound == np.inf
    assert erm.linear_regression([[1.0]], [0.5], l2=0.1).gradient_bound == np.inf


def test_differentiable_problem_clips_each_record():
    examples = jnp.array([[3.0, 0.0], [0.0, 0.1], [np.nan, 1.0]])
    problem = erm.differentiable_problem(lambda w, x: -w @ x, examples, (2,), l2=0.5)
    got = problem.gradient_sum(jnp.zeros(2), clip_norm=1.0)
    np.testing.assert_allclose(got, [-1.0, -0.1], rtol=1e-5)
    assert (
        jnp.linalg.norm(problem.batch(jnp.array([0])).gradient_sum(jnp.zeros(2), clip_norm=1.0))
        <= 1
    )


@pytest.mark.parametrize("radius", [np.inf, 1.0])
def test_losses_along_a_line_are_the_losses_at_its_points(radius):
    problem = erm.logistic_regression(_ROWS, _SIGNS, l2=0.1, radius=radius)
    w, way = jax.random.normal(jax.random.key(0), (2, 5))
    sizes = jnp.array([0.0, 0.5, 2.0])
    found = problem.losses_along(w, way, sizes)
    for row, size in zip(found, sizes, strict=True):
        expected = problem.losses(problem.project(w - size * way))
        np.testing.assert_allclose(row, expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["logistic", "softmax", "sparse", "any loss"])
def test_no_product_of_a_clipped_sum_is_coarse(name):
    """A clipped row rounded to TF32 or bfloat16 exceeds its norm by a thousandth and more."""
    if name == "any loss":
        problem = erm.differentiable_problem(lambda w, z: jnp.sum(w * z) ** 2, _ROWS, (4,))
    elif name == "sparse":
        problem = _problems(sparse.BCOO.fromdense(_ROWS))["softmax"]
    else:
        problem = _problems()[name]
    start = problem.zeros()
    assert coarse_products(lambda w: problem.gradient_sum(w, clip_norm=0.5), start) == []
    assert coarse_products(problem.gradient, start) == []


@pytest.mark.parametrize("kind", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("as_sparse", [False, True])
@pytest.mark.at_length(every=3)
def test_features_of_16_bits_are_summed_in_32(kind, as_sparse):
    # A sum of 3,000 gradients rounded to 8 digits moves by 0 or by 13 clip norms for one of them.
    records, bound = 3_200, 0.3
    rows = jnp.full((records, 1), 0.73, kind)
    if as_sparse:
        rows = sparse.BCOO.fromdense(rows, n_batch=1)
    problem = erm.logistic_regression(rows, np.ones(records), l2=0.0, intercept=0.0)
    zeros = problem.zeros()

    @jax.jit
    def of_the_first(number):
        weights = (jnp.arange(records) < number).astype(zeros.dtype)
        return problem.gradient_sum(zeros, clip_norm=bound, weights=weights)[0]

    sums = [np.float64(of_the_first(number)) for number in range(3_000, 3_130)]
    assert np.max(np.abs(np.diff(sums))) <= bound * 1.01


def _made_of_tiny_gradients(kind, size, records=3, width=50_000):
    rows = np.full((records, width), size, np.float32)
    if kind == "linear":
        return erm.linear_regression(rows, np.ones(records), l2=0.0, intercept=0.0)
    if kind == "sparse":
        rows = sparse.BCOO.fromdense(jnp.asarray(rows), n_batch=1)
        return erm.linear_regression(rows, np.ones(records), l2=0.0, intercept=0.0)
    if kind == "softmax":
        return erm.softmax_regression(rows, np.ones(records), classes=3, l2=0.0, intercept=0.0)
    examples = jnp.asarray(rows)
    return erm.differentiable_problem(lambda w, row: -w @ row, examples, (width,))


@pytest.mark.parametrize("kind", ["linear", "sparse", "softmax", "differentiable"])
@pytest.mark.at_length(every=3)
def test_gradients_whose_squares_vanish_are_clipped(kind):
    # Entries below 1e-19 have the square 0 in float32; 50,000 of them have a norm of 224 entries.
    bound = 1e-18
    for size in (1e-22, 1e-20, 1e-19):
        problem = _made_of_tiny_gradients(kind, size)
        weights = jnp.asarray([0.0, 1.0, 1.0])
        whole, less = (
            np.float64(problem.gradient_sum(problem.zeros(), clip_norm=bound, weights=w))
            for w in (None, weights)
        )
        moved = np.linalg.norm(whole - less)
        assert min(size, bound) < moved <= bound * (1 + 1e-5)


@pytest.mark.parametrize("solver", [erm.dp_gd, erm.dp_agd, erm.perturbed_gd])
def test_clip_norms_whose_squares_float32_does_not_hold_are_refused(solver):
    problem = _made_of_tiny_gradients("linear", 1.0, width=2)
    settings = {} if solver is erm.dp_agd else {"steps": 1, "step_size": 1.0}
    for bound in (1e-30, 1e20):
        with pytest.raises(ValueError, match=r"clip_norm must be in \[1e-18, 1e\+19\], got"):
            solver(problem, jax.random.key(0), epsilon=1.0, delta=1e-5, clip_norm=bound, **settings)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: erm.logistic_regression(x + 1j, y, l2=0.1), "features must be real"),
        (lambda x, y: erm.logistic_regression(x.astype(str), y, l2=0.1), "features must be real"),
        (lambda x, y: erm.logistic_regression(x, y, l2=0.1, intercept=np.nan), "intercept must be"),
        (lambda x, y: erm.logistic_regression(x, y, l2=0.1, intercept=np.inf), "intercept must be"),
        (lambda x, y: erm.softmax_regression(x, y, classes=2.5, l2=0.1), "classes must be"),
        (
            lambda x, y: erm.softmax_regression(x, y + 0.7, classes=2, l2=0.1),
            "labels must be whole",
        ),
    ],
)
def test_what_would_train_on_something_else_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.eye(3), np.array([0, 1, 1]))
