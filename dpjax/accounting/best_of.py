"""The best of a secret number of runs, priced from the privacy profile of one run.

The bounds (UPPER, ATTAINED, BESIDE) are proved in `selection_bounds`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeGuard

import jax
import numpy as np

from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour import method as contour
from dpjax.accounting.contour.profile import Profile
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.accounting.loss_distribution import method as grids
from dpjax.accounting.mechanisms import BestOf, Composed, Mechanism, Repeated
from dpjax.accounting.mechanisms.base import map_axes
from dpjax.accounting.mechanisms.selection import FIXED, law_of_trials
from dpjax.accounting.method import Method, Part, best_bound, list_settings, rank_methods
from dpjax.accounting.pairs.stacked import split_run
from dpjax.accounting.profiles import has_profile, profiles
from dpjax.accounting.remembered import remember
from dpjax.accounting.selection_bounds import (
    REST,
    Beside,
    Bound,
    lower_end,
    put_beside,
    solve_bounds,
    upper_bound,
)
from dpjax.accounting.typing import Real

_LEAST_DELTA = 1e-280  # δ of one run below which nothing is read
_READ = 160  # ε at which a whole profile is read


def _is_selection(step: Mechanism) -> TypeGuard[BestOf]:
    return isinstance(step, BestOf)


def _has_selection(run: Mechanism, adjacency: Adjacency) -> bool:
    """Whether one run is known by pairs that lines can be drawn for, or by a few outcomes."""
    found, others = split_run(run, _is_selection)
    if len(found) != 1 or found[0][1]:
        return False
    return has_profile(Composed((found[0][0].mechanism, others)), adjacency)


def _part(run: Mechanism) -> tuple[BestOf, Composed]:
    """Return the only selection of a run that `_has_selection`, and what stands beside it."""
    ((best, _),), others = split_run(run, _is_selection)
    return best, others


def _profiles(
    run: Mechanism, adjacency: Adjacency, level: float, *, upper: bool
) -> list[tuple[Profile, Profile]]:
    """Return the profiles of one of the runs, own and other, in either direction."""
    known = profiles(run, adjacency, level, upper=upper)
    return [] if known is None else list(zip(known, known[::-1], strict=True))


@remember(32)
def _prepare_upper(run: Mechanism, adjacency: Adjacency, level: float) -> list[Bound | Beside]:
    """Return the bound in either direction, off which answers are read."""
    best, others = _part(run)
    both = _profiles(best.mechanism, adjacency, level, upper=True)
    bounds = [upper_bound(law_of_trials(best), *way, level) for way in both]
    if not bounds or not others.mechanisms:
        return [*bounds]
    beside = profiles(others, adjacency, level)
    return [] if beside is None else [*put_beside(bounds, beside, level * bounds[0].mean / REST)]


@remember(32)
def _prepare_lower(
    best: BestOf, adjacency: Adjacency, level: float
) -> list[tuple[Profile, Profile]]:
    """Return the profiles off which lower ends are read."""
    return _profiles(best.mechanism, adjacency, level, upper=False)


def _ready_for(run: Mechanism, adjacency: Adjacency, level: float) -> list[Bound | Beside]:
    """Return the bounds; nothing where losses or δ are beyond what is read."""
    return [] if level < _LEAST_DELTA else _prepare_upper(run, adjacency, level)


def _level(run: Mechanism, delta: float) -> float:
    """Return the δ of one run that hardly counts, as UPPER has at most E K times that.

    A power of ten, so that like questions share what is prepared.
    """
    best = _part(run)[0]
    hardly = REST * delta / max(float(best.expected_trials), 1.0)
    return 10.0 ** math.floor(math.log10(max(hardly, 1e-300)))


def _tell_all(run: Mechanism) -> Mechanism | None:
    """Return all runs, of which the best is a function, where their number is certain."""
    best, others = _part(run)
    m = float(best.expected_trials)
    if best.distribution != FIXED and (m != 1 or best.distribution == "poisson"):
        return None
    told = best.mechanism if m == 1 else Repeated(best.mechanism, m)
    return Composed((*others.mechanisms, told)) if others.mechanisms else told


def _composition(part: Part, run: Mechanism, given: float, adjacency: Adjacency) -> float:
    told, nothing = _tell_all(run), np.inf if part == "epsilon" else 1.0
    if told is None:
        return nothing
    table = [*gaussian_dp.GDP_METHODS, *contour.CONTOUR_METHODS, *grids.LOSS_METHODS]
    able = [m for m in rank_methods(table, part, told, adjacency) if m.rank is not None]
    return float(best_bound(part, able, told, given, adjacency)[0]) if able else nothing


def _selection_epsilon(run: Mechanism, delta: float, adjacency: Adjacency) -> float:
    if not 0 < delta < 1:
        return np.inf if delta < 1 else 0.0
    bounds = _ready_for(run, adjacency, _level(run, delta))
    found = solve_bounds(bounds, delta) if bounds else np.inf
    return min(found, _composition("epsilon", run, delta, adjacency))


def _selection_delta(run: Mechanism, epsilon: float, adjacency: Adjacency) -> float:
    if not 0 <= epsilon < np.inf:
        return 1.0
    level, found, tried = 1e-12, 1.0, set()
    while level not in tried and (bounds := _ready_for(run, adjacency, level)):
        tried.add(level)
        found = min(found, max(bound.at(epsilon) for bound in bounds))
        wanted = _level(run, found)  # as ε(δ) takes it, so that one is the other's inverse
        level = wanted if wanted >= level else 10.0 ** math.floor(1.5 * math.log10(level))
    found = max(found, 1e-300)  # what underflows is not nothing
    return min(found, _composition("delta", run, epsilon, adjacency))


def read_selection(
    run: Mechanism, adjacency: Adjacency, level: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return ε, rising from 0, and upper ends of δ there, down to about a level; None if unknown.

    All are read off what is prepared for the last: UPPER holds whatever it was prepared for.
    """
    if not _has_selection(run, adjacency) or _tell_all(run) is not None:
        return None
    bounds = _ready_for(run, adjacency, _level(run, level))
    last = solve_bounds(bounds, level) if bounds else np.inf
    if not 0 < last < np.inf:
        return None
    # UPPER at any ε, of profiles that are read down to the least δ asked for.
    epsilons = np.linspace(0.0, last, _READ)
    return epsilons, np.minimum([max(bound.at(e) for bound in bounds) for e in epsilons], 1.0)


