"""One step under a tilt: its moment and its transform on nodes, with bounds on their errors.

For z = c + it the transform of a step's loss L = log dP/dQ is E_P[e^{zL}] = ∫ p^{z+1} q^{−z} g dy,
g the standard normal density. It is summed by the trapezoid rule. With R = 1/cos(b·w/2), w the
width of the means, V the variance of the means at a point and ψ an exponent, the bounds are

SECTOR    cos(b·w/2) p(y) ≤ |p(y + ib)| ≤ p(y): all terms of p lie in a sector of the angle b·w.
CUMULANT  |(log p)^{(k)}(y + ib)| ≤ (1, 2, 4.5)·R^(2, 3, 4)·w^(0, 1, 2)·V for k = 2, 3, 4.
GRONWALL  |V′| ≤ wV, so that within one step h of a node V is at most e^{wh} times as large.
CHORD     ψ″ ≥ −k on a cell of width h: e^ψ ≤ e^{kh²/8} times the exponential of its chord.
POISSON   The rule is off by Σ_{j≠0} F(2πj/h), |F(ω)| ≤ e^{−ω|b|}·M(±b), M of the shifted line.
CONVEX    log M(b) is convex in t at a fixed shift b: chords between a few t lie above it.
RATIO     Where p_i/q_i rises with the mean, Im L ≥ 0 for 0 ≤ b ≤ π/w.
EDGES     Beyond the window the path runs at height 1/(2π/h + wt), where e^{t|Im L|} ≤ e.

Their proofs stand where they are used. Everything is real arithmetic on an array namespace.

References:
  Trefethen, Weideman 2014, "The exponentially convergent trapezoidal rule", Theorem 5.1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import numpy as np

from dpjax._numerics.arrays import EPS, NUMPY, Numbers, NumbersLike, log_sum, namespace
from dpjax.accounting.pairs.mixtures import Mixture
from dpjax.accounting.pairs.pair import Atoms, Spread

_REACH = 11.0  # deviations beyond the steepest slopes: Φ(−11) = 2e−28
_CUT = 52.0  # what is cut weighs about e^{−52}
_WINDOW_CELLS, _MOST_CELLS = 512, 4096
_SHIFTS = np.linspace(0, 1, 8)  # exponents, from the least shift that helps to 0.85 of the strip
_BENDS = np.array([0.6, 1.0, 1.8])[:, None, None]  # of the steepest path's first guess
_LIMIT = 0.72  # of the strip, for paths
_LOG_NOTHING = -700.0  # log of what weighs nothing
_VOID = 1e300  # log of a bound that says nothing, still to be computed with


# ------------------------------------------------------------------------------ small helpers


def log_expm1(x: Numbers) -> Numbers:
    """Return log(e^x − 1) for x ≥ 0, without overflow."""
    xp = namespace(x)
    return x + xp.log(-xp.expm1(-x))


def first(where: Numbers) -> Numbers:
    """Return a mask of the first true along the last axis; all false where none is.

    By plain reductions: `argmin` inside a float64 block of a float32 program cannot be compiled.
    """
    xp = namespace(where)
    at = np.arange(where.shape[-1]) * 1.0
    return at == xp.min(xp.where(where, at, np.inf), axis=-1, keepdims=True)


def least(x: NumbersLike) -> Numbers:
    """Return a mask of the first least number along the last axis; one that is none counts as ∞."""
    xp = namespace(x)
    x = or_infinite(x)
    return first(x <= xp.min(x, axis=-1, keepdims=True))


def pick(mask: NumbersLike, x: NumbersLike) -> Numbers:
    """Return the number under a mask of one place along the last axis."""
    xp = namespace(mask, x)
    return xp.sum(xp.where(mask, x, 0.0), axis=-1)


def or_infinite(x: NumbersLike) -> Numbers:
    """Return x, ∞ where that is no number: a bound that says nothing."""
    xp = namespace(x)
    return xp.where(xp.isnan(x), np.inf, x)


def round_to_24_bits(x: Numbers) -> Numbers:
    """Return x rounded up to 24 bits, so that its multiples by integers below 2²⁸ are exact."""
    xp = namespace(x)
    x = x * (1 + 2.0**-22)
    if xp is NUMPY:
        return NUMPY.asarray(np.float32(x))
    return jax.lax.reduce_precision(x, 11, 23)  # a cast to float32 and back may be compiled away


# ------------------------------------------------------------------------------ inequalities


def sector(width: Numbers, b: NumbersLike) -> Numbers:
    """Return R such that |p(y + ib)| ≥ p(y)/R (inequality SECTOR).

    About the middle mean no term of p turns by more than the angle b·w/2: the real parts of the
    terms alone are cos(b·w/2) of their moduli, which sum to p(y).
    """
    xp = namespace(width, b)
    return 1 / xp.cos(0.5 * width * b)


def cumulants(r: Numbers, width: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Bound (log p)″, (log p)‴ and (log p)⁗ at y + ib, over the variance V at y (CUMULANT).

    (log p)″ = Σ_{i<j} w_i w_j e^{…}(m_i − m_j)²/p², whose numerator is at most p(y)²V and whose
    denominator at least p(y)²/R² (SECTOR). Its derivative has the factor m_i + m_j − 2M, M the
    complex mean: |m_i − M| = |Σ_j w_j e^{…}(m_i − m_j)/p| ≤ Rw. The next has the factor
    (m_i + m_j − 2M)² − 2(log p)″, at most 4R²w² + 2R²V ≤ 4.5R²w², as V ≤ w²/4.
    """
    return r**2, 2 * r**3 * width, 4.5 * r**4 * width**2


