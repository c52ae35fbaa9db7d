"""What a method of pricing is, and the least answer of several.

Every family of bounds ends in a file that exports its `Method`s, as `RENYI_METHODS`;
`answers/methods.py` puts them into one table. A family that prices a part of its run by other
families asks `best_bound` with their methods, so that no family knows the table.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, overload

import jax
import numpy as np
from jax.tree_util import PyTreeDef
from jaxtyping import Array, ArrayLike, PyTree

from dpjax._numerics import float64
from dpjax._numerics.arrays import JAX
from dpjax._numerics.namespace import AnyTree
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.mechanisms.base import map_axes, walk
from dpjax.accounting.pairs.atoms import is_gaussian_family
from dpjax.accounting.typing import Answer, Real

Result = TypeVar("Result")


class Method(NamedTuple):
    """One way to price mechanisms.

    Fields:
        name: what the user passes as `method=`.
        rank: place in `"best"`, cheapest of the tightest first; None keeps it out of `"best"`.
        supports: (mechanism, adjacency) -> bool, from structure alone, never from values.
        epsilon: (mechanism, delta, adjacency) -> upper bound; +inf where it has none.
        delta: (mechanism, epsilon, adjacency) -> upper bound; 1 where it has none.
        epsilon_lower: (mechanism, delta, adjacency) -> lower bound of the best possible ε, from two
            distributions that neighbours can attain; 0 where none are known. Its docstring names
            them.
        rdp: (mechanism, orders, adjacency) -> Rényi curve.
        tradeoff: (mechanism, false_positive_rates, adjacency) -> false-negative rates, lower bound.
        describe: one sentence for certificates: the bound and its source.
        tight: where it has an answer, no other method of the table is below by more than 1e-5 of
            it: `"best"` then asks no further.
        complete: a setting that it has no answer to has none by any other method that supports the
            run, and tight: under a trace, where all that may be asked is compiled, it is the last.
        dear: takes a second rather than milliseconds a setting, and concrete values: asked where
            the others have no tight answer, under a trace through a callback.
        needs: kinds of mechanism, of which a run that is supported holds one, or an attribute that
            one of its kinds has and that is not None; by default any run.
        is_advised: whether a refusal names it as what would answer.
        tier, rests_on: what its answers are trusted for beside the mechanism's own tier and
            assumptions, one sentence each. Where the tier is None the method is dpjax's own, and
            proven; one that `register_method` adds is conditional.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.methods()["rdp"].name
        'rdp'
    """

    name: str
    rank: float | None
    supports: Callable[[Mechanism, Adjacency], bool]
    epsilon: Callable[..., Any] | None = None
    delta: Callable[..., Any] | None = None
    epsilon_lower: Callable[..., Any] | None = None
    rdp: Callable[..., Any] | None = None
    tradeoff: Callable[..., Any] | None = None
    describe: str = ""
    tight: bool = False
    complete: bool = False
    dear: bool = False
    needs: tuple[type, ...] | str = ()
    is_advised: bool = True
    tier: str | None = None
    rests_on: tuple[str, ...] = ()


Part = Literal["epsilon", "delta"]
# What answers one setting after the other, outside traces.
HostPart = Callable[[Mechanism, Real, Adjacency], np.ndarray]


@functools.lru_cache(maxsize=512)
def _placeholder(tree: PyTreeDef) -> tuple[Mechanism, frozenset[type]]:
    """A run of one structure whose numbers are all two (a user of one would be none), its kinds."""
    run = jax.tree.unflatten(tree, [2.0] * tree.num_leaves)  # support depends on structure alone
    return run, frozenset(type(step) for step in walk(run))


@functools.lru_cache(maxsize=4096)
def _is_supported(
    supports: Callable, needs: tuple[type, ...] | str, tree: PyTreeDef, adjacency: Adjacency
) -> bool:
    """Whether a method prices runs of a structure: asked once of each."""
    run, kinds = _placeholder(tree)
    if isinstance(needs, str):
        if all(getattr(kind, needs) is None for kind in kinds):
            return False
    elif needs and not any(issubclass(kind, needs) for kind in kinds):
        return False
    return bool(supports(run, adjacency))


class _Ranked(Sequence[Method]):
    """Methods in the order in which they are asked, each looked at when its turn comes.

    Mostly the first has a tight answer, and whether the others support the run is never asked.
    """

    def __init__(self, able: Iterator[Method]) -> None:
        self._able, self._found = able, list[Method]()

    @overload
    def __getitem__(self, place: int) -> Method: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Method]: ...
    def __getitem__(self, place: int | slice) -> Method | Sequence[Method]:
        if isinstance(place, slice):
            return [*self][place]
        # only as many as are asked for
        self._found += itertools.islice(self._able, max(place + 1 - len(self._found), 0))
        return self._found[place]

    def __len__(self) -> int:
        self._found += self._able
        return len(self._found)

    def __bool__(self) -> bool:
        return any(True for _ in self)


def rank_methods(
    methods: Sequence[Method],
    part: str,
    run: Mechanism,
    adjacency: Adjacency,
    kept: Callable[[Method], bool] = lambda method: True,
) -> Sequence[Method]:
    """The methods kept that answer one part for this run, in the order in which they are asked."""
    tree = jax.tree.structure(run)
    order = sorted(
        (m for m in methods if getattr(m, part) is not None and kept(m)),
        # what takes long comes last, whatever its rank
        key=lambda m: (m.dear, np.inf if m.rank is None else m.rank),
    )
    return _Ranked(m for m in order if _is_supported(m.supports, m.needs, tree, adjacency))


def rank_in_best(
    methods: Sequence[Method], part: str, run: Mechanism, adjacency: Adjacency
) -> Sequence[Method]:
    """The methods that `"best"` asks, in the order in which they are asked."""
    return rank_methods(methods, part, run, adjacency, lambda method: method.rank is not None)


def best_bound(
    part: Part, chosen: Sequence[Method], run: Mechanism, given: Real, adjacency: Adjacency
) -> tuple[Answer, Method]:
    """The least answer of the methods chosen, asked in turn until a tight one has an answer.

    Every answer is an upper bound, hence so is the least. Later methods see only the settings of a
    sweep that are still open: they may be far slower.

    Args:
        part: the question, `"epsilon"` or `"delta"`.
        chosen: at least one method that supports the run, as `rank_methods` orders them.
        run, given, adjacency: as the methods take them.

    Returns:
        The answer, and the method that gave it (of a sweep: the first that was asked).
    """
    nothing = np.inf if part == "epsilon" else 1.0

    def ask(method: Method, run: Mechanism, given: Real) -> Answer:
        return getattr(method, part)(run, given, adjacency)

    if float64.is_traced(run, given):
        return _bound_traced(ask, chosen, nothing, run, given), chosen[0]
    best, used = np.asarray(ask(chosen[0], run, given)), chosen[0]
    open_ = ~(best < nothing) | (not used.tight)  # NaN counts as no answer
    for method in itertools.islice(chosen, 1, None):
        if not open_.any():
            break
        value = ask_open(functools.partial(ask, method), run, given, adjacency, open_, np.inf)
        if np.all((value < best) | (np.isnan(best) & ~np.isnan(value))):
            used = method
        best = np.fmin(best, value)  # NaN has no say
        open_ = open_ & (~(value < nothing) | (not method.tight))
    return float64.to_float(np.asarray(best)), used


def bound_by(
    table: Sequence[Method], part: Part, run: Mechanism, given: Real, adjacency: Adjacency
) -> Answer:
    """The least answer of those methods of a table that have one, see `best_bound`."""
    return best_bound(part, rank_methods(table, part, run, adjacency), run, given, adjacency)[0]


def ask_open(
    ask: Callable,
    run: Mechanism,
    given: Real,
    adjacency: Adjacency,
    open_: np.ndarray,
    other: float,
) -> np.ndarray:
    """Return the answers of the open settings of a sweep, and a number for the others."""
    if open_.ndim == 0 or open_.all() or not is_gaussian_family(run, adjacency):
        return np.asarray(ask(run, given))
    value = np.full(open_.shape, other)
    chosen = functools.partial(chosen_settings, open_)
    value[open_] = ask(*jax.tree.map(chosen, (run, given), (map_axes(run), 0)))
    return value


def chosen_settings(open_: np.ndarray, leaf: ArrayLike, axes: int) -> np.ndarray:
    """The open settings of a number, of which the last axes are one setting's components."""
    tail = np.shape(leaf)[np.ndim(leaf) - axes :]
    return np.broadcast_to(leaf, open_.shape + tail)[open_]


