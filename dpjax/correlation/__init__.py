"""Strategies of correlated noise: Toeplitz matrices, their sensitivity, and the error they leave.

>>> from dpjax import correlation
>>> plain, tuned = correlation.identity(), correlation.banded_toeplitz(8, steps=64)
>>> work = correlation.Workload(64)
>>> work.error(tuned) < work.error(plain)
True
"""

from dpjax.correlation.inverse import BandedInverse as BandedInverse
from dpjax.correlation.inverse import inverse_square_root as inverse_square_root
from dpjax.correlation.optimise import banded_inverse as banded_inverse
from dpjax.correlation.optimise import banded_toeplitz as banded_toeplitz
from dpjax.correlation.strategies import Toeplitz as Toeplitz
from dpjax.correlation.strategies import identity as identity
from dpjax.correlation.strategies import square_root as square_root
from dpjax.correlation.tree import Tree as Tree
from dpjax.correlation.workload import Workload as Workload

__all__ = [
    "BandedInverse",
    "Toeplitz",
    "Tree",
    "Workload",
    "banded_inverse",
    "banded_toeplitz",
    "identity",
    "inverse_square_root",
    "square_root",
]
