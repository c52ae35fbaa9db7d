"""Logistic noise on a real number: the dominating pair of the exponential mechanism, attained.

Of the density 1/(4 cosh²(y/2)), moved by θ scales, the loss 2·log(cosh(y/2)/cosh((y−θ)/2)) grows
with y from −θ to θ. Solved for e^y, P[loss > l] = (1 − e^{(l−θ)/2})/(1 − e^{−θ}): the losses of
`bounded_range` at range θ, whose profile is (1 − e^{(ε−θ)/2})²/(1 − e^{−θ}). Neighbours attain it
here, where the noise is that of a number; its Rényi curve is the pair's own moment, which exceeds
that of a choice of bounded range: the moment is sinh((2α−1)θ/2)/((2α−1)·sinh(θ/2)). A number that
moves by less is no easier to tell apart, as the density is log-concave. Derived for dpjax.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics.arrays import EPS, Numbers, namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.pairs.bounded_range import SELECTION, SelectionNumbers
from dpjax.accounting.pairs.finite import (
    EVERYTHING,
    MOST,
    NOTHING,
    Finite,
    bound_unknown,
    make_two_sided,
)
from dpjax.accounting.pairs.laplace import edges, over, root_cells
from dpjax.accounting.pairs.protocol import ClosedFormRelease, CurveRelease


class LogisticNumbers(NamedTuple):
    """How far the number moves over the noise's scale."""

    theta: Numbers


class LogisticRelease(ClosedFormRelease[LogisticNumbers], CurveRelease[LogisticNumbers]):
    """A real number with logistic noise."""

    tight = sampled = True

    def numbers(self, step: Any, adjacency: Adjacency) -> LogisticNumbers:
        return LogisticNumbers(over(step.noise_multiplier, adjacency))

    def largest(self, numbers: LogisticNumbers) -> Numbers:
        return numbers.theta

    def pair(self, numbers: LogisticNumbers, *, upper: bool) -> Finite:
        theta = float(numbers.theta)
        if theta > MOST:
            return EVERYTHING if theta == np.inf else bound_unknown(upper=upper)
        if theta == 0:
            return NOTHING
        losses, mass = root_cells(edges(theta), upper=upper)
        return make_two_sided(losses, mass / -np.expm1(-theta))

    def epsilon(self, numbers: LogisticNumbers, delta: Numbers) -> Numbers:
        return SELECTION.epsilon(SelectionNumbers(numbers.theta, 0.0), delta)

    def delta(self, numbers: LogisticNumbers, epsilon: Numbers) -> Numbers:
        return SELECTION.delta(SelectionNumbers(numbers.theta, 0.0), epsilon)

    def divergence(self, numbers: LogisticNumbers, orders: Numbers) -> Numbers:
        """Two ways to write the logarithm of the moment: near 0, and without large exponentials."""
        theta = numbers.theta
        xp = namespace(theta, orders)
        k, some = orders - 1, xp.where((theta > 0) & (theta < xp.inf), theta, 1.0)
        high = xp.minimum((k + 0.5) * xp.minimum(some, 1e100), 1e100)
        # Below 2 the moment is near 1, and its excess is a series; beyond, e^θ is taken out.
        small = high < 2
        a, h = xp.where(small, high, 1.0), xp.where(small, some / 2, 0.5)
        above, below = _log_sinhc(a), _log_sinhc(h)
        near = (above - below + 16 * EPS * (above + below)) / k  # what cancels
        counted, kept = xp.log1p(2 * k), _log_kept(some)
        far = some + (_log_kept(2 * xp.maximum(high, 1.0)) - counted - kept) / k
        far = far + 16 * EPS * (some + (counted - kept) / k)
        found = xp.minimum(xp.where(small, near, far), theta)
        return xp.where(theta < xp.inf, xp.where(theta > 0, found, 0.0), xp.inf)


def _log_kept(x: Numbers) -> Numbers:
    """log(1 − e^{−x}) of x > 0, to full relative precision."""
    xp = namespace(x)
    far = xp.log1p(-xp.exp(-xp.maximum(x, 0.5)))
    return xp.where(x < 0.5, xp.log(-xp.expm1(-x)), far)


def _log_sinhc(x: Numbers) -> Numbers:
    """log(sinh(x)/x) of 0 <= x < 2, to full relative precision."""
    xp = namespace(x)
    series = xp.ones_like(x)
    for n in range(15, 1, -1):
        series = 1 + x * x / (2 * n * (2 * n + 1)) * series  # Horner: Σ 6x^{2k}/(2k+3)!
    return xp.log1p(x * x / 6 * series)


LOGISTIC = LogisticRelease()
