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
batch's step of displacement jμ and rate η, which C_η(G_{jμ}) dominates (`pairs/fixed_batches.py`).
For ε ≥ 0 and ε' = log(1 + η(e^ε − 1)) the profile is that of Balle, Barthe and Gaboardi 2018,
Theorem 10: δ'(ε') = Σ_{j>0} w_j δ_{jμ}(ε).

A record whose replacement contributes what all others do attains Σ_j w_j N(jμ, 1) against N(0, 1),
where j stays hidden (`pairs/user_level.py`): the lower end. It does not dominate: at ε = 0, of two
records of opposite contributions among others of none, the total variation is Σ_j w_j TV_j, which
is what the bound says and more than the hidden mixture's.

References:
  Balle, Barthe, Gaboardi 2018 (arXiv 1807.01647), Theorems 2 and 10; Dong, Roth, Su 2022 (C_q).
"""

from __future__ import annotations

import numpy as np

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import WithReplacement
from dpjax.accounting.mechanisms.steps import widen
from dpjax.accounting.pairs.added_records import AddedRecordsPair
from dpjax.accounting.pairs.count_law import (
    merge_weights,
    relative_weight_error,
    with_replacement_law,
)
from dpjax.accounting.pairs.fixed_batches import Symmetrised
from dpjax.accounting.pairs.gaussian import DOMINATED, gaussian_pair, samplable
from dpjax.accounting.pairs.protocol import GridPair, Laid, SampledRelease
from dpjax.accounting.pairs.revealed import labelled
from dpjax.accounting.pairs.spliced import LowerHullPair


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
