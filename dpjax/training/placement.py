"""Where the arrays of a run live on a mesh of devices.

Records are divided over some axes of the mesh, every device holding a block of them; parameters,
the optimiser's state and the noise are copies or are divided too. Which records a step draws, and
its noise, are functions of (key, step) alone: a placement moves no number by more than rounding.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpjax._numerics.normal import SHARED_DRAW, drawn_in_place
from dpjax.training.processes import everywhere

__all__ = ["Placement", "data_parallel", "fully_sharded", "placement_of"]


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
        return -(-population // self.blocks)

    def sharding(self, spec: PartitionSpec = PartitionSpec()) -> NamedSharding:  # noqa: B008
        """Of an array on this mesh; a copy on every device unless told otherwise."""
        return NamedSharding(self.mesh, spec)

    def specs(self, params: Any) -> Any:
        """Along which axes every parameter is divided.

        A parameter that is divided over this mesh already stays as it is. Otherwise it is divided
        along its first dimension whose blocks draw their own noise. Those below 4,096 numbers share
        one draw of noise and are copied.
        """
        return jax.tree.map(self._spec, params)

    def _spec(self, leaf: Any) -> PartitionSpec:
        given = getattr(leaf, "sharding", None)
        if (
            isinstance(given, NamedSharding)
            and given.mesh.shape_tuple == self.mesh.shape_tuple
            and any(entry is not None for entry in given.spec)
        ):
            return given.spec
        shape, parts = np.shape(leaf), math.prod(self.mesh.shape[a] for a in self.parameters)
        if parts > 1 and math.prod(shape) >= SHARED_DRAW:
            for dimension in range(len(shape)):
                if drawn_in_place(shape, dimension, parts):
                    return PartitionSpec(*[None] * dimension, self.parameters)
        return PartitionSpec()

    def constrained(self, tree: Any, specs: Any) -> Any:
        """Traced arrays of the parameters' structure, laid out as the parameters are."""
        return jax.tree.map(
            lambda leaf, spec: jax.lax.with_sharding_constraint(leaf, self.sharding(spec)),
            tree,
            specs,
        )

    def state(self, state: Any, specs: Any) -> Any:
        """The shardings of what a run carries: every copy of a parameter lies as the parameter.

        Args:
            state: of `first_state`, arrays or shapes.
            specs: of the parameters.
        """
        is_spec = lambda spec: isinstance(spec, PartitionSpec)  # noqa: E731
        by_path = jax.tree_util.tree_leaves_with_path(specs, is_leaf=is_spec)
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(state["params"])]
        known = [(tuple(path), shape, s) for (path, s), shape in zip(by_path, shapes, strict=True)]

        def like(path, leaf):
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
    return Placement(mesh, _axes(mesh, axes))


def fully_sharded(mesh: Mesh, axes: tuple[str, ...] | None = None) -> Placement:
    """Records, parameters, the optimiser's state, sums and noise divided over the devices.

    A step gathers the parameters, and its sums are added up where they live: no device ever holds
    the noise, the sum over all records or the optimiser's state of another's share.

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
    axes = _axes(mesh, axes)
    return Placement(mesh, axes, axes)


def _axes(mesh: Mesh, axes: tuple[str, ...] | None) -> tuple[str, ...]:
    axes = tuple(mesh.axis_names) if axes is None else tuple(axes)
    if not axes or not set(axes) <= set(mesh.axis_names):
        raise ValueError(f"axes must be some of the mesh's {mesh.axis_names}, got {axes}")
    return axes


def placement_of(mesh: Any, data: Any) -> Placement | None:
    """The placement asked for, or that of records which are divided over devices already."""
    if isinstance(mesh, Placement):
        return mesh
    if isinstance(mesh, Mesh):
        return data_parallel(mesh)
    if mesh is not None:
        raise ValueError(f"mesh must be a jax.sharding.Mesh or a Placement, got {mesh!r}")
    found = {_placement_of(leaf) for leaf in jax.tree.leaves(data)}
    return found.pop() if len(found) == 1 else None


def _placement_of(leaf: Any) -> Placement | None:
    sharding = getattr(leaf, "sharding", None)
    if isinstance(leaf, jax.core.Tracer) or not isinstance(sharding, NamedSharding):
        return None
    leading = tuple(sharding.spec)[:1]
    if leading in ((), (None,)) or any(entry is not None for entry in sharding.spec[1:]):
        return None
    (axes,) = leading
    mesh: Any = sharding.mesh
    return Placement(mesh, axes if isinstance(axes, tuple) else (axes,))


def placed_parameters(placement: Placement, params: Any) -> Any:
    """The parameters where the placement has them."""
    put = everywhere if placement.several else placed
    return jax.tree.map(
        lambda leaf, spec: put(leaf, placement.sharding(spec)), params, placement.specs(params)
    )


def placed_state(placement: Placement, state: Any) -> Any:
    """What a run carries, where the placement has it."""
    shardings = placement.state(state, placement.specs(state["params"]))
    return jax.tree.map(placed, state, shardings)


def placed_rows(placement: Placement, data: Any, population: int) -> Any:
    """The records, every device holding its own block; the last block is padded, never drawn.

    Arrays of the host are read block by block: no device ever holds them whole.
    """
    spec = placement.sharding(PartitionSpec(placement.records))
    rows = placement.rows(population) * placement.blocks

    def placed_leaf(leaf):
        if isinstance(leaf, jax.Array) and leaf.shape[0] == rows and leaf.sharding == spec:
            return leaf
        host = np.asarray(leaf)

        def block(index):
            places = np.arange(rows)[index[0]]
            return host[np.minimum(places, population - 1)]

        dtype = jax.dtypes.canonicalize_dtype(host.dtype)
        return jax.make_array_from_callback(
            (rows, *host.shape[1:]), spec, lambda index: block(index).astype(dtype, copy=False)
        )

    return jax.tree.map(placed_leaf, data)


def placed(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """An array where the sharding has it."""
    if not isinstance(leaf, jax.Array):  # no device ever holds it whole
        leaf = np.asarray(leaf)
        leaf = leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)
    return jax.device_put(leaf, sharding)
