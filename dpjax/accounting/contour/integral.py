"""Tight δ(ε) and ε(δ): the privacy profile as a contour integral of the loss's transform.

For steps with losses L_t under P_t and K_t(z) = log E[e^{zL_t}], on any line Re z = c > 0,

    δ(ε) = (1/2πi) ∫ exp(Σ K_t(z) − zε) / (z(z + 1)) dz.

Both integrals, over the sample space and along the line, are done by the trapezoid rule, which
converges exponentially. Every error has a bound that is evaluated with the sum, added to the upper
end and taken from the lower:

* step h along the line: the rule returns Σ_m δ(ε + 2πm/h)e^{2πcm/h} with δ(u) = E[(1 − e^{u−L})₊]
  for every real u (Poisson summation). No term is negative, so that the whole sum is an upper end;
  the lower end subtracts a Chernoff bound on the other terms;
* the end of the line, where the sum stops at E: |e^{ΣK(z) − ΣK(c)}| ≤ ρ(t) falling in t
  (`pairs.errors.decay`) and |z(z + 1)| ≥ t², so that what is left out is at most
  hρ(E)/E² + ∫_E^∞ ρ(t)/t² dt, over π;
* every point: with φ = E[e^{itL}] under the tilted measure and |φ − φ̂| ≤ a (quadrature, cut tails,
  rounding of angles, sums and weights), |Πφ^n − Πφ̂^n| ≤ |Πφ̂^n|(Π(1 + a/|φ̂|)^n − 1). φ̂ is replaced
  by one of modulus at least a, which adds the difference to a;
* the sample space: `pairs.errors.quadrature_error` and the mass of the cut tails;
* rounding: a multiple of the unit roundoff times the condition of every sum.

One line serves all ε: a root is found on it by Newton's method inside a bracket whose upper end
always holds. The line is evaluated as a product of two small matrices,
e^{i(aB+b)hL} = e^{iaBhL}·e^{ibhL}, so that thousands of points cost little; what 400 points cannot
resolve is repeated with more, then with more nodes in the sample space, and what is left then is
reported, for `loss_distribution` to bound.

References:
  Inversion of the two-sided Laplace transform of (1 − e^{ε−l})₊, which is e^{−zε}/(z(z+1)) at −z;
  Zhu, Dong, Wang 2022, Algorithm 1 (characteristic functions of dominating pairs); the error
  bounds and the decay bound were derived for dpjax.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics.arrays import namespace
from dpjax.accounting.contour import composition, one_step, saddle_point
from dpjax.accounting.contour import line as lines
from dpjax.accounting.contour.composition import Composition as Composition
from dpjax.accounting.contour.composition import Steps as Steps
from dpjax.accounting.contour.derivative import slopes
from dpjax.accounting.contour.line import Resolution
from dpjax.accounting.contour.saddle_point import Saddle
from dpjax.accounting.pairs.table import TRANSFORMS

_NEWTON = 16
_UNDERFLOW = 1e-300  # δ of a release is never 0, though it may be below the least float

RESOLUTIONS = (
    Resolution(224, 20, 24.0, 1e-14),
    Resolution(1024, 32, 34.0, 1e-14),
    Resolution(4096, 64, 34.0, 1e-14),
    Resolution(8192, 64, 34.0, 1e-14),
)
_SHORT = Resolution(128, 16, 5.0, 1e-14)  # to tell that a direction is no worse than the other


class Bounds(NamedTuple):
    """Certified ends of an answer.

    Fields:
        lower, upper: the truth lies between them.
        share: small means resolved: (upper − lower)/upper. Where a transform that decays too slowly
            had to be blurred the lower end is 0, and this is the width that the blurred run's own
            ends leave, plus an estimate of what the blur adds.
    """

    lower: Float[Array, "*shape"]
    upper: Float[Array, "*shape"]
    share: Float[Array, "*shape"]


def _bounds(lower: Array, upper: Array, blur: Array, growth: Array) -> Bounds:
    xp: Any = namespace(lower, upper, blur, growth)
    width = (upper - lower) / xp.maximum(upper, 1e-300)
    return Bounds(xp.where(blur > 0, 0.0, lower), upper, width + xp.where(blur > 0, growth, 0.0))


def _settle(bounds: Bounds, nothing: Array, unknown: Array) -> Bounds:
    """0 where nothing is released, +∞ where nothing can be said."""
    xp: Any = namespace(bounds, nothing, unknown)
    certain = nothing | unknown
    share = xp.where(xp.isnan(bounds.share), xp.inf, bounds.share)
    return Bounds(
        xp.where(certain | xp.isnan(bounds.lower), 0.0, xp.minimum(bounds.lower, bounds.upper)),
        xp.where(unknown, xp.inf, xp.where(nothing, 0.0, bounds.upper)),
        xp.where(certain | (bounds.upper <= 0), 0.0, share),
    )


def _delta_direction(
    run: Composition, sign: Array, epsilon: Array, at: Resolution
) -> tuple[Bounds, Saddle]:
    xp: Any = namespace(run, sign, epsilon)
    saddle = saddle_point.find(run, sign, None, epsilon, at.margin)
    line = lines.evaluate(run, sign, saddle, at)
    upper, lower, _ = lines.log_delta(line, lines.waves(line), epsilon)
    growth = xp.expm1(0.5 * line.blur * line.c * (line.c + 1))
    upper, lower = xp.exp(upper) * (1 + 1e-14), xp.exp(lower) * (1 - 1e-14)
    return _bounds(lower, upper, line.blur, growth), saddle


def _epsilon_direction(
    run: Composition, sign: Array, delta: Array, at: Resolution
) -> tuple[Bounds, Saddle]:
    xp: Any = namespace(run, sign, delta)
    log_delta = xp.log(delta)
    saddle = saddle_point.find(run, sign, log_delta, None, at.margin)
    line = lines.evaluate(run, sign, saddle, at)
    of = lines.waves(line)
    start = xp.maximum((lines.chernoff(line) - log_delta) / saddle.c, 0.0) * (1 + 1e-13)
    first = xp.minimum(saddle.epsilon, start)

    # Newton in a bracket, until it leaves the bracket's interior by rounding.
    def improve(state):
        i, low, high, x, _, _ = state
        upper, _, slope = lines.log_delta(line, of, x)
        enough = upper <= log_delta
        low, high = xp.where(enough, low, x), xp.where(enough, xp.minimum(high, x), high)
        guess = x - (upper - log_delta) / xp.where(slope < 0, slope, -1.0)
        # Where the sum is lost in its error bounds it has no slope worth following.
        usable = (slope < 0) & (slope > -1e9)
        new = xp.where(usable & (guess > low) & (guess < high), guess, 0.5 * (low + high))
        moved = xp.abs(guess - x)
        settled = usable & (moved <= 1e-14 * (1 + x))
        new = xp.where(settled, x, new)
        return i + 1, low, high, new, xp.abs(new - x), settled

    zero = xp.zeros_like(start)
    state = (0, zero, start, first, start, start <= 0)
    _, _, high, root, moved, _ = xp.while_loop(lambda s: (s[0] < _NEWTON) & ~s[5], improve, state)
    pad = 2e-13 * (1 + root) + 2 * moved

    # The evaluations that count: just above the root, just below, and at 0 where ε may be that.
    def settle(state):
        i, high, lower, below = state
        at = xp.where(i == 0, root + pad, xp.where(i == 1, below, 0.0))
        most, least, slope = lines.log_delta(line, of, at)
        # Where the error bounds are small the lower end is this far from the root.
        gap = xp.where(least > -600.0, xp.maximum(most - least, 0.0), 1e300)
        next_ = root - pad - 1.05 * (gap + 1e-13) / xp.maximum(-slope, 1e-300)
        below = xp.where(i == 0, xp.maximum(next_, 0.0), below)
        lower = xp.where((i == 1) & (least >= log_delta), below, lower)
        return i + 1, xp.where(most <= log_delta, xp.minimum(high, at), high), lower, below

    def unsettled(state):
        i, _, lower, _ = state
        return (i < 2) | ((i == 2) & (lower <= 0))

    _, upper, lower, _ = xp.while_loop(unsettled, settle, (0, high, zero, zero))
    growth = 0.5 * line.blur * (saddle.c + 1) / xp.maximum(upper, 1e-300)
    return _bounds(lower, upper, line.blur, growth), saddle


def _no_worse(
    run: Composition, sign: Array, saddle: Saddle, epsilon: Array, delta: Array, at: Resolution
) -> Array:
    """Whether this direction's δ(ε) is at most δ, given the other direction's saddle point.

    By that and a short line where the first line will do: the directions mostly differ by more than
    its aliases. Rare losses, which take finer lines, have other saddle points.
    """
    xp: Any = namespace(saddle.c, epsilon, delta)
    log_delta = xp.log(delta)
    if at is RESOLUTIONS[0] and not any(name in TRANSFORMS for name in run.steps):
        saddle = saddle._replace(epsilon=epsilon, depth=-log_delta, waste=xp.zeros_like(epsilon))
        at = _SHORT
    else:
        at = RESOLUTIONS[0]
        saddle = saddle_point.find(run, sign, log_delta, None, at.margin)
    line = lines.evaluate(run, sign, saddle, at)
    upper = lines.log_delta(line, lines.waves(line), epsilon)[0]
    return upper + 1e-14 * (1 + xp.abs(upper)) <= log_delta


def _both(
    question: str, run: Composition, signs: tuple[int, ...], given: Array, at: Resolution
) -> Bounds:
    """The worse direction; of impossible steps nothing can be said, of none everything."""
    xp: Any = namespace(run, signs, given)
    direction = _epsilon_direction if question == "epsilon" else _delta_direction
    impossible = composition.impossible(run)
    run, every = composition.clean(run), xp.asarray(signs)

    def worse(state: tuple[Any, Bounds]) -> tuple[Any, Bounds]:
        k, known = state
        found, saddle = direction(run, every[k], given, at)
        # What is not a number stays so. Only the worse direction has to be resolved.
        kept = ~(found.upper <= known.upper) & ~xp.isnan(known.upper)
        pairs = zip(found[1:], known[1:], strict=True)
        upper, share = (xp.where(kept, new, old) for new, old in pairs)
        known = Bounds(xp.maximum(found.lower, known.lower), upper, share)
        k = k + 1
        if len(signs) > 1:
            ends = (upper, given) if question == "epsilon" else (given, upper)
            last = xp.minimum(k, len(signs) - 1)
            done = ~(upper < np.inf) | _no_worse(run, every[last], saddle, *ends, at)
            k = xp.where(done, len(signs), k)
        return k, known

    zero = xp.zeros_like(given)
    _, found = xp.while_loop(lambda s: s[0] < len(signs), worse, (0, Bounds(zero, zero, zero)))
    idle = run.gaussian_mu2 + sum(xp.sum(g.count) for g in run.steps.values()) == 0
    return _settle(found, idle & ~impossible, impossible | xp.isnan(found.upper))


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
        >>> import numpy as np
        >>> from dpjax.accounting.contour import integral as contour
        >>> steps = contour.Steps(np.array([1.0]), np.array([0.01]), np.array([1e3]))
        >>> run = contour.Composition(np.float64(0.0), {"poisson": steps})
        >>> with np.errstate(all="ignore"):
        ...     bounds = contour.delta(run, np.float64(2.0), (1, -1), contour.RESOLUTIONS[0])
        >>> print(f"{bounds.upper:.6e}")
        2.665572e-06
    """
    xp: Any = namespace(run, epsilon, signs, resolution)
    safe = xp.clip(epsilon, 0.0, 1e6)
    bounds = _both("delta", run, signs, safe, resolution)
    most = xp.where(
        composition.impossible(run), 1.0, xp.minimum(composition.total_variation(run), 1.0)
    )
    # Beyond 1e6 the value there still bounds; below 0 we say 1.
    upper = xp.minimum(xp.maximum(bounds.upper, _UNDERFLOW), most)
    upper = xp.where(epsilon >= 0, upper, 1.0)
    lower = xp.where(epsilon <= 1e6, xp.minimum(bounds.lower, upper), 0.0)
    # Where the line is above the total variation it says nothing of how loose that is.
    return Bounds(lower, upper, xp.where(bounds.upper <= most, bounds.share, xp.inf))


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
        `Bounds`. Float64 only; jit and vmap. Derivatives are `epsilon_slopes`.

    Example:
        >>> import numpy as np
        >>> from dpjax.accounting.contour import integral as contour
        >>> steps = contour.Steps(np.array([1.0]), np.array([0.01]), np.array([1e3]))
        >>> run = contour.Composition(np.float64(0.0), {"poisson": steps})
        >>> with np.errstate(all="ignore"):
        ...     bounds = contour.epsilon(run, np.float64(1e-5), (1, -1), contour.RESOLUTIONS[0])
        >>> print(f"{bounds.lower:.8f} {bounds.upper:.8f}")
        1.82823667 1.82823667
    """
    xp: Any = namespace(run, delta, signs, resolution)
    safe = xp.clip(delta, 1e-290, 1 - 1e-12)
    bounds = _both("epsilon", run, signs, safe, resolution)
    impossible = composition.impossible(run)
    clean = composition.clean(run)
    idle = clean.gaussian_mu2 + sum(xp.sum(g.count) for g in clean.steps.values()) == 0
    # δ(0) is at most the total variation distance: nothing to integrate where that is enough.
    free = ((composition.total_variation(run) <= delta) | idle | (delta >= 1)) & ~impossible
    unknown = ~(delta >= 1e-290) & ~free
    return _settle(bounds, free, unknown)


def of_one_step(
    question: str, run: Composition, given: Float[Array, ""], signs: tuple[int, ...]
) -> Bounds:
    """`epsilon` or `delta` of a single step in closed form; (0, ∞ or 1) of any other run.

    Example:
        >>> import numpy as np
        >>> from dpjax.accounting.contour import integral as contour
        >>> step = contour.Steps(np.array([1.0]), np.array([0.1]), np.array([1.0]))
        >>> run = contour.Composition(np.float64(0.0), {"poisson": step})
        >>> contour.of_one_step("epsilon", run, np.float64(1e-5), (1, -1)).upper.round(6)
        np.float64(1.684544)
    """
    xp: Any = namespace(run, given)
    bad = composition.impossible(run)
    run = composition.clean(run)
    if question == "epsilon":
        bad = bad | ~(given >= 1e-290)
        upper, lower, *_ = one_step.bounds(question, run, xp.clip(given, 1e-290, 1.0), signs)
        none = np.inf
    else:
        bad = bad | ~((given >= 0) & (given <= 1e6))
        upper, lower, *_ = one_step.bounds(question, run, xp.clip(given, 0.0, 1e6), signs)
        upper = xp.maximum(upper, _UNDERFLOW)
        upper = xp.minimum(upper, xp.minimum(composition.total_variation(run), 1.0))
        none = 1.0
    bad = bad | ~(upper >= 0)
    upper, lower = xp.where(bad, none, upper), xp.where(bad, 0.0, xp.minimum(lower, upper))
    share = (upper - lower) / xp.maximum(upper, 1e-300)
    return Bounds(lower, upper, xp.where(upper <= _UNDERFLOW, 0.0, share))


def epsilon_slopes(
    run: Composition,
    delta: Array,
    bounds: Bounds,
    signs: tuple[int, ...],
    resolution: Resolution,
) -> tuple[Composition, Array]:
    """∂ε/∂(every parameter of the run) and ∂ε/∂δ, at the upper end of `bounds`.

    By the implicit function theorem; 0 where ε is 0 or infinite.

    Args:
        run, delta, signs, resolution: as for `epsilon`.
        bounds: what `epsilon` returned for them.

    Example:
        >>> import numpy as np
        >>> from dpjax.accounting.contour import integral as contour
        >>> run, at = contour.Composition(np.float64(1.0), {}), contour.RESOLUTIONS[0]
        >>> with np.errstate(all="ignore"):
        ...     bounds = contour.epsilon(run, np.float64(1e-5), (1,), at)
        ...     _, slope = contour.epsilon_slopes(run, np.float64(1e-5), bounds, (1,), at)
        >>> print(round(float(slope) * 1e-5, 4))
        -0.2...
    """
    xp: Any = namespace(run, delta, bounds)
    usable = xp.isfinite(bounds.upper) & (bounds.upper > 0)
    at = xp.where(usable, bounds.upper, 1.0)
    log_delta = xp.log(xp.clip(delta, 1e-290, 1 - 1e-12))
    found = slopes(composition.clean(run), at, signs, resolution, log_delta)
    usable = usable & (found.epsilon < 0)
    rate = xp.where(usable, -1.0, 0.0) / xp.where(usable, found.epsilon, -1.0)
    return _scaled(found.run, rate), -rate / delta


def delta_slopes(
    run: Composition,
    epsilon: Array,
    bounds: Bounds,
    signs: tuple[int, ...],
    resolution: Resolution,
) -> tuple[Composition, Array]:
    """∂δ/∂(every parameter of the run) and ∂δ/∂ε; see `epsilon_slopes`."""
    xp: Any = namespace(run, epsilon, bounds)
    found = slopes(composition.clean(run), xp.clip(epsilon, 0.0, 1e6), signs, resolution)
    size = xp.where((bounds.upper < 1) & xp.isfinite(found.epsilon), bounds.upper, 0.0)
    return _scaled(found.run, size), xp.where(size > 0, found.epsilon, 0.0) * size


def _scaled(run: Composition, factor: Array) -> Composition:
    """Each slope times a factor; 0 where a slope is not a number."""
    xp: Any = namespace(run, factor)

    def scale(v: Array) -> Array:
        return xp.where(xp.isfinite(v) & (factor != 0), v, 0.0) * factor

    steps = {family: Steps(*(scale(v) for v in group)) for family, group in run.steps.items()}
    return Composition(scale(run.gaussian_mu2), steps)
