"""Gaussian DP of the last iterate of noisy contractions, by shifted interpolation.

Two runs on neighbouring data share their noise. An interpolating process starts on one run and is
steered onto the other by shifts a_k; the distance z_k of the two contracts by c_k a step, grows by
the gradient's displacement where the record is used, and is reduced by a_k; it must end at 0 and
never be negative. Then the last iterate is μ-GDP with μ² = Σ (a_k/s_k)², s_k the noise of step k
(Bok, Su and Altschuler 2024). The least such μ² is a quadratic programme, solved exactly here:
discounted to the end, the budgets a_k follow the greatest convex minorant of the accumulated
displacement.

Everything is in units of one step: `ratio` = displacement of one update / its noise = L/(nσ_B), and
`gap` = 1 − c. Pure functions of float64 arrays unless said otherwise.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics.arrays import ROUND_UP, Numbers, NumbersLike, Values, namespace
from dpjax.accounting.mechanisms.whole_runs import (
    NoisyCyclicDescent,
    NoisyGradientDescent,
    NoisySampledDescent,
)

StepValues = Float[ArrayLike, " steps"]


def contraction_gap(step_size: Values, strong_convexity: Values, smoothness: Values) -> Array:
    """1 − c of θ ↦ θ − η∇F(θ), c = max(|1 − ηm|, |1 − ηM|); 0 where nothing contracts.

    min(ηm, 2 − ηM) without cancellation. It is 0 (and so no claim is made) where η > 2/M or where
    the constants contradict each other (m > M).
    """
    xp = namespace(step_size, strong_convexity, smoothness)
    step_size, smoothness = xp.asarray(step_size), xp.asarray(smoothness)
    strong_convexity = xp.asarray(strong_convexity)
    # 1 − max(|1 − ηm|, |1 − ηM|), case by case
    gap = xp.minimum(step_size * strong_convexity, 2 - step_size * smoothness)
    sound = (strong_convexity <= smoothness) & (gap > 0)
    # Contracting exactly to a point (gap 1) is rounded to nearly so: the logarithm stays finite.
    return xp.where(sound, xp.clip(gap * (1 - 1e-14), 0.0, 1 - 1e-15), 0.0)


def _power(gap: Values, exponent: Values) -> Numbers:
    """c^k."""
    xp = namespace(gap, exponent)
    return xp.exp(exponent * xp.log1p(-gap))  # log1p keeps the digits of a small gap


def _sum(gap: Values, count: NumbersLike) -> Numbers:
    """1 + c + … + c^{k−1}, also at c = 1."""
    xp = namespace(gap, count)
    safe = xp.where(gap > 0, gap, 0.5)
    return xp.where(gap > 0, -xp.expm1(count * xp.log1p(-safe)) / safe, count)


def descent_mu2(gap: Array, steps: Array, ratio: Array) -> Array:
    """μ² of noisy gradient descent on strongly convex losses: exact for quadratics.

    ratio²·(1 − c^t)/(1 + c^t)·(1 + c)/(1 − c); without contraction (gap 0) it is plain composition,
    t·ratio².

    References:
        Bok, Su and Altschuler 2024, strongly convex noisy gradient descent.
    """
    xp = namespace(gap, steps, ratio)
    # (1 − c^t)/(1 − c) is the sum, 1 + c = 2 − gap
    return xp.square(ratio) * _sum(gap, steps) * (2 - gap) / (1 + _power(gap, steps)) * ROUND_UP


def bounded_descent_mu2(
    gap: Array, steps: Array, shift: Array, noise: Array, diameter: Array
) -> Array:
    """μ² of noisy gradient descent projected on a convex set of bounded diameter.

    min over whole T' <= t of (c^{T'}D + s(1−c^{T'})/(1−c))²(1−c²)/(1−c^{2T'})/noise²: the
    interpolation starts T' steps before the end, when the runs are at most D apart. Derived for
    dpjax: as a function of u = c^{T'} the objective falls up to u = 1 − D(1−c)/s and rises after,
    so that the best whole T' is one of the two next to it. Never above the closed form of Bok, Su
    and Altschuler (2024).
    """
    xp = namespace(gap, steps, shift, noise, diameter)
    safe_shift = xp.where(shift > 0, shift, 1.0)
    relative = xp.where(xp.isfinite(diameter), diameter, 0.0) / safe_shift
    inside = relative * gap < 1
    safe_gap = xp.where(gap > 0, gap, 0.5)
    # T' at which c^{T'} = 1 − D(1−c)/s
    hit = xp.log1p(-xp.where(inside & (gap > 0), relative * safe_gap, 0.0)) / xp.log1p(-safe_gap)
    best = xp.where(gap > 0, xp.where(inside, hit, steps), relative)
    best = xp.stop_gradient(best)  # a whole number moves by steps only

    def value(count: Array) -> Array:
        count = xp.clip(count, 1.0, xp.maximum(steps, 1.0))
        distance = _power(gap, count) * xp.where(xp.isfinite(diameter), diameter, 0.0)
        distance = distance + shift * _sum(gap, count)  # c^{T'}D + s(1 − c^{T'})/(1 − c)
        weight = _sum(gap, 2 * count) / (2 - gap)  # Σ c^{2k}, k < T'
        return xp.square(distance / noise) / weight

    # unimodal: the best whole T' is next to the root
    least = xp.minimum(value(xp.floor(best)), value(xp.ceil(best)))
    return xp.where(xp.isfinite(diameter), least * ROUND_UP, xp.inf)


def cyclic_mu2(gap: Array, since: Array, uses: Array, batches: Array, ratio: Array) -> Array:
    """μ² of cyclic noisy gradient descent for a record in a known batch.

    The record is used `uses` times, `batches` steps apart, the last time `since` = r updates
    before the end (1: in the very last update). With S = c^{r−1}(1−c^{lE})/(1−c^l), N = (E−1)l + r,
    Λ = S(1−c²)/(1−c^{2N}): μ² = SΛ if Λ(1−c^{2r})/(1−c²) ≥ c^{r−1}, else the last use is absorbed
    alone and μ² = c^{2(r−1)}(1−c²)/(1−c^{2r}) +
    c^{2l−2}(1−c²)/(1−c^l)²·(1−c^{l(E−1)})/(1+c^{l(E−1)}). Derived for dpjax: these are the
    one-piece and the two-piece convex minorant. At r = 1 it is the bound of Bok, Su and Altschuler
    (2024) for noisy cyclic descent, which is that of the worst batch.
    """
    xp = namespace(gap, since, uses, batches, ratio)
    last = _power(gap, since - 1)
    cycle = _sum(gap, batches)  # 1 + c + … of one pass
    total = last * _sum(gap, batches * uses) / cycle
    horizon = (uses - 1) * batches + since  # steps since the first use
    # Λ, the slope of the minorant of one piece
    multiplier = total * (2 - gap) / _sum(gap, 2 * xp.maximum(horizon, 1.0))
    # whether one piece stays below at the last use
    smooth = multiplier * _sum(gap, 2 * since) / (2 - gap) >= last
    earlier = batches * xp.maximum(uses - 1, 0.0)
    # the last use, absorbed by the r steps after it
    alone = xp.square(last) * (2 - gap) / _sum(gap, 2 * since)
    before = xp.square(_power(gap, batches - 1) / cycle) * (2 - gap)
    # all uses before it, as one run that ends there
    before = before * _sum(gap, earlier) / (1 + _power(gap, earlier))
    value = xp.where(smooth & (uses > 1), total * multiplier, alone + before)
    # Never worse than composing the record's uses, whatever rounding does.
    value = xp.minimum(value * ROUND_UP, uses)
    return xp.where(uses > 0, xp.square(ratio) * value, 0.0)


def programme_mu(
    contractions: StepValues,
    displacements: StepValues,
    noises: StepValues,
    *,
    diameter: float = np.inf,
) -> float:
    """Best shifted-interpolation μ for any schedule: steps, noise and uses may all vary.

    Minimises Σ (a_k/s_k)² subject to z_k = c_k z_{k−1} + d_k − a_k ≥ 0 and z_t = 0, from z_0 = 0 or
    from any step on with z = D. With P_k = Π_{i>k} c_i, h_k = P_k d_k and v_k = (P_k s_k)² the
    budgets P_k a_k/v_k are the slopes of the greatest convex minorant of Σh over Σv, that is the
    isotonic regression of h/v with weights v. Derived for dpjax: the constraint z ≥ 0 says that
    the accumulated budget stays below Σh, and Σ (ΔB)²/ΔV is least for the taut string. Runs in
    NumPy.

    Args:
        contractions: Lipschitz constant c_k of each step's map, at least 0, shape [t].
        displacements: how far the record moves that step (0 where it is not used), shape [t].
        noises: standard deviation of each step's noise, > 0, shape [t].
        diameter: D of the convex set every step projects on; +inf without projection.

    Returns:
        μ of the last iterate, rounded up.

    Example:
        >>> from dpjax.accounting.gaussian.shifted_interpolation import programme_mu
        >>> print(f"{programme_mu([0.5] * 3, [1.0] * 3, [1.0] * 3):.6f}")
        1.527525

    References:
        Bok, Su and Altschuler 2024 (the programme); the closed solution is derived for dpjax.
    """
    c, d, s = np.broadcast_arrays(
        *(np.asarray(v, np.float64) for v in (contractions, displacements, noises))
    )
    if c.ndim != 1:
        raise ValueError(f"the schedule must be given step by step, shape [t], got {c.shape}")
    if not (np.all(c >= 0) and np.all(d >= 0) and np.all(s >= 0)):
        raise ValueError(
            f"contractions, displacements and noises must be >= 0, got {c}, {d} and {s}"
        )
    if not np.any(d > 0):
        return 0.0
    if np.any(s == 0):
        return float("inf")
    after = np.cumprod(np.append(c[1:], 1.0)[::-1])[::-1]
    # What happened so long ago that nothing of it is left to double precision is absorbed first.
    first = int(np.argmax(after > 1e-120))
    push = after * d  # displacements, discounted to the end
    variance = np.square(after[first:] * s[first:])
    forgotten = float(np.sum(push[:first]))
    push = push[first:].copy()
    push[0] += forgotten  # their displacement is absorbed with the first step kept
    best = _minorant(push, variance)
    if np.isfinite(diameter):
        for start in range(len(push)):
            tail = push[start:].copy()
            # from here on with z = D, whatever came before
            tail[0] = after[first + start] * (d[first + start] + c[first + start] * diameter)
            best = min(best, _minorant(tail, variance[start:]))
    return float(np.sqrt(best) * ROUND_UP)


def _minorant(push: np.ndarray, variance: np.ndarray) -> float:
    from scipy.optimize import isotonic_regression  # half a second, and only schedules need it

    slopes = isotonic_regression(push / variance, weights=variance).x
    return float(np.sum(variance * np.square(slopes)))  # Σ (a_k/s_k)², the slopes being P_k a_k/v_k


def sampled_split(
    gap: float,
    ratio: float,
    steps: int,
    *,
    diameter_ratio: float = np.inf,
    window: int,
    share: float,
) -> tuple[float, float]:
    """(μ of the past, μ of each sampled update) of noisy SGD with fixed-size batches, last iterate.

    For any window ν <= t and share θ in (0, 1): the last iterate is as private as one release that
    is μ_G-GDP together with ν releases of a fixed-batch sampled Gaussian with displacement
    ratio/√θ. μ_G = z·c^ν √((1−c²)/(1−c^{2ν}))/√(1−θ), z = min(D/noise, ratio·(1−c^{t−ν})/(1−c))
    (in units of a step's noise). Derived for dpjax. Proof sketch: interpolate from the other run's
    iterate at t − ν with the same batches and noise; split each later step's noise into
    independent parts of variance θ and 1 − θ. The first hides which update map was applied, a
    subsampled Gaussian; given it, the second hides a shift of norm at most a_k, by joint
    convexity. Compose adaptively and minimise Σ a² subject to Σ c^{t−k} a_k = c^ν z.

    Args:
        gap: 1 − c.
        ratio: displacement of one update over its noise when the record is in the batch.
        steps: t. diameter_ratio: D over a step's noise. window: ν. share: θ.

    References:
        Bok, Su and Altschuler 2024 treat θ = 1/2.
    """
    if not (1 <= window <= steps and 0 < share <= 1 and (share < 1 or window == steps)):
        raise ValueError(
            "window must be in [1, steps] and share in (0, 1), or 1 with the whole window, "
            f"got window={window}, steps={steps}, share={share}"
        )
    update = ratio / np.sqrt(share)  # a share θ of the noise hides the update map
    if window == steps:
        return 0.0, float(update * ROUND_UP)
    # z: by the set, or by what the past can add up to
    distance = min(diameter_ratio, ratio * float(_sum(gap, steps - window)))
    past = distance * _power(gap, window) * np.sqrt((2 - gap) / _sum(gap, 2 * window) / (1 - share))
    return float(past * ROUND_UP), float(update * ROUND_UP)


# Runs that release their last iterate alone.
Descent = NoisyGradientDescent | NoisyCyclicDescent | NoisySampledDescent


def units(run: Descent) -> tuple[Array, Array, Array]:
    """Displacement of an update, its noise, and their ratio."""
    xp = namespace(run)
    shift = run.step_size * run.gradient_sensitivity
    noise = xp.sqrt(2.0 * run.step_size) * run.noise_std  # Langevin noise of a step, √(2η)·σ
    quiet = noise <= 0  # no noise, no privacy, unless nothing moves
    ratio = xp.where(quiet, xp.inf, shift / xp.where(quiet, 1.0, noise))
    return xp.asarray(shift), noise, xp.where(shift > 0, ratio, 0.0)


def bounds2(run: NoisyGradientDescent) -> tuple[Array, Array, Array]:
    """μ² by each argument, for one setting or broadcast fields."""
    xp = namespace(run)
    shift, noise, ratio = units(run)
    steps = xp.asarray(run.steps)
    gap = contraction_gap(run.step_size, run.strong_convexity, run.smoothness)
    moves = (ratio > 0) & (steps > 0)
    finite = xp.where(xp.isfinite(ratio) & moves, ratio, 1.0)
    known = moves & xp.isfinite(ratio)

    def settle(value: Array) -> Array:
        return xp.where(known, value, xp.where(moves, xp.inf, 0.0))

    composition = steps * xp.square(finite) * (1 + 1e-15)  # every step charged in full
    convex = xp.where(gap > 0, descent_mu2(gap, steps, finite), xp.inf)
    # η > 2/M: the map may expand, no claim is made
    expands = (run.step_size * run.smoothness > 2) | (run.strong_convexity > run.smoothness)
    bounded = bounded_descent_mu2(
        gap,
        steps,
        xp.where(known, shift, 1.0),
        xp.where(known, noise, 1.0),
        xp.asarray(run.diameter),
    )
    bounded = xp.where(expands, xp.inf, bounded)
    return settle(composition), settle(convex), settle(bounded)


def best_mu_squared(run: NoisyGradientDescent) -> Array:
    xp = namespace(run)
    composition, convex, bounded = bounds2(run)
    return xp.minimum(composition, xp.minimum(convex, bounded))


def mu_squared_by_position(run: NoisyCyclicDescent, since_last: Array) -> Array:
    """μ² of the record whose last use is r = since_last + 1 updates before the end."""
    xp = namespace(run, since_last)
    _, _, ratio = units(run)
    gap = contraction_gap(run.step_size, run.strong_convexity, run.smoothness)
    steps, batches = xp.asarray(run.steps), xp.asarray(run.batches)
    uses = xp.maximum(xp.ceil((steps - since_last) / batches), 0.0)
    finite = xp.where(xp.isfinite(ratio), ratio, 1.0)
    value = cyclic_mu2(gap, since_last + 1.0, uses, batches, finite)
    return xp.where(xp.isfinite(ratio) | (uses == 0), value, xp.inf)
