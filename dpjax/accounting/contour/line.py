"""The integrand along the line Re z = c, with bounds on everything that is not exact."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics.arrays import NUMPY, namespace
from dpjax.accounting.contour import composition, powers
from dpjax.accounting.contour.composition import Composition
from dpjax.accounting.contour.saddle_point import Saddle
from dpjax.accounting.pairs.protocol import OnLine, Pair, Tilted
from dpjax.accounting.pairs.table import PAIRS, TRANSFORMS

_EPS = float(np.finfo(np.float64).eps)


class Resolution(NamedTuple):
    """How finely a line is evaluated.

    Fields:
        nodes: quadrature nodes in the sample space.
        blocks: the line has blocks² points.
        margin: aliases are at most e^{−margin} of the sum.
        rare: tilted probability of outcomes that the lower end may give up, each.
    """

    nodes: int
    blocks: int
    margin: float
    rare: float


class Line(NamedTuple):
    """The integrand along Re z = c; every size is relative to e^{log_scale − cε}.

    Fields:
        c: the line's real part.
        spacing: distance of its points.
        log_scale: Σ K(c).
        amplitude, phase: |·| and arg of weight·e^{ΣK(z)−ΣK(c)}/(z(z+1)).
        size: Σ amplitude and Σ amplitude·t.
        slack: bound on all errors but aliasing.
        scale_error: bound on the relative error of e^{log_scale}.
        rare: bound on what the sum holds for outcomes that the lower end gives up.
        alias_tilt, alias_moment: c' − c and ΣK(c') − ΣK(c), for the bound on the aliases.
        blur: μ² of the Gaussian release that was composed to make the line converge; mostly 0.
    """

    c: Float[Array, ""]
    spacing: Float[Array, ""]
    log_scale: Float[Array, ""]
    amplitude: Float[Array, " points"]
    phase: Float[Array, " points"]
    size: Float[Array, "2"]
    slack: Float[Array, ""]
    scale_error: Float[Array, ""]
    rare: Float[Array, ""]
    alias_tilt: Float[Array, " tilts"]
    alias_moment: Float[Array, " tilts"]
    blur: Float[Array, ""]


_ENDS = np.arange(8.0)  # where the line's rest is bounded, and at its last point
_SHORT = 6.0  # deviations of the loss, over which the first of them lies
_BEYOND = 8.0  # times the line's length, up to where its rest is looked at
# Tilts of the bound on the aliases, each of which holds: over the tilted loss's deviation, and in
# parts of c. Where few large losses are expected the deviation is that of the small ones, and the
# best tilt lies among the latter.
_ALIAS_TILTS = np.array([0.04, 0.12, 0.4, 1.0, 2.0, 4.0, 8.0, 16.0])
_ALIAS_PARTS = np.array([0.3, 0.42, 0.58, 0.8])


def evaluate(
    run: Composition,
    sign: Array,
    saddle: Saddle,
    resolution: Resolution,
) -> Line:
    """Evaluate the integrand on the line, with bounds on everything that is not exact."""
    xp: Any = namespace(run, saddle.c)
    points = resolution.blocks**2
    c = saddle.c
    alias_tilt = xp.append(xp.asarray(_ALIAS_TILTS) / saddle.deviation, c * _ALIAS_PARTS)

    def tilted(pair: Pair, mu: Array, rate: Array) -> Tilted:
        return pair.tilt(sign, mu, rate, c, resolution.nodes)

    alone = None
    if [g.mu.shape for g in run.steps.values()] == [(1,)]:
        ((name, group),) = run.steps.items()
        if name in PAIRS:
            alone = tilted(PAIRS[name], group.mu[0], group.rate[0])

    def alias(pair: Any, mu: Array, rate: Array, count: Array) -> tuple[Array, Array]:
        if hasattr(pair, "rises"):  # all its moments are known
            return pair.rises(sign, mu, rate, c, alias_tilt), xp.zeros(())
        # The lower end may give up rare outcomes, without which every tilt has a moment; where the
        # tilted mass piles up at the last node the sum is more than the integral.
        step = alone or tilted(pair, mu, rate)
        kept = count * step.weight >= resolution.rare
        exponent = alias_tilt[:, None] * xp.where(kept, step.loss, 0.0)
        moment = xp.log1p(xp.expm1(xp.minimum(exponent, 600.0)) @ step.weight)
        lost = xp.sum(xp.where(kept, 0.0, step.weight)) + step.truncated
        return xp.where(xp.max(exponent, axis=1) > 600.0, 1e30, moment), lost

    gaussian = 0.5 * run.gaussian_mu2 * alias_tilt * (alias_tilt + 2 * c + 1)
    alias_moment, rare = composition.weighted_sum(alias, run, (gaussian, xp.zeros(())))
    # The period is the shortest with both aliases below e^{−margin} of the sum.
    margin = resolution.margin + saddle.waste
    right = xp.min((alias_moment + margin) / alias_tilt) - saddle.epsilon
    left = (saddle.depth + resolution.margin + 2.0) / c
    spacing = 2 * np.pi / xp.maximum(xp.maximum(left, right), 1e-3 / c)
    t = spacing * xp.arange(points)
    way = spacing * powers.ways(resolution.blocks)
    # A line may end long before its last point, past which errors only add up.
    shortest = xp.minimum(t[-1] / 16, _SHORT / saddle.deviation)
    ratio = xp.minimum((t[-1] / shortest) ** (1 / len(_ENDS)), 2.0)
    ends = xp.append(shortest * ratio**_ENDS, t[-1] * np.array([1.0, _BEYOND]))
    knots = xp.append(xp.zeros(1), ends[:-1])

    def from_nodes(pair: Pair, mu: Array, rate: Array) -> tuple[OnLine, Array]:
        step = alone or tilted(pair, mu, rate)
        real, imag = powers.transform(step.loss, spacing, resolution.blocks, step.weight)
        quadrature = pair.quadrature_error(sign, mu, rate, c, step, t, knots)
        rounding = powers.rounding(way, step.spread, resolution.blocks, step.loss.shape[0])
        # Of the weights w: with |F| ≤ min(t|L|, 2) and Σw = 1, |Σδw·F − (Σwδ)(ΣwF)| is at most
        # t(E[ε|L|] + E[ε]E|L|) and at most 4E[ε].
        ours = step.rounding[1] + step.rounding[0] * step.spread
        ours = xp.minimum(ours * t, 4 * step.rounding[0])
        absolute = quadrature + step.truncated + rounding + ours
        decay = pair.decay(sign, mu, rate, c, step, ends)
        moment_error = quadrature[0] + step.truncated + step.moment_error
        return OnLine(step.log_moment, moment_error, real, imag, absolute), decay

    def contributions(pair: Any, mu: Array, rate: Array, count: Array) -> dict[str, Array]:
        if not hasattr(pair, "on_line"):
            step, decay = from_nodes(pair, mu, rate)
            cap = xp.zeros_like(t)
        else:
            step = pair.on_line(sign, mu, rate, c, t, count)
            decay, cap = (pair.log_decay(mu, rate, at) for at in (ends, t))
        real, imag, absolute = step.real, step.imag, step.error
        # |φ|² = 1 + square loses |φ| to the 1 where it is small: there it is taken from φ itself.
        # No size is said to be less than its own error, which is the relative error's denominator.
        square = 2 * real + real * real + imag * imag
        direct = (1 + real) ** 2 + imag * imag
        found = xp.sqrt(xp.maximum(direct, 1e-300))
        size = xp.maximum(found, xp.minimum(absolute, 1.0))
        near = square > -0.5
        log_size = xp.where(near, 0.5 * xp.log1p(xp.where(near, square, 0.0)), xp.log(size))
        relative = xp.log1p((absolute + size - found) / size)
        argument = xp.arctan2(imag, 1 + real)
        return {
            "moment": step.log_moment,
            "scale_error": step.moment_error,
            "log_size": log_size,
            "argument": argument,
            "relative": relative + 8 * _EPS * (xp.abs(log_size) + xp.abs(argument)),
            "decay": decay,
            "cap": cap,
        }

    mu2 = run.gaussian_mu2
    plain = {
        "moment": 0.5 * mu2 * c * (c + 1),
        "scale_error": 4 * _EPS * mu2 * c * (c + 1),
        "log_size": -0.5 * mu2 * t * t,
        "argument": 0.5 * mu2 * t * (2 * c + 1),
        "relative": 8 * _EPS * mu2 * t * (t + 2 * c + 1),
        "decay": -0.5 * mu2 * ends**2,
        "cap": xp.zeros_like(t),
    }
    total = composition.weighted_sum(contributions, run, plain)
    weight = spacing / np.pi * xp.where(xp.arange(points) == 0, 0.5, 1.0)
    # z(z + 1) = c(c + 1) − t² + it(2c + 1), of modulus at least |z|² ≥ c² + t².
    flat, rise = c * (c + 1) - t * t, t * (2 * c + 1)
    kernel = weight / xp.sqrt(flat * flat + rise * rise)
    amplitude = kernel * xp.exp(total["log_size"])
    phase = total["argument"] - xp.arctan2(rise, flat)
    error = xp.expm1(xp.minimum(total["relative"] + total["scale_error"], 50.0)) + 64 * _EPS

    within = t <= ends[:-1, None]
    scale = xp.exp(xp.minimum(total["scale_error"], 50.0))
    most = kernel * scale * xp.exp(total["cap"])
    fraction = 1 / ends - xp.append(1 / ends[1:], 0.0)

    def errors(b2: Array) -> Array:
        # |φ| ≤ 1, or what it is known to decay to, bounds a point that is lost in its error.
        damped = xp.exp(-0.5 * b2 * t * t) * xp.minimum(amplitude * error, amplitude + most)
        # Beyond an end E the points sum to at most hρ(E)/E² + ∫ρ(t)/t² dt, with ρ(t)/t² falling and
        # ρ(t) ≤ ρ(E_j) from E_j on.
        decay = xp.exp(total["decay"] - 0.5 * b2 * ends**2)
        rest = xp.cumsum((decay * fraction)[::-1])[::-1] + spacing * decay / ends**2
        return within @ damped + rest[:-1] * (scale / np.pi)

    # A transform that has not decayed is composed with a tiny Gaussian release, μ² = b²: the
    # profile can only grow, by about b²(c + 1)/2 in ε, e^{b²c(c + 1)/2} − 1 of δ.
    plainly = errors(xp.zeros(()))
    best = within[xp.argmin(plainly)]
    # Of a `Transform` the end is known to decay: what is large there is rounding.
    limit = 1e-6 if any(name in TRANSFORMS for name in run.steps) else 1e-9
    most_b2 = (7.5 / t[-1]) ** 2
    # Errors far below what δ would grow by are let stand: the bound holds with either.
    growth = xp.expm1(xp.minimum(0.5 * most_b2 * c * (c + 1), 0.1)) * xp.exp(-saddle.waste)
    limit = xp.maximum(limit, 0.01 * growth)
    unresolved = xp.min(plainly) > limit * xp.sum(xp.where(best, amplitude, 0.0))
    b2 = xp.where(unresolved, most_b2, 0.0)
    settled = xp is NUMPY and not unresolved
    slack = plainly if settled else xp.where(unresolved, errors(b2), plainly)
    end = xp.argmin(slack)
    inside = t <= ends[end]
    kept = xp.where(inside, amplitude * xp.exp(-0.5 * b2 * t * t), 0.0)
    return Line(
        c=c,
        spacing=spacing,
        log_scale=total["moment"] + 0.5 * b2 * c * (c + 1),
        amplitude=kept,
        phase=phase + 0.5 * b2 * t * (2 * c + 1),
        size=xp.stack([xp.sum(kept), kept @ t]),
        slack=slack[end],
        scale_error=total["scale_error"],
        rare=2 * rare * xp.sum(kernel),
        alias_tilt=alias_tilt,
        alias_moment=alias_moment,
        blur=b2,
    )


def chernoff(line: Line) -> Array:
    """log of sup_u (1 − e^{−u})₊e^{−cu}, times e^{ΣK(c)}: δ(ε) ≤ e^{this − cε}."""
    xp: Any = namespace(line.c)
    bound = line.log_scale - xp.log1p(line.c) - line.c * xp.log1p(1 / line.c)
    return bound + line.scale_error + 1e-14 * xp.abs(line.log_scale)


class Waves(NamedTuple):
    """amplitude·e^{i·phase} of the line's points, blocks by blocks: what ε is then asked of."""

    real: Float[Array, "blocks blocks"]
    imag: Float[Array, "blocks blocks"]


