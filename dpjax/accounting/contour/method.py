"""The tight answers of sampled Gaussian steps: contour integration, at rising resolution.

For steps with losses L under P and K(z) = log E_P[e^{zL}], on any line Re z = c > 0,

    δ(ε) = (1/2πi) ∫ exp(ΣnK(z) − zε) / (z(z + 1)) dz.

A pair of distributions is its two log-densities (`pairs.pair`); all else is derived from them, once
for every pair. Every error has a bound that is added to the upper end and taken from the lower:

* over the sample space (`tilt`, `half`): the trapezoid rule on a line, Gauss's on a half-line, what
  is cut, and how fast the transform falls along the line;
* along the line (`line`): what the sum takes besides δ(ε), by Poisson summation, and what lies
  beyond its end;
* rounding: a multiple of the unit roundoff times the condition of every sum.

One line serves all ε, and one step needs none (`interval`); where it goes is looked for (`saddle`).
What the finest line cannot resolve is left to loss distributions.

References:
  Inversion of the two-sided Laplace transform of (1 − e^{ε−l})₊, which is e^{−zε}/(z(z+1)) at −z;
  Zhu, Dong, Wang 2022, Algorithm 1 (characteristic functions of dominating pairs); the error
  bounds were derived for dpjax.
"""

from __future__ import annotations

import functools

import jax
import numpy as np
from jaxtyping import Array

from dpjax._numerics import float64
from dpjax._numerics.arrays import NUMPY, Numbers, NumbersLike, namespace, tree_map
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour import interval
from dpjax.accounting.contour.derivative import slopes
from dpjax.accounting.contour.interval import LEVELS
from dpjax.accounting.contour.saddle import Composition, Group
from dpjax.accounting.contour.single_step import Bounds, of_single_step
from dpjax.accounting.mechanisms import Mechanism, flatten
from dpjax.accounting.method import Method
from dpjax.accounting.pairs.atoms import (
    PAIRS,
    SAMPLING_RULES,
    GroupedSteps,
    atom_kind,
    by_pair,
    by_scheme,
    has_attained_atoms,
    is_gaussian_family,
    list_directions,
    query,
)
from dpjax.accounting.pairs.mixtures import moves
from dpjax.accounting.pairs.protocol import StepGroup

# Share of the answer that error bounds of long schedules of distinct steps may take before a finer
# resolution is tried: there a finer line costs seconds.
_GOOD_OF_MANY, _MANY = 1e-6, 16
_HUGE = 1e4  # ε above which no finer line is tried: too few settings gain
_MOST_MU = 20.0  # of a single step without a line
_UNDERFLOW = 1e-300  # δ of a release is never 0, though it may be below the least float


# ------------------------------------------------------------------------------ one setting
# Here the steps of `GroupedSteps` go by the names of their pairs, not of their schemes.


def _is_one_step(run: GroupedSteps) -> Numbers | bool:
    """Whether there is exactly one step, of noise that the closed form takes, and nothing else."""
    if [np.shape(group.count) for group in run.sampled.values()] != [(1,)]:
        return False
    (group,) = run.sampled.values()
    return (group.count[0] == 1) & (run.gaussian_mu2 == 0) & (group.mu[0] <= _MOST_MU)


def _clean(run: GroupedSteps) -> GroupedSteps:
    """Steps that release nothing get count 0 and harmless parameters."""
    xp = namespace(run)

    def clean(steps: StepGroup) -> StepGroup:
        idle = (steps.mu <= 0) | (steps.rate <= 0) | (steps.count <= 0) | ~xp.isfinite(steps.mu)
        return StepGroup(
            xp.where(idle, 0.1, steps.mu),
            xp.where(idle, 1e-3, xp.clip(steps.rate, 1e-300, 1.0)),
            xp.where(idle, 0.0, steps.count),
        )

    mu2 = xp.where(xp.isfinite(run.gaussian_mu2), run.gaussian_mu2, 1.0)
    return GroupedSteps(xp.maximum(mu2, 0.0), {name: clean(g) for name, g in run.sampled.items()})


def _total_variation(run: GroupedSteps) -> Array:
    """δ(0) ≤ 1 − Π(1 − TV)^count, from the total variation distances of the steps."""
    xp = namespace(run)
    plain = xp.clip(xp.erf(xp.sqrt(run.gaussian_mu2 / 8.0)), 0.0, 1 - 1e-16)
    log_agree = xp.log1p(-plain)
    for name, group in run.sampled.items():
        distance = PAIRS[name].total_variation(group.mu, group.rate)
        distance = xp.clip(distance, 0.0, 1 - 1e-16)
        log_agree = log_agree + xp.sum(group.count * xp.log1p(-distance))
    return -xp.expm1(log_agree) * (1 + 1e-12)


