"""Noise uniform in a ball (Tholeti and Kalyani 2021): a mechanism all of whose privacy is in δ.

Two shifted uniform balls overlap, with density ratio one, or do not: hence δ(ε) is the same total
variation distance at every ε >= 0, after sampling and after composition too. With δ_t per step
the total is exactly 1 − Π(1 − δ_t) for the worst pair. An analysis tool: a useful δ needs a radius
that drowns the signal (`ball_displacement` says which), where Gaussian noise of a small fraction
of it gives the same δ and a finite ε.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics import float64
from dpjax._numerics.logarithm import log1p
from dpjax.accounting import queries
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.lowering import flatten, lowers, prepare
from dpjax.accounting.mechanisms import (
    Composed,
    FixedBatchSampled,
    Mechanism,
    PoissonSampled,
    Repeated,
    Shuffled,
    UniformBall,
)
from dpjax.accounting.queries import register_method

Values = Float[ArrayLike, "..."]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)
_ROUND_UP = 1 + 1e-11  # the quadrature agrees with mpmath to 1e-13
# Γ(x + 1/2)/Γ(x) = √x Σ a_k x^−k.
_GAMMA_RATIO = (1, -1 / 8, 1 / 128, 5 / 1024, -21 / 32768, -399 / 262144, 869 / 4194304)


def _ball_delta(displacement: Array, dimension: Array) -> Array:
    """I_{Δ²/4}(1/2, (d+1)/2), which is 2κ_d ∫₀^{arcsin(Δ/2)} cos^d φ dφ, rounded up.

    By quadrature, because `betainc` is off by 1e-6 at d = 1e9: it subtracts logarithms of
    factorials.
    """
    x = (dimension + 1.0) / 2
    large = jnp.maximum(x, 20.0)
    series = jnp.sqrt(large) * jnp.polyval(jnp.asarray(_GAMMA_RATIO[::-1]), 1 / large)
    small = jnp.exp(gammaln(jnp.minimum(x, 20.0) + 0.5) - gammaln(jnp.minimum(x, 20.0)))
    constant = jnp.where(x > 20.0, series, small) / np.sqrt(np.pi)
    # cos^d φ <= exp(−dφ²/2): what lies beyond nine standard deviations is below the rounding.
    angle = jnp.minimum(jnp.arcsin(jnp.clip(displacement / 2, 0.0, 1.0)), 9.0 / jnp.sqrt(dimension))
    total = 0.0
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        sine = jnp.sin(angle * (node + 1) / 2)
        total = total + weight * jnp.exp(dimension / 2 * log1p(-sine * sine))
    value = jnp.minimum(constant * angle * total * _ROUND_UP, 1.0)
    return jnp.where(displacement >= 2.0, 1.0, value)


def ball_delta(displacement: Values, dimension: Values) -> Any:
    """δ of one release with noise uniform in a ball, at every ε >= 0.

    The total variation distance of two uniform unit balls whose centres are Δ apart in d
    dimensions, I_{Δ²/4}(1/2, (d+1)/2) for Δ <= 2 and 1 beyond; about 2Φ(Δ√(d+2)/2) − 1 for large d.

    Args:
      displacement: Δ >= 0, the L2 sensitivity over the ball's radius.
      dimension: d >= 1 of the released vector.

    Returns:
      δ in [0, 1], rounded up by one part in 1e11.

    Example:
      >>> from dpjax.accounting.bounded_noise import ball_delta
      >>> print(f"{ball_delta(0.1, 10):.10f}")
      0.1288611973

    References:
      Tholeti and Kalyani 2021, Theorem 1; re-derived, since the printed formula cancels.
    """
    return float64.plain(
        float64.evaluate(_ball_delta, (displacement, dimension), (0, 0), batch=512, rounding="up")
    )


def _displacement(delta: Array, dimension: Array) -> Array:
    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        over = _ball_delta(middle, dimension) > delta
        return jnp.where(over, low, middle), jnp.where(over, middle, high)

    # δ <= κ_d Δ with κ_d <= √((d+1)/2π), so that this lower end is private enough.
    low = delta * np.sqrt(2 * np.pi) / jnp.sqrt(dimension + 1.0) * (1 - 1e-9)
    high = jnp.full_like(low, 2.0)
    low, _ = jax.lax.fori_loop(0, 110, halve, (jnp.minimum(low, 2.0), high))
    return jnp.where(delta > 0, low, 0.0)


def ball_displacement(delta: Values, dimension: Values) -> Any:
    """Largest sensitivity-to-radius ratio whose single release costs at most δ, rounded down.

    Its inverse is the radius needed, in units of the sensitivity. It inverts `ball_delta`.

    Args:
      delta: δ in [0, 1] of one release.
      dimension: d >= 1.

    Example:
      >>> from dpjax.accounting.bounded_noise import ball_displacement
      >>> print(f"radius / sensitivity = {1 / ball_displacement(1e-5, 1000):.4g}")
      radius / sensitivity = 1.262e+06
    """
    return float64.plain(
        float64.evaluate(_displacement, (delta, dimension), (0, 0), batch=512, rounding="down")
    )


def compose_approximate(epsilon: float, delta: float, count: int, total_epsilon: Values) -> Any:
    """δ of `count` adaptive uses of an (ε, δ)-private mechanism at a total ε: exact in the worst
    case.

    1 − (1−δ)^k (1 − Σ_l C(k,l) (e^{(k−l)ε} − e^{ε_g + lε})₊ / (1+e^ε)^k); at ε = 0 it is 1 −
    (1−δ)^k.

    Args:
      epsilon, delta: the guarantee of one use.
      count: k >= 0 uses.
      total_epsilon: ε_g >= 0 of the composition.

    Returns:
      δ_g in [0, 1], rounded up.

    Example:
      >>> from dpjax.accounting.bounded_noise import compose_approximate
      >>> print(f"{compose_approximate(0.1, 1e-6, 50, 1.0):.8f}")
      0.03830116

    References:
      Kairouz, Oh and Viswanath 2017, Theorem 3.3.
    """
    if not (epsilon >= 0 and 0 <= delta <= 1 and count >= 0 and int(count) == count):
        raise ValueError(
            "compose_approximate needs epsilon >= 0, delta in [0, 1] and a whole count >= 0, "
            f"got {epsilon}, {delta}, {count}"
        )
    setting = np.asarray([epsilon, delta], np.float64)
    flips = np.arange(int(count) + 1, dtype=np.float64)
    return float64.plain(
        float64.evaluate(_kov, (setting, flips, total_epsilon), (1, 1, 0), rounding="up")
    )


def _kov(setting: Array, flips: Array, total_epsilon: Array) -> Array:
    epsilon, delta = setting[0], setting[1]
    count = flips[-1]
    ways = gammaln(count + 1) - gammaln(flips + 1) - gammaln(count - flips + 1)
    log_mass = ways + (count - flips) * epsilon - count * jnp.logaddexp(0.0, epsilon)
    gap = total_epsilon + (2 * flips - count) * epsilon  # log of the ratio that is subtracted
    inside = jnp.where(gap < 0, jnp.exp(log_mass) * -jnp.expm1(jnp.minimum(gap, 0.0)), 0.0)
    # The logarithms of factorials grow like k log k: so does what they may be off by.
    slack = 1 + 1e-12 + 1e-15 * count * jnp.log(count + 2)
    pure = jnp.sum(inside) * slack
    survive = jnp.exp(count * log1p(-delta)) * (1 - 1e-15)
    return jnp.clip(-jnp.expm1(count * log1p(-delta)) * slack + survive * pure, 0.0, 1.0)


# --- as a method --------------------------------------------------------------------------------


def _is_ball(step: Any) -> bool:
    if isinstance(step, PoissonSampled | FixedBatchSampled | Shuffled | Repeated):
        return _is_ball(step.mechanism)
    if isinstance(step, Composed):
        return bool(step.mechanisms) and all(map(_is_ball, step.mechanisms))
    return isinstance(step, UniformBall)


def _split(run: Mechanism) -> tuple[Composed, Composed]:
    """The run's ball releases and everything else."""
    ball, rest = [], []
    for step, factors in flatten(run):
        counted = step
        for factor in factors:
            counted = Repeated(counted, factor)
        (ball if _is_ball(step) else rest).append(counted)
    return Composed(tuple(ball)), Composed(tuple(rest))


