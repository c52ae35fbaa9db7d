"""One run over the devices of several processes: what they have to agree on, and what one writes.

All processes run the same program. Batches and noise are functions of (key, step), so they agree
by themselves; the key, how many steps a call takes and when a checkpoint is due, which depend on
chance and clocks, are those of the leader, the process of the mesh's first device. It alone writes.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpjax.training.checkpoint import Checkpoints
from dpjax.training.errors import CheckpointError

__all__ = ["SharedCheckpoints", "agreed", "everywhere", "gathered"]


def leads(mesh: Mesh) -> bool:
    """Whether this is the process that decides and writes.

    Example:
        >>> leads(jax.make_mesh((1,), ("data",)))
        True
    """
    return mesh.devices.flat[0].process_index == jax.process_index()


def agreed(mesh: Mesh, values: Any) -> Any:
    """The leader's values, bit by bit, on every process; all processes have to ask at once.

    Args:
        mesh: whose processes they are.
        values: a tree of numbers and NumPy arrays, of the same shapes and types on all.

    Example:
        >>> agreed(jax.make_mesh((1,), ("data",)), {"stop": np.float64(0.1)})
        {'stop': array(0.1)}
    """
    leaves, structure = jax.tree.flatten(values)
    arrays = [np.asarray(leaf) for leaf in leaves]
    content = b"".join(array.tobytes() for array in arrays)
    words = np.frombuffer(content + bytes(-len(content) % 4), np.uint32)
    own = words if leads(mesh) else np.zeros_like(words)
    divided = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def block(index: Any) -> np.ndarray:
        (row,) = range(mesh.size)[index[0]]
        return (own if row == 0 else np.zeros_like(own))[None]

    rows = jax.make_array_from_callback((mesh.size, len(words)), divided, block)
    total = np.asarray(_sum(mesh)(rows)).tobytes()
    found, start = [], 0
    for array in arrays:
        part = np.frombuffer(total, array.dtype, array.size, start)
        found.append(part.reshape(array.shape).copy())
        start += array.nbytes
    return jax.tree.unflatten(structure, found)


def _sum(mesh: Mesh) -> Callable[[Any], Any]:
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.jit(lambda rows: jnp.sum(rows, axis=0, dtype=jnp.uint32), out_shardings=whole)


def everywhere(tree: Any, shardings: Any) -> Any:
    """Arrays of the host where the shardings have them; each process hands out its own parts.

    Example:
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> everywhere(np.ones(2), NamedSharding(mesh, PartitionSpec())).shape
        (2,)
    """

    def put(leaf: Any, sharding: NamedSharding) -> Any:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            if leaf.sharding != sharding:
                raise ValueError(f"params must lie as {sharding}, got {leaf.sharding}")
            return leaf
        host = np.asarray(leaf)
        host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(put, tree, shardings)


def gathered(tree: Any) -> Any:
    """The tree as NumPy arrays, whole on every process; all processes have to ask at once.

    Example:
        >>> gathered({"w": jnp.ones(2)})
        {'w': array([1., 1.], dtype=float32)}
    """

    def whole(leaf: Any) -> np.ndarray:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_replicated:
            divided: Any = leaf.sharding
            place = NamedSharding(divided.mesh, PartitionSpec())
            leaf = jax.jit(lambda x: x, out_shardings=place)(leaf)
        return np.asarray(leaf)

    return jax.tree.map(whole, tree)


class SharedCheckpoints:
    """`Checkpoints` of a run of several processes: the leader writes, all hear what it found.

    Args:
        folder: of the leader's; the others need not see it.
        mesh: of the run.

    Raises:
        CheckpointError: on every process where the leader is refused.

    Example:
        >>> import tempfile
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> store = SharedCheckpoints(pathlib.Path(tempfile.mkdtemp()), mesh)
        >>> key = store.bind(jax.random.key(0), lambda key: {}, resume=False)
        >>> store.save(3, np.ones(2))
        >>> store.latest(np.zeros(2))
        (3, array([1., 1.]))
        >>> store.close()
    """

    def __init__(self, folder: pathlib.Path, mesh: Mesh):
        self._mesh = mesh
        self._store: Any = None

        def opened():
            self._store = Checkpoints(folder)

        self._on_leader(opened)

    def bind(
        self, fresh: jax.Array, identity: Callable[[jax.Array], Mapping[str, Any]], *, resume: bool
    ) -> jax.Array:
        """The run's key, see `Checkpoints.bind`; that of the leader on all processes."""
        key = self._on_leader(lambda: self._store.bind(fresh, identity, resume=resume))
        return same_key(self._mesh, fresh if key is None else key)

    def noted(self, what: str, now: bool) -> bool:
        """See `Checkpoints.noted`."""
        found = self._on_leader(lambda: self._store.noted(what, now))
        return bool(agreed(self._mesh, np.uint32(bool(found))))

    def save(self, step: int, state: Any) -> None:
        """Save a state that is gathered from all processes, once."""
        whole = gathered(state)
        self._on_leader(lambda: self._store.save(step, whole))

    def latest(self, like: Any) -> tuple[int, Any] | None:
        """The newest whole (step, state) of the leader's folder, placed as `like`; or None."""
        hosts = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
        found = self._on_leader(lambda: self._store.latest(hosts))
        step = int(agreed(self._mesh, np.int64(-1 if found is None else found[0])))
        if step < 0:
            return None
        values = agreed(self._mesh, hosts if found is None else found[1])

        def put(value: Any, leaf: Any) -> Any:
            return everywhere(value, leaf.sharding) if isinstance(leaf, jax.Array) else value

        return step, jax.tree.map(put, values, like)

    def close(self) -> None:
        """Let another run use the folder."""
        if self._store is not None:
            self._store.close()

    def _on_leader(self, act: Callable[[], Any]) -> Any:
        """What the leader finds, None on the others; refused on all where it is refused."""
        found = error = None
        if leads(self._mesh):
            try:
                found = act()
            except Exception as refused:  # the others wait to hear of it
                error = refused
        if int(agreed(self._mesh, np.uint32(error is not None))):
            raise error or CheckpointError(
                "the folder must be usable by the run's first process, got an error there: see "
                "what it says"
            )
        return found


def same_key(mesh: Mesh, key: jax.Array) -> jax.Array:
    """The leader's key on every process.

    Example:
        >>> same_key(jax.make_mesh((1,), ("data",)), jax.random.key(3)) == jax.random.key(3)
        Array(True, dtype=bool)
    """
    typed = jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    words = agreed(mesh, np.asarray(jax.random.key_data(key) if typed else key))
    if not typed:
        return jnp.asarray(words)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=jax.random.key_impl(key))


def everywhere_key(placement: Any, key: jax.Array) -> jax.Array:
    """The key as an array of all devices, which a program of theirs takes."""
    typed = jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    words = np.asarray(jax.random.key_data(key) if typed else key)
    copied = everywhere(words, placement.sharding())
    if not typed:
        return copied
    return jax.random.wrap_key_data(copied, impl=jax.random.key_impl(key))


def as_placed(records: Any) -> Any:
    """Records as a device would hold them, of JAX's types, for a digest of them."""

    def narrowed(leaf: Any) -> np.ndarray:
        host = np.asarray(leaf)
        return host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)

    return jax.tree.map(narrowed, records)
