"""What the training loop calls its parts in signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from dpjax._numerics.typing import Params, StepNumber
from dpjax.training.data import HostData

# A tree of arrays with a leading axis of records, or records on the host.
RunData = PyTree[Array] | HostData
# The records of one step, or the shapes of one record.
RecordTree = PyTree[Array]
# Whom each record belongs to.
Users = ArrayLike | Sequence[int | str]
# Which arrays of a model are meant: `choose(path, leaf)`, or a tree of booleans, a prefix of it.
Trainable = Callable[[str, Array], bool] | PyTree[bool | Bool[Array, ""]]
# Names of numbers, such as a row of the metrics.
Row = Mapping[str, float]
# `evaluate(params)`, the numbers of a row.
Evaluate = Callable[[Params], Row]
# From a step's number 1, 2, … to the weight of its parameters in a running mean.
AverageWeights = Callable[[StepNumber], Float[ArrayLike, ""]]
# What a run carries from step to step, by name: parameters, the optimiser's state, …
RunState = dict[str, PyTree[Array]]
Count = np.number | Array
# Sum of losses, records seen, those left out, and those clipped.
Totals = tuple[Count, ...]
