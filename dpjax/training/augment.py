"""Augmentation multiplicity: several augmented copies of a record, averaged before clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

__all__ = ["augmented"]


def augmented(
    loss: Callable[..., Float[Array, ""]],
    augment: Callable[[Any, Key[Array, ""]], Any],
    copies: int,
    *,
    loss_takes_key: bool = False,
) -> Callable[[Any, Any, Key[Array, ""]], Float[Array, ""]]:
    """The mean of a loss over augmented copies of one record, for `fit(loss_takes_key=True)`:

        (params, example, key) -> (1/K)·Σₖ loss(params, augment(example, keyₖ)),  K = `copies`.

    The gradient of the mean is what is clipped, so K copies are one record's contribution, and cost
    no privacy: the noise and ε are those of K = 1. They cost K times the work.

    Args:
        loss: `loss(params, example) -> scalar`, of one record.
        augment: `augment(example, key) -> example`, which looks at no other record.
        copies: how many, at least 1.
        loss_takes_key: whether the loss is `loss(params, example, key)`: each copy has its own.

    Raises:
        ValueError: `copies` below 1.

    Guarantee:
        The sensitivity of the clipped sum is that of one record, since the copies of a record are
        averaged before the gradient is clipped. Assumes that `augment` sees its record alone.

    Example:
        >>> def loss(w, x):
        ...     return jnp.sum(w * x)
        >>> def flip(x, key):
        ...     return jnp.where(jax.random.bernoulli(key), x, -x)
        >>> several = augmented(loss, flip, copies=4)
        >>> value = several(jnp.ones(2), jnp.array([1.0, 2.0]), jax.random.key(0))
        >>> float(value) in (-3.0, -1.5, 0.0, 1.5, 3.0)
        True

    References:
        De, Berrada, Hayes, Smith and Balle 2022, "Unlocking high-accuracy differentially private
        image classification through scale", section 3.3.
    """
    if copies < 1:
        raise ValueError(f"copies must be at least 1, got {copies}")

    def mean_over_copies(params, example, key):
        def one(own):
            for_augment, for_loss = jax.random.split(own)
            copy = augment(example, for_augment)
            return loss(params, copy, for_loss) if loss_takes_key else loss(params, copy)

        return jnp.mean(jax.vmap(one)(jax.random.split(key, copies)))

    return mean_over_copies
