"""From a mechanism to the few numbers that price it.

What remains of each step of a run is an *atom*, the pair of distributions that dominates it: a
Gaussian pair, N(0, 1) against N(μ, 1), all of which compose exactly into one by adding μ²
(`pairs/gaussian.py` lists what such a pair dominates), or a sampled one, whose displacement, rate
and pair its scheme says. The tables below list pairs and schemes: a new one is a file and a
line there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.tree_util import PyTreeDef
from jaxtyping import Array, Float

from dpjax._numerics import float64
from dpjax._numerics.arrays import Numbers, namespace, tree_map
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import (
    Composed,
    Mechanism,
    RandomAllocationCorrelated,
    Repeated,
    Shuffled,
    TruncatedPoissonSampled,
    UserLevel,
    WithReplacement,
    flatten,
)
from dpjax.accounting.mechanisms.base import walk
from dpjax.accounting.pairs import allocation, fixed_batches, poisson
from dpjax.accounting.pairs.allocation import ALLOCATION
from dpjax.accounting.pairs.fixed_batches import Symmetrised
from dpjax.accounting.pairs.gaussian import DOMINATED, gaussian_pair, whole_run
from dpjax.accounting.pairs.on_grid import GaussianGrid
from dpjax.accounting.pairs.poisson import PoissonPair, Replace, Sampled
from dpjax.accounting.pairs.protocol import GridPair, SamplingRule, StepGroup
from dpjax.accounting.pairs.stacked import flatten_run, groups

Result = TypeVar("Result")

# What contour integration and Rényi curves read.
PAIRS: dict[str, Sampled] = {pair.name: pair for pair in (PoissonPair(), Replace(), Symmetrised())}
# What loss distributions read.
GRIDS: dict[str, GridPair] = {**PAIRS, "gaussian": GaussianGrid(), "allocation": ALLOCATION}
SAMPLING_RULES: dict[type, SamplingRule] = {
    scheme.kind: scheme
    for scheme in (
        poisson.POISSON_RULE,
        allocation.ALLOCATION_RULE,
        fixed_batches.BATCH_RULE,
        poisson.CYCLIC,
    )
}


class GroupedSteps(NamedTuple):
    """Everything a numerical method needs to know of one setting.

    Fields:
        gaussian_mu2: Σ μ² of the Gaussian pairs.
        sampled: the other steps, by the name of their scheme.
    """

    gaussian_mu2: Float[Array, ""]
    sampled: dict[str, StepGroup]


def _refuse(step: Mechanism, why: str) -> UnsupportedQuery:
    return UnsupportedQuery(f"{type(step).__name__} {why}")


@functools.cache
def atom_kind(tree: PyTreeDef, adjacency: Adjacency) -> str:
    """Which atom a step of this structure becomes: "gaussian", or the name of a scheme."""
    # the structure decides, never the numbers
    return _read_kind(jax.tree.unflatten(tree, [None] * tree.num_leaves), adjacency)


def _read_kind(step: Mechanism, adjacency: Adjacency) -> str:
    if type(step) in DOMINATED:  # one Gaussian pair, whatever releases it is made of
        return "gaussian"
    if type(step) in SAMPLING_RULES:
        scheme = SAMPLING_RULES[type(step)]
        why = scheme.refusal(step, adjacency, lambda inner: _read_kind(inner, adjacency))
        if why:
            raise _refuse(step, why)
        return scheme.name
    if isinstance(step, Shuffled):
        inner = _read_kind(step.mechanism, adjacency)
        if inner != "gaussian" or whole_run(step.mechanism):
            raise _refuse(
                step,
                "is priced around Gaussian releases only: do not sample inside a shuffled pass",
            )
        return "gaussian"
    if isinstance(step, UserLevel):
        # μ-GDP for a record is kμ-GDP for k of them (Dong, Roth and Su 2022, Theorem 2.14).
        inner = step.mechanism
        if isinstance(inner, TruncatedPoissonSampled) and adjacency is Adjacency.ADD_REMOVE:
            raise _refuse(
                step,
                "around TruncatedPoissonSampled has no price: that is for data of one size, which "
                "a user changes by several records; ask with adjacency=Adjacency.REPLACE_ONE",
            )
        why = ""
        try:
            if _read_kind(inner, adjacency) == "gaussian":
                return "gaussian"
        except UnsupportedQuery as refusal:
            why = f" ({refusal})"
        raise _refuse(
            step,
            f"around {type(inner).__name__} is charged by group privacy, of a whole run that has a "
            f"price: put UserLevel around all of it{why}",
        )
    if isinstance(step, WithReplacement):
        why = (
            "is priced around one Gaussian release only"
            if adjacency is Adjacency.REPLACE_ONE
            else "is priced for REPLACE_ONE only: a record more or less changes with which "
            "probability each of the others is drawn, and no theorem covers that; ask with "
            "adjacency=Adjacency.REPLACE_ONE, or sample by PoissonSampled"
        )
        raise _refuse(step, why)
    if isinstance(step, RandomAllocationCorrelated):
        raise _refuse(
            step,
            "is priced for ADD_REMOVE only, and neither sampled nor shuffled: ask with "
            "adjacency=Adjacency.ADD_REMOVE, or take the bins for public by CorrelatedGaussian",
        )
    if isinstance(step, Repeated):
        return _read_kind(step.mechanism, adjacency)
    if isinstance(step, Composed):
        # of no steps nothing is released
        kinds = {_read_kind(part, adjacency) for part in step.mechanisms} or {"gaussian"}
        return kinds.pop() if len(kinds) == 1 else "mixed"
    raise _refuse(step, "is not dominated by a Gaussian or subsampled Gaussian pair")


def only_gaussian(run: Mechanism, adjacency: Adjacency) -> bool:
    """Whether the run is exactly one Gaussian pair, however many releases it has."""
    return is_gaussian_family(run, adjacency, ())


def has_attained_atoms(run: Mechanism) -> bool:
    """Whether some neighbours attain the atoms of the run, so that lower ends may be read off them.

    Not those of a whole run, whose pair is an upper bound only, nor of a shuffled pass, in which
    the record's batch is secret.
    """
    parts = list(walk(run))
    own = (
        SAMPLING_RULES[type(part)].exhibited(part) for part in parts if type(part) in SAMPLING_RULES
    )
    # one step whose pair nobody attains spoils the whole
    return all(own) and not (whole_run(run) or any(isinstance(p, Shuffled) for p in parts))


def check_gaussian_family(run: Mechanism, adjacency: Adjacency) -> None:
    """Raise `UnsupportedQuery` unless the run consists of (subsampled) Gaussian atoms."""
    for step, _ in flatten(run):
        atom_kind(jax.tree.structure(step), adjacency)


def is_gaussian_family(run: Mechanism, adjacency: Adjacency, known: Container[str] = PAIRS) -> bool:
    """Whether the run consists of Gaussian atoms and of pairs that are known: of `PAIRS`, or of
    another of the tables.
    """
    try:
        kinds = {atom_kind(jax.tree.structure(step), adjacency) for step, _ in flatten(run)}
    except UnsupportedQuery:
        return False
    return all(
        _pair_name(kind, adjacency, attained) in known
        for kind in kinds - {"gaussian"}
        for attained in (False, True)
    )


def atoms(key: tuple, adjacency: Adjacency, leaves: Sequence[Array]) -> GroupedSteps:
    """Read one setting's atoms from the leaves of `flatten_run`; call it inside a float64 core."""
    xp = namespace(key, leaves)
    mu2 = xp.zeros(())
    found: dict[str, list[StepGroup]] = {}
    for tree, step, count in groups(key, leaves):
        kind = atom_kind(tree, adjacency)  # all steps of a group are of one kind
        if kind == "gaussian":
            pair = gaussian_pair(step)
            own = pair.add_remove if adjacency is Adjacency.ADD_REMOVE else pair.replace_one
            # Gaussian pairs compose by adding μ²; 0·∞ is 0 uses
            mu2 = mu2 + xp.sum(xp.where(count > 0, count * own, 0.0))
        else:
            mu, rate, *times = SAMPLING_RULES[type(step)].parameters(step, adjacency)
            # a scheme may stand for several steps at once
            own = xp.broadcast_arrays(mu, rate, *(count * n for n in times or (1.0,)))
            found.setdefault(kind, []).append(StepGroup(*(xp.reshape(v, (-1,)) for v in own)))
    return GroupedSteps(mu2, {kind: _join(parts) for kind, parts in found.items()})


