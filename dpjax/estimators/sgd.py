"""Any model of flax or of your own, trained by DP-SGD behind fit and predict."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.utils.validation import check_is_fitted

from dpjax import accounting as acc
from dpjax import training
from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.checks import Range, one_number, render
from dpjax.estimators.base import PrivateClassifier, SavedEstimator
from dpjax.estimators.columns import Encoded, encode_rows

_POSITIVE, _BELOW_ONE = Range(0.0, open_low=True), Range(0.0, 1.0, open_high=True)
_OPTIMIZERS = {"adam": optax.adam, "sgd": functools.partial(optax.sgd, momentum=0.9)}


@suggests_argument_names
@dataclasses.dataclass(eq=False, repr=False)
class DPSGDClassifier(PrivateClassifier, SavedEstimator):
    """A neural network trained by DP-SGD: any flax model, with differential privacy.

    Args:
        model: a flax.linen module, a `dpjax.training.Model` (`training.from_nnx` makes one), or a
            function (features, classes) -> either; by default `training.mlp`. It gives one logit a
            class for the features of one record.
        epsilon, delta, adjacency, bounds: as in `DPLogisticRegression`.
        solver: "adam", "sgd" (with momentum 0.9), or any optax optimiser.
        learning_rate: of "adam" and "sgd".
        epochs: passes over the records, in expectation.
        batch_size: expected records a step; by default an eighth of them, at most 2048 (all of
            them for full batches).
        clip_norm: bound on a record's gradient.
        sampling: "poisson", "random-allocation", "fixed" or "full", see `make_plan`.
        average: the share of the steps that the released mean remembers, an exponential average of
            the iterates; 0: the parameters of the last step. It costs no ε. It repairs much of a
            rate that is too large, changes little at one that fits, and lags at one too small.
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

    model: Any = None
    epsilon: float = 1.0
    delta: float = 1e-5
    _: dataclasses.KW_ONLY
    adjacency: str = "add-remove"
    bounds: Any = None
    solver: Any = "adam"
    learning_rate: Any = 0.05
    epochs: float = 10
    batch_size: int | None = None
    clip_norm: float = 1.0
    sampling: str = "poisson"
    # At this share digits and Adult (10,000 rows), ε = 1 and 4, three keys: within .2 points of the
    # last step at the default rate, up to 2.1 points above it at four times that, and up to 1.1
    # below at a fifth.
    average: float = 0.1
    random_state: Any = None
    preprocessing: str | None = None

    _encoding = "asinh"

    def _price(self, records: Encoded) -> Callable[[float], acc.Mechanism]:
        return lambda noise: self._plan(records._replace(noise=noise)).mechanism

    def _reserve_delta(self, records: Encoded) -> dict[str, float]:
        return {**self._plan(records._replace(noise=1.0)).extra_delta, **records.extra_delta}

    def _plan(self, records: Encoded) -> training.Plan:
        """The plan of the budget beside what was released before, or of a run of a search."""
        count, size = len(records.target), self.batch_size
        if size is None:
            size = count if self.sampling == "full" else min(2048, max(1, count // 8))
        return self._plan_steps(
            records,
            batch_size=size,
            epochs=self.epochs,
            sampling=self.sampling,
            clip_norm=self.clip_norm,
        )

    def _train(self, records: Encoded) -> None:
        self._width = records.features.shape[1]
        model, plan = self._build_model(), self._plan(records)
        share = one_number("average", self.average, _BELOW_ONE)
        # Of few steps it remembers the last alone.
        decay = max(0.0, 1 - 1 / (share * plan.steps)) if share else 0.0
        found = training.fit(
            training.cross_entropy(model),
            model.init(jax.random.key(0)),  # public: it depends on no record
            (jnp.asarray(records.features), jnp.asarray(records.target)),
            plan,
            optimizer=self._optimizer(),
            key=records.key,
            average=training.exponential_average(decay) if decay else None,
        )
        if records.noise is None:  # else the search certifies
            self.certificate_ = plan.certify(
                not_covered=self._not_covered(records), assumptions=records.assumptions
            )
        self.params_ = jax.tree.map(np.asarray, found.average if decay else found.params)

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class for each row.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        check_is_fitted(self)
        return training.probabilities(self._build_model(), self.params_, encode_rows(self, X))

    def _as_model(self) -> tuple[Any, training.Model]:
        return self.params_, self._build_model()

    def _build_model(self) -> training.Model:
        """The model for the encoded features; built anew, since functions do not pickle."""
        classes, model = len(self.classes_), self.model
        if model is None:
            return _perceptron(self._width, classes)
        if callable(model) and not hasattr(model, "apply"):
            model = model(self._width, classes)
        if not hasattr(model, "apply"):
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

    def _optimizer(self) -> optax.GradientTransformation:
        if isinstance(self.solver, optax.GradientTransformation):
            return self.solver
        if self.solver not in _OPTIMIZERS:
            raise ValueError(f"solver must be adam, sgd or an optax optimiser, got {self.solver!r}")
        if not callable(self.learning_rate):  # a schedule of optax is
            one_number("learning_rate", self.learning_rate, _POSITIVE)
        return _OPTIMIZERS[self.solver](self.learning_rate)


_perceptron = functools.lru_cache(training.mlp)
