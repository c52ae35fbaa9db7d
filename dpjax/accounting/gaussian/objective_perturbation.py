"""Prices of releases that are not Gaussian pairs: objective perturbation, pure DP, zCDP.

They compose with everything else through their Rényi curves; one objective perturbation, and any
number of pure releases, also have closed forms.
"""

from __future__ import annotations

import functools
import math
import operator

import jax
import numpy as np
from jaxtyping import Array

from dpjax._numerics.arrays import Numbers, falling_root, namespace, with_derivative
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.gaussian import pair
from dpjax.accounting.mechanisms import (
    Mechanism,
    ObjectivePerturbation,
    PureDP,
    ZeroConcentrated,
    flatten,
)
from dpjax.accounting.mechanisms.guarantees import StatedGuarantee
from dpjax.accounting.method import Method, as_method_part, evaluate_bound

_UP = 1.0 + 1e-10
_ANGLES = 64  # of the angle between two records under replace-one


def holds(run: StatedGuarantee, adjacency: Adjacency) -> bool:
    """Whether a promise says something under this adjacency."""
    return run.stated_for(adjacency) is not None


# --- one objective perturbation, exactly --------------------------------------------------------


def _read_parameters(run: ObjectivePerturbation) -> tuple[Array, Array, Array]:
    """(R/σ)², ρ² and J; without noise the first is infinite."""
    xp = namespace(run)
    safe = xp.where(run.noise_std > 0, run.noise_std, 1.0)
    mu2 = xp.where(run.noise_std > 0, (run.gradient_bound / safe) ** 2, xp.inf)
    return mu2, xp.square(run.residual), xp.log1p(run.smoothness / run.regularization)


def _corners(adjacency: Adjacency, mu2: Array, rho2: Array) -> tuple[Array, ...]:
    """The μ of the Gaussian pairs whose δ add up, one row a cell of the angle."""
    xp = namespace(mu2, rho2)

    def mu(square: np.ndarray) -> Array:
        total = square * mu2 + rho2
        # The square root of exactly 0 has no derivative.
        return xp.where(total > 0, xp.sqrt(xp.where(total > 0, total, 1.0)), 0.0)

    if adjacency is Adjacency.ADD_REMOVE:
        return (mu(np.ones(1)),)
    # s² in [2, 4], t² = 4 − s²; each cell is bounded by its larger s and its larger t.
    edges = np.linspace(2.0, 4.0, _ANGLES + 1)
    return mu(edges[1:]), mu(4.0 - edges[:-1])


def _total(adjacency: Adjacency, mu2: Array, rho2: Array, left: Array) -> tuple[Array, Array]:
    """2 max Σ δ_G over the cells, at ε = J + left, and its derivative by ε."""
    xp = namespace(mu2, rho2, left)
    mus = _corners(adjacency, mu2, rho2)
    totals = functools.reduce(operator.add, (pair.pair_delta(mu, left) for mu in mus))
    slopes = functools.reduce(operator.add, (pair.delta_slope(mu, left) for mu in mus))
    worst = xp.argmax(totals)  # of the cells, all of which are bounds of one corner
    return 2.0 * _UP * totals[worst], 2.0 * _UP * slopes[worst]


def _objective_delta(run: ObjectivePerturbation, adjacency: Adjacency, epsilon: Array) -> Array:
    """δ(ε) of one setting."""
    xp = namespace(run, epsilon)
    mu2, rho2, offset = _read_parameters(run)
    known = (mu2 < xp.inf) & (rho2 < xp.inf) & (offset < xp.inf)
    mu2, rho2, offset = (xp.where(known, value, 1.0) for value in (mu2, rho2, offset))
    total, _ = _total(adjacency, mu2, rho2, epsilon - offset)
    return xp.where(known, xp.minimum(total, 1.0), 1.0)


