"""Records of persons: several of one person count as one, in a batch and in its price."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from dpjax._numerics.checks import render
from dpjax._numerics.persons import are_mixed, number_persons
from dpjax._numerics.typing import Loss, Params, PRNGKey
from dpjax._numerics.warning import DpjaxWarning
from dpjax.training.data import HostData, check_representable

if TYPE_CHECKING:
    from dpjax.training.typing import RunData, Users

_INDEX = 2**31 - 1  # rows that JAX counts
_WASTE = 8  # times as many rows as records, from which padding is worth a warning


def per_user(
    loss: Loss, data: RunData, users: ArrayLike, records_per_user: int
) -> tuple[Loss, RunData]:
    """The loss and the data of a run in which a user is the unit of privacy.

    A user's example is a block of its records, padded to `records_per_user`, and its loss is the
    sum of their losses: the gradient that is clipped is the user's summed one. Everything behind it
    (clipping, sampling, noise, price) takes a user for a record. `fit(users=…)` calls it.

    Args:
        loss: `loss(params, example) -> scalar`, of one record; with a key as its third argument a
            key is split off for each.
        data: a tree of arrays with a leading axis of records, or `HostData`, of which a step loads
            the records of the users that it drew.
        users: [records], whom each record belongs to: whole numbers or texts. Texts that say one
            number, such as "17", "17.0" and "017", are one user; a warning says where there are
            other texts beside numbers.
        records_per_user: the most records of one user that are used, the first ones in the order of
            the data: a public number, as rounding depends on it. Memory and time grow with it; ε
            does not change.

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
    owned = _group_by_user(data, users, records_per_user)
    if isinstance(data, HostData):
        blocks = _UsersOnHost(data, owned)
    else:
        rows, present = owned.rows(np.arange(len(owned.counts)))  # of all users
        records = jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], data)
        blocks = records, jnp.asarray(present)

    def sum_losses(params: Params, example: tuple[PyTree[Array], Array], *key: PRNGKey) -> Array:
        records, mask = example
        keys = [jax.random.split(one, mask.shape[0]) for one in key]
        losses = jax.vmap(loss, (None, 0, *(0 for _ in keys)))(params, records, *keys)
        return jnp.sum(jnp.where(mask, losses, jnp.zeros_like(losses)))

    return sum_losses, blocks


class _UserGroups(NamedTuple):
    """Which records are whose."""

    order: np.ndarray  # the records, sorted by their users, of one user in the order of the data
    first: np.ndarray  # [users], where a user's records begin in it
    counts: np.ndarray  # [users], how many a user owns
    most: int  # how many of them are used

    def rows(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which records make these users' blocks, and which of them are more than padding."""
        place = np.arange(self.most)  # within a block
        present = place < self.counts[users, None]
        # Padding repeats the user's first record: what is finite stays so, nobody else's is near.
        return self.order[self.first[users, None] + np.where(present, place, 0)], present


class _UsersOnHost(HostData):
    """Users whose records stay on the host: a record of this is a user's block and its mask."""

    def __init__(self, records: HostData, owned: _UserGroups):
        self._of, self._owned, self.records = records, owned, len(owned.counts)

        def pad(like: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((owned.most, *like.shape), like.dtype)

        self.example = (
            jax.tree.map(pad, records.example),
            pad(jax.ShapeDtypeStruct((), np.dtype(bool))),
        )

    def load(self, indices: np.ndarray, slots: int, otherwise: int = 0) -> PyTree[np.ndarray]:
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


def as_user_array(users: Users) -> np.ndarray:
    """The users as an array. Of a list it holds what the list does: NumPy would join 1 and "1"."""
    return np.asarray(users, None if hasattr(users, "__array__") else object)


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


def _check_data(data: RunData, users: np.ndarray) -> int:
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
        for leaf in leaves:
            check_representable(leaf)
        sizes = {np.shape(leaf)[:1] for leaf in leaves}
        size = sum(leaf.nbytes for leaf in leaves) // max(users.size, 1)
    if users.ndim != 1 or sizes != {users.shape}:
        raise ValueError(
            f"users must name the user of each record, one axis as long as the data's, got shape "
            f"{users.shape} for data of {sorted(sizes)}"
        )
    return size


def _group_by_user(data: RunData, users: Users, most: int) -> _UserGroups:
    """Which records of the data are whose, if all of it is allowed."""
    users = as_user_array(users)
    record = _check_data(data, users)
    if users.dtype.kind not in "iuUSO":
        raise ValueError(f"users must be whole numbers or texts, got {users.dtype}")
    # Sorted beside NaN or None, which have no order, one user could become two.
    names = users.tolist() if users.dtype.kind == "O" else []
    kinds = [(k,) for k in (str, bytes) if names and isinstance(names[0], k)]
    kind = kinds[0] if kinds else (int, np.integer)
    for name in names:
        if isinstance(name, bool) or not isinstance(name, kind):
            raise ValueError(
                "users must all be whole numbers or all be texts, got "
                f"{render(names[0])} and {render(name)}"
            )
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise ValueError(f"records_per_user must be a whole number of at least 1, got {most!r}")
    owner = number_persons(users)
    if users.dtype.kind == "U" or str in kind:
        _warn_of_mixed(users)
    counts = np.bincount(owner)
    _check_size(int(most), 1 if isinstance(data, HostData) else len(counts), record)
    used, rows = int(np.minimum(counts, most).sum()), int(most) * len(counts)
    if rows > _WASTE * used:
        warnings.warn(
            f"records_per_user = {most} pads {len(counts)} users of {int(np.median(counts))} "
            f"records at the median to {rows} rows, for {used} records: a smaller one saves memory "
            "and time",
            DpjaxWarning,
            stacklevel=3,
        )
    order = np.argsort(owner, kind="stable")  # in the order of the data
    return _UserGroups(order, np.cumsum(counts) - counts, counts, int(most))


def _warn_of_mixed(users: np.ndarray) -> None:
    """Say that some texts are numbers and some are not, by which one user may have two ids."""
    if are_mixed(users):
        warnings.warn(
            "users should all be numbers or all be other texts, got both: who is 17 in one record "
            "and P17 in another is two users, each protected alone",
            DpjaxWarning,
            stacklevel=4,
        )
