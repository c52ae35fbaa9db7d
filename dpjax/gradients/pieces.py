"""A batch worked through in pieces: how large they should be, and a loop that adds them up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from dpjax._numerics.keys import bits_of_keys
from dpjax.gradients.explain import MEMORY_WEIGHT, Choice, multiplications
from dpjax.gradients.ghost.equations import Program, trace
from dpjax.gradients.ghost.plan import fitting_gradients
from dpjax.gradients.ghost.sums import pack_small_leaves
from dpjax.gradients.rounding import additions

PieceSize = int | Literal["auto"] | None

# What a core keeps close by. Beyond it every pass over the activations goes through memory.
_CACHE = 16e6
_LEAST, _MOST = 8, 32
# Adding a piece to the compensated total reads and writes it and its error.
_PASSES = 4
_WORTHWHILE = 0.1
_JOINED = 1 << 16  # numbers of a leaf whose sums are joined with others': copied in microseconds


def piece_size(choice: Choice, loss: Callable[..., Any], params: Any, batch: Any) -> int:
    """Records a piece: all of them, or as few as the cache holds where that is quicker."""
    # On one CPU device, activations (and per-example gradients, where they are formed) that outgrow
    # the cache cost more than adding up a few sums the size of the parameters. Where the loss uses
    # `jax.checkpoint`, pieces on one device are so small that what is remembered of a piece (by the
    # ghost method, or the gradients of its records) is about what the plain gradient remembers of
    # the batch. Elsewhere, and on several devices, the whole batch goes at once.
    records = jax.tree.leaves(batch)[0].shape[0]
    if jax.device_count() > 1:
        return records
    leaves = jax.tree.leaves(params)
    size = sum(math.prod(leaf.shape) for leaf in leaves)
    program, allowed = None, records
    if choice.plan is not None:
        allowed = choice.plan.remat.fitting or records
    elif 4 * size * records >= _CACHE / 4:
        program = _program(loss, params, batch)
        found = None if program is None else fitting_gradients(program, size, records)
        allowed = found or records
    return cut(records, min(allowed, _quickest(choice, program, leaves, size, records)))


def cut(records: int, most: int) -> int:
    """The size of equal pieces of at most `most` records, within the slack of the whole batch."""
    if most >= records:
        return records
    for pieces in range(-(-records // most), records):
        size = -(-records // pieces)
        if additions(size, pieces) <= additions(records):
            return size
    return 1


def _quickest(
    choice: Choice, program: Program | None, leaves: list[Any], size: int, records: int
) -> int:
    """The size of the pieces as far as time goes; `program` is needed for per-example gradients."""
    if jax.default_backend() != "cpu":
        return records
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
        # XLA forms per-example gradients of convolutions faster at once.
        worthwhile = program is not None and not program.contains("conv_general_dilated")
    else:
        # Forward, backward and the clipped sum are three products of this size a record.
        work = 3 * records * sum(multiplications(family) for family in families)
        worthwhile = _PASSES * MEMORY_WEIGHT * pieces * size <= _WORTHWHILE * work
    return fitting if worthwhile else records


def _program(loss: Callable[..., Any], params: Any, batch: Any) -> Program | None:
    """The loss of one record; None where it cannot be read."""
    try:
        example = jax.eval_shape(lambda b: jax.tree.map(lambda x: x[0], b), batch)
        return trace(loss, params, example)[0]
    except Exception:  # the call that follows raises the user's own error
        return None


def in_pieces(
    piece: Callable[..., Any], batch_and_keys: Any, mask: Bool[Array, " b"], size: int
) -> Any:
    """`piece` over the batch at once, or over pieces of `size` records in a loop."""
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
    small = pack_small_leaves(leaves, below=_JOINED)  # three kernels an array, in each piece

    # The pieces' sums are added with compensation (Kahan 1965), which is off by two unit round-offs
    # of Σ|terms| however many they are: the slack does not grow with the number of pieces.
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
