"""A user's records in a Poisson sample: Σ_j Bin(k, q)(j) N(jμ, 1) against N(0, 1).

Each of a user's k records takes part by itself, so that J ~ Bin(k, q) of them move the sum by at
most J clip norms, and neighbours whose contributions are aligned attain the pair. It dominates all
others (Ganesh 2024). Given the other records' batch, which is drawn alike on both sides, let x_S be
the sum of the contributions of the records S that take part, |x_S| ≤ |S|μ, and E an event of mass a
under N(0, I). By Neyman and Pearson N(x_S, I) gives E at most Φ(Φ⁻¹(a) + |S|μ) and at least
Φ(Φ⁻¹(a) − |S|μ): what N(|S|μ, 1) gives the upper, and the lower, half line of mass a under N(0, 1).
That is one half line for all S, so that the mixture over S gives E no more, and no less, than the
pair gives that half line, and both hockey-stick divergences are at most the pair's. Dominating
pairs compose, for an adversary who chooses anew at every step as well (Zhu, Dong and Wang 2022,
Theorem 10). With w_j = Bin(k, q)(j) the loss

    L(y) = log Σ_j w_j e^{jμy − j²μ²/2} = log w₀ + log(1 + e^{G(y)}),

G(y) = log Σ_{j>0} (w_j/w₀) e^{jμy − j²μ²/2}, rises and is convex, and so is G, whose slope is at
least μ: Newton's method finds where the loss is. Under REPLACE_ONE no pair is used.

Weights may be moved to a larger j for an upper bound and to a smaller one for a lower bound
(Ganesh 2024, monotonicity): the tails of the binomial law, and neighbouring j where
there are many.

References:
  Ganesh 2024 (arXiv 2401.10294), "Tight group-level DP guarantees for DP-SGD with sampling via
  mixture of Gaussians mechanisms"; Zhu, Dong, Wang 2022, "Optimal accounting of differential
  privacy via characteristic function".
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import UserLevel
from dpjax.accounting.pairs.atoms import atom_kind
from dpjax.accounting.pairs.discrete import binomial
from dpjax.accounting.pairs.protocol import Discretisable
from dpjax.accounting.pairs.ratio import ndtr, normal_mass
from dpjax.accounting.pairs.release import Known
from dpjax.accounting.pairs.table import SCHEMES

_PARTS = 256  # records of a user that are told apart
_MOST = 1e9  # records of a user whose numbers are listed
_TAIL = 1e-40
_ROUND = 1e-12  # beyond the relative error of the binomial masses, with _ROUND_SPREAD
_ROUND_SPREAD = 1e-14  # of it for each standard deviation of how many are drawn
_ROWS = 1 << 14  # points worked on at a time
_COARSE = 2049
_EPS = float(np.finfo(np.float64).eps)


class Group:
    """A user's records in a Poisson-sampled Gaussian, as a `release.Laid`.

    Its numbers are the displacement of one record over the noise, and how many records a user has.
    """

    kind = UserLevel
    tight = sampled = True

    def known(self, step: UserLevel, adjacency: Adjacency) -> Known | None:
        if adjacency is not Adjacency.ADD_REMOVE:
            return None
        inner = step.mechanism
        try:
            if atom_kind(jax.tree.structure(inner), adjacency) != "poisson":
                return None
        except UnsupportedQuery:
            return None
        if not is_traced(inner):  # arrays divide by 0
            inner = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), inner)
        with np.errstate(divide="ignore"):
            mu, rate, *_ = SCHEMES[type(inner)].parameters(inner, adjacency)
        return Known(self, (mu, step.records), rate)

    def grid(self, own: Known) -> Discretisable:
        return Users(float(own.numbers[0]), float(own.numbers[1]), float(own.rate))


GROUP = Group()


@functools.lru_cache(maxsize=64)
def multiplicities(records: float, rate: float, upper: bool) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of records in a sample, 0 first, and their probabilities: few, and on one side."""
    if records > _MOST:  # of users of users: all are drawn, or one at most
        few = np.array([0.0, records if upper else 1.0])
        return few, np.array([1e-300, 1.0]) if upper else np.array([1 - rate, rate])
    with np.errstate(divide="ignore"):
        first, mass = binomial(records, np.divide(rate, 1 - rate))
    nothing = float(mass[0]) if first == 0 else 0.0
    # Numbers whose tails weigh at least about _TAIL, which neither end of the law need reach.
    below, above = np.cumsum(mass), np.cumsum(mass[::-1])[::-1]
    low = max(int(np.argmax(below > _TAIL)), int(first == 0))
    high = max(int(np.flatnonzero(above > _TAIL)[-1]), low) + 1
    j, weight = first + np.arange(low, high), mass[low:high].copy()
    below = max(float(below[low - 1]) - nothing, 0.0) if low > 0 else 0.0
    above = float(above[high]) if high < len(mass) else 0.0
    if upper:
        j, weight = np.append(j, records), np.append(weight, above)
        weight[0] += below
    else:
        nothing, weight[-1] = nothing + below, weight[-1] + above
    if len(j) > _PARTS:
        starts = np.linspace(0, len(j), _PARTS + 1).astype(int)[:-1]
        weight = np.add.reduceat(weight, starts)
        j = j[np.append(starts[1:], len(j)) - 1] if upper else j[starts]
    kept = weight > 0
    found = np.append(0.0, j[kept]), np.append(max(nothing, 1e-300), weight[kept])
    for array in found:
        array.setflags(write=False)  # they are cached
    return found


