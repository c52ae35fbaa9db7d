"""Batches drawn with replacement, one record replaced: a record can be drawn several times.

Of m draws from n records J ~ Bin(m, 1/n) are the one that differs, whose contribution x is x' in
the neighbour. Let ω₀ be the release of a batch that lacks it, and ω_j, ω'_j those of batches with j
copies, every other draw being uniform over the other records. With w_j = Bin(m, 1/n)(j),
η = 1 − w₀ = 1 − (1 − 1/n)^m and v_j = w_j/η the step releases

    (1 − η)ω₀ + η Σ_{j>0} v_j ω_j = Σ_{j>0} v_j ((1 − η)ω₀ + ηω_j),

its neighbour the same with ω'_j: by joint convexity it is dominated by the pairs in parentheses
with j, drawn from v, released. A batch of m draws of the others, j of which are turned into x, or
into x', couples ω₀, ω_j and ω'_j: given it they are normal laws whose means lie within j times the
replace-one diameter μ of each other. So (1 − η)ω₀ + ηω_j against (1 − η)ω₀ + ηω'_j is a fixed
batch's step of displacement jμ and rate η, which C_η(G_{jμ}) dominates (`pairs/batches.py`).
For ε ≥ 0 and ε' = log(1 + η(e^ε − 1)) the profile is that of Balle, Barthe and Gaboardi 2018,
Theorem 10: δ'(ε') = Σ_{j>0} w_j δ_{jμ}(ε).

A record whose replacement contributes what all others do attains Σ_j w_j N(jμ, 1) against N(0, 1),
where j stays hidden (`pairs/dominating.py`): the lower end. It does not dominate: at ε = 0, of two
records of opposite contributions among others of none, the total variation is Σ_j w_j TV_j, which
is what the bound says and more than the hidden mixture's.

Two upper bounds of one symmetric profile, spliced into a pair: one near 0, the other beyond.

Let h₁ and h₂ bound the same hockey-stick divergence, a convex function of γ = e^ε, on γ ≥ 1: h₁ by
a pair that is its own mirror image, h₂ by any measures P₂ and Q₂. For points a < b of a grid

    H = h₁ on [1, γ_a],   its chord to h₂(γ_b) on [γ_a, γ_b],   h₂ on [γ_b, ∞)

bounds it too, as a convex function is below its chords. H is the profile of what the first pair has
up to a, of what (P₂, Q₂) has beyond b, and of atoms of Q at a and at b where H's slope jumps;
below 0 of the mirror image with P and Q exchanged. A jump downwards is taken for none, which
raises H. With a and b where one line touches both, H is the convex hull and the jumps are 0.

Several sampled pairs, of which a label drawn at random and released says which one was met.

By joint convexity a step is dominated by what somebody sees who is told more than it releases: here
a label that has the same law on both sides, and then one pair of displacement and rate. Its masses
between losses are the weighted sums of the pairs' own.

References:
  Balle, Barthe, Gaboardi 2018 (joint convexity).
  Balle, Barthe, Gaboardi 2018 (arXiv 1807.01647), Theorems 2 and 10; Dong, Roth, Su 2022 (C_q).

A Poisson batch that is cut at a capacity: a mixture of two sampled pairs.

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

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics.namespace import Numbers
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import TruncatedPoissonSampled, WithReplacement
from dpjax.accounting.mechanisms.steps import widen
from dpjax.accounting.pairs import mixtures
from dpjax.accounting.pairs.batches import (
    Law,
    Symmetrised,
    merge_weights,
    merge_weights_without_zero,
    relative_weight_error,
    with_replacement_law,
)
from dpjax.accounting.pairs.gaussian import DOMINATED, gaussian_pair, samplable
from dpjax.accounting.pairs.mixtures import Mixture, Poisson, Replace
from dpjax.accounting.pairs.on_grid import Weighted, ndtr
from dpjax.accounting.pairs.protocol import BoundedPair, GridPair, Laid, Masses, SampledRelease

_REVEALED = 1e-3  # of what may lie beyond the grid: labels rarer than that reveal everything
_ROUND = 1e-13
_TRIES = 8
_FAR = 600.0  # losses beyond which no point is looked for


def _is_rare(weight: np.ndarray, reach: float) -> np.ndarray:
    """Which weights, from the least on, are together less than what a grid leaves out."""
    order, found = np.argsort(weight), np.zeros(len(weight), bool)
    found[order[np.cumsum(weight[order]) <= _REVEALED * float(ndtr(-reach))]] = True
    return found


class AddedRecordsPair(BoundedPair):
    """A user's records in a batch: mixtures whose weights differ for upper and for lower bounds.

    Args:
        mu: how far one record moves the sum, over the noise's standard deviation.
        law: of how many records are in a batch.
    """

    name = "users"
    spread = 1.0  # how far the means lie apart, in units of how many records are in a batch

    def __init__(self, mu: float, law: Law) -> None:
        self.mu, self.law = mu, law
        self.most = mu * law.most * self.spread  # where all records are in a batch

    def mixture(self, upper: bool) -> Mixture:
        """The weights, for an upper bound or for a lower one, off by `relative_weight_error`."""
        weights = merge_weights_without_zero(self.law) if upper else merge_weights(self.law, False)
        return (mixtures.added_records if self.directed else mixtures.replaced_records)(
            self.mu, *weights
        )

    def side(self, sign: int, mu: float, rate: float, reach: float, upper: bool) -> GridPair:
        """The mixtures of one direction, P's mass never less for an upper bound, Q's never more."""
        means, p, q = self.mixture(upper) if sign > 0 else self.mixture(upper).reversed()
        # Twice, since they were divided by their sum; N(0, 1) alone has its mass without error.
        off = 2 * relative_weight_error(self.law) * (1 if upper else -1)
        p, q = (v * (1 + o if np.sum(v > 0) > 1 else 1.0) for v, o in ((p, off), (q, -off)))
        if not upper or not self._reveals_last(reach):
            return Weighted(self.name, Mixture(means, p, q))
        # P's mass of the largest number has an infinite loss, Q's is left out.
        far = np.abs(means) == np.max(np.abs(means))
        rest = float(np.sum(p[far]))
        return Weighted(self.name, Mixture(means[~far], p[~far], q[~far]), rest)

    def _reveals_last(self, reach: float) -> bool:
        """Whether the largest number of an upper bound is rarer than what a grid leaves out.

        Of 1e8 draws it has the rest of the law, 1e-40, at a mean whose square is rounded by 0.1.
        """
        weight = merge_weights(self.law, True)[1][1:]
        off = relative_weight_error(self.law)
        return len(weight) > 1 and bool(_is_rare(weight / weight.sum() * (1 + 3 * off), reach)[-1])

    def largest_mean(self, reach: float) -> float:
        """How far apart the means of `side` lie at most."""
        number = merge_weights(self.law, True)[0]
        return self.mu * float(number[-1 - self._reveals_last(reach)]) * self.spread


class ReplacedRecordsPair(AddedRecordsPair):
    """The same of records that are replaced by opposite ones."""

    name = "opposed"
    directed = False
    spread = 2.0


class LowerHullPair(GridPair):
    """The pair of H, on a grid one of whose points is 0.

    Fields of the constructor:
        near: a folded pair, of which h₁ is the profile.
        far: a pair of measures, direction +1 of which has the profile h₂ at ε − shift.
        shift: ≥ 0; Q₂ is e^{−shift} of what `far` says.
    """

    folded = True

    def __init__(self, near: GridPair, far: GridPair, shift: float) -> None:
        self._near, self._far, self._shift = near, far, shift
        self.name = near.name

    def atom(self, mu: Any, rate: Numbers) -> Numbers:
        return self._near.atom(mu, rate)

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        near = self._near.loss_range(sign, mu, rate, reach)[1]
        far = self._far.loss_range(1, mu, rate, reach)[1] + self._shift
        most = max(min(near, far), 1e-9)
        return -most, most

    def masses(self, sign: int, mu: float, rate: float, losses: np.ndarray) -> Masses:
        p, q, above = self._near.masses(sign, mu, rate, losses)
        zero = int(np.searchsorted(losses, 0.0))
        p2, q2, above2 = self._far.masses(1, mu, rate, losses[zero:] - self._shift)
        q2 = q2 * np.exp(-self._shift)
        right = _spliced(losses[zero:], (p[zero:], q[zero:], above), (p2, q2, above2))
        if right is None:
            return p, q, above
        p_right, q_right, above = right
        # The mirror image, on whatever part of it the grid has.
        p, q = p.copy(), q.copy()
        p[zero:], q[zero:] = p_right, q_right
        count = min(zero, len(p_right))
        p[zero - count : zero], q[zero - count : zero] = (
            q_right[:count][::-1],
            p_right[:count][::-1],
        )
        return p, q, above


def _beyond(grid: np.ndarray, law: tuple) -> tuple[np.ndarray, np.ndarray]:
    """Q of more than each loss, and the profile there, rounded up."""
    p, q, above = law
    p_beyond = np.append(np.cumsum(p[::-1])[::-1], 0.0) + above
    with np.errstate(under="ignore"):
        q_beyond = np.append(np.cumsum(q[::-1])[::-1], 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        height = p_beyond - np.exp(grid) * q_beyond
    return q_beyond, np.maximum(height, 0.0) + _ROUND * p_beyond


def _spliced(grid: np.ndarray, near: tuple, far: tuple) -> tuple | None:
    """The masses of H on the grid of ε ≥ 0; None where h₂ is nowhere less."""
    searched = int(np.searchsorted(grid, _FAR))
    if searched < 3:
        return None
    (q_near, h_near), (q_far, h_far) = _beyond(grid, near), _beyond(grid, far)
    less = np.flatnonzero(h_far[:searched] < h_near[:searched] * (1 - 1e-9))
    if not len(less) or less[-1] == 0:
        return None
    gamma = np.exp(grid[:searched])
    start = max(int(less[0]), 1)
    a, b = start - 1, start
    # The line that touches both, one end at a time.
    for _ in range(_TRIES):
        last = a, b
        slope = (h_far[start:searched] - h_near[a]) / (gamma[start:] - gamma[a])
        b = start + int(np.argmin(slope))
        slope = (h_far[b] - h_near[:start]) / (gamma[b] - gamma[:start])
        a = int(np.argmax(slope))
        if last == (a, b):
            break
    slope = (h_far[b] - h_near[a]) / (gamma[b] - gamma[a])
    p, q = np.append(near[0][:a], far[0][a:]), np.append(near[1][:a], far[1][a:])
    p[a:b], q[a:b] = 0.0, 0.0
    # Where Q of more than a loss jumps: at the ends of the chord, each in the bin on its left.
    jump = max(-slope * (1 + _ROUND) - q_far[b], 0.0)
    p[b - 1], q[b - 1] = jump * gamma[b], jump
    jump = max(q_near[a] * (1 + _ROUND) + slope, 0.0)
    if a > 0:
        p[a - 1], q[a - 1] = p[a - 1] + jump * gamma[a], q[a - 1] + jump
    elif jump > 0:
        p[0] += jump * gamma[1]
        q[0] += jump
    return p, q, float(far[2])


class Part(NamedTuple):
    """One label: its probability, and the displacement and rate of its pair."""

    weight: float
    mu: float
    rate: float


class RevealedMixture(GridPair):
    """Σ weight·pair(μ, rate) over the parts; its own numbers count.

    Probabilities that are rounded up make an upper bound. `revealed` is the probability of labels
    that stand in no part, which are taken to reveal everything.
    """

    def __init__(self, pair: GridPair, parts: list[Part], revealed: float = 0.0) -> None:
        self._pair = pair
        self._parts = [part for part in parts if part.weight > 0 and part.rate > 0]
        self._revealed = revealed
        self.name, self.directed, self.folded = pair.name, pair.directed, pair.folded

    def atom(self, mu: Any, rate: Numbers) -> Any:
        return sum(p.weight * float(self._pair.atom(p.mu, p.rate)) for p in self._parts)

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        from scipy.special import ndtri

        rare = float(ndtr(-reach))
        ends = []
        for part in self._parts:
            # As far as this label's own share of the tail.
            own = -float(ndtri(min(rare / part.weight, 0.5)))
            ends.append(self._pair.loss_range(sign, part.mu, part.rate, min(own, reach)))
        if not ends:
            return 0.0, 0.0
        return min(low for low, _ in ends), max(high for _, high in ends)

    def masses(self, sign: int, mu: float, rate: float, losses: np.ndarray) -> Masses:
        p, q = np.zeros(len(losses) - 1), np.zeros(len(losses) - 1)
        above = self._revealed
        for part in self._parts:
            found = self._pair.masses(sign, part.mu, part.rate, losses)
            p, q = p + part.weight * found[0], q + part.weight * found[1]
            above += part.weight * found[2]
        return p, q, float(above)

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        if len(self._parts) == 1 and not self._revealed:
            return self._pair.origin(sign, self._parts[0].mu, self._parts[0].rate, h)
        return super().origin(sign, mu, rate, h)


def read_redrawn(step: WithReplacement, adjacency: Adjacency) -> SampledRelease | None:
    """A step whose batch is drawn with replacement.

    Its numbers are the displacement of one replaced record over the noise, the draws, and how many
    records there are; the rate is that of batches with the one.
    """
    inner = step.mechanism
    if adjacency is not Adjacency.REPLACE_ONE:
        return None
    if type(inner) not in DOMINATED or not samplable(inner):
        return None
    inner = widen(inner)  # arrays divide by 0
    with np.errstate(divide="ignore", invalid="ignore"):
        mu = np.sqrt(np.asarray(gaussian_pair(inner).replace_one, np.float64))
        population = np.asarray(step.population, np.float64)
        taken = -np.expm1(step.batch_size * np.log1p(-1 / population))
    rate = np.where(np.asarray(step.batch_size) > 0, taken, 0.0)
    return SampledRelease(REDRAWN, (mu, step.batch_size, population), rate, symmetric=True)


def _lay_copies(own: SampledRelease) -> GridPair:
    mu, draws, population = (float(number) for number in own.numbers)
    return CopiesPair(mu, with_replacement_law(draws, 1.0, population))


REDRAWN = Laid(_lay_copies, tight=True)


class CopiesPair(AddedRecordsPair):
    """How often the record was drawn: released for an upper bound, hidden for a lower one."""

    name = "copies"

    def side(self, sign: int, mu: float, rate: float, reach: float, upper: bool) -> GridPair:
        mu, law = self.mu, self.law
        if not upper:
            return super().side(sign, mu, rate, reach, False)
        (j, weight), off = merge_weights(law, True), relative_weight_error(law)
        near = labelled(Symmetrised(), mu, j, weight, off, reach)
        hidden = super().side(1, mu, rate, reach, True)
        without = float(weight[0]) * (1 - off)
        return LowerHullPair(near, hidden, -float(np.log(without))) if without > 1e-9 else near


def labelled(
    pair: GridPair, mu: float, j: np.ndarray, weight: np.ndarray, off: float, reach: float
) -> RevealedMixture:
    """j copies at displacement jμ, each at the rate of any: rounded up.

    Args:
        pair: of one copy's displacement and rate.
        mu: that displacement.
        j, weight: numbers of copies, 0 first, and their probabilities, rounded towards more.
        off: bound on the relative error of the probabilities.
        reach: normal quantile beyond which mass is cut.
    """
    any_ = float(weight[1:].sum())
    rate = min(any_ * (1 + off), 1.0)
    own = weight[1:] / any_ * (1 + 3 * off)
    rare = _is_rare(own, reach)
    parts = [Part(float(own[i]), float(j[1:][i] * mu), rate) for i in np.flatnonzero(~rare)]
    return RevealedMixture(pair, parts, rate * float(own[rare].sum()))


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
    pair: GridPair = Replace() if replaced else Poisson()
    return RevealedMixture(pair, [Part(uncut, mu, float(own.rate)), Part(cut, 2 * mu, cut_rate)])


TRUNCATED = Laid(_lay_truncated, tight=True, sampled=False)
# (step, adjacency) -> the step's numbers, of which the first is the displacement over the noise.
OF_RECORDS: dict[type, Callable[[Any, Adjacency], SampledRelease | None]] = {
    TruncatedPoissonSampled: read_truncated,
    WithReplacement: read_redrawn,
}


def _cut(rate: np.ndarray, n: np.ndarray, k: np.ndarray) -> tuple[Any, Any, Any]:
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
