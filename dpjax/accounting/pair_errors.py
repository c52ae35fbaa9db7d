"""What the quadrature of a tilted pair can be off by, and how fast its transform decays.

Both bounds move the line of integration in the sample space off the real axis, where the ratio r
only turns: r(y + ib) = r(y)(1 − π + πe^{iμb}) with the posterior π of `pairs`.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics.logarithm import log1p
from dpjax.accounting.pairs import PANEL, PANEL_NODES, REACH, Family, Tilted, posterior

_STRIPS = np.array([0.03, 0.1, 0.3, 0.6, 0.95])  # of the width π/μ, where r could vanish
_KNOTS = np.array([0.0, 0.0625, 0.125, 0.25, 0.5, 1.0])
_SHIFTS = np.array([0.25, 0.6, 1.1, 1.8])
_WIDEST = 2.3  # radians; below π, where r could vanish
_SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(10, -1, -1)]  # exact up to 1.2


def quadrature_error(
    family: Family,
    sign: Float[Array, ""],
    mu: Float[Array, ""],
    rate: Float[Array, ""],
    c: Float[Array, ""],
    tilted: Tilted,
    t: Float[Array, " points"],
) -> Float[Array, " points"]:
    """Bound on the quadrature's error in E_P[e^{(c+it)L}], relative to e^{K(c)}.

    Trapezoid with spacing h of a function analytic in |Im y| < a: at most 2M/(e^{2πa/h} − 1), M the
    largest integral of its modulus on a line of the strip. There |g(y + ib)| = g(y)e^{b²/2} and
    r(y + ib) = r(y)(1 − π + πe^{iμb}), so that M is a sum over the same nodes, doubled for its own
    error. Its logarithm is convex in t: chords between a few values of t bound it. The edge of the
    strip may be any path, also one that comes down where the nodes end. Gauss panels of half-width
    H: 64/15·M ρ^{−2n}/(1 − ρ^{−2}) in the ellipse whose half-axes sum to ρH, with
    |arg r(y + ib)| ≤ μ|b|. The best of several strips.

    Args:
      family, sign, mu, rate, c: as for `tilt`.
      tilted: what `tilt` returned.
      t: ascending from 0.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from dpjax.accounting.pair_errors import quadrature_error
      >>> from dpjax.accounting.pairs import tilt
      >>> with jax.enable_x64(True):
      ...     one = jnp.float64(1.0)
      ...     step = tilt("poisson", one, one, one, one, 128)
      ...     error = quadrature_error("poisson", one, one, one, one, step, jnp.arange(9.0))
      ...     print(f"{error[8]:.1e}")
      1.5e-24

    References:
      Trefethen, Weideman 2014, Theorem 5.1; Trefethen 2019, Theorem 19.3.
    """
    spacing = tilted.spacing
    if family == "symmetrised":
        angle = np.pi * np.array([0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96])[:, None]
        a = jnp.minimum(angle / mu, 4.0)
        ratio = a / spacing
        ellipse = ratio + jnp.sqrt(1 + ratio * ratio)
        # The ellipse bulges past a panel's ends by half·(cosh − 1); the modulus grows with it.
        bulge = spacing * (jnp.sqrt(1 + ratio * ratio) - 1)
        log_error = (
            np.log(64 / 15 * 4)
            + 0.5 * a * a
            + mu * t * a
            - c * jnp.log(jnp.cos(0.5 * mu * a))
            + bulge * (REACH + (c + 1) * mu)
            - 2 * PANEL * jnp.log(ellipse)
            - log1p(-(ellipse**-2.0))
        )
        return jnp.exp(jnp.minimum(jnp.min(log_error, axis=0), 50.0))
    wave = 2 * np.pi / spacing
    a = jnp.minimum(np.pi * _STRIPS / mu, 0.9 * wave)
    y = tilted.first + spacing * jnp.arange(tilted.weight.shape[0])
    knots = t[-1] * _KNOTS
    angle = mu * a[:, None, None]
    log_size, argument = _turn(posterior(y, mu, rate), angle)
    power = jnp.where(sign > 0, c + 1, -c) if family == "poisson" else c + 1
    size = power * log_size
    if family == "replace":
        log_other, other = _turn(posterior(-y, mu, rate), angle)
        size, argument = size - c * log_other, argument + other
    exponent = size + knots[:, None] * argument
    top = jnp.max(exponent, axis=2)
    inside = top + jnp.log(jnp.exp(exponent - top[:, :, None]) @ tilted.weight)
    # Past the window, where only arg ζ ≤ θ is known, the path comes down to 1/(wave + slope·t) in a
    # vertical step at the last nodes; on it |ζ| ≥ cos(θ/2), and arg ζ ≤ πθ for π ≤ 1/2.
    outer = jnp.where(power < 0, -power, 0.0) if family == "poisson" else c
    slope = 2 * mu if family == "replace" else mu
    ends = jnp.stack([y[0], y[-1]])
    pull = posterior(ends, mu, rate) + (posterior(-ends, mu, rate) if family == "replace" else 0.0)
    pull = jnp.where(jnp.max(pull) < 0.5, mu * jnp.max(pull), slope)
    edge = jnp.log(tilted.weight[0] + tilted.weight[-1] + tilted.truncated) + log1p(a / spacing)
    edge = edge - outer * jnp.log(jnp.cos(0.5 * mu * a))
    outside = edge[:, None] + pull * a[:, None] * knots
    beyond = edge + 1.0 - outer * jnp.log(jnp.cos(0.5 * mu / wave)) + 0.5 / wave**2
    beyond = np.log(4.0) + beyond[:, None] + log1p(slope * knots / wave)
    front = np.log(4.0) + 0.5 * a * a - wave * a - jnp.log(-jnp.expm1(-wave * a))
    log_error = jnp.logaddexp(jnp.logaddexp(inside, outside) + front[:, None], beyond)
    rise = (log_error[:, 1:] - log_error[:, :-1]) / jnp.maximum(knots[1:] - knots[:-1], 1e-300)
    chords = log_error[:, :-1, None] + rise[:, :, None] * (t - knots[:-1, None])
    return jnp.exp(jnp.minimum(jnp.min(jnp.max(chords, axis=1), axis=0), 50.0))


def decay(
    family: Family,
    sign: Float[Array, ""],
    mu: Float[Array, ""],
    rate: Float[Array, ""],
    c: Float[Array, ""],
    tilted: Tilted,
    t: Float[Array, " points"],
) -> Float[Array, " points"]:
    """log ρ(t) with |E_P[e^{(c+iτ)L}]| ≤ ρ(t)·e^{K(c)} for every |τ| ≥ t.

    Derived for dpjax. Move the line of integration in y to y + ia(y), a ≥ 0: on it |e^{iτL}| is
    e^{−τ arg r(y+ia)} with arg r ≥ 0, so that the integral of the modulus bounds the transform and
    falls as τ grows. μa = Θπ/(1 + Θπ/2.3), with π ∝ dL/dy, bends the line only where the loss moves
    and keeps it clear of the zeros of r, which need μa ≥ π. The best of several Θ.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from dpjax.accounting.pair_errors import decay
      >>> from dpjax.accounting.pairs import tilt
      >>> with jax.enable_x64(True):
      ...     one, t = jnp.float64(1.0), jnp.array([1.0, 2.0])
      ...     step = tilt("poisson", one, one, one, one, 128)
      ...     print(decay("poisson", one, one, one, one, step, t).round(2))
      [-0.44 -1.51]
    """
    theta = (t[:, None] * mu * mu / (1 + mu * mu) * _SHIFTS)[:, :, None]
    if family == "symmetrised":
        return _half_line_decay(theta, mu, rate, c, tilted, t[:, None, None])
    y = tilted.first + tilted.spacing * jnp.arange(tilted.weight.shape[0])
    t = t[:, None, None]
    hit = posterior(y, mu, rate)
    other = posterior(-y, mu, rate) if family == "replace" else jnp.zeros_like(hit)
    pull = theta * (hit + other)
    angle = pull / (1 + pull / _WIDEST)
    slope = theta * (hit * (1 - hit) - other * (1 - other)) / (1 + pull / _WIDEST) ** 2
    log_size, argument = _least_turn(hit, angle)
    power = jnp.where(sign > 0, c + 1, -c) if family == "poisson" else c + 1
    exponent = 0.5 * (angle / mu) ** 2 + power * log_size - t * argument
    if family == "replace":
        log_other, other_argument = _least_turn(other, angle)
        exponent = exponent - c * log_other - t * other_argument
    exponent = exponent + 0.5 * jnp.log(1 + slope * slope)
    return _log_total(tilted.weight, exponent)


def _log_total(weight: Array, exponent: Array) -> Array:
    """log Σ weight·e^{exponent} ≤ 0, best over the middle axis; exact for sums close to 1."""
    total = jnp.expm1(jnp.minimum(exponent, 300.0)) @ weight
    return jnp.min(log1p(jnp.clip(total, -1 + 1e-13, 0.0)), axis=1)


def _turn(hit: Array, angle: Array) -> tuple[Array, Array]:
    """log |ζ| and arg ζ of ζ = 1 − π + πe^{iθ}, the factor by which r turns."""
    half = jnp.sin(0.5 * angle)
    log_size = 0.5 * log1p(jnp.maximum(-4 * hit * (1 - hit) * half * half, -1 + 1e-15))
    return log_size, jnp.arctan2(hit * jnp.sin(angle), 1 - 2 * hit * half * half)


def _least_turn(hit: Array, angle: Array) -> tuple[Array, Array]:
    """As `_turn` for 0 ≤ θ ≤ 2.3, the argument from below, at a quarter of the cost.

    arg ζ = 2 arctan x with x = Im ζ/(|ζ| + Re ζ), and arctan x ≥ 3x/(1 + 2√(1 + x²)) (Shafer 1966),
    which is short of it by at most 1.2 % here.
    """
    half = 0.5 * angle
    square = half * half
    sine = half * jnp.polyval(np.array(_SINE), square, unroll=16)
    squared = sine * sine
    loss = 4 * hit * (1 - hit) * squared
    size = jnp.sqrt(jnp.maximum(1 - loss, 1e-15))
    x = 2 * hit * sine * jnp.sqrt(1 - squared) / (size + 1 - 2 * hit * squared)
    return 0.5 * log1p(jnp.maximum(-loss, -1 + 1e-15)), 6 * x / (1 + 2 * jnp.sqrt(1 + x * x))


def _half_line_decay(
    theta: Array, mu: Array, rate: Array, c: Array, tilted: Tilted, t: Array
) -> Array:
    """The same on y > μ/2, where the line starts on the real axis: the angle times x/(1 + x)."""
    count = (tilted.weight.shape[0] - 1) // 2
    centre = tilted.spacing * (2 * jnp.arange(count // PANEL) + 1)
    x = (centre[:, None] + tilted.spacing * PANEL_NODES).reshape(-1)
    hit = posterior(x + 0.5 * mu, mu, rate)
    pull = theta * hit
    start = x / (1 + x)
    angle = start * pull / (1 + pull / _WIDEST)
    slope = start * theta * hit * (1 - hit) / (1 + pull / _WIDEST) ** 2
    slope = slope + pull / (1 + pull / _WIDEST) / (mu * (1 + x) ** 2)
    log_size, argument = _least_turn(hit, angle)
    shared = 0.5 * (angle / mu) ** 2 - t * argument + 0.5 * jnp.log(1 + slope * slope)
    exponent = jnp.concatenate([shared + (c + 1) * log_size, shared - c * log_size], axis=2)
    return _log_total(tilted.weight[: 2 * count], exponent)
