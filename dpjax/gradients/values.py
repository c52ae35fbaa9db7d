"""What a value of a traced loss depends on: the record, parameters alone, or neither; and taps."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.parameters import JoinedViews, ParameterView
from dpjax.gradients.rules import Rule


@dataclasses.dataclass(frozen=True)
class Constant:
    """Depends on neither the record nor (differentiably) on a parameter."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Batched:
    """Depends on the record; `value` has a leading batch axis."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Parametric:
    """Depends on parameters alone; `view` is None where it is not a rearrangement of one."""

    value: Any
    leaves: frozenset[int]
    view: ParameterView | JoinedViews | None


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """One use of a parameter under a rule.

    Attributes:
        tap: the name of the tap; equations that use several parameters at once have one tap.
        view: the rearranged parameter in that equation.
        rule: how its gradient is formed.
        scans: the enclosing scans, outermost first: (length, whether it scans over the parameter).
        saved, out: shape and dtype of the equation's saved input and output for one record.
        where: the equation's place in the user's source.
    """

    tap: str
    view: ParameterView
    rule: Rule
    scans: tuple[tuple[int, bool], ...]
    saved: Any
    out: Any
    where: str


@jax.custom_jvp
def tapped(value, tap):
    del tap
    return value


@tapped.defjvp
def _tapped_jvp(primals, tangents):
    return primals[0], tangents[0] + tangents[1]


@jax.custom_jvp
def copied(leaf, tap):
    """One copy of a parameter per record; the tap only carries the derivative."""
    return jnp.broadcast_to(leaf, (tap.shape[0], *leaf.shape)).astype(tap.dtype)


@copied.defjvp
def _copied_jvp(primals, tangents):
    return copied(*primals), tangents[1]


def leaf_key(index: int) -> str:
    """The name of the tap of a parameter's copies; sites are named by their place: "3.0.12."."""
    return f"leaf {index}"


def one_step(value: Any, scan: Any) -> Any:
    """What a scanned-over value is inside the scan's body."""
    if not isinstance(value, Parametric):
        return type(value)(None)
    view = value.view
    view = view.slice_of_scan(scan) if isinstance(view, ParameterView) else None
    return Parametric(None, value.leaves, view)
