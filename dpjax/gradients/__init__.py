"""Per-example clipped gradients of any JAX loss."""

from dpjax.gradients.clipped_sums import clip_and_sum
from dpjax.gradients.clipping import ClippedGradient, ClippedSum, clipped_grad
from dpjax.gradients.clipping import explain_clipping as explain_clipping
from dpjax.gradients.ghost.outer import low_rank_sum
from dpjax.gradients.per_example import rounding_slack
from dpjax.gradients.strategies import (
    AdaptiveQuantile,
    Automatic,
    Flat,
    PerGroup,
    PerSampleAdaptive,
    Strategy,
)

__all__ = [
    "AdaptiveQuantile",
    "Automatic",
    "ClippedGradient",
    "ClippedSum",
    "Flat",
    "PerGroup",
    "PerSampleAdaptive",
    "Strategy",
    "clip_and_sum",
    "clipped_grad",
    "explain_clipping",
    "low_rank_sum",
    "rounding_slack",
]
