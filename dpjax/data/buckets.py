"""Public buckets, which those values of a column share that noise hides.

A look at a column of texts releases the values that stand out of the noise (`private_table`). The
others would all be encoded as zeros, which costs a model what they say. Here each of them falls in
one of a few buckets, by a hash of its text, and a bucket is a feature as a category is one.

No ε is spent on it. Which bucket a text falls in is a function of the names alone, which is public
as the code is: it reads no record, and holds of texts that nobody has. How many buckets a column
has follows from the number of records, which is public, and from noisy counts that were released
(post-processing). A record is in one cell of the column, a category or a bucket, so that the norm
of its features is what it was, and it is encoded by itself.

A value that no training record had falls in a bucket too, and counts as the hidden values there:
to tell it from these would say of a value that somebody had it.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from jaxtyping import Int

# Chosen in docs/decisions/private-tables.md. How many records are hidden for there to be buckets,
# in standard deviations of the noise in it; buckets for as many of these as a threshold, and how
# many at most; and above how many thresholds they are names, of which a bucket says nothing.
_LEAST_HIDDEN, _OF_A_THRESHOLD, _MOST, _NAMES = 3.0, 8, 128, 32


def place(column: str, text: str, buckets: int) -> int:
    """Which of so many buckets a text of a column falls in, from 0 on.

        place = SHA-256(column, unit separator (U+001F), text) mod buckets

    The texts are hashed in UTF-8, and the first eight bytes are a whole number, the highest first.

    Args:
        column: its name.
        text: as `cells.canonical_text` writes it, of a number that of the nearest float64.
        buckets: how many, from 1 on.

    Guarantee:
        A function of its arguments, the same in every process and on every machine.

    Example:
        >>> [place("job", text, 4) for text in ("baker", "smith", "tailor")]
        [1, 2, 2]

    References:
        Weinberger et al. 2009, "Feature hashing for large scale multitask learning".
    """
    digest = hashlib.sha256(f"{column}\x1f{text}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % buckets


def choose_count(
    records: int, released: Int[np.ndarray, " values"], stddev: float, threshold: int
) -> int:
    """How many buckets a column's hidden values share, by how many records these have.

        hidden = records − Σ released counts,  buckets = ⌈8 hidden / threshold⌉, at most 128

    0 where `hidden` is within three standard deviations of its noise, stddev √(released counts),
    since all values may then be listed, and where it is above 32 thresholds: a hidden value has
    about one at most, so that the values are many, as names are, and a bucket is their mean. Of
    fewer records than that names have buckets too: no released count tells them from categories.

    Args:
        records: how many there are, which is public.
        released: the noisy counts of the values that were released.
        stddev: of the noise in each.
        threshold: above which a noisy count is released: a hidden value has about as many at most.

    Guarantee:
        Post-processing of noisy counts that were released.

    Example:
        >>> choose_count(1_000, np.array([480, 500]), 10.0, 50)
        0
        >>> choose_count(1_000, np.array([480, 400]), 10.0, 50)
        20
    """
    hidden = records - int(released.sum())
    # Where none was released all are hidden, and no noise is in how many.
    if hidden <= _LEAST_HIDDEN * stddev * math.sqrt(len(released)) or hidden > _NAMES * threshold:
        return 0
    return min(math.ceil(_OF_A_THRESHOLD * hidden / threshold), _MOST)
