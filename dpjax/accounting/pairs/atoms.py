"""From a mechanism to the few numbers that price it.

Nested `Repeated` and `Composed` are flattened into groups of equally built steps, stacked into
arrays: ten thousand different steps are one vectorised evaluation. What remains of each step is an
*atom*, the
pair of distributions that dominates it:

* `gaussian`: N(0, 1) against N(μ, 1); these compose exactly into one, by adding μ²;
* `poisson`: the Poisson-subsampled pair of the adjacency, displacement μ (of adding a record), rate
  q;
* `fixed`: the fixed-batch pair, displacement μ (of replacing a record), rate q.

What a Gaussian pair dominates is listed in `pairs/gaussian.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics import float64
from dpjax._numerics.arrays import namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import (
    Composed,
    FixedBatchSampled,
    Mechanism,
    PoissonSampled,
    Repeated,
    Shuffled,
    flatten,
)
from dpjax.accounting.mechanisms.base import walk
from dpjax.accounting.pairs.gaussian import PAIRS, GaussianPair


class Steps(NamedTuple):
    """Subsampled steps: displacement over noise, rate and multiplicity, each of shape [m]."""

    mu: Float[Array, "m"]
    rate: Float[Array, "m"]
    count: Float[Array, "m"]


class Atoms(NamedTuple):
    """Everything a numerical method needs to know of one setting."""

    gaussian_mu2: Float[Array, ""]
    poisson: Steps | None
    fixed: Steps | None


class Prepared(NamedTuple):
    """Grouped leaves of a mechanism: arrays to pass into a core, and the static key to read them
    by.
    """

    leaves: tuple[Any, ...]
    ndims: tuple[int, ...]
    key: tuple


def times(step: Mechanism, factors: Sequence[Any]) -> Mechanism:
    """The step used as often as its factors' product says."""
    return functools.reduce(Repeated, factors, step)


def split(
    run: Mechanism, own: Callable[[Mechanism], bool]
) -> tuple[list[tuple[Any, tuple]], Composed]:
    """Steps of one's own (with the factors of their multiplicity), and the rest of a run."""
    mine, rest = [], []
    for step, factors in flatten(run):
        if own(step):
            mine.append((step, factors))
        else:
            rest.append(times(step, factors))
    return mine, Composed(tuple(rest))


def _stack(values: Sequence[Any]) -> Any:
    """Stack along a new last axis, broadcasting the axes in front; no arithmetic."""
    xp: Any = namespace(values)
    if float64.is_traced(*values):
        return xp.stack(xp.broadcast_arrays(*(xp.asarray(v) for v in values)), axis=-1)
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
    """Group a run's steps by their build and stack their fields."""
    xp: Any = namespace(run)
    if not isinstance(run, Mechanism):
        raise TypeError(f"run must be a mechanism, such as Gaussian(1.1), got {run!r}")
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
            factors = xp.stack(xp.broadcast_arrays(*(xp.asarray(p) for p in padded)), axis=-2)
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
    """Which atom a step of this structure becomes: `gaussian`, `poisson` or `fixed`."""
    return _kind_of(jax.tree.unflatten(tree, [None] * tree.num_leaves), adjacency)


def _kind_of(step: Mechanism, adjacency: Adjacency) -> str:
    if type(step) in PAIRS:
        return "gaussian"
    if isinstance(step, Shuffled):
        inner = _kind_of(step.mechanism, adjacency)
        if inner != "gaussian" or _whole_run(step.mechanism):
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
        if inner != "gaussian" and not isinstance(step.mechanism, PoissonSampled):
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


def only_gaussian(run: Mechanism, adjacency: Adjacency) -> bool:
    """Whether the run is exactly one Gaussian pair, however many releases it has."""
    return lowers(run, adjacency) and all(
        _kind_of(step, adjacency) == "gaussian" for step, _ in flatten(run)
    )


def exhibited(run: Mechanism) -> bool:
    """Whether some neighbours attain the atoms of the run, so that lower ends may be read off them.

    Not those of a whole run, whose pair is an upper bound only, nor of a shuffled pass, in which
    the record's batch is secret.
    """
    return not (_whole_run(run) or any(isinstance(part, Shuffled) for part in walk(run)))


def _whole_run(step: Mechanism) -> bool:
    return any(type(part) in PAIRS and not PAIRS[type(part)].step for part in walk(step))


def _samplable(step: Mechanism) -> bool:
    if type(step) in PAIRS:
        return PAIRS[type(step)].step
    if isinstance(step, Composed):
        return all(_samplable(part) for part in step.mechanisms)
    return not isinstance(step, Shuffled) and _samplable(step.mechanism)  # pyrefly: ignore


def check_lowers(run: Mechanism, adjacency: Adjacency) -> None:
    """Raise `UnsupportedQuery` unless the run consists of (subsampled) Gaussian atoms."""
    for step, _ in flatten(run):
        atom_kind(jax.tree.structure(step), adjacency)


def lowers(run: Mechanism, adjacency: Adjacency) -> bool:
    """Whether the run consists of (subsampled) Gaussian atoms."""
    try:
        check_lowers(run, adjacency)
    except UnsupportedQuery:
        return False
    return True


