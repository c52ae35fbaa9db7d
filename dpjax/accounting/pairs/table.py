"""The tables of pairs, releases and ways to sample: a new one is a file and a line here."""

from __future__ import annotations

from dpjax.accounting.pairs import (
    allocation,
    choices,
    discrete_gaussian,
    finite,
    fixed_batch,
    laplace,
    poisson,
)
from dpjax.accounting.pairs.allocation import ALLOCATION
from dpjax.accounting.pairs.fixed_batch import Symmetrised
from dpjax.accounting.pairs.poisson import Poisson, Replace
from dpjax.accounting.pairs.protocol import Discretisable, Pair, Release, Scheme
from dpjax.accounting.pairs.ratio import Plain

# What contour integration and Rényi curves read.
PAIRS: dict[str, Pair] = {pair.name: pair for pair in (Poisson(), Replace(), Symmetrised())}
# What loss distributions read.
GRIDS: dict[str, Discretisable] = {**PAIRS, "gaussian": Plain(), "allocation": ALLOCATION}
SCHEMES: dict[type, Scheme] = {
    scheme.kind: scheme
    for scheme in (poisson.SCHEME, allocation.SCHEME, fixed_batch.SCHEME, poisson.CYCLIC)
}
# Releases whose pair of distributions is known.
RELEASES: dict[type, Release] = {
    release.kind: release
    for release in (
        finite.PURE,
        finite.APPROXIMATE,
        laplace.LAPLACE,
        laplace.DISCRETE_LAPLACE,
        discrete_gaussian.DISCRETE_GAUSSIAN,
        choices.RESPONSE,
        choices.SELECTION,
    )
}
