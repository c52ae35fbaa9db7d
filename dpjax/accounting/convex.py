"""Mechanisms of private convex optimisation that are not Gaussian pairs, and their prices.

`ObjectivePerturbation`, `PureDP` and `ZeroConcentrated` compose with everything else through their
Rényi curves; one objective perturbation, and any number of pure releases, also have closed forms.
The constants published with the algorithms are here too, for reference.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics import float64
from dpjax._numerics.logarithm import log1p
from dpjax.accounting import gaussian_dp
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.lowering import flatten
from dpjax.accounting.mechanisms import (
    Composed,
    Mechanism,
    Repeated,
    check_number,
    register_mechanism,
)
from dpjax.accounting.queries import register_method
from dpjax.accounting.renyi_curves import register_curve

__all__ = [
    "ObjectivePerturbation",
    "PureDP",
    "ZeroConcentrated",
    "amp_constants",
    "chaudhuri_constants",
    "gaussian_budget",
    "kifer_noise_std",
]

_UP = 1.0 + 1e-10
_CELLS = 64  # of the angle between two records under replace-one


@register_mechanism
class ObjectivePerturbation(Mechanism):
    """The minimiser of `Σᵢ ℓᵢ(w) + (λ/2)‖w‖² + ⟨b, w⟩`, b ~ N(0, σ²I), ℓᵢ generalised linear.

    With J = ln(1 + c/λ), from the determinant of the Jacobian of w ↦ b, and R the gradient bound,
    add/remove: `δ(ε) ≤ 2δ_G(√((R/σ)² + ρ²), ε − J)`. The form is Redberg, Koskela and Wang's
    (2023); their J = −ln(1 − c/λ) is replaced by the exact ratio 1 + c·xᵀA⁻¹x ≤ 1 + c/λ, and the
    residual ρ is new (derived for dpjax). Proof: given x, the density ratio is convex in the shift
    ℓ'(s)x, so that its extremes are the two ends ±Rx of a segment, each a Gaussian pair; the
    maximum of two is at most their sum. Under replace-one the shifts ax − a'x' fill a parallelogram
    with four corners, whose half-diagonals satisfy s² + t² ≤ (2R)²: `δ(ε) ≤ max 2[δ_G(s/σ, ε − J) +
    δ_G(t/σ, ε − J)]`.

    Fields:
        gradient_bound: R = sup |ℓ'|·‖x‖.
        noise_std: σ of the tilt b, on the sum objective; 0 is no privacy.
        smoothness: c = sup ℓ''·‖x‖², one record's, without the regulariser.
        regularization: λ > 0, of the sum objective: n times that of the average.
        residual: ρ >= 0, GDP parameter of Gaussian noise added to an approximate minimiser; 0 if
            the minimiser is exact.

    >>> from dpjax import accounting as acc
    >>> from dpjax.accounting.convex import ObjectivePerturbation
    >>> run = ObjectivePerturbation(1.0, 50.0, 0.25, 100.0)
    >>> f"{acc.delta(run, epsilon=0.1):.6e}"
    '4.352999e-09'
    """

    gradient_bound: Float[ArrayLike, ...]
    noise_std: Float[ArrayLike, ...]
    smoothness: Float[ArrayLike, ...]
    regularization: Float[ArrayLike, ...]
    residual: Float[ArrayLike, ...] = 0.0

    def __post_init__(self) -> None:
        check_number(self, "gradient_bound", 0.0)
        check_number(self, "noise_std", 0.0)
        check_number(self, "smoothness", 0.0)
        check_number(self, "regularization", 0.0, open_low=True)
        check_number(self, "residual", 0.0)


@register_mechanism
class PureDP(Mechanism):
    """Any (ε, 0)-differentially private release, for the stated adjacency alone.

    Dominated by randomised response: `δ(ε') = (e^ε − e^ε')₊/(1 + e^ε)` (Kairouz, Oh and Viswanath
    2017).

    Fields:
        epsilon: ε >= 0. adjacency: the relation it holds for, "replace-one" or "add-remove".

    >>> from dpjax import accounting as acc
    >>> from dpjax.accounting.convex import PureDP
    >>> round(acc.epsilon(PureDP(1.0), delta=1e-9, adjacency="replace-one"), 6)
    1.0
    """

    epsilon: Float[ArrayLike, ...]
    adjacency: str = "replace-one"

    def __post_init__(self) -> None:
        check_number(self, "epsilon", 0.0)
        _check_adjacency(self)


@register_mechanism
class ZeroConcentrated(Mechanism):
    """Any ρ-zCDP release, for the stated adjacency alone: RDP(α) = ρα (Bun and Steinke 2016).

    An adaptive run kept below ρ by a filter is one such release (Feldman and Zrnic 2021).

    Fields:
        rho: ρ >= 0. adjacency: the relation it holds for, "add-remove" or "replace-one".

    >>> from dpjax import accounting as acc
    >>> from dpjax.accounting.convex import ZeroConcentrated
    >>> round(acc.epsilon(ZeroConcentrated(0.1), delta=1e-5), 4) <= 2.1
    True
    """

    rho: Float[ArrayLike, ...]
    adjacency: str = "add-remove"

    def __post_init__(self) -> None:
        check_number(self, "rho", 0.0)
        _check_adjacency(self)


def _check_adjacency(owner: Any) -> None:
    if owner.adjacency not in tuple(Adjacency):
        raise ValueError(
            f"{type(owner).__name__}.adjacency must be one of {[a.value for a in Adjacency]}, "
            f"got {owner.adjacency!r}"
        )


def _holds(run: Any, adjacency: Adjacency) -> bool:
    return run.adjacency == adjacency


# --- one objective perturbation, exactly --------------------------------------------------------


def _objective_delta(run: Any, adjacency: Adjacency, epsilon: Array) -> Array:
    """δ(ε) of one setting."""
    safe = jnp.where(run.noise_std > 0, run.noise_std, 1.0)
    mu2 = jnp.where(run.noise_std > 0, (run.gradient_bound / safe) ** 2, jnp.inf)
    rho2 = run.residual**2
    left = epsilon - log1p(run.smoothness / run.regularization)

    def corner(squared: Array) -> Array:
        return gaussian_dp.delta(jnp.sqrt(squared * mu2 + rho2), left)

    if adjacency is Adjacency.ADD_REMOVE:
        total = 2.0 * corner(jnp.ones(()))
    else:
        # s² in [2, 4], t² = 4 − s²; each cell is bounded by its larger s and its larger t.
        edges = jnp.linspace(2.0, 4.0, _CELLS + 1)
        total = 2.0 * jnp.max(corner(edges[1:]) + corner(4.0 - edges[:-1]))
    return jnp.where(run.noise_std > 0, jnp.minimum(_UP * total, 1.0), 1.0)


def _objective_epsilon(run: Any, adjacency: Adjacency, delta: Array) -> Array:
    def over(epsilon: Array) -> Array:
        return _objective_delta(run, adjacency, epsilon) > delta

    def double(state: tuple) -> tuple:
        return 2.0 * state[0], over(2.0 * state[0])

    first = jnp.asarray(1.0)
    high, failing = jax.lax.while_loop(lambda s: s[1] & (s[0] < 1e8), double, (first, over(first)))

    def halve(_: int, ends: tuple) -> tuple:
        low, top = ends
        middle = 0.5 * (low + top)
        bad = over(middle)
        return jnp.where(bad, middle, low), jnp.where(bad, top, middle)

    _, root = jax.lax.fori_loop(0, 70, halve, (jnp.zeros(()), high))
    root = jnp.where(over(jnp.zeros(())), root, 0.0)
    return jnp.where(failing, jnp.inf, root)


# --- Rényi curves -------------------------------------------------------------------------------


def _objective_rdp(run: Any, adjacency: Adjacency, orders: Array) -> Array:
    """J + s²/2 + log E e^{(α−1)|N(0, s²)|}/(α−1) + αρ²/2, s = R/σ, doubled under replace-one.

    The mean is log 2Φ((α−1)s) + (α−1)²s²/2. Two records: |⟨b,x⟩| + |⟨b,x'⟩| has by Cauchy-Schwarz
    no larger exponential moments than 2|⟨b,x⟩|.
    """
    scale = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    safe = jnp.where(run.noise_std > 0, run.noise_std, 1.0)
    s = scale * run.gradient_bound / safe
    k = orders - 1
    value = (
        log1p(run.smoothness / run.regularization)
        + 0.5 * s * s
        + (math.log(2.0) + log_ndtr(k * s)) / k
        + 0.5 * k * s * s
        + 0.5 * orders * run.residual**2
    )
    return jnp.where(run.noise_std > 0, value, jnp.inf)


def _pure_rdp(run: Any, orders: Array) -> Array:
    """Randomised response: log(p^α q^{1−α} + q^α p^{1−α})/(α−1), p = 1 − q = e^ε/(1 + e^ε)."""
    epsilon = jnp.asarray(run.epsilon, float)
    # Both terms over e^{(α−1)ε}: the answer is ε + log(p + q e^{−2(α−1)ε})/(α−1), in [0, ε].
    p, q = jax.nn.sigmoid(epsilon), jax.nn.sigmoid(-epsilon)
    value = epsilon + jnp.log(p + q * jnp.exp(-2 * (orders - 1) * epsilon)) / (orders - 1)
    return jnp.clip(value, 0.0, epsilon)


def _zcdp_rdp(run: Any, orders: Array) -> Array:
    return run.rho * orders


def _rounded(value: Array, orders: Array) -> Array:
    good = (orders > 1) & jnp.isfinite(orders) & ~jnp.isnan(value)
    value = value * (1 + 1e-9) + jnp.where(value > 0, 1e-15, 0.0)
    return jnp.where(good, value, jnp.inf)


@functools.lru_cache(maxsize=64)
def _curve_core(tree: Any, adjacency: Adjacency) -> Callable:
    def core(orders: Array, *leaves: Array) -> Array:
        run = jax.tree.unflatten(tree, leaves)
        safe = jnp.where((orders > 1) & jnp.isfinite(orders), orders, 2.0)
        if isinstance(run, ObjectivePerturbation):
            return _rounded(_objective_rdp(run, adjacency, safe), orders)
        kernel = _pure_rdp if isinstance(run, PureDP) else _zcdp_rdp
        return _rounded(kernel(run, safe), orders)

    return core


def _curve(run: Mechanism, orders: Any, adjacency: Adjacency) -> Any:
    leaves, tree = jax.tree.flatten(run)
    ndims = (1, *([0] * len(leaves)))
    return float64.evaluate(_curve_core(tree, adjacency), (orders, *leaves), ndims, rounding="up")


register_curve(ObjectivePerturbation, _curve)
register_curve(PureDP, _curve, _holds)
register_curve(ZeroConcentrated, _curve, _holds)


# --- closed forms -------------------------------------------------------------------------------


def _supports(run: Mechanism, adjacency: Adjacency) -> bool:
    if isinstance(run, ObjectivePerturbation):
        return True
    steps = [step for step, _ in flatten(run)]
    return bool(steps) and all(isinstance(s, PureDP) and _holds(s, adjacency) for s in steps)


def _pure_total(run: Any) -> Array:
    """Basic composition: the sum of the ε of pure releases."""
    if isinstance(run, Repeated):
        steps: Any = run.steps
        return jnp.where(steps > 0, steps * _pure_total(run.mechanism), 0.0)
    if isinstance(run, Composed):
        return sum((_pure_total(part) for part in run.mechanisms), jnp.zeros(()))
    return jnp.asarray(run.epsilon, float)


def _epsilon(run: Any, adjacency: Adjacency, delta: Array) -> Array:
    if isinstance(run, ObjectivePerturbation):
        return _objective_epsilon(run, adjacency, delta)
    # Of (ε, 0): e^{ε'} = e^ε − δ(1 + e^ε), the tight trade of ε for δ.
    total = _pure_total(run)
    left = log1p(-jnp.minimum(delta * (1 + jnp.exp(-total)), 1.0))
    return jnp.maximum(_UP * (total + left), 0.0)


def _delta(run: Any, adjacency: Adjacency, epsilon: Array) -> Array:
    if isinstance(run, ObjectivePerturbation):
        return _objective_delta(run, adjacency, epsilon)
    total = _pure_total(run)
    value = -jnp.expm1(jnp.minimum(epsilon - total, 0.0)) * jax.nn.sigmoid(total)
    return jnp.minimum(_UP * value, 1.0)


@functools.lru_cache(maxsize=64)
def _core(kernel: Callable, tree: Any, adjacency: Adjacency) -> Callable:
    def core(given: Array, *leaves: Array) -> Array:
        return kernel(jax.tree.unflatten(tree, leaves), adjacency, given)

    return core


def _ask(kernel: Callable) -> Callable:
    def ask(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        leaves, tree = jax.tree.flatten(run)
        core = _core(kernel, tree, adjacency)
        return float64.evaluate(core, (given, *leaves), [0] * (1 + len(leaves)), rounding="up")

    return ask


register_method(
    "closed_form",
    rank=5.0,
    supports=_supports,
    epsilon=_ask(_epsilon),
    delta=_ask(_delta),
    describe="objective perturbation by its density ratio (Redberg, Koskela and Wang 2023, with "
    "the exact determinant); pure releases by randomised response",
    tier="conditional",
    assumptions=(
        "an objective perturbation minimises a convex, twice differentiable generalised linear "
        "loss with |ℓ'|‖x‖ <= gradient_bound and ℓ''‖x‖² <= smoothness, over all of space",
        "its minimiser is exact, or hidden by the residual noise stated",
    ),
)


# --- published constants ------------------------------------------------------------------------


def gaussian_budget(epsilon: float, delta: float) -> float:
    """μ(ε, δ): the largest μ for which μ-GDP implies (ε, δ) (Balle and Wang 2018), rounded down.

    >>> from dpjax.accounting.convex import gaussian_budget
    >>> round(1 / gaussian_budget(1.0, 1e-5), 6)
    3.730632
    """
    return float(float64.evaluate(gaussian_dp.mu, [epsilon, delta], [0, 0], rounding="down"))


def chaudhuri_constants(
    *, n: int, l2: float, smoothness: float, epsilon: float
) -> tuple[float, float]:
    """(ε', extra l2) of pure objective perturbation (Chaudhuri et al. 2011, Algorithm 2).

    `ε' = ε − ln(1 + 2c/(nΛ) + c²/(nΛ)²)`, extra = 0; if that is not positive, extra =
    `c/(n(e^{ε/4} − 1)) − Λ` and ε' = ε/2.

    >>> from dpjax.accounting.convex import chaudhuri_constants
    >>> prime, extra = chaudhuri_constants(n=1000, l2=1e-3, smoothness=0.25, epsilon=0.1)
    >>> prime, round(extra, 12)
    (0.05, 0.008875520828)
    """
    prime = epsilon - 2.0 * math.log1p(smoothness / (n * l2))
    if prime > 0:
        return prime, 0.0
    return epsilon / 2.0, max(0.0, smoothness / (n * math.expm1(epsilon / 4.0)) - l2)


def kifer_noise_std(
    *,
    gradient_bound: float,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> float:
    """`ζ√(8 ln(2/δ) + 4ε)/ε`, the published tilt (Kifer et al. 2012), ζ doubled for replace-one.

    The published constant is that of one record added or removed; replacing one moves the gradient
    by 2ζ. The quadratic term must be at least 2c/ε.

    >>> from dpjax.accounting.convex import kifer_noise_std
    >>> round(kifer_noise_std(gradient_bound=1.0, epsilon=1.0, delta=1e-8), 6)
    12.526397
    """
    zeta = gradient_bound * (2.0 if Adjacency(adjacency) is Adjacency.REPLACE_ONE else 1.0)
    return zeta * math.sqrt(8.0 * math.log(2.0 / delta) + 4.0 * epsilon) / epsilon


def amp_constants(
    *,
    n: int,
    gradient_bound: float,
    smoothness: float,
    epsilon: float,
    delta: float,
    rank: int = 2,
    gradient_tolerance: float | None = None,
    tilt_share: float = 0.9,
    output_share: float = 0.01,
) -> tuple[float, float, float]:
    """(Λ, σ₁, σ₂) of approximate minima perturbation as published (Iyengar et al. 2019, Alg. 1).

    ε₂ = output_share·ε, ε₁ = ε − ε₂, ε₃ = tilt_share·ε₁; Λ = rank·c/(ε₁ − ε₃) on the sum objective;
    σ₁ = (2R/n)(1 + √(2 ln(1/δ₁)))/ε₃ on the average; σ₂ = (nγ/Λ)(1 + √(2 ln(1/δ₂)))/ε₂. The
    published σ₂ counts the error of one data set's solver; both may err, so that the solver here
    hides twice that.

    >>> from dpjax.accounting.convex import amp_constants
    >>> [round(c, 6) for c in amp_constants(n=36176, gradient_bound=1.0, smoothness=0.25,
    ...                                     epsilon=1.0, delta=1e-8)]
    [5.050505, 0.000439, 0.004262]
    """
    gamma = n**-2.0 if gradient_tolerance is None else gradient_tolerance
    epsilon_2, delta_2 = output_share * epsilon, output_share * delta
    epsilon_1, delta_1 = epsilon - epsilon_2, delta - delta_2
    epsilon_3 = tilt_share * epsilon_1
    ridge = rank * smoothness / (epsilon_1 - epsilon_3)
    tilt = 2.0 * gradient_bound / n * (1.0 + math.sqrt(2.0 * math.log(1.0 / delta_1))) / epsilon_3
    output = n * gamma / ridge * (1.0 + math.sqrt(2.0 * math.log(1.0 / delta_2))) / epsilon_2
    return ridge, tilt, output
