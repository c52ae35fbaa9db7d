"""Single releases: Gaussian, uniform in a ball, numbers with other noise, and choices.

Of the numbers with Laplace's noise and with laws on whole numbers `noise_multiplier` is the noise's
scale over the sensitivity, which is how far adding or removing one record moves what is released;
as for `Gaussian`, replacing one moves it by twice as much. Releases of one of finitely many answers
are randomised response and selection by a score.
"""

from __future__ import annotations

from typing import TypeVar

from dpjax.accounting.mechanisms.base import (
    FRESH_NOISE,
    Mechanism,
    Real,
    number_field,
    register_mechanism,
)
from dpjax.accounting.mechanisms.composition import Repeated
from dpjax.accounting.mechanisms.rounded import over_down, times_up, with_fields
from dpjax.accounting.pairs import bounded_range, discrete_gaussian, laplace, response


@register_mechanism
class Gaussian(Mechanism):
    """A sum of contributions clipped to norm C, plus N(0, (noise_multiplier·C)² I).

    Released: `Σ_i clip_C(x_i) + noise_multiplier · C · Z`. One record moves the sum by at most C
    under ADD_REMOVE and by at most 2C under REPLACE_ONE, so it is (1/noise_multiplier)-GDP and
    (2/noise_multiplier)-GDP (Dong, Roth and Su 2022, Theorem 2.7). Dividing the sum by a *public*
    constant (the expected batch size) changes nothing; dividing by the realised batch size is not
    covered.

    Fields:
        noise_multiplier: noise standard deviation over clip norm, >= 0 (0 is no privacy: ε = +inf).

    Example:
        >>> from dpjax import accounting as acc
        >>> round(acc.epsilon(acc.Gaussian(10.0), delta=1e-5, method="rdp"), 3)
        0.375
    """

    noise_multiplier: Real = number_field()

    released = "a sum of clipped contributions plus Gaussian noise of {noise_multiplier} clip norms"

    rests_on = (
        "every record's contribution is clipped to the clip norm before it is summed",
        FRESH_NOISE,
    )


@register_mechanism
class UniformBall(Mechanism):
    """A vector plus noise uniform in a ball (Tholeti and Kalyani 2021).

    Densities of neighbours overlap or not, nothing in between: ε > 0 buys nothing, and δ is the
    total variation distance `I_{Δ²/4}(1/2, (d+1)/2)` at every ε, Δ the displacement.

    Fields:
        displacement: sensitivity over the ball's radius, >= 0. Sensitivity is that of the adjacency
            asked for (2C for replacing a record of a clipped sum, C for adding one): the caller's
            duty, since the mechanism does not know a clip norm.
        dimension: of the released vector, a whole number >= 1.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.UniformBall(displacement=0.01, dimension=10).dimension
        10
    """

    displacement: Real = number_field()
    dimension: Real = number_field(1.0, whole=True)

    released = (
        "a vector of {dimension} numbers plus noise uniform in a ball, the sensitivity "
        "{displacement} of its radius"
    )
    rests_on = (
        "one record moves the vector by at most the displacement times the ball's radius, for "
        "the {relation} relation",
        "the noise is uniform in the ball, fresh at every step, and drawn independently of the "
        "data",
    )

    def for_group(self, records: Real) -> Mechanism:
        return with_fields(self, displacement=times_up(self.displacement, records))


_MOVES = "adding or removing one record moves {what} by at most the sensitivity"
_FRESH = "the noise is {law}, fresh at every step, and drawn independently of the data"
_WHOLE = "what is released without noise is a whole number, and so is the sensitivity"


Whole = TypeVar("Whole", "DiscreteLaplace", "DiscreteGaussian")


