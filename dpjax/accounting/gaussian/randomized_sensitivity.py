"""Privacy of a Gaussian release whose displacement is drawn at random and kept secret.

Output perturbation of SGD over batches fixed by one secret permutation is such a release: it moves,
when a record is replaced, by Δ_j if the record lies in batch j (Chen, Lee and Kifer 2019). The
permutation is uniform, so that j is drawn with probability |B_j|/n. If the release is μ_j-GDP with
probability q_j, whatever j the secret draw takes, then joint convexity of the hockey-stick
divergence gives δ(ε) ≤ Σ_j q_j δ_G(μ_j, ε). Never looser than the Rényi mixture bound of Chen, Lee
and Kifer (2019, Lemma 3) with any conversion. In a composition j may be taken as revealed:
conditional on all the draws the whole is one Gaussian pair with μ² = Σ μ², so that the composition
is again such a mixture.

Pure functions of float64 arrays; μ and q have shape [m].
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeGuard

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics import float64
from dpjax._numerics.arrays import (
    Numbers,
    NumbersLike,
    Values,
    falling_root,
    namespace,
    with_derivative,
)
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.gaussian import pair
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.mechanisms.steps import count_uses
from dpjax.accounting.mechanisms.whole_runs import RandomizedSensitivity
from dpjax.accounting.method import Method
from dpjax.accounting.pairs.atoms import GroupedSteps, only_gaussian, query
from dpjax.accounting.pairs.stacked import split_run
from dpjax.accounting.typing import Real

Scalar = Float[Array, ""]
Components = Float[Array, " m"]


def mixture_terms(
    mus: Components, weights: Components, epsilon: Scalar
) -> tuple[Array, Array, Array, Array]:
    """log Σ q_j δ_G(μ_j, ε) over the finite μ_j > 0, and its derivatives by μ_j, q_j and ε."""
    xp = namespace(mus, weights, epsilon)
    # an ε beyond 1e100·μ has a δ that is no float
    used = (mus > 0) & (mus < 1e150) & (epsilon < 1e100 * mus)
    logs, by_mu, ratio = pair.parts(xp.where(used, mus, 1.0), xp.where(used, epsilon, 1.0))
    # a component without weight has no say, whatever its μ
    shares = xp.where(used & (weights > 0), weights, 0.0)
    top = xp.max(xp.where(shares > 0, logs, -1e300))
    # log-sum-exp about the largest term
    total = xp.sum(shares * xp.exp(xp.minimum(logs - top, 0.0)))
    some = total > 0
    value = top + xp.log(xp.where(some, total, 1.0))
    by_weight = xp.where(used & some, xp.exp(logs - value), 0.0)
    by_mu = xp.where(shares > 0, shares * by_weight * by_mu, 0.0)
    # δ_G is known to a few roundings, the sum to one a term
    rounded = xp.minimum(value + 1e-15 * (8 + xp.abs(top)), 0.0)
    return xp.where(some, rounded, -xp.inf), by_mu, by_weight, -xp.sum(by_mu * ratio)


@with_derivative
def _log_delta(mus: Array, weights: Array, epsilon: Array) -> Array:
    return mixture_terms(mus, weights, epsilon)[0]


@_log_delta.defjvp
def _log_delta_jvp(primals: tuple, tangents: tuple) -> tuple:
    xp = namespace(*primals)
    value, by_mu, by_weight, by_epsilon = mixture_terms(*primals)
    moved = xp.sum(by_mu * tangents[0] + by_weight * tangents[1]) + by_epsilon * tangents[2]
    return value, moved


def _lost(mus: Array, weights: Array) -> Array:
    """The chance of a component without privacy; what is not a number is one."""
    xp = namespace(mus, weights)
    bad = ~(mus < 1e150) | ~(mus >= 0)  # written so that NaN is bad
    # such a component is charged δ = 1, its whole weight
    lost = xp.sum(xp.where(bad, xp.where(weights >= 0, weights, 1.0), 0.0)) * (1 + 1e-12)
    return xp.where(xp.all(weights >= 0), lost, 1.0)


def mixture_delta(mus: Components, weights: Components, epsilon: Scalar) -> Array:
    """Σ q_j δ_G(μ_j, ε), ε >= 0, rounded up."""
    xp = namespace(mus, weights, epsilon)
    known = epsilon >= 0
    log_value = _log_delta(mus, weights, xp.where(known, epsilon, 0.0))
    return xp.where(known, xp.minimum(xp.exp(log_value) + _lost(mus, weights), 1.0), 1.0)


@with_derivative
def _root(mus: Array, weights: Array, log_target: Array) -> Array:
    xp = namespace(mus, weights, log_target)
    worst = xp.max(xp.where((weights > 0) & (mus < 1e150), mus, 0.0))
    # δ of the mixture is at most that of its worst component
    high = pair.pair_epsilon(worst, xp.exp(log_target))
    # δ(0) ≤ δ already: ε = 0
    nothing = mixture_terms(mus, weights, xp.zeros_like(high))[0] <= log_target
    high = xp.where(nothing, 0.0, high)

    def function(epsilon: Array) -> tuple[Array, Array]:
        value, _, _, slope = mixture_terms(mus, weights, epsilon)
        return value - log_target, slope

    tolerance = 1e-13 - 2e-15 * log_target  # what log δ itself is known to
    return falling_root(function, high, xp.zeros_like(high), high, tolerance=tolerance)


@_root.defjvp
def _root_jvp(primals: tuple, tangents: tuple) -> tuple:
    xp = namespace(*primals)
    root = _root(*primals)
    mus, weights, _ = primals
    _, by_mu, by_weight, slope = mixture_terms(mus, weights, root)
    moved = xp.sum(by_mu * tangents[0] + by_weight * tangents[1])
    active = (root > 0) & (slope < 0)  # at ε = 0 the root stays where it is
    return root, xp.where(active, (tangents[2] - moved) / xp.where(active, slope, 1.0), 0.0)


def mixture_epsilon(mus: Components, weights: Components, delta: Scalar) -> Array:
    """Smallest ε >= 0 with Σ q_j δ_G(μ_j, ε) <= δ, rounded up; its derivative is exact.

    Components without privacy take their chance from δ.
    """
    xp = namespace(mus, weights, delta)
    left = delta * (1 - 1e-15) - _lost(mus, weights)  # rounded down, so that ε is rounded up
    usable = (left > 0) & (delta < 1)
    root = _root(mus, weights, xp.log(xp.where(usable, left, 0.5)))
    return xp.where(usable, root, xp.where((left > 0) & (delta >= 1), 0.0, xp.inf))


def mixture_rdp(mus: Components, weights: Components, orders: Float[Array, " k"]) -> Array:
    """Rényi curve log(Σ q_j exp(α(α−1)μ_j²/2))/(α−1), shape [k], rounded up.

    References:
        Chen, Lee and Kifer 2019, Lemma 3.
    """
    xp = namespace(mus, weights, orders)
    gain = orders[:, None] - 1
    present = weights > 0
    known = xp.all((mus >= 0) & (mus < 1e150) & (weights >= 0) | (weights == 0))
    mus = xp.where(known & present, mus, 0.0)
    # log E of one component's moment, α(α−1)μ²/2
    exponent = orders[:, None] * gain * xp.square(mus)[None, :] / 2
    top = xp.max(xp.where(present, exponent, 0.0), axis=1, keepdims=True)
    # log1p of the sum of expm1 where everything is tiny, log-sum-exp where anything is large.
    small = xp.sum(weights * xp.expm1(xp.minimum(exponent, 1.0)), axis=1)
    shifted = xp.where(present, weights * xp.exp(exponent - top), 0.0)
    large = top[:, 0] + xp.log(xp.maximum(xp.sum(shifted, axis=1), 1e-300))
    value = xp.where(top[:, 0] < 1.0, xp.log1p(small), large)
    return xp.where(known & (orders > 1), value / gain[:, 0] * (1 + 1e-13), xp.inf)


def add_components(
    squares: np.ndarray, weights: np.ndarray, more: np.ndarray, chances: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Law of the sum of two independent draws of μ², at most `limit` values, rounded upwards."""
    sums = (squares[:, None] + more[None, :]).ravel()
    chance = (weights[:, None] * chances[None, :]).ravel()
    if sums.size > limit and np.ptp(sums) > 0:
        step = np.ptp(sums) / (limit - 1)
        # upwards: a larger μ is easier to tell apart
        sums = sums.min() + np.ceil((sums - sums.min()) / step * (1 - 1e-12)) * step
    values, place = np.unique(sums, return_inverse=True)
    return values, np.bincount(place.ravel(), chance, minlength=values.size)