def _join(parts: Sequence[StepGroup]) -> StepGroup:
    xp = namespace(parts)
    return StepGroup(*(xp.concatenate(column) for column in zip(*parts, strict=True)))


def by_pair(
    atoms: GroupedSteps, adjacency: Adjacency, *, attained: bool = False
) -> dict[str, StepGroup]:
    """The sampled steps by the pair that dominates them, or by one that some neighbours attain."""
    found: dict[str, list[StepGroup]] = {}
    for name, steps in atoms.sampled.items():
        found.setdefault(_pair_name(name, adjacency, attained), []).append(steps)
    return {name: _join(parts) for name, parts in found.items()}


def by_scheme(
    slopes: dict[str, Any], atoms: GroupedSteps, adjacency: Adjacency
) -> dict[str, StepGroup]:
    """Slopes of `by_pair` as slopes of the atoms' own steps."""
    found, start = {}, dict.fromkeys(slopes, 0)
    for name, steps in atoms.sampled.items():
        pair = _pair_name(name, adjacency, False)
        # the atoms lie there in the order of by_pair
        first, last = start[pair], start[pair] + steps.mu.shape[0]
        found[name], start[pair] = StepGroup(*(v[first:last] for v in slopes[pair])), last
    return found


def list_directions(pairs: Iterable[str]) -> tuple[int, ...]:
    """(1, −1) where two directions have to be asked."""
    return (1, -1) if any(GRIDS[pair].directed for pair in pairs) else (1,)


