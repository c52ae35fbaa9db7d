"""What a certificate means to an attacker: how often can one be right at so many false alarms?"""

from __future__ import annotations

import math

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers import pricing
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import Mechanism

_GOLDEN = (math.sqrt(5) - 1) / 2
_QUERIES = 16  # the bracket shrinks to 0.1 % of itself; every query is a bound of its own


def line(epsilon: float, delta: float, false_alarms: float) -> float:
    """How often an attack on an (ε, δ)-private release is right, at a rate of false alarms.

        min(e^ε α + δ, 1 − e^−ε (1 − δ − α), 1)          (Wasserman and Zhou 2010, Theorem 2.4)

    Example:
        >>> round(line(1.0, 0.0, 0.001), 6)
        0.002718
        >>> line(float("inf"), 0.0, 0.001)
        1.0
    """
    if epsilon == math.inf:
        return 1.0
    direct = delta + (math.exp(epsilon) * false_alarms if epsilon < 700 else math.inf)
    mirrored = 1 - math.exp(-epsilon) * max(1 - delta - false_alarms, 0.0)
    return min(direct, mirrored, 1.0)


def success(
    run: Mechanism,
    epsilon: float,
    delta: float,
    *,
    adjacency: Adjacency,
    reserved: float = 0.0,
    false_alarms: float = 1e-3,
) -> float:
    """The most often that any attack on a run is right, at a rate of false alarms.

    The run is (ε, δ(ε) + reserved)-private for every ε, and each of these is a bound: the least of
    a few is taken, found by golden section since e^ε α + δ(ε) is convex in e^ε. It starts from the
    (ε, δ) given and never gives more.

    Args:
        run: what was released, one setting.
        epsilon, delta: a guarantee of the run, everything included.
        adjacency: the neighbouring relation.
        reserved: the part of δ for failures outside the mechanism.
        false_alarms: in [0, 1]; how often the attack says yes where no is true.

    Returns:
        In [0, 1], and 1 if nothing can be said.

    Example:
        >>> from dpjax import accounting as acc
        >>> add_remove = acc.Adjacency.ADD_REMOVE
        >>> round(success(acc.Gaussian(4.0), 0.93, 1e-5, adjacency=add_remove), 4)
        0.0023
    """
    best = line(epsilon, delta, false_alarms)
    if not math.isfinite(epsilon) or epsilon == 0:
        return best

    def at(odds: float) -> float:
        smaller = math.log(odds)
        spent = pricing.delta(run, smaller, adjacency=adjacency)
        return line(smaller, float(spent) + reserved, false_alarms)

    # Beyond odds of 1 / α the line is above one. The best ε lies above the given one where δ is
    # larger than what the attack is about.
    low, high = 1.0, math.exp(min(4 * epsilon, -math.log(max(false_alarms, 1e-300))))
    try:
        right = low + _GOLDEN * (high - low)
        left = high - _GOLDEN * (high - low)
        at_left, at_right = at(left), at(right)
        best = min(best, at_left, at_right)
        for _ in range(_QUERIES - 2):
            if at_left <= at_right:
                high, right, at_right = right, left, at_left
                left = high - _GOLDEN * (high - low)
                at_left = at(left)
            else:
                low, left, at_left = left, right, at_right
                right = low + _GOLDEN * (high - low)
                at_right = at(right)
            best = min(best, at_left, at_right)
    except UnsupportedQuery:
        pass
    return best
