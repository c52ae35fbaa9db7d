"""Mixtures of unit Gaussians as one pair: a way of sampling is a table of weights.

    P = Σ_i p_i N(m_i, 1)  against  Q = Σ_i q_i N(m_i, 1).

| sampling | means | p | q |
|---|---|---|---|
| Poisson, a record removed | 0, μ | 1 − q, q | 1, 0 |
| Poisson, a record added | 0, μ | 1, 0 | 1 − q, q |
| Poisson, a record replaced | −μ, 0, μ | 0, 1 − q, q | q, 1 − q, 0 |
| Poisson, k records of a user | 0, μ, …, kμ | Bin(k, q) | 1, 0, … |
| the same, replaced | −kμ, …, kμ | 0, …, Bin(k, q) | Bin(k, q) reversed, 0, … |

A fixed batch, a record replaced, is the first row folded at μ/2, where p = q. Under add-remove the
first two rows dominate (Zhu, Dong, Wang 2022). That two opposite contributions are the worst when a
record is replaced was confirmed for dpjax by a search over both records' positions.

References:
  Zhu, Dong, Wang 2022, "Optimal accounting of differential privacy via characteristic function";
  Ganesh 2024 (arXiv 2401.10294), "Tight group-level DP guarantees for DP-SGD with sampling".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpjax._numerics.arrays import NUMPY, Numbers, namespace, tree_map
from dpjax.accounting.pairs.pair import Folded, Spread

_MOST_EXPONENT = 30.0  # exponents of which e^x − 1 may be summed
Ends = tuple[Numbers, Numbers]  # the least and the greatest
_NARROWEST = 1e-12  # a width that stands for none at all, so that it may divide


class Mixture(NamedTuple):
    """Two mixtures of N(m_i, 1), the means ascending, by their densities p and q over N(0, 1).

    Fields:
        means: m_i.
        p, q: weights, which sum to 1.
    """

    means: Numbers
    p: Numbers
    q: Numbers

    def logs(self, y: Numbers) -> tuple[Numbers, Numbers]:
        """Return log p and log q at real y, to about twelve digits."""
        return _terms(self.p, self.means, y)[0], _terms(self.q, self.means, y)[0]

    def spread(self, y: Numbers) -> tuple[Spread, Spread]:
        """Return what log p and log q are made of at y."""
        return _spread(self.p, self.means, y), _spread(self.q, self.means, y)

    def turned(
        self, shares: tuple[Numbers, Numbers], b: Numbers
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Return log |p(y + ib)/p(y)|, log |q(y + ib)/q(y)| and arg p − arg q, real arithmetic.

        By SECTOR: about the middle mean no term turns by more than b·width/2 < π/2.
        The turn of the middle mean is common to p and q, so that it drops out of arg p − arg q.
        """
        xp = namespace(self, b)
        low, high = self._ends()
        middle = 0.5 * (low + high)
        # e^{i(m − middle)b}, each of modulus 1
        angle = (self.means - middle).reshape((-1,) + (1,) * b.ndim) * b
        cos, sin = xp.barrier((xp.cos(angle), xp.sin(angle)))
        parts = []
        for share, weight in zip(shares, (self.p, self.q), strict=True):
            used = (weight > 0) if xp is NUMPY else slice(None)
            rows = share.reshape((share.shape[0],) + (1,) * (b.ndim - 1) + (-1,))
            parts.append((xp.sum(rows * cos[used], axis=0), xp.sum(rows * sin[used], axis=0)))
        (re, im), (re_q, im_q) = parts
        # arg of p times the conjugate of q
        turn = xp.arctan2(im * re_q - re * im_q, re * re_q + im * im_q)
        size, size_q = (0.5 * xp.log(u * u + v * v) for u, v in parts)
        return size, size_q, turn

    def _ends(self) -> tuple[Numbers, Numbers]:
        xp = namespace(self)
        (p0, p1), (q0, q1) = self.slopes()
        return xp.minimum(p0, q0), xp.maximum(p1, q1)

    def slopes(self) -> tuple[Ends, Ends]:
        """Return the ranges of (log p)′ and (log q)′, means of the m_i that weigh something."""
        return _support(self.p, self.means), _support(self.q, self.means)

    def slope_of_q(self, y: Numbers) -> Numbers:
        """Return (log q)′ at y, which rises: its derivative is a variance."""
        xp = namespace(self, y)
        _, (m, _, _, _, _, size) = _terms(self.q, self.means, y)
        # the mean of the m_i under the terms' shares
        return xp.sum(size * m, axis=0) / xp.sum(size, axis=0)

    def width(self) -> Numbers:
        """Return the width w of both ranges together: p and q have no zero for |Im y| < π/w."""
        low, high = self._ends()
        return namespace(self).maximum(high - low, _NARROWEST)

    def direction(self) -> Numbers:
        """Return 1 where p/q rises on the line, −1 where it falls, 0 where that is not known.

        p/q rises if p_i/q_i does (Chebyshev): all p_i·q_j − p_j·q_i ≥ 0 for i > j.
        """
        xp = namespace(self)
        # p_i q_j − p_j q_i for all pairs i, j
        cross = xp.outer(self.q, self.p) - xp.outer(self.p, self.q)
        above = np.triu(np.ones(cross.shape), 1) > 0
        rising, falling = (xp.all(xp.where(above, s * cross, 0.0) >= 0) for s in (1, -1))
        return xp.where(rising, 1.0, xp.where(falling, -1.0, 0.0))

    def reversed(self) -> Mixture:
        """Return the pair with P and Q exchanged."""
        return Mixture(self.means, self.q, self.p)

    def turned_round(self) -> Mixture:
        """Return the same on the line turned round: y for −y."""
        return Mixture(-self.means[::-1], self.p[::-1], self.q[::-1])

    def still(self) -> Mixture:
        """Return the change in which the means alone move, by themselves."""
        return Mixture(self.means, 0.0 * self.p, 0.0 * self.q)

    def moved(self, y: Numbers, by: Mixture) -> tuple[Numbers, Numbers]:
        """Return the derivatives of log p and log q at y, where means and weights change so."""
        xp = namespace(self, y)

        def one(weight: Numbers, change: Numbers) -> Numbers:
            w, dw, m, dm = (v[:, None] for v in (weight, change, self.means, by.means))
            faster = dw + w * dm * (y - m)  # d(w e^{x})/e^{x}, dx = (y − m) dm
            term = xp.exp(xp.minimum(m * (y - 0.5 * m) - _terms(weight, self.means, y)[0], 700.0))
            return xp.sum(xp.where(faster == 0, 0.0, faster * term), axis=0)

        return one(self.p, by.p), one(self.q, by.q)


