"""How far one replaced record moves the result of SGD over fixed batches.

One step on a batch B maps w to G(w). If a record of B differs, `‖G(w) − G'(w')‖ ≤ ρ‖w − w'‖ +
ηS/|B|`, else `≤ ρ‖w − w'‖`, with ρ = max(|1 − ημ|, |1 − ηL|) (chen2019 Lemma 2; it holds for every
η > 0 and for once-differentiable L-smooth losses) and S the diameter of the set of one record's
gradients, in which the regulariser cancels. Everything below unrolls this recurrence, in float64;
epoch-wise decreasing steps with averaging are
`dpjax.accounting.gaussian.permuted_sgd.batch_sensitivities`.
"""

from __future__ import annotations

import functools
from typing import overload

import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from dpjax._numerics.arrays import JAX, ROUND_UP, namespace
from dpjax._numerics.float64 import evaluate
from dpjax._numerics.namespace import Numbers, Values

__all__ = [
    "bolton_sensitivity",
    "contraction_factor",
    "descent_sensitivity",
    "scheduled_sensitivities",
    "zhang_sensitivity",
]


@overload
def contraction_factor(step_size: float, strong_convexity: float, smoothness: float) -> float: ...
@overload
def contraction_factor(
    step_size: Numbers, strong_convexity: float, smoothness: float
) -> Numbers: ...
def contraction_factor(
    step_size: Numbers | float, strong_convexity: float, smoothness: float
) -> Numbers | float:
    """ρ = max(|1 − ημ|, |1 − ηL|): the Lipschitz constant of w ↦ w − η∇f(w).

    Example:
        >>> contraction_factor(1.0, 0.25, 0.5)
        0.75
    """
    # |1 − ηh| is convex in the Hessian's eigenvalue h, so largest at an end of [μ, L].
    low, high = abs(1.0 - step_size * strong_convexity), abs(1.0 - step_size * smoothness)
    xp = namespace(low, high)
    return xp.maximum(low, high) if xp is JAX or np.ndim(low) else max(low, high)


def scheduled_sensitivities(
    sizes: Int[ArrayLike, " m"],
    step_sizes: Values,
    *,
    gradient_diameter: float,
    strong_convexity: float,
    smoothness: float,
) -> Float[Array, " m"]:
    """Δ_j = Σ_{t in batch j} (η_t S/|B_j|) Π_{s>t} ρ_s for any step sizes, [passes·m] of them.

    Example:
        >>> scheduled_sensitivities([5], [1.0, 1.0], gradient_diameter=2.0, strong_convexity=0.0,
        ...                         smoothness=1.0).round(6)
        array([0.8])
    """
    counts = tuple(int(b) for b in np.asarray(sizes))
    constants = float(gradient_diameter), float(strong_convexity), float(smoothness)
    return evaluate(_scheduled_core(counts, *constants), [step_sizes], [1], rounding="up")


@functools.lru_cache(maxsize=128)
def _scheduled_core(sizes: tuple[int, ...], diameter: float, convexity: float, smoothness: float):
    """The sensitivities as a function of the step sizes, for one set of constants."""

    def core(steps: Numbers):
        xp = namespace(steps)
        rho = contraction_factor(steps, convexity, smoothness)
        # Product of the factors after each step: a reversed cumulative product, shifted by one.
        after = xp.concatenate([xp.cumprod(rho[::-1])[::-1][1:], np.ones(1)])
        moves = (steps * diameter * after).reshape(-1, len(sizes))
        # Triangle inequality over the passes that meet the record.
        return ROUND_UP * xp.sum(moves, axis=0) / np.asarray(sizes, np.float64)

    return core


def descent_sensitivity(
    n: int,
    steps: int,
    step_size: Values,
    *,
    gradient_diameter: float,
    strong_convexity: float,
    smoothness: float,
):
    """Full-batch gradient descent: `(ηS/n)(1 − ρ^T)/(1 − ρ)`, at most S/(nμ) for η ≤ 2/(L + μ).

    Zhang et al. (2017) state 5R(L + μ)/(nμL) (`zhang_sensitivity`), which is larger.

    Example:
        >>> float(descent_sensitivity(100, 4, 0.5, gradient_diameter=2.0, strong_convexity=0.0,
        ...                           smoothness=1.0).round(6))
        0.04
    """
    constants = float(gradient_diameter), float(strong_convexity), float(smoothness)
    return evaluate(_descent_core(n, steps, *constants), [step_size], [0], rounding="up")


