"""What the estimators share: the budget, what ε does not cover, the key, the certificate.

`PrivateEstimator` reads the records, warns of what is learned from them, and leaves the model to
`_train` of its subclasses.
"""

from __future__ import annotations

import dataclasses
import hashlib
import numbers
import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np
from jaxtyping import PyTree
from sklearn.base import BaseEstimator, ClassifierMixin, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted

from dpjax import accounting as acc
from dpjax import data, training
from dpjax._argument_names import complaint, suggests_argument_names
from dpjax._numerics.keys import name_of_key
from dpjax._numerics.normal import fresh_key
from dpjax._numerics.warning import DpjaxWarning
from dpjax.data.encoding import class_finder
from dpjax.data.schema import RELEASED
from dpjax.estimators.columns import (
    BoundsLike,
    Encoded,
    LabelsLike,
    TableLike,
    check_target,
    make_plain,
    read_records,
    restore_class_values,
    restore_released_classes,
)
from dpjax.training.plan import BY_HAND, SECRET_KEY, default_disclosures

# A certificate states a positive δ; at this one pure ε is stated to the last digit.
_NO_DELTA = 1e-100
# The seeded fits of this process: the name of its key, and a digest of records and settings.
_FITTED: dict[str, bytes] = {}


class PrivacyWarning(DpjaxWarning):
    """Something that was released, or will be, is covered by no ε.

    Example:
        >>> issubclass(PrivacyWarning, UserWarning)
        True
    """


# An estimator at the end of a pipeline sees what came before as little as its certificate does.
_EARLIER_STEPS = acc.Disclosure(
    "earlier-steps",
    "whatever earlier steps, such as a scaler or an imputer in a pipeline, learned from these "
    'records (preprocessing="public" says that they learned nothing)',
)


class PrivateEstimator(BaseEstimator):
    """Completes the schema, warns of what is learned from rows, and keeps the certificate."""

    bounds: BoundsLike | None
    epsilon: float
    delta: float
    adjacency: str
    random_state: int | np.random.RandomState | None
    preprocessing: str | None
    _encoding: str = "tail-bins"  # of numbers, with preprocessing="private"
    certificate_: acc.Certificate
    schema_: data.Schema
    columns_: list[str]

    @suggests_argument_names
    def fit(self, X: TableLike, y: LabelsLike) -> Self:
        """Train.

        Args:
            X: a frame or an array, one row a record.
            y: the class or the value of each record.

        Returns:
            The estimator.
        """
        # A fit that fails leaves no model: old parameters under a new encoding would be none.
        self.__dict__.pop("certificate_", None)
        self._train(self._read(X, y))
        return self

    def _read(self, X: TableLike, y: LabelsLike) -> Encoded:
        """The encoded records, their schema and classes set, with warnings of what was learned."""
        if not isinstance(self.delta, numbers.Real):
            raise ValueError(f"delta must be a number, got {self.delta!r}")
        if self.preprocessing not in (None, "public", "private"):
            raise ValueError(
                f"preprocessing must be 'public', 'private' or None, got {self.preprocessing!r}"
            )
        classes = isinstance(self, ClassifierMixin)
        records = read_records(self, X, y, self._draw_key(), classes=classes)
        self._warn_of_second_use(records)
        advice = ["them in bounds="] if records.learned else []
        if not classes and records.schema.target_range is None:
            of_target = acc.Disclosure(
                "learned-from-rows", "range of the target learned from the rows"
            )
            records = records._replace(learned=(*records.learned, of_target))
            advice.append("target_range=" if advice else "it in target_range=")
        if advice:
            warnings.warn(
                f"{'; '.join(records.learned)}: not covered by ε; declare {' and '.join(advice)}",
                PrivacyWarning,
                stacklevel=4,
            )
        if self.delta >= 1 / len(records.target):
            warnings.warn(
                f"delta must be below 1 / {len(records.target)} records to mean anything, got "
                f"{self.delta:g}: such a δ allows a whole record to be published",
                PrivacyWarning,
                stacklevel=4,
            )
        self.schema_, self._declared = records.schema, records.declared
        self._private = records.table is not None
        if classes:
            names = records.schema.classes or ()
            self.classes_ = (
                restore_released_classes(names, y)
                if self._private
                else restore_class_values(names, make_plain(y))
            )
        return records

    def set_params(self, **params: object) -> Self:
        """scikit-learn's, whose refusal of another library's setting says the reason or our name.

        Args:
            **params: settings by name.
        """
        known = self.get_params()
        for wrong in params.keys() - known.keys():
            if said := complaint(f"{type(self).__name__}.set_params", wrong, known):
                raise ValueError(said)
        return super().set_params(**params)

    def _train(self, records: Encoded) -> None:
        """Sets the parameters, and `certificate_` where the records' noise is not given."""
        raise NotImplementedError

    def _price(self, records: Encoded) -> Callable[[float], acc.Mechanism]:
        """From the noise to the mechanism that `_train` runs."""
        raise NotImplementedError

    def _reserve_delta(self, records: Encoded) -> dict[str, float]:
        """The parts of δ, by reason, that the mechanism of a fit or a search does not price."""
        return records.extra_delta

    def __getattr__(self, name: str) -> Any:
        """Names what is there only after `fit`; scikit-learn asks by `hasattr`."""
        if name in ("certificate_", "schema_", "coef_", "intercept_", "classes_"):
            raise NotFittedError(f"{type(self).__name__} has {name} only after fit(X, y)")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_is_fitted__(self) -> bool:
        return "certificate_" in vars(self)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """scikit-learn's, on one line."""
        return " ".join(super().__repr__(N_CHAR_MAX).split())

    def _draw_key(self) -> jax.Array:
        """Unpredictable, unless a random state was given."""
        if self.random_state is None:
            return fresh_key()
        # Both words of a key: of one, two among 77,000 states agree with probability 1/2.
        bits = check_random_state(self.random_state).randint(0, 2**32, size=2, dtype=np.uint32)
        return jax.random.wrap_key_data(jax.numpy.asarray(bits), impl="threefry2x32")

    def _warn_of_second_use(self, records: Encoded) -> None:
        """Warn where a random state has drawn the noise of other records or settings."""
        if self.random_state is None:
            return
        fit = hashlib.sha256(repr(sorted(self.get_params().items())).encode())
        for values in (records.features, records.target):
            fit.update(np.ascontiguousarray(values).tobytes())
        if _FITTED.setdefault(name_of_key(records.key)[0], fit.digest()) != fit.digest():
            warnings.warn(
                f"random_state={self.random_state!r} has drawn the noise of another fit, on other "
                "records or with other settings: the difference of the two models is free of it; "
                "leave random_state out",
                PrivacyWarning,
                stacklevel=5,
            )

    def _not_covered(self, records: Encoded) -> list[acc.Disclosure]:
        """One line for everything that was used or shown and that ε does not cover."""
        seeded = self.random_state is not None
        if records.table is not None:
            return [BY_HAND] if seeded else []
        before = [] if self.preprocessing == "public" else [_EARLIER_STEPS]
        return [*records.learned, *before, *default_disclosures(len(records.target), seeded=seeded)]

    def _plan_steps(self, records: Encoded, **steps: Any) -> training.Plan:
        """The plan of the budget beside what was released before, or of a run of a search."""
        released = {"extra_delta": records.extra_delta, "preceding": records.looks}
        budget: dict[str, Any] = {"epsilon": self.epsilon, **released}
        budget = budget if records.noise is None else {"noise_multiplier": records.noise}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "delta must be below")  # fit has said it
            plan = training.make_plan(
                len(records.target),
                delta=self.delta,
                adjacency=acc.Adjacency(self.adjacency),
                **steps,
                **budget,
            )
        if records.selection is None:
            return plan
        # What is set aside for rounding is that of all runs, as of `training.search`.
        return dataclasses.replace(plan, selection=records.selection)

    def _certify(
        self,
        records: Encoded,
        run: acc.Mechanism,
        rests: Sequence[str],
        method: str = "best",
        **said: float | str,
    ) -> acc.Certificate:
        """The certificate of all that was released, and what it rests on beside the key."""
        key = name_of_key(records.key)[0]
        return acc.certify(
            run,
            self.delta or _NO_DELTA,
            adjacency=acc.Adjacency(self.adjacency),
            extra_delta=self._reserve_delta(records),
            not_covered=self._not_covered(records),
            method=method,
            assumptions=(SECRET_KEY, *rests, *records.assumptions),
            declared={"records": len(records.target), "noise": key, **said},
        )


