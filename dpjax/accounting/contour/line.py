"""The profile of a composition from one line Re z = c, with bounds on everything that is not exact.

    δ(ε) = (1/2πi) ∫ e^{ΣnK(z) − zε}/(z(z + 1)) dz,  Re z = c > 0,

K the logarithms of the steps' transforms. The line is summed at t = kh, k ≥ 0.
With M(s) = e^{ΣnK(s)}:

LEFT      δ ≤ 1: the aliases to the left add at most 1/(e^{cP} − 1), P = 2π/h the period.
RIGHT     δ(u) ≤ k(s)M(s)e^{−su}, k(s) = s^s/(1 + s)^{s+1}: bounds the aliases to the right.
BOUNDED   A composition of atoms has a greatest loss G: M(s) ≤ e^{sG} for every s.
BLUR      Where the line ends too early the loss is blurred by a normal number of variance b²; its
          profile lies above by at most b²e^{b²/8} times the density of the blurred loss.

References:
  Zhu, Dong, Wang 2022, "Optimal accounting of differential privacy via characteristic function".
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics.arrays import NUMPY, Numbers, NumbersLike, namespace
from dpjax.accounting.contour import half
from dpjax.accounting.contour import tilt as tilts
from dpjax.accounting.contour.saddle import (
    MARGIN,
    Composition,
    Saddle,
    Step,
    approximate_moments,
    sum_over,
)
from dpjax.accounting.contour.tilt import EPS, least, log_expm1, or_infinite, pick
from dpjax.accounting.pairs.pair import MASS_ERROR, Atoms

_FURTHER = 1 + 1e-9  # on sums of few positive terms
_ENDS = 6  # ends of the line, of which the best is taken
_DEVIATIONS = np.array([0.1, 0.5, 2.0, 8.0])  # tilts for RIGHT, over the loss's deviation
_TILT_SHARES = np.array([0.07, 0.14, 0.22, 0.3, 0.4, 0.5, 0.8])  # and in parts of c
_ENDLESS = 1e290  # a greatest loss where there is none


class Line(NamedTuple):
    """The integrand at t = kh over e^{scale}, blocks by blocks, ready for any ε.

    Fields:
        c, spacing: real part of the line, h.
        scale: ΣnK(c).
        real, imag: of h/π·e^{Σn(K(z) − K(c))}/(z(z + 1)), the first point halved.
        size: Σ of the moduli, and of t times them.
        slack: bound on all errors but aliasing.
        further, moments: differences a of tilts, and logs of bounds on k(c + a)M(c + a): RIGHT.
        chernoff: log of a bound on k(c)M(c).
        blur: b².
        density_real, density_imag, density_slack, density_moment: the same without 1/(z(z + 1)): of
            the density of the loss under P.
        weight_error: bound on how far P's mass may be from 1, for LEFT.
        rounding: bound on what `scale` is rounded by, and its steps' moments.
    """

    c: Numbers
    spacing: Numbers
    scale: Numbers
    real: Numbers
    imag: Numbers
    size: Numbers
    slack: Numbers
    further: Numbers
    moments: Numbers
    chernoff: Numbers
    blur: Numbers
    density_real: Numbers
    density_imag: Numbers
    density_slack: Numbers
    density_moment: Numbers
    weight_error: Numbers
    rounding: Numbers


def transform(
    loss: Numbers, weight: Numbers, spacing: Numbers, blocks: int
) -> tuple[Numbers, Numbers]:
    """Return real and imaginary part of Σw(e^{it_kL} − 1) at t_k = k·spacing, k < blocks².

    With F = e^{itL} − 1, formed without cancellation, F_{a+b} = F_a + F_b + F_aF_b: the sum over
    the nodes is a product of two small matrices.
    """
    xp = namespace(loss, weight, spacing)

    def powers(rows: NumbersLike) -> tuple[Numbers, Numbers]:
        angle = xp.outer(rows, spacing * loss)
        return -2 * xp.sin(0.5 * angle) ** 2, xp.sin(angle)

    k = np.arange(blocks) * 1.0
    re, im = powers(k)
    far_re, far_im = powers(blocks * k)
    re, im, u, v = xp.barrier((re, im, far_re * weight, far_im * weight))
    real = (u @ re.T - v @ im.T) + (xp.sum(u, axis=1)[:, None] + (re @ weight))
    imag = (u @ im.T + v @ re.T) + (xp.sum(v, axis=1)[:, None] + (im @ weight))
    return real.reshape(-1), imag.reshape(-1)


def chords(t: Numbers, knots: Numbers, values: Numbers) -> Numbers:
    """Return the exponential of the least row of `values`, straight between the knots (CONVEX)."""
    xp = namespace(t, knots, values)
    gaps = xp.maximum(knots[1:] - knots[:-1], 1e-300)
    part = xp.clip((t - knots[:-1, None]) / gaps[:, None], 0.0, 1.0)
    rows = values[:, :1] + (values[:, 1:] - values[:, :-1]) @ part
    return xp.exp(xp.min(rows, axis=0))


def _of_step(
    pair: Step,
    count: Numbers,
    at: tuple[Numbers, Numbers, Numbers, Numbers],
    nodes: int,
    blocks: int,
) -> dict[str, Numbers]:
    """Return what one step adds to the line: logarithms, angles and bounds at its points."""
    c, spacing, t, knots = at
    xp = namespace(pair, c, spacing)
    step = half.tilt(pair, c, nodes)
    re, im = transform(step.loss, step.weight, spacing, blocks)
    bound = chords(t, knots, tilts.quadrature_error(step, knots)) + step.constant + t * step.per_t
    # Weights off by e_j move φ/e^K by Σ w_j e_j|F_j| at most, as Σ w_j = 1; |F| ≤ min(2, t|L|).
    # Rounding of F: sums of n terms in any order are off by n·EPS/2·√2(|F_aF_b| + |F_a| + |F_b|),
    # at most 2.2n·EPS·t|L|; its angles by a unit of t|L|. Of 1 + F and its modulus eight units more
    # are lost where that is below 0.7, thus t·E|L| at least 0.29.
    whole, by_loss = step.rounding
    moved = (2.5 * len(step.loss) + 40) * xp.minimum(t * step.spread, 4.0)
    bound = bound + xp.minimum(2 * whole, t * by_loss) + EPS * (moved + 8 * t * step.spread)
    bound = or_infinite(bound)
    off = bound[0] + whole
    # |φ|² = 1 + square, which loses |φ| to the 1 where that is small: there it is taken itself.
    square = 2 * re + re * re + im * im
    size = xp.sqrt(xp.maximum((1 + re) ** 2 + im * im, 1e-300))
    close = square > -0.5
    log_size = xp.where(close, 0.5 * xp.log1p(xp.maximum(square, -0.5)), xp.log(size))
    angle = xp.arctan2(im, 1 + re)
    lost = xp.log1p(bound / size) + 4 * EPS * (xp.abs(angle) + xp.abs(log_size))
    return {
        "moment": step.moment,
        "size": log_size,
        "angle": angle,
        "lost": lost,
        "rho": xp.log(tilts.decay(step, knots[1:], off)),
        "off": off,
        "rounding": whole,
    }


def _gaussian(mu2: Numbers, c: Numbers, t: Numbers, ends: Numbers) -> dict[str, Numbers]:
    """Return the same of plain Gaussian steps, of which K(z) = μ²z(z + 1)/2."""
    return {
        "moment": 0.5 * mu2 * c * (c + 1),
        "size": -0.5 * mu2 * t * t,
        "angle": 0.5 * mu2 * t * (2 * c + 1),
        "lost": 8 * EPS * mu2 * t * (t + 2 * c + 1),
        "rho": -0.5 * mu2 * ends**2,
        "off": 4 * EPS * mu2 * c * (c + 1),
        "rounding": 0.0 * c,
    }


def _log_k(s: Numbers) -> Numbers:
    """Return log k(s), k(s) the supremum of (1 − e^{−x})e^{−sx} over x ≥ 0 (inequality RIGHT).

    It is taken at e^{−x} = s/(1 + s). Hence (1 − e^{u−L})₊ ≤ k(s)e^{s(L−u)}, whose mean under P
    is k(s)M(s)e^{−su}.
    """
    xp = namespace(s)
    return -xp.log1p(s) - s * xp.log1p(1 / s)


def _period(
    run: Composition, at: Saddle, scale: Numbers, greatest: Numbers
) -> tuple[Numbers, Numbers]:
    """Return a period beyond which aliases are small, and the difference of tilts for RIGHT."""
    xp = namespace(run, tuple(at))
    c = at.c
    more = xp.concatenate([_DEVIATIONS / at.deviation, c * _TILT_SHARES])
    reach = (approximate_moments(run, c + more)[0] - scale + MARGIN + at.waste) / more
    reach = xp.where(xp.isfinite(reach), reach, np.inf)
    # BOUNDED: beyond the greatest loss there are no aliases, however far off the ε in mind is.
    furthest = xp.minimum(xp.min(reach) - at.epsilon, 1.1 * greatest)
    period = xp.maximum((at.depth + MARGIN + 2) / c, furthest)
    return xp.maximum(period, 1e-3 / c), pick(least(reach), more)


def moment_error(step: tilts.Tilted) -> Numbers:
    """Return what a step's moment may be off by: of the quadrature, what is cut, and rounding."""
    xp = namespace(step.moment)
    errors = tilts.quadrature_error(step, xp.zeros(1))
    return step.constant + step.rounding[0] + xp.exp(xp.min(errors))  # log(1 + x) ≤ x


