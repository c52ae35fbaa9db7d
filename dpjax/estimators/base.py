"""What the estimators share: the budget, what ε does not cover, the key, the certificate."""

from __future__ import annotations

import numbers
import pathlib
import warnings
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from dpjax import accounting as acc
from dpjax import data, training
from dpjax._numerics.normal import fresh_key
from dpjax.estimators.columns import Encoded, new_rows, training_rows
from dpjax.training.uncovered import usual_uncovered


class PrivacyWarning(UserWarning):
    """Something that was released, or will be, is covered by no ε.

    Example:
        >>> issubclass(PrivacyWarning, UserWarning)
        True
    """


class PrivateEstimator(BaseEstimator):
    """Completes the schema, warns of what is learned from rows, and keeps the certificate."""

    bounds: Any
    epsilon: float
    delta: float
    adjacency: str
    random_state: Any
    certificate_: acc.Certificate
    schema_: data.Schema
    columns_: list[str]

    def _read(self, X: Any, y: Any, *, classes: bool, learned: tuple[str, ...] = ()) -> Encoded:
        """The encoded records, with a warning for what was learned from them."""
        # A fit that fails leaves no model: old parameters under a new encoding would be none.
        self.__dict__.pop("certificate_", None)
        if not isinstance(self.delta, numbers.Real):
            raise ValueError(f"delta must be a number, got {self.delta!r}")
        records = training_rows(self, X, y, classes=classes)
        records = records._replace(learned=(*records.learned, *learned))
        if records.learned:
            warnings.warn(
                f"{'; '.join(records.learned)}: not covered by ε; declare them in bounds=",
                PrivacyWarning,
                stacklevel=3,
            )
        if self.delta >= 1 / len(records.target):
            warnings.warn(
                f"delta must be below 1 / {len(records.target)} records to mean anything, got "
                f"{self.delta:g}: such a δ allows a whole record to be published",
                PrivacyWarning,
                stacklevel=3,
            )
        self.schema_, self._declared = records.schema, records.declared
        return records

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "certificate_")

    def _key(self) -> jax.Array:
        """Unpredictable, unless a random state was given."""
        if self.random_state is None:
            return fresh_key()
        bits = check_random_state(self.random_state).randint(0, 2**32, size=2, dtype=np.uint32)
        return jax.random.wrap_key_data(jax.numpy.asarray(bits), impl="threefry2x32")

    def _not_covered(self, records: Encoded) -> list[str]:
        seeded = self.random_state is not None
        return [*records.learned, *usual_uncovered(len(records.target), seeded=seeded)]

    def _encode(self, X: Any) -> np.ndarray:
        return new_rows(self, X)

    def _save(self, folder: str | pathlib.Path, params: Any, model: Any) -> pathlib.Path:
        encoding = data.describe_encoding(self.schema_, self._declared)
        certificate = self.certificate_
        return training.save_model(
            folder, params, model, encoding=encoding, certificate=certificate
        )
