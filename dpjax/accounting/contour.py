"""Tight δ(ε) and ε(δ): the privacy profile as a contour integral of the loss's transform.

For steps with losses L_t under P_t and K_t(z) = log E[e^{zL_t}], on any line Re z = c > 0,

    δ(ε) = (1/2πi) ∫ exp(Σ K_t(z) − zε) / (z(z + 1)) dz.

Both integrals, over the sample space and along the line, are done by the trapezoid rule, which
converges exponentially. Every error has a bound that is evaluated with the sum, added to the upper
end and taken from the lower:

* step h along the line: the rule returns Σ_m δ(ε + 2πm/h)e^{2πcm/h}, so that its error is never
  negative; the lower end subtracts a Chernoff bound on the other terms;
* the end of the line: `pairs.decay` bounds the transform on all that is left out;
* the sample space: `pairs.quadrature_error` and the mass of the cut tails;
* rounding: a multiple of the unit roundoff times the condition of every sum.

One line serves all ε: a root is found on it by Newton's method inside a bracket whose upper end
always holds. The line is evaluated as a product of two small matrices,
e^{i(aB+b)hL} = e^{iaBhL}·e^{ibhL}, so that thousands of points cost little; what 64 points cannot
resolve is repeated with more, and what 4,096 cannot is reported, for `loss_distribution` to bound.

References:
  Inversion of the two-sided Laplace transform of (1 − e^{ε−l})₊, which is e^{−zε}/(z(z+1)) at −z;
  Zhu, Dong, Wang 2022, Algorithm 1 (characteristic functions of dominating pairs); the error
  bounds and the decay bound were derived for dpjax.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpjax.accounting import pairs
from dpjax.accounting.pairs import Family

_EPS = float(np.finfo(np.float64).eps)
_LEAST_TILT, _MOST_TILT, _TILTS = 2e-3, 6e3, 28
_COARSE = 64  # nodes of the search for c, which need not be exact: every c gives a bound
_NEWTON = 16


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


RESOLUTIONS = (
    Resolution(192, 8, 28.0, 1e-14),
    Resolution(448, 16, 30.0, 1e-13),
    Resolution(1536, 32, 34.0, 1e-13),
    Resolution(4096, 64, 34.0, 1e-12),
)


class Steps(NamedTuple):
    """Steps that share a family of pairs, grouped by their parameters.

    Fields:
      mu: distance of the means over the noise's standard deviation.
      rate: sampling rate in [0, 1].
      count: how many steps of this kind; 0 for padding.
    """

    mu: Float[Array, " groups"]
    rate: Float[Array, " groups"]
    count: Float[Array, " groups"]


class Composition(NamedTuple):
    """What is composed, in one setting.

    Fields:
      gaussian_mu2: Σ μ² of the plain Gaussian steps, whose transform is known: K(z) = μ²z(z + 1)/2.
      steps: the subsampled steps, by the family of their pairs.
    """

    gaussian_mu2: Float[Array, ""]
    steps: dict[Family, Steps]


class Saddle(NamedTuple):
    """Where the line goes; only its efficiency depends on these being accurate.

    Fields:
      c: tilt near the saddle point.
      depth: estimate of −log δ.
      deviation: rough size of the composed loss's tilted standard deviation.
      epsilon: estimate of ε, or its given value.
    """

    c: Float[Array, ""]
    depth: Float[Array, ""]
    deviation: Float[Array, ""]
    epsilon: Float[Array, ""]


class Line(NamedTuple):
    """The integrand along Re z = c; every size is relative to e^{log_scale − cε}.

    Fields:
      c: the line's real part.
      spacing: distance of its points.
      log_scale: Σ K(c).
      amplitude, phase: |·| and arg of weight·e^{ΣK(z)−ΣK(c)}/(z(z+1)).
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
    slack: Float[Array, ""]
    scale_error: Float[Array, ""]
    rare: Float[Array, ""]
    alias_tilt: Float[Array, " tilts"]
    alias_moment: Float[Array, " tilts"]
    blur: Float[Array, ""]


