"""What does a release cost? Mechanisms in, certified upper bounds of ε and δ out.

>>> from dpjax import accounting as acc
>>> step = acc.PoissonSampled(acc.Gaussian(noise_multiplier=1.1), rate=0.01)
>>> run = acc.Repeated(step, steps=1_000)
>>> round(acc.epsilon(run, delta=1e-5, method="rdp"), 2)
1.71
"""

from dpjax._numerics.scope import over_devices
from dpjax.accounting import mechanisms
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers import interop as interop
from dpjax.accounting.answers.calibration import calibrate
from dpjax.accounting.answers.certificate import Certificate
from dpjax.accounting.answers.certify import certify
from dpjax.accounting.answers.disclosure import Disclosure
from dpjax.accounting.answers.last_iterate_estimate import estimate_last_iterate
from dpjax.accounting.answers.ledger import Ledger
from dpjax.accounting.answers.ledger_file import LedgerFile
from dpjax.accounting.answers.methods import methods, register_method
from dpjax.accounting.answers.pricing import (
    delta,
    epsilon,
    epsilon_interval,
    price,
    rdp,
    tradeoff,
)
from dpjax.accounting.answers.risks import Summary, summary
from dpjax.accounting.answers.verification import Verification
from dpjax.accounting.errors import (
    BudgetExceeded,
    CertificateError,
    ImpossibleBudget,
    UnsupportedQuery,
)
from dpjax.accounting.gaussian.gaussian_dp import gdp_mu
from dpjax.accounting.mechanisms import *  # noqa: F403 (the vocabulary, named there)
from dpjax.accounting.method import Method
from dpjax.accounting.renyi.conversion import rdp_to_epsilon, zcdp_to_epsilon

__all__ = [
    "Adjacency",
    "BudgetExceeded",
    "Certificate",
    "CertificateError",
    "Disclosure",
    "ImpossibleBudget",
    "Ledger",
    "LedgerFile",
    "Method",
    "Summary",
    "UnsupportedQuery",
    "Verification",
    "calibrate",
    "certify",
    "delta",
    "epsilon",
    "epsilon_interval",
    "estimate_last_iterate",
    "gdp_mu",
    "methods",
    "over_devices",
    "price",
    "rdp",
    "rdp_to_epsilon",
    "register_method",
    "summary",
    "tradeoff",
    "zcdp_to_epsilon",
]
__all__ += mechanisms.__all__