@functools.partial(with_derivative, static=1)
def _root(adjacency: Adjacency, mu2: Array, rho2: Array, offset: Array, target: Array) -> Array:
    xp = namespace(mu2, rho2, offset, target)

    def function(epsilon: Array) -> tuple[Array, Array]:
        total, slope = _total(adjacency, mu2, rho2, epsilon - offset)
        return xp.log(total) - xp.log(target), slope / total

    # Each of the terms is at most that of the largest displacement.
    terms, square = (2.0, 1.0) if adjacency is Adjacency.ADD_REMOVE else (4.0, 4.0)
    most = xp.sqrt(square * mu2 + rho2)  # half-diagonals: s² + t² ≤ (2R)²
    high = offset + pair.pair_epsilon(
        most, target / (terms * _UP * _UP)
    )  # δ ≤ terms·δ_G(most) there
    high = xp.where(function(xp.zeros_like(high))[0] <= 0, 0.0, high)
    return falling_root(function, high, xp.zeros_like(high), high, tolerance=1e-12)


@_root.defjvp
def _root_jvp(adjacency: Adjacency, primals: tuple, tangents: tuple) -> tuple:
    """By the implicit function theorem."""
    xp = namespace(*primals)
    root = _root(adjacency, *primals)
    moved = jax.jvp(
        lambda mu2, rho2, offset: _total(adjacency, mu2, rho2, root - offset)[0],
        primals[:3],
        tangents[:3],
    )[1]
    mu2, rho2, offset, _ = primals
    slope = _total(adjacency, mu2, rho2, root - offset)[1]  # of δ by ε
    active = (root > 0) & (slope < 0)
    return root, xp.where(active, (tangents[3] - moved) / xp.where(active, slope, 1.0), 0.0)


def _objective_epsilon(run: ObjectivePerturbation, adjacency: Adjacency, delta: Array) -> Array:
    xp = namespace(run, delta)
    mu2, rho2, offset = _read_parameters(run)
    known = (mu2 < xp.inf) & (rho2 < xp.inf) & (offset < xp.inf) & (delta > 0)
    mu2, rho2, offset, delta = (
        xp.where(known, value, safe)
        for value, safe in ((mu2, 1.0), (rho2, 0.0), (offset, 0.0), (delta, 0.5))
    )
    return xp.where(known, _root(adjacency, mu2, rho2, offset, delta), xp.inf)


# --- Rényi curves -------------------------------------------------------------------------------


def _objective_rdp(run: ObjectivePerturbation, adjacency: Adjacency, orders: Array) -> Array:
    """J + s²/2 + log E e^{(α−1)|N(0, s²)|}/(α−1) + αρ²/2, s = R/σ, doubled under replace-one.

    The mean is log 2Φ((α−1)s) + (α−1)²s²/2. Two records: |⟨b,x⟩| + |⟨b,x'⟩| has by Cauchy-Schwarz
    no larger exponential moments than 2|⟨b,x⟩|.
    """
    xp = namespace(run, orders)
    scale = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    safe = xp.where(run.noise_std > 0, run.noise_std, 1.0)
    s = scale * run.gradient_bound / safe  # of the shift ⟨b, x⟩, over σ
    k = orders - 1  # α − 1
    value = (
        xp.log1p(run.smoothness / run.regularization)
        + 0.5 * s * s
        + (math.log(2.0) + xp.log_ndtr(k * s)) / k
        + 0.5 * k * s * s
        + 0.5 * orders * run.residual**2
    )
    return xp.where(run.noise_std > 0, value, xp.inf)


def _pure_rdp(run: PureDP, orders: Array) -> Array:
    """Randomised response: log(p^α q^{1−α} + q^α p^{1−α})/(α−1), p = 1 − q = e^ε/(1 + e^ε)."""
    xp = namespace(run, orders)
    epsilon = xp.asarray(run.epsilon)
    # Both terms over e^{(α−1)ε}: the answer is ε + log(p + q e^{−2(α−1)ε})/(α−1), in [0, ε].
    p, q = xp.sigmoid(epsilon), xp.sigmoid(-epsilon)
    value = epsilon + xp.log(p + q * xp.exp(-2 * (orders - 1) * epsilon)) / (orders - 1)
    return xp.clip(value, 0.0, epsilon)  # a Rényi divergence is at most ε


