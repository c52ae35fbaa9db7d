"""Losses ℓ(s, y) of a score s = ⟨x, w⟩ (or k scores), with constants that bound ℓ' and ℓ'' in s."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Vector = Float[Array, " n"]
Matrix = Float[Array, "n k"]


@dataclasses.dataclass(frozen=True)
class Logistic:
    """ℓ(s, y) = ln(1 + e^{−ys}), y in {−1, +1}: |ℓ'| ≤ 1 and 0 ≤ ℓ'' ≤ 1/4.

    Example:
        >>> Logistic().slope_bound, Logistic().smoothness
        (1.0, 0.25)
    """

    slope_bound = 1.0  # a sigmoid
    smoothness = 0.25  # p(1 − p) ≤ 1/4
    outputs = 1

    def value(self, scores: Vector, labels: Vector) -> Vector:
        return jax.nn.softplus(-labels * scores)

    def slope(self, scores: Vector, labels: Vector) -> Vector:
        return -labels * jax.nn.sigmoid(-labels * scores)

    def curvature(self, scores: Vector, labels: Vector) -> Vector:
        # The product of the two tails keeps its relative precision where 1 - p would lose it.
        return jax.nn.sigmoid(scores) * jax.nn.sigmoid(-scores)


@dataclasses.dataclass(frozen=True)
class HuberHinge:
    """The huberised hinge of z = ys (chen2019 §5.1): |ℓ'| ≤ 1 and 0 ≤ ℓ'' ≤ 1/(2h).

    0 for z > 1 + h, (1 + h − z)²/(4h) for |1 − z| ≤ h, 1 − z for z < 1 − h.

    Example:
        >>> HuberHinge(0.5).smoothness
        1.0
    """

    width: float = 0.5
    slope_bound = 1.0
    outputs = 1

    @property
    def smoothness(self) -> float:
        return 1.0 / (2.0 * self.width)  # of the quadratic piece; the others are straight

    def value(self, scores: Vector, labels: Vector) -> Vector:
        z, h = labels * scores, self.width
        # It meets both straight pieces with their slope, at 1 ± h.
        quadratic = jnp.square(1.0 + h - z) / (4.0 * h)
        return jnp.where(z > 1.0 + h, 0.0, jnp.where(z < 1.0 - h, 1.0 - z, quadratic))

    def slope(self, scores: Vector, labels: Vector) -> Vector:
        steepness = (1.0 + self.width - labels * scores) / (2.0 * self.width)
        return -labels * jnp.clip(steepness, 0.0, 1.0)  # the ends hold |ℓ'| ≤ 1 exactly

    def curvature(self, scores: Vector, labels: Vector) -> Vector:
        inside = jnp.abs(1.0 - labels * scores) <= self.width
        return jnp.where(inside, 1.0 / (2.0 * self.width), 0.0)


@dataclasses.dataclass(frozen=True)
class Squared:
    """ℓ(s, y) = (s − y)²/2: ℓ'' = 1, and |ℓ'| ≤ score_bound + label_bound on the bounded domain.

    Example:
        >>> Squared(score_bound=2.0, label_bound=1.0).slope_bound
        3.0
    """

    score_bound: float = math.inf
    label_bound: float = math.inf
    smoothness = 1.0
    outputs = 1

    @property
    def slope_bound(self) -> float:
        return self.score_bound + self.label_bound  # |s − y| ≤ |s| + |y|

    def value(self, scores: Vector, labels: Vector) -> Vector:
        return 0.5 * jnp.square(scores - labels)

    def slope(self, scores: Vector, labels: Vector) -> Vector:
        return scores - labels

    def curvature(self, scores: Vector, labels: Vector) -> Vector:
        return jnp.ones_like(scores)


@dataclasses.dataclass(frozen=True)
class Softmax:
    """Cross-entropy of k classes: ‖∇ₛℓ‖ = ‖p − e_y‖ ≤ √2, and the Hessian diag(p) − ppᵀ ≤ 1/2.

    Example:
        >>> Softmax(10).outputs, Softmax(10).smoothness
        (10, 0.5)
    """

    classes: int
    slope_bound = math.sqrt(2.0)  # the diameter of the simplex
    smoothness = 0.5  # vᵀ(diag(p) − ppᵀ)v is a variance, at most (√2‖v‖)²/4

    @property
    def outputs(self) -> int:
        return self.classes

    def value(self, scores: Matrix, labels: Int[Array, " n"]) -> Vector:
        # −log p of the label: log Σ e^s less its own score.
        picked = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
        return jax.nn.logsumexp(scores, axis=1) - picked

    def slope(self, scores: Matrix, labels: Int[Array, " n"]) -> Matrix:
        truth = jax.nn.one_hot(labels, self.classes, dtype=scores.dtype)
        return jax.nn.softmax(scores, axis=1) - truth
