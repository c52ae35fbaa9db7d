"""Laplace noise: of real numbers and of whole ones, one pair on two sets of losses.

Shifted by θ scales, Laplace noise has losses between −θ and θ, with atoms of mass ½ and ½e^{−θ} at
the ends and the density ¼e^{(l−θ)/2} between them, and the profile 1 − e^{(ε−θ)/2}. A cell of width
w is replaced by its ends: each gets ½e^{(l−θ)/2}·tanh(w/4). Laid out on the lattice t·{−a, −a+2, …,
a}, θ = ta, that is the pair of discrete Laplace noise with P(k) ∝ e^{−t|k|} shifted by a, exactly:
tanh(t/2) = (1 − e^{−t})/(1 + e^{−t}).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics.arrays import EPS, Numbers, namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.pairs.finite import (
    CELLS,
    EVERYTHING,
    MOST,
    NOTHING,
    Finite,
    bound_unknown,
    make_two_sided,
)
from dpjax.accounting.pairs.protocol import ClosedFormRelease, CurveRelease
from dpjax.accounting.typing import Real

_FAR_LOSSES = 160.0  # from either end of the losses, beyond which e^{−FAR/2} of the mass is left


def over(noise_multiplier: Real, adjacency: Adjacency) -> Numbers:
    """The displacement over the noise's scale: what replacing moves is twice what adding does."""
    xp = namespace(noise_multiplier)
    moved = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    safe = xp.where(noise_multiplier > 0, noise_multiplier, 1.0)
    return xp.where(noise_multiplier > 0, moved / safe, xp.inf)