def _pair_name(scheme: str, adjacency: Adjacency, attained: bool) -> str:
    own = next(s for s in SAMPLING_RULES.values() if s.name == scheme)
    return (own.attained if attained else own.dominating)(adjacency)


@functools.lru_cache(maxsize=256)
def _core(kernel: Callable, key: tuple, adjacency: Adjacency, size: int) -> Callable:
    def core(*args: Array) -> Numbers:
        return kernel(atoms(key, adjacency, args[:size]), adjacency, *args[size:])

    return core


@functools.lru_cache(maxsize=256)
def _slopes_core(kernel: Callable, key: tuple, adjacency: Adjacency, size: int) -> Callable:
    """A kernel's slopes by the atoms, pulled back to the leaves."""

    def pull(leaves: Sequence[Array], by_atoms: GroupedSteps) -> tuple[Array, ...]:
        def read(*leaves: Array) -> GroupedSteps:
            return atoms(key, adjacency, leaves)

        return jax.vjp(read, *leaves)[1](by_atoms)  # reverse mode: a run has many leaves

    compiled = jax.jit(pull)

    def core(*args: Array) -> Any:
        leaves = tuple(args[:size])
        out, by_atoms, by_extra = kernel(atoms(key, adjacency, leaves), adjacency, *args[size:])
        if float64.is_traced(*args):
            by_leaves = pull(leaves, by_atoms)
        else:
            with float64.float64_scope():
                # concrete: compiled once for each structure
                by_leaves = tuple(np.asarray(v) for v in compiled(leaves, by_atoms))
        return out, type(out)(*[(*by_leaves, *by_extra)] * len(out))

    return core


def query(
    kernel: Callable[..., Result],
    run: Mechanism,
    adjacency: Adjacency,
    extra: Sequence[Any] = (),
    extra_ndims: Sequence[int] = (),
    *,
    batch: int = 8,
    rounding: float64.Rounding = "up",
    ladder: float64.Ladder | None = None,
    derivative: float64.Derivative | None = None,
) -> Result:
    """Evaluate `kernel(atoms, adjacency, *extra)` in float64 for every setting of the run.

    Args:
        kernel: pure function of one setting, at module level (compilations are cached by it).
        extra: further arguments, numbers or arrays or tracers, that broadcast with the run's
            fields.
        extra_ndims: how many trailing axes of each belong to one setting.
        batch, rounding: see `dpjax._numerics.float64.evaluate`.
        ladder: see `float64.Ladder`; of kernels.
        derivative: see `float64.Derivative`; its kernels return (out, by_atoms, by_extra), the
            slopes that all leaves of the named tuple out share.
    """
    check_gaussian_family(run, adjacency)
    ready = flatten_run(run)
    of = (ready.key, adjacency, len(ready.leaves))
    core = _core(kernel, *of)
    if ladder is not None:
        ladder = ladder._replace(cores=tuple(_core(k, *of) for k in ladder.cores))
    if derivative is not None:
        finer = derivative.ladder
        assert finer is not None
        finer = finer._replace(cores=tuple(_slopes_core(k, *of) for k in finer.cores))
        derivative = derivative._replace(core=_slopes_core(derivative.core, *of), ladder=finer)  # pyrefly: ignore
    return float64.evaluate(
        core,
        (*ready.leaves, *extra),
        (*ready.ndims, *extra_ndims),
        batch=batch,
        rounding=rounding,
        ladder=ladder,
        derivative=derivative,
    )


def _itself(found: GroupedSteps, adjacency: Adjacency) -> GroupedSteps:
    return found


def all_settings(run: Mechanism, adjacency: Adjacency) -> tuple[GroupedSteps, tuple[int, ...]]:
    """The atoms of every setting of a concrete run, and the shape of the sweep."""
    found = query(_itself, run, adjacency)
    return found, np.shape(found.gaussian_mu2)


def one_setting(every: GroupedSteps, index: tuple[int, ...]) -> GroupedSteps:
    """Those of one setting, at an index of a sweep that the run's own broadcasts to."""
    lead = np.shape(every.gaussian_mu2)
    own = index[len(index) - len(lead) :]
    # an axis of length one serves all settings
    place = tuple(0 if n == 1 else i for n, i in zip(lead, own, strict=True))
    return tree_map(lambda a: a[place], every)
