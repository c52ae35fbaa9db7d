"""The integrand along the line Re z = c, with bounds on everything that is not exact."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics.logarithm import log1p
from dpjax.accounting import composition, pair_errors, pairs
from dpjax.accounting.composition import Composition
from dpjax.accounting.pairs import Family
from dpjax.accounting.saddle import Saddle

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


def _multiples(real: Array, imag: Array, count: int) -> tuple[Array, Array]:
    """Rows F_0 … F_{count−1} of F_k = e^{ikθ} − 1, by F_{k+1} = F_k + F_1 + F_kF_1.

    A sine costs as much as twenty of these. An error in F_1 grows to k times it, as it would in kθ.
    """

    def step(row: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        re, im = row
        return (re + real + (re * real - im * imag), im + imag + (re * imag + im * real)), row

    zero = jnp.zeros_like(real)
    return jax.lax.scan(step, (zero, zero), None, length=count)[1]


def _transform(tilted: pairs.Tilted, spacing: Array, blocks: int) -> tuple[Array, Array]:
    """E[e^{it_kL}] − 1 at t_k = k·spacing under the tilted weights, k < blocks².

    With F = e^{itL} − 1, which is small where tL is and is formed without cancellation,
    E[F_{a+b}] = E[F_a] + E[F_b] + E[F_aF_b]; the row of ones gives the first two.
    """
    angle = spacing * tilted.loss
    half = jnp.sin(0.5 * angle)
    fine = _multiples(-2 * half * half, jnp.sin(angle), blocks + 1)
    coarse = _multiples(fine[0][-1], fine[1][-1], blocks)
    ones = jnp.ones_like(tilted.loss)[None]
    rows = jnp.concatenate([ones, fine[0][:-1], fine[1][:-1]])
    columns = jnp.concatenate([ones, *coarse]) * tilted.weight
    columns, rows = jax.lax.optimization_barrier((columns, rows))
    product = columns @ rows.T
    top, re, im = slice(0, 1), slice(1, blocks + 1), slice(blocks + 1, 2 * blocks + 1)
    real = product[re, top] + product[top, re] + (product[re, re] - product[im, im])
    imag = product[im, top] + product[top, im] + (product[re, im] + product[im, re])
    return real.reshape(-1), imag.reshape(-1)


def _tilted(family, mu, rate, sign, c, nodes) -> pairs.Tilted:
    return pairs.tilt(family, sign, mu, rate, c, nodes)


_ENDS = np.array([0.0625, 0.125, 0.25, 0.5, 1.0, 8.0])  # of the line, where its rest is bounded
_ALIAS_TILTS = np.array([0.04, 0.12, 0.4, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])


def evaluate(
    run: Composition,
    sign: Array,
    saddle: Saddle,
    resolution: Resolution,
) -> Line:
    """Evaluate the integrand on the line, with bounds on everything that is not exact."""
    points = resolution.blocks**2
    c = saddle.c
    alias_tilt = jnp.asarray(_ALIAS_TILTS) / saddle.deviation
    tilted = functools.partial(_tilted, sign=sign, c=c, nodes=resolution.nodes)
    alone = None
    if [g.mu.shape for g in run.steps.values()] == [(1,)]:
        ((family, group),) = run.steps.items()
        alone = tilted(family, group.mu[0], group.rate[0])

    def alias(family: Family, mu: Array, rate: Array, count: Array) -> tuple[Array, Array]:
        # The lower end may give up rare outcomes, without which every tilt has a moment; where the
        # tilted mass piles up at the last node the sum is more than the integral.
        step = alone or tilted(family, mu, rate)
        kept = count * step.weight >= resolution.rare
        exponent = alias_tilt[:, None] * jnp.where(kept, step.loss, 0.0)
        moment = log1p(jnp.expm1(jnp.minimum(exponent, 600.0)) @ step.weight)
        lost = jnp.sum(jnp.where(kept, 0.0, step.weight)) + step.truncated
        return jnp.where(jnp.max(exponent, axis=1) > 600.0, 1e30, moment), lost

    gaussian = 0.5 * run.gaussian_mu2 * alias_tilt * (alias_tilt + 2 * c + 1)
    alias_moment, rare = composition.weighted_sum(alias, run, (gaussian, jnp.zeros(())))
    # The period is the shortest with both aliases below e^{−margin} of the sum.
    margin = resolution.margin + saddle.waste
    right = jnp.min((alias_moment + margin) / alias_tilt) - saddle.epsilon
    left = (saddle.depth + resolution.margin + 2.0) / c
    spacing = 2 * np.pi / jax.lax.stop_gradient(jnp.maximum(jnp.maximum(left, right), 1e-3 / c))
    t = spacing * jnp.arange(points)

    def contributions(family: Family, mu: Array, rate: Array, _: Array) -> dict[str, Array]:
        step = alone or tilted(family, mu, rate)
        real, imag = _transform(step, spacing, resolution.blocks)
        square = jnp.maximum(2 * real + real * real + imag * imag, -1 + 1e-30)
        log_size = 0.5 * log1p(square)
        argument = jnp.arctan2(imag, 1 + real)
        quadrature = pair_errors.quadrature_error(family, sign, mu, rate, c, step, t)
        # Of the first row's angle, t-fold; of every step from row to row, at most 2·blocks of them;
        # of the sum over the nodes.
        steps = 20.0 * resolution.blocks + resolution.nodes
        steps = steps * jnp.minimum(step.spread * t, 2.0)
        rounding = _EPS * (16 * step.spread * t + steps)
        absolute = quadrature + step.truncated + rounding
        relative = log1p(absolute * jnp.exp(-jnp.maximum(log_size, -40.0)))
        return {
            "moment": step.log_moment,
            "scale_error": quadrature[0] + step.truncated + step.moment_error,
            "log_size": log_size,
            "argument": argument,
            "relative": relative + 8 * _EPS * (jnp.abs(log_size) + jnp.abs(argument)),
            "decay": pair_errors.decay(family, sign, mu, rate, c, step, jnp.asarray(_ENDS) * t[-1]),
        }

    mu2 = run.gaussian_mu2
    plain = {
        "moment": 0.5 * mu2 * c * (c + 1),
        "scale_error": 4 * _EPS * mu2 * c * (c + 1),
        "log_size": -0.5 * mu2 * t * t,
        "argument": 0.5 * mu2 * t * (2 * c + 1),
        "relative": 8 * _EPS * mu2 * t * (t + 2 * c + 1),
        "decay": -0.5 * mu2 * (_ENDS * t[-1]) ** 2,
    }
    total = composition.weighted_sum(contributions, run, plain)
    weight = spacing / np.pi * jnp.where(jnp.arange(points) == 0, 0.5, 1.0)
    kernel = weight / (jnp.hypot(c, t) * jnp.hypot(c + 1, t))
    amplitude = kernel * jnp.exp(total["log_size"])
    phase = total["argument"] - jnp.arctan2(t, c) - jnp.arctan2(t, c + 1)
    error = jnp.expm1(jnp.minimum(total["relative"] + total["scale_error"], 50.0)) + 64 * _EPS

    ends = _ENDS * t[-1]
    within = t <= ends[:5, None]
    fraction = 1 / ends - jnp.append(1 / ends[1:], 0.0)

    def errors(b2: Array) -> Array:
        damped = jnp.exp(-0.5 * b2 * t * t) * jnp.minimum(amplitude * error, 2 * kernel)
        beyond = jnp.exp(total["decay"] - 0.5 * b2 * ends**2) * fraction
        # All that lies beyond an end: the integral of ρ(t)/t², and one more step for the sum.
        rest = (1 + spacing / ends) * jnp.cumsum(beyond[::-1])[::-1] / np.pi
        return within @ damped + rest[:5]

    # A transform that has not decayed is composed with a tiny Gaussian release, μ² = b²: the
    # profile can only grow, by about b²(c + 1)/2 in ε.
    plainly = errors(jnp.zeros(()))
    unresolved = jnp.min(plainly) > 1e-9 * jnp.sum(jnp.where(within[0], amplitude, 0.0))
    b2 = jax.lax.stop_gradient(jnp.where(unresolved, (7.5 / t[-1]) ** 2, 0.0))
    slack = jnp.where(unresolved, errors(b2), plainly)
    end = jnp.argmin(slack)
    inside = t <= ends[end]
    kept = jnp.where(inside, amplitude * jnp.exp(-0.5 * b2 * t * t), 0.0)
    return Line(
        c=c,
        spacing=spacing,
        log_scale=total["moment"] + 0.5 * b2 * c * (c + 1),
        amplitude=kept,
        phase=phase + 0.5 * b2 * t * (2 * c + 1),
        size=jnp.stack([jnp.sum(kept), kept @ t]),
        slack=slack[end],
        scale_error=total["scale_error"],
        rare=2 * rare * jnp.sum(kernel),
        alias_tilt=alias_tilt,
        alias_moment=alias_moment,
        blur=b2,
    )


def chernoff(line: Line) -> Array:
    """log of sup_u (1 − e^{−u})₊e^{−cu}, times e^{ΣK(c)}: δ(ε) ≤ e^{this − cε}."""
    bound = line.log_scale - log1p(line.c) - line.c * log1p(1 / line.c)
    return bound + line.scale_error + 1e-14 * jnp.abs(line.log_scale)


class Waves(NamedTuple):
    """amplitude·e^{i·phase} of the line's points, blocks by blocks: what ε is then asked of."""

    real: Float[Array, "blocks blocks"]
    imag: Float[Array, "blocks blocks"]


