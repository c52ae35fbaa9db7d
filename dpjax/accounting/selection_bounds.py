"""The best of a secret number of runs, bounded from the privacy profile of one run.

One run's outputs on neighbours are P and Q, L = log dP/dQ, δ_PQ(ε) = E_P(1 − e^{ε − L})₊. Of K runs
the one of the best score leaves; f(x) = E x^K, and G(a) = sup{Q(S) : P(S) ≤ a}.

UPPER     δ(ε) ≤ E_P φ(e^{−L}), φ(x) = sup_a (f′(1 − a) − e^ε x f′(1 − G(a)))₊. For let ties be
          broken by an independent uniform. The winner has density f′(1 − a(y)) over P, a(y) the
          probability under P of a better outcome than y, and over Q f′(1 − a′(y)) with a′ ≤ G(a);
          f′ rises, so that the hockey stick's integrand is at most φ(e^{−L}) over P. Having made no
          run has one probability in both worlds.
CHORDS    φ is convex and falls, from f′(1) at x = 0, where Q has no mass. Between knots x_i it lies
          below its chords, beyond the last below its value there: in all below
          φ_n + Σ w_i(1 − x/x_i)₊ with w_i ≥ 0, whose mean under P is φ_n + Σ w_i δ_PQ(−log x_i).
LINES     Q(S) ≤ e^e P(S) + δ_QP(e) for every e, so that G(a) ≤ min_e e^e a + δ_QP(e).
CELL      f′(1 − a) is convex in a and below its chord. Below one of LINES f′(1 − line) is convex
          too, and above its chord less a quarter of the cell times the change of its slope. So on a
          cell the difference is below a linear function, and that below the larger of its ends.
ATTAINED  A score that ranks S₀ = {L < −e₀} first, then S₁ = {L > e₁}, then the rest lets S₁ win
          with probability f(1 − P(S₀)) − f(1 − P(S₀) − P(S₁)) under P, and likewise under Q. It
          rises in P(S₁) and falls in P(S₀), as f is convex.
BESIDE    A convex profile, linear in v = e^ε between knots v_i, is Σ w_i(1 − v/v_i)₊ + w_∞, w ≥ 0:
          that of losses log v_i of probability w_i. So what lies above UPPER at knots, joined by
          chords, is the profile of a pair that dominates the selection. Beside other releases,
          whose results the runs may depend on, with losses e_j of probability u_j that dominate
          them, δ(ε) ≤ Σ w_i u_j(1 − e^{ε − e_j}/v_i)₊ + w_∞ + u_∞, as such pairs compose (Zhu, Dong
          and Wang 2022, Theorem 10).

Whatever bounds the profile of every two neighbours serves: UPPER takes nothing else of them.

References:
  Liu and Talwar 2019; Papernot and Steinke 2022; Koskela, Redberg and Wang 2024, whose bound UPPER
  sharpens. Derived for dpjax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpjax.accounting.contour.profile import (
    DOWN,
    UP,
    Profile,
    at_both_signs,
    below_chords,
    subtract_exponentials,
)
from dpjax.accounting.mechanisms.selection import Trials

_DENSE, _CELLS = 1000, 600  # where a is looked at, and what is kept
REST = 1e-4  # share of δ that losses beyond the last knot may take


_LAST_EPSILON = 600.0  # ε above which nothing is said


_COARSE, _FINE = 24, 48  # knots of a selection that stands beside other releases


def _support(
    law: Trials, own: Profile, other: Profile, least: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return points (u, w) with sup_a (f′(1 − a) − y·f′(1 − G(a))) ≤ max(u − y·w) for every y ≥ 0.

    Cells are fine where both functions change, down to where f′(1 − a) is at a least value: any
    cells would do.
    """
    e, d = at_both_signs(other, own)
    half = _DENSE // 2
    a = np.geomspace(1e-16, 0.5, half), 1 - np.geomspace(0.5, 1e-12, half)[1:]
    a = np.concatenate([[0.0], *a, [1.0]])
    far = law.slope(a), law.slope(np.minimum(np.min(np.exp(e) * a[:, None] + d, axis=1), 1.0))
    far = [-np.log(np.maximum(v, 1e-300)) for v in far]
    kept = far[0] <= -math.log(least)
    ends = (far[0] + far[1])[kept]
    a = np.interp(np.linspace(ends[0], ends[-1], _CELLS), ends, a[kept])
    a = np.unique(np.concatenate([[0.0, 1e-16], a, [1.0]]))
    by_line = np.exp(e) * a[:, None] + d
    g = np.minimum(np.min(by_line, axis=1) * UP, 1.0)
    best = np.argmin(by_line[:-1] + by_line[1:], axis=1)
    rise, base = np.exp(e[best]), d[best]
    at = [np.minimum((rise * v + base) * UP, 1.0) for v in (a[:-1], a[1:])]
    steep = [np.where(v < 1, -rise * law.bend(v), 0.0) for v in at]
    # CELL; or all along a cell what f′(1 − G) is at its right end, where that is more at the left.
    gap = 0.25 * np.diff(a) * (steep[1] - steep[0]) * (1 + 1e-9)
    w = [law.slope(v) * DOWN - gap for v in at]
    flat = law.slope(g[1:]) * DOWN
    w = [np.where((flat >= w[0]) | (w[1] < 0), flat, v) for v in w]
    u, w = np.concatenate([law.slope(v) for v in (a[:-1], a[1:])]), np.concatenate(w)
    order = np.lexsort((-u, w))
    u, w = u[order] * UP, w[order] * DOWN
    kept = u > np.maximum.accumulate(np.append(0.0, u[:-1]))  # the others lie below one of these
    return u[kept], w[kept]


