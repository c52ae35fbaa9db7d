"""The tables of pairs and of ways to sample: a new one is a file of its own and a line here."""

from __future__ import annotations

from dpjax.accounting.pairs import allocation, correlated, fixed_batch, poisson
from dpjax.accounting.pairs.allocation import Allocation
from dpjax.accounting.pairs.fixed_batch import Symmetrised
from dpjax.accounting.pairs.plain import Plain
from dpjax.accounting.pairs.poisson import Poisson
from dpjax.accounting.pairs.protocol import Discretisable, Pair
from dpjax.accounting.pairs.replace import Replace
from dpjax.accounting.pairs.scheme import Scheme

# What contour integration and Rényi curves read.
PAIRS: dict[str, Pair] = {pair.name: pair for pair in (Poisson(), Replace(), Symmetrised())}
# What loss distributions read.
GRIDS: dict[str, Discretisable] = {**PAIRS, "gaussian": Plain(), "allocation": Allocation()}
SCHEMES: dict[type, Scheme] = {
    scheme.kind: scheme
    for scheme in (poisson.SCHEME, allocation.SCHEME, fixed_batch.SCHEME, correlated.SCHEME)
}
