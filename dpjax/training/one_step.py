"""`training_step`: the step that `fit` compiles, as pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import optax

from dpjax._argument_names import accepts_old_names
from dpjax._numerics.typing import Loss, Params, PRNGKey
from dpjax.gradients import Flat, Strategy
from dpjax.gradients.choice import ClippingMethod
from dpjax.training import draws
from dpjax.training.data import as_arrays
from dpjax.training.options import check_optimizer
from dpjax.training.parameters import partition_model
from dpjax.training.plan import Plan
from dpjax.training.step import (
    make_update,
    note_rounding,
)
from dpjax.training.step_config import StepConfig, failure_probability, first_state, read_sum
from dpjax.training.typing import (
    RunData,
    RunState,
    Totals,
    Trainable,
)


class TrainingStep(NamedTuple):
    """One step of `fit` as pure functions, which may be traced, scanned and vmapped.

    Fields:
        init: `init(params) -> state`: the parameters, the optimiser's state and the step's number.
        update: `update(state, data, key) -> (state, seen)`, the step whose number is in the state;
            `seen` (sum of losses, records, those not finite, those clipped) is private.

    Example:
        >>> step = TrainingStep(init=lambda params: {"params": params}, update=lambda *a: a[:2])
        >>> step.init(1)
        {'params': 1}
    """

    init: Callable[[Params], RunState]
    update: Callable[[RunState, RunData, PRNGKey], tuple[RunState, Totals]]


@accepts_old_names(strategy="clipping")
def training_step(
    loss: Loss,
    params: Params,
    plan: Plan,
    *,
    optimizer: optax.GradientTransformation,
    capacity: int | None = None,
    method: ClippingMethod = "auto",
    clipping: Strategy = Flat(),
    trainable: Trainable | None = None,
    loss_takes_key: bool = False,
) -> TrainingStep:
    """The step that `fit` compiles, for audits of the loop itself and for loops of one's own.

    Batch and noise of step t are functions of (key, t): `plan.steps` updates from `init(params)`
    give the parameters that `fit` returns for the same key. The plan's clip norm and noise
    multiplier may be traced, and so may whatever the optimiser is made of: `jax.vmap` over them is
    one program, priced by `acc.epsilon` of an array of noise multipliers. Noise then allows for
    rounding at any ε, up to some thousandths more. Numbers that no plan may have give NaN.

    Args:
        loss: `loss(params, example) -> scalar`, of one record; or a function of the parameters that
            makes a `dpjax.clip_and_sum`, see `fit`.
        params: any tree, see `fit`.
        plan: mechanism, clip norm and public constants.
        optimizer: any optax optimiser.
        capacity: records worked on at once, see `fit`.
        method: how per-example gradients are clipped, see `clipped_grad`.
        clipping: how a gradient is scaled, see `fit`.
        trainable: which floating-point arrays are trained, see `fit`.
        loss_takes_key: whether it is `loss(params, example, key)`, see `fit`.

    Returns:
        A `TrainingStep`, in whose state `params` has None for every leaf that is not trained.

    Raises:
        TypeError, ValueError: `capacity` below 1; an optimiser that needs more than the noisy
            gradient, such as the exact loss.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from dpjax import training
        >>> plan = training.make_plan(8, noise_multiplier=1.0, delta=1e-5, steps=1, batch_size=4)
        >>> step = training.training_step(
        ...     lambda w, x: w * x, jnp.zeros(()), plan, optimizer=optax.sgd(1.0))
        >>> once = lambda key: step.update(step.init(jnp.zeros(())), jnp.ones(8), key)[0]["params"]
        >>> jax.vmap(once)(jax.random.split(jax.random.key(0), 100)).shape
        (100,)
    """
    failure = failure_probability(plan)
    trained, frozen, join, ties = partition_model(params, trainable)
    check_optimizer(optimizer, trained)
    config = StepConfig(
        loss=loss,
        params=trained,
        plan=plan,
        optimizer=optimizer,
        capacity=capacity,
        method=method,
        failure=failure,
        loss_takes_key=loss_takes_key,
        clipping=clipping,
        frozen=frozen,
        join=join,
    )
    config = read_sum(config, frozen)
    sampler = draws.make_draws(plan, capacity, failure)
    take_step = make_update(config, sampler)
    note_rounding(config, sampler)

    def init(params: Params) -> RunState:
        trained = partition_model(params, trainable, ties).trained
        return first_state(trained, plan, optimizer, jnp.zeros((), jnp.int32))

    def update(state: RunState, data: RunData, key: PRNGKey) -> tuple[RunState, Totals]:
        return take_step(state, as_arrays(data), key, frozen)

    return TrainingStep(init, update)
