"""Fixed batches without replacement, one record replaced: C_q(G_μ) and the one-sided pair.

The symmetrised pair has the trade-off curve C_q(G_μ) = min(f, f⁻¹)** with f = qG_μ + (1−q)Id: both
directions of a fixed batch at once, an upper bound however an adversary mixes them between steps.
The one-sided pair, `poisson.PoissonPair` of the same displacement, is attained by a record whose
replacement is like all the others.

References:
  Dong, Roth, Su 2022, Definition 4.1 and Theorem 4.2 (C_q, fixed batches).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpjax._numerics.arrays import Numbers, namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import FixedBatchSampled
from dpjax.accounting.pairs import mixtures
from dpjax.accounting.pairs.gaussian import gaussian_pair, samplable
from dpjax.accounting.pairs.on_grid import inverse, log_ratio, ndtr
from dpjax.accounting.pairs.poisson import Sampled
from dpjax.accounting.pairs.protocol import Masses, SampledRelease, SamplingRule
from dpjax.accounting.typing import Real


class Symmetrised(Sampled):
    """g·r against g on y > μ/2, its mirror image with P and Q exchanged, and an atom at loss 0."""

    name = "symmetrised"
    table = staticmethod(mixtures.symmetrised)
    folded = True

    def atom(self, mu: float, rate: float) -> float:
        return (1 - rate) * float(namespace(mu).erf(mu / np.sqrt(8.0)))

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        most = float(log_ratio(mu + reach, mu, rate))
        return -most, most

    def masses(self, sign: int, mu: float, rate: float, losses: np.ndarray) -> Masses:
        # the fold lies at μ/2, where the loss is 0
        y = np.maximum(inverse(np.abs(losses), mu, rate), 0.5 * mu)
        # Above 0 the pair is (g·r, g) on y > μ/2, below 0 its mirror image with P and Q exchanged.
        tail_g = ndtr(-y)
        tail_gr = (1 - rate) * tail_g + rate * ndtr(mu - y)
        upper = losses[:-1] >= 0
        p = np.where(upper, tail_gr[:-1] - tail_gr[1:], tail_g[1:] - tail_g[:-1])
        q = np.where(upper, tail_g[:-1] - tail_g[1:], tail_gr[1:] - tail_gr[:-1])
        return np.maximum(p, 0.0), np.maximum(q, 0.0), float(tail_gr[-1])


def _refuse_batch(step: FixedBatchSampled, adjacency: Adjacency, kind_of: Callable) -> str:
    if adjacency is not Adjacency.REPLACE_ONE:
        return (
            "is defined for adjacency=Adjacency.REPLACE_ONE only: adding a record would change the "
            "size of the batch"
        )
    good = kind_of(step.mechanism) == "gaussian" and samplable(step.mechanism)
    return "" if good else "is priced around Gaussian releases only"


def _participation(step: FixedBatchSampled, adjacency: Adjacency) -> Real | None:
    size = step.batch_size
    return size / step.population if adjacency is Adjacency.REPLACE_ONE else None


def _batch_parameters(step: FixedBatchSampled, adjacency: Adjacency) -> tuple[Numbers, Real | None]:
    xp = namespace(step)
    return xp.sqrt(gaussian_pair(step.mechanism).replace_one), _participation(step, adjacency)


def _amplify(
    step: FixedBatchSampled, adjacency: Adjacency, inner: SampledRelease
) -> SampledRelease | None:
    """Balle, Barthe, Gaboardi 2018, Theorem 9: the profile under replace-one; no batch of one."""
    if adjacency is not Adjacency.REPLACE_ONE or inner.symmetric:
        return None
    size = step.batch_size
    return inner._replace(rate=size / step.population, symmetric=True)


BATCH_RULE = SamplingRule(
    "fixed",
    FixedBatchSampled,
    _refuse_batch,
    _batch_parameters,
    dominating=lambda adjacency: "symmetrised",
    attained=lambda adjacency: "poisson",
    participation=_participation,
    amplify=_amplify,
)
