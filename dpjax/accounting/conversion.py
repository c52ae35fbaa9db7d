"""From Rényi and zero-concentrated guarantees to (ε, δ)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics import float64
from dpjax._numerics.logarithm import log1p
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.lowering import Atoms
from dpjax.accounting.renyi import _ABSOLUTE, _RELATIVE, renyi_log_moments

_POINTS, _NODES, _FINE = 24, 64, 512
_LOW, _HIGH, _LIMIT = -4.0, 10.0, 40.0  # log(α − 1): first grid, and how far it may widen upwards


class Converted(NamedTuple):
    """A converted bound: value, the order that gave it, and 1 if that order is at the edge.

    >>> Converted(1.0, 8.0, 0.0).order
    8.0
    """

    value: Array
    order: Array
    at_edge: Array


def _epsilon_at(order: Array, log_moment: Array, log_delta: Array, classic: bool) -> Array:
    renyi = log_moment / (order - 1) * (1 + _RELATIVE) + jnp.where(log_moment > 0, _ABSOLUTE, 0.0)
    if classic:
        return renyi - log_delta / (order - 1)
    return renyi + log1p(-1 / order) - (log_delta + jnp.log(order)) / (order - 1)


def _log_delta_at(order: Array, log_moment: Array, epsilon: Array) -> Array:
    renyi = log_moment / (order - 1) * (1 + _RELATIVE) + jnp.where(log_moment > 0, _ABSOLUTE, 0.0)
    return (order - 1) * (renyi - epsilon + log1p(-1 / order)) - jnp.log(order)


class _Search(NamedTuple):
    centre: Array
    half: Array
    values: Array
    rounds: Array


def _minimise(objective, atoms: Atoms, adjacency: Adjacency) -> Converted:
    """Least `objective(order, log_moment)` over real orders: located cheaply, then certified.

    Any order gives a valid bound, so only the last few evaluations need certified quadrature.
    """
    fixed = jax.lax.stop_gradient(atoms)
    steps = jnp.linspace(-1.0, 1.0, _POINTS)

    def look(state: _Search) -> _Search:
        """One round: evaluate, then zoom in on the best point, or move if it is at an open edge."""
        points = state.centre + state.half * steps
        orders = 1 + jnp.exp(points)
        moments = renyi_log_moments(fixed, adjacency, orders, nodes=_NODES, certified=False)
        values = objective(orders, moments)
        values = jnp.where(jnp.isnan(values), jnp.inf, values)
        i = jnp.argmin(values)
        beyond = (i == _POINTS - 1) & (points[i] < _LIMIT)
        half = jnp.where(beyond, state.half, state.half * 2.5 / (_POINTS - 1))
        return _Search(points[i], half, values, state.rounds + 1)

    def again(state: _Search) -> Array:
        return (state.half > 0.02) & (state.rounds < 12)

    start = _Search(
        jnp.asarray(0.5 * (_LOW + _HIGH)),
        jnp.asarray(0.5 * (_HIGH - _LOW)),
        jnp.zeros(_POINTS),
        jnp.asarray(0),
    )
    found = jax.lax.while_loop(again, look, start)
    # The vertex of the parabola through the best point of the last round and its neighbours.
    spacing = found.half / 1.25
    i = jnp.clip(jnp.argmin(found.values), 1, _POINTS - 2)
    left, middle, right = found.values[i - 1], found.values[i], found.values[i + 1]
    bend = left - 2 * middle + right
    move = jnp.where(bend > 0, 0.5 * (left - right) / jnp.where(bend > 0, bend, 1.0), 0.0)
    vertex = found.centre + spacing * jnp.clip(jnp.where(jnp.isfinite(move), move, 0.0), -1.0, 1.0)
    # Lower orders besides, in case the located one is not resolved by the certified rule.
    orders = 1 + jnp.exp(vertex - jnp.asarray([0.0, 1.5]))
    orders = jax.lax.stop_gradient(orders)
    values = objective(orders, renyi_log_moments(atoms, adjacency, orders, nodes=_FINE))
    values = jnp.where(jnp.isnan(values), jnp.inf, values)
    i = jnp.argmin(values)
    at_edge = (vertex >= _LIMIT) | (vertex <= _LOW + 0.01)
    # A number, because derivatives are asked of the whole answer.
    return Converted(values[i], orders[i], jnp.where(at_edge, 1.0, 0.0))


def epsilon_from_atoms(
    atoms: Atoms, adjacency: Adjacency, delta: Float[Array, ""], *, classic: bool = False
) -> Converted:
    """ε(δ) of a run through its Rényi curve, the order optimised over the reals.

    ε = min_α RDP(α) + log(1 − 1/α) − log(αδ)/(α − 1), clipped at 0 (Canonne, Kamath and Steinke
    2020, Proposition 12; Balle et al. 2020, Theorem 21), or + log(1/δ)/(α − 1) if classic (Mironov
    2017, Proposition 3).

    >>> from dpjax import accounting as acc
    >>> round(acc.epsilon(acc.Gaussian(1.0), delta=1e-5, method="rdp"), 4)
    4.7284
    """
    log_delta = jnp.log(delta)
    found = _minimise(lambda a, k: _epsilon_at(a, k, log_delta, classic), atoms, adjacency)
    value = jnp.where(
        delta >= 1.0, 0.0, jnp.where(delta > 0, jnp.maximum(found.value, 0.0), jnp.inf)
    )
    value = jnp.where(_releases_nothing(atoms), 0.0, value)
    return Converted(value, found.order, found.at_edge * (value > 0))


def delta_from_atoms(atoms: Atoms, adjacency: Adjacency, epsilon: Float[Array, ""]) -> Converted:
    """δ(ε) of a run through its Rényi curve, the order optimised over the reals, clipped to [0, 1].

    δ = min_α exp((α−1)(RDP(α) − ε))·(1 − 1/α)^α/(α − 1) (Canonne, Kamath and Steinke 2020).

    >>> from dpjax import accounting as acc
    >>> acc.delta(acc.Gaussian(1.0), epsilon=4.7285, method="rdp") <= 1e-5
    True
    """
    found = _minimise(lambda a, k: _log_delta_at(a, k, epsilon), atoms, adjacency)
    value = jnp.exp(jnp.minimum(found.value, 0.0)) * (1 + _RELATIVE)
    value = jnp.where(_releases_nothing(atoms), 0.0, jnp.minimum(value, 1.0))
    return Converted(value, found.order, found.at_edge * (value > 0) * (value < 1))


def _releases_nothing(atoms: Atoms) -> Array:
    idle = atoms.gaussian_mu2 == 0
    for steps in (atoms.poisson, atoms.fixed):
        if steps is not None:
            idle &= jnp.all((steps.count == 0) | (steps.rate == 0) | (steps.mu == 0))
    return idle


def _improved(order: Array, rdp: Array, delta: Array) -> Array:
    value = rdp + log1p(-1 / order) - jnp.log(delta * order) / (order - 1)
    return jnp.where(order > 1, jnp.maximum(value, 0.0), jnp.inf)


def _classic(order: Array, rdp: Array, delta: Array) -> Array:
    value = rdp - jnp.log(delta) / (order - 1)
    return jnp.where(order > 1, jnp.maximum(value, 0.0), jnp.inf)


def rdp_to_epsilon(
    orders: Float[ArrayLike, "..."],
    rdp: Float[ArrayLike, "..."],
    delta: Float[ArrayLike, "..."],
    *,
    classic: bool = False,
) -> float | np.ndarray:
    """ε at each order from Rényi values of your own; the least over the orders is a valid bound.

    Arguments:
        orders, rdp, delta: broadcast together; orders above one (others give +inf).
        classic: Mironov 2017, Proposition 3, for reproducing papers; never below the default.

    >>> round(rdp_to_epsilon(10.0, 0.5, 1e-5), 10)
    1.4180106368
    >>> round(rdp_to_epsilon(10.0, 0.5, 1e-5, classic=True), 10)
    1.7792139406
    """
    core = _classic if classic else _improved
    return float64.plain(float64.evaluate(core, (orders, rdp, delta), (0, 0, 0), rounding="up"))


def _zcdp_improved(rho: Array, delta: Array) -> Array:
    return epsilon_from_atoms(Atoms(2 * rho, None, None), Adjacency.ADD_REMOVE, delta).value


def _zcdp_classic(rho: Array, delta: Array) -> Array:
    return rho + 2 * jnp.sqrt(-rho * jnp.log(delta))


def zcdp_to_epsilon(
    rho: Float[ArrayLike, "..."], delta: Float[ArrayLike, "..."], *, classic: bool = False
) -> float | np.ndarray:
    """ε of ρ-zCDP (RDP(α) = ρα), by the best order, or ρ + 2√(ρ log(1/δ)) if classic (Bun, Steinke
    2016).

    >>> round(zcdp_to_epsilon(0.1, 1e-5), 8)
    1.91423883
    """
    core = _zcdp_classic if classic else _zcdp_improved
    return float64.plain(float64.evaluate(core, (rho, delta), (0, 0), rounding="up"))
