"""From a mechanism to the few numbers that price it.

Nested `Repeated` and `Composed` are flattened into groups of equally built steps, stacked into
arrays: ten thousand different steps are one vectorised evaluation. What remains of each step is an
*atom*, the
pair of distributions that dominates it:

* `gaussian`: N(0, 1) against N(μ, 1); these compose exactly into one, by adding μ²;
* `poisson`: the Poisson-subsampled pair of the adjacency, displacement μ (of adding a record), rate
  q;
* `fixed`: the fixed-batch pair, displacement μ (of replacing a record), rate q.

A mechanism that is dominated by a Gaussian pair joins by `register_gaussian`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics import float64
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import (
    Composed,
    FixedBatchSampled,
    Gaussian,
    Mechanism,
    PoissonSampled,
    Repeated,
    Shuffled,
)


class GaussianPair(NamedTuple):
    """A release dominated by N(0, 1) against N(μ, 1), with μ² for each adjacency.

    >>> GaussianPair(1.0, 4.0).replace_one
    4.0
    """

    add_remove: Any
    replace_one: Any


class Steps(NamedTuple):
    """Subsampled steps: displacement over noise, sampling rate and multiplicity, each of shape [m].

    >>> Steps(jnp.ones(2), jnp.ones(2), jnp.ones(2)).mu.shape
    (2,)
    """

    mu: Float[Array, "m"]
    rate: Float[Array, "m"]
    count: Float[Array, "m"]


class Atoms(NamedTuple):
    """Everything a numerical method needs to know of one setting.

    >>> Atoms(jnp.zeros(()), None, None).poisson is None
    True
    """

    gaussian_mu2: Float[Array, ""]
    poisson: Steps | None
    fixed: Steps | None


class Prepared(NamedTuple):
    """Grouped leaves of a mechanism: arrays to pass into a core, and the static key to read them
    by.

    >>> prepare(Repeated(Gaussian(2.0), 3)).key[0][0]
    PyTreeDef(CustomNode(Gaussian[...], [*]))
    """

    leaves: tuple[Any, ...]
    ndims: tuple[int, ...]
    key: tuple


_GAUSSIAN: dict[type, tuple[Callable[[Any], GaussianPair], bool]] = {}


def register_gaussian(
    kind: type, pair: Callable[[Any], GaussianPair], *, samplable: bool = True
) -> None:
    """Say that a mechanism is dominated by a Gaussian pair, so that it composes with everything
    else.

    Arguments:
        kind: the mechanism's class.
        pair: from the mechanism, its fields float64 arrays of one common shape, to `GaussianPair`.
        samplable: whether adding a record moves the release by a contribution of bounded norm, so
            that amplification by sampling applies. False for whole runs (hidden-state bounds).

    >>> register_gaussian(Gaussian, _gaussian)  # how this module registers it
    >>> lowers(Gaussian(2.0), Adjacency.ADD_REMOVE)
    True
    """
    _GAUSSIAN[kind] = (pair, samplable)
    atom_kind.cache_clear()


def flatten(run: Mechanism) -> list[tuple[Mechanism, tuple[Any, ...]]]:
    """Steps of a run with the factors of their multiplicities, `Repeated` and `Composed` undone.

    >>> flatten(Repeated(Composed((Gaussian(1.0), Repeated(Gaussian(2.0), 3))), 5))
    [(Gaussian(noise_multiplier=1.0), (5,)), (Gaussian(noise_multiplier=2.0), (5, 3))]
    """
    found: list[tuple[Mechanism, tuple[Any, ...]]] = []
    stack: list[tuple[Mechanism, tuple[Any, ...]]] = [(run, ())]
    while stack:
        step, factors = stack.pop()
        if isinstance(step, Repeated):
            stack.append((step.mechanism, (*factors, step.steps)))
        elif isinstance(step, Composed):
            stack.extend((part, factors) for part in reversed(step.mechanisms))
        else:
            found.append((step, factors))
    return found


def _stack(values: Sequence[Any]) -> Any:
    """Stack along a new last axis, broadcasting the axes in front; no arithmetic."""
    if float64.is_traced(*values):
        return jnp.stack(jnp.broadcast_arrays(*(jnp.asarray(v, float) for v in values)), axis=-1)
    if all(np.ndim(v) == 0 for v in values):
        return np.asarray(values, np.float64)
    return np.stack(np.broadcast_arrays(*(np.asarray(v, np.float64) for v in values)), axis=-1)


def _merge(leaves: list[Any], factors: Any) -> tuple[list[Any], Any]:
    """Count identical concrete steps once, and pad to a power of two so that few sizes compile."""
    m = factors.shape[0]
    rows = np.stack(leaves, axis=-1) if leaves else np.zeros((m, 0))
    unique, inverse = np.unique(rows, axis=0, return_inverse=True)
    counts = np.zeros(len(unique))
    np.add.at(counts, inverse.ravel(), np.prod(factors, axis=-1))
    size = 1 << (len(unique) - 1).bit_length()
    extra = size - len(unique)
    unique = np.concatenate([unique, np.repeat(unique[-1:], extra, axis=0)])
    counts = np.concatenate([counts, np.zeros(extra)])
    return list(unique.T), counts[:, None]


def prepare(run: Mechanism) -> Prepared:
    """Group a run's steps by their build and stack their fields.

    >>> prepare(Composed((Gaussian(1.0), Gaussian(2.0), Gaussian(1.0)))).leaves
    (array([1., 2.]), array([[2.], [1.]]))
    """
    if not isinstance(run, Mechanism):
        raise TypeError(f"expected a mechanism, such as Gaussian(1.1), got {run!r}")
    groups: dict[Any, list[tuple[list[Any], tuple[Any, ...]]]] = {}
    for step, factors in flatten(run):
        leaves, tree = jax.tree.flatten(step)
        groups.setdefault(tree, []).append((leaves, factors))
    arrays: list[Any] = []
    ndims: list[int] = []
    key = []
    for tree, members in groups.items():
        columns = [
            _stack(column) for column in zip(*(leaves for leaves, _ in members), strict=True)
        ]
        depth = max(len(f) for _, f in members)
        padded = [
            _stack([*f, *([1.0] * (depth - len(f)))]) if depth else np.ones(1) for _, f in members
        ]
        if float64.is_traced(*padded):
            factors = jnp.stack(
                jnp.broadcast_arrays(*(jnp.asarray(p, float) for p in padded)), axis=-2
            )
        else:
            factors = np.stack(np.broadcast_arrays(*padded), axis=-2)
        flat = all(not float64.is_traced(c) and np.ndim(c) == 1 for c in columns)
        if flat and len(members) > 1 and not float64.is_traced(factors) and np.ndim(factors) == 2:
            columns, factors = _merge(columns, factors)
        arrays += [*columns, factors]
        ndims += [1] * len(columns) + [2]
        key.append((tree, len(columns)))
    return Prepared(tuple(arrays), tuple(ndims), tuple(key))


def _refuse(step: Mechanism, why: str) -> UnsupportedQuery:
    return UnsupportedQuery(f"{type(step).__name__} {why}")


@functools.cache
def atom_kind(tree: Any, adjacency: Adjacency) -> str:
    """Which atom a step of this structure becomes: `gaussian`, `poisson` or `fixed`.

    >>> atom_kind(jax.tree.structure(Gaussian(1.0)), Adjacency.ADD_REMOVE)
    'gaussian'
    """
    return _kind_of(jax.tree.unflatten(tree, [None] * tree.num_leaves), adjacency)


def _kind_of(step: Mechanism, adjacency: Adjacency) -> str:
    if type(step) in _GAUSSIAN:
        return "gaussian"
    if isinstance(step, Shuffled):
        if _kind_of(step.mechanism, adjacency) != "gaussian":
            raise _refuse(
                step,
                "is priced around Gaussian releases only: do not sample inside a shuffled pass",
            )
        return "gaussian"
    if isinstance(step, PoissonSampled):
        inner = _kind_of(step.mechanism, adjacency)
        if inner == "fixed" or not _samplable(step.mechanism):
            raise _refuse(
                step, f"around {type(step.mechanism).__name__} has no amplification theorem here"
            )
        if inner == "poisson" and not isinstance(step.mechanism, PoissonSampled):
            raise _refuse(
                step, "around a composition of sampled steps has no amplification theorem here"
            )
        return "poisson"
    if isinstance(step, FixedBatchSampled):
        if adjacency is not Adjacency.REPLACE_ONE:
            raise _refuse(
                step,
                "is defined for REPLACE_ONE only (a batch of fixed size does not survive adding a "
                "record): ask with adjacency=Adjacency.REPLACE_ONE, or sample by PoissonSampled",
            )
        if _kind_of(step.mechanism, adjacency) != "gaussian" or not _samplable(step.mechanism):
            raise _refuse(step, "is priced around Gaussian releases only")
        return "fixed"
    if isinstance(step, Repeated):
        return _kind_of(step.mechanism, adjacency)
    if isinstance(step, Composed):
        kinds = {_kind_of(part, adjacency) for part in step.mechanisms} or {"gaussian"}
        return kinds.pop() if len(kinds) == 1 else "mixed"
    raise _refuse(step, "is not dominated by a Gaussian or subsampled Gaussian pair")


def _samplable(step: Mechanism) -> bool:
    if type(step) in _GAUSSIAN:
        return _GAUSSIAN[type(step)][1]
    if isinstance(step, Composed):
        return all(_samplable(part) for part in step.mechanisms)
    return not isinstance(step, Shuffled) and _samplable(step.mechanism)  # pyrefly: ignore


def check_lowers(run: Mechanism, adjacency: Adjacency) -> None:
    """Raise `UnsupportedQuery` unless the run consists of (subsampled) Gaussian atoms.

    >>> check_lowers(Repeated(Gaussian(1.0), 10), Adjacency.ADD_REMOVE)
    """
    for step, _ in flatten(run):
        atom_kind(jax.tree.structure(step), adjacency)


def lowers(run: Mechanism, adjacency: Adjacency) -> bool:
    """Whether the run consists of (subsampled) Gaussian atoms.

    >>> lowers(FixedBatchSampled(Gaussian(1.0), 1, 10), Adjacency.ADD_REMOVE)
    False
    """
    try:
        check_lowers(run, adjacency)
    except UnsupportedQuery:
        return False
    return True


def _pair(step: Mechanism) -> GaussianPair:
    """Total Gaussian pair of a step whose kind is `gaussian`, all of it on the same records."""
    if type(step) in _GAUSSIAN:
        return _GAUSSIAN[type(step)][0](step)
    if isinstance(step, Shuffled):
        return _pair(step.mechanism)
    if isinstance(step, Repeated):
        inner = _pair(step.mechanism)
        return GaussianPair(step.steps * inner.add_remove, step.steps * inner.replace_one)
    assert isinstance(step, Composed)
    pairs = [_pair(part) for part in step.mechanisms]
    return GaussianPair(sum(p.add_remove for p in pairs), sum(p.replace_one for p in pairs))


def _displacement_and_rate(step: Mechanism, adjacency: Adjacency) -> tuple[Any, Any]:
    if isinstance(step, FixedBatchSampled):
        return jnp.sqrt(_pair(step.mechanism).replace_one), step.batch_size / step.population
    assert isinstance(step, PoissonSampled)
    if isinstance(step.mechanism, PoissonSampled):
        mu, rate = _displacement_and_rate(step.mechanism, adjacency)
        return mu, rate * step.rate
    pair = _pair(step.mechanism)
    mu2 = pair.add_remove
    if adjacency is Adjacency.REPLACE_ONE:
        # Antipodal displacements of half the replace-one diameter, if that is the larger.
        mu2 = jnp.maximum(mu2, pair.replace_one / 4.0)
    return jnp.sqrt(mu2), step.rate


def atoms(key: tuple, adjacency: Adjacency, leaves: Sequence[Array]) -> Atoms:
    """Read one setting's atoms from the leaves of `prepare`; call it inside a float64 core.

    >>> ready = prepare(Repeated(Gaussian(2.0), 3))
    >>> with float64.float64_scope():
    ...     float(atoms(ready.key, Adjacency.ADD_REMOVE, ready.leaves).gaussian_mu2)
    0.75
    """
    mu2 = jnp.zeros(())
    found: dict[str, list[Steps]] = {"poisson": [], "fixed": []}
    position = 0
    for tree, width in key:
        *fields, factors = leaves[position : position + width + 1]
        position += width + 1
        count = jnp.prod(factors, axis=-1)
        step = jax.tree.unflatten(tree, fields)
        kind = atom_kind(tree, adjacency)
        if kind == "gaussian":
            pair = _pair(step)
            own = pair.add_remove if adjacency is Adjacency.ADD_REMOVE else pair.replace_one
            mu2 = mu2 + jnp.sum(jnp.where(count > 0, count * own, 0.0))
        else:
            mu, rate = _displacement_and_rate(step, adjacency)
            found[kind].append(Steps(*jnp.broadcast_arrays(mu, rate, count)))

    def join(parts: list[Steps]) -> Steps | None:
        return Steps(*(jnp.concatenate(c) for c in zip(*parts, strict=True))) if parts else None

    return Atoms(mu2, join(found["poisson"]), join(found["fixed"]))


@functools.lru_cache(maxsize=256)
def _core(kernel: Callable, key: tuple, adjacency: Adjacency, size: int) -> Callable:
    def core(*args: Array) -> Any:
        return kernel(atoms(key, adjacency, args[:size]), adjacency, *args[size:])

    return core


def query(
    kernel: Callable,
    run: Mechanism,
    adjacency: Adjacency,
    extra: Sequence[Any] = (),
    extra_ndims: Sequence[int] = (),
    *,
    batch: int = 8,
    rounding: float64.Rounding = "up",
    finer: Sequence[Callable] = (),
    poor: Callable[[Any], Any] | None = None,
    merge: Callable[[Any, Any], Any] = lambda old, new: new,
) -> Any:
    """Evaluate `kernel(atoms, adjacency, *extra)` in float64 for every setting of the run.

    Arguments:
        kernel: pure function of one setting, at module level (compilations are cached by it).
        extra: further arguments, numbers or arrays or tracers, that broadcast with the run's
            fields.
        extra_ndims: how many trailing axes of each belong to one setting.
        batch, rounding: see `dpjax._numerics.float64.evaluate`.
        finer, poor, merge: kernels to repeat with where `poor` marks the result; see
            `float64.Ladder`.

    >>> query(lambda atoms, adjacency: atoms.gaussian_mu2, Gaussian(2.0), Adjacency.REPLACE_ONE)
    array(1.)
    """
    check_lowers(run, adjacency)
    ready = prepare(run)
    size = len(ready.leaves)
    core = _core(kernel, ready.key, adjacency, size)
    ladder = None
    if poor is not None:
        cores = tuple(_core(k, ready.key, adjacency, size) for k in finer)
        ladder = float64.Ladder(cores, poor, merge)
    return float64.evaluate(
        core,
        (*ready.leaves, *extra),
        (*ready.ndims, *extra_ndims),
        batch=batch,
        rounding=rounding,
        ladder=ladder,
    )


def _gaussian(step: Gaussian) -> GaussianPair:
    mu2 = step.noise_multiplier**-2.0
    return GaussianPair(mu2, 4.0 * mu2)


register_gaussian(Gaussian, _gaussian)
