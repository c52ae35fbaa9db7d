"""`released`: the mechanism of a chain of transformations, read off the chain itself.

The one file of `transforms` that names the accountant's mechanisms: what a chain does and what it
costs are then the same value, and no noise multiplier is typed twice.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpjax._numerics.keys import bits_of_key
from dpjax.gradients.equations import Program, literal, trace

_CURRENT: contextvars.ContextVar[Any] = contextvars.ContextVar("reading", default=None)


class _Refused(ValueError):
    pass


class Reading:
    """What the transformations of a chain say while `released` runs it on shapes.

    A leaf of the updates is known by identity: a transformation of another library that touches it
    hands on another array. Only what reaches clipping untouched, and noise untouched after that, is
    a mechanism with a known sensitivity.
    """

    def __init__(self, raw: Any):
        self.raw = {id(leaf): leaf for leaf in jax.tree.leaves(raw)}
        self.clipped: dict[int, tuple[Any, int]] = {}
        self.bounds: list[Callable[[Any], Any]] = []  # from the adjacency to the sensitivity
        self.noises: list[tuple[str, Any, frozenset[int], int]] = []
        self.complete: list[dict[str, dict[str, Any]]] = []
        self.drawn: dict[tuple, Any] = {}

    @property
    def pending(self) -> bool:
        """Whether records are still seen exactly: what comes after is post-processing."""
        return bool(self.raw or self.clipped)

    def clip(self, updates: Any, sensitivity: Callable[[Any], Any]) -> Any:
        """The updates after clipping, of the given sensitivity under an adjacency."""
        out = _fresh(updates)
        if self.pending and jax.tree.leaves(updates):
            self._take(self.raw, updates, "clip_per_example needs the gradients as they are")
            self.bounds.append(sensitivity)
            for leaf in jax.tree.leaves(out):
                self.clipped[id(leaf)] = (leaf, len(self.bounds) - 1)
        return out

    def perturb(self, kind: str, updates: Any, scale: Any) -> Any:
        """The updates after noise of the given scale."""
        leaves = jax.tree.leaves(updates)
        if self.pending and leaves:
            taken = self._take(
                self.clipped,
                updates,
                f"{kind}_noise needs the clipped sum as it is (clip_per_example in the chain, or "
                "released(chain, gradient) with the function of clipped_grad)",
            )
            size = sum(math.prod(leaf.shape) for leaf in leaves)
            self.noises.append((kind, scale, frozenset(bound for _, bound in taken), size))
        return _fresh(updates)

    def release(self, updates: Any, released: dict[str, dict[str, Any]]) -> Any:
        """The updates after a transformation that clips and perturbs at once."""
        if self.pending and jax.tree.leaves(updates):
            self._take(self.raw, updates, f"{next(iter(released))} needs the gradients as they are")
            self.complete.append(released)
        return _fresh(updates)

    def draw(self, salt: bytes, key: Any) -> None:
        """Note a draw of noise, which key and salt decide; refuse to see it twice."""
        traced = isinstance(key, jax.core.Tracer)
        mark = (salt, id(key) if traced else bits_of_key(key).tobytes())
        if mark in self.drawn:
            raise _Refused(
                "chain must draw each noise with a key of its own, got two of one key on the same "
                "leaves: they are the same noise, and what is released can be free of it"
            )
        self.drawn[mark] = key

    def refuse(self, what: str) -> None:
        """Say that the chain has a part which no mechanism of one update describes."""
        raise _Refused(f"chain must be priced by its updates, got one with {what}")

    def _take(self, known: dict[int, Any], updates: Any, why: str) -> list[Any]:
        keys = [id(leaf) for leaf in jax.tree.leaves(updates)]
        if not all(key in known for key in keys):
            raise _Refused(
                f"chain must be one whose sensitivity is known, got one in which {why}: clip, then "
                "add noise, with nothing in between; scale and average afterwards"
            )
        return [known.pop(key) for key in keys]


def _fresh(updates: Any) -> Any:
    # Free of the updates, so that `_depends` finds what a chain makes of them besides.
    return jax.tree.map(lambda u: jnp.zeros(u.shape, u.dtype), updates)


def _depends(program: Program, inputs: int) -> bool:
    """Whether an output may depend on one of the first so many inputs."""
    found = set(program.inputs[:inputs])
    for eqn in program.equations:
        if any(not literal(v) and v in found for v in eqn.operands):
            found.update(eqn.results)
    return any(not literal(v) and v in found for v in program.outputs)


def reading() -> Reading | None:
    """Who reads the chain that runs now; None in an ordinary update."""
    return _CURRENT.get()


@contextlib.contextmanager
def _read(by: Reading) -> Iterator[None]:
    token = _CURRENT.set(by)
    try:
        yield
    finally:
        _CURRENT.reset(token)


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
    say of themselves, through `optax.chain`, `multi_transform`, `masked` and whatever else hands
    updates on; nothing is typed a second time.

    Args:
        chain: with `clip_per_example` and a noise, or one that does both (`recentred_clipping`).
        gradient: the function of `clipped_grad`, as it is or under `jax.jit`, where the chain
            starts from its sum.
        params: any tree, or its shapes; needed where the chain looks at the parameters' structure
            (`multi_transform`, `masked`) or size (`ball_noise`).
        step: the step's number, where the noise follows a schedule.
        adjacency: as for the accountant. `UniformBall` holds how far a record moves the sum under
            it; the other mechanisms hold clip norms, and know both adjacencies.

    Returns:
        A mechanism of `dpjax.accounting`: one update, before sampling and repetition.

    Raises:
        ValueError: a chain without noise, or whose sensitivity is not known: another transformation
            between clipping and noise, updates that reach the end unclipped or without noise
            (always or under a condition) or that decide a condition, two noises of one key on the
            same leaves, `optax.MultiSteps`, a schedule without `step`, an unknown adjacency.

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
    found: list[Reading] = []

    def run(updates, params):
        seen = Reading(updates if gradient is None else {})
        if gradient is not None:
            seen.bounds.append(_sensitivity_of(gradient))
            seen.clipped = {id(leaf): (leaf, 0) for leaf in jax.tree.leaves(updates)}
        with _read(seen):
            out = chain.update(updates, chain.init(params), params)
        found.append(seen)
        return [leaf for leaf in jax.tree.leaves(out) if isinstance(leaf, jax.Array)]

    try:
        program, _ = trace(run, shapes, shapes)
    except _Refused as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        if params is None:
            raise ValueError(
                f"params must be given for a chain that depends on them, got None ({error})"
            ) from error
        raise
    seen = found[0]
    if seen.pending or not (seen.noises or seen.complete):
        what = "without noise" if seen.clipped or gradient is not None else "without clipping"
        raise ValueError(f"chain must clip and perturb every update, got one that lets some {what}")
    if _depends(program, len(jax.tree.leaves(shapes))):
        raise ValueError(
            "chain must clip and perturb every update, got one that hands some on as they are, or "
            "decides by them (a condition around its noise)"
        )
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


def _sensitivity_of(gradient: Any) -> Callable[[Any], Any]:
    # jax.jit(clipped_grad(...)) has the sum of what it compiles; a Python function that wraps it
    # (functools.wraps copies attributes too) may have any other.
    while not inspect.isfunction(gradient) and hasattr(gradient, "__wrapped__"):
        gradient = gradient.__wrapped__
    clip_norm, strategy = (getattr(gradient, name, None) for name in ("clip_norm", "strategy"))
    if strategy is None or hasattr(gradient, "__wrapped__"):
        raise _Refused(
            "gradient must be a function that clipped_grad returned, as it is or under jax.jit, "
            f"got {gradient!r}"
        )
    return functools.partial(strategy.sensitivity, clip_norm)


def _multiplier(noises: list[Any], bounds: list[Any], step: int | None) -> float:
    """Noise over clip norm: `Gaussian` itself prices that replacing moves twice as far."""
    weakest: dict[int, float] = {}
    for _, scale, members, _ in noises:
        for bound in members:
            stddev = _number(scale, step)
            weakest[bound] = min(weakest.get(bound, math.inf), stddev)
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