Sizes = Float[ArrayLike, " m"]

_LIMIT = 4096  # components kept when draws add up


def _contraction(step_size: Array, strong_convexity: float, smoothness: float) -> Array:
    xp = namespace(step_size, strong_convexity, smoothness)
    return xp.maximum(xp.abs(1 - step_size * strong_convexity), xp.abs(1 - step_size * smoothness))


def _geometric(ratio: Array, count: NumbersLike) -> Array:
    """Σ_{k<count} ratio^k, also near ratio = 1, where the quotient cancels."""
    xp = namespace(ratio, count)
    log_ratio = xp.log(ratio)
    near = xp.abs(ratio - 1) < 1e-300
    return xp.where(near, count, xp.expm1(count * log_ratio) / xp.where(near, 1.0, ratio - 1))


@functools.lru_cache(maxsize=64)
def _sensitivity_core(epochs: int, interval: int | None) -> Callable[[Array, Array], Array]:
    def core(sizes: Array, setting: Array) -> Array:
        xp = namespace(sizes, setting)
        step_size, smoothness, strong_convexity, diameter = setting
        m = sizes.shape[0]
        position = xp.arange(m)
        later = m - 1.0 - position  # updates of an epoch after the record's own

        def run_epoch(moved: Array, ratio: Array, kick: Array) -> tuple[Array, Array]:
            # Σ over the epoch's updates, for the average
            total = moved * ratio * _geometric(ratio, 1.0 * m) + kick * _geometric(ratio, later + 1)
            # the record's own update is contracted by those after it
            return ratio**m * moved + ratio**later * kick, total

        def one(state, epoch):
            moved, total, since = state
            since = since + 1
            step = step_size / since  # η₀/h in epoch h since the restart
            ratio = _contraction(step, strong_convexity, smoothness)
            moved, sums = run_epoch(moved, ratio, step * diameter / sizes)
            total = total + sums
            if interval is not None:
                restart = since == interval
                # distances of averages: convexity of the norm
                moved = xp.where(restart, total / (m * interval), moved)
                total = xp.where(restart, 0.0, total)
                since = xp.where(restart, 0.0, since)
            return (moved, total, since), None

        start = (xp.zeros(m), xp.zeros(m), xp.zeros(()))
        (moved, _, _), _ = xp.scan(one, start, xp.arange(epochs))
        return moved * (1 + 1e-12)  # beyond the rounding of as many products as there are epochs

    return core