def _log_survival(step: Any) -> Any:
    """log(1 − δ) of a ball release, array fields allowed."""
    if isinstance(step, UniformBall):
        return log1p(-_ball_delta(jnp.asarray(step.displacement), jnp.asarray(step.dimension)))
    inner = step.mechanisms if isinstance(step, Composed) else (step.mechanism,)
    total = sum(_log_survival(part) for part in inner)
    if isinstance(step, PoissonSampled):
        return log1p(step.rate * jnp.expm1(total))
    if isinstance(step, FixedBatchSampled):
        return log1p(step.batch_size / step.population * jnp.expm1(total))
    return total * step.steps if isinstance(step, Repeated) else total


def _supports(run: Mechanism, adjacency: Adjacency) -> bool:
    ball, rest = _split(run)
    if not ball.mechanisms or (_has_fixed(ball) and adjacency is not Adjacency.REPLACE_ONE):
        return False
    return not rest.mechanisms or lowers(rest, adjacency)


def _has_fixed(step: Any) -> bool:
    if isinstance(step, Composed):
        return any(map(_has_fixed, step.mechanisms))
    return isinstance(step, FixedBatchSampled) or _has_fixed(
        getattr(step, "mechanism", Composed(()))
    )


@functools.lru_cache(maxsize=64)
def _total_core(key: tuple) -> Any:
    def core(*leaves: Array) -> Array:
        total, position = jnp.zeros(()), 0
        for tree, width in key:
            *fields, factors = leaves[position : position + width + 1]
            position += width + 1
            count = jnp.prod(factors, axis=-1)
            lost = _log_survival(jax.tree.unflatten(tree, fields))
            total = total + jnp.sum(jnp.where(count > 0, count * lost, 0.0))
        return jnp.minimum(-jnp.expm1(total) * _ROUND_UP, 1.0)

    return core


