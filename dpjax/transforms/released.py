"""`released`: the mechanism of a chain of transformations, read off the chain itself.

The one file of `transforms` that names the accountant's mechanisms: what a chain does and what it
costs are then the same value, and no noise multiplier is typed twice.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import Primitive

from dpjax._numerics.keys import bits_of_key
from dpjax.gradients.ghost.equations import Equation, Program, literal, trace

_CURRENT: contextvars.ContextVar[Any] = contextvars.ContextVar("reading", default=None)


class _Refused(ValueError):
    pass


# Marks in the traced chain: a draw of noise, from (key, draws so far) to the draws after it,
# and a counter in the state that the update begins with. A draw has no batching rule: `jax.vmap`
# over it would draw several noises and be read as one.
_DRAW, _COUNTER = Primitive("dpjax_draw"), Primitive("dpjax_counter")
_DRAW.def_abstract_eval(lambda key, step: step)
_COUNTER.def_abstract_eval(lambda step: step)


class ChainReader:
    """What the transformations of a chain say while `released` runs it on shapes."""

    # A leaf of the updates is known by identity: a transformation of another library that touches
    # it hands on another array. Only what reaches clipping untouched, and noise untouched after
    # that, is a mechanism with a known sensitivity. In the traced program clipping's result depends
    # on the records and that of noise does not, so that what goes around the noise is found in it.
    def __init__(self, raw: Any):
        self.raw = {id(leaf): leaf for leaf in jax.tree.leaves(raw)}
        self.clipped: dict[int, tuple[Any, int]] = {}
        self.bounds: list[Callable[[Any], Any]] = []  # from the adjacency to the sensitivity
        self.noises: list[tuple[str, Any, frozenset[int], int]] = []
        self.complete: list[dict[str, dict[str, Any]]] = []
        self.drawn: dict[tuple, Any] = {}  # keeps the keys alive, so that ids stay theirs

    @property
    def pending(self) -> bool:
        """Whether records are still seen exactly: what comes after is post-processing."""
        return bool(self.raw or self.clipped)

    def clip(self, updates: Any, sensitivity: Callable[[Any], Any]) -> Any:
        """The updates after clipping, of the given sensitivity under an adjacency."""
        out, why = _dependent_copy(updates), "clip_per_example needs the gradients as they are"
        if self._take(self.raw, updates, why):
            self.bounds.append(sensitivity)
            for leaf in jax.tree.leaves(out):
                self.clipped[id(leaf)] = (leaf, len(self.bounds) - 1)
        return out

    def perturb(self, kind: str, updates: Any, scale: Any) -> Any:
        """The updates after noise of the given scale."""
        why = (
            f"{kind}_noise needs the clipped sum as it is (clip_per_example in the chain, or "
            "released(chain, gradient) with the function of clipped_grad)"
        )
        if not (taken := self._take(self.clipped, updates, why)):
            return _dependent_copy(updates)
        size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(updates))
        self.noises.append((kind, scale, frozenset(bound for _, bound in taken), size))
        return _independent_zeros(updates)

    def release(self, updates: Any, released: dict[str, dict[str, Any]]) -> Any:
        """The updates after a transformation that clips and perturbs at once."""
        why = f"{next(iter(released))} needs the gradients as they are"
        if not self._take(self.raw, updates, why):
            return _dependent_copy(updates)
        self.complete.append(released)
        return _independent_zeros(updates)

    def draw(self, salt: bytes, key: Any, step: Any) -> Any:
        """The number of draws after this one; refuses to see the noise of a key and salt twice."""
        traced = isinstance(key, jax.core.Tracer)
        mark = (salt, id(key) if traced else bits_of_key(key).tobytes())
        if mark in self.drawn:
            raise _Refused(
                "chain must draw each noise with a key of its own, got two of one key on the same "
                "leaves: they are the same noise, and what is released can be free of it"
            )
        self.drawn[mark] = key
        try:
            return _DRAW.bind(key, jnp.asarray(step))
        except NotImplementedError:
            raise _Refused(_SEVERAL) from None

    def refuse(self, what: str) -> None:
        """Says that the chain has a part which no mechanism of one update describes."""
        raise _Refused(f"chain must be priced by its updates, got one with {what}")

    def _take(self, known: dict[int, Any], updates: Any, why: str) -> list[Any]:
        """What is known of the updates, which are no longer; nothing after the noise."""
        keys = [id(leaf) for leaf in jax.tree.leaves(updates)] if self.pending else []
        if not all(key in known for key in keys):
            raise _Refused(
                f"chain must be one whose sensitivity is known, got one in which {why}: clip, then "
                "add noise, with nothing in between; scale and average afterwards"
            )
        return [known.pop(key) for key in keys]


def _independent_zeros(updates: Any) -> Any:
    # Free of the updates, so that `_dependents` finds what a chain makes of them besides.
    return jax.tree.map(lambda u: jnp.zeros(u.shape, u.dtype), updates)


def _dependent_copy(tree: Any) -> Any:
    """The tree in arrays of its own, which depend on it in the traced program."""
    return jax.lax.optimization_barrier(tree)


_SEVERAL = (
    "chain must draw its noise once an update, got it in a loop, under jax.vmap or in a function "
    "called several times: several noises on one sum average to less than one"
)


def _dependents(program: Program, sources: Any) -> set[Any]:
    """The variables that may depend on these: an operation's results on all its operands."""
    found = set(sources)
    for eqn in program.equations:
        if _has_any(eqn.operands, found):
            found.update(eqn.results)
    return found


