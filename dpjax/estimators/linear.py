"""What linear models share: a private solver of `dpjax.erm` behind fit and predict."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dpjax import accounting as acc
from dpjax import erm
from dpjax._numerics.checks import Range, one_number
from dpjax.erm.solver import spec_of
from dpjax.estimators.base import PrivateEstimator
from dpjax.estimators.columns import Encoded, class_values, plain_booleans
from dpjax.training.declared import GAUSSIAN_NOISE, SECRET_KEY

# Solvers that train several classes at once; the others train one against the rest.
JOINT = ("dp_gd", "dp_sgd", "sgd_ma")
_ROUNDING = 1 + 2.0**-20  # encoded rows have norm 1 up to rounding, and are not to be clipped
# A certificate states a positive δ; at this one pure ε is stated to the last digit.
_NO_DELTA = 1e-100
_POSITIVE = Range(0.0, open_low=True)


class Linear(PrivateEstimator):
    """The parts of a linear model that do not depend on its loss."""

    _defaults: ClassVar[dict[str, dict[str, Any]]]
    solver: str
    solver_options: dict[str, Any] | None
    fit_intercept: bool

    def _common(self, l2: float) -> dict[str, float]:
        """What the problems share: rows of norm 1 and an intercept, of which nothing is clipped."""
        intercept = float(bool(self.fit_intercept))
        norm = math.sqrt(1 + intercept**2) * _ROUNDING
        return {"l2": l2, "intercept": intercept, "feature_norm": norm}

    def _epsilon(self) -> float | None:
        """ε as a float; None where `solver_options` give the noise instead."""
        return None if self.epsilon is None else one_number("epsilon", self.epsilon, _POSITIVE)

    def _solve(self, problem: erm.Problem, records: Encoded, several: int | None = None) -> None:
        """Train, and set coef_, intercept_ and certificate_; `several`: one class against rest."""
        solver: Any = getattr(erm, self.solver, self.solver)
        spec_of(solver)
        adjacency = acc.Adjacency(self.adjacency)
        options = {
            **self._defaults.get(self.solver, {}),
            **(self.solver_options or {}),
            "epsilon": self._epsilon(),
            "delta": self.delta,
            "adjacency": adjacency,
        }
        key = self._key()
        if several is None:
            solution = solver(problem, key, **options)
        else:
            solution = erm.one_vs_rest(
                solver, problem, key, classes=several, class_labels=records.target, **options
            )
        self.certificate_ = acc.certify(
            solution.mechanism,
            self.delta or _NO_DELTA,
            adjacency=adjacency,
            not_covered=self._not_covered(records),
            assumptions=(SECRET_KEY, *([GAUSSIAN_NOISE] if self.delta else [])),
            declared={"records": problem.n},
        )
        params = np.asarray(solution.params, np.float64)
        weights, bias = (params[:-1], params[-1]) if self.fit_intercept else (params, 0.0)
        self.coef_ = weights.T
        self.intercept_ = bias + np.zeros(params.shape[1:])

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self._encode(X) @ self.coef_.T + self.intercept_


class LinearClassifier(ClassifierMixin, Linear):
    """Binary and multi-class scores, and the classes they choose."""

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores of rows: [rows] for two classes (positive: the second), else [rows, classes].

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        return self._scores(X)

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        scores = self._scores(X)
        chosen = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)
        return self.classes_[chosen]

    def _records(self, X: Any, y: Any) -> Encoded:
        records = self._read(X, y, classes=True)
        self.classes_ = class_values(records.schema.classes or (), plain_booleans(y))
        return records
