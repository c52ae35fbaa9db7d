"""Rényi curves of a user's records in a Poisson sample, in both directions, as upper bounds.

With the pair of `pairs.users`, r = Σ_j w_j e^{jμy − j²μ²/2} and g the standard normal density, the
moments are E_g[r^α] (remove) and E_g[r^{1−α}] (add), by the trapezoid rule on one grid for all
orders. The rule's error is bounded and added:

* Aliases. Where |b|·jμ < π for every j, r has no zero, |r(y + ib)| ≤ r(y) and
  |r(y + ib)| ≥ r(y)·cos(jμb/2), so that the relative error of step h is at most
  2e^{−2πb/h + b²/2}/(1 − e^{−2πb/h}), times cos(jμb/2)^{1−α} for the reverse.
* Cut ends. By Minkowski's inequality in L^α the part of E_g[r^α] beyond an end e is at most
  (Σ_j w_j (e^{α(α−1)j²μ²/2} Φ(∓(e − αjμ)))^{1/α})^α; r rises and is at least w₀, so that r^{1−α} is
  at most r(e)^{1−α} on the right and w₀^{1−α} on the left.

Where that is not enough closed bounds stand in: E_g[r^α] ≤ (Σ_j w_j e^{(α−1)j²μ²/2})^α (Minkowski)
and E_g[r^{1−α}] ≤ Σ_j w_j e^{α(α−1)j²μ²/2} (Jensen).

References:
  Ganesh 2024 (the pair); Trefethen and Weideman 2014, Theorem 5.1 (the trapezoid rule).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpjax._numerics import float64
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import UserLevel
from dpjax.accounting.pairs.counts import Binomial, few, mass_error
from dpjax.accounting.pairs.group import ADDED, GROUP
from dpjax.accounting.renyi.moments import ABSOLUTE, RELATIVE

_NODES = 4096  # on either side of 0
_ALIAS = 48.0  # aliases of the first moment are below e^{−48}
_STRIPS = np.geomspace(1e-3, 1.0, 40)  # of the widest
_FINEST = 10
_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)
_EPS = float(np.finfo(np.float64).eps)
_LOUDEST = 1e3  # μ beyond which no finite bound is looked for


def has_curve(step: UserLevel, adjacency: Adjacency) -> bool:
    """Whether it is a Poisson sample, a user's records added or removed."""
    own = GROUP.known(step, adjacency)
    return own is not None and own.release is ADDED


def curve(step: UserLevel, orders: Any, adjacency: Adjacency) -> np.ndarray:
    """The Rényi divergence of the larger direction at each order, shape S + [k], rounded up."""
    if float64.is_traced(step, orders):
        raise UnsupportedQuery(
            "the Rényi curve of UserLevel around a sample runs on the host and cannot be traced; "
            "acc.epsilon and acc.delta can"
        )
    own = GROUP.known(step, adjacency)
    assert own is not None
    orders = np.asarray(orders, np.float64)
    fields = np.broadcast_arrays(*own.numbers, own.rate)
    shape = np.broadcast_shapes(fields[0].shape, orders.shape[:-1])
    mu, records, rate = (np.broadcast_to(v, shape) for v in fields)
    every = np.broadcast_to(orders, (*shape, orders.shape[-1]))
    found = np.empty(every.shape)
    for at in np.ndindex(*shape):
        good = (every[at] > 1) & (every[at] < np.inf)
        alpha = np.where(good, every[at], 2.0)
        value = _divergence(float(mu[at]), float(records[at]), float(rate[at]), alpha)
        found[at] = np.where(good & ~np.isnan(value), value, np.inf)
    return found


def _divergence(mu: float, records: float, rate: float, alpha: np.ndarray) -> np.ndarray:
    if mu == 0 or rate == 0:
        return np.zeros_like(alpha)
    if not mu < _LOUDEST:
        return np.full_like(alpha, np.inf)
    law = Binomial(records, rate)
    j, weight = few(law, True)
    # Moved to where they count most; together they are one.
    taking = weight[1:] * (1 + mass_error(law))
    weight = np.append(max(1 - taking.sum(), weight[0] * (1 - 1e-9)), taking)
    with np.errstate(all="ignore"):
        log_moment = np.maximum(*_log_moments(mu * j, weight, alpha))
    value = log_moment / (alpha - 1) * (1 + RELATIVE)
    return np.maximum(value, 0.0) + ABSOLUTE


