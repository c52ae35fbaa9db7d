"""The minimiser of a perturbed objective."""

from __future__ import annotations

from dpjax.accounting.mechanisms.base import Mechanism, Real, number, register_mechanism


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

    gradient_bound: Real = number()
    noise_std: Real = number()
    smoothness: Real = number()
    regularization: Real = number(open_low=True)
    residual: Real = number(default=0.0)

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
