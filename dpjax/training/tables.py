"""The settings of a linear model of a table, by one rule of public numbers.

`TableSettings.choose` makes them of the numbers of records, columns and classes; only the learning
rate waits for the plan, whose noise it follows. Whatever is given replaces that setting alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpjax._numerics.typing import Params
from dpjax.training.descent import DescentSettings, Reason
from dpjax.training.link import ClippedLink
from dpjax.training.models import Model, logistic, softmax


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


@dataclass(frozen=True)
class TableSettings(DescentSettings):
    """How a linear model of a table is trained, see `DescentSettings`.

    Guarantee:
        No record is looked at.

    Example:
        >>> made = TableSettings.choose(10_000, columns=16)
        >>> made.steps, made.batch_size, made.bias_feature, round(made.clip_norm, 3)
        (400, 2048, 0.25, 0.515)
        >>> round(made.learning_rate(noise_multiplier=5.0), 2)
        7.95
    """

    @property
    def bias_feature(self) -> float:
        """What stands beside the features, whose weight is the bias."""
        return 1 / math.sqrt(self.columns)

    @staticmethod
    def _usual_clip_norm(columns: int, classes: int) -> float:
        return _find_kind(classes).residual * math.sqrt(1 + 1 / columns)

    @property
    def _spread(self) -> float:
        return _find_kind(self.classes).spread

    @property
    def _highest_rate(self) -> float:
        return _find_kind(self.classes).highest_rate

    def declare(self, noise_multiplier: float) -> dict[str, float]:
        """What a certificate declares of them that the mechanism does not know."""
        return {**super().declare(noise_multiplier), "bias_feature": self.bias_feature}

    def training_model(self, features: int) -> Model:
        """The model as it is trained: plain scores, the bias a weight of its own feature."""
        if self.classes == 2:
            shapes = {"bias": (), "weights": (features,)}
        else:
            outputs = self.classes or 1
            shapes = {"bias": (outputs,), "weights": (features, outputs)}
        bias_feature = self.bias_feature

        def apply(params: Params, x: Float[Array, " features"]) -> Float[Array, " outputs"]:
            scores = x @ params["weights"] + bias_feature * params["bias"]
            return scores if scores.ndim else jnp.stack([jnp.zeros_like(scores), scores])

        # A convex problem starts from zero, whatever the key.
        return Model(lambda key: {n: jnp.zeros(shape) for n, shape in shapes.items()}, apply)

    def model(self, features: int) -> Model:
        """The model that is released: of weights and a plain bias, with the clipped loss's link."""
        link = ClippedLink(self.clip_norm, self.bias_feature)
        if not self.classes:
            return softmax(features, 1)
        if self.classes == 2:
            return logistic(features, link)
        return softmax(features, self.classes, link)

    def release(self, params: Params, features: int | None = None) -> Params:
        """Parameters of the training model as those of the released one: post-processing."""
        bias = jax.tree.map(lambda b: self.bias_feature * b, params["bias"])
        return {**params, "bias": bias, "weights": params["weights"][:features]}

    def count_places(self, features: int) -> int:
        """A number of places for so many features, the same for others about as many.

        How many features a released table has is chance: a program that is kept serves the next.
        The noise in the weights of the others is theirs alone, and these weights are left out.
        """
        unit = 1 << max(features.bit_length() - 4, 0)  # an eighth of the features or less
        return -(-features // unit) * unit

    def _explain_model(self) -> tuple[Reason, ...]:
        why = (
            f"1/√{self.columns} of so many columns, as large as the feature of one: a 1 would take "
            "half of the squared clip norm"
        )
        return (Reason("bias_feature", f"{self.bias_feature:.4g}", why),)

    def _explain_clip_norm(self) -> str:
        why = _find_kind(self.classes).why_clipped
        return f"{why}: larger errors count as that one, so that less noise is added"

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


def _find_kind(classes: int) -> _Kind:
    """What two classes, several, or a number (no classes) decide."""
    return _NUMBER if not classes else _TWO if classes == 2 else _SEVERAL