class SavedEstimator(PrivateEstimator):
    """Writes the model that `_as_model` of its subclasses makes of the parameters."""

    def _as_model(self) -> tuple[PyTree, training.Model]:
        """The parameters, and the model that takes them."""
        raise NotImplementedError

    def save(self, folder: str | pathlib.Path) -> pathlib.Path:
        """Write the model, its encoding and its certificate for `training.load_model`.

        `dpjax predict` takes it too, where the model is one that `dpjax.training` makes by name.

        Args:
            folder: made if need be; it must hold no other model.

        Returns:
            The folder.
        """
        found = self.as_saved()
        return training.save_model(
            folder,
            found.params,
            found.model,
            encoding=found.encoding,
            certificate=found.certificate,
        )

    def as_saved(self) -> training.SavedModel:
        """What `save` writes, in memory: for `effects.read_effects` and `plotting.plot_effects`.

        Returns:
            The model with its parameters, encoding and certificate, as `training.load_model` finds
            it in the folder of `save`.
        """
        check_is_fitted(self)
        params, model = self._as_model()
        mark = {"learned": RELEASED} if self._private else {}
        encoding = data.describe_encoding(self.schema_, self._declared, **mark)
        return training.SavedModel(params, model, encoding, self.certificate_)


class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """Scores by the classes that `fit` reads in labels, however these are written."""

    def score(
        self, X: TableLike | Encoded, y: LabelsLike, sample_weight: np.ndarray | None = None
    ) -> float:
        """The share of rows whose class is predicted.

        Args:
            X: a frame or an array with the columns of `fit`.
            y: the class of each row.
            sample_weight: how much each row counts.
        """
        predicted = self.predict(X)
        y = make_plain(y)
        check_target(y, classes=True)
        number = {name: at for at, name in enumerate(self.classes_.tolist())}
        labels = [*map(class_finder(self.schema_), column_or_1d(y))]
        found = [number[name] for name in predicted.tolist()]
        return accuracy_score(labels, found, sample_weight=sample_weight)


def forbidden_checks(estimator: BaseEstimator) -> dict[str, str]:
    """The checks that a small ε forbids, each with its reason; at a large ε all of them pass.

    Args:
        estimator: one of this package.

    Returns:
        What `check_estimator` and `parametrize_with_checks` take as `expected_failed_checks`.

    Example:
        >>> from dpjax.estimators import DPLinearRegression
        >>> list(forbidden_checks(DPLinearRegression(epsilon=1.0)))
        ['check_regressors_train']
    """
    name, asked = "check_classifiers_train", "an accuracy of 0.83 on 200 to 300 records"
    if is_regressor(estimator):
        name, asked = "check_regressors_train", "R² above 0.5 on 200 records in 10 dimensions"
    return {name: f"asks for {asked}, which at a small ε would say what single records are"}
