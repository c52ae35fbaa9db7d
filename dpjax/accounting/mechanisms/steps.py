"""The steps that a run is made of."""

from __future__ import annotations

from typing import Any

from dpjax.accounting.mechanisms.base import Mechanism
from dpjax.accounting.mechanisms.composition import Composed, Repeated
from dpjax.accounting.mechanisms.users import UserLevel, spread


def flatten(run: Mechanism) -> list[tuple[Mechanism, tuple[Any, ...]]]:
    """Steps of a run with the factors of their multiplicities, `Repeated` and `Composed` undone.

    A user's group privacy is that of every step, so that no `UserLevel` is left around a run.
    """
    found: list[tuple[Mechanism, tuple[Any, ...]]] = []
    stack: list[tuple[Mechanism, tuple[Any, ...]]] = [(run, ())]
    while stack:
        step, factors = stack.pop()
        if isinstance(step, Repeated):
            stack.append((step.mechanism, (*factors, step.steps)))
        elif isinstance(step, Composed):
            stack.extend((part, factors) for part in reversed(step.mechanisms))
        elif isinstance(step, UserLevel) and (inner := spread(step)) is not step:
            stack.append((inner, factors))
        else:
            found.append((step, factors))
    return found
