"""What a step is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from dpjax import gradients
from dpjax.training.placement import Placement
from dpjax.training.plan import Plan

# What each key made of the run's own is for: sampling, noise, a loss that takes one, a count.
SAMPLING, NOISE, LOSS, COUNT = 0, 1, 2, 3


class Recipe(NamedTuple):
    """What a step is made of.

    Fields:
        loss: of one record.
        params: the first parameters, for their shapes and where they lie.
        plan: mechanism, clip norm and public constants.
        optimizer: any optax optimiser.
        capacity: records worked on at once; None for whole draws.
        method: how per-example gradients are clipped.
        failure: probability with which the bounds on rounding and on a batch's size may fail.
        loss_takes_key: whether the loss has a key as its third argument.
        placement: of records and parameters on several devices, None on one.
        average: the weights of an average of the iterates, or None.
        strategy: how a gradient is scaled.
        held: what is not trained, arrays or their shapes; each step is given its values.
        join: the model from the parameters and what is held; None for the parameters themselves.
        counted: whether losses and counts of the training records are added up for the metrics.
    """

    loss: Any
    params: Any
    plan: Plan
    optimizer: Any
    capacity: int | None
    method: Any
    failure: float
    loss_takes_key: bool = False
    placement: Placement | None = None
    average: Callable[[Any], Any] | None = None
    strategy: gradients.Strategy = gradients.Flat()
    held: Any = ()
    join: Callable[[Any, Any], Any] | None = None
    counted: bool = False

    @property
    def loss_of_parts(self) -> Callable[..., Any]:
        """`loss(params, held, example)`, of what is trained and what is not."""

        def of_parts(params, held, *example_and_key):
            model = params if self.join is None else self.join(params, held)
            return self.loss(model, *example_and_key)

        return of_parts

    @property
    def scaling(self) -> gradients.Strategy:
        """The strategy with the groups of these parameters worked out."""
        found: Any = self.strategy
        if isinstance(found, gradients.AdaptiveQuantile):
            raise ValueError(
                "strategy must not be AdaptiveQuantile, whose count has a price: give it to "
                f"make_plan(adaptive=...), got {found}"
            )
        return found.bind(self.params) if hasattr(found, "bind") else found


def arguments_after_example(loss_takes_key: bool) -> tuple[Any, ...]:
    """What a loss is given after a record, to trace it: a key, or nothing."""
    return (jax.random.key(0),) if loss_takes_key else ()
