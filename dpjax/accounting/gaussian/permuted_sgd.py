"""How far one record moves the result of SGD over batches in one secret order.

Output perturbation of such a run is a Gaussian release whose displacement is drawn at random: it
moves, when a record is replaced, by Δ_j if the record lies in batch j (Chen, Lee and Kifer 2019).
The permutation is uniform, so that j is drawn with probability |B_j|/n.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics import float64
from dpjax._numerics.arrays import Numbers, NumbersLike, Values, namespace
from dpjax.accounting.mechanisms.whole_runs import RandomizedSensitivity
from dpjax.accounting.remembered import remember

Sizes = Float[ArrayLike, " m"]


def _contraction(step_size: Array, strong_convexity: Array, smoothness: Array) -> Array:
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
        >>> from dpjax.accounting.gaussian.permuted_sgd import batch_sensitivities
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
        # They hold for any noise: a calibration asks for the same at every noise that it tries.
        return _remember_epochs((counts, setting), int(epochs), average_every)
    return _unroll_epochs((counts, setting), int(epochs), average_every)


def _unroll_epochs(asked: tuple[np.ndarray, Numbers], epochs: int, interval: int | None) -> Numbers:
    """The sensitivities of (sizes, setting), epoch by epoch."""
    return float64.evaluate(_sensitivity_core(epochs, interval), asked, (1, 1), rounding="up")


@remember(256)
def _remember_epochs(
    asked: tuple[np.ndarray, Numbers], epochs: int, interval: int | None
) -> Numbers:
    """Those of concrete numbers; whoever asks again shares them, and may not write to them."""
    found = _unroll_epochs(asked, epochs, interval)
    np.asarray(found).setflags(write=False)
    return found


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
