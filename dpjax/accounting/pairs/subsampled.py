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

from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics.arrays import namespace

Family = Literal["poisson", "replace", "symmetrised"]

REACH = 11.0  # standard deviations looked at on either side; Φ(−11) = 2e-28
_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)
PANEL = 32
_CELLS = 48
_KEPT = 56.0  # what is cut weighs about e^{−56} where that can be told
_TRIANGLE = np.tril(np.ones((_CELLS + 1, _CELLS)), -1)
PANEL_NODES, _PANEL_WEIGHTS = np.polynomial.legendre.leggauss(PANEL)


def log_ratio(
    y: Float[ArrayLike, "*shape"], mu: Float[ArrayLike, "*shape"], rate: Float[ArrayLike, "*shape"]
) -> Any:
    """log r(y) = log(1 − q + q e^{μy − μ²/2}), to full relative precision, for every 0 ≤ q ≤ 1.

    Args:
        y: position in units of the noise's standard deviation.
        mu: distance of the two means in the same unit.
        rate: sampling rate q.
    """
    return log_mixture(mu * y - 0.5 * mu * mu, rate)


def log_mixture(w: Any, rate: Any) -> Any:
    """log(1 − q + q e^w), to full relative precision, for every 0 ≤ q ≤ 1.

    Args:
        w: log of a likelihood ratio.
        rate: sampling rate q.
    """
    xp: Any = namespace(w, rate)
    far = xp.maximum(w, 30.0)
    high = far + xp.log(rate + (1 - rate) * xp.exp(-far))
    near = xp.clip(w, -700.0, 30.0)
    excess = rate * xp.expm1(near)
    direct = xp.log(xp.maximum((1 - rate) + rate * xp.exp(near), 1e-310))
    low = xp.where(excess > -0.5, xp.log1p(xp.maximum(excess, -0.5)), direct)
    # At rate 1 the ratio is e^w itself, also where e^w underflows.
    low = xp.where(rate < 1, low, xp.minimum(w, 30.0))
    return xp.where(w > 30.0, high, low)


