"""Privacy of a user who owns several records: the same release, compared on wider neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpjax._numerics.arrays import namespace
from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms.base import (
    Mechanism,
    Real,
    built,
    number,
    register_mechanism,
    walk,
)
from dpjax.accounting.mechanisms.composition import Composed, Repeated
from dpjax.accounting.mechanisms.releases import (
    AS_ASKED,
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    Laplace,
    PureDP,
    RandomizedResponse,
    UniformBall,
    ZeroConcentrated,
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
        (`pairs/group.py`).
    """

    mechanism: Mechanism
    records: Real = number(1.0, 1e9, whole=True)

    released = "for users of up to {records} records each: {mechanism}"
    rests_on = ("no user owns more than the stated number of records",)


def _eps(value: Any) -> float:
    """The unit roundoff that a value is computed with: a trace's own, or float64's."""
    return float(np.finfo(getattr(value, "dtype", np.float64)).eps)


def _more(value: Any, times: Any) -> Any:
    """A product rounded up, and exact for a user of one record."""
    xp: Any = namespace(value, times)
    found = value * times
    return xp.where(times == 1, value, found * (1 + _eps(found)))


def _less(value: Any, times: Any) -> Any:
    """A quotient rounded down, and exact for a user of one record."""
    xp: Any = namespace(value, times)
    found = value / times
    return xp.where(times == 1, value, found * (1 - _eps(found)))


def _approximate(step: ApproximateDP, k: Any) -> dict[str, Any]:
    """δ(1 + e^ε + … + e^{(k−1)ε}), at most 1."""
    xp: Any = namespace(step, k)
    epsilon: Any = step.epsilon
    # The sum is at most k·e^{(k−1)ε}, which is all that is left of it at ε near 0.
    some = (epsilon > 1e-8) & (k > 1)
    safe = xp.where(some, epsilon, 1.0)
    rises = (k - 1) * safe + xp.log(xp.expm1(-k * safe) / xp.expm1(-safe))
    flat = xp.log(k + 0.0) + (k - 1) * epsilon
    log_factor = xp.where(some, rises, flat)
    log_factor = log_factor + 16 * _eps(log_factor) * (1 + abs(log_factor))
    # In logarithms, so that nothing overflows: in float32 neither.
    stated: Any = step.delta
    some = stated > 0
    log_delta = xp.log(xp.where(some, stated, 1.0)) * (1 - _eps(log_factor)) + log_factor
    delta = xp.where(some, xp.exp(xp.minimum(log_delta, 0.0)), 0.0)
    delta = xp.where(k == 1, step.delta, delta)
    return {"epsilon": _more(epsilon, k), "delta": delta}


# Releases that a group's neighbours meet at other numbers: their fields, by the group's size.
_ALONE: dict[type, Callable[[Any, Any], dict[str, Any]]] = {
    ApproximateDP: _approximate,
    DiscreteGaussian: lambda m, k: {
        "noise_multiplier": _less(m.noise_multiplier, k),
        "sensitivity": m.sensitivity * k,
    },
    DiscreteLaplace: lambda m, k: {
        "noise_multiplier": _less(m.noise_multiplier, k),
        "sensitivity": m.sensitivity * k,
    },
    # The range of the log-odds of a sum of moves is at most the sum of their ranges.
    Exponential: lambda m, k: {"epsilon": _more(m.epsilon, k)},
    Laplace: lambda m, k: {"noise_multiplier": _less(m.noise_multiplier, k)},
    PureDP: lambda m, k: {"epsilon": _more(m.epsilon, k)},
    UniformBall: lambda m, k: {"displacement": _more(m.displacement, k)},
    # Bun and Steinke 2016, Proposition 27: a group of k costs k²ρ.
    ZeroConcentrated: lambda m, k: {"rho": _more(_more(m.rho, k), k)},
}


def stated_for(step: Any, adjacency: Adjacency) -> Any:
    """A promise under an adjacency, or None where it implies none; a replacement is two steps."""
    if step.adjacency in (AS_ASKED, adjacency.value):
        return step
    if adjacency is not Adjacency.REPLACE_ONE:
        return None
    if not is_traced(step):  # in float64, whatever the numbers came in
        step = jax.tree.map(lambda x: np.asarray(x, np.float64)[()], step)
    return unwrapped(built(UserLevel, {"mechanism": step, "records": 2.0}))


def unwrapped(run: Mechanism) -> Mechanism:
    """The release that a user's neighbours meet, where it is one of the kinds there are.

    Users of users are one group; what is neither stays as it is.

    Example:
        >>> from dpjax import accounting as acc
        >>> unwrapped(acc.UserLevel(acc.UserLevel(acc.PureDP(0.5), 2), 3)).epsilon.round(6)
        np.float64(3.0)
    """
    while isinstance(run, UserLevel):
        inner, k = run.mechanism, run.records
        if np.ndim(k) == 0 and not is_traced(k) and k == 1:
            run = inner  # a user of one record is that record
        elif isinstance(inner, UserLevel):
            run = built(UserLevel, {"mechanism": inner.mechanism, "records": inner.records * k})  # pyrefly: ignore
        elif type(inner) in _ALONE:
            k = k + 0.0  # pyrefly: ignore
            return built(type(inner), {**vars(inner), **_ALONE[type(inner)](inner, k)})
        elif isinstance(inner, RandomizedResponse):
            # Every record makes a report of its own: as many independent ones.
            return Repeated(inner, k)
        else:
            return run
    return run


def spread(step: UserLevel) -> Mechanism:
    """A composition's group privacy is the composition of its parts'; other steps as `unwrapped`.

    Neighbours by a whole user stay neighbours by that user in every part.
    """
    run = unwrapped(step)
    if not isinstance(run, UserLevel):
        return run
    inner, k = run.mechanism, run.records
    if isinstance(inner, Repeated):
        own = built(UserLevel, {"mechanism": inner.mechanism, "records": k})
        return built(Repeated, {"mechanism": own, "steps": inner.steps})
    if isinstance(inner, Composed):
        parts = (built(UserLevel, {"mechanism": p, "records": k}) for p in inner.mechanisms)
        return built(Composed, {"mechanisms": tuple(parts)})
    return run


def reached(run: Mechanism, adjacency: Adjacency) -> bool:
    """Whether neighbours by a user reach what `unwrapped` says, so that lower ends may be read off.

    Not of a guarantee: a chain of ε-private steps does not end at the pair of one kε-private step,
    nor do the two steps of a replacement.
    """
    implied = any(getattr(s, "adjacency", AS_ASKED) not in (AS_ASKED, adjacency) for s in walk(run))
    return not implied and not any(
        isinstance(part, PureDP | ApproximateDP)
        for step in walk(run)
        if isinstance(step, UserLevel)
        for part in walk(step)
    )
