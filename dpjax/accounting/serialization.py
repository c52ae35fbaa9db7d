"""Mechanisms as plain JSON values and back, without losing a bit."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from dpjax._numerics.float64 import is_traced
from dpjax.accounting.errors import CertificateError
from dpjax.accounting.mechanisms import Mechanism, registered_mechanisms


def to_plain(value: Any) -> Any:
    """A mechanism or field value as dictionaries, lists, numbers and strings.

    Floats are written by Python's shortest exact representation; an infinity as the text "inf".

    >>> from dpjax import accounting as acc
    >>> to_plain(acc.Repeated(acc.Gaussian(1.1), 10))
    {'kind': 'Repeated', 'mechanism': {'kind': 'Gaussian', 'noise_multiplier': 1.1}, 'steps': 10}
    """
    if is_traced(value):
        raise TypeError("a traced mechanism has no values to write down; certify outside of jit")
    if isinstance(value, Mechanism):
        fields = {
            f.name: to_plain(getattr(value, f.name))
            for f in dataclasses.fields(value)  # pyrefly: ignore
        }
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [to_plain(v) for v in value]
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        return to_plain(array.item()) if array.ndim == 0 else {"array": to_plain(array.tolist())}
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    raise TypeError(f"cannot write a {type(value).__name__} into a certificate")


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`.

    Raises:
        CertificateError: an unknown kind of mechanism, or fields it does not have.

    >>> from_plain({"kind": "Gaussian", "noise_multiplier": 1.1})
    Gaussian(noise_multiplier=1.1)
    """
    if isinstance(value, dict) and set(value) == {"array"}:
        return np.asarray(from_plain(value["array"]), np.float64)
    if isinstance(value, dict):
        kind = registered_mechanisms().get(str(value.get("kind")))
        if kind is None:
            raise CertificateError("mechanism", f"unknown kind {value.get('kind')!r}")
        fields = {k: from_plain(v) for k, v in value.items() if k != "kind"}
        try:
            return kind(**fields)
        except (TypeError, ValueError) as error:
            raise CertificateError("mechanism", str(error)) from error
    if isinstance(value, list):
        items = [from_plain(v) for v in value]
        return tuple(items) if any(isinstance(v, Mechanism) for v in items) or not items else items
    if value in ("inf", "-inf", "nan"):
        return float(value)
    return value
