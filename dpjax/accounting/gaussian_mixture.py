"""Privacy of a Gaussian release whose displacement is drawn at random and kept secret.

If the release is μ_j-GDP with probability q_j, whatever j the secret draw takes, then joint
convexity of the hockey-stick divergence gives δ(ε) ≤ Σ_j q_j δ_G(μ_j, ε). Never looser than the
Rényi mixture bound of Chen, Lee and Kifer (2019, Lemma 3) with any conversion. In a composition j
may be taken as
revealed: conditional on all the draws the whole is one Gaussian pair with μ² = Σ μ², so that the
composition is again such a mixture.

Pure functions of float64 arrays; μ and q have shape [m].
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics.logarithm import log1p
from dpjax.accounting.gaussian_dp import _bisect, log_delta
from dpjax.accounting.gaussian_dp import epsilon as gaussian_epsilon

Scalar = Float[Array, ""]
Components = Float[Array, " m"]


def mixture_log_delta(mus: Components, weights: Components, epsilon: Scalar) -> Array:
    """log Σ q_j δ_G(μ_j, ε), rounded up.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from dpjax.accounting.gaussian_mixture import mixture_log_delta
      >>> with jax.enable_x64(True):
      ...     print(f"{mixture_log_delta(jnp.array([1.0, 0.5]), jnp.array([0.5, 0.5]), 1.0):.8f}")
      -2.70480797
    """
    logs = log_delta(mus, jnp.broadcast_to(epsilon, mus.shape))
    logs = jnp.where((weights > 0) & (logs > -jnp.inf), logs, -1e300)
    top = jax.lax.stop_gradient(jnp.max(logs))
    total = jnp.sum(weights * jnp.exp(logs - top))
    value = top + jnp.log(jnp.where(total > 0, total, 1.0)) + 1e-15 * (8 + jnp.abs(top))
    return jnp.where((total > 0) & (top > -1e299), jnp.minimum(value, 0.0), -jnp.inf)


@jax.custom_jvp
def _root(mus: Array, weights: Array, log_target: Array) -> Array:
    high = gaussian_epsilon(jnp.max(jnp.where(weights > 0, mus, 0.0)), jnp.exp(log_target))
    finite = jnp.isfinite(high)
    safe = jnp.where(finite, high, 1.0)
    _, end = _bisect(
        lambda e: mixture_log_delta(mus, weights, e) > log_target, jnp.zeros_like(safe), safe
    )
    done = mixture_log_delta(mus, weights, jnp.zeros_like(safe)) <= log_target
    return jnp.where(done, 0.0, jnp.where(finite, end, jnp.inf))


@_root.defjvp
def _root_jvp(primals, tangents):
    mus, weights, log_target = primals
    root = _root(mus, weights, log_target)
    active = (root > 0) & jnp.isfinite(root)
    safe = jnp.where(active, root, 1.0)
    _, moved = jax.jvp(lambda m, q: mixture_log_delta(m, q, safe), (mus, weights), tangents[:2])
    _, slope = jax.jvp(
        lambda e: mixture_log_delta(mus, weights, e), (safe,), (jnp.ones_like(safe),)
    )
    rate = jnp.where(active, 1 / jnp.where(slope < 0, slope, -1.0), 0.0)
    return root, rate * (tangents[2] - moved)


def mixture_epsilon(mus: Components, weights: Components, delta: Scalar) -> Array:
    """Smallest ε >= 0 with Σ q_j δ_G(μ_j, ε) <= δ, rounded up; its derivative is exact.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from dpjax.accounting.gaussian_mixture import mixture_epsilon
      >>> with jax.enable_x64(True):
      ...     print(f"{mixture_epsilon(jnp.array([1.0, 0.5]), jnp.array([0.5, 0.5]), 1e-5):.6f}")
      4.212444
    """
    usable = (delta > 0) & (delta < 1)
    root = _root(mus, weights, jnp.log(jnp.where(usable, delta, 0.5)))
    return jnp.where(usable, root, jnp.where(delta >= 1, 0.0, jnp.inf))


def mixture_rdp(mus: Components, weights: Components, orders: Float[Array, " k"]) -> Array:
    """Rényi curve log(Σ q_j exp(α(α−1)μ_j²/2))/(α−1), shape [k], rounded up.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from dpjax.accounting.gaussian_mixture import mixture_rdp
      >>> with jax.enable_x64(True):
      ...     curve = mixture_rdp(jnp.array([1.0, 0.5]), jnp.array([0.5, 0.5]), jnp.array([2.0]))
      ...     print(f"{curve[0]:.8f}")
      0.69372383

    References:
      Chen, Lee and Kifer 2019, Lemma 3.
    """
    gain = orders[:, None] - 1
    exponent = orders[:, None] * gain * jnp.square(mus)[None, :] / 2
    present = weights > 0
    top = jnp.max(jnp.where(present, exponent, 0.0), axis=1, keepdims=True)
    # log1p of the sum of expm1 where everything is tiny, log-sum-exp where anything is large.
    small = jnp.sum(weights * jnp.expm1(jnp.minimum(exponent, 1.0)), axis=1)
    shifted = jnp.where(present, weights * jnp.exp(exponent - top), 0.0)
    large = top[:, 0] + jnp.log(jnp.maximum(jnp.sum(shifted, axis=1), 1e-300))
    value = jnp.where(top[:, 0] < 1.0, log1p(small), large)
    return jnp.where(orders > 1, value / gain[:, 0] * (1 + 1e-13), jnp.inf)


def add_components(
    squares: np.ndarray, weights: np.ndarray, more: np.ndarray, chances: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Law of the sum of two independent draws of μ², at most `limit` values, rounded upwards.

    Example:
      >>> import numpy as np
      >>> from dpjax.accounting.gaussian_mixture import add_components
      >>> half = np.array([0.5, 0.5])
      >>> add_components(np.array([0.0, 1.0]), half, np.array([0.0, 1.0]), half, limit=9)
      (array([0., 1., 2.]), array([0.25, 0.5 , 0.25]))
    """
    sums = (squares[:, None] + more[None, :]).ravel()
    chance = (weights[:, None] * chances[None, :]).ravel()
    if sums.size > limit and np.ptp(sums) > 0:
        step = np.ptp(sums) / (limit - 1)
        sums = sums.min() + np.ceil((sums - sums.min()) / step * (1 - 1e-12)) * step
    values, place = np.unique(sums, return_inverse=True)
    return values, np.bincount(place.ravel(), chance, minlength=values.size)
