"""Pairs of sampled Gaussians: the tilted loss on quadrature nodes, and bounds on what is cut off.

With g the standard normal density and r as in `pairs.ratio`:

| pair | P | Q | loss |
|---|---|---|---|
| "poisson", direction remove | g·r | g | log r |
| "poisson", direction add | g | g·r | −log r |
| "replace" | g·r(y) | g·r(−y) | log r(y) − log r(−y) |
| "symmetrised" | g·r on y > μ/2, mirrored, and an atom | | ± log r, 0 at the atom |

μ is the distance a record can move the sum over the noise's standard deviation: 1/σ for add/remove
and for Poisson replace-one (whose two means are ±μ), 2/σ for fixed batches under replace-one.
Rate 1 is the plain Gaussian.

References:
  Zhu, Dong, Wang 2022 (dominating pairs, Poisson); Steinke 2022, section 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Array

from dpjax._numerics.arrays import namespace
from dpjax.accounting.pairs import errors
from dpjax.accounting.pairs.protocol import Tilted
from dpjax.accounting.pairs.ratio import (
    excess,
    log_ratio,
    log_ratio_slopes,
    posterior,
    rough_log_ratio,
)

REACH = 11.0  # standard deviations looked at on either side; Φ(−11) = 2e-28
_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)
_CELLS = 48
_KEPT = 56.0  # what is cut weighs about e^{−56} where that can be told
_TRIANGLE = np.tril(np.ones((_CELLS + 1, _CELLS)), -1)
_EPS = float(np.finfo(np.float64).eps)


def log_normal_tail(x: Array) -> Array:
    """log Φ(−x) ≤ −x²/2 − log 2 for x ≥ 0 and ≤ 0 otherwise: short to compile, and enough."""
    xp: Any = namespace(x)
    return xp.where(x > 0, -0.5 * x * x - np.log(2.0), 0.0)


def log_tail(log_value: Array, slope: Array, edge: Array) -> Array:
    """log ∫_{edge}^∞ g(y) e^{log_value + slope(y − edge)} dy, an upper bound on a cut tail."""
    return log_value + 0.5 * slope * slope - slope * edge + log_normal_tail(edge - slope)


def capped(v: Array) -> Array:
    """e^v − 1, where e^v does not overflow."""
    xp: Any = namespace(v)
    return xp.expm1(xp.minimum(v, 300.0))


class Subsampled:
    """What these pairs share: e^{cL}P/g is r(y)^power, times r(−y)^{−c} if `mirrored`.

    The trapezoid rule on the line converges exponentially: the integrand is analytic and Gaussian.
    """

    name = ""
    directed = mirrored = folded = False

    def power(self, sign: Any, c: Any) -> Any:
        """The exponent of r(y) in e^{cL}P/g."""
        return c + 1

    def exponents(
        self, sign: Any, mu: Any, rate: Any, c: Any, y: Any, log_r: Any, ratio: Any = log_ratio
    ) -> tuple[Any, Any, Any]:
        """log of e^{cL}P/g, L, and log r(−y) if it is part of them."""
        exponent, loss, other = self.power(sign, c) * log_r, sign * log_r, None
        if self.mirrored:
            other = ratio(-y, mu, rate)
            exponent, loss = exponent - c * other, log_r - other
        return exponent, loss, other

    def terms(self, sign: Any, mu: Any, rate: Any, c: Any, y: Any) -> tuple[Any, Any]:
        # The search for a line that reads them may take any.
        log_r = rough_log_ratio(y, mu, rate)
        exponent, loss, _ = self.exponents(sign, mu, rate, c, y, log_r, rough_log_ratio)
        return (-0.5 * y * y - _HALF_LOG_2PI) + exponent, loss

    def atom(self, mu: Any, rate: Any) -> Any:
        return 0.0

    def reach(self, sign: Any, mu: Any, rate: Any, c: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def tails(
        self, sign: Any, mu: Any, rate: Any, c: Any, ends: tuple, ratio: Array, value: Array
    ) -> tuple[Any, Any]:
        """Bounds on log of the mass on either side of the ends.

        Args:
            sign, mu, rate, c: as of `tilt`.
            ends: as `reach` gives them.
            ratio, value: log r, and log of e^{cL}P/g, from one end to the other.
        """
        raise NotImplementedError

    def _window(self, sign: Any, mu: Any, rate: Any, c: Any) -> tuple[Array, Array, Array]:
        """The interval that is kept, and a bound on log of the mass outside it.

        Between the steep ends the exponent h(y) of e^{cL}P/g is bounded cell by cell by a straight
        line (log r is convex: its chord where it enters with a plus, its tangent where with a
        minus), and ∫ g e^{line} over a cell by e to the largest value of line − y²/2. At a high
        tilt this tells that a second mode, reached only by records that surely took part, weighs
        nothing.
        """
        xp: Any = namespace(sign, mu, rate, c)
        low, high = self.reach(sign, mu, rate, c)
        edges = low + (high - low) / _CELLS * xp.arange(_CELLS + 1)
        ratio = log_ratio(edges, mu, rate)
        power, width = self.power(sign, c), (high - low) / _CELLS
        chord = (ratio[1:] - ratio[:-1]) / width
        slope = power * xp.where(power > 0, chord, mu * posterior(edges, mu, rate)[:-1])
        value = power * ratio
        if self.mirrored:
            value = value - c * log_ratio(-edges, mu, rate)
            slope = slope + c * mu * posterior(-edges[:-1], mu, rate)
        peak = xp.clip(slope, edges[:-1], edges[1:])
        cells = value[:-1] + slope * (peak - edges[:-1]) - 0.5 * peak * peak
        left, right = self.tails(sign, mu, rate, c, (low, high), ratio, value)
        # Mass left of every edge and right of it; the triangles sum, at most 64 terms.
        level = xp.maximum(xp.max(cells), 0.0)
        mass = xp.exp(cells - level)
        before, after = _TRIANGLE @ mass, (1 - _TRIANGLE) @ mass
        enough = np.exp(-_KEPT)
        first, last = xp.sum(before[1:] <= enough), xp.sum(after > enough)
        # The sums E[r] = 1 that are used for small moments need r's own mass.
        need = 0.5 * mu + 9.0 if self.folded else 9.0 + mu
        last = xp.maximum(last, xp.sum(edges < need))
        first = xp.zeros_like(first) if self.folded else first
        last = xp.clip(last, first + 1, _CELLS)
        first = first if self.folded else xp.minimum(first, xp.sum(edges <= -9.0) - 1)
        first = xp.maximum(first, 0)
        place = xp.arange(_CELLS + 1)
        outside = xp.stack([before, after]) * xp.stack([place == first, place == last])
        cut = level + xp.log(xp.sum(outside) + 1e-300)
        cut = xp.logaddexp(cut, xp.logaddexp(left, right))
        return low + width * first, low + width * last, cut

    def grid(self, low: Any, high: Any, nodes: int) -> tuple[Any, Any, Any]:
        """Spacing (or half-width of a panel), positions, and log of the rule's weights."""
        xp: Any = namespace(low, high)
        spacing = (high - low) / (nodes - 1)
        return spacing, low + spacing * xp.arange(nodes), xp.log(spacing)

    def integrand(
        self, sign: Any, mu: Any, rate: Any, c: Any, y: Any, base: Any, log_r: Any, rise: Any
    ) -> tuple[Any, ...]:
        """At the nodes: log of e^{cL}P's weights, L, and the rounding of the former in ulps.

        And on the rule's own positions e^{cL}P/g − 1, and its first-order term in rise = r − 1.
        """
        xp: Any = namespace(c, base, log_r)
        exponent, loss, other = self.exponents(sign, mu, rate, c, y, log_r)
        power = self.power(sign, c)
        size, linear = xp.abs(power) * xp.abs(log_r), power * rise
        if other is not None:
            size, linear = size + c * xp.abs(other), linear - c * excess(-y, mu, rate)
        # Units in the last place of a node's weight: its exponent is a sum of these terms, and a
        # node that is off its lattice by eps·|y| changes the weight by that times the slope.
        units = 16 + 4 * y * y + 8 * size
        return base + exponent, loss, units, capped(exponent), linear

    def tilt(self, sign: Any, mu: Any, rate: Any, c: Any, nodes: int) -> Tilted:
        """The tilted privacy loss of one step.

        Where K is small it is log1p of the k ≥ 2 sum E_g[r^s − 1 − s(r − 1)], whose terms are all
        positive.
        """
        xp: Any = namespace(sign, mu, rate, c)
        low, high, cut = self._window(sign, mu, rate, c)
        spacing, y, base = self.grid(low, high, nodes)
        base = base - 0.5 * y * y - _HALF_LOG_2PI
        log_r, rise = log_ratio(y, mu, rate), excess(y, mu, rate)
        # Without the barriers the compiler repeats all of the above in each of the sums below.
        log_r, rise, base = xp.barrier((log_r, rise, base))
        value, loss, units, grown, linear = self.integrand(sign, mu, rate, c, y, base, log_r, rise)
        # Sums as products with a stack of rows: one kernel instead of many: half the compilation.
        rows = xp.stack([grown - linear, xp.abs(grown) + xp.abs(linear)])
        sums = rows @ xp.exp(base)
        top = xp.max(value)
        mass = xp.barrier(xp.exp(value - top))
        size = xp.abs(loss)
        rows = xp.stack([xp.ones_like(loss), size, units, units * size])
        total, spread, *off = rows @ mass
        large = top + xp.log(total)
        is_small = large < 0.05
        log_moment = xp.where(is_small, xp.log1p(xp.where(is_small, sums[0], 0.0)), large)
        rounding = _EPS * xp.stack(off) / total
        error = xp.where(is_small, 8 * _EPS * sums[1], rounding[0] + 8 * _EPS * (1 + xp.abs(large)))
        return Tilted(
            log_moment=log_moment,
            weight=mass / total,
            loss=loss,
            spread=spread / total,
            rounding=rounding,
            moment_error=error,
            truncated=xp.exp(xp.minimum(cut - log_moment, 50.0)),
            spacing=spacing,
            first=low,
        )

    def positions(self, tilted: Tilted) -> Any:
        """Where the nodes lie; of a folded pair those of one half-line."""
        nodes = tilted.weight.shape[0]
        return tilted.first + tilted.spacing * namespace(tilted.first).arange(nodes)

    def quadrature_error(
        self, sign: Any, mu: Any, rate: Any, c: Any, tilted: Tilted, t: Any, knots: Any
    ) -> Any:
        y, power = self.positions(tilted), self.power(sign, c)
        return errors.on_the_line(y, power, self.mirrored, mu, rate, c, tilted, t, knots)

    def decay(self, sign: Any, mu: Any, rate: Any, c: Any, tilted: Tilted, t: Any) -> Any:
        y, power = self.positions(tilted), self.power(sign, c)
        return errors.line_decay(y, power, self.mirrored, mu, rate, c, tilted, t)

    def slopes(self, sign: Any, mu: Any, rate: Any, tilted: Tilted) -> tuple[Any, Any, Any]:
        xp: Any = namespace(sign, mu, rate, tilted)
        y = self.positions(tilted)
        own = xp.stack(log_ratio_slopes(y, mu, rate))
        if self.mirrored:
            return own, xp.stack(log_ratio_slopes(-y, mu, rate)), xp.zeros(2)
        zero = xp.zeros_like(own)
        return xp.where(sign > 0, own, zero), xp.where(sign > 0, zero, own), xp.zeros(2)

    def total_variation(self, mu: Any, rate: Any) -> Any:
        return rate * namespace(mu).erf(mu / np.sqrt(2.0 if self.mirrored else 8.0))

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        return 0.0, True
