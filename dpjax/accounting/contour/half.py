"""A folded pair under a tilt: both halves of its line by Gauss's rule, and an atom at loss 0.

On a half-line the trapezoid rule converges slowly, as the integrand does not vanish where it
starts. With f the exponent of e^{cL}p·g, V the variances and R of `tilt`:

GAUSS   n nodes on a panel of half-width H are off by at most 64/15·H·M·ρ^{−2(n−1)}/(1 − ρ^{−2}), M
        the greatest modulus in the ellipse of half-axes A = √(H² + a²) and a, ρ = (A + a)/H.
NEAR    A point of the panel's ellipse lies within d of a node: f ≤ f(node) + d|f′| + d²κ/2,
        κ = 1 + e^{wd}((c+1)V_p + cV_q) ≥ |f″|.

References:
  Trefethen 2019, "Approximation theory and approximation practice", Theorem 19.3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpjax._numerics.arrays import Numbers, log_sum, namespace
from dpjax._numerics.quadrature import gauss_legendre
from dpjax.accounting.contour import tilt as tilts
from dpjax.accounting.contour.saddle import Step
from dpjax.accounting.contour.tilt import EPS, Path, Tilted
from dpjax.accounting.pairs.mixtures import Mixture
from dpjax.accounting.pairs.pair import Folded

PANEL = 32
NODES, WEIGHTS = gauss_legendre(PANEL)
WEIGHT_UNITS, PLACE_UNITS = 20, 1  # of eps, that these are off by
_GAP = 0.05  # no point of [−1, 1] is further from a node
_SHARES = np.array([0.04, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.92])[:, None, None]  # of the widest a
_WIDEST = 4.0  # half-widths
_LEAST_LOG_MASS = -700.0  # log of the mass of an atom that is none


class _Half(NamedTuple):
    """One half: its nodes, and what bounds are made of.

    Fields:
        y, loss, size: places, losses, and logarithms of their masses under e^{cL}P.
        units, moved: rounding of these and of the losses, in eps.
        level, turn: GAUSS: logarithms of the error at t = 0, a row for every ellipse, by panels,
            and by what they grow with t.
        path: even points, for `tilt.decay`.
    """

    y: Numbers
    loss: Numbers
    size: Numbers
    units: Numbers
    moved: Numbers
    level: Numbers
    turn: Numbers
    path: Path


def log_gauss(rho: Numbers) -> Numbers:
    """Return the log of Gauss's quadrature error over H·M (inequality GAUSS)."""
    xp = namespace(rho)
    found = math.log(64 / 15) - 2 * (PANEL - 1) * xp.log(rho)
    return found - xp.log(-xp.expm1(-2 * xp.log(rho)))


def near(d: Numbers, slope: Numbers, kappa: Numbers) -> Numbers:
    """Return by how much f can exceed its value at the nearest node, at most d away (NEAR)."""
    return d * (namespace(slope).abs(slope) + 0.5 * d * kappa)


