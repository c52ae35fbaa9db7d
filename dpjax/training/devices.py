"""Placement of a run's arrays on a mesh of devices, and what its processes tell one another."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array, ArrayLike, PyTree

from dpjax._numerics.explicit import Specs
from dpjax._numerics.keys import bits_of_keys
from dpjax._numerics.namespace import AnyTree
from dpjax._numerics.normal import SHARED_DRAW, drawn_in_place
from dpjax._numerics.scope import enable_x64
from dpjax._numerics.typing import Params, PRNGKey
from dpjax.gradients.compensated import Compensated, is_reduced_as_it_is, without_error

if TYPE_CHECKING:
    from jax.tree_util import KeyPath

    from dpjax.training.typing import RunState


@dataclasses.dataclass(frozen=True)
class Placement:
    """How a run is laid out over the devices of a mesh.

    Fields:
        mesh: with automatic axes; of one process, or of several that `jax.distributed` has joined.
        records: axes over which the records are divided, in equal blocks in the order of the data.
        parameters: axes over which large parameters are divided too; none for copies.

    Example:
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> data_parallel(mesh).records, fully_sharded(mesh).parameters
        (('data',), ('data',))
    """

    mesh: Mesh
    records: tuple[str, ...]
    parameters: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        """Whether the devices belong to several processes."""
        return self.mesh.is_multi_process

    @property
    def blocks(self) -> int:
        """Into how many blocks the records are divided."""
        return math.prod(self.mesh.shape[axis] for axis in self.records)

    def rows(self, population: int) -> int:
        """Records of a block, the padding of the last one included."""
        return -(-population // self.blocks)  # rounded up

    def sharding(self, spec: PartitionSpec = PartitionSpec()) -> NamedSharding:
        """Lay an array out on this mesh, as a copy on every device unless told otherwise."""
        return NamedSharding(self.mesh, spec)

    def specs(self, params: Params) -> Specs:
        """Along which axes every parameter is divided.

        A parameter divided over this mesh already stays as it is. Others are divided along their
        first dimension whose blocks draw their own noise; small ones share a draw and are copied.
        """
        parts = math.prod(self.mesh.shape[axis] for axis in self.parameters)

        def find_spec(leaf: ArrayLike):
            given, shape = getattr(leaf, "sharding", None), np.shape(leaf)
            if (
                isinstance(given, NamedSharding)
                and given.mesh.shape_tuple == self.mesh.shape_tuple
                and any(entry is not None for entry in given.spec)
            ):
                return given.spec
            if parts > 1 and math.prod(shape) >= SHARED_DRAW:
                for dimension in range(len(shape)):
                    if drawn_in_place(shape, dimension, parts):
                        return PartitionSpec(*[None] * dimension, self.parameters)
            return PartitionSpec()

        return jax.tree.map(find_spec, params)

    def constrained(self, tree: AnyTree, specs: Specs) -> AnyTree:
        """Traced arrays of the parameters' structure, laid out as the parameters are."""
        return jax.tree.map(
            lambda leaf, spec: jax.lax.with_sharding_constraint(leaf, self.sharding(spec)),
            tree,
            specs,
        )

    def state(self, state: RunState, specs: Specs) -> PyTree[NamedSharding]:
        """The shardings of what a run carries: every copy of a parameter lies as the parameter."""
        by_path = jax.tree_util.tree_leaves_with_path(specs, is_leaf=is_spec)
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(state["params"])]
        known = [(tuple(path), shape, s) for (path, s), shape in zip(by_path, shapes, strict=True)]

        def like(path: KeyPath, leaf: ArrayLike):
            shape, ring = np.shape(leaf), path[0] == jax.tree_util.DictKey("noise")
            for end, own, spec in known:
                if tuple(path[len(path) - len(end) :]) == end and shape[int(ring) :] == own:
                    return self.sharding(PartitionSpec(None, *spec) if ring else spec)
            return self.sharding()

        return jax.tree_util.tree_map_with_path(like, state)


def data_parallel(mesh: Mesh, axes: tuple[str, ...] | None = None) -> Placement:
    """Records divided over the devices, parameters copied to all of them.

    Args:
        mesh: of `jax.make_mesh`.
        axes: over which records are divided; by default all of the mesh's. Parameters may be
            divided over the others: place them with `jax.device_put` before `fit`.

    Raises:
        ValueError: an axis that the mesh does not have.

    Example:
        >>> data_parallel(jax.make_mesh((1,), ("data",))).blocks
        1
    """
    return Placement(mesh, _check_axes(mesh, axes))