def edges(top: float, step: float = 0.0) -> np.ndarray:
    """Losses from −top to top, close together near the ends; apart by multiples of 2·step."""
    if 2 * top <= 2 * _FAR_LOSSES:
        found = np.linspace(0.0, 2 * top, CELLS + 1)
    else:
        near = np.linspace(0.0, _FAR_LOSSES, CELLS // 2 + 1)
        found = np.concatenate([near, 2 * top - near[::-1]])
    if not step:
        return found - top
    last = round(top / step)  # the lattice's index of the largest loss
    place = np.round(np.minimum(found / (2 * step), last))
    place = np.unique(np.concatenate([place, last - place]))
    return step * (2 * place - last)


def root_cells(losses: np.ndarray, *, upper: bool) -> tuple[np.ndarray, np.ndarray]:
    """Losses and masses of the density ½e^{(l − top)/2}: at the ends of its cells, or their lumps.

    A lump's loss is the middle of its cell.
    """
    top, width = losses[-1], np.diff(losses)
    if upper:
        share = np.tanh(width / 4)  # (1 − e^{−w/2})/(1 + e^{−w/2})
        mass = np.exp((losses - top) / 2)
        return losses, mass * (np.append(share, 0.0) + np.append(0.0, share))
    return 0.5 * (losses[1:] + losses[:-1]), np.exp((losses[1:] - top) / 2) * -np.expm1(-width / 2)


def _pair(losses: np.ndarray, *, upper: bool) -> Finite:
    top = losses[-1]
    inner, mass = root_cells(losses, upper=upper)
    ends = 0.5 * np.array([np.exp(-top), 1.0])  # the atoms at −θ and θ
    if upper:
        mass = 0.5 * mass
        mass[[0, -1]] += ends
        return make_two_sided(inner, mass)
    return make_two_sided(
        np.concatenate([[-top], inner, [top]]), np.concatenate([ends[:1], 0.5 * mass, ends[1:]])
    )


class LaplaceNumbers(NamedTuple):
    """How far the number moves over the noise's scale."""

    theta: Numbers


class LaplaceRelease(ClosedFormRelease[LaplaceNumbers], CurveRelease[LaplaceNumbers]):
    """A real number with Laplace noise."""

    tight = sampled = True

    def numbers(self, step: Any, adjacency: Adjacency) -> LaplaceNumbers:
        return LaplaceNumbers(over(step.noise_multiplier, adjacency))

    def largest(self, numbers: LaplaceNumbers) -> Numbers:
        return numbers.theta

    def pair(self, numbers: LaplaceNumbers, *, upper: bool) -> Finite:
        theta = float(numbers.theta)
        if theta > MOST:
            return EVERYTHING if theta == np.inf else bound_unknown(upper=upper)
        return _pair(edges(theta), upper=upper) if theta > 0 else NOTHING

    def epsilon(self, numbers: LaplaceNumbers, delta: Numbers) -> Numbers:
        theta = numbers.theta
        return theta + 2 * namespace(theta, delta).log1p(-delta)  # inverse of δ = 1 − e^{(ε−θ)/2}

    def delta(self, numbers: LaplaceNumbers, epsilon: Numbers) -> Numbers:
        theta = numbers.theta
        xp = namespace(theta, epsilon)
        finite = xp.where(theta < xp.inf, theta, 1e300)
        return 0.0 - xp.expm1(xp.minimum((epsilon - finite) / 2, 0.0))

    def divergence(self, numbers: LaplaceNumbers, orders: Numbers) -> Numbers:
        """Mironov 2017, Table II, its moment less one written as a sum of positive terms."""
        theta = numbers.theta
        xp = namespace(theta, orders)
        k = orders - 1
        small = xp.where(k * theta < 600, theta, 0.0)
        excess = (orders * _beyond_linear(k * small) + k * _beyond_linear(-orders * small)) / (
            2 * orders - 1
        )
        finite = xp.where(theta < xp.inf, theta, 1.0)
        # the same moment, counted from its largest term
        far = finite + xp.log((orders + k * xp.exp(-(2 * orders - 1) * finite)) / (2 * k + 1)) / k
        found = xp.where(k * theta < 600, xp.log1p(excess) / k, far)
        return xp.where(theta < xp.inf, xp.minimum(found, finite), xp.inf)


def _beyond_linear(x: Numbers) -> Numbers:
    """e^x − 1 − x >= 0, to full relative precision."""
    xp = namespace(x)
    near = xp.clip(x, -0.5, 0.5)
    series = xp.ones_like(near)
    for n in range(18, 2, -1):
        series = 1 + near / n * series  # Horner: Σ 2x^k/(k+2)!
    return xp.where(abs(x) < 0.5, 0.5 * near * near * series, xp.expm1(x) - x)


class ShiftedLaplace(NamedTuple):
    """The inverse t of the noise's scale, and by which whole number the number moves."""

    t: Numbers
    shift: Numbers | float


class DiscreteLaplaceRelease(ClosedFormRelease[ShiftedLaplace], CurveRelease[ShiftedLaplace]):
    """A whole number with discrete Laplace noise, shifted by a; t is the inverse of the scale."""

    tight = sampled = True

    def numbers(self, step: Any, adjacency: Adjacency) -> ShiftedLaplace:
        moved = step.sensitivity * (2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0)
        return ShiftedLaplace(over(step.noise_multiplier, adjacency) / moved, moved)

    def largest(self, numbers: ShiftedLaplace) -> Numbers:
        return numbers.t * numbers.shift

    def pair(self, numbers: ShiftedLaplace, *, upper: bool) -> Finite:
        t, shift = map(float, numbers)
        if t * shift > MOST:
            return EVERYTHING if t == np.inf else bound_unknown(upper=upper)
        if t == 0:
            return NOTHING
        if shift <= CELLS:  # the lattice itself
            return _pair(t * np.arange(-shift, shift + 1, 2.0), upper=True)
        # Cells between points of the lattice; the profile is at least that of real numbers.
        return _pair(edges(t * shift, t if upper else 0.0), upper=upper)

    def epsilon(self, numbers: ShiftedLaplace, delta: Numbers) -> Numbers:
        """The largest of the tests y >= k that could be the best at this δ."""
        t, shift = numbers
        xp = namespace(t, shift, delta)
        t, bad = _usable(t)
        found = -xp.inf
        for more in (-1.0, 0.0, 1.0, 2.0):
            k = xp.clip(xp.floor(shift + xp.log1p(-delta) / t) + more, 1.0, shift)
            missed = xp.exp(-t * (shift - k + 1))  # r^{a−k+1}, r = e^{−t}
            power = (1 + xp.exp(-t)) * (1 - delta) - missed  # e^ε r^k of the test y >= k
            good = power > 0
            found = xp.maximum(
                found, xp.where(good, k * t + xp.log(xp.where(good, power, 1.0)), -xp.inf)
            )
        return xp.where(bad, xp.inf, found)

    def delta(self, numbers: ShiftedLaplace, epsilon: Numbers) -> Numbers:
        t, shift = numbers
        xp = namespace(t, shift, epsilon)
        t, bad = _usable(t)
        epsilon = xp.minimum(epsilon, t * shift)
        found = 0.0
        for more in (-1.0, 0.0, 1.0, 2.0):
            k = xp.clip(xp.floor((epsilon / t + shift) / 2) + more, 1.0, shift)
            # 1 − (r^{a−k+1} + e^ε r^k)/(1 + r) = ((1 − r^{a−k+1}) − (e^{ε−tk} − r))/(1 + r)
            value = xp.expm1(-t) - xp.expm1(epsilon - t * k) - xp.expm1(-t * (shift - k + 1))
            value = value / (1 + xp.exp(-t))
            found = xp.maximum(found, value)
        return xp.where(bad, 1.0, found)

    def divergence(self, numbers: ShiftedLaplace, orders: Numbers) -> Numbers:
        """The moment is a geometric sum: 1 + s^a + (1 − r)(s − s^a)/(1 − s), s = e^{−(2α−1)t}."""
        t, shift = numbers
        xp = namespace(t, shift, orders)
        t, bad = _usable(t)
        k, rise = orders - 1, (2 * orders - 1) * t
        theta, last = t * shift, xp.exp(-rise * shift)  # s^a
        inner = xp.expm1(-t) * (xp.exp(-rise) - last) / xp.expm1(-rise)
        found = theta + (xp.log1p(last + inner) - xp.log1p(xp.exp(-t))) / k
        found = found + 16 * EPS * (1 / k + theta)  # what cancels
        return xp.where(bad, xp.inf, xp.minimum(found, theta))


def _usable(t: Numbers) -> tuple[Numbers, Numbers]:
    """1/scale, kept away from 0 and ∞, and whether there is no noise at all."""
    xp = namespace(t)
    bad = ~(t < 1e290)
    return xp.where(bad, 1.0, xp.maximum(t, 1e-290)), bad


LAPLACE, DISCRETE_LAPLACE = LaplaceRelease(), DiscreteLaplaceRelease()
