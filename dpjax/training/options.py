"""Checks of arguments, the noise that float32 holds, averages of the iterates, augmentation."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, PyTree

from dpjax._numerics.checks import (
    CLIP_NORMS,
    Range,
    Tracer,
    is_from_package,
    one_number,
    render,
    scalar,
)
from dpjax._numerics.keys import bits_of_key, might_be_key
from dpjax._numerics.typing import Loss, Number, Params, PRNGKey, StepNumber
from dpjax.gradients import AdaptiveQuantile, Strategy
from dpjax.gradients.per_example import accumulation_dtype
from dpjax.training.typing import AverageWeights, RecordTree

# What a row that is shown has beside what the metrics keep.
SHOWN = ("steps_per_second", "records_per_second", "memory")

# What every row says by itself.
_OWN = ("step", "epsilon", "train_loss", "nonfinite", "clipped", *SHOWN)


def check_integer(name: str, value: object, low: float = 1, high: float = float("inf")) -> int:
    """The value as Python's int, which can be written down beside a key, if it is allowed."""
    return int(one_number(name, value, Range(low, high, whole=True)))


def check_functions(**given: Callable[..., Any] | None) -> None:
    """Refuse what cannot be called before the first step, not at the first row."""
    for name, value in given.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name} must be a function, got {render(value)}")


def check_counts(**given: int | None) -> list[int | None]:
    """The whole numbers, each at least 1 or None."""
    return [None if v is None else check_integer(name, v) for name, v in given.items()]


def check_clipping(clipping: object) -> None:
    """Refuse what is no strategy of clipping."""
    if not isinstance(clipping, Strategy):
        raise ValueError(f"clipping must be a Strategy of dpjax.gradients, got {render(clipping)}")


_EXACT = "the exact loss of the records, which no plan releases"

# The states by which optimisers are known that do not fail on shapes, and what those need.
_NEEDS = {
    "DifferentiallyPrivateAggregateState": (
        "differentially_private_aggregate (of contrib.dpsgd)",
        "the gradient of every record: fit clips and adds noise itself, so give optax.sgd",
    ),
    "HutchinsonState": ("contrib.sophia", f"obj_fn: {_EXACT}"),
    "LookaheadState": ("lookahead", "two sets of parameters: give its fast optimiser alone"),
    "ScaleByZoomLinesearchState": ("the line search of lbfgs", _EXACT),
}


def check_optimizer(optimizer: optax.GradientTransformation, params: Params) -> None:
    """Refuse an optimiser that needs more than the noisy mean gradient and the parameters."""
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        how, got = "such as optax.sgd(0.1)", render(optimizer)
        if is_from_package(optimizer, "flax.nnx", "Optimizer"):
            how, got = "the one that was given to nnx.Optimizer", "an nnx.Optimizer"
        elif callable(optimizer):
            got = getattr(optimizer, "__name__", got)
            how = f"called with its learning rate, {got}(0.1)"
        raise TypeError(f"optimizer must be an optax optimiser, {how}, got {got}")

    shapes = jax.eval_shape(lambda: params)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs it
        try:
            _check_needs(optimizer, shapes, jax.eval_shape)  # runs nothing
        except jax.errors.ConcretizationTypeError as error:
            # It looks at a setting that is traced; outside a trace it says what else it needs.
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            _check_needs(optimizer, zeros, lambda function, *given: function(*given))
            raise ValueError(
                "optimizer must be one that JAX traces, got one that looks at the value of a "
                "setting: of optax.inject_hyperparams name that setting in static_args"
            ) from error


