"""Privacy of a user who owns several records: the same release, compared on wider neighbours.

The steps that a run is made of.
"""

from __future__ import annotations

import functools
import math

import jax
import numpy as np

from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms.base import (
    Kind,
    Mechanism,
    Real,
    build,
    number_field,
    register_mechanism,
    walk,
)
from dpjax.accounting.mechanisms.composition import Composed, Repeated
from dpjax.accounting.mechanisms.guarantees import AS_ASKED, ApproximateDP, PureDP
from dpjax.accounting.mechanisms.sampling import (
    FixedBatchSampled,
    PoissonSampled,
    TruncatedPoissonSampled,
    WithReplacement,
)


@register_mechanism
class UserLevel(Mechanism):
    """A mechanism, priced for neighbours that differ in all records of one user.

    ADD_REMOVE adds or removes up to `records` records at once, REPLACE_ONE replaces up to as many.
    Priced exactly where the displacement grows with the number of records (Gaussian and Laplace
    noise) and for Poisson samples of Gaussians, whose pair is `Σ_j Bin(k, q)(j) N(j, σ²)` against
    `N(0, σ²)` under ADD_REMOVE and against `Σ_j Bin(k, q)(j) N(−j, σ²)` under REPLACE_ONE. For
    batches of fixed size with and without replacement upper ends are those of fixed batches of
    displacement 2j, the number j of the user's records released, and lower ends those where it is
    hidden. Everything else is charged k steps of its own adjacency: ε becomes kε and δ becomes
    `δ(e^{kε} − 1)/(e^ε − 1)`.

    It goes around sampling, never inside: records are sampled, not users. Where a user's summed
    contribution is clipped once, and users are sampled, the user is the record, and no `UserLevel`
    is needed.

    Fields:
        mechanism: what is released of the records.
        records: the most records of one user, a whole number in [1, 1e9].

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.UserLevel(acc.PoissonSampled(acc.Gaussian(1.1), rate=0.01), records=4).records
        4

    References:
        Vadhan 2017, Lemma 2.2 (group privacy); Dong, Roth, Su 2022, Theorem 2.14; Ganesh 2024
        (arXiv 2401.10294); Balle, Barthe, Gaboardi 2018, Theorem 10; derived for dpjax
        (`pairs/user_level.py`).
    """

    mechanism: Mechanism
    records: Real = number_field(1.0, 1e9, whole=True)

    released = "for users of up to {records} records each: {mechanism}"
    rests_on = ("no user owns more than the stated number of records",)


def rewrite_for_group(run: Mechanism) -> Mechanism:
    """The release that a user's neighbours meet, where it is one of the kinds there are.

    Users of users are one group; what is neither stays as it is.

    Example:
        >>> from dpjax import accounting as acc
        >>> rewrite_for_group(acc.UserLevel(acc.UserLevel(acc.PureDP(0.5), 2), 3)).epsilon.round(6)
        np.float64(3.0)
    """
    while isinstance(run, UserLevel):
        inner, k = run.mechanism, run.records
        if _of_one(run):
            run = inner
        elif isinstance(inner, UserLevel):
            run = build(UserLevel, {"mechanism": inner.mechanism, "records": inner.records * k})
        else:
            met = inner.for_group(k + 0.0)
            return run if met is None else met
    return run


def _of_one(run: UserLevel) -> bool:
    """A user of one record is that record."""
    k = run.records
    return np.ndim(k) == 0 and not is_traced(k) and bool(k == 1)


def push_user_level_inward(step: UserLevel) -> Mechanism:
    """A composition's group privacy is that of its parts; other steps as `rewrite_for_group`.

    Neighbours by a whole user stay neighbours by that user in every part.
    """
    run = rewrite_for_group(step)
    if not isinstance(run, UserLevel):
        return run
    inner, k = run.mechanism, run.records
    if isinstance(inner, Repeated):
        own = build(UserLevel, {"mechanism": inner.mechanism, "records": k})
        return build(Repeated, {"mechanism": own, "steps": inner.steps})
    if isinstance(inner, Composed):
        parts = (build(UserLevel, {"mechanism": p, "records": k}) for p in inner.mechanisms)
        return build(Composed, {"mechanisms": tuple(parts)})
    return run


