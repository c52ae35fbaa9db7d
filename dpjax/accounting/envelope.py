"""The trade-off curve of a run as the envelope of the lines that its δ(ε) implies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpjax._numerics.arrays import NUMPY, Numbers, namespace
from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.mechanisms.base import map_axes
from dpjax.accounting.method import Method, best_bound, list_settings, rank_in_best
from dpjax.accounting.pairs.atoms import is_gaussian_family
from dpjax.accounting.profiles import worse_direction

# Any set of ε gives a valid bound; these leave it within 1e-3 of the curve for Gaussian releases.
_EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 1e2, 120)])
# δ(ε) falls in ε: what it is at one ε bounds it at all larger ones, whose own are dear to compute.
_NEGLIGIBLE = 1e-12


def _falling(chosen: Sequence[Method], run: Mechanism, adjacency: Adjacency) -> np.ndarray:
    """δ at every ε, of one setting: asked one by one, until it is negligible."""
    deltas: list[float] = []
    for epsilon in _EPSILONS.tolist():
        if not deltas or deltas[-1] > _NEGLIGIBLE:
            deltas.append(float(best_bound("delta", chosen, run, epsilon, adjacency)[0]))
        else:
            deltas.append(deltas[-1])
    return np.asarray(deltas)


def _off_profiles(
    table: Sequence[Method], run: Mechanism, rates: Numbers, adjacency: Adjacency
) -> Numbers:
    """The same off the whole profile of each setting, which one reading knows at many ε."""
    shape, settings = list_settings(run, map_axes(run))
    found = np.empty((*shape, len(rates)))
    for index, one in settings:
        # A line below the trade-off curve for each ε: any set of them is below it.
        known = worse_direction(one, adjacency, _NEGLIGIBLE, _EPSILONS)
        if known is None:
            chosen = rank_in_best(table, "delta", one, adjacency)
            known = _EPSILONS, _falling(chosen, one, adjacency)
        epsilons, deltas = (NUMPY.asarray(v[:, None]) for v in known)
        found[index] = gaussian_dp.two_lines(epsilons, deltas, rates).max(axis=0)
    return NUMPY.asarray(found)


def envelope(table: Sequence[Method]) -> Method:
    """The method `"profile"` over the methods of a table that answer δ(ε)."""

    def tradeoff(run: Mechanism, rates: Numbers, adjacency: Adjacency) -> Numbers:
        """max over ε of max{0, 1 − δ(ε) − e^ε α, e^−ε (1 − δ(ε) − α)}, shape S + [k]."""
        xp = namespace(run, rates)
        if not is_traced(run, rates) and is_gaussian_family(run, adjacency):
            return _off_profiles(table, run, rates, adjacency)
        chosen = rank_in_best(table, "delta", run, adjacency)
        first = best_bound("delta", chosen, run, 0.0, adjacency)[0]
        shape = np.shape(first)
        epsilons = _EPSILONS.reshape(-1, *(1 for _ in shape))
        if shape or is_traced(first):
            deltas, _ = best_bound("delta", chosen, run, epsilons, adjacency)
        else:
            deltas = _falling(chosen, run, adjacency)
        lines = gaussian_dp.approximate_tradeoff(
            epsilons[..., None], xp.asarray(deltas)[..., None], rates
        )
        return xp.max(xp.asarray(lines), axis=0)

    return Method(
        "profile",
        rank=90.0,
        supports=lambda run, adjacency: bool(rank_in_best(table, "delta", run, adjacency)),
        tradeoff=tradeoff,
        describe="trade-off curve as the envelope of the lines that the privacy profile implies "
        "(Wasserman and Zhou 2010; Dong, Roth and Su 2022, Equation 5)",
    )