def _pair(step: Mechanism) -> GaussianPair:
    """Total Gaussian pair of a step whose kind is `gaussian`, all of it on the same records."""
    if type(step) in PAIRS:
        return PAIRS[type(step)].pair(step)
    if isinstance(step, Shuffled):
        return _pair(step.mechanism)
    if isinstance(step, Repeated):
        inner = _pair(step.mechanism)
        return GaussianPair(step.steps * inner.add_remove, step.steps * inner.replace_one)
    assert isinstance(step, Composed)
    pairs = [_pair(part) for part in step.mechanisms]
    return GaussianPair(sum(p.add_remove for p in pairs), sum(p.replace_one for p in pairs))


def _displacement_and_rate(step: Mechanism, adjacency: Adjacency) -> tuple[Any, Any]:
    xp: Any = namespace(step)
    if isinstance(step, FixedBatchSampled):
        return xp.sqrt(_pair(step.mechanism).replace_one), step.batch_size / step.population
    assert isinstance(step, PoissonSampled)
    if isinstance(step.mechanism, PoissonSampled):
        mu, rate = _displacement_and_rate(step.mechanism, adjacency)
        return mu, rate * step.rate
    pair = _pair(step.mechanism)
    mu2 = pair.add_remove
    if adjacency is Adjacency.REPLACE_ONE:
        # Antipodal displacements of half the replace-one diameter, if that is the larger.
        mu2 = xp.maximum(mu2, pair.replace_one / 4.0)
    return xp.sqrt(mu2), step.rate


def atoms(key: tuple, adjacency: Adjacency, leaves: Sequence[Array]) -> Atoms:
    """Read one setting's atoms from the leaves of `prepare`; call it inside a float64 core."""
    xp: Any = namespace(key, leaves)
    mu2 = xp.zeros(())
    found: dict[str, list[Steps]] = {"poisson": [], "fixed": []}
    position = 0
    for tree, width in key:
        *fields, factors = leaves[position : position + width + 1]
        position += width + 1
        count = xp.prod(factors, axis=-1)
        step = jax.tree.unflatten(tree, fields)
        kind = atom_kind(tree, adjacency)
        if kind == "gaussian":
            pair = _pair(step)
            own = pair.add_remove if adjacency is Adjacency.ADD_REMOVE else pair.replace_one
            mu2 = mu2 + xp.sum(xp.where(count > 0, count * own, 0.0))
        else:
            mu, rate = _displacement_and_rate(step, adjacency)
            found[kind].append(Steps(*xp.broadcast_arrays(mu, rate, count)))

    def join(parts: list[Steps]) -> Steps | None:
        return Steps(*(xp.concatenate(c) for c in zip(*parts, strict=True))) if parts else None

    return Atoms(mu2, join(found["poisson"]), join(found["fixed"]))


@functools.lru_cache(maxsize=256)
def _core(kernel: Callable, key: tuple, adjacency: Adjacency, size: int) -> Callable:
    def core(*args: Array) -> Any:
        return kernel(atoms(key, adjacency, args[:size]), adjacency, *args[size:])

    return core


@functools.lru_cache(maxsize=256)
def _slopes_core(kernel: Callable, key: tuple, adjacency: Adjacency, size: int) -> Callable:
    """A kernel's slopes by the atoms, pulled back to the leaves."""

    def pull(leaves: Sequence[Array], by_atoms: Atoms) -> tuple[Array, ...]:
        of_leaves = lambda *leaves: atoms(key, adjacency, leaves)  # noqa: E731
        return jax.vjp(of_leaves, *leaves)[1](by_atoms)

    compiled = jax.jit(pull)

    def core(*args: Array) -> Any:
        leaves = tuple(args[:size])
        out, by_atoms, by_extra = kernel(atoms(key, adjacency, leaves), adjacency, *args[size:])
        if float64.is_traced(*args):
            by_leaves = pull(leaves, by_atoms)
        else:
            with float64.float64_scope():
                by_leaves = tuple(np.asarray(v) for v in compiled(leaves, by_atoms))
        return out, type(out)(*[(*by_leaves, *by_extra)] * len(out))

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
    derivative: float64.Derivative | None = None,
) -> Any:
    """Evaluate `kernel(atoms, adjacency, *extra)` in float64 for every setting of the run.

    Args:
        kernel: pure function of one setting, at module level (compilations are cached by it).
        extra: further arguments, numbers or arrays or tracers, that broadcast with the run's
            fields.
        extra_ndims: how many trailing axes of each belong to one setting.
        batch, rounding: see `dpjax._numerics.float64.evaluate`.
        finer, poor, merge: kernels to repeat with where `poor` marks the result; see
            `float64.Ladder`.
        derivative: see `float64.Derivative`; its kernels return (out, by_atoms, by_extra), the
            slopes that all leaves of the named tuple out share.
    """
    check_lowers(run, adjacency)
    ready = prepare(run)
    size = len(ready.leaves)
    core = _core(kernel, ready.key, adjacency, size)
    ladder = None
    if poor is not None:
        cores = tuple(_core(k, ready.key, adjacency, size) for k in finer)
        ladder = float64.Ladder(cores, poor, merge)
    if derivative is not None:
        first, *rest = (
            _slopes_core(k, ready.key, adjacency, size)
            for k in (derivative.core, *derivative.ladder.cores)  # pyrefly: ignore
        )
        slopes_ladder = derivative.ladder._replace(cores=tuple(rest))  # pyrefly: ignore
        derivative = float64.Derivative(first, slopes_ladder, derivative.out)
    return float64.evaluate(
        core,
        (*ready.leaves, *extra),
        (*ready.ndims, *extra_ndims),
        batch=batch,
        rounding=rounding,
        ladder=ladder,
        derivative=derivative,
    )
