"""From a step to the release whose pair is known, through whatever samples it.

`LAID` has the steps whose pair is laid on a grid: a new one is a file and a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import (
    Mechanism,
    Shuffled,
    TruncatedPoissonSampled,
    UserLevel,
    WithReplacement,
)
from dpjax.accounting.pairs.atoms import SAMPLING_RULES
from dpjax.accounting.pairs.protocol import SampledRelease
from dpjax.accounting.pairs.redrawn import read_redrawn
from dpjax.accounting.pairs.truncated import read_truncated
from dpjax.accounting.pairs.user_level import read_user

# (step, adjacency) -> the step's numbers, of which the first is the displacement over the noise.
OF_RECORDS: dict[type, Callable[[Any, Adjacency], SampledRelease | None]] = {
    TruncatedPoissonSampled: read_truncated,
    WithReplacement: read_redrawn,
}
LAID: dict[type, Callable] = {**OF_RECORDS, UserLevel: read_user}


def dominating_pair(step: Mechanism, adjacency: Adjacency) -> SampledRelease | None:
    """The release by whose pair one step is priced; None where no theorem gives one.

    A way of sampling says what it makes of a release. A pass over disjoint batches costs what one
    of them costs.
    """
    if step.release is not None:
        with np.errstate(over="ignore"):  # twice the largest float is infinite
            numbers = step.release.numbers(step, adjacency)
        return None if numbers is None else SampledRelease(step.release, numbers)
    if isinstance(step, Shuffled):
        return dominating_pair(step.mechanism, adjacency)
    sampled = getattr(step, "mechanism", None)
    if type(step) not in SAMPLING_RULES or sampled is None:
        return None
    inner = dominating_pair(sampled, adjacency)
    return None if inner is None else SAMPLING_RULES[type(step)].amplify(step, adjacency, inner)
