"""Mechanisms that are whole runs, of which one vector leaves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float

from dpjax.accounting.mechanisms import Mechanism, check_number, register_mechanism


@register_mechanism
class RandomizedSensitivity(Mechanism):
    """Output perturbation whose sensitivity is drawn together with the secret batch order.

    Released once: a vector that one replaced record moves by at most `sensitivities[j]` with
    probability `weights[j]`, plus N(0, noise_std² I) (Chen, Lee and Kifer 2019, Lemma 3).

    Fields:
        sensitivities: [..., m], each >= 0, for the adjacency that is asked for.
        weights: [..., m], probabilities that sum to one.
        noise_std: [...], standard deviation of the noise per coordinate, >= 0.

    >>> from dpjax import accounting as acc
    >>> run = acc.RandomizedSensitivity([0.1, 0.2], [0.5, 0.5], noise_std=1.0)
    >>> run.sensitivities
    array([0.1, 0.2])
    """

    sensitivities: Float[ArrayLike, "... m"]
    weights: Float[ArrayLike, "... m"]
    noise_std: Float[ArrayLike, "..."]

    def __post_init__(self) -> None:
        check_number(self, "sensitivities", 0.0)
        check_number(self, "weights", 0.0, 1.0)
        check_number(self, "noise_std", 0.0)
        if isinstance(self.weights, np.ndarray) and np.any(
            np.abs(self.weights.sum(-1) - 1.0) > 1e-9
        ):
            raise ValueError(
                "RandomizedSensitivity.weights must sum to one along the last axis, "
                f"got a sum of {self.weights.sum(-1).ravel()[0]}"
            )


def _check_descent(owner: Any) -> None:
    check_number(owner, "steps", 0.0, whole=True)
    check_number(owner, "step_size", 0.0, open_low=True)
    check_number(owner, "noise_std", 0.0)
    check_number(owner, "gradient_sensitivity", 0.0)
    check_number(owner, "strong_convexity", 0.0)
    check_number(owner, "smoothness", 0.0, open_low=True)
    check_number(owner, "diameter", 0.0, finite=False)


@register_mechanism
class NoisyGradientDescent(Mechanism):
    """Full-batch noisy gradient descent of which only the last iterate is released.

    `θ ← Π(θ − η ∇F(θ) + √(2η)·noise_std · Z)`, `steps` times, from a start that does not depend on
    the data. F is the *average* loss, m-strongly convex and M-smooth for both neighbours, η < 2/M.
    The guarantee is conditional: no clipping (except generalised linear models with the regulariser
    outside the clip), no momentum, no other iterate, loss or checkpoint released.

    Fields:
        steps: iterations, a whole number >= 0.
        step_size: η > 0.
        noise_std: Langevin noise scale; the noise of a step has standard deviation √(2η)·noise_std.
        gradient_sensitivity: how far one record moves the average gradient, for the adjacency asked
            for.
        strong_convexity: m >= 0. smoothness: M > 0, both certified constants, not estimates.
        diameter: of the convex set Π projects on; +inf without projection.

    >>> from dpjax import accounting as acc
    >>> acc.NoisyGradientDescent(100, 0.1, 0.02, 4 / 5000, 1.0, 2.0).steps
    100
    """

    steps: Float[ArrayLike, "..."]
    step_size: Float[ArrayLike, "..."]
    noise_std: Float[ArrayLike, "..."]
    gradient_sensitivity: Float[ArrayLike, "..."]
    strong_convexity: Float[ArrayLike, "..."]
    smoothness: Float[ArrayLike, "..."]
    diameter: Float[ArrayLike, "..."] = math.inf

    def __post_init__(self) -> None:
        _check_descent(self)


@register_mechanism
class NoisyCyclicDescent(Mechanism):
    """Noisy gradient descent over disjoint batches in cyclic order; only the last iterate released.

    As `NoisyGradientDescent` with F the average loss of the step's batch. `steps` counts updates,
    not passes; the record's batch position is uniform and secret because the data are shuffled
    once.

    Fields:
        as `NoisyGradientDescent` (gradient_sensitivity is of the *batch-average* gradient), and
        batches: batches in a pass, a whole number >= 1; before `diameter`.

    >>> from dpjax import accounting as acc
    >>> acc.NoisyCyclicDescent(400, 0.1, 0.02, 4 / 100, 1.0, 2.0, batches=40).batches
    40
    """

    steps: Float[ArrayLike, "..."]
    step_size: Float[ArrayLike, "..."]
    noise_std: Float[ArrayLike, "..."]
    gradient_sensitivity: Float[ArrayLike, "..."]
    strong_convexity: Float[ArrayLike, "..."]
    smoothness: Float[ArrayLike, "..."]
    batches: Float[ArrayLike, "..."]
    diameter: Float[ArrayLike, "..."] = math.inf

    def __post_init__(self) -> None:
        _check_descent(self)
        check_number(self, "batches", 1.0, whole=True)