@functools.lru_cache(maxsize=128)
def _descent_core(n: int, steps: int, diameter: float, convexity: float, smoothness: float):
    def core(step_size: Numbers):
        rho = contraction_factor(step_size, convexity, smoothness)
        return ROUND_UP * step_size * diameter / n * _geometric_sum(rho, steps)  # Σ_t ρ^t ηS/n

    return core


def _geometric_sum(rho: Numbers, k: int):
    """1 + ρ + … + ρ^{k−1}, k ≥ 1."""
    xp = namespace(rho)
    safe = xp.where(rho == 1.0, 2.0, rho)  # the closed form is 0/0 at ρ = 1, where the sum is k
    return xp.where(rho == 1.0, 1.0 * k, xp.expm1(k * xp.log(safe)) / (safe - 1.0))


def zhang_sensitivity(n: int, *, gradient_bound: float, smoothness: float, strong_convexity: float):
    """5R(L + μ)/(nμL): gradient descent's published sensitivity (Zhang et al. 2017), for reference.

    Example:
        >>> zhang_sensitivity(100, gradient_bound=1.0, smoothness=1.0, strong_convexity=1.0)
        0.1
    """
    sum_, product = smoothness + strong_convexity, smoothness * strong_convexity
    return 5.0 * gradient_bound * sum_ / (n * product)


def bolton_sensitivity(
    schedule: str,
    *,
    n: int,
    batch_size: int,
    passes: int,
    lipschitz: float,
    smoothness: float,
    strong_convexity: float = 0.0,
    step_size: float | None = None,
    exponent: float = 0.5,
) -> float:
    """The closed forms of Wu et al. (2017) for SGD over a fixed permutation, for reference.

    | schedule | η at step t | sensitivity |
    |---|---|---|
    | constant | η ≤ 2/β | 2kLη/b |
    | decreasing | 2/(β(t + n^c)) | (4L/βb) Σ_{j<k} 1/(jn/b + 1 + n^c) |
    | sqrt | 2/(β(√t + n^c)) | (4L/βb) Σ_{j<k} 1/(√(jn/b + 1) + n^c) |
    | strongly_convex | min(1/β, 1/(γt)) | 2L/(γn) |
    | strongly_convex_constant | η ≤ 1/β | 2Lη/(b(1 − (1 − ηγ)^⌈n/b⌉)) |

    Example:
        >>> bolton_sensitivity("constant", n=100, batch_size=50, passes=10, lipschitz=1.0,
        ...                    smoothness=0.25, step_size=0.1)
        0.04
    """
    starts = np.arange(passes) * n / batch_size + 1  # t of each pass's first batch
    offset = float(n) ** exponent
    if schedule == "constant":
        # Each pass meets the record once, and no step of a smooth convex function expands.
        return 2.0 * passes * lipschitz * _require_step_size(step_size) / batch_size
    if schedule in ("decreasing", "sqrt"):
        times = starts if schedule == "decreasing" else np.sqrt(starts)
        return float(4.0 * lipschitz / (smoothness * batch_size) * np.sum(1.0 / (times + offset)))
    if schedule == "strongly_convex":
        return 2.0 * lipschitz / (strong_convexity * n)
    if schedule == "strongly_convex_constant":
        # A pass has ⌈n/b⌉ steps; the sensitivity is the geometric series over the passes.
        shrink = (1.0 - _require_step_size(step_size) * strong_convexity) ** (-(-n // batch_size))
        return 2.0 * lipschitz * _require_step_size(step_size) / (batch_size * (1.0 - shrink))
    raise ValueError(
        "schedule must be constant, decreasing, sqrt, strongly_convex or "
        f"strongly_convex_constant, got {schedule!r}"
    )


def _require_step_size(step_size: float | None) -> float:
    if step_size is None:
        raise ValueError("step_size is missing: a constant schedule needs it")
    return step_size