def _selection_lower(run: Mechanism, delta: float, adjacency: Adjacency) -> float:
    """A lower end, of the pair that neighbours attain in one run and the score of ATTAINED.

    What stands beside the selection is left out: without it no more is told.
    """
    best = _part(run)[0]
    if not (0 < delta < 1 and grids.is_attained(best.mechanism, adjacency)):
        return 0.0
    level = _level(run, delta)
    both = [] if level < _LEAST_DELTA else _prepare_lower(best, adjacency, level)
    law = law_of_trials(best)
    return max((lower_end(law, own, other, delta) for own, other in both), default=0.0)


def _each(answer: Callable) -> Callable:
    """Return the answer of every setting of a sweep, one by one."""

    @functools.wraps(answer)
    def ask(run: Mechanism, given: Real, adjacency: Adjacency) -> np.ndarray:
        if is_traced(run, given):
            raise UnsupportedQuery("method 'selection' runs on the host: price outside the trace")
        shape, settings = list_settings((run, given), (map_axes(run), 0))
        found = np.empty(shape)
        for place, setting in settings:
            one, at = jax.tree.map(lambda v: np.asarray(v, np.float64), setting)
            found[place] = answer(one, float(at), adjacency)
        return found

    return ask


BEST_OF_METHODS = (
    Method(
        "selection",
        rank=34.0,
        dear=True,
        supports=_has_selection,
        needs=(BestOf,),
        epsilon=_each(_selection_epsilon),
        delta=_each(_selection_delta),
        epsilon_lower=_each(_selection_lower),
        describe="the best of K runs from one run's privacy profile, bounded over every score "
        "(derived for dpjax; after Koskela, Redberg and Wang 2024); of a certain K also their "
        "composition",
    ),
)