def waves(line: Line) -> Waves:
    """The line, ready for `log_delta`."""
    xp: Any = namespace(line.c)
    blocks = round(line.amplitude.shape[0] ** 0.5)
    real, imag = line.amplitude * xp.cos(line.phase), line.amplitude * xp.sin(line.phase)
    square = real.reshape(blocks, blocks), imag.reshape(blocks, blocks)
    return Waves(*xp.barrier(square))


def _sums(line: Line, of: Waves, epsilon: Array) -> tuple[Array, Array]:
    """Σ amplitude·cos(phase − tε) and Σ amplitude·t·sin(phase − tε).

    With t = (aB + b)h the wave e^{−itε} is a product of two, and the sums are bilinear forms: 2B
    sines for B² points.
    """
    xp: Any = namespace(line.c, epsilon)
    blocks = of.real.shape[0]
    b = xp.arange(blocks)
    angle = line.spacing * epsilon * xp.stack([b, blocks * b])
    (cos, far_cos), (sin, far_sin) = xp.cos(angle), -xp.sin(angle)
    columns = xp.stack([cos, sin, b * cos, b * sin]).T
    real, imag = of.real @ columns, of.imag @ columns
    # Rows times columns as complex numbers: (u + iv)(x + iy), plain and with each index in front.
    re = xp.stack([real[:, 0] - imag[:, 1], real[:, 2] - imag[:, 3]])
    im = xp.stack([real[:, 1] + imag[:, 0], real[:, 3] + imag[:, 2]])
    total = re[0] @ far_cos - im[0] @ far_sin
    rising = re[0] @ (b * far_sin) + im[0] @ (b * far_cos)
    slope = blocks * rising + re[1] @ far_sin + im[1] @ far_cos
    return total, line.spacing * slope


