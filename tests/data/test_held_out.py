"""Who is held out: neither part is empty, whatever the key, and every choice is as likely."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from dpjax._numerics.keys import fold_in_words
from dpjax.data.held_out import draw_held_out
from dpjax.data.private_table import SPLIT_FOLD


@pytest.mark.parametrize("share", [1e-12, 0.2, 0.9, 1 - 1e-12])
@pytest.mark.parametrize("count", [2, 3, 5, 40])
@pytest.mark.at_length(every=4)
def test_neither_part_is_empty_and_of_given_numbers_every_choice_is_as_likely(count, share):
    drawn = np.array([draw_held_out(jax.random.key(n), count, share) for n in range(400)])
    held = drawn.sum(axis=1)
    assert np.all((held > 0) & (held < count))
    # The law of the number of single coins, of which 0 counts as 1 and all as all but one.
    numbers = np.arange(count + 1)
    ways = np.array([float(math.comb(count, n)) for n in numbers])
    chances = ways * share**numbers * (1 - share) ** (count - numbers)
    numbers = np.clip(numbers, 1, count - 1)
    mean = numbers @ chances
    spread = math.sqrt(max((numbers - mean) ** 2 @ chances, 0.0))
    assert abs(held.mean() - mean) <= 4 * spread / math.sqrt(400) + 1e-9
    # Each record is in the part with the chance mean / count.
    each = drawn.mean(axis=0)
    assert np.all(np.abs(each - mean / count) <= 4.5 * math.sqrt(0.25 / 400))


def test_coins_that_leave_no_part_empty_are_kept():
    key = jax.random.key(3)
    first = jax.random.bernoulli(fold_in_words(key, SPLIT_FOLD), 0.2, (50,))
    np.testing.assert_array_equal(draw_held_out(key, 50, 0.2), first)
