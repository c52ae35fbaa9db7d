"""Normalisations that look at one record alone, for models that are trained privately."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpjax._numerics.checks import positive, whole
from dpjax._numerics.typing import Params


def group_normalise(
    x: Float[Array, "... channels"], groups: int, *, epsilon: float = 1e-5
) -> Float[Array, "... channels"]:
    """One record's channels in groups, each of mean 0 and variance 1 over its places and channels.

        (x − mean) / √(variance + epsilon), of each group by itself

    For plain models, and for features: over a batch, `jax.vmap(lambda x: group_normalise(x, 8))`.
    Models of flax and equinox have `nn.GroupNorm`, `nnx.GroupNorm` and `eqx.nn.GroupNorm`.

    Args:
        x: of one record, channels last: [height, width, channels], or [channels].
        groups: divides the channels, which are grouped in their order.
        epsilon: above 0, beside the variance.

    Raises:
        ValueError: groups that do not divide the channels.

    Guarantee:
        Of a record alone: what it gives for one does not depend on others, as batch normalisation
        does, so that a clipped gradient bounds what a record changes.

    Example:
        >>> x = jnp.array([[1.0, 3.0, 10.0, 30.0]])
        >>> group_normalise(x, 2).round(3).tolist()
        [[-1.0, 1.0, -1.0, 1.0]]

    References:
        Wu and He 2018, "Group normalization".
    """
    channels = x.shape[-1] if x.ndim else 0
    if channels == 0 or channels % whole("groups", groups):
        raise ValueError(f"groups must divide the {channels} channels, got {groups}")
    positive("epsilon", epsilon)
    grouped = x.reshape(*x.shape[:-1], groups, channels // groups)
    axes = (*range(x.ndim - 1), x.ndim)  # all but the groups
    centred = grouped - jnp.mean(grouped, axis=axes, keepdims=True)
    variance = jnp.mean(centred * centred, axis=axes, keepdims=True)
    return (centred / jnp.sqrt(variance + jnp.asarray(epsilon, x.dtype))).reshape(x.shape)


def standardise_weights(params: Params, *, output_axis: int = -1, epsilon: float = 1e-5) -> Params:
    """Parameters whose kernels have mean 0 and variance 1 / inputs for every output.

        (w − mean) / √(inputs·(variance + epsilon)), over all axes but that of the outputs

    One line for any model: `Model(model.init, lambda p, *x: model.apply(standardise_weights(p),
    *x))`. Kernels are the arrays of two axes or more; biases and scales stay as they are.

    Args:
        params: a tree of arrays: of flax, of equinox (`output_axis=0`), or your own.
        output_axis: which axis of a kernel is that of its outputs.
        epsilon: above 0, beside the variance.

    Raises:
        ValueError: `epsilon` not above 0.

    Guarantee:
        A function of the parameters alone: gradients pass through it, and are clipped as those of
        any model.

    Example:
        >>> kernel = jnp.array([[1.0, 2.0], [3.0, 6.0]])
        >>> found = standardise_weights({"w": kernel, "b": jnp.ones(2)})["w"]
        >>> [[f"{x:.3f}" for x in row] for row in found.tolist()]
        [['-0.707', '-0.707'], ['0.707', '0.707']]

    References:
        Qiao et al. 2019, "Micro-batch training with batch-channel normalization and weight
        standardization"; with DP-SGD: De et al. 2022, "Unlocking high-accuracy differentially
        private image classification through scale".
    """
    positive("epsilon", epsilon)

    def standardise(kernel: Array) -> Array:
        if jnp.ndim(kernel) < 2 or not jnp.issubdtype(kernel.dtype, jnp.floating):
            return kernel
        axes = tuple(k for k in range(kernel.ndim) if k != output_axis % kernel.ndim)
        centred = kernel - jnp.mean(kernel, axis=axes, keepdims=True)
        variance = jnp.mean(centred * centred, axis=axes, keepdims=True)
        inputs = kernel.size // kernel.shape[output_axis]
        return centred / jnp.sqrt(
            jnp.asarray(inputs, kernel.dtype) * (variance + jnp.asarray(epsilon, kernel.dtype))
        )

    return jax.tree.map(standardise, params)
