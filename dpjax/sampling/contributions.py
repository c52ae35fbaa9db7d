"""Which records to keep so that no person owns more than so many, where each has several owners."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from jaxtyping import Bool

from dpjax._numerics.checks import items, render, whole


def bound_contributions(
    owners: Sequence[Iterable[Hashable]], most: int
) -> Bool[np.ndarray, " records"]:
    """Whether each record is kept, of a choice in which no person owns more than `most` records.

    Records are taken one after the other, those of fewest owners first and equals in the order
    given, and each is kept if all its owners have fewer than `most` kept records so far. The choice
    is maximal: no record that is left out could be added.

    Args:
        owners: of each record, the persons whom it is about: a message has a sender and readers. A
            name that is listed twice counts once; a record of nobody is kept.
        most: records that a person may own, at least 1.

    Returns:
        One flag a record.

    Raises:
        TypeError: owners that are no collection, or those of a record that are one text, no
            collection, or lists and other things that have no hash.
        ValueError: `most` is no whole number of at least 1.

    Guarantee:
        Every person owns at most `most` of the kept records: a run over these that is priced as
        `accounting.UserLevel(run, most)` is private for persons. Who owns which record is taken as
        public and alike for neighbours, which differ in what the records of one person hold (or in
        their places being left empty): the choice reads nothing else. Where ownership itself is to
        be hidden this is no bound, as one person's records decide which others are kept.

    Example:
        >>> kept = bound_contributions([["ann", "bob"], ["ann"], ["bob", "eve"], ["ann", "eve"]], 2)
        >>> kept.tolist()
        [True, True, True, False]

    References:
        Ganesh, McKenna, McMahan, Smith and Wu 2025, "It's my data too: private ML for datasets with
        multi-user training examples", Algorithm 1 (greedy) and fixed-graph privacy.
    """
    allowed = whole("most", most)
    each = items("owners", owners, "a collection of persons for each record")
    names = [_read_owners(place, own) for place, own in enumerate(each)]
    kept, owned = np.zeros(len(names), bool), collections.Counter()
    for place in sorted(range(len(names)), key=lambda place: len(names[place])):
        if all(owned[name] < allowed for name in names[place]):
            owned.update(names[place])
            kept[place] = True
    return kept


def _read_owners(place: int, own: Iterable[Hashable]) -> frozenset[Hashable]:
    """The persons of one record, each once."""
    if isinstance(own, str | bytes) or not isinstance(own, Iterable):
        raise TypeError(
            f"owners must be a collection of persons for each record, got {own!r} for record "
            f"{place}: of one owner [{own!r}]"
        )
    try:
        names = frozenset(own)
    except TypeError:  # a list has no hash
        raise TypeError(
            f"owners must be persons by names or numbers for each record, got {render(own)} for "
            f"record {place}"
        ) from None
    if any(name != name for name in names):  # NaN, which is no one's name
        raise ValueError(f"owners must be persons, got NaN for record {place}")
    return names
