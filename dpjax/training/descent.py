"""Noisy gradient descent whose settings follow from public numbers: what the rules share.

A rule is a subclass of `DescentSettings`, of one kind of model: it says where gradients are
clipped, how far the noise may spread a weight, and what is released.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import optax
from jaxtyping import Array, Float

from dpjax._numerics.checks import CLIP_NORMS, POSITIVE, Range, one_number
from dpjax._numerics.typing import Loss, Params
from dpjax.training.models import Model, cross_entropy
from dpjax.training.options import check_integer, tail_average
from dpjax.training.typing import AverageWeights

STEPS, LARGEST_BATCH, MOMENTUM, AVERAGED = 400, 2_048, 0.9, 0.5


class Reason(NamedTuple):
    """A setting, its value in words, and why it is so."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class DescentSettings(abc.ABC):
    """How a model of a table is trained; only the learning rate waits for the plan's noise.

    Fields:
        records, columns, classes: the public numbers that the others follow from; no classes (0) of
            a target that is a number.
        steps: noisy gradient steps.
        batch_size: expected records a step.
        momentum: of the gradient descent.
        averaged: the share of the steps, at the end, whose mean is released; 0: the last alone.
        clip_norm: bound on the norm of one record's gradient.
        given: the names of settings that did not follow from the rule.
        rate: a learning rate that was given; None: `learning_rate` follows the noise.
    """

    records: int
    columns: int
    classes: int
    steps: int
    batch_size: int
    momentum: float
    averaged: float
    clip_norm: float
    given: tuple[str, ...] = ()
    rate: float | None = None

    @classmethod
    def choose(
        cls,
        records: int,
        *,
        columns: int,
        classes: int = 2,
        steps: int | None = None,
        batch_size: int | None = None,
        momentum: float | None = None,
        averaged: float | None = None,
        clip_norm: float | None = None,
        learning_rate: float | None = None,
    ) -> Self:
        """The settings of so many records and columns; what is given replaces that one alone."""
        check_integer("records", records)
        check_integer("columns", columns)
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
            cls._usual_clip_norm(columns, classes)
            if clip_norm is None
            else one_number("clip_norm", clip_norm, CLIP_NORMS),
            tuple(name for name, value in given.items() if value is not None),
            None if learning_rate is None else one_number("learning_rate", learning_rate, POSITIVE),
        )

    @staticmethod
    @abc.abstractmethod
    def _usual_clip_norm(columns: int, classes: int) -> float:
        """The clip norm that the rule says."""

    @property
    @abc.abstractmethod
    def _spread(self) -> float:
        """How far the noise of all steps together spreads a weight."""

    @property
    @abc.abstractmethod
    def _highest_rate(self) -> float:
        """Below which the descent is stable, whatever the records are."""

    @abc.abstractmethod
    def training_model(self, features: int) -> Model:
        """The model as it is trained."""

    @abc.abstractmethod
    def model(self, features: int) -> Model:
        """The model that is released."""

    @abc.abstractmethod
    def release(self, params: Params, features: int | None = None) -> Params:
        """Parameters of the training model as those of the released one: post-processing.

        Of a model that was trained with places (`count_places`) those of the features alone.
        """

    def count_places(self, features: int) -> int:
        """How many features the model is trained with: those beyond `features` are zero."""
        return features

    @abc.abstractmethod
    def _explain_model(self) -> tuple[Reason, ...]:
        """What this kind of model has beside the descent."""

    @abc.abstractmethod
    def _explain_clip_norm(self) -> str:
        """Why gradients are clipped there."""

    @abc.abstractmethod
    def describe_link(self) -> str:
        """In one sentence, what is predicted from a model whose errors were clipped."""

    def learning_rate(self, noise_multiplier: float) -> float:
        """The learning rate at the plan's noise, see `rate_by_noise`; or the one that was given."""
        if self.rate is not None:
            return self.rate
        sum_noise = noise_multiplier * self.clip_norm
        moved = rate_by_noise(sum_noise / self.batch_size, self.steps, self.momentum, self._spread)
        return min(moved, self._highest_rate)

    @property
    def plan_settings(self) -> dict[str, float]:
        """What `make_plan` is told of them."""
        return {"steps": self.steps, "batch_size": self.batch_size, "clip_norm": self.clip_norm}

    def declare(self, noise_multiplier: float) -> dict[str, float]:
        """What a certificate declares of them that the mechanism does not know."""
        return {
            "learning_rate": self.learning_rate(noise_multiplier),
            "momentum": self.momentum,
            "averaged_steps": round(self.averaged * self.steps),
        }

    def optimizer(self, noise_multiplier: float) -> optax.GradientTransformation:
        """Gradient descent with momentum at the learning rate of this noise."""
        return descend_with_momentum(self.learning_rate(noise_multiplier), self.momentum)

    @property
    def average(self) -> AverageWeights | None:
        """The average of `fit`; None where the last iterate is released."""
        return average_last(self.averaged, self.steps)

    def loss(self, features: int) -> Loss:
        """The loss of one record: −log p, or half the squared error of a number."""
        model = self.training_model(features)
        return cross_entropy(model) if self.classes else squared_error(model)

    def reasons(self, noise_multiplier: float) -> tuple[Reason, ...]:
        """Every setting with one sentence why."""
        rate, last = self.learning_rate(noise_multiplier), round(self.averaged * self.steps)
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
            *self._explain_model(),
            Reason("clip_norm", f"{self.clip_norm:.4g}", self._explain_clip_norm()),
            Reason(
                "learning_rate",
                f"{rate:.4g}",
                f"the noise of all steps together spreads a weight by {self._spread:g}"
                f"{'' if rate < self._highest_rate else ' at most, at the highest rate'}",
            ),
        ]
        return tuple(
            one._replace(why="as it was given") if one.name in self.given else one for one in found
        )


def rate_by_noise(step_noise: float, steps: int, momentum: float, spread: float) -> float:
    """The learning rate at which the noise of all steps together spreads a weight by so much.

    Of the mean gradient a step's noise has the deviation σC/B in each weight, momentum m lets it
    act 1/(1 − m) times, and K steps add up as √K, without the pull of the records. Without noise it
    is infinite: what is stable bounds it.
    """
    noise = step_noise * math.sqrt(steps) / (1 - momentum)
    return spread / noise if noise > 0 else math.inf


def descend_with_momentum(rate: float, momentum: float) -> optax.GradientTransformation:
    """Gradient descent with momentum, whose rate is part of the state and of no program.

    The rate follows the noise, and that the number of records, which chance may decide: a compiled
    program that is kept serves the next run too.
    """
    make = optax.inject_hyperparams(optax.sgd, static_args=("momentum",))
    return make(learning_rate=rate, momentum=momentum)


def add_places(
    features: Float[np.ndarray, "records features"], places: int
) -> Float[np.ndarray, "records places"]:
    """Features with zeros behind them, up to so many places."""
    return np.pad(features, ((0, 0), (0, places - features.shape[1])))


def squared_error(model: Model) -> Loss:
    """Half the squared error of a model's one output, of one record (features, number)."""

    def loss(params: Params, example: tuple[Array, Array]) -> Float[Array, ""]:
        return 0.5 * (model.apply(params, example[0])[0] - example[1]) ** 2

    return loss


def average_last(share: float, steps: int) -> AverageWeights | None:
    """The mean of the last share of so many steps, for `fit`; None of none."""
    last = round(share * steps)
    return tail_average(steps - last) if last else None
