"""A Poisson batch that is cut at a capacity: a mixture of two sampled pairs.

Let the larger of two neighbours have n records, z being the one that differs, b ~ Bin(n−1, q) the
number of others that are drawn, and K the capacity, with a uniform choice of which K to keep.

* If b < K nothing is cut, and z adds its contribution with probability q.
* If b ≥ K, the others that are kept are a uniform set of K of all n − 1, independently of b. With z
  in the data they are that set, or, with probability qK/(b+1), z takes the place of one of them,
  which moves the sum by up to two clip norms.

Who is told which of the two happened, and the others' batch, sees with probability τ = P(b ≥ K)
the sampled pair of displacement 2 at the rate c = E[qK/(b+1) | b ≥ K] = (K/n)·P(Bin(n, q) > K)/τ,
and otherwise the one of displacement 1 at rate q; by joint convexity their mixture dominates
(Ganesh and McKenna 2025 have the antipodal pair in place of the one-sided one; derived for dpjax).
For a replaced record both of its contributions lie within two clip norms of the record that it
displaces, so that the antipodal pair of that displacement dominates.

At rate 1 a batch of exactly K of n records without replacement is priced, under add/remove.

References:
  Ganesh, McKenna 2025 (arXiv 2508.15089); dp_accounting 0.6,
  `from_truncated_subsampled_gaussian_mechanism`; Balle, Barthe, Gaboardi 2018 (joint convexity).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import TruncatedPoissonSampled
from dpjax.accounting.mechanisms.steps import widen
from dpjax.accounting.pairs.gaussian import DOMINATED, gaussian_pair, samplable
from dpjax.accounting.pairs.poisson import PoissonPair, Replace
from dpjax.accounting.pairs.protocol import GridPair, Laid, SampledRelease
from dpjax.accounting.pairs.revealed import LabelledPart, RevealedMixture

_BETA_ROUND = 1 + 1e-9  # beyond the relative error of scipy's incomplete beta function


def read_truncated(step: TruncatedPoissonSampled, adjacency: Adjacency) -> SampledRelease | None:
    """A step whose batch is cut.

    Its numbers are the displacement of a record that is added to a batch over the noise; 1 − τ and
    τ, the probability that the batch of the others fills the capacity; c, the record's own rate
    then; and 1 under REPLACE_ONE, else 0. The sampling rate is `SampledRelease.rate`. Both
    probabilities are rounded up, as either of the two pairs may be the one that counts.
    """
    inner = step.mechanism
    if type(inner) not in DOMINATED or not samplable(inner):
        return None
    inner = widen(inner)  # arrays divide by 0
    with np.errstate(divide="ignore"):
        pair = gaussian_pair(inner)
    replaced = adjacency is Adjacency.REPLACE_ONE
    # Antipodal displacements of half the replace-one diameter, if that is the larger.
    mu2 = np.maximum(pair.add_remove, pair.replace_one / 4.0) if replaced else pair.add_remove
    fields = (step.rate, step.population, step.capacity)
    rate, n, k = (np.asarray(v, np.float64) for v in fields)
    mu = np.sqrt(np.asarray(mu2, np.float64))
    return SampledRelease(TRUNCATED, (mu, *_cut(rate, n, k), float(replaced)), rate)


def _lay_truncated(own: SampledRelease) -> GridPair:
    mu, uncut, cut, cut_rate, replaced = (float(number) for number in own.numbers)
    pair: GridPair = Replace() if replaced else PoissonPair()
    return RevealedMixture(
        pair, [LabelledPart(uncut, mu, float(own.rate)), LabelledPart(cut, 2 * mu, cut_rate)]
    )


TRUNCATED = Laid(_lay_truncated, tight=True, sampled=False)


def _cut(rate: np.ndarray, n: np.ndarray, k: np.ndarray) -> Sequence[np.ndarray]:
    """1 − τ, τ and c, rounded up."""
    from scipy import special

    left = np.maximum(n - k, 1.0)
    full = np.where(n > k, special.betainc(k, left, rate), 0.0)
    free = np.where(n > k, special.betaincc(k, left, rate), 1.0)
    # The larger of two complements by the smaller, which is the more exact.
    cut = np.where(full < 0.5, full * _BETA_ROUND, 1 - free / _BETA_ROUND)
    uncut = np.where(full < 0.5, 1 - full / _BETA_ROUND, free * _BETA_ROUND)
    # P(Bin(n, q) > K) = I_q(K + 1, n − K).
    kept = k / n * special.betainc(k + 1.0, left, rate) * _BETA_ROUND
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(full > 0, kept / full * _BETA_ROUND, 0.0)
    # As n records are in the data, and K are kept, c ≤ min(q, K/(K + 1)).
    return uncut, cut, np.minimum(np.where(np.isfinite(found), found, rate), rate)
