"""`clipped_grad`: from a per-example loss to the clipped sum of its gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from dpjax._numerics.checks import CLIP_NORMS, scalar
from dpjax._numerics.explicit import along_records, explicit_mesh, on_explicit_too, spec_of
from dpjax._other_names import taught
from dpjax.gradients import ghost, per_example
from dpjax.gradients.arguments import batch_size, keys_of_records, scalar_loss, trainable
from dpjax.gradients.explain import Method, choose, tried
from dpjax.gradients.pieces import PieceSize, in_pieces, piece_size
from dpjax.gradients.result import ClippedGradient
from dpjax.gradients.strategies import Flat, Strategy


@taught
def clipped_grad(
    loss: Callable[..., Any],
    clip_norm: Any = 1.0,
    method: Method = "auto",
    *,
    strategy: Strategy = Flat(),  # noqa: B008 (frozen)
    microbatch_size: PieceSize = "auto",
    has_aux: bool = False,
    share_of: int | None = None,
) -> Callable[..., ClippedGradient]:
    """The sum over a batch of per-example gradients, each clipped to norm at most `clip_norm`.

    Returns a pure function `fn(params, batch, mask=None, *, rng=None, clip_norm=None)` with

        fn(params, batch).sum = Σᵢ cᵢ·∇loss(params, batch[i]),  cᵢ = strategy's factor ∈ [0, 1].

    The returned function's arguments: `params`, any tree, in which leaves that are not
    floating-point arrays (counters, keys, activation functions) are held constant and are None in
    `sum`; `batch`, a tree whose leaves share a leading axis; `mask`, [batch] booleans, False for
    padding; `rng`, one key (split over the batch) or one key a record, handed to the loss as its
    third argument. Its attributes `clip_norm` and `strategy` are those given here, for
    `transforms.released(chain, fn)`: the mechanism of a chain that starts from its sum.

    Args:
        loss: `loss(params, example) -> scalar`, or `(scalar, aux)` with `has_aux`. One record in,
            one number out: a loss that looks at several records (batch normalisation) has no
            per-example gradient.
        clip_norm: the bound C > 0, in units of the gradient. May be traced; `fn`'s argument of the
            same name overrides it for one call (adaptive clipping). A traced value that is not
            positive and finite leaves every record out: the sum is zero.
        method: "vmap" forms every per-example gradient; "ghost" forms none of them; "auto" takes
            the cheaper one by an estimate that `explain_clipping` shows.
        strategy: how a gradient is scaled; `Flat()` unless told otherwise.
        microbatch_size: work through the batch in pieces of this many records, to bound memory;
            None for the whole batch at once; "auto" for pieces that the cache of a CPU holds, where
            that is quicker, and the whole batch elsewhere.
        has_aux: whether the loss returns `(scalar, aux)`.
        share_of: where a batch is one device's share of a larger one, the records of that: the
            share's sum is rounded no more than its part of the whole batch's would be.

    Raises:
        ValueError: a clip norm outside [1e-18, 1e19], an unknown method, a batch whose leaves
            disagree about the number of records, or a loss that is not a scalar.

    Guarantee:
        Exchanging, adding or removing one record moves `sum` by at most
        `strategy.sensitivity(clip_norm, adjacency)` times `1 + rounding_slack(...)`, whatever the
        loss and the data: a record with a NaN or an infinity in its gradient contributes zero. An
        empty batch has the sum zero.
        Assumes that the loss of one example does not depend on the others, and that divisions by
        the batch size are by the expected, public one.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.gradients import clipped_grad
        >>> def loss(w, example):
        ...     x, y = example
        ...     return 0.5 * (x @ w - y) ** 2
        >>> x, y = jnp.array([[3.0, 4.0], [0.3, 0.4]]), jnp.array([0.0, 0.0])
        >>> out = clipped_grad(loss, clip_norm=1.0)(jnp.array([1.0, 0.0]), (x, y))
        >>> [f"{value:.3f}" for value in out.sum], [f"{norm:.3f}" for norm in out.norms]
        (['0.690', '0.920'], ['15.000', '0.150'])

    References:
        Abadi et al. 2016, "Deep learning with differential privacy", Algorithm 1; for the ghost
        method Goodfellow 2015, "Efficient per-example gradient computations", and Bu, Wang, Zha and
        Karypis 2023, "Differentially private optimization on large model at small cost".
    """
    scalar("clip_norm", clip_norm, CLIP_NORMS)
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if not (microbatch_size in ("auto", None) or microbatch_size >= 1):
        raise ValueError(
            f"microbatch_size must be at least 1, 'auto', or None, got {microbatch_size}"
        )
    default_clip_norm = clip_norm

    def fn(params, batch, mask=None, *, rng=None, clip_norm=None) -> ClippedGradient:
        if clip_norm is None:
            clip_norm = default_clip_norm
        else:
            scalar("clip_norm", clip_norm, CLIP_NORMS)
        if explicit_mesh(params, batch, mask, rng, clip_norm) is None:
            return on_one_type(params, batch, mask, rng, clip_norm)
        along: Any = along_records(batch, mask)
        nowhere: Any = PartitionSpec()
        results = ClippedGradient(
            sum=jax.tree.map(spec_of, trainable(params)[0]),
            norms=along,
            losses=along,
            nonfinite=nowhere,
            aux=along if has_aux else None,
        )
        given = (params, batch, mask, rng, clip_norm)
        return on_explicit_too(on_one_type, results, *given)

    def on_one_type(params, batch, mask, rng, clip_norm) -> ClippedGradient:
        records = batch_size(batch)
        if mask is None:
            mask = jnp.ones(records, bool)
        elif jnp.shape(mask) != (records,):
            raise ValueError(f"mask must have shape ({records},), got {jnp.shape(mask)}")
        mask = jnp.asarray(mask, bool)
        if records == 0:
            return _nothing(fn, params, batch, rng)
        keys = None if rng is None else keys_of_records(rng, records)
        trained, rebuild = trainable(params)
        one = scalar_loss(loss, rebuild, has_aux, with_key=rng is not None)
        bound = strategy.bind(trained) if hasattr(strategy, "bind") else strategy

        choice = choose(method, one, trained, (batch, keys))

        def pieces_of(choice):
            if microbatch_size == "auto":
                return piece_size(choice, one, trained, (batch, keys))
            return min(microbatch_size or records, records)

        def run(params, batch_and_keys, mask, clip_norm):
            arguments = params, batch_and_keys, mask, clip_norm, bound, share_of
            if choice.plan is not None:
                return ghost.clipped_sum(choice.plan, *arguments)
            return per_example.clipped_sum(one, *arguments)

        size = pieces_of(choice)
        everything = (trained, (batch, keys), mask, clip_norm)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(everything)):
            run = jax.jit(run, inline=True)  # what the trial traces is used, not traced again
        some = jax.eval_shape(lambda *a: jax.tree.map(lambda x: x[:size], a), *everything[1:3])
        choice = tried(choice, run, trained, *some, clip_norm)
        if choice.plan is None:
            size = pieces_of(choice)

        def piece(batch, keys, mask):
            return run(trained, (batch, keys), mask, clip_norm)

        total, norms, losses, kept, aux = in_pieces(piece, (batch, keys), mask, size)
        if method == "ghost" and choice.plan is None:
            warnings.warn(f"method='ghost' became 'vmap': {choice.reason}", stacklevel=2)
        return ClippedGradient(
            sum=total,
            norms=norms,
            losses=jnp.where(mask, losses, jnp.zeros_like(losses)),
            nonfinite=jnp.sum(mask & ~kept, dtype=jnp.int32),
            aux=aux if has_aux else None,
        )

    setattr(fn, "clip_norm", clip_norm)  # noqa: B010 (attributes of a function)
    setattr(fn, "strategy", strategy)  # noqa: B010
    return fn


def _nothing(fn: Callable[..., ClippedGradient], params: Any, batch: Any, rng: Any) -> Any:
    """The result for an empty batch: that of one record that takes no part, without the record."""

    def one_more(x):
        return jax.ShapeDtypeStruct((1, *jnp.shape(x)[1:]), x.dtype)

    if rng is not None and rng.ndim > (not jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)):
        rng = one_more(rng)
    one = jax.eval_shape(lambda b, r: fn(params, b, rng=r), jax.tree.map(one_more, batch), rng)

    def empty(shape):
        return jnp.empty((0, *shape.shape[1:]), shape.dtype)

    return one._replace(
        sum=jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), one.sum),
        norms=empty(one.norms),
        losses=empty(one.losses),
        nonfinite=jnp.zeros((), jnp.int32),
        aux=jax.tree.map(empty, one.aux),
    )
