"""Random allocation: (1/t)Σᵢ N(eᵢ, σ²I) against N(0, σ²I), a record in one of t steps.

Under Q the density ratio is W = (1/t)Σᵢ Xᵢ, Xᵢ = exp(μzᵢ − μ²/2), zᵢ independent standard normal,
and in either direction the run's outputs are at most as easy to tell apart as by W alone, however
the contributions are chosen from step to step (Feldman and Shenfeld 2025, Theorem 4.1).

Both δ(ε), E[(W − e^ε)₊] and E[(1 − e^ε W)₊], are expectations of convex functions of W, and convex
order survives sums of independent terms. So every Xᵢ alone is replaced by a variable on a lattice,
larger in convex order for an upper bound and smaller for a lower one, and the rest is exact: the
law of the sum of t lattice variables, by a Fourier transform whose errors are bounded mass by mass.

`chosen` = k of t. Cut a uniformly random order of the steps into t mod k blocks of ⌈t/k⌉ steps and
k − (t mod k) of ⌊t/k⌋, and draw one step from each: all sets of k steps are equally likely, as the
blocks' sizes are fixed. Who is told the blocks sees k independent allocations, of which at most one
touches any step (Feldman and Shenfeld 2025, Lemma on decomposition; with the exact mix, derived for
dpjax). That pair dominates and is not attained, so that no lower end is read off it.

References:
  Feldman, Shenfeld 2025 and 2026; Dong et al. 2025; Chua et al. 2024 (balls and bins).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dpjax._numerics.arrays import Numbers, namespace
from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import CorrelatedGaussian, RandomAllocation
from dpjax.accounting.pairs.gaussian import gaussian_pair, samplable
from dpjax.accounting.pairs.mean_ratio import RatioLaw, mean_ratio
from dpjax.accounting.pairs.mean_ratio_lattice import law, raised
from dpjax.accounting.pairs.on_grid import GaussianGrid, ndtr
from dpjax.accounting.pairs.outcomes import Outcomes
from dpjax.accounting.pairs.pair import Atoms
from dpjax.accounting.pairs.protocol import BoundedPair, GridPair, SamplingRule

_U = 2.0**-53
_MOST_STEPS = 1 << 20  # steps beyond which more are not told apart
_MOST_MU = 20.0  # μ beyond which Q's mass of likely outcomes underflows
_LEAST_DEVIATION = 1e-7  # standard deviation of W that float64 still resolves
_GAUSSIAN = GaussianGrid()
_WHOLE = 320  # whole moments that are computed
_GOALS = (1e-4, 1e-12, 1e-30)  # δ that laws for Rényi curves are made for
_FURTHER = 2.0 ** np.arange(9)  # r of the whole moments that bound a tail


class Allocation(BoundedPair):
    """The density ratio W of t = 1/rate steps, by laws that bound it from above and from below."""

    name = "allocation"

    def side(self, sign: int, mu: float, rate: float, reach: float, upper: bool) -> GridPair:
        """The law to be laid on a grid for an upper bound, or for a lower one."""
        goal = float(np.clip(1e6 * ndtr(-math.ceil(2 * reach) / 2), 1e-20, 1e-3))
        found = self.outcomes(sign, mu, rate, goal, upper)
        if not isinstance(found, Outcomes):
            return found
        # The least losses, of which there is next to nothing, would only make the grid coarser.
        some = np.cumsum(found.mass) > 1e-11
        return dataclasses.replace(found, losses=found.losses[some], mass=found.mass[some])

    def outcomes(
        self, sign: int, mu: float, rate: float, goal: float, upper: bool
    ) -> Outcomes | GaussianGrid:
        """The law as outcomes, made for a δ of about `goal`; the plain Gaussian where none is.

        W of fewer steps is larger in convex order, so that where t is beyond what is resolved an
        upper bound takes fewer steps, of which one is the plain Gaussian; a lower bound says
        nothing there.
        """
        from scipy.special import ndtri

        steps = count_steps(rate)
        if steps == 1:
            return _GAUSSIAN
        found = None
        if 1e-6 < mu < _MOST_MU and (upper or steps <= _MOST_STEPS):
            found = law(float(mu), int(min(steps, _MOST_STEPS)), goal, sign, upper)
        if found is None:
            reach = float(-ndtri(max(1e-6 * goal, 1e-280)))
            return self._geometric(sign, mu, steps, reach, upper)
        off = found.off + 8 * _U * (1 + float(np.abs(np.log(found.ratio)).max()))
        off = off if upper else -off
        return _as_outcomes(found, sign, off, off)

    def _geometric(
        self, sign: int, mu: float, steps: float, reach: float, upper: bool
    ) -> Outcomes | GaussianGrid:
        """The same on a geometric grid, of ratios that spread too widely for an even lattice."""
        resolved = mu <= _MOST_MU and mu >= _LEAST_DEVIATION * np.sqrt(min(steps, _MOST_STEPS))
        if upper and not resolved:
            return _GAUSSIAN
        if not upper and (steps > _MOST_STEPS or not resolved):
            return Outcomes(np.zeros(1), np.ones(1), 0.0, 0.0)
        found = mean_ratio(mu, int(min(steps, _MOST_STEPS)), float(np.ceil(reach)), upper)
        return _as_outcomes(found, sign, 0.0, found.off if upper else -found.off)


def _as_outcomes(law: RatioLaw, sign: int, moved: float, slack: float) -> Outcomes:
    """The outcomes of one direction: under P a value weighs W times what it does under Q."""
    loss = np.log(law.ratio)
    # A product and a logarithm round by a unit each, which `slack` and `moved` are far above.
    if sign > 0:
        return Outcomes(loss + moved, law.mass * law.ratio, law.beyond, slack, law.zero)
    return Outcomes(-loss[::-1] + moved, law.mass[::-1], law.zero, slack, law.beyond)


# --- Rényi curves


def count_steps(rate: float) -> float:
    """Return t = 1/rate, a whole number; of one between, which no field is, the larger loss."""
    nearest = float(np.round(1 / rate))
    return nearest - float(nearest * rate > 1 + 8 * _U)


def _log_product(f: np.ndarray, g: np.ndarray) -> np.ndarray:
    n = np.arange(len(f))
    other = np.where(n <= n[:, None], g[n[:, None] - n], -np.inf)
    return np.logaddexp.reduce(f + other, axis=1)


@functools.lru_cache(maxsize=64)
def whole_moments(mu: float, t: float, most: int = _WHOLE) -> np.ndarray:
    """Return log E[W^m] for m = 0 … most, rounded up.

    E[X^k] = e^{μ²k(k−1)/2}, so that E[W^m] is m! times a coefficient of the t-th power of the
    polynomial Σ_k E[X^k](x/t)^k/k!. No term is negative: the m-th has m sums on top of all before.

    Example:
        >>> whole_moments(1.0, 20.0, 2).round(6)
        array([0.      , 0.      , 0.082422])
    """
    k = np.arange(most + 1.0)
    factorial = np.concatenate([[0.0], np.cumsum(np.log(k[1:]))])
    log = 0.5 * mu * mu * k * (k - 1) - k * np.log(t) - factorial
    if t > most:
        # c_m = Σ_k (k(t + 1) − m) b_k c_{m−k}/m (J. C. P. Miller).
        found = np.zeros(most + 1)
        for m in range(1, most + 1):
            terms = np.log(k[1 : m + 1] * (t + 1) - m) + log[1 : m + 1] + found[m - 1 :: -1][:m]
            found[m] = np.logaddexp.reduce(terms) - np.log(m)
    else:
        found = raised(log, int(t), _log_product)
    found = found + factorial
    found[:2] = 0.0  # E[1] and E[W], exactly
    return found + 2 * _U * np.where(k < 2, 0.0, k * k + 16 * k + 8 * factorial + 8 * found)


def _between_whole(mu: float, t: float, p: np.ndarray) -> np.ndarray:
    """Return upper bounds on log E[W^p], p > 1, by chords of convex functions between whole p.

    CHORD: log E[W^p] is convex (Hölder), and so is the logarithm of any mixture of powers u^p. Of
    such a kind are, over p(p − 1), w^p − 1 − p(w − 1), the integral of (w − u)u^{p−2} from 1 to w,
    hence E[W^p] − 1 as E[W] = 1; and (Σa)^p − Σa^p, as (a + b)^p − a^p − b^p is that of
    (u + v)^{p−2} over u < a, v < b, hence E[W^p] − J, J = t^{1−p}E[X^p].
    CONVEX: x^p is convex, and W a mean of the X: E[W^p] ≤ E[X^p] = e^{μ²p(p−1)/2}.
    """

    def log_jump(p: np.ndarray) -> np.ndarray:
        return 0.5 * mu * mu * p * (p - 1) - (p - 1) * np.log(t)

    known, m = whole_moments(mu, t), np.arange(_WHOLE + 1.0)
    found = np.interp(p, m, known, right=np.inf)
    known, m = known[2:], m[2:]
    part, jump, own = np.log(m * (m - 1)), log_jump(m), np.log(p * (p - 1))
    excess = known + np.log(-np.expm1(-known)) - part
    rest = -np.expm1(np.minimum(jump - known, 0.0)) + 16 * _U * (1 + np.abs(jump))
    rest = known + np.log(rest) - part
    ends: dict[str, Any] = {"left": np.inf, "right": np.inf}
    found = np.minimum(found, np.logaddexp(0.0, np.interp(p, m, excess, **ends) + own))
    found = np.minimum(found, np.logaddexp(log_jump(p), np.interp(p, m, rest, **ends) + own))
    return np.minimum(found * (1 + 1e-13), 0.5 * mu * mu * p * (p - 1) * (1 + 16 * _U))


def allocation_log_moments(mu: float, rate: float, c: np.ndarray) -> np.ndarray:
    """Return upper bounds on K(c) of the larger direction: log E[W^{c+1}] and log E[W^{−c}].

    MEAN: W is at least the geometric mean of the X: E[W^{−k}] ≤ e^{μ²(k²/t + k)/2}.
    """
    t, mu, c = count_steps(rate), float(mu), np.asarray(c, np.float64)
    plain = 0.5 * mu * mu * c * (c + 1) * (1 + 16 * _U)
    if t == 1:
        return plain
    with np.errstate(all="ignore"):
        removed = _between_whole(mu, t, c + 1)
        added = np.minimum(plain, 0.5 * mu * mu * (c * c / t + c) * (1 + 16 * _U))
        for goal in _GOALS:
            few = [_few(mu, rate, goal, sign) for sign in (1, -1)]
            if few[0] is not None and few[1] is not None:
                removed = np.fmin(removed, _law_moments(few[0], 1, c + 1, mu, t))
                added = np.fmin(added, _law_moments(few[1], -1, -c, mu, t))
    return np.maximum(removed, added)


@functools.lru_cache(maxsize=64)
def _few(mu: float, rate: float, goal: float, sign: int) -> Atoms | None:
    found = ALLOCATION.outcomes(sign, mu, rate, goal, True)
    return found.few(0.0, True, 2000) if isinstance(found, Outcomes) else None


def _law_moments(few: Atoms, sign: int, p: np.ndarray, mu: float, t: float) -> np.ndarray:
    """Return upper bounds on log E[W^p] by a law from above, p > 1 (sign 1) or p < 0.

    As E[W] = 1, E[W^p] = 1 + E f(W), f(w) = w^p − 1 − p(w − 1) ≥ 0, which is convex. Beyond a point
    m it is replaced by its tangent there, whose mean under the law is finite whatever lies at
    infinity or 0; f less its tangent is at most W^p, of which there is, beyond m,

    RARE   P^{1−1/r}·E[W^{pr}]^{1/r} at most, for every r ≥ 1 (Hölder): with whole pr, or MEAN and
           the best r. P, the mass beyond m, is at most E[|W − n|₊]/|m − n| for every n before m,
           the mean of a convex function.
    """
    x = sign * few.loss  # log W, towards the end in question
    w, q, n = np.exp(x), few.mass * np.exp(-max(sign, 0) * few.loss), len(x)
    mass, mean = (np.append(np.cumsum(v[::-1])[::-1][1:], 0.0) for v in (q, q * w))
    mass, mean = (mass, mean + few.infinite) if sign > 0 else (mass + few.infinite, mean)
    log_rare = np.zeros(n)
    for back in (10, 40, 160):
        i = np.maximum(np.arange(n) - back, 0)
        log_rare = np.fmin(log_rare, np.log((mean - w * mass)[i] / (w - w[i])))
    known, root = whole_moments(mu, t), np.sqrt(-2 * log_rare / t)
    found = np.empty(len(p))
    for place, power in enumerate(p):
        f = np.expm1(power * x) - power * np.expm1(x)
        slope = power * np.expm1((power - 1) * x)
        total = np.cumsum(q * f) + f * mass + slope * (mean - w * mass)
        if sign > 0:
            j = np.unique(np.ceil(power * _FURTHER))
            j = j[j < len(known)].astype(int)[:, None]
            rest = (1 - power / j) * log_rare + power / j * known[j]
            rest = np.min(rest, axis=0, initial=np.inf)
        else:
            rest = log_rare - mu * power * root - 0.5 * mu * mu * power
            rest = np.where(root >= -mu * power / t, rest, np.inf)
        best = np.fmin.reduce(total + np.exp(rest))
        # f(0) = p − 1, and f(w) ≤ −pw for large w, where p < 0.
        best = best * (1 + 1e-10) + (few.never + 1e-15) * max(power - 1, -power)
        found[place] = np.log1p(best)
    return found


ALLOCATION = Allocation()


def _refuse_allocation(step: RandomAllocation, adjacency: Adjacency, kind_of: Callable) -> str:
    if adjacency is not Adjacency.ADD_REMOVE:
        return (
            "is defined for ADD_REMOVE only (no dominating pair is proven for a replaced record): "
            "ask with adjacency=Adjacency.ADD_REMOVE, or sample by PoissonSampled"
        )
    good = kind_of(step.mechanism) == "gaussian" and samplable(step.mechanism)
    why = "is priced around Gaussian releases only"
    correlated = isinstance(step.mechanism, CorrelatedGaussian)
    why += ": correlated noise is RandomAllocationCorrelated's" if correlated else ""
    return "" if good else why


def _allocation_parameters(
    step: RandomAllocation, adjacency: Adjacency
) -> tuple[Numbers, Numbers, Numbers]:
    """Blocks of ⌊t/k⌋ and of ⌈t/k⌉ steps, stacked; where k divides t the second count is 0."""
    xp = namespace(step)
    mu = xp.sqrt(gaussian_pair(step.mechanism).add_remove)
    steps = step.steps
    chosen = step.chosen
    short = xp.floor(steps / chosen)
    left = steps - chosen * short
    mu, short, chosen, left = xp.broadcast_arrays(mu, short, chosen, left)
    sizes = xp.stack([short, short + 1])
    return mu, 1 / sizes, xp.stack([chosen - left, left])


def _exhibited(step: RandomAllocation) -> bool:
    return not is_traced(step.chosen) and bool(np.all(np.asarray(step.chosen) == 1))


ALLOCATION_RULE = SamplingRule(
    "allocation",
    RandomAllocation,
    _refuse_allocation,
    _allocation_parameters,
    dominating=lambda adjacency: "allocation",
    attained=lambda adjacency: "allocation",
    exhibited=_exhibited,
)
