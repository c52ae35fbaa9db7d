"""What an attacker sees of the last iterate alone, of linear losses: an estimate, and no bound."""

from __future__ import annotations

import math

import numpy as np

from dpjax._numerics import checks
from dpjax.accounting.answers import query
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import Gaussian, Mechanism, PoissonSampled, Repeated


def estimate_last_iterate(run: Mechanism, delta: float) -> float:
    """What ε of the last iterate alone would be, were the loss linear: a heuristic, no guarantee.

    With a linear loss a record's T gradients are one vector, and the last iterate is their noisy
    sum: N(Binomial(T, q), σ²T) with the record, N(0, σ²T) without it, whose ε at δ this is, under
    add-remove. Other losses may cost more, up to the proven ε, and what else is released (other
    iterates, metrics) is not in it: it is never part of a certificate.

    Args:
        run: `Repeated(PoissonSampled(Gaussian(σ), q), T)`, or without sampling; one setting.
        delta: in (0, 1).

    Raises:
        UnsupportedQuery: any other run.

    Example:
        >>> from dpjax import accounting as acc
        >>> run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), 0.01), 1_000)
        >>> round(acc.estimate_last_iterate(run, 1e-5), 3), round(acc.epsilon(run, 1e-5), 3)
        (1.143, 1.515)

    References:
        Steinke, Nasr, Ganesh, Balle, Choquette-Choo, Jagielski, Hayes, Guha Thakurta, Smith, Terzis
        2025, "The last iterate advantage: empirical auditing and principled heuristic analysis of
        differentially private SGD" (ICLR), Section 3.
    """
    step = run.mechanism if isinstance(run, Repeated) else run
    steps = int(np.asarray(run.steps)) if isinstance(run, Repeated) else 1
    rate = float(np.asarray(step.rate)) if isinstance(step, PoissonSampled) else 1.0
    noise = step.mechanism if isinstance(step, PoissonSampled) else step
    if not isinstance(noise, Gaussian):
        raise UnsupportedQuery(
            f"{type(run).__name__} has no estimate of its last iterate: it is known of "
            "Repeated(PoissonSampled(Gaussian), steps)"
        )
    delta = checks.one_number("delta", delta, query.PROBABILITY)
    from scipy.optimize import brentq, root_scalar  # loaded here: it is slow to import
    from scipy.special import log_ndtr, logsumexp
    from scipy.stats import binom

    ends = binom.ppf([1e-18, 1 - 1e-16], steps, rate)
    counts = np.arange(ends[0], ends[1] + 1)
    logs, spread = binom.logpmf(counts, steps, rate), float(noise.noise_multiplier) * steps**0.5  # pyrefly: ignore
    if not spread > 0:
        return math.inf

    def loss(y: float) -> float:  # it rises in the output
        return float(logsumexp(logs + (counts * y - counts**2 / 2) / spread**2))

    def spent(epsilon: float, sign: int) -> float:
        """δ(ε) of removing the record (1) or adding it (−1)."""
        reach = 50 * spread + counts[-1] + spread**2 * epsilon
        ends = loss(-reach), loss(reach)
        if not ends[0] < sign * epsilon < ends[1]:
            return 0.0  # beyond what any output tells
        at = brentq(lambda y: loss(y) - sign * epsilon, -reach, reach, xtol=1e-13 * reach)
        with_it = logsumexp(logs + log_ndtr(sign * (counts - at) / spread))
        without = float(log_ndtr(-sign * at / spread))
        first, second = (with_it, without) if sign > 0 else (without, with_it)
        return math.exp(first) - math.exp(min(epsilon + second, 700.0))

    def excess(epsilon: float) -> float:
        return max(spent(epsilon, 1), spent(epsilon, -1)) - delta

    high = 1.0
    while excess(high) > 0:
        high *= 2
    if excess(0.0) <= 0:
        return 0.0
    return float(root_scalar(excess, bracket=(0.0, high), method="brentq", xtol=1e-10).root)
