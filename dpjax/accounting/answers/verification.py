"""Does a certificate hold? Everything it claims is computed again from the run it names.

Digests find accidents: whoever edits a certificate can renew them. What convinces is that the
claim follows from the mechanism, the adjacency and δ alone, so that those who change ε, the tier,
the assumptions or the bound are found by recomputing. What no computation can find is a certificate
of another run: `not_covered`, `declared`, `version`, `created` and further assumptions are the
issuer's word.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers import pricing
from dpjax.accounting.answers.methods import METHODS
from dpjax.accounting.errors import CertificateError, UnsupportedQuery
from dpjax.accounting.mechanisms import (
    CyclicPoissonCorrelated,
    Mechanism,
    MinSeparatedCorrelated,
    PoissonSampled,
    RandomAllocation,
    RandomAllocationCorrelated,
    TruncatedPoissonSampled,
    UserLevel,
)
from dpjax.accounting.mechanisms.base import (
    FIXED_IN_ADVANCE,
    TIERS,
    all_assumptions,
    walk,
    weakest_tier,
)
from dpjax.accounting.mechanisms.steps import (
    is_group_attained,
    replace_noiseless,
    rewrite_for_group,
    total_steps,
)
from dpjax.accounting.method import Method, rank_methods
from dpjax.accounting.typing import Fact, Real

if TYPE_CHECKING:
    from dpjax.accounting.answers.certificate import Certificate

_ULPS = 64  # by which a claim may be below the recomputed ε: processors differ in exp and log
_EARLIER = 1e-10  # of ε, where an earlier version made it: its steps added their errors otherwise
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
    if not rest > 0.0:  # NaN is refused too
        raise ValueError(
            f"extra_delta must sum to less than delta={delta:g}, got {math.fsum(extra.values()):g}"
        )
    return float(rest)


def priced(run: Mechanism, delta: float, adjacency: Adjacency, method: str) -> tuple[float, Method]:
    """ε of one setting, and the method that gave it."""
    epsilon, used = pricing.price(run, delta, adjacency=adjacency, method=method)
    if np.ndim(epsilon):  # a sweep has a number a setting, a certificate one
        raise ValueError(
            "mechanism must be one setting, got array fields of shape "
            f"{np.shape(epsilon)}: certify one setting at a time"
        )
    return float(epsilon), used


def answer_tier(run: Mechanism, used: Method) -> str:
    """The tier of a run priced by a method: the weaker of the two."""
    return max(weakest_tier(run), used.tier or TIERS[0], key=TIERS.index)


def answer_assumptions(run: Mechanism, used: Method, adjacency: Adjacency) -> tuple[str, ...]:
    """What a run priced by a method rests on, each sentence once."""
    return tuple(dict.fromkeys((*all_assumptions(run, adjacency), *used.rests_on)))


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
    if not _VERSION.fullmatch(c.version) or _version_numbers(c.version) > _version_numbers(
        dpjax.__version__
    ):
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


def compare_files(subject: Mapping[str, str], folder: pathlib.Path) -> tuple[str, ...]:
    """The files of a certificate that are in a folder; refused where one is another file."""
    there = [name for name in subject if (folder / name).is_file()]
    for name in there:
        with (folder / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != subject[name]:
            raise CertificateError(
                "subject", f"names another {name} than is in {folder}: it is not what this is of"
            )
    return tuple(there)


def _version_numbers(version: str) -> tuple[int, ...]:
    """The release's numbers; digits beyond nine would be no version."""
    return tuple(int(n[:9]) for n in re.match(r"[\d.]*", version)[0].split(".") if n)  # pyrefly: ignore


def _check_declared(run: Mechanism, adjacency: Adjacency, declared: Mapping[str, Fact]) -> None:
    """Refuse a declared fact that differs from what the mechanism was priced with."""
    for _, agrees, why in compare_declared(run, adjacency, declared):
        if not agrees:
            raise CertificateError("declared", why)


_AtARate = (
    PoissonSampled
    | TruncatedPoissonSampled
    | RandomAllocation
    | RandomAllocationCorrelated
    | CyclicPoissonCorrelated
    | MinSeparatedCorrelated
)
Comparison = tuple[tuple[str, ...], bool, str]


def compare_declared(
    run: Mechanism, adjacency: Adjacency, declared: Mapping[str, Fact]
) -> Iterator[Comparison]:
    """What a mechanism says of declared facts: their names, whether they agree, and if not, why."""
    for name, value in declared.items():
        owns = [vars(step).get(name) for step in walk(run) if not isinstance(step, UserLevel)]
        if name == "adjacency":
            owns = [adjacency.value]
            with contextlib.suppress(ValueError):
                value = Adjacency(value).value
        elif name == "steps":
            owns = [total_steps(run)]
        # A user's `records` are not those of the data, and a part is no fact.
        owns = [own for own in owns if own is not None and not isinstance(own, Mechanism | tuple)]
        numbers = any(not isinstance(own, str | bool) for own in owns)
        if isinstance(value, str) and (numbers or name in ("records", "batch_size")):
            yield (name,), False, f"{name} must be a number, got {value!r}"
        for own in owns:
            if np.ndim(own):
                yield (name,), False, f"{name} is an array, which cannot be declared as a number"
            shown = f"{own:.15g}" if isinstance(own, float) else own
            yield (name,), _close(own, value), f"{name} = {value}, priced {shown}"
    records, batch = declared.get("records"), declared.get("batch_size")
    for step in walk(run):
        if records is not None and "population" in step._ranges:
            population = vars(step)["population"]
            why = f"records = {records}, priced {population}"
            yield ("records",), _close(population, records), why
        if not (isinstance(records, int | float) and isinstance(batch, int | float)):
            continue
        if isinstance(step, _AtARate):
            rate = _rate(step)
            why = f"batch_size = {batch} of {records} records, but the rate is {rate}"
            yield ("records", "batch_size"), _close(rate * records, batch), why