class Bound(NamedTuple):
    """UPPER of one direction: knots, δ of the run there, f′(1), and the points of `_support`."""

    x: np.ndarray
    delta: np.ndarray
    mean: float
    u: np.ndarray
    w: np.ndarray

    def at(self, epsilon: float) -> float:
        """Return an upper end of δ(ε) of the selection."""
        y = np.exp(np.minimum(epsilon + np.log(self.x), 700.0))  # a lesser y has a larger φ
        phi = np.maximum(np.max(self.u - np.multiply.outer(y, self.w), axis=1), 0.0)
        # CHORDS. A weight is a difference of slopes: what it loses by cancellation is added.
        values, gaps = np.concatenate([[self.mean * UP], phi]), np.diff(self.x, prepend=0.0)
        slopes = np.append(np.diff(values) / gaps, 0.0)
        lost = 4 * 2.0**-52 * (values[:-1] + values[1:]) / gaps
        turns = np.maximum(np.diff(slopes), 0.0) + lost + np.append(lost[1:], 0.0)
        found = float((np.sum(turns * self.x * self.delta) + phi[-1]) * UP)
        return found if found >= 0 else np.inf


class Beside(NamedTuple):
    """BESIDE of one direction: all sums of losses, their probabilities, that of an infinite one."""

    losses: np.ndarray
    masses: np.ndarray
    rest: float

    def at(self, epsilon: float) -> float:
        """Return an upper end of δ(ε) of the selection and what stands beside it."""
        return float(
            (self.rest - self.masses @ np.minimum(np.expm1(epsilon - self.losses), 0)) * UP
        )


def _list_losses(own: Profile, other: Profile) -> Beside:
    """Return losses of a pair that dominates all that is known by its profiles: BESIDE."""
    x, d = at_both_signs(own, other)
    d = np.minimum(below_chords(x, d, x, subtract_exponentials) * UP, 1.0)
    # A mass is v_i times a difference of slopes: what it loses by cancellation is added.
    gaps, grow = -np.expm1(-np.diff(x, prepend=-np.inf)), np.append(np.exp(-np.diff(x)), 0.0)
    falls, lost = np.diff(d, prepend=1.0) / gaps, 4 * 2.0**-52 / gaps
    masses = np.maximum(grow * np.append(falls[1:], 0.0) - falls, 0.0)
    return Beside(x, masses + lost + grow * np.append(lost[1:], 0.0), float(d[-1]))


