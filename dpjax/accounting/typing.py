"""What the accountant calls its numbers in signatures.

What a core computes with is `Numbers` of `dpjax._numerics.namespace`. A mechanism's field, and what
is asked of it, is `Real` until a function of the namespace has made an array of it: its operators
and comparisons are those of numbers, as a complex one's would not be.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Array

from dpjax._numerics.namespace import Values

# One number or a sweep: Python's own, NumPy's, JAX's, or traced.
Real = Values
# What a question is answered by: one number, those of a sweep, or traced ones.
Answer = float | np.ndarray | Array
# Which settings of a sweep are meant; of one setting, whether it is.
Mask = Array | np.ndarray | np.bool | bool
# What a certificate declares of a run, by name.
Fact = float | str
