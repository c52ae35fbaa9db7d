"""E[e^{itL}] − 1 at evenly spaced t, as the product of two small matrices."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from jaxtyping import Array

from dpjax._numerics.arrays import NUMPY, namespace

_EPS = float(np.finfo(np.float64).eps)
_PART = 512  # nodes whose powers are formed at a time, where there are many


def multiples(first: tuple, step: tuple, count: int) -> tuple[Array, Array]:
    """Rows F_j, F_{j+k}, F_{j+2k}, … of F_k = e^{ikθ} − 1, from F_j and F_k.

    F_{j+k} = F_j + F_k + F_jF_k; a sine costs as much as twenty of these. An error in F_1 grows to
    k times it, as it would in kθ.
    """
    xp: Any = namespace(first, step)
    if xp is NUMPY:  # by doubling
        rows: Any = np.empty((count, *first[0].shape), complex)
        rows[0], far = first[0] + 1j * first[1], step[0] + 1j * step[1]
        done = 1
        while done < count:
            more = min(done, count - done)
            rows[done : done + more] = rows[:more] + far + rows[:more] * far
            far, done = 2 * far + far * far, done + more
        return rows.real, rows.imag
    real, imag = step

    def following(row: tuple, _: None) -> tuple[tuple, tuple]:
        re, im = row
        return (re + (real + (re * real - im * imag)), im + (imag + (re * imag + im * real))), row

    return xp.scan(following, first, None, length=count)[1]


def powers(loss: Array, spacing: Array, blocks: int) -> tuple[Array, Array]:
    """1 and the parts of e^{it_kL} − 1: for k ≤ blocks/2 (rows), in the blocks' middles (columns).

    A block is that many successive points, of which those before the middle are reached by the
    conjugate rows.
    """
    xp: Any = namespace(loss, spacing)
    half = blocks // 2

    def first(multiple: int) -> tuple[Array, Array]:
        angle = multiple * spacing * loss
        return -2 * xp.sin(0.5 * angle) ** 2, xp.sin(angle)

    nothing, ones = 0.0 * loss, xp.ones_like(loss)[None]
    fine = multiples((nothing, nothing), first(1), half + 1)
    coarse = multiples(tuple(part[half] for part in fine), first(blocks), blocks)
    return xp.concatenate([ones, *fine]), xp.concatenate([ones, *coarse])


def product(rows: Array, columns: Array, weight: Array) -> tuple[Array, Array]:
    """Σ weight·(e^{it_kL} − 1) at t_k = k·spacing, k < blocks², from `powers`.

    With F = e^{itL} − 1, which is small where tL is and is formed without cancellation,
    ΣwF_{a+b} = ΣwF_a + ΣwF_b + ΣwF_aF_b, and F_{−b} is the conjugate of F_b; the row of ones gives
    the first two, and the first half block, where F_{a−b} would cancel, by itself.
    """
    xp: Any = namespace(rows, columns, weight)
    blocks = (columns.shape[0] - 1) // 2
    half = blocks // 2
    rows = rows * weight
    columns, rows = xp.barrier((columns, rows))
    product = columns @ rows.T
    top, re, im = slice(0, 1), slice(1, blocks + 1), slice(blocks + 1, None)
    far_re, far_im = slice(1, half + 2), slice(half + 2, None)
    both = product[re, far_re], product[im, far_im]
    mixed = product[im, far_re], product[re, far_im]
    real, imag = product[re, top] + product[top, far_re], product[im, top]
    turn = product[top, far_im]
    after = real + (both[0] - both[1]), imag + turn + (mixed[0] + mixed[1])
    before = real + (both[0] + both[1]), imag - turn + (mixed[0] - mixed[1])
    found = []
    for start, left, right in zip((product[top, far_re], turn), before, after, strict=True):
        left = xp.concatenate([start[:, :half], left[1:, half:0:-1]])
        found.append(xp.concatenate([left, right[:, : blocks - half]], axis=1).reshape(-1))
    return found[0], found[1]


@functools.cache
def ways(blocks: int) -> np.ndarray:
    """How far to each point by way of its block's middle, in the first block straight."""
    k = np.arange(blocks * blocks)
    middle = k // blocks * blocks + blocks // 2
    return np.where(k < blocks, k, middle + np.abs(k - middle)).astype(float)


def terms(nodes: int) -> int:
    """How often a term of `transform` is rounded at most in its sum over so many nodes."""
    return nodes if nodes < 2 * _PART else _PART - (-nodes // _PART)


def rounding(way: Array, spread: Array, blocks: int, nodes: int) -> Array:
    """Bound on the rounding of `transform` at points on such a way; spread is E|L|.

    Units are of eps, of which a correct operation is off by half; |F| ≤ min(t|L|, 2) in all.

    * Of the first angles and their sines, within two units in the last place: 6 of the angle, and
      as F_{a+b} is off by F_a's error times |1 + F_b| = 1 and F_b's, as many times the way.
    * Of every step from F_a and F_b, b ≤ a, to F_{a+b}: (√5|F_aF_b| + |F_a + F_b| + |F_{a+b}|)/2,
      which is at most 2.2 units of (a + b)|θ| and at most 7.5. It takes fewer than k steps to F_k,
      one by one as by doubling, which repeats steps: of B blocks fewer than B from the first middle
      to a middle m ≥ 3Bh/2, and B/2 each to half a block's t, in all at most 10(Bm + B²h/2) ≤ 14Bm
      with 10 for 2.2; in the first block B/2 to t. Fewer than 2B steps are at most 15B.
    * Of the sums, whose terms are rounded so many times: half of Σw times the modulus of
      (|Re F_a| + |Re F_b| + |Re F_a Re F_b| + |Im F_a Im F_b|, and so for the imaginary parts),
      which is at most 1.83 of both angles and at most 8.02 at any (both near π). The last steps of
      each sum and the products with w are covered by what is left of 20B.
    """
    xp: Any = namespace(way, spread)
    many, far = terms(nodes), spread * way
    steps = xp.minimum((14.0 * blocks + many) * far, 4 * (5.0 * blocks + many))
    return _EPS * (16 * far + steps)


def transform(loss: Array, spacing: Array, blocks: int, weight: Array) -> tuple[Array, Array]:
    """`product` of `powers`; of many nodes in parts, whose powers stay in the processor's cache."""
    xp: Any = namespace(loss, spacing, weight)
    if terms(loss.shape[0]) == loss.shape[0]:
        return product(*powers(loss, spacing, blocks), weight)
    rest = xp.zeros(-loss.shape[0] % _PART)
    parts = [xp.concatenate([v, rest]).reshape(-1, _PART) for v in (loss, weight)]

    def add(total: tuple, part: tuple) -> tuple[tuple, None]:
        found = product(*powers(part[0], spacing, blocks), part[1])
        return (total[0] + found[0], total[1] + found[1]), None

    zero = xp.zeros(blocks * blocks)
    return xp.scan(add, (zero, zero), tuple(parts))[0]
