"""Per-example clipped gradients of any JAX loss."""

from dpjax.gradients.clipping import clipped_grad as clipped_grad
from dpjax.gradients.explain import explain_clipping as explain_clipping
from dpjax.gradients.low_rank import low_rank_sum as low_rank_sum
from dpjax.gradients.quantile import AdaptiveQuantile as AdaptiveQuantile
from dpjax.gradients.result import ClippedGradient as ClippedGradient
from dpjax.gradients.rounding import rounding_slack as rounding_slack
from dpjax.gradients.strategies import Automatic as Automatic
from dpjax.gradients.strategies import Flat as Flat
from dpjax.gradients.strategies import PerGroup as PerGroup
from dpjax.gradients.strategies import PerSampleAdaptive as PerSampleAdaptive
from dpjax.gradients.strategies import Strategy as Strategy

__all__ = [
    "AdaptiveQuantile",
    "Automatic",
    "ClippedGradient",
    "Flat",
    "PerGroup",
    "PerSampleAdaptive",
    "Strategy",
    "clipped_grad",
    "explain_clipping",
    "low_rank_sum",
    "rounding_slack",
]
