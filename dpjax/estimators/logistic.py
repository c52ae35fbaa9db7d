"""Logistic regression, of two classes or several."""

from __future__ import annotations

import math
import pathlib
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, softmax
from sklearn.utils.validation import check_is_fitted

from dpjax import erm, training
from dpjax._numerics.checks import Range, one_number
from dpjax._other_names import taught
from dpjax.estimators.columns import Encoded
from dpjax.estimators.linear import JOINT, LinearClassifier

# Chosen by results on Adult and Bank.
_LEAST_L2, _OF_NOISE = 1e-4, 0.07
_BELOW_ONE = Range(0.0, 1.0, open_high=True)


@taught
class DPLogisticRegression(LinearClassifier):
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
        l2: weight of ‖w‖²/2. None: 1e-4, and by objective perturbation more where its noise is
            large beside the records, by the budget and the numbers of records and features; `l2_`
            says which after `fit`.
        fit_intercept: whether there is an intercept.
        random_state: for reproduction only: whoever knows it can subtract the noise, which fits
            with the same one share on whatever records.

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
        l2=None,
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
        self._solved_by = self.solver  # which may be set anew after the fit
        alone = 1 if classes == 2 or self.solver in JOINT else classes
        self.l2_ = self._usual_l2(records, alone) if self.l2 is None else self.l2
        common = self._common(self.l2_)
        if classes == 2 or self.solver not in JOINT:
            problem = erm.logistic_regression(records.features, records.target == 1, **common)
            self._solve(problem, records, classes if classes > 2 else None)
        else:
            problem = erm.softmax_regression(
                records.features, records.target, classes=classes, **common
            )
            self._solve(problem, records)
        return self

    def _usual_l2(self, records: Encoded, models: int) -> float:
        """l2 for the budget, which so many models share: public numbers decide it.

        Objective perturbation tilts the mean loss by a vector of about this norm, and moves the
        minimum by as much over l2.
        """
        epsilon = self._epsilon()
        if self.solver != "objective_perturbation" or epsilon is None:
            return _LEAST_L2
        delta = one_number("delta", self.delta, _BELOW_ONE)
        n, features = records.features.shape
        size = features + bool(self.fit_intercept)
        noise = math.sqrt(2 * math.log(1.25 / delta) * size) if delta else 2.0 * size
        return float(np.clip(_OF_NOISE * noise * models / (epsilon * n), _LEAST_L2, 1.0))

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class for each row.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        scores = self._scores(X)
        if scores.ndim == 1:
            return np.stack([expit(-scores), expit(scores)], axis=1)
        if self._solved_by in JOINT:
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
        if len(self.classes_) > 2 and self._solved_by not in JOINT:
            raise ValueError(
                f"solver must be one of {', '.join(JOINT)} for a model of several classes to be "
                f"saved, got {self._solved_by!r}"
            )
        width = self.coef_.shape[-1]
        model = (
            training.logistic(width)
            if len(self.classes_) == 2
            else training.softmax(width, len(self.classes_))
        )
        params = {"weights": self.coef_.T, "bias": self.intercept_}
        return self._save(folder, {k: v.astype(np.float32) for k, v in params.items()}, model)
