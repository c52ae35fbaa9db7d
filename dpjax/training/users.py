"""From records that name their users to one example a user, so that a user is what is clipped."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from dpjax._numerics.checks import shown
from dpjax.training.sources import HostData

__all__ = ["per_user"]

_INDEX = 2**31 - 1  # rows that JAX counts
_WASTE = 8  # times as many rows as records, from which padding is worth a warning


def per_user(
    loss: Callable[..., Any],
    data: Any,
    users: ArrayLike,
    records_per_user: int,
) -> tuple[Callable[..., Any], Any]:
    """The loss and the data of a run in which a user is the unit of privacy.

    A user's example is a block of its records, padded to the largest user's number of them, and its
    loss is the sum of its records' losses: the gradient that is clipped is the user's summed one.
    Everything behind it (clipping, sampling, noise, price) takes a user for a record. `fit` and
    `training_step` run what is returned here; `fit(users=…)` calls it.

    Args:
        loss: `loss(params, example) -> scalar`, of one record; with a key as its third argument a
            key is split off for each.
        data: a tree of arrays with a leading axis of records, or `HostData`, of which a step loads
            the records of the users that it drew.
        users: [records], whom each record belongs to: whole numbers or texts.
        records_per_user: the most records of one user that are used, the first ones in the order of
            the data: a public number, as rounding depends on it. Memory and time are those of
            users × records_per_user rows (of a step's users, with `HostData`); ε does not change
            with it.

    Returns:
        `loss(params, block)` and the blocks: the data's tree with axes [users, records_per_user],
        users in ascending order, and a mask of the rows that are records; of `HostData` they are
        `HostData` too, a record of which is a user's block.

    Raises:
        ValueError: users that are not one axis of as many entries as there are records, or are not
            whole numbers or texts; records_per_user below 1, or so large that this machine's memory
            does not hold the blocks (of `HostData`: one block).

    Guarantee:
        Each user's block is a function of that user's records alone, so that adding or removing a
        user adds or removes one example. One record whose gradient is not finite zeroes its user's.

    Example:
        >>> x = np.array([1.0, 2.0, 4.0], np.float32)
        >>> total, blocks = per_user(lambda w, x: w * x, x, ["ann", "bob", "ann"], 2)
        >>> blocks[0].tolist(), blocks[1].tolist()
        ([[1.0, 4.0], [2.0, 2.0]], [[True, True], [True, False]])
        >>> [float(total(1.0, jax.tree.map(lambda leaf: leaf[i], blocks))) for i in (0, 1)]
        [5.0, 2.0]
    """
    owned = _owned(data, users, records_per_user)
    if isinstance(data, HostData):
        blocks: Any = _UsersOnHost(data, owned)
    else:
        rows, present = owned.rows(np.arange(len(owned.counts)))
        blocks = jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], data), jnp.asarray(present)

    def of_user(params: Any, example: Any, *key: Any) -> Any:
        records, mask = example
        keys = [jax.random.split(one, mask.shape[0]) for one in key]
        losses = jax.vmap(loss, (None, 0, *(0 for _ in keys)))(params, records, *keys)
        return jnp.sum(jnp.where(mask, losses, jnp.zeros_like(losses)))

    return of_user, blocks


class _Owned(NamedTuple):
    """Which records are whose.

    Fields:
        order: the records, sorted by their users, of one user in the order of the data.
        first: [users], where a user's records begin in it.
        counts: [users], how many a user owns.
        most: how many of them are used.
    """

    order: np.ndarray
    first: np.ndarray
    counts: np.ndarray
    most: int

    def rows(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which records make these users' blocks, and which of them are more than padding."""
        place = np.arange(self.most)
        present = place < self.counts[users, None]
        # Padding repeats the user's first record: what is finite stays so, nobody else's is near.
        return self.order[self.first[users, None] + np.where(present, place, 0)], present


class _UsersOnHost(HostData):
    """Users whose records stay on the host: a record of this is a user's block and its mask.

    Args:
        records: of all users.
        owned: which are whose.
    """

    def __init__(self, records: HostData, owned: _Owned):
        self._of, self._owned, self.records = records, owned, len(owned.counts)
        padded = lambda like: jax.ShapeDtypeStruct((owned.most, *like.shape), like.dtype)  # noqa: E731
        self.example = jax.tree.map(padded, records.example), padded(np.zeros((), bool))

    def load(self, indices: np.ndarray, slots: int, otherwise: int = 0) -> Any:
        """The blocks of these users, see `HostData.load`; no record is read twice."""
        users = np.asarray(indices) if len(indices) else np.array([otherwise])
        rows, present = self._owned.rows(users)
        own = np.cumsum(present).reshape(present.shape) - 1  # where a block's record is loaded
        places = np.where(present, own, own[:, :1])
        found = self._of.load(rows[present], int(present.sum()))
        slot = np.where(np.arange(slots) < len(users), np.arange(slots), 0)
        return jax.tree.map(lambda leaf: leaf[places[slot]], found), present[slot]

    def fingerprint(self, secret: bytes) -> str:
        """That of the records: whose they are is compared beside it."""
        return self._of.fingerprint(secret)


def _check_alike(users: list[Any]) -> None:
    """Refuse users without an order: sorted beside NaN or None, one user could become two."""
    kind = str if isinstance(users[0], str) else int | np.integer
    for user in users:
        if isinstance(user, bool) or not isinstance(user, kind):
            raise ValueError(
                "users must all be whole numbers or all be texts, got "
                f"{shown(users[0])} and {shown(user)}"
            )


def _check_size(most: int, users: int, record: int) -> None:
    """Refuse blocks of more rows than JAX counts, or more bytes than the machine has memory."""
    row = record + 17  # the record; of which number it is, twice; whether it is padding
    largest = _INDEX
    if hasattr(os, "sysconf"):
        largest = min(largest, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // row)
    if most * users > largest:
        whose = "one user" if users == 1 else f"{users} users"
        raise ValueError(
            f"records_per_user must be at most {largest // users} for {whose} of {record} bytes a "
            f"record on this machine, as every user is padded to it, got {most}"
        )


def _check_data(data: Any, users: np.ndarray) -> int:
    """Refuse data of another length than the users'; how many bytes a record has."""
    if isinstance(data, HostData):
        leaves, sizes = jax.tree.leaves(data.example), {(data.records,)}
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    else:
        leaves = jax.tree.leaves(data)
        if not all(isinstance(leaf, np.ndarray | jax.Array | np.generic) for leaf in leaves):
            raise ValueError(
                "data must be a tree of arrays where users are given, got "
                f"{sorted({type(leaf).__name__ for leaf in leaves})}"
            )
        sizes = {np.shape(leaf)[:1] for leaf in leaves}
        size = sum(leaf.nbytes for leaf in leaves) // max(users.size, 1)
    if users.ndim != 1 or sizes != {users.shape}:
        raise ValueError(
            f"users must name the user of each record, one axis as long as the data's, got shape "
            f"{users.shape} for data of {sorted(sizes)}"
        )
    return size


def _owned(data: Any, users: Any, most: int) -> _Owned:
    """Which records of the data are whose, if all of it is allowed."""
    users = np.asarray(users)
    record = _check_data(data, users)
    if users.dtype.kind not in "iuUSO":
        raise ValueError(f"users must be whole numbers or texts, got {users.dtype}")
    if users.dtype.kind == "O":
        _check_alike(users.tolist())
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise ValueError(f"records_per_user must be a whole number of at least 1, got {most!r}")
    _, owner, counts = np.unique(users, return_inverse=True, return_counts=True)
    _check_size(int(most), 1 if isinstance(data, HostData) else len(counts), record)
    used, rows = int(np.minimum(counts, most).sum()), int(most) * len(counts)
    if rows > _WASTE * used:
        warnings.warn(
            f"records_per_user = {most} pads {len(counts)} users of {int(np.median(counts))} "
            f"records at the median to {rows} rows, for {used} records: a smaller one saves memory "
            "and time",
            stacklevel=3,
        )
    order = np.argsort(owner, kind="stable")
    return _Owned(order, np.cumsum(counts) - counts, counts, int(most))
