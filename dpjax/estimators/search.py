"""A private search over the settings of an estimator, behind fit and predict."""

from __future__ import annotations

import copy
import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_regressor
from sklearn.utils import Tags, get_tags  # pyrefly: ignore
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dpjax import accounting as acc
from dpjax import training
from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.checks import POSITIVE, Range, one_number, render
from dpjax.data.held_out import LEAST_DIVIDED, draw_held_out
from dpjax.estimators.base import PrivateEstimator
from dpjax.estimators.columns import Encoded, LabelsLike, TableLike
from dpjax.training.plan import GAUSSIAN_NOISE
from dpjax.training.search import SCORE_NOISE, Selection

_SHARE = Range(0.0, 1.0, True, True)
# What no setting may change: it is of the whole search, or of the records.
_SHARED = ("epsilon", "delta", "adjacency", "bounds", "random_state", "preprocessing")


def _has(name: str) -> Callable[[DPSearchCV], bool]:
    """Whether the estimator that is searched with has a method."""
    return lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), name)


@suggests_argument_names
@dataclasses.dataclass(eq=False, repr=False)
class DPSearchCV(MetaEstimatorMixin, BaseEstimator):
    """The best of several private fits with several settings, at the price of few.

    Stands where `GridSearchCV` would look at the records once for every setting and fold. There are
    no folds: a part of the records is held out once, a secret number K of fits is made on the
    others, each with fresh noise and a setting drawn at random, and scored by a count of held-out
    records that has noise of its own; the fit of the largest is kept. K, the other fits and the
    time it took have to stay secret.

    It pays where no good setting is known: each fit has more noise than a single one of the same
    budget, and the held-out records train nothing.

    Args:
        estimator: one of this package, whose noise alone keeps its budget: not
            solver="objective_perturbation", which has its pure ε.
        space: the settings, such as `[{"l2": 1e-4}, {"l2": 1e-3}]`, fixed without a look at the
            records; the first is the default. None may change what a fit costs, such as its steps.
        epsilon, delta: the budget of everything: with preprocessing="private" the table too.
        law, mean: of K, as of `accounting.BestOf`; a Poisson K of mean 10 takes few risks.
        default_share: how many of the fits take the first setting, on average.
        held_out: the share of the records that score, at least one, and one that trains.
        score_noise: standard deviation of the score's noise, in records; by default 24/ε.
        random_state: as in `DPLogisticRegression`, in place of the estimator's.

    Guarantee:
        `certificate_`, over the encoded records, held out or not; `certificate_.not_covered` lists
        the rest. Where no fit is made (of ten expected once in 22,000) the model is trained on
        blank records.

    Example:
        >>> from dpjax.data import Column, Schema
        >>> from dpjax.estimators import DPLogisticRegression
        >>> schema = Schema((Column("x", range=(0, 1)),), classes=("0", "1"))
        >>> search = DPSearchCV(DPLogisticRegression(bounds=schema), [{"l2": 1e-4}, {"l2": 1.0}],
        ...                     epsilon=2.0, random_state=0)
        >>> search.fit([[0.1], [0.9]] * 500, [0, 1] * 500).predict([[0.2], [0.8]]).tolist()
        [0, 1]
        >>> search.best_params_, 1.99 < search.certificate_.epsilon <= 2.0
        ({'l2': 0.0001}, True)

    References:
        Liu and Talwar 2019; Papernot and Steinke 2022; price: `accounting/best_of.py`.
    """

    estimator: PrivateEstimator
    space: Sequence[Mapping[str, Any]]
    epsilon: float = 1.0
    delta: float = 1e-5
    _: dataclasses.KW_ONLY
    law: str = "poisson"
    mean: float = 10.0
    default_share: float = 0.5
    held_out: float = 0.2
    score_noise: float | None = None
    random_state: int | np.random.RandomState | None = None

    @suggests_argument_names
    def fit(self, X: TableLike, y: LabelsLike) -> DPSearchCV:
        """Search.

        Args:
            X: a frame or an array, one row a record.
            y: the class or the value of each record.

        Returns:
            The search, with `best_estimator_`, `best_params_` and `best_score_` (the best fit's
            noisy share of held-out records; both None where no fit was made), `certificate_`.
        """
        self.__dict__.pop("certificate_", None)
        first, selection = self._read_settings()
        records = first._read(X, y)
        count = len(records.target)
        if count < LEAST_DIVIDED:  # by their number alone, and by no coin
            raise ValueError(
                f"X must have at least {LEAST_DIVIDED} samples, one to train on and one to score "
                f"by, got n_samples = {count}"
            )
        # Who is held out follows from the key and the number of records, so that neighbours differ
        # in one record of one part.
        held = draw_held_out(records.key, count, self.held_out)
        parts = [_take(records, part) for part in (~held, held)]
        runs = [copy.copy(first).set_params(**setting) for setting in self.space]
        noise, released = self._calibrate(runs, parts[0], selection)
        facts, rests = selection.describe()
        certificate = first._certify(
            records, released, [GAUSSIAN_NOISE, *rests], "selection", **facts
        )

        def train(run: PrivateEstimator, records: Encoded, key: PRNGKeyArray) -> PrivateEstimator:
            fitted = copy.copy(run)
            fitted._train(records._replace(key=key, noise=noise, selection=selection))
            fitted.certificate_ = certificate
            return fitted

        found = selection.run(
            records.key,
            lambda place, key: train(runs[place], parts[0], key),
            lambda fitted: _score(fitted, parts[1], parts[0].target),
        )
        if found is None:  # has one probability whatever the records are
            blank = parts[0]._replace(
                features=0 * parts[0].features, target=np.zeros_like(parts[0].target)
            )
            found = None, train(first, blank, records.key), np.nan
        place, self.best_estimator_, score = found
        self.best_params_ = None if place is None else dict(self.space[place])
        self.best_score_ = None if place is None else score / max(len(parts[1].target), 1)
        self.certificate_ = certificate
        return self

    def _read_settings(self) -> tuple[PrivateEstimator, Selection]:
        """The estimator with the budget, and the law of its fits, before a record is read."""
        if not isinstance(self.estimator, PrivateEstimator):
            raise ValueError(
                "estimator must be one of dpjax.estimators, such as DPLogisticRegression(), got "
                f"{render(self.estimator)}: a search prices its fits, and knows the price of these"
            )
        space = self.space
        is_list = isinstance(space, Sequence) and not isinstance(space, str) and len(space) > 0
        if not is_list or not all(isinstance(setting, Mapping) for setting in space):
            raise ValueError(
                'space must be a list of settings such as [{"l2": 1e-4}, {"l2": 1e-3}], got '
                f"{render(space)}"
            )
        for name in _SHARED:
            if any(name in setting for setting in space):
                raise ValueError(f"space must leave {name} as it is, got a setting with another")
        epsilon = one_number("epsilon", self.epsilon, POSITIVE)
        delta, held_out = one_number("delta", self.delta, _SHARE), self.held_out
        one_number("held_out", held_out, _SHARE)
        noise = SCORE_NOISE / epsilon if self.score_noise is None else self.score_noise
        law = self.law, self.mean, self.default_share, noise, None
        budget = {"epsilon": epsilon, "delta": delta, "random_state": self.random_state}
        first = clone(self.estimator).set_params(**budget)
        for setting in space:
            clone(first).set_params(**setting)
        return first, Selection(len(space), *law).check()

    def _calibrate(
        self, runs: list[PrivateEstimator], records: Encoded, selection: Selection
    ) -> tuple[float, acc.Mechanism]:
        """The least noise of every fit that keeps the budget of all, and what all of it is."""
        prices = [run._price(records) for run in runs]
        own = [price(1.0) for price in prices]
        for setting, run in zip(self.space, own, strict=True):
            if run != own[0]:  # the price would say which one won, or not be that of all
                raise ValueError(
                    f"space must leave what a fit costs as it is, got {render(dict(setting))}, "
                    "which changes steps, batches or noise"
                )

        def price(noise: float) -> acc.Mechanism:
            best = selection.price(prices[0](noise))
            return best if records.looks is None else acc.Composed((records.looks, best))

        how = {"adjacency": acc.Adjacency(runs[0].adjacency), "method": "selection"}
        if selection.find_method(price(1.0), how["adjacency"]) != "selection":
            raise ValueError(
                "estimator must be trained by releases whose privacy profile is known, got "
                f"{render(runs[0])}: the best of several such fits has no tight price"
            )
        # What is reserved of δ, by the table and for rounding, is no longer there to be spent.
        left = self.delta - sum(runs[0]._reserve_delta(records).values())
        noise = float(acc.calibrate(price, epsilon=self.epsilon, delta=left, **how))
        return noise, price(noise)

    @property
    def _best(self) -> PrivateEstimator:
        check_is_fitted(self)
        return self.best_estimator_

    @property
    def classes_(self) -> np.ndarray:
        """The classes of the best fit."""
        return self._best.classes_

    @property
    def n_features_in_(self) -> int:
        """The number of columns of the records."""
        return self._best.n_features_in_

    def predict(self, X: TableLike) -> np.ndarray:
        """The class or the value of each row, by the best fit.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        return self._best.predict(X)

    @available_if(_has("predict_proba"))
    def predict_proba(self, X: TableLike) -> np.ndarray:
        """The probability of each class for each row.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        return self._best.predict_proba(X)

    @available_if(_has("decision_function"))
    def decision_function(self, X: TableLike) -> np.ndarray:
        """Scores of rows, as of the estimator.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        return self._best.decision_function(X)

    def score(self, X: TableLike, y: LabelsLike, sample_weight: np.ndarray | None = None) -> float:
        """The best fit's score on rows, as of the estimator.

        Args:
            X: a frame or an array with the columns of `fit`.
            y: the class or the value of each row.
            sample_weight: how much each row counts.
        """
        return self._best.score(X, y, sample_weight=sample_weight)

    def save(self, folder: str | pathlib.Path) -> pathlib.Path:
        """Write the best fit, its encoding and the certificate of the search.

        Args:
            folder: made if need be; it must hold no other model.

        Returns:
            The folder.
        """
        return self._best.save(folder)

    @available_if(_has("as_saved"))
    def as_saved(self) -> training.SavedModel:
        """What `save` writes of the best fit, in memory.

        Returns:
            The model with its parameters, encoding and the certificate of the search.
        """
        return self._best.as_saved()

    def __sklearn_is_fitted__(self) -> bool:
        return "certificate_" in vars(self)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()  # pyrefly: ignore
        own = get_tags(self.estimator)
        tags.estimator_type, tags.input_tags = own.estimator_type, own.input_tags
        tags.classifier_tags, tags.regressor_tags = own.classifier_tags, own.regressor_tags
        tags.target_tags = own.target_tags
        return tags


def _take(records: Encoded, part: np.ndarray) -> Encoded:
    """Some of the records."""
    return records._replace(features=records.features[part], target=records.target[part])


def _score(fitted: PrivateEstimator, held_out: Encoded, trained: np.ndarray) -> float:
    """How many records are predicted rightly; of a value, by how near in parts of its range.

    A record counts at most 1, and adds, leaves or is replaced at no more: a range that is not given
    is that of the target `trained` on, which no held-out record moves.
    """
    if not len(held_out.target):
        return 0.0
    predicted, target = fitted.predict(held_out), held_out.target
    if not is_regressor(fitted):
        known = target >= 0
        return float((predicted == fitted.classes_[np.where(known, target, 0)])[known].sum())
    low, high = fitted._range(trained)
    error = np.abs(np.clip(predicted, low, high) - np.clip(target, low, high)) / (high - low)
    return float(np.sum(1 - np.clip(np.nan_to_num(error, nan=1.0), 0.0, 1.0)))