class Bounds(NamedTuple):
    """Certified ends of an answer.

    Fields:
      lower, upper: the truth lies between them.
      share: small means resolved: (upper − lower)/upper, or an estimate of it where a transform
        that decays too slowly had to be blurred; then the lower end is 0.
    """

    lower: Float[Array, "*shape"]
    upper: Float[Array, "*shape"]
    share: Float[Array, "*shape"]


def _sum(function: Callable, run: Composition, plain: Any) -> Any:
    """`plain` and Σ over steps of count·function(family, mu, rate, count), few steps at a time."""
    total = plain
    for family, steps in run.steps.items():
        groups = steps.mu.shape[0]
        if groups == 1:
            values = function(family, steps.mu[0], steps.rate[0], steps.count[0])
            values = jax.tree.map(lambda v, n=steps.count[0]: n * v, values)
        else:
            rows = (steps.mu, steps.rate, steps.count)
            one = functools.partial(function, family)
            values = jax.lax.map(lambda row, f=one: f(*row), rows, batch_size=min(groups, 16))
            values = jax.tree.map(lambda v, n=steps.count: jnp.tensordot(n, v, axes=1), values)
        total = jax.tree.map(jnp.add, total, values)
    return total


def _clean(run: Composition) -> Composition:
    """Steps that release nothing get count 0 and harmless parameters."""

    def clean(steps: Steps) -> Steps:
        idle = (steps.mu <= 0) | (steps.rate <= 0) | (steps.count <= 0) | ~jnp.isfinite(steps.mu)
        return Steps(
            jnp.where(idle, 0.1, steps.mu),
            jnp.where(idle, 1e-3, jnp.clip(steps.rate, 1e-300, 1.0)),
            jnp.where(idle, 0.0, steps.count),
        )

    mu2 = jnp.where(jnp.isfinite(run.gaussian_mu2), run.gaussian_mu2, 1.0)
    return Composition(jnp.maximum(mu2, 0.0), {f: clean(g) for f, g in run.steps.items()})


def _saddle(
    run: Composition,
    sign: Array,
    log_delta: Array | None,
    epsilon: Array | None,
) -> Saddle:
    """Where to integrate for a target δ or ε."""
    # Losses of rarely sampled records under much noise are tiny, and the tilts as large.
    narrow = run.gaussian_mu2
    for group in run.steps.values():
        one = group.rate * jnp.minimum(group.mu, 1.0)
        narrow = narrow + jnp.sum(group.count * one * one)
    most = jnp.clip(20.0 / jnp.sqrt(jnp.maximum(narrow, 1e-30)), _MOST_TILT, 1e12)
    log_tilts = np.log(_LEAST_TILT) + jnp.log(most / _LEAST_TILT) * np.linspace(0.0, 1.0, _TILTS)
    tilts = jnp.exp(log_tilts)

    def moments(family: Family, mu: Array, rate: Array, _: Array) -> tuple[Array, Array, Array]:
        coarse = jax.vmap(lambda c: pairs.tilt(family, sign, mu, rate, c, _COARSE))(tilts)
        # Far out the coarse nodes can miss the upper mode, whose size is known.
        mode = (tilts + 1) * jnp.log(rate) + 0.5 * tilts * (tilts + 1) * mu * mu
        missed = mode > coarse.log_moment
        missed = missed & (sign > 0) if family == "poisson" else missed
        slope = jnp.log(rate) + (tilts + 0.5) * mu * mu
        return (
            jnp.where(missed, mode, coarse.log_moment),
            jnp.where(missed, slope, coarse.mean),
            jnp.where(missed, mu * mu, coarse.variance),
        )

    mu2 = run.gaussian_mu2 * jnp.ones_like(tilts)
    plain = 0.5 * mu2 * tilts * (tilts + 1), mu2 * (tilts + 0.5), mu2
    total, mean, variance = _sum(moments, run, plain)
    # The saddle-point approximation: every c is the saddle of one ε, and gives its δ.
    at = mean - 1 / tilts - 1 / (tilts + 1)
    # Between two modes the variance is their distance, and says nothing of the curvature.
    curvature = jnp.minimum(variance, 64 / tilts**2) + 1 / tilts**2 + 1 / (tilts + 1) ** 2
    height = total - tilts * at - log_tilts - jnp.log1p(tilts) - 0.5 * jnp.log(2 * np.pi * curvature)
    least = jnp.zeros(()) if epsilon is None else epsilon
    past = (at >= least) if log_delta is None else (at >= least) & (height <= log_delta)
    i = jnp.clip(jnp.where(jnp.any(past), jnp.argmax(past), _TILTS), 1, _TILTS - 1)

    def crossing(values: Array, target: Array) -> Array:
        step = values[i] - values[i - 1]
        return (target - values[i - 1]) / jnp.where(step == 0, 1.0, step)

    part = crossing(at, least)
    part = part if log_delta is None else jnp.maximum(part, crossing(height, log_delta))
    part = jnp.clip(jnp.nan_to_num(part), 0.0, 1.0)

    def between(values: Array) -> Array:
        return values[i - 1] + part * (values[i] - values[i - 1])

    c = jnp.exp(between(log_tilts))
    # Just below a jump to a second mode its few heavy losses would shorten the step: keep away.
    jump = variance[jnp.minimum(i + 1, _TILTS - 1)] > 4 * variance[i - 1]
    jump = jump & (c * c * variance[i - 1] < 4.0) & (log_delta is not None)
    c = jnp.where(jump, 0.7 * c, c)
    if epsilon is None:
        # Chernoff's ε of either neighbour, which a jump of the mean between them leaves alone.
        reached = at + (height - log_delta) / tilts
        epsilon = jnp.clip(between(at), 0.0, jnp.maximum(jnp.minimum(reached[i], reached[i - 1]), 0.0))
    depth = jnp.maximum(-between(height) if log_delta is None else -log_delta, 0.0)
    deviation = jnp.exp(0.5 * between(jnp.log(jnp.maximum(variance, 1e-290))))
    return jax.lax.stop_gradient(Saddle(c, depth, deviation, epsilon))