def _check_needs(
    optimizer: optax.GradientTransformation, params: Params, call: Callable[..., PyTree]
) -> None:
    """Refuse an optimiser by what it lacks; `call(function, *arguments)` runs a part of it."""
    cause, state = None, call(optimizer.init, params)
    parts = jax.tree.leaves(state, is_leaf=lambda part: type(part).__name__ in _NEEDS)
    needs = next((_NEEDS[k] for k in (type(p).__name__ for p in parts) if k in _NEEDS), None)
    try:
        if needs is None:
            call(optimizer.update, params, state, params)
    except (TypeError, ValueError) as error:
        # Python says: reduce_on_plateau.<locals>.update() missing … argument: 'value'
        said = re.match(r"(\w+)\..* missing .* arguments?: (.*)", str(error))
        # Some say it themselves, without a name.
        said = said or re.match(r"()(\w+) must be provided", str(error))
        if said is None:
            raise
        name, what = said.groups()
        needs, cause = (name or "one", f"{what.replace(chr(39), '')}: {_EXACT}"), error
    if needs is not None:
        raise ValueError(
            f"optimizer must need the noisy gradient and the parameters alone, got {needs[0]}, "
            f"which needs {needs[1]}"
        ) from cause


def check_key(key: object) -> None:
    """Refuse what is neither one key nor None, which stands for a fresh one."""
    if key is None:
        return
    array = isinstance(key, np.ndarray | jax.Array)
    typed = array and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not array or key.ndim != (0 if typed else 1) or not (typed or key.dtype == np.uint32):
        got = f"{key.dtype} of shape {key.shape}" if array else render(key)
        raise TypeError(f"key must be one key, as jax.random.key(seed) makes, got {got}")
    if isinstance(key, Tracer):
        raise ValueError("key must be a key, got a traced one: use training_step")


def check_own_key(key: PRNGKey, optimizer_state: PyTree) -> None:
    """Refuse an optimiser that draws from the run's keys: it could undo the run's own noise."""
    theirs = [x for x in jax.tree.leaves(optimizer_state) if might_be_key(x)]
    if not theirs:
        return
    own = [key, *(jax.random.fold_in(key, number) for number in range(4))]
    mine = {bits_of_key(one).tobytes() for one in own}
    if any(bits_of_key(one).tobytes() in mine for one in theirs):
        raise ValueError("optimizer must draw noise from keys of its own, got the key of the run")


def check_metric_names(found: Iterable[str], first: Iterable[str] | None = None) -> None:
    """Refuse values of `evaluate` that would hide a row's own, or that change from row to row."""
    names = sorted(found)
    if first is None and set(names) & set(_OWN):
        raise ValueError(f"evaluate must return names other than {list(_OWN)}, got {names}")
    if first is not None and names != sorted(first):
        raise ValueError(f"evaluate must return {sorted(first)} at every row, got {names}")


# An adaptive clip norm stays within this factor of the first one.
_FURTHEST = 1e6

# The largest standard deviation of noise whose draws, up to |z| = 9.3, and sums float32 holds.
_MOST_NOISE = 1e36

_NOISE_RANGE = Range(float(np.finfo(np.float32).tiny), _MOST_NOISE)


def clip_norm_range(clip_norm: float) -> tuple[float, float]:
    """The least and the largest clip norm of a run whose first is given, whatever is drawn."""
    # They are among those that a plan may have: no gradient's norm vanishes or overflows.
    return max(clip_norm / _FURTHEST, CLIP_NORMS.low), min(clip_norm * _FURTHEST, CLIP_NORMS.high)


def as_python_numbers(adaptive: object) -> AdaptiveQuantile:
    """The quantile tracker with Python's numbers for its fields; traced ones are refused."""
    if not isinstance(adaptive, AdaptiveQuantile):
        raise ValueError(f"adaptive must be an AdaptiveQuantile or None, got {render(adaptive)}")
    found = {}
    for own in dataclasses.fields(adaptive):
        high = 1.0 if own.name == "quantile" else _MOST_NOISE
        allowed = Range(0.0, high, open_low=True, open_high=True)
        found[own.name] = one_number(own.name, getattr(adaptive, own.name), allowed)
    return dataclasses.replace(adaptive, **found)


