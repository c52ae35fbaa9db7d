"""Private convex optimisation: problems that know their constants, one solver per algorithm.

A solver is a pure function of (problem, key, hyperparameters), and returns `Solution(params,
mechanism, history)`; `acc.epsilon(solution.mechanism, …)` prices it. `vmap` over keys and
hyperparameters runs a sweep in one compiled program.
"""

from dpjax.erm import schedules, sensitivity
from dpjax.erm.adaptive import AdaptiveHistory, dp_agd
from dpjax.erm.differentiable import DifferentiableProblem, differentiable_problem
from dpjax.erm.gradient_perturbation import (
    BallHistory,
    GradientHistory,
    dp_gd,
    dp_sgd,
    perturbed_gd,
    sgd_ma,
)
from dpjax.erm.hidden_state import HiddenHistory, noisy_cyclic_gd, noisy_gd
from dpjax.erm.minimise import LbfgsHistory, gradient_descent, lbfgs, sgd
from dpjax.erm.objective_perturbation import (
    NotConverged,
    ObjectiveHistory,
    approximate_minima_perturbation,
    objective_perturbation,
)
from dpjax.erm.one_vs_rest import one_vs_rest, predict_class
from dpjax.erm.output_perturbation import (
    OutputHistory,
    nsgd,
    output_perturbed_gd,
    output_perturbed_sgd,
    rsgd,
    rsgd_ar,
)
from dpjax.erm.problems import (
    Problem,
    huber_svm,
    linear_regression,
    logistic_regression,
    softmax_regression,
)
from dpjax.erm.solver import Solution, calibrate_noise, mechanism_of
from dpjax.erm.sweep import sweep
from dpjax.erm.sweep_result import Choice, SweepResult

__all__ = [
    "AdaptiveHistory",
    "BallHistory",
    "Choice",
    "DifferentiableProblem",
    "GradientHistory",
    "HiddenHistory",
    "LbfgsHistory",
    "NotConverged",
    "ObjectiveHistory",
    "OutputHistory",
    "Problem",
    "Solution",
    "SweepResult",
    "approximate_minima_perturbation",
    "calibrate_noise",
    "differentiable_problem",
    "dp_agd",
    "dp_gd",
    "dp_sgd",
    "gradient_descent",
    "huber_svm",
    "lbfgs",
    "linear_regression",
    "logistic_regression",
    "mechanism_of",
    "noisy_cyclic_gd",
    "noisy_gd",
    "nsgd",
    "objective_perturbation",
    "one_vs_rest",
    "output_perturbed_gd",
    "output_perturbed_sgd",
    "perturbed_gd",
    "predict_class",
    "rsgd",
    "rsgd_ar",
    "schedules",
    "sensitivity",
    "sgd",
    "sgd_ma",
    "softmax_regression",
    "sweep",
]