def bound_moment(run: Composition, s: Numbers, nodes: int) -> Numbers:
    """Return an upper bound on log of k(s)M(s), with the quadrature's error at s."""

    def one(pair: Step, _: Numbers) -> Numbers:
        step = half.tilt(pair, s, nodes)
        return step.moment + moment_error(step)

    mu2 = run.gaussian_mu2
    return sum_over(one, run, 0.5 * mu2 * s * (s + 1) * (1 + 8 * EPS)) + _log_k(s)


def evaluate_line(run: Composition, at: Saddle, nodes: int, blocks: int) -> tuple[Line, Line]:
    """Return the line, blurred where what is lost is its end, and as it is."""
    xp = namespace(run, tuple(at))
    c, points = at.c, blocks**2
    zero = xp.zeros(())
    # The moment and the greatest loss alone, on the nodes of the line: they place its points.
    plain = xp.where(run.gaussian_mu2 > 0, _ENDLESS, 0.0)
    greatest = sum_over(lambda pair, _: _greatest(pair), run, plain)
    greatest = greatest + 1e-12 * (1 + xp.abs(greatest))
    scale = approximate_moments(run, c * np.ones(1))[0][0]
    period, a = _period(run, at, scale, greatest)
    spacing = tilts.round_to_24_bits(2 * math.pi / period)
    moments = bound_moment(run, c + a, nodes)
    t = spacing * np.arange(points)
    short = xp.minimum(6 / at.deviation, t[-1] / 8)
    ends = short * (t[-1] / short) ** np.linspace(0, 1, _ENDS)
    ends = xp.concatenate([ends[:-1], t[-1:]])
    knots = xp.concatenate([xp.zeros(1), ends])
    where = c, spacing, t, knots
    sums = sum_over(
        lambda pair, count: _of_step(pair, count, where, nodes, blocks),
        run,
        _gaussian(run.gaussian_mu2, c, t, ends),
    )
    sums["greatest"] = greatest
    plain_slack, plain_end, blur = _cut_line(sums, c, t, spacing, ends)
    slack, end, _ = _cut_line(sums, c, t, spacing, ends, blur)
    weight_error = MASS_ERROR * sum((xp.sum(g.count) for g in run.groups), zero)
    right = a, moments, weight_error
    return (
        _finish(sums, c, t, spacing, ends, end, slack, blur, right),
        _finish(sums, c, t, spacing, ends, plain_end, plain_slack, zero, right),
    )


