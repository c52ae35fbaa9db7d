"""Clipped sums by vmap of the gradient: works for every loss, and keeps per-example gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dpjax.gradients.rounding import in_runs, pairwise_sum
from dpjax.gradients.strategies import Strategy


def accumulation_dtype(dtype: Any) -> Any:
    """The dtype in which norms and sums of gradients of `dtype` are formed: float32 at least."""
    return jnp.dtype(dtype) if jnp.finfo(dtype).bits > 32 else jnp.dtype(jnp.float32)


def norms_dtype(leaves: Sequence[Array]) -> Any:
    """The dtype of the whole gradient's norm: the widest of its leaves', float32 at least."""
    wide = any(jnp.finfo(leaf.dtype).bits > 32 for leaf in leaves)
    return jnp.dtype(jnp.float64) if wide else jnp.dtype(jnp.float32)


def flushed(numbers: int, dtype: Any) -> float:
    """The most that a sum of so many squares or products lacks where small ones become zero.

    Processors may flush what lies below the smallest normal number to zero.
    """
    return numbers * float(jnp.finfo(dtype).tiny)


def squared_norm(gradient: Float[Array, "b ..."], dtype: Any) -> Float[Array, " b"]:
    """Per-example squared norms of one leaf."""
    return jnp.sum(jnp.square(gradient.astype(dtype)), axis=tuple(range(1, gradient.ndim)))


def squared_norms(gradients: Sequence[Array], groups: Sequence[int]) -> Float[Array, "groups b"]:
    """Per-example squared norms, one row a group of leaves; leaves carry a leading batch axis."""
    dtype = norms_dtype(gradients)
    rows = [jnp.zeros(gradients[0].shape[0], dtype)] * (max(groups) + 1)
    for leaf, group in zip(gradients, groups, strict=True):
        rows[group] = rows[group] + squared_norm(leaf, dtype)
    return jnp.stack(rows)


def group_sizes(leaves: Sequence[Any], groups: Sequence[int], leading: int = 0) -> list[int]:
    """The number of parameters of every group, of leaves with so many leading axes besides."""
    sizes = [0] * (max(groups) + 1)
    for leaf, group in zip(leaves, groups, strict=True):
        sizes[group] += math.prod(leaf.shape[leading:])
    return sizes


class Clipping(NamedTuple):
    """What becomes of every record.

    Fields:
        factors: the factor of every group and record.
        kept: which records take part: not masked, finite, and scaled to at most the clip norm.
        norms: the gradients' norms; 0 where masked.
        clean: whether every norm is finite, masked or not: 0 × gradient is then 0.
    """

    factors: Float[Array, "groups b"]
    kept: Bool[Array, " b"]
    norms: Float[Array, " b"]
    clean: Bool[Array, ""]


def clip_factors(
    strategy: Strategy,
    squared: Float[Array, "groups b"],
    clip_norm: Any,
    mask: Bool[Array, " b"],
    sizes: Sequence[int],
) -> Clipping:
    """The factors of a batch; a record that does not take part has factor 0.

    Args:
        strategy: from squared norms to factors.
        squared: the squared norms of every group and record.
        clip_norm: the bound.
        mask: which records are none.
        sizes: the number of parameters of every group.
    """
    total = jnp.sum(squared, axis=0)
    kept = mask & jnp.isfinite(total)
    bound = jnp.asarray(clip_norm, squared.dtype)
    # The replacement keeps factors (and whatever is built on them) free of NaN.
    # Squares that became zero are counted at the most that they were: a gradient of many entries
    # below 1e-19 is not one of norm 0 (in float32, where this changes no other norm).
    lacking = jnp.asarray([flushed(size, squared.dtype) for size in sizes], squared.dtype)
    safe = jnp.where(kept, squared + lacking[:, None], jnp.zeros_like(squared))
    factors = strategy.factors(safe, bound)
    # Whatever the clip norm and the strategy are: no record passes whose scaled norm is not at most
    # the bound. NaN fails every comparison. The allowance is the rounding of this sum of squares.
    scaled = jnp.sqrt(jnp.sum(jnp.square(factors * jnp.sqrt(safe)), axis=0))
    allowance = 1 + (16 + squared.shape[0]) * float(jnp.finfo(squared.dtype).eps)
    kept &= (scaled <= bound * allowance) & (bound > 0) & jnp.isfinite(bound)
    norms = jnp.where(mask, jnp.sqrt(total), jnp.zeros_like(total))
    factors = jnp.where(kept, factors, jnp.zeros_like(factors))
    return Clipping(factors, kept, norms, jnp.all(jnp.isfinite(total)))


def weighted_sum(
    factors: Float[Array, " b"],
    gradient: Float[Array, "b ..."],
    share_of: int | None = None,
    *,
    finite: bool = False,
) -> Array:
    """Σᵢ cᵢ·gᵢ, in short runs; records of factor 0 add exactly 0, whatever their gradient.

    A contraction with the factors: no scaled copy of the gradients is ever written.

    Args:
        factors: cᵢ.
        gradient: gᵢ.
        share_of: see `clipped_grad`.
        finite: whether all of the gradients are known to be finite, so that 0 × gradient is 0.
    """
    dtype = accumulation_dtype(gradient.dtype)
    weights = factors.astype(dtype)
    flat = gradient.reshape(gradient.shape[0], -1).astype(dtype)
    if not finite:
        flat = jnp.where(weights[:, None] > 0, flat, jnp.zeros_like(flat))
    weights, flat = in_runs(weights, share_of), in_runs(flat, share_of)
    sums = jnp.einsum("rb,rbd->rd", weights, flat, precision=jax.lax.Precision.HIGHEST)
    return pairwise_sum(sums).reshape(gradient.shape[1:])


def clipped_sum(
    per_example_loss: Callable[[Any, Any], tuple[Array, Any]],
    params: Any,
    batch: Any,
    mask: Bool[Array, " b"],
    clip_norm: Any,
    strategy: Strategy,
    share_of: int | None = None,
) -> tuple[Any, Array, Array, Array, Any]:
    """(sum, norms, losses, records kept, aux) of one batch, every per-example gradient held."""
    gradient = jax.value_and_grad(per_example_loss, has_aux=True)
    (losses, aux), gradients = jax.vmap(gradient, in_axes=(None, 0))(params, batch)
    leaves, tree = jax.tree.flatten(gradients)
    groups = strategy.groups(params)
    squared = squared_norms(leaves, groups)
    sizes = group_sizes(leaves, groups, leading=1)
    clipping = clip_factors(strategy, squared, clip_norm, mask, sizes)

    sums = [
        weighted_sum(clipping.factors[group], leaf, share_of)
        for leaf, group in zip(leaves, groups, strict=True)
    ]
    return tree.unflatten(sums), clipping.norms, losses, clipping.kept, aux