def posterior(
    y: Float[Array, "*shape"], mu: Float[Array, "*shape"], rate: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """π(y) = q e^w / (1 − q + q e^w), the probability that the record took part; d log r/dy = μπ.

    Args:
        y: position in units of the noise's standard deviation.
        mu: distance of the two means in the same unit.
        rate: sampling rate q.
    """
    xp: Any = namespace(y, mu, rate)
    w = xp.clip(mu * y - 0.5 * mu * mu, -700.0, 700.0)
    return xp.exp(xp.log(rate) - xp.logaddexp(xp.log(rate), xp.log1p(-rate) - w))


def _ratio_excess(y: Array, mu: Array, rate: Array) -> Array:
    xp: Any = namespace(y, mu, rate)
    return rate * xp.expm1(xp.minimum(mu * y - 0.5 * mu * mu, 600.0))


class Tilted(NamedTuple):
    """A step's privacy loss under the measure ∝ e^{cL} dP, on quadrature nodes.

    Fields:
        log_moment: K(c) = log E_P[e^{cL}].
        weight: probabilities of the nodes, summing to one.
        loss: L at the nodes.
        mean, variance: of L under the weights; the mean is K'(c).
        spread: E|L| under the weights, the condition of the transform's sum.
        rounding: E[ε] and E[ε|L|] under the weights, ε bounding a weight's relative rounding error.
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
    rounding: Float[Array, "2"]
    moment_error: Float[Array, ""]
    truncated: Float[Array, ""]
    spacing: Float[Array, ""]
    first: Float[Array, ""]


def positions(family: Family, tilted: Tilted, mu: Array) -> Array:
    """Where the nodes lie; of the symmetrised pair those of one half-line."""
    xp: Any = namespace(tilted, mu)
    if family != "symmetrised":
        return tilted.first + tilted.spacing * xp.arange(tilted.weight.shape[0])
    count = (tilted.weight.shape[0] - 1) // 2
    centre = tilted.first + tilted.spacing * (2 * xp.arange(count // PANEL) + 1)
    return (centre[:, None] + tilted.spacing * PANEL_NODES).reshape(-1)


def reach(family: Family, sign: Array, mu: Array, rate: Array, c: Array) -> tuple[Array, Array]:
    """An interval beyond which a Gaussian tail with the steepest slope bounds what is left."""
    xp: Any = namespace(sign, mu, rate, c)
    if family == "poisson":
        s = xp.where(sign > 0, c + 1, c)
        # Stationary points solve ±y = sμπ(y); where r has reached its floor 1 − q nothing pulls on.
        start = posterior(-REACH + 0 * mu, mu, rate)
        remove_low, remove_high = -REACH + s * mu * start, REACH + s * mu
        floor = 0.5 * mu + (xp.log1p(-rate) - xp.log(rate)) / mu
        pull = xp.minimum(s * mu, xp.maximum(-floor, 0.0) + xp.log1p(s * mu) / mu)
        add_low = -REACH - pull
        # E[r] = 1 is used, so that r's own mass, which lies around μ, has to be covered.
        add_high = REACH + mu
        return xp.where(sign > 0, remove_low, add_low), xp.where(sign > 0, remove_high, add_high)
    if family == "replace":
        start = posterior(-REACH + 0 * mu, mu, rate)
        other = posterior(0 * mu, mu, rate)
        low = xp.minimum(-REACH + (c + 1) * mu * start, -REACH - mu)
        return low, (c + 1) * mu + c * mu * other + REACH
    return 0.5 * mu, 0.5 * mu + REACH + (c + 0.5) * mu


def _log_normal_tail(x: Array) -> Array:
    """log Φ(−x) ≤ −x²/2 − log 2 for x ≥ 0 and ≤ 0 otherwise: short to compile, and enough."""
    xp: Any = namespace(x)
    return xp.where(x > 0, -0.5 * x * x - np.log(2.0), 0.0)


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
    xp: Any = namespace(sign, mu, rate, c)
    low, high = reach(family, sign, mu, rate, c)
    edges = low + (high - low) / _CELLS * xp.arange(_CELLS + 1)
    ratio = log_ratio(edges, mu, rate)
    hit = posterior(edges, mu, rate)
    power = xp.where(sign > 0, c + 1, -c) if family == "poisson" else c + 1
    width = (high - low) / _CELLS
    chord = (ratio[1:] - ratio[:-1]) / width
    slope = power * xp.where(power > 0, chord, mu * hit[:-1])
    value = power * ratio
    lowest = xp.where(sign > 0, (c + 1) * ratio[0], 0.0) if family == "poisson" else value[0]
    steepest, floor = (c + 1) * mu, value[-1]
    if family == "replace":
        mirrored = log_ratio(-edges, mu, rate)
        value = value - c * mirrored
        slope = slope + c * mu * posterior(-edges[:-1], mu, rate)
        lowest = value[0]
        # r ≥ 1 − q everywhere, so that r^{−c} cannot grow for ever.
        floor = floor - c * xp.log1p(-rate)
    peak = xp.clip(slope, edges[:-1], edges[1:])
    cells = value[:-1] + slope * (peak - edges[:-1]) - 0.5 * peak * peak
    right = _log_tail(floor, steepest, high)
    if family == "replace":
        right = xp.fmin(right, _log_tail(value[-1], steepest + c * mu, high))
    left = lowest + _log_normal_tail(-low)
    if family == "poisson":
        steep = _log_tail(-c * ratio[0], c * mu, -low)
        flat = -c * xp.log1p(-rate) + _log_normal_tail(-low)
        left = xp.where(sign > 0, left, xp.fmin(steep, flat))
        right = xp.where(sign > 0, right, -c * ratio[-1] + _log_normal_tail(high))
    elif family == "symmetrised":
        left, right = xp.full_like(low, -1e3), xp.logaddexp(right, _log_normal_tail(high))
    # Mass left of every edge and right of it; the triangles sum, at most 64 terms.
    level = xp.maximum(xp.max(cells), 0.0)
    mass = xp.exp(cells - level)
    before, after = _TRIANGLE @ mass, (1 - _TRIANGLE) @ mass
    enough = np.exp(-_KEPT)
    first = xp.sum(before[1:] <= enough)
    last = xp.sum(after > enough)
    if family == "symmetrised":
        first = xp.zeros_like(first)
    # The sums E[r] = 1 that are used for small moments need r's own mass.
    need = 9.0 + mu if family != "symmetrised" else 0.5 * mu + 9.0
    last = xp.maximum(last, xp.sum(edges < need))
    last = xp.clip(last, first + 1, _CELLS)
    first = xp.minimum(first, xp.sum(edges <= -9.0) - 1) if family != "symmetrised" else first
    first = xp.maximum(first, 0)
    outside = xp.stack([before, after]) * xp.stack(
        [xp.arange(_CELLS + 1) == first, xp.arange(_CELLS + 1) == last]
    )
    cut = level + xp.log(xp.sum(outside) + 1e-300)
    cut = xp.logaddexp(cut, xp.logaddexp(left, right))
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
    """
    xp: Any = namespace(sign, mu, rate, c)
    low, high, cut = xp.stop_gradient(_window(family, sign, mu, rate, c))
    eps = np.finfo(np.float64).eps
    if family == "symmetrised":
        panels = nodes // PANEL
        half = (high - low) / (2 * panels)
        centre = low + half * (2 * xp.arange(panels) + 1)
        y = (centre[:, None] + half * PANEL_NODES).reshape(-1)
        base = xp.log(half) + xp.tile(xp.log(_PANEL_WEIGHTS), panels)
    else:
        half = (high - low) / (nodes - 1)
        y = low + half * xp.arange(nodes)
        base = xp.log(half)
    base = base - 0.5 * y * y - _HALF_LOG_2PI
    log_r = log_ratio(y, mu, rate)
    excess = _ratio_excess(y, mu, rate)
    # Without the barriers the compiler repeats all of the above in each of the sums below.
    log_r, excess, base = xp.barrier((log_r, excess, base))
    size = xp.exp(base)
    # Units in the last place of a node's weight: its exponent is a sum of these terms, and a node
    # that is off its lattice by eps·|y| changes the weight by that times the slope.
    units = 16 + 4 * y * y
    capped = lambda v: xp.expm1(xp.minimum(v, 300.0))  # noqa: E731
    if family == "poisson":
        s = xp.where(sign > 0, c + 1, -c)
        exponent, loss = s * log_r, sign * log_r
        grown, linear = capped(exponent), s * excess
        value, units = base + exponent, units + 8 * xp.abs(exponent)
    elif family == "replace":
        mirrored = log_ratio(-y, mu, rate)
        exponent, loss = (c + 1) * log_r - c * mirrored, log_r - mirrored
        grown = capped(exponent)
        linear = (c + 1) * excess - c * _ratio_excess(-y, mu, rate)
        value = base + exponent
        units = units + 8 * ((c + 1) * xp.abs(log_r) + c * xp.abs(mirrored))
    else:
        atom = xp.log1p(-rate) + xp.log(xp.erf(mu / np.sqrt(8.0)))
        value = xp.concatenate([base + (c + 1) * log_r, base - c * log_r, atom[None]])
        loss = xp.concatenate([log_r, -log_r, xp.zeros(1)])
        units = units + 8 * (c + 1) * xp.abs(log_r)
        units = xp.concatenate([units, units, 16 * xp.ones(1)])
        grown, linear = capped((c + 1) * log_r) + capped(-c * log_r), excess
    # Sums as products with a stack of rows: one kernel instead of many, which halves compilation.
    rows = xp.stack([grown - linear, xp.abs(grown) + xp.abs(linear)])
    sums = rows @ size
    top = xp.stop_gradient(xp.max(value))
    mass = xp.barrier(xp.exp(value - top))
    size = xp.abs(loss)
    rows = xp.stack([xp.ones_like(loss), loss, loss * loss, size, units, units * size])
    total, first, second, spread, *off = rows @ mass
    mean = first / total
    large = top + xp.log(total)
    is_small = large < 0.05
    log_moment = xp.where(is_small, xp.log1p(xp.where(is_small, sums[0], 0.0)), large)
    rounding = eps * xp.stack(off) / total
    error = xp.where(is_small, 8 * eps * sums[1], rounding[0] + 8 * eps * (1 + xp.abs(large)))
    return Tilted(
        log_moment=log_moment,
        weight=mass / total,
        loss=loss,
        mean=mean,
        variance=second / total - mean * mean,
        spread=spread / total,
        rounding=rounding,
        moment_error=error,
        truncated=xp.exp(xp.minimum(cut - log_moment, 50.0)),
        spacing=half,
        first=low,
    )