def list_settings(
    tree: AnyTree, axes: PyTree[int]
) -> tuple[tuple[int, ...], Iterator[tuple[tuple[int, ...], AnyTree]]]:
    """The shape of a sweep, and the place and the numbers of each of its settings.

    Args:
        tree: concrete numbers, such as a run and what is asked of it.
        axes: how many last axes of each are one setting's components, as `map_axes` gives them.
    """
    leaves, structure = jax.tree.flatten(tree)
    each = jax.tree.leaves(axes)
    fronts = (np.shape(v)[: np.ndim(v) - n] for v, n in zip(leaves, each, strict=True))
    every = np.ones(np.broadcast_shapes(*fronts), bool)
    rows = [chosen_settings(every, v, n) for v, n in zip(leaves, each, strict=True)]
    settings = (jax.tree.unflatten(structure, row) for row in zip(*rows, strict=True))
    return every.shape, zip(np.ndindex(every.shape), settings, strict=True)


def _bound_traced(
    ask: Callable, chosen: Sequence[Method], nothing: float, run: Mechanism, given: Real
) -> Array:
    """The same under a trace: a later method runs only if a setting is open."""
    dear = [method for method in chosen if method.dear]
    cheap = [method for method in chosen if not method.dear]
    if cheap and cheap[0].complete:
        return ask(cheap[0], run, given)
    leaves, axes = jax.tree.leaves((run, given)), jax.tree.leaves((map_axes(run), 0))
    fronts = (np.shape(x)[: np.ndim(x) - n] for x, n in zip(leaves, axes, strict=True))
    shape = np.broadcast_shapes(*fronts)
    xp = JAX
    best = xp.asarray(ask(cheap[0], run, given) if cheap else nothing)
    best = xp.broadcast_to(best, shape)
    open_ = ~(best < nothing) | (not (cheap and cheap[0].tight))
    for method in cheap[1:]:

        def more(best: Array, open_: Array, method: Method = method) -> tuple[Array, Array]:
            value = xp.asarray(ask(method, run, given))
            # Not the minimum: its derivative is the mean of both at a tie.
            kept = xp.where(value < best, value, best)
            return kept, open_ & (~(value < nothing) | (not method.tight))

        best, open_ = jax.lax.cond(xp.any(open_), more, lambda *same: same, best, open_)
    for method in dear:
        value = _on_host(functools.partial(ask, method), open_, run, given, bool(cheap))
        best = xp.where(value < best, value, best)
        open_ = open_ & (~(value < nothing) | (not method.tight))
    return best