def _round_up(value: Array, orders: Array) -> Array:
    xp = namespace(value, orders)
    good = (orders > 1) & xp.isfinite(orders) & ~xp.isnan(value)
    value = value * (1 + 1e-9) + xp.where(value > 0, 1e-15, 0.0)
    return xp.where(good, value, xp.inf)


def _curve(
    run: ObjectivePerturbation | PureDP | ZeroConcentrated, adjacency: Adjacency, orders: Array
) -> Array:
    xp = namespace(run, orders)
    safe = xp.where((orders > 1) & xp.isfinite(orders), orders, 2.0)
    if isinstance(run, ObjectivePerturbation):
        return _round_up(_objective_rdp(run, adjacency, safe), orders)
    promise = run.stated_for(adjacency)
    if isinstance(promise, PureDP):
        return _round_up(_pure_rdp(promise, safe), orders)
    assert isinstance(promise, ZeroConcentrated)
    return _round_up(safe * promise.rho, orders)


def objective_curve(run: Mechanism, orders: Numbers, adjacency: Adjacency) -> Numbers:
    return evaluate_bound(_curve, run, adjacency, orders, ndims=(1,))


# --- closed forms -------------------------------------------------------------------------------


def _supports(run: Mechanism, adjacency: Adjacency) -> bool:
    if isinstance(run, ObjectivePerturbation):
        return True
    steps = [step for step, _ in flatten(run)]
    return bool(steps) and all(isinstance(s, PureDP) and holds(s, adjacency) for s in steps)


def _pure_total(run: Mechanism, adjacency: Adjacency) -> Array:
    """Basic composition: the sum of the ε of pure releases."""
    xp = namespace(run)
    total = xp.zeros(())  # basic composition: the ε of pure releases add up
    for step, factors in flatten(run):
        promise = step.stated_for(adjacency) if isinstance(step, PureDP) else None
        assert isinstance(promise, PureDP)  # as `_supports` says
        count = functools.reduce(operator.mul, factors, 1.0)
        total = total + xp.where(count > 0, count * promise.epsilon, 0.0)
    return total


def _own_epsilon(run: Mechanism, adjacency: Adjacency, delta: Array) -> Array:
    xp = namespace(run, delta)
    if isinstance(run, ObjectivePerturbation):
        return _objective_epsilon(run, adjacency, delta)
    # A run that is (ε, 0)-private has e^{ε'} = e^ε − δ(1 + e^ε), the tight trade of ε for δ.
    total = _pure_total(run, adjacency)
    left = xp.log1p(-xp.minimum(delta * (1 + xp.exp(-total)), 1.0))
    return xp.maximum(_UP * (total + left), 0.0)


def _own_delta(run: Mechanism, adjacency: Adjacency, epsilon: Array) -> Array:
    xp = namespace(run, epsilon)
    if isinstance(run, ObjectivePerturbation):
        return _objective_delta(run, adjacency, epsilon)
    total = _pure_total(run, adjacency)
    value = (0.0 - xp.expm1(xp.minimum(epsilon - total, 0.0))) * xp.sigmoid(total)
    return xp.minimum(_UP * value, 1.0)


OBJECTIVE_METHODS = (
    Method(
        "closed_form",
        rank=5.0,
        supports=_supports,
        needs=(ObjectivePerturbation, PureDP),
        epsilon=as_method_part(_own_epsilon),
        delta=as_method_part(_own_delta),
        describe="objective perturbation by its density ratio (Redberg, Koskela and Wang 2023, "
        "with the exact determinant); pure releases by randomised response",
    ),
)
