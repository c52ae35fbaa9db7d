"""The discrete Gaussian on the integers, shifted by a whole number: exact sums.

P(y) ∝ e^{−(y−a)²/2σ²} against Q(y) ∝ e^{−y²/2σ²}, both over all integers, with loss a(2y − a)/2σ².
The likelihood ratio rises with y, so that the best test is a threshold, and a larger shift is
easier to tell apart. For σ beyond ten thousand, integers are taken together in blocks, whose sums
follow from the integral by the midpoint rule with its first correction (−[f']/24; what is left is
at most 7/5760·[f'''], a part in 1e12 of the block).

References:
  Canonne, Kamath, Steinke 2020.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics.arrays import EPS, Numbers, namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.pairs.finite import CELLS, EVERYTHING, Finite, bound_unknown, make_two_sided
from dpjax.accounting.pairs.laplace import over
from dpjax.accounting.pairs.on_grid import normal_mass
from dpjax.accounting.pairs.protocol import LatticeRelease

_DEVIATIONS = 37.0  # standard deviations beyond which less than 1e-290 is left
_CUT = 1e-280
_LARGE = 1e4  # σ from which integers are taken together
_MOST_INTEGERS = 1 << 22  # integers that are laid out one by one


class ShiftedGaussian(NamedTuple):
    """μ, the shift over the noise's σ, and the shift, a whole number."""

    mu: Numbers
    shift: Numbers | float


class DiscreteGaussianRelease(LatticeRelease[ShiftedGaussian]):
    """One number moved by a, a whole number, with noise of standard deviation about σ."""

    tight = sampled = True

    def numbers(self, step: Any, adjacency: Adjacency) -> ShiftedGaussian:
        moved = step.sensitivity * (2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0)
        return ShiftedGaussian(over(step.noise_multiplier, adjacency), moved)

    def pair(self, numbers: ShiftedGaussian, *, upper: bool) -> Finite:
        mu, shift = map(float, numbers)
        if mu == np.inf:
            return EVERYTHING
        if not 1e-140 < mu < 1e140 or not 1e-140 < shift / mu < 1e140:
            return bound_unknown(upper=upper)
        sigma = shift / mu
        if sigma >= _LARGE:
            far = mu > 2 * _DEVIATIONS
            return bound_unknown(upper=upper) if far else _blocks(sigma, shift, upper=upper)
        reach = np.ceil(_DEVIATIONS * sigma)
        if shift > 2 * reach + 2:  # two heaps with nothing in between
            heap = np.arange(-reach, reach + 1)
            y = np.concatenate([heap, shift + heap])
        elif 2 * reach + shift < _MOST_INTEGERS:
            y = np.arange(-reach, reach + shift + 1)
        else:
            return bound_unknown(upper=upper)
        exponent = 0.5 * ((y - shift) / sigma) ** 2  # of P; Q is its mirror image about a/2
        p = np.exp(-exponent)
        p = p / p.sum()
        # Rounding: of the exponent, of its exponential, and of the sum.
        slack = EPS * (16 + 4 * exponent)
        p = p * (1 + (slack if upper else -slack))
        # a(2y − a)/2σ², without squares that overflow
        losses = (y - 0.5 * shift) / sigma * (shift / sigma)
        return _with_tails(losses, p, upper)

    def divergence(self, numbers: ShiftedGaussian, orders: Numbers) -> Numbers:
        """αμ²/2 + log(θ(f)/θ(0))/(α − 1), θ(f) = Σ_y e^{−(y−f)²/2σ²}, f how far αa is from Z."""
        mu, shift = numbers
        xp = namespace(mu, shift, orders)
        sigma = xp.clip(shift / xp.maximum(mu, 1e-150), 0.02, 3.0)
        moved = orders * shift
        part = moved - xp.round(moved)  # f, between −½ and ½
        fall = _log_theta(part, sigma) - _log_theta(0.0 * part, sigma)
        # Beyond σ = 3 the two agree to the last digit.
        known = (shift > 0.02 * mu) & (shift < 3.0 * mu) & (moved < 1e6)
        # a gain is rounded towards none
        gain = xp.minimum(fall * (1 - 1e-9) + 1e-12, 0.0) / (orders - 1)
        gain = xp.where(known, gain, 0.0)
        return xp.where(mu < xp.inf, 0.5 * orders * mu * mu + gain, xp.inf)

    def lattice(self, numbers: ShiftedGaussian) -> tuple[np.ndarray, np.ndarray]:
        """V and 4Σ_{k≥1} e^{−π²σ²k} of LATTICE in `contour.lattice`; ∞ where σ is below 1."""
        mu, shift = map(np.asarray, numbers)
        sigma2 = (shift / mu) ** 2
        x = np.exp(-(math.pi**2) * sigma2)
        # At most 4.001x; a histogram's replaced record is two such steps of half the variance.
        return 0.5 * math.pi * sigma2 / shift, np.where(sigma2 >= 1, 9 * np.sqrt(x), np.inf)


