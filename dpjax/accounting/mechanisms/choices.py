"""Releases of one of finitely many answers: randomised response, and selection by a score."""

from __future__ import annotations

from dpjax.accounting.mechanisms.base import Mechanism, Real, number, register_mechanism


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

    epsilon: Real = number()
    categories: Real = number(2.0, whole=True, default=2.0)

    released = "one of {categories} categories by randomised response with ε = {epsilon}"
    rests_on = (
        "every record makes one report, with fresh randomness, and an absent one is answered for",
    )


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

    epsilon: Real = number()
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
