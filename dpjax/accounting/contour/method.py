"""The tight answers of subsampled Gaussians: contour integration, at rising resolution."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from dpjax._numerics import float64
from dpjax._numerics.arrays import namespace, tree_map
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour import integral as contour
from dpjax.accounting.contour.composition import is_one_step
from dpjax.accounting.contour.derivative import slopes
from dpjax.accounting.contour.interval import LEVELS
from dpjax.accounting.mechanisms import Mechanism, flatten
from dpjax.accounting.method import Method
from dpjax.accounting.pairs.atoms import (
    Atoms,
    atom_kind,
    by_pair,
    by_scheme,
    directions,
    exhibited,
    lowers,
    query,
)
from dpjax.accounting.pairs.table import SCHEMES

# Share of the answer that error bounds may take before a finer resolution is tried. Long schedules
# of distinct steps are held to less: there a finer line costs seconds.
GOOD = 1e-8
_GOOD_OF_MANY, _MANY = 1e-6, 16
_HUGE = 1e4  # ε above which no finer line is tried: too few settings gain
USABLE = 1e-5  # share above which the answer is left to another method


def composition(
    atoms: Atoms, adjacency: Adjacency, *, lower: bool = False
) -> tuple[contour.Composition, tuple[int, ...]]:
    """A run's atoms as the contour's pairs, with the directions to be taken.

    Upper ends take the pair that dominates, lower ends one that is attained.
    """
    steps = by_pair(atoms, adjacency, attained=lower)
    return contour.Composition(atoms.gaussian_mu2, steps), directions(steps)


# What is asked in turn, until an answer is good enough: lines of rising resolution, and after the
# first the closed form of a single step, whose transform may decay too slowly for any line.
_LEVELS = (0, None, *range(1, len(LEVELS)))


@functools.cache
def _kernel(question: str, lower: bool, level: int):
    ask = contour.epsilon if question == "epsilon" else contour.delta
    at = _LEVELS[level]

    def kernel(atoms: Atoms, adjacency: Adjacency, given: Array) -> contour.Bounds:
        run, signs = composition(atoms, adjacency, lower=lower)
        bounds = ask(run, given, signs, at)
        if at is None:
            return bounds
        # One step is left to the closed form: a line may be lost, or hold ε and miss its slopes.
        lost = is_one_step(run) & (bounds.upper > 0)
        return contour.Bounds(bounds.lower, namespace(run).where(lost, np.inf, bounds.upper))

    return kernel


@functools.cache
def _slopes_kernel(question: str, level: int):
    at = _LEVELS[level]

    def kernel(atoms: Atoms, adjacency: Adjacency, given: Array) -> Any:
        bounds = _kernel(question, False, level)(atoms, adjacency, given)
        run, signs = composition(atoms, adjacency)
        by_run, by_given = slopes(question, run, given, bounds.upper, signs, at)
        by_atoms = Atoms(by_run.gaussian_mu2, by_scheme(by_run.steps, atoms, adjacency))
        return bounds, by_atoms, (by_given,)

    return kernel


def _keep(old: Any, new: Any) -> Any:
    """Of bounds with their slopes: the slopes go with the upper end that is kept."""
    better = new[0].upper < old[0].upper

    def pick(a: Any, b: Any) -> Any:
        mask = np.reshape(better, np.shape(better) + (1,) * (np.ndim(a) - np.ndim(better)))
        return np.where(mask, b, a)

    return _merge(old[0], new[0]), tree_map(pick, old[1], new[1])


_SPEC = contour.Bounds(*[jax.ShapeDtypeStruct((), np.float64)] * 2)  # pyrefly: ignore


def _width(bounds: contour.Bounds) -> Any:
    """What the answer is loose by at most, relative."""
    xp: Any = namespace(bounds)
    with np.errstate(invalid="ignore", divide="ignore"):  # ∞ − ∞ and 0/0 say nothing
        width = (bounds.upper - bounds.lower) / bounds.upper
    return xp.where(bounds.upper <= contour.UNDERFLOW, 0.0, width)


def _poor(bounds: contour.Bounds, good: float = GOOD) -> Any:
    huge = (bounds.upper >= _HUGE) & np.isfinite(bounds.upper)
    return ~(_width(bounds) <= good) & ~huge


def _merge(old: contour.Bounds, new: contour.Bounds) -> contour.Bounds:
    """All of them hold: the best of each end, so that a finer line never loses."""
    upper, lower = np.fmin(old.upper, new.upper), np.fmax(old.lower, new.lower)
    return contour.Bounds(np.minimum(lower, upper), upper)  # pyrefly: ignore


def _bounds(
    question: str, run: Mechanism, given: Any, adjacency: Adjacency, *, lower: bool = False
) -> contour.Bounds:
    kernel, *finer = [_kernel(question, lower, k) for k in range(len(_LEVELS))]
    few = len(flatten(run)) <= _MANY
    poor = functools.partial(_poor, good=GOOD if few else _GOOD_OF_MANY)
    first, *more = [_slopes_kernel(question, k) for k in range(len(_LEVELS))]
    their_slopes = float64.Ladder(tuple(more), lambda pair: poor(pair[0]), _keep)
    return query(
        kernel,
        run,
        adjacency,
        (given,),
        (0,),
        batch=4,
        rounding="down" if lower else "up",
        ladder=float64.Ladder(tuple(finer), poor, _merge),
        derivative=float64.Derivative(first, their_slopes, _SPEC),
    )


def _upper(question: str, nothing: float):
    def ask(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        bounds = _bounds(question, run, given, adjacency)
        xp: Any = namespace(bounds)
        # A loose bound is valid, but another method may do better.
        good = (_width(bounds) <= USABLE) & (bounds.upper < np.inf)
        return xp.where(good, bounds.upper, nothing)

    return ask


def _epsilon_lower(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
    """Of the atoms' pairs in every step; fixed batches take the one-sided pair, all else equal."""
    steps = [step for step, _ in flatten(run)]
    kinds = {atom_kind(jax.tree.structure(step), adjacency) for step in steps}
    # Both ends come from one evaluation, unless the pairs differ or the ends round differently.
    schemes = [scheme for scheme in SCHEMES.values() if scheme.name in kinds]
    differ = any(scheme.attained(adjacency) != scheme.dominating(adjacency) for scheme in schemes)
    lower = differ or float64.is_traced(run, given)
    found = _bounds("epsilon", run, given, adjacency, lower=lower).lower
    return found if exhibited(run) else 0 * found


METHODS = (
    Method(
        "contour",
        rank=10.0,
        tight=True,
        supports=lowers,
        epsilon=_upper("epsilon", np.inf),
        delta=_upper("delta", 1.0),
        epsilon_lower=_epsilon_lower,
        describe="privacy profile by contour integration of the privacy loss's transform, all "
        "errors bounded and added",
    ),
)
