"""Sampled releases of little noise: hardly more can be said than that all is told or nothing."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from dpjax._numerics.arrays import Numbers
from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.mechanisms.base import map_axes, walk
from dpjax.accounting.mechanisms.sampling import DRAWN
from dpjax.accounting.mechanisms.steps import replace_noiseless
from dpjax.accounting.method import Method, Part, best_bound, list_settings, rank_in_best

_LITTLE = 0.05  # noise over the sensitivity, up to which a sampled release may tell all


def all_or_nothing(table: Sequence[Method]) -> Method:
    """The method `"all_or_nothing"` over the methods of a table that price what it leaves."""

    def supports(run: Mechanism, adjacency: Adjacency) -> bool:
        sampled = any(isinstance(part, DRAWN) for part in walk(run))
        # What no other method prices stays refused, by the reason that there is none.
        return sampled and bool(rank_in_best(table, "epsilon", run, adjacency))

    def ask(part: Part, run: Mechanism, given: Numbers, adjacency: Adjacency) -> np.ndarray:
        """The settings of a sweep one after the other: in each others may have little noise."""
        if is_traced(run, given):
            raise UnsupportedQuery(
                "method 'all_or_nothing' runs on the host: price outside the trace"
            )
        shape, settings = list_settings((run, given), (map_axes(run), 0))
        found = np.full(shape, np.inf if part == "epsilon" else 1.0)
        for index, (one, asked) in settings:
            told = replace_noiseless(one, adjacency, _LITTLE)
            if told is not one and (able := rank_in_best(table, part, told, adjacency)):
                found[index] = float(best_bound(part, able, told, asked, adjacency)[0])
        return found

    return Method(
        "all_or_nothing",
        rank=18.0,  # at once; a loss distribution that has an answer is taken for tight
        dear=True,
        is_advised=False,  # a price as if of no noise
        supports=supports,
        needs=DRAWN,
        epsilon=functools.partial(ask, "epsilon"),
        delta=functools.partial(ask, "delta"),
        describe="sampled releases of little noise as if without any: either nothing is told of a "
        "record, or all",
    )