def _has_any(variables: Any, found: set[Any]) -> bool:
    return any(not literal(v) and v in found for v in variables)


def _hands_out(eqn: Equation) -> bool:
    """Whether what an operation is given can leave it by another way than its results."""
    by_reference = any("Ref" in type(aval).__name__ for aval in eqn.ins)
    names = ("callback", "debug_print")
    inside = any(_hands_out(inner) for program in eqn.programs() for inner in program.equations)
    return by_reference or inside or any(name in eqn.name for name in names)


def _mark_counter(leaf: Any) -> Any:
    is_counter = isinstance(leaf, jax.Array) and not leaf.shape
    return _COUNTER.bind(leaf) if is_counter and jnp.issubdtype(leaf.dtype, jnp.integer) else leaf


def _draws(program: Program) -> list[Equation]:
    """The operation around each draw of noise, or the draw itself; refuses a draw in a loop."""
    found = []
    for eqn in program.equations:
        inside = [draw for inner in eqn.programs() for draw in _draws(inner)]
        if inside and eqn.called() is None and eqn.branches() is None:
            raise _Refused(_SEVERAL)
        found += [eqn] * (1 if eqn.name == _DRAW.name else len(inside))  # one for each draw inside
    return found


def _check_flow(program: Program, records: int, state: int, drawn: int) -> None:
    """Refuse what reaches an output around the noise, and noise that the next update repeats."""
    exact = _dependents(program, program.inputs[:records])
    if any(_has_any(eqn.operands, exact) and _hands_out(eqn) for eqn in program.equations):
        raise _Refused(
            "chain must hand on nothing before its noise, got one that gives clipped or raw "
            "gradients to a callback or a mutable array"
        )
    if _has_any(program.outputs, exact):
        raise _Refused(
            "chain must clip and perturb every update, got one that hands some on as they are, or "
            "decides by them (a condition around its noise)"
        )
    counters = (eqn.results for eqn in program.equations if eqn.name == _COUNTER.name)
    begun = _dependents(program, itertools.chain.from_iterable(counters))
    kept = program.outputs[len(program.outputs) - state :]
    draws = _draws(program)
    if len(draws) > drawn:  # a compiled function that is called again is not run again on shapes
        raise _Refused(_SEVERAL)
    for eqn in draws:
        follows = _has_any(eqn.operands, begun)
        if not follows or not _has_any(kept, _dependents(program, eqn.results)):
            raise _Refused(
                "chain must keep the state of its noise from update to update, got one that does "
                "not: every update would add the same noise, and differences are free of it"
            )


def current_reader() -> ChainReader | None:
    """Who reads the chain that runs now; None in an ordinary update."""
    return _CURRENT.get()