def _rate(step: _AtARate) -> Real:
    """How often a record takes part in a step on average."""
    if isinstance(step, RandomAllocation):
        return step.chosen / step.steps
    if isinstance(step, RandomAllocationCorrelated):
        return 1 / step.bins
    # A step samples from one group of all records.
    return step.rate / step.groups if isinstance(step, CyclicPoissonCorrelated) else step.rate


def _close(own: Real | str | bool, said: Fact) -> bool:
    """Whether what is said agrees with a field: as numbers (a flag is 0 or 1), or else as words."""
    if isinstance(own, str) or isinstance(said, str):
        return not np.ndim(own) and str(own).casefold() == str(said).casefold()
    return bool(np.allclose(np.asarray(own, np.float64), float(said), rtol=1e-6, atol=0.0))


def recompute(certificate: Certificate) -> Verification:
    """Hold every claim of a certificate against what its mechanism gives."""
    import dpjax  # the version; the package imports this module

    c = certificate
    run, adjacency, claimed = c.mechanism, c.adjacency, c.epsilon
    delta = remaining(c.delta, c.extra_delta)
    try:
        epsilon, used = priced(run, delta, adjacency, c.method)
    except (UnsupportedQuery, ValueError) as error:
        raise CertificateError("method", f"gives no price: {error}") from error
    if used.name != c.method:
        raise CertificateError("method", f"says {c.method!r}, which is {used.name!r}")
    # Several bounds may have one name, and another of them may be the least by now.
    told = replace_noiseless(rewrite_for_group(run), adjacency)
    able = rank_methods(METHODS, "epsilon", told, adjacency, lambda m: m.name == c.method)
    if c.bound not in (used.describe, *(m.describe for m in able)):
        raise CertificateError("bound", f"says {c.bound!r}, the method's is {used.describe!r}")
    # A claim above what follows is true; below it, by rounding alone. NaN is below nothing.
    is_earlier = _version_numbers(c.version) < _version_numbers(dpjax.__version__)
    rounding = max(_ULPS * math.ulp(epsilon), is_earlier * _EARLIER * epsilon)
    least = epsilon - rounding if math.isfinite(epsilon) else epsilon
    if not claimed >= least:
        raise CertificateError("epsilon", f"says {claimed!r}, recomputed {epsilon!r}")
    tier = answer_tier(run, used) if math.isfinite(claimed) else "none"
    if c.tier != tier:
        raise CertificateError("tier", f"says {c.tier!r}, this run is {tier!r}")
    for assumption in answer_assumptions(run, used, adjacency):
        # Certificates of before 0.2 do not list this one; `describe` states it for them too.
        if assumption not in (*c.assumptions, FIXED_IN_ADVANCE):
            raise CertificateError("assumptions", f"lacks: {assumption}")
    return _checked(run, delta, adjacency, claimed, epsilon, used)


def _checked(
    run: Mechanism, delta: float, adjacency: Adjacency, claimed: float, epsilon: float, used: Method
) -> Verification:
    """Another method's bounds, where there is one: they must not contradict the claim."""
    stated, run = run, rewrite_for_group(run)
    told = replace_noiseless(run, adjacency)
    shown, run = is_group_attained(stated, adjacency) and told is run, told
    # Several may have one name, and one of them may have no answer about this run.
    ranked = [(m.rank, m) for m in METHODS if m.rank is not None and m.supports(run, adjacency)]
    ranked.sort(key=lambda pair: pair[0])
    others = [m for _, m in ranked if m.name != used.name]
    slack = 1.0 + _AGREEMENT
    for other in (m for m in others if shown and m.epsilon_lower is not None):
        lower = float(np.asarray(other.epsilon_lower(run, delta, adjacency)))  # pyrefly: ignore
        if lower > claimed * slack:
            raise CertificateError(
                "epsilon", f"says {claimed!r}, but method {other.name!r} shows at least {lower!r}"
            )
        upper = other.epsilon(run, delta, adjacency) if other.epsilon is not None else math.inf
        upper = float(np.asarray(upper))
        if lower > 0 or upper < math.inf:
            return Verification(epsilon, used.name, other.name, lower, upper)
    own = 0.0
    if shown and used.epsilon_lower is not None:
        own = float(np.asarray(used.epsilon_lower(run, delta, adjacency)))
    for other in (m for m in others if m.epsilon is not None):
        upper = float(np.asarray(other.epsilon(run, delta, adjacency)))  # pyrefly: ignore
        if own > upper * slack:
            raise CertificateError(
                "epsilon", f"is at least {own!r}, but method {other.name!r} shows at most {upper!r}"
            )
        if upper < math.inf:
            return Verification(epsilon, used.name, other.name, 0.0, upper)
    return Verification(epsilon, used.name, None, 0.0, math.inf)
