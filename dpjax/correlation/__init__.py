"""Strategies of correlated noise: Toeplitz matrices, their sensitivity, and the error they leave.

>>> from dpjax import correlation
>>> plain, tuned = correlation.identity(), correlation.banded_toeplitz(8, steps=64)
>>> correlation.Workload(64).error(tuned) < correlation.Workload(64).error(plain)
True
"""

from dpjax.correlation.banded import Banded
from dpjax.correlation.dense import fixed_epochs
from dpjax.correlation.optimise import (
    banded_inverse,
    banded_toeplitz,
    buffered_toeplitz,
    column_normalised,
)
from dpjax.correlation.strategies import (
    BandedInverse,
    BufferedToeplitz,
    Toeplitz,
    identity,
    inverse_square_root,
    square_root,
)
from dpjax.correlation.tree import Tree
from dpjax.correlation.workload import Workload

__all__ = [
    "Banded",
    "BandedInverse",
    "BufferedToeplitz",
    "Toeplitz",
    "Tree",
    "Workload",
    "banded_inverse",
    "banded_toeplitz",
    "buffered_toeplitz",
    "column_normalised",
    "fixed_epochs",
    "identity",
    "inverse_square_root",
    "square_root",
]
