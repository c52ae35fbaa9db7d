"""Rounds of Poisson-sampled groups under correlated noise: one sampled Gaussian each."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpjax._numerics.arrays import namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms.correlated import CyclicPoissonCorrelated
from dpjax.accounting.pairs import poisson
from dpjax.accounting.pairs.gaussian import correlated_mu2
from dpjax.accounting.pairs.scheme import Scheme


def _parameters(step: CyclicPoissonCorrelated, adjacency: Adjacency) -> tuple[Any, Any]:
    xp: Any = namespace(step)
    rows, once = xp.asarray(float(np.shape(step.strategy)[0])), xp.asarray(1.0)
    return xp.sqrt(correlated_mu2(step, rows, once, once)), step.rate


SCHEME = Scheme(
    "cyclic-poisson",
    CyclicPoissonCorrelated,
    lambda step, adjacency, kind_of: "",
    _parameters,
    poisson.SCHEME.dominating,
    poisson.SCHEME.attained,
)
