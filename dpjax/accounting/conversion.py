"""From Rényi and zero-concentrated guarantees to (ε, δ)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics import float64
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.lowering import Atoms
from dpjax.accounting.renyi import _ABSOLUTE, _RELATIVE, renyi_log_moments

_COARSE, _NODES, _FINE = 24, 64, 512
_LOW, _HIGH, _LIMIT = -4.0, 10.0, 40.0  # log(α − 1): first grid, and how far it may widen upwards


class Converted(NamedTuple):
    """A converted bound: the value, the order that gave it, and whether that order hit the last edge.

    >>> Converted(1.0, 8.0, False).order
    8.0
    """

    value: Array
    order: Array
    at_edge: Array


def _epsilon_at(order: Array, log_moment: Array, log_delta: Array, classic: bool) -> Array:
    renyi = log_moment / (order - 1) * (1 + _RELATIVE) + jnp.where(log_moment > 0, _ABSOLUTE, 0.0)
    if classic:
        return renyi - log_delta / (order - 1)
    return renyi + jnp.log1p(-1 / order) - (log_delta + jnp.log(order)) / (order - 1)


def _log_delta_at(order: Array, log_moment: Array, epsilon: Array) -> Array:
    renyi = log_moment / (order - 1) * (1 + _RELATIVE) + jnp.where(log_moment > 0, _ABSOLUTE, 0.0)
    return (order - 1) * (renyi - epsilon + jnp.log1p(-1 / order)) - jnp.log(order)


def _minimise(objective, atoms: Atoms, adjacency: Adjacency) -> Converted:
    """Least `objective(order, log_moment)` over real orders: located cheaply, then certified.

    Any order gives a valid bound, so only the last few evaluations need certified quadrature.
    """
    fixed = jax.lax.stop_gradient(atoms)

    def cheap(u: Array) -> Array:
        orders = 1 + jnp.exp(u)
        value = objective(
            orders, renyi_log_moments(fixed, adjacency, orders, nodes=_NODES, certified=False)
        )
        return jnp.where(jnp.isnan(value), jnp.inf, value)

    width = (_HIGH - _LOW) / (_COARSE - 1)
    grid = width * jnp.arange(_COARSE)

    def scan(low: Array) -> tuple[Array, Array]:
        value = cheap(low + grid)
        i = jnp.argmin(value)
        # All infinite: unresolved everywhere; nothing to widen for.
        return low + grid[i], jnp.where(jnp.isfinite(value[i]), i, 1)

    def at_top(state: tuple) -> Array:
        low, _, i = state
        return (i == _COARSE - 1) & (low + _HIGH - _LOW < _LIMIT)

    def shift(state: tuple) -> tuple:
        low = state[0] + (_HIGH - _LOW) - 2 * width
        return (low, *scan(low))

    first = jnp.asarray(_LOW)
    low, best, index = jax.lax.while_loop(at_top, shift, (first, *scan(first)))
    for reach in (width, width / 4):
        near = best + reach * jnp.linspace(-1.0, 1.0, 9)
        value = cheap(near)
        best = near[jnp.argmin(value)]
    # The vertex of the parabola through the best point and its neighbours.
    reach = width / 16
    left, middle, right = cheap(best + reach * jnp.asarray([-1.0, 0.0, 1.0]))
    bend = left - 2 * middle + right
    move = jnp.where(bend > 0, 0.5 * (left - right) / jnp.where(bend > 0, bend, 1.0), 0.0)
    vertex = best + reach * jnp.clip(jnp.where(jnp.isfinite(move), move, 0.0), -1.0, 1.0)
    orders = jax.lax.stop_gradient(
        1 + jnp.exp(jnp.stack([vertex, best, best - width, best - 4 * width]))
    )
    value = objective(orders, renyi_log_moments(atoms, adjacency, orders, nodes=_FINE))
    value = jnp.where(jnp.isnan(value), jnp.inf, value)
    i = jnp.argmin(value)
    return Converted(value[i], orders[i], (index == _COARSE - 1) | ((index == 0) & (low == _LOW)))


def epsilon_from_atoms(
    atoms: Atoms, adjacency: Adjacency, delta: Float[Array, ""], *, classic: bool = False
) -> Converted:
    """ε(δ) of a run through its Rényi curve, the order optimised over the reals.

    ε = min_α RDP(α) + log(1 − 1/α) − log(αδ)/(α − 1), clipped at 0 (Canonne, Kamath and Steinke 2020,
    Proposition 12; Balle et al. 2020, Theorem 21), or + log(1/δ)/(α − 1) if classic (Mironov 2017,
    Proposition 3).

    >>> from dpjax import accounting as acc
    >>> round(acc.epsilon(acc.Gaussian(1.0), delta=1e-5, method="rdp"), 4)
    4.7255
    """
    log_delta = jnp.log(delta)
    found = _minimise(lambda a, k: _epsilon_at(a, k, log_delta, classic), atoms, adjacency)
    value = jnp.where(
        delta >= 1.0, 0.0, jnp.where(delta > 0, jnp.maximum(found.value, 0.0), jnp.inf)
    )
    nothing = _releases_nothing(atoms)
    return Converted(jnp.where(nothing, 0.0, value), found.order, found.at_edge & ~nothing)


def delta_from_atoms(atoms: Atoms, adjacency: Adjacency, epsilon: Float[Array, ""]) -> Converted:
    """δ(ε) of a run through its Rényi curve, the order optimised over the reals, clipped to [0, 1].

    δ = min_α exp((α−1)(RDP(α) − ε))·(1 − 1/α)^α/(α − 1) (Canonne, Kamath and Steinke 2020).

    >>> from dpjax import accounting as acc
    >>> acc.delta(acc.Gaussian(1.0), epsilon=4.7256, method="rdp") <= 1e-5
    True
    """
    found = _minimise(lambda a, k: _log_delta_at(a, k, epsilon), atoms, adjacency)
    value = jnp.exp(jnp.minimum(found.value, 0.0)) * (1 + _RELATIVE)
    nothing = _releases_nothing(atoms)
    return Converted(
        jnp.where(nothing, 0.0, jnp.minimum(value, 1.0)), found.order, found.at_edge & ~nothing
    )


def _releases_nothing(atoms: Atoms) -> Array:
    idle = atoms.gaussian_mu2 == 0
    for steps in (atoms.poisson, atoms.fixed):
        if steps is not None:
            idle &= jnp.all((steps.count == 0) | (steps.rate == 0) | (steps.mu == 0))
    return idle


def _improved(order: Array, rdp: Array, delta: Array) -> Array:
    value = rdp + jnp.log1p(-1 / order) - jnp.log(delta * order) / (order - 1)
    return jnp.where(order > 1, jnp.maximum(value, 0.0), jnp.inf)


def _classic(order: Array, rdp: Array, delta: Array) -> Array:
    value = rdp - jnp.log(delta) / (order - 1)
    return jnp.where(order > 1, jnp.maximum(value, 0.0), jnp.inf)


def rdp_to_epsilon(
    orders: Float[ArrayLike, ...],
    rdp: Float[ArrayLike, ...],
    delta: Float[ArrayLike, ...],
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
    rho: Float[ArrayLike, ...], delta: Float[ArrayLike, ...], *, classic: bool = False
) -> float | np.ndarray:
    """ε of ρ-zCDP (RDP(α) = ρα), by the best order, or ρ + 2√(ρ log(1/δ)) if classic (Bun, Steinke 2016).

    >>> round(zcdp_to_epsilon(0.1, 1e-5), 8)
    1.91423883
    """
    core = _zcdp_classic if classic else _zcdp_improved
    return float64.plain(float64.evaluate(core, (rho, delta), (0, 0), rounding="up"))
