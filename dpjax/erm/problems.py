"""Convex problems that know their constants.

`F(w) = (1/n) Σᵢ ℓ(⟨xᵢ, w⟩, yᵢ) + (l2/2)‖w‖²`, with ‖xᵢ‖ ≤ feature_norm enforced by clipping the
rows after the intercept column is appended. Every constant a privacy proof uses is a function of
`feature_norm`, the loss and `l2` alone, never of the data.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.namespace import Values
from dpjax._numerics.scope import is_traced
from dpjax.erm import _features, check
from dpjax.erm._features import Features
from dpjax.erm.losses import HuberHinge, Logistic, Softmax, Squared


class Objective:
    """What every problem has: `F(w) = (1/n) Σᵢ ℓᵢ(w) + (l2/2)‖w‖²` on a ball of a radius."""

    if TYPE_CHECKING:  # what a problem has itself, some as fields and some as properties

        @property
        def n(self) -> int: ...
        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> np.dtype: ...
        @property
        def l2(self) -> float: ...
        @property
        def radius(self) -> float: ...
        @property
        def gradient_bound(self) -> float: ...

        def losses(self, params: Array) -> Float[Array, " n"]: ...
        def gradient_sum(
            self, params: Array, *, clip_norm: Values | None = ..., weights: Array | None = ...
        ) -> Array: ...
        def batch(self, indices: Array) -> Objective: ...

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return math.prod(self.shape)

    def zeros(self) -> Array:
        """Parameters at the origin."""
        return jnp.zeros(self.shape, self.dtype)

    def objective(self, params: Array) -> Float[Array, ""]:
        """F(w). A function of private data: for diagnosis, not for release."""
        return jnp.mean(self.losses(params)) + 0.5 * self.l2 * jnp.sum(jnp.square(params))

    def project(self, params: Array) -> Array:
        """The nearest point of the ball ‖w‖ ≤ radius."""
        if math.isinf(self.radius):
            return params
        norm = jnp.linalg.norm(params.ravel())
        # A projection to a convex set does not expand distances.
        return params * jnp.minimum(1.0, self.radius / jnp.where(norm > 0, norm, 1.0))


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["features", "labels", "norms"],
    meta_fields=["loss", "l2", "feature_norm", "intercept", "radius"],
)
@dataclasses.dataclass(frozen=True)
class Problem(Objective):
    """A regularised generalised linear model on one data set; made by the four functions below.

    Fields:
        features: [n, d] with the intercept column, every row of norm at most `feature_norm`.
        labels: [n].
        norms: the rows' norms [n].
        radius: of the ball the parameters are projected to (infinite: no projection).

    Example:
        >>> problem = logistic_regression([[3.0, 4.0], [0.0, 0.1]], [0, 1], l2=0.01)
        >>> problem.n, problem.shape, problem.smoothness, problem.strong_convexity
        (2, (3,), 0.26, 0.01)
    """

    features: Features
    labels: Array
    norms: Float[Array, " n"]
    loss: Logistic | HuberHinge | Squared | Softmax
    l2: float
    feature_norm: float
    intercept: float
    radius: float = math.inf

    @property
    def n(self) -> int:
        """Number of records: public."""
        return self.features.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameters: (d,) or (d, classes)."""
        d = self.features.shape[1]
        return (d,) if self.loss.outputs == 1 else (d, self.loss.outputs)

    @property
    def dtype(self):
        """Float type of the features, and so of the parameters."""
        return self.norms.dtype

    @property
    def gradient_bound(self) -> float:
        """R = sup ‖∇ℓ(w; x, y)‖ of one record's loss, regulariser excluded."""
        return self.loss.slope_bound * self.feature_norm  # ‖x ⊗ ℓ'‖ = ‖x‖·‖ℓ'‖

    @property
    def gradient_diameter(self) -> float:
        """S = sup ‖∇ℓ(w; z) − ∇ℓ(w; z')‖ = 2R: the regulariser cancels, ‖w‖ may be anything."""
        return 2.0 * self.gradient_bound

    @property
    def smoothness(self) -> float:
        """β: every record's regularised loss has Hessian at most βI."""
        return self.loss.smoothness * self.feature_norm**2 + self.l2  # ∇²ℓ = ℓ''·xxᵀ

    @property
    def strong_convexity(self) -> float:
        """μ = l2."""
        return self.l2

    @property
    def lipschitz(self) -> float:
        """Lipschitz constant of F on the ball: R + l2·radius (infinite if l2 > 0 and no radius)."""
        # ‖∇F‖ ≤ R + l2·‖w‖, and ‖w‖ ≤ radius.
        return self.gradient_bound + (self.l2 * self.radius if self.l2 > 0 else 0.0)

    def losses(self, params: Array) -> Float[Array, " n"]:
        """ℓ of every record, regulariser excluded."""
        return self.loss.value(_features.matvec(self.features, params), self.labels)

    def losses_along(self, params: Array, way: Array, sizes: Array) -> Float[Array, "k n"]:
        """ℓ of every record at Π(w − size·way), for each size; linear scores need two products."""
        if not math.isinf(self.radius):
            return jax.vmap(lambda size: self.losses(self.project(params - size * way)))(sizes)
        here = _features.matvec(self.features, params)
        slope = _features.matvec(self.features, way)
        return jax.vmap(lambda size: self.loss.value(here - size * slope, self.labels))(sizes)

    def gradient(self, params: Array) -> Array:
        """∇F(w), regulariser included, nothing clipped."""
        return self.gradient_sum(params) / self.n + self.l2 * params

    def gradient_sum(
        self, params: Array, *, clip_norm: Values | None = None, weights: Array | None = None
    ) -> Array:
        """Σᵢ weightᵢ · clip(∇ℓᵢ): the data's part of the gradient, as a sum.

        A record's gradient is xᵢ ⊗ ℓ'(sᵢ), of norm ‖xᵢ‖‖ℓ'(sᵢ)‖, so that clipping costs nothing.
        For one score clipping acts on ℓ' alone, and the result is still the gradient of a convex,
        equally smooth function. A record whose slope is not finite contributes zero.
        """
        slopes = self.loss.slope(_features.matvec(self.features, params), self.labels)
        if clip_norm is not None:
            sizes = jnp.abs(slopes) if slopes.ndim == 1 else _features.vector_norms(slopes)
            factors = _features.row_clip_factors(self.norms * sizes, clip_norm)
            weights = factors if weights is None else weights * factors
        if weights is not None:
            slopes = slopes * (weights if slopes.ndim == 1 else weights[:, None])
        slopes = jnp.where(jnp.isfinite(slopes), slopes, 0.0)  # NaN contributes nothing
        return _features.rmatvec(self.features, slopes)

    def batch(self, indices: Array) -> Problem:
        """The same problem on the records `indices`."""
        return self._select_records(lambda leaf: leaf[indices])

    def slice(self, begin: Array, size: int) -> Problem:
        """The same problem on the records begin … begin + size − 1."""
        return self._select_records(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, begin, size))

    def _select_records(self, select: Callable[[Array], Array]) -> Problem:
        rows, labels = _features.map_rows(self.features, select), select(self.labels)
        return dataclasses.replace(self, features=rows, labels=labels, norms=select(self.norms))

    def scores(self, params: Array, features: Features | ArrayLike) -> Array:
        """Scores of new rows, prepared like the training rows: intercept appended, then clipped."""
        rows = prepare_rows(features, self.intercept, self.feature_norm)
        return _features.matvec(rows.astype(self.dtype), params)

    def predict(self, params: Array, features: Features | ArrayLike) -> Array:
        """Predicted labels of new rows: ±1, a class number, or the regression's score."""
        scores = self.scores(params, features)
        if isinstance(self.loss, Softmax):
            return jnp.argmax(scores, axis=1)
        return scores if isinstance(self.loss, Squared) else jnp.where(scores >= 0, 1.0, -1.0)

    def accuracy(
        self, params: Array, features: Features | ArrayLike, labels: ArrayLike
    ) -> Float[Array, ""]:
        """Share of rows whose label is predicted.

        Example:
            >>> problem = logistic_regression([[1.0], [-1.0]], [1, 0], l2=0.0)
            >>> float(problem.accuracy(jnp.array([1.0, 0.0]), [[2.0], [-3.0]], [1, 0]))
            1.0
        """
        truth = jnp.asarray(labels) if isinstance(self.loss, Softmax) else as_signs(labels)
        return jnp.mean((self.predict(params, features) == truth).astype(self.dtype))


