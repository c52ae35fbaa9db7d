"""Who is held out: drawn in secret, and neither part empty."""

from __future__ import annotations

import jax
import numpy as np

from dpjax._numerics.keys import fold_in_words
from dpjax._numerics.typing import PRNGKey
from dpjax.data.private_table import SPLIT_FOLD

LEAST_DIVIDED = 2  # so many persons or records have two parts


def draw_held_out(key: PRNGKey, count: int, share: float) -> np.ndarray:
    """A coin for every person or record, in secret: who is held out says nothing of others.

    Where the coins leave a part empty, one of all, each as likely, goes there. How many are in each
    part is public (`evaluation.json` and the certificate say it), and of given numbers every choice
    of who is in which part is as likely as before: what is claimed of a run is the same as of
    single coins. There must be LEAST_DIVIDED at least, which their number alone decides.
    """
    key = fold_in_words(key, SPLIT_FOLD)
    held = np.array(jax.random.bernoulli(key, share, (count,)))
    if held.all() or not held.any():
        one = int(jax.random.randint(fold_in_words(key, 1), (), 0, count))
        held[one] = not held[one]
    return held
