"""Clipped sums over records of the gradients of a loss."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PyTree

from dpjax._argument_names import accepts_old_names
from dpjax._numerics.checks import CLIP_NORMS, scalar
from dpjax._numerics.explicit import along_records, on_explicit_too, partition_spec
from dpjax._numerics.keys import bits_of_keys
from dpjax._numerics.warning import DpjaxWarning
from dpjax.gradients import compensated, methods, per_example
from dpjax.gradients.choice import SCALED, ClippingMethod, PieceSize
from dpjax.gradients.ghost import sums
from dpjax.gradients.strategies import Flat, Strategy
from dpjax.gradients.ties import Ties, find_ties

if TYPE_CHECKING:
    from dpjax._numerics.typing import Number, Params, PRNGKey


class ClippedGradient(NamedTuple):
    """The clipped sum of a batch's per-example gradients, and what was seen on the way.

    Only `sum` has the strategy's sensitivity. `norms`, `losses`, `nonfinite` and `aux` are exact
    functions of the private records: publish them only through a mechanism of their own.

    Fields:
        sum: the parameters' tree, Σᵢ cᵢ·gᵢ over the records that take part. Leaves are float32 at
            least, whatever the parameters' dtype: rounding the sum to bfloat16 before the noise
            would move it by more than one clip norm.
        norms, losses: [batch], l2 norms before clipping, and losses; 0 where the mask is False.
        nonfinite: the number of records that contributed zero: with a NaN or an infinity in the
            gradient, a norm beyond the floats, or no factor that brings it below the clip norm.
        aux: the loss's second output, stacked along a leading batch axis; None without `has_aux`.
        error: a tree like `sum` of what rounding took from it: both together are the sum to about
            twice the digits, for sums that are added up further (of pieces, of devices).

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.gradients import clipped_grad
        >>> grad = clipped_grad(lambda w, x: jnp.sum(w * x), clip_norm=1.0)
        >>> out = grad(jnp.ones(2), jnp.array([[3.0, 4.0], [0.0, 0.5]]))
        >>> out.norms.tolist(), out.losses.tolist(), int(out.nonfinite)
        ([5.0, 0.5], [7.0, 0.5], 0)
    """

    sum: PyTree[Array]
    norms: Float[Array, " batch"]
    losses: Float[Array, " batch"]
    nonfinite: Int[Array, ""]
    aux: PyTree[Array] | None = None
    error: PyTree[Array] | None = None


class ClippedSum(NamedTuple):
    """The clipped sum of what a function gives for the records of a batch; see `clip_and_sum`.

    Only `sum` has a bounded sensitivity: `norms` and `values` are exact functions of the records.

    Fields:
        sum: the tree that the function returns, Σᵢ cᵢ·f(recordᵢ); float32 at least.
        norms: [batch], the l2 norms before clipping; 0 where the mask is False.
        values: the function's second output, stacked along a leading axis; None without `has_aux`.
        error: what rounding took from `sum`, see `ClippedGradient`.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.gradients import clip_and_sum
        >>> clip_and_sum(lambda x: x, 1.0)(jnp.array([[3.0, 4.0], [0.0, 0.5]])).norms.tolist()
        [5.0, 0.5]
    """

    sum: PyTree[Array]
    norms: Float[Array, " batch"]
    values: PyTree[Array] | None = None
    error: PyTree[Array] | None = None


@accepts_old_names(strategy="clipping")
def clipped_grad(
    loss: Callable[..., Any],
    clip_norm: Number = 1.0,
    method: ClippingMethod = "auto",
    *,
    clipping: Strategy = Flat(),
    microbatch_size: PieceSize = "auto",
    has_aux: bool = False,
    share_of: int | None = None,
) -> Callable[..., ClippedGradient]:
    """The sum over a batch of per-example gradients, each clipped to norm at most `clip_norm`.

        fn(params, batch, mask=None, *, rng=None, clip_norm=None, scale=None).sum
            = Σᵢ cᵢ·scale∘∇loss(params, xᵢ)

    for the pure function that is returned, with cᵢ ≥ 0 the strategy's factor. Its `params` are
    any tree, in which leaves that are not floating-point arrays (counters, keys, functions) are
    held constant and are None in `sum`. A variable in several places of an nnx module is one
    parameter, whose sum stands at the first of them, with None at the others; within `jax.jit`,
    which parts the places, write `nnx.jit` or give the loss `nnx.split`'s state. `batch` is a tree
    whose leaves share a leading axis; `mask` [batch] booleans, False for padding; `rng` one key
    (split over the batch) or one key a record, handed to the loss as its third argument; `scale` a
    tree like `sum`, by whose numbers every gradient is multiplied before its norm is taken, such as
    the state of `transforms.scale_then_privatise`: a function of earlier releases, never of these
    records. Scaled gradients are formed record by record, as by "vmap". Its attributes `clip_norm`
    and `clipping` are those given here, for `transforms.released(chain, fn)`: the mechanism of a
    chain on its sum.

    Args:
        loss: `loss(params, example) -> scalar`, or `(scalar, aux)` with `has_aux`. One record in,
            one number out: a loss that looks at several records (batch normalisation) has no
            per-example gradient.
        clip_norm: the bound C > 0, in units of the gradient. May be traced; `fn`'s argument of the
            same name overrides it for one call (adaptive clipping). A traced value that is not
            positive and finite leaves every record out: the sum is zero.
        method: "vmap" forms every per-example gradient; "ghost" forms none of them; "auto" takes
            the cheaper one by an estimate that `explain_clipping` shows.
        clipping: how a gradient is scaled; `Flat()` unless told otherwise.
        microbatch_size: work through the batch in pieces of this many records, to bound memory;
            None for the whole batch at once; "auto" for pieces that the cache of a CPU holds, where
            that is quicker, and the whole batch elsewhere.
        has_aux: whether the loss returns `(scalar, aux)`.
        share_of: where a batch is one device's share of a larger one, the records of that; it
            changes nothing, as sums of every size are rounded alike.

    Raises:
        ValueError: a clip norm outside [1e-18, 1e19], an unknown method, a batch whose leaves
            disagree about the number of records, an equinox module with one array in two places, a
            loss that is not a scalar, a scale of another structure, or a batch that varies over the
            devices of a `jax.shard_map` without `check_vma=False`: JAX would add up gradients
            before they are clipped.

    Guarantee:
        Exchanging, adding or removing one record moves `sum` by at most
        `clipping.sensitivity(clip_norm, adjacency)` times `1 + rounding_slack(...)`, whatever the
        loss, the scale and the data: a record with a NaN or an infinity in its gradient contributes
        zero.
        Assumes that the loss of one example does not depend on the others, and that divisions by
        the batch size are by the expected, public one.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.gradients import clipped_grad
        >>> loss = lambda w, example: 0.5 * (example[0] @ w - example[1]) ** 2
        >>> x, y = jnp.array([[3.0, 4.0], [0.3, 0.4]]), jnp.array([0.0, 0.0])
        >>> out = clipped_grad(loss, clip_norm=1.0)(jnp.array([1.0, 0.0]), (x, y))
        >>> [f"{value:.3f}" for value in out.sum], [f"{norm:.3f}" for norm in out.norms]
        (['0.690', '0.920'], ['15.000', '0.150'])

    References:
        Abadi et al. 2016, "Deep learning with differential privacy", Algorithm 1; for the ghost
        method Goodfellow 2015, "Efficient per-example gradient computations", and Bu, Wang, Zha and
        Karypis 2023, "Differentially private optimization on large model at small cost".
    """
    check_settings(clip_norm, microbatch_size)
    if method not in get_args(ClippingMethod):
        allowed = ", ".join(get_args(ClippingMethod))
        raise ValueError(f"method must be one of {allowed}, got {method!r}")
    del share_of
    settings = _Settings(loss, method, clipping, microbatch_size, has_aux)
    default_clip_norm = clip_norm

    def fn(
        params: Params,
        batch: PyTree[Array],
        mask: Bool[Array, " b"] | None = None,
        *,
        rng: PRNGKey | None = None,
        clip_norm: Number | None = None,
        scale: Params | None = None,
    ) -> ClippedGradient:
        clip_norm = default_clip_norm if clip_norm is None else clip_norm
        check_settings(clip_norm, microbatch_size)
        along: PyTree = along_records(batch, mask)
        ties = find_ties(params)  # here, as a mesh with explicit axes takes the tree apart
        sum_batch = functools.partial(_clip_gradients, settings, ties)
        like = jax.tree.map(partition_spec, per_example.split_trainable(params, ties)[0])
        specs = ClippedGradient(
            sum=like,
            norms=along,
            losses=along,
            nonfinite=PartitionSpec(),  # pyrefly: ignore
            aux=along if has_aux else None,
            error=like,
        )
        return on_explicit_too(sum_batch, specs, params, batch, mask, rng, clip_norm, scale)

    return give_attributes(fn, clip_norm, clipping)


Clipped = TypeVar("Clipped", bound=Callable[..., Any])
Result = TypeVar("Result", ClippedGradient, ClippedSum)


class _Settings(NamedTuple):
    """What `clipped_grad` was given, but for the clip norm."""

    loss: Callable[..., Any]
    method: ClippingMethod
    clipping: Strategy
    microbatch_size: PieceSize
    has_aux: bool


def give_attributes(fn: Clipped, clip_norm: Number, clipping: Strategy) -> Clipped:
    """The function with what `transforms.released` reads of it."""
    # By the name that it had before too: nothing can warn of an attribute of a function.
    vars(fn).update(clip_norm=clip_norm, clipping=clipping, strategy=clipping)
    return fn


def check_settings(clip_norm: Number, microbatch_size: PieceSize) -> None:
    """Refuse a clip norm or a size of pieces that is none."""
    scalar("clip_norm", clip_norm, CLIP_NORMS)
    if not (microbatch_size in ("auto", None) or microbatch_size >= 1):
        raise ValueError(
            f"microbatch_size must be at least 1, 'auto', or None, got {microbatch_size}"
        )


def _clip_gradients(
    settings: _Settings,
    ties: Ties,
    params: Params,
    batch: PyTree[Array],
    mask: Bool[Array, " b"] | None,
    rng: PRNGKey | None,
    clip_norm: Number,
    scale: Params | None = None,
) -> ClippedGradient:
    """What the function that `clipped_grad` made with these settings returns."""
    loss, method, clipping, microbatch_size, has_aux = settings
    records = per_example.count_records(batch)
    per_example.check_devices_apart(params=params, batch=batch, mask=mask, rng=rng)
    mask = per_example.as_boolean_mask(records, mask)
    if records == 0:
        sum_batch = functools.partial(_clip_gradients, settings, ties, params)
        return sum_no_records(lambda b, r: sum_batch(b, None, r, clip_norm, scale), batch, rng)
    keys = None if rng is None else per_example.record_keys(rng, records)  # one a record
    trained, rebuild = per_example.split_trainable(params, ties)
    one = per_example.make_scalar_loss(loss, rebuild, has_aux, with_key=rng is not None)
    choice = SCALED  # no rule of the ghost method knows the norm of a scaled gradient
    if not _is_scaled(scale, trained):
        choice = methods.choose_clipping(method, one, trained, (batch, keys))

    def run(
        trained: Params,
        batch_and_keys: tuple[PyTree[Array], PRNGKey | None],
        mask: Bool[Array, " b"],
        clip_norm: Number,
    ):
        how = batch_and_keys, mask, clip_norm, clipping
        if choice.plan is not None:
            return sums.ghost_clipped_sum(choice.plan, trained, *how)

        return per_example.clipped_sum(_make_gradient(one, trained, scale), trained, *how)

    given = one, trained, (batch, keys), microbatch_size
    size, compiled = methods.piece_size(choice, *given), run
    inputs = trained, (batch, keys), mask, clip_norm, scale
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(inputs)):
        compiled = jax.jit(run, inline=True)  # what the trial traces is used, not traced again
    some = jax.eval_shape(lambda *a: jax.tree.map(lambda x: x[:size], a), *inputs[1:3])
    choice = methods.fall_back_if_untraceable(choice, compiled, trained, *some, clip_norm)
    if choice.plan is None:
        size = methods.piece_size(choice, *given)  # of the method that it is now

    def piece(batch: PyTree[Array], keys: PRNGKey | None, mask: Bool[Array, " b"]):
        return compiled(trained, (batch, keys), mask, clip_norm)

    total, norms, kept, (losses, aux) = map_pieces(piece, (batch, keys), mask, size)
    if method == "ghost" and choice.plan is None:
        warnings.warn(f"method='ghost' became 'vmap': {choice.reason}", DpjaxWarning, stacklevel=4)
    return ClippedGradient(
        sum=total.total,
        norms=norms,
        losses=jnp.where(mask, losses, jnp.zeros_like(losses)),
        nonfinite=jnp.sum(mask & ~kept, dtype=jnp.int32),
        aux=aux if has_aux else None,
        error=total.error,
    )


def _make_gradient(
    one: Callable[..., Any], trained: Params, scale: Params | None
) -> Callable[[PyTree[Array]], tuple[Params, PyTree[Array]]]:
    """The gradient of one record, times the scale, and what the loss says of the record."""

    def gradient(record: PyTree[Array]):
        seen, found = jax.value_and_grad(one, has_aux=True)(trained, record)
        if scale is not None:
            # Before the norm: what is clipped is the product as it was rounded.
            found = jax.tree.map(lambda g, s: g * jnp.asarray(s, g.dtype), found, scale)
        return found, seen

    return gradient


def _is_scaled(scale: Params | None, trained: Params) -> bool:
    """Whether there is a scale, which must be one number for every number of the gradient."""
    if scale is None:
        return False
    if jax.tree.structure(scale) != jax.tree.structure(trained):
        raise ValueError(
            "scale must be a tree like the sum, with None where a parameter is held constant, got "
            f"{jax.tree.structure(scale)} for {jax.tree.structure(trained)}"
        )
    leaves = zip(jax.tree.leaves(scale), jax.tree.leaves(trained), strict=True)
    for given, like in leaves:
        if jnp.shape(given) != jnp.shape(like):
            raise ValueError(
                f"scale must have the parameters' shapes, got {jnp.shape(given)} for a parameter "
                f"of {jnp.shape(like)}"
            )
    return True


def sum_no_records(
    sum_batch: Callable[..., Result], batch: PyTree[Array], rng: PyTree = None
) -> Result:
    """The result for an empty batch: that of one record that takes no part, without the record."""

    def add_record(x: Array):
        return jax.ShapeDtypeStruct((1, *jnp.shape(x)[1:]), x.dtype)

    def empty(x: Array):
        return jnp.zeros((0, *x.shape[1:]) if x.shape else (), x.dtype)

    if rng is not None and rng.ndim > (not jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)):
        rng = add_record(rng)
    one = jax.eval_shape(sum_batch, jax.tree.map(add_record, batch), rng)
    total = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), one.sum)
    return jax.tree.map(empty, one)._replace(sum=total, error=total)


_JOINED = 1 << 16  # numbers of a leaf whose sums are joined with others': copied in microseconds


def map_pieces(
    piece: Callable[..., Any],
    batch_and_keys: tuple[PyTree, ...],
    mask: Bool[Array, " b"],
    size: int,
) -> tuple[PyTree, ...]:
    """`piece` over the batch at once, or over pieces of `size` records in a loop."""
    records = mask.shape[0]
    if size >= records:
        return piece(*batch_and_keys, mask)
    pieces = -(-records // size)  # rounded up
    # Padding repeats the last record, masked: zeros could be outside the loss's domain.
    index = jnp.minimum(jnp.arange(pieces * size), records - 1)
    pad = jnp.arange(pieces * size) < records
    # Keys are cut as their bits: a loop over typed keys counts as a use of all of them.
    bits, typed = bits_of_keys((*batch_and_keys, mask & True))
    stacked = jax.tree.map(lambda x: x[index].reshape((pieces, size, *jnp.shape(x)[1:])), bits)
    *parts, mask = stacked
    mask = mask & pad.reshape(pieces, size)  # what was repeated takes no part

    one = per_example.record_shapes((*parts, mask))
    shapes = jax.eval_shape(lambda one: piece(*typed(one))[0].total, one)
    leaves, structure = jax.tree.flatten(shapes)
    small = sums.pack_small_leaves(leaves, below=_JOINED)  # three kernels an array, in each piece

    # The pieces' sums are added as runs are, see `compensated`: the slack does not grow.
    def step(carry: PyTree[Array], one: PyTree[Array]):
        piece_sum, *rest = piece(*typed(one))
        own = piece_sum.map(lambda tree: small.join(jax.tree.leaves(tree)))
        return compensated.add_carried(carry, own), rest

    first = compensated.carry_zeros(small.join([jnp.zeros(s.shape, s.dtype) for s in leaves]))
    total, rest = jax.lax.scan(step, first, (*parts, mask))
    total = compensated.as_pair(total)
    flat = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:]))[:records], rest)
    return (total.map(lambda arrays: structure.unflatten(small.split(arrays))), *flat)


@accepts_old_names(strategy="clipping")
def explain_clipping(
    loss: Callable[..., Any],
    params: Params,
    batch: PyTree[Array],
    *,
    method: ClippingMethod = "auto",
    clipping: Strategy = Flat(),
    has_aux: bool = False,
    rng: PRNGKey | None = None,
) -> None:
    """Prints how `clipped_grad` would treat every parameter, and which method it would use.

    The method is tried out on the shapes of the whole batch. Costs are estimates per record, in
    multiplications (a number that passes through memory counts as eight, and so does one of a
    kernel's gradient per record on a CPU), of what clipping adds to the backward pass. Rules:
    "vectors" ‖x⊗y‖ = ‖x‖·‖y‖; "gram" Σₜₛ (xₜ·xₛ)(yₜ·yₛ); "direct" the gradient itself, where it is
    smaller than its factors; "distinct" the sums of a look-up's equal tokens; "copied" one copy per
    record, differentiated by JAX (biases, scales, and every use without a rule). The last column is
    how the clipped sum over a piece as large as this batch is formed: "one product", a product for
    each of some runs of records, "at once" or in a "loop", or a "scatter" of a table's rows.

    Args:
        loss, params, batch, method, clipping, has_aux, rng: as for `clipped_grad` and its function.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import explain_clipping
        >>> def loss(params, example):
        ...     x, y = example
        ...     return (x @ params["w"] + params["b"] - y) ** 2
        >>> params = {"w": jnp.zeros(100), "b": jnp.zeros(())}
        >>> explain_clipping(loss, params, (jnp.ones((8, 100)), jnp.ones(8)))
        parameter  shape   used in         rule     ghost   vmap  sum
        b          ()      add             copied      24     24  one product
        w          (100,)  matrix product  vectors    201  2,500  one product
        method: ghost (costs 8.91 % of vmap)
    """
    trained, rebuild = per_example.split_trainable(params, find_ties(params))
    keys = None if rng is None else per_example.record_keys(rng, per_example.count_records(batch))
    one = per_example.make_scalar_loss(loss, rebuild, has_aux, with_key=rng is not None)
    choice = methods.choose_clipping(method, one, trained, (batch, keys))
    if choice.plan is not None:
        run = functools.partial(sums.ghost_clipped_sum, choice.plan, strategy=clipping)
        every_record = jax.ShapeDtypeStruct((per_example.count_records(batch),), bool)
        choice = methods.fall_back_if_untraceable(
            choice, run, trained, (batch, keys), every_record, 1.0
        )
    print(choice)