def _greatest(pair: Step) -> Numbers:
    xp = namespace(pair)
    return xp.max(pair.loss) if isinstance(pair, Atoms) else xp.asarray(_ENDLESS)


def _kernel(c: Numbers, t: Numbers, spacing: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return h/π over |z(z + 1)|, the first point halved; real and imaginary part; the modulus."""
    xp = namespace(c, t)
    flat, rise = c * (c + 1) - t * t, t * (2 * c + 1)
    modulus = xp.hypot(flat, rise)
    half = np.where(np.arange(t.shape[0]) == 0, 0.5, 1.0)
    return spacing / math.pi * half / modulus, flat, rise, modulus


def _point_errors(sums: dict[str, Numbers], weight: Numbers, t: Numbers, b2: Numbers) -> Numbers:
    """Return what every point may be off by.

    |Πφ^n − Πφ̂^n| ≤ |Πφ̂^n|·(Π(1 + a/|φ̂|)^n − 1) for |φ − φ̂| ≤ a; or both moduli, where that is
    less.
    """
    xp = namespace(weight, t, b2)
    apart = xp.exp(sums["size"] + log_expm1(sums["lost"] + 16 * EPS))
    most = xp.exp(sums["off"]) + xp.exp(sums["size"])
    return weight * xp.exp(-0.5 * b2 * t * t) * xp.minimum(or_infinite(apart), most)


def _cut_line(
    sums: dict[str, Numbers],
    c: Numbers,
    t: Numbers,
    spacing: Numbers,
    ends: Numbers,
    b2: Numbers | None = None,
) -> tuple[Numbers, Numbers, Numbers]:
    """Return the least slack over the ends of the line, the mask of that end, and the blur wanted.

    Beyond an end E the sum is at most h·ρ(E)/E² + ∫_E^∞ ρ/t² dt, as |z(z + 1)| ≥ t² and ρ/t² falls,
    with ρ constant between the ends.
    """
    xp = namespace(c, t, ends)
    plain = b2 is None
    b2 = xp.zeros(()) if plain else b2
    weight = _kernel(c, t, spacing)[0]
    each = _point_errors(sums, weight, t, b2)
    inside = xp.sum(xp.where(t <= ends[:, None], each, 0.0), axis=-1)
    rho = xp.exp(sums["rho"] - 0.5 * b2 * ends**2)
    gaps = rho * (1 / ends - xp.concatenate([1 / ends[1:], xp.zeros(1)]))
    rest = np.triu(np.ones((_ENDS, _ENDS))) @ gaps + spacing * rho / ends**2
    slack = or_infinite(inside + rest / math.pi * _FURTHER)
    # A blur is worth its price where it is the end of the line that is lost.
    goal = 1e-9 * xp.sum(weight * xp.exp(sums["size"]))
    lost = xp.min(slack) > xp.maximum(goal, 4 * or_infinite(inside[0]))
    wanted = xp.where(lost, (7.5 / t[-1]) ** 2, 0.0)
    return xp.min(slack), least(slack), wanted


def _finish(
    sums: dict[str, Numbers],
    c: Numbers,
    t: Numbers,
    spacing: Numbers,
    ends: Numbers,
    end: Numbers,
    slack: Numbers,
    b2: Numbers,
    right: tuple[Any, Any, Any],
) -> Line:
    """Return the line up to one end, blurred by b²: one more Gaussian step of μ² = b²."""
    xp = namespace(c, t, b2)
    a, moments, weight_error = right
    blocks = round(t.shape[0] ** 0.5)
    last = pick(end, ends)
    weight, flat, rise, modulus = _kernel(c, t, spacing)
    size = xp.where(t <= last, weight * xp.exp(sums["size"] - 0.5 * b2 * t * t), 0.0)
    turn = sums["angle"] + 0.5 * b2 * t * (2 * c + 1)
    other = xp.arctan2(rise, flat)
    real, imag = size * xp.cos(turn - other), size * xp.sin(turn - other)
    # BOUNDED, with the blur's own K: at a tilt as steep as the blur allows.
    greatest = sums["greatest"]
    steepest = xp.where(b2 > 0, 8 / xp.sqrt(xp.maximum(b2, 1e-300)), 1e4 * spacing / (2 * math.pi))
    s = c + steepest
    ceiling = s * greatest + 0.5 * b2 * s * (s + 1)
    grown = moments + 0.5 * b2 * (c + a) * (c + a + 1)
    # The density has no 1/(z(z + 1)), and ρ falls beyond the end: ∫_E^∞ ρe^{−b²t²/2}dt is at most
    # ρ(E)e^{−b²E²/2}/(b²E), and the sum has one term more than that.
    steep = size * modulus
    beyond = pick(end, xp.exp(sums["rho"] - 0.5 * b2 * ends**2))
    beyond = beyond * (1 / (xp.maximum(b2, 1e-300) * last) + spacing) / math.pi * _FURTHER
    off = xp.where(t <= last, modulus * _point_errors(sums, weight, t, b2), 0.0)
    off = xp.sum(off) + beyond + EPS * (4 * blocks + 64) * xp.sum(steep)
    scale = sums["moment"] + 0.5 * b2 * c * (c + 1)
    square = blocks, blocks
    return Line(
        c=c,
        spacing=spacing,
        scale=scale,
        real=real.reshape(square),
        imag=imag.reshape(square),
        size=xp.stack([xp.sum(size), size @ t]),
        slack=slack,
        further=xp.stack([a, steepest]),
        moments=xp.stack([or_infinite(grown), xp.where(ceiling < 1e300, ceiling, np.inf)]),
        chernoff=scale + sums["off"] + _log_k(c),
        blur=b2,
        density_real=(steep * xp.cos(turn)).reshape(square),
        density_imag=(steep * xp.sin(turn)).reshape(square),
        density_slack=or_infinite(off),
        density_moment=steep @ t,
        weight_error=weight_error,
        rounding=xp.expm1(sums["rounding"]),
    )


# ------------------------------------------------------------------------------ δ off the line


def _waves(
    real: Numbers, imag: Numbers, spacing: Numbers, epsilon: Numbers
) -> tuple[Numbers, Numbers]:
    """Return Σ Re(v e^{−itε}) and its derivative by ε: e^{−itε} is a product of two."""
    xp = namespace(real, epsilon)
    blocks = real.shape[0]
    b = NUMPY.asarray(np.arange(blocks))
    e = _rows(epsilon)
    near, far = spacing * e * b, spacing * e * (blocks * b)
    cos, sin = xp.cos(near), xp.sin(near)
    table = xp.stack([cos, sin, b * cos, b * sin], axis=-2).swapaxes(-1, -2)
    u, v = real @ table, imag @ table
    re, im = u[..., 0] + v[..., 1], v[..., 0] - u[..., 1]
    re_b, im_b = u[..., 2] + v[..., 3], v[..., 2] - u[..., 3]
    cos, sin = xp.cos(far), xp.sin(far)
    slope = _dot(im_b, cos) - _dot(re_b, sin)
    slope = slope + blocks * (_dot(im, b * cos) - _dot(re, b * sin))
    return _dot(re, cos) + _dot(im, sin), spacing * slope


def _rows(epsilon: Numbers) -> Numbers:
    """Return one ε as it is, and several as a column."""
    return epsilon if np.ndim(epsilon) == 0 else epsilon[..., None]


def _dot(a: Numbers, b: Numbers) -> Numbers:
    """Return a·b, of several ε row by row: the same sums as of each alone."""
    return a @ b if a.ndim == 1 else (a[..., None, :] @ b[..., None])[..., 0, 0]


def log_line_delta(line: Line, epsilon: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return log of the upper and lower end of the line's δ(ε), and the slope of log δ.

    Of one ε, or on NumPy of several.

    The sum is Σ_j e^{cjP}δ(ε + jP), all of whose terms are ≥ 0: the upper end needs no aliases.
    """
    xp = namespace(line.c, epsilon)
    blocks = line.real.shape[0]
    total, slope = _waves(line.real, line.imag, line.spacing, epsilon)
    front = line.scale - line.c * epsilon
    # Rounding: of sums of 2·blocks terms, of the angles, of the exponent in front.
    slack = line.slack + EPS * ((4 * blocks + 32) * line.size[0])
    slack = slack + 4 * EPS * xp.abs(epsilon) * line.size[1]
    units = 4 * EPS * (xp.abs(line.scale) + line.c * xp.abs(epsilon)) + line.rounding
    slack = slack + units * (xp.abs(total) + slack)
    period = 2 * math.pi / line.spacing
    aliases = left_aliases(line, front, period) + right_aliases(line, epsilon, period)
    low = total - slack - aliases * _FURTHER
    low = xp.where(low > 0, xp.log(xp.maximum(low, 1e-300)) + front, -np.inf)
    tail = or_infinite(line.chernoff - line.c * epsilon + 1e-13 * (1 + xp.abs(line.chernoff)))
    up = or_infinite(xp.log(xp.maximum(total, 0) + slack) + front)
    return xp.minimum(xp.minimum(up, tail), 0.0), low, -line.c + slope / xp.maximum(total, 1e-300)


def log_line_sum(line: Line, epsilon: Numbers) -> tuple[Numbers, Numbers]:
    """Return log of the line's sum, of nothing bounded, and its slope: what derivatives are of."""
    xp = namespace(line.c, epsilon)
    total, slope = _waves(line.real, line.imag, line.spacing, epsilon)
    total = xp.maximum(total, 1e-300)
    return xp.log(total) + line.scale - line.c * epsilon, -line.c + slope / total


def left_aliases(line: Line, front: Numbers, period: Numbers) -> Numbers:
    """Bound the aliases to the left of ε by the total mass of P (inequality LEFT).

    They are Σ_{j≥1} e^{−cjP}δ(ε − jP), over e^{scale − cε}, with δ ≤ 1.
    """
    xp = namespace(line.c, front)
    return xp.exp(line.weight_error - front - log_expm1(line.c * period))


def right_aliases(line: Line, epsilon: Numbers, period: Numbers) -> Numbers:
    """Bound the aliases to the right of ε by the moment at a larger tilt (inequality RIGHT).

    Σ_{j≥1} e^{cjP}k(s)M(s)e^{−s(ε + jP)} = k(s)M(s)e^{−sε}/(e^{aP} − 1), s = c + a.
    """
    xp = namespace(line.c, epsilon)
    a, moments = line.further, line.moments
    moments = moments + 1e-13 * (xp.abs(moments) + 1) - line.scale
    rest = or_infinite(xp.exp(moments - a * _rows(epsilon) - log_expm1(a * period)))
    return xp.min(rest, axis=-1)


def time_value(line: Line, epsilon: Numbers) -> Numbers:
    """Bound how far the blurred δ(ε) lies above the unblurred one (inequality BLUR).

    For each outcome of loss l + ε the blurred (1 − e^{−l})₊ is the price of a call, whose
    time value is ∫_0^b v·φ(l/s − s/2)ds ≤ b·v·φ(l/b − b/2)e^{b²/8} for a volatility b. Its mean
    under Q is b²e^{b²/8} times the density under P of the blurred loss at ε, which the same line
    gives without 1/(z(z + 1)); the aliases of a density are ≥ 0, so that its sum is an upper bound.
    """
    xp = namespace(line.c, epsilon)
    total, _ = _waves(line.density_real, line.density_imag, line.spacing, epsilon)
    front = line.scale - line.c * epsilon
    off = line.density_slack + 4 * EPS * xp.abs(epsilon) * line.density_moment
    units = 4 * EPS * (xp.abs(line.scale) + line.c * xp.abs(epsilon)) + line.rounding
    off = off + units * (xp.abs(total) + off)
    more = line.blur * xp.exp(0.125 * line.blur + front) * (xp.maximum(total, 0.0) + off)
    return or_infinite(more * _FURTHER)


def read_ends(line: Line, epsilon: Numbers) -> tuple[Numbers, Numbers]:
    """Return logs of the upper and the lower end of δ(ε), that of the loss without the blur."""
    xp = namespace(line.c, epsilon)
    up, low, _ = log_line_delta(line, epsilon)
    if xp is NUMPY and line.blur == 0:
        return up, low
    own = xp.exp(low) - time_value(line, epsilon)
    own = xp.where(own > 0, xp.log(xp.maximum(own, 1e-300)), -np.inf)
    return up, xp.where(line.blur > 0, own, low)