def tilt(pair: Step, c: Numbers, nodes: int) -> Tilted:
    """Return any step under a tilt c > 0, on about so many nodes."""
    if not isinstance(pair, Folded):
        return tilts.tilt_line(pair, c, nodes)
    xp = namespace(pair, c)
    halves = [_half(half, pair.start, c, nodes // 2) for half in pair.halves()]
    atom = xp.maximum(xp.log(pair.atom), _LEAST_LOG_MASS)[None]
    size = xp.concatenate([half.size for half in halves] + [atom])
    loss = xp.concatenate([half.loss for half in halves] + [0.0 * atom])
    units = xp.concatenate([half.units for half in halves] + [8 * xp.abs(atom) + 8])
    moment, weight, rounding, spread = tilts.normalise(size, units, loss)
    moved = xp.concatenate([half.moved for half in halves] + [0.0 * atom])
    cut = xp.exp(log_sum(xp.stack([half.path.cut for half in halves])) - moment)
    paths = [
        half.path._replace(exponent=half.path.exponent - moment, cut=half.path.cut - moment)
        for half in halves
    ]
    level = xp.concatenate([half.level for half in halves], axis=1) - moment
    turn = xp.concatenate([half.turn for half in halves], axis=1)
    fold = tilts.Fold(level, turn, (paths[0], paths[1]), weight[-1])
    place = xp.stack([half.y for half in halves])
    return Tilted(moment, loss, weight, cut, EPS * (weight @ moved), rounding, spread, place, fold)


def _half(pair: Mixture, start: Numbers, c: Numbers, nodes: int) -> _Half:
    xp = namespace(pair, start, c)
    low, high, _, cut, _ = tilts.window(pair, c, start)
    panels = max(nodes // PANEL, 1)
    half = (high - low) / (2 * panels)
    y = ((low + half * (2 * np.arange(panels) + 1))[:, None] + half * NODES).reshape(-1)
    p, q = xp.barrier(pair.spread(y))
    loss = p.value - q.value
    f = (c + 1) * p.value - c * q.value - 0.5 * y * y
    front = -0.5 * math.log(2 * math.pi)
    size = f + xp.log(half) + front + np.tile(np.log(WEIGHTS), panels)
    # As of `tilt`; besides, y is rounded, which moves f by f′ and the loss by L′.
    steep, slope = p.mean - q.mean, (c + 1) * p.mean - c * q.mean - y
    place = 3 * xp.abs(y) + 3 * xp.abs(low) + (PLACE_UNITS + 3) * half
    units = (c + 1) * (p.rounding + 1.5 * xp.abs(p.value))
    units = units + c * (q.rounding + 1.5 * xp.abs(q.value)) + 0.5 * y * y + 2 * xp.abs(size) + 8
    units = units + WEIGHT_UNITS + place * xp.abs(slope)
    moved = p.rounding + q.rounding + place * xp.abs(steep)

    # GAUSS and NEAR, in rows of ellipses, panels and nodes.
    width = pair.width()
    a = _SHARES * xp.minimum(0.95 * math.pi / width, _WIDEST * half)
    long = xp.sqrt(half * half + a * a)
    rho, d = (long + a) / half, long - half + _GAP * half
    parts = (f, slope, p.variance, q.variance, p.mean, q.mean)
    f, slope, v_p, v_q, m_p, m_q = (v.reshape(panels, PANEL) for v in parts)
    r, more = tilts.sector(width, a), tilts.growth(width, d)
    kappa = 1 + more * ((c + 1) * v_p + c * v_q)
    # |p(y + ib)| ≤ p(y) (SECTOR); −log |q(y + ib)/q(y)| is at most log R, and b²/2·R²V (CUMULANT).
    lifted = xp.minimum(xp.log(r), 0.5 * (a * r) ** 2 * more * v_q)
    level = f + near(d, slope, kappa) + 0.5 * a * a + c * lifted + log_gauss(rho)
    level = xp.max(level, axis=2) + front + xp.log(half)
    # |Im L| ≤ b·|L′|, of which (log p)′(y + ib) − m_0 ≤ R((log p)′(y) − m_0), as in `tilt`.
    (p0, p1), (q0, q1) = pair.slopes()
    change = d * more * (v_p + v_q)
    up = xp.abs(p0 - q0) + r * (m_p - p0 + m_q - q0 + change)
    down = xp.abs(p1 - q1) + r * (p1 - m_p + q1 - m_q + change)
    turn = xp.max(a * xp.minimum(xp.minimum(up, down), width), axis=2)

    count = max(nodes // 2, 2 * PANEL)
    step = (high - low) / (count - 1)
    even = low + step * np.arange(count)
    p, q = xp.barrier(pair.spread(even))
    f = (c + 1) * p.value - c * q.value - 0.5 * even * even + xp.log(step) + front
    path = tilts.path(pair, c, step, f, p, q, cut)
    return _Half(y, loss, size, units, moved, level, turn, path)
