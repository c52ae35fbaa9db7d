"""A random order of the records that a step drew, so that no sum tells in which places they stood.

Sums are rounded, and their rounding depends on which records are added up together. A batch in the
order of the data would tell more of a record that is taken out than the record itself: those after
it move up by one place, and each of their runs is another one. So a batch comes in an order that is
uniformly random, drawn afresh in every step, from the key and the step alone.

WHO IS REMOVED LEAVES NO TRACE BUT TWO RUNS. Let D be data and D′ the same without record x, its
rows in any order. A step of D draws the set S, or S ∪ {x}, where S has the distribution of what a
step of D′ draws, and the choice of x does not depend on S (Poisson samples, random allocation given
all choices of the others, full batches, where it is certain); of a sample that is cut at a
capacity, x may also stand in the place of a record y that is kept without it. Order S uniformly.
Where x is drawn, choose one of the |S| + 1 places uniformly: the record there moves to the end, and
x takes its place. That is a uniform order of S ∪ {x}: each of its (|S| + 1)! orders comes from
exactly one pair of an order and a place. Where x stands for y it takes the place of y. So, given S,
the order and the place, a step of D′ adds Gaussian noise to a sum f, and one of D to the same sum
where x is not drawn, and else to one in which two places of the batch hold something else: it is
off f by at most C·(1 + slack), `dpjax.gradients.compensated`, THE SUM MOVES BY TWO RUNS. The pair
of steps is a mixture, with weights that do not depend on x, of pairs that the priced pair
dominates: mixtures with common weights are not told apart better than their worst part (joint
convexity), and as each step's order is fresh, given all that was released before, steps compose
adaptively as they are priced.

One permutation of all rows, drawn once, would not do for samples: they are drawn by place, and
where the last row has moved into the place of x, a sample that holds it but not x puts all records
between one place further. The sum would move although x was not drawn.

Where a scheme fixes which rows meet (cyclic batches), or records lie on devices by their place, no
order is drawn, and certificates say that who is removed leaves an empty place. There, and where one
record is exchanged for another, a single place changes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt

from dpjax._numerics.keys import fold_in_words, random_bits
from dpjax._numerics.scope import enable_x64
from dpjax._numerics.typing import PRNGKey

_BITS = 63  # of a sorted number, below the bit of slots without a record
_TIED = 1 << 62  # so many records squared, times how many numbers one of them may have, seldom tie


def shuffle(
    key: PRNGKey, indices: Int[Array, " slots"], records: int, *, below: int | None = None
) -> Int[Array, " slots"]:
    """The indices below `records`, which come first, in a uniform order; the others stay behind.

    Exactly uniform, given uniform bits: an order in which two numbers tie is drawn again. The order
    is a function of the key, the number of slots and `below`, which is at least `records`.
    """
    slots = indices.shape[0]
    if slots < 2:
        return indices
    width = (records if below is None else below).bit_length()
    packed = slots**2 << width <= _TIED
    width = width if packed else 0
    with enable_x64(True):
        last = np.uint64(1 << (_BITS - width))  # beyond all drawn numbers
        empty = indices >= np.int32(records)
        indices = jnp.where(empty, np.int32(records), indices)

        def draw(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            number, _, _ = state
            drawn = _random_words(fold_in_words(key, number), slots, width)
            drawn = jnp.where(empty, last, drawn)
            if packed:  # one array is sorted in half the time of two
                joined = drawn << np.uint64(width) | indices.astype(jnp.uint64)
                joined = jax.lax.sort(joined, is_stable=False)
                order = (joined & np.uint64((1 << width) - 1)).astype(jnp.int32)
                drawn = joined >> np.uint64(width)
            else:
                drawn, order = jax.lax.sort((drawn, indices), num_keys=1, is_stable=False)
            return number + np.int32(1), order, _has_tie(drawn, last)

        first = jnp.zeros((), jnp.int32), indices, jnp.ones((), bool)
        return jax.lax.while_loop(lambda state: state[2], draw, first)[1]


def _random_words(key: PRNGKey, slots: int, width: int) -> UInt[Array, " slots"]:
    """Uniform numbers of `_BITS` bits but for so many."""
    high, low = random_bits(key, (2, slots)).astype(jnp.uint64)
    return (high << np.uint64(32) | low) >> np.uint64(64 - _BITS + width)


def _has_tie(drawn: UInt[Array, " slots"], last: np.uint64) -> Bool[Array, ""]:
    """Whether two drawn numbers, in their order, are equal."""
    return jnp.any((drawn[1:] == drawn[:-1]) & (drawn[1:] < last))