def make_traced_stddev(multiplier: Number, clip_norm: Number, slack: float) -> Array:
    """The noise's standard deviation of traced numbers; NaN where a plan would refuse them."""
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    multiplier = jnp.asarray(multiplier)
    bound, noise = jnp.asarray(clip_norm, dtype), multiplier.astype(dtype)
    # Up to five roundings of half a unit: of the priced multiplier to this dtype, of the factor
    # below, of three products.
    up = (1 + slack) * (1 + 4 * float(jnp.finfo(dtype).eps))
    stddev = noise * bound * jnp.asarray(up, dtype)
    # A processor may take a number below the least normal one for 0, and a compiler a test of all
    # bits for a comparison with 0: such a number is known by its bits' range, 0 is not in it.
    own = multiplier if jnp.issubdtype(multiplier.dtype, jnp.floating) else noise
    doubled = jax.lax.bitcast_convert_type(own, f"uint{8 * own.dtype.itemsize}") << 1
    subnormal = doubled - 1 < 2 ** (jnp.finfo(own.dtype).nmant + 1) - 1
    held = (noise == 0) | _NOISE_RANGE.holds(stddev)
    good = (noise >= 0) & ~subnormal & CLIP_NORMS.holds(bound) & held
    return jnp.where(good, stddev, jnp.asarray(jnp.nan, dtype))


def check_clip_norm(value: Number) -> Number:
    """A number of Python's, or a traced one that holds at least float32's digits."""
    if not isinstance(value, Tracer):
        return one_number("clip_norm", value, CLIP_NORMS)
    scalar("clip_norm", value)
    return value.astype(jnp.promote_types(value.dtype, np.float32))


def check_noise(
    multipliers: Iterable[float], clip_norm: float, adaptive: AdaptiveQuantile | None
) -> None:
    """Refuse noise that float32 does not hold, at any clip norm that a run may have."""
    low = _NOISE_RANGE.low
    for multiplier in multipliers:
        noise = multiplier * clip_norm
        if adaptive is not None:
            own = adaptive.gradient_noise(multiplier)  # over the clip norm
            for end in clip_norm_range(clip_norm):
                if not _NOISE_RANGE.holds(own * end):
                    raise ValueError(
                        f"noise of a step must be in [{low:.1e}, {_MOST_NOISE:g}] for float32 to "
                        f"hold it wherever the clip norm moves, got {own * end:g} at clip norm "
                        f"{end:g}"
                    )
        elif not noise <= _MOST_NOISE or (multiplier > 0 and noise < low):
            allowed = f"0, or at least {low:.1e}" if noise < low else f"at most {_MOST_NOISE:g}"
            raise ValueError(
                f"clip_norm times the noise multiplier must be {allowed} for float32 to hold the "
                f"noise, got {noise:g}"
            )


def exponential_average(decay: float) -> AverageWeights:
    """Weights of an exponential average without bias, for `fit(average=...)`:

        average after T steps = Σₜ decayᵀ⁻ᵗ·paramsₜ / Σₜ decayᵀ⁻ᵗ,  t = 1, …, T.

    Args:
        decay: in [0, 1): the average remembers about 1 / (1 − decay) steps.

    Returns:
        From a step's number t = 1, 2, … to the weight of its parameters.

    Raises:
        ValueError: `decay` out of range.

    Guarantee:
        Post-processing of the released iterates: no privacy cost.

    Example:
        >>> weight = exponential_average(0.5)
        >>> [round(float(weight(t)), 4) for t in (1, 2, 3)]
        [1.0, 0.6667, 0.5714]
    """
    decay = one_number("decay", decay, Range(0.0, 1.0, open_high=True))
    if decay == 0:
        return lambda step: jnp.ones((), jnp.float32)
    log = math.log(decay)

    def weight(step: StepNumber):
        # (1 − d) / (1 − dᵗ), where differences from 1 of a decay close to it would lose digits.
        own = jnp.asarray(math.expm1(log), jnp.float32)
        return own / jnp.expm1(jnp.asarray(step, jnp.float32) * jnp.asarray(log, jnp.float32))

    return weight


