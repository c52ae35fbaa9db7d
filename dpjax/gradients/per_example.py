"""Clipped sums by vmap of the gradient: works for every loss, and keeps per-example gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dpjax.gradients.strategies import Strategy


def accumulation_dtype(dtype: Any) -> Any:
    """The dtype in which norms and sums of gradients of `dtype` are formed: float32 at least."""
    return jnp.dtype(dtype) if jnp.finfo(dtype).bits > 32 else jnp.dtype(jnp.float32)


def norms_dtype(leaves: Sequence[Array]) -> Any:
    """The dtype of the whole gradient's norm: the widest of its leaves', float32 at least."""
    wide = any(jnp.finfo(leaf.dtype).bits > 32 for leaf in leaves)
    return jnp.dtype(jnp.float64) if wide else jnp.dtype(jnp.float32)


def squared_norms(gradients: Sequence[Array], groups: Sequence[int]) -> Float[Array, "groups b"]:
    """Per-example squared norms, one row a group of leaves; leaves carry a leading batch axis."""
    dtype = norms_dtype(gradients)
    rows = [jnp.zeros(gradients[0].shape[0], dtype)] * (max(groups) + 1)
    for leaf, group in zip(gradients, groups, strict=True):
        wide = leaf.astype(dtype).reshape(leaf.shape[0], -1)
        rows[group] = rows[group] + jnp.sum(jnp.square(wide), axis=1)
    return jnp.stack(rows)


def clip_factors(
    strategy: Strategy,
    squared: Float[Array, "groups b"],
    clip_norm: Any,
    mask: Bool[Array, " b"],
) -> tuple[Float[Array, "groups b"], Bool[Array, " b"], Float[Array, " b"]]:
    """(factors, which records take part, norms); a record that does not take part has factor 0."""
    total = jnp.sum(squared, axis=0)
    kept = mask & jnp.isfinite(total)
    # The replacement keeps factors (and whatever is built on them) free of NaN.
    safe = jnp.where(kept, squared, jnp.zeros_like(squared))
    factors = strategy.factors(safe, jnp.asarray(clip_norm, squared.dtype))
    norms = jnp.where(mask, jnp.sqrt(total), jnp.zeros_like(total))
    return jnp.where(kept, factors, jnp.zeros_like(factors)), kept, norms


def weighted_sum(factors: Float[Array, " b"], gradient: Float[Array, "b ..."]) -> Array:
    """Σᵢ cᵢ·gᵢ as one matrix product: no scaled copy of the gradients is ever written."""
    dtype = accumulation_dtype(gradient.dtype)
    flat = gradient.reshape(gradient.shape[0], -1)
    out = jax.lax.dot(
        factors.astype(dtype)[None, :],
        flat.astype(dtype),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=dtype,
    )
    return out.reshape(gradient.shape[1:])


def clipped_sum(
    per_example_loss: Callable[[Any, Any], tuple[Array, Any]],
    params: Any,
    batch: Any,
    mask: Bool[Array, " b"],
    clip_norm: Any,
    strategy: Strategy,
) -> tuple[Any, Array, Array, Array, Any]:
    """(sum, norms, losses, records kept, aux) of one batch, every per-example gradient held."""
    gradient = jax.value_and_grad(per_example_loss, has_aux=True)
    (losses, aux), gradients = jax.vmap(gradient, in_axes=(None, 0))(params, batch)
    leaves, tree = jax.tree.flatten(gradients)
    groups = strategy.groups(params)
    squared = squared_norms(leaves, groups)
    factors, kept, norms = clip_factors(strategy, squared, clip_norm, mask)

    def total(leaves):
        return [weighted_sum(factors[g], leaf) for leaf, g in zip(leaves, groups, strict=True)]

    def total_of_kept(leaves):
        # 0·NaN is NaN: a record that is left out must be cut out.
        def cut(leaf):
            keep = kept.reshape((-1,) + (1,) * (leaf.ndim - 1))
            return jnp.where(keep, leaf, jnp.zeros_like(leaf))

        return total([cut(leaf) for leaf in leaves])

    sums = jax.lax.cond(jnp.all(kept), total, total_of_kept, leaves)
    return tree.unflatten(sums), norms, losses, kept, aux
