"""What a mechanism that samples says of itself: which pair its steps take, and when it has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.pairs.release import Known


def _unknown(step: Any, adjacency: Adjacency, inner: Known) -> Known | None:
    return None


class Scheme(NamedTuple):
    """One way of sampling: around Gaussian releases, and around those whose pair is known.

    Fields:
        name: of its steps in `atoms.Atoms`.
        kind: the class of mechanism.
        refusal: (step, adjacency, kind_of) -> why no theorem covers it, "" where one does;
            kind_of tells what is sampled: "gaussian", the name of a scheme, or "mixed".
        parameters: (step, adjacency) -> displacement over noise, and sampling rate; a third value,
            if there is one, says how many such pairs each step is, along a first axis of its own.
        dominating: adjacency -> the pair that dominates however an adversary mixes directions.
        attained: adjacency -> a pair that some neighbours attain. Its Rényi divergence of the
            larger direction bounds the step's as well.
        exhibited: whether some neighbours attain it for this step's numbers.
        participation: (step, adjacency) -> with which probability a release sees the one record
            that differs, all else equal; None where no such number bounds the step.
        amplify: (step, adjacency, what is sampled) -> the same, sampled; None without a theorem.
    """

    name: str
    kind: type
    refusal: Callable[[Any, Adjacency, Callable], str]
    parameters: Callable[[Any, Adjacency], tuple[Any, ...]]
    dominating: Callable[[Adjacency], str]
    attained: Callable[[Adjacency], str]
    exhibited: Callable[[Any], bool] = lambda step: True
    participation: Callable[[Any, Adjacency], Any] = lambda step, adjacency: None
    amplify: Callable[[Any, Adjacency, Known], Known | None] = _unknown