def mass_error(records: float, rate: float) -> float:
    """A bound on the relative error of the probabilities of `multiplicities`.

    They are products of ratios, z·√(kq(1 − q)) of them at z standard deviations from the mean:
    against 50 digits at most 1.4e-15 for each standard deviation, up to z = 12.9.

    Example:
        >>> mass_error(1e12, 0.25) > 4e-9
        True
    """
    return float(_ROUND + _ROUND_SPREAD * np.sqrt(records * rate * (1 - rate)))


class Users:
    """The mixture, laid on grids: an upper bound's and a lower one's weights differ."""

    name = "users"
    directed = True
    folded = False

    def __init__(self, mu: float, records: float, rate: float) -> None:
        self._own = mu, records, rate

    def side(self, sign: int, mu: float, rate: float, reach: float, upper: bool) -> Discretisable:
        mu, records, rate = self._own
        j, weight = multiplicities(records, rate, upper)
        # The mixture's mass is what δ counts in one direction, and what it takes off in the other.
        off = mass_error(records, rate)
        more = 1 + off if upper == (sign > 0) else 1 - off
        return Mixture(mu, j, weight * more)

    def atom(self, mu: Any, rate: Any) -> Any:
        return 0.0

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        return self.side(sign, mu, rate, reach, True).loss_range(sign, mu, rate, reach)

    def masses(
        self, sign: int, mu: float, rate: float, losses: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        raise NotImplementedError("its weights are known from above and from below: ask side")

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        return 0.0, False


class Mixture:
    """Σ_j w_j N(jμ, 1) against N(0, 1), and the reverse; j ascends from 0."""

    name = "mixture"
    directed = True
    folded = False

    def __init__(self, mu: float, j: np.ndarray, weight: np.ndarray) -> None:
        self._mu, self._j, self._weight = mu, j, weight
        self._floor = float(np.log(weight[0]))
        own = np.log(weight[1:]) - self._floor
        self._slope, self._level = j[1:] * mu, own - 0.5 * (j[1:] * mu) ** 2

    def atom(self, mu: Any, rate: Any) -> Any:
        return 0.0

    def _exponent(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """G and its slope at y."""
        value, slope = np.empty_like(y), np.empty_like(y)
        for start in range(0, len(y), _ROWS):
            rows = slice(start, start + _ROWS)
            terms = y[rows, None] * self._slope + self._level
            top = terms.max(axis=1)
            with np.errstate(under="ignore"):
                part = np.exp(terms - top[:, None])
            total = part.sum(axis=1)
            value[rows] = top + np.log(total)
            slope[rows] = part @ self._slope / total
        return value, slope

    def loss(self, y: np.ndarray) -> np.ndarray:
        """L at y."""
        return self._floor + np.logaddexp(0.0, self._exponent(np.atleast_1d(y))[0])

    def _solve(self, goal: np.ndarray) -> np.ndarray:
        """y with G(y) = goal: Newton's method from above, where a convex function's steps stay."""
        y = np.full(len(goal), np.inf)
        for slope, level in zip(self._slope, self._level, strict=True):
            y = np.minimum(y, (goal - level) / slope)
        for _ in range(40):
            value, slope = self._exponent(y)
            step = (value - goal) / slope
            y = y - step
            if np.all(np.abs(step) <= 4e-16 * (1 + np.abs(y))):
                break
        return y

    def _inverse(self, losses: np.ndarray) -> np.ndarray:
        """y with L(y) = loss; −∞ at and below the least loss log w₀."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            rise = losses - self._floor
            goal = rise + np.log(-np.expm1(-rise))
        found = np.full(len(losses), -np.inf)
        some = (rise > 0) & (goal > -1e6)
        if not some.any():
            return found
        goal = goal[some]
        if len(goal) > 4 * _COARSE:
            # Cubic interpolation of the inverse, and Newton from there.
            table_goal = np.linspace(goal[0], goal[-1], _COARSE)
            table = self._solve(table_goal)
            slope = 1 / self._exponent(table)[1]
            y = _hermite(table_goal, table, slope, goal)
            rows = np.arange(len(y))
            for _ in range(40):
                value, slope = self._exponent(y[rows])
                step = (value - goal[rows]) / slope
                y[rows] -= step
                # Convergence is quadratic, but not between numbers of records that lie far apart.
                rows = rows[np.abs(step) > 1e-9 * (1 + np.abs(y[rows]))]
                if not len(rows):
                    break
        else:
            y = self._solve(goal)
        found[some] = y
        return np.maximum.accumulate(found)

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        if not len(self._slope):
            return 0.0, 0.0
        if sign < 0:
            low, high = self.loss(np.array([reach, -reach]))
            return -float(low), -float(high)
        # Where the mixture has as little mass as a normal law beyond `reach`.
        rare, a, b = float(ndtr(-reach)), 0.0, float(self._slope.max()) + reach
        for _ in range(60):
            middle = 0.5 * (a + b)
            if self._weight @ ndtr(self._j * self._mu - middle) > rare:
                a = middle
            else:
                b = middle
        low, high = self.loss(np.array([-reach, b]))
        return float(low), float(high)

    def _mixed(self, edges: np.ndarray) -> np.ndarray:
        total = np.zeros(len(edges) - 1)
        for j, weight in zip(self._j, self._weight, strict=True):
            total += weight * normal_mass(edges - j * self._mu)
        return total

    def masses(
        self, sign: int, mu: float, rate: float, losses: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        if sign > 0:
            y = self._inverse(losses)
            above = float(self._weight @ ndtr(self._j * self._mu - y[-1]))
            return self._mixed(y), normal_mass(y), above
        y = self._inverse(-losses[::-1])
        return normal_mass(y)[::-1], self._mixed(y)[::-1], float(ndtr(y[0]))

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        def lump(at: float) -> float:
            edges = self._inverse(np.sort(sign * (at + np.array([-h, h]))))
            without, mixed = normal_mass(edges)[0], self._mixed(edges)[0]
            return sign * float(np.log(max(mixed, 1e-300) / max(without, 1e-300)))

        # A fixed point, as of `pairs.poisson`: there is one where most of the mass is in one bin.
        origin = sign * self._floor
        for _ in range(40):
            last, origin = origin, lump(origin)
            if not np.isfinite(origin):
                return 0.0, False
            if abs(origin - last) < 1e-18:
                break
        origin -= 1e-9 * h + 16 * _EPS * (1 + abs(origin))
        return origin, bool(lump(origin) >= origin)


def _hermite(x: np.ndarray, y: np.ndarray, slope: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Cubic interpolation through values and slopes at ascending x."""
    k = np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2)
    width = x[k + 1] - x[k]
    t = (at - x[k]) / width
    ends = y[k] * (1 + 2 * t) * (1 - t) ** 2 + y[k + 1] * t * t * (3 - 2 * t)
    return ends + width * t * (1 - t) * (slope[k] * (1 - t) - slope[k + 1] * t)
