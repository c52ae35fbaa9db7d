"""What the rows of Tables II and III cost, at the paper's own batch sizes, noise and epochs."""

from __future__ import annotations

import math

from dpjax import accounting as acc
from experiments.geodp import training
from experiments.geodp.training import Method

DELTA, EPOCHS = 1e-5, 20


def steps(batch_size: int, records: int) -> int:
    """Steps of 20 epochs."""
    return round(EPOCHS * records / batch_size)


def mechanism(method: Method, batch_size: int, sigma: float, records: int) -> acc.Composed:
    """Everything that a run releases; Poisson sampling throughout.

    Selective updates charge every attempt: its training step, and its test, a sum of loss
    differences of a validation batch. Importance sampling charges its normaliser, and after the
    refresh is priced at the largest probability that it allows itself.
    """
    rate, count = batch_size / records, steps(batch_size, records)
    step = acc.Gaussian(sigma)
    parts = []
    if method.importance:
        capped = min(training.RATE_CAP * rate, 1.0)
        parts.append(acc.Repeated(acc.PoissonSampled(step, rate), count // 2))
        parts.append(acc.Repeated(acc.PoissonSampled(step, capped), count - count // 2))
        parts.append(acc.Gaussian(training.NORMALISER_NOISE))
    else:
        parts.append(acc.Repeated(acc.PoissonSampled(step, rate), count))
    if method.selective:
        test = acc.PoissonSampled(acc.Gaussian(training.LOSS_NOISE), training.VALIDATION / records)
        parts.append(acc.Repeated(test, count))
    return acc.Composed(tuple(parts))


def proven_epsilon(
    method: Method, batch_size: int, sigma: float, records: int, by: str = "best"
) -> float:
    """ε at δ = 1e-5, add/remove, that the accountant certifies; +inf for GeoDP.

    `by` names one of the accountant's methods.
    """
    if method.noise in ("geodp", "none"):
        return math.inf
    run = mechanism(method, batch_size, sigma, records)
    return float(acc.epsilon(run, delta=DELTA, method=by))


def equal_sigma(method: Method, batch_size: int, sigma: float, records: int) -> float:
    """The noise multiplier at which the method costs what plain DP-SGD costs at `sigma`."""
    if not (method.selective or method.importance):
        return sigma
    budget = proven_epsilon(Method("DP"), batch_size, sigma, records)
    return acc.calibrate(
        lambda s: mechanism(method, batch_size, s, records), epsilon=budget, delta=DELTA
    )
