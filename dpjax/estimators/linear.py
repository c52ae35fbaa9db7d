"""Linear models, each a private solver of `dpjax.erm` behind fit and predict.

`Linear` holds what does not depend on the loss: the common settings of the problems, the call of
the solver, the certificate, the scores. Each estimator adds its problem and what it predicts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpjax import accounting as acc
from dpjax import erm, training
from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.checks import BELOW_ONE, POSITIVE, one_number
from dpjax.erm.objective_perturbation import choose_extra_l2
from dpjax.erm.solver import SolverSpec, find_solver, solver_spec
from dpjax.estimators.base import PrivateClassifier, PrivateEstimator, SavedEstimator
from dpjax.estimators.columns import BoundsLike, Encoded, TableLike, encode_rows
from dpjax.training.descent import add_places
from dpjax.training.plan import GAUSSIAN_NOISE
from dpjax.training.tables import TableSettings

# Solvers that train several classes at once; the others train one against the rest.
JOINT = ("dp_gd", "dp_sgd", "sgd_ma")
_ROUNDING = 1 + 2.0**-20  # encoded rows have norm 1 up to rounding, and are not to be clipped


def _descent(**options: Any) -> dict[str, dict[str, Any]]:
    """Options of the solvers that need none, if all records or a fifth of them make a step."""
    return {"dp_gd": options, "dp_sgd": {**options, "rate": 0.2}}


# scikit-learn reads the arguments off the signatures of constructors, which dataclasses write.
_estimator = dataclasses.dataclass(eq=False, repr=False, kw_only=True)


@dataclasses.dataclass(eq=False, repr=False)
class Linear(PrivateEstimator):
    """The parts of a linear model that do not depend on its loss."""

    _defaults: ClassVar[dict[str, dict[str, Any]]]
    epsilon: float = 1.0
    delta: float = 1e-5
    _: dataclasses.KW_ONLY
    adjacency: str = "add-remove"
    bounds: BoundsLike | None = None
    solver: str = "dp_gd"
    solver_options: dict[str, Any] | None = None
    l2: float | None = 1e-4
    fit_intercept: bool = True
    random_state: int | np.random.RandomState | None = None
    preprocessing: str | None = None

    def _common(self, l2: float | None) -> dict[str, float]:
        """What the problems share: rows of norm 1 and an intercept, of which nothing is clipped."""
        if l2 is None:
            raise TypeError("l2 must be a number, got None")
        intercept = float(bool(self.fit_intercept))
        norm = math.sqrt(1 + intercept**2) * _ROUNDING
        return {"l2": l2, "intercept": intercept, "feature_norm": norm}

    def _epsilon(self) -> float | None:
        """ε as a float; None where `solver_options` give the noise instead."""
        return None if self.epsilon is None else one_number("epsilon", self.epsilon, POSITIVE)

    def _train(self, records: Encoded) -> None:
        self._solve(*self._pose(records), records)

    def _pose(self, records: Encoded) -> tuple[erm.Problem, int | None]:
        """The problem to solve, and of how many classes one against the rest; None for at once."""
        raise NotImplementedError

    def _price(self, records: Encoded) -> Callable[[float], acc.Mechanism]:
        problem, several = self._pose(records)
        if self._spec().concrete:
            raise ValueError(
                "solver must be one whose noise is all that keeps the budget, such as dp_gd, for "
                f"a search, got {self._solver!r}: it fits l2 to the budget of one run"
            )
        return self._mechanism(problem, several, self._options())

    @property
    def _solver(self) -> str:
        """The name of the solver that is used."""
        return self.solver

    def _spec(self) -> SolverSpec:
        """What is known of the solver by name; another one is refused."""
        return solver_spec(find_solver(self._solver))

    def _mechanism(
        self, problem: erm.Problem, several: int | None, given: dict[str, Any]
    ) -> Callable[[float], acc.Mechanism]:
        """From the noise to what the solver releases, for each of several classes."""
        mechanism = self._spec().mechanism

        def price(noise: float) -> acc.Mechanism:
            run = mechanism(problem, noise, **given)
            return acc.Repeated(run, several) if several else run

        return price

    def _options(self) -> dict[str, Any]:
        """What the solver is given beside the budget and its noise."""
        own = {**self._defaults.get(self._solver, {}), **(self.solver_options or {})}
        return {**own, "adjacency": acc.Adjacency(self.adjacency)}

    def _solve(self, problem: erm.Problem, several: int | None, records: Encoded) -> None:
        """Train, and set coef_, intercept_ and certificate_; `several`: one class against rest."""
        solver = find_solver(self._solver)
        spec, given, budget = self._spec(), self._options(), self._epsilon()
        key, looks = records.key, records.looks
        options: dict[str, Any] = {**given, "epsilon": budget, "delta": self.delta}
        if records.noise is not None:
            options = {**given, spec.noise: records.noise}
        elif looks is not None:  # the noise with which both together keep the budget
            given = {k: v for k, v in given.items() if k not in ("epsilon", "delta")}
            if spec.concrete:  # objective perturbation adds l2 by ε, which it is not told here
                extra, share = given.get("extra_l2"), budget / (several or 1)  # pyrefly: ignore
                given["extra_l2"] = choose_extra_l2(problem, extra, share)
            own = self._mechanism(problem, several, given)
            price = lambda noise: acc.Composed((looks, own(noise)))  # noqa: E731
            # δ of the table's threshold is reserved: the mechanism is priced at what is left.
            left = self.delta - math.fsum(records.extra_delta.values())
            adjacency, epsilon = given["adjacency"], float(budget or 0.0)
            noise = acc.calibrate(price, epsilon=epsilon, delta=left, adjacency=adjacency)
            options = {**given, spec.noise: noise}
        if several is None:
            solution = solver(problem, key, **options)
        else:
            solution = erm.one_vs_rest(
                solver, problem, key, classes=several, class_labels=records.target, **options
            )
        if records.noise is None:  # else the search certifies
            run = solution.mechanism if looks is None else acc.Composed((looks, solution.mechanism))
            self.certificate_ = self._certify(records, run, [GAUSSIAN_NOISE] if self.delta else [])
        params = np.asarray(solution.params, np.float64)
        weights, bias = (params[:-1], params[-1]) if self.fit_intercept else (params, 0.0)
        self._keep(weights, bias + np.zeros(params.shape[1:]))

    def _keep(self, weights: np.ndarray, bias: np.ndarray) -> None:
        """Set coef_ and intercept_ by the parameters of the problem."""
        self.coef_, self.intercept_ = weights.T, bias
        if isinstance(self, ClassifierMixin):
            # As scikit-learn has it: one row of coefficients where two classes share one score.
            self.coef_, self.intercept_ = np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_)

    def _scores(self, X: TableLike) -> np.ndarray:
        """[rows], or [rows, classes] of several."""
        check_is_fitted(self)
        scores = encode_rows(self, X) @ self.coef_.T + self.intercept_
        return scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores


@_estimator
class TableLinear(Linear, SavedEstimator):
    """A linear model that the rule for tables can train, and by default does of private tables."""

    solver: str | None = None  # pyrefly: ignore
    l2: float | None = None

    @property
    def _solver(self) -> str:
        """The name of the solver that is used."""
        if self.solver is not None:
            return self.solver
        is_plain = self.fit_intercept and self.l2 is None and not self.solver_options
        return "tables" if self.preprocessing == "private" and is_plain else "dp_gd"

    @property
    def _encoding(self) -> str:  # pyrefly: ignore
        """How numbers are encoded with preprocessing="private"."""
        return "bins-and-line" if self._solver == "tables" else "tail-bins"

    def _count_classes(self) -> int:
        """How many classes are told apart; 0 of a number."""
        raise NotImplementedError

    def _label(self, records: Encoded) -> np.ndarray:
        """What the loss is of: class numbers, or the target as a part of its range."""
        return records.target

    def _train(self, records: Encoded) -> None:
        self._solved_by = self._solver  # which may be set anew after the fit
        if self._solver != "tables":
            super()._train(records)
            return
        tables = self._choose_tables(records)
        plan, width = self._plan_steps(records, **tables.plan_settings), records.features.shape[1]
        places = tables.count_places(width)
        features = add_places(records.features, places)
        found = training.fit(
            tables.loss(places),
            tables.training_model(places).init(jax.random.key(0)),  # public: zeros
            (jax.numpy.asarray(features), jax.numpy.asarray(self._label(records))),
            plan,
            optimizer=tables.optimizer(plan.noise_multiplier),
            key=records.key,
            average=tables.average,
            log_every=plan.steps,  # nobody sees the rows, each of which is priced
        )
        if records.noise is None:  # else the search certifies
            self.certificate_ = plan.certify(
                not_covered=self._not_covered(records),
                assumptions=records.assumptions,
                declared=tables.declare(plan.noise_multiplier),
            )
        last = found.params if found.average is None else found.average
        released = tables.release(last, width)
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), released)
        self._tables = tables
        self._keep(params["weights"], params["bias"])

    def _choose_tables(self, records: Encoded) -> TableSettings:
        """The settings by the rule, but for what `solver_options` replace."""
        if self.l2 is not None or not self.fit_intercept:
            name, value = ("l2", self.l2) if self.fit_intercept else ("fit_intercept", False)
            raise ValueError(f"{name} must be left out with solver='tables', got {value!r}")
        given = self.solver_options or {}
        allowed = ("steps", "batch_size", "momentum", "averaged", "clip_norm", "learning_rate")
        if wrong := [name for name in given if name not in allowed]:
            raise ValueError(
                f"solver_options must be among {', '.join(allowed)} with solver='tables', got "
                f"{wrong[0]!r}"
            )
        columns = sum(column.kind != "ignore" for column in records.schema.columns)
        return TableSettings.choose(
            len(records.target), columns=columns, classes=self._count_classes(), **given
        )

    def _price(self, records: Encoded) -> Callable[[float], acc.Mechanism]:
        if self._solver != "tables":
            return super()._price(records)
        steps = self._choose_tables(records).plan_settings
        return lambda noise: self._plan_steps(records._replace(noise=noise), **steps).mechanism

    def _reserve_delta(self, records: Encoded) -> dict[str, float]:
        if self._solver != "tables":
            return super()._reserve_delta(records)
        steps = self._choose_tables(records).plan_settings
        plan = self._plan_steps(records._replace(noise=1.0), **steps)
        return {**plan.extra_delta, **records.extra_delta}


class LinearClassifier(PrivateClassifier, Linear):
    """Binary and multi-class scores, and the classes they choose."""

    def decision_function(self, X: TableLike) -> np.ndarray:
        """Scores of rows: [rows] for two classes (positive: the second), else [rows, classes].

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        return self._scores(X)

    def predict(self, X: TableLike) -> np.ndarray:
        """The class of each row.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        scores = self._scores(X)
        chosen = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)
        return self.classes_[chosen]


# Chosen by results on Adult and Bank.
_LEAST_L2, _OF_NOISE = 1e-4, 0.07


@suggests_argument_names
@_estimator
class DPLogisticRegression(TableLinear, LinearClassifier):
    """Logistic regression with differential privacy; softmax for several classes.

    Args:
        epsilon, delta: the budget; δ = 0 with solver="objective_perturbation" and
            adjacency="replace-one" is pure ε.
        adjacency: "add-remove" or "replace-one".
        bounds: what is public: a `dpjax.data.Schema`, its file, or (low, high) of every column.
            What it leaves open is learned from the rows, with a warning.
        solver: "tables", the rule of `dpjax train` for tables (momentum, a mean of the last steps,
            and probabilities by the link of what clipping leaves), or a private solver of
            `dpjax.erm` by name. None: "tables" with preprocessing="private", where there is an
            intercept and neither `l2` nor `solver_options` is given, else "dp_gd".
        solver_options: its hyperparameters; "tables", "dp_gd", "dp_sgd" and
            "objective_perturbation" need none. Of "tables" each of steps, batch_size, momentum,
            averaged (the share of the steps whose mean is the model), clip_norm and learning_rate
            replaces what the rule says, and the others follow.
        l2: weight of ‖w‖²/2, which "tables" does without. None: 1e-4, and by objective
            perturbation more where its noise is large beside the records, by the budget and the
            numbers of records and features; `l2_` says which after `fit`.
        fit_intercept: whether there is an intercept.
        random_state: for reproduction only: whoever knows it can subtract the noise, which fits
            with the same one share on whatever records.
        preprocessing: "public" if whatever was done to the records before (a scaler or imputer of a
            pipeline) learned nothing from them; "private" if nothing was done to them, and what
            `bounds` leaves open is to be released with noise, see `data.PrivateTable`; else the
            certificate lists both as not covered.

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
    _defaults: ClassVar = _descent(steps=200, step_size=8.0, clip_norm=1.0)

    def _count_classes(self) -> int:
        return len(self.classes_)

    def _pose(self, records: Encoded) -> tuple[erm.Problem, int | None]:
        features, target, classes = records.features, records.target, len(self.classes_)
        joint = classes > 2 and self._solver in JOINT
        alone = classes if classes > 2 and not joint else None
        self.l2_ = self._usual_l2(records, alone or 1) if self.l2 is None else self.l2
        common = self._common(self.l2_)
        if joint:
            problem = erm.softmax_regression(features, target, classes=classes, **common)
        else:
            problem = erm.logistic_regression(features, target == 1, **common)
        return problem, alone

    def _usual_l2(self, records: Encoded, models: int) -> float:
        """l2 for the budget, which so many models share: public numbers decide it."""
        epsilon = self._epsilon()
        if self._solver != "objective_perturbation" or epsilon is None:
            return _LEAST_L2
        delta = one_number("delta", self.delta, BELOW_ONE)
        n, features = records.features.shape
        size = features + bool(self.fit_intercept)
        # Objective perturbation tilts the mean loss by a vector of about this norm, and moves the
        # minimum by as much over l2.
        noise = math.sqrt(2 * math.log(1.25 / delta) * size) if delta else 2.0 * size
        return float(np.clip(_OF_NOISE * noise * models / (epsilon * n), _LEAST_L2, 1.0))

    def predict_proba(self, X: TableLike) -> np.ndarray:
        """The probability of each class for each row.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        check_is_fitted(self)
        if self._solved_by == "tables":
            params, model = self._as_model()
            return training.probabilities(model, params, encode_rows(self, X))
        scores = self._scores(X)
        if scores.ndim == 1:
            return np.stack([expit(-scores), expit(scores)], axis=1)
        if self._solved_by in JOINT:
            return softmax(scores, axis=1)
        sides = expit(scores)
        return sides / sides.sum(axis=1, keepdims=True)

    def _as_model(self) -> tuple[dict[str, np.ndarray], training.Model]:
        width, classes = self.coef_.shape[-1], len(self.classes_)
        if classes > 2 and self._solved_by not in (*JOINT, "tables"):
            raise ValueError(
                f"solver must be one of tables, {', '.join(JOINT)} for a model of several classes "
                f"to be saved, got {self._solved_by!r}"
            )
        model, weights, bias = training.softmax(width, classes), self.coef_.T, self.intercept_
        if classes == 2:
            model, weights, bias = training.logistic(width), self.coef_[0], self.intercept_[0]
        model = self._tables.model(width) if self._solved_by == "tables" else model
        return {"weights": weights.astype(np.float32), "bias": bias.astype(np.float32)}, model


@suggests_argument_names
@_estimator
class DPLinearSVC(LinearClassifier):
    """A linear support vector machine with differential privacy: the huberised hinge.

    Several classes are trained one against the rest, and share the budget.

    Args:
        epsilon, delta, adjacency, bounds, solver_options: as in `DPLogisticRegression`.
        solver: a private solver of `dpjax.erm` by name.
        width: half-width of the quadratic piece between the hinge's two lines.
        l2: weight of ‖w‖²/2.
        fit_intercept, random_state, preprocessing: as in `DPLogisticRegression`.

    Guarantee:
        `certificate_`, over the encoded records; `certificate_.not_covered` lists the rest.

    Example:
        >>> from dpjax.data import Column, Schema
        >>> schema = Schema((Column("x", range=(0, 1)),), classes=("0", "1"))
        >>> model = DPLinearSVC(epsilon=1.0, bounds=schema, random_state=0)
        >>> model.fit([[0.1], [0.9]] * 500, [0, 1] * 500).predict([[0.2], [0.8]]).tolist()
        [0, 1]
    """

    _defaults: ClassVar = _descent(steps=100, step_size=8.0, clip_norm=0.5)
    width: float = 0.5

    def _pose(self, records: Encoded) -> tuple[erm.Problem, int | None]:
        classes = len(self.classes_)
        problem = erm.huber_svm(
            records.features, records.target == 1, width=self.width, **self._common(self.l2)
        )
        return problem, classes if classes > 2 else None


@suggests_argument_names
@_estimator
class DPLinearRegression(RegressorMixin, TableLinear):
    """Linear regression of a number within a range, with differential privacy.

    The target is clipped to its range and scaled to [−1, 1], where l2 acts; a prediction is clipped
    to the range too.

    Args:
        epsilon, delta, adjacency, bounds: as in `DPLogisticRegression`.
        target_range: (low, high) of the target, where it is public. None: that of `bounds`, where
            it is a schema with one; else with preprocessing="private" the quantiles .5 % and 99.5 %
            by the same noisy counts as those of the columns, which ε covers; else it is learned
            from the rows, with a warning.
        solver: "tables", the rule of `dpjax train --task regression` (momentum, a mean of the last
            steps, and of errors beyond a quarter of the range the sign alone, so that less noise is
            added), or a private solver of `dpjax.erm` by name. None: as in `DPLogisticRegression`.
        solver_options: as in `DPLogisticRegression`.
        l2: weight of ‖w‖²/2, which "tables" does without. None: 1e-4.
        fit_intercept, random_state, preprocessing: as in `DPLogisticRegression`.

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

    _defaults: ClassVar = _descent(steps=60, step_size=0.9, clip_norm=1.0)
    target_range: tuple[float, float] | None = None

    def _count_classes(self) -> int:
        return 0

    def _label(self, records: Encoded) -> np.ndarray:
        """The target as a part of its range, from −1 to 1; one that is no number as the middle."""
        low, high = self._range(records.target)
        scaled = 2 * ((np.clip(records.target, low, high) - low) / (high - low)) - 1
        return np.nan_to_num(scaled).astype(np.float32)  # of private records alone

    def _pose(self, records: Encoded) -> tuple[erm.Problem, int | None]:
        common = self._common(_LEAST_L2 if self.l2 is None else self.l2)
        labels = self._label(records)
        return erm.linear_regression(records.features, labels, label_bound=1.0, **common), None

    def _train(self, records: Encoded) -> None:
        self._ends = self._range(records.target)
        self.schema_ = dataclasses.replace(self.schema_, target_range=self._ends)
        super()._train(records)

    def _keep(self, weights: np.ndarray, bias: np.ndarray) -> None:
        """Set coef_ and intercept_ in the unit of the target."""
        low, high = self._ends
        half = (high - low) / 2
        self.coef_ = half * np.reshape(weights, -1)
        self.intercept_ = half * (np.sum(bias) + 1) + low

    def predict(self, X: TableLike) -> np.ndarray:
        """The value of each row.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        return np.clip(self._scores(X), *self._ends)

    def _as_model(self) -> tuple[dict[str, np.ndarray], training.Model]:
        low, high = self._ends
        half = (high - low) / 2
        weights, bias = self.coef_[:, None] / half, np.array([(self.intercept_ - low) / half - 1])
        model = training.softmax(len(self.coef_), 1)  # of one output: a linear function
        return {"weights": weights.astype(np.float32), "bias": bias.astype(np.float32)}, model

    def _range(self, target: np.ndarray) -> tuple[float, float]:
        """The range that the target is clipped to: a declared or released one, or that of rows."""
        if self.schema_.target_range is not None:
            return self.schema_.target_range
        low, high = float(target.min()), float(target.max())
        if low == high:  # of a large number the one above it is more than 1 away
            high = max(low + 1.0, float(np.nextafter(low, math.inf)))
        if not math.isfinite(high - low):
            raise ValueError(
                "target_range must be (low, high) where those of y are too far apart, got None"
            )
        return low, high

    def _declare_range(self) -> tuple[float, float] | None:
        """The range of the target that is given, as two numbers."""
        if self.target_range is None:
            return None
        try:
            low, high = (float(side) for side in self.target_range)
        except (TypeError, ValueError):
            low, high = math.nan, math.nan
        if not (math.isfinite(high - low) and low < high):
            raise ValueError(f"target_range must be (low, high), got {self.target_range!r}")
        return low, high