def _log_theta(part: Numbers, sigma: Numbers) -> Numbers:
    """log Σ_y e^{−(y−f)²/2σ²} for |f| ≤ ½ and σ ≤ 3."""
    xp = namespace(part, sigma)
    part, sigma = xp.broadcast_arrays(xp.asarray(part), xp.asarray(sigma))
    scale = 2 * sigma * sigma
    y = np.arange(-130.0, 131.0)
    gap = (y * y - 2 * y * part[..., None]) / scale[..., None]
    return xp.log(xp.sum(xp.exp(-gap), axis=-1)) - part * part / scale


def _with_tails(losses: np.ndarray, p: np.ndarray, upper: bool) -> Finite:
    """The integers that were left out: all given away, or all lost."""
    if upper:
        losses = np.concatenate([[-np.inf], losses, [np.inf]])
        p = np.concatenate([[0.0], p, [_CUT]])
    return make_two_sided(losses, p)


def _blocks(sigma: float, shift: float, *, upper: bool) -> Finite:
    """The same for large σ, in blocks of integers that mirror each other."""
    last = np.ceil(_DEVIATIONS * sigma)
    width = np.ceil((2 * last + shift + 1) / CELLS)  # whole numbers of integers a block
    edges = np.arange(-last - 0.5, shift / 2, width)  # between two integers
    edges = np.unique(np.concatenate([edges, shift - edges]))
    rounding = 1e-12 if upper else -1e-12
    p, q = (_block_mass((edges - at) / sigma, sigma) * (1 + rounding) for at in (shift, 0.0))
    low, high = (
        (y - 0.5 * shift) / sigma * (shift / sigma) for y in (edges[:-1] + 0.5, edges[1:] - 0.5)
    )
    if not upper:
        kept = (p > 1e-250) & (q > 1e-250)
        p, q = p[kept], q[kept]
        return Finite(np.log(p) - np.log(q) - 1e-12, p, q)
    with np.errstate(divide="ignore", invalid="ignore"):  # a block of one integer has one loss
        # p = low + top, q = low·e^{−l} + top·e^{−h}
        share = (p - q * np.exp(low)) / -np.expm1(low - high)
    top = np.where(high > low, np.clip(share, 0.0, p), 0.0)
    order = np.argsort(np.concatenate([low, high]), kind="stable")
    losses, p = np.concatenate([low, high])[order], np.concatenate([p - top, top])[order]
    return _with_tails(losses, p, upper)


def _block_mass(edges: np.ndarray, sigma: float) -> np.ndarray:
    """Σ of the normal density over the integers of each block, σ large, edges in units of σ."""
    slope = -edges * np.exp(-0.5 * edges * edges) / np.sqrt(2 * np.pi)
    return np.maximum(normal_mass(edges) - np.diff(slope) / (24 * sigma * sigma), 0.0)


DISCRETE_GAUSSIAN = DiscreteGaussianRelease()
