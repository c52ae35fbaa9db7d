"""What does a release cost? Mechanisms in, certified upper bounds of ε and δ out.

>>> from dpjax import accounting as acc
>>> step = acc.PoissonSampled(acc.Gaussian(noise_multiplier=1.1), rate=0.01)
>>> run = acc.Repeated(step, steps=1_000)
>>> round(acc.epsilon(run, delta=1e-5, method="rdp"), 2)
1.71
"""

from dpjax._numerics.scope import over_devices
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers import interop as interop
from dpjax.accounting.answers.calibration import calibrate
from dpjax.accounting.answers.certificate import Certificate, certify
from dpjax.accounting.answers.ledger import Ledger, LedgerFile
from dpjax.accounting.answers.methods import methods, register_method
from dpjax.accounting.answers.pricing import (
    delta,
    epsilon,
    epsilon_interval,
    price,
    rdp,
    tradeoff,
)
from dpjax.accounting.answers.risks import Summary, estimate_last_iterate, summary
from dpjax.accounting.answers.verification import Verification
from dpjax.accounting.errors import (
    BudgetExceeded,
    CertificateError,
    ImpossibleBudget,
    UnsupportedQuery,
)
from dpjax.accounting.gaussian.gaussian_dp import gdp_mu
from dpjax.accounting.mechanisms import (
    Anisotropic,
    ApproximateDP,
    BestOf,
    BoxedAngles,
    Composed,
    CorrelatedGaussian,
    CyclicPoissonCorrelated,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    FixedBatchSampled,
    Gaussian,
    GeoDP,
    Histogram,
    Laplace,
    MatrixGaussian,
    Mechanism,
    NoisyCyclicDescent,
    NoisyGradientDescent,
    NoisySampledDescent,
    ObjectivePerturbation,
    PoissonSampled,
    PureDP,
    RandomAllocation,
    RandomizedResponse,
    RandomizedSensitivity,
    RecentredGaussian,
    Repeated,
    Shuffled,
    Staircase,
    TangentBall,
    TruncatedPoissonSampled,
    UniformBall,
    UserLevel,
    WithReplacement,
    ZeroConcentrated,
    draw_trials,
    register_mechanism,
    registered_mechanisms,
)
from dpjax.accounting.method import Method
from dpjax.accounting.renyi.conversion import rdp_to_epsilon, zcdp_to_epsilon

__all__ = [
    "Adjacency",
    "Anisotropic",
    "ApproximateDP",
    "BestOf",
    "BoxedAngles",
    "BudgetExceeded",
    "Certificate",
    "CertificateError",
    "Composed",
    "CorrelatedGaussian",
    "CyclicPoissonCorrelated",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Exponential",
    "FixedBatchSampled",
    "Gaussian",
    "GeoDP",
    "Histogram",
    "ImpossibleBudget",
    "Laplace",
    "Ledger",
    "LedgerFile",
    "MatrixGaussian",
    "Mechanism",
    "Method",
    "NoisyCyclicDescent",
    "NoisyGradientDescent",
    "NoisySampledDescent",
    "ObjectivePerturbation",
    "PoissonSampled",
    "PureDP",
    "RandomAllocation",
    "RandomizedResponse",
    "RandomizedSensitivity",
    "RecentredGaussian",
    "Repeated",
    "Shuffled",
    "Staircase",
    "Summary",
    "TangentBall",
    "TruncatedPoissonSampled",
    "UniformBall",
    "UnsupportedQuery",
    "UserLevel",
    "Verification",
    "WithReplacement",
    "ZeroConcentrated",
    "calibrate",
    "certify",
    "delta",
    "draw_trials",
    "epsilon",
    "epsilon_interval",
    "estimate_last_iterate",
    "gdp_mu",
    "methods",
    "over_devices",
    "price",
    "rdp",
    "rdp_to_epsilon",
    "register_mechanism",
    "register_method",
    "registered_mechanisms",
    "summary",
    "tradeoff",
    "zcdp_to_epsilon",
]
