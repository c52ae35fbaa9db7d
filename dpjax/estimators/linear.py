"""Linear models: a private solver of `dpjax.erm` behind fit and predict."""

from __future__ import annotations

import math
import pathlib
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from dpjax import accounting as acc
from dpjax import erm, training
from dpjax._other_names import taught
from dpjax.erm.solver import spec_of
from dpjax.estimators.base import PrivateEstimator
from dpjax.estimators.columns import Encoded, class_values
from dpjax.training.plan import GAUSSIAN_NOISE, SECRET_KEY

# Solvers that train several classes at once; the others train one against the rest.
_JOINT = ("dp_gd", "dp_sgd", "sgd_ma")
_ROUNDING = 1 + 2.0**-20  # encoded rows have norm 1 up to rounding, and are not to be clipped
# A certificate states a positive δ; at this one pure ε is stated to the last digit.
_NO_DELTA = 1e-100


class _Linear(PrivateEstimator):
    """The parts of a linear model that do not depend on its loss."""

    _defaults: ClassVar[dict[str, dict[str, Any]]]
    solver: str
    solver_options: dict[str, Any] | None
    l2: float
    fit_intercept: bool

    def _common(self) -> dict[str, float]:
        """What the problems share: rows of norm 1 and an intercept, of which nothing is clipped."""
        intercept = float(self.fit_intercept)
        norm = math.sqrt(1 + intercept**2) * _ROUNDING
        return {"l2": self.l2, "intercept": intercept, "feature_norm": norm}

    def _solve(self, problem: erm.Problem, records: Encoded, several: int | None = None) -> None:
        """Train, and set coef_, intercept_ and certificate_; `several`: one class against rest."""
        solver: Any = getattr(erm, self.solver, self.solver)
        spec_of(solver)
        adjacency = acc.Adjacency(self.adjacency)
        options = {
            **self._defaults.get(self.solver, {}),
            **(self.solver_options or {}),
            "epsilon": self.epsilon,
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


class _LinearClassifier(ClassifierMixin, _Linear):
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
        if y is not None:
            check_classification_targets(y)
        records = self._read(X, y, classes=True)
        self.classes_ = class_values(records.schema.classes or (), np.asarray(y).ravel())
        return records


@taught
class DPLogisticRegression(_LinearClassifier):
    """Logistic regression with differential privacy; softmax for several classes.

    Args:
        epsilon, delta: the budget; δ = 0 with solver="objective_perturbation" and
            adjacency="replace-one" is pure ε.
        adjacency: "add-remove" or "replace-one".
        bounds: what is public: a `dpjax.data.Schema`, its file, or (low, high) of every column.
            What it leaves open is learned from the rows, with a warning.
        solver: a private solver of `dpjax.erm` by name.
        solver_options: its hyperparameters; "dp_gd", "dp_sgd" and "objective_perturbation" need
            none.
        l2: weight of ‖w‖²/2.
        fit_intercept: whether there is an intercept.
        random_state: for reproduction only: whoever knows it can subtract the noise.

    Guarantee:
        `certificate_`, over the encoded records; `certificate_.not_covered` lists the rest.

    Example:
        >>> import pandas as pd
        >>> from dpjax.data import Column, Schema
        >>> people = pd.DataFrame({"age": [20.0, 70.0] * 500, "job": ["a", "b"] * 500})
        >>> schema = Schema(
        ...     (Column("age", range=(18, 90)), Column("job", "category", categories=("a", "b"))),
        ...     classes=("no", "yes"))
        >>> model = DPLogisticRegression(epsilon=1.0, bounds=schema, random_state=0)
        >>> model.fit(people, ["no", "yes"] * 500).predict(people.head(2)).tolist()
        ['no', 'yes']
        >>> model.certificate_.tier
        'proven'
    """

    # Chosen by results on Adult and Bank.
    _defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "dp_gd": {"steps": 200, "step_size": 8.0, "clip_norm": 1.0},
        "dp_sgd": {"steps": 200, "step_size": 8.0, "clip_norm": 1.0, "rate": 0.2},
    }

    def __init__(
        self,
        epsilon=1.0,
        delta=1e-5,
        *,
        adjacency="add-remove",
        bounds=None,
        solver="dp_gd",
        solver_options=None,
        l2=1e-4,
        fit_intercept=True,
        random_state=None,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.bounds = bounds
        self.solver = solver
        self.solver_options = solver_options
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> DPLogisticRegression:
        """Train.

        Args:
            X: a frame or an array, one row a record.
            y: the class of each record.

        Returns:
            The estimator.
        """
        records = self._records(X, y)
        classes = len(self.classes_)
        if classes == 2 or self.solver not in _JOINT:
            problem = erm.logistic_regression(
                records.features, records.target == 1, **self._common()
            )
            self._solve(problem, records, classes if classes > 2 else None)
        else:
            problem = erm.softmax_regression(
                records.features, records.target, classes=classes, **self._common()
            )
            self._solve(problem, records)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class for each row.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        scores = self._scores(X)
        if scores.ndim == 1:
            return np.stack([expit(-scores), expit(scores)], axis=1)
        if self.solver in _JOINT:
            return softmax(scores, axis=1)
        sides = expit(scores)
        return sides / sides.sum(axis=1, keepdims=True)

    def save(self, folder: str | pathlib.Path) -> pathlib.Path:
        """Write the model, its encoding and its certificate for `dpjax predict` and `load_model`.

        Args:
            folder: made if need be; it must hold no other model.

        Returns:
            The folder.
        """
        check_is_fitted(self)
        if len(self.classes_) > 2 and self.solver not in _JOINT:
            raise ValueError(
                f"solver must be one of {', '.join(_JOINT)} for a model of several classes to be "
                f"saved, got {self.solver!r}"
            )
        width = self.coef_.shape[-1]
        model = (
            training.logistic(width)
            if len(self.classes_) == 2
            else training.softmax(width, len(self.classes_))
        )
        params = {"weights": self.coef_.T, "bias": self.intercept_}
        return self._save(folder, {k: v.astype(np.float32) for k, v in params.items()}, model)


@taught
class DPLinearSVC(_LinearClassifier):
    """A linear support vector machine with differential privacy: the huberised hinge.

    Several classes are trained one against the rest, and share the budget.

    Args:
        epsilon, delta, adjacency, bounds, solver_options: as in `DPLogisticRegression`.
        solver: a private solver of `dpjax.erm` by name.
        width: half-width of the quadratic piece between the hinge's two lines.
        l2, fit_intercept, random_state: as in `DPLogisticRegression`.

    Guarantee:
        `certificate_`, over the encoded records; `certificate_.not_covered` lists the rest.

    Example:
        >>> from dpjax.data import Column, Schema
        >>> schema = Schema((Column("x", range=(0, 1)),), classes=("0", "1"))
        >>> model = DPLinearSVC(epsilon=1.0, bounds=schema, random_state=0)
        >>> model.fit([[0.1], [0.9]] * 500, [0, 1] * 500).predict([[0.2], [0.8]]).tolist()
        [0, 1]
    """

    _defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "dp_gd": {"steps": 100, "step_size": 8.0, "clip_norm": 0.5},
        "dp_sgd": {"steps": 100, "step_size": 8.0, "clip_norm": 0.5, "rate": 0.2},
    }

    def __init__(
        self,
        epsilon=1.0,
        delta=1e-5,
        *,
        adjacency="add-remove",
        bounds=None,
        solver="dp_gd",
        solver_options=None,
        width=0.5,
        l2=1e-4,
        fit_intercept=True,
        random_state=None,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.bounds = bounds
        self.solver = solver
        self.solver_options = solver_options
        self.width = width
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> DPLinearSVC:
        """Train.

        Args:
            X: a frame or an array, one row a record.
            y: the class of each record.

        Returns:
            The estimator.
        """
        records = self._records(X, y)
        classes = len(self.classes_)
        problem = erm.huber_svm(
            records.features, records.target == 1, width=self.width, **self._common()
        )
        self._solve(problem, records, classes if classes > 2 else None)
        return self


@taught
class DPLinearRegression(RegressorMixin, _Linear):
    """Ridge regression with differential privacy.

    The target is clipped to `target_range` and scaled to [−1, 1]; l2 acts on that scale.

    Args:
        epsilon, delta, adjacency, bounds, solver_options: as in `DPLogisticRegression`.
        target_range: (low, high) of the target; learned from the rows, with a warning, if not
            given.
        solver: a private solver of `dpjax.erm` by name.
        l2, fit_intercept, random_state: as in `DPLogisticRegression`.

    Guarantee:
        `certificate_`, over the encoded records; `certificate_.not_covered` lists the rest.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(0, 1, 1000)
        >>> model = DPLinearRegression(epsilon=1.0, bounds=(0, 1), target_range=(0, 10),
        ...                            random_state=0)
        >>> bool(model.fit(x[:, None], 10 * x).score(x[:, None], 10 * x) > 0.9)
        True
    """

    _defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "dp_gd": {"steps": 60, "step_size": 0.9, "clip_norm": 1.0},
        "dp_sgd": {"steps": 60, "step_size": 0.9, "clip_norm": 1.0, "rate": 0.2},
    }

    def __init__(
        self,
        epsilon=1.0,
        delta=1e-5,
        *,
        adjacency="add-remove",
        bounds=None,
        target_range=None,
        solver="dp_gd",
        solver_options=None,
        l2=1e-4,
        fit_intercept=True,
        random_state=None,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.bounds = bounds
        self.target_range = target_range
        self.solver = solver
        self.solver_options = solver_options
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> DPLinearRegression:
        """Train.

        Args:
            X: a frame or an array, one row a record.
            y: the value of each record.

        Returns:
            The estimator.
        """
        learned = () if self.target_range else ("range of the target learned from the rows",)
        records = self._read(X, y, classes=False, learned=learned)
        low, high = self._range(records.target)
        scaled = 2 * (np.clip(records.target, low, high) - low) / (high - low) - 1
        problem = erm.linear_regression(
            records.features, scaled.astype(np.float32), label_bound=1.0, **self._common()
        )
        self._solve(problem, records)
        half = (high - low) / 2
        self.coef_ = half * self.coef_
        self.intercept_ = half * (self.intercept_ + 1) + low
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The value of each row.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        return self._scores(X)

    def _range(self, target: np.ndarray) -> tuple[float, float]:
        if self.target_range is None:
            low, high = float(target.min()), float(target.max())
            return (low, high) if low < high else (low, low + 1.0)
        low, high = (float(side) for side in self.target_range)
        if not (math.isfinite(high - low) and low < high):
            raise ValueError(f"target_range must be (low, high), got {self.target_range!r}")
        return low, high
