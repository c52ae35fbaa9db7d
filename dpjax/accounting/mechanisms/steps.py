"""The steps that a run is made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms.base import Mechanism, built, walk
from dpjax.accounting.mechanisms.composition import Composed, Repeated
from dpjax.accounting.mechanisms.releases import AS_ASKED, ApproximateDP
from dpjax.accounting.mechanisms.sampling import (
    FixedBatchSampled,
    PoissonSampled,
    TruncatedPoissonSampled,
    WithReplacement,
)
from dpjax.accounting.mechanisms.users import UserLevel, spread

_LISTED = 1e6  # records of a user, or of a batch, whose chances are multiplied


def flatten(run: Mechanism) -> list[tuple[Mechanism, tuple[Any, ...]]]:
    """Steps of a run with the factors of their multiplicities, `Repeated` and `Composed` undone.

    A user's group privacy is that of every step, so that no `UserLevel` is left around a run.
    """
    found: list[tuple[Mechanism, tuple[Any, ...]]] = []
    stack: list[tuple[Mechanism, tuple[Any, ...]]] = [(run, ())]
    while stack:
        step, factors = stack.pop()
        if isinstance(step, Repeated):
            stack.append((step.mechanism, (*factors, step.steps)))
        elif isinstance(step, Composed):
            stack.extend((part, factors) for part in reversed(step.mechanisms))
        elif isinstance(step, UserLevel) and (inner := spread(step)) is not step:
            stack.append((inner, factors))
        else:
            found.append((step, factors))
    return found


def total_steps(run: Mechanism) -> float:
    """Releases or steps of training of one setting: a part's, once for every use of it."""
    compound = isinstance(run, Composed) or run.parts()
    inner = math.fsum(map(total_steps, run.parts())) if compound else 1.0
    return float(run.own_steps()) * inner


def revealed(run: Mechanism, adjacency: Adjacency) -> Mechanism:
    """The run with every sampled release without noise as what it is: all is told, or nothing.

    Such a step is (0, p)-private, p the chance that a differing record takes part: the two outputs
    have one law but for that part. A trace cannot tell that noise is 0; there the price is +inf.
    """
    if is_traced(run) or not any(_chance(step, adjacency) is not None for step in walk(run)):
        return run
    parts = []
    for step, factors in flatten(run):
        p = _chance(step, adjacency)
        if p is not None:
            step = built(ApproximateDP, {"epsilon": 0.0, "delta": p, "adjacency": AS_ASKED})
        for count in factors:
            step = built(Repeated, {"mechanism": step, "steps": count})
        parts.append(step)
    return parts[0] if len(parts) == 1 else built(Composed, {"mechanisms": tuple(parts)})


def _chance(step: Mechanism, adjacency: Adjacency) -> Any:
    """The chance that a differing record takes part in a sampled release without noise, or None."""
    k: Any = 1.0
    if isinstance(step, UserLevel):
        step, k = step.mechanism, step.records
    rate: Any = 1.0
    inner = step
    while isinstance(inner, PoissonSampled):
        rate, inner = rate * inner.rate, inner.mechanism
    with np.errstate(divide="ignore", invalid="ignore"):
        if inner is step and isinstance(step, TruncatedPoissonSampled) and np.all(k == 1):
            share = np.divide(step.capacity, step.population)
            rate, inner = np.minimum(step.rate, share), step.mechanism
        elif inner is step and adjacency is Adjacency.REPLACE_ONE:
            if isinstance(step, FixedBatchSampled) and np.size(k) == 1:
                # No record of k is in the batch: Π (1 − m/(n − i)), over the fewer of k and m.
                fewer, more = np.minimum(k, step.batch_size), np.maximum(k, step.batch_size)
                if np.size(fewer) == 1 and fewer <= _LISTED:
                    others = step.population - np.arange(float(fewer))
                    missed = np.sum(np.log1p(-np.minimum(more / others, 1.0)))
                    rate, k, inner = -np.expm1(missed), 1.0, step.mechanism
            elif isinstance(step, WithReplacement):
                missed = np.log1p(-np.minimum(k / step.population, 1.0)) * step.batch_size
                rate = np.where(np.greater(step.batch_size, 0), -np.expm1(missed), 0.0)
                k, inner = 1.0, step.mechanism
        noise = getattr(inner, "noise_multiplier", None)
        if inner is step or noise is None or np.size(noise) != 1 or np.any(np.asarray(noise) != 0):
            return None
        if isinstance(step, PoissonSampled) and inner is step.mechanism and np.all(np.equal(k, 1)):
            return np.asarray(rate, np.float64)  # the number given, without rounding
        # At most ten roundings, or twenty of a pairwise sum, none of which the next one magnifies:
        # 1 − (1 − x)^k is concave.
        taken = -np.expm1(k * np.log1p(-np.asarray(rate, np.float64)))
    return np.minimum(taken * (1 + 5e-15), 1.0)
