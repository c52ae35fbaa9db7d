"""Meshes with explicit axes: code that leaves sharding to the compiler runs on them too.

On an explicit axis (what `jax.make_mesh` makes since JAX 0.7) the sharding of an array is part of
its type, and an operation whose result could be sharded in two ways is an error. Code that knows
only records and parameters has no opinion: it runs with the axes handed to the compiler, and only
what comes out is given a sharding again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from dpjax._numerics.keys import bits_of_keys
from dpjax._numerics.namespace import AnyTree, Arguments, Returned

# Along which axes of a mesh the dimensions of every array of a tree are divided.
Specs = PyTree[PartitionSpec]


def explicit_mesh(*trees: PyTree) -> AbstractMesh | None:
    """The mesh with explicit axes on which an array of the trees lives, or None."""
    for leaf in jax.tree.leaves(trees):
        mesh = getattr(_sharding(leaf), "mesh", None)
        if mesh is not None and AxisType.Explicit in getattr(mesh, "axis_types", ()):
            return mesh
    return None


def partition_spec(leaf: object) -> PartitionSpec:
    """Along which explicit axes the dimensions of an array are divided; P() for any other array."""
    sharding = _sharding(leaf)
    explicit = sharding is not None and explicit_mesh(leaf) is not None
    return sharding.spec if explicit else PartitionSpec()


def without_records(tree: PyTree) -> Specs:
    """How arrays that have lost their leading axis are divided: as they were along the others."""
    return jax.tree.map(lambda leaf: PartitionSpec(*tuple(partition_spec(leaf))[1:]), tree)


def along_records(*trees: PyTree) -> PartitionSpec:
    """How the leading axis of the trees' arrays is divided: as that of the first that is."""
    for leaf in jax.tree.leaves(trees):
        leading = tuple(partition_spec(leaf))[:1]
        if leading not in ((), (None,)):
            return PartitionSpec(*leading)
    return PartitionSpec()


def on_auto_axes(
    function: Callable[[*Arguments], Returned], specs: Specs, *args: *Arguments
) -> Returned:
    """`function(*args)`, with the explicit axes of the arguments' mesh handed to the compiler."""
    mesh = explicit_mesh(*args)
    if mesh is None:
        return function(*args)
    axes = tuple(
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Explicit
    )
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
        return _concretely(function, specs, args)
    shardings = _shardings(mesh, specs)
    # Of one type with a function, of another, a decorator, without.
    run = jax.sharding.auto_axes(function, axes=axes, out_sharding=shardings)
    return run(*args)  # pyrefly: ignore


def on_explicit_too(
    function: Callable[[*Arguments], Returned], specs: Specs, *args: *Arguments
) -> Returned:
    """`on_auto_axes` of arguments of every kind: JAX keys, and what is no array (None, floats)."""
    if explicit_mesh(*args) is None:
        return function(*args)
    leaves, tree = jax.tree.flatten(args)
    arrays = [hasattr(leaf, "dtype") for leaf in leaves]
    given, typed = bits_of_keys([x for x, array in zip(leaves, arrays, strict=True) if array])

    def with_the_rest(given: list[jax.Array]):
        found = iter(typed(given))
        pairs = zip(leaves, arrays, strict=True)
        return function(*tree.unflatten([next(found) if a else x for x, a in pairs]))

    return on_auto_axes(with_the_rest, specs, given)


def _concretely(
    function: Callable[[*Arguments], Returned], specs: Specs, args: tuple[*Arguments]
) -> Returned:
    """The same for arrays: they keep their places, on a mesh of the same devices."""
    with automatic(*args) as mesh:
        results = function(*on_auto_mesh(args))
    return results if mesh is None else jax.device_put(results, _shardings(mesh, specs))


@contextlib.contextmanager
def automatic(*trees: PyTree) -> Iterator[Mesh | None]:
    """Yields the trees' explicit mesh; a mesh in force is in force in its automatic form."""
    mesh = next((x.sharding.mesh for x in jax.tree.leaves(trees) if explicit_mesh(x)), None)
    with automatic_in_force(mesh):
        yield mesh


@contextlib.contextmanager
def automatic_in_force(mesh: Mesh | None) -> Iterator[None]:
    """Where a mesh is in force, this one is, with automatic axes; None for the one that is."""
    if mesh is None or not jax.sharding.get_abstract_mesh().axis_names:
        yield
    else:
        with jax.set_mesh(automatic_mesh(mesh)):
            yield


@contextlib.contextmanager
def on_one_device() -> Iterator[None]:
    """With no mesh in force, whatever was: for work that is one device's own."""
    if not jax.sharding.get_abstract_mesh().axis_names:
        yield
    else:
        with jax.set_mesh(Mesh(np.empty((), object), ())):
            yield


def automatic_mesh(mesh: Mesh) -> Mesh:
    """The same devices and names with automatic axes."""
    if AxisType.Explicit not in mesh.axis_types:
        return mesh
    kinds = tuple(AxisType.Auto if k == AxisType.Explicit else k for k in mesh.axis_types)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)


def on_auto_mesh(tree: AnyTree) -> AnyTree:
    """The tree with arrays on explicit axes on automatic axes of the same devices."""

    def moved(leaf):
        if explicit_mesh(leaf) is None:
            return leaf
        return jax.device_put(
            leaf, NamedSharding(automatic_mesh(leaf.sharding.mesh), leaf.sharding.spec)
        )

    return jax.tree.map(moved, tree)


def placed_like(tree: AnyTree, like: PyTree) -> AnyTree:
    """The tree with every array where the one in `like` is, if that is on explicit axes."""
    return jax.tree.map(
        lambda x, y: x if explicit_mesh(y) is None else jax.device_put(x, y.sharding), tree, like
    )


def on_explicit_mesh(tree: AnyTree, mesh: Mesh) -> AnyTree:
    """Arrays on the automatic form of a mesh, where they are, on the mesh itself."""
    if AxisType.Explicit not in mesh.axis_types:
        return tree
    return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, x.sharding.spec)), tree)


def _shardings(mesh: Mesh | AbstractMesh, specs: Specs) -> PyTree[NamedSharding]:
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda spec: isinstance(spec, PartitionSpec),
    )


def _sharding(leaf: object) -> NamedSharding | None:
    try:
        return jax.typeof(leaf).sharding
    except (AttributeError, TypeError, OverflowError):  # the last of a number of Python's own
        return None
