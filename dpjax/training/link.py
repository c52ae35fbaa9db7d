"""The probabilities that a model means whose gradients were clipped."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class ClippedLink(NamedTuple):
    """From the scores of a linear model to probabilities, by how its gradients were clipped.

    A record's gradient is the outer product of (features, bias feature), of norm ‖x‖, and of the
    residual p − e_y, with p the softmax of the scores and e_y the vector of its class. Clipped to
    the norm C it counts s_y = min(1, r/‖p − e_y‖) times, with r = C/‖x‖. Where classes have
    probabilities π, its mean is zero, so that training rests, if

        Σ_y π_y·s_y·(p − e_y) = 0,  that is  π_k ∝ p_k·max(1, ‖p − e_k‖/r).

    Fields:
        clip_norm: C of the training.
        bias_feature: what stood beside the features for the bias.

    Guarantee:
        It depends on public numbers and the features of the row alone: post-processing.

    Example:
        >>> link = ClippedLink(clip_norm=0.5, bias_feature=0.0)
        >>> x, scores = jnp.ones(1), jnp.log(jnp.array([0.9, 0.1]))
        >>> logits = link.of_logistic(scores[1] - scores[0], x)  # a / (a + b), a = .1, b = .5
        >>> round(float(jax.nn.softmax(logits)[1]), 4)
        0.1667
    """

    clip_norm: float
    bias_feature: float

    def _bound(self, x: Float[Array, " features"]) -> Float[Array, ""]:
        """r, the norm of the residual from which on this record's gradient is clipped."""
        return self.clip_norm / jnp.sqrt(jnp.sum(x * x) + self.bias_feature**2)

    def of_logistic(
        self, score: Float[Array, ""], x: Float[Array, " features"]
    ) -> Float[Array, " two"]:
        """Logits of two classes that share one score, whose residual is |p − y|.

        Args:
            score: log-odds of the second class before the link.
            x: the features of the record.
        """
        # σ(−z) is the residual of a record of the second class, σ(z) of one of the first.
        sides = jnp.stack([jax.nn.sigmoid(score), jax.nn.sigmoid(-score)])
        weights = jnp.log(jnp.maximum(sides / self._bound(x), 1.0))
        return jnp.stack([weights[0] - weights[1], score])

    def of_softmax(
        self, scores: Float[Array, " classes"], x: Float[Array, " features"]
    ) -> Float[Array, " classes"]:
        """Logits of several classes with a score each, whose residual is ‖p − e_y‖.

        Args:
            scores: of the classes before the link.
            x: the features of the record.
        """
        chances = jax.nn.softmax(scores)
        # ‖p − e_k‖² as a sum of squares: 1 − 2p_k + ‖p‖² would lose digits where p_k is near 1.
        others = jnp.sum(chances**2) - chances**2
        residuals = jnp.sqrt(jnp.maximum(others, 0.0) + (1 - chances) ** 2)
        return scores + jnp.log(jnp.maximum(residuals / self._bound(x), 1.0))
