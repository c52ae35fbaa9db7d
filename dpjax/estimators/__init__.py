"""Scikit-learn estimators that train privately: `erm` and `training` behind fit and predict."""

from dpjax._extras import extra

with extra("data"):
    import sklearn  # noqa: F401  (every file of the package works on its classes)

from dpjax.estimators.base import PrivacyWarning
from dpjax.estimators.checks import forbidden_checks
from dpjax.estimators.logistic import DPLogisticRegression
from dpjax.estimators.regression import DPLinearRegression
from dpjax.estimators.sgd import DPSGDClassifier
from dpjax.estimators.svc import DPLinearSVC

__all__ = [
    "DPLinearRegression",
    "DPLinearSVC",
    "DPLogisticRegression",
    "DPSGDClassifier",
    "PrivacyWarning",
    "forbidden_checks",
]
