"""How many records a draw may hold so that it almost never holds more."""

from __future__ import annotations

import math

import numpy as np

from dpjax._other_names import taught
from dpjax.sampling.batch import positive
from dpjax.sampling.poisson import realised_rate


def overflow_probability(population: int, rate: float, capacity: int) -> float:
    """An upper bound on P(Binomial(n, q) > capacity), the chance that a Poisson draw does not fit.

    The exact tail (regularised incomplete beta function), rounded up by its evaluation error.

    Example:
        >>> 0.0 < overflow_probability(1_000, 0.1, 180) < 1e-10
        True
        >>> overflow_probability(1_000, 0.1, 1_000)
        0.0
    """
    positive("population", population)
    from scipy import special

    if capacity >= population:
        return 0.0
    # P(X > k) = I_q(k+1, n-k); scipy's relative error is below 1e-10 on the range met here.
    tail = float(special.betainc(capacity + 1, population - capacity, realised_rate(rate)))
    return min(1.0, tail * (1 + 1e-9) + 2.3e-308)  # the tail may have underflowed to 0


@taught
def poisson_capacity(
    population: int, rate: float, *, steps: int, delta: float, epsilon: float
) -> int:
    """The smallest capacity whose overflows, over all steps, cost at most `delta`.

    Smallest K with `steps · (1 + e^ε) · P(Binomial(n, q) > K) ≤ delta`: the sampler that empties a
    draw larger than K is within total variation distance P(overflow) of the ideal one, on either
    neighbour, and the triangle inequality for (ε, δ) counts one side times e^ε. Certify the run at
    (ε, δ_total − delta) for the ideal sampler, and pass `delta` as the extra.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> capacity = poisson_capacity(60_000, 256 / 60_000, steps=14_062, delta=1e-8, epsilon=3.0)
        >>> 256 < capacity < 400
        True
    """
    positive("steps", steps)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0, got {epsilon}")
    log_budget = math.log(delta) - math.log(steps) - float(np.logaddexp(0.0, epsilon))
    low, high = 0, population  # invariant: `high` fits
    while low < high:
        middle = (low + high) // 2
        tail = overflow_probability(population, rate, middle)
        if tail == 0.0 or math.log(tail) <= log_budget:
            high = middle
        else:
            low = middle + 1
    return max(high, 1)
