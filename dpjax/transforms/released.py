"""`released`: the mechanism of a chain of transformations, read off the chain itself.

The one file of `transforms` that names the accountant's mechanisms: what a chain does and what it
costs are then the same value, and no noise multiplier is typed twice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from dpjax._numerics.typing import Number
from dpjax.gradients.ghost.programs import trace
from dpjax.transforms.chain_reader import (
    ChainNoise,
    ChainReader,
    RefusedChain,
    Sensitivity,
    check_flow,
    list_state_arrays,
    mark_begun,
)
from dpjax.transforms.noise import READER

_JITTED = type(jax.jit(lambda: None))


if TYPE_CHECKING:
    from dpjax import accounting as acc

# What `clipped_grad` or `clip_and_sum` returned, as it is or under `jax.jit`.
ClippedFunction = Callable[..., Any]


_MADE_UP = {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}
_ALSO_MADE_UP = {"a": {"b": jax.ShapeDtypeStruct((2, 2), jnp.float32)}, **_MADE_UP}


def _read(
    chain: optax.GradientTransformation, gradient: ClippedFunction | None, shapes: PyTree
) -> ChainReader:
    """What the chain says of itself in one update of these shapes; refuses what has no price."""
    found: list[ChainReader] = []

    def run(updates: PyTree, params: PyTree):
        seen = ChainReader(updates if gradient is None else {})
        if gradient is not None:
            seen.bounds.append(_read_sensitivity(gradient))
            seen.clipped = {id(leaf): (leaf, 0) for leaf in jax.tree.leaves(updates)}
        token = READER.set(seen)
        try:
            begun = chain.init(params)
            marked = [
                mark_begun(place, leaf) for place, leaf in enumerate(list_state_arrays(begun))
            ]
            state = jax.tree.unflatten(jax.tree.structure(begun), marked)
            out, state = chain.update(updates, state, params)
        finally:
            READER.reset(token)
        seen.same_state = jax.tree.structure(state) == jax.tree.structure(begun)
        found.append(seen)
        return jax.tree.leaves(out), list_state_arrays(state)

    with jax.debug_key_reuse(False):  # a draw in a loop is refused below, in plain words
        program, (_, state) = trace(run, shapes, shapes)
    seen = found[0]
    if seen.pending or not (seen.noises or seen.complete):
        what = "noise" if seen.clipped or gradient is not None else "clipping"
        raise RefusedChain(f"chain must clip and perturb every update, got some without {what}")
    check_flow(program, len(jax.tree.leaves(shapes)), len(state), seen)
    return seen


def released(
    chain: optax.GradientTransformation,
    gradient: ClippedFunction | None = None,
    *,
    params: PyTree | None = None,
    step: int | None = None,
    adjacency: str = "add-remove",
) -> acc.Mechanism:
    """The mechanism that one update of an optax chain releases.

    The chain is run on shapes, without params on two made-up trees. Clip norms, noise and their
    order are what its transformations say of themselves, through `optax.chain`, `multi_transform`,
    `masked` and the like.

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
            noise in a loop or without its state, a state that does not count its draws one by one
            or that is no tree of arrays, two noises of one key on the same leaves,
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
    from dpjax.accounting.answers.methods import check_adjacency

    adjacency = check_adjacency(adjacency)
    try:
        seen = _read(chain, gradient, _MADE_UP if params is None else params)
    except RefusedChain as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        raise _ask_for_params(error, params) from error
    if params is None:
        try:
            other = _read(chain, gradient, _ALSO_MADE_UP)
            parts = {tuple(len(v) for v in (s.noises, s.complete, s.bounds)) for s in (seen, other)}
            if len(parts) > 1:
                raise RefusedChain("its noise depends on which parameters there are")
        except Exception as error:
            raise _ask_for_params(error, params) from error
    mechanisms: list[acc.Mechanism] = []
    gaussians = [noise for noise in seen.noises if noise.kind == "gaussian"]
    if gaussians:
        mechanisms.append(acc.Gaussian(_noise_multiplier(gaussians, seen.bounds, step)))
    for kind, radius, bounds, size in seen.noises:
        if kind == "gaussian":
            continue
        if len(seen.noises) > 1 or params is None:
            raise ValueError(
                f"chain must have {kind}_noise once, over all updates, and params must be given: "
                f"its price depends on their number, got {len(seen.noises)} noises, params "
                f"{params!r}"
            )
        # Spheres that are apart, and balls of radius 0, share nothing: as balls that do not meet.
        reach = _read_scale(radius, step) if kind == "ball" else 0.0
        moved = seen.bounds[next(iter(bounds))](adjacency) / reach if reach else 2.0
        mechanisms.append(acc.UniformBall(moved, size))
    for one in seen.complete:
        mechanisms += [getattr(acc, name)(**fields) for name, fields in one.items()]
    return mechanisms[0] if len(mechanisms) == 1 else acc.Composed(tuple(mechanisms))


def _ask_for_params(error: Exception, params: PyTree | None) -> Exception:
    if params is not None:
        return error
    return ValueError(f"params must be given for a chain that depends on them, got None ({error})")


def _read_sensitivity(gradient: ClippedFunction) -> Sensitivity:
    """From the adjacency to the sensitivity of a function that `clipped_grad` returned."""
    # jax.jit(clipped_grad(...)) has the sum of what it compiles; a function or an object that wraps
    # it (functools.wraps copies attributes too) may have any other.
    while isinstance(gradient, _JITTED):
        gradient = gradient.__wrapped__  # pyrefly: ignore
    clip_norm, strategy = (getattr(gradient, name, None) for name in ("clip_norm", "clipping"))
    if strategy is None or hasattr(gradient, "__wrapped__"):
        raise RefusedChain(
            "gradient must be a function that clipped_grad returned (or clip_and_sum), as it is or "
            f"under jax.jit, got {gradient!r}"
        )
    return functools.partial(strategy.sensitivity, clip_norm)


def _noise_multiplier(
    noises: list[ChainNoise], bounds: list[Sensitivity], step: int | None
) -> float:
    """Noise over clip norm: `Gaussian` itself prices that replacing moves twice as far."""
    weakest: dict[int, float] = {}  # the least noise on what each clipping bounds
    for _, scale, members, _ in noises:
        stddev = _read_scale(scale, step)
        weakest |= {bound: min(weakest.get(bound, math.inf), stddev) for bound in members}
    # Parts perturbed apart are one Gaussian: squares of sensitivity over noise add up.
    parts = [weakest[k] / float(bounds[k]("add-remove")) for k in sorted(weakest)]
    if len(parts) == 1 or min(parts) == 0:
        return min(parts)
    return math.fsum(z**-2 for z in parts) ** -0.5


def _read_scale(scale: Number | optax.Schedule, step: int | None) -> float:
    """The standard deviation or radius of noise in this step of its schedule."""
    if callable(scale):
        if step is None:
            raise ValueError("step must be given where the noise follows a schedule, got None")
        size = scale(jnp.asarray(step, jnp.int32))
    else:
        size = scale
    if isinstance(size, jax.core.Tracer):
        raise ValueError(f"chain must have noise that is known outside a trace, got {size}")
    return abs(float(np.asarray(size)))