def growth(width: Numbers, step: Numbers) -> Numbers:
    """Return the factor by which the variance V can grow within one step (inequality GRONWALL).

    V′ = Σ r_i (m_i − mean)³ and |m_i − mean| ≤ w.
    """
    return namespace(width, step).exp(width * step)


def chord(bend: Numbers, step: Numbers) -> Numbers:
    """Return by how much ψ can exceed its chord on a cell where ψ″ ≥ −bend (inequality CHORD).

    ψ + bend·y²/2 is convex and lies below its own chord; bend·y²/2 lies bend·h²/8 below its chord
    at most, in the middle.
    """
    return 0.125 * step**2 * bend


def log_aliases(wave: Numbers, b: Numbers) -> Numbers:
    """Return the log of Σ_{j≥1} e^{−j·wave·b}, which bounds the trapezoid rule's error (POISSON).

    The rule's sum is that of F(j·wave) over all j. F(ω) is the integral on the line moved
    by b towards −ω, where e^{−iωy} is e^{−|ω|b}.
    """
    return -log_expm1(wave * b)


# ------------------------------------------------------------------------------ nodes


class Tilted(NamedTuple):
    """A step under the measure e^{cL}dP/e^{K(c)}, on nodes.

    Fields:
        moment: about K(c) = log E_P[e^{cL}]; its error is part of the bounds at t = 0.
        loss, weight: of the nodes; the weights sum to 1.
        constant, per_t: bound on what is cut and on losses' rounding, constant + t·per_t.
        rounding: bounds on what e^K is rounded by, and on the mean of what weights are times |L|.
        spread: E|L|.
        place: of the nodes on the line, of a folded pair in two rows; None for atoms.
        line: what bounds are made of; None for atoms, which have no quadrature.
    """

    moment: Numbers
    loss: Numbers
    weight: Numbers
    constant: Numbers
    per_t: Numbers
    rounding: Numbers
    spread: Numbers
    place: Numbers | None
    line: Path | Fold | None


class Path(NamedTuple):
    """A tilted `Mixture` at even points: pair, tilt, spacing, exponents, spreads and cut mass."""

    pair: Mixture
    c: Numbers
    step: Numbers
    exponent: Numbers  # log of the weights
    slope: Numbers
    p: Spread
    q: Spread
    near_p: Numbers  # variances, by GRONWALL for all points within a step
    near_q: Numbers
    cut: Numbers


class Fold(NamedTuple):
    """What bounds of a folded pair are made of, see `half`; its paths; the mass of its atom."""

    level: Numbers
    turn: Numbers
    paths: tuple[Path, Path]
    atom: Numbers


def path(
    pair: Mixture, c: Numbers, step: Numbers, exponent: Numbers, p: Spread, q: Spread, cut: Numbers
) -> Path:
    """Return what bounds are made of, of the spreads p and q at points a step apart."""
    xp = namespace(pair, c, step)
    more = growth(pair.width(), step)
    near = p.variance * more, q.variance * more
    return xp.barrier(Path(pair, c, step, exponent, p.mean - q.mean, p, q, *near, cut))