def _total_delta(run: Mechanism) -> Any:
    """δ of all ball releases together, at every ε."""
    ready = prepare(run)
    return float64.evaluate(_total_core(ready.key), ready.leaves, ready.ndims, rounding="up")


def _epsilon(run: Mechanism, delta: Any, adjacency: Adjacency) -> Any:
    ball, rest = _split(run)
    spent = _total_delta(ball)
    traced = float64.is_traced(spent, delta)
    xp = jnp if traced else np
    enough = spent <= delta
    if rest.mechanisms:
        # The worst pair reveals everything with probability δ_ball and nothing otherwise.
        usable = spent < delta
        left = xp.where(usable, (delta - spent) / (1 - xp.where(usable, spent, 0.0)), 0.5)
        left = left * (1 - 1e-12)
        value = queries.epsilon(rest, left, adjacency=adjacency)
        return xp.where(usable, value, xp.inf)
    if not traced and not np.all(enough):
        warnings.warn(
            f"noise uniform in a ball spends δ = {np.max(spent):.3g} at every ε, above the target "
            f"{np.min(delta):.3g}: a larger ε buys nothing. Enlarge the radius (see "
            "bounded_noise.ball_displacement) or use Gaussian noise",
            stacklevel=5,
        )
    return xp.where(enough, 0.0, xp.inf)


def _delta(run: Mechanism, epsilon: Any, adjacency: Adjacency) -> Any:
    ball, rest = _split(run)
    spent = _total_delta(ball)
    traced = float64.is_traced(spent, epsilon)
    xp = jnp if traced else np
    if rest.mechanisms:
        other = queries.delta(rest, epsilon, adjacency=adjacency)
        return xp.minimum((spent + (1 - spent) * other) * (1 + 1e-15), 1.0)
    if not traced and np.any(np.asarray(epsilon) > 0):
        warnings.warn(
            "noise uniform in a ball has the same δ at every ε: ε > 0 buys nothing", stacklevel=5
        )
    return spent + 0 * xp.asarray(epsilon)


def _tradeoff(run: Mechanism, rates: Any, adjacency: Adjacency) -> Any:
    """(1 − δ) f(a/(1 − δ)): with probability δ the attacker is told, else all that is left is f."""
    ball, rest = _split(run)
    spent = _total_delta(ball)
    xp = jnp if float64.is_traced(spent, rates) else np
    kept = xp.maximum(1 - xp.asarray(spent)[..., None], 0.0)
    if not rest.mechanisms:
        return xp.clip(kept - rates, 0.0, 1.0)
    if np.ndim(kept) > 1:
        raise queries.UnsupportedQuery("trade-off curves of ball noise: one setting at a time")
    inner = xp.clip(rates / xp.maximum(kept, 1e-300), 0.0, 1.0)
    return kept * queries.tradeoff(rest, inner, adjacency=adjacency)


def _epsilon_lower(run: Mechanism, delta: Any, adjacency: Adjacency) -> Any:
    ball, _ = _split(run)
    spent = _total_delta(ball)
    xp = jnp if float64.is_traced(spent, delta) else np
    return xp.where(spent * (1 - 1e-10) > delta, xp.inf, 0.0)


register_method(
    "total_variation",
    rank=5.0,
    supports=_supports,
    epsilon=_epsilon,
    delta=_delta,
    epsilon_lower=_epsilon_lower,
    tradeoff=_tradeoff,
    describe="total variation of shifted uniform balls (Tholeti and Kalyani 2021), composed as "
    "1 − Π(1 − δ_t)",
)
