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
least μ: Newton's method finds where the loss is.

Weights may be moved to a larger j for an upper bound and to a smaller one for a lower bound
(Ganesh 2024, monotonicity; `pairs/counts.py`): what one half line is given rises with j.

References:
  Ganesh 2024 (arXiv 2401.10294), "Tight group-level DP guarantees for DP-SGD with sampling via
  mixture of Gaussians mechanisms"; Zhu, Dong, Wang 2022, "Optimal accounting of differential
  privacy via characteristic function".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpjax.accounting.pairs.counts import Law, above, few, mass_error
from dpjax.accounting.pairs.on_grid import ndtr, normal_mass
from dpjax.accounting.pairs.protocol import Discretisable

_ROWS = 1 << 11  # points worked on at a time
_COARSE = 2049
_NOWHERE = 39.0  # standard deviations
_FAINT = 60.0  # e^{−60} of a term, times their number, is below its rounding
_LUMP = 0.5  # mass of a bin below which `discretise` makes no lump of it
_EPS = float(np.finfo(np.float64).eps)


class Users:
    """The mixture, laid on grids: an upper bound's and a lower one's weights differ."""

    name = "users"
    directed = True
    folded = False

    def __init__(self, mu: float, law: Law) -> None:
        self._own = mu, law
        self.most = mu * law.most  # by how much the means differ where all records are in a batch

    def law(self) -> tuple[float, Law]:
        """How far one record moves the sum, and the law of how many of them are in a batch."""
        return self._own

    def side(self, sign: int, mu: float, rate: float, reach: float, upper: bool) -> Discretisable:
        mu, law = self._own
        j, weight = above(law) if upper else few(law, False)
        # The mixture's mass is what δ counts in one direction, and what it takes off in the other.
        off = mass_error(law)
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
    """Σ_j w_j N(jμ, 1) against N(0, 1), and the reverse; j ascends, from 0 or more."""

    name = "mixture"
    directed = True
    folded = False

    def __init__(self, mu: float, j: np.ndarray, weight: np.ndarray) -> None:
        self._mu, self._j, self._weight = mu, j, weight
        some = slice(int(j[0] == 0), None)
        self._some = j[0] > 0  # surely a record, and no least loss: L = G, the w_j as they are
        self._floor = 0.0 if self._some else float(np.log(weight[0]))
        own = np.log(weight[some]) - self._floor
        self._slope, self._level = j[some] * mu, own - 0.5 * (j[some] * mu) ** 2

    def atom(self, mu: Any, rate: Any) -> Any:
        return 0.0

    def _exponent(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """G and its slope at y."""
        return log_sum(y, self._slope, self._level)

    def loss(self, y: np.ndarray) -> np.ndarray:
        """L at y."""
        value = self._exponent(np.atleast_1d(y))[0]
        return value if self._some else self._floor + np.logaddexp(0.0, value)

    def _solve(self, goal: np.ndarray) -> np.ndarray:
        """y with G(y) = goal: Newton's method from above, where a convex function's steps stay."""
        y = np.full(len(goal), np.inf)
        for slope, level in zip(self._slope, self._level, strict=True):
            y = np.minimum(y, (goal - level) / slope)
        rows = np.arange(len(y))
        for _ in range(40):
            value, slope = self._exponent(y[rows])
            step = (value - goal[rows]) / slope
            y[rows] -= step
            # The next step is about the square of this one, unless numbers lie far apart.
            rows = rows[np.abs(step) > 1e-12 * (1 + np.abs(y[rows]))]
            if not len(rows):
                break
        return y

    def _inverse(self, losses: np.ndarray) -> np.ndarray:
        """y with L(y) = loss; −∞ at and below the least loss log w₀."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            rise = losses - self._floor
            goal = rise + np.log(-np.expm1(-rise))
        found = np.full(len(losses), -np.inf)
        some = (rise > 0) & (goal > -1e6)
        if self._some:
            goal, some = losses, np.isfinite(losses)
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
        return mixed_mass(edges, self._j * self._mu, self._weight)

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
        def lump(at: float) -> tuple[float, float]:
            edges = self._inverse(np.sort(sign * (at + np.array([-h, h]))))
            without, mixed = normal_mass(edges)[0], self._mixed(edges)[0]
            loss = sign * float(np.log(max(mixed, 1e-300) / max(without, 1e-300)))
            return loss, float(mixed if sign > 0 else without)

        if self._some:
            return 0.0, False
        # A fixed point, as of `pairs.poisson`: there is one where most of the mass is in one bin.
        origin = sign * self._floor
        for _ in range(40):
            last, (origin, mass) = origin, lump(origin)
            if not np.isfinite(origin) or mass < _LUMP:
                return 0.0, False
            if abs(origin - last) < max(1e-18, 1e-10 * h):
                break
        origin -= 1e-9 * h + 16 * _EPS * (1 + abs(origin))
        return origin, bool(lump(origin)[0] >= origin)


def log_sum(y: np.ndarray, slope: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log Σ_i e^{slope_i y + level_i} and its slope, at every y."""
    value, rise = np.empty_like(y), np.empty_like(y)
    for start in range(0, len(y), _ROWS):
        rows = slice(start, start + _ROWS)
        some = _weighty(y[rows], slope, level)
        near = slope[some]
        terms = y[rows, None] * near + level[some]
        top = terms.max(axis=1)
        with np.errstate(under="ignore"):
            part = np.exp(terms - top[:, None])
        total = part.sum(axis=1)
        value[rows] = top + np.log(total)
        rise[rows] = part @ near / total
    return value, rise


def _weighty(y: np.ndarray, slope: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Which terms are somewhere among these y more than e^{−60} of the sum.

    Against the term that is largest at one end the others are straight lines, so that one that is
    small against it at both ends is small throughout.
    """
    ends = np.array([y.min(), y.max()])[:, None] * slope + level
    against = ends[:, ends.argmax(axis=1)].T  # a row an end's largest, a column an end
    gap = ends[None] - against[:, :, None]
    return ~np.any(np.all(gap < -_FAINT, axis=1), axis=0)


def mixed_mass(edges: np.ndarray, shift: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Masses of Σ_i weight_i N(shift_i, 1) between successive ascending edges."""
    total = np.zeros(len(edges) - 1)
    # Beyond, a normal law has less mass than the least number.
    first = np.searchsorted(edges, shift - _NOWHERE)
    last = np.searchsorted(edges, shift + _NOWHERE) + 1
    for a, b, s, w in zip(np.maximum(first - 1, 0), last, shift, weight, strict=True):
        part = edges[a:b]
        total[a : a + max(len(part) - 1, 0)] += w * normal_mass(part - s)
    return total


def _hermite(x: np.ndarray, y: np.ndarray, slope: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Cubic interpolation through values and slopes at ascending x."""
    k = np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2)
    width = x[k + 1] - x[k]
    t = (at - x[k]) / width
    ends = y[k] * (1 + 2 * t) * (1 - t) ** 2 + y[k + 1] * t * t * (3 - 2 * t)
    return ends + width * t * (1 - t) * (slope[k] * (1 - t) - slope[k + 1] * t)