def tail_average(begin: int) -> AverageWeights:
    """Weights of the mean of all iterates after step `begin`, for `fit(average=...)`.

    Until then the average is the iterate itself.

    Args:
        begin: steps left out, at least 0.

    Returns:
        From a step's number t = 1, 2, … to the weight of its parameters.

    Raises:
        ValueError: `begin` below 0.

    Guarantee:
        Post-processing of the released iterates: no privacy cost.

    Example:
        >>> weight = tail_average(2)
        >>> [float(weight(t)) for t in (1, 2, 3, 4)]
        [1.0, 1.0, 1.0, 0.5]
    """
    begin = check_integer("begin", begin, low=0)

    def weight(step: StepNumber):
        since = jnp.maximum(jnp.asarray(step, jnp.int32) - begin, 1)  # from 1 on
        return 1 / since.astype(jnp.float32)

    return weight


def first_average(params: Params) -> Params:
    """The average before any step, in float32 at least: 16 bits would stop moving."""
    return jax.tree.map(lambda leaf: leaf.astype(accumulation_dtype(leaf.dtype)), params)


def next_average(average: Params, params: Params, weight: ArrayLike) -> Params:
    """The average with the parameters of one more step."""
    weight = jnp.asarray(weight)
    # Without it the compiler may take 16-bit parameters as they were before they were rounded.
    params = jax.lax.optimization_barrier(params)
    return jax.tree.map(
        lambda mean, leaf: mean + (leaf.astype(mean.dtype) - mean) * weight.astype(mean.dtype),
        average,
        params,
    )


def augmented(
    loss: Loss,
    augment: Callable[[RecordTree, PRNGKey], RecordTree],
    copies: int,
    *,
    loss_takes_key: bool = False,
) -> Loss:
    """The mean of a loss over augmented copies of one record, for `fit(loss_takes_key=True)`:

        (params, example, key) -> (1/K)·Σₖ loss(params, augment(example, keyₖ)),  K = `copies`.

    The noise and ε are those of K = 1; the work is K times that.

    Args:
        loss: `loss(params, example) -> scalar`, of one record.
        augment: `augment(example, key) -> example`, which looks at no other record.
        copies: how many, at least 1.
        loss_takes_key: whether the loss is `loss(params, example, key)`: each copy has its own.

    Raises:
        ValueError: `copies` below 1.

    Guarantee:
        The sensitivity of the clipped sum is that of one record, since the copies of a record are
        averaged before the gradient is clipped. Assumes that `augment` sees its record alone.

    Example:
        >>> def loss(w, x):
        ...     return jnp.sum(w * x)
        >>> def flip(x, key):
        ...     return jnp.where(jax.random.bernoulli(key), x, -x)
        >>> several = augmented(loss, flip, copies=4)
        >>> value = several(jnp.ones(2), jnp.array([1.0, 2.0]), jax.random.key(0))
        >>> float(value) in (-3.0, -1.5, 0.0, 1.5, 3.0)
        True

    References:
        De, Berrada, Hayes, Smith and Balle 2022, "Unlocking high-accuracy differentially private
        image classification through scale", section 3.3.
    """
    if copies < 1:
        raise ValueError(f"copies must be at least 1, got {copies}")
    copies = check_integer("copies", copies)

    def mean_over_copies(params: Params, example: RecordTree, key: PRNGKey):
        def one(own: PRNGKey):
            for_augment, for_loss = jax.random.split(own)
            copy = augment(example, for_augment)
            return loss(params, copy, for_loss) if loss_takes_key else loss(params, copy)

        return jnp.mean(jax.vmap(one)(jax.random.split(key, copies)))

    return mean_over_copies
