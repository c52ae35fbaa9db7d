"""Scikit-learn estimators that train privately: `erm` and `training` behind fit and predict."""

from dpjax._extras import extra

with extra("data"):
    import sklearn  # noqa: F401  (every file of the package works on its classes)

from dpjax.estimators.base import PrivacyWarning, forbidden_checks
from dpjax.estimators.columns import RangeScaler
from dpjax.estimators.linear import DPLinearRegression, DPLinearSVC, DPLogisticRegression
from dpjax.estimators.search import DPSearchCV
from dpjax.estimators.sgd import DPSGDClassifier

__all__ = [
    "DPLinearRegression",
    "DPLinearSVC",
    "DPLogisticRegression",
    "DPSGDClassifier",
    "DPSearchCV",
    "PrivacyWarning",
    "RangeScaler",
    "forbidden_checks",
]
