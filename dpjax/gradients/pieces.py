"""A batch worked through in pieces: how large they should be, and a loop that adds them up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from dpjax._numerics.keys import bits_of_keys
from dpjax.gradients.equations import trace
from dpjax.gradients.explain import MEMORY_WEIGHT, Choice, multiplications
from dpjax.gradients.small import joining_of

PieceSize = int | Literal["auto"] | None

# What a core keeps close by. Beyond it every pass over the activations goes through memory.
_CACHE = 16e6
_LEAST, _MOST = 8, 32
# Adding a piece to the compensated total reads and writes it and its error.
_PASSES = 4
_WORTHWHILE = 0.1


def piece_size(choice: Choice, loss: Callable[..., Any], params: Any, batch: Any) -> int:
    """Records a piece: all of them, or as few as the cache holds where that is quicker.

    On one CPU device, activations (and per-example gradients, where they are formed) that outgrow
    the cache cost more than adding up a few sums the size of the parameters. Where the loss uses
    `jax.checkpoint`, the pieces of the ghost method are so small that what it remembers of a piece
    is about what the plain gradient remembers of the batch. Elsewhere, and on several devices, the
    whole batch goes at once.

    Example:
        >>> loss = lambda w, x: (jnp.sum(w * x), None)
        >>> piece_size(Choice("vmap", "", None, ()), loss, jnp.zeros(10), jnp.zeros((256, 10)))
        256
    """
    records = jax.tree.leaves(batch)[0].shape[0]
    if choice.plan is not None and jax.device_count() == 1:
        allowed = choice.plan.remembering.fitting
        if allowed is not None and allowed < records:
            return min(allowed, _quickest(choice, loss, params, batch))
    return _quickest(choice, loss, params, batch)


def _quickest(choice: Choice, loss: Callable[..., Any], params: Any, batch: Any) -> int:
    records = jax.tree.leaves(batch)[0].shape[0]
    if jax.default_backend() != "cpu" or jax.device_count() > 1:
        return records
    leaves = jax.tree.leaves(params)
    size = sum(math.prod(leaf.shape) for leaf in leaves)
    plan = choice.plan
    families = [] if plan is None else [family for found in plan.families for family in found]
    if plan is None:
        written = size  # numbers a record leaves in memory: its gradient
    else:
        written = sum(math.prod(leaves[i].shape) for i in plan.copied) + sum(
            math.prod(site.out.shape) * math.prod(length for length, _ in site.scans)
            for family in families
            for site in family.sites
        )
    per_record = 4 * max(written, 1)  # bytes
    fitting = min(max(int(_CACHE / per_record), _LEAST), _MOST)
    if per_record * records < _CACHE / 4 or fitting >= records:
        return records
    pieces = -(-records // fitting)
    if plan is None:
        worthwhile = not _convolves(loss, params, batch)
    else:
        # Forward, backward and the clipped sum are three products of this size a record.
        work = 3 * records * sum(multiplications(family) for family in families)
        worthwhile = _PASSES * MEMORY_WEIGHT * pieces * size <= _WORTHWHILE * work
    return -(-records // pieces) if worthwhile else records


def _convolves(loss: Callable[..., Any], params: Any, batch: Any) -> bool:
    """Whether the loss has a convolution, whose per-example gradients XLA forms faster at once."""
    try:
        example = jax.eval_shape(lambda b: jax.tree.map(lambda x: x[0], b), batch)
        return trace(loss, params, example)[0].contains("conv_general_dilated")
    except Exception:  # the call that follows raises the user's own error
        return True


def in_pieces(
    piece: Callable[..., Any], batch_and_keys: Any, mask: Bool[Array, " b"], size: int
) -> Any:
    """`piece` over the batch at once, or over pieces of `size` records in a loop.

    The pieces' sums are added with compensation (Kahan 1965), which is off by two unit round-offs
    of Σ|terms| however many they are: the slack does not grow with the number of pieces.
    """
    records = mask.shape[0]
    if size >= records:
        return piece(*batch_and_keys, mask)
    pieces = -(-records // size)
    # Padding repeats the last record, masked: zeros could be outside the loss's domain.
    index = jnp.minimum(jnp.arange(pieces * size), records - 1)
    pad = jnp.arange(pieces * size) < records
    # Keys are cut as their bits: a loop over typed keys counts as a use of all of them.
    bits, typed = bits_of_keys((*batch_and_keys, mask & True))
    stacked = jax.tree.map(lambda x: x[index].reshape((pieces, size, *jnp.shape(x)[1:])), bits)
    *batch_and_keys, mask = stacked
    mask = mask & pad.reshape(pieces, size)

    shapes = jax.eval_shape(
        lambda one: piece(*typed(one))[0], jax.tree.map(lambda x: x[0], (*batch_and_keys, mask))
    )
    leaves, structure = jax.tree.flatten(shapes)
    small = joining_of(leaves)

    def step(carry, one):
        total, error = carry
        piece_sum, *rest = piece(*typed(one))
        piece_sum = small.join(jax.tree.leaves(piece_sum))
        term = jax.tree.map(jnp.subtract, piece_sum, error)
        new = jax.tree.map(jnp.add, total, term)
        error = jax.tree.map(lambda n, t, x: (n - t) - x, new, total, term)
        return (new, error), rest

    zero = small.join([jnp.zeros(s.shape, s.dtype) for s in leaves])
    (total, _), rest = jax.lax.scan(step, (zero, zero), (*batch_and_keys, mask))
    flat = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:]))[:records], rest)
    return (structure.unflatten(small.split(total)), *flat)
