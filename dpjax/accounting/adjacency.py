"""Which two data sets count as neighbours."""

from __future__ import annotations

import enum

from dpjax._numerics import checks


class Adjacency(enum.StrEnum):
    """The neighbouring relation a guarantee is stated for.

    * `ADD_REMOVE`: one data set has one record more than the other. Denominators (number of
      records, batch size) must then be public constants, never counted from the data.
    * `REPLACE_ONE`: equally many records, one of them exchanged. A sum of contributions clipped to
      norm C moves by up to 2C instead of C.

    A number for one relation says nothing about the other by itself: replacing is a removal and an
    addition, so it can cost up to twice as much and more.

    Example:
        >>> Adjacency("replace-one") is Adjacency.REPLACE_ONE
        True
    """

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"

    @classmethod
    def _missing_(cls, value: object) -> Adjacency:
        if isinstance(value, str):
            text = value.strip().lower().replace("_", "-").replace(" ", "-")
            for member in cls:
                if member.value == text:
                    return member
        raise unknown(value)


def unknown(value: object) -> ValueError:
    """The refusal of what names no adjacency."""
    names = [member.value for member in Adjacency]
    return ValueError(f"adjacency must be one of {names}, got {checks.render(value)}")
