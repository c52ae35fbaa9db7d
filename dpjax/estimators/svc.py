"""The linear support vector machine with a huberised hinge."""

from __future__ import annotations

from typing import Any, ClassVar

from dpjax import erm
from dpjax._other_names import taught
from dpjax.estimators.linear import LinearClassifier


@taught
class DPLinearSVC(LinearClassifier):
    """A linear support vector machine with differential privacy: the huberised hinge.

    Several classes are trained one against the rest, and share the budget.

    Args:
        epsilon, delta, adjacency, bounds, solver_options: as in `DPLogisticRegression`.
        solver: a private solver of `dpjax.erm` by name.
        width: half-width of the quadratic piece between the hinge's two lines.
        l2: weight of ‖w‖²/2.
        fit_intercept, random_state: as in `DPLogisticRegression`.

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
            records.features, records.target == 1, width=self.width, **self._common(self.l2)
        )
        self._solve(problem, records, classes if classes > 2 else None)
        return self
