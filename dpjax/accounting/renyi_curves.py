"""Mechanisms known by their Rényi curve alone: they compose with everything by adding curves.

`register_curve` is for a mechanism that is not dominated by a (subsampled) Gaussian pair. A run
that contains one is priced by the sum of its steps' curves; whatever else it contains adds its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax._numerics import float64
from dpjax.accounting import queries
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.lowering import flatten, lowers
from dpjax.accounting.mechanisms import Composed, Mechanism, Repeated

_GRID = 1 + np.exp(np.linspace(-4.0, 12.0, 321))
_REFINED = np.linspace(-0.05, 0.05, 41)

Curve = Callable[[Any, Any, Adjacency], Any]
_CURVES: dict[type, tuple[Curve, Callable[[Any, Adjacency], bool]]] = {}


def register_curve(
    kind: type, curve: Curve, supports: Callable[[Any, Adjacency], bool] = lambda m, a: True
) -> None:
    """Say what a mechanism's Rényi curve is, so that a run containing it can be priced.

    Args:
      kind: the mechanism's class.
      curve: (mechanism, orders [k], adjacency) -> upper bound, shape S + [k].
      supports: (mechanism, adjacency) -> whether `curve` can answer, from structure alone.

    Example:
      >>> from dpjax.accounting.renyi_curves import register_curve
      >>> register_curve(type("Exotic", (), {}), lambda m, orders, adjacency: 0.0 * orders)
    """
    _CURVES[kind] = (curve, supports)


def split(run: Mechanism) -> tuple[list[tuple[Mechanism, tuple]], Composed]:
    """Steps with a curve of their own (and the factors of their multiplicity), and the rest.

    Example:
      >>> from dpjax import accounting as acc
      >>> from dpjax.accounting.renyi_curves import split
      >>> own, rest = split(acc.Composed((acc.Gaussian(2.0),)))
      >>> len(own), len(rest.mechanisms)
      (0, 1)
    """
    own, rest = [], []
    for step, factors in flatten(run):
        if type(step) in _CURVES:
            own.append((step, factors))
            continue
        counted = step
        for factor in factors:
            counted = Repeated(counted, factor)
        rest.append(counted)
    return own, Composed(tuple(rest))


def _supports(run: Mechanism, adjacency: Adjacency) -> bool:
    own, rest = split(run)
    return (
        bool(own)
        and all(_CURVES[type(step)][1](step, adjacency) for step, _ in own)
        and (not rest.mechanisms or lowers(rest, adjacency))
    )


def _count(factors: tuple) -> Any:
    total: Any = 1.0
    for factor in factors:
        total = total * (factor if float64.is_traced(factor) else np.asarray(factor, np.float64))
    return total if np.ndim(total) == 0 else total[..., None]


def _rdp(run: Mechanism, orders: Any, adjacency: Adjacency) -> Any:
    own, rest = split(run)
    total: Any = queries.rdp(rest, orders, adjacency=adjacency) if rest.mechanisms else 0.0
    for step, factors in own:
        total = total + _count(factors) * _CURVES[type(step)][0](step, orders, adjacency)
    return total


def _best(values: Any, worst: float) -> Any:
    xp = jnp if float64.is_traced(values) else np
    return xp.min(xp.where(xp.isnan(values), worst, values), axis=-1)


def _search(run: Mechanism, adjacency: Adjacency, given: Any, bound: Callable) -> Any:
    """Least bound(order, rdp, given) over the orders: any order is valid, more are tighter."""
    curve = _rdp(run, _GRID, adjacency)
    traced = float64.is_traced(curve, given)
    xp = jnp if traced else np
    given = xp.asarray(given)[..., None]
    values = bound(xp, _GRID, curve, given)
    answer = _best(values, np.inf)
    if not traced and np.size(answer) == 1 and np.any(np.isfinite(values)):
        place = int(np.argmin(np.where(np.isnan(values), np.inf, values).ravel()))
        near = 1 + (_GRID[place] - 1) * np.exp(_REFINED)
        values = bound(np, near, _rdp(run, near, adjacency), given)
        answer = np.minimum(answer, _best(values, np.inf))
    return answer


def _epsilon_bound(xp: Any, orders: Any, curve: Any, delta: Any) -> Any:
    return curve + xp.log1p(-1 / orders) - (xp.log(delta) + xp.log(orders)) / (orders - 1)


def _log_delta_bound(xp: Any, orders: Any, curve: Any, epsilon: Any) -> Any:
    return (orders - 1) * (curve - epsilon + xp.log1p(-1 / orders)) - xp.log(orders)


def _epsilon(run: Mechanism, delta: Any, adjacency: Adjacency) -> Any:
    value = _search(run, adjacency, delta, _epsilon_bound)
    xp = jnp if float64.is_traced(value) else np
    return xp.maximum(value * (1 + 1e-12), 0.0)


def _delta(run: Mechanism, epsilon: Any, adjacency: Adjacency) -> Any:
    value = _search(run, adjacency, epsilon, _log_delta_bound)
    xp = jnp if float64.is_traced(value) else np
    return xp.exp(xp.minimum(value + 1e-11, 0.0))


queries.register_method(
    "rdp",
    rank=31.0,
    supports=_supports,
    epsilon=_epsilon,
    delta=_delta,
    rdp=_rdp,
    describe="sum of the steps' Rényi curves, converted by Canonne, Kamath and Steinke (2020), "
    "Proposition 12",
)
