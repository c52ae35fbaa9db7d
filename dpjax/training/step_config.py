"""The settings of a step, its first state, and the sensitivity that float rounding adds to it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, PyTree

from dpjax import gradients, transforms
from dpjax._numerics.checks import Tracer, render
from dpjax._numerics.typing import Loss, Params
from dpjax.gradients.choice import ClippingMethod
from dpjax.training.devices import Placement
from dpjax.training.options import first_average
from dpjax.training.plan import ARITHMETIC, Plan
from dpjax.training.typing import AverageWeights, RunState

# What each key made of the run's own is for: sampling, noise, a loss that takes one, a count.
SAMPLING, NOISE_KEY, LOSS, COUNT = 0, 1, 2, 3


class StepConfig(NamedTuple):
    """The settings of a step."""

    loss: Callable[..., Any]  # of one record, or of parameters alone: see `fit`
    params: Params  # the first parameters, for their shapes and where they lie
    plan: Plan  # mechanism, clip norm and public constants
    optimizer: optax.GradientTransformation  # any optax optimiser
    capacity: int | None  # records worked on at once; None for whole draws
    method: ClippingMethod  # how per-example gradients are clipped
    failure: float  # probability with which the bounds on rounding and on a batch's size may fail
    loss_takes_key: bool = False  # whether the loss has a key as its third argument
    placement: Placement | None = None  # of records and parameters on several devices, None on one
    # The weights of an average of the iterates, or None.
    average: AverageWeights | None = None
    clipping: gradients.Strategy = gradients.Flat()  # how a gradient is scaled
    frozen: PyTree[
        Array
    ] = ()  # what is not trained, arrays or their shapes; each step is given its values
    # The model from what is trained and what is not.
    join: Callable[[Params, PyTree[Array]], Params] = lambda params, frozen: params
    # Whether losses and counts of the training records are added up for the metrics.
    counted: bool = False
    # Whether `loss(params)` is a `clip_and_sum` of records, whose sum takes the gradients' place.
    makes_sum: bool = False
    places: int | None = None  # for records, of a program that runs of other sizes share

    def loss_of_parts(
        self, params: Params, frozen: PyTree[Array], *example_and_key: PyTree
    ) -> Array:
        """The loss of one record, from what is trained and what is not."""
        model = self.join(params, frozen)
        try:
            found = self.loss(model, *example_and_key)
        except Exception as error:
            _explain_failure(error, self.loss, model, *example_and_key)
            raise
        leaf = jax.tree_util.all_leaves([found])
        if not leaf or np.shape(found) != ():
            got = f"shape {np.shape(found)}" if leaf else type(found).__name__
            raise ValueError(
                f"loss must be one number for a record, got {got}: sum or average over everything "
                "within the record"
            )
        return found

    def first_state(self, params: Params, step: ArrayLike) -> RunState:
        """The state before the first step."""
        return first_state(params, self.plan, self.optimizer, step, self.average)

    @property
    def process_mesh(self) -> Mesh | None:
        """The mesh of a run of several processes, else None."""
        if self.placement is None or not self.placement.several:
            return None
        return self.placement.mesh

    @property
    def scaling(self) -> gradients.Strategy:
        """The strategy with the groups of these parameters worked out."""
        if isinstance(self.clipping, gradients.AdaptiveQuantile):
            raise ValueError(
                "clipping must not be AdaptiveQuantile, whose count has a price: give it to "
                f"make_plan(adaptive=...), got {self.clipping}"
            )
        return self.clipping.bind(self.params)


def _explain_failure(
    error: Exception, loss: Loss, model: Params, example: PyTree, *key: PyTree
) -> None:
    """Raise, where a loss failed for a reason that is known, what to write instead."""
    if type(error).__name__ == "TraceContextError":  # of flax.nnx
        raise ValueError(
            "loss must change nothing that it closes over, got an nnx module that does: batch "
            "statistics and random numbers belong to no loss; use GroupNorm or LayerNorm, or "
            "use_running_average=True, and training.from_nnx for dropout"
        ) from error
    if (
        isinstance(error, TypeError)
        and isinstance(example, tuple)
        and _can_run(loss, model, *example, *key)
    ):
        own = ", key" if key else ""
        raise ValueError(
            "loss must take (params, example), where example is the tuple of a record's parts, got "
            f"one that takes them apart: give lambda params, example{own}: "
            f"loss(params, *example{own})"
        ) from error
    batch = jax.tree.map(lambda leaf: leaf[None], example)
    try:
        shape = jax.eval_shape(lambda: loss(model, batch, *key)).shape  # does it take a batch?
    except Exception:  # it fails for another reason, which its own error says
        return
    if shape in ((), (1,)):
        raise ValueError(
            "loss must be of one record, got one that takes a batch: leave out the axis of records "
            "and the mean over it, or give lambda params, example: "
            "loss(params, jax.tree.map(lambda leaf: leaf[None], example))"
        ) from error


def _can_run(function: Callable[..., Any], *arguments: PyTree) -> bool:
    try:
        jax.eval_shape(lambda: function(*arguments))
    except Exception:  # whatever a user's function raises
        return False
    return True


def takes_params_alone(loss: Callable[..., Any]) -> bool:
    """Whether this is no loss but a function of the parameters that makes a `clip_and_sum`."""
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):  # it has none to read
        return False
    return len(parameters) == 1 and all(
        own.kind in (own.POSITIONAL_ONLY, own.POSITIONAL_OR_KEYWORD) for own in parameters
    )


def read_sum(config: StepConfig, frozen: PyTree[Array]) -> StepConfig:
    """The settings as they are of a loss; checked, with its way to clip, of a `clip_and_sum`."""
    if not takes_params_alone(config.loss):
        return config
    clip, plan = config.loss(config.join(config.params, frozen)), config.plan
    clip_norm, clipping = (getattr(clip, name, None) for name in ("clip_norm", "clipping"))
    if not (callable(clip) and isinstance(clipping, gradients.Strategy)):
        raise ValueError(
            "loss must take (params, example), or params alone and return dpjax.clip_and_sum of a "
            f"function of one record, got one of params alone that returns {render(clip)}"
        )
    # The plan's noise is that of its own clip norm, which the step hands on.
    traced = isinstance(clip_norm, Tracer) or plan.is_traced
    if not traced and clip_norm != plan.clip_norm:
        raise ValueError(
            f"clip_norm of clip_and_sum must be the plan's {plan.clip_norm}, got {clip_norm}"
        )
    left_out = {
        "mesh": config.placement is not None,
        "method": config.method != "auto",
        "clipping": config.clipping != gradients.Flat(),
        "loss_takes_key": config.loss_takes_key,
    }
    for name, given in left_out.items():
        if given:
            raise ValueError(
                f"{name} must be as by default where loss makes a clip_and_sum, got another: it "
                "clips by itself, on one device"
            )
    return config._replace(makes_sum=True, clipping=clipping)


def failure_probability(plan: Plan) -> float:
    """How often a step's bounds on rounding, on the batch's size and on its blocks' may fail."""
    # Failures of probability p cost at most p + G(p) at every ε, G(p) = sup{P(S) : Q(S) ≤ p}: P may
    # have p more, and Q lack a share h of itself with ∫hQ ≤ p; ∫(1 − h)(P − e^ε Q)₊ is within δ(ε),
    # and ∫hP ≤ G(p). So such parts of δ add up in compositions. As G(p) ≤ e^ε p + δ(ε) for any ε:
    # of what is reserved half is δ(ε), and half (1 + e^ε)p, p of three bounds in every step.
    half = plan.extra_delta.get(ARITHMETIC, 1e-15) / 2
    # For traced noise ε is not known: the bounds are those of any ε.
    known = not plan.is_traced and half > 0
    epsilon = plan.spent(plan.steps, half) if known else math.inf
    runs = 1.0 if plan.selection is None else plan.selection.mean  # expected: the union bound
    return max(half / (3 * plan.steps * runs * (1 + math.exp(min(epsilon, 300.0)))), 1e-150)


def rounding_sensitivity(params: Params, largest: int, failure: float) -> float:
    """By how much float rounding can raise the sensitivity of a step's sum."""
    # One number for all capacities and devices: pieces, runs and devices are added up with
    # compensation, and a batch of a neighbour differs in two places, see `training.order`.
    dimension = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))
    return gradients.rounding_slack(largest, dimension, failure=failure, in_place=True)


def first_state(
    params: Params,
    plan: Plan,
    optimizer: optax.GradientTransformation,
    step: ArrayLike,
    average: AverageWeights | None = None,
) -> RunState:
    """What a run carries from step to step; the noise of the last ones where it is correlated."""
    state = {"params": params, "optimizer": optimizer.init(params), "step": step}
    if average is not None:
        state["average"] = first_average(params)
    if plan.adaptive is not None:
        state["clip_norm"] = jnp.asarray(plan.clip_norm, jnp.float32)
    if plan.strategy is None:
        return state
    noise = transforms.correlated_noise(plan.strategy, 1.0, jax.random.key(0))
    return state | {"noise": noise.init(params).past}  # pyrefly: ignore
