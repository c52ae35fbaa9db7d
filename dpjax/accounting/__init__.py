"""What does a release cost? Mechanisms in, certified upper bounds of ε and δ out.

>>> from dpjax import accounting as acc
>>> step = acc.PoissonSampled(acc.Gaussian(noise_multiplier=1.1), rate=0.01)
>>> run = acc.Repeated(step, steps=1_000)
>>> round(acc.epsilon(run, delta=1e-5, method="rdp"), 2)
1.71
"""

# Methods join the table of queries when their module is imported.
from dpjax.accounting import (
    bounded_noise,
    convex,
    gaussian_runs,
    hidden_state,
    loss_distribution,
    profile,
    randomized_sensitivity,
    renyi_curves,
    spherical,
    tight,
    tracing_diffusion,
    tuning,
)
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.calibration import ImpossibleBudget, calibrate
from dpjax.accounting.certificate import Certificate, Verification, certify
from dpjax.accounting.conversion import rdp_to_epsilon, zcdp_to_epsilon
from dpjax.accounting.errors import CertificateError, UnsupportedQuery
from dpjax.accounting.gaussian_runs import gdp_mu
from dpjax.accounting.geometric_mechanisms import (
    Anisotropic,
    BoxedAngles,
    GeoDP,
    RecentredGaussian,
    TangentBall,
)
from dpjax.accounting.lowering import GaussianPair, register_gaussian
from dpjax.accounting.mechanisms import (
    Composed,
    FixedBatchSampled,
    Gaussian,
    Mechanism,
    PoissonSampled,
    Repeated,
    Shuffled,
    UniformBall,
    register_mechanism,
    registered_mechanisms,
)
from dpjax.accounting.queries import (
    Method,
    delta,
    epsilon,
    epsilon_interval,
    methods,
    price,
    rdp,
    register_method,
    tradeoff,
)
from dpjax.accounting.run_mechanisms import (
    NoisyCyclicDescent,
    NoisyGradientDescent,
    RandomizedSensitivity,
)
from dpjax.accounting.sampled_descent import NoisySampledDescent
from dpjax.accounting.tuning import BestOf, draw_trials

__all__ = [
    "Adjacency",
    "Anisotropic",
    "BestOf",
    "BoxedAngles",
    "Certificate",
    "CertificateError",
    "Composed",
    "FixedBatchSampled",
    "Gaussian",
    "GaussianPair",
    "GeoDP",
    "ImpossibleBudget",
    "Mechanism",
    "Method",
    "NoisyCyclicDescent",
    "NoisyGradientDescent",
    "NoisySampledDescent",
    "PoissonSampled",
    "RandomizedSensitivity",
    "RecentredGaussian",
    "Repeated",
    "Shuffled",
    "TangentBall",
    "UniformBall",
    "UnsupportedQuery",
    "Verification",
    "bounded_noise",
    "calibrate",
    "certify",
    "convex",
    "delta",
    "draw_trials",
    "epsilon",
    "epsilon_interval",
    "gaussian_runs",
    "gdp_mu",
    "hidden_state",
    "loss_distribution",
    "methods",
    "price",
    "profile",
    "randomized_sensitivity",
    "rdp",
    "rdp_to_epsilon",
    "register_gaussian",
    "register_mechanism",
    "register_method",
    "registered_mechanisms",
    "renyi_curves",
    "spherical",
    "tight",
    "tracing_diffusion",
    "tradeoff",
    "tuning",
    "zcdp_to_epsilon",
]
