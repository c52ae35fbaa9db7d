"""What a run is asked for, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from dpjax._numerics.checks import Range, one_number, shown
from dpjax.gradients import Strategy

__all__ = ["check_functions", "check_key", "check_names", "check_strategy", "positive", "whole"]

# What a row that is shown has beside what the metrics keep.
SHOWN = ("steps_per_second", "records_per_second", "memory")
# What every row says by itself.
_OWN = ("step", "epsilon", "train_loss", "nonfinite", "clipped", *SHOWN)


def positive(name: str, value: float) -> None:
    """Refuse a number that is not above 0 and finite.

    Example:
        >>> positive("epochs", 0.0)
        Traceback (most recent call last):
        ValueError: epochs must be a positive, finite number, got 0.0
    """
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a positive, finite number, got {value}")


def whole(name: str, value: Any, low: int = 1, high: float = float("inf")) -> int:
    """The value as Python's int, which can be written down beside a key, if it is allowed.

    Raises:
        TypeError, ValueError: not a whole number, or out of range.

    Example:
        >>> whole("log_every", 3.0)
        3
    """
    return int(one_number(name, value, Range(low, high, whole=True)))


def check_functions(**given: Callable[..., Any] | None) -> None:
    """Refuse what cannot be called before the first step, not at the first row.

    Raises:
        TypeError: one that is neither None nor a function.

    Example:
        >>> check_functions(evaluate=None, on_log=print)
    """
    for name, value in given.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name} must be a function, got {shown(value)}")


def check_strategy(strategy: Any) -> None:
    """Refuse what is no strategy of clipping.

    Raises:
        ValueError: anything else.

    Example:
        >>> from dpjax.gradients import Flat
        >>> check_strategy(Flat())
    """
    if not isinstance(strategy, Strategy):
        raise ValueError(f"strategy must be a Strategy of dpjax.gradients, got {shown(strategy)}")


def check_key(key: Any) -> None:
    """Refuse what is not one key.

    Raises:
        TypeError: a seed, several keys, or anything else.

    Example:
        >>> check_key(jax.random.key(0))
    """
    array = isinstance(key, np.ndarray | jax.Array)
    typed = array and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not array or key.ndim != (0 if typed else 1) or not (typed or key.dtype == np.uint32):
        got = f"{key.dtype} of shape {key.shape}" if array else shown(key)
        raise TypeError(f"key must be one key, as jax.random.key(seed) makes, got {got}")


def check_names(found: Iterable[str], first: Iterable[str] | None = None) -> None:
    """Refuse values of `evaluate` that would hide a row's own, or that change from row to row.

    Args:
        found: the names of what was returned.
        first: those of what was returned before the first step; None for these themselves.

    Raises:
        ValueError: a name of the row's own, or other names than at first.

    Example:
        >>> check_names(["accuracy"], first=["accuracy"])
    """
    names = sorted(found)
    if first is None and set(names) & set(_OWN):
        raise ValueError(f"evaluate must return names other than {list(_OWN)}, got {names}")
    if first is not None and names != sorted(first):
        raise ValueError(f"evaluate must return {sorted(first)} at every row, got {names}")