def reach(pair: Mixture, c: Numbers) -> tuple[Numbers, Numbers]:
    """Return points beyond which h = (c+1) log p − c log q is flatter than y by 11 at least.

    (log q)′ rises and (log p)′ lies in [p0, p1]: left of y the slope of h is at least
    (c+1)p0 − c(log q)′(y), right of it at most (c+1)p1 − c(log q)′(y). What these are at the
    nearest point in question holds further out too.
    """
    xp = namespace(pair, c)
    (p0, p1), (q0, q1) = pair.slopes()
    low, high = (c + 1) * p0 - c * q0 - _REACH, (c + 1) * p1 - c * q1 + _REACH
    low = xp.minimum(low, (c + 1) * p0 - c * pair.slope_of_q(low) - _REACH)
    return low, xp.maximum(high, (c + 1) * p1 - c * pair.slope_of_q(high) + _REACH)


def window(pair: Mixture, c: Numbers, start: Numbers | None = None) -> tuple[Numbers, ...]:
    """Return a window's ends, its cells' width, log of a bound on the integral outside, and f.

    f is given at the ends of all cells. No window reaches below `start`.
    """
    xp = namespace(pair, c)
    (q0, q1) = pair.slopes()[1]
    low, high = (v[0] for v in reach(pair, c * np.ones(1)))
    if start is not None:  # of a tail, where all that weighs lies below the start
        low, high = start, xp.maximum(high, start + 1.0)
    # CHORD: f = h − y²/2 has f″ = (c+1)V_p − cV_q − 1 ≥ −κ, as a variance within [q0, q1] is at
    # most (q1 − q0)²/4 (Popoviciu). A chord is at most its higher end.
    kappa = 1 + 0.25 * c * (q1 - q0) ** 2
    cells = _WINDOW_CELLS
    if xp is NUMPY:
        wanted = (high - low) * (4 + 0.3 * math.sqrt(kappa)) + 64
        # A tilt that is not a number leaves bounds that are none, which ends in +inf.
        cells = int(wanted) if wanted <= _MOST_CELLS else _MOST_CELLS
    w = (high - low) / cells
    y = low + w * np.arange(cells + 1)
    a, b = pair.logs(y)
    f = (c + 1) * a - c * b - 0.5 * y * y
    front = xp.log(w / math.sqrt(2 * math.pi))
    cell = xp.maximum(f[1:], f[:-1]) + chord(kappa, w) + front
    # Beyond an end x the integrand lies below e^{f(x) + s(y − x) − (y² − x²)/2}, |x − s| ≥ 11, and
    # Φ(−11) ≤ e^{−11²/2}/(11√(2π)): all of that but 1/(11√(2π)) cancels.
    tails = f[-1:] if start is not None else xp.stack([f[0], f[-1]])
    tails = tails - math.log(_REACH * math.sqrt(2 * math.pi))
    heavy = cell > xp.max(cell) - _CUT - math.log(cells)
    at = np.arange(cells) * 1.0
    left = xp.min(xp.where(heavy, at, np.inf))
    right = xp.max(xp.where(heavy, at, -np.inf)) + 1
    outside = xp.where((at < left) | (at >= right), cell, -np.inf)
    cut = log_sum(xp.concatenate([outside, tails])) + 1e-9
    return low + w * left, low + w * right, w, cut, f