def waves(line: Line) -> Waves:
    """The line, ready for `log_delta`."""
    blocks = round(line.amplitude.shape[0] ** 0.5)
    real, imag = line.amplitude * jnp.cos(line.phase), line.amplitude * jnp.sin(line.phase)
    square = real.reshape(blocks, blocks), imag.reshape(blocks, blocks)
    return Waves(*jax.lax.optimization_barrier(square))


def _sums(line: Line, of: Waves, epsilon: Array) -> tuple[Array, Array]:
    """Σ amplitude·cos(phase − tε) and Σ amplitude·t·sin(phase − tε).

    With t = (aB + b)h the wave e^{−itε} is a product of two, and the sums are bilinear forms: 2B
    sines for B² points.
    """
    blocks = of.real.shape[0]
    b = jnp.arange(blocks)
    step = line.spacing * epsilon
    fine, coarse = b * step, blocks * (b * step)
    cos, sin = jnp.cos(fine), -jnp.sin(fine)
    columns = jnp.stack([cos, sin, b * cos, b * sin], axis=1)
    real, imag = of.real @ columns, of.imag @ columns
    cos, sin = jnp.cos(coarse), -jnp.sin(coarse)
    # Rows times columns as complex numbers: (u + iv)(x + iy), plain and with each index in front.
    re = jnp.stack([real[:, 0] - imag[:, 1], real[:, 2] - imag[:, 3]])
    im = jnp.stack([real[:, 1] + imag[:, 0], real[:, 3] + imag[:, 2]])
    total = re[0] @ cos - im[0] @ sin
    rising = re[0] @ (b * sin) + im[0] @ (b * cos)
    slope = blocks * rising + re[1] @ sin + im[1] @ cos
    return total, line.spacing * slope


