"""The pair N(0, 1) against N(μ, 1): its δ, its ε and the μ of both, as cores.

With φ the normal density, m(x) = Φ(−x)/φ(x) the Mills ratio, x₁ = ε/μ − μ/2 and x₂ = x₁ + μ:
δ = φ(x₁)·D with D = m(x₁) − m(x₂), because e^ε φ(x₂) = φ(x₁) (Balle and Wang 2018, Theorem 8).
Hence ∂log δ/∂μ = 1/D and ∂log δ/∂ε = −m(x₂)/D, without any cancellation.

Pure functions of float64 arrays of one shape. What is not a number, or out of range, is no privacy.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Array

from dpjax._numerics.arrays import falling_root, namespace, with_derivative
from dpjax._numerics.quadrature import gauss_legendre

_NODES, _WEIGHTS = gauss_legendre(8)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_SQRT_2, _SQRT_HALF_PI = math.sqrt(2), math.sqrt(math.pi / 2)
_FRACTION_FROM = 5.0  # from here twenty terms of the continued fraction are exact to 1e-13
_LARGEST_SQUARED = 1e150  # squares of what is larger overflow


def _mills(x: Array) -> tuple[Array, Array]:
    """m(x) and −m'(x) = 1 − x·m(x), for x >= −1, to about 1e-13 relative.

    Own code because jax's `log_ndtr` is off by 2e-11 at x = −20 and its `erfcx` is 0 at x = 26.6.
    """
    xp = namespace(x)
    near = xp.minimum(x, _FRACTION_FROM)
    direct = xp.exp(near * near / 2) * xp.erfc(near / _SQRT_2) * _SQRT_HALF_PI
    far = xp.maximum(x, _FRACTION_FROM)
    tail = far
    for k in range(20, 1, -1):
        tail = far + k / tail
    fraction = 1 / (far + 1 / tail)  # all terms positive: nothing cancels
    use_near = x < _FRACTION_FROM
    return (
        xp.where(use_near, direct, fraction),
        xp.where(use_near, 1 - near * direct, fraction / tail),
    )


def parts(mu: Array, epsilon: Array) -> tuple[Array, Array, Array]:
    """log δ rounded up, ∂log δ/∂μ = 1/D and m(x₂), for ε >= 0 and 0 < μ < 1e150."""
    xp = namespace(mu, epsilon)
    x1, x2 = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    # For μ <= 1 the difference D is the integral of −m' > 0 over [x₁, x₂], by Gauss's rule.
    narrow = mu <= 1.0
    width = xp.where(narrow, mu, 1.0)
    nodes = xp.where(narrow, x1, 0.0)[..., None] + width[..., None] * _NODES
    ends = (xp.maximum(x1, 0.0)[..., None], x2[..., None])
    ratio, slope = _mills(xp.concatenate([nodes, *ends], axis=-1))
    last = ratio[..., -1]
    gap = xp.where(narrow, width * xp.sum(slope[..., :-2] * _WEIGHTS, -1), ratio[..., -2] - last)
    # Far to the left δ = Φ(−x₁) − φ(x₁)m(x₂), both terms of ordinary size.
    log_density = -x1 * x1 / 2 - _HALF_LOG_2PI
    left = ~narrow & (x1 < 0)
    density = xp.exp(log_density)
    inside = xp.where(left, 0.5 * xp.erfc(xp.where(left, x1, 0.0) / _SQRT_2) - density * last, 1.0)
    value = xp.where(left, xp.log(inside), log_density + xp.log(gap))
    slack = 5e-13 + 1e-15 * x2 * (xp.abs(x1) + 2)  # rounding of x₁, amplified by d log δ/dx₁
    return xp.minimum(value + slack, 0.0), xp.where(left, density / inside, 1 / gap), last


@with_derivative
def _log_delta(mu: Array, epsilon: Array) -> Array:
    return parts(mu, epsilon)[0]


@_log_delta.defjvp
def _log_delta_jvp(primals: tuple, tangents: tuple) -> tuple:
    value, by_mu, ratio = parts(*primals)
    return value, by_mu * (tangents[0] - ratio * tangents[1])


def pair_log_delta(mu: Array, epsilon: Array) -> Array:
    """log δ(ε), rounded up by about 1e-12; any real ε; −inf where μ = 0 and ε >= 0."""
    xp = namespace(mu, epsilon)
    mu, epsilon = xp.broadcast_arrays(xp.asarray(mu), xp.asarray(epsilon))
    forward = epsilon >= 0
    size = xp.where(forward, epsilon, -epsilon)
    known = (mu > 0) & (mu < _LARGEST_SQUARED)
    safe_mu = xp.where(known, mu, 1.0)
    # Beyond 1e100 standard deviations the density underflows even as a logarithm's square.
    far = ~(size / safe_mu < 1e100)
    value = xp.where(far, -0.5e200, _log_delta(safe_mu, xp.where(far, 0.0, size)))
    value = xp.where(known, value, xp.where(mu == 0, -xp.inf, 0.0))
    # δ(−ε) = 1 − e^{−ε}(1 − δ(ε)), from exchanging the two distributions.
    back = xp.where(forward, 1.0, size)
    other = -xp.expm1(-back) + xp.exp(xp.where(forward, 0.0, value) - back)
    value = xp.where(forward, value, xp.minimum(xp.log(other) + 1e-15, 0.0))
    return xp.where((mu >= 0) & (epsilon == epsilon), value, 0.0)


def pair_delta(mu: Array, epsilon: Array) -> Array:
    """δ(ε), rounded up; where it underflows it is the smallest normal float."""
    xp = namespace(mu, epsilon)
    value = pair_log_delta(mu, epsilon)
    tiny = np.finfo(np.float64).tiny
    some = value > math.log(tiny)
    small = xp.where(value > -xp.inf, tiny, 0.0)
    return xp.where(some, xp.exp(xp.where(some, value, 0.0)), small)


def delta_slope(mu: Array, epsilon: Array) -> Array:
    """∂δ/∂ε = −e^ε Φ(−x₂) = −φ(x₁)m(x₂), for any real ε and finite μ."""
    xp = namespace(mu, epsilon)
    some = mu > 0
    ratio = epsilon / xp.where(some, mu, 1.0)
    x1, x2 = ratio - mu / 2, ratio + mu / 2
    right = x2 > 0
    near = xp.exp(-x1 * x1 / 2 - _HALF_LOG_2PI) * _mills(xp.where(right, x2, 0.0))[0]
    far = xp.exp(xp.minimum(epsilon, 0.0)) * normal_cdf(-xp.minimum(x2, 0.0))
    still = xp.where(epsilon < 0, -xp.exp(xp.minimum(epsilon, 0.0)), 0.0)
    return xp.where(some, -xp.where(right, near, far), still)


@with_derivative
def _epsilon(mu: Array, log_target: Array) -> Array:
    """Root in ε of log δ, which is concave and falls (an integral of a log-concave function)."""
    xp = namespace(mu, log_target)
    # δ <= Φ(−x₁), which is 1/2 at x₁ = 0 and at most e^{−x₁²/2}/2 beyond: a private upper end.
    most = xp.sqrt(xp.maximum(-2 * (log_target + math.log(2)), 0.0))
    x = most
    for _ in range(3):  # m(x) is about 1/(x + 0.8), and D about μ/((x + .8)(x + μ + .8))
        logs = log_target + _HALF_LOG_2PI + xp.log((x + 0.8) * (x + mu + 0.8) / mu)
        x = xp.minimum(xp.sqrt(xp.maximum(-2 * logs, 0.0)), most)
    half = mu * mu / 2

    def function(epsilon: Array) -> tuple[Array, Array]:
        value, by_mu, ratio = parts(mu, epsilon)
        return value - log_target, -by_mu * ratio

    # δ(0) = 2Φ(μ/2) − 1: may be small enough.
    nothing = xp.erf(mu / math.sqrt(8)) * (1 + 1e-12) <= xp.exp(log_target)
    high = xp.where(nothing, 0.0, half + mu * most)
    tolerance = 1e-13 + 1e-15 * (most + mu) * (most + 2)
    start = xp.minimum(half + mu * x, high)
    return falling_root(function, start, xp.zeros_like(high), high, tolerance=tolerance)


@_epsilon.defjvp
def _epsilon_jvp(primals: tuple, tangents: tuple) -> tuple:
    xp = namespace(*primals)
    root = _epsilon(*primals)
    _, by_mu, ratio = parts(primals[0], root)
    moved = (tangents[0] - tangents[1] / by_mu) / ratio
    return root, xp.where(root > 0, moved, 0.0)


def pair_epsilon(mu: Array, delta: Array) -> Array:
    """Least ε >= 0 with δ(ε) <= δ, rounded up; +inf where nothing can be said."""
    xp = namespace(mu, delta)
    mu, delta = xp.broadcast_arrays(xp.asarray(mu), xp.asarray(delta))
    usable = (mu > 0) & (mu < _LARGEST_SQUARED) & (delta > 0) & (delta < 1)
    root = _epsilon(xp.where(usable, mu, 1.0), xp.log(xp.where(usable, delta, 0.5)))
    nothing = ((mu == 0) & (delta >= 0)) | ((mu >= 0) & (delta >= 1))
    return xp.where(usable, root, xp.where(nothing, 0.0, xp.inf))


@with_derivative
def _mu(epsilon: Array, log_target: Array) -> Array:
    """Root in log σ, σ = 1/μ, of log δ, which is concave in it and falls."""
    xp = namespace(epsilon, log_target)
    # Both are private: δ(ε) <= e^{−x₁²/2}/2 for x₁ >= 0, and δ(ε) <= δ(0) <= μ/√(2π).
    square = xp.maximum(-2 * (log_target + math.log(2)), 0.0)
    chernoff = 2 * epsilon / (xp.sqrt(2 * epsilon + square) + xp.sqrt(square) + 1e-300)
    least = xp.maximum(chernoff, math.sqrt(2 * math.pi) * xp.exp(log_target)) * (1 - 1e-9)
    high = -xp.log(least)
    x, start = xp.sqrt(square), high
    for _ in range(3):
        mu = xp.exp(-start)
        logs = log_target + _HALF_LOG_2PI + xp.log((x + 0.8) * (x + mu + 0.8) / mu)
        x = xp.sqrt(xp.maximum(-2 * logs, 0.0))
        larger = 2 * epsilon / (xp.sqrt(2 * epsilon + x * x) + x + 1e-300)
        start = -xp.log(xp.maximum(larger, least))

    def function(log_sigma: Array) -> tuple[Array, Array]:
        mu = xp.exp(-log_sigma)
        value, by_mu, _ = parts(mu, epsilon)
        return value - log_target, -by_mu * mu

    low = xp.full_like(high, -math.log(_LARGEST_SQUARED))
    tolerance = 1e-13 + 1e-15 * (x + mu) * (x + 2)
    return xp.exp(-falling_root(function, start, low, high, tolerance=tolerance))


@_mu.defjvp
def _mu_jvp(primals: tuple, tangents: tuple) -> tuple:
    root = _mu(*primals)
    _, by_mu, ratio = parts(root, primals[0])
    return root, ratio * tangents[0] + tangents[1] / by_mu


def pair_mu(epsilon: Array, delta: Array) -> Array:
    """Largest μ with δ(ε) <= δ, rounded down; 0 where no noise is enough."""
    xp = namespace(epsilon, delta)
    epsilon, delta = xp.broadcast_arrays(xp.asarray(epsilon), xp.asarray(delta))
    usable = (epsilon >= 0) & (epsilon < 1e290) & (delta > 0) & (delta < 1)
    root = _mu(xp.where(usable, epsilon, 1.0), xp.log(xp.where(usable, delta, 0.5)))
    any_noise = ((epsilon >= 0) & (delta >= 1)) | ((epsilon >= 1e290) & (delta > 0))
    return xp.where(usable, root, xp.where(any_noise, xp.inf, 0.0))


def normal_cdf(x: Array) -> Array:
    """Φ(x), to a few units in the last place of either tail."""
    return 0.5 * namespace(x).erfc(-x / _SQRT_2)


def pair_tradeoff(mu: Array, rate: Array) -> Array:
    """Φ(Φ⁻¹(1 − a) − μ), the least false-negative rate at a false-positive rate, rounded down."""
    xp = namespace(mu, rate)
    known = (rate > 0) & (rate < 1) & (mu >= 0) & (mu < xp.inf)
    # −Φ⁻¹(a) rather than Φ⁻¹(1 − a): the interesting rates are small. The ends are limits.
    shift = -xp.ndtri(xp.where(known, rate, 0.5)) - xp.where(known, mu, 0.0)
    value = normal_cdf(shift) * (1 - 1e-12)
    return xp.where(known, value, xp.where((rate == 0) & (mu >= 0) & (mu < xp.inf), 1.0, 0.0))
