"""Mechanisms that are whole runs, of which one vector leaves, minimisers included."""

from __future__ import annotations

import math

import numpy as np

from dpjax._numerics.arrays import namespace
from dpjax._numerics.scope import is_traced
from dpjax.accounting.mechanisms.base import (
    FieldRelation,
    Mechanism,
    Real,
    number_field,
    register_mechanism,
)
from dpjax.accounting.mechanisms.sampling import FRESH_BATCH, batch_fits


@register_mechanism
class RandomizedSensitivity(Mechanism):
    """Output perturbation whose sensitivity is drawn together with the secret batch order.

    Released once: a vector that one replaced record moves by at most `sensitivities[j]` with
    probability `weights[j]`, plus N(0, noise_std² I) (Chen, Lee and Kifer 2019, Lemma 3).

    Fields:
        sensitivities: [..., m], each >= 0, for the adjacency that is asked for.
        weights: [..., m], probabilities that sum to one.
        noise_std: [...], standard deviation of the noise per coordinate, >= 0.

    Example:
        >>> from dpjax import accounting as acc
        >>> run = acc.RandomizedSensitivity([0.1, 0.2], [0.5, 0.5], noise_std=1.0)
        >>> run.sensitivities
        array([0.1, 0.2])
    """

    sensitivities: Real = number_field(components=True)
    weights: Real = number_field(0.0, 1.0, components=True)
    noise_std: Real = number_field()

    tier = "conditional"

    def relations(self) -> tuple[FieldRelation, ...]:
        weights = self.weights
        # A sum of float32 weights is off by rounding; a larger gap is another law.
        double = np.dtype(getattr(weights, "dtype", np.float64)) == np.float64
        traced = is_traced(weights)
        # in float64 where the values are known
        total = (
            namespace(weights).sum(weights, axis=-1)
            if traced
            else np.asarray(weights, np.float64).sum(-1)
        )
        good = abs(total - 1.0) <= (1e-9 if double else 1e-5)
        return (
            FieldRelation(("weights",), good, "probabilities that sum to one along the last axis"),
        )

    released = (
        "a vector whose sensitivity is drawn with the batch order, plus Gaussian noise of standard "
        "deviation {noise_std}"
    )
    rests_on = (
        "the batch order is a uniform permutation drawn once and kept secret",
        "the sensitivities and their weights hold for the loss and for the {relation} relation",
        "the noise is Gaussian and drawn independently of the data",
    )


class _Descent(Mechanism):
    """What every run has in common that releases its last iterate alone."""

    tier = "conditional"

    released = (
        "the last iterate of {steps} noisy gradient steps of size {step_size}, noise {noise_std}"
    )
    rests_on = (
        "every record's loss is convex and the average loss strongly convex and smooth with "
        "the stated constants, for both neighbours",
        "no clipping, except of generalised linear models with the regulariser outside the clip",
        "plain gradient steps with step size below 2/smoothness: no momentum, no preconditioning",
        "the start does not depend on the data",
        "only the last iterate is released: no other iterate, checkpoint, loss or early stopping",
        "the projection, if a diameter is stated, is onto a convex set of that diameter at "
        "every step",
        "one record moves the gradient by at most the stated sensitivity, for the "
        "{relation} relation",
    )


@register_mechanism
class NoisyGradientDescent(_Descent):
    """Full-batch noisy gradient descent of which only the last iterate is released.

    `θ ← Π(θ − η ∇F(θ) + √(2η)·noise_std · Z)`, `steps` times. F is the *average* loss, m-strongly
    convex and M-smooth for both neighbours, η < 2/M; what else it rests on is in `rests_on`.

    Fields:
        steps: iterations, a whole number >= 0.
        step_size: η > 0.
        noise_std: Langevin noise scale; the noise of a step has standard deviation √(2η)·noise_std.
        gradient_sensitivity: how far one record moves the average gradient, for the adjacency asked
            for.
        strong_convexity: m >= 0, a certified constant, not an estimate.
        smoothness: M > 0, likewise.
        diameter: of the convex set Π projects on; +inf without projection.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.NoisyGradientDescent(100, 0.1, 0.02, 4 / 5000, 1.0, 2.0).steps
        100
    """

    steps: Real = number_field(whole=True)
    step_size: Real = number_field(open_low=True)
    noise_std: Real = number_field()
    gradient_sensitivity: Real = number_field()
    strong_convexity: Real = number_field()
    smoothness: Real = number_field(open_low=True)
    diameter: Real = number_field(infinite=True, default=math.inf)

    rests_on = (
        *_Descent.rests_on,
        "if priced by the tracing diffusion: step size below 1/smoothness and start variance "
        "<= 2σ²/λ",
    )


