"""Does a certificate hold? Everything it claims is computed again from the run it names.

Digests find accidents: whoever edits a certificate can renew them. What convinces is that the
claim follows from the mechanism, the adjacency and δ alone, so that those who change ε, the tier,
the assumptions or the bound are found by recomputing. What no computation can find is a certificate
of another run: `not_covered`, `declared`, `version`, `created` and further assumptions are the
issuer's word.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers import pricing
from dpjax.accounting.answers.methods import methods
from dpjax.accounting.errors import CertificateError, UnsupportedQuery
from dpjax.accounting.mechanisms import (
    CorrelatedGaussian,
    CyclicPoissonCorrelated,
    FixedBatchSampled,
    MatrixGaussian,
    Mechanism,
    PoissonSampled,
    RandomAllocation,
    TruncatedPoissonSampled,
    UserLevel,
    WithReplacement,
    flatten,
)
from dpjax.accounting.mechanisms.base import (
    FIXED_IN_ADVANCE,
    all_assumptions,
    walk,
    weakest_tier,
)
from dpjax.accounting.mechanisms.steps import revealed
from dpjax.accounting.mechanisms.users import reached, unwrapped

if TYPE_CHECKING:
    from dpjax.accounting.answers.certificate import Certificate

_ULPS = 64  # by which a claim may be below the recomputed ε: processors differ in exp and log
_AGREEMENT = 1e-6  # of two methods' bounds, relative
_VERSION = re.compile(r"\d+(\.\d+)*([-+.]?[0-9a-zA-Z]+)*")


class Verification(NamedTuple):
    """What `Certificate.verify` found.

    Fields:
        epsilon: recomputed by the certificate's own method.
        method: that method's name.
        checked_by: another method that bounds ε independently, or None where there is none.
        lower: its lower bound of ε (0 if it has none).
        upper: its upper bound (+inf if it has none).

    Example:
        >>> Verification(1.0, "rdp", None, 0.0, float("inf")).checked_by is None
        True
    """

    epsilon: float
    method: str
    checked_by: str | None
    lower: float
    upper: float


def remaining(delta: float, extra: Mapping[str, float]) -> float:
    """What is left of δ for the mechanism, rounded down."""
    for reason, share in extra.items():
        if not 0.0 <= share < delta:
            raise ValueError(
                f"extra_delta[{reason!r}] must be in [0, delta={delta:g}), got {share:g}"
            )
    rest = np.nextafter(delta - math.fsum(extra.values()), 0.0) if extra else delta
    if not rest > 0.0:
        raise ValueError(
            f"extra_delta must sum to less than delta={delta:g}, got {math.fsum(extra.values()):g}"
        )
    return float(rest)


def priced(run: Mechanism, delta: float, adjacency: Adjacency, method: str) -> tuple[float, Any]:
    """ε of one setting, and the method that gave it."""
    epsilon, used = pricing.price(run, delta, adjacency=adjacency, method=method)
    if np.ndim(epsilon):
        raise ValueError(
            "mechanism must be one setting, got array fields of shape "
            f"{np.shape(epsilon)}: certify one setting at a time"
        )
    return float(epsilon), used


def check_consistency(certificate: Certificate) -> None:
    """Refuse what contradicts itself, without pricing anything."""
    import dpjax  # the version; the package imports this module

    c = certificate
    if not 0.0 < c.delta < 1.0:
        raise CertificateError("delta", f"must be in (0, 1), got {c.delta}")
    if not c.epsilon >= 0.0:
        raise CertificateError("epsilon", f"must be >= 0, got {c.epsilon}")
    if c.tier not in ("proven", "conditional", "none"):
        raise CertificateError("tier", f"{c.tier!r} is not known")
    if (c.tier == "none") is math.isfinite(c.epsilon):
        raise CertificateError("tier", f"is {c.tier!r}, yet epsilon is {c.epsilon}")
    if not _VERSION.fullmatch(c.version) or _numbers(c.version) > _numbers(dpjax.__version__):
        raise CertificateError(
            "version", f"must be a version up to {dpjax.__version__}, got {c.version!r}"
        )
    try:
        made = datetime.datetime.fromisoformat(c.created)
    except ValueError:
        made = None
    if made is None or made.tzinfo is None:
        raise CertificateError("created", f"must be a time with its zone, got {c.created!r}")
    try:
        remaining(c.delta, c.extra_delta)
    except ValueError as error:
        raise CertificateError("extra_delta", str(error)) from None
    for step in walk(c.mechanism):
        for name, axes in step.component_axes.items():
            if np.ndim(getattr(step, name)) != axes:
                raise CertificateError("mechanism", f"must be one setting: {name} is an array")
    _check_declared(c.mechanism, c.adjacency, c.declared)


def _numbers(version: str) -> tuple[int, ...]:
    """The release's numbers; digits beyond nine would be no version."""
    return tuple(int(n[:9]) for n in re.match(r"[\d.]*", version)[0].split(".") if n)  # pyrefly: ignore


def _parts(run: Mechanism, *kinds: type) -> list[Any]:
    return [step for step in walk(run) if isinstance(step, kinds)]


# Whose price is for so many records, and those whose batch is a share of them.
_SIZED = FixedBatchSampled, TruncatedPoissonSampled, WithReplacement
_AT_A_RATE = PoissonSampled, TruncatedPoissonSampled, RandomAllocation, CyclicPoissonCorrelated
_SAMPLED = (*_SIZED, *_AT_A_RATE)


def is_checked_fact(run: Mechanism, name: str) -> bool:
    """Whether a mechanism says something that a declared fact of this name must agree with."""
    own = any(name in step._ranges for step in walk(run) if not isinstance(step, UserLevel))
    sampled = name in ("records", "batch_size") and bool(_parts(run, *_SAMPLED))
    return own or sampled or name in ("steps", "adjacency")


