"""What a run permits an attacker: how often one can be right at so many false alarms."""

from __future__ import annotations

import contextlib
import math

import numpy as np

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
    # Three roundings of at most 2^-53 each.
    return min(min(direct, mirrored) * (1 + 4e-16), 1.0)


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
    a few is taken, and of the (ε, δ) given.

    `reserved` is the part of δ for failures outside the mechanism; 1 if nothing can be said.
    """
    best = line(epsilon, delta, false_alarms)
    if not math.isfinite(epsilon):
        return best
    # Where δ counts beside α the best ε may be any below −log α.
    most = 4 * epsilon if delta < 0.1 * false_alarms else math.inf
    search = {"near": _NEAR, "queries": _QUERIES, "reserved": reserved}
    with contextlib.suppress(UnsupportedQuery):
        ends = (0.0, most)
        best = min(best, strongest_attack(run, false_alarms, adjacency, ends, **search)[0])
    return best


def strongest_attack(
    run: Mechanism,
    false_alarms: float,
    adjacency: Adjacency,
    ends: tuple[float, float] = (0.0, math.inf),
    *,
    near: float = 1e-4,
    queries: int = 40,
    reserved: float = 0.0,
    method: str = "best",
) -> tuple[float, float]:
    """The least of the lines e^ε α + δ(ε) + reserved between two ε, and the ε where it was met.

    Each is an upper bound of how often an attack is right, and e^ε α + δ(ε), convex in e^ε, has one
    valley: Brent's method ends within `near` of the range of √ε, and returns a line that was asked.
    """
    from scipy.optimize import minimize_scalar  # loaded here: it is slow to import

    found = []

    def ask(root: float) -> float:  # of ε: the best may be much smaller than the largest
        epsilon = root * root
        spent = float(np.asarray(pricing.delta(run, epsilon, adjacency=adjacency, method=method)))
        found.append((line(epsilon, spent + reserved, false_alarms), epsilon))
        return found[-1][0]

    # Where e^ε is 1/α the line is above one.
    low, high = ends[0], min(ends[1], -math.log(max(false_alarms, 1e-300)))
    span = math.sqrt(low), math.sqrt(max(high, low))
    options = {"xatol": near * span[1], "maxiter": queries}
    minimize_scalar(ask, bounds=span, method="bounded", options=options)
    return min(found)
