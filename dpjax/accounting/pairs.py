"""The dominating pair of one step: two distributions on the line that no neighbour can beat.

Everything tight (contour integration, privacy-loss distributions) needs of a step only its pair
(P, Q) and the loss L(y) = log dP/dQ. In units of the noise's standard deviation, with
w(y) = μy − μ²/2, r(y) = 1 + q(e^{w(y)} − 1) and g the standard normal density:

| family | P | Q | loss |
|---|---|---|---|
| "poisson", direction remove | g·r | g | log r |
| "poisson", direction add | g | g·r | −log r |
| "replace" | g·r(y) | g·r(−y) | log r(y) − log r(−y) |
| "symmetrised" | g·r on y > μ/2, mirrored, and an atom | | ± log r, 0 at the atom |

μ is the distance a record can move the sum over the noise's standard deviation: 1/σ for add/remove
and for Poisson replace-one (whose two means are ±μ), 2/σ for fixed batches under replace-one.
Rate 1 is the plain Gaussian. The symmetrised pair has the trade-off curve
C_q(G_μ) = min(f, f⁻¹)** with f = qG_μ + (1−q)Id: both directions of a fixed batch at once, an upper
bound however an adversary mixes them between steps.

References:
  Zhu, Dong, Wang 2022 (dominating pairs, Poisson); Dong, Roth, Su 2022, Definition 4.1 and
  Theorem 4.2 (C_q, fixed batches); Steinke 2022, section 6. The antipodal pair of Poisson
  replace-one was confirmed for dpjax by a search over both records' positions.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Family = Literal["poisson", "replace", "symmetrised"]

REACH = 9.0  # standard deviations kept on either side; Φ(−9) = 1e-19, and what is cut is bounded
_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)
_PANEL = 32
_PANEL_NODES, _PANEL_WEIGHTS = np.polynomial.legendre.leggauss(_PANEL)


def log_ratio(
    y: Float[Array, "*shape"], mu: Float[Array, "*shape"], rate: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """log r(y) = log(1 − q + q e^{μy − μ²/2}), to full relative precision, for every 0 ≤ q ≤ 1.

    Args:
      y: position in units of the noise's standard deviation.
      mu: distance of the two means in the same unit.
      rate: sampling rate q.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from dpjax.accounting import pairs
      >>> with jax.enable_x64(True):
      ...     print(pairs.log_ratio(jnp.float64(0.0), jnp.float64(1.0), jnp.float64(1e-9)))
      -3.934...e-10
    """
    w = mu * y - 0.5 * mu * mu
    far = jnp.maximum(w, 30.0)
    high = far + jnp.log(rate + (1 - rate) * jnp.exp(-far))
    near = jnp.clip(w, -700.0, 30.0)
    excess = rate * jnp.expm1(near)
    direct = jnp.log(jnp.maximum((1 - rate) + rate * jnp.exp(near), 1e-310))
    low = jnp.where(excess > -0.5, jnp.log1p(jnp.maximum(excess, -0.5)), direct)
    # At rate 1 the ratio is e^w itself, also where e^w underflows.
    low = jnp.where(rate < 1, low, jnp.minimum(w, 30.0))
    return jnp.where(w > 30.0, high, low)


def posterior(
    y: Float[Array, "*shape"], mu: Float[Array, "*shape"], rate: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """π(y) = q e^w / (1 − q + q e^w), the probability that the record took part; d log r/dy = μπ.

    Args:
      y: position in units of the noise's standard deviation.
      mu: distance of the two means in the same unit.
      rate: sampling rate q.

    Example:
      >>> import jax.numpy as jnp
      >>> from dpjax.accounting import pairs
      >>> round(float(pairs.posterior(jnp.array(0.5), jnp.array(1.0), jnp.array(0.25))), 6)
      0.25
    """
    w = jnp.clip(mu * y - 0.5 * mu * mu, -700.0, 700.0)
    return jnp.exp(jnp.log(rate) - jnp.logaddexp(jnp.log(rate), jnp.log1p(-rate) - w))


def _ratio_excess(y: Array, mu: Array, rate: Array) -> Array:
    return rate * jnp.expm1(jnp.minimum(mu * y - 0.5 * mu * mu, 600.0))


class Tilted(NamedTuple):
    """A step's privacy loss under the measure ∝ e^{cL} dP, on quadrature nodes.

    Fields:
      log_moment: K(c) = log E_P[e^{cL}].
      weight: probabilities of the nodes, summing to one.
      loss: L at the nodes.
      mean, variance: of L under the weights; the mean is K'(c).
      spread: E|L| under the weights, the condition of the transform's sum.
      moment_error: bound on the relative rounding error of e^{K(c)}.
      truncated: bound on what the cut ends of the line add, relative to e^{K(c)}.
      spacing: distance of the nodes (trapezoid) or half-width of a panel (Gauss).
    """

    log_moment: Float[Array, ""]
    weight: Float[Array, " nodes"]
    loss: Float[Array, " nodes"]
    mean: Float[Array, ""]
    variance: Float[Array, ""]
    spread: Float[Array, ""]
    moment_error: Float[Array, ""]
    truncated: Float[Array, ""]
    spacing: Float[Array, ""]


def _range(family: Family, sign: Array, mu: Array, rate: Array, c: Array) -> tuple[Array, Array]:
    """An interval that holds the tilted measure but for Gaussian tails beyond REACH."""
    if family == "poisson":
        s = jnp.where(sign > 0, c + 1, c)
        # Stationary points solve ±y = sμπ(y); where r has reached its floor 1 − q nothing pulls on.
        start = posterior(-REACH + 0 * mu, mu, rate)
        remove_low, remove_high = -REACH + s * mu * start, REACH + s * mu
        floor = 0.5 * mu + (jnp.log1p(-rate) - jnp.log(rate)) / mu
        pull = jnp.minimum(s * mu, jnp.maximum(-floor, 0.0) + jnp.log1p(s * mu) / mu)
        add_low = -REACH - pull
        # E[r] = 1 is used, so that r's own mass, which lies around μ, has to be covered.
        add_high = REACH + mu
        return jnp.where(sign > 0, remove_low, add_low), jnp.where(sign > 0, remove_high, add_high)
    if family == "replace":
        start = posterior(-REACH + 0 * mu, mu, rate)
        other = posterior(0 * mu, mu, rate)
        low = jnp.minimum(-REACH + (c + 1) * mu * start, -REACH - mu)
        return low, (c + 1) * mu + c * mu * other + REACH
    return 0.5 * mu, 0.5 * mu + REACH + (c + 0.5) * mu


def _log_normal_tail(x: Array) -> Array:
    """log Φ(−x) ≤ −x²/2 − log 2 for x ≥ 0 and ≤ 0 otherwise: short to compile, and enough."""
    return jnp.where(x > 0, -0.5 * x * x - np.log(2.0), 0.0)


def _log_tail(log_value: Array, slope: Array, edge: Array) -> Array:
    """log ∫_{edge}^∞ g(y) e^{log_value + slope(y − edge)} dy, an upper bound on a cut tail."""
    return log_value + 0.5 * slope * slope - slope * edge + _log_normal_tail(edge - slope)


def _truncation(
    family: Family, sign: Array, mu: Array, rate: Array, c: Array, low: Array, high: Array
) -> Array:
    """log of the mass cut at both ends, every factor replaced by a steeper exponential."""
    at_low, at_high = log_ratio(low, mu, rate), log_ratio(high, mu, rate)
    if family == "poisson":
        remove = jnp.logaddexp(
            _log_tail((c + 1) * at_high, (c + 1) * mu, high),
            (c + 1) * at_low + _log_normal_tail(-low),
        )
        steep = _log_tail(-c * at_low, c * mu, -low)
        # r ≥ 1 − q everywhere, so that r^{−c} cannot grow for ever.
        flat = -c * jnp.log1p(-rate) + _log_normal_tail(-low)
        add = jnp.logaddexp(-c * at_high + _log_normal_tail(high), jnp.fmin(steep, flat))
        return jnp.where(sign > 0, remove, add)
    mirrored_low, mirrored_high = log_ratio(-low, mu, rate), log_ratio(-high, mu, rate)
    if family == "replace":
        left = (c + 1) * at_low - c * mirrored_low + _log_normal_tail(-low)
        steep = _log_tail((c + 1) * at_high - c * mirrored_high, (2 * c + 1) * mu, high)
        flat = _log_tail((c + 1) * at_high - c * jnp.log1p(-rate), (c + 1) * mu, high)
        return jnp.logaddexp(left, jnp.fmin(steep, flat))
    return jnp.logaddexp(_log_tail((c + 1) * at_high, (c + 1) * mu, high), _log_normal_tail(high))


def tilt(
    family: Family,
    sign: Float[Array, ""],
    mu: Float[Array, ""],
    rate: Float[Array, ""],
    c: Float[Array, ""],
    nodes: int,
) -> Tilted:
    """The tilted privacy loss of one step.

    The trapezoid rule on the line (exponentially convergent: the integrand is analytic and
    Gaussian), or Gauss–Legendre panels on the half-line of the symmetrised pair. Where K is small
    it is log1p of the k ≥ 2 sum E_g[r^s − 1 − s(r − 1)], whose terms are all positive.

    Args:
      family: which pair.
      sign: +1 for "remove", −1 for "add"; only "poisson" looks at it.
      mu: distance of the means over the noise's standard deviation.
      rate: sampling rate in (0, 1].
      c: tilt, above 0.
      nodes: number of nodes.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from dpjax.accounting import pairs
      >>> with jax.enable_x64(True):
      ...     one = jnp.float64(1.0)
      ...     print(round(float(pairs.tilt("poisson", one, one, one, one, 128).log_moment), 12))
      1.0
    """
    low, high = _range(family, sign, mu, rate, c)
    low, high = jax.lax.stop_gradient(low), jax.lax.stop_gradient(high)
    eps = np.finfo(np.float64).eps
    if family == "symmetrised":
        panels = nodes // _PANEL
        half = (high - low) / (2 * panels)
        centre = low + half * (2 * jnp.arange(panels) + 1)
        y = (centre[:, None] + half * _PANEL_NODES).reshape(-1)
        base = jnp.log(half) + jnp.tile(jnp.log(_PANEL_WEIGHTS), panels)
    else:
        half = (high - low) / (nodes - 1)
        y = low + half * jnp.arange(nodes)
        base = jnp.log(half)
    base = base - 0.5 * y * y - _HALF_LOG_2PI
    log_r = log_ratio(y, mu, rate)
    excess = _ratio_excess(y, mu, rate)
    # Without the barriers the compiler repeats all of the above in each of the sums below.
    log_r, excess, base = jax.lax.optimization_barrier((log_r, excess, base))
    size = jnp.exp(base)
    capped = lambda v: jnp.expm1(jnp.minimum(v, 300.0))  # noqa: E731
    if family == "poisson":
        s = jnp.where(sign > 0, c + 1, -c)
        exponent, loss = s * log_r, sign * log_r
        grown, linear = capped(exponent), s * excess
        value = base + exponent
    elif family == "replace":
        mirrored = log_ratio(-y, mu, rate)
        exponent, loss = (c + 1) * log_r - c * mirrored, log_r - mirrored
        grown = capped(exponent)
        linear = (c + 1) * excess - c * _ratio_excess(-y, mu, rate)
        value = base + exponent
    else:
        atom = jnp.log1p(-rate) + jnp.log(jax.lax.erf(mu / np.sqrt(8.0)))
        value = jnp.concatenate([base + (c + 1) * log_r, base - c * log_r, atom[None]])
        loss = jnp.concatenate([log_r, -log_r, jnp.zeros(1)])
        grown, linear = capped((c + 1) * log_r) + capped(-c * log_r), excess
    # Sums as products with a stack of rows: one kernel instead of many, which halves compilation.
    rows = jnp.stack([grown - linear, jnp.abs(grown) + jnp.abs(linear)])
    sums = rows @ size
    top = jax.lax.stop_gradient(jnp.max(value))
    mass = jax.lax.optimization_barrier(jnp.exp(value - top))
    total, first, second, spread = (
        jnp.stack([jnp.ones_like(loss), loss, loss * loss, jnp.abs(loss)]) @ mass
    )
    mean = first / total
    large = top + jnp.log(total)
    is_small = large < 0.05
    log_moment = jnp.where(is_small, jnp.log1p(jnp.where(is_small, sums[0], 0.0)), large)
    error = 8 * eps * jnp.where(is_small, sums[1], 4 + jnp.abs(large) + jnp.abs(top))
    return Tilted(
        log_moment=log_moment,
        weight=mass / total,
        loss=loss,
        mean=mean,
        variance=second / total - mean * mean,
        spread=spread / total,
        moment_error=error,
        truncated=jnp.exp(
            jnp.minimum(_truncation(family, sign, mu, rate, c, low, high) - log_moment, 50.0)
        ),
        spacing=half,
    )


def quadrature_error(
    family: Family,
    sign: Float[Array, ""],
    mu: Float[Array, ""],
    c: Float[Array, ""],
    spacing: Float[Array, ""],
    t: Float[Array, " points"],
) -> Float[Array, " points"]:
    """Bound on the quadrature's error in E_P[e^{(c+it)L}], relative to e^{K(c)}.

    Trapezoid with spacing h of a function analytic in |Im y| < a: at most 2M/(e^{2πa/h} − 1), M the
    largest integral of its modulus on a line of the strip. There |g(y + ib)| = g(y)e^{b²/2},
    cos(μb/2)·r(y) ≤ |r(y + ib)| ≤ r(y) and |arg r(y + ib)| ≤ μ|b|, because r is a convex
    combination of 1 and e^{w}. Gauss panels of half-width H: 64/15·M ρ^{−2n}/(1 − ρ^{−2}) in the
    ellipse whose half-axes sum to ρH. The width of the strip is the best of eight.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from dpjax.accounting import pairs
      >>> with jax.enable_x64(True):
      ...     one = jnp.float64(1.0)
      ...     error = pairs.quadrature_error("poisson", one, one, one, 0.1 * one, jnp.zeros(1))
      ...     print(bool(error[0] < 1e-40))
      True

    References:
      Trefethen, Weideman 2014, Theorem 5.1; Trefethen 2019, Theorem 19.3.
    """
    angle = np.pi * np.array([0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96])[:, None]
    slope = 2 * mu if family == "replace" else mu
    shrink = jnp.where(sign > 0, 0.0, c) if family == "poisson" else c
    if family == "symmetrised":
        a = jnp.minimum(angle / mu, 4.0)
        ratio = a / spacing
        ellipse = ratio + jnp.sqrt(1 + ratio * ratio)
        # The ellipse bulges past a panel's ends by half·(cosh − 1); the modulus grows with it.
        bulge = spacing * (jnp.sqrt(1 + ratio * ratio) - 1)
        log_error = (
            np.log(64 / 15 * 4)
            + 0.5 * a * a
            + mu * t * a
            - shrink * jnp.log(jnp.cos(0.5 * mu * a))
            + bulge * (REACH + (c + 1) * mu)
            - 2 * _PANEL * jnp.log(ellipse)
            - jnp.log1p(-(ellipse**-2.0))
        )
    else:
        wave = 2 * np.pi / spacing
        a = jnp.minimum(angle / mu, jnp.maximum(wave - slope * t, 1e-3))
        log_error = (
            np.log(2.0)
            + 0.5 * a * a
            + slope * t * a
            - shrink * jnp.log(jnp.cos(0.5 * mu * a))
            - wave * a
            - jnp.log(-jnp.expm1(-wave * a))
        )
    return jnp.exp(jnp.minimum(jnp.min(log_error, axis=0), 50.0))


_SHIFTS = np.array([0.25, 0.6, 1.1, 1.8])
_WIDEST = 2.3  # radians; below π, where r could vanish


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
      >>> from dpjax.accounting import pairs
      >>> with jax.enable_x64(True):
      ...     one, t = jnp.float64(1.0), jnp.array([1.0, 2.0])
      ...     step = pairs.tilt("poisson", one, one, one, one, 128)
      ...     print(pairs.decay("poisson", one, one, one, one, step, t).round(2))
      [-0.44 -1.51]
    """
    theta = (t[:, None] * mu * mu / (1 + mu * mu) * _SHIFTS)[:, :, None]
    if family == "symmetrised":
        return _half_line_decay(theta, mu, rate, c, tilted, t[:, None, None])
    low, high = _range(family, sign, mu, rate, c)
    y = low + (high - low) / (tilted.weight.shape[0] - 1) * jnp.arange(tilted.weight.shape[0])
    t = t[:, None, None]
    hit = posterior(y, mu, rate)
    other = posterior(-y, mu, rate) if family == "replace" else jnp.zeros_like(hit)
    pull = theta * (hit + other)
    angle = pull / (1 + pull / _WIDEST)
    slope = theta * (hit * (1 - hit) - other * (1 - other)) / (1 + pull / _WIDEST) ** 2
    log_size, argument = _turn(hit, angle)
    power = jnp.where(sign > 0, c + 1, -c) if family == "poisson" else c + 1
    exponent = 0.5 * (angle / mu) ** 2 + power * log_size - t * argument
    if family == "replace":
        log_other, other_argument = _turn(other, angle)
        exponent = exponent - c * log_other - t * other_argument
    exponent = exponent + 0.5 * jnp.log1p(slope * slope)
    return _log_total(tilted.weight, exponent)


