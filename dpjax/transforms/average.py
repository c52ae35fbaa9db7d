"""Post-processing of what was released: means of the latest iterates, and shrinkage."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from dpjax._numerics.checks import whole
from dpjax._numerics.directions import squared_norm
from dpjax.transforms.noise import make_wide_zeros


class AverageState(NamedTuple):
    """The state of `periodic_average`.

    Fields:
        mean: of the iterates since the last restart.
        count: how many they are.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import transforms
        >>> transforms.periodic_average(3).init(jnp.array(1.0)).count.item()
        0
    """

    mean: PyTree
    count: Int[Array, ""]


def periodic_average(every: int) -> optax.GradientTransformation:
    """Replace the iterate by the mean of the last `every` iterates, every `every` steps.

    Put it last in the chain: it reads the updates as the step that is about to be taken. On step
    k·every, k = 1, 2, …, the update becomes the one that leads to the mean of the `every` iterates
    since the last such step, this one included. With steps of equal size over epochs of m batches
    and every = m·τ this is the averaging and restart of RSGD-AR. Its `update` needs `params`.

    Args:
        every: steps between restarts, at least 1.

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
        ...     print(float(w), end=" ")
        1.0 1.5 2.5 3.0

    References:
        Chen, Lee and Kifer 2019, "Renyi differentially private ERM for smooth objectives",
        Algorithm 3.
    """
    every = whole("every", every, most=2**31 - 1)

    def init(params: PyTree) -> AverageState:
        # In float32 at least: 16-bit means would stop moving after 256 terms.
        return AverageState(make_wide_zeros(params), jnp.zeros((), jnp.int32))

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None):
        if params is None:
            raise ValueError(
                "params is missing: periodic_average needs tx.update(updates, state, params)"
            )
        count = state.count + 1
        weight = 1 / count.astype(jnp.float32)  # a running mean: m + (w − m)/n
        is_restart = count == every

        def update_mean(m: Array, p: Array, u: Array):
            # The iterate that this step leads to, as the parameters' dtype will round it.
            following = (p + u.astype(p.dtype)).astype(m.dtype)
            return m + (following - m) * weight.astype(m.dtype)

        def restart(u: Array, m: Array, p: Array):
            return jnp.where(is_restart, (m - p.astype(m.dtype)).astype(u.dtype), u)

        mean = jax.tree.map(update_mean, state.mean, params, updates)
        updates = jax.tree.map(restart, updates, mean, params)
        mean = jax.tree.map(lambda m: jnp.where(is_restart, jnp.zeros_like(m), m), mean)
        return updates, AverageState(mean, jnp.where(is_restart, jnp.zeros_like(count), count))

    return optax.GradientTransformation(init, update)


def shrink_towards(released: PyTree, anchor: PyTree, noise_std: float | Float[Array, ""]) -> PyTree:
    """Shrink a noisy gradient towards an anchor by James and Stein's positive part: free utility.

        anchor + max(0, 1 − (d − 2)·noise_std²/‖released − anchor‖²)·(released − anchor)

    The rival that a geometric mechanism has to beat, next to plain noise and the anchor alone.

    Args:
        released: the noisy gradient; d numbers in all.
        anchor: a function of earlier releases and public data.
        noise_std: standard deviation of the noise in every number of `released`.

    Guarantee:
        Post-processing of what was released anyway: costs no privacy. Its mean squared error is
        below that of `released` for every true gradient when d ≥ 3.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import transforms
        >>> out = transforms.shrink_towards(jnp.array([3.0, 0.0, 0.0]), jnp.zeros(3), 1.0)
        >>> [f"{x:.3f}" for x in out]
        ['2.667', '0.000', '0.000']

    References:
        James and Stein 1961, "Estimation with quadratic loss".
    """
    offset = jax.tree.map(jnp.subtract, released, anchor)
    d = sum(x.size for x in jax.tree.leaves(offset))
    squared = squared_norm(offset)
    noise = jnp.asarray(noise_std, squared.dtype)
    is_apart = squared > 0
    keep = jnp.maximum(0, 1 - max(d - 2, 0) * noise**2 / jnp.where(is_apart, squared, 1))
    return jax.tree.map(lambda a, o: a + keep.astype(o.dtype) * o, anchor, offset)