_STEP = 1e-4  # of central differences, relative


def _on_host(
    ask: Callable[..., Any], open_: Array, run: Mechanism, given: Real, spared: bool
) -> Array:
    """A method that needs concrete values, for the open settings; +inf for the others.

    Its derivatives are central differences: it has none of its own. It is spared, and +inf
    everywhere, where the operations of the program are asked for and another method has an answer.
    """
    leaves, tree = jax.tree.flatten((run, given))
    axes = jax.tree.leaves((map_axes(run), 0))
    dtype, rank = jax.numpy.zeros(()).dtype, open_.ndim  # float32 in a program of that precision
    traced = [i for i, leaf in enumerate(leaves) if float64.is_traced(leaf)]
    # Ones in front, so that the axes of a vmap stay apart from the sweep's.
    ones = [jax.numpy.asarray(leaves[i], dtype) for i in traced]
    ones = [
        leaf.reshape((1,) * (rank + axes[i] - leaf.ndim) + leaf.shape)
        for i, leaf in zip(traced, ones, strict=True)
    ]

    def bound(open_: np.ndarray, values: Sequence[Array | np.ndarray]) -> np.ndarray:
        full: list[Any] = list(leaves)
        for i, value in zip(traced, values, strict=True):
            full[i] = np.asarray(value, np.float64)
        answer = np.full(open_.shape, np.inf)
        if open_.any():
            some = [chosen_settings(open_, leaf, n) for leaf, n in zip(full, axes, strict=True)]
            answer[open_] = ask(*jax.tree.unflatten(tree, some))
        return answer

    def host(open_: Array, *values: Array) -> np.ndarray:
        return float64.narrow(bound(np.asarray(open_) > 0, values), dtype, "up")

    def slopes(open_: Array, *values: Array) -> np.ndarray:
        found = []
        for k, value in enumerate(values):
            value = np.asarray(value, np.float64)
            # one leaf at a time, all settings at once
            ends = [[*values[:k], value * (1 + sign * _STEP), *values[k + 1 :]] for sign in (1, -1)]
            above, below = (bound(np.asarray(open_) > 0, end) for end in ends)
            with np.errstate(invalid="ignore", divide="ignore"):
                slope = (above - below) / (2 * _STEP * value)
            # where there is no answer nothing moves
            found.append(np.where(np.isfinite(slope), slope, 0.0))
        return np.stack(found, axis=-1).astype(dtype)

    def call(
        function: Callable, tail: tuple[int, ...], nothing: float, args: Sequence[Array]
    ) -> Array:
        def operations(open_: Array, *values: Array) -> Array:
            return jax.numpy.full((*open_.shape, *tail), nothing, dtype)

        spec = jax.ShapeDtypeStruct((*args[0].shape, *tail), dtype)
        return float64.ask_in_float64(function, operations if spared else None, spec, args)

    @jax.custom_jvp
    def priced(open_: Array, *values: Array) -> Array:
        return call(host, (), np.inf, (open_, *values))

    @priced.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple:
        by_leaf = call(slopes, (len(traced),), 0.0, primals)
        moved = sum(by_leaf[..., k] * tangent for k, tangent in enumerate(tangents[1:]))
        return priced(*primals), moved

    return priced(jax.lax.stop_gradient(open_.astype(dtype)), *ones)


