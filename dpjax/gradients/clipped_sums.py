"""Clipped sums over records of what any function gives for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, PyTree

from dpjax._argument_names import accepts_old_names
from dpjax._numerics.explicit import along_records, on_explicit_too
from dpjax.gradients import methods, per_example
from dpjax.gradients.choice import BY_VMAP, PieceSize
from dpjax.gradients.clipping import (
    ClippedSum,
    check_settings,
    give_attributes,
    map_pieces,
    sum_no_records,
)
from dpjax.gradients.strategies import Flat, Strategy

if TYPE_CHECKING:
    from dpjax._numerics.typing import Number


@accepts_old_names(strategy="clipping")
def clip_and_sum(
    function: Callable[[Any], Any],
    clip_norm: Number = 1.0,
    *,
    clipping: Strategy = Flat(),
    microbatch_size: PieceSize = "auto",
    has_aux: bool = False,
) -> Callable[..., ClippedSum]:
    """The sum over a batch of what `function` gives for each record, clipped to norm `clip_norm`.

        fn(batch, mask=None, *, clip_norm=None).sum = Σᵢ cᵢ·function(batch[i]),  cᵢ ≥ 0.

    A record may be a client's whole data set, whose model update after several local steps is
    clipped (DP-FedAvg). `clipped_grad` is the case of a gradient.

    Args:
        function: `function(record) -> tree` of real floating-point arrays, or `(tree, aux)` with
            `has_aux`, from that record and public values alone.
        clip_norm, clipping, microbatch_size: as of `clipped_grad`; and so are `mask`, the other
            `clip_norm` and the attributes of the function that is returned.
        has_aux: whether `function` returns `(tree, aux)`.

    Raises:
        ValueError: a clip norm outside [1e-18, 1e19], a batch whose leaves disagree about the
            number of records, or what is no tree of real floating-point arrays; and as
            `clipped_grad` within a `jax.shard_map`.

    Guarantee:
        As of `clipped_grad`, whatever the function and the data; what is not finite adds zero.

    Example:
        >>> import jax.numpy as jnp
        >>> import dpjax
        >>> out = dpjax.clip_and_sum(lambda x: {"mean": x}, clip_norm=1.0)(jnp.array([3.0, -0.5]))
        >>> f"{out.sum['mean']:.3f}", out.norms.tolist()
        ('0.500', [3.0, 0.5])

    References:
        McMahan et al. 2018, "Learning differentially private recurrent language models".
    """
    check_settings(clip_norm, microbatch_size)
    default_clip_norm = clip_norm

    def one(record: PyTree[Array]):
        return function(record) if has_aux else (function(record), None)

    def sum_batch(
        batch: PyTree[Array], mask: Bool[Array, " b"] | None, clip_norm: Number
    ) -> ClippedSum:
        records = per_example.count_records(batch)
        per_example.check_devices_apart(batch=batch, mask=mask)
        mask = per_example.as_boolean_mask(records, mask)
        if records == 0:
            return sum_no_records(lambda batch, _: sum_batch(batch, None, clip_norm), batch)
        like = jax.eval_shape(lambda record: one(record)[0], per_example.record_shapes(batch))
        kinds = [x.dtype for x in jax.tree.leaves(like)]
        if not kinds or not all(jnp.issubdtype(kind, jnp.floating) for kind in kinds):
            raise ValueError(f"function must return real floating-point arrays, got {like}")
        given = like, batch, microbatch_size
        size = methods.piece_size(BY_VMAP, lambda _, record: one(record), *given)

        def piece(batch: PyTree[Array], mask: Bool[Array, " b"]):
            return per_example.clipped_sum(one, like, batch, mask, clip_norm, clipping)

        total, norms, _, values = map_pieces(piece, (batch,), mask, size)
        return ClippedSum(total.total, norms, values, total.error)

    def fn(
        batch: PyTree[Array],
        mask: Bool[Array, " b"] | None = None,
        *,
        clip_norm: Number | None = None,
    ) -> ClippedSum:
        clip_norm = default_clip_norm if clip_norm is None else clip_norm
        check_settings(clip_norm, microbatch_size)
        along: PyTree = along_records(batch, mask)
        copied = PartitionSpec()
        specs = ClippedSum(copied, along, along if has_aux else None, copied)
        return on_explicit_too(sum_batch, specs, batch, mask, clip_norm)

    return give_attributes(fn, clip_norm, clipping)
