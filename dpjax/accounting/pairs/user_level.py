"""A user's records in a sampled Gaussian: which pair their steps take.

| the sample | ADD_REMOVE | REPLACE_ONE |
|---|---|---|
| Poisson | `AddedRecordsPair`, attained | `ReplacedRecordsPair`, attained |
| a fixed batch without replacement | none | `pairs/revealed.py`, from above and from below |
| draws with replacement | none | the same |

A Poisson sample, a user added or removed: Σ_j Bin(k, q)(j) N(jμ, 1) against N(0, 1). Each of the
user's k records takes part by itself, so that J ~ Bin(k, q) of them move the sum by at most J clip
norms, and neighbours whose contributions are aligned attain the pair. It dominates all others
(Ganesh 2024). Given the other records' batch, which is drawn alike on both sides, let x_S be the
sum of the contributions of the records S that take part, |x_S| ≤ |S|μ, and E an event of mass a
under N(0, I). By Neyman and Pearson N(x_S, I) gives E at most Φ(Φ⁻¹(a) + |S|μ) and at least
Φ(Φ⁻¹(a) − |S|μ): what N(|S|μ, 1) gives the upper, and the lower, half line of mass a under N(0, 1).
That is one half line for all S, so that the mixture over S gives E no more, and no less, than the
pair gives that half line, and both hockey-stick divergences are at most the pair's. Dominating
pairs compose, for an adversary who chooses anew at every step as well (Zhu, Dong and Wang 2022,
Theorem 10).

A Poisson sample, a user's records replaced: Σ_j Bin(k, q)(j) N(jμ, 1) against N(−jμ, 1). Each that
takes part contributes one vector of at most μ in one data set and another in its neighbour. Let E
be an event of mass a = Φ(z) under the release without the user. A subset S that takes part gives it
at most Φ(z + |S|μ) in the one and at least Φ(z − |S|μ) in the other, one half line for all S on
both sides, so that

    P(E) − e^ε Q(E) ≤ Σ_j Bin(k, q)(j) (Φ(z + jμ) − e^ε Φ(z − jμ)):

what the pair of mixtures gives its half line. They are attained by contributions that are all
opposite to those that replace them. For one record this is `mixtures.replace_one`, whose dominance
it proves (derived for dpjax).

Weights may be moved to a larger j for an upper bound and to a smaller one for a lower bound
(Ganesh 2024, monotonicity; `pairs/count_law.py`): what a half line is given rises with j.

Of batches of m of n records J are the user's, by the hypergeometric law; of m draws, each of which
is one of the user's with probability k/n, by the binomial one. What `pairs/redrawn.py` proves
of one record's copies holds of them: a batch of others, j of which are turned into records of the
user, drawn at random, couples the batches with none and those with j, before and after replacing,
and displaces the sum by at most j times the replace-one diameter. In a batch that always has a
record of the user, η = 1 and no batch of others is needed.

References:
  Ganesh 2024 (arXiv 2401.10294), "Tight group-level DP guarantees for DP-SGD with sampling via
  mixture of Gaussians mechanisms"; Zhu, Dong, Wang 2022, "Optimal accounting of differential
  privacy via characteristic function".
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import FixedBatchSampled, UserLevel, WithReplacement
from dpjax.accounting.mechanisms.steps import widen
from dpjax.accounting.pairs.added_records import AddedRecordsPair, ReplacedRecordsPair
from dpjax.accounting.pairs.atoms import SAMPLING_RULES, atom_kind
from dpjax.accounting.pairs.count_law import (
    Binomial,
    CountLaw,
    Hypergeometric,
    with_replacement_law,
)
from dpjax.accounting.pairs.protocol import GridPair, Laid, SampledRelease
from dpjax.accounting.pairs.redrawn import CopiesPair, read_redrawn


def _lay(
    pair: Callable[[float, CountLaw], GridPair], law: Callable[..., CountLaw], tight: bool
) -> Laid:
    """One row of the table.

    Args:
        pair: of the displacement of one record over the noise, and the law of how many are drawn.
        law: from the sampling rate and the further numbers, of which the first is how many records
            a user has.
        tight: whether no other method is below.
    """

    def grid(own: SampledRelease) -> GridPair:
        mu, *numbers = (float(number) for number in own.numbers)
        return pair(mu, law(float(own.rate), *numbers))

    return Laid(grid, tight)


def _count_in_batch(rate: float, records: float, size: float, population: float) -> CountLaw:
    return Hypergeometric(min(records, population), size, population)


ADDED = _lay(AddedRecordsPair, lambda rate, records: Binomial(records, rate), True)
REPLACED = _lay(ReplacedRecordsPair, lambda rate, records: Binomial(records, rate), False)
_FIXED = _lay(CopiesPair, _count_in_batch, False)
_REDRAWN = _lay(
    CopiesPair, lambda rate, records, draws, n: with_replacement_law(draws, records, n), False
)


def read_user(step: UserLevel, adjacency: Adjacency) -> SampledRelease | None:
    """The row of the table that lays all records of a user, and the step's numbers."""
    inner, replaced = step.mechanism, adjacency is Adjacency.REPLACE_ONE
    if isinstance(inner, WithReplacement):
        one = read_redrawn(inner, adjacency)  # the pair of one record
        if one is None:
            return None
        mu, *others = one.numbers
        return SampledRelease(_REDRAWN, (mu, step.records, *others), one.rate, symmetric=True)
    try:
        kind = atom_kind(jax.tree.structure(inner), adjacency)
    except UnsupportedQuery:
        return None
    if kind not in ("poisson", "fixed"):
        return None
    inner = widen(inner)  # arrays divide by 0
    with np.errstate(divide="ignore"):
        mu, rate, *_ = SAMPLING_RULES[type(inner)].parameters(inner, adjacency)
    if kind == "poisson":
        return SampledRelease(REPLACED if replaced else ADDED, (mu, step.records), rate, replaced)
    assert isinstance(inner, FixedBatchSampled)  # priced for replaced records alone
    numbers = (mu, step.records, inner.batch_size, inner.population)
    return SampledRelease(_FIXED, numbers, rate, symmetric=True)  # C_q of j records, j revealed
