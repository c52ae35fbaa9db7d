"""What users give in signatures, each under one name: parameters, keys, losses, step numbers.

A tree has its leaves' type at run time; to a type checker a tree of arrays is open. Numbers are
`Numbers` of `dpjax._numerics.namespace`, which also has `AnyTree`, of whatever comes out as it went
in.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

# What a model has learned, and what has its structure: gradients, updates, noise.
Params = PyTree[Float[Array, "..."]]
# One key, typed or as its words.
PRNGKey = Key[Array, ""]
# `loss(params, example)`, or `loss(params, example, key)`, of one record.
Loss = Callable[..., Float[Array, ""]]
# One number, of Python's or of JAX, which may be traced.
Number = float | Array
# A step's number, from 0 on.
StepNumber = int | np.integer | Int[Array, ""]