def _log_total(weight: Array, exponent: Array) -> Array:
    """log Σ weight·e^{exponent} ≤ 0, best over the middle axis; exact for sums close to 1."""
    total = jnp.expm1(jnp.minimum(exponent, 300.0)) @ weight
    return jnp.min(jnp.log1p(jnp.clip(total, -1 + 1e-13, 0.0)), axis=1)


def _turn(hit: Array, angle: Array) -> tuple[Array, Array]:
    """log |ζ| and arg ζ of ζ = 1 − π + πe^{iθ}, the factor by which r turns."""
    half = jnp.sin(0.5 * angle)
    log_size = 0.5 * jnp.log1p(jnp.maximum(-4 * hit * (1 - hit) * half * half, -1 + 1e-15))
    return log_size, jnp.arctan2(hit * jnp.sin(angle), 1 - 2 * hit * half * half)


def _half_line_decay(
    theta: Array, mu: Array, rate: Array, c: Array, tilted: Tilted, t: Array
) -> Array:
    """The same on y > μ/2, where the line starts on the real axis: the angle times x/(1 + x)."""
    count = (tilted.weight.shape[0] - 1) // 2
    centre = tilted.spacing * (2 * jnp.arange(count // _PANEL) + 1)
    x = (centre[:, None] + tilted.spacing * _PANEL_NODES).reshape(-1)
    hit = posterior(x + 0.5 * mu, mu, rate)
    pull = theta * hit
    start = x / (1 + x)
    angle = start * pull / (1 + pull / _WIDEST)
    slope = start * theta * hit * (1 - hit) / (1 + pull / _WIDEST) ** 2
    slope = slope + pull / (1 + pull / _WIDEST) / (mu * (1 + x) ** 2)
    log_size, argument = _turn(hit, angle)
    shared = 0.5 * (angle / mu) ** 2 - t * argument + 0.5 * jnp.log1p(slope * slope)
    exponent = jnp.concatenate([shared + (c + 1) * log_size, shared - c * log_size], axis=2)
    return _log_total(tilted.weight[: 2 * count], exponent)
