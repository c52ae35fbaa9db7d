"""Numbers released with noise that is not Gaussian: Laplace's, and two laws on whole numbers.

`noise_multiplier` is the noise's scale over the sensitivity, which is how far adding or removing
one record moves what is released; as for `Gaussian`, replacing one moves it by twice as much.
"""

from __future__ import annotations

from dpjax.accounting.mechanisms.base import Mechanism, Real, number, register_mechanism

_MOVES = "adding or removing one record moves {what} by at most the sensitivity"
_FRESH = "the noise is {law}, fresh at every step, and drawn independently of the data"
_WHOLE = "what is released without noise is a whole number, and so is the sensitivity"


@register_mechanism
class Laplace(Mechanism):
    """A number or vector plus Laplace noise of scale noise_multiplier·sensitivity, each coordinate.

    The sensitivity is in the L1 norm. With θ = 1/noise_multiplier (twice that under REPLACE_ONE) it
    is θ-differentially private with `δ(ε) = 1 − e^{(ε−θ)/2}` for ε ≤ θ. A vector costs no more than
    a number: among displacements of one L1 norm the worst is along one coordinate (the shifts a and
    b of two coordinates have E[1 − δ_a(ε − L_b)] ≥ e^{(ε−a−b)/2}, by summing over L_b).

    Fields:
        noise_multiplier: scale of the noise over the sensitivity, >= 0 (0 is no privacy).

    Guarantee:
        Of real numbers. Laplace noise added in floating point has gaps that tell what it was added
        to (Mironov 2012): release whole numbers by `DiscreteLaplace` instead.

    Example:
        >>> from dpjax import accounting as acc
        >>> round(acc.epsilon(acc.Laplace(2.0), delta=0.1), 6)
        0.289279

    References:
        Dwork, McSherry, Nissim, Smith 2006; Balle, Barthe, Gaboardi 2018, Theorem 3 (δ(ε)).
    """

    noise_multiplier: Real = number()

    released = "numbers plus Laplace noise of scale {noise_multiplier} sensitivities"
    rests_on = (
        _MOVES.format(what="the vector, in the L1 norm,"),
        _FRESH.format(law="Laplace's"),
        "the noise has no gaps of floating point",
    )


@register_mechanism
class DiscreteLaplace(Mechanism):
    """Whole numbers plus noise on the integers with P(k) ∝ e^{−|k|/(noise_multiplier·sensitivity)}.

    The sensitivity is in the L1 norm; a vector costs no more than a number, as for `Laplace`. Of
    sensitivity 1 its pair is randomised response's.

    Fields:
        noise_multiplier: scale of the noise over the sensitivity, >= 0 (0 is no privacy).
        sensitivity: how far adding or removing one record moves the numbers, a whole number >= 1.

    Example:
        >>> from dpjax import accounting as acc
        >>> round(acc.epsilon(acc.DiscreteLaplace(2.0, sensitivity=1), delta=0.1), 6)
        0.324869

    References:
        Ghosh, Roughgarden, Sundararajan 2009.
    """

    noise_multiplier: Real = number()
    sensitivity: Real = number(1.0, whole=True, default=1.0)

    released = (
        "whole numbers of sensitivity {sensitivity} plus discrete Laplace noise of scale "
        "{noise_multiplier} sensitivities"
    )
    rests_on = (
        _MOVES.format(what="the vector, in the L1 norm,"),
        _FRESH.format(law="discrete Laplace"),
        _WHOLE,
    )


@register_mechanism
class DiscreteGaussian(Mechanism):
    """A whole number plus noise on the integers, P(k) ∝ e^{−k²/2σ²}, σ = multiplier·sensitivity.

    One number, or a vector of which a record moves one coordinate (a histogram under ADD_REMOVE).
    Of a vector with sensitivity in the L2 norm this pair is *not* the worst: what is proven there
    is `ZeroConcentrated(1/(2·noise_multiplier²))`, with twice the sensitivity under REPLACE_ONE.

    Fields:
        noise_multiplier: σ over the sensitivity, >= 0 (0 is no privacy).
        sensitivity: how far adding or removing one record moves the number, a whole number >= 1.

    Example:
        >>> from dpjax import accounting as acc
        >>> round(acc.epsilon(acc.DiscreteGaussian(1.0, sensitivity=1), delta=1e-5), 6)
        4.430238

    References:
        Canonne, Kamath, Steinke 2020.
    """

    noise_multiplier: Real = number()
    sensitivity: Real = number(1.0, whole=True, default=1.0)

    released = (
        "a whole number of sensitivity {sensitivity} plus discrete Gaussian noise of "
        "{noise_multiplier} sensitivities"
    )
    rests_on = (
        _MOVES.format(what="one coordinate, and no other,"),
        _FRESH.format(law="discrete Gaussian"),
        _WHOLE,
    )