def _nodes(pair: Mixture, c: Numbers, nodes: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return nodes, spacing, and logarithms of bounds on integral and sum of what is left out."""
    xp = namespace(pair, c)
    low, high, w, cut, f = window(pair, c)
    step = round_to_24_bits((high - low) / (nodes - 2))
    start = xp.floor(low / step)
    # A cell holds at most w/step + 1 of the nodes that are left out. In the tails f is monotone:
    # their sum is at most their integral and one term more, which is that at the window's end.
    edge = xp.logaddexp(f[0], f[-1]) + xp.log(step / math.sqrt(2 * math.pi))
    lost = xp.logaddexp(cut + xp.log1p(2 * step / w), edge)
    # Nodes are exact multiples of the spacing, as POISSON needs, or nothing is said.
    lost = xp.where(xp.abs(start) + nodes < 2.0**28, lost, np.inf)
    return xp.barrier(((start + np.arange(nodes)) * step, step, cut, lost))


def tilt_line(pair: Mixture | Atoms, c: Numbers, nodes: int) -> Tilted:
    """Return a step under a tilt c > 0."""
    return _tilted_atoms(pair, c) if isinstance(pair, Atoms) else _tilted_line(pair, c, nodes)


def _tilted_atoms(pair: Atoms, c: Numbers) -> Tilted:
    xp = namespace(pair, c)
    size = c * pair.loss + xp.log(pair.mass)
    units = 2 * xp.abs(size) + 2 * xp.abs(c * pair.loss)  # a product, a logarithm and a sum
    moment, weight, rounding, spread = normalise(size, units, pair.loss)
    return Tilted(moment, pair.loss, weight, 0.0 * c, EPS * spread, rounding, spread, None, None)


def normalise(
    size: Numbers, units: Numbers, loss: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return log Σ e^size, e^size over that sum, and `Tilted.rounding` and `.spread`.

    The units, of eps, are what `size` is rounded by.
    """
    xp = namespace(size, units, loss)
    n, top = size.shape[-1], xp.max(size)
    weight = xp.exp(size - top)
    # In two stages no term is rounded more than 3√n times, half a unit each.
    rows = 2 ** (round(math.log2(n)) // 2)
    more = weight if n % rows == 0 else xp.concatenate([weight, xp.zeros(rows - n % rows)])
    total = xp.sum(xp.sum(more.reshape(rows, -1), axis=-1))
    moment, weight = top + xp.log(total), weight / total
    units = xp.where(weight > 0, units + xp.abs(size - top) + 3, 0.0)
    whole = weight @ units + 1.5 * math.sqrt(n) + 2 * (xp.abs(top) + xp.abs(moment)) + 4
    # A weight is off by its own units and by those of the sum.
    size, spread = xp.abs(loss), weight @ xp.abs(loss)
    return moment, weight, EPS * xp.stack([whole, weight @ (units * size) + whole * spread]), spread


def _tilted_line(pair: Mixture, c: Numbers, nodes: int) -> Tilted:
    xp = namespace(pair, c)
    y, step, cut, lost = _nodes(pair, c, nodes)
    p, q = xp.barrier(pair.spread(y))
    a, b = p.value, q.value
    loss = a - b
    size = (c + 1) * a - c * b - 0.5 * y * y + xp.log(step / math.sqrt(2 * math.pi))
    # Rounding: y is exact; of log p what `spread` says, products and sums once each.
    units = (c + 1) * (p.rounding + 1.5 * xp.abs(a)) + c * (q.rounding + 1.5 * xp.abs(b))
    units = units + 0.5 * y * y + 1.5 * xp.abs(size) + 2
    moment, weight, rounding, spread = normalise(size, units, loss)
    edge = _edge(pair, c, step, weight, cut - moment)
    constant = xp.exp(lost - moment) + edge
    per_t = EPS * (weight @ (p.rounding + q.rounding)) + edge * pair.width() * step / (2 * math.pi)
    line = path(pair, c, step, size - moment, p, q, cut - moment)
    return Tilted(moment, loss, weight, constant, per_t, rounding, spread, y, line)


def _shifts(width: Numbers, step: Numbers) -> tuple[Numbers, Numbers]:
    """Return the shifts that POISSON tries, and the widest of them."""
    xp = namespace(width, step)
    wave = 2 * math.pi / step
    widest = xp.minimum(0.85 * math.pi / width, 0.9 * wave)
    narrow = xp.minimum(8 / wave, widest)
    return narrow * (widest / narrow) ** _SHIFTS, widest


def _edge(pair: Mixture, c: Numbers, step: Numbers, weight: Numbers, cut: Numbers) -> Numbers:
    """Bound what the transform has beyond the window's edges at t = 0 (inequality EDGES).

    At t it is 1 + wt/wave times as much. With wave = 2π/h the path runs at the
    height b = 1/(wave + wt) there. All arguments of p and of
    q lie between b times their ends (SECTOR), so that |Im L| ≤ wb and e^{t|Im L|} ≤ e. The modulus
    of e^{cL}p·g grows by e^{b²/2}R^c at most, and Σ_j e^{−j·wave·b} = 1/(e^{wave·b} − 1) ≤
    1/(wave·b) = 1 + wt/wave. At the last nodes the path comes down from the shift s to b: there the
    bound on the modulus over e^{wave·s} − 1 is log-convex in s, hence at most its two ends, of
    which this is the lower one. Both sides, up and down: 2, and 0.1 % for rounding.
    """
    xp = namespace(pair, c, step)
    low, width = step / (2 * math.pi), pair.width()
    mass = xp.exp(cut) + _shifts(width, step)[1] * (weight[0] + weight[-1]) / step
    grown = xp.exp(0.5 * low * low + c * xp.log(sector(width, low)))
    # Where one step turns p by as much as that the bound on q says nothing.
    grown = xp.where(width * low < 0.8 * math.pi, grown, np.inf)
    return 2.002 * math.e * mass * grown


# ------------------------------------------------------------------------------ bounds


def quadrature_error(tilted: Tilted, t: Numbers) -> Numbers:
    """Return log of bounds on the rule's error at t ≥ 0 over e^K, a row for every shift.

    A row is convex in t (CONVEX), so that it may be taken at a few t and by chords between them.
    """
    xp = namespace(tilted, t)
    if tilted.line is None:
        return xp.full((1, len(t)), _LOG_NOTHING)
    at = tilted.line
    if isinstance(at, Fold):  # a sum of exponentials of what is linear in t
        return log_sum(at.level[:, None] + at.turn[:, None] * t[:, None])
    width, wave = at.pair.width(), 2 * math.pi / at.step
    shift = _shifts(width, at.step)[0]
    grown, turn = _lifted(at, shift[:, None])
    # CHORD on the shifted line, its cells' integrals at most the mean of their two ends. Of
    # (c+1)·Re log p the second derivative is at least −(c+1)R²V (CUMULANT), of −t·Im L likewise.
    r = sector(width, shift)
    second = cumulants(r, width)[0][:, None]
    bend = chord(1 + second * ((at.c + 1) * at.near_p + at.c * at.near_q), at.step)
    more = chord(second * (at.near_p + at.near_q), at.step)
    height = (at.exponent + grown + bend)[:, None] + t[:, None] * more[:, None]
    # Up and down the line the factor is e^{−tIm L} and e^{tIm L}: together at most twice this.
    inside = log_sum(height + xp.abs(t[:, None] * turn[:, None]))
    # At the last nodes |Im L(y + ib)| ≤ b·max|L′|, and (log p)′(y + ib) − m_0 =
    # Σ w_j(m_j − m_0)e^{…}/p is at most R·((log p)′(y) − m_0) by SECTOR; so from the highest mean.
    (p0, p1), (q0, q1) = at.pair.slopes()
    fixed = xp.stack([xp.abs(p0 - q0), xp.abs(p1 - q1)])[:, None]
    ends = np.array([0, -1])
    parts = at.p.mean - p0 + at.q.mean - q0, p1 - at.p.mean + q1 - at.q.mean
    fastest = xp.min(fixed + xp.stack(parts)[:, ends] * r[:, None, None], axis=1)
    outside = xp.log(shift) + 0.5 * shift**2 + at.c * xp.log(r)
    outside = outside[:, None, None] + (at.exponent[ends] - xp.log(at.step))[:, None]
    outside = log_sum(outside + (shift[:, None] * fastest)[:, :, None] * t, axis=1)
    # POISSON, to both sides: 2, and 0.1 % for rounding.
    bound = xp.logaddexp(inside, outside) + log_aliases(wave, shift)[:, None] + math.log(2.002)
    return xp.where(bound < _VOID, bound, _VOID)


def _lifted(at: Path, b: Numbers) -> tuple[Numbers, Numbers]:
    """Return by how much log |e^{cL}p·g| grows on y + ib, and Im L there."""
    xp = namespace(at, b)
    p, q, turn = at.pair.turned((at.p.share, at.q.share), b)
    return xp.barrier(((at.c + 1) * p - at.c * q + 0.5 * b * b, turn))


def decay(tilted: Tilted, t: Numbers, off: Numbers) -> Numbers:
    """Return ρ(t) with |E[e^{(c+iτ)L}]| ≤ ρ(t)e^K for every τ ≥ t.

    The integral may be taken along a path y + ib(y): there e^{iτL} has the modulus e^{−τ Im L},
    which falls as τ grows where Im L ≥ 0.

    RATIO: Im(p·conj q)(y + ib) = Σ_{i>j}(p_i q_j − p_j q_i)e^{…} sin(b(m_i − m_j)) has no negative
    term if p_i/q_i rises with the mean and 0 ≤ b·w ≤ π; where it falls b is negative, and where
    neither b is 0 and ρ says nothing. b is linear between the nodes, and 0 where they end.

    Args:
        tilted: the step.
        t: ascending.
        off: bound on the error of the moment, relative.
    """
    xp = namespace(tilted, t, off)
    if tilted.line is None:
        return xp.ones_like(t) + off
    line = tilted.line
    paths = line.paths if isinstance(line, Fold) else (line,)
    atom = line.atom if isinstance(line, Fold) else 0.0
    masses = [_path_mass(path, t) for path in paths]
    # All of the mass is 1, and an atom at loss 0 does not turn.
    close = or_infinite(1 + sum(mass[0] for mass in masses))
    found = xp.minimum(close, or_infinite(atom + sum(mass[1] for mass in masses))) + 2 * off
    # What holds for every τ ≥ an earlier t holds here; and a modulus is at most its value at 0.
    before = np.tril(np.ones((t.shape[0], t.shape[0]))) > 0
    found = xp.min(or_infinite(found), axis=0)
    return xp.min(xp.where(before, xp.minimum(found, 1 + off), np.inf), axis=1)


def _path_gain(at: Path, b: Numbers, t: Numbers) -> Numbers:
    """CHORD on the path: by how much log of the modulus may exceed its chord on a cell.

    With F(y, b) = Re[(c+1)log p − c·log q](y + ib) − its value at b = 0, + b²/2 − t·Im L and b′
    constant, d²F/dy² = F_yy + 2b′F_yb + b′²F_bb. By CUMULANT: F_yy is at most (b²/2)·4.5R⁴w²V of
    the first (an even function of b that is 0 at b = 0) and b·2R³wV of the second part, F_yb is
    b·2R³wV and R²V, F_bb is 1 + R²V and R²V. The path's length is √(1 + b′²) of the cell.
    """
    xp = namespace(at, b, t)
    left, right = slice(None, -1), slice(1, None)
    width = at.pair.width()
    rise = (b[..., right] - b[..., left]) / at.step
    high = xp.maximum(b[..., right], b[..., left])
    second, third, fourth = cumulants(sector(width, high), width)
    near_p = xp.minimum(at.near_p[right], at.near_p[left])
    near_q = xp.minimum(at.near_q[right], at.near_q[left])
    modulus, turn = (at.c + 1) * near_p + at.c * near_q, t * (near_p + near_q)
    gain = 0.5 * high**2 * fourth * modulus + high * third * turn
    gain = gain + 2 * xp.abs(rise) * (high * third * modulus + second * turn)
    gain = gain + rise**2 * (1 + second * (modulus + turn))
    return chord(gain, at.step) + 0.5 * xp.log1p(rise**2)


def _path_mass(at: Path, t: Numbers) -> tuple[Numbers, Numbers]:
    """Bound the integral of the modulus along some paths, less the mass on the line, and by itself.

    On a cell of the real line the mass is at most the mean of its ends times e^{kh²/8} (CHORD:
    f″ ≥ −(1 + cV_q)), and at least the exponential of the mean of the exponents less
    (c+1)V_p h²/8, as f″ ≤ (c+1)V_p and e to a chord is on average at least e to its mean (Jensen).
    """
    xp = namespace(at, t)
    count, t = at.exponent.shape[-1], t[:, None]
    limit = _LIMIT * math.pi / at.pair.width()
    place = np.arange(count)
    inner = np.minimum(1.0, np.minimum(place, place[::-1]) / (count / 16))
    pull = xp.abs(at.slope) / (1 + at.c * at.q.variance)
    b = limit * xp.tanh(_BENDS * t * pull / limit) * inner
    grown, turn = _lifted(at, at.pair.direction() * b)
    rises, gain = xp.barrier((grown - t * xp.abs(turn), _path_gain(at, b, t)))
    left, right = slice(None, -1), slice(1, None)
    f = at.exponent
    near_p = xp.minimum(at.near_p[right], at.near_p[left])
    near_q = xp.minimum(at.near_q[right], at.near_q[left])
    bend = chord(1 + at.c * near_q, at.step)
    mass_most = xp.exp(xp.logaddexp(f[left], f[right]) - math.log(2) + bend)
    mass_least = xp.exp(0.5 * (f[left] + f[right]) - chord((at.c + 1) * near_p, at.step))
    # All of the mass is 1; on a cell it changes by at most this factor.
    factor = xp.expm1(xp.maximum(rises[..., left], rises[..., right]) + gain)
    close = xp.sum(xp.where(factor > 0, mass_most, mass_least) * factor, axis=-1)
    close = close + EPS * (count + 8 * (at.c + 1) + 8 * t[:, 0])
    # Or cell by cell along the path, and what is cut besides.
    far = xp.logaddexp(f[left] + rises[..., left], f[right] + rises[..., right])
    far = xp.exp(log_sum(far - math.log(2) + bend + gain)) + xp.exp(at.cut)
    return close, far * (1 + 1e-9)