# --- bounds of one mechanism as functions of its fields -----------------------------------------


@functools.lru_cache(maxsize=256)
def _core(
    kernel: Callable[..., Result], tree: PyTreeDef, adjacency: Adjacency | None, given: int
) -> Callable[..., Result]:
    def core(*args: Array) -> Result:
        return kernel(jax.tree.unflatten(tree, args[given:]), adjacency, *args[:given])

    return core


def evaluate_bound(
    kernel: Callable[..., Result],
    run: Mechanism,
    adjacency: Adjacency | None,
    *given: Real,
    ndims: Sequence[int] = (),
    batch: int = 8,
    rounding: float64.Rounding = "up",
) -> Result:
    """`kernel(run, adjacency, *given)` for every setting of a run whose fields are single numbers.

    Args:
        kernel: pure function of one setting, at module level (compilations are cached by it).
        run, adjacency: what is asked about.
        given: further arguments, which broadcast with the run's fields.
        ndims: how many trailing axes of each belong to one setting; by default none.
        batch, rounding: see `float64.evaluate`.
    """
    leaves, tree = jax.tree.flatten(run)
    axes = (*(ndims or (0,) * len(given)), *((0,) * len(leaves)))
    core = _core(kernel, tree, adjacency, len(given))
    return float64.evaluate(core, (*given, *leaves), axes, batch=batch, rounding=rounding)


def as_method_part(
    kernel: Callable[..., Result], rounding: float64.Rounding = "up"
) -> Callable[[Mechanism, Real, Adjacency], Result]:
    """The same as a part of a `Method`: a function of the run, what is given and the adjacency."""

    def answer(run: Mechanism, given: Real, adjacency: Adjacency) -> Result:
        return evaluate_bound(kernel, run, adjacency, given, rounding=rounding)

    return answer