def fully_sharded(mesh: Mesh, axes: tuple[str, ...] | None = None) -> Placement:
    """Records, parameters, the optimiser's state, sums and noise divided over the devices.

    A step gathers the parameters; no device ever holds another's share of anything else.

    Args:
        mesh: of `jax.make_mesh`.
        axes: over which everything is divided; by default all of the mesh's.

    Raises:
        ValueError: an axis that the mesh does not have.

    Example:
        >>> placement = fully_sharded(jax.make_mesh((1,), ("data",)))
        >>> placement.specs({"w": np.zeros((64, 64))}) == {"w": PartitionSpec()}
        True
    """
    axes = _check_axes(mesh, axes)
    return Placement(mesh, axes, axes)


def is_spec(value: object) -> bool:
    """Whether this is a leaf of a tree of specs, which are tuples themselves."""
    return isinstance(value, PartitionSpec)


def _check_axes(mesh: Mesh, axes: tuple[str, ...] | None) -> tuple[str, ...]:
    axes = tuple(mesh.axis_names) if axes is None else tuple(axes)
    if not axes or not set(axes) <= set(mesh.axis_names):
        raise ValueError(f"axes must be some of the mesh's {mesh.axis_names}, got {axes}")
    return axes


def place_parameters(placement: Placement, params: Params) -> Params:
    """The parameters where the placement has them."""
    put = make_global if placement.several else put_on_devices
    return jax.tree.map(
        lambda leaf, spec: put(leaf, placement.sharding(spec)), params, placement.specs(params)
    )


def place_state(placement: Placement, state: RunState) -> RunState:
    """What a run carries, where the placement has it."""
    shardings = placement.state(state, placement.specs(state["params"]))
    return jax.tree.map(put_on_devices, state, shardings)


def place_rows(placement: Placement, data: PyTree[ArrayLike], population: int) -> PyTree[Array]:
    """The records, every device holding its own block; the last block is padded, never drawn."""
    spec = placement.sharding(PartitionSpec(placement.records))
    rows = placement.rows(population) * placement.blocks

    def place_leaf(leaf: ArrayLike):
        if isinstance(leaf, jax.Array) and leaf.shape[0] == rows and leaf.sharding == spec:
            return leaf
        host = np.asarray(leaf)  # read block by block: no device ever holds it whole

        def read_block(index):
            places = np.arange(rows)[index[0]]
            return as_device_type(host[np.minimum(places, population - 1)])

        return jax.make_array_from_callback((rows, *host.shape[1:]), spec, read_block)

    return jax.tree.map(place_leaf, data)


def put_on_devices(leaf: ArrayLike, sharding: Sharding) -> jax.Array:
    """An array where the sharding has it."""
    # An array of the host is never whole on one device.
    return jax.device_put(leaf if isinstance(leaf, jax.Array) else as_device_type(leaf), sharding)


def as_device_type(leaf: ArrayLike) -> np.ndarray:
    """An array of the host in the type that a device would hold."""
    host = np.asarray(leaf)
    return host.astype(jax.dtypes.canonicalize_dtype(host.dtype.newbyteorder("=")), copy=False)


def sum_over_blocks(
    placement: Placement,
    specs: Specs,
    one_block: Callable[..., tuple[Compensated, PyTree[Array]]],
    largest: int,
) -> Callable[..., tuple[Compensated, PyTree[Array]]]:
    """`(params, records, *shared) -> (pair, counts)`, added up over `one_block` of every device.

    A step has at most `largest` records.
    """
    # Parameters divided over the records' axes are gathered, and their sums added where they live.
    axes = set(placement.records)
    ours = jax.tree.map(lambda spec: _spec_over_records(spec, axes), specs, is_leaf=is_spec)
    rows = PartitionSpec(placement.records)

    def on_each_device(params: Params, records: PyTree[Array], shared: PyTree):
        params = jax.tree.map(_gather_parameter, params, ours)
        total, counts = one_block(params, records, *shared)
        total = _reduce_pairs(total, ours, placement, largest)
        return total, jax.tree.map(lambda x: jax.lax.psum(x, placement.records), counts)

    mapped = jax.shard_map(
        on_each_device,
        mesh=placement.mesh,
        in_specs=(ours, rows, PartitionSpec()),
        out_specs=(Compensated(ours, ours), PartitionSpec()),
        axis_names=axes,
        check_vma=False,  # a loss may carry constants through its loops
    )
    return lambda params, records, *shared: mapped(params, records, shared)


def _spec_over_records(spec: PartitionSpec, axes: set[str]) -> PartitionSpec:
    """The part of a parameter's layout that is along the records' axes."""
    entries = []
    for entry in spec:
        names = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        own = tuple(name for name in names if name in axes)
        if own and len(own) < len(names):
            raise ValueError(
                f"mesh must divide no dimension over axes of records and others, got {spec}"
            )
        entries.append(own or None)
    return PartitionSpec(*entries)


def _gather_parameter(leaf: Array, spec: PartitionSpec) -> Array:
    for dimension, names in enumerate(spec):
        if names:
            leaf = jax.lax.all_gather(leaf, names, axis=dimension, tiled=True)
    return leaf