def put_beside(bounds: list[Bound], others: list[Profile], delta: float) -> list[Beside]:
    """Return the bounds of both directions beside other releases, for a δ up to tenfold."""
    far = -2 * math.log(bounds[0].x[0])  # where infinite losses alone are left
    near = [min(solve_bounds(bounds, share * delta), far) for share in (10.0, 1.0, 2 * REST)]
    last, wide = max(near[-1], 1e-6), others[0].epsilon[-1]
    # Fine where the sum of BESIDE has its mass: near what the selection alone costs.
    fine = np.linspace(near[0] - wide, near[1] + wide, _FINE)
    e = np.unique(np.clip(np.concatenate([np.linspace(0.0, last, _COARSE), fine]), 0.0, last))
    e = e[np.diff(e, prepend=-np.inf) > 1e-9 * last]
    read = [np.minimum([bound.at(x) for x in e], 1.0) for bound in bounds]
    best, found = [Profile(e, np.minimum.accumulate(high), 0.0 * e) for high in read], []
    for i in range(max(len(best), len(others))):
        one, two = (_list_losses(own[i % len(own)], own[i - 1]) for own in (best, others))
        sums = np.add.outer(one.losses, two.losses).ravel()
        masses = np.multiply.outer(one.masses, two.masses).ravel()
        found.append(Beside(sums, masses, one.rest + two.rest))
    return found


def upper_bound(law: Trials, own: Profile, other: Profile, least: float) -> Bound:
    """Return UPPER of one direction, of the profiles of both; what is below `least` is rough."""
    e, d = at_both_signs(own, other)
    x = np.exp(-e[::-1]) * (1 - 1e-15)  # rounded down: δ(−log x) is at most what it is at e
    return Bound(x, d[::-1] * UP, law.mean, *_support(law, own, other, least))


def solve_bounds(bounds: Sequence[Bound | Beside], delta: float) -> float:
    """Return an ε at which every bound is at most δ, close to the least."""

    def excess(epsilon: float) -> float:
        return math.log(max(max(bound.at(epsilon) for bound in bounds), 1e-300) / delta)

    if excess(0.0) <= 0:
        return 0.0
    top = 1.0
    while excess(top) > 0:
        top *= 2
        if top > _LAST_EPSILON:
            return np.inf
    from scipy.optimize import root_scalar

    ends = top / 2 if top > 1 else 0.0, top
    root = root_scalar(excess, bracket=ends, method="brentq", xtol=1e-14, rtol=1e-14).root
    step = 1e-14 * (1 + root)
    while excess(root) > 0:  # a bound counts where it has been asked
        root, step = root + step, 2 * step
    return float(root)


def lower_end(law: Trials, own: Profile, other: Profile, delta: float) -> float:
    """Return an ε that some score attains in one direction: ATTAINED; 0 where none is found."""

    def interpolate(more: np.ndarray, less: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A score may also tell a part of what lies between two events, at random."""
        order = np.lexsort((-less, more))
        more, less = np.append(0.0, more[order]), np.append(0.0, less[order])
        parts = np.concatenate([more, np.geomspace(1e-12, 1.0, 200) * more[-1]])
        return parts, -below_chords(more, -less, parts) * DOWN

    p, q = own.tails()
    b0, a0 = other.tails()  # {L < −e} is {L > e} where the roles are changed
    a0, b0 = (v[:, None] for v in interpolate(a0, b0))
    q, p = interpolate(q, p)
    gain = law.win(a0, p) * DOWN - delta
    cost = law.win(b0, q) * UP
    good = (a0 + p <= 1) & (b0 + q <= 1) & (gain > 0)
    best = np.max(np.where(good, gain / np.maximum(cost, 1e-300), 0.0))
    return max(math.log(best) - 1e-12 * (1 + abs(math.log(best))), 0.0) if best > 0 else 0.0
