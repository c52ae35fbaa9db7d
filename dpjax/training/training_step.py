"""One step of `fit` as pure functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from dpjax import gradients
from dpjax._other_names import taught
from dpjax.training.draws import draws_of
from dpjax.training.parts import parts_of
from dpjax.training.plan import Plan
from dpjax.training.recipe import Recipe
from dpjax.training.slack import failure_probability
from dpjax.training.state import first_state
from dpjax.training.update import update_of

__all__ = ["TrainingStep", "training_step"]


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

    init: Callable[[Any], dict[str, Any]]
    update: Callable[[dict[str, Any], Any, Any], tuple[dict[str, Any], Any]]


@taught
def training_step(
    loss: Callable[[Any, Any], Any],
    params: Any,
    plan: Plan,
    *,
    optimizer: optax.GradientTransformation,
    capacity: int | None = None,
    method: Any = "auto",
    strategy: gradients.Strategy = gradients.Flat(),  # noqa: B008 (frozen)
    trainable: Any = None,
    loss_takes_key: bool = False,
) -> TrainingStep:
    """The step that `fit` compiles, for audits of the loop itself and for loops of one's own.

    Batch and noise of step t are functions of (key, t): `plan.steps` updates from `init(params)`
    give the parameters that `fit` returns for the same key.

    Args:
        loss: `loss(params, example) -> scalar`, of one record.
        params: any tree, see `fit`.
        plan: mechanism, clip norm and public constants.
        optimizer: any optax optimiser.
        capacity: records worked on at once, see `fit`.
        method: how per-example gradients are clipped, see `clipped_grad`.
        strategy: how a gradient is scaled, see `fit`.
        trainable: which floating-point arrays are trained, see `fit`.
        loss_takes_key: whether it is `loss(params, example, key)`, see `fit`.

    Returns:
        A `TrainingStep`, in whose state `params` has None for every leaf that is not trained.

    Raises:
        ValueError: `capacity` below 1.

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
    failure = failure_probability(plan, plan.spent(plan.steps))
    trained, held, join = parts_of(params, trainable)
    made_of = (loss, trained, plan, optimizer, capacity, method, failure, loss_takes_key)
    recipe = Recipe(*made_of, strategy=strategy, held=held, join=join)
    update = functools.partial(update_of(recipe, draws_of(plan, capacity, failure)), held=held)

    def init(params):
        trained = parts_of(params, trainable).trained
        return first_state(trained, plan, optimizer, jnp.zeros((), jnp.int32))

    return TrainingStep(init, update)