def is_group_attained(run: Mechanism, adjacency: Adjacency) -> bool:
    """Whether neighbours by a user reach what `rewrite_for_group` says, for lower ends.

    Not of a guarantee: a chain of ε-private steps does not end at the pair of one kε-private step,
    nor do the two steps of a replacement.
    """
    implied = any(getattr(s, "adjacency", AS_ASKED) not in (AS_ASKED, adjacency) for s in walk(run))
    return not implied and not any(
        isinstance(part, PureDP | ApproximateDP)
        for step in walk(run)
        if isinstance(step, UserLevel) and not _of_one(step)
        for part in walk(step)
    )


_LISTED = 1e6  # records of a user, or of a batch, whose chances are multiplied


Factors = tuple[Real, ...]  # whose product is how often a step is used


def flatten(run: Mechanism) -> list[tuple[Mechanism, Factors]]:
    """Steps of a run with the factors of their multiplicities, `Repeated` and `Composed` undone.

    A user's group privacy is that of every step, so that no `UserLevel` is left around a run.
    """
    found: list[tuple[Mechanism, Factors]] = []
    stack: list[tuple[Mechanism, Factors]] = [(run, ())]
    while stack:
        step, factors = stack.pop()
        if isinstance(step, Repeated):
            stack.append((step.mechanism, (*factors, step.steps)))
        elif isinstance(step, Composed):
            stack.extend((part, factors) for part in reversed(step.mechanisms))
        elif isinstance(step, UserLevel) and (inner := push_user_level_inward(step)) is not step:
            stack.append((inner, factors))
        else:
            found.append((step, factors))
    return found


def count_uses(factors: Factors) -> np.ndarray:
    """How often a step is used, of concrete factors."""
    return functools.reduce(np.multiply, map(np.asarray, factors), np.ones(()))


def widen(run: Kind) -> Kind:
    """The run with its concrete numbers in float64: quotients of float32 are rounded either way."""
    if is_traced(run):
        return run
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), run)


def total_steps(run: Mechanism) -> float:
    """Releases or steps of training of one setting: a part's, once for every use of it."""
    compound = isinstance(run, Composed) or run.parts()
    inner = math.fsum(map(total_steps, run.parts())) if compound else 1.0
    return float(run.own_steps()) * inner


def replace_noiseless(run: Mechanism, adjacency: Adjacency, most: float = 0.0) -> Mechanism:
    """The run with every sampled release of no noise, or little, as if all were told or nothing.

    Such a step is (0, p)-private, p the chance that a differing record takes part: the two outputs
    have one law but for that part. That holds of any noise, and is what there is to say of none. A
    trace cannot tell that noise is 0; there the price is +inf.

    Args:
        run, adjacency: as they are asked about.
        most: the most noise, over the sensitivity, of the releases that are replaced.
    """
    if is_traced(run) or not any(_chance(s, adjacency, most) is not None for s in walk(run)):
        return run
    parts = []
    for step, factors in flatten(run):
        p = _chance(step, adjacency, most)
        if p is not None:
            step = build(ApproximateDP, {"epsilon": 0.0, "delta": p, "adjacency": AS_ASKED})
        for count in factors:
            step = build(Repeated, {"mechanism": step, "steps": count})
        parts.append(step)
    return parts[0] if len(parts) == 1 else build(Composed, {"mechanisms": tuple(parts)})


def _chance(step: Mechanism, adjacency: Adjacency, most: float) -> Real | None:
    """The chance that a differing record takes part in a sampled release of so little noise."""
    k = 1.0
    if isinstance(step, UserLevel):
        step, k = step.mechanism, step.records
    rate: Real = 1.0
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
        if inner is step or noise is None or np.size(noise) != 1:
            return None
        if not np.all(np.asarray(noise) <= most):
            return None
        if isinstance(step, PoissonSampled) and inner is step.mechanism and np.all(np.equal(k, 1)):
            return np.asarray(rate, np.float64)  # the number given, without rounding
        # At most ten roundings, or twenty of a pairwise sum, none of which the next one magnifies:
        # 1 − (1 − x)^k is concave.
        taken = -np.expm1(k * np.log1p(-np.asarray(rate, np.float64)))
    return np.minimum(taken * (1 + 5e-15), 1.0)