def _transform(tilted: pairs.Tilted, spacing: Array, blocks: int) -> tuple[Array, Array]:
    """E[e^{it_kL}] − 1 at t_k = k·spacing under the tilted weights, k < blocks².

    With F = e^{itL} − 1, which is small where tL is and is formed without cancellation,
    E[F_{a+b}] = E[F_a] + E[F_b] + E[F_aF_b]; the row of ones gives the first two.
    """
    multiples = jnp.arange(blocks)
    multiples = jnp.concatenate([multiples, blocks * multiples]).astype(spacing.dtype)
    angle = multiples[:, None] * (spacing * tilted.loss)
    half = jnp.sin(0.5 * angle)
    real, imag = jax.lax.optimization_barrier((-2 * half * half, jnp.sin(angle)))
    ones = jnp.ones_like(tilted.loss)[None]
    fine = jnp.concatenate([ones, real[:blocks], imag[:blocks]])
    coarse = jnp.concatenate([ones, real[blocks:], imag[blocks:]]) * tilted.weight
    product = coarse @ fine.T
    top, re, im = slice(0, 1), slice(1, blocks + 1), slice(blocks + 1, 2 * blocks + 1)
    real = product[re, top] + product[top, re] + (product[re, re] - product[im, im])
    imag = product[im, top] + product[top, im] + (product[re, im] + product[im, re])
    return real.reshape(-1), imag.reshape(-1)


def _tilted(family, mu, rate, sign, c, nodes) -> pairs.Tilted:
    return pairs.tilt(family, sign, mu, rate, c, nodes)


_ENDS = np.array([0.0625, 0.125, 0.25, 0.5, 1.0, 8.0])  # of the line, where its rest is bounded
_ALIAS_TILTS = np.array([0.04, 0.12, 0.4, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])


