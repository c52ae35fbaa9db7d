"""All records of a user in a Poisson sample, added or replaced, laid on a grid."""

from __future__ import annotations

import numpy as np

from dpjax.accounting.pairs import mixtures
from dpjax.accounting.pairs.count_law import (
    CountLaw,
    merge_weights,
    merge_weights_without_zero,
    relative_weight_error,
)
from dpjax.accounting.pairs.mixtures import Mixture
from dpjax.accounting.pairs.on_grid import Weighted
from dpjax.accounting.pairs.protocol import BoundedPair, GridPair
from dpjax.accounting.pairs.revealed import is_rare


class AddedRecordsPair(BoundedPair):
    """A user's records in a batch: mixtures whose weights differ for upper and for lower bounds.

    Args:
        mu: how far one record moves the sum, over the noise's standard deviation.
        law: of how many records are in a batch.
    """

    name = "users"
    spread = 1.0  # how far the means lie apart, in units of how many records are in a batch

    def __init__(self, mu: float, law: CountLaw) -> None:
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
        return len(weight) > 1 and bool(is_rare(weight / weight.sum() * (1 + 3 * off), reach)[-1])

    def largest_mean(self, reach: float) -> float:
        """How far apart the means of `side` lie at most."""
        number = merge_weights(self.law, True)[0]
        return self.mu * float(number[-1 - self._reveals_last(reach)]) * self.spread


class ReplacedRecordsPair(AddedRecordsPair):
    """The same of records that are replaced by opposite ones."""

    name = "opposed"
    directed = False
    spread = 2.0
