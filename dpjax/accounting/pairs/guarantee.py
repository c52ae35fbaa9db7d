"""Releases of which only an (ε, δ) guarantee is known: four outcomes.

Every (ε, δ)-private release is a randomised function of one with four outcomes (Kairouz, Oh and
Viswanath 2017, Theorem 3.1 with its section 5), so that this pair, which is itself (ε, δ)-private,
dominates all of them, alone and composed:

| outcome | with the record, M₁ | without it, M₀ | log M₁/M₀ |
|---|---|---|---|
| a | δ | 0 | +∞ |
| b | (1−δ)e^ε/(1+e^ε) | (1−δ)/(1+e^ε) | ε |
| c | (1−δ)/(1+e^ε) | (1−δ)e^ε/(1+e^ε) | −ε |
| d | 0 | δ | −∞ |

References:
  Kairouz, Oh, Viswanath 2017.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics.namespace import Numbers
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.pairs.finite import Finite, make_two_sided
from dpjax.accounting.pairs.protocol import Release


class GuaranteeNumbers(NamedTuple):
    """What is promised."""

    epsilon: Numbers
    delta: Numbers | float


class Guarantee(Release[GuaranteeNumbers]):
    """The four outcomes; of δ = 0 the two of randomised response."""

    tight = sampled = True

    def numbers(self, step: Any, adjacency: Adjacency) -> GuaranteeNumbers | None:
        """What is promised under this adjacency, if anything."""
        step = step.stated_for(adjacency)
        return None if step is None else GuaranteeNumbers(step.epsilon, getattr(step, "delta", 0.0))

    def largest(self, numbers: GuaranteeNumbers) -> Numbers:
        return numbers.epsilon

    def pair(self, numbers: GuaranteeNumbers, *, upper: bool) -> Finite:
        epsilon, delta = map(float, numbers)
        likely, rare = 1 / (1 + np.exp(-epsilon)), np.exp(-epsilon) / (1 + np.exp(-epsilon))
        p = [0.0, (1 - delta) * rare, (1 - delta) * likely, delta]
        return make_two_sided([-np.inf, -epsilon, epsilon, np.inf], p)


GUARANTEE = Guarantee()
