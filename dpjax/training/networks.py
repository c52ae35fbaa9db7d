"""The settings of a perceptron of a table, by one rule of public numbers."""

from __future__ import annotations

from dataclasses import dataclass

from dpjax._numerics.typing import Params
from dpjax.training.descent import DescentSettings, Reason
from dpjax.training.models import Model, mlp

# Chosen on Adult, of which Bank and 2,000 rows of Adult were not told.
_CLIP_NORM, _SPREAD, _HIGHEST_RATE = 4.0, 0.3, 0.125


@dataclass(frozen=True)
class NetworkSettings(DescentSettings):
    """How the perceptron `mlp` of a table is trained, see `DescentSettings`.

    Guarantee:
        No record is looked at.

    Example:
        >>> made = NetworkSettings.choose(10_000, columns=16)
        >>> made.steps, made.batch_size, made.clip_norm
        (400, 2048, 4.0)
        >>> made.learning_rate(noise_multiplier=2.0), round(made.learning_rate(10.0), 3)
        (0.125, 0.077)
    """

    @staticmethod
    def _usual_clip_norm(columns: int, classes: int) -> float:
        return _CLIP_NORM

    @property
    def _spread(self) -> float:
        return _SPREAD

    @property
    def _highest_rate(self) -> float:
        return _HIGHEST_RATE

    def training_model(self, features: int) -> Model:
        """The model as it is trained, which is the one that is released."""
        return self.model(features)

    def model(self, features: int) -> Model:
        """The perceptron, of one output where a number is predicted."""
        return mlp(features, self.classes or 1)

    def release(self, params: Params, features: int | None = None) -> Params:
        """The parameters as they are."""
        return params

    def _explain_model(self) -> tuple[Reason, ...]:
        return ()

    def _explain_clip_norm(self) -> str:
        return (
            "above the gradient of most records, so that a large error counts as one and "
            "probabilities are not too sure"
        )

    def describe_link(self) -> str:
        """In one sentence, what is predicted from a model whose errors were clipped."""
        what = "probabilities are" if self.classes else "the number is"
        return f"{what} the network's own: few gradients are clipped"
