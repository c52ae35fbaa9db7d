"""White-box canaries: records whose gradient the auditor chooses, sent through training code."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree


def linear_loss(params: PyTree, example: PyTree) -> Float[Array, ""]:
    """⟨params, example⟩: the loss whose per-example gradient is the example itself.

    With it, the records of a data set are the gradients that enter clipping, so a canary of any
    size and direction can be sent through a training loop as it stands, for one step or for a run.

    Args:
        params: pytree of arrays.
        example: pytree of arrays with the same structure and shapes.

    Returns:
        A scalar.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import audit
        >>> jax.grad(audit.linear_loss)(jnp.zeros(3), jnp.array([1.0, 2.0, 3.0]))
        Array([1., 2., 3.], dtype=float32)
    """
    products = jax.tree.map(lambda p, e: jnp.sum(p * e), params, example)
    return jax.tree.reduce(jnp.add, products)


def orthogonal_canaries(
    key: Key[Array, ""], count: int, dimension: int, norm: float
) -> Float[Array, "count dimension"]:
    """Pairwise orthogonal gradients of equal norm, in random directions.

    Orthogonal canaries do not disturb each other, so one run audits all of them (`one_run`).

    Args:
        key: a typed PRNG key.
        count: number of canaries, at most `dimension`.
        dimension: length of each gradient.
        norm: Euclidean norm of each; the clip norm makes the attack strongest.

    Returns:
        Array of shape [count, dimension].

    Raises:
        ValueError: if `count` exceeds `dimension`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import audit
        >>> canaries = audit.orthogonal_canaries(jax.random.key(0), 3, 5, norm=2.0)
        >>> bool(jnp.allclose(canaries @ canaries.T, 4.0 * jnp.eye(3), atol=1e-5))
        True
    """
    if not 0 < count <= dimension:
        raise ValueError(
            f"count must be between 1 and dimension = {dimension}, for orthogonal directions, "
            f"got {count}"
        )
    draw = jax.random.normal(key, (dimension, count))
    basis, _ = jnp.linalg.qr(draw)
    return norm * basis.T


def canary_score(
    releases: Float[Array, "steps dimension"],
    canary: Float[Array, " dimension"],
    noise_std: float,
    rate: float = 1.0,
) -> Float[Array, ""]:
    """Log-likelihood ratio "the canary took part" against "it did not", summed over steps.

    With x_t = ⟨release_t, canary⟩/‖canary‖, Δ = ‖canary‖ and noise of standard deviation s,

        Σ_t ln(1 − q + q·exp((2·x_t·Δ − Δ²)/(2·s²))),

    the most powerful score if the other records do not contribute in the canary's direction.

    Args:
        releases: noisy gradient sums, one row a step.
        canary: the canary's clipped gradient.
        noise_std: standard deviation of the noise in each coordinate of a release.
        rate: probability q with which the canary takes part in a step.

    Returns:
        A scalar score.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import audit
        >>> audit.canary_score(jnp.array([[1.0, 0.0]]), jnp.array([1.0, 0.0]), 1.0)
        Array(0.5, dtype=float32)
    """
    size = jnp.linalg.norm(canary)
    along = releases @ canary / size
    ratio = (2.0 * along * size - size**2) / (2.0 * noise_std**2)
    if rate == 1.0:
        return jnp.sum(ratio)
    return jnp.sum(jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + ratio))
