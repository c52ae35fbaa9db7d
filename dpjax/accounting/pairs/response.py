"""Randomised response: the loss is ±ε, or 0 where a third category is released."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics.arrays import Numbers, namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.pairs.finite import NOTHING, Finite, make_two_sided
from dpjax.accounting.pairs.protocol import ClosedFormRelease, CurveRelease


class ResponseNumbers(NamedTuple):
    """The largest loss, and how many categories there are."""

    epsilon: Numbers
    categories: Numbers


class ResponseRelease(ClosedFormRelease[ResponseNumbers], CurveRelease[ResponseNumbers]):
    """k-ary randomised response: losses ±ε, and 0 for the k − 2 other categories."""

    tight = True

    def numbers(self, step: Any, adjacency: Adjacency) -> ResponseNumbers:
        return ResponseNumbers(step.epsilon, step.categories)

    def largest(self, numbers: ResponseNumbers) -> Numbers:
        return numbers.epsilon

    def pair(self, numbers: ResponseNumbers, *, upper: bool) -> Finite:
        epsilon, categories = map(float, numbers)
        if epsilon == 0:
            return NOTHING
        likely = 1 / (1 + (categories - 1) * np.exp(-epsilon))  # P of the true category
        rare = 1 / (np.exp(epsilon) + categories - 1)
        return make_two_sided([-epsilon, 0.0, epsilon], [rare, (categories - 2) * rare, likely])

    def epsilon(self, numbers: ResponseNumbers, delta: Numbers) -> Numbers:
        epsilon, categories = numbers
        xp = namespace(epsilon, categories, delta)
        # δ over P(true category) = 1 − e^{ε'−ε}
        lost = delta * (1 + (categories - 1) * xp.exp(-epsilon))
        return epsilon + xp.log1p(-xp.minimum(lost, 1.0))

    def delta(self, numbers: ResponseNumbers, epsilon: Numbers) -> Numbers:
        own, categories = numbers
        xp = namespace(own, categories, epsilon)
        likely = 1 / (1 + (categories - 1) * xp.exp(-own))
        return (0.0 - xp.expm1(xp.minimum(epsilon - own, 0.0))) * likely

    def divergence(self, numbers: ResponseNumbers, orders: Numbers) -> Numbers:
        epsilon, categories = numbers
        xp = namespace(epsilon, categories, orders)
        k = orders - 1
        near = k * epsilon < 300
        small = xp.where(near & (epsilon < 300), epsilon, 0.0)
        excess = xp.expm1(small) * xp.expm1(k * small) + 4 * xp.sinh(k * small / 2) ** 2
        low = xp.log1p(excess / (xp.expm1(small) + categories)) / k
        other = xp.exp(-(2 * orders - 1) * epsilon) + (categories - 2) * xp.exp(-orders * epsilon)
        high = xp.log1p(other) - xp.log1p((categories - 1) * xp.exp(-epsilon))
        high = epsilon + high / k
        return xp.minimum(xp.where(near & (epsilon < 300), low, high), epsilon)


RESPONSE = ResponseRelease()
