"""Tight δ(ε) and ε(δ): the privacy profile as a contour integral of the loss's transform.

For steps with losses L_t under P_t and K_t(z) = log E[e^{zL_t}], on any line Re z = c > 0,

    δ(ε) = (1/2πi) ∫ exp(Σ K_t(z) − zε) / (z(z + 1)) dz.

Both integrals, over the sample space and along the line, are done by the trapezoid rule, which
converges exponentially. Every error has a bound that is evaluated with the sum, added to the upper
end and taken from the lower:

* step h along the line: the rule returns Σ_m δ(ε + 2πm/h)e^{2πcm/h}, so that its error is never
  negative; the lower end subtracts a Chernoff bound on the other terms;
* the end of the line: `pair_errors.decay` bounds the transform on all that is left out;
* the sample space: `pair_errors.quadrature_error` and the mass of the cut tails;
* rounding: a multiple of the unit roundoff times the condition of every sum.

One line serves all ε: a root is found on it by Newton's method inside a bracket whose upper end
always holds. The line is evaluated as a product of two small matrices,
e^{i(aB+b)hL} = e^{iaBhL}·e^{ibhL}, so that thousands of points cost little; what 144 points cannot
resolve is repeated with more, and what 4,096 cannot is reported, for `loss_distribution` to bound.

References:
  Inversion of the two-sided Laplace transform of (1 − e^{ε−l})₊, which is e^{−zε}/(z(z+1)) at −z;
  Zhu, Dong, Wang 2022, Algorithm 1 (characteristic functions of dominating pairs); the error
  bounds and the decay bound were derived for dpjax.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpjax.accounting import composition
from dpjax.accounting import contour_line as lines
from dpjax.accounting import saddle as saddles
from dpjax.accounting.composition import Composition as Composition
from dpjax.accounting.composition import Steps as Steps
from dpjax.accounting.contour_line import Resolution

_NEWTON = 16

RESOLUTIONS = (
    Resolution(224, 12, 28.0, 1e-14),
    Resolution(1024, 32, 34.0, 1e-14),
    Resolution(4096, 64, 34.0, 1e-14),
)


class Bounds(NamedTuple):
    """Certified ends of an answer.

    Fields:
      lower, upper: the truth lies between them.
      share: small means resolved: (upper − lower)/upper. Where a transform that decays too slowly
        had to be blurred the lower end is 0, and this is the width that the blurred run's own ends
        leave, plus an estimate of what the blur adds.
    """

    lower: Float[Array, "*shape"]
    upper: Float[Array, "*shape"]
    share: Float[Array, "*shape"]


def _bounds(lower: Array, upper: Array, blur: Array, growth: Array) -> Bounds:
    width = (upper - lower) / jnp.maximum(upper, 1e-300)
    return Bounds(jnp.where(blur > 0, 0.0, lower), upper, width + jnp.where(blur > 0, growth, 0.0))


def _settle(bounds: Bounds, nothing: Array, unknown: Array) -> Bounds:
    """0 where nothing is released, +∞ where nothing can be said."""
    certain = nothing | unknown
    return Bounds(
        jnp.where(certain | jnp.isnan(bounds.lower), 0.0, jnp.minimum(bounds.lower, bounds.upper)),
        jnp.where(unknown, jnp.inf, jnp.where(nothing, 0.0, bounds.upper)),
        jnp.where(certain | (bounds.upper <= 0), 0.0, jnp.nan_to_num(bounds.share, nan=jnp.inf)),
    )


def _delta_direction(run: Composition, sign: Array, epsilon: Array, at: Resolution) -> Bounds:
    line = lines.evaluate(run, sign, saddles.find(run, sign, None, epsilon, at.margin), at)
    upper, lower, _ = lines.log_delta(line, lines.waves(line), epsilon)
    growth = jnp.expm1(0.5 * line.blur * line.c * (line.c + 1))
    return _bounds(jnp.exp(lower) * (1 - 1e-14), jnp.exp(upper) * (1 + 1e-14), line.blur, growth)


def _epsilon_direction(run: Composition, sign: Array, delta: Array, at: Resolution) -> Bounds:
    log_delta = jnp.log(delta)
    saddle = saddles.find(run, sign, log_delta, None, at.margin)
    line = lines.evaluate(run, sign, saddle, at)
    of = lines.waves(line)
    start = jnp.maximum((lines.chernoff(line) - log_delta) / saddle.c, 0.0) * (1 + 1e-13)

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
        upper, lower, slope = lines.log_delta(line, of, at)
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
    impossible = composition.impossible(run)
    run = composition.clean(run)
    each = jax.lax.map(lambda sign: direction(run, sign, target, at), jnp.asarray(signs, float))
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
      ...     ask = jax.jit(lambda run, e: contour.delta(run, e, (1, -1), contour.RESOLUTIONS[0]))
      ...     bounds = ask(run, jnp.array(2.0))
      >>> print(f"{bounds.upper:.6e}")
      2.665572e-06
    """
    safe = jnp.clip(epsilon, 0.0, 1e6)
    bounds = _delta_root(signs, resolution, run, safe)
    most = jnp.where(
        composition.impossible(run), 1.0, jnp.minimum(composition.total_variation(run), 1.0)
    )
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
      ...     ask = jax.jit(lambda run, d: contour.epsilon(run, d, (1, -1), contour.RESOLUTIONS[0]))
      ...     bounds = ask(run, jnp.array(1e-5))
      >>> print(f"{bounds.lower:.8f} {bounds.upper:.8f}")
      1.82823667 1.82823667
    """
    bounds = _epsilon_root(signs, resolution, run, jnp.clip(delta, 1e-290, 1 - 1e-12))
    impossible = composition.impossible(run)
    clean = composition.clean(run)
    idle = clean.gaussian_mu2 + sum(jnp.sum(g.count) for g in clean.steps.values()) == 0
    # δ(0) is at most the total variation distance: nothing to integrate where that is enough.
    free = ((composition.total_variation(run) <= delta) | idle | (delta >= 1)) & ~impossible
    unknown = ~(delta >= 1e-290) & ~free
    return _settle(bounds, free, unknown)


def _height(run: Composition, epsilon: Array, sign: Array, at: Resolution) -> Array:
    """log δ(ε) as a smooth function: the line stays where it is, its values move."""
    saddle = saddles.find(run, sign, None, jax.lax.stop_gradient(epsilon), at.margin)
    line = lines.evaluate(run, sign, saddle, at)
    t = line.spacing * jnp.arange(line.amplitude.shape[0])
    total = jnp.sum(line.amplitude * jnp.cos(line.phase - t * epsilon))
    return line.log_scale - saddle.c * epsilon + jnp.log(jnp.maximum(total, 1e-300))


def _worse_height(
    run: Composition, epsilon: Array, signs: tuple[int, ...], at: Resolution
) -> Array:
    run = composition.clean(run)
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