def log_delta(line: Line, of: Waves, epsilon: Array) -> tuple[Array, Array, Array]:
    """At one ε: log of δ's upper and lower end, and d log δ/dε."""
    xp: Any = namespace(line.c, epsilon)
    total, slope = _sums(line, of, epsilon)
    # Rounding of the angles and of sums of 2B terms each way, and of the exponent in front.
    size = line.size[0] + line.size[1] * xp.abs(epsilon)
    front = line.log_scale - line.c * epsilon
    slack = line.slack + (16 + 4 * of.real.shape[0]) * _EPS * size
    slack = slack + 4 * _EPS * (xp.abs(line.log_scale) + line.c * epsilon) * xp.abs(total)
    upper = xp.log(xp.maximum(total, 0.0) + slack)
    period = 2 * np.pi / line.spacing
    left = xp.exp(xp.clip(-line.c * period - front, -745.0, 300.0))
    exponent = line.alias_moment - line.alias_tilt * (epsilon + period)
    right = xp.min(xp.exp(xp.clip(exponent, -745.0, 300.0)) * 1.01)
    least = total - slack - line.rare - 2 * (left + right)
    lower = xp.where(least > 0, xp.log(xp.maximum(least, 1e-300)), -xp.inf)
    upper = xp.minimum(upper + front, chernoff(line) - line.c * epsilon)
    derivative = -line.c + slope / xp.maximum(total, 1e-300)
    return xp.minimum(upper, 0.0), lower + front, derivative
