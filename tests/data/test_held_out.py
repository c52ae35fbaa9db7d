"""Who is held out: neither part is empty, whatever the key, and every choice is as likely."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from dpjax._numerics.keys import fold_in_words
from dpjax.data.held_out import draw_held_out
from dpjax.data.private_table import SPLIT_FOLD


@pytest.mark.parametrize("share", [0.2])
@pytest.mark.parametrize("count", [2, 3, 5, 40])
def test_neither_part_is_empty_and_of_given_numbers_every_choice_is_as_likely(count, share):
    drawn = np.array([draw_held_out(jax.random.key(n), count, share) for n in range(400)])
    held = drawn.sum(axis=1)
    assert np.all((held > 0) & (held < count))
    # The law of single coins, given that neither part is empty.
    numbers = np.arange(1, count)
    ways = np.array([float(math.comb(count, n)) for n in numbers])
    chances = ways * share**numbers * (1 - share) ** (count - numbers)
    chances /= chances.sum()
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
