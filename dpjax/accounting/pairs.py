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

REACH = 11.0  # standard deviations looked at on either side; Φ(−11) = 2e-28
_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)
_PANEL = 32
_CELLS = 48
_KEPT = 56.0  # what is cut weighs about e^{−56} where that can be told
_TRIANGLE = np.tril(np.ones((_CELLS + 1, _CELLS)), -1)
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
      first: position of the first node.
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
    first: Float[Array, ""]


def _reach(family: Family, sign: Array, mu: Array, rate: Array, c: Array) -> tuple[Array, Array]:
    """An interval beyond which a Gaussian tail with the steepest slope bounds what is left."""
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


def _window(
    family: Family, sign: Array, mu: Array, rate: Array, c: Array
) -> tuple[Array, Array, Array]:
    """The interval that is kept, and a bound on log of the mass outside it.

    Between the steep ends the exponent h(y) of e^{cL}P/g is bounded cell by cell by a straight line
    (log r is convex: its chord where it enters with a plus, its tangent where with a minus), and
    ∫ g e^{line} over a cell by e to the largest value of line − y²/2. At a high tilt this tells
    that a second mode, reached only by records that surely took part, weighs nothing.
    """
    low, high = _reach(family, sign, mu, rate, c)
    edges = low + (high - low) / _CELLS * jnp.arange(_CELLS + 1)
    ratio = log_ratio(edges, mu, rate)
    hit = posterior(edges, mu, rate)
    power = jnp.where(sign > 0, c + 1, -c) if family == "poisson" else c + 1
    width = (high - low) / _CELLS
    chord = (ratio[1:] - ratio[:-1]) / width
    slope = power * jnp.where(power > 0, chord, mu * hit[:-1])
    value = power * ratio
    lowest = jnp.where(sign > 0, (c + 1) * ratio[0], 0.0) if family == "poisson" else value[0]
    steepest, floor = (c + 1) * mu, value[-1]
    if family == "replace":
        mirrored = log_ratio(-edges, mu, rate)
        value = value - c * mirrored
        slope = slope + c * mu * posterior(-edges[:-1], mu, rate)
        lowest = value[0]
        # r ≥ 1 − q everywhere, so that r^{−c} cannot grow for ever.
        floor = floor - c * jnp.log1p(-rate)
    peak = jnp.clip(slope, edges[:-1], edges[1:])
    cells = value[:-1] + slope * (peak - edges[:-1]) - 0.5 * peak * peak
    right = _log_tail(floor, steepest, high)
    if family == "replace":
        right = jnp.fmin(right, _log_tail(value[-1], steepest + c * mu, high))
    left = lowest + _log_normal_tail(-low)
    if family == "poisson":
        steep = _log_tail(-c * ratio[0], c * mu, -low)
        flat = -c * jnp.log1p(-rate) + _log_normal_tail(-low)
        left = jnp.where(sign > 0, left, jnp.fmin(steep, flat))
        right = jnp.where(sign > 0, right, -c * ratio[-1] + _log_normal_tail(high))
    elif family == "symmetrised":
        left, right = jnp.full_like(low, -1e3), jnp.logaddexp(right, _log_normal_tail(high))
    # Mass left of every edge and right of it; the triangles sum, at most 64 terms.
    level = jnp.maximum(jnp.max(cells), 0.0)
    mass = jnp.exp(cells - level)
    before, after = _TRIANGLE @ mass, (1 - _TRIANGLE) @ mass
    enough = np.exp(-_KEPT)
    first = jnp.sum(before[1:] <= enough)
    last = jnp.sum(after > enough)
    if family == "symmetrised":
        first = jnp.zeros_like(first)
    # The sums E[r] = 1 that are used for small moments need r's own mass.
    need = 9.0 + mu if family != "symmetrised" else 0.5 * mu + 9.0
    last = jnp.maximum(last, jnp.sum(edges < need))
    last = jnp.clip(last, first + 1, _CELLS)
    first = jnp.minimum(first, jnp.sum(edges <= -9.0) - 1) if family != "symmetrised" else first
    first = jnp.maximum(first, 0)
    outside = jnp.stack([before, after]) * jnp.stack(
        [jnp.arange(_CELLS + 1) == first, jnp.arange(_CELLS + 1) == last]
    )
    cut = level + jnp.log(jnp.sum(outside) + 1e-300)
    cut = jnp.logaddexp(cut, jnp.logaddexp(left, right))
    return low + width * first, low + width * last, cut


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
    low, high, cut = jax.lax.stop_gradient(_window(family, sign, mu, rate, c))
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
        truncated=jnp.exp(jnp.minimum(cut - log_moment, 50.0)),
        spacing=half,
        first=low,
    )


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
      >>> from dpjax.accounting import pairs
      >>> with jax.enable_x64(True):
      ...     one = jnp.float64(1.0)
      ...     step = pairs.tilt("poisson", one, one, one, one, 128)
      ...     error = pairs.quadrature_error("poisson", one, one, one, one, step, jnp.arange(9.0))
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
            - 2 * _PANEL * jnp.log(ellipse)
            - jnp.log1p(-(ellipse**-2.0))
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
    edge = jnp.log(tilted.weight[0] + tilted.weight[-1] + tilted.truncated) + jnp.log1p(a / spacing)
    edge = edge - outer * jnp.log(jnp.cos(0.5 * mu * a))
    outside = edge[:, None] + pull * a[:, None] * knots
    beyond = edge + 1.0 - outer * jnp.log(jnp.cos(0.5 * mu / wave)) + 0.5 / wave**2
    beyond = np.log(4.0) + beyond[:, None] + jnp.log1p(slope * knots / wave)
    front = np.log(4.0) + 0.5 * a * a - wave * a - jnp.log(-jnp.expm1(-wave * a))
    log_error = jnp.logaddexp(jnp.logaddexp(inside, outside) + front[:, None], beyond)
    rise = (log_error[:, 1:] - log_error[:, :-1]) / jnp.maximum(knots[1:] - knots[:-1], 1e-300)
    chords = log_error[:, :-1, None] + rise[:, :, None] * (t - knots[:-1, None])
    return jnp.exp(jnp.minimum(jnp.min(jnp.max(chords, axis=1), axis=0), 50.0))


_STRIPS = np.array([0.03, 0.1, 0.3, 0.6, 0.95])  # of the width π/μ, where r could vanish
_KNOTS = np.array([0.0, 0.0625, 0.125, 0.25, 0.5, 1.0])
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
    y = tilted.first + tilted.spacing * jnp.arange(tilted.weight.shape[0])
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
