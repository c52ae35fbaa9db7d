"""The coefficients b_k(s) of random allocation's moments on a ray, and the power of their series.

    D_n(s) = n! [yⁿ] (Σ_k b_k(s) y^k)^t,   b_k(s) = E[(X/t)^k e^{−sX/t}]/k!,

as `pairs.allocation_rays` needs them, which says what bounds what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpjax._numerics.arrays import NUMPY
from dpjax.accounting.pairs import allocation_moments as moments

_EPS = float(np.finfo(np.float64).eps)
_MOST_NODES = 3e5  # in u and z together, of one band
_MOST_COEFFICIENTS = 5e5  # nodes in u times the orders of b_k
_BLOCK = 30_000
_MOST_WORK = 5e7  # products of one band
_FEW = 16  # orders that are all computed
_LEFT_OUT = 60.0  # logarithm of what a b_k that is not computed may count for
_GROUP = 4  # neighbouring nodes that share a bound
_LEAST, _LEAST_ALONE = 1e-140, 1e-250  # of b_0 that others are divided by, and without others
_COLUMNS = 1024  # numbers of a coefficient that are worked on at a time


class Powers(NamedTuple):
    """b_k at the nodes of a ray.

    Fields:
        less: b_0 − 1 where |b_0|² > 1/2, else NaN.
        b, delta: the first b_k, a row each, and bounds on their errors.
        rest: bounds on the further ones up to n, at all nodes; they are taken for 0.
    """

    less: np.ndarray
    b: np.ndarray
    delta: np.ndarray
    rest: np.ndarray


def joined(parts: Sequence[Powers]) -> Powers:
    """The nodes of several rays, of the same μ, t and n, side by side."""
    rows = max(len(part.b) for part in parts)

    def filled(part: Powers) -> tuple[np.ndarray, np.ndarray]:
        more = np.zeros((rows - len(part.b), part.b.shape[1]))
        errors = part.rest[: len(more), None] + more
        return np.concatenate([part.b, more]), np.concatenate([part.delta, errors])

    b, delta = zip(*(filled(part) for part in parts), strict=True)
    less = np.concatenate([part.less for part in parts])
    least = min(parts, key=lambda part: len(part.rest)).rest
    return Powers(less, np.concatenate(b, axis=1), np.concatenate(delta, axis=1), least)


def powers(
    mu: float, t: float, n: int, theta: float, first: float, h: float, nodes: int, depth: float
) -> tuple[Powers, np.ndarray] | None:
    """b_k on the ray, with spacing at most h, and the nodes v that were taken."""
    psi = 0.5 * np.pi - theta
    beta = min(1.5, theta / mu)
    rise = min(psi / mu, 2.0)
    up = beta + rise
    down = min((0.5 * np.pi + theta) / mu - beta, up)
    hz = (
        2 * np.pi * min(up / (depth + 0.5 * rise * rise), down / (depth + 0.5 * (beta + down) ** 2))
    )
    # Spacings in v and in μz that are multiples of one another.
    last = first + h * nodes
    if mu * hz >= h:
        stride_z, stride_v = int(mu * hz / h), 1
        hz = stride_z * h / mu
    else:
        stride_z, stride_v = 1, int(h / (mu * hz))
        h = stride_v * mu * hz
    nodes = int(np.ceil((last - first) / h)) + 1
    width = np.sqrt(2 * depth)
    many = int(np.ceil((n * mu + 2 * width) / hz)) + 1
    points = stride_v * (nodes - 1) + stride_z * (many - 1) + 1
    last = first + h * (nodes - 1)
    terms = _terms(mu, t, n, np.cos(theta) * np.exp(min(last, 50.0)) / t)
    work = nodes * many * (terms + 4)
    if (
        points > _MOST_NODES
        or nodes * (n + 1) > (_MOST_COEFFICIENTS if t >= n else _MOST_NODES)
        or work > _MOST_WORK
    ):
        return None
    z = -width + hz * np.arange(many)
    v = first + h * np.arange(nodes)
    shift = -0.5 * mu * mu - np.log(t)
    place = first + mu * z[0] + shift + h / stride_v * np.arange(points)
    alpha = theta - mu * beta
    size = np.exp(np.minimum(place, 700.0))
    re, im = -size * np.cos(alpha), -size * np.sin(alpha)
    with np.errstate(invalid="ignore", under="ignore"):
        grown = np.exp(re)
        cos, sin = np.cos(im), np.sin(im)
        less = np.expm1(re) * cos - 2 * np.sin(0.5 * im) ** 2 + 1j * grown * sin
        turned = grown * (cos + 1j * sin)
        # Rounding of a node: that of its exponent, which is as large as `size`, times its slope.
        off = (4 + 4 * (1 + np.abs(place)) * size) * grown
        off_less = 4 * np.abs(less) + np.minimum(off, 4 * (1 + np.abs(place)) * size)
    # g(z − iβ) = g(z)e^{β²/2 + iβz}, and X^k turns by −kμβ.
    k = np.arange(terms + 1.0)
    height = 0.5 * z * z + 0.5 * np.log(2 * np.pi)
    log_weight = np.log(hz) + 0.5 * beta * beta - height[:, None]
    log_weight = log_weight + k * (mu * z[:, None] + shift) - moments.log_factorials(terms)
    modulus = np.exp(log_weight)
    angle = beta * z[:, None] - k * mu * beta
    weight = modulus * (np.cos(angle) + 1j * np.sin(angle))
    units = 8 + 4 * height[:, None] + 4 * k * (np.abs(mu * z[:, None]) + abs(shift))
    units = modulus * (units + 4 * np.abs(angle) + many)

    def shifted(row: np.ndarray) -> np.ndarray:
        step = row.strides[0]
        strides = (stride_v * step, stride_z * step)
        return np.lib.stride_tricks.as_strided(row, (nodes, many), strides, writeable=False)

    # Two columns: a single one would be a product that is spread over threads.
    b0_less = product_of(shifted(less), weight[:, [0, 0]])[:, 0]
    less_off = product_of(shifted(np.abs(less)), units[:, [0, 0]])[:, 0]
    less_off += product_of(shifted(off_less), modulus[:, [0, 0]])[:, 0]
    every = slice(None) if terms else [0, 0]
    b = np.ascontiguousarray(product_of(shifted(turned), weight[:, every])[:, : terms + 1].T)
    delta = product_of(shifted(grown), units[:, every])
    delta += product_of(shifted(off), modulus[:, every])
    delta = np.ascontiguousarray(delta[:, : terms + 1].T)
    # b_0 from b_0 − 1 where that is small, and from its own sum where it is small itself.
    near = np.abs(1 + b0_less) ** 2 > 0.5
    b[0] = np.where(near, 1 + b0_less, b[0])
    delta[0] = np.where(near, less_off, delta[0])
    # Cut ends, and both aliases; |e^{−sX} − 1| ≤ 2 for k = 0.
    eta = 2 * np.exp(0.5 * beta * beta - depth)
    eta += 2.1 * np.exp(0.5 * rise * rise - 2 * np.pi * up / hz)
    eta += 2.1 * np.exp(0.5 * (beta + down) ** 2 - 2 * np.pi * down / hz)
    # What is not computed is 0, off by at most its size at s = 0.
    whole = np.exp(moments.log_coefficients(mu, t, n))
    delta = _EPS * delta + eta * whole[: terms + 1, None]
    return Powers(np.where(near, b0_less, np.nan), b, delta, whole[terms + 1 :]), v


def _terms(mu: float, t: float, n: int, real: float) -> int:
    """Up to which k the b_k count: with X = 1, b_k/b_0 = t^{−k}/k!, so that c_m is C(t, m)t^{−m}.

    A b_k that is left out is one of the errors, of c_{n−k}·t·b_k/b_0 with b_0 about e^{−real}.
    """
    if t < n or n < _FEW:
        return n
    m = n - np.arange(n + 1.0)
    size = NUMPY.gammaln(t + 1) - NUMPY.gammaln(m + 1) - NUMPY.gammaln(t - m + 1) - m * np.log(t)
    share = moments.log_coefficients(mu, t, n) + size - size[0] + np.log(t) + real
    return max(int(np.flatnonzero(share > -_LEFT_OUT)[-1]), 1)


def product_of(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """rows @ columns in blocks that stay in the cache, and too small to be spread over threads."""
    inner = max(_BLOCK // (8 * columns.shape[1]), 1)
    if inner < len(columns) and len(rows) * columns.size > _BLOCK:
        parts = (slice(k, k + inner) for k in range(0, len(columns), inner))
        return sum(product_of(rows[:, part], columns[part]) for part in parts)  # pyrefly: ignore
    few = max(_BLOCK // columns.size, 2)
    starts = range(0, len(rows), few)
    return np.concatenate([rows[start : start + few] @ columns for start in starts])


def _product(f: np.ndarray, g: np.ndarray) -> np.ndarray:
    return np.array([np.sum(f[: m + 1] * g[m::-1], axis=0) for m in range(len(f))])


def _recurrence(ratio: np.ndarray, t: float, order: int) -> np.ndarray:
    """Coefficients of (1 + Σ_{k≥1} r_k y^k)^t up to `order`, of r_k that are 0 beyond the rows.

    c_m = Σ_k (k(t + 1) − m) r_k c_{m−k}/m, some columns at a time, which stay in the cache.
    """
    found = np.empty((order + 1, ratio.shape[1]), ratio.dtype)
    found[0] = 1
    k, width = np.arange(len(ratio), dtype=float), ratio.dtype.itemsize // 8
    for start in range(0, ratio.shape[1], _COLUMNS // width):
        columns = slice(start, start + _COLUMNS // width)
        own, part = np.ascontiguousarray(ratio[1:, columns]), np.empty_like(found[:, columns])
        part[0] = 1
        real = part.view(float)  # of a complex number both of its parts
        for m in range(1, order + 1):
            some = min(m, len(own))
            factor = (k[1 : some + 1] * (t + 1) - m) / m
            terms = own[:some] * part[m - some : m][::-1]
            np.einsum("k,kv->v", factor, terms.view(float), out=real[m])
        found[1:, columns] = part[1:]
    return found


def _shared(values: np.ndarray, largest: bool) -> np.ndarray:
    """The largest, or the least, of neighbouring nodes."""
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % _GROUP)), mode="edge")
    grouped = padded.reshape(len(values), -1, _GROUP)
    return grouped.max(axis=2) if largest else grouped.min(axis=2)


def nth(at: Powers, t: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """[yⁿ](Σ b_k y^k)^t as size·e^{log}, and a bound on its error likewise."""
    n, nodes = len(at.b) + len(at.rest) - 1, at.b.shape[1]
    b, delta = at.b, at.delta
    size = np.abs(b)
    major = size + delta
    if n and t < n:  # so few that no quotient is needed, and every b_k is known
        top, most = moments.power(b, round(t), _product), moments.power(major, round(t), _product)
        others = np.zeros_like(major)
        others[0] = 1
        if t > 1:
            others = moments.power(major, round(t) - 1, _product)
        lost = t * np.sum(delta * others[::-1], axis=0) + 8 * _EPS * (n + 2) * t * most[n]
        zero = np.zeros(nodes)
        return top[n], zero + 0j, lost, zero
    square = 2 * at.less.real + at.less.real**2 + at.less.imag**2
    near = ~np.isnan(square)
    # Quotients of a b_0 below this may overflow; where it is, the value is taken for 0.
    least_size = _LEAST_ALONE if n == 0 else _LEAST
    tiny, own = size[0] < least_size, np.maximum(size[0], least_size)
    log = np.where(near, 0.5 * np.log1p(np.where(near, square, 0.0)), np.log(own))
    log = t * (log + 1j * np.angle(b[0]))
    log_major = t * np.where(near, log.real / t + np.log1p(delta[0] / own), np.log(major[0]))
    if n == 0:
        top, most = np.ones(nodes), np.ones((1, nodes))
        whole = most[0]
    else:
        terms = int(np.flatnonzero(np.any(b, axis=1))[-1])
        top = _recurrence(b[: terms + 1] / np.where(tiny, _LEAST, b[0]), t, n)[n]
        ratio, least, times = major / major[0], major[:1], 1
        if nodes >= 16 * _GROUP:
            ratio, least, times = _shared(ratio, True), _shared(least, False), _GROUP
        most = _recurrence(np.concatenate([ratio, at.rest[:, None] / least]), t, n)
        whole = np.repeat(most[n], times)[:nodes]
        most = np.concatenate(
            [most[n - len(b) + 1 :][::-1], at.rest[None] @ most[: n - len(b) + 1][::-1]]
        )
        most = np.repeat(most, times, axis=1)[:, :nodes]
    # Σ_k of the k-th error times the coefficient that it meets, the last row being the rest's.
    lost = np.sum(delta * most[: len(b)], axis=0)
    lost = t / major[0] * (lost + (most[-1] if len(at.rest) else 0.0))
    # Of the recurrence: m sums and quotients for c_m, on top of those of c_{m−1}.
    lost = lost + _EPS * (0.5 * n * n + 16 * n + 16 + 8 * np.abs(log)) * most[0]
    return np.where(tiny, 0.0, top), log, np.where(tiny, whole, lost), log_major
