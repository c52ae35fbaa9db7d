"""All records of a user in a sampled Gaussian: which pair their steps take.

| the sample | ADD_REMOVE | REPLACE_ONE |
|---|---|---|
| Poisson | `pairs/users.py`, attained | `pairs/opposed.py`, attained |
| a fixed batch without replacement | none | `pairs/replacement.py`, from above and from below |
| draws with replacement | none | the same |

Of batches of m of n records J are the user's, by the hypergeometric law; of m draws, each of which
is one of the user's with probability k/n, by the binomial one. What `pairs/replacement.py` proves
of one record's copies holds of them: a batch of others, j of which are turned into records of the
user, drawn at random, couples the batches with none and those with j, before and after replacing,
and displaces the sum by at most j times the replace-one diameter. In a batch that always has a
record of the user, η = 1 and no batch of others is needed.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import UserLevel, WithReplacement
from dpjax.accounting.pairs.atoms import atom_kind
from dpjax.accounting.pairs.counts import Binomial, Hypergeometric, drawn
from dpjax.accounting.pairs.opposed import Opposed
from dpjax.accounting.pairs.protocol import Discretisable
from dpjax.accounting.pairs.release import Known
from dpjax.accounting.pairs.replacement import DRAWN, Copies
from dpjax.accounting.pairs.table import SCHEMES
from dpjax.accounting.pairs.users import Users


class Sample:
    """One row of the table.

    Its numbers begin with the displacement of one record over the noise, and how many records a
    user has.
    """

    kind = UserLevel
    sampled = True

    def __init__(self, tight: bool) -> None:
        self.tight = tight  # whether no other method is below

    def grid(self, own: Known) -> Discretisable:
        raise NotImplementedError


class Added(Sample):
    """A Poisson sample, a user's records added or removed."""

    def grid(self, own: Known) -> Discretisable:
        mu, records = (float(number) for number in own.numbers)
        return Users(mu, Binomial(records, float(own.rate)))


class Replaced(Sample):
    """A Poisson sample, a user's records replaced."""

    def grid(self, own: Known) -> Discretisable:
        mu, records = (float(number) for number in own.numbers)
        return Opposed(mu, Binomial(records, float(own.rate)))


class Fixed(Sample):
    """A batch without replacement; its further numbers are its size and the population."""

    def grid(self, own: Known) -> Discretisable:
        mu, records, size, population = (float(number) for number in own.numbers)
        return Copies(mu, Hypergeometric(min(records, population), size, population))


class Redrawn(Sample):
    """Draws with replacement; its further numbers are the draws and how many records there are."""

    def grid(self, own: Known) -> Discretisable:
        mu, records, draws, population = (float(number) for number in own.numbers)
        return Copies(mu, drawn(draws, records, population))


ADDED, REPLACED = Added(tight=True), Replaced(tight=False)
FIXED, REDRAWN = Fixed(tight=False), Redrawn(tight=False)


class Group:
    """The table, as a `release.Laid`: the numbers that it finds name their own row."""

    kind = UserLevel
    tight = sampled = True

    def known(self, step: UserLevel, adjacency: Adjacency) -> Known | None:
        inner, replaced = step.mechanism, adjacency is Adjacency.REPLACE_ONE
        if isinstance(inner, WithReplacement):
            one = DRAWN.known(inner, adjacency)
            if one is None:
                return None
            mu, *others = one.numbers
            return Known(REDRAWN, (mu, step.records, *others), one.rate, symmetric=True)
        try:
            kind = atom_kind(jax.tree.structure(inner), adjacency)
        except UnsupportedQuery:
            return None
        if kind not in ("poisson", "fixed"):
            return None
        if not is_traced(inner):  # arrays divide by 0
            inner = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), inner)
        with np.errstate(divide="ignore"):
            mu, rate, *_ = SCHEMES[type(inner)].parameters(inner, adjacency)
        if kind == "poisson":
            return Known(REPLACED if replaced else ADDED, (mu, step.records), rate, replaced)
        batch: Any = inner  # fixed batches are priced for replaced records alone
        numbers = (mu, step.records, batch.batch_size, batch.population)
        return Known(FIXED, numbers, rate, symmetric=True)

    def grid(self, own: Known) -> Discretisable:
        return own.release.grid(own)


GROUP = Group()