def _reduce_sum(total: Array, spec: PartitionSpec, records: tuple[str, ...]) -> Array:
    """The sum over all devices, each of which keeps its own share: a reduce-scatter."""
    left = [axis for axis in records if not any(axis in (names or ()) for names in spec)]
    for dimension, names in enumerate(spec):
        if names:
            total = jax.lax.psum_scatter(total, names, scatter_dimension=dimension, tiled=True)
    return jax.lax.psum(total, tuple(left)) if left else total


def _reduce_pairs(
    pairs: Compensated, specs: Specs, placement: Placement, largest: int
) -> Compensated:
    """The sum of every device's pair, of at most `largest` records together."""

    # On d devices float32 is off for b records by at most d·u·b·C, on either neighbour: where that
    # is less than what `slack_of_devices` allows, one array is sent. Otherwise pairs travel as
    # float64: what rounding leaves there is d·2⁻⁵³·b·C.
    few = is_reduced_as_it_is(placement.blocks, largest)

    def reduce_leaf(total: Array, error: Array, spec: PartitionSpec) -> Compensated:
        if few or total.dtype == jnp.float64:
            return without_error(_reduce_sum(total, spec, placement.records))
        with enable_x64(True):
            wide = [jax.lax.convert_element_type(x, jnp.float64) for x in (total, error)]
            added = _reduce_sum(jax.lax.add(*wide), spec, placement.records)
            rounded = jax.lax.convert_element_type(added, total.dtype)
            rest = jax.lax.sub(added, jax.lax.convert_element_type(rounded, jnp.float64))
            return Compensated(rounded, jax.lax.convert_element_type(rest, total.dtype))

    leaves, structure = jax.tree.flatten(pairs.total)
    others = jax.tree.leaves(pairs.error), jax.tree.leaves(specs, is_leaf=is_spec)
    found = [reduce_leaf(*own) for own in zip(leaves, *others, strict=True)]
    return Compensated(*map(structure.unflatten, zip(*found, strict=True)))


def broadcast_from_leader(mesh: Mesh, values: PyTree[ArrayLike]) -> PyTree[np.ndarray]:
    """The leader's values, bit by bit, on every process; all processes have to ask at once."""
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, values))
    own = np.frombuffer(b"".join(leaf.tobytes() for leaf in leaves), np.uint8)
    divided = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def row(index) -> np.ndarray:
        # One row a device: the first is the leader's, and to it zeros are added.
        return (np.zeros_like(own) if index[0].start else own)[None]

    rows = jax.make_array_from_callback((mesh.size, own.size), divided, row)
    copied = NamedSharding(mesh, PartitionSpec())
    add = jax.jit(lambda rows: jnp.sum(rows, axis=0, dtype=jnp.uint8), out_shardings=copied)
    parts = np.split(np.asarray(add(rows)), np.cumsum([leaf.nbytes for leaf in leaves])[:-1])
    pairs = zip(parts, leaves, strict=True)
    return structure.unflatten(
        [np.frombuffer(p.tobytes(), x.dtype).reshape(x.shape).copy() for p, x in pairs]
    )


def make_global(tree: PyTree[ArrayLike], shardings: PyTree[Sharding]) -> PyTree[Array]:
    """Arrays of the host where the shardings have them; each process hands out its own parts."""

    def put(leaf: ArrayLike, sharding: Sharding) -> Array:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            if leaf.sharding != sharding:
                raise ValueError(f"params must lie as {sharding}, got {leaf.sharding}")
            return leaf
        host = as_device_type(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(put, tree, shardings)


def gather(tree: PyTree[Array]) -> PyTree[np.ndarray]:
    """The tree as NumPy arrays, whole on every process; all processes have to ask at once."""

    def gather_leaf(leaf: ArrayLike) -> np.ndarray:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_replicated:
            assert isinstance(leaf.sharding, NamedSharding), "of a mesh"
            place = NamedSharding(leaf.sharding.mesh, PartitionSpec())
            leaf = jax.jit(lambda x: x, out_shardings=place)(leaf)
        return np.asarray(leaf)

    return jax.tree.map(gather_leaf, tree)


def broadcast_key(mesh: Mesh, key: jax.Array) -> jax.Array:
    """The leader's key on every process."""
    return _map_key_words(key, lambda words: broadcast_from_leader(mesh, words))


def make_global_key(placement: Placement, key: PRNGKey) -> PRNGKey:
    """The key as an array of all devices, which a program of theirs takes."""
    return _map_key_words(key, lambda words: make_global(words, placement.sharding()))


def _map_key_words(key: jax.Array, move: Callable[[np.ndarray], ArrayLike]) -> jax.Array:
    """A key, typed or not, whose words were moved."""
    bits, typed = bits_of_keys([key])
    return typed([jnp.asarray(move(np.asarray(bits[0])))])[0]
