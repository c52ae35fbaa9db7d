"""`clip_per_example`: from per-example gradients to the sum of clipped ones, in an optax chain."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from dpjax._numerics.checks import CLIP_NORMS, scalar
from dpjax._numerics.explicit import on_explicit_too, without_records
from dpjax._other_names import taught
from dpjax.gradients.per_example import (
    Clipping,
    clip_factors,
    group_sizes,
    squared_norms,
    weighted_sum,
)
from dpjax.gradients.strategies import Flat, Strategy
from dpjax.transforms.checks import batch_of, mask_of
from dpjax.transforms.released import reading


@taught
def clip_per_example(
    clip_norm: float, strategy: Strategy | None = None
) -> optax.GradientTransformationExtraArgs:
    """Sum per-example gradients over their leading axis, each clipped to norm at most `clip_norm`.

        out = Σᵢ cᵢ·gᵢ,  cᵢ = min(1, C/‖gᵢ‖) for flat clipping.

    Args:
        clip_norm: the bound C > 0 on a record's whole gradient, in units of the gradient.
        strategy: how a gradient is scaled: `dpjax.gradients.Flat()` (the default), `Automatic()`
            (AUTO-S), `PerSampleAdaptive()` (PSAC), `PerGroup()`.

    Returns:
        A transformation whose updates carry a leading batch axis on every leaf, and which drops it.
        Its `update` takes an optional `mask`, [batch] booleans, False for padding.

    Raises:
        ValueError: clip norm outside [1e-18, 1e19], leaves without a common leading axis.

    Guarantee:
        Adding or removing one record moves the sum by at most C in l2 norm, exchanging one by at
        most 2C, whatever the gradients: a record with a NaN or an infinity contributes zero. Clip
        factors are rounded down. The sum is not divided: divide by the expected batch size, a
        public constant, never by the realised one.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import transforms
        >>> tx = transforms.clip_per_example(1.0)
        >>> gradients = {"w": jnp.array([[3.0, 4.0], [0.3, 0.4], [jnp.nan, 0.0]])}
        >>> out, _ = tx.update(gradients, tx.init({"w": jnp.zeros(2)}))
        >>> [f"{x:.3f}" for x in out["w"]]
        ['0.900', '1.200']

    References:
        Abadi et al. 2016, "Deep learning with differential privacy", Algorithm 1.
    """
    scalar("clip_norm", clip_norm, CLIP_NORMS)
    strategy = Flat() if strategy is None else strategy

    def update(updates, state, params=None, *, mask=None, **extra):
        del params, extra
        if (reader := reading()) is not None:
            sensitivity = functools.partial(strategy.sensitivity, clip_norm)
            return reader.clip(updates, sensitivity), state

        def total(updates, bound, mask):
            return clipped_sum(updates, bound, strategy, mask)[0]

        specs = without_records(updates)
        return on_explicit_too(total, specs, updates, clip_norm, mask), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def clipped_sum(
    updates: PyTree, clip_norm: Any, strategy: Strategy, mask: Bool[Array, " b"] | None = None
) -> tuple[PyTree, Clipping]:
    """(Σᵢ cᵢ·gᵢ, what became of every record); updates carry a leading batch axis."""
    records = batch_of(updates)
    mask = mask_of(records, mask)
    if records == 0:  # an empty batch is one record that takes no part
        updates = jax.tree.map(lambda u: jnp.zeros((1, *u.shape[1:]), u.dtype), updates)
        mask = jnp.zeros(1, bool)
    leaves, tree = jax.tree.flatten(updates)
    if hasattr(strategy, "bind"):
        strategy = strategy.bind(updates)
    groups = strategy.groups(updates)
    sizes = group_sizes(leaves, groups, leading=1)
    clipping = clip_factors(strategy, squared_norms(leaves, groups), clip_norm, mask, sizes)

    sums = [weighted_sum(clipping.factors[g], leaf) for leaf, g in zip(leaves, groups, strict=True)]
    # Of 32 bits at least: one record could move a sum that is rounded to 16 by several clip norms.
    return tree.unflatten(sums), clipping


def only(kept: Bool[Array, " b"], values: Float[Array, "b ..."]) -> Float[Array, "b ..."]:
    """The values of the kept records, zero for the others."""
    keep = kept.reshape((-1,) + (1,) * (values.ndim - 1))
    return jnp.where(keep, values, jnp.zeros_like(values))


def per_example_norms(updates: PyTree) -> Float[Array, " b"]:
    """The norm of every record's whole gradient, in float32 at least."""
    leaves = jax.tree.leaves(updates)
    return jnp.sqrt(squared_norms(leaves, (0,) * len(leaves))[0])
