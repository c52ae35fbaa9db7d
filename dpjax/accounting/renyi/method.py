"""Rényi curves as methods: of runs of (subsampled) Gaussian pairs, and of sums of curves.

A mechanism that is known by its Rényi curve alone stands in the table `_CURVES`. A run that
contains one is priced by the sum of its steps' curves; whatever else it contains adds its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Array

from dpjax._numerics import float64
from dpjax._numerics.arrays import JAX, NUMPY, namespace, tree_map
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour import method as contour
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.gaussian import method as gaussian
from dpjax.accounting.gaussian import objective_perturbation, randomized_sensitivity
from dpjax.accounting.loss_distribution import method as loss_distribution
from dpjax.accounting.loss_distribution import one_release
from dpjax.accounting.mechanisms import (
    BestOf,
    Mechanism,
    ObjectivePerturbation,
    PureDP,
    RandomAllocation,
    RandomizedSensitivity,
    ZeroConcentrated,
    flatten,
)
from dpjax.accounting.mechanisms.base import walk
from dpjax.accounting.method import Method, least, ranked
from dpjax.accounting.pairs.atoms import Atoms, by_pair, lowers, query
from dpjax.accounting.pairs.grouping import split
from dpjax.accounting.pairs.table import PAIRS, RELEASES, TRANSFORMS
from dpjax.accounting.renyi import conversion, moments, selection

_GRID = 1 + np.exp(np.linspace(-4.0, 12.0, 321))
_LOUDEST = 1e3  # μ beyond which no finite bound is looked for
_REFINED = np.linspace(-0.05, 0.05, 41)


def _classic(atoms: Atoms, adjacency: Adjacency, delta: Array) -> Array:
    return conversion.epsilon_from_atoms(atoms, adjacency, delta, classic=True)


def _asked(kernel: Callable) -> Callable:
    def ask(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        return query(kernel, run, adjacency, (given,), (0,))

    return ask


# --- sums of curves


def _best_of(best: BestOf, orders: Any, adjacency: Adjacency) -> Any:
    inner = best.mechanism

    def profile(epsilons: Any) -> Any:
        others = (gaussian, one_release, contour, loss_distribution, objective_perturbation)
        table = [m for family in others for m in family.METHODS]
        table += [*randomized_sensitivity.METHODS, *METHODS]
        able = [m for m in ranked(table, "delta", inner, adjacency) if m.rank is not None]
        return least("delta", able, inner, epsilons, adjacency)[0]

    return selection.curve(best, orders, lambda at: rdp(inner, at, adjacency, quick=True), profile)


# --- transforms without a density


def _transformed(step: Mechanism, adjacency: Adjacency) -> bool:
    """Whether a step's own pair is known by its transform alone."""
    known = {**PAIRS, **TRANSFORMS}
    return lowers(step, adjacency, known) and not lowers(step, adjacency)


def _of_transforms(
    step: Mechanism, orders: Any, adjacency: Adjacency, *, quick: bool = False
) -> np.ndarray:
    """Of one step, setting by setting; its pairs' log-moments at whole and at real orders."""
    if float64.is_traced(step, orders):
        raise UnsupportedQuery(
            f"the Rényi curve of {type(step).__name__} runs on the host and cannot be traced; "
            "method='contour' can"
        )
    atoms = query(_same, step, adjacency)
    orders = np.asarray(orders, np.float64)
    lead = np.shape(atoms.gaussian_mu2)
    shape = np.broadcast_shapes(lead, orders.shape[:-1])
    every = np.broadcast_to(orders, (*shape, orders.shape[-1]))
    found = np.empty(every.shape)
    for index in np.ndindex(*shape):
        own = index[len(shape) - len(lead) :]
        place = tuple(0 if n == 1 else i for n, i in zip(lead, own, strict=True))
        single = tree_map(lambda a: a[place], atoms)  # noqa: B023
        good = (every[index] > 1) & (every[index] < np.inf)
        c = np.where(good, every[index], 2.0) - 1
        total = np.zeros_like(c)
        for name, steps in by_pair(single, adjacency).items():
            for mu, rate, count in zip(steps.mu, steps.rate, steps.count, strict=True):
                if count > 0 and mu > 0:
                    one = np.full_like(c, np.inf)
                    if mu < _LOUDEST:
                        one = TRANSFORMS[name].log_moments(mu, rate, c, quick)
                    total = total + count * one
                elif not (count <= 0 or mu <= 0):
                    total = total + np.inf
        value = total / c * (1 + moments.RELATIVE) + np.where(total > 0, moments.ABSOLUTE, 0.0)
        found[index] = np.where(good & ~np.isnan(value), value, np.inf)
    return found


def _same(atoms: Atoms, adjacency: Adjacency) -> Atoms:
    return atoms


# (mechanism, orders [k], adjacency) -> upper bound, shape S + [k]; and whether it can answer.
_CURVES: dict[type, tuple[Callable, Callable[[Any, Adjacency], bool]]] = {
    BestOf: (_best_of, lambda best, adjacency: _has_curve(best.mechanism, adjacency)),
    ObjectivePerturbation: (objective_perturbation.curve, lambda step, adjacency: True),
    PureDP: (objective_perturbation.curve, objective_perturbation.holds),
    RandomAllocation: (_of_transforms, _transformed),
    RandomizedSensitivity: (randomized_sensitivity.curve, lambda step, adjacency: True),
    ZeroConcentrated: (objective_perturbation.curve, objective_perturbation.holds),
    **{
        kind: (one_release.curve, one_release.has_curve)
        for kind, release in RELEASES.items()
        if hasattr(release, "divergence")
    },
}