def released(
    chain: optax.GradientTransformation,
    gradient: Any = None,
    *,
    params: Any = None,
    step: int | None = None,
    adjacency: Any = "add-remove",
) -> Any:
    """The mechanism that one update of an optax chain releases.

    The chain is run once on shapes. Clip norms, noise and their order are what its transformations
    say of themselves, through `optax.chain`, `multi_transform`, `masked` and the like.

    Args:
        chain: with `clip_per_example` and a noise, or one that does both (`recentred_clipping`).
        gradient: the function of `clipped_grad` or `clip_and_sum`, as it is or under `jax.jit`,
            where the chain starts from its sum.
        params: any tree, or its shapes; needed where the chain looks at the parameters' structure
            (`multi_transform`, `masked`) or size (`ball_noise`).
        step: the step's number, where the noise follows a schedule.
        adjacency: as for the accountant. `UniformBall` holds how far a record moves the sum under
            it; the other mechanisms hold clip norms, and know both adjacencies.

    Returns:
        A mechanism of `dpjax.accounting`: one update, before sampling and repetition.

    Raises:
        ValueError: a chain without noise, or whose sensitivity is not known: another transformation
            between clipping and noise, updates that get around either, or decide a condition,
            noise in a loop or without its state, two noises of one key on the same leaves,
            `optax.MultiSteps`, a schedule without `step`, an unknown adjacency.

    Guarantee:
        The sensitivity is that of the clipping before the noise; what comes after the noise is
        post-processing. Parts perturbed apart are one Gaussian: with (Cₖ, σₖ) over parts of the
        gradient its noise multiplier is (Σₖ Cₖ²/σₖ²)^(−1/2). Float rounding is not in it:
        `gradients.rounding_slack`.

    Example:
        >>> import jax, optax
        >>> from dpjax import accounting as acc, transforms
        >>> chain = optax.chain(
        ...     transforms.clip_per_example(0.5),
        ...     transforms.gaussian_noise(0.55, jax.random.key(0)),
        ...     optax.adam(1e-3),
        ... )
        >>> step = transforms.released(chain)
        >>> step
        Gaussian(noise_multiplier=1.1)
        >>> f"{acc.epsilon(acc.Repeated(acc.PoissonSampled(step, 0.01), 1000), delta=1e-5):.4f}"
        '1.5154'
    """
    from dpjax import accounting as acc
    from dpjax.accounting.answers.pricing import check_adjacency

    adjacency = check_adjacency(adjacency)
    shapes = {"w": jax.ShapeDtypeStruct((3,), jnp.float32)} if params is None else params
    found: list[ChainReader] = []

    def run(updates, params):
        seen = ChainReader(updates if gradient is None else {})
        if gradient is not None:
            seen.bounds.append(_read_sensitivity(gradient))
            seen.clipped = {id(leaf): (leaf, 0) for leaf in jax.tree.leaves(updates)}
        token = _CURRENT.set(seen)
        try:
            state = jax.tree.map(_mark_counter, chain.init(params))
            out, state = chain.update(updates, state, params)
        finally:
            _CURRENT.reset(token)
        found.append(seen)
        kept = ([x for x in jax.tree.leaves(t) if isinstance(x, jax.Array)] for t in (out, state))
        return tuple(kept)

    try:
        with jax.debug_key_reuse(False):  # a draw in a loop is refused below, in plain words
            program, (_, state) = trace(run, shapes, shapes)
        seen = found[0]
        if seen.pending or not (seen.noises or seen.complete):
            what = "noise" if seen.clipped or gradient is not None else "clipping"
            raise _Refused(f"chain must clip and perturb every update, got some without {what}")
        _check_flow(program, len(jax.tree.leaves(shapes)), len(state), len(seen.drawn))
    except _Refused as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        if params is None:
            raise ValueError(
                f"params must be given for a chain that depends on them, got None ({error})"
            ) from error
        raise
    mechanisms: list[Any] = []
    gaussians = [noise for noise in seen.noises if noise[0] == "gaussian"]
    if gaussians:
        mechanisms.append(acc.Gaussian(_multiplier(gaussians, seen.bounds, step)))
    for kind, radius, bounds, size in (noise for noise in seen.noises if noise[0] != "gaussian"):
        if len(seen.noises) > 1 or params is None:
            raise ValueError(
                f"chain must have {kind}_noise once, over all updates, and params must be given: "
                f"its price depends on their number, got {len(seen.noises)} noises, params "
                f"{params!r}"
            )
        # Spheres that are apart, and balls of radius 0, share nothing: as balls that do not meet.
        reach = _number(radius, step) if kind == "ball" else 0.0
        moved = seen.bounds[next(iter(bounds))](adjacency) / reach if reach else 2.0
        mechanisms.append(acc.UniformBall(moved, size))
    for one in seen.complete:
        mechanisms += [getattr(acc, name)(**fields) for name, fields in one.items()]
    return mechanisms[0] if len(mechanisms) == 1 else acc.Composed(tuple(mechanisms))


def _read_sensitivity(gradient: Any) -> Callable[[Any], Any]:
    # jax.jit(clipped_grad(...)) has the sum of what it compiles; a Python function that wraps it
    # (functools.wraps copies attributes too) may have any other.
    while not inspect.isfunction(gradient) and hasattr(gradient, "__wrapped__"):
        gradient = gradient.__wrapped__
    clip_norm, strategy = (getattr(gradient, name, None) for name in ("clip_norm", "strategy"))
    if strategy is None or hasattr(gradient, "__wrapped__"):
        raise _Refused(
            "gradient must be a function that clipped_grad returned (or clip_and_sum), as it is or "
            f"under jax.jit, got {gradient!r}"
        )
    return functools.partial(strategy.sensitivity, clip_norm)


def _multiplier(noises: list[Any], bounds: list[Any], step: int | None) -> float:
    """Noise over clip norm: `Gaussian` itself prices that replacing moves twice as far."""
    weakest: dict[int, float] = {}  # the least noise on what each clipping bounds
    for _, scale, members, _ in noises:
        stddev = _number(scale, step)
        weakest |= {bound: min(weakest.get(bound, math.inf), stddev) for bound in members}
    # Parts perturbed apart are one Gaussian: squares of sensitivity over noise add up.
    parts = [weakest[k] / float(bounds[k]("add-remove")) for k in sorted(weakest)]
    if len(parts) == 1 or min(parts) == 0:
        return min(parts)
    return math.fsum(z**-2 for z in parts) ** -0.5


def _number(scale: Any, step: int | None) -> float:
    if callable(scale):
        if step is None:
            raise ValueError("step must be given where the noise follows a schedule, got None")
        scale = scale(jnp.asarray(step, jnp.int32))
    if isinstance(scale, jax.core.Tracer):
        raise ValueError(f"chain must have noise that is known outside a trace, got {scale}")
    return abs(float(scale))
