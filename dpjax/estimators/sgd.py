"""Any model of flax or of your own, trained by DP-SGD behind fit and predict."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree
from sklearn.utils.validation import check_is_fitted

from dpjax import accounting as acc
from dpjax import training
from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.checks import BELOW_ONE, POSITIVE, one_number, render
from dpjax.estimators.base import PrivateClassifier, SavedEstimator
from dpjax.estimators.columns import BoundsLike, Encoded, TableLike, encode_rows
from dpjax.training.descent import LARGEST_BATCH, MOMENTUM
from dpjax.training.networks import NetworkSettings

_OPTIMIZERS = {"adam": optax.adam, "sgd": functools.partial(optax.sgd, momentum=MOMENTUM)}
# Without the rule. On digits and Adult (10,000 rows), ε = 1 and 4, three keys, by Adam: within .2
# points of the last step at the default rate, up to 2.1 points above it at four times that, and up
# to 1.1 below at a fifth.
_REMEMBERED = 0.1


@runtime_checkable
class _Applied(Protocol):
    """A module of flax.linen, or a model that has its parameters in the same way."""

    @property
    def apply(self) -> Callable[..., Array]:
        """What it computes of parameters and features."""
        raise NotImplementedError


@suggests_argument_names
@dataclasses.dataclass(eq=False, repr=False)
class DPSGDClassifier(PrivateClassifier, SavedEstimator):
    """A neural network trained by DP-SGD: any flax model, with differential privacy.

    Args:
        model: a flax.linen module, a `dpjax.training.Model` (`training.from_nnx` makes one), or a
            function (features, classes) -> either; by default `training.mlp`. It gives one logit a
            class for the features of one record.
        epsilon, delta, adjacency, bounds: as in `DPLogisticRegression`.
        solver: "adam", "sgd" (with momentum 0.9), or any optax optimiser. None: with the default
            model and sampling, and without `epochs`, "sgd" by a rule (400 steps of a quarter of
            the records and 2048 at most, clip norm 4, a rate by the noise, and the mean of the last
            half of the steps for a model), of which each setting that is given replaces its own;
            else "adam".
        learning_rate: of "adam" and "sgd". None: 0.05, or by the rule that all noise together moves
            a weight by 0.3, at most 1/8.
        epochs: passes over the records, in expectation. None: 10, or the rule's 400 steps.
        batch_size: expected records a step; by default an eighth of them, or a quarter by the rule,
            at most 2048 (all of them for full batches).
        clip_norm: bound on a record's gradient. None: 1, or 4.
        sampling: "poisson", "random-allocation", "fixed" or "full", see `make_plan`.
        average: the share of the steps that the released exponential average of the iterates
            remembers; 0: the parameters of the last step. None: 0.1, or the rule's mean. It costs
            no ε, repairs much of a rate that is too large, changes little at one that fits, and
            lags at one that is too small.
        random_state, preprocessing: as in `DPLogisticRegression`.

    Guarantee:
        `certificate_`, over the encoded records; `certificate_.not_covered` lists the rest.

    Example:
        >>> import flax.linen as nn
        >>> from dpjax.data import Column, Schema
        >>> schema = Schema((Column("x", range=(0, 1)),), classes=("0", "1"))
        >>> model = DPSGDClassifier(nn.Dense(2), epsilon=2.0, bounds=schema, random_state=0)
        >>> model.fit([[0.1], [0.9]] * 500, [0, 1] * 500).predict([[0.2], [0.8]]).tolist()
        [0, 1]
    """

    model: training.Model | _Applied | Callable[[int, int], training.Model | _Applied] | None = None
    epsilon: float = 1.0
    delta: float = 1e-5
    _: dataclasses.KW_ONLY
    adjacency: str = "add-remove"
    bounds: BoundsLike | None = None
    solver: str | optax.GradientTransformation | None = None
    learning_rate: float | optax.Schedule | None = None
    epochs: float | None = None
    batch_size: int | None = None
    clip_norm: float | None = None
    sampling: str = "poisson"
    average: float | None = None
    random_state: int | np.random.RandomState | None = None
    preprocessing: str | None = None

    _encoding = "asinh"

    def _price(self, records: Encoded) -> Callable[[float], acc.Mechanism]:
        return lambda noise: self._plan(records._replace(noise=noise)).mechanism

    def _reserve_delta(self, records: Encoded) -> dict[str, float]:
        return {**self._plan(records._replace(noise=1.0)).extra_delta, **records.extra_delta}

    def _plan(self, records: Encoded) -> training.Plan:
        """The plan of the budget beside what was released before, or of a run of a search."""
        if (rule := self._rule(records)) is not None:
            return self._plan_steps(records, **rule.plan_settings)
        count, size = len(records.target), self.batch_size
        if size is None:
            size = count if self.sampling == "full" else min(LARGEST_BATCH, max(1, count // 8))
        return self._plan_steps(
            records,
            batch_size=size,
            epochs=10 if self.epochs is None else self.epochs,
            sampling=self.sampling,
            clip_norm=1.0 if self.clip_norm is None else self.clip_norm,
        )

    def _rule(self, records: Encoded) -> NetworkSettings | None:
        """The settings that are not given, by the rule where it was tried: on this model."""
        is_usual = self.solver is None and self.model is None and self.epochs is None
        if not is_usual or self.sampling != "poisson":
            return None
        columns = sum(column.kind != "ignore" for column in records.schema.columns)
        return NetworkSettings.choose(
            len(records.target),
            columns=columns,
            classes=len(self.classes_),
            batch_size=self.batch_size,
            clip_norm=self.clip_norm,
        )

    def _train(self, records: Encoded) -> None:
        self._width = records.features.shape[1]
        model, plan = self._build_model(), self._plan(records)
        rule = self._rule(records)
        found = training.fit(
            training.cross_entropy(model),
            model.init(jax.random.key(0)),  # public: it depends on no record
            (jnp.asarray(records.features), jnp.asarray(records.target)),
            plan,
            optimizer=self._optimizer(plan, rule),
            key=records.key,
            average=self._average(plan.steps, rule),
            log_every=plan.steps,  # nobody sees the rows, each of which is priced
        )
        if records.noise is None:  # else the search certifies
            self.certificate_ = plan.certify(
                not_covered=self._not_covered(records), assumptions=records.assumptions
            )
        last = found.params if found.average is None else found.average
        self.params_ = jax.tree.map(np.asarray, last)

    def _average(
        self, steps: int, rule: NetworkSettings | None
    ) -> Callable[[PyTree], PyTree] | None:
        """The average of so many steps that is released; None of the last alone."""
        if self.average is None and rule is not None:
            return rule.average
        given = _REMEMBERED if self.average is None else self.average
        share = one_number("average", given, BELOW_ONE)
        # For few steps it would remember the last alone.
        return training.exponential_average(1 - 1 / (share * steps)) if share * steps > 1 else None

    def predict(self, X: TableLike) -> np.ndarray:
        """The class of each row.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X: TableLike) -> np.ndarray:
        """The probability of each class for each row.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        check_is_fitted(self)
        return training.probabilities(self._build_model(), self.params_, encode_rows(self, X))

    def _as_model(self) -> tuple[PyTree, training.Model]:
        return self.params_, self._build_model()

    def _build_model(self) -> training.Model:
        """The model for the encoded features; built anew, since functions do not pickle."""
        classes, model = len(self.classes_), self.model
        if model is None:
            return _perceptron(self._width, classes)
        if callable(model) and not isinstance(model, _Applied):
            model = model(self._width, classes)
        if not isinstance(model, _Applied):
            raise ValueError(
                "model must be a flax module, a dpjax.training.Model, or a function "
                f"(features, classes) -> either, got {render(model)}"
            )
        example = jnp.zeros(self._width)
        if not isinstance(model, training.Model):
            model = training.from_linen(model, example)
        shape = jax.eval_shape(lambda: model.apply(model.init(jax.random.key(0)), example)).shape
        if shape != (classes,):
            raise ValueError(
                f"model must give one logit for each of the {classes} classes, got shape {shape}"
            )
        return model

    def _optimizer(
        self, plan: training.Plan, rule: NetworkSettings | None
    ) -> optax.GradientTransformation:
        if isinstance(self.solver, optax.GradientTransformation):
            return self.solver
        solver = ("adam" if rule is None else "sgd") if self.solver is None else self.solver
        if solver not in _OPTIMIZERS:
            raise ValueError(f"solver must be adam, sgd or an optax optimiser, got {self.solver!r}")
        rate = self.learning_rate
        if rate is None:
            rate = 0.05 if rule is None else rule.learning_rate(plan.noise_multiplier)
        elif not callable(rate):  # a schedule of optax is
            one_number("learning_rate", rate, POSITIVE)
        return _OPTIMIZERS[solver](rate)


_perceptron = functools.lru_cache(training.mlp)
