"""A user's records replaced in a Poisson sample: Σ_j Bin(k, q)(j) N(jμ, 1) against N(−jμ, 1).

J ~ Bin(k, q) of a user's k records take part, and each that does contributes one vector of at most
μ in one data set and another in its neighbour. Given the other records' batch, which is drawn alike
on both sides, let E be an event of mass a = Φ(z) under the release without the user, N(0, I). A
subset S that takes part gives it at most Φ(z + |S|μ) in the one and at least Φ(z − |S|μ) in the
other (Neyman and Pearson). That is one half line for all S on both sides, so that

    P(E) − e^ε Q(E) ≤ Σ_j Bin(k, q)(j) (Φ(z + jμ) − e^ε Φ(z − jμ)):

what the pair of mixtures gives its half line. They are attained by contributions that are all
opposite to those that replace them. For one record this is the pair of `pairs/poisson.py`, whose
dominance it proves. Derived for dpjax, by the argument of `pairs/users.py`.

With R(y) = Σ_j w_j e^{jμy − j²μ²/2} the loss D(y) = log R(y) − log R(−y) is odd and rises. A bound
that rises with j for every half line stays one where weights are moved to larger j.

All records of a user in a sampled Gaussian: which pair their steps take.

| the sample | ADD_REMOVE | REPLACE_ONE |
|---|---|---|
| Poisson | `pairs/users.py`, attained | `Opposed` below, attained |
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
from dpjax.accounting.pairs.counts import (
    Binomial,
    Hypergeometric,
    Law,
    above,
    drawn,
    few,
    mass_error,
)
from dpjax.accounting.pairs.on_grid import ndtr
from dpjax.accounting.pairs.protocol import Discretisable, Known
from dpjax.accounting.pairs.replacement import DRAWN, Copies
from dpjax.accounting.pairs.table import SCHEMES
from dpjax.accounting.pairs.users import Users, log_sum, mixed_mass

_TABLE = 4096
_EPS = float(np.finfo(np.float64).eps)


class Opposed(Users):
    """The pair, laid on grids: an upper bound's and a lower one's weights differ."""

    name = "opposed"
    directed = False

    def __init__(self, mu: float, law: Law) -> None:
        super().__init__(mu, law)
        self.most *= 2  # where all records are in a batch

    def side(self, sign: int, mu: float, rate: float, reach: float, upper: bool) -> Discretisable:
        mu, law = self._own
        off = mass_error(law)
        return Mixtures(mu, *(above(law) if upper else few(law, False)), off if upper else -off)


class Mixtures:
    """(1 + off)·Σ_j w_j N(jμ, 1) against (1 − off)·Σ_j w_j N(−jμ, 1); j ascends."""

    name = "mixtures"
    directed = False
    folded = False

    def __init__(self, mu: float, j: np.ndarray, weight: np.ndarray, off: float) -> None:
        self._shift, self._weight, self._off = j * mu, weight, off
        self._level = np.log(weight) - 0.5 * self._shift**2
        self._more = float(np.log1p(off) - np.log1p(-off))  # of every loss

    def atom(self, mu: Any, rate: Any) -> Any:
        return 0.0

    def loss(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """D and its slope at y."""
        (there, rise), (back, fall) = (log_sum(x, self._shift, self._level) for x in (y, -y))
        return there - back, rise + fall

    def _solve(self, goal: np.ndarray) -> np.ndarray:
        """y >= 0 with D(y) = goal >= 0, ascending: Newton's method between two points of a table.

        R(−y) ≤ 1 for y ≥ 0, so that D(y) is at least the log of any term of R.
        """
        some = self._shift > 0
        with np.errstate(divide="ignore"):
            ends = (goal[-1] - self._level[some]) / self._shift[some]
        table = np.linspace(0.0, max(float(ends.min()), 1.0), _TABLE)
        known = np.maximum.accumulate(self.loss(table)[0])
        place = np.clip(np.searchsorted(known, goal), 1, _TABLE - 1)
        low, high = table[place - 1], table[place]
        rise = known[place] - known[place - 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (goal - known[place - 1]) / rise
        y = low + np.where(np.isfinite(share), np.clip(share, 0.0, 1.0), 0.5) * (high - low)
        rows = np.arange(len(y))
        for _ in range(60):
            value, slope = self.loss(y[rows])
            over = value > goal[rows]
            high[rows] = np.where(over, y[rows], high[rows])
            low[rows] = np.where(over, low[rows], y[rows])
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                new = y[rows] - (value - goal[rows]) / slope
            inside = (new >= low[rows]) & (new <= high[rows])
            new = np.where(inside, new, 0.5 * (low[rows] + high[rows]))
            step = np.abs(new - y[rows])
            y[rows] = new
            # Convergence is quadratic, but not between numbers of records that lie far apart.
            rows = rows[~inside | (step > 1e-9 * (1 + np.abs(new)))]
            if not len(rows):
                break
        return y

    def inverse(self, losses: np.ndarray) -> np.ndarray:
        """y with D(y) = loss, ascending."""
        size = np.abs(losses)
        order = np.argsort(size, kind="stable")
        found = np.empty_like(size)
        found[order] = self._solve(size[order])
        return np.maximum.accumulate(np.sign(losses) * found)

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        if not self._shift.any():
            return 0.0, 0.0
        # Where the mixture has as little mass as a normal law beyond `reach`.
        rare, a, b = float(ndtr(-reach)), 0.0, float(self._shift.max()) + reach
        for _ in range(60):
            middle = 0.5 * (a + b)
            if self._weight @ ndtr(self._shift - middle) > rare:
                a = middle
            else:
                b = middle
        low, high = self.loss(np.array([self._shift[0] - reach, b]))[0] + self._more
        return float(low), float(high)

    def _mixed(self, edges: np.ndarray) -> np.ndarray:
        return mixed_mass(edges, self._shift, self._weight)

    def masses(
        self, sign: int, mu: float, rate: float, losses: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        y = self.inverse(losses - self._more)
        above = float(self._weight @ ndtr(self._shift - y[-1])) * (1 + self._off)
        p, q = self._mixed(y), self._mixed(-y[::-1])[::-1]
        return p * (1 + self._off), q * (1 - self._off), above

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        # By symmetry what lies within h of it has this loss.
        return self._more - 1e-9 * h - 16 * _EPS * abs(self._more), True


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