@suggests_argument_names
def logistic_regression(
    features: Features | ArrayLike,
    labels: ArrayLike,
    *,
    l2: float,
    feature_norm: float = 1.0,
    intercept: float = 1.0,
    radius: float = math.inf,
) -> Problem:
    """Binary logistic regression: R = feature_norm, β = feature_norm²/4 + l2, μ = l2.

    Args:
        features: [n, d], dense or `BCOO`, without an intercept column.
        labels: [n], in {0, 1} or {−1, +1}.
        l2: weight of ‖w‖²/2, at least 0.
        feature_norm: the declared bound on ‖x‖, enforced by scaling longer rows down.
        intercept: the constant appended to every row before clipping; 0 for none.
        radius: of the ball that projecting solvers keep the parameters in.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> problem = logistic_regression([[1.0, 0.0], [0.0, 1.0]], [-1, 1], l2=1e-3)
        >>> problem.gradient_bound, problem.gradient_diameter
        (1.0, 2.0)
    """
    return _build(features, as_signs(labels), Logistic(), l2, feature_norm, intercept, radius)


@suggests_argument_names
def huber_svm(
    features: Features | ArrayLike,
    labels: ArrayLike,
    *,
    l2: float,
    width: float = 0.5,
    feature_norm: float = 1.0,
    intercept: float = 1.0,
    radius: float = math.inf,
) -> Problem:
    """SVM with the huberised hinge (chen2019 §5.1): R = X, β = X²/(2h) + l2, X = feature_norm.

    Arguments as in `logistic_regression`; width: h > 0, the half-width of the quadratic piece.

    Example:
        >>> huber_svm([[1.0]], [1], l2=0.5, width=0.5).smoothness
        1.5
    """
    _check_positive("width", width)
    return _build(
        features, as_signs(labels), HuberHinge(float(width)), l2, feature_norm, intercept, radius
    )


