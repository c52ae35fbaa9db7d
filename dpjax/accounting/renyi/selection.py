"""The Rényi curve of the best of a random number of runs (Papernot and Steinke 2022).

RDP of the run at orders λ and any λ̂ > 1 gives, for K truncated negative binomial of shape η (1
geometric, 0 logarithmic) and parameter γ, ε'(λ) = ε(λ) + (1+η)(1−1/λ̂)ε(λ̂) + (1+η)log(1/γ)/λ̂
+ log(E K)/(λ−1); the best λ̂ is found (Theorem 2).

For K Poisson of mean m, two bounds hold at once. If the run is (ε̂, δ̂)-private with
e^ε̂ ≤ 1 + 1/(λ−1), the outcomes of at least one run add up to at most m·e^{(λ−1)(ε(λ) + m δ̂)} in
E[(A/A')^{λ−1}] (Lemma 7 with f'(x)^λ f'(x')^{1−λ} = m·e^{m((λ−1)(1−x') − λ(1−x))} and
1 − x' ≤ e^ε̂(1 − x) + δ̂), and the outcome of no run, which has probability e^{−m} in both worlds,
adds e^{−m}: Theorem 6 is for distributions without it, and may be below the truth where m < 1.
And since K does not depend on the data, the divergence is at most that of all K runs with K told:
E[e^{K(λ−1)ε(λ)}] = exp(m·(e^{(λ−1)ε(λ)} − 1)), by joint convexity; that is the less for small m.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from dpjax._numerics import float64
from dpjax._numerics.arrays import JAX, NUMPY, namespace
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import BestOf
from dpjax.accounting.mechanisms.selection import log_inverse_gamma

_SHAPES = {"geometric": 1.0, "logarithmic": 0.0}
_GRID = 1 + np.exp(np.linspace(-6.0, 12.0, 361))


def _extra_core_negative_binomial(shape: float, distribution: str) -> Any:
    def core(expected: Array, curve: Array, orders: Array) -> Array:
        xp: Any = namespace(expected, curve, orders)
        known = xp.isfinite(curve)
        logs = log_inverse_gamma(expected, distribution)
        paid = (1 - 1 / orders) * xp.where(known, curve, 0.0) + logs / orders
        paid = xp.where(known, paid, xp.inf)
        # λ̂ = 1 is a choice too, and costs log(1/γ) whatever the run.
        return (1 + shape) * xp.minimum(xp.min(paid), logs) * (1 + 1e-12)

    return core


_EXTRA = {name: _extra_core_negative_binomial(shape, name) for name, shape in _SHAPES.items()}


def curve(best: BestOf, orders: Any, inner: Callable, profile: Callable) -> Any:
    """The Rényi curve of the best of K runs, shape S + [k].

    Args:
        best: the selection.
        orders: [k].
        inner: orders -> one run's Rényi curve.
        profile: ε [k] -> δ(ε) of one run.
    """
    xp: Any = JAX if float64.is_traced(best, orders) else NUMPY
    orders = xp.asarray(orders)
    c = xp.where(orders > 1, orders - 1, 1.0)
    own = inner(orders)
    count = xp.asarray(best.expected_trials)[..., None]
    if best.distribution == "poisson":
        if any(np.ndim(leaf) != 0 for leaf in jax.tree.leaves(best.mechanism)):
            raise UnsupportedQuery(
                "BestOf with a Poisson number of trials prices one setting at a time: the run has "
                "array fields; loop over them, or use distribution='geometric'"
            )
        target = xp.log1p(1 / c) * (1 - 1e-12)  # rounded down
        some = xp.log(count) + c * (own + count * profile(target))
        told = xp.where(c * own < 700, count * xp.expm1(xp.minimum(c * own, 700.0)), xp.inf)
        value = xp.minimum(xp.logaddexp(some, -count), told) / c
        good = count > 0
    else:
        extra = float64.evaluate(
            _EXTRA[best.distribution],
            (best.expected_trials, inner(_GRID), _GRID),
            (0, 1, 1),
            rounding="up",
        )
        value = own + xp.asarray(extra)[..., None] + xp.log(count) / c
        good = count >= 1
    # What is not a number, or no admissible mean, has no bound.
    return xp.where(good & (orders > 1) & (value >= 0), value * (1 + 1e-12), xp.inf)
