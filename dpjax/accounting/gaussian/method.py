"""Runs made of Gaussian releases only: exact, by Gaussian differential privacy."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array

from dpjax._numerics import float64
from dpjax._numerics.arrays import namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.gaussian import pair
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.mechanisms.checked import admit
from dpjax.accounting.method import Method
from dpjax.accounting.pairs.atoms import Atoms, exhibited, only_gaussian, query


def _mu(atoms: Atoms) -> Array:
    # The square root of exactly 0 has no derivative: a run that releases nothing.
    xp: Any = namespace(atoms)
    mu2 = atoms.gaussian_mu2
    return xp.where(mu2 > 0, xp.sqrt(xp.where(mu2 > 0, mu2, 1.0)) * (1 + 1e-15), 0.0)


def _mu_kernel(atoms: Atoms, adjacency: Adjacency) -> Array:
    return _mu(atoms)


def _epsilon_kernel(atoms: Atoms, adjacency: Adjacency, delta: Array) -> Array:
    return pair.epsilon(_mu(atoms), delta)


def _lower_kernel(atoms: Atoms, adjacency: Adjacency, delta: Array) -> Array:
    # The upper bound is off by at most about 1e-12 in μ and in log δ.
    return pair.epsilon(_mu(atoms) * (1 - 1e-12), delta * (1 + 1e-11)) * (1 - 1e-12)


def _epsilon_lower(run: Mechanism, delta: Any, adjacency: Adjacency) -> Any:
    """Of N(0, 1) against N(μ, 1), which neighbours attain that differ in a clipped vector."""
    value = _ask(_lower_kernel, rounding="down")(run, delta, adjacency)
    return value if exhibited(run) else 0 * value


def _delta_kernel(atoms: Atoms, adjacency: Adjacency, epsilon: Array) -> Array:
    return pair.delta(_mu(atoms), epsilon)


def _tradeoff_kernel(atoms: Atoms, adjacency: Adjacency, rates: Array) -> Array:
    xp: Any = namespace(atoms, rates)
    return pair.tradeoff(xp.broadcast_to(_mu(atoms), rates.shape), rates)


def _ask(kernel: Any, ndim: int = 0, rounding: float64.Rounding = "up") -> Any:
    def ask(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        return query(kernel, run, adjacency, (given,), (ndim,), batch=64, rounding=rounding)

    return ask


def gdp_mu(run: Mechanism, *, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Any:
    """The GDP parameter of a run of Gaussian releases, exact up to rounding up.

    Raises:
        UnsupportedQuery: the run has releases that are not dominated by a Gaussian pair.

    Example:
        >>> from dpjax import accounting as acc
        >>> from dpjax.accounting.gaussian.method import gdp_mu
        >>> round(gdp_mu(acc.Repeated(acc.Gaussian(2.0), 100)), 12)
        5.0

    References:
        Dong, Roth, Su 2022, Corollary 2.
    """
    admit(run)
    adjacency = Adjacency(adjacency)
    if not only_gaussian(run, adjacency):
        raise UnsupportedQuery(
            f"{type(run).__name__} is not a run of Gaussian releases; acc.tradeoff and acc.epsilon "
            "answer for sampled ones"
        )
    return float64.plain(query(_mu_kernel, run, adjacency))


METHODS = (
    Method(
        "gdp",
        rank=3.0,
        tight=True,
        supports=only_gaussian,
        epsilon=_ask(_epsilon_kernel),
        delta=_ask(_delta_kernel),
        epsilon_lower=_epsilon_lower,
        tradeoff=_ask(_tradeoff_kernel, 1, "down"),
        describe="exact Gaussian DP, composed by adding μ² (Dong, Roth and Su 2022)",
    ),
)
