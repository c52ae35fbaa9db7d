"""From a step to the release whose pair is known, through whatever samples it.

`LAID` has the steps whose pair is laid on a grid: a new one is a file and a line here.
"""

from __future__ import annotations

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import Mechanism, Shuffled
from dpjax.accounting.pairs import group, replacement, truncated
from dpjax.accounting.pairs.protocol import Known, Laid
from dpjax.accounting.pairs.table import SCHEMES

LAID: dict[type, Laid] = {
    laid.kind: laid for laid in (truncated.CUT, replacement.DRAWN, group.GROUP)
}


def known(step: Mechanism, adjacency: Adjacency) -> Known | None:
    """The release by whose pair one step is priced; None where no theorem gives one.

    A way of sampling says what it makes of a release. A pass over disjoint batches costs what one
    of them costs.
    """
    if step.release is not None:
        numbers = step.release.numbers(step, adjacency)
        return None if numbers is None else Known(step.release, numbers)
    if isinstance(step, Shuffled):
        return known(step.mechanism, adjacency)
    sampled = getattr(step, "mechanism", None)
    if type(step) not in SCHEMES or sampled is None:
        return None
    inner = known(sampled, adjacency)
    return None if inner is None else SCHEMES[type(step)].amplify(step, adjacency, inner)