def batch_sensitivities(
    sizes: Sizes,
    *,
    epochs: int,
    step_size: Values,
    smoothness: float,
    strong_convexity: float,
    gradient_radius: float = 1.0,
    average_every: int | None = None,
) -> Numbers:
    """Δ_j: how far SGD's result moves when a record of batch j is replaced.

    Every update contracts the distance of the two runs by ρ = max(|1 − ημ|, |1 − ηL|) and the
    record's own update adds 2ηR/|B_j|; the step size is η₀/h in the h-th epoch since the last
    restart, and every τ epochs the iterates of the last τ epochs are averaged, the average is the
    new start and h = 0. One epoch in closed form: acc_j += Δ_j ρ(1−ρ^m)/(1−ρ) + kick_j
    (1−ρ^{m−j})/(1−ρ); Δ_j ← ρ^m Δ_j + ρ^{m−1−j} kick_j.

    Args:
        sizes: number of records in each batch, in the order of an epoch, shape [m].
        epochs: T passes over the batches.
        step_size: η₀ > 0; may be an array, the answer then has its shape in front.
        smoothness, strong_convexity: L and μ of each record's loss with the regulariser.
        gradient_radius: R, half of sup‖∇ℓ(w, d) − ∇ℓ(w, d')‖; the regulariser cancels in it. 1 for
            logistic regression and the Huber SVM on records of norm at most 1.
        average_every: τ, or None for plain permuted SGD.

    Returns:
        Shape [..., m], rounded up by 1e-12. With equal batches and averaging the first batch is the
        worst, without averaging the last, with a short last batch either: take the maximum.

    Example:
        >>> from dpjax.accounting.gaussian.randomized_sensitivity import batch_sensitivities
        >>> found = batch_sensitivities([100, 100, 50], epochs=2, step_size=0.5, smoothness=0.26,
        ...                             strong_convexity=0.01)
        >>> [f"{value:.5f}" for value in found]
        ['0.01480', '0.01486', '0.02985']

    References:
        Chen, Lee and Kifer 2019, Lemma 2, Algorithms 2 and 3 (the printed Algorithm 2 never uses
        its averaging interval), Equation 5.
    """
    xp = namespace(step_size)
    if average_every is not None and (average_every < 1 or int(average_every) != average_every):
        raise ValueError(f"average_every must be None or a whole number >= 1, got {average_every}")
    if epochs < 0 or int(epochs) != epochs:
        raise ValueError(f"epochs must be a whole number >= 0, got {epochs}")
    counts = np.asarray(sizes, np.float64)
    if counts.ndim != 1 or not np.all(counts >= 1):
        raise ValueError(f"sizes must be a vector of batch sizes >= 1, got {sizes}")
    if smoothness < strong_convexity or strong_convexity < 0 or gradient_radius < 0:
        raise ValueError(
            "smoothness, strong_convexity and gradient_radius must be >= 0 and smoothness >= "
            f"strong_convexity, got {smoothness}, {strong_convexity}, {gradient_radius}"
        )
    rest = np.asarray([smoothness, strong_convexity, 2.0 * gradient_radius], np.float64)
    if float64.is_traced(step_size):
        first = xp.asarray(step_size)[..., None]
        setting = xp.concatenate(
            [first, xp.broadcast_to(xp.asarray(rest).astype(first.dtype), (*first.shape[:-1], 3))],
            -1,
        )
    else:
        steps = np.asarray(step_size, np.float64)[..., None]
        if not np.all(steps > 0):
            raise ValueError(f"step_size must be > 0, got {step_size}")
        setting = np.concatenate([steps, np.broadcast_to(rest, (*steps.shape[:-1], 3))], -1)
    core = _sensitivity_core(int(epochs), average_every)
    return float64.evaluate(core, (counts, setting), (1, 1), rounding="up")


