"""Random batches in which no record returns before so many steps have passed.

A record's uses are a renewal process: from one to the next are `separation` − 1 steps and then as
many as a coin takes to fall on heads. Each wait is drawn from a word of its own, so that a step's
flags are a function of (key, step), and nothing is kept from step to step.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.checks import Range, one_number, whole
from dpjax._numerics.keys import fold_in_words, random_bits
from dpjax._numerics.typing import PRNGKey, StepNumber
from dpjax.sampling.samplers import check_step

_RATES = Range(0.0, 1.0, open_low=True)
_MOST = 1 << 29  # steps of a run or of a wait: sums of a few stay below 2³¹
_WAITS = 0xFFFF_FFFE  # of keys folded in, those of waits


@suggests_argument_names
def min_separated_inclusion(
    key: PRNGKey, step: StepNumber, *, population: int, rate: float, separation: int
) -> Bool[Array, " population"]:
    """The records of a step as one flag each, a record's steps at least `separation` apart.

    A record that has not taken part in the last `separation` − 1 steps does with the probability
    rate/(1 − (separation − 1)·rate), so that it takes part in each step with probability `rate`, in
    the first as in all others; records are independent. At rate 1/separation a record returns
    after `separation` steps exactly. Priced by `accounting.MinSeparatedCorrelated`, and without
    amplification: none is claimed.

    Args:
        key, population: as of `poisson_inclusion`.
        step: the step's number, below 2²⁹. A step takes as many draws of all records as the number
            of uses that fit before it: ⌈step / separation⌉.
        rate: expected share of the records in a step, above 0 and at most 1/separation.
        separation: fewest steps from one use of a record to its next, at least 1.

    Raises:
        ValueError: an argument out of range.

    Guarantee:
        Two steps in which a record takes part are at least `separation` apart, whatever is drawn.
        The probabilities are those above but for rounding of 32-bit words.

    Example:
        >>> import jax
        >>> flags = [min_separated_inclusion(
        ...     jax.random.key(0), t, population=1_000, rate=0.1, separation=5) for t in range(5)]
        >>> bool((sum(f.astype(int) for f in flags) <= 1).all()), 60 < int(flags[3].sum()) < 140
        (True, True)

    References:
        Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization" (min-separation).
    """
    population, step = whole("population", population), check_step("step", step, _MOST)
    apart = whole("separation", separation)
    if not 1 <= apart < _MOST:
        raise ValueError(f"separation must be between 1 and {_MOST - 1}, got {separation}")
    share = one_number("rate", rate, _RATES)
    if share * apart > 1 + 1e-9:
        raise ValueError(f"rate must be at most 1/separation, {1 / apart:g}, got {rate}")
    # The mean wait 1/rate is separation − 1 steps and 1/p of a coin of probability p.
    coin = 1 / max(1 / share - (apart - 1), 1.0)
    own, now = fold_in_words(key, _WAITS), jnp.asarray(step, jnp.int32)

    def uses_before(carry: tuple[Array, Array]):
        return jnp.any(carry[1] < now)

    def next_uses(carry: tuple[Array, Array]):
        number, times = carry
        words = random_bits(fold_in_words(own, number), (population,))
        later = times + apart + _tails_before_heads(words, coin)
        return number + 1, jnp.where(times < now, later, times)

    first = _first_uses(own, population, share, apart, coin)
    _, times = lax.while_loop(uses_before, next_uses, (jnp.ones((), jnp.uint32), first))
    return times == now


def _first_uses(
    own: PRNGKey, population: int, rate: float, apart: int, coin: float
) -> Int[Array, " population"]:
    """The step of each record's first use, as of a run that has lasted for ever."""
    # In the stationary process P(first = d) = P(wait > d)·rate: each d < separation − 1 with the
    # probability `rate`, else separation − 1 and the tails that a coin still shows.
    words = random_bits(fold_in_words(own, np.uint32(0)), (2, population))
    places = words[0].astype(jnp.float32) * np.float32(2.0**-32) / np.float32(rate)
    early = jnp.minimum(places, np.float32(_MOST)).astype(jnp.int32)
    late = apart - 1 + _tails_before_heads(words[1], coin)
    return jnp.where(early < apart - 1, early, late)


def _tails_before_heads(words: Array, coin: float) -> Int[Array, " population"]:
    """How often a coin falls on tails before heads, from one word each: ⌊log u/log(1 − p)⌋."""
    if coin >= 1:
        return jnp.zeros(words.shape, jnp.int32)
    u = (words.astype(jnp.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    tails = jnp.log(u) / np.float32(math.log1p(-coin))
    return jnp.clip(tails, 0.0, np.float32(_MOST // 2)).astype(jnp.int32)
