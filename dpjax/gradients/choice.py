"""How a loss's gradients are clipped, and why: the plan of the ghost method, and what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, NamedTuple

from jaxtyping import PyTreeDef

from dpjax.gradients.ghost.outer import Form, Side
from dpjax.gradients.ghost.programs import Program, Site

ClippingMethod = Literal["auto", "ghost", "vmap"]
PieceSize = int | Literal["auto"] | None


class RematPolicy(NamedTuple):
    """What is remembered of a batch until its norms are known."""

    recompute: bool = False  # whether checkpointed blocks are run again in the backward pass
    # Records about whose memory the plain gradient takes for the whole batch; None where no block
    # is checkpointed.
    fitting: int | None = None


@dataclasses.dataclass(frozen=True)
class Family:
    """Uses of one piece of one parameter whose outer products add up."""

    sites: tuple[Site, ...]
    form: Form  # how the squared norm is formed
    sizes: tuple[int, int, int, int]  # (g, t, k, n) with the scans folded in and the sites joined
    work: int  # multiplications per record for the norm
    memory: int  # numbers written per record for the norm
    side: Side | None = None  # the factor of a low-rank sum, whose uses the sites are, that it is
    of_sum: tuple[int, int, int, int] | None = None  # (g, t, k, n) of that sum


@dataclasses.dataclass(frozen=True)
class GhostPlan:
    """What the ghost method will do for one loss and one shape of batch."""

    program: Program  # the loss of one record
    families: tuple[tuple[Family, ...], ...]  # per parameter; none if it is unused or copied
    copied: Mapping[int, str]  # parameters copied once per record, with the use that has no rule
    aux: PyTreeDef  # the structure of the loss's second output
    remat: RematPolicy  # how the loss's checkpoints are honoured


class ParameterCost(NamedTuple):
    """One row of the table."""

    parameter: str  # its path in the tree
    shape: tuple[int, ...]
    used_in: str  # the equations it enters, with the model's own scope names where there are any
    rule: str  # how its per-example norm is formed
    ghost: int  # estimated cost per record beyond the backward pass, by either method
    vmap: int
    sum: str = ""  # in which form the ghost method adds up the records, see `compensated`


@dataclasses.dataclass(frozen=True)
class MethodChoice:
    """The method that clips a loss's gradients, and the reason."""

    method: str  # "ghost" or "vmap"
    reason: str  # in words
    plan: GhostPlan | None  # None for "vmap"
    rows: tuple[ParameterCost, ...]  # empty where the loss could not be traced

    def __str__(self) -> str:
        table = [("parameter", "shape", "used in", "rule", "ghost", "vmap", "sum")]
        table += [(*map(str, r[:4]), f"{r.ghost:,}", f"{r.vmap:,}", r.sum) for r in self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = []
        for row in table:
            numbers = map(str.rjust, row[4:6], widths[4:])
            cells = [*map(str.ljust, row[:4], widths), *numbers, row[6]]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, f"method: {self.method} ({self.reason})"])


BY_VMAP = MethodChoice("vmap", "as asked", None, ())
SCALED = MethodChoice("vmap", "gradients are scaled before they are clipped", None, ())
