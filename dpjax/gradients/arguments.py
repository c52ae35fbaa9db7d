"""What is given to a function that clips (parameters, loss, batch, mask, keys) in one form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


def trainable(params: Any) -> tuple[Any, Callable[[Any], Any]]:
    """`params` with None for leaves that have no gradient, and the function that puts them back."""
    leaves, tree = jax.tree.flatten(params)
    floating = [hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves]
    if not any(floating):
        raise ValueError("params must hold a floating-point array, got none")
    pairs = list(zip(leaves, floating, strict=True))
    if any(f and jnp.iscomplexobj(x) for x, f in pairs):
        raise ValueError("params must be real, got complex ones; split real and imaginary parts")

    def rebuild(trained):
        new = iter(jax.tree.leaves(trained))  # None is no leaf
        return tree.unflatten([next(new) if f else x for x, f in pairs])

    return tree.unflatten([x if f else None for x, f in pairs]), rebuild


def path_name(path: Any) -> str:
    """A leaf's path in a tree as one text, such as "dense_0/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def values_of_leaves(name: str, prefix: Any, params: Any, of: str) -> list[Any]:
    """The value of every leaf of `params`, from a tree like it or a prefix of it."""
    try:
        found = jax.tree.map(lambda x, part: jax.tree.map(lambda _: x, part), prefix, params)
    except ValueError as error:
        raise ValueError(
            f"{name} must be a tree of {of} like params or a prefix of it, got "
            f"{jax.tree.structure(prefix)}"
        ) from error
    return jax.tree.leaves(found)


def scalar_loss(loss: Callable, rebuild: Callable, has_aux: bool, with_key: bool) -> Callable:
    """`(trained, (example, key)) -> (scalar, aux)` for any of the accepted signatures."""

    def one(trained, example_and_key):
        example, key = example_and_key
        out = loss(rebuild(trained), example, *([key] if with_key else []))  # on the whole tree
        value, aux = out if has_aux else (out, None)
        if jnp.shape(value) != ():
            raise ValueError(
                f"the loss of one example must be a scalar, got shape {jnp.shape(value)}; sum or "
                "average over everything but the batch inside the loss"
            )
        return value, aux

    return one


def batch_size(batch: Any) -> int:
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


def first_record(batch: Any) -> Any:
    """The shapes of one record."""
    return jax.eval_shape(lambda batch: jax.tree.map(lambda x: x[0], batch), batch)


def boolean_mask(records: int, mask: Any, name: str = "mask") -> Bool[Array, " b"]:
    """The mask as one boolean a record, all of them True where it is None."""
    if mask is None:
        return jnp.ones(records, bool)  # all take part
    # A column [b, 1] would broadcast against [b]: every record would count b times.
    if jnp.shape(mask) != (records,):
        raise ValueError(f"{name} must have shape ({records},), got {jnp.shape(mask)}")
    return jnp.asarray(mask, bool)


def record_keys(rng: Any, records: int) -> Any:
    """One key a record, from one key or as given."""
    typed = jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)
    if rng.ndim == (0 if typed else 1):  # one key: raw keys have an axis of words
        return jax.random.split(rng, records)
    if rng.shape[0] != records:
        raise ValueError(
            f"rng must be one key, or one each for {records} records, got {rng.shape[0]} keys"
        )
    return rng
