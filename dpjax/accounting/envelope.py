"""Trade-off curves of any mechanism that answers δ(ε): the envelope of the lines it implies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax._numerics.arrays import namespace
from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.method import Method, least, ranked

# Any set of ε gives a valid bound; these leave it within 1e-3 of the curve for Gaussian releases.
_EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 1e2, 120)])
# δ(ε) falls in ε: what it is at one ε bounds it at all larger ones, whose own are dear to compute.
_NEGLIGIBLE = 1e-12


def _falling(chosen: Sequence[Method], run: Mechanism, adjacency: Adjacency) -> np.ndarray:
    """δ at every ε, of one setting: asked one by one, until it is negligible."""
    deltas: list[float] = []
    for epsilon in _EPSILONS.tolist():
        if not deltas or deltas[-1] > _NEGLIGIBLE:
            deltas.append(float(least("delta", chosen, run, epsilon, adjacency)[0]))
        else:
            deltas.append(deltas[-1])
    return np.asarray(deltas)


def envelope(table: Sequence[Method]) -> Method:
    """The method `"profile"` over the methods of a table that answer δ(ε)."""

    def able(run: Mechanism, adjacency: Adjacency) -> list[Method]:
        return [m for m in ranked(table, "delta", run, adjacency) if m.rank is not None]

    def tradeoff(run: Mechanism, rates: Any, adjacency: Adjacency) -> Any:
        """max over ε of max{0, 1 − δ(ε) − e^ε α, e^−ε (1 − δ(ε) − α)}, shape S + [k]."""
        xp: Any = namespace(run, rates)
        chosen = able(run, adjacency)
        first = least("delta", chosen, run, 0.0, adjacency)[0]
        shape = np.shape(first)
        epsilons = _EPSILONS.reshape(-1, *(1 for _ in shape))
        if shape or is_traced(first):
            deltas, _ = least("delta", chosen, run, epsilons, adjacency)
        else:
            deltas = _falling(chosen, run, adjacency)
        lines = gaussian_dp.approximate_tradeoff(
            epsilons[..., None], xp.asarray(deltas)[..., None], rates
        )
        return xp.max(xp.asarray(lines), axis=0)

    return Method(
        "profile",
        rank=90.0,
        supports=lambda run, adjacency: bool(able(run, adjacency)),
        tradeoff=tradeoff,
        describe="trade-off curve as the envelope of the lines that the privacy profile implies "
        "(Wasserman and Zhou 2010; Dong, Roth and Su 2022, Equation 5)",
    )
