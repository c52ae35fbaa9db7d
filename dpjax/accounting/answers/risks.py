"""What a run permits an attacker: how often one can be right at so many false alarms."""

from __future__ import annotations

import contextlib
import math

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers import pricing
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import Mechanism

_QUERIES = 14  # at most: each is a bound of its own, and costs a δ
_NEAR = 0.01  # of the range of √ε that is searched: the least is flat, δ barely moves within it


def line(epsilon: float, delta: float, false_alarms: float) -> float:
    """How often an attack on an (ε, δ)-private release is right, at a rate of false alarms.

    min(e^ε α + δ, 1 − e^−ε (1 − δ − α), 1)          (Wasserman and Zhou 2010, Theorem 2.4)
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
    a few is taken, found by Brent's method since e^ε α + δ(ε), convex in e^ε, has one valley. It
    never gives more than the (ε, δ) given.

    `reserved` is the part of δ for failures outside the mechanism; 1 if nothing can be said.
    """
    best = line(epsilon, delta, false_alarms)
    if not math.isfinite(epsilon):
        return best
    from scipy.optimize import minimize_scalar  # loaded here: it is slow to import

    found = [best]

    def at(root: float) -> float:  # of ε: the best may be much smaller than the largest
        spent = float(pricing.delta(run, root * root, adjacency=adjacency)) + reserved
        found.append(line(root * root, spent, false_alarms))
        return found[-1]

    # Where e^ε is 1/α the line is above one. Where δ counts beside α the best ε may be any below.
    most = -math.log(max(false_alarms, 1e-300))
    if delta < 0.1 * false_alarms:
        most = min(4 * epsilon, most)
    end = math.sqrt(most)
    options = {"xatol": _NEAR * end, "maxiter": _QUERIES}
    with contextlib.suppress(UnsupportedQuery):
        minimize_scalar(at, bounds=(0.0, end), method="bounded", options=options)
    return min(found)
