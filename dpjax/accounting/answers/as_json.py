"""Mechanisms and numbers as JSON without losing a bit, and JSON that somebody else wrote."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from dpjax._numerics import checks
from dpjax._numerics.scope import is_traced
from dpjax.accounting.errors import CertificateError
from dpjax.accounting.mechanisms import Mechanism, registered_mechanisms

_LONGEST = 1 << 24  # characters of a certificate: some hundred thousand different steps
_DEEPEST = 100  # levels of nesting
_FILE = "; of a file, give its content: pathlib.Path(name).read_text()"
_DIGITS = 300  # of a whole number; more have no float64


def to_plain(value: Any) -> Any:
    """A mechanism or field value as dictionaries, lists, numbers and strings.

    Floats are written by Python's shortest exact representation; an infinity as the text "inf".
    """
    if is_traced(value):
        raise TypeError(
            "mechanism must have concrete values, got traced ones: certify outside of jit"
        )
    if isinstance(value, Mechanism):
        fields = {
            f.name: to_plain(getattr(value, f.name))
            for f in dataclasses.fields(value)  # pyrefly: ignore
        }
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [to_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: to_plain(v) for k, v in value.items()}
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        return to_plain(array.item()) if array.ndim == 0 else {"array": to_plain(array.tolist())}
    if isinstance(value, str | bool | int) or value is None:
        return str(value) if isinstance(value, str) else value  # an adjacency is a text too
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    raise TypeError(
        "value must be a mechanism, a number, an array, a string or a tuple of these, "
        f"got {type(value).__name__}"
    )


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`."""
    if isinstance(value, list):
        return tuple(from_plain(v) for v in value)
    if isinstance(value, str):
        return float(value) if value in ("inf", "-inf", "nan") else value
    if not isinstance(value, dict):
        return value
    if set(value) == {"array"} and isinstance(value["array"], list):
        return list(from_plain(value["array"]))  # its mechanism checks it and makes it an array
    kind = registered_mechanisms().get(str(value.get("kind")))
    if kind is None:
        raise CertificateError("mechanism", f"unknown kind {checks.render(value.get('kind'))}")
    fields = {k: from_plain(v) for k, v in value.items() if k != "kind"}
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise CertificateError("mechanism", str(error)) from error


def parse(text: str | bytes) -> dict[str, Any]:
    """A JSON object that somebody else wrote: its size, depth, keys and numbers are checked."""
    if not isinstance(text, str | bytes | bytearray):
        raise CertificateError("json", f"must be text, got {checks.render(text)}{_FILE}")
    if len(text) > _LONGEST:
        raise CertificateError("json", f"must have at most {_LONGEST} characters, got {len(text)}")
    # A byte-order mark, as some editors write, says nothing.
    if isinstance(text, str):
        text = text.removeprefix("\ufeff")
    else:
        text = text.removeprefix(b"\xef\xbb\xbf")
    if text[:200].lstrip()[:1] not in ("{", b"{"):
        start = checks.render(text[:60])
        raise CertificateError(
            "json",
            f"must be the text of a certificate, which begins with {{, got {start}{_FILE}",
        )
    try:
        raw = json.loads(text, object_pairs_hook=_once, parse_int=_whole)
    except RecursionError:
        raise CertificateError("json", f"must nest at most {_DEEPEST} deep") from None
    except ValueError as error:  # also of text that is not UTF-8
        if isinstance(error, CertificateError):
            raise
        raise CertificateError("json", f"the file is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise CertificateError("json", "the file does not hold a certificate")
    for name, value in raw.items():
        _check_values(name, value)
    return raw


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:  # readers differ in which of the two they take
            raise CertificateError(key, "is given twice")
        found[key] = value
    return found


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS else math.inf


def _check_values(field: str, value: Any) -> None:
    stack = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if depth > _DEEPEST:
            raise CertificateError(field, f"must nest at most {_DEEPEST} deep")
        if isinstance(item, float) and not math.isfinite(item):
            raise CertificateError(field, "must hold finite numbers (an infinity is text)")
        if isinstance(item, str) and not item.isprintable():
            # A line break in a sentence could pass for a line of the certificate's description.
            raise CertificateError(field, f"must hold printable text, got {checks.render(item)}")
        if isinstance(item, dict):
            stack += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, list):
            stack += [(part, depth + 1) for part in item]
