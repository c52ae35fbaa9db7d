"""Strategies of correlated noise: Toeplitz matrices, their sensitivity, and the error they leave.

>>> from dpjax import correlation
>>> plain, tuned = correlation.identity(), correlation.banded_toeplitz(8, steps=64)
>>> work = correlation.Workload(64)
>>> work.error(tuned) < work.error(plain)
True
"""

from dpjax.correlation.optimise import banded_toeplitz as banded_toeplitz
from dpjax.correlation.strategies import Toeplitz as Toeplitz
from dpjax.correlation.strategies import identity as identity
from dpjax.correlation.strategies import square_root as square_root
from dpjax.correlation.workload import Workload as Workload

__all__ = [
    "Toeplitz",
    "Workload",
    "banded_toeplitz",
    "identity",
    "square_root",
]