def _is_impossible(run: GroupedSteps) -> Array:
    """Whether some step adds no noise, or a parameter is not a number."""
    xp = namespace(run)
    bad = ~xp.isfinite(run.gaussian_mu2)
    for g in run.sampled.values():
        loud = ~xp.isfinite(g.mu) & (g.rate > 0) & (g.count > 0)
        lost = xp.isnan(g.mu) | xp.isnan(g.rate) | ~xp.isfinite(g.count)
        bad = bad | xp.any(loud | lost)
    return bad


def _as_run(run: GroupedSteps) -> Composition:
    """Return the run as `interval` takes it."""
    groups = (Group(PAIRS[name].table(g.mu, g.rate), g.count) for name, g in run.sampled.items())
    return Composition(run.gaussian_mu2, tuple(groups))


def bound(
    question: str, run: GroupedSteps, given: Numbers, signs: tuple[int, ...], level: int | None
) -> Bounds:
    """Return certified ends of ε(δ) or δ(ε), the worse of the directions. Float64 only.

    Args:
        question: "epsilon" or "delta".
        run: what is composed, its steps by the names of their pairs.
        given: δ, below 1e-290 of which nothing is said, or ε.
        signs: (1, −1) where the directions differ, (1,) where all pairs are symmetric.
        level: how finely, see `interval.LEVELS`; None for a single step, without a line.
    """
    xp = namespace(run, given, signs)
    impossible = _is_impossible(run)
    run = _clean(run)
    most, whole = _total_variation(run), _as_run(run)
    limits = (1e-290, 1 - 1e-12) if question == "epsilon" else (0.0, 1e6)
    asked = xp.clip(given, *limits)
    if level is None:
        lower, upper = of_single_step(question, whole, signs, asked)
    else:
        lower, upper = interval.bounds(question, whole, signs, asked, level)
    nothing = run.gaussian_mu2 + sum(xp.sum(g.count) for g in run.sampled.values()) == 0
    unknown = impossible | xp.isnan(upper)
    if question == "epsilon":
        # δ(0) is at most the total variation distance: nothing to integrate where that is enough.
        nothing = nothing | (most <= given) | (given >= 1)
        unknown = impossible | (unknown | ~(given >= 1e-290)) & ~nothing
    nothing = nothing & ~impossible
    upper = xp.where(unknown, np.inf, xp.where(nothing, 0.0, upper))
    lower = xp.where(nothing | unknown | xp.isnan(lower), 0.0, xp.minimum(lower, upper))
    if question == "epsilon":
        return Bounds(lower, upper)
    # Beyond 1e6 the value there still bounds; below 0 we say 1.
    upper = xp.minimum(xp.maximum(upper, _UNDERFLOW), xp.minimum(most, 1.0))
    upper = xp.where((given >= 0) & ~unknown, upper, 1.0)
    return Bounds(xp.where(given <= 1e6, xp.minimum(lower, upper), 0.0), upper)


def collect_pairs(
    atoms: GroupedSteps, adjacency: Adjacency, lower: bool
) -> tuple[GroupedSteps, tuple[int, ...]]:
    """Return the steps by their pairs, and the directions to be taken.

    Upper ends take the pair that dominates, lower ends one that is attained.
    """
    steps = by_pair(atoms, adjacency, attained=lower)
    return GroupedSteps(atoms.gaussian_mu2, steps), list_directions(steps)


# ------------------------------------------------------------------------------ every setting


# What is asked in turn, until an answer is good enough: lines of rising resolution, and after the
# first the closed form of a single step, whose transform may decay too slowly for any line.
_LEVELS = (0, None, *range(1, len(LEVELS)))


@functools.cache
def _kernel(question: str, lower: bool, level: int):
    at = _LEVELS[level]

    def kernel(atoms: GroupedSteps, adjacency: Adjacency, given: Array) -> Bounds:
        run, signs = collect_pairs(atoms, adjacency, lower)
        bounds = bound(question, run, given, signs, at)
        if at is None:
            return bounds
        # One step is left to the closed form: a line may be lost, or hold ε and miss its slopes.
        lost = _is_one_step(run) & (bounds.upper > 0)
        return Bounds(bounds.lower, namespace(run).where(lost, np.inf, bounds.upper))

    return kernel


