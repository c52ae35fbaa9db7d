"""What the quadrature of a tilted pair can be off by, and how fast its transform decays.

Both bounds move the line of integration in the sample space off the real axis, where the ratio r
only turns: r(y + ib) = r(y)(1 − π + πe^{iμb}) with the posterior π of `pairs.ratio`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Array

from dpjax._numerics.arrays import NUMPY, namespace
from dpjax.accounting.pairs.protocol import Tilted
from dpjax.accounting.pairs.ratio import posterior

_STRIPS = np.array([0.02, 0.04, 0.07, 0.12, 0.2, 0.35, 0.6, 0.95])  # of π/μ, where r could vanish
_NARROW = 36.0  # e^{−36} is small enough: the strip for far along the line, where r turns fast
_SHIFTS = np.array([0.25, 0.6, 1.1, 1.8])
WIDEST = 2.3  # radians; below π, where r could vanish
_SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(10, -1, -1)]  # exact up to 1.2


def on_the_line(
    y: Array,
    power: Array,
    mirrored: bool,
    mu: Array,
    rate: Array,
    c: Array,
    tilted: Tilted,
    t: Any,
    knots: Any,
) -> Array:
    """Bound on the trapezoid rule's error in E_P[e^{(c+it)L}], relative to e^{K(c)}.

    With spacing h, of a function analytic in |Im y| < a: at most 2M/(e^{2πa/h} − 1), M the largest
    integral of its modulus on a line of the strip. There |g(y + ib)| = g(y)e^{b²/2} and
    r(y + ib) = r(y)(1 − π + πe^{iμb}), so that M is a sum over the same nodes, doubled for its own
    error. But for one term its logarithm is convex in t: chords between a few values of t bound it.
    The edge of the strip may be any path, also one that comes down where the nodes end. The best of
    several strips.

    Args:
        y: the nodes.
        power, mirrored: e^{cL}P/g is r(y)^power, times r(−y)^{−c} if mirrored.
        mu, rate, c: as of `tilt`.
        tilted: what `tilt` returned.
        t: ascending from 0, evenly if there are many.
        knots: the few values of t, the first and last of them among these.

    References:
        Trefethen, Weideman 2014, Theorem 5.1.
    """
    xp: Any = namespace(mu, rate, c, t)
    spacing = tilted.spacing
    wave = 2 * np.pi / spacing
    widths = np.pi * _STRIPS / mu
    a = xp.minimum(xp.append(xp.minimum(_NARROW / wave, widths[-1]), widths), 0.9 * wave)
    angle = mu * a[:, None, None]
    log_size, argument = _turn(posterior(y, mu, rate), angle)
    size = power * log_size
    if mirrored:
        log_other, other = _turn(posterior(-y, mu, rate), angle)
        size, argument = size - c * log_other, argument + other
    exponent = size + knots[:, None] * argument
    top = xp.max(exponent, axis=2)
    inside = top + xp.log(xp.exp(exponent - top[:, :, None]) @ tilted.weight)
    # Past the window, where only arg ζ ≤ θ is known, the path comes down to 1/(wave + slope·t) in a
    # vertical step at the last nodes; on it |ζ| ≥ cos(θ/2), and arg ζ ≤ πθ for π ≤ 1/2.
    outer = c if mirrored else xp.where(power < 0, -power, 0.0)
    slope = 2 * mu if mirrored else mu
    ends = xp.stack([y[0], y[-1]])
    pull = posterior(ends, mu, rate) + (posterior(-ends, mu, rate) if mirrored else 0.0)
    pull = xp.where(pull < 0.5, mu * pull, slope)
    last, cut = tilted.weight[-1], tilted.truncated
    if not mirrored:  # where r only damps, the right tail is at most g(y)/y of the last node's size
        cut = xp.where(power < 0, last / (spacing * xp.maximum(y[-1], 1.0)), cut)
    edges = xp.log(xp.stack([tilted.weight[0] + tilted.truncated, last + cut]) + 1e-300)[:, None]
    edges = edges + xp.log1p(a / spacing) - outer * xp.log(xp.cos(0.5 * mu * a))
    outside = edges[:, :, None] + pull[:, None, None] * a[:, None] * knots
    outside, edge = xp.logaddexp(*outside), xp.logaddexp(*edges)
    beyond = edge + 1.0 - outer * xp.log(xp.cos(0.5 * mu / wave)) + 0.5 / wave**2
    # Linear in t, so that its logarithm is concave: at the far end of each piece.
    beyond = np.log(4.0) + beyond[:, None] + xp.log1p(slope * knots[1:] / wave)
    front = np.log(4.0) + 0.5 * a * a - wave * a - xp.log(-xp.expm1(-wave * a))
    convex = xp.logaddexp(inside, outside) + front[:, None]
    first, last = xp.logaddexp(convex[:, :-1], beyond), xp.logaddexp(convex[:, 1:], beyond)
    rise = (last - first) / xp.maximum(knots[1:] - knots[:-1], 1e-300)

    def strips(t: Array) -> Array:
        chords = first[:, :, None] + rise[:, :, None] * (t - knots[:-1, None])
        return xp.max(chords, axis=1)

    every = math.isqrt(t.shape[0])
    if every < 4:
        found = xp.min(strips(t), axis=0)
    else:
        # The largest of straight lines is convex too: its own chords, over so many points each.
        places = t[::every]
        level = strips(xp.append(places, 2 * places[-1] - places[-2]))[:, :, None]
        # Without end a chord would have no number; so far up the cap below holds between them.
        level = xp.minimum(level, 1e9)
        start = level[:, :-1]
        between = start + (level[:, 1:] - start) * (np.arange(every) / every)
        found = xp.min(between, axis=0).reshape(-1)[: t.shape[0]]
    return xp.exp(xp.minimum(found, 50.0))


def shifts(mu: Array, t: Array) -> Array:
    """The Θ that are tried, a row of them for every t."""
    return (t[:, None] * mu * mu / (1 + mu * mu) * _SHIFTS)[:, :, None]


@functools.cache
def _way_back(nodes: int, every: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """On every so many nodes 1 − u⁸ for u from −1 to 1, its slope a node, and signs in turn."""
    u = np.linspace(-1.0, 1.0, nodes)[::every]
    return 1 - u**8, -16 * u**7 / (nodes - 1), (-1.0) ** np.arange(u.shape[0])


def line_decay(
    y: Array, power: Array, mirrored: bool, mu: Array, rate: Array, c: Array, tilted: Tilted, t: Any
) -> Array:
    """log ρ(t) with |E_P[e^{(c+iτ)L}]| ≤ ρ(t)·e^{K(c)} for every |τ| ≥ t.

    Derived for dpjax. Move the line of integration in y to y + ia(y), a ≥ 0: on it |e^{iτL}| is
    e^{−τ arg r(y+ia)} with arg r ≥ 0, so that the integral of the modulus bounds the transform and
    falls as τ grows. μa = Θπ/(1 + Θπ/2.3), with π ∝ dL/dy, bends the line only where the loss moves
    and keeps it clear of the zeros of r, which need μa ≥ π. The path returns to the real axis at
    the ends of the window, beyond which the mass that was cut bounds the modulus. The best of
    several Θ.

    The modulus is integrated on the nodes of the window. Its own quadrature error is of the order
    of the square of the same rule's at twice the spacing; the latter, taken from the alternating
    sum, is added. Arguments as of `on_the_line`.
    """
    xp: Any = namespace(mu, rate, c, t)
    theta = shifts(mu, t)
    t = t[:, None, None]
    nodes = tilted.weight.shape[0]

    def modulus(theta: Array, every: int) -> tuple[Array, Array]:
        """Weights and log of the modulus on every so many nodes."""
        back, falls, _ = _way_back(nodes, every)
        back, falls = xp.asarray(back), falls / tilted.spacing
        hit = posterior(y[::every], mu, rate)
        other = posterior(-y[::every], mu, rate) if mirrored else xp.zeros_like(hit)
        pull = theta * (hit + other)
        shrink = 1 / (1 + pull / WIDEST)
        bend = pull * shrink
        angle = back * bend
        slope = theta * (hit * (1 - hit) - other * (1 - other)) * (shrink * shrink)
        slope = back * slope + falls * bend / mu
        log_size, argument = least_turn(hit, angle)
        exponent = 0.5 * (angle / mu) ** 2 + power * log_size - t * argument
        if mirrored:
            log_other, other_argument = least_turn(other, angle)
            exponent = exponent - c * log_other - t * other_argument
        exponent = exponent + 0.5 * xp.log1p(slope * slope)
        return every * tilted.weight[::every], exponent

    # The modulus does not turn: about 256 nodes are enough, and a few of them to choose Θ by.
    every = -(-nodes // 256)
    weight, rough = modulus(theta, 8 * every)
    best = xp.argmin(xp.expm1(xp.minimum(rough, 300.0)) @ weight, axis=1)
    weight, exponent = modulus(xp.take_along_axis(theta, best[:, None, None], axis=1), every)
    alternating = weight * _way_back(nodes, every)[2]
    return log_total(tilted, weight, exponent, lambda values: xp.abs(values @ alternating))


def log_total(
    tilted: Tilted, weight: Array, exponent: Array, check: Callable[[Array], Array]
) -> Array:
    """log of Σ weight·e^{exponent}, of its error and of what was cut, best over the middle axis."""
    xp: Any = namespace(exponent)
    # A sum of e^x − 1, exact close to 1; far from it the rounding of so many terms is added.
    grown = xp.expm1(xp.minimum(exponent, 300.0))
    found = grown @ weight + check(grown) + tilted.truncated + tilted.rounding[0]
    least = xp.maximum(xp.min(found, axis=1), -1.0) + 1e-15 * weight.shape[0]
    return xp.minimum(xp.log1p(least), 0.0)


def _turn(hit: Array, angle: Array) -> tuple[Array, Array]:
    """log |ζ| and arg ζ of ζ = 1 − π + πe^{iθ}, the factor by which r turns."""
    xp: Any = namespace(hit, angle)
    half = xp.sin(0.5 * angle)
    log_size = 0.5 * xp.log1p(xp.maximum(-4 * hit * (1 - hit) * half * half, -1 + 1e-15))
    return log_size, xp.arctan2(hit * xp.sin(angle), 1 - 2 * hit * half * half)


def least_turn(hit: Array, angle: Array) -> tuple[Array, Array]:
    """As `_turn` for 0 ≤ θ ≤ 2.3, the argument from below, at a quarter of the cost.

    arg ζ = 2 arctan x with x = Im ζ/(|ζ| + Re ζ), and arctan x ≥ 3x/(1 + 2√(1 + x²)) (Shafer 1966),
    which is short of it by at most 1.2 % here.
    """
    xp: Any = namespace(hit, angle)
    half = 0.5 * angle
    # Compiled, a sine costs as much as twenty terms; on NumPy every term is a call.
    sine = xp.sin(half) if xp is NUMPY else half * xp.polyval(_SINE, half * half)
    squared = sine * sine
    loss = 4 * hit * (1 - hit) * squared
    size = xp.sqrt(xp.maximum(1 - loss, 1e-15))
    x = 2 * hit * sine * xp.sqrt(1 - squared) / (size + 1 - 2 * hit * squared)
    return 0.5 * xp.log1p(xp.maximum(-loss, -1 + 1e-15)), 6 * x / (1 + 2 * xp.sqrt(1 + x * x))
