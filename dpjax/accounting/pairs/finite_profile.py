"""The profile δ(ε) of a loss with finitely many values, and its inverse."""

from __future__ import annotations

import numpy as np

from dpjax.accounting.pairs.uses import Discrete


def discrete_delta(pair: Discrete, epsilon: float) -> float:
    """δ(ε) = Σ mass·(1 − e^{ε − loss})₊, within a few units of roundoff a term."""
    gap = np.minimum(epsilon - np.asarray(pair.losses), 0.0)  # losses below ε have no part in δ
    return float(np.sum(pair.masses * (0.0 - np.expm1(gap))))  # 0 − 0 is 0, and −(0) is not


def discrete_epsilon(pair: Discrete, delta: float) -> float:
    """The least ε >= 0 with δ(ε) ≤ δ, +∞ if there is none.

    δ(ε) is linear in e^ε between two losses: the two are found by bisection, and the root between
    them is counted from the upper one, so that nothing underflows however large the losses are.
    """
    losses, masses = np.asarray(pair.losses), np.asarray(pair.masses)
    if masses[losses == np.inf].sum() > delta:
        return np.inf
    if discrete_delta(pair, 0.0) <= delta:
        return 0.0
    points = np.unique(losses[(losses > 0) & (losses < np.inf)])
    if not len(points):
        return 0.0
    low, high = -1, len(points) - 1  # δ(points[low]) > δ >= δ(points[high])
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if discrete_delta(pair, points[middle]) > delta else (low, middle)
        )
    least, most = points[low] if low >= 0 else 0.0, points[high]
    above = losses >= most
    # δ(ε) = gap + δ − e^{ε−most}·slope between the two losses
    gap = float(np.sum(masses[above])) - delta
    slope = float(np.sum(masses[above] * np.exp(most - losses[above])))
    if gap <= 0 or slope <= 0:
        return float(most)
    return float(np.clip(most + np.log(gap) - np.log(slope), least, most))
