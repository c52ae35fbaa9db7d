"""Laplace noise: of real numbers and of whole ones, one pair on two sets of losses.

Shifted by θ scales, Laplace noise has losses between −θ and θ, with atoms of mass ½ and ½e^{−θ} at
the ends and the density ¼e^{(l−θ)/2} between them, and the profile 1 − e^{(ε−θ)/2}. A cell of width
w is replaced by its ends: each gets ½e^{(l−θ)/2}·tanh(w/4). Laid out on the lattice t·{−a, −a+2, …,
a}, θ = ta, that is the pair of discrete Laplace noise with P(k) ∝ e^{−t|k|} shifted by a, exactly:
tanh(t/2) = (1 − e^{−t})/(1 + e^{−t}).

The discrete Gaussian on the integers, shifted by a whole number: exact sums.

P(y) ∝ e^{−(y−a)²/2σ²} against Q(y) ∝ e^{−y²/2σ²}, both over all integers, with loss a(2y − a)/2σ².
The likelihood ratio rises with y, so that the best test is a threshold, and a larger shift is
easier to tell apart. For σ beyond ten thousand, integers are taken together in blocks, whose sums
follow from the integral by the midpoint rule with its first correction (−[f']/24; what is left is
at most 7/5760·[f'''], a part in 1e12 of the block).

References:
  Canonne, Kamath, Steinke 2020.

Randomised response, and selection of bounded range.

A release of bounded range ε has likelihood ratios within some [e^{t−ε}, e^t], 0 ≤ t ≤ ε, and is a
function of the pair of two outcomes that has just these two. The largest of their profiles at ε' is
that of t = (ε + ε')/2, (1 − e^{(ε'−ε)/2})²/(1 − e^{−ε}) (Dong, Durfee and Rogers 2020), which is
itself the profile of a pair: losses in [−ε, ε] of density e^{(l−ε)/2}/(2(1 − e^{−ε})), derived
for dpjax by differentiating it twice in e^{ε'}. That pair dominates whichever t is chosen, hence
also composed. At one Rényi order the largest divergence is taken at e^t = (α − 1)A/(αB), where the
moment is e^{(α−1)t}(A − B e^t).

Permute-and-flip is dominated by Laplace noise of scale 1 on a number that moves by ε (derived for
dpjax). Let f(x) be the probability that a candidate of S is chosen when the scores of S have been
raised by x over the others', in units in which all that a record can do is x = ε. The choice is
ε-differentially private at every ε, so neither log f nor log(1 − f) has a slope beyond ±1:
f' ≤ min(f, 1 − f), which is Laplace's density at f. So F⁻¹(f(x + ε)) ≤ F⁻¹(f(x)) + ε, F being
Laplace's distribution function, and a record that moves the scores otherwise moves f by less, as f
falls with the scores of the others. Two candidates attain every point of the profile.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics.arrays import namespace
from dpjax._numerics.namespace import Numbers
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.pairs.discrete import (
    CELLS,
    EVERYTHING,
    MOST,
    NOTHING,
    Finite,
    bound_unknown,
    make_two_sided,
)
from dpjax.accounting.pairs.on_grid import normal_mass
from dpjax.accounting.pairs.protocol import ClosedFormRelease, CurveRelease, LatticeRelease

_EPS = float(np.finfo(np.float64).eps)
_FAR = 160.0  # from either end of the losses, beyond which e^{−FAR/2} of the mass is left


def over(noise_multiplier: Any, adjacency: Adjacency) -> Any:
    """The displacement over the noise's scale: what replacing moves is twice what adding does."""
    xp = namespace(noise_multiplier)
    moved = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    safe = xp.where(noise_multiplier > 0, noise_multiplier, 1.0)
    return xp.where(noise_multiplier > 0, moved / safe, xp.inf)