@suggests_argument_names
def linear_regression(
    features: Features | ArrayLike,
    labels: ArrayLike,
    *,
    l2: float,
    label_bound: float = 1.0,
    feature_norm: float = 1.0,
    intercept: float = 1.0,
    radius: float = math.inf,
) -> Problem:
    """Least squares: β = feature_norm² + l2, R = feature_norm·(feature_norm·radius + label_bound).

    The gradient is bounded only on a ball, so R is infinite without a `radius`; clip instead, or
    give one. Labels beyond ±label_bound are clipped to it.

    Example:
        >>> linear_regression([[1.0]], [0.5], l2=0.0, radius=2.0).gradient_bound
        3.0
    """
    _check_positive("label_bound", label_bound)
    targets = jnp.asarray(labels)
    if not jnp.issubdtype(targets.dtype, jnp.floating):
        targets = targets.astype(float)
    targets = jnp.clip(jnp.where(jnp.isfinite(targets), targets, 0.0), -label_bound, label_bound)
    # |⟨x, w⟩| ≤ ‖x‖·‖w‖ (Cauchy–Schwarz).
    loss = Squared(float(feature_norm) * float(radius), float(label_bound))
    return _build(features, targets, loss, l2, feature_norm, intercept, radius)


@suggests_argument_names
def softmax_regression(
    features: Features | ArrayLike,
    labels: ArrayLike,
    *,
    classes: int,
    l2: float,
    feature_norm: float = 1.0,
    intercept: float = 1.0,
    radius: float = math.inf,
) -> Problem:
    """Multinomial logistic regression: R = √2·feature_norm, β = feature_norm²/2 + l2.

    Args:
        labels: class numbers 0 … classes − 1.
        classes: how many there are; declared, because a count taken from the data is not public.

    Example:
        >>> softmax_regression([[1.0]], [2], classes=3, l2=0.0).shape
        (2, 3)
    """
    check.count("classes", classes, low=2)
    given = jnp.asarray(labels)
    numbers = given.astype(int)
    if not is_traced(numbers) and np.any(np.asarray(numbers) != np.asarray(given)):
        raise ValueError(f"labels must be whole numbers, got {given.dtype} between them")
    check.class_numbers("labels", numbers, classes)
    return _build(features, numbers, Softmax(int(classes)), l2, feature_norm, intercept, radius)


def _build(
    features: Features | ArrayLike,
    labels: Array,
    loss: Logistic | HuberHinge | Squared | Softmax,
    l2: float,
    feature_norm: float,
    intercept: float,
    radius: float,
) -> Problem:
    """The problem on prepared rows, with its constants checked."""
    _check_positive("feature_norm", feature_norm)
    _check_positive("radius", radius)
    if not l2 >= 0 or math.isinf(l2):
        raise ValueError(f"l2 must be at least 0 and finite, got {l2}")
    if not math.isfinite(intercept):
        raise ValueError(f"intercept must be finite, got {intercept}")
    rows = prepare_rows(features, intercept, feature_norm)
    if labels.shape != (rows.shape[0],):
        raise ValueError(
            f"labels must have shape ({rows.shape[0]},), one a row of features, got {labels.shape}"
        )
    norms = _features.row_norms(rows)
    if jnp.issubdtype(labels.dtype, jnp.floating):
        labels = labels.astype(norms.dtype)
    return Problem(
        rows, labels, norms, loss, float(l2), float(feature_norm), float(intercept), float(radius)
    )


def prepare_rows(features: Features | ArrayLike, intercept: float, feature_norm: float) -> Features:
    """The rows with the intercept appended, scaled down to norm `feature_norm` at most."""
    # The constant is part of the row that is clipped, so that ‖x‖ ≤ feature_norm with it.
    rows = _features.as_features(features)
    if intercept != 0:
        rows = _features.append_constant(rows, float(intercept))
    return _features.clip_rows(rows, float(feature_norm))


def as_signs(labels: ArrayLike) -> Array:
    """Labels of two classes as −1 and +1."""
    values = jnp.asarray(labels)
    if values.dtype == bool:
        values = values.astype(int)
    if not is_traced(values):
        found = set(np.unique(np.asarray(values)).tolist())
        if not (found <= {0, 1} or found <= {-1, 1}):
            raise ValueError(
                f"labels must be {{0, 1}} or {{-1, +1}} of two classes, got {sorted(found)[:5]}"
            )
    return jnp.where(values > 0, 1.0, -1.0)  # {0, 1} and {−1, +1} alike


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
