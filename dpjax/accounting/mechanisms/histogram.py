"""Noisy histograms: every record is in one cell, and neighbours differ in one cell or in two.

PRODUCT  Replacing a record moves two cells by one each. Of a pair of independent discrete Gaussians
         of variance σ² the sum s is enough to tell the two data sets apart, since the losses
         (2y − 1)/2σ² add up, and P(s) ∝ e^{−(s−2)²/4σ²}·θ(s), θ(s) = Σₖ e^{−(k − s/2)²/σ²} over the
         integers. By Poisson summation θ at even and at odd s differs by a factor of at most
         1 + 5e^{−π²σ²}: for σ ≥ 3 by less than 1e-37, below rounding. So s is a discrete Gaussian
         of variance 2σ² that is moved by 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms.base import Mechanism, Real, number_field, register_mechanism
from dpjax.accounting.pairs.discrete_gaussian import DiscreteGaussianRelease, ShiftedGaussian
from dpjax.accounting.pairs.laplace import over


class HistogramRelease(DiscreteGaussianRelease):
    """One cell moved by one, or two cells, as one number: PRODUCT."""

    def numbers(self, step: Any, adjacency: Adjacency) -> ShiftedGaussian:
        mu = over(step.stddev, Adjacency.ADD_REMOVE)
        two = adjacency is Adjacency.REPLACE_ONE
        return ShiftedGaussian(mu * np.sqrt(2.0) if two else mu, 2.0 if two else 1.0)


@register_mechanism
class Histogram(Mechanism):
    """Counts of records in cells, each record in one cell, plus noise on the integers.

    Released: every count + Y, P(Y = k) ∝ e^{−k²/2σ²}, σ = stddev. A record that is added
    or removed moves one count by one; one that is replaced moves two, by √2 in the L2 norm and not
    by 2: less than `DiscreteGaussian` charges for it. Several histograms of the same records are
    several releases: `Repeated(Histogram(σ), d)` for d columns of a table.

    Fields:
        stddev: σ, of the noise of a count, in records, >= 3.

    Guarantee:
        The pair is attained by two data sets that differ in one record, alone and composed. The
        cells must be fixed before the records are read, or by what was released of them.

    Example:
        >>> from dpjax import accounting as acc
        >>> columns = acc.Repeated(acc.Histogram(40.0), 16)
        >>> gaussian = acc.epsilon(acc.Gaussian(10.0), 1e-5)
        >>> abs(acc.epsilon(columns, 1e-5) / gaussian - 1) < 1e-4
        True

    References:
        Canonne, Kamath, Steinke 2020 (the noise); PRODUCT in this file (replacing a record).
    """

    stddev: Real = number_field(3.0)

    released = (
        "counts of records in cells, one cell a record, plus discrete Gaussian noise of standard "
        "deviation {stddev}"
    )
    rests_on = (
        "every record is counted in one cell, of cells that were fixed before it was read or by "
        "what had been released",
        "the noise is discrete Gaussian, fresh at every step, and drawn independently of the data",
    )
    release = HistogramRelease()
