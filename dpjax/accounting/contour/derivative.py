"""Derivatives of log δ(ε) along a line that stays where it is.

log δ(ε) = log Σ_k Re V_k with V_k the line's terms e^{ΣnK(z_k) − z_kε}/(z_k(z_k + 1)), whatever the
line: derivatives are sums over the same terms, Σ_k Re(V_k · n·∂K(z_k)) / Σ_k Re V_k, with
∂K(z) = E_P[∂e^{zL}]/E_P[e^{zL}] from the same nodes. Of ε at given δ they follow by the implicit
function theorem.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics.arrays import namespace, tree_map
from dpjax.accounting.contour import line as lines
from dpjax.accounting.contour import powers, saddle_point
from dpjax.accounting.contour.composition import Composition, Steps
from dpjax.accounting.contour.line import Resolution
from dpjax.accounting.pairs.protocol import Pair
from dpjax.accounting.pairs.table import PAIRS


class Slopes(NamedTuple):
    """Partial derivatives of log δ(ε).

    Fields:
        epsilon: with respect to ε, below 0.
        run: with respect to every parameter of the composition.
    """

    epsilon: Float[Array, ""]
    run: Composition


def _direction(
    run: Composition, sign: Array, epsilon: Array, log_delta: Array | None, at: Resolution
) -> tuple[Array, Array, Composition]:
    xp: Any = namespace(run, sign, epsilon)
    # The line that the value was read off.
    target = (None, epsilon) if log_delta is None else (log_delta, None)
    line = lines.evaluate(run, sign, saddle_point.find(run, sign, *target, at.margin), at)
    t = line.spacing * xp.arange(at.blocks**2)
    turn = line.phase - t * epsilon
    real, imag = line.amplitude * xp.cos(turn), line.amplitude * xp.sin(turn)
    total = xp.sum(real)
    # Where the sum is lost in its error it has no derivative worth having.
    total = xp.where(total > line.slack, total, xp.nan)
    real, imag = real / total, imag / total
    c = line.c

    def of_step(pair: Pair, row: Any) -> tuple[Array, Array, Array]:
        mu, rate, count = row
        step = pair.tilt(sign, mu, rate, c, at.nodes)
        rows, columns = powers.powers(step.loss, line.spacing, at.blocks)

        def mean(values: Array) -> tuple[Array, Array]:
            re, im = powers.product(rows, columns, step.weight * values)
            return re + step.weight @ values, im

        moved_re, im = powers.product(rows, columns, step.weight)
        re = 1 + moved_re
        # V/φ, then the sum over the line of Re(V/φ·∂φ).
        size = xp.maximum(re * re + im * im, 1e-280)
        v_re, v_im = (real * re + imag * im) / size, (imag * re - real * im) / size
        x, y, moved = pair.slopes(sign, mu, rate, step)
        moved = moved * xp.exp(-step.log_moment)
        found = []
        for k in range(2):
            (a_re, a_im), (b_re, b_im) = mean(x[k]), mean(x[k] - y[k])
            # (z + 1)X − zY = X + z(X − Y)
            d_re = a_re + c * b_re - t * b_im + moved[k]
            d_im = a_im + c * b_im + t * b_re
            found.append(count * xp.sum(v_re * d_re - v_im * d_im))
        square = moved_re * (2 + moved_re) + im * im
        near = xp.log1p(xp.maximum(square, -0.5))
        log_size = 0.5 * xp.where(square > -0.5, near, xp.log(size))
        argument = xp.arctan2(im, re)
        by_count = xp.sum(real * (step.log_moment + log_size) - imag * argument)
        return found[0], found[1], by_count

    steps = {}
    for name, group in run.steps.items():
        rows = (group.mu, group.rate, group.count)
        if group.mu.shape[0] == 1:
            one = of_step(PAIRS[name], tuple(v[0] for v in rows))
            steps[name] = Steps(*(xp.reshape(v, (1,)) for v in one))
        else:
            steps[name] = Steps(*xp.map(functools.partial(of_step, PAIRS[name]), rows))
    # K(z) = μ²z(z + 1)/2 of the plain releases.
    by_mu2 = 0.5 * xp.sum(real * (c * (c + 1) - t * t) - imag * t * (2 * c + 1))
    by_epsilon = -xp.sum(real * c - imag * t)
    height = line.log_scale - c * epsilon + xp.log(total)
    return height, by_epsilon, Composition(by_mu2, steps)


def slopes(
    run: Composition,
    epsilon: Array,
    signs: tuple[int, ...],
    at: Resolution,
    log_delta: Array | None = None,
) -> Slopes:
    """Derivatives of the worse direction's log δ(ε).

    Args:
        run: what is composed, as `composition.clean` leaves it.
        epsilon: ε ≥ 0.
        signs: see `contour.integral.epsilon`.
        at: the resolution that was accepted for the value.
        log_delta: what ε was found for, if it was.
    """
    xp: Any = namespace(run, epsilon)
    each = xp.map(lambda sign: _direction(run, sign, epsilon, log_delta, at), xp.asarray(signs))
    # A direction that is lost in its error is not the worse one.
    worse = xp.argmax(xp.where(xp.isnan(each[0]), -np.inf, each[0]))
    _, by_epsilon, by_run = tree_map(lambda v: v[worse], each)
    return Slopes(by_epsilon, by_run)
