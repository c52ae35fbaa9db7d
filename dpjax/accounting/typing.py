"""What the accountant calls its numbers in signatures.

What a core computes with is `Numbers` of `dpjax._numerics.namespace`. A mechanism's field, and what
is asked of it, is `Real` until a function of the namespace has made an array of it: its operators
and comparisons are those of numbers, as a complex one's would not be.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float

# One number or a sweep: Python's own, NumPy's, JAX's, or traced.
Real = Float[Array | np.ndarray | np.floating | np.integer | float, "..."]