def _log_moments(
    shift: np.ndarray, weight: np.ndarray, alpha: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """log E_g[r^α] and log E_g[r^{1−α}], upper bounds."""
    from scipy import special

    top, log_w = shift[-1], np.log(weight)
    square = 0.5 * shift * shift
    c, more = alpha - 1, alpha[:, None]
    first = alpha * special.logsumexp(log_w + (more - 1) * square, axis=1)
    second = special.logsumexp(log_w + more * (more - 1) * square, axis=1)
    second = np.minimum(second, -c * log_w[0])
    log_w_square = log_w - square
    widest = min(0.9 * np.pi / top, 6.0)
    h = 2 * np.pi * widest / (_ALIAS + 0.5 * widest**2)
    log_r, log_g, end = _grid(h, shift, log_w_square)
    shown = _shown(widest, h)
    # Φ of what lies beyond either end, for every order and component.
    lost = [special.log_ndtr(s * more * shift - end) for s in (1, -1)]
    tails = [log_w + ((more - 1) * square) + part / more for part in lost]
    cut = [alpha * special.logsumexp(part, axis=1) for part in tails]
    remove = _sum(alpha, log_r, log_g, np.full_like(alpha, shown), np.logaddexp(*cut))
    # The reverse turns faster at a high order: grids of halved steps, as many as that needs.
    needed = 2 * np.pi / np.sqrt(2 * _ALIAS * (1 + 0.25 * c * top * top))
    level = np.clip(np.ceil(np.log2(h / needed)), 0, _FINEST)
    add = np.full_like(alpha, np.inf)
    for fine in np.unique(level):
        some, step = level == fine, h / 2**fine
        log_r, log_g, end = _grid(step, shift, log_w_square)
        right = -c[some] * log_r[-1] + special.log_ndtr(-end)
        left = -c[some] * log_w[0] + special.log_ndtr(-end)
        b = widest * _STRIPS
        bend = -np.log(np.cos(0.5 * top * b))
        alias = np.min(_shown(b, step) + c[some, None] * bend, axis=1)
        add[some] = _sum(1 - alpha[some], log_r, log_g, alias, np.logaddexp(left, right))
    return np.fmin(first, remove), np.fmin(second, add)


def _grid(h: float, shift: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """log r and log of the rule's weights on nodes a distance h apart, and where they end."""
    from scipy import special

    y = h * np.arange(-_NODES, _NODES + 1)
    log_r = np.empty_like(y)
    for rows in np.array_split(np.arange(len(y)), 16):
        log_r[rows] = special.logsumexp(level + y[rows, None] * shift, axis=1)
    return log_r, np.log(h) - 0.5 * y * y - _HALF_LOG_2PI, float(y[-1])


def _shown(b: Any, h: float) -> Any:
    """log of the aliases of step h in a strip of half-width b, but for how the function turns."""
    return np.log(2.0) + 0.5 * b * b - 2 * np.pi * b / h - np.log(-np.expm1(-2 * np.pi * b / h))


def _sum(
    power: np.ndarray, log_r: np.ndarray, log_g: np.ndarray, alias: np.ndarray, cut: np.ndarray
) -> np.ndarray:
    """log of Σ g·r^power and of what it may be off by: aliases, relative, and the cut ends.

    Small moments by 1 + E[r^p − 1 − p(r − 1)], whose terms are not negative, as E[r] = 1.
    """
    found = np.empty_like(power)
    rise, mass = np.expm1(np.minimum(log_r, 300.0)), np.exp(log_g)
    for i, p in enumerate(power):
        value = log_g + p * log_r
        high = value.max()
        total = high + np.log(np.exp(value - high).sum())
        rounding = _EPS * (64 + 4 * abs(total) + np.abs(p * log_r[value > high - 40]).max())
        total = np.logaddexp(total + rounding + np.exp(min(alias[i], 50.0)), cut[i])
        if total < 0.05:
            grown = np.expm1(np.minimum(p * log_r, 300.0))
            off = 8 * _EPS * (mass @ (np.abs(grown) + abs(p) * np.abs(rise)))
            # The sums of g and of g·r have aliases and ends of their own.
            beyond = (2 + abs(p)) * (np.exp(min(alias[i], 50.0)) + np.exp(cut[i]) + _EPS)
            small = mass @ (grown - p * rise) + off + beyond
            total = min(total, np.log1p(max(small, 0.0)))
        found[i] = total
    return found