@functools.cache
def _slopes_kernel(question: str, level: int):
    at = _LEVELS[level]

    def kernel(atoms: GroupedSteps, adjacency: Adjacency, given: Array) -> Answered:
        bounds = _kernel(question, False, level)(atoms, adjacency, given)
        run, signs = collect_pairs(atoms, adjacency, False)
        one = _is_one_step(run)
        if at is None and namespace(one) is NUMPY and not one:  # known not to be one
            return bounds, *tree_map(namespace(run).zeros_like, (atoms, (given,)))
        clean = _clean(run)
        changes = tuple(moves(PAIRS[name].table, g.mu, g.rate) for name, g in clean.sampled.items())
        by_mu2, groups, by_given = slopes(
            question, _as_run(clean), changes, given, bounds.upper, signs, at
        )
        steps = {name: StepGroup(*g) for name, g in zip(run.sampled, groups, strict=True)}
        return bounds, GroupedSteps(by_mu2, by_scheme(steps, atoms, adjacency)), (by_given,)

    return kernel


# An answer, its slopes by the atoms, and by what was asked.
Answered = tuple[Bounds, GroupedSteps, tuple[Numbers, ...]]


def _keep(old: Answered, new: Answered) -> Answered:
    """Return the better of two bounds; its slopes go with the upper end that is kept."""
    xp = namespace(old, new)
    better = new[0].upper < old[0].upper

    def pick(a: Numbers, b: Numbers) -> Numbers:
        mask = xp.reshape(better, np.shape(better) + (1,) * (np.ndim(a) - np.ndim(better)))
        return xp.where(mask, b, a)

    return _merge(old[0], new[0]), *tree_map(pick, old[1:], new[1:])


_SPEC = Bounds(*[jax.ShapeDtypeStruct((), np.float64)] * 2)  # pyrefly: ignore


def _width(bounds: Bounds) -> Numbers:
    """What the answer is loose by at most, relative."""
    xp = namespace(bounds)
    with np.errstate(invalid="ignore", divide="ignore"):  # ∞ − ∞ and 0/0 say nothing
        width = (bounds.upper - bounds.lower) / bounds.upper
    return xp.where(bounds.upper <= _UNDERFLOW, 0.0, width)


def _needs_refinement(bounds: Bounds, good: float = interval.GOOD) -> Numbers:
    huge = (bounds.upper >= _HUGE) & (bounds.upper < np.inf)
    return ~(_width(bounds) <= good) & ~huge


def _merge(old: Bounds, new: Bounds) -> Bounds:
    """All of them hold: the best of each end, so that a finer line never loses."""
    xp = namespace(old, new)
    upper, lower = xp.fmin(old.upper, new.upper), xp.fmax(old.lower, new.lower)
    return Bounds(xp.minimum(lower, upper), upper)


def _bounds(
    question: str, run: Mechanism, given: NumbersLike, adjacency: Adjacency, *, lower: bool = False
) -> Bounds:
    kernel, *finer = [_kernel(question, lower, k) for k in range(len(_LEVELS))]
    few = len(flatten(run)) <= _MANY
    poor = functools.partial(_needs_refinement, good=interval.GOOD if few else _GOOD_OF_MANY)
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
    def ask(run: Mechanism, given: Numbers, adjacency: Adjacency) -> Numbers:
        bounds = _bounds(question, run, given, adjacency)
        xp = namespace(bounds)
        # A loose bound is valid, but another method may do better.
        good = (_width(bounds) <= interval.USABLE) & (bounds.upper < np.inf)
        return xp.where(good, bounds.upper, nothing)

    return ask


def _contour_lower(run: Mechanism, given: Numbers, adjacency: Adjacency) -> Numbers:
    """Return a lower end, of the pair that neighbours attain in every step."""
    steps = [step for step, _ in flatten(run)]
    kinds = {atom_kind(jax.tree.structure(step), adjacency) for step in steps}
    # Both ends come from one evaluation, unless the pairs differ or the ends round differently.
    schemes = [scheme for scheme in SAMPLING_RULES.values() if scheme.name in kinds]
    differ = any(scheme.attained(adjacency) != scheme.dominating(adjacency) for scheme in schemes)
    lower = differ or float64.is_traced(run, given)
    found = _bounds("epsilon", run, given, adjacency, lower=lower).lower
    return found if has_attained_atoms(run) else 0 * found


CONTOUR_METHODS = (
    Method(
        "contour",
        rank=10.0,
        tight=True,
        supports=is_gaussian_family,
        epsilon=_upper("epsilon", np.inf),
        delta=_upper("delta", 1.0),
        epsilon_lower=_contour_lower,
        describe="privacy profile by contour integration of the privacy loss's transform, all "
        "errors bounded and added",
    ),
)