def batch_weights(sizes: Sizes, population: int | None = None) -> tuple[np.ndarray, float]:
    """(|B_j|/n, chance of being in no batch): the law of the replaced record's batch."""
    counts = np.asarray(sizes, np.float64)
    total = float(counts.sum() if population is None else population)
    if counts.sum() > total:
        raise ValueError(
            f"population must be at least the batches' {counts.sum():.0f} records, got {total:.0f}"
        )
    weights = counts / total
    return weights, float(round(max(0.0, 1.0 - weights.sum()), 15))


def permuted_sgd(
    sizes: Sizes, noise_std: Values, *, population: int | None = None, **settings: Any
) -> RandomizedSensitivity:
    """The mechanism of permuted SGD with output perturbation (RSGD, RSGD-AR), ready to be priced.

    References:
        Chen, Lee and Kifer 2019, Algorithm 3 and Proposition 3.
    """
    weights, unused = batch_weights(sizes, population)
    moved = batch_sensitivities(sizes, **settings)
    if unused > 0:
        weights = np.append(weights, unused)
        xp = namespace(moved)
        moved = xp.concatenate([moved, xp.zeros_like(moved[..., :1])], axis=-1)
    return RandomizedSensitivity(moved, weights / weights.sum(), noise_std)


# --- as a method --------------------------------------------------------------------------------


