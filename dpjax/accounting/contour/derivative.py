"""Derivatives of ε(δ) and δ(ε): of a line's own sum, and of one step without a line.

log δ(ε) = log Σ_k Re V_k with V_k = e^{ΣnK(z_k) − z_kε}/(z_k(z_k + 1)), whatever the line: its
derivatives are Σ_k Re(V_k·n·∂K(z_k))/Σ_k Re V_k, where

    ∂K(z) = E_P[e^{zL}((z + 1)X − zY)]/E_P[e^{zL}],  X = ∂log p,  Y = ∂log q,

on the nodes of the line. They are summed over k first, so that a parameter more costs nothing. Of ε
at given δ they follow by the implicit function theorem, at the ε where the sum itself is δ: the
certified end lies above it by its error bounds, which have slopes of their own.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Array

from dpjax._numerics.arrays import Numbers, namespace, tree_map
from dpjax.accounting.contour import half, interval
from dpjax.accounting.contour import line as lines
from dpjax.accounting.contour.saddle import Composition, find_saddle, reversed_run
from dpjax.accounting.contour.single_step import single_step_ends, single_step_slopes
from dpjax.accounting.contour.tilt import least
from dpjax.accounting.pairs.mixtures import Mixture
from dpjax.accounting.pairs.pair import Folded

# How the pair of every group changes with μ and with its rate, as `mixtures.moves` says.
Changes = tuple[tuple[Mixture | Folded, ...], ...]


class Slopes(NamedTuple):
    """Partial derivatives of δ(ε) in one direction.

    Fields:
        size: what the worse of two directions is known by.
        epsilon, mu2: with respect to ε, and to Σμ² of the plain Gaussian steps.
        groups: with respect to μ, rate and count of the other steps.
    """

    size: Numbers
    epsilon: Numbers
    mu2: Numbers
    groups: tuple[tuple[Numbers, ...], ...]


def _moved(pair: Mixture | Folded, place: Numbers, by: Mixture | Folded) -> tuple[Numbers, Numbers]:
    """Return X and Y at the nodes of a step, for a change of its pair.

    What leaves a half-line where it starts has the loss 0, like the atom.
    """
    xp = namespace(pair, place)
    if isinstance(by, Mixture):
        assert isinstance(pair, Mixture)
        return pair.moved(place, by)
    assert isinstance(pair, Folded)
    both = zip(pair.halves(), place, by.halves(), strict=True)
    columns = zip(*(half.moved(y, change) for half, y, change in both), strict=True)
    density = xp.exp(-0.5 * pair.start**2) / np.sqrt(2 * np.pi)  # of N(0, 1) where the fold lies
    atom = (by.atom - 2 * density * by.start) / xp.maximum(pair.atom, 1e-300)
    x, y = (xp.concatenate([*column, atom[None]]) for column in columns)
    return x, y


def _backwards(
    loss: Numbers, spacing: Numbers, real: Numbers, imag: Numbers
) -> tuple[Numbers, Numbers]:
    """Return Σ_k v_k e^{it_kL} at every loss: e^{itL} is a product of two."""
    xp = namespace(loss, real)
    blocks = real.shape[0]
    angle = xp.outer(np.arange(blocks) * 1.0, spacing * loss)  # t_k = (i + blocks·j)·spacing
    cos, sin = xp.cos(angle), xp.sin(angle)
    re, im = real @ cos - imag @ sin, real @ sin + imag @ cos
    cos, sin = xp.cos(blocks * angle), xp.sin(blocks * angle)
    return xp.sum(cos * re - sin * im, axis=0), xp.sum(cos * im + sin * re, axis=0)


def _direction(
    question: str, run: Composition, changes: Changes, given: Numbers, guess: Numbers, level: int
) -> Slopes:
    xp = namespace(run, given)
    # What is left poor on the finest line is blurred there: a longer one is blurred less.
    nodes, blocks = interval.LEVELS[level]
    blocks = 2 * blocks if level == len(interval.LEVELS) - 1 else blocks
    goal = None if question == "delta" else xp.log(given)  # the saddle of ε, or of the root
    at = find_saddle(run, goal, guess)
    line, epsilon = lines.evaluate_line(run, at, nodes, blocks)[0], given
    if goal is not None:
        root = functools.partial(lines.log_line_sum, line)
        epsilon = interval.find_root(root, goal, guess, 1.1 * guess)[1]
    c, t = line.c, line.spacing * np.arange(blocks**2)
    cos, sin = xp.cos(t * epsilon), xp.sin(t * epsilon)
    real, imag = line.real.reshape(-1), line.imag.reshape(-1)
    real, imag = real * cos + imag * sin, imag * cos - real * sin  # times e^{−itε}
    total = xp.sum(real)
    # Where the sum is lost in its error it has no derivative worth having.
    total = xp.where(total > line.slack, total, np.nan)
    real, imag = real / total, imag / total  # weights of the nodes in δ

    def of_step(row: tuple) -> tuple[Numbers, Numbers, Numbers]:
        pair, count, by = row
        step = half.tilt(pair, c, nodes)
        re, im = lines.transform(step.loss, step.weight, line.spacing, blocks)
        re = 1 + re  # transform gives φ − 1
        size = xp.maximum(re * re + im * im, 1e-280)  # |φ|²
        v_re, v_im = (real * re + imag * im) / size, (imag * re - real * im) / size
        square = [v.reshape(blocks, blocks) for v in (v_re, v_im, t * v_re, t * v_im)]
        plain, _ = _backwards(step.loss, line.spacing, *square[:2])
        _, turned = _backwards(step.loss, line.spacing, *square[2:])
        found = []
        assert step.place is not None  # of atoms there is no derivative
        for change in by:
            x, y = _moved(pair, step.place, change)
            # Re of v·e^{itL}((z + 1)X − zY), with (z + 1)X − zY = X + z(X − Y).
            each = plain * (x + c * (x - y)) - turned * (x - y)
            found.append(count * (step.weight @ xp.where(step.weight > 0, each, 0.0)))
        by_count = step.moment + 0.5 * xp.sum(real * xp.log(size)) - imag @ xp.arctan2(im, re)
        return *found, by_count

    groups = []
    for (pair, count), by in zip(run.groups, changes, strict=True):
        if np.shape(count)[0] == 1:
            one = of_step(tree_map(lambda v: v[0], (pair, count, by)))
            groups.append(tuple(v[None] for v in one))
        else:
            groups.append(tuple(xp.map(of_step, (pair, count, by))))
    # K(z) = μ²z(z + 1)/2 of the plain releases.
    by_mu2 = 0.5 * (xp.sum(real * (c * (c + 1) - t * t)) - imag @ (t * (2 * c + 1)))
    by_epsilon = imag @ t - c * xp.sum(real)  # d/dε of e^{−zε}
    # The worse direction has the larger ε or δ.
    worse = epsilon if question == "epsilon" else lines.log_line_sum(line, epsilon)[0]
    return Slopes(xp.where(total > 0, worse, -np.inf), by_epsilon, by_mu2, tuple(groups))


def _of_single_step(question: str, run: Composition, changes: Changes, given: Numbers) -> Slopes:
    """Return those of one step of one kind: what is counted begins where P = e^εQ.

    So that moving that place changes nothing.
    """
    ((pair, count),), (by,) = run.groups, changes
    pair, by = tree_map(lambda v: v[0], (pair, by))
    if isinstance(pair, Folded):  # the profile of its pair, at ε ≥ 0
        pair, by = pair.pair, tuple(change.pair for change in by)
    _, upper, x = single_step_ends(question, pair, given)
    epsilon = upper if question == "epsilon" else given
    by_epsilon, *found = single_step_slopes(pair, by, x, epsilon)
    none = 0.0 * count
    return Slopes(upper, by_epsilon, 0.0 * upper, ((*(v + none for v in found), none),))


def _reversed(changes: Changes) -> Changes:
    return tuple(tuple(one.reversed() for one in by) for by in changes)


def slopes(
    question: str,
    run: Composition,
    changes: Changes,
    given: Array,
    upper: Array,
    signs: tuple[int, ...],
    level: int | None,
) -> tuple[Numbers, tuple[tuple[Numbers, ...], ...], Numbers]:
    """Return an answer's derivatives by Σμ², by μ, rate and count of every group, and by δ or ε.

    0 where ε is 0 or infinite, δ is 1, or a derivative is no number.

    Args:
        question, given, signs: as of `interval.bounds`.
        run, changes: the pairs, and how those of every group change.
        upper: the upper end of the answer.
        level: position in `interval.LEVELS` of the line that was accepted for it; None for that of
            one step without a line.
    """
    xp = namespace(run, given, upper)
    back, by_back = reversed_run(run), _reversed(changes)
    usable = xp.isfinite(upper) & (upper > 0)
    if question == "epsilon":
        given = xp.clip(given, 1e-290, 1 - 1e-12)
        guess, size = xp.where(usable, upper, 1.0), given
    else:
        given = xp.clip(given, 0.0, 1e6)
        usable = usable & (upper < 1)
        guess, size = given, upper

    def direction(sign: Numbers) -> Slopes:
        turned = tree_map(lambda a, b: xp.where(sign > 0, a, b), (run, changes), (back, by_back))
        if level is None:
            return _of_single_step(question, turned[0], turned[1], given)
        found = _direction(question, turned[0], turned[1], given, guess, level)
        return Slopes(found.size, *tree_map(lambda v: v * size, found[1:]))

    each = xp.map(direction, xp.asarray(signs))
    worse = least(-each.size)
    _, by_epsilon, *rest = tree_map(lambda v: xp.where(worse, v.T, 0.0).sum(axis=-1).T, each)
    usable = usable & (by_epsilon < 0)
    steep = xp.where(usable, by_epsilon, -1.0)  # δ falls with ε
    factor = -1 / steep if question == "epsilon" else xp.ones(())

    def scale(v: Array) -> Array:
        return xp.where(usable & xp.isfinite(v), v * factor, 0.0)

    by_mu2, groups = tree_map(scale, tuple(rest))
    by_given = 1 / steep if question == "epsilon" else steep
    return by_mu2, groups, xp.where(usable, by_given, 0.0)
