"""The method of random allocation under correlated noise: the least of several bounds.

Each bound is a mechanism that has a price, or one law of a density ratio (`pairs/raised_overlaps`).
All hold, and those that look least by their whole moments are priced.

BEST OF: the price of the best of K runs is read off one run's hockey sticks, or off its Rényi curve
and one of them (`selection_bounds`, `renyi/method`). E L^a of a density ratio L, a > 1, is an
integral of hockey sticks with weights a(a − 1)γ^{a − 2} ≥ 0 over γ > 0 (Sason and Verdú 2016), so
that a run with larger hockey sticks has a larger curve too. What holds of every run with those
holds of one with less: the compared mechanism may stand in a run of which the best is released.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Array

from dpjax._numerics.arrays import namespace
from dpjax._numerics.namespace import Numbers
from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import (
    BestOf,
    Composed,
    Mechanism,
    RandomAllocationCorrelated,
    flatten,
)
from dpjax.accounting.mechanisms.base import build, map_axes, walk
from dpjax.accounting.method import (
    Method,
    Part,
    bound_by,
    list_settings,
    rank_in_best,
    rank_methods,
)
from dpjax.accounting.pairs.raised_overlaps import (
    MOMENTS,
    Exchangeable,
    Nested,
    delta_of_law,
    epsilon_of_law,
    find_least,
    list_bounds,
    list_nested,
)
from dpjax.accounting.pairs.stacked import times

_ASKED = 3  # bounds of a setting that are priced: those that look least by their moments
_NEARLY_LEAST = 0.05  # and by how much more, of ε or of log δ, they may look
_LOOKED_AT = 24  # bounds whose moments are computed
_TRACED = 4  # bounds that are priced under a trace, which cannot look


_Bound = TypeVar("_Bound", Exchangeable, Nested)


def _thin(bounds: list[Exchangeable], most: int) -> list[Exchangeable]:
    """At most so many, the ends among them."""
    places = np.unique(np.linspace(0, len(bounds) - 1, min(most, len(bounds))).round().astype(int))
    return [bounds[place] for place in places]


def _look(part: str, log_moments: np.ndarray, given: float) -> float:
    """About ε, or log δ, by the best whole moment: the less, the better a bound looks."""
    # Markov: δ(ε) ≤ E[L'^m]·e^{−(m − 1)ε}, so that ε is at most (log E[L'^m] − log δ)/(m − 1). It
    # is no answer: it only says which bounds are priced.
    order = np.arange(1.0, MOMENTS)  # m − 1
    if part == "delta":
        return float(np.min(log_moments - order * given))
    return float(np.min((log_moments - np.log(given)) / order))


def _nearest(part: str, bounds: Sequence[_Bound], noise: float, given: float) -> list[_Bound]:
    """The bounds that look least, and about as little."""
    if len(bounds) <= 1 or noise == 0:
        return list(bounds[:1])
    looks = {bound: _look(part, bound.log_moments(noise), given) for bound in bounds}
    least = min(looks.values())
    # Looks are rough: what is about as little is priced as well.
    near = [bound for bound in bounds if looks[bound] <= least + _NEARLY_LEAST * abs(least)]
    return sorted(near, key=looks.__getitem__)[:_ASKED]


def _rank(part: str, step: RandomAllocationCorrelated, given: float) -> list[Exchangeable]:
    """EVERY w-TH by what looks least."""
    bounds = _thin(list_bounds(step), _LOOKED_AT)
    return _nearest(part, bounds, float(step.noise_multiplier), given)


def _find_alone(run: Mechanism) -> RandomAllocationCorrelated | None:
    """The one correlated allocation that a run of concrete numbers is, made once."""
    made = [(step, math.prod(map(float, factors))) for step, factors in flatten(run)]
    used = [(step, count) for step, count in made if count]
    if len(used) != 1 or used[0][1] != 1:
        return None
    return used[0][0] if isinstance(used[0][0], RandomAllocationCorrelated) else None


def _rank_alone(part: str, step: RandomAllocationCorrelated, given: float) -> list[Nested]:
    """EVERY w-TH and TWO LEVELS by what looks least, of a step that makes one choice."""
    if step.redrawn and float(step.epochs) > 1:
        return []  # several choices
    flat = [one.to_blocks() for one in _thin(list_bounds(step), _LOOKED_AT)]
    return _nearest(part, [*flat, *list_nested(step)], float(step.noise_multiplier), given)


def _ask_law(part: Part, bound: Nested, noise: float, given: float) -> float:
    """ε or δ by the law of a bound; of δ made anew for about what is found."""
    law = bound.law(noise, given if part == "epsilon" else 1e-6)
    if law is None:
        return math.inf if part == "epsilon" else 1.0
    if part == "epsilon":
        return epsilon_of_law(law, given)
    # A law made for a smaller δ reaches farther; each of the two is an upper bound.
    found = delta_of_law(law, given)
    law = bound.law(noise, 1e-2 * found) if found < 1e-5 else law
    return found if law is None else min(found, delta_of_law(law, given))


def _holds_one(run: Mechanism) -> bool:
    """Whether a correlated allocation is among what a run is made of."""
    return any(isinstance(step, RandomAllocationCorrelated) for step in walk(run))


def _is_selected(run: Mechanism) -> bool:
    """Whether one is within a run of which the best of several is released."""
    return any(isinstance(step, BestOf) and _holds_one(step) for step in walk(run))


def _rewrite(
    run: Mechanism, choose: Callable[[RandomAllocationCorrelated], Exchangeable]
) -> Mechanism:
    """The run with a priced mechanism in the place of every correlated allocation."""
    parts = []
    for step, factors in flatten(run):
        if isinstance(step, RandomAllocationCorrelated):
            step = choose(step).mechanism(step.noise_multiplier)
        elif isinstance(step, BestOf) and _holds_one(step):  # by BEST OF
            fields = {**vars(step), "mechanism": _rewrite(step.mechanism, choose)}
            step = build(BestOf, fields)
        parts.append(times(step, factors))
    return parts[0] if len(parts) == 1 else build(Composed, {"mechanisms": tuple(parts)})


def _list_rewritten(part: str, run: Mechanism, given: Any) -> Iterator[Mechanism]:
    """The run by the bounds that look least, of each step the best, then the second, and so on."""
    own = [step for step in walk(run) if isinstance(step, RandomAllocationCorrelated)]
    if is_traced(run, given):
        ranked = {id(step): _thin(list_bounds(step), _TRACED) for step in own}
    else:
        ranked = {id(step): _rank(part, step, float(given)) for step in own}
    for place in range(max(map(len, ranked.values()))):
        chosen = {key: bounds[min(place, len(bounds) - 1)] for key, bounds in ranked.items()}
        yield _rewrite(run, functools.partial(_look_up, chosen))


def _look_up(chosen: dict[int, Exchangeable], step: RandomAllocationCorrelated) -> Exchangeable:
    return chosen[id(step)]


def _check_traced(run: Mechanism) -> None:
    """Refuse a trace in which more than the noise of a correlated allocation is unknown."""
    if _is_selected(run):
        raise UnsupportedQuery(
            "BestOf around RandomAllocationCorrelated is priced on the host: price it outside the "
            "trace"
        )
    for step in walk(run):
        if isinstance(step, RandomAllocationCorrelated):
            known = (step.overlaps, step.bins, step.epochs)
            if is_traced(known) or any(
                np.ndim(v) != n for v, n in zip(known, (1, 0, 0), strict=True)
            ):
                raise UnsupportedQuery(
                    "RandomAllocationCorrelated is priced within a trace where its noise alone is "
                    "traced, and overlaps, bins and epochs are those of one run"
                )


def _price_alone(
    table: Sequence[Method],
    part: Part,
    step: RandomAllocationCorrelated,
    bound: Nested,
    given: float,
) -> float:
    """The answer of a bound of a step that makes one choice."""
    noise = float(step.noise_multiplier)
    if noise and not bound.is_plain:
        return _ask_law(part, bound, noise, given)
    # One Gaussian release or one random allocation, whose own price is tighter than a law.
    like = Exchangeable(bound.shared, bound.own, bound.blocks, 1).mechanism(noise)
    return float(bound_by(table, part, like, given, Adjacency.ADD_REMOVE))


def kahane(table: Sequence[Method]) -> Method:
    """The method `"kahane"` over the methods of a table that price what it compares with."""

    def supports(run: Mechanism, adjacency: Adjacency) -> bool:
        if not _holds_one(run) or adjacency is not Adjacency.ADD_REMOVE:
            return False
        # From structure alone: numbers are placeholders.
        like = _rewrite(run, lambda step: Exchangeable(1.0, 1.0, 2, 1))
        return bool(rank_in_best(table, "epsilon", like, adjacency))

    def ask(part: Part, run: Mechanism, given: Numbers, adjacency: Adjacency) -> np.ndarray | Array:
        if is_traced(run, given):
            _check_traced(run)
            found = (bound_by(table, part, one, given, adjacency)
                     for one in _list_rewritten(part, run, given))  # fmt: skip
            xp = namespace(run, given)
            return functools.reduce(xp.minimum, found, xp.asarray(np.inf))
        shape, settings = list_settings((run, given), (map_axes(run), 0))
        nothing = np.inf if part == "epsilon" else 1.0
        answer = np.full(shape, nothing)
        for index, (one, asked) in settings:
            found = [nothing]
            alone = _find_alone(one)
            if alone is not None:
                for bound in _rank_alone(part, alone, float(asked)):
                    found.append(_price_alone(table, part, alone, bound, float(asked)))
            if min(found) == nothing:
                for run_ in _list_rewritten(part, one, asked):
                    found.append(float(bound_by(table, part, run_, asked, adjacency)))
            answer[index] = np.fmin.reduce(found)  # each is an upper bound, and NaN is none
        return answer

    def lower(run: Mechanism, delta: Numbers, adjacency: Adjacency) -> np.ndarray | Array:
        """By a record whose contributions are one unit vector, with the least overlaps (LOWER)."""
        if is_traced(run, delta):
            return namespace(run, delta).zeros(())
        shape, settings = list_settings((run, delta), (map_axes(run), 0))
        answer = np.zeros(shape)
        if _is_selected(run):  # no score is known to attain what is shown of one run
            return answer
        for index, (one, asked) in settings:
            like = _rewrite(one, find_least)
            for method in rank_methods(table, "epsilon_lower", like, adjacency):
                assert method.epsilon_lower is not None, "as was asked"
                shown = float(np.asarray(method.epsilon_lower(like, asked, adjacency)))
                # The largest that was shown; NaN shows nothing.
                answer[index] = np.fmax(answer[index], shown)
        return answer

    return Method(
        "kahane",
        rank=12.0,
        supports=supports,
        needs=(RandomAllocationCorrelated,),
        epsilon=functools.partial(ask, "epsilon"),
        delta=functools.partial(ask, "delta"),
        epsilon_lower=lower,
        tight=True,
        describe="random allocation under correlated noise as a Gaussian release and random "
        "allocations of at least its overlaps (Kahane 1985; for adaptive gradients derived)",
    )
