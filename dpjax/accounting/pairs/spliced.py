"""Two upper bounds of one symmetric profile, spliced into a pair: one near 0, the other beyond.

Let h₁ and h₂ bound the same hockey-stick divergence, a convex function of γ = e^ε, on γ ≥ 1: h₁ by
a pair that is its own mirror image, h₂ by any measures P₂ and Q₂. For points a < b of a grid

    H = h₁ on [1, γ_a],   its chord to h₂(γ_b) on [γ_a, γ_b],   h₂ on [γ_b, ∞)

bounds it too, as a convex function is below its chords. H is the profile of what the first pair has
up to a, of what (P₂, Q₂) has beyond b, and of atoms of Q at a and at b where H's slope jumps;
below 0 of the mirror image with P and Q exchanged. A jump downwards is taken for none, which
raises H. With a and b where one line touches both, H is the convex hull and the jumps are 0.
"""

from __future__ import annotations

import numpy as np

from dpjax.accounting.pairs.protocol import GridPair, Masses

_ROUND = 1e-13
_TRIES = 8
_FAR = 600.0  # losses beyond which no point is looked for


class LowerHullPair(GridPair):
    """The pair of H, on a grid one of whose points is 0.

    Fields of the constructor:
        near: a folded pair, of which h₁ is the profile.
        far: a pair of measures, direction +1 of which has the profile h₂ at ε − shift.
        shift: ≥ 0; Q₂ is e^{−shift} of what `far` says.
    """

    folded = True

    def __init__(self, near: GridPair, far: GridPair, shift: float) -> None:
        self._near, self._far, self._shift = near, far, shift
        self.name = near.name

    def atom(self, mu: float, rate: float) -> float:
        return self._near.atom(mu, rate)

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        near = self._near.loss_range(sign, mu, rate, reach)[1]
        far = self._far.loss_range(1, mu, rate, reach)[1] + self._shift
        most = max(min(near, far), 1e-9)
        return -most, most

    def masses(self, sign: int, mu: float, rate: float, losses: np.ndarray) -> Masses:
        p, q, above = self._near.masses(sign, mu, rate, losses)
        zero = int(np.searchsorted(losses, 0.0))
        p2, q2, above2 = self._far.masses(1, mu, rate, losses[zero:] - self._shift)
        q2 = q2 * np.exp(-self._shift)
        right = _spliced(losses[zero:], (p[zero:], q[zero:], above), (p2, q2, above2))
        if right is None:
            return p, q, above
        p_right, q_right, above = right
        # The mirror image, on whatever part of it the grid has.
        p, q = p.copy(), q.copy()
        p[zero:], q[zero:] = p_right, q_right
        count = min(zero, len(p_right))
        p[zero - count : zero], q[zero - count : zero] = (
            q_right[:count][::-1],
            p_right[:count][::-1],
        )
        return p, q, above


def _beyond(grid: np.ndarray, law: tuple) -> tuple[np.ndarray, np.ndarray]:
    """Q of more than each loss, and the profile there, rounded up."""
    p, q, above = law
    p_beyond = np.append(np.cumsum(p[::-1])[::-1], 0.0) + above
    with np.errstate(under="ignore"):
        q_beyond = np.append(np.cumsum(q[::-1])[::-1], 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        height = p_beyond - np.exp(grid) * q_beyond
    return q_beyond, np.maximum(height, 0.0) + _ROUND * p_beyond


def _spliced(grid: np.ndarray, near: tuple, far: tuple) -> tuple | None:
    """The masses of H on the grid of ε ≥ 0; None where h₂ is nowhere less."""
    searched = int(np.searchsorted(grid, _FAR))
    if searched < 3:
        return None
    (q_near, h_near), (q_far, h_far) = _beyond(grid, near), _beyond(grid, far)
    less = np.flatnonzero(h_far[:searched] < h_near[:searched] * (1 - 1e-9))
    if not len(less) or less[-1] == 0:
        return None
    gamma = np.exp(grid[:searched])
    start = max(int(less[0]), 1)
    a, b = start - 1, start
    # The line that touches both, one end at a time.
    for _ in range(_TRIES):
        last = a, b
        slope = (h_far[start:searched] - h_near[a]) / (gamma[start:] - gamma[a])
        b = start + int(np.argmin(slope))
        slope = (h_far[b] - h_near[:start]) / (gamma[b] - gamma[:start])
        a = int(np.argmax(slope))
        if last == (a, b):
            break
    slope = (h_far[b] - h_near[a]) / (gamma[b] - gamma[a])
    p, q = np.append(near[0][:a], far[0][a:]), np.append(near[1][:a], far[1][a:])
    p[a:b], q[a:b] = 0.0, 0.0
    # Where Q of more than a loss jumps: at the ends of the chord, each in the bin on its left.
    jump = max(-slope * (1 + _ROUND) - q_far[b], 0.0)
    p[b - 1], q[b - 1] = jump * gamma[b], jump
    jump = max(q_near[a] * (1 + _ROUND) + slope, 0.0)
    if a > 0:
        p[a - 1], q[a - 1] = p[a - 1] + jump * gamma[a], q[a - 1] + jump
    elif jump > 0:
        p[0] += jump * gamma[1]
        q[0] += jump
    return p, q, float(far[2])
