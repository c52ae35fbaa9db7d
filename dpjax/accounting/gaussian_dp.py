"""Gaussian differential privacy: the privacy of telling N(0, 1) from N(μ, 1).

A mechanism is μ-GDP when distinguishing two neighbouring inputs from its output is at least as
hard as distinguishing N(0, 1) from N(μ, 1) (Dong, Roth and Su 2022). One Gaussian release of
sensitivity Δ and standard deviation s is exactly μ = Δ/s; k of them are exactly μ = √(Σ μᵢ²).

Arguments broadcast against each other and every function works under jit, vmap and grad; it is
evaluated in float64 whatever the caller's default. Every δ and ε is rounded up, every trade-off
curve and every calibrated μ down.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics import float64
from dpjax._numerics.scope import plain_rules

Values = Float[ArrayLike, "..."]
Releases = Float[ArrayLike, "... releases"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)
_FRACTION_FROM = 5.0  # from here twenty terms of the continued fraction are exact to 1e-13
_BISECTIONS = 70


def _in_float64(rounding: float64.Rounding, ndims: int = 0):
    """Run a pure function in float64: as it is in a float64 program, by `evaluate` elsewhere."""

    def wrap(function):
        @functools.wraps(function)
        def call(*args, **named):
            if named:  # by position, so that `evaluate` sees every argument
                names = function.__code__.co_varnames[len(args) : function.__code__.co_argcount]
                args = (*args, *(named.pop(name) for name in names if name in named))
                if named:
                    raise TypeError(f"{function.__name__}() has no argument {next(iter(named))!r}")
            if jax.config.jax_enable_x64 and float64.is_traced(*args):  # pyrefly: ignore
                with plain_rules():
                    return function(*args)
            return float64.plain(
                float64.evaluate(function, args, (ndims,) * len(args), batch=512, rounding=rounding)
            )

        return call

    return wrap


def _mills(x: Array) -> tuple[Array, Array]:
    """m(x) = Φ(−x)/φ(x) and 1 − x·m(x), for x ≥ −1, to about 1e-13 relative.

    Own code because jax's `log_ndtr` is off by 2e-11 at x = −20 and its `erfcx` is 0 at x = 26.6.
    """
    use_near = x < _FRACTION_FROM
    near = jnp.where(use_near, x, _FRACTION_FROM)
    direct = jnp.exp(near * near / 2) * jax.lax.erfc(near / np.sqrt(2)) * np.sqrt(np.pi / 2)
    far = jnp.where(use_near, _FRACTION_FROM, x)
    tail = far
    for k in range(20, 1, -1):
        tail = far + k / tail
    tail = 1 / tail  # all terms positive: nothing cancels
    fraction = 1 / (far + tail)
    return (
        jnp.where(use_near, direct, fraction),
        jnp.where(use_near, 1 - near * direct, tail * fraction),
    )


def _log_delta(mu: Array, epsilon: Array) -> Array:
    """log δ_G(μ, ε) for ε ≥ 0 and μ > 0, rounded up.

    With m the Mills ratio, x₁ = ε/μ − μ/2 and x₂ = x₁ + μ: δ = φ(x₁)(m(x₁) − m(x₂)), because
    e^ε φ(x₂) = φ(x₁). For μ ≤ 1 the difference is the integral of −m'(x) = 1 − x·m(x) > 0.
    """
    x1 = epsilon / mu - mu / 2
    x2 = epsilon / mu + mu / 2
    log_density = -x1 * x1 / 2 - _HALF_LOG_2PI

    # `where` rather than `minimum`, which would halve derivatives at the ties.
    small = jnp.where(mu <= 1.0, mu, 1.0)
    large = jnp.where(mu > 1.0, mu, 1.0)
    start = epsilon / small - small / 2
    positive = jnp.where(x1 > 0, x1, 0.0)
    negative = jnp.where(x1 > 0, 0.0, x1)
    across = jnp.maximum(negative + large, 0.5)
    # All the points at once: one small program to compile instead of eleven.
    points = start[..., None] + small[..., None] * ((_NODES + 1) / 2)
    others = jnp.stack([positive, positive + large, across], axis=-1)
    ratio, slope = _mills(jnp.concatenate([points, others], axis=-1))

    total = jnp.sum(slope[..., :-3] * (_WEIGHTS / 2), axis=-1)
    log_small = log_density + jnp.log(small) + jnp.log(total)
    log_far = log_density + jnp.log(ratio[..., -3] - ratio[..., -2])
    inside = ndtr(-negative) - jnp.exp(-negative * negative / 2 - _HALF_LOG_2PI) * ratio[..., -1]
    log_large = jnp.where(x1 > 0, log_far, jnp.log(inside))

    value = jnp.where(mu <= 1.0, log_small, log_large)
    slack = 5e-13 + 1e-15 * x2 * (jnp.abs(x1) + 2)  # rounding of x₁, amplified by d log δ/dx₁
    return jnp.minimum(value + slack, 0.0)


@_in_float64("up")
def log_delta(mu: Values, epsilon: Values) -> Array:
    """Logarithm of the privacy profile of μ-GDP, for values of δ below the smallest float.

    log δ_G(μ, ε) with δ_G(μ, ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).

    Args:
      mu: GDP parameter, at least 0; +inf means no privacy.
      epsilon: any real ε; at least 0 in ordinary use.

    Returns:
      log δ, rounded up by about 1e-12; −inf where μ = 0 and ε ≥ 0.

    Example:
      >>> from dpjax.accounting import gaussian_dp
      >>> print(f"{gaussian_dp.log_delta(0.1, 10.0):.6f}")
      -5007.433414

    References:
      Dong, Roth, Su 2022, Corollary 1; Balle, Wang 2018, Theorem 8.
    """
    mu, epsilon = jnp.broadcast_arrays(jnp.asarray(mu, float), jnp.asarray(epsilon, float))
    safe_mu = jnp.where((mu > 0) & (mu < 1e150), mu, 1.0)
    size = jnp.abs(epsilon)
    # Beyond 1e100 standard deviations the density underflows even as a logarithm's square.
    safe_size = jnp.where(size / safe_mu < 1e100, size, 0.0)
    positive = jnp.where(
        size / safe_mu < 1e100, _log_delta(safe_mu, safe_size), -0.5 * 1e200 + 0 * safe_mu
    )
    # δ(−ε) = 1 − e^{−ε}(1 − δ(ε)), from exchanging the two distributions.
    below = jnp.log(-jnp.expm1(-size) + jnp.exp(positive - size))
    value = jnp.where(epsilon >= 0, positive, jnp.minimum(below + 1e-15, 0.0))
    at_zero = jnp.where(epsilon >= 0, -jnp.inf, jnp.log(-jnp.expm1(-jnp.maximum(size, 1e-300))))
    value = jnp.where(mu > 0, value, at_zero)
    value = jnp.where(mu < 1e150, value, 0.0)
    return jnp.where(jnp.isnan(mu) | jnp.isnan(epsilon), 0.0, value)


@_in_float64("up")
def delta(mu: Values, epsilon: Values) -> Array:
    """Privacy profile of μ-GDP: the smallest δ for which μ-GDP implies (ε, δ).

    δ_G(μ, ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).

    Args:
      mu: GDP parameter, at least 0; +inf means no privacy.
      epsilon: any real ε.

    Returns:
      δ in [0, 1], rounded up by about one part in 1e12. Where it underflows it is the smallest
      normal float, not 0.

    Example:
      >>> from dpjax.accounting import gaussian_dp
      >>> print(f"{gaussian_dp.delta(1.0, 1.0):.10f}")
      0.1269367375

    References:
      Balle, Wang 2018, Theorem 8.
    """
    value = jnp.exp(log_delta(mu, epsilon))
    positive = jnp.asarray(mu, float) + jnp.zeros_like(value) > 0
    return jnp.where(positive, jnp.clip(value, jnp.finfo(value.dtype).tiny, 1.0), value)


def _bisect(too_small, low: Array, high: Array) -> tuple[Array, Array]:
    """Halve [low, high] while keeping too_small(low) and not too_small(high)."""

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        below = too_small(middle)
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    return jax.lax.fori_loop(0, _BISECTIONS, halve, (low, high))


@jax.custom_jvp
def _epsilon_root(mu: Array, log_target: Array) -> Array:
    # δ_G ≤ Φ(−x₁) ≤ e^{−x₁²/2}/2, so that this upper end is always private enough.
    high = mu * mu / 2 + mu * jnp.sqrt(jnp.maximum(-2 * log_target, 0.0))
    _, high = _bisect(lambda e: _log_delta(mu, e) > log_target, jnp.zeros_like(high), high)
    return jnp.where(_log_delta(mu, jnp.zeros_like(mu)) <= log_target, 0.0, high)


@_epsilon_root.defjvp
def _epsilon_root_jvp(primals, tangents):
    (mu, log_target), (mu_dot, target_dot) = primals, tangents
    root = _epsilon_root(mu, log_target)
    one = jnp.ones_like(mu)
    _, by_mu = jax.jvp(lambda m: _log_delta(m, root), (mu,), (one,))
    _, by_epsilon = jax.jvp(lambda e: _log_delta(mu, e), (root,), (one,))
    slope = jnp.where(root > 0, 1 / jnp.where(by_epsilon < 0, by_epsilon, -1.0), 0.0)
    return root, slope * (target_dot - by_mu * mu_dot)


@_in_float64("up")
def epsilon(mu: Values, delta: Values) -> Array:
    """Smallest ε ≥ 0 for which μ-GDP implies (ε, δ), rounded up.

    The root of δ_G(μ, ε) = δ in [0, μ²/2 + μ√(2 log(1/δ))] by bisection; its derivative is exact,
    by the implicit function theorem.

    Args:
      mu: GDP parameter, at least 0; +inf means no privacy.
      delta: target δ; at 0 only μ = 0 has a finite answer, at 1 the answer is 0.

    Returns:
      ε, at least 0; +inf where nothing can be said.

    Example:
      >>> from dpjax.accounting import gaussian_dp
      >>> print(f"{gaussian_dp.epsilon(1.0, 1e-5):.10f}")
      4.3771780957

    References:
      Balle, Wang 2018, Theorem 8.
    """
    mu, delta = jnp.broadcast_arrays(jnp.asarray(mu, float), jnp.asarray(delta, float))
    usable = (mu > 0) & (mu < 1e150) & (delta > 0) & (delta < 1)
    root = _epsilon_root(jnp.where(usable, mu, 1.0), jnp.log(jnp.where(usable, delta, 0.5)))
    trivial = (mu == 0) | (delta >= 1)
    return jnp.where(usable, root, jnp.where(trivial & ~jnp.isnan(mu), 0.0, jnp.inf))


@jax.custom_jvp
def _mu_root(epsilon: Array, log_target: Array) -> Array:
    # Both are private enough: δ_G(μ, ε) ≤ e^{−x₁²/2}/2 and δ_G(μ, ε) ≤ δ_G(μ, 0) ≤ μ/√(2π).
    root = jnp.sqrt(-2 * log_target)
    chernoff = 2 * epsilon / (jnp.sqrt(2 * epsilon - 2 * log_target) + root)
    low = jnp.maximum(chernoff, np.sqrt(2 * np.pi) * jnp.exp(log_target) * (1 - 1e-9)) * (1 - 1e-9)

    def grow(state):
        low, high = state
        over = _log_delta(high, epsilon) > log_target
        return jnp.where(over, low, high), jnp.where(over, high, 2 * high)

    def growing(state):
        return jnp.any(_log_delta(state[1], epsilon) <= log_target)

    low, high = jax.lax.while_loop(growing, grow, (low, 2 * low + 1e-300))
    low, _ = _bisect(lambda m: _log_delta(m, epsilon) <= log_target, low, high)
    return low


@_mu_root.defjvp
def _mu_root_jvp(primals, tangents):
    (eps, log_target), (eps_dot, target_dot) = primals, tangents
    root = _mu_root(eps, log_target)
    one = jnp.ones_like(root)
    _, by_mu = jax.jvp(lambda m: _log_delta(m, eps), (root,), (one,))
    _, by_epsilon = jax.jvp(lambda e: _log_delta(root, e), (eps,), (one,))
    return root, (target_dot - by_epsilon * eps_dot) / by_mu


@_in_float64("down")
def mu(epsilon: Values, delta: Values) -> Array:
    """Largest μ for which μ-GDP implies (ε, δ), rounded down.

    The root of δ_G(μ, ε) = δ. A Gaussian release of sensitivity Δ is (ε, δ)-private exactly when
    its standard deviation is at least Δ/μ(ε, δ): rounding μ down never overshoots the budget.

    Args:
      epsilon: target ε, at least 0.
      delta: target δ in [0, 1].

    Returns:
      μ ≥ 0; 0 where no noise is enough (δ = 0), +inf where any is (δ ≥ 1).

    Example:
      >>> from dpjax.accounting import gaussian_dp
      >>> print(f"{1 / gaussian_dp.mu(1.0, 1e-5):.10f}")
      3.7306316348

    References:
      Balle, Wang 2018, Algorithm 1 (the analytic Gaussian mechanism).
    """
    epsilon, delta = jnp.broadcast_arrays(jnp.asarray(epsilon, float), jnp.asarray(delta, float))
    usable = (epsilon >= 0) & (epsilon < 1e290) & (delta > 0) & (delta < 1)
    root = _mu_root(jnp.where(usable, epsilon, 1.0), jnp.log(jnp.where(usable, delta, 0.5)))
    trivial = (delta >= 1) | ((epsilon >= 1e290) & (delta > 0))
    return jnp.where(usable, root, jnp.where(trivial, jnp.inf, 0.0))


@_in_float64("up", ndims=1)
def compose(mus: Releases) -> Array:
    """GDP parameter of an adaptive composition, over the last axis: √(Σ μᵢ²). Exact.

    Args:
      mus: GDP parameters of the releases, on the last axis.

    Example:
      >>> from dpjax.accounting import gaussian_dp
      >>> gaussian_dp.compose([3.0, 4.0])
      5.0

    References:
      Dong, Roth, Su 2022, Corollary 2.
    """
    mus = jnp.asarray(mus, float)
    scale = jnp.max(mus, axis=-1)
    safe = jnp.where((scale > 0) & jnp.isfinite(scale), scale, 1.0)
    return jnp.where(
        (scale > 0) & jnp.isfinite(scale),
        safe * jnp.sqrt(jnp.sum((mus / safe[..., None]) ** 2, axis=-1)),
        scale,
    )


@_in_float64("up")
def rdp(mu: Values, orders: Values) -> Array:
    """Rényi divergence of order α of μ-GDP: α μ²/2.

    Args:
      mu: GDP parameter.
      orders: Rényi orders above 1, broadcast against mu.

    Example:
      >>> from dpjax.accounting import gaussian_dp
      >>> gaussian_dp.rdp(2.0, 3.0)
      6.0

    References:
      Mironov 2017, Corollary 3; Dong, Roth, Su 2022, Corollary B.6.
    """
    return jnp.asarray(orders, float) * jnp.square(jnp.asarray(mu, float)) / 2


@_in_float64("down")
def tradeoff(mu: Values, false_positive_rate: Values) -> Array:
    """Trade-off curve of μ-GDP: the least false-negative rate at a false-positive rate.

    G_μ(a) = Φ(Φ⁻¹(1 − a) − μ): no attack that accuses the innocent with probability a misses the
    guilty less often than this.

    Args:
      mu: GDP parameter.
      false_positive_rate: a in [0, 1].

    Returns:
      A lower bound in [0, 1], rounded down.

    Example:
      >>> from dpjax.accounting import gaussian_dp
      >>> print(f"{gaussian_dp.tradeoff(1.0, 0.05):.6f}")
      0.740489

    References:
      Dong, Roth, Su 2022, Definition 2.6.
    """
    a = jnp.asarray(false_positive_rate, float)
    mu = jnp.asarray(mu, float)
    # −Φ⁻¹(a) rather than Φ⁻¹(1 − a): the interesting rates are small. The ends are limits.
    quantile = -ndtri(jnp.clip(a, 1e-300, 1.0))
    value = jnp.where(jnp.isfinite(mu), ndtr(quantile - mu), 0.0)
    value = jnp.where(a <= 0, jnp.where(jnp.isfinite(mu), 1.0, 0.0), value)
    return jnp.clip(value * (1 - 1e-12), 0.0, 1.0)


@_in_float64("up")
def true_positive_rate(mu: Values, false_positive_rate: Values) -> Array:
    """Most a membership attack can catch at a false-positive rate: Φ(Φ⁻¹(a) + μ), rounded up.

    Args:
      mu: GDP parameter.
      false_positive_rate: a in [0, 1].

    Example:
      >>> from dpjax.accounting import gaussian_dp
      >>> print(f"{gaussian_dp.true_positive_rate(1.0, 1e-3):.6f}")
      0.018298

    References:
      Dong, Roth, Su 2022, Definition 2.6.
    """
    a = jnp.asarray(false_positive_rate, float)
    mu = jnp.asarray(mu, float)
    value = jnp.where(jnp.isfinite(mu), ndtr(ndtri(jnp.clip(a, 1e-300, 1.0)) + mu), 1.0)
    value = jnp.where((a <= 0) & jnp.isfinite(mu), 0.0, value)
    return jnp.clip(value * (1 + 1e-12), 0.0, 1.0)


@_in_float64("up")
def advantage(mu: Values) -> Array:
    """Largest membership advantage (true minus false-positive rate) under μ-GDP, rounded up.

    The total variation distance 2Φ(μ/2) − 1.

    Args:
      mu: GDP parameter.

    Example:
      >>> from dpjax.accounting import gaussian_dp
      >>> print(f"{gaussian_dp.advantage(1.0):.6f}")
      0.382925

    References:
      Dong, Roth, Su 2022, Proposition 2.12 at ε = 0.
    """
    value = jax.lax.erf(jnp.asarray(mu, float) / np.sqrt(8))
    return jnp.minimum(value * (1 + 1e-12), 1.0)


@_in_float64("down")
def approximate_tradeoff(
    epsilon: Values,
    delta: Values,
    false_positive_rate: Values,
) -> Array:
    """Trade-off curve of (ε, δ)-differential privacy, rounded down.

    f(a) = max(0, 1 − δ − e^ε a, e^{−ε}(1 − δ − a)): what an attacker is bound by when all that is
    known is one point (ε, δ).

    Args:
      epsilon: ε ≥ 0.
      delta: δ in [0, 1].
      false_positive_rate: a in [0, 1].

    Example:
      >>> from dpjax.accounting import gaussian_dp
      >>> round(gaussian_dp.approximate_tradeoff(1.0, 0.0, 0.1), 4)
      0.7282

    References:
      Wasserman, Zhou 2010; Dong, Roth, Su 2022, Equation 5.
    """
    a = jnp.asarray(false_positive_rate, float)
    epsilon, delta = jnp.asarray(epsilon, float), jnp.asarray(delta, float)
    steep = jnp.where(a > 0, 1 - delta - jnp.exp(epsilon) * a, 1 - delta)
    flat = jnp.exp(-epsilon) * (1 - delta - a)
    return jnp.clip(jnp.maximum(steep, flat) * (1 - 1e-12), 0.0, 1.0)
