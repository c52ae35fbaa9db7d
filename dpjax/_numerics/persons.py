"""Whose a record is: ids that are one number are one person, however each is written.

Two exports that are joined may write 17, 17.0 and 017 for one person. Taken for three, each would
be given the whole ε. To join ids protects more, and what an id is joined with follows from the two
ids alone. Texts that say no number are compared as they are.
"""

from __future__ import annotations

import re

import numpy as np

# Digits of more than one script are digits to Python; here as in cells they are 0 to 9.
_PLAIN = re.compile(r"([+-]?)([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]+))?")
_LONGEST_EXPONENT = 4_000  # digits, which Python reads as a whole number


def canonical_id(text: str) -> str:
    """The one way to write the number that an id says, exactly; another id as it is.

    "17", "17.0", " 017", "+17" and "1.7e1" are "17e0", "-0" is "0e0", "P17" and "" are themselves.
    """
    found = _match_number(text)
    if found is None:
        return text
    sign, whole, decimals, exponent = found.groups("")
    digits = (whole + decimals).lstrip("0")
    kept = digits.rstrip("0")
    if not kept:
        return "0e0"
    power = exponent.lstrip("+-").lstrip("0") or "0"
    if len(power) > _LONGEST_EXPONENT:
        return text
    shift = int(power) * (-1 if exponent.startswith("-") else 1)
    shift += len(digits) - len(kept) - len(decimals)
    return f"{'-' if sign == '-' else ''}{kept}e{shift}"


def _match_number(text: str) -> re.Match[str] | None:
    """Sign, whole digits, decimals and exponent of an id that says a number."""
    found = _PLAIN.fullmatch(text.strip())
    return found if found is not None and (found[2] or found[3]) else None


def are_mixed(ids: np.ndarray) -> bool:
    """Whether some of these texts say numbers and some do not, as 17 and P17."""
    return len({_match_number(one) is None for one in np.unique(ids).tolist()}) == 2


def number_persons(ids: np.ndarray) -> np.ndarray:
    """The number of the person of each record: persons in the order of the least of their ids.

    Args:
        ids: one axis of whole numbers, of texts or of bytes.
    """
    different, owner = np.unique(ids, return_inverse=True)
    owner = owner.reshape(-1)
    if different.dtype.kind in "iub" or not len(different):
        return owner
    first: dict[int | str, int] = {}
    joined = [first.setdefault(_canonical(one), len(first)) for one in different.tolist()]
    return np.asarray(joined, np.int64)[owner]


def _canonical(one: int | str | bytes) -> int | str:
    """An id of any type as it is compared with those of the same type."""
    if isinstance(one, bytes):  # different bytes are different texts
        return canonical_id(one.decode("utf-8", "surrogateescape"))
    return canonical_id(one) if isinstance(one, str) else one
