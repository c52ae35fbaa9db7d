"""The records of a batch, and norms, factors and clipped sums of what is formed for each of them.

The promise is made here: whatever the records hold, the sum moves by at most the clip norm and the
rounding of the sum itself, which `rounding_slack` bounds, where one of them is added or removed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, PyTree, PyTreeDef

from dpjax._numerics.checks import is_array
from dpjax._numerics.namespace import AnyTree
from dpjax._numerics.typing import Number, Params, PRNGKey
from dpjax.gradients import compensated
from dpjax.gradients.compensated import Compensated
from dpjax.gradients.ghost.programs import varying_axes
from dpjax.gradients.strategies import Strategy
from dpjax.gradients.ties import Ties, check_copies


def split_trainable(params: Params, ties: Ties) -> tuple[Params, Callable[[Params], Params]]:
    """`params` with None for leaves that have no gradient, and the function that puts them back.

    A parameter in several places is kept at the first, and put back at all of them.
    """
    leaves, tree = jax.tree.flatten(params)
    floating = [is_array(x) and jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves]
    if not any(floating):
        raise ValueError("params must hold a floating-point array, got none")
    check_copies(params, floating)
    pairs = list(zip(leaves, floating, strict=True))
    if any(f and jnp.iscomplexobj(x) for x, f in pairs):
        raise ValueError("params must be real, got complex ones; split real and imaginary parts")
    firsts = list(itertools.compress(pairs, ties.are_first))

    def rebuild(trained: Params):
        new = iter(jax.tree.leaves(trained))  # None is no leaf
        return ties.unflatten(tree, [next(new) if f else x for x, f in firsts])

    kept = zip(pairs, ties.are_first, strict=True)
    return tree.unflatten([x if f and first else None for (x, f), first in kept]), rebuild


def make_scalar_loss(loss: Callable, rebuild: Callable, has_aux: bool, with_key: bool) -> Callable:
    """`(trained, (example, key)) -> (scalar, aux)` for any of the accepted signatures."""

    def evaluate(trained: Params, example_and_key: tuple[PyTree[Array], PRNGKey | None]):
        example, key = example_and_key
        out = loss(rebuild(trained), example, *([key] if with_key else []))  # on the whole tree
        value, aux = out if has_aux else (out, None)
        if jnp.shape(value) != ():
            raise ValueError(
                f"the loss of one example must be a scalar, got shape {jnp.shape(value)}; sum or "
                "average over everything but the batch inside the loss"
            )
        return value, aux

    return evaluate


def count_records(batch: PyTree[Array]) -> int:
    """The number of records: the leading axis that all leaves of the batch share."""
    leaves = jax.tree.leaves(batch)
    if not leaves or any(jnp.ndim(leaf) == 0 for leaf in leaves):
        raise ValueError(
            "batch must have a leading axis of records in every leaf, got a scalar or nothing"
        )
    sizes = {jnp.shape(leaf)[0] for leaf in leaves}  # records of each leaf
    if len(sizes) > 1:
        raise ValueError(f"batch must have one number of records, got {sorted(sizes)}")
    return sizes.pop()


def check_devices_apart(**arguments: PyTree) -> None:
    """Refuse arrays that vary over devices within a `jax.shard_map` that checks for it."""
    # There the derivative by what devices share is summed over them, before anything is clipped.
    for name, tree in arguments.items():
        for axes in (varying_axes(leaf) for leaf in jax.tree.leaves(tree) if is_array(leaf)):
            if axes is None:
                raise ValueError(
                    f"{name} must lie outside of jax.shard_map under this release of JAX, got an "
                    "array of which it does not say over which devices it varies"
                )
            if axes:
                raise ValueError(
                    f"{name} must not vary over devices within jax.shard_map unless that has "
                    f"check_vma=False, got axes {sorted(axes)}: JAX would add up the gradients of "
                    "records of several devices before they are clipped"
                )


def record_shapes(batch: PyTree[Array]) -> PyTree[jax.ShapeDtypeStruct]:
    """The shapes of one record."""
    return jax.eval_shape(lambda batch: jax.tree.map(lambda x: x[0], batch), batch)


def as_boolean_mask(
    records: int, mask: Bool[Array, " b"] | None, name: str = "mask"
) -> Bool[Array, " b"]:
    """The mask as one boolean a record, all of them True where it is None."""
    if mask is None:
        return jnp.ones(records, bool)  # all take part
    # A column [b, 1] would broadcast against [b]: every record would count b times.
    if jnp.shape(mask) != (records,):
        raise ValueError(f"{name} must have shape ({records},), got {jnp.shape(mask)}")
    return jnp.asarray(mask, bool)


def record_keys(rng: PRNGKey, records: int) -> PRNGKey:
    """One key a record, from one key or as given."""
    typed = jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)
    if rng.ndim == (0 if typed else 1):  # one key: raw keys have an axis of words
        return jax.random.split(rng, records)
    if rng.shape[0] != records:
        raise ValueError(
            f"rng must be one key, or one each for {records} records, got {rng.shape[0]} keys"
        )
    return rng


def rounding_slack(
    batch_size: int,
    dimension: int,
    dtype: DTypeLike = jnp.float32,
    failure: float = 1e-12,
    *,
    microbatch_size: int | None = None,
    in_place: bool = False,
    positions: int = 1,
) -> float:
    """The relative increase of a clipped sum's sensitivity that float rounding can cause.

    Multiply the sensitivity (or the noise's standard deviation) by `1 + rounding_slack(...)`. It
    holds for every order of summation and whatever the records' terms are, also where they cancel:
    the ghost method counts a record for less whose terms, by their norms, are together more than
    min(64, max(2·√positions, 128/positions)) times what is left of them. The proof is in
    `dpjax.gradients.compensated`.

    Assumes rounding to nearest, and that a record's gradient is what the program computed, whatever
    its own error, at whichever place of the batch it stands.

    Args:
        batch_size: the number of records in one sum, padding included.
        dimension: the number of parameters.
        dtype: the dtype of the sum and the norms.
        failure: the probability with which the model of the norms may fail.
        microbatch_size: the size of the pieces, if `clipped_grad` was given one; it changes
            nothing unless pieces are more than 8,192 and of fewer than eight records, as sums of
            pieces are added up with compensation.
        in_place: whether at most two places of the batch hold something else in the neighbour's:
            one record is exchanged, or its place is masked or left empty, or the last record moves
            into it. Then the slack does not grow with the batch, nor with the positions. Otherwise
            records after it may move up.
        positions: how many terms a record adds to a parameter (steps of a sequence, places of an
            image), where the ghost method sums its outer products; 1 where each record's gradient
            is formed. Where records move up, a model that uses an array in two to four places
            takes twice the slack: the parts of its gradient are summed apart.

    Raises:
        ValueError: if a count is not positive, or `failure` not in (0, 1).

    Example:
        >>> f"{rounding_slack(256, 1_900_000):.4f}", f"{rounding_slack(4096, 212):.4f}"
        ('0.0025', '0.0299')
        >>> f"{rounding_slack(4096, 212, in_place=True):.4f}"
        '0.0015'
        >>> f"{rounding_slack(4096, 212, positions=128):.2f}"
        '0.75'
        >>> f"{rounding_slack(256, 1_900_000, dtype='float64'):.1e}"
        '4.7e-12'
    """
    if batch_size < 1 or dimension < 1:
        raise ValueError(
            f"batch_size and dimension must be at least 1, got {batch_size!r} and {dimension!r}"
        )
    if microbatch_size is not None and microbatch_size < 1:
        raise ValueError(f"microbatch_size must be at least 1, or None, got {microbatch_size!r}")
    if positions < 1:
        raise ValueError(f"positions must be at least 1, got {positions!r}")
    if not 0 < failure < 1:
        raise ValueError(f"failure must be in (0, 1), got {failure!r}")
    u = float(jnp.finfo(dtype).eps) / 2
    pieces = 1 if microbatch_size is None else -(-batch_size // microbatch_size)
    if in_place:
        slack = compensated.slack_of_runs(batch_size, u, pieces)
    else:
        slack = compensated.slack_of_shifted_runs(batch_size, u, positions, pieces)
    # The factors are made from norms, sums of `dimension` squares; a run that long has no useful
    # worst case, so there the errors are taken as independent with mean zero (Higham and Mary 2019,
    # "A new approach to probabilistic rounding error analysis", Theorem 2.4), for all records and
    # entries at once but for the probability `failure`: λ·√dimension·u/2, λ = √(2·ln(2·b/failure)).
    confidence = math.sqrt(2 * math.log(2 * batch_size * dimension / failure))
    norm = min(dimension, confidence * math.sqrt(dimension)) * u / 2
    return slack + norm / (1 - norm)


def accumulation_dtype(dtype: DTypeLike) -> np.dtype:
    """The dtype in which norms and sums of gradients of `dtype` are formed: float32 at least."""
    return jnp.dtype(dtype) if jnp.finfo(dtype).bits > 32 else jnp.dtype(jnp.float32)


def norms_dtype(leaves: Sequence[Array]) -> np.dtype:
    """The dtype of the whole gradient's norm: the widest of its leaves', float32 at least."""
    wide = any(jnp.finfo(leaf.dtype).bits > 32 for leaf in leaves)
    return jnp.dtype(jnp.float64) if wide else jnp.dtype(jnp.float32)


def round_as_stored(parts: AnyTree) -> AnyTree:
    """`parts`, with 16-bit floats rounded to 16 bits for all that reads them."""

    # XLA may hand a reader the 32 bits that a 16-bit number was rounded from ("excess precision").
    # Norms of the one and sums of the other would differ by the rounding: a clipped gradient could
    # be longer than its clip norm.
    def round_leaf(value: Array) -> Array:
        if not jnp.issubdtype(value.dtype, jnp.floating) or value.dtype.itemsize >= 4:
            return value
        kind = jnp.finfo(value.dtype)
        return jax.lax.reduce_precision(value, kind.nexp, kind.nmant)

    return jax.tree.map(round_leaf, parts)


def flush_error(numbers: int, dtype: DTypeLike) -> float:
    """The most that a sum of so many products can lack where small ones are flushed to zero."""
    # Processors may flush what lies below the smallest normal number to zero.
    return numbers * float(jnp.finfo(dtype).tiny)


def per_example_squared_norm(
    gradient: Float[Array, "b ..."], dtype: DTypeLike
) -> Float[Array, " b"]:
    """Per-example squared norms of one leaf."""
    return jnp.sum(jnp.square(gradient.astype(dtype)), axis=tuple(range(1, gradient.ndim)))


def expand_like(numbers: Float[Array, " b"], like: Float[Array, "b ..."]) -> Array:
    """One number a record, of a shape that broadcasts over what the records hold."""
    return numbers.reshape((-1,) + (1,) * (like.ndim - 1))


class Clipping(NamedTuple):
    """The factor and the norm of every record, and which of them take part."""

    factors: Float[Array, "groups b"]
    kept: Bool[Array, " b"]  # not masked, finite, and scaled to at most the clip norm
    norms: Float[Array, " b"]  # 0 where masked
    clean: Bool[Array, ""]  # whether every norm is finite, masked or not: 0 × gradient is then 0


def clip_factors(
    strategy: Strategy,
    squared: Float[Array, "groups b"],
    clip_norm: Number,
    mask: Bool[Array, " b"],
    sizes: Sequence[int],
) -> Clipping:
    """The factors of a batch from its squared norms, for groups of so many parameters."""
    total = jnp.sum(squared, axis=0)
    kept = mask & jnp.isfinite(total)
    bound = jnp.asarray(clip_norm, squared.dtype)
    # A group's sum of squares may lack what was flushed to zero. The replacement keeps factors (and
    # whatever is built on them) free of NaN.
    lacking = jnp.asarray([flush_error(size, squared.dtype) for size in sizes], squared.dtype)
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


def group_sizes(leaves: Sequence[Any], groups: Sequence[int], leading: int = 0) -> list[int]:
    """The number of parameters of every group, of leaves with so many leading axes besides."""
    sizes = [0] * (max(groups) + 1)
    for leaf, group in zip(leaves, groups, strict=True):
        sizes[group] += math.prod(leaf.shape[leading:])
    return sizes


def clip_records(
    values: PyTree[Array],
    like: Params,
    clip_norm: Number,
    strategy: Strategy,
    mask: Bool[Array, " b"],
) -> tuple[list[tuple[Float[Array, " b"], Array]], PyTreeDef, Clipping]:
    """([(factors, leaf), …], the tree's structure, what becomes of every record)."""
    leaves, tree = jax.tree.flatten(round_as_stored(values))
    strategy = strategy.bind(like)
    groups, dtype = strategy.groups(like), norms_dtype(leaves)
    rows = [jnp.zeros(mask.shape, dtype)] * (max(groups) + 1)
    for leaf, group in zip(leaves, groups, strict=True):
        rows[group] = rows[group] + per_example_squared_norm(leaf, dtype)
    sizes = group_sizes(leaves, groups, leading=1)
    clipping = clip_factors(strategy, jnp.stack(rows), clip_norm, mask, sizes)
    return list(zip([clipping.factors[g] for g in groups], leaves, strict=True)), tree, clipping


def weighted_sum(
    factors: Float[Array, " b"], gradient: Float[Array, "b ..."], *, finite: bool = False
) -> Compensated:
    """Σᵢ cᵢ·gᵢ, in short runs; records of factor 0 add exactly 0, whatever their gradient."""
    dtype = accumulation_dtype(gradient.dtype)

    def sum_run(weights: Array, rows: Array) -> Array:
        rows = rows.astype(dtype)
        if not finite:  # else 0 × gradient is 0 as it is
            rows = jnp.where(weights[:, None] > 0, rows, jnp.zeros_like(rows))
        # A contraction with the factors: no scaled copy of the gradients is ever written.
        return jnp.einsum("b,bd->d", weights, rows, precision=jax.lax.Precision.HIGHEST)

    flat = gradient.reshape(gradient.shape[0], -1)
    total = compensated.sum_over_records(sum_run, (factors.astype(dtype), flat))
    return total.map(lambda x: x.reshape(gradient.shape[1:]))


def sum_clipped(
    values: PyTree[Array],
    like: Params,
    clip_norm: Number,
    strategy: Strategy,
    mask: Bool[Array, " b"],
) -> tuple[Compensated, Clipping]:
    """(the sum of clipped values, what becomes of records), in the groups of the tree `like`."""
    scaled, tree, clipping = clip_records(values, like, clip_norm, strategy, mask)
    # 32 bits at least: one record could move a sum that is rounded to 16 by several clip norms.
    sums = [weighted_sum(c, leaf) for c, leaf in scaled]
    return Compensated(*map(tree.unflatten, zip(*sums, strict=True))), clipping


def clipped_sum(
    function: Callable[[PyTree], tuple[PyTree, PyTree]],
    like: Params,
    records: PyTree[Array],
    mask: Bool[Array, " b"],
    clip_norm: Number,
    strategy: Strategy,
) -> tuple[Compensated, Array, Array, PyTree]:
    """(sum, norms, records kept, aux) for a function of one record that returns (value, aux)."""
    values, aux = jax.vmap(function)(records)
    total, clipping = sum_clipped(values, like, clip_norm, strategy, mask)
    return total, clipping.norms, clipping.kept, aux
