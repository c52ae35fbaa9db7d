"""Many independent runs of a mechanism on two neighbouring data sets, in one compiled call."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree, Shaped

from dpjax._extras import extra
from dpjax._other_names import taught

Mechanism = Callable[[Key[Array, ""], Any], Shaped[Array, ""]]


@taught
def run_trials(
    mechanism: Mechanism,
    dataset: PyTree,
    neighbour: PyTree,
    *,
    key: Key[Array, ""],
    trials: int = 100_000,
    chunk_size: int = 1_000,
    progress: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of `trials` independent runs in each of two worlds.

    Both worlds run in one compiled call: `lax.map` over chunks, `vmap` within a chunk, so memory
    holds `chunk_size` runs at a time (of each world, where the shapes of their data differ; where
    they agree, the worlds share one program). Trial i uses the i-th child of its world's key,
    whatever the chunk size. Repeated calls with the same function and shapes do not compile again.

    Args:
        mechanism: pure function (key, data set) -> score, a real scalar; the larger (or the
            smaller) the score, the more the attacker believes in the neighbour.
        dataset: pytree of arrays, the first argument world.
        neighbour: pytree of arrays that differs in one record; its shapes may differ.
        key: a typed PRNG key.
        trials: runs per world.
        chunk_size: runs held in memory at once.
        progress: shows a bar that advances with every chunk.

    Returns:
        Two NumPy arrays of shape [trials]: scores on the data set and on the neighbour.

    Raises:
        ValueError: if `trials` or `chunk_size` is not positive, or the score is not a real scalar.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import audit
        >>> noisy_sum = lambda key, data: data.sum() + jax.random.normal(key)
        >>> worlds = jnp.zeros(3), jnp.array([0.0, 0.0, 1.0])
        >>> scores, others = audit.run_trials(noisy_sum, *worlds, key=jax.random.key(0), trials=999)
        >>> scores.shape, bool(others.mean() - scores.mean() > 0.9)
        ((999,), True)
    """
    if trials < 1 or chunk_size < 1:
        raise ValueError(f"trials and chunk_size must be positive, got {trials} and {chunk_size}")
    worlds = {"dataset": dataset, "neighbour": neighbour}
    if _alike(dataset, neighbour):
        del worlds["neighbour"]
    for world, data in worlds.items():
        score = jax.eval_shape(mechanism, key, data)
        leaves = jax.tree.leaves(score)
        if len(leaves) != 1 or leaves[0].shape or not jnp.issubdtype(leaves[0].dtype, jnp.floating):
            raise ValueError(
                f"mechanism must return one real scalar a run, got {score} on the {world}; project "
                "a vector release on the direction in which the two worlds differ"
            )
    chunks = -(-trials // chunk_size)
    run = functools.partial(_run, mechanism, chunks, chunk_size)
    if not progress:
        scores = run(0, key, dataset, neighbour)
    else:
        with extra("cli"):
            from rich.progress import Progress

        with Progress(transient=True) as bar:
            total = chunks * (2 // len(worlds))
            task = bar.add_task(f"{2 * trials} runs", total=total)
            shown = next(_numbers)
            _listeners[shown] = functools.partial(bar.advance, task)
            try:
                scores = run(shown, key, dataset, neighbour)
                jax.block_until_ready(scores)
                jax.effects_barrier()
            finally:
                del _listeners[shown]
    first, second = (np.asarray(world, np.float64)[:trials] for world in scores)
    if np.isnan(first).any() or np.isnan(second).any():
        raise ValueError("mechanism must return scores that can be ordered, got NaN")
    return first, second


# Who is told of a finished chunk. The program only knows a number, so that it is one and the same
# program, and gives the same bits, whether or not someone watches.
_listeners: dict[int, Callable[[], None]] = {}
_numbers = itertools.count(1)


def _finished_chunk(listener: Any, _: Any) -> None:
    _listeners.get(int(listener), lambda: None)()


def _alike(dataset: PyTree, neighbour: PyTree) -> bool:
    """Whether one program takes both worlds."""

    def shapes(data):
        leaves, tree = jax.tree.flatten(data)
        return tree, [(x.shape, x.dtype, x.weak_type) for x in map(jax.typeof, leaves)]

    return shapes(dataset) == shapes(neighbour)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _run(mechanism, chunks, chunk_size, listener, key, dataset, neighbour):
    shape = (chunks, chunk_size)
    keys = [jax.random.split(world, chunks * chunk_size) for world in jax.random.split(key)]
    first, second = (world.reshape(shape) for world in keys)

    def run(keys, data):
        scores = jax.vmap(mechanism, (0, None))(keys, data)
        jax.debug.callback(_finished_chunk, listener, scores[0])
        return scores

    if _alike(dataset, neighbour):

        def chunk(item):
            keys, world = item
            choose = functools.partial(jax.lax.select_n, world)
            return run(keys, jax.tree.map(choose, dataset, neighbour))

        number = jnp.repeat(jnp.arange(2), chunks)
        scores = jax.lax.map(chunk, (jnp.concatenate([first, second]), number))
        return scores[:chunks].reshape(-1), scores[chunks:].reshape(-1)

    def chunk_of_both(keys):
        return jax.vmap(mechanism, (0, None))(keys[0], dataset), run(keys[1], neighbour)

    one, other = jax.lax.map(chunk_of_both, (first, second))
    return one.reshape(-1), other.reshape(-1)
