"""A question about a run: which settings are which run, and what a method is asked in the end.

A question about a sweep is split where settings are another run (no noise; a group of one record),
each part is checked and asked of the methods, and the parts' answers are joined again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool

from dpjax._numerics import checks
from dpjax._numerics.scope import is_traced, plain_rules
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers.methods import METHODS, check_adjacency, choose_methods
from dpjax.accounting.mechanisms import Mechanism, UserLevel
from dpjax.accounting.mechanisms.base import map_axes, walk
from dpjax.accounting.mechanisms.steps import replace_noiseless, rewrite_for_group
from dpjax.accounting.mechanisms.validity import check_broadcast, invalid, replace_invalid, validate
from dpjax.accounting.method import Method, best_bound, chosen_settings, rank_methods
from dpjax.accounting.typing import Answer as Answer
from dpjax.accounting.typing import Real

PROBABILITY = checks.Range(0.0, 1.0, open_low=True, open_high=True)
RATES = checks.Range(0.0, 1.0)
EPSILONS = checks.Range(0.0, infinite=True)
ORDERS = checks.Range(infinite=True)

_ANOTHER_RUN = {"noise_multiplier": 0.0, "records": 1.0}  # at these numbers a step is another


@dataclasses.dataclass(frozen=True)
class Question:
    """What may be asked of a run.

    Fields:
        part: the part of a `Method` that answers.
        given: the name of what it is asked at.
        allowed: what that may be.
        worst: the answer where the question is none.
        is_listed: whether of a list of them each is an answer of its own, for every setting.
        answers_noiseless: whether releases that tell all or nothing are asked about as such.
    """

    part: str
    given: str
    allowed: checks.Range
    worst: float
    is_listed: bool = False
    answers_noiseless: bool = True


EPSILON = Question("epsilon", "delta", PROBABILITY, np.inf)
DELTA = Question("delta", "epsilon", EPSILONS, 1.0)
RDP = Question("rdp", "orders", ORDERS, np.inf, is_listed=True, answers_noiseless=False)
TRADEOFF = Question("tradeoff", "false_positive_rates", RATES, 0.0, is_listed=True)


class Checked(NamedTuple):
    """A run and a number that a method may be asked about.

    Fields:
        run, given: with an example in the place of every traced number that is none.
        is_invalid: where that is so; False where nothing is traced.
    """

    run: Mechanism
    given: Real
    is_invalid: Bool[Array, "..."] | bool

    def mask(self, answer: Answer, worst: float) -> Answer:
        """The answer, and the worst one where the question was none."""
        if self.is_invalid is False:
            return answer
        with plain_rules():
            return jnp.where(self.is_invalid, worst, answer)


@dataclasses.dataclass(frozen=True)
class Query:
    """A question about one run or a sweep of runs.

    Fields:
        question: which.
        run: what is released.
        given: what it is asked at.
        adjacency, method: as in `epsilon`.
        where: which settings of the sweep it was split from it is about; None for all of them.
    """

    question: Question
    run: Mechanism
    given: ArrayLike
    adjacency: Adjacency | str
    method: str = "best"
    where: np.ndarray | None = None

    def split(self) -> list[Query]:
        """The same question about every kind of run among the settings; itself if there is one."""
        kinds = self._kinds()
        if kinds is None:
            return [self._of_single_records() if isinstance(self.run, UserLevel) else self]
        return [self._about(kinds == kind)._of_single_records() for kind in np.unique(kinds)]

    @staticmethod
    def join(parts: Sequence[Query], answers: Sequence[Answer]) -> Answer:
        """The answers of the parts of a sweep, each in its place."""
        if parts[0].where is None:
            return answers[0]
        shape = parts[0].where.shape
        whole = np.empty(shape + (np.shape(answers[0])[-1:] if parts[0].question.is_listed else ()))
        for part, answer in zip(parts, answers, strict=True):
            whole[part.where] = answer
        return whole

    def check(self) -> Checked:
        """The run and what is given, checked where concrete, replaced and marked where traced.

        A trace cannot raise: what a constructor would refuse is replaced by a number that the
        methods can answer, and marked.
        """
        question, run = self.question, self.run
        validate(run)
        given = checks.number(question.given, self.given, question.allowed)
        if np.ndim(given) and not question.is_listed:
            check_broadcast(run, **{question.given: given})
        if not is_traced(run, given):
            return Checked(rewrite_for_group(run), given, False)
        bad = jnp.expand_dims(invalid(run), -1) if question.is_listed else invalid(run)
        if isinstance(given, jax.Array) and is_traced(given):
            with plain_rules():
                good = question.allowed.holds(given)
                given = jnp.where(good, given, question.allowed.example())
                bad = bad | ~good
        return Checked(rewrite_for_group(replace_invalid(run)), given, bad)

    def resolve(self) -> Resolved:
        """What the methods are asked, and which."""
        part, adjacency = self.question.part, check_adjacency(self.adjacency)
        run, given, is_invalid = self.check()
        if self.question.is_listed and not is_traced(given):
            given = np.atleast_1d(np.asarray(given, np.float64))
        told = replace_noiseless(run, adjacency) if self.question.answers_noiseless else run
        if told is not run and isinstance(self.method, str):
            able = {"best", *(m.name for m in rank_methods(METHODS, "epsilon", told, adjacency))}
            run = told if self.method in able else run
        methods = choose_methods(run, part, self.method, adjacency)
        return Resolved(self.question, methods, Checked(run, given, is_invalid), adjacency)

    def _kinds(self) -> np.ndarray | None:
        """A number for every setting, one for each kind; None where no setting is another run."""
        run, swept = self.run, () if self.question.is_listed else (self.given,)
        if not isinstance(run, Mechanism) or is_traced(run, *swept):
            return None
        try:
            marks = [
                np.asarray(getattr(step, field)) == number
                for step in walk(run)
                for field, number in _ANOTHER_RUN.items()
                if np.ndim(getattr(step, field, 0.0)) and not step.component_axes[field]
            ]
            if not any(mark.any() for mark in marks):
                return None
            leaves = jax.tree.leaves((run, swept))
            axes = jax.tree.leaves((map_axes(run), (0,) * len(swept)))
            fronts = [np.shape(x)[: np.ndim(x) - n] for x, n in zip(leaves, axes, strict=True)]
            number_of_kind = sum(2**i * mark for i, mark in enumerate(marks))
            return np.broadcast_to(number_of_kind, np.broadcast_shapes(*fronts))
        except (TypeError, ValueError):  # `check` says what is wrong
            return None

    def _about(self, where: np.ndarray) -> Query:
        """The same about some settings of the sweep."""

        def some(leaf: ArrayLike, axes: int) -> ArrayLike:
            part = chosen_settings(where, leaf, axes)
            return part[0] if not axes and np.all(part == part[0]) else part

        run = jax.tree.map(some, self.run, map_axes(self.run))
        swept = not self.question.is_listed
        given = chosen_settings(where, self.given, 0) if swept else self.given
        return dataclasses.replace(self, run=run, given=given, where=where)

    def _of_single_records(self) -> Query:
        """The same, where a user has one record: a group of one is charged what the record is."""
        # What is no name, such as an array, is refused where methods are chosen.
        by_group = isinstance(self.method, str) and self.method == "group"
        if isinstance(self.run, UserLevel) and by_group:
            inner = rewrite_for_group(self.run)
            if inner is self.run.mechanism:
                return dataclasses.replace(self, run=inner, method="best")
        return self


class Resolved(NamedTuple):
    """A question in the form in which methods are asked it."""

    question: Question
    methods: Sequence[Method]
    checked: Checked
    adjacency: Adjacency

    def price(self) -> tuple[Answer, Method]:
        """The best bound, and the method that gave it."""
        run, given, _ = self.checked
        return best_bound(self.question.part, self.methods, run, given, self.adjacency)  # pyrefly: ignore

    def answer(self) -> Answer:
        """The best bound, and the worst answer where the question was none."""
        run, given, is_invalid = self.checked
        found, _ = best_bound(self.question.part, self.methods, run, given, self.adjacency)  # pyrefly: ignore
        return found if is_invalid is False else self.mask(found)

    def mask(self, answer: Answer) -> Answer:
        """See `Checked.mask`."""
        return self.checked.mask(answer, self.question.worst)