def log_delta(line: Line, of: Waves, epsilon: Array) -> tuple[Array, Array, Array]:
    """At one ε: log of δ's upper and lower end, and d log δ/dε."""
    total, slope = _sums(line, of, epsilon)
    # Rounding of the angles and of sums of 2B terms each way, and of the exponent in front.
    size = line.size[0] + line.size[1] * jnp.abs(epsilon)
    front = line.log_scale - line.c * epsilon
    slack = line.slack + (16 + 4 * of.real.shape[0]) * _EPS * size
    slack = slack + 4 * _EPS * (jnp.abs(line.log_scale) + line.c * epsilon) * jnp.abs(total)
    upper = jnp.log(jnp.maximum(total, 0.0) + slack)
    period = 2 * np.pi / line.spacing
    left = jnp.exp(jnp.clip(-line.c * period - front, -745.0, 300.0))
    exponent = line.alias_moment - line.alias_tilt * (epsilon + period)
    right = jnp.min(jnp.exp(jnp.clip(exponent, -745.0, 300.0)) * 1.01)
    lower = jnp.log(jnp.maximum(total - slack - line.rare - 2 * (left + right), 1e-300))
    upper = jnp.minimum(upper + front, chernoff(line) - line.c * epsilon)
    derivative = -line.c + slope / jnp.maximum(total, 1e-300)
    return jnp.minimum(upper, 0.0), lower + front, derivative
