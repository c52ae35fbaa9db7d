"""The tables of pairs and ways to sample: a new one is a file and a line here."""

from __future__ import annotations

from dpjax.accounting.pairs import allocation, batches, mixtures
from dpjax.accounting.pairs.allocation import ALLOCATION
from dpjax.accounting.pairs.batches import Symmetrised
from dpjax.accounting.pairs.mixtures import Poisson, Replace
from dpjax.accounting.pairs.on_grid import Plain
from dpjax.accounting.pairs.protocol import Discretisable, Pair, Scheme

# What contour integration and Rényi curves read.
PAIRS: dict[str, Pair] = {pair.name: pair for pair in (Poisson(), Replace(), Symmetrised())}
# What loss distributions read.
GRIDS: dict[str, Discretisable] = {**PAIRS, "gaussian": Plain(), "allocation": ALLOCATION}
SCHEMES: dict[type, Scheme] = {
    scheme.kind: scheme
    for scheme in (mixtures.SCHEME, allocation.SCHEME, batches.SCHEME, mixtures.CYCLIC)
}
