"""Runs made of Gaussian releases only: exact, by Gaussian differential privacy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from dpjax._numerics import float64
from dpjax.accounting import gaussian_dp, lowering, queries
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import Mechanism


def _mu(atoms: lowering.Atoms) -> Array:
    # The square root of exactly 0 has no derivative: a run that releases nothing.
    mu2 = atoms.gaussian_mu2
    return jnp.where(mu2 > 0, jnp.sqrt(jnp.where(mu2 > 0, mu2, 1.0)) * (1 + 1e-15), 0.0)


def _mu_kernel(atoms: lowering.Atoms, adjacency: Adjacency) -> Array:
    return _mu(atoms)


def _epsilon_kernel(atoms: lowering.Atoms, adjacency: Adjacency, delta: Array) -> Array:
    return gaussian_dp.epsilon(_mu(atoms), delta)


def _lower_kernel(atoms: lowering.Atoms, adjacency: Adjacency, delta: Array) -> Array:
    # The upper bound is off by at most about 1e-12 in μ and in log δ.
    return gaussian_dp.epsilon(_mu(atoms) * (1 - 1e-12), delta * (1 + 1e-11)) * (1 - 1e-12)


def _delta_kernel(atoms: lowering.Atoms, adjacency: Adjacency, epsilon: Array) -> Array:
    return gaussian_dp.delta(_mu(atoms), epsilon)


def _tradeoff_kernel(atoms: lowering.Atoms, adjacency: Adjacency, rates: Array) -> Array:
    return gaussian_dp.tradeoff(jnp.broadcast_to(_mu(atoms), rates.shape), rates)


def _ask(kernel: Any, ndim: int = 0, rounding: float64.Rounding = "up") -> Any:
    def ask(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        return lowering.query(
            kernel, run, adjacency, (given,), (ndim,), batch=64, rounding=rounding
        )

    return ask


def only_gaussian(run: Mechanism, adjacency: Adjacency) -> bool:
    """Whether the run is exactly one Gaussian pair, however many releases it has.

    Example:
      >>> from dpjax import accounting as acc
      >>> from dpjax.accounting.gaussian_runs import only_gaussian
      >>> only_gaussian(acc.PoissonSampled(acc.Gaussian(1.0), 0.1), acc.Adjacency.ADD_REMOVE)
      False
    """
    if not lowering.lowers(run, adjacency):
        return False
    return all(lowering._kind_of(s, adjacency) == "gaussian" for s, _ in lowering.flatten(run))


def gdp_mu(run: Mechanism, *, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Any:
    """The GDP parameter of a run of Gaussian releases, exact up to rounding up.

    Raises:
      UnsupportedQuery: the run has releases that are not dominated by a Gaussian pair.

    Example:
      >>> from dpjax import accounting as acc
      >>> from dpjax.accounting.gaussian_runs import gdp_mu
      >>> round(gdp_mu(acc.Repeated(acc.Gaussian(2.0), 100)), 12)
      5.0

    References:
      Dong, Roth, Su 2022, Corollary 2.
    """
    adjacency = Adjacency(adjacency)
    if not only_gaussian(run, adjacency):
        raise queries.UnsupportedQuery(
            f"{type(run).__name__} is not a run of Gaussian releases; acc.tradeoff and acc.epsilon "
            "answer for sampled ones"
        )
    return float64.plain(lowering.query(_mu_kernel, run, adjacency))


queries.register_method(
    "gdp",
    rank=3.0,
    supports=only_gaussian,
    epsilon=_ask(_epsilon_kernel),
    delta=_ask(_delta_kernel),
    epsilon_lower=_ask(_lower_kernel, rounding="down"),
    tradeoff=_ask(_tradeoff_kernel, 1, "down"),
    describe="exact Gaussian DP, composed by adding μ² (Dong, Roth and Su 2022)",
)