def _mus(moved: NumbersLike, noise: NumbersLike) -> Numbers:
    """μ_j = Δ_j/σ; +inf without noise unless nothing moves."""
    xp = namespace(moved, noise)
    moved, noise = xp.asarray(moved), xp.asarray(noise)[..., None]
    noisy = (noise > 0) & (moved >= 0)
    mus = xp.where(noisy, moved / xp.where(noisy, noise, 1.0), xp.inf)
    return xp.where((noise == 0) & (moved == 0), 0.0, mus)


def _rdp(moved: Numbers, noise: Numbers, weights: Numbers, orders: Numbers) -> Numbers:
    return mixture_rdp(_mus(moved, noise), weights, orders)


def sensitivity_curve(
    step: RandomizedSensitivity, orders: Numbers, adjacency: Adjacency
) -> Numbers:
    # The quotients too are of float64: those of two float32 arrays are off by rounding, either way.
    given = step.sensitivities, step.noise_std, step.weights, orders
    return float64.evaluate(_rdp, given, (1, 0, 1, 1), batch=1, rounding="up")


def _gaussian_part(atoms: GroupedSteps, adjacency: Adjacency) -> Array:
    return atoms.gaussian_mu2


def _drawn(step: Mechanism) -> TypeGuard[RandomizedSensitivity]:
    return isinstance(step, RandomizedSensitivity)


def _only_gaussian(run: Mechanism, adjacency: Adjacency) -> bool:
    own, rest = split_run(run, _drawn)
    return bool(own) and only_gaussian(rest, adjacency)


def _components(run: Mechanism, adjacency: Adjacency) -> tuple[Real, Real, Real, Real] | None:
    """(Δ, σ, μ² of what has one sensitivity, weights): the mixture of the whole run.

    All draws of a composition are revealed. None where the mixture cannot be laid out.
    """
    own, rest = split_run(run, _drawn)
    shift = query(_gaussian_part, rest, adjacency) if rest.mechanisms else 0.0
    if len(own) == 1 and not own[0][1]:
        step = own[0][0]
        return step.sensitivities, step.noise_std, shift, step.weights
    arrays = [leaf for step, factors in own for leaf in (*jax.tree.leaves(step), *factors)]
    if float64.is_traced(shift, *arrays) or np.ndim(shift) > 0:
        return None
    squares, weights = np.asarray([float(shift)]), np.ones(1)
    for step, factors in own:
        fields = (step.sensitivities, step.noise_std, step.weights)  # pyrefly: ignore
        moved, noise, chances = (np.asarray(field, np.float64) for field in fields)
        more = np.square(_mus(moved, noise))
        if np.ndim(more) > 1 or any(np.ndim(f) for f in factors):
            return None
        if not np.all(np.isfinite(more)) or count_uses(factors) > 10_000:
            return None
        for _ in range(int(count_uses(factors))):
            # independent draws, all revealed: μ² adds up
            squares, weights = add_components(squares, weights, more, chances, _LIMIT)
    return np.sqrt(squares) * (1 + 1e-14), 1.0, 0.0, weights


def _asked(price: Callable, nothing: float) -> Callable:
    def core(
        moved: Numbers, noise: Numbers, shift: Numbers, weights: Numbers, given: Numbers
    ) -> Numbers:
        xp = namespace(moved, noise, shift)
        mus, more = _mus(moved, noise), shift > 0
        # The root of a square is rounded, and has no derivative at zero.
        both = xp.sqrt(xp.where(more, mus**2 + shift, 1.0))
        return price(xp.where(more, both, mus), weights, given)

    def answer(run: Mechanism, given: Numbers, adjacency: Adjacency) -> Numbers | float:
        parts = _components(run, adjacency)
        if parts is None:
            return nothing
        return float64.evaluate(core, (*parts, given), (1, 0, 0, 1, 0), batch=64, rounding="up")

    return answer


SENSITIVITY_METHODS = (
    Method(
        "hockey_stick",
        rank=5.0,
        supports=_only_gaussian,
        needs=(RandomizedSensitivity,),
        epsilon=_asked(mixture_epsilon, np.inf),
        delta=_asked(mixture_delta, 1.0),
        describe="δ(ε) ≤ Σ q_j δ_G(Δ_j/σ, ε) by joint convexity of the hockey-stick divergence, "
        "draws revealed in compositions; derived for dpjax",
    ),
)