def _line(
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
        moment = jnp.log1p(jnp.expm1(jnp.minimum(exponent, 600.0)) @ step.weight)
        lost = jnp.sum(jnp.where(kept, 0.0, step.weight)) + step.truncated
        return jnp.where(jnp.max(exponent, axis=1) > 600.0, 1e30, moment), lost

    gaussian = 0.5 * run.gaussian_mu2 * alias_tilt * (alias_tilt + 2 * c + 1)
    alias_moment, rare = _sum(alias, run, (gaussian, jnp.zeros(())))
    # The period is the shortest with both aliases below e^{−margin} of the sum.
    right = jnp.min((alias_moment + resolution.margin) / alias_tilt) - saddle.epsilon
    left = (saddle.depth + resolution.margin + 2.0) / c
    spacing = 2 * np.pi / jax.lax.stop_gradient(jnp.maximum(jnp.maximum(left, right), 1e-3 / c))
    t = spacing * jnp.arange(points)

    def contributions(family: Family, mu: Array, rate: Array, _: Array) -> dict[str, Array]:
        step = alone or tilted(family, mu, rate)
        real, imag = _transform(step, spacing, resolution.blocks)
        square = jnp.maximum(2 * real + real * real + imag * imag, -1 + 1e-30)
        log_size = 0.5 * jnp.log1p(square)
        argument = jnp.arctan2(imag, 1 + real)
        quadrature = pairs.quadrature_error(family, sign, mu, rate, c, step, t)
        rounding = 32 * _EPS * jnp.minimum(step.spread * t, 2.0)
        absolute = quadrature + step.truncated + rounding
        relative = jnp.log1p(absolute * jnp.exp(-jnp.maximum(log_size, -40.0)))
        return {
            "moment": step.log_moment,
            "scale_error": quadrature[0] + step.truncated + step.moment_error,
            "log_size": log_size,
            "argument": argument,
            "relative": relative + 8 * _EPS * (jnp.abs(log_size) + jnp.abs(argument)),
            "decay": pairs.decay(family, sign, mu, rate, c, step, jnp.asarray(_ENDS) * t[-1]),
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
    total = _sum(contributions, run, plain)
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
    return Line(
        c=c,
        spacing=spacing,
        log_scale=total["moment"] + 0.5 * b2 * c * (c + 1),
        amplitude=jnp.where(inside, amplitude * jnp.exp(-0.5 * b2 * t * t), 0.0),
        phase=phase + 0.5 * b2 * t * (2 * c + 1),
        slack=slack[end],
        scale_error=total["scale_error"],
        rare=2 * rare * jnp.sum(kernel),
        alias_tilt=alias_tilt,
        alias_moment=alias_moment,
        blur=b2,
    )


def _chernoff(line: Line) -> Array:
    """log of sup_u (1 − e^{−u})₊e^{−cu}, times e^{ΣK(c)}: δ(ε) ≤ e^{this − cε}."""
    bound = line.log_scale - jnp.log1p(line.c) - line.c * jnp.log1p(1 / line.c)
    return bound + line.scale_error + 1e-14 * jnp.abs(line.log_scale)


def _log_delta(line: Line, epsilon: Array) -> tuple[Array, Array, Array]:
    """At one ε: log of δ's upper and lower end, and d log δ/dε."""
    t = line.spacing * jnp.arange(line.amplitude.shape[0])
    angle = line.phase - t * epsilon
    total = jnp.sum(line.amplitude * jnp.cos(angle))
    slope = jnp.sum(line.amplitude * t * jnp.sin(angle))
    # Rounding of the angle, and of the exponent in front.
    size = jnp.sum(line.amplitude * (1 + t * jnp.abs(epsilon)))
    front = line.log_scale - line.c * epsilon
    slack = line.slack + 4 * _EPS * size
    slack = slack + 4 * _EPS * (jnp.abs(line.log_scale) + line.c * epsilon) * jnp.abs(total)
    upper = jnp.log(jnp.maximum(total, 0.0) + slack)
    period = 2 * np.pi / line.spacing
    left = jnp.exp(jnp.clip(-line.c * period - front, -745.0, 300.0))
    exponent = line.alias_moment - line.alias_tilt * (epsilon + period)
    right = jnp.min(jnp.exp(jnp.clip(exponent, -745.0, 300.0)) * 1.01)
    lower = jnp.log(jnp.maximum(total - slack - line.rare - 2 * (left + right), 1e-300))
    upper = jnp.minimum(upper + front, _chernoff(line) - line.c * epsilon)
    derivative = -line.c + slope / jnp.maximum(total, 1e-300)
    return jnp.minimum(upper, 0.0), lower + front, derivative


def _bounds(lower: Array, upper: Array, blur: Array, growth: Array) -> Bounds:
    width = (upper - lower) / jnp.maximum(upper, 1e-300)
    return Bounds(jnp.where(blur > 0, 0.0, lower), upper, jnp.where(blur > 0, growth, width))


def _settle(bounds: Bounds, nothing: Array, unknown: Array) -> Bounds:
    """0 where nothing is released, +∞ where nothing can be said."""
    certain = nothing | unknown
    return Bounds(
        jnp.where(certain | jnp.isnan(bounds.lower), 0.0, jnp.minimum(bounds.lower, bounds.upper)),
        jnp.where(unknown, jnp.inf, jnp.where(nothing, 0.0, bounds.upper)),
        jnp.where(certain | (bounds.upper <= 0), 0.0, jnp.nan_to_num(bounds.share, nan=jnp.inf)),
    )


def _total_variation(run: Composition) -> Array:
    """δ(0) ≤ 1 − Π(1 − TV)^count, from the total variation distances of the steps."""
    plain = jnp.clip(jax.lax.erf(jnp.sqrt(run.gaussian_mu2 / 8.0)), 0.0, 1 - 1e-16)
    log_agree = jnp.log1p(-plain)
    for family, group in run.steps.items():
        scale = np.sqrt(2.0) if family == "replace" else np.sqrt(8.0)
        distance = jnp.clip(group.rate * jax.lax.erf(group.mu / scale), 0.0, 1 - 1e-16)
        log_agree = log_agree + jnp.sum(group.count * jnp.log1p(-distance))
    return -jnp.expm1(log_agree) * (1 + 1e-12)


def _impossible(run: Composition) -> Array:
    """Whether some step adds no noise, or a parameter is not a number."""
    bad = ~jnp.isfinite(run.gaussian_mu2)
    for g in run.steps.values():
        loud = ~jnp.isfinite(g.mu) & (g.rate > 0) & (g.count > 0)
        lost = jnp.isnan(g.mu) | jnp.isnan(g.rate) | ~jnp.isfinite(g.count)
        bad = bad | jnp.any(loud | lost)
    return bad


def _delta_direction(run: Composition, sign: Array, epsilon: Array, at: Resolution) -> Bounds:
    line = _line(run, sign, _saddle(run, sign, None, epsilon), at)
    upper, lower, _ = _log_delta(line, epsilon)
    growth = jnp.expm1(0.5 * line.blur * line.c * (line.c + 1))
    return _bounds(jnp.exp(lower) * (1 - 1e-14), jnp.exp(upper) * (1 + 1e-14), line.blur, growth)


def _epsilon_direction(run: Composition, sign: Array, delta: Array, at: Resolution) -> Bounds:
    log_delta = jnp.log(delta)
    saddle = _saddle(run, sign, log_delta, None)
    line = _line(run, sign, saddle, at)
    start = jnp.maximum((_chernoff(line) - log_delta) / saddle.c, 0.0) * (1 + 1e-13)

    # Newton in a bracket, then three evaluations that count: just above the root, at 0, just below.
    def improve(i, state):
        low, high, x, moved, root, kept = state
        above, zero = i == _NEWTON, i == _NEWTON + 1
        root = jnp.where(above, x, root)
        pad = 2e-13 * (1 + root) + 2 * moved
        # Where the error bounds are small the lower end is this far from the root.
        gap = jnp.where(kept[0, 1] > -600.0, jnp.maximum(kept[0, 0] - kept[0, 1], 0.0), 1e300)
        below = root - pad - 1.05 * (gap + 1e-13) / jnp.maximum(-kept[0, 2], 1e-300)
        last = jnp.where(above, root + pad, jnp.where(zero, 0.0, jnp.maximum(below, 0.0)))
        at = jnp.where(i < _NEWTON, x, last)
        upper, lower, slope = _log_delta(line, at)
        kept = jnp.where(
            jnp.arange(3)[:, None] == i - _NEWTON, jnp.stack([upper, lower, slope, at]), kept
        )
        enough = upper <= log_delta
        low, high = jnp.where(enough, low, at), jnp.where(enough, jnp.minimum(high, at), high)
        guess = x - (upper - log_delta) / jnp.where(slope < 0, slope, -1.0)
        # Where the sum is lost in its error bounds it has no slope worth following.
        known = (slope < 0) & (slope > -1e9)
        new = jnp.where(known & (guess > low) & (guess < high), guess, 0.5 * (low + high))
        # Converged, Newton leaves the bracket's interior by rounding: stay.
        stay = known & (jnp.abs(guess - x) <= 1e-14 * (1 + x)) | (i >= _NEWTON)
        new = jnp.where(stay, x, new)
        return low, high, new, jnp.where(i < _NEWTON, jnp.abs(new - x), moved), root, kept

    zero = jnp.zeros_like(start)
    state = (zero, start, start, start, start, jnp.zeros((3, 4)))
    _, high, _, _, _, kept = jax.lax.fori_loop(0, _NEWTON + 3, improve, state)
    _, (zero_up, _, _, _), (_, below_low, _, below) = kept
    lower = jnp.where(below_low >= log_delta, below, 0.0)
    upper = jnp.where(zero_up <= log_delta, 0.0, high)
    growth = 0.5 * line.blur * (saddle.c + 1) / jnp.maximum(upper, 1e-300)
    return _bounds(lower, upper, line.blur, growth)


def _both(
    direction, run: Composition, signs: tuple[int, ...], target: Array, at: Resolution
) -> Bounds:
    """The worse direction; of impossible steps nothing can be said, of none everything."""
    impossible = _impossible(run)
    run = _clean(run)
    each = jax.vmap(lambda sign: direction(run, sign, target, at))(jnp.asarray(signs, float))
    idle = run.gaussian_mu2 + sum(jnp.sum(g.count) for g in run.steps.values()) == 0
    worse = jnp.argmax(each.upper)
    upper, lower = each.upper[worse], jnp.max(each.lower)
    unknown = impossible | jnp.isnan(upper)
    # Only the worse direction has to be resolved.
    return _settle(Bounds(lower, upper, each.share[worse]), idle & ~impossible, unknown)


def delta(
    run: Composition, epsilon: Float[Array, ""], signs: tuple[int, ...], resolution: Resolution
) -> Bounds:
    """Certified bounds on δ(ε), the worse of the directions.

    Args:
      run: what is composed.
      epsilon: ε ≥ 0.
      signs: (1, −1) for add/remove, (1,) where all pairs are symmetric.
      resolution: how finely; see `RESOLUTIONS`.

    Returns:
      `Bounds`; the upper end is at most the total variation distance. Float64 only.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from dpjax.accounting import contour
      >>> with jax.enable_x64(True):
      ...     steps = contour.Steps(jnp.array([1.0]), jnp.array([0.01]), jnp.array([1e3]))
      ...     run = contour.Composition(jnp.array(0.0), {"poisson": steps})
      ...     bounds = contour.delta(run, jnp.array(2.0), (1, -1), contour.RESOLUTIONS[0])
      >>> print(f"{bounds.upper:.6e}")
      2.665572e-06
    """
    safe = jnp.clip(epsilon, 0.0, 1e6)
    bounds = _delta_root(signs, resolution, run, safe)
    most = jnp.where(_impossible(run), 1.0, jnp.minimum(_total_variation(run), 1.0))
    # Beyond 1e6 the value there still bounds; below 0 we say 1.
    upper = jnp.where(epsilon >= 0, jnp.minimum(bounds.upper, most), 1.0)
    lower = jnp.where(epsilon <= 1e6, jnp.minimum(bounds.lower, upper), 0.0)
    return Bounds(lower, upper, bounds.share)


def epsilon(
    run: Composition, delta: Float[Array, ""], signs: tuple[int, ...], resolution: Resolution
) -> Bounds:
    """Certified bounds on ε(δ), the worse of the directions.

    Args:
      run: what is composed.
      delta: δ in (0, 1); below 1e-290 nothing is said.
      signs: (1, −1) for add/remove, (1,) where all pairs are symmetric.
      resolution: how finely; see `RESOLUTIONS`.

    Returns:
      `Bounds`. Float64 only; jit, vmap, grad (by the implicit function theorem, on the same line).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from dpjax.accounting import contour
      >>> with jax.enable_x64(True):
      ...     steps = contour.Steps(jnp.array([1.0]), jnp.array([0.01]), jnp.array([1e3]))
      ...     run = contour.Composition(jnp.array(0.0), {"poisson": steps})
      ...     bounds = contour.epsilon(run, jnp.array(1e-5), (1, -1), contour.RESOLUTIONS[0])
      >>> print(f"{bounds.lower:.8f} {bounds.upper:.8f}")
      1.82823667 1.82823667
    """
    bounds = _epsilon_root(signs, resolution, run, jnp.clip(delta, 1e-290, 1 - 1e-12))
    impossible = _impossible(run)
    clean = _clean(run)
    idle = clean.gaussian_mu2 + sum(jnp.sum(g.count) for g in clean.steps.values()) == 0
    # δ(0) is at most the total variation distance: nothing to integrate where that is enough.
    free = ((_total_variation(run) <= delta) | idle | (delta >= 1)) & ~impossible
    unknown = ~(delta >= 1e-290) & ~free
    return _settle(bounds, free, unknown)


def _height(run: Composition, epsilon: Array, sign: Array, at: Resolution) -> Array:
    """log δ(ε) as a smooth function: the line stays where it is, its values move."""
    saddle = _saddle(run, sign, None, jax.lax.stop_gradient(epsilon))
    line = _line(run, sign, saddle, at)
    t = line.spacing * jnp.arange(line.amplitude.shape[0])
    total = jnp.sum(line.amplitude * jnp.cos(line.phase - t * epsilon))
    return line.log_scale - saddle.c * epsilon + jnp.log(jnp.maximum(total, 1e-300))


def _worse_height(
    run: Composition, epsilon: Array, signs: tuple[int, ...], at: Resolution
) -> Array:
    run = _clean(run)
    heights = jax.vmap(lambda sign: _height(run, epsilon, sign, at))(jnp.asarray(signs, float))
    return jnp.max(heights)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _delta_root(signs: tuple[int, ...], at: Resolution, run: Composition, epsilon: Array) -> Bounds:
    return _both(_delta_direction, run, signs, epsilon, at)


@_delta_root.defjvp
def _delta_root_jvp(signs, at, primals, tangents):
    bounds = _delta_root(signs, at, *primals)
    _, change = jax.jvp(lambda r, e: _worse_height(r, e, signs, at), primals, tangents)
    change = jnp.where(jnp.isfinite(change) & (bounds.upper < 1), change, 0.0) * bounds.upper
    return bounds, Bounds(change, change, jnp.zeros_like(bounds.share))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _epsilon_root(signs: tuple[int, ...], at: Resolution, run: Composition, delta: Array) -> Bounds:
    return _both(_epsilon_direction, run, signs, delta, at)


@_epsilon_root.defjvp
def _epsilon_root_jvp(signs, at, primals, tangents):
    (run, delta), (run_dot, delta_dot) = primals, tangents
    bounds = _epsilon_root(signs, at, run, delta)
    root = jnp.where(jnp.isfinite(bounds.upper), bounds.upper, 1.0)

    def height(r: Composition, e: Array) -> Array:
        return _worse_height(r, e, signs, at)

    slope = jax.grad(height, argnums=1)(run, root)
    _, change = jax.jvp(lambda r: height(r, root), (run,), (run_dot,))
    usable = jnp.isfinite(bounds.upper) & (bounds.upper > 0) & (slope < 0)
    change = jnp.where(usable, (delta_dot / delta - change) / jnp.where(usable, slope, -1.0), 0.0)
    return bounds, Bounds(change, change, jnp.zeros_like(bounds.share))