def _more_apart(step: Whole, records: Real) -> Whole:
    """Noise on whole numbers that the group moves so many times as far."""
    noise = over_down(step.noise_multiplier, records)
    return with_fields(step, noise_multiplier=noise, sensitivity=step.sensitivity * records)


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

    noise_multiplier: Real = number_field()

    released = "numbers plus Laplace noise of scale {noise_multiplier} sensitivities"
    rests_on = (
        _MOVES.format(what="the vector, in the L1 norm,"),
        _FRESH.format(law="Laplace's"),
        "the noise has no gaps of floating point",
    )
    release = laplace.LAPLACE

    def for_group(self, records: Real) -> Mechanism:
        return with_fields(self, noise_multiplier=over_down(self.noise_multiplier, records))


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

    noise_multiplier: Real = number_field()
    sensitivity: Real = number_field(1.0, whole=True, default=1.0)

    released = (
        "whole numbers of sensitivity {sensitivity} plus discrete Laplace noise of scale "
        "{noise_multiplier} sensitivities"
    )
    rests_on = (
        _MOVES.format(what="the vector, in the L1 norm,"),
        _FRESH.format(law="discrete Laplace"),
        _WHOLE,
    )
    release = laplace.DISCRETE_LAPLACE

    def for_group(self, records: Real) -> Mechanism:
        return _more_apart(self, records)


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

    noise_multiplier: Real = number_field()
    sensitivity: Real = number_field(1.0, whole=True, default=1.0)

    released = (
        "a whole number of sensitivity {sensitivity} plus discrete Gaussian noise of "
        "{noise_multiplier} sensitivities"
    )
    rests_on = (
        _MOVES.format(what="one coordinate, and no other,"),
        _FRESH.format(law="discrete Gaussian"),
        _WHOLE,
    )
    release = discrete_gaussian.DISCRETE_GAUSSIAN

    def for_group(self, records: Real) -> Mechanism:
        return _more_apart(self, records)


@register_mechanism
class RandomizedResponse(Mechanism):
    """One record's category, kept with probability e^ε/(e^ε + categories − 1), otherwise another.

    The other categories are equally likely. ε is that of replacing the record. Under ADD_REMOVE it
    is the same: that a record reports at all is not hidden, so that an absent one has to be
    answered for, by the report of some category chosen without the data.

    Fields:
        epsilon: ε >= 0.
        categories: how many there are, a whole number >= 2.

    Example:
        >>> from dpjax import accounting as acc
        >>> round(acc.delta(acc.RandomizedResponse(1.0, categories=10), epsilon=0.5), 6)
        0.091273

    References:
        Warner 1965; Kairouz, Oh, Viswanath 2016.
    """

    epsilon: Real = number_field()
    categories: Real = number_field(2.0, whole=True, default=2.0)

    released = "one of {categories} categories by randomised response with ε = {epsilon}"
    rests_on = (
        "every record makes one report, with fresh randomness, and an absent one is answered for",
    )
    release = response.RESPONSE

    def for_group(self, records: Real) -> Mechanism:
        """Every record makes a report of its own: as many independent ones."""
        return Repeated(self, records)


@register_mechanism
class Exponential(Mechanism):
    """One of several candidates, with probability ∝ e^{ε·score/(2Δ)}, or e^{ε·score/Δ} if monotone.

    Δ is how far adding or removing one record moves any candidate's score. The log-odds of the
    candidates then move within a range of ε (twice that under REPLACE_ONE): the release is of
    bounded range, which is stronger than ε-differential privacy, with
    `δ(ε') = (1 − e^{−(ε−ε')/2})²/(1 − e^{−ε})`. Composed, that profile is dominating whatever range
    an adversary chooses at every step, and the Rényi curve is at most αε²/8.

    Fields:
        epsilon: ε >= 0.
        monotone: whether adding a record moves all scores in the same direction (counts do).
        permute_and_flip: whether candidates are drawn by permute-and-flip at the same scale: it is
            never less accurate, and costs what Laplace noise of scale 1/ε does on a number that
            moves by 1.

    Example:
        >>> from dpjax import accounting as acc
        >>> round(acc.epsilon(acc.Exponential(1.0), delta=1e-3), 6)
        0.949073

    References:
        McSherry, Talwar 2007; Durfee, Rogers 2019 (bounded range); Dong, Durfee, Rogers 2020
        (δ(ε), Rényi curve); McKenna, Sheldon 2020 (permute-and-flip).
    """

    epsilon: Real = number_field()
    monotone: bool = False
    permute_and_flip: bool = False

    released = (
        "one of several candidates by the exponential mechanism with ε = {epsilon} "
        "(monotone scores: {monotone}; permute-and-flip: {permute_and_flip})"
    )
    rests_on = (
        "adding or removing one record moves every candidate's score by at most the sensitivity "
        "that scales it, in one direction if the scores are said to be monotone",
        "the draw is fresh, and the candidates do not depend on the data",
    )
    release = bounded_range.SELECTION

    def for_group(self, records: Real) -> Mechanism:
        """The range of the log-odds of a sum of moves is at most the sum of their ranges."""
        return with_fields(self, epsilon=times_up(self.epsilon, records))
