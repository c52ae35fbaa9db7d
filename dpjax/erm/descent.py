"""Projected noisy descent, the loop of all solvers that take steps, and what solvers draw."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, UInt

from dpjax._numerics.namespace import Values
from dpjax._numerics.normal import normal
from dpjax._numerics.typing import Number, PRNGKey
from dpjax.erm.problems import Objective, Problem


def initial_params(problem: Objective, init: Array | None) -> Array:
    """The initial parameters: the origin unless given."""
    if init is None:
        return problem.zeros()
    init = jnp.asarray(init, problem.dtype)
    if init.shape != problem.shape:
        raise ValueError(f"init must have shape {problem.shape}, got {init.shape}")
    return init


def step_sizes(step_size: Values, steps: int, dtype: DTypeLike) -> Array:
    """Step sizes [steps] from a number or a schedule of that length."""
    sizes = jnp.asarray(step_size, dtype)
    if sizes.ndim > 1 or (sizes.ndim == 1 and sizes.shape != (steps,)):
        raise ValueError(
            f"step_size must be a number or of shape ({steps},), one a step, got {sizes.shape}"
        )
    return jnp.broadcast_to(sizes, (steps,))


def descent_noise(key: Array, problem: Objective, std: Number) -> Callable[[Array], Array]:
    """t ↦ N(0, std²I), a function of the key and the step alone."""
    return lambda t: std * normal(jax.random.fold_in(key, t), problem.shape, problem.dtype)


def descend(
    problem: Objective,
    params: Array,
    sizes: Float[Array, " t"],
    gradient: Callable,
    *,
    noise: Callable[[Array], Array] | None = None,
    average: bool = False,
    keep_iterates: bool = False,
) -> tuple[Array, Array | None]:
    """(result, iterates) of `w ← Π(w − ηₜ·gradient(w, t) + noise(t))`; the mean if `average`."""

    def step(carry: tuple[Array, Array], inputs: tuple[Array, Array]):
        params, mean = carry
        t, size = inputs
        moved = params - size * gradient(params, t)
        # Π comes last: no result, noise included, leaves the ball that the constants hold on.
        params = problem.project(moved if noise is None else moved + noise(t))
        # A running mean keeps the size of one iterate, where a total would lose digits.
        mean = mean + (params - mean) / (t + 1).astype(params.dtype) if average else mean
        return (params, mean), params if keep_iterates else None

    times = jnp.arange(sizes.size, dtype=jnp.int32)
    (last, mean), iterates = jax.lax.scan(step, (params, params), (times, sizes))
    return (mean if average else last), iterates


def batch_sizes(n: int, batch_size: int) -> np.ndarray:
    """Sizes of the ⌈n / batch_size⌉ batches; the last may be short."""
    sizes = np.full(-(-n // batch_size), batch_size)
    sizes[-1] = n - batch_size * (len(sizes) - 1)
    return sizes


def shuffle_problem(problem: Problem, key: Array | None, batch_size: int) -> Problem:
    """The records in a random order (their own without a key), padded to whole batches."""
    n = problem.n
    padding = -n % batch_size
    if key is None and padding == 0:
        return problem
    # One copy of the data, after which every batch is a contiguous slice.
    order = jnp.arange(n) if key is None else jax.random.permutation(key, n)
    return problem.batch(jnp.concatenate([order, jnp.zeros(padding, order.dtype)]))


def cyclic_gradient(
    data: Problem, n: int, batch_size: int, clip_norm: Values | None = None
) -> Callable:
    """(w, t) ↦ average gradient, regulariser included, of batch t mod m of the n first records."""
    sizes = jnp.asarray(batch_sizes(n, batch_size), data.dtype)
    slots = jnp.arange(batch_size)

    def gradient(params: Array, t: Array):
        begin = t % sizes.size * batch_size
        # One batch of all records needs no slice, which would copy them at every step.
        batch = data if sizes.size == 1 else data.slice(begin, batch_size)
        # Padded slots have weight 0, and the divisor counts real records: S/|B| moves a step.
        weights = (begin + slots < n).astype(data.dtype) if n % batch_size else None
        total = batch.gradient_sum(params, clip_norm=clip_norm, weights=weights)
        return total / sizes[t % sizes.size] + data.l2 * params

    return gradient


@functools.partial(jax.jit, static_argnames=("batch_size", "average_every"))
def perturb_cyclic_descent(
    problem: Problem,
    noise_key: PRNGKey,
    order_key: PRNGKey | None,
    params: Array,
    sizes: Array,
    noise: Values,
    batch_size: int,
    average_every: int | None,
) -> Array:
    """Cyclic descent, its iterates averaged every so many epochs, and N(0, noise²I) at the end."""
    data = shuffle_problem(problem, order_key, batch_size)
    gradient = cyclic_gradient(data, problem.n, batch_size)
    if average_every is not None:
        length = average_every * len(batch_sizes(problem.n, batch_size))
        averaged = sizes.size // length * length

        def interval(params: Array, sizes: Array):
            return descend(problem, params, sizes, gradient, average=True)[0], None

        # Batches begin anew with an interval, which holds whole epochs; the rest is not averaged.
        params = jax.lax.scan(interval, params, sizes[:averaged].reshape(-1, length))[0]
        sizes = sizes[averaged:]
    if sizes.size:
        params = descend(problem, params, sizes, gradient)[0]
    return params + jnp.asarray(noise, params.dtype) * normal(noise_key, params.shape, params.dtype)


_HALF = 0x8000_0000


def exponential(key: PRNGKey, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Standard exponential variates, right to relative rounding from 2⁻⁶⁵ to 45."""
    # A float32 uniform has 23 bits: `jax.random`'s exponentials are multiples of 2⁻²³ near 0, and
    # its Gumbel variates none above 16.6. A choice or a length beyond such a cut has probability 0
    # on one data set and 1e-7 on its neighbour.
    return exponential_from_words(jax.random.bits(key, (2, *shape), jnp.uint32), dtype)


def gumbel(key: PRNGKey, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Standard Gumbel variates, −ln of exponential ones: from −3.8 to 45."""
    return -jnp.log(exponential(key, shape, dtype))


def exponential_from_words(words: UInt[Array, "2 ..."], dtype: DTypeLike) -> Float[Array, "..."]:
    """−ln(1 − u), u = (64 random bits + ½)/2⁶⁴: the nearer of 0 and 1 keeps its own digits."""
    high, low = words[0], words[1]
    above = high >= jnp.uint32(_HALF)
    high, low = jnp.where(above, ~high, high), jnp.where(above, ~low, low)
    # u below ½, and 1 − u above: each less than ½, and relatively exact.
    near = high.astype(dtype) * 2.0**-32 + (low.astype(dtype) + 0.5) * 2.0**-64
    return jnp.where(above, -jnp.log(near), -jnp.log1p(-near))
