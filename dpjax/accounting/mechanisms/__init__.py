"""The vocabulary: one frozen pytree for every kind of release.

A mechanism says what is released, what that rests on and how firmly, and nothing of how it is
priced. `base` has what they share; the other files define them. All of `__all__` is in `acc` too.
"""

from dpjax.accounting.mechanisms.base import Mechanism, register_mechanism, registered_mechanisms
from dpjax.accounting.mechanisms.composition import Composed, Repeated
from dpjax.accounting.mechanisms.correlated import (
    CorrelatedGaussian,
    CyclicMatrixGaussian,
    CyclicPoissonCorrelated,
    MatrixGaussian,
    MinSeparatedCorrelated,
)
from dpjax.accounting.mechanisms.correlated_allocation import RandomAllocationCorrelated
from dpjax.accounting.mechanisms.geometric import (
    Anisotropic,
    BoxedAngles,
    GeoDP,
    RecentredGaussian,
    TangentBall,
)
from dpjax.accounting.mechanisms.guarantees import ApproximateDP, PureDP, ZeroConcentrated
from dpjax.accounting.mechanisms.histogram import Histogram
from dpjax.accounting.mechanisms.releases import (
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    Gaussian,
    Laplace,
    RandomizedResponse,
    UniformBall,
)
from dpjax.accounting.mechanisms.sampling import (
    FixedBatchSampled,
    PoissonSampled,
    RandomAllocation,
    Shuffled,
    TruncatedPoissonSampled,
    WithReplacement,
)
from dpjax.accounting.mechanisms.selection import BestOf, draw_trials
from dpjax.accounting.mechanisms.selection import trial_parameter as trial_parameter
from dpjax.accounting.mechanisms.staircase import Staircase
from dpjax.accounting.mechanisms.steps import UserLevel
from dpjax.accounting.mechanisms.steps import flatten as flatten
from dpjax.accounting.mechanisms.whole_runs import (
    NoisyCyclicDescent,
    NoisyGradientDescent,
    NoisySampledDescent,
    ObjectivePerturbation,
    RandomizedSensitivity,
)

__all__ = [
    "Anisotropic",
    "ApproximateDP",
    "BestOf",
    "BoxedAngles",
    "Composed",
    "CorrelatedGaussian",
    "CyclicMatrixGaussian",
    "CyclicPoissonCorrelated",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Exponential",
    "FixedBatchSampled",
    "Gaussian",
    "GeoDP",
    "Histogram",
    "Laplace",
    "MatrixGaussian",
    "Mechanism",
    "MinSeparatedCorrelated",
    "NoisyCyclicDescent",
    "NoisyGradientDescent",
    "NoisySampledDescent",
    "ObjectivePerturbation",
    "PoissonSampled",
    "PureDP",
    "RandomAllocation",
    "RandomAllocationCorrelated",
    "RandomizedResponse",
    "RandomizedSensitivity",
    "RecentredGaussian",
    "Repeated",
    "Shuffled",
    "Staircase",
    "TangentBall",
    "TruncatedPoissonSampled",
    "UniformBall",
    "UserLevel",
    "WithReplacement",
    "ZeroConcentrated",
    "draw_trials",
    "register_mechanism",
    "registered_mechanisms",
]
