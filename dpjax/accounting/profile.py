"""Trade-off curves of any mechanism that answers δ(ε): the envelope of the lines it implies."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax._numerics import float64
from dpjax.accounting import gaussian_dp, queries
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.queries import register_method

_NAME = "profile"
# Any set of ε gives a valid bound; these leave it within 1e-3 of the curve for Gaussian releases.
_EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 1e2, 120)])


def _supports(run: Mechanism, adjacency: Adjacency) -> bool:
    return any(
        method.delta is not None and method.supports(run, adjacency)
        for name, group in queries._METHODS.items()
        if name != _NAME
        for method in group
    )


def _tradeoff(run: Mechanism, rates: Any, adjacency: Adjacency) -> Any:
    """max over ε of max{0, 1 − δ(ε) − e^ε α, e^−ε (1 − δ(ε) − α)}, shape S + [k]."""
    xp: Any = jnp if float64.is_traced(run, rates) else np
    shape = np.shape(queries.delta(run, 0.0, adjacency=adjacency))
    epsilons = _EPSILONS.reshape(-1, *(1 for _ in shape))
    deltas = queries.delta(run, epsilons, adjacency=adjacency)
    lines = gaussian_dp.approximate_tradeoff(
        epsilons[..., None], xp.asarray(deltas)[..., None], rates
    )
    return xp.max(xp.asarray(lines), axis=0)


register_method(
    _NAME,
    rank=90.0,
    supports=_supports,
    tradeoff=_tradeoff,
    describe="trade-off curve as the envelope of the lines that the privacy profile implies "
    "(Wasserman and Zhou 2010; Dong, Roth and Su 2022, Equation 5)",
)