def edges(top: float, step: float = 0.0) -> np.ndarray:
    """Losses from −top to top, close together near the ends; apart by multiples of 2·step."""
    if 2 * top <= 2 * _FAR:
        found = np.linspace(0.0, 2 * top, CELLS + 1)
    else:
        near = np.linspace(0.0, _FAR, CELLS // 2 + 1)
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
    """Of real numbers."""

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


def _beyond_linear(x: Any) -> Any:
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
    """Of whole numbers, shifted by a whole number a; t is the inverse of the scale."""

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
        found = found + 16 * _EPS * (1 / k + theta)  # what cancels
        return xp.where(bad, xp.inf, xp.minimum(found, theta))


def _usable(t: Any) -> tuple[Any, Any]:
    """1/scale, kept away from 0 and ∞, and whether there is no noise at all."""
    xp = namespace(t)
    bad = ~(t < 1e290)
    return xp.where(bad, 1.0, xp.maximum(t, 1e-290)), bad


LAPLACE, DISCRETE_LAPLACE = LaplaceRelease(), DiscreteLaplaceRelease()


_REACH = 37.0  # standard deviations beyond which less than 1e-290 is left
_CUT = 1e-280
_LARGE = 1e4  # σ from which integers are taken together
_MOST = 1 << 22  # integers that are laid out one by one


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
            far = mu > 2 * _REACH
            return bound_unknown(upper=upper) if far else _blocks(sigma, shift, upper=upper)
        reach = np.ceil(_REACH * sigma)
        if shift > 2 * reach + 2:  # two heaps with nothing in between
            heap = np.arange(-reach, reach + 1)
            y = np.concatenate([heap, shift + heap])
        elif 2 * reach + shift < _MOST:
            y = np.arange(-reach, reach + shift + 1)
        else:
            return bound_unknown(upper=upper)
        exponent = 0.5 * ((y - shift) / sigma) ** 2  # of P; Q is its mirror image about a/2
        p = np.exp(-exponent)
        p = p / p.sum()
        # Rounding: of the exponent, of its exponential, and of the sum.
        slack = _EPS * (16 + 4 * exponent)
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
        """V and 4Σ_{k≥1} e^{−π²σ²k} of LATTICE in `contour.users`; ∞ where σ is below 1."""
        mu, shift = map(np.asarray, numbers)
        sigma2 = (shift / mu) ** 2
        x = np.exp(-(math.pi**2) * sigma2)
        # At most 4.001x; a histogram's replaced record is two such steps of half the variance.
        return 0.5 * math.pi * sigma2 / shift, np.where(sigma2 >= 1, 9 * np.sqrt(x), np.inf)


def _log_theta(part: Any, sigma: Any) -> Any:
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
    last = np.ceil(_REACH * sigma)
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


class ResponseNumbers(NamedTuple):
    """The largest loss, and how many categories there are."""

    epsilon: Numbers
    categories: Numbers


class ResponseRelease(ClosedFormRelease[ResponseNumbers], CurveRelease[ResponseNumbers]):
    """k-ary randomised response: losses ±ε, and 0 for the k − 2 other categories."""

    tight = True

    def numbers(self, step: Any, adjacency: Adjacency) -> ResponseNumbers:
        return ResponseNumbers(step.epsilon, step.categories)

    def largest(self, numbers: ResponseNumbers) -> Numbers:
        return numbers.epsilon

    def pair(self, numbers: ResponseNumbers, *, upper: bool) -> Finite:
        epsilon, categories = map(float, numbers)
        if epsilon == 0:
            return NOTHING
        likely = 1 / (1 + (categories - 1) * np.exp(-epsilon))  # P of the true category
        rare = 1 / (np.exp(epsilon) + categories - 1)
        return make_two_sided([-epsilon, 0.0, epsilon], [rare, (categories - 2) * rare, likely])

    def epsilon(self, numbers: ResponseNumbers, delta: Numbers) -> Numbers:
        epsilon, categories = numbers
        xp = namespace(epsilon, categories, delta)
        # δ over P(true category) = 1 − e^{ε'−ε}
        lost = delta * (1 + (categories - 1) * xp.exp(-epsilon))
        return epsilon + xp.log1p(-xp.minimum(lost, 1.0))

    def delta(self, numbers: ResponseNumbers, epsilon: Numbers) -> Numbers:
        own, categories = numbers
        xp = namespace(own, categories, epsilon)
        likely = 1 / (1 + (categories - 1) * xp.exp(-own))
        return (0.0 - xp.expm1(xp.minimum(epsilon - own, 0.0))) * likely

    def divergence(self, numbers: ResponseNumbers, orders: Numbers) -> Numbers:
        epsilon, categories = numbers
        xp = namespace(epsilon, categories, orders)
        k = orders - 1
        near = k * epsilon < 300
        small = xp.where(near & (epsilon < 300), epsilon, 0.0)
        excess = xp.expm1(small) * xp.expm1(k * small) + 4 * xp.sinh(k * small / 2) ** 2
        low = xp.log1p(excess / (xp.expm1(small) + categories)) / k
        other = xp.exp(-(2 * orders - 1) * epsilon) + (categories - 2) * xp.exp(-orders * epsilon)
        high = xp.log1p(other) - xp.log1p((categories - 1) * xp.exp(-epsilon))
        high = epsilon + high / k
        return xp.minimum(xp.where(near & (epsilon < 300), low, high), epsilon)


class SelectionNumbers(NamedTuple):
    """The range of the losses, and 1 by permute-and-flip, else 0."""

    epsilon: Numbers
    flip: float


class SelectionRelease(ClosedFormRelease[SelectionNumbers], CurveRelease[SelectionNumbers]):
    """The exponential mechanism; by permute-and-flip, with the profile of Laplace noise."""

    sampled = True

    def numbers(self, step: Any, adjacency: Adjacency) -> SelectionNumbers:
        range_ = step.epsilon * (2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0)
        return SelectionNumbers(range_, 1.0 if step.permute_and_flip else 0.0)

    def largest(self, numbers: SelectionNumbers) -> Numbers:
        return numbers.epsilon

    def pair(self, numbers: SelectionNumbers, *, upper: bool) -> Finite:
        epsilon, flip = map(float, numbers)
        if epsilon == 0:
            return NOTHING
        if epsilon > MOST:
            return bound_unknown(upper=upper)
        if upper and flip:
            return LAPLACE.pair(LaplaceNumbers(numbers.epsilon), upper=True)
        if upper:
            losses, mass = root_cells(edges(epsilon), upper=True)
            return make_two_sided(losses, mass / -np.expm1(-epsilon))
        # Two candidates whose scores change places.
        loss, keep = epsilon / 2, 1 / (1 + np.exp(-epsilon / 2))
        if flip:
            keep = 1 - 0.5 * np.exp(-epsilon / 2)
            loss = epsilon / 2 + np.log1p(-np.expm1(-epsilon / 2))
        return make_two_sided([-loss, loss], [keep * np.exp(-loss), keep])

    def epsilon(self, numbers: SelectionNumbers, delta: Numbers) -> Numbers:
        epsilon, flip = numbers
        xp = namespace(epsilon, delta)
        if flip:
            return LAPLACE.epsilon(LaplaceNumbers(epsilon), delta)
        # inverse of δ = (1 − e^{(ε'−ε)/2})²/(1 − e^{−ε})
        return epsilon + 2 * xp.log1p(-xp.sqrt(delta * -xp.expm1(-epsilon)))

    def delta(self, numbers: SelectionNumbers, epsilon: Numbers) -> Numbers:
        own, flip = numbers
        xp = namespace(own, epsilon)
        gap = xp.minimum(epsilon - own, 0.0)
        if flip:
            return LAPLACE.delta(LaplaceNumbers(own), epsilon)
        safe = xp.where(own > 0, own, 1.0)
        value = xp.expm1(gap / 2) ** 2 / -xp.expm1(-safe)
        return xp.where(own > 0, value, 0.0)

    def divergence(self, numbers: SelectionNumbers, orders: Numbers) -> Numbers:
        epsilon, flip = numbers
        xp = namespace(epsilon, orders)
        k = orders - 1
        if flip:
            return LAPLACE.divergence(LaplaceNumbers(epsilon), orders)
        quadratic = orders * epsilon * epsilon / 8  # Cesar and Rogers 2021, Lemma 3.2
        safe = xp.clip(epsilon, 1e-6, 500.0)
        share = xp.expm1(-k * safe) / xp.expm1(-safe)
        a, b = xp.exp(-k * safe) + share, share * xp.exp(-safe)
        # the best e^t, within what the range allows
        z = xp.clip(k * a / (orders * b), 1.0, xp.exp(safe))
        value = xp.log(z) + xp.log(a - b * z) / k
        value = xp.where(
            (epsilon > 1e-3) & (epsilon < 500), value * (1 + 1e-9) + 1e-14 / k, epsilon
        )
        return xp.minimum(xp.minimum(value, quadratic), epsilon)


RESPONSE, SELECTION = ResponseRelease(), SelectionRelease()
