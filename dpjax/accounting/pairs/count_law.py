"""How many of a user's records a batch has: few numbers and their probabilities, on one side.

* Poisson sampling, and draws with replacement: the binomial law.
* Batches of m of n records without replacement: the hypergeometric law of k records.

Weights may be moved to a larger number for an upper bound and to a smaller one for a lower bound
wherever more records are told apart better: the tails of the law, and neighbouring numbers where
there are many.

References:
  Ganesh 2024 (arXiv 2401.10294), monotonicity; Hoeffding 1963, Theorems 2 and 4.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from dpjax.accounting.pairs.uses import binomial

_PARTS = 256  # records of a user that are told apart
_MOST_RECORDS = 1e9  # records of a user whose numbers are listed
_TAIL = 1e-40
_ROUND = 1e-12  # beyond the relative error of the masses, with _ROUND_SPREAD
_ROUND_SPREAD = 1e-14  # of it for each standard deviation of how many are drawn
_LEAST_LISTED = 1e-300  # of the probability that is listed of no record at all


class Binomial(NamedTuple):
    """The number of successes in independent trials, each with the same probability.

    Fields:
        trials: how many.
        rate: the probability.
        odds: rate/(1 − rate), where it is known to more digits than from the rate.
    """

    trials: float
    rate: float
    odds: float | None = None

    @property
    def most(self) -> float:
        """The largest number."""
        return self.trials

    @property
    def spread(self) -> float:
        """The standard deviation."""
        return float(np.sqrt(self.trials * self.rate / (1 + self._ratio)))

    @property
    def _ratio(self) -> float:
        with np.errstate(divide="ignore"):
            return float(np.divide(self.rate, 1 - self.rate) if self.odds is None else self.odds)

    def masses(self) -> tuple[float, np.ndarray]:
        """The first number that is listed, and the probabilities from it on."""
        return binomial(self.trials, self._ratio)


def with_replacement_law(draws: float, records: float, population: float) -> Binomial:
    """The number of draws with replacement that give one of some records; its odds round once.

    Example:
        >>> with_replacement_law(5.0, 2.0, 3.0).odds, with_replacement_law(5.0, 3.0, 3.0).odds
        (2.0, inf)
    """
    records = min(records, population)
    with np.errstate(divide="ignore"):
        odds = float(np.divide(records, population - records))
    return Binomial(draws, records / population, odds)


class Hypergeometric(NamedTuple):
    """How many of a user's records are in a uniform batch without replacement."""

    records: float
    batch: float
    population: float

    @property
    def most(self) -> float:
        """The largest number, or one that is never reached."""
        return min(self.records, self.batch)

    @property
    def rate(self) -> float:
        """The law is the same with records and batch exchanged: how likely one of the fewer is."""
        return max(self.records, self.batch) / self.population

    @property
    def spread(self) -> float:
        """The standard deviation, or more."""
        return float(np.sqrt(self.most * self.rate * (1 - self.rate)))

    def masses(self) -> tuple[float, np.ndarray]:
        """By the ratios of the masses, from about the mode outwards.

        What is left out has mass at most 2e^{−690}, as of independent trials (Hoeffding 1963).
        """
        most, larger = self.most, max(self.records, self.batch)
        others = self.population - larger  # exact, or large beside `most`
        least = max(most - others, 0.0)
        mode = np.floor((most + 1) * ((larger + 1) / (self.population + 2)))
        mode = float(np.clip(mode, least, most))  # rounding may have moved it out
        reach = np.ceil(np.sqrt(345.0 * most)) + 2
        up = np.arange(mode, min(most, mode + reach))
        down = np.arange(mode, max(least, mode - reach), -1.0)
        left = others - most
        with np.errstate(under="ignore"):
            above = np.cumprod((most - up) / (up + 1) * ((larger - up) / (left + up + 1)))
            below = np.cumprod(down / (most - down + 1) * ((left + down) / (larger - down + 1)))
        mass = np.concatenate([below[::-1], [1.0], above])  # relative to the mass at the mode
        return mode - len(below), mass / mass.sum()


CountLaw = Binomial | Hypergeometric


@functools.lru_cache(maxsize=64)
def merge_weights(law: CountLaw, upper: bool) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of records in a batch, 0 first, and their probabilities: few, and on one side.

    No record at all is listed with a probability of 1e-300 at least, which
    `merge_weights_without_zero` takes away.

    Example:
        >>> merge_weights(Hypergeometric(2.0, 1.0, 4.0), True)
        (array([0., 1.]), array([0.5, 0.5]))
    """
    if law.most > _MOST_RECORDS:  # of users of users: all are drawn, or one at most
        count = np.array([0.0, law.most if upper else 1.0])
        return count, np.array([_LEAST_LISTED, 1.0] if upper else [1 - law.rate, law.rate])
    if law.most == 0:
        return np.zeros(1), np.ones(1)
    first, mass = law.masses()
    nothing = float(mass[0]) if first == 0 else 0.0
    # Numbers whose tails weigh at least about _TAIL, which neither end of the law need reach.
    below, above = np.cumsum(mass), np.cumsum(mass[::-1])[::-1]
    low = max(int(np.argmax(below > _TAIL)), int(first == 0))
    high = max(int(np.flatnonzero(above > _TAIL)[-1]), low) + 1
    j, weight = first + np.arange(low, high), mass[low:high].copy()
    below = max(float(below[low - 1]) - nothing, 0.0) if low > 0 else 0.0
    above = float(above[high]) if high < len(mass) else 0.0
    if upper:
        # the upper tail counts as all records
        j, weight = np.append(j, law.most), np.append(weight, above)
        weight[0] += below
    else:
        # the tails move down: fewer records
        nothing, weight[-1] = nothing + below, weight[-1] + above
    if len(j) > _PARTS:
        starts = np.linspace(0, len(j), _PARTS + 1).astype(int)[:-1]
        # neighbours together, at the largest or the smallest of them
        weight = np.add.reduceat(weight, starts)
        j = j[np.append(starts[1:], len(j)) - 1] if upper else j[starts]
    kept = weight > 0
    found = np.append(0.0, j[kept]), np.append(max(nothing, _LEAST_LISTED), weight[kept])
    for array in found:
        array.setflags(write=False)  # they are cached
    return found


def merge_weights_without_zero(law: CountLaw) -> tuple[np.ndarray, np.ndarray]:
    """`merge_weights` for an upper bound, without a number 0 of no probability, or too little.

    Where losses are large, whoever sees that there is a record of the user may learn more than a
    factor of 1e300.

    Example:
        >>> merge_weights_without_zero(Binomial(2.0, 1.0))
        (array([2.]), array([1.]))
    """
    j, weight = merge_weights(law, True)
    some = slice(int(weight[0] <= _LEAST_LISTED and len(j) > 1), None)
    return j[some], weight[some]


def relative_weight_error(law: CountLaw) -> float:
    """A bound on the relative error of the probabilities of `merge_weights`.

    They are products of ratios, z standard deviations of them at z of those from the mean. Against
    50 digits, for each standard deviation and up to z = 12.9: at most 1.4e-15 of a binomial law.
    Odds that are rounded once move the logarithm of the mass of j by j − mean roundings, of which
    there are at most 45 for each deviation, and one more (Poisson's law has the longest tail).
    A number that is certain, as at rate 0 or 1, has probability 1 without error.

    Example:
        >>> relative_weight_error(Binomial(1e12, 0.25)) > 4e-9
        True
    """
    return _ROUND + _ROUND_SPREAD * (law.spread + 1) if law.spread > 0 else 0.0
