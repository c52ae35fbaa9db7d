"""Hockey sticks of two steps of random allocation under correlated noise, by quadrature."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr


def delta_of_two(k, epsilon):
    """Both directions for two bins of any covariance: one noise by quadrature, the other exactly.

    Of Y₀ = √k₀₀·z, Y₁ is Gaussian of mean (k₀₁/√k₀₀)·z and variance k₁₁ − k₀₁²/k₀₀.
    """
    z = np.linspace(-14.0, 16.0, 60_001)
    weight = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    slope, root = k[0, 1] / math.sqrt(k[0, 0]), math.sqrt(k[0, 0])
    rest = math.sqrt(max(k[1, 1] - slope**2, 0.0))
    first = np.exp(root * z - k[0, 0] / 2)
    scale = np.exp(slope * z - slope**2 / 2)  # of a lognormal of mean 1
    found = []
    for level in (2 * math.exp(epsilon), 2 * math.exp(-epsilon)):
        left = (level - first) / scale
        safe = np.maximum(left, 1e-300)
        at = (np.log(safe) + rest**2 / 2) / rest
        above = np.where(left > 0, ndtr(rest - at) - safe * ndtr(-at), 1 - left)
        below = np.where(left > 0, above - 1 + left, 0.0)
        found.append((above * scale / 2, below * scale / 2))
    return float(weight @ found[0][0]), float(weight @ found[1][1]) * math.exp(epsilon)


def delta_against(c, sigma, choose, epsilon, points=1501):
    """Both directions of one epoch of two steps where the second contribution follows the first
    output: `choose` tells it from the outputs, in [−1, 1]; the first contribution is 1.
    """
    z = np.linspace(-9.0, 9.0 + 4 / sigma, points)
    mass = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    y0, y1 = sigma * z[:, None], sigma * z[None]
    x1 = choose(y0)
    log = lambda m0, m1: (m0 * y0 - m0**2 / 2 + m1 * y1 - m1**2 / 2) / sigma**2  # noqa: E731
    ratio = (np.exp(log(c[0, 0], c[1, 0])) + np.exp(log(0.0, c[1, 1] * x1))) / 2
    grow = math.exp(epsilon)
    excess = np.maximum(ratio - grow, 0.0), np.maximum(1 - grow * ratio, 0.0)
    return tuple(float(mass @ one @ mass) for one in excess)
