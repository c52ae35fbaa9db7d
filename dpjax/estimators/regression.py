"""Ridge regression."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin

from dpjax import erm
from dpjax._other_names import taught
from dpjax.estimators.linear import Linear


@taught
class DPLinearRegression(RegressorMixin, Linear):
    """Ridge regression with differential privacy.

    The target is clipped to `target_range` and scaled to [−1, 1]; l2 acts on that scale.

    Args:
        epsilon, delta, adjacency, bounds, solver_options: as in `DPLogisticRegression`.
        target_range: (low, high) of the target; learned from the rows, with a warning, if not
            given.
        solver: a private solver of `dpjax.erm` by name.
        l2: weight of ‖w‖²/2.
        fit_intercept, random_state: as in `DPLogisticRegression`.

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
        learned = (
            () if self.target_range is not None else ("range of the target learned from the rows",)
        )
        records = self._read(X, y, classes=False, learned=learned)
        low, high = self._range(records.target)
        scaled = 2 * ((np.clip(records.target, low, high) - low) / (high - low)) - 1
        labels, common = scaled.astype(np.float32), self._common(self.l2)
        problem = erm.linear_regression(records.features, labels, label_bound=1.0, **common)
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
            if low == high:  # of a large number the one above it is more than 1 away
                high = max(low + 1.0, float(np.nextafter(low, math.inf)))
            if not math.isfinite(high - low):
                raise ValueError(
                    "target_range must be (low, high) where those of y are too far apart, got None"
                )
            return low, high
        try:
            low, high = (float(side) for side in self.target_range)
        except (TypeError, ValueError):
            low, high = math.nan, math.nan
        if not (math.isfinite(high - low) and low < high):
            raise ValueError(f"target_range must be (low, high), got {self.target_range!r}")
        return low, high
