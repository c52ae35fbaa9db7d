"""The error of everything that reads data."""

from __future__ import annotations

__all__ = ["DataError"]


class DataError(ValueError):
    """Data, or a schema, that cannot be used; the message says what to change.

    Example:
        >>> raise DataError("no rows")
        Traceback (most recent call last):
        ...
        dpjax.data.errors.DataError: no rows
    """
