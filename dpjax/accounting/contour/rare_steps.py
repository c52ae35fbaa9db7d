"""The contour of few rare steps, rounded to finitely many outcomes in convex order."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from dpjax._numerics.arrays import NUMPY, tree_map
from dpjax.accounting.contour import interval
from dpjax.accounting.contour.saddle import Composition, Group, find_saddle
from dpjax.accounting.contour.users import (
    GOOD_OF_LAWS,
    as_host_part,
    keep_used,
    nothing_known,
    read_composition,
)
from dpjax.accounting.loss_distribution import method as grids
from dpjax.accounting.method import Method
from dpjax.accounting.pairs.atoms import is_gaussian_family
from dpjax.accounting.pairs.mixtures import Mixture
from dpjax.accounting.pairs.on_grid import round_to_atoms
from dpjax.accounting.pairs.pair import Atoms

# Relative width that is good enough of steps rounded to outcomes, whose own lines are too short.
_GOOD_OF_ROUNDED = 2e-5
_MOST_KINDS, _LOUDEST = 16, 1e3  # of steps that are rounded to outcomes, μ of each
_DRAWS, _RARE = 3.0, 1e-4  # of a record in all those steps, or the rate of one kind of them
_CHARGES = (1e-6, 1e-5, 1e-4, 1e-3)  # of δ, charged for what lies beyond all outcomes
_SHARE_OF_LINES = 1e-4  # of the δ where a line of a whole profile is drawn
_LOOKS = 3  # how often it is looked at which δ that is of


def _round_steps(run: Composition, charge: float, upper: bool, tilt: float) -> Composition:
    """Return the run with its sampled steps by few outcomes, and what lies beyond charged to δ."""
    rare = charge / sum(float(count[0]) for _, count in run.groups)
    groups = []
    for pair, count in run.groups:
        found = round_to_atoms(tree_map(lambda v: v[0], pair), rare, upper, tilt)
        groups.append(Group(tree_map(lambda v: np.asarray(v)[None], found), count))
    return Composition(run.gaussian_mu2, tuple(groups))


class RareSteps(NamedTuple):
    """A run of few rare steps, rounded to outcomes for each line: an upper end."""

    run: Composition

    def rough(self) -> Composition:
        """Return the run itself: its moments are known, its lines are too long."""
        return self.run

    def few(self, tilt: float, delta: float) -> Composition:
        """Return the run by few outcomes; what lies beyond them is charged to δ."""
        # Whatever is charged, the rounded run dominates: the share decides how tight it is.
        charge = float(np.clip(_SHARE_OF_LINES * delta, 1e-280, 0.1))
        return _round_steps(self.run, charge, True, tilt)


def _of_rounded(run: Composition, given: float, question: str, upper: bool) -> tuple[float, bool]:
    """Return one end of an answer by few outcomes of every step, and whether its line was fine.

    Whatever is charged, both ends hold, so that the best of several is an end. The less is charged
    the larger losses are kept, and the longer the line that they take: where that is too long,
    short lines tell how much charge is best; and of a δ that is asked for, about how much it is.
    """
    asked = question == "epsilon"
    log_delta, epsilon = (NUMPY.log(given), None) if asked else (None, NUMPY.asarray(given))
    at = find_saddle(run, log_delta, epsilon)
    tilt = float(at.c) if np.isfinite(at.c) else 0.0
    read = interval.line_epsilon if asked else interval.line_delta
    goal = given if asked else float(np.exp(-at.depth))
    best, fine = nothing_known(question, upper), False

    def round_by(share: float) -> Composition | None:
        found = _round_steps(run, float(np.clip(share * goal, 1e-280, 0.1)), upper, tilt)
        if all(cast(Atoms, group.pair).loss.size for group in found.groups):
            return found
        return None  # all outcomes lie beyond, at infinite losses

    for _ in range(0 if asked else _LOOKS):
        if (few := round_by(_CHARGES[0])) is None:
            break
        last, goal = goal, float(read(few, given, good=1.0).upper)
        if 0.1 * last <= goal <= 10 * last:
            break
    tried = [few for share in _CHARGES if (few := round_by(share)) is not None]
    for k, few in enumerate(tried[:2]):
        if k > 0:  # the one of the others whose short line is the best
            looks = [(read(other, given, good=1.0), other) for other in tried[1:]]
            few = min(looks, key=lambda one: one[0].upper if upper else -one[0].lower)[1]
        ends = read(few, given, good=_GOOD_OF_ROUNDED)
        best = min(best, float(ends.upper)) if upper else max(best, float(ends.lower))
        fine = fine or bool(ends.upper - ends.lower <= 10 * GOOD_OF_LAWS * ends.upper)
        if interval.is_good(ends, _GOOD_OF_ROUNDED):
            break
    return best, fine


def can_round(pairs: Sequence[grids.Pair]) -> bool:
    """Whether these are few kinds of sampled steps of finite losses, for which grids are too short.

    By them a record is hardly ever drawn, or one kind is so rare that a grid as fine as its losses
    does not hold the others.
    """
    drawn = [pair for pair in pairs if pair.family != "gaussian"]
    rare = sum(pair.count * pair.rate for pair in drawn) <= _DRAWS
    rare = rare or any(pair.rate <= _RARE for pair in drawn)
    quiet = all(pair.mu < _LOUDEST for pair in pairs)
    return rare and quiet and 0 < len(drawn) <= _MOST_KINDS


@functools.lru_cache(maxsize=64)
def _find_rounded(
    pairs: tuple[grids.Pair, ...], given: float, question: str, upper: bool
) -> tuple[float, bool]:
    """Return one end in one direction by few outcomes, and whether its line was fine."""
    nothing = nothing_known(question, upper), False
    if not can_round(pairs) or not all(isinstance(pair.family, str) for pair in pairs):
        return nothing
    run, _, _ = read_composition(list(pairs), upper)
    if not all(isinstance(group.pair, Mixture) for group in run.groups):
        return nothing
    if not (np.isfinite(run.gaussian_mu2) and 0 <= given < np.inf):
        return nothing
    if question == "epsilon" and not 1e-290 < given < 1:
        return nothing if given < 1 else (0.0, True)
    with np.errstate(all="ignore"):
        return _of_rounded(run, given, question, upper)


def _rounded_bound(
    pairs: list[grids.Pair], given: float, question: str, *, upper: bool, fine: bool = False
) -> float:
    """Return one end in one direction by few outcomes, or by those alone whose line was fine."""
    found, is_fine = _find_rounded(tuple(keep_used(pairs)), given, question, upper)
    return found if is_fine or not fine else nothing_known(question, upper)


RARE_STEPS_METHODS = (
    *(
        Method(
            "pld",
            rank=19.0 if fine else 19.5,
            tight=fine,
            dear=True,
            supports=lambda run, adjacency: is_gaussian_family(run, adjacency),
            epsilon=as_host_part("epsilon", True, functools.partial(_rounded_bound, fine=fine)),
            delta=as_host_part("delta", True, functools.partial(_rounded_bound, fine=fine)),
            epsilon_lower=as_host_part("epsilon", False, _rounded_bound),
            describe="privacy-loss distributions of few rare steps, rounded to finitely "
            "many outcomes in convex order and composed by contour integration",
        )
        for fine in (True, False)
    ),
)
