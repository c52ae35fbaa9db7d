"""The settings of a linear model of a table, by one rule of public numbers.

`TableSettings.choose` makes them of the numbers of records, columns and classes; only the learning
rate waits for the plan, whose noise it follows. Whatever is given replaces that setting alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from dpjax._numerics.checks import CLIP_NORMS, POSITIVE, Range, one_number
from dpjax.training.link import ClippedLink
from dpjax.training.models import Model, cross_entropy, logistic, softmax
from dpjax.training.options import check_integer, tail_average

STEPS, LARGEST_BATCH, MOMENTUM, AVERAGED = 400, 2_048, 0.9, 0.5


class _Kind(NamedTuple):
    """What the kind of the target decides."""

    residual: float  # the norm of a record's residual from which on its gradient is clipped
    spread: float  # of a weight by the noise of all steps together
    highest_rate: float  # below which the descent is stable, whatever the records are
    why_clipped: str


# Chosen on 500 and 2,000 rows of Adult, the Swedish motor table and a simulated one with 2 % of
# positives; of several classes on Adult's marital status and kddcup99, of numbers on Adult's age,
# Bank's balance and the Swedish motor table's claims.
_TWO = _Kind(0.5, 2.0, 32.0, "the gradient of a record whose probability is wrong by ½")
_SEVERAL = _Kind(
    math.sqrt(0.5),
    2.0,
    32.0,
    "the gradient of a record of two classes whose probability is wrong by ½",
)
# On the scale on which the target's range is [−1, 1]; the curvature is at most 1 + 1/F ≤ 2, and
# gradient descent with momentum m is stable below 2(1 + m) over it.
_NUMBER = _Kind(0.5, 0.5, 1.0, "the gradient of a record that is wrong by a quarter of the range")


class Reason(NamedTuple):
    """A setting, its value in words, and why it is so."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class TableSettings:
    """How a linear model of a table is trained.

    Fields:
        records, columns, classes: the public numbers that the others follow from; no classes (0) of
            a target that is a number.
        steps: noisy gradient steps.
        batch_size: expected records a step.
        momentum: of the gradient descent.
        averaged: the share of the steps, at the end, whose mean is released; 0: the last alone.
        bias_feature: what stands beside the features, whose weight is the bias.
        clip_norm: bound on the norm of one record's gradient.
        given: the names of settings that did not follow from the rule.
        rate: a learning rate that was given; None: `learning_rate` follows the noise.

    Guarantee:
        No record is looked at.

    Example:
        >>> made = TableSettings.choose(10_000, columns=16)
        >>> made.steps, made.batch_size, made.bias_feature, round(made.clip_norm, 3)
        (400, 2048, 0.25, 0.515)
        >>> round(made.learning_rate(noise_multiplier=5.0), 2)
        7.95
    """

    records: int
    columns: int
    classes: int
    steps: int
    batch_size: int
    momentum: float
    averaged: float
    bias_feature: float
    clip_norm: float
    given: tuple[str, ...] = ()
    rate: float | None = None

    @classmethod
    def choose(
        cls, records: int, *, columns: int, classes: int = 2, steps: int | None = None,
        batch_size: int | None = None, momentum: float | None = None,
        averaged: float | None = None, clip_norm: float | None = None,
        learning_rate: float | None = None,
    ) -> TableSettings:  # fmt: skip
        """The settings of so many records and columns; what is given replaces that one alone."""
        check_integer("records", records)
        bias = 1 / math.sqrt(check_integer("columns", columns))
        kind = _find_kind(classes)
        given = {
            "steps": steps,
            "batch_size": batch_size,
            "momentum": momentum,
            "averaged": averaged,
            "clip_norm": clip_norm,
            "learning_rate": learning_rate,
        }
        part = Range(0.0, 1.0, open_high=True)
        return cls(
            records,
            columns,
            classes,
            STEPS if steps is None else check_integer("steps", steps),
            min(max(records // 4, 1), LARGEST_BATCH)
            if batch_size is None
            else check_integer("batch_size", batch_size),
            MOMENTUM if momentum is None else one_number("momentum", momentum, part),
            AVERAGED if averaged is None else one_number("averaged", averaged, part),
            bias,
            kind.residual * math.sqrt(1 + bias**2)
            if clip_norm is None
            else one_number("clip_norm", clip_norm, CLIP_NORMS),
            tuple(name for name, value in given.items() if value is not None),
            None if learning_rate is None else one_number("learning_rate", learning_rate, POSITIVE),
        )

    def learning_rate(self, noise_multiplier: float) -> float:
        """The learning rate at the plan's noise, see `rate_by_noise`; or the one that was given."""
        if self.rate is not None:
            return self.rate
        _, spread, highest, _ = _find_kind(self.classes)
        sum_noise = noise_multiplier * self.clip_norm
        moved = rate_by_noise(sum_noise / self.batch_size, self.steps, self.momentum, spread)
        return min(moved, highest)

    @property
    def plan_settings(self) -> dict[str, Any]:
        """What `make_plan` is told of them."""
        return {"steps": self.steps, "batch_size": self.batch_size, "clip_norm": self.clip_norm}

    def declare(self, noise_multiplier: float) -> dict[str, float]:
        """What a certificate declares of them that the mechanism does not know."""
        return {
            "learning_rate": self.learning_rate(noise_multiplier),
            "momentum": self.momentum,
            "averaged_steps": round(self.averaged * self.steps),
            "bias_feature": self.bias_feature,
        }

    def optimizer(self, noise_multiplier: float) -> optax.GradientTransformation:
        """Gradient descent with momentum at the learning rate of this noise."""
        return optax.sgd(self.learning_rate(noise_multiplier), momentum=self.momentum)

    @property
    def average(self) -> Callable[[Any], Any] | None:
        """The average of `fit`; None where the last iterate is released."""
        return average_last(self.averaged, self.steps)

    def training_model(self, features: int) -> Model:
        """The model as it is trained: plain scores, the bias a weight of its own feature."""
        if self.classes == 2:
            shapes = {"bias": (), "weights": (features,)}
        else:
            outputs = self.classes or 1
            shapes = {"bias": (outputs,), "weights": (features, outputs)}
        bias_feature = self.bias_feature

        def apply(params: Any, x: Float[Array, " features"]) -> Float[Array, " outputs"]:
            scores = x @ params["weights"] + bias_feature * params["bias"]
            return scores if scores.ndim else jnp.stack([jnp.zeros_like(scores), scores])

        # A convex problem starts from zero, whatever the key.
        return Model(lambda key: {n: jnp.zeros(shape) for n, shape in shapes.items()}, apply)

    def loss(self, features: int) -> Callable[[Any, Any], Float[Array, ""]]:
        """The loss of one record: −log p, or half the squared error of a number."""
        model = self.training_model(features)
        return cross_entropy(model) if self.classes else squared_error(model)

    def model(self, features: int) -> Model:
        """The model that is released: of weights and a plain bias, with the clipped loss's link."""
        link = ClippedLink(self.clip_norm, self.bias_feature)
        if not self.classes:
            return softmax(features, 1)
        if self.classes == 2:
            return logistic(features, link)
        return softmax(features, self.classes, link)

    def release(self, params: Any) -> Any:
        """Parameters of the training model as those of the released one: post-processing."""
        return {**params, "bias": jax.tree.map(lambda b: self.bias_feature * b, params["bias"])}

    def reasons(self, noise_multiplier: float) -> tuple[Reason, ...]:
        """Every setting with one sentence why."""
        rate, last = self.learning_rate(noise_multiplier), round(self.averaged * self.steps)
        kind = _find_kind(self.classes)
        found = [
            Reason(
                "steps",
                f"{self.steps:,}",
                "enough for the mean of the last half to settle; more gain nothing",
            ),
            Reason(
                "batch_size",
                f"{self.batch_size:,}",
                f"a quarter of the records, at most {LARGEST_BATCH:,}: noise is added once a step",
            ),
            Reason("momentum", f"{self.momentum:g}", "it smooths the noise of single steps"),
            Reason(
                "averaged",
                f"the last {last:,} steps" if last else "none",
                "their mean has less of the noise than the last step alone, and costs no ε",
            ),
            Reason(
                "bias_feature",
                f"{self.bias_feature:.4g}",
                f"1/√{self.columns} of so many columns, as large as the feature of one: a 1 would "
                "take half of the squared clip norm",
            ),
            Reason(
                "clip_norm",
                f"{self.clip_norm:.4g}",
                f"{kind.why_clipped}: larger errors count as that one, so that less noise is added",
            ),
            Reason(
                "learning_rate",
                f"{rate:.4g}",
                f"the noise of all steps together spreads a weight by {kind.spread:g}"
                f"{'' if rate < kind.highest_rate else ' at most, at the highest rate'}",
            ),
        ]
        return tuple(
            one._replace(why="as it was given") if one.name in self.given else one for one in found
        )

    def describe_link(self) -> str:
        """In one sentence, what is predicted from a model whose errors were clipped."""
        if not self.classes:
            return (
                "a number is predicted between the mean and the median of those alike: of errors "
                "beyond a quarter of the target's range the sign alone counts"
            )
        return (
            "probabilities are those at which the mean of the clipped gradients is zero, so that "
            "the classes are predicted as often as they occur"
        )


def rate_by_noise(step_noise: float, steps: int, momentum: float, spread: float) -> float:
    """The learning rate at which the noise of all steps together spreads a weight by so much.

    Of the mean gradient a step's noise has the deviation σC/B in each weight, momentum m lets it
    act 1/(1 − m) times, and K steps add up as √K, without the pull of the records. Without noise it
    is infinite: what is stable bounds it.
    """
    noise = step_noise * math.sqrt(steps) / (1 - momentum)
    return spread / noise if noise > 0 else math.inf


def squared_error(model: Model) -> Callable[[Any, Any], Float[Array, ""]]:
    """Half the squared error of a model's one output, of one record (features, number)."""

    def loss(params: Any, example: Any) -> Float[Array, ""]:
        return 0.5 * (model.apply(params, example[0])[0] - example[1]) ** 2

    return loss


def average_last(share: float, steps: int) -> Callable[[Any], Any] | None:
    """The mean of the last share of so many steps, for `fit`; None of none."""
    last = round(share * steps)
    return tail_average(steps - last) if last else None


def _find_kind(classes: int) -> _Kind:
    """What two classes, several, or a number (no classes) decide."""
    return _NUMBER if not classes else _TWO if classes == 2 else _SEVERAL
