"""What `jax.checkpoint` in a loss asks for: blocks that are recomputed, or small pieces."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax

from dpjax.gradients.equations import Program


class Remembering(NamedTuple):
    """What is remembered of a batch until its norms are known.

    Fields:
        recompute: whether checkpointed blocks are run again in the backward pass. Pieces of the
            batch take no longer, but are only cut on one device, and no smaller than one record.
        fitting: records about whose memory the plain gradient takes for the whole batch; None where
            no block is checkpointed.
    """

    recompute: bool = False
    fitting: int | None = None


def remembering(program: Program, sites: Iterable[Any], records: int) -> Remembering:
    """How the checkpoints of a loss are honoured.

    Args:
        program: of one record.
        sites: the uses of parameters, see `Site`.
        records: of the batch.
    """
    kept, inside, largest, paths = _checkpoints(program, 1, "")
    if not inside:
        return Remembering()
    # The plain gradient keeps every block's results, and one block's inner values at a time.
    least = records * (kept + largest)
    recompute = jax.device_count() > 1 or least < inside
    if recompute:  # what parameters meet in the blocks is kept besides
        within = {s.tap: _saved(s) for s in sites if s.tap.startswith(tuple(paths))}
        inside = kept + largest + sum(within.values())
    return Remembering(recompute, min(records, max(1, least // inside)))


def fitting_gradients(program: Program, size: int, records: int) -> int | None:
    """Records whose gradients are formed in about the memory of the plain gradient of them all;
    None where no block is checkpointed.

    Args:
        program: of one record.
        size: numbers of its gradient.
        records: of the batch.
    """
    kept, inside, largest, _ = _checkpoints(program, 1, "")
    if not inside:
        return None
    own = kept + largest
    return min(records, max(1, records * own // (own + size)))


def _checkpoints(program: Program, steps: int, path: str) -> tuple[int, int, int, list[str]]:
    """Numbers a record: results of checkpointed blocks, values inside all, inside the largest; and
    how the names of the taps in such blocks begin.

    Args:
        program: of one record.
        steps: how often it runs.
        path: of its taps.
    """
    kept, inside, largest, paths = 0, 0, 0, []
    for number, eqn in enumerate(program.equations):
        here = f"{path}{number}."
        if eqn.recomputed:
            own = sum(map(_written, eqn.programs()))
            kept += steps * sum(math.prod(aval.shape) for aval in eqn.outs)
            inside, largest = inside + steps * own, max(largest, own)
            paths.append(here)
            continue
        loop = eqn.scan()
        for inner in eqn.programs():
            more = _checkpoints(inner, steps * loop.length if loop else steps, here)
            kept, inside = kept + more[0], inside + more[1]
            largest, paths = max(largest, more[2]), paths + more[3]
    return kept, inside, largest, paths


def _written(program: Program) -> int:
    """Numbers that the equations of a program write, loops in full."""
    total = 0
    for eqn in program.equations:
        loop, inner = eqn.scan(), eqn.programs()
        if inner:
            total += (loop.length if loop else 1) * sum(map(_written, inner))
        else:
            total += sum(math.prod(aval.shape) for aval in eqn.outs)
    return total


def _saved(site: Any) -> int:
    """Numbers a record that a use keeps: what the parameter meets, and the cotangents."""
    numbers = math.prod(site.saved.shape) + math.prod(site.out.shape)
    return numbers * math.prod(length for length, _ in site.scans)
