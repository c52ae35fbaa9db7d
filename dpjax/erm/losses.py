"""The losses of generalised linear models, with the constants their privacy proofs need.

A loss is a function ℓ(s, y) of a score s = ⟨x, w⟩ (or k scores). Its constants bound the
derivatives in s; a problem turns them into constants in w by its bound on ‖x‖.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["HuberHinge", "Logistic", "Softmax", "Squared"]


@dataclasses.dataclass(frozen=True)
class Logistic:
    """ℓ(s, y) = ln(1 + e^{−ys}), y in {−1, +1}: |ℓ'| ≤ 1 and 0 ≤ ℓ'' ≤ 1/4.

    Example:
        >>> Logistic().slope_bound, Logistic().smoothness
        (1.0, 0.25)
    """

    slope_bound = 1.0
    smoothness = 0.25
    outputs = 1

    def value(self, scores: Float[Array, " n"], labels: Float[Array, " n"]) -> Float[Array, " n"]:
        return jax.nn.softplus(-labels * scores)

    def slope(self, scores: Float[Array, " n"], labels: Float[Array, " n"]) -> Float[Array, " n"]:
        return -labels * jax.nn.sigmoid(-labels * scores)

    def curvature(
        self, scores: Float[Array, " n"], labels: Float[Array, " n"]
    ) -> Float[Array, " n"]:
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
        return 1.0 / (2.0 * self.width)

    def value(self, scores: Float[Array, " n"], labels: Float[Array, " n"]) -> Float[Array, " n"]:
        z, h = labels * scores, self.width
        quadratic = jnp.square(1.0 + h - z) / (4.0 * h)
        return jnp.where(z > 1.0 + h, 0.0, jnp.where(z < 1.0 - h, 1.0 - z, quadratic))

    def slope(self, scores: Float[Array, " n"], labels: Float[Array, " n"]) -> Float[Array, " n"]:
        return -labels * jnp.clip(
            (1.0 + self.width - labels * scores) / (2.0 * self.width), 0.0, 1.0
        )

    def curvature(
        self, scores: Float[Array, " n"], labels: Float[Array, " n"]
    ) -> Float[Array, " n"]:
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
        return self.score_bound + self.label_bound

    def value(self, scores: Float[Array, " n"], labels: Float[Array, " n"]) -> Float[Array, " n"]:
        return 0.5 * jnp.square(scores - labels)

    def slope(self, scores: Float[Array, " n"], labels: Float[Array, " n"]) -> Float[Array, " n"]:
        return scores - labels

    def curvature(
        self, scores: Float[Array, " n"], labels: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        return jnp.ones_like(scores)


@dataclasses.dataclass(frozen=True)
class Softmax:
    """Cross-entropy of k classes: ‖∇ₛℓ‖ = ‖p − e_y‖ ≤ √2, and the Hessian diag(p) − ppᵀ ≤ 1/2.

    Example:
        >>> Softmax(10).outputs, Softmax(10).smoothness
        (10, 0.5)
    """

    classes: int
    slope_bound = math.sqrt(2.0)
    smoothness = 0.5

    @property
    def outputs(self) -> int:
        return self.classes

    def value(self, scores: Float[Array, "n k"], labels: Int[Array, " n"]) -> Float[Array, " n"]:
        picked = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
        return jax.nn.logsumexp(scores, axis=1) - picked

    def slope(self, scores: Float[Array, "n k"], labels: Int[Array, " n"]) -> Float[Array, "n k"]:
        return jax.nn.softmax(scores, axis=1) - jax.nn.one_hot(
            labels, self.classes, dtype=scores.dtype
        )