def _has_curve(run: Mechanism, adjacency: Adjacency) -> bool:
    own, rest = split(run, lambda step: type(step) in _CURVES)
    able = all(_CURVES[type(step)][1](step, adjacency) for step, _ in own)
    return able and lowers(rest, adjacency)


def _count(factors: tuple) -> Any:
    total: Any = 1.0
    for factor in factors:
        total = total * (factor if float64.is_traced(factor) else np.asarray(factor, np.float64))
    return total if np.ndim(total) == 0 else total[..., None]


def rdp(run: Mechanism, orders: Any, adjacency: Adjacency, *, quick: bool = False) -> Any:
    """The Rényi curve of a run: the sum of its parts' curves; quick: looser where that is faster.

    Example:
        >>> from dpjax import accounting as acc
        >>> rdp(acc.Gaussian(2.0), np.asarray([4.0]), acc.Adjacency.ADD_REMOVE).round(9)
        array([0.5])
    """
    own, rest = split(run, lambda step: type(step) in _CURVES)
    total: Any = 0.0
    if rest.mechanisms or not own:
        total = query(moments.rdp_curve, rest, adjacency, (orders,), (1,), batch=1)
    for step, factors in own:
        curve = _CURVES[type(step)][0]
        if curve is _of_transforms:
            curve = functools.partial(curve, quick=quick)
        count, one = _count(factors), curve(step, orders, adjacency)
        xp: Any = namespace(count, one)
        total = total + count * xp.where(count > 0, one, 0.0)  # what is not used costs nothing
    return total


def _best(values: Any, worst: float) -> Any:
    xp: Any = namespace(values)
    return xp.min(xp.where(xp.isnan(values), worst, values), axis=-1)


def _search(
    run: Mechanism, adjacency: Adjacency, given: Any, convert: Callable, size: Callable
) -> Any:
    """Least convert(order, rdp, given) over the orders: any order is valid, more are tighter.

    Rounded up in the program's own precision: `size` is the sum of what `convert` adds up.
    """
    curve = rdp(run, _GRID, adjacency, quick=True)
    traced = float64.is_traced(curve, given)
    xp: Any = JAX if traced else NUMPY
    given = xp.asarray(given)[..., None]
    terms = 16 + 2 * len(flatten(run))

    def bound(order: Any, curve: Any, given: Any) -> Any:
        value = convert(order, curve, given)
        slack = terms * float(np.finfo(value.dtype).eps) * size(order, curve, given)
        return xp.where(xp.isfinite(value), value + xp.stop_gradient(slack), value)

    values = bound(_GRID, curve, given)
    answer = _best(values, np.inf)
    place = xp.argmin(xp.where(xp.isnan(values), np.inf, values), axis=-1)
    near = 1 + (xp.asarray(_GRID)[place] - 1)[..., None] * np.exp(_REFINED)
    values = bound(near, rdp(run, near, adjacency, quick=True), given)
    # Not the minimum: its derivative is the mean of both at a tie.
    refined = _best(values, np.inf)
    answer = xp.where(refined < answer, refined, answer)
    return answer


def _epsilon(run: Mechanism, delta: Any, adjacency: Adjacency) -> Any:
    xp: Any = namespace(delta)
    log_delta = xp.log(xp.asarray(delta))
    value = _search(run, adjacency, log_delta, conversion.epsilon_at, conversion.epsilon_size)
    xp = namespace(value)
    return xp.maximum(value * (1 + 1e-12), 0.0)


def _delta(run: Mechanism, epsilon: Any, adjacency: Adjacency) -> Any:
    value = _search(run, adjacency, epsilon, conversion.log_delta_at, conversion.log_delta_size)
    xp: Any = namespace(value)
    least = max(conversion.UNDERFLOW, float(np.finfo(value.dtype).tiny))
    found = xp.maximum(xp.exp(xp.minimum(value + 1e-11, 0.0)), least)
    return xp.where(value == -xp.inf, 0.0, found)


def _sums(run: Mechanism, adjacency: Adjacency, on_host: bool) -> bool:
    """Whether the run is priced by a sum of curves, and needs concrete values for it."""
    host = any(type(p) in _CURVES and _CURVES[type(p)][0] is _of_transforms for p in walk(run))
    return host == on_host and not lowers(run, adjacency) and _has_curve(run, adjacency)


_SUM = Method(
    "rdp",
    rank=31.0,
    supports=functools.partial(_sums, on_host=False),
    epsilon=_epsilon,
    delta=_delta,
    rdp=rdp,
    describe="sum of the steps' Rényi curves, converted by Canonne, Kamath and Steinke (2020), "
    "Proposition 12",
)

METHODS = (
    Method(
        "rdp",
        rank=30.0,
        supports=lowers,
        epsilon=_asked(conversion.epsilon_from_atoms),
        delta=_asked(conversion.delta_from_atoms),
        rdp=rdp,
        describe="Rényi curve at real orders by certified quadrature, converted by Canonne, Kamath "
        "and Steinke (2020), Proposition 12",
    ),
    _SUM,
    _SUM._replace(rank=32.0, dear=True, supports=functools.partial(_sums, on_host=True)),
    Method(
        "rdp_classic",
        rank=None,
        supports=lowers,
        epsilon=_asked(_classic),
        describe="Rényi curve at real orders by certified quadrature, converted by Mironov (2017), "
        "Proposition 3",
    ),
)