def concrete_mixture(means: np.ndarray, p: np.ndarray, q: np.ndarray) -> Mixture:
    """Return the pair of one concrete setting."""
    return Mixture(*(NUMPY.asarray(v) for v in (means, p, q)))


def _support(weight: Numbers, means: Numbers) -> tuple[Numbers, Numbers]:
    xp = namespace(weight, means)
    used = weight > 0
    return xp.min(xp.where(used, means, np.inf)), xp.max(xp.where(used, means, -np.inf))


def _terms(weight: Numbers, means: Numbers, y: Numbers) -> tuple[Numbers, tuple[Numbers, ...]]:
    """Return log Σ w_i e^{x_i}, x_i = m_i y − m_i²/2, and what it is made of."""
    xp = namespace(weight, means, y)
    if xp is NUMPY:
        weight, means = weight[weight > 0], means[weight > 0]
    m = means.reshape((-1,) + (1,) * y.ndim)
    w = weight.reshape(m.shape)
    shift = m * (y - 0.5 * m)
    if m.shape[0] == 1:  # a plain normal law
        exponent = shift + xp.log(w)
        return exponent[0], (m, w, shift, exponent, exponent[0], xp.ones_like(shift))
    exponent = shift + xp.log(w)
    top = xp.max(exponent, axis=0)  # log-sum-exp about the largest term
    size = xp.exp(exponent - top)
    return top + xp.log(xp.sum(size, axis=0)), (m, w, shift, exponent, top, size)


