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

from typing import Any

import numpy as np

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import ApproximateDP, PureDP
from dpjax.accounting.pairs.finite import Finite, two_sided


class Guarantee:
    """The four outcomes; of δ = 0 the two of randomised response."""

    tight = sampled = True

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def numbers(self, step: Any, adjacency: Adjacency) -> tuple[Any, ...] | None:
        """A guarantee holds for its stated adjacency alone."""
        if step.adjacency != adjacency:
            return None
        return step.epsilon, getattr(step, "delta", 0.0)

    def pair(self, epsilon: float, delta: float, *, upper: bool) -> Finite:
        likely, rare = 1 / (1 + np.exp(-epsilon)), np.exp(-epsilon) / (1 + np.exp(-epsilon))
        p = [0.0, (1 - delta) * rare, (1 - delta) * likely, delta]
        return two_sided([-np.inf, -epsilon, epsilon, np.inf], p)


PURE, APPROXIMATE = Guarantee(PureDP), Guarantee(ApproximateDP)
