"""Single releases: Gaussian, uniform in a ball, and those of which only the guarantee is known."""

from __future__ import annotations

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms.base import (
    FRESH_NOISE,
    Mechanism,
    Real,
    choice,
    number,
    register_mechanism,
)

_RELATIONS = tuple(a.value for a in Adjacency)


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

    noise_multiplier: Real = number()

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

    displacement: Real = number()
    dimension: Real = number(1.0, whole=True)

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


class _Stated(Mechanism):
    """A release of which only the guarantee is known: it is taken on trust."""

    tier = "conditional"

    def assumptions(self, adjacency: Adjacency) -> tuple[str, ...]:
        return (f"what is released keeps the guarantee stated for it: {self.describe()}",)


@register_mechanism
class PureDP(_Stated):
    """Any (ε, 0)-differentially private release, for the stated adjacency alone.

    Dominated by randomised response: `δ(ε') = (e^ε − e^ε')₊/(1 + e^ε)` (Kairouz, Oh and Viswanath
    2017).

    Fields:
        epsilon: ε >= 0.
        adjacency: the relation it holds for, "replace-one" or "add-remove".

    Example:
        >>> from dpjax import accounting as acc
        >>> round(acc.epsilon(acc.PureDP(1.0), delta=1e-9, adjacency="replace-one"), 6)
        1.0
    """

    epsilon: Real = number()
    adjacency: str = choice(*_RELATIONS, default="replace-one")

    released = "a release that is {epsilon}-differentially private ({adjacency})"


@register_mechanism
class ApproximateDP(_Stated):
    """Any (ε, δ)-differentially private release, for the stated adjacency alone.

    Dominated by a pair that reveals everything with probability δ and is randomised response
    otherwise (Kairouz, Oh and Viswanath 2017).

    Fields:
        epsilon: ε >= 0.
        delta: δ in [0, 1].
        adjacency: the relation it holds for, "replace-one" or "add-remove".

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.ApproximateDP(1.0, 1e-6, "add-remove").delta
        1e-06
    """

    epsilon: Real = number()
    delta: Real = number(0.0, 1.0)
    adjacency: str = choice(*_RELATIONS, default="replace-one")

    released = "a release that is ({epsilon}, {delta})-differentially private ({adjacency})"


@register_mechanism
class ZeroConcentrated(_Stated):
    """Any ρ-zCDP release, for the stated adjacency alone: RDP(α) = ρα (Bun and Steinke 2016).

    An adaptive run kept below ρ by a filter is one such release (Feldman and Zrnic 2021).

    Fields:
        rho: ρ >= 0.
        adjacency: the relation it holds for, "add-remove" or "replace-one".

    Example:
        >>> from dpjax import accounting as acc
        >>> round(acc.epsilon(acc.ZeroConcentrated(0.1), delta=1e-5), 4) <= 2.1
        True
    """

    rho: Real = number()
    adjacency: str = choice(*_RELATIONS, default="add-remove")

    released = "a release that is {rho}-zCDP ({adjacency})"
