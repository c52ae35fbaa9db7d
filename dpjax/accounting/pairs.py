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

from dpjax._numerics.logarithm import log1p

Family = Literal["poisson", "replace", "symmetrised"]

REACH = 11.0  # standard deviations looked at on either side; Φ(−11) = 2e-28
_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)
PANEL = 32
_CELLS = 48
_KEPT = 56.0  # what is cut weighs about e^{−56} where that can be told
_TRIANGLE = np.tril(np.ones((_CELLS + 1, _CELLS)), -1)
PANEL_NODES, _PANEL_WEIGHTS = np.polynomial.legendre.leggauss(PANEL)


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
    low = jnp.where(excess > -0.5, log1p(jnp.maximum(excess, -0.5)), direct)
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
    return jnp.exp(jnp.log(rate) - jnp.logaddexp(jnp.log(rate), log1p(-rate) - w))


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


def reach(family: Family, sign: Array, mu: Array, rate: Array, c: Array) -> tuple[Array, Array]:
    """An interval beyond which a Gaussian tail with the steepest slope bounds what is left."""
    if family == "poisson":
        s = jnp.where(sign > 0, c + 1, c)
        # Stationary points solve ±y = sμπ(y); where r has reached its floor 1 − q nothing pulls on.
        start = posterior(-REACH + 0 * mu, mu, rate)
        remove_low, remove_high = -REACH + s * mu * start, REACH + s * mu
        floor = 0.5 * mu + (log1p(-rate) - jnp.log(rate)) / mu
        pull = jnp.minimum(s * mu, jnp.maximum(-floor, 0.0) + log1p(s * mu) / mu)
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
    low, high = reach(family, sign, mu, rate, c)
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
        floor = floor - c * log1p(-rate)
    peak = jnp.clip(slope, edges[:-1], edges[1:])
    cells = value[:-1] + slope * (peak - edges[:-1]) - 0.5 * peak * peak
    right = _log_tail(floor, steepest, high)
    if family == "replace":
        right = jnp.fmin(right, _log_tail(value[-1], steepest + c * mu, high))
    left = lowest + _log_normal_tail(-low)
    if family == "poisson":
        steep = _log_tail(-c * ratio[0], c * mu, -low)
        flat = -c * log1p(-rate) + _log_normal_tail(-low)
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
        panels = nodes // PANEL
        half = (high - low) / (2 * panels)
        centre = low + half * (2 * jnp.arange(panels) + 1)
        y = (centre[:, None] + half * PANEL_NODES).reshape(-1)
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
        atom = log1p(-rate) + jnp.log(jax.lax.erf(mu / np.sqrt(8.0)))
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
    log_moment = jnp.where(is_small, log1p(jnp.where(is_small, sums[0], 0.0)), large)
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
