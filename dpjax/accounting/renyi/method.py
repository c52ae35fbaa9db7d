"""Rényi curves as methods: of runs of (subsampled) Gaussian pairs, and of sums of curves.

A mechanism that is known by its Rényi curve alone stands in the table `_CURVES`. A run that
contains one is priced by the sum of its steps' curves; whatever else it contains adds its own.

The best of a number of runs, of which `accounting/best_of.py` has the tighter price where one
run's profile is known. Of a fixed number it is a function of all of them, whose curves add. Of a
random one (Papernot and Steinke 2022): RDP of the run at orders λ and any λ̂ > 1 gives, for K
truncated negative binomial of shape η (1 geometric, 0 logarithmic) and parameter γ,
ε'(λ) = ε(λ) + (1+η)(1−1/λ̂)ε(λ̂) + (1+η)log(1/γ)/λ̂ + log(E K)/(λ−1); the best λ̂ is found
(Theorem 2).

For K Poisson of mean m, two bounds hold at once. If the run is (ε̂, δ̂)-private with
e^ε̂ ≤ 1 + 1/(λ−1), the outcomes of at least one run add up to at most m·e^{(λ−1)(ε(λ) + m δ̂)} in
E[(A/A')^{λ−1}] (Lemma 7 with f'(x)^λ f'(x')^{1−λ} = m·e^{m((λ−1)(1−x') − λ(1−x))} and
1 − x' ≤ e^ε̂(1 − x) + δ̂), and the outcome of no run, which has probability e^{−m} in both worlds,
adds e^{−m}: Theorem 6 is for distributions without it, and may be below the truth where m < 1.
And since K does not depend on the data, the divergence is at most that of all K runs with K told:
E[e^{K(λ−1)ε(λ)}] = exp(m·(e^{(λ−1)ε(λ)} − 1)), by joint convexity; that is the less for small m.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from dpjax._numerics import float64
from dpjax._numerics.arrays import JAX, NUMPY, Numbers, NumbersLike, namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour import method as contour
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.gaussian import gaussian_dp as gaussian
from dpjax.accounting.gaussian import objective_perturbation, randomized_sensitivity
from dpjax.accounting.loss_distribution import method as loss_distribution
from dpjax.accounting.mechanisms import (
    BestOf,
    Composed,
    Mechanism,
    ObjectivePerturbation,
    PureDP,
    RandomAllocation,
    RandomizedSensitivity,
    UserLevel,
    ZeroConcentrated,
)
from dpjax.accounting.mechanisms.base import registered_mechanisms, walk
from dpjax.accounting.mechanisms.selection import FIXED, log_inverse_gamma
from dpjax.accounting.mechanisms.steps import Factors
from dpjax.accounting.method import Method, best_bound, rank_methods
from dpjax.accounting.pairs.allocation import allocation_log_moments
from dpjax.accounting.pairs.atoms import (
    GRIDS,
    all_settings,
    by_pair,
    is_gaussian_family,
    one_setting,
    query,
)
from dpjax.accounting.pairs.protocol import CurveRelease
from dpjax.accounting.pairs.stacked import split_run
from dpjax.accounting.remembered import remember
from dpjax.accounting.renyi import conversion, moments, user_curves
from dpjax.accounting.typing import Answer, Real

_ORDERS_TRIED = 1 + np.exp(np.linspace(-4.0, 12.0, 321))
_REFINED = np.linspace(-0.05, 0.05, 41)
_SELECTION_GRID = 1 + np.exp(np.linspace(-6.0, 12.0, 361))


_classic = functools.partial(conversion.epsilon_from_atoms, classic=True)


def _as_method_part(kernel: Callable) -> Callable:
    def ask(run: Mechanism, given: Numbers, adjacency: Adjacency) -> Numbers:
        return query(kernel, run, adjacency, (given,), (0,))

    return ask


# --- the best of a random number of runs


_SHAPES = {"geometric": 1.0, "logarithmic": 0.0}


def _extra(distribution: str, expected: Array, curve: Array, orders: Array) -> Array:
    xp = namespace(expected, curve, orders)
    known = xp.isfinite(curve)
    logs = log_inverse_gamma(expected, distribution)
    paid = (1 - 1 / orders) * xp.where(known, curve, 0.0) + logs / orders
    paid = xp.where(known, paid, xp.inf)
    # λ̂ = 1 is a choice too, and costs log(1/γ) whatever the run.
    return (1 + _SHAPES[distribution]) * xp.minimum(xp.min(paid), logs) * (1 + 1e-12)


_EXTRA = {name: functools.partial(_extra, name) for name in _SHAPES}


def select_curve(best: BestOf, orders: Numbers, inner: Callable, profile: Callable) -> Numbers:
    """The Rényi curve of the best of K runs, shape S + [k].

    Args:
        best: the selection.
        orders: [k].
        inner: orders -> one run's Rényi curve.
        profile: ε [k] -> δ(ε) of one run.
    """
    xp = JAX if float64.is_traced(best, orders) else NUMPY
    orders = xp.asarray(orders)
    c = xp.where(orders > 1, orders - 1, 1.0)
    own = inner(orders)  # one run's curve
    count = xp.asarray(best.expected_trials)[..., None]  # E K, beside the axis of orders
    if best.distribution == FIXED:  # a function of all runs, of which the divergences add
        value, good = count * own, count >= 1
    elif best.distribution not in _SHAPES:  # Poisson's law
        if any(np.ndim(leaf) != 0 for leaf in jax.tree.leaves(best.mechanism)):
            raise UnsupportedQuery(
                "BestOf with a Poisson number of trials prices one setting at a time: the run has "
                "array fields; loop over them, or use distribution='geometric'"
            )
        target = xp.log1p(1 / c) * (1 - 1e-12)  # rounded down
        some = xp.log(count) + c * (own + count * profile(target))
        told = xp.where(c * own < 700, count * xp.expm1(xp.minimum(c * own, 700.0)), xp.inf)
        value = xp.minimum(xp.logaddexp(some, -count), told) / c  # or all runs released
        good = count > 0
    else:
        extra = float64.evaluate(
            _EXTRA[best.distribution],
            (best.expected_trials, inner(_SELECTION_GRID), _SELECTION_GRID),
            (0, 1, 1),
            rounding="up",
        )
        value = own + xp.asarray(extra)[..., None] + xp.log(count) / c  # their Theorem 2
        good = count >= 1
    # What is not a number, or no admissible mean, has no bound.
    return xp.where(good & (orders > 1) & (value >= 0), value * (1 + 1e-12), xp.inf)


def _selection_curve(best: BestOf, orders: Numbers, adjacency: Adjacency) -> Numbers:
    is_cheap = best.distribution in (*_SHAPES, FIXED)
    if is_cheap or float64.is_traced(best, orders):
        return _find_selection_curve(best, orders, adjacency)
    # A Poisson number of runs asks a δ of one run for each order, seconds in all: many questions
    # ask for the same orders.
    return _remembered_curve((best, orders), adjacency)


def _find_selection_curve(best: BestOf, orders: Numbers, adjacency: Adjacency) -> Numbers:
    inner = best.mechanism

    def profile(epsilons: Numbers) -> Answer:
        table = [*gaussian.GDP_METHODS, *contour.CONTOUR_METHODS, *loss_distribution.LOSS_METHODS]
        table += [*objective_perturbation.OBJECTIVE_METHODS]
        table += [*randomized_sensitivity.SENSITIVITY_METHODS, *RENYI_METHODS]
        able = [m for m in rank_methods(table, "delta", inner, adjacency) if m.rank is not None]
        return best_bound("delta", able, inner, epsilons, adjacency)[0]

    return select_curve(best, orders, lambda at: rdp_curve(inner, at, adjacency), profile)


@remember(64)
def _remembered_curve(asked: tuple[BestOf, Numbers], adjacency: Adjacency) -> Numbers:
    return _find_selection_curve(*asked, adjacency)


# --- random allocation


def _of_allocation(step: RandomAllocation, orders: Numbers, adjacency: Adjacency) -> np.ndarray:
    """The curve of one step, setting by setting."""
    if float64.is_traced(step, orders):
        raise UnsupportedQuery(
            "the Rényi curve of RandomAllocation runs on the host and cannot be traced; "
            "method='contour' can"
        )
    atoms, lead = all_settings(step, adjacency)

    def one(index: tuple[int, ...], order: np.ndarray) -> np.ndarray:
        (steps,) = by_pair(one_setting(atoms, index), adjacency).values()  # one kind of step
        total = np.zeros_like(order)  # log moments add up over independent steps
        for mu, rate, count in zip(*steps, strict=True):
            if not (count <= 0 or mu <= 0):
                quiet = mu < moments.LOUDEST
                total = total + (
                    count * allocation_log_moments(float(mu), float(rate), order - 1)
                    if quiet
                    else np.inf
                )
        return total

    return moments.curve_by_setting(one, lead, orders)


# (mechanism, orders [k], adjacency) -> upper bound, shape S + [k]; and whether it can answer.
_CURVES: dict[type, tuple[Callable, Callable[[Any, Adjacency], bool]]] = {
    BestOf: (_selection_curve, lambda best, adjacency: _has_curve(best.mechanism, adjacency)),
    ObjectivePerturbation: (objective_perturbation.objective_curve, lambda step, adjacency: True),
    PureDP: (objective_perturbation.objective_curve, objective_perturbation.holds),
    RandomAllocation: (
        _of_allocation,
        lambda step, adjacency: is_gaussian_family(step, adjacency, GRIDS),
    ),
    RandomizedSensitivity: (randomized_sensitivity.sensitivity_curve, lambda step, adjacency: True),
    UserLevel: (user_curves.users_curve, user_curves.has_curve),
    ZeroConcentrated: (objective_perturbation.objective_curve, objective_perturbation.holds),
    **{
        kind: (loss_distribution.release_curve, loss_distribution.has_release_curve)
        for kind in registered_mechanisms().values()
        if isinstance(kind.release, CurveRelease)
    },
}

_ON_HOST = (_of_allocation, user_curves.users_curve)


def _split(
    run: Mechanism, adjacency: Adjacency
) -> tuple[list[tuple[Mechanism, Factors]], Composed]:
    """Steps that are known by a curve of their own, and the rest."""

    def own(step: Mechanism) -> bool:
        wrapped = isinstance(step, UserLevel) and is_gaussian_family(step, adjacency)
        return type(step) in _CURVES and not wrapped

    return split_run(run, own)


def _has_curve(run: Mechanism, adjacency: Adjacency) -> bool:
    own, rest = _split(run, adjacency)
    able = all(_CURVES[type(step)][1](step, adjacency) for step, _ in own)
    return able and is_gaussian_family(rest, adjacency)


def _count(factors: Factors) -> Real:
    known = (f if float64.is_traced(f) else np.asarray(f, np.float64) for f in factors)
    total = functools.reduce(operator.mul, known, 1.0)
    if np.ndim(total) == 0:
        return total
    return namespace(total).reshape(total, (*np.shape(total), 1))


def rdp_curve(run: Mechanism, orders: NumbersLike, adjacency: Adjacency) -> Numbers:
    """The Rényi curve of a run: the sum of its parts' curves.

    Example:
        >>> from dpjax import accounting as acc
        >>> rdp_curve(acc.Gaussian(2.0), np.asarray([4.0]), acc.Adjacency.ADD_REMOVE).round(9)
        array([0.5])
    """
    own, rest = _split(run, adjacency)
    parts: list[Numbers] = []
    operations = -1 if len(own) == 1 and not own[0][1] and not rest.mechanisms else 0
    if rest.mechanisms or not own:
        parts += [query(moments.gaussian_family_curve, rest, adjacency, (orders,), (1,), batch=1)]
    for step, factors in own:
        curve = _CURVES[type(step)][0]
        count, one = _count(factors), curve(step, orders, adjacency)
        xp = namespace(count, one)
        parts.append(xp.where(count > 0, one, 0.0) * count)  # what is not used costs nothing
        operations += 2  # a product and a sum
    total = functools.reduce(operator.add, parts)
    if operations > 1:  # in the program's own precision
        total = total * (1 + operations * float(np.finfo(total.dtype).eps))
    return total


def _least_epsilon(orders: Numbers, curve: Numbers, delta: Numbers) -> Numbers:
    """Any order is valid, more are tighter."""
    xp = namespace(orders, curve, delta)
    values = conversion.epsilon_at(orders, curve, xp.log(delta)[..., None])
    least = xp.min(xp.where(xp.isnan(values), np.inf, values), axis=-1)
    return xp.maximum(least * (1 + 1e-12), 0.0)


def _least_delta(
    orders: Numbers, curve: Numbers, epsilon: Numbers, floor: float = conversion.UNDERFLOW
) -> Numbers:
    xp = namespace(orders, curve, epsilon)
    values = conversion.log_delta_at(orders, curve, epsilon[..., None])
    least = xp.min(xp.where(xp.isnan(values), np.inf, values), axis=-1)
    found = xp.maximum(xp.exp(xp.minimum(least + 1e-11, 0.0)), floor)
    return xp.where(least == -np.inf, 0.0, found)


# What float32 takes for nothing is larger.
_least_delta_single = functools.partial(_least_delta, floor=2 * float(np.finfo(np.float32).tiny))


def _search(
    run: Mechanism,
    adjacency: Adjacency,
    given: Real,
    least: Callable[..., Numbers],
    rough: Callable[..., Numbers],
) -> Numbers:
    """The least bound over a grid of orders, and over finer ones around the best of those.

    Args:
        run, adjacency, given: what is asked.
        least: (orders, rdp, given) -> bound; in a trace evaluated in float64 and rounded up.
        rough: (order, rdp, given) -> the same of one order, or nearly, to find the best by.
    """
    curve = rdp_curve(run, _ORDERS_TRIED, adjacency)  # one curve serves the whole grid
    traced = float64.is_traced(curve, given)
    xp = JAX if traced else NUMPY
    given = xp.asarray(given)

    def bound(orders: NumbersLike, curve: Numbers) -> Numbers:
        if traced:
            return float64.evaluate(least, (orders, curve, given), (1, 1, 0), rounding="up")
        return least(orders, curve, given)

    answer = bound(_ORDERS_TRIED, curve)  # any order is valid
    values = rough(_ORDERS_TRIED, *xp.stop_gradient((curve, given[..., None])))
    place = xp.argmin(xp.where(xp.isnan(values), np.inf, values), axis=-1)
    near = 1 + (xp.asarray(_ORDERS_TRIED)[place] - 1)[..., None] * np.exp(_REFINED)
    # Not the minimum: its derivative is the mean of both at a tie.
    refined = bound(near, rdp_curve(run, near, adjacency))
    return xp.where(refined < answer, refined, answer)


def _rough_epsilon(order: Numbers, rdp: Numbers, delta: Numbers) -> Numbers:
    return conversion.epsilon_at(order, rdp, namespace(delta).log(delta))


def _rough_delta(order: Numbers, rdp: Numbers, epsilon: Numbers) -> Numbers:
    xp = namespace(order, rdp, epsilon)
    rdp, epsilon = xp.minimum(rdp, 1e30), xp.minimum(epsilon, 1e30)  # as float32 can hold them
    return (order - 1) * (rdp - epsilon + xp.log1p(-1 / order)) - xp.log(order)


def _epsilon(run: Mechanism, delta: Numbers, adjacency: Adjacency) -> Numbers:
    return _search(run, adjacency, delta, _least_epsilon, _rough_epsilon)


def _delta(run: Mechanism, epsilon: Numbers, adjacency: Adjacency) -> Numbers:
    single = float64.is_traced(run, epsilon) and not jax.config.read("jax_enable_x64")
    least = _least_delta_single if single else _least_delta
    return _search(run, adjacency, epsilon, least, _rough_delta)


def _sums(run: Mechanism, adjacency: Adjacency, on_host: bool) -> bool:
    """Whether the run is priced by a sum of curves, and needs concrete values for it."""
    kinds = {type(step) for step, _ in _split(run, adjacency)[0]}
    kinds |= {type(part) for part in walk(run) if not isinstance(part, UserLevel)}
    host = any(kind in _CURVES and _CURVES[kind][0] in _ON_HOST for kind in kinds)
    return host == on_host and not is_gaussian_family(run, adjacency) and _has_curve(run, adjacency)


_SUM = Method(
    "rdp",
    rank=31.0,
    supports=functools.partial(_sums, on_host=False),
    epsilon=_epsilon,
    delta=_delta,
    rdp=rdp_curve,
    describe="sum of the steps' Rényi curves, converted by Canonne, Kamath and Steinke (2020), "
    "Proposition 12",
)

RENYI_METHODS = (
    Method(
        "rdp",
        rank=30.0,
        supports=is_gaussian_family,
        epsilon=_as_method_part(conversion.epsilon_from_atoms),
        delta=_as_method_part(conversion.delta_from_atoms),
        rdp=rdp_curve,
        describe="Rényi curve at real orders by certified quadrature, converted by Canonne, Kamath "
        "and Steinke (2020), Proposition 12",
    ),
    _SUM,
    _SUM._replace(rank=32.0, dear=True, supports=functools.partial(_sums, on_host=True)),
    Method(
        "rdp_classic",
        rank=None,
        supports=is_gaussian_family,
        epsilon=_as_method_part(_classic),
        describe="Rényi curve at real orders by certified quadrature, converted by Mironov (2017), "
        "Proposition 3",
    ),
)
