"""The checks of scikit-learn that privacy forbids, for its own list of expected failures."""

from __future__ import annotations

from typing import Any

from sklearn.base import is_regressor

__all__ = ["forbidden_checks"]

_REASONS = {
    "check_classifiers_train": "asks for an accuracy of 0.83 on 200 to 300 records, which at a "
    "small ε would say what single records are",
    "check_regressors_train": "asks for R² above 0.5 on 200 records in 10 dimensions, which at a "
    "small ε would say what single records are",
}


def forbidden_checks(estimator: Any) -> dict[str, str]:
    """The checks that a small ε forbids, each with its reason; at a large ε all of them pass.

    Args:
        estimator: one of this package.

    Returns:
        What `check_estimator` and `parametrize_with_checks` take as `expected_failed_checks`.

    Example:
        >>> from dpjax.estimators import DPLinearRegression
        >>> list(forbidden_checks(DPLinearRegression(epsilon=1.0)))
        ['check_regressors_train']
    """
    name = "check_regressors_train" if is_regressor(estimator) else "check_classifiers_train"
    return {name: _REASONS[name]}
