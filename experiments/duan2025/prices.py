"""What the rows of Tables II and III cost, at the paper's own batch sizes, noise and epochs."""

from __future__ import annotations

import math

from dpjax import accounting as acc
from experiments.duan2025 import loop
from experiments.duan2025.methods import Method

DELTA, EPOCHS = 1e-5, 20


def steps(batch_size: int, records: int) -> int:
    """Steps of 20 epochs.

    >>> steps(16_384, 60_000)
    73
    """
    return round(EPOCHS * records / batch_size)


def mechanism(method: Method, batch_size: int, sigma: float, records: int) -> acc.Composed:
    """Everything that a run releases; Poisson sampling throughout.

    Selective updates charge every candidate that may be made: its training step, and its test, a
    sum of loss differences of a validation batch. Importance sampling charges its normaliser, and
    after the refresh is priced at the largest probability that it allows itself.
    """
    rate, count = batch_size / records, steps(batch_size, records)
    step = acc.Gaussian(sigma)
    parts = []
    if method.selective == "accepted":
        count *= loop.MOST_ATTEMPTS
    if method.importance:
        capped = min(loop.RATE_CAP * rate, 1.0)
        parts.append(acc.Repeated(acc.PoissonSampled(step, rate), count // 2))
        parts.append(acc.Repeated(acc.PoissonSampled(step, capped), count - count // 2))
        parts.append(acc.Gaussian(loop.NORMALISER_NOISE))
    else:
        parts.append(acc.Repeated(acc.PoissonSampled(step, rate), count))
    if method.selective:
        test = acc.PoissonSampled(acc.Gaussian(loop.LOSS_NOISE), loop.VALIDATION / records)
        parts.append(acc.Repeated(test, count))
    return acc.Composed(tuple(parts))


def proven_epsilon(
    method: Method, batch_size: int, sigma: float, records: int, by: str = "pld"
) -> float:
    """ε at δ = 1e-5, add/remove, that the accountant certifies; +inf for GeoDP and without noise.

    `by` names one of the accountant's methods; "pld" is as tight to four digits as the best of
    them, and compiles in a second.

    >>> round(proven_epsilon(Method(), 16_384, 10.0, 60_000), 3)
    0.874
    """
    if method.noise in ("geodp", "none"):
        return math.inf
    run = mechanism(method, batch_size, sigma, records)
    return float(acc.epsilon(run, delta=DELTA, method=by))
