"""Privacy of a Gaussian release whose displacement is drawn at random and kept secret.

That of SGD over batches in one secret order is such a release (`permuted_sgd`). If the release is
μ_j-GDP with probability q_j, whatever j the secret draw takes, then joint convexity of the hockey-
stick divergence gives δ(ε) ≤ Σ_j q_j δ_G(μ_j, ε). Never looser than the Rényi mixture bound of
Chen, Lee and Kifer (2019, Lemma 3) with any conversion. In a composition j may be taken as
revealed: conditional on all the draws the whole is one Gaussian pair with μ² = Σ μ², so that the
composition is again such a mixture.

Pure functions of float64 arrays; μ and q have shape [m].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import jax
import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics import float64
from dpjax._numerics.arrays import Numbers, NumbersLike, falling_root, namespace, with_derivative
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.gaussian import pair
from dpjax.accounting.gaussian.permuted_sgd import batch_sensitivities as batch_sensitivities
from dpjax.accounting.gaussian.permuted_sgd import batch_weights as batch_weights
from dpjax.accounting.gaussian.permuted_sgd import permuted_sgd as permuted_sgd
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


_LIMIT = 4096  # components kept when draws add up


# --- as a method --------------------------------------------------------------------------------


def _mus(moved: NumbersLike, noise: NumbersLike) -> Numbers:
    """μ_j = Δ_j/σ; +inf without noise unless nothing moves."""
    xp = namespace(moved, noise)
    moved, noise = xp.asarray(moved), xp.asarray(noise)[..., None]
    # Without noise a difference is seen for sure; NaN is in no range, and as bad.
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
        fields = (step.sensitivities, step.noise_std, step.weights)
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
