"""The best threshold between the scores of two worlds, and Clopper-Pearson limits of its errors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import betaincinv, ndtri

from dpjax.audit.bound import ThresholdEvidence


def best_threshold(
    scores: np.ndarray,
    neighbour_scores: np.ndarray,
    confidence: float,
    objective: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> ThresholdEvidence:
    """Chooses a threshold on the first half of the runs, counts its errors on the second."""
    if scores.shape != neighbour_scores.shape or scores.ndim != 1 or scores.size < 4:
        raise ValueError(
            "scores must be of the same number of runs in both worlds, at least 4, got "
            f"shapes {scores.shape} and {neighbour_scores.shape}"
        )
    if np.isnan(scores).any() or np.isnan(neighbour_scores).any():
        raise ValueError("scores must be ordered, got NaN")
    level = (1.0 - confidence) / 2.0
    half = scores.size // 2
    tune = np.sort(scores[:half]), np.sort(neighbour_scores[:half])
    cuts = _candidates(*tune)
    best = (-math.inf, 0.0, True)
    for above in (True, False):
        errors = [_errors(*tune, cuts, above)[i] for i in (0, 1)]
        value = objective(*(upper_limit(count, half, level) for count in errors))
        index = int(np.argmax(value))
        if value[index] > best[0]:
            best = (float(value[index]), float(cuts[index]), above)
    _, threshold, above = best
    counted = np.sort(scores[half:]), np.sort(neighbour_scores[half:])
    runs = counted[0].size
    positives, negatives = (int(c[0]) for c in _errors(*counted, np.array([threshold]), above))
    fpr, fnr = (float(upper_limit(count, runs, level)) for count in (positives, negatives))
    mu = float(ndtri(1.0 - fpr) - ndtri(fnr)) if max(fpr, fnr) < 1.0 else 0.0
    return ThresholdEvidence(threshold, above, positives, negatives, runs, fpr, fnr, max(mu, 0.0))


def upper_limit(count, runs: int, level: float) -> np.ndarray:
    """Upper one-sided Clopper-Pearson limit of a rate, `count` successes among `runs`."""
    count = np.asarray(count)
    limit = betaincinv(count + 1.0, np.maximum(runs - count, 1), 1.0 - level)
    return np.where(count >= runs, 1.0, limit)


def _errors(first, second, cuts, above):
    """False positives and false negatives of every cut; the scores are sorted."""
    if above:
        return first.size - np.searchsorted(first, cuts, "right"), np.searchsorted(
            second, cuts, "right"
        )
    return np.searchsorted(first, cuts, "left"), second.size - np.searchsorted(second, cuts, "left")


def _candidates(first: np.ndarray, second: np.ndarray, count: int = 256) -> np.ndarray:
    """Cuts at ranks of both worlds, dense in the tails, where the large ratios are."""
    ranks = np.unique(np.geomspace(1, first.size, count).astype(int) - 1)
    ranks = np.unique(np.concatenate([ranks, first.size - 1 - ranks]))
    cuts = np.unique(np.concatenate([first[ranks], second[ranks]]))
    # A midpoint lies strictly between the two atoms of a discrete score.
    middle = cuts[:-1] / 2 + cuts[1:] / 2
    finite = np.isfinite(middle)
    return np.unique(np.concatenate([cuts, middle[finite]]))
