"""Empirical lower bounds on ε: does the code keep the promise that the accountant makes for it?"""

from __future__ import annotations

from dpjax.audit.anytime import (
    RunningBound,
    RunningEvidence,
    choose_cuts,
    start_bound,
    start_evidence,
)
from dpjax.audit.bootstrap import BootstrapInterval, bootstrap_interval
from dpjax.audit.bound import (
    CurveEvidence,
    EmpiricalBound,
    GuessEvidence,
    NormalShiftEvidence,
    PairsEvidence,
    ThresholdEvidence,
)
from dpjax.audit.canary_bets import RunningGuesses, start_guesses
from dpjax.audit.curve_guesses import curve_p_value, one_run_curve_bound
from dpjax.audit.curves import (
    CurveLines,
    GaussianCurve,
    PiecewiseCurve,
    TradeoffCurve,
    claimed_curve,
)
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
    "BootstrapInterval",
    "CurveEvidence",
    "CurveLines",
    "EmpiricalBound",
    "GaussianCurve",
    "GuessEvidence",
    "NormalShiftEvidence",
    "PairsEvidence",
    "PiecewiseCurve",
    "RunningBound",
    "RunningEvidence",
    "RunningGuesses",
    "ThresholdEvidence",
    "TradeoffCurve",
    "bootstrap_interval",
    "canary_bound",
    "canary_score",
    "choose_cuts",
    "claimed_curve",
    "curve_p_value",
    "describe_power",
    "distinguish",
    "distinguishing_bound",
    "gaussian_bound",
    "linear_loss",
    "normal_shift_bound",
    "one_run",
    "one_run_bound",
    "one_run_curve_bound",
    "orthogonal_canaries",
    "run_trials",
    "smallest_factor",
    "start_bound",
    "start_evidence",
    "start_guesses",
]
