"""What a chain of transformations does to records and keys, recorded and read off its program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import Primitive
from jaxtyping import Array, PyTree

from dpjax._numerics.keys import bits_of_key
from dpjax._numerics.namespace import AnyTree
from dpjax._numerics.typing import Number, PRNGKey
from dpjax.gradients.ghost.programs import Equation, Program, Variable, is_literal

if TYPE_CHECKING:
    pass


class RefusedChain(ValueError):
    pass


# Marks in the traced chain: a draw of noise, from (key, draws so far) to the draws after it, and a
# key or counter in the state that the update begins with. A draw has no batching rule: `jax.vmap`
# over it would draw several noises and be read as one.
_DRAW, _BEGUN = Primitive("dpjax_draw"), Primitive("dpjax_begun")
_DRAW.def_abstract_eval(lambda key, step, salt: step)
_BEGUN.def_abstract_eval(lambda leaf, origin: leaf)
# What hands on its operands as they are.
_PASSED_ON = ("optimization_barrier", "copy", "copy_p", "random_wrap", "random_unwrap")
_ELSE = frozenset({None})  # the origin of whatever is made of other things
# From the adjacency to how far one record moves what is released.
Sensitivity = Callable[[str], Number]
Known = TypeVar("Known")


class ChainNoise(NamedTuple):
    """Noise that a chain added to a clipped sum."""

    kind: str
    scale: Number | optax.Schedule
    bounds: frozenset[int]  # the numbers of the clippings whose results it is on
    size: int  # numbers that it is added to


class ChainReader:
    """Records what the transformations of a chain report while `released` runs it on shapes."""

    # A leaf of the updates is known by identity: a transformation of another library that touches
    # it hands on another array. Only what reaches clipping untouched, and noise untouched after
    # that, is a mechanism with a known sensitivity. In the traced program clipping's result depends
    # on the records and that of noise does not, so that what goes around the noise is found in it.
    def __init__(self, raw: PyTree):
        self.raw = {id(leaf): leaf for leaf in jax.tree.leaves(raw)}
        self.clipped: dict[int, tuple[Array, int]] = {}
        self.bounds: list[Sensitivity] = []
        self.noises: list[ChainNoise] = []
        self.complete: list[dict[str, dict[str, float]]] = []
        self.same_state = True  # whether the update kept the state's structure
        self.drawn: dict[tuple, PRNGKey] = {}  # keeps the keys alive, so that ids stay theirs

    @property
    def pending(self) -> bool:
        """Whether records are still seen exactly: what comes after is post-processing."""
        return bool(self.raw or self.clipped)

    def clip(self, updates: AnyTree, sensitivity: Sensitivity) -> AnyTree:
        """The updates after clipping, of the given sensitivity under an adjacency."""
        out, why = _dependent_copy(updates), "clip_per_example needs the gradients as they are"
        if self._take(self.raw, updates, why):
            self.bounds.append(sensitivity)
            for leaf in jax.tree.leaves(out):
                self.clipped[id(leaf)] = (leaf, len(self.bounds) - 1)
        return out

    def perturb(self, kind: str, updates: AnyTree, scale: Number | optax.Schedule) -> AnyTree:
        """The updates after noise of the given scale."""
        why = (
            f"{kind}_noise needs the clipped sum as it is (clip_per_example in the chain, or "
            "released(chain, gradient) with the function of clipped_grad)"
        )
        if not (taken := self._take(self.clipped, updates, why)):
            return _dependent_copy(updates)
        size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(updates))
        self.noises.append(ChainNoise(kind, scale, frozenset(bound for _, bound in taken), size))
        return _independent_zeros(updates)

    def release(self, updates: AnyTree, released: dict[str, dict[str, float]]) -> AnyTree:
        """The updates after a transformation that clips and perturbs at once."""
        why = f"{next(iter(released))} needs the gradients as they are"
        if not self._take(self.raw, updates, why):
            return _dependent_copy(updates)
        self.complete.append(released)
        return _independent_zeros(updates)

    def draw(self, salt: bytes, key: PRNGKey, step: Array) -> Array:
        """The number of draws after this one; refuses to see the noise of a key and salt twice."""
        traced = isinstance(key, jax.core.Tracer)
        mark = (salt, id(key) if traced else bits_of_key(key).tobytes())
        if mark in self.drawn:
            raise RefusedChain(_ONE_KEY)
        self.drawn[mark] = key
        try:
            return _DRAW.bind(key, jnp.asarray(step), salt=salt)
        except NotImplementedError:
            raise RefusedChain(_SEVERAL) from None

    def refuse(self, what: str) -> None:
        """Says that the chain has a part which no mechanism of one update describes."""
        raise RefusedChain(f"chain must be priced by its updates, got one with {what}")

    def _take(self, known: dict[int, Known], updates: PyTree, why: str) -> list[Known]:
        """Removes and returns what is known of the updates; nothing once all of them are noisy."""
        keys = [id(leaf) for leaf in jax.tree.leaves(updates)] if self.pending else []
        if not all(key in known for key in keys):
            raise RefusedChain(
                f"chain must be one whose sensitivity is known, got one in which {why}: clip, then "
                "add noise, with nothing in between; scale and average afterwards"
            )
        return [known.pop(key) for key in keys]


def _independent_zeros(updates: AnyTree) -> AnyTree:
    # Free of the updates, so that `_find_dependents` finds what a chain makes of them besides.
    return jax.tree.map(lambda u: jnp.zeros(u.shape, u.dtype), updates)


def _dependent_copy(tree: AnyTree) -> AnyTree:
    """The tree in arrays of its own, which depend on it in the traced program."""
    return jax.lax.optimization_barrier(tree)


_ONE_KEY = (
    "chain must draw each noise with a key of its own, got two of one key on the same leaves: they "
    "are the same noise, and what is released can be free of it"
)
_SEVERAL = (
    "chain must draw its noise once an update, got it in a loop, under jax.vmap or in a function "
    "called several times: several noises on one sum average to less than one"
)


def _find_dependents(program: Program, sources: Iterable[object]) -> set[object]:
    """The variables that may depend on these: an operation's results on all its operands."""
    found = set(sources)
    for eqn in program.equations:
        if _has_any(eqn.operands, found):
            found.update(eqn.results)
    return found


