"""Empirical lower bounds on ε: does the code keep the promise that the accountant makes for it?"""

from __future__ import annotations

from dpjax.audit.bound import EmpiricalBound, GuessEvidence, NormalShiftEvidence, ThresholdEvidence
from dpjax.audit.gaussian_fit import gaussian_bound, normal_shift_bound
from dpjax.audit.one_run import (
    canary_bound,
    canary_score,
    linear_loss,
    one_run,
    one_run_bound,
    orthogonal_canaries,
)
from dpjax.audit.power import describe_power, smallest_factor
from dpjax.audit.trials import distinguish, distinguishing_bound, run_trials

__all__ = [
    "EmpiricalBound",
    "GuessEvidence",
    "NormalShiftEvidence",
    "ThresholdEvidence",
    "canary_bound",
    "canary_score",
    "describe_power",
    "distinguish",
    "distinguishing_bound",
    "gaussian_bound",
    "linear_loss",
    "normal_shift_bound",
    "one_run",
    "one_run_bound",
    "orthogonal_canaries",
    "run_trials",
    "smallest_factor",
]
