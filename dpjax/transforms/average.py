"""`periodic_average`: every so often, the iterate becomes the mean of the latest iterates."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PyTree

from dpjax.transforms.checks import whole


class AverageState(NamedTuple):
    """The state of `periodic_average`.

    Fields:
        mean: of the iterates since the last restart.
        count: how many they are.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import transforms
        >>> tx = transforms.periodic_average(3)
        >>> _, state = tx.update(jnp.array(1.0), tx.init(jnp.array(0.0)), jnp.array(0.0))
        >>> float(state.mean), int(state.count)
        (1.0, 1)
    """

    mean: PyTree
    count: Int[Array, ""]


def periodic_average(every: int) -> optax.GradientTransformation:
    """Replace the iterate by the mean of the last `every` iterates, every `every` steps.

    Put it last in the chain: it reads the updates as the step that is about to be taken. On step
    k·every, k = 1, 2, …, the update becomes the one that leads to the mean of the `every` iterates
    since the last such step, this one included; on all others it is unchanged. With steps of equal
    size over epochs of m batches and every = m·τ this is the averaging and restart of RSGD-AR.

    Args:
        every: steps between restarts, at least 1.

    Returns:
        A transformation that needs `params` in `update`.

    Raises:
        ValueError: `every` below 1 or no integer, or `update` called without params.

    Guarantee:
        Post-processing of the iterates. What it does to the sensitivity of a run whose iterates are
        *not* released is RSGD-AR's analysis (`dpjax.erm.rsgd_ar`), not this function's.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from dpjax import transforms
        >>> tx = transforms.periodic_average(2)
        >>> w = jnp.array(0.0)
        >>> state = tx.init(w)
        >>> for _ in range(4):
        ...     update, state = tx.update(jnp.array(1.0), state, w)
        ...     w = optax.apply_updates(w, update)
        ...     print(float(w))
        1.0
        1.5
        2.5
        3.0

    References:
        Chen, Lee and Kifer 2019, "Renyi differentially private ERM for smooth objectives",
        Algorithm 3.
    """
    whole("every", every)

    def init(params):
        # 16-bit means would stop moving after 256 terms.
        mean = jax.tree.map(lambda p: jnp.zeros(p.shape, _at_least_32(p.dtype)), params)
        return AverageState(mean, jnp.zeros((), jnp.int32))

    def update(updates, state, params=None):
        if params is None:
            raise ValueError(
                "params is missing: periodic_average needs tx.update(updates, state, params)"
            )
        count = state.count + 1
        weight = 1 / count.astype(jnp.float32)
        mean = jax.tree.map(
            lambda m, p, u: m + (_next(p, u, m.dtype) - m) * weight.astype(m.dtype),
            state.mean,
            params,
            updates,
        )
        restart = count == every
        updates = jax.tree.map(
            lambda u, m, p: jnp.where(restart, (m - p.astype(m.dtype)).astype(u.dtype), u),
            updates,
            mean,
            params,
        )
        mean = jax.tree.map(lambda m: jnp.where(restart, jnp.zeros_like(m), m), mean)
        return updates, AverageState(mean, jnp.where(restart, jnp.zeros_like(count), count))

    return optax.GradientTransformation(init, update)


def _at_least_32(dtype):
    return dtype if jnp.dtype(dtype).itemsize >= 4 else jnp.float32


def _next(param, update, dtype):
    """The iterate that this step leads to, as the parameters' dtype will round it."""
    return (param + update.astype(param.dtype)).astype(dtype)
