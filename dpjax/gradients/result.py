"""What a clipped-gradient function returns."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Array, Float, Int


class ClippedGradient(NamedTuple):
    """The clipped sum of a batch's per-example gradients, and what was seen on the way.

    Only `sum` has the strategy's sensitivity. `norms`, `losses`, `nonfinite` and `aux` are exact
    functions of the private records: publish them only through a mechanism of their own.

    Fields:
        sum: the parameters' tree, Σᵢ cᵢ·gᵢ over the records that take part. Leaves are float32 at
            least, whatever the parameters' dtype: rounding the sum to bfloat16 before the noise
            would move it by more than one clip norm.
        norms: [batch], the gradients' l2 norms before clipping; 0 where the mask is False.
        losses: [batch], the losses; 0 where the mask is False.
        nonfinite: the number of records whose gradient had a NaN or an infinity (or a norm beyond
            the float range), or that no factor brings below the clip norm, as where that is NaN:
            they contributed zero.
        aux: the loss's second output, stacked along a leading batch axis; None without `has_aux`.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.gradients import clipped_grad
        >>> grad = clipped_grad(lambda w, x: jnp.sum(w * x), clip_norm=1.0)
        >>> out = grad(jnp.ones(2), jnp.array([[3.0, 4.0], [0.0, 0.5]]))
        >>> out.norms.tolist(), out.losses.tolist(), int(out.nonfinite)
        ([5.0, 0.5], [7.0, 0.5], 0)
    """

    sum: Any
    norms: Float[Array, " batch"]
    losses: Float[Array, " batch"]
    nonfinite: Int[Array, ""]
    aux: Any = None
