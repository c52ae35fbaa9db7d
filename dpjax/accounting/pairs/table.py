"""The tables of pairs, releases and ways to sample: a new one is a file and a line here."""

from __future__ import annotations

from dpjax.accounting.pairs import (
    allocation,
    choices,
    correlated,
    discrete_gaussian,
    fixed_batch,
    guarantees,
    laplace,
    poisson,
)
from dpjax.accounting.pairs.allocation import Allocation
from dpjax.accounting.pairs.allocation_line import AllocationLine
from dpjax.accounting.pairs.fixed_batch import Symmetrised
from dpjax.accounting.pairs.plain import Plain
from dpjax.accounting.pairs.poisson import Poisson
from dpjax.accounting.pairs.protocol import Discretisable, Pair, Transform
from dpjax.accounting.pairs.release import Release
from dpjax.accounting.pairs.replace import Replace
from dpjax.accounting.pairs.scheme import Scheme

# What contour integration and Rényi curves read.
PAIRS: dict[str, Pair] = {pair.name: pair for pair in (Poisson(), Replace(), Symmetrised())}
# What contour integration reads besides, where no trace goes through it.
TRANSFORMS: dict[str, Transform] = {"allocation": AllocationLine()}
# What loss distributions read.
GRIDS: dict[str, Discretisable] = {**PAIRS, "gaussian": Plain(), "allocation": Allocation()}
SCHEMES: dict[type, Scheme] = {
    scheme.kind: scheme
    for scheme in (poisson.SCHEME, allocation.SCHEME, fixed_batch.SCHEME, correlated.SCHEME)
}
# Releases whose pair of distributions is known.
RELEASES: dict[type, Release] = {
    release.kind: release
    for release in (
        guarantees.PURE,
        guarantees.APPROXIMATE,
        laplace.LAPLACE,
        laplace.DISCRETE_LAPLACE,
        discrete_gaussian.DISCRETE_GAUSSIAN,
        choices.RESPONSE,
        choices.SELECTION,
    )
}
