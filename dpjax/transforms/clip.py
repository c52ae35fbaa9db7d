"""`clip_per_example`: from per-example gradients to the sum of clipped ones, in an optax chain.

`noisy_total` is its form for numbers: summed with the noise in integers, without rounding.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PyTree

from dpjax._argument_names import accepts_old_names
from dpjax._numerics.checks import CLIP_NORMS, scalar
from dpjax._numerics.explicit import on_explicit_too, without_records
from dpjax._numerics.normal import normal
from dpjax._numerics.typing import Number, PRNGKey
from dpjax.gradients.per_example import as_boolean_mask, sum_clipped
from dpjax.gradients.strategies import Flat, Strategy
from dpjax.transforms.noise import READER


@accepts_old_names(strategy="clipping")
def clip_per_example(
    clip_norm: float, clipping: Strategy | None = None
) -> optax.GradientTransformationExtraArgs:
    """Sum per-example gradients over their leading axis, each clipped to norm at most `clip_norm`.

        out = Σᵢ cᵢ·gᵢ,  cᵢ = min(1, C/‖gᵢ‖) for flat clipping.

    Args:
        clip_norm: the bound C > 0 on a record's whole gradient, in units of the gradient.
        clipping: how a gradient is scaled: `dpjax.gradients.Flat()` (the default), `Automatic()`
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
    strategy = Flat() if clipping is None else clipping

    def update(
        updates: PyTree,
        state: PyTree,
        params: PyTree | None = None,
        *,
        mask: Bool[Array, " b"] | None = None,
        **extra: object,
    ):
        del params, extra
        if (reader := READER.get()) is not None:
            sensitivity = functools.partial(strategy.sensitivity, clip_norm)
            return reader.clip(updates, sensitivity), state

        def total(updates: PyTree, bound: Number, mask: Bool[Array, " b"] | None):
            updates, mask = mask_records(updates, mask)
            return sum_clipped(updates, updates, bound, strategy, mask)[0].total

        specs = without_records(updates)
        return on_explicit_too(total, specs, updates, clip_norm, mask), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def count_update_records(updates: PyTree) -> int:
    """The number of records: the leading axis that all leaves of the updates share."""
    leaves = jax.tree.leaves(updates)
    if not leaves:
        raise ValueError("updates must hold arrays, got none")
    if any(jnp.iscomplexobj(leaf) for leaf in leaves):
        raise ValueError(
            "updates must be real, got complex ones; give real and imaginary parts as leaves"
        )
    sizes = {jnp.shape(leaf)[:1] for leaf in leaves}
    if len(sizes) != 1 or sizes == {()}:
        shapes = [jnp.shape(leaf) for leaf in leaves]
        raise ValueError(
            f"updates must share a leading axis of records over all leaves, got {shapes}"
        )
    return sizes.pop()[0]


def mask_records(
    updates: PyTree, mask: Bool[Array, " b"] | None
) -> tuple[PyTree, Bool[Array, " b"]]:
    """The updates and the mask; an empty batch becomes one record that takes no part."""
    mask = as_boolean_mask(count_update_records(updates), mask)
    if mask.size:
        return updates, mask
    one = jax.tree.map(lambda u: jnp.zeros((1, *u.shape[1:]), u.dtype), updates)
    return one, jnp.zeros(1, bool)


_SECOND = 2.0**-9  # the standard deviation of the noise's second part, of the first's


def noisy_total(
    values: Float[Array, " b"],
    bound: float,
    noise_multiplier: float,
    key: PRNGKey,
    mask: Bool[Array, " b"] | None = None,
) -> Float[Array, ""]:
    """Σᵢ clip(vᵢ, ±bound) + N(0, (noise_multiplier·bound)²); a NaN counts as 0."""
    # Every clipped value is rounded to a multiple of bound/2^k and added as an integer, with k as
    # large as 32 bits allow: a record moves the sum by at most `bound`, exactly. A float32 sum of
    # 60,000 numbers could be off by a third of one of them.
    reach = values.size + math.ceil(10.0 * noise_multiplier) + 1  # the noise ends at |z| = 9.3
    bits = 30 - math.ceil(math.log2(reach))
    if bits < 1:
        raise ValueError(
            f"values and their noise must fit into 32 bits, got {values.size} values with "
            f"noise_multiplier={noise_multiplier}; lower the noise or split the sum"
        )
    unit = np.float32(2.0**bits)
    shares = jnp.clip(values.astype(jnp.float32) / np.float32(bound), -1.0, 1.0)
    shares = jnp.where(jnp.isnan(shares), jnp.zeros_like(shares), shares)
    units = jnp.round(shares * unit).astype(jnp.int32)
    if mask is not None:
        units = jnp.where(mask, units, jnp.zeros_like(units))
    # Rounding noise to integers and adding them is rounding the noisy sum, which post-processes it,
    # as long as the noise has every integer: one float32 draw beyond 2^24 has only multiples of 2,
    # 4, 8, …, and the last digits of the sum would show. Hence two independent parts. The first has
    # the whole standard deviation, so that the second only post-processes; that ends at 2^21, where
    # float32 has every integer, and is 2^11 times as wide as the widest gap of the first.
    parts = np.array([1.0, _SECOND]) * noise_multiplier * float(unit)
    noise = jnp.round(parts.astype(np.float32) * normal(key, (2,))).astype(jnp.int32)
    total = jnp.sum(units, dtype=jnp.int32) + jnp.sum(noise, dtype=jnp.int32)
    return total.astype(jnp.float32) * np.float32(bound / float(unit))