def _has_any(variables: Iterable[object], found: set[Any]) -> bool:
    return any(not is_literal(v) and v in found for v in variables)


def _has_side_exit(eqn: Equation) -> bool:
    """Whether what an operation is given can leave it by another way than its results."""
    by_reference = any("Ref" in type(aval).__name__ for aval in eqn.ins)
    names = ("callback", "debug_print")
    inside = any(_has_side_exit(inner) for program in eqn.programs() for inner in program.equations)
    return by_reference or inside or any(name in eqn.name for name in names)


def list_state_arrays(state: PyTree) -> list[jax.Array]:
    """The leaves of a state, all of them arrays."""
    leaves = jax.tree.leaves(state)
    for leaf in leaves:
        if not isinstance(leaf, jax.Array):
            raise RefusedChain(
                "chain must keep a state of JAX arrays, in pytrees, got one that holds "
                f"{type(leaf).__name__}: what is decided or kept by it cannot be read"
            )
    return leaves


def mark_begun(place: int, leaf: jax.Array) -> jax.Array:
    """The leaf at that place of the state, marked where it may count draws or be their key."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) or (leaf.dtype == jnp.uint32 and leaf.ndim):
        traced = isinstance(leaf, jax.core.Tracer)
        return _BEGUN.bind(leaf, origin=id(leaf) if traced else bits_of_key(leaf).tobytes())
    counts = not leaf.shape and jnp.issubdtype(leaf.dtype, jnp.integer)
    return _BEGUN.bind(leaf, origin=("counter", place)) if counts else leaf


def _join_origins(ways: Sequence[tuple[frozenset, frozenset]]) -> frozenset:
    """The origins of a value that is one of several, each with the draws inside its way."""
    # A way with draws has to count them and one without must not: else what an update draws another
    # draws again.
    found = frozenset().union(*(one for _, one in ways))
    if all(one == found for _, one in ways):
        return found
    drawn = frozenset(o for o in found if isinstance(o, tuple) and o[0] == "draw")
    counted = all(one <= inside if inside else not one & drawn for inside, one in ways)
    return found if counted and None not in found else _ELSE


def _trace_origins(
    program: Program, given: Iterable[frozenset], draws: list[tuple]
) -> list[frozenset]:
    """The origins of the outputs, from those of the inputs: of values handed on as they are."""
    # To `draws` are added the salt of each draw, and the origins of its key and of its step.
    known: dict[Variable, frozenset] = dict(zip(program.inputs, given, strict=True))

    def find(variable: Variable) -> frozenset:
        return _ELSE if is_literal(variable) else known.get(variable, _ELSE)

    for eqn in program.equations:
        operands = [find(v) for v in eqn.operands]
        called, branches = eqn.find_called(), eqn.branches()
        if eqn.name == _BEGUN.name:
            out = [frozenset({eqn.params["origin"]})]
        elif eqn.name == _DRAW.name:
            out = [frozenset({("draw", len(draws))})]
            draws.append((eqn.params["salt"], *operands))
        elif called is not None:
            out = _trace_origins(called, operands, draws)
        elif branches is not None:
            ways = []
            for branch in branches:
                before = len(draws)
                found = _trace_origins(branch, operands[1:], draws)
                inside = frozenset(("draw", n) for n in range(before, len(draws)))
                ways.append([(inside, one) for one in found])
            out = [_join_origins(each) for each in zip(*ways, strict=True)]
        elif eqn.name == "select_n":
            out = [_join_origins([(frozenset(), one) for one in operands[1:]])]
        else:
            out = operands if eqn.name in _PASSED_ON else [_ELSE] * len(eqn.results)
        known.update(zip(eqn.results, out, strict=True))
    return [find(v) for v in program.outputs]


def _list_draws(program: Program) -> list[Equation]:
    """The operation around each draw of noise, or the draw itself; refuses a draw in a loop."""
    found = []
    for eqn in program.equations:
        inside = [draw for inner in eqn.programs() for draw in _list_draws(inner)]
        if inside and eqn.find_called() is None and eqn.branches() is None:
            raise RefusedChain(_SEVERAL)
        found += [eqn] * (1 if eqn.name == _DRAW.name else len(inside))  # one for each draw inside
    return found


def check_flow(program: Program, records: int, state: int, seen: ChainReader) -> None:
    """Refuse what reaches an output around the noise, and noise that the next update repeats."""
    exact = _find_dependents(program, program.inputs[:records])
    if any(_has_any(eqn.operands, exact) and _has_side_exit(eqn) for eqn in program.equations):
        raise RefusedChain(
            "chain must hand on nothing before its noise, got one that gives clipped or raw "
            "gradients to a callback or a mutable array"
        )
    if _has_any(program.outputs, exact):
        raise RefusedChain(
            "chain must clip and perturb every update, got one that hands some on as they are, or "
            "decides by them (a condition around its noise)"
        )
    if not seen.same_state:
        raise RefusedChain("chain must keep the structure of its state, got one that changes it")
    # A compiled function that is called again is not run again on shapes.
    if len(_list_draws(program)) > len(seen.drawn):
        raise RefusedChain(_SEVERAL)
    draws: list[tuple] = []
    kept = _trace_origins(program, [_ELSE] * len(program.inputs), draws)[
        len(program.outputs) - state :
    ]
    for number, (salt, key, step) in enumerate(draws):
        if any(salt == other and key & theirs - _ELSE for other, theirs, _ in draws[:number]):
            raise RefusedChain(_ONE_KEY)
        # The number of the draw is a counter of the state as the update found it, and the state
        # then counts this draw, or another at that number: what else is done to a counter may lead
        # back to an earlier one.
        places = [o[1] for o in step if isinstance(o, tuple) and o[0] == "counter"]
        after = kept[places[0]] if len(step) == len(places) == 1 else _ELSE
        at_this = {("draw", n) for n, (_, _, theirs) in enumerate(draws) if theirs == step}
        if ("draw", number) not in after or after - step - at_this:
            raise RefusedChain(
                "chain must keep the state of its noise from update to update, got one that does "
                "not: every update would add the same noise, and differences are free of it"
            )