def _check_declared(run: Mechanism, adjacency: Adjacency, declared: Mapping[str, Any]) -> None:
    """Refuse a declared fact that differs from what the mechanism was priced with."""

    def refuse(why: str) -> None:
        raise CertificateError("declared", why)

    known: dict[str, Any] = {k: declared.get(k) for k in ("records", "batch_size", "steps")}
    for name, value in declared.items():
        if name == "adjacency":
            if value != adjacency.value:
                refuse(f"adjacency = {value!r}, priced {adjacency.value}")
            continue
        if isinstance(value, str) and (name in known or is_checked_fact(run, name)):
            refuse(f"{name} must be a number, got {value!r}")
        for step in walk(run):
            # A user's `records` are not those of the data, and `steps` are counted below.
            if name not in step._ranges or name == "steps" or isinstance(step, UserLevel):
                continue
            own = getattr(step, name)
            if step.component_axes.get(name):
                refuse(f"{name} is an array, which cannot be declared as a number")
            if not _close(own, value):
                refuse(f"{name} = {value}, priced {own}")
    records, batch, steps = known.values()
    for step in _parts(run, *_AT_A_RATE):
        expected = step.chosen / step.steps if isinstance(step, RandomAllocation) else step.rate
        if isinstance(step, CyclicPoissonCorrelated):
            expected = step.rate / step.groups  # of all records: a step samples from one group
        if None not in (records, batch) and not _close(expected * records, batch):
            refuse(f"batch_size = {batch} of {records} records, but the rate is {expected}")
    for step in _parts(run, *_SIZED):
        if records is not None and not _close(step.population, records):
            refuse(f"records = {records}, priced {step.population}")
    if steps is not None:
        count = math.fsum(
            math.prod(float(np.asarray(f)) for f in (*factors, *_length(step)))
            for step, factors in flatten(run)
        )
        if not _close(count, steps):
            refuse(f"steps = {steps}, priced {count:g}")


def _length(step: Any) -> tuple:
    """Steps of training that one mechanism is, if several."""
    if isinstance(step, CyclicPoissonCorrelated):
        return (step.groups,)
    several = RandomAllocation | CorrelatedGaussian | MatrixGaussian
    return (step.steps,) if isinstance(step, several) else ()


def _close(a: Any, b: Any) -> bool:
    return bool(np.allclose(np.asarray(a, np.float64), float(b), rtol=1e-6, atol=0.0))


def recompute(certificate: Certificate) -> Verification:
    """Hold every claim of a certificate against what its mechanism gives."""
    c = certificate
    run, adjacency, claimed = c.mechanism, c.adjacency, c.epsilon
    delta = remaining(c.delta, c.extra_delta)
    try:
        epsilon, used = priced(run, delta, adjacency, c.method)
    except (UnsupportedQuery, ValueError) as error:
        raise CertificateError("method", f"gives no price: {error}") from error
    if used.name != c.method:
        raise CertificateError("method", f"says {c.method!r}, which is {used.name!r}")
    if used.describe != c.bound:
        raise CertificateError("bound", f"says {c.bound!r}, the method's is {used.describe!r}")
    # A claim above what follows is true; below it, by rounding alone. NaN is below nothing.
    least = epsilon - _ULPS * math.ulp(epsilon) if math.isfinite(epsilon) else epsilon
    if not claimed >= least:
        raise CertificateError("epsilon", f"says {claimed!r}, recomputed {epsilon!r}")
    tier = weakest_tier(run) if math.isfinite(claimed) else "none"
    if c.tier != tier:
        raise CertificateError("tier", f"says {c.tier!r}, this run is {tier!r}")
    for assumption in all_assumptions(run, adjacency):
        # Certificates of before 0.2 do not list this one; `describe` states it for them too.
        if assumption not in (*c.assumptions, FIXED_IN_ADVANCE):
            raise CertificateError("assumptions", f"lacks: {assumption}")
    return _checked(run, delta, adjacency, claimed, epsilon, used)


def _checked(
    run: Mechanism, delta: float, adjacency: Adjacency, claimed: float, epsilon: float, used: Any
) -> Verification:
    """Another method's bounds, where there is one: they must not contradict the claim."""
    stated, run = run, unwrapped(run)
    told = revealed(run, adjacency)
    shown, run = reached(stated, adjacency) and told is run, told
    others = [
        m for name, m in methods(run, adjacency).items() if name != used.name and m.rank is not None
    ]
    slack = 1.0 + _AGREEMENT
    for other in (m for m in others if shown and m.epsilon_lower is not None):
        lower = float(np.asarray(other.epsilon_lower(run, delta, adjacency)))  # pyrefly: ignore
        if lower > claimed * slack:
            raise CertificateError(
                "epsilon", f"says {claimed!r}, but method {other.name!r} shows at least {lower!r}"
            )
        upper = other.epsilon(run, delta, adjacency) if other.epsilon is not None else math.inf
        return Verification(epsilon, used.name, other.name, lower, float(np.asarray(upper)))
    own = 0.0
    if shown and used.epsilon_lower is not None:
        own = float(np.asarray(used.epsilon_lower(run, delta, adjacency)))
    for other in (m for m in others if m.epsilon is not None):
        upper = float(np.asarray(other.epsilon(run, delta, adjacency)))  # pyrefly: ignore
        if own > upper * slack:
            raise CertificateError(
                "epsilon", f"is at least {own!r}, but method {other.name!r} shows at most {upper!r}"
            )
        return Verification(epsilon, used.name, other.name, 0.0, upper)
    return Verification(epsilon, used.name, None, 0.0, math.inf)