def _spread(weight: Numbers, means: Numbers, y: Numbers) -> Spread:
    """As Σw_i = 1, log Σ w_i e^{x_i} is log(1 + Σ w_i(e^{x_i} − 1)), which keeps its digits.

    Losses of rarely sampled records are that small.
    """
    xp = namespace(weight, means, y)
    plain, (m, w, shift, exponent, top, size) = _terms(weight, means, y)
    moved = w * xp.expm1(
        xp.minimum(shift, _MOST_EXPONENT)
    )  # Σ w_i(e^{x_i} − 1), without cancellation
    excess = xp.sum(moved, axis=0)
    near = (xp.max(xp.where(w > 0, shift, 0.0), axis=0) < _MOST_EXPONENT) & (excess > -0.5)
    value = xp.where(near, xp.log1p(xp.maximum(excess, -0.5)), plain)
    total, terms = xp.sum(size, axis=0), 0.5 * xp.sum(w > 0)
    share = size / total
    mean = xp.sum(share * m, axis=0)
    # An error of a term moves the logarithm of the sum by the term's share. Half a unit of every
    # product and sum, one of a logarithm, two of an exponential, one and a half of the weight.
    exponent = xp.where(share > 0, exponent, 0.0)
    of_shift = xp.sum(share * 2.5 * xp.abs(shift), axis=0)
    far = of_shift + xp.sum(2 * share * xp.abs(exponent), axis=0) + xp.abs(top) + xp.abs(value)
    far = far + 4 * (1 - 1 / total) + terms + 1.5
    # e^x − 1 is off by the exponent's error times e^x and four units; log(1 + x) by four units.
    small = of_shift + (4 + terms) * xp.sum(xp.abs(moved), axis=0) * xp.exp(-value)
    small = small + 4 * xp.abs(value)
    # the second derivative of log Σ
    variance = xp.sum(share * (m - mean) ** 2, axis=0)
    return Spread(value, share, mean, variance, xp.where(near, small, far))


def poisson_mixture(mu: Numbers, rate: Numbers) -> Mixture:
    """Return the pair of a record removed from a Poisson sample; its reverse is of one added."""
    xp = namespace(mu, rate)
    zero = 0.0 * mu
    weight = xp.stack([1 - rate, rate + zero], axis=-1), xp.stack([1 + zero, zero], axis=-1)
    return Mixture(xp.stack([zero, mu], axis=-1), *weight)


def replace_one(mu: Numbers, rate: Numbers) -> Mixture:
    """Return the antipodal pair of a record replaced in a Poisson sample, its own mirror image."""
    xp = namespace(mu, rate)
    zero = 0.0 * mu
    p = xp.stack([zero, 1 - rate, rate + zero], axis=-1)
    q = xp.stack([rate + zero, 1 - rate, zero], axis=-1)
    return Mixture(xp.stack([-mu, zero, mu], axis=-1), p, q)


def symmetrised(mu: Numbers, rate: Numbers) -> Folded:
    """Return the folded pair of a record replaced in a fixed batch: C_q(G_μ)."""
    xp = namespace(mu, rate)
    return Folded(poisson_mixture(mu, rate), 0.5 * mu, (1 - rate) * xp.erf(mu / math.sqrt(8.0)))


def moves(table: Callable, mu: Numbers, rate: Numbers) -> tuple[Mixture | Folded, Mixture | Folded]:
    """Return how a pair changes with μ and with the rate, as a pair of such changes.

    The means are multiples of μ; the weights, and an atom's mass, are affine in the rate.
    """
    xp = namespace(mu, rate)
    one = xp.ones_like(mu)
    # affine in the rate: the difference of its two ends
    by_rate = tree_map(lambda a, b: a - b, table(mu, one), table(mu, 0.0 * one))
    unit = table(one, rate)
    if isinstance(unit, Folded):
        # of the atom (1−q)·erf(μ/√8), by μ
        density = xp.exp(-0.125 * mu * mu) / math.sqrt(2 * math.pi)
        return Folded(unit.pair.still(), unit.start, (1 - rate) * density), by_rate
    return unit.still(), by_rate


def added_records(mu: float, number: np.ndarray, weight: np.ndarray) -> Mixture:
    """Return the pair of a user of whose records `number` are in a batch, with these weights.

    Args:
        mu: how far one record moves the sum, over the noise's standard deviation.
        number, weight: as of `batches.merge_weights`, ascending.
    """
    absent = np.where(number == 0, 1.0, 0.0)
    if not absent.any():
        ahead = (0.0, number), (0.0, weight), (1.0, absent)
        number, weight, absent = (np.append(one, rest) for one, rest in ahead)
    return concrete_mixture(number * mu, weight / np.sum(weight), absent)


def replaced_records(mu: float, number: np.ndarray, weight: np.ndarray) -> Mixture:
    """Return the same of records that are replaced by opposite ones, its own mirror image."""
    weight = weight / np.sum(weight)  # masses of P sum to one
    some = number > 0
    nothing = np.sum(weight[~some])
    means = np.concatenate([-number[some][::-1], [0.0], number[some]]) * mu
    # P moves one way, Q the other, alike when none is drawn
    p = np.concatenate([0.0 * weight[some], [nothing], weight[some]])
    return concrete_mixture(means, p, p[::-1].copy())