@register_mechanism
class NoisyCyclicDescent(_Descent):
    """Noisy gradient descent over disjoint batches in cyclic order; only the last iterate released.

    As `NoisyGradientDescent` with F the average loss of the step's batch. `steps` counts updates,
    not passes; the record's batch position is uniform and secret because the data are shuffled
    once.

    Fields:
        steps, step_size, noise_std: as `NoisyGradientDescent`.
        gradient_sensitivity: how far one record moves the *batch-average* gradient.
        strong_convexity, smoothness: certified constants of every batch's average loss.
        batches: batches in a pass, a whole number >= 1.
        diameter: of the convex set every step projects on; +inf without projection.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.NoisyCyclicDescent(400, 0.1, 0.02, 4 / 100, 1.0, 2.0, batches=40).batches
        40
    """

    steps: Real = number_field(whole=True)
    step_size: Real = number_field(open_low=True)
    noise_std: Real = number_field()
    gradient_sensitivity: Real = number_field()
    strong_convexity: Real = number_field()
    smoothness: Real = number_field(open_low=True)
    batches: Real = number_field(1.0, whole=True)
    diameter: Real = number_field(infinite=True, default=math.inf)

    released = f"{_Descent.released}, over {{batches}} disjoint batches in cyclic order"

    rests_on = (
        *_Descent.rests_on,
        "the batches come from one secret uniform permutation, drawn once",
    )


@register_mechanism
class NoisySampledDescent(_Descent):
    """Noisy SGD with fixed-size batches drawn afresh; only the last iterate is released.

    As `NoisyGradientDescent`, with F the average loss of a fresh uniform batch at every step; the
    noise of a step has standard deviation √(2η)·noise_std. REPLACE_ONE only.

    Fields:
        steps, step_size, noise_std: as `NoisyGradientDescent`; noise_std > 0.
        gradient_sensitivity: how far replacing one record moves the *batch-average* gradient.
        strong_convexity, smoothness: certified constants of every batch's average loss.
        batch_size, population: records in a batch and in the data set (public).
        diameter: of the convex set every step projects on; +inf without projection.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.NoisySampledDescent(500, 0.01, 1.0, 0.2, 1.0, 1.0, 20, 1000).population
        1000
    """

    steps: Real = number_field(whole=True)
    step_size: Real = number_field(open_low=True)
    noise_std: Real = number_field(open_low=True)
    gradient_sensitivity: Real = number_field()
    strong_convexity: Real = number_field()
    smoothness: Real = number_field(open_low=True)
    batch_size: Real = number_field(whole=True)
    population: Real = number_field(1.0, whole=True)
    diameter: Real = number_field(infinite=True, default=math.inf)

    def relations(self) -> tuple[FieldRelation, ...]:
        # a batch without repetition holds no more records than there are
        return (batch_fits(self.batch_size, self.population),)

    released = (
        f"{_Descent.released}, each over {{batch_size}} of {{population}} records without "
        "replacement"
    )

    rests_on = (*_Descent.rests_on, FRESH_BATCH)


@register_mechanism
class ObjectivePerturbation(Mechanism):
    """The minimiser of `Σᵢ ℓᵢ(w) + (λ/2)‖w‖² + ⟨b, w⟩`, b ~ N(0, σ²I), ℓᵢ generalised linear.

    With J = ln(1 + c/λ), from the determinant of the Jacobian of w ↦ b, and R the gradient bound,
    add/remove: `δ(ε) ≤ 2δ_G(√((R/σ)² + ρ²), ε − J)`. The form is Redberg, Koskela and Wang's
    (2023); their J = −ln(1 − c/λ) is replaced by the exact ratio 1 + c·xᵀA⁻¹x ≤ 1 + c/λ, and the
    residual ρ is new (derived for dpjax). Proof: given x, the density ratio is convex in the shift
    ℓ'(s)x, so that its extremes are the two ends ±Rx of a segment, each a Gaussian pair; the
    maximum of two is at most their sum. Under replace-one the shifts ax − a'x' fill a parallelogram
    with four corners, whose half-diagonals satisfy s² + t² ≤ (2R)²: `δ(ε) ≤ max 2[δ_G(s/σ, ε − J) +
    δ_G(t/σ, ε − J)]`.

    Fields:
        gradient_bound: R = sup |ℓ'|·‖x‖.
        noise_std: σ of the tilt b, on the sum objective; 0 is no privacy.
        smoothness: c = sup ℓ''·‖x‖², one record's, without the regulariser.
        regularization: λ > 0, of the sum objective: n times that of the average.
        residual: ρ >= 0, GDP parameter of Gaussian noise added to an approximate minimiser; 0 if
            the minimiser is exact.

    Example:
        >>> from dpjax import accounting as acc
        >>> run = acc.ObjectivePerturbation(1.0, 50.0, 0.25, 100.0)
        >>> f"{acc.delta(run, epsilon=0.1):.6e}"
        '4.352999e-09'
    """

    gradient_bound: Real = number_field()
    noise_std: Real = number_field()
    smoothness: Real = number_field()
    regularization: Real = number_field(open_low=True)
    residual: Real = number_field(default=0.0)

    tier = "conditional"

    released = (
        "the minimiser of a convex objective tilted by Gaussian noise of standard deviation "
        "{noise_std}, gradients bounded by {gradient_bound}, regularised by {regularization}"
    )
    rests_on = (
        "an objective perturbation minimises a convex, twice differentiable generalised linear "
        "loss with |ℓ'|‖x‖ <= gradient_bound and ℓ''‖x‖² <= smoothness, over all of space",
        "its minimiser is exact, or hidden by the residual noise stated",
        "the tilt is Gaussian and drawn independently of the data",
    )
