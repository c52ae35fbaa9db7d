"""A run, or several together, priced and written down as a certificate."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterable, Mapping, Sequence

from dpjax._argument_names import suggests_argument_names
from dpjax._numerics import checks
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers import pricing
from dpjax.accounting.answers.as_json import to_plain
from dpjax.accounting.answers.certificate import Certificate, field_digests, is_ex_post, read_text
from dpjax.accounting.answers.disclosure import Disclosure, with_code
from dpjax.accounting.answers.verification import (
    answer_assumptions,
    answer_tier,
    check_consistency,
    priced,
    remaining,
)
from dpjax.accounting.mechanisms import Composed, Mechanism
from dpjax.accounting.typing import Fact


def _declared(name: str, value: float | str) -> Fact:
    if isinstance(value, str):
        return value
    checks.one_number(f"declared[{name!r}]", value, checks.Range())
    return to_plain(value)


@suggests_argument_names
def certify(
    run: Mechanism | Sequence[Certificate],
    delta: float,
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
    extra_delta: Mapping[str, float] | None = None,
    not_covered: Sequence[str] = (),
    assumptions: Sequence[str] = (),
    declared: Mapping[str, Fact] | None = None,
) -> Certificate:
    """A certificate of a run at δ, or of several runs together.

    Args:
        run: what was released; one setting, no array fields. Or the certificates of several runs on
            the same or overlapping records: their mechanisms are composed, and what they assume,
            reserve of δ and do not cover is carried over.
        delta: the total δ to be stated.
        adjacency, method: as in `epsilon`.
        extra_delta: parts of δ by reason (a truncated batch, a noise tail); ε is computed at the
            rest.
        not_covered: data-dependent choices that the number does not cover, one sentence each: your
            own words, or a `Disclosure`, whose code says who must act.
        assumptions: further ones than those of the mechanism and the bound, likewise.
        declared: facts of the run. Those whose name the mechanism answers (`noise_multiplier`,
            `rate`, `steps`, `records`, `batch_size`, …) must agree with it; others are recorded as
            the issuer's word, and shown as not checked.

    Raises:
        UnsupportedQuery, ValueError: as `epsilon`; also if nothing of δ is left, or for
            certificates of other adjacencies or units, two of runs with one key (they drew the same
            noise, and their difference is free of it), or one of a run that was stopped by what it
            released, whose ε is of the steps taken.
        CertificateError: a declared fact contradicts the mechanism.

    Example:
        >>> from dpjax import accounting as acc
        >>> run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), rate=0.01), steps=1_000)
        >>> declared = {"records": 60_000, "batch_size": 600}
        >>> acc.certify(run, delta=1e-5, declared=declared).tier
        'proven'
        >>> one = acc.certify(acc.Gaussian(4.0), delta=1e-5)
        >>> acc.certify([one, one], delta=1e-5).mechanism
        Composed(mechanisms=(Gaussian(noise_multiplier=4.0), Gaussian(noise_multiplier=4.0)))
    """
    import dpjax  # the version; the package imports this module

    adjacency = pricing.check_adjacency(adjacency)
    if not isinstance(run, Mechanism):
        parts = _priced_together(run, adjacency)
        run = Composed(tuple(part.mechanism for part in parts))
        reasons = dict.fromkeys(reason for part in parts for reason in part.extra_delta)
        sums = {r: math.fsum(p.extra_delta.get(r, 0.0) for p in parts) for r in reasons}
        extra_delta = {**sums, **(extra_delta or {})}
        not_covered = (*(line for part in parts for line in part.not_covered), *not_covered)
        assumptions = (*(line for part in parts for line in part.assumptions), *assumptions)
        names = [str(part.declared["noise"]) for part in parts if "noise" in part.declared]
        units = {"unit": parts[0].declared["unit"]} if "unit" in parts[0].declared else {}
        noise = {"noise": " ".join(names)} if names else {}
        declared = {**(declared or {}), **units, **noise}
    delta = checks.one_number("delta", delta, checks.Range(0.0, 1.0, True, True))
    extra: dict[str, float] = {
        with_code(k): checks.one_number(f"extra_delta[{k!r}]", v, checks.Range())
        for k, v in (extra_delta or {}).items()
    }
    epsilon, used = priced(run, remaining(delta, extra), adjacency, method)
    rests_on = [with_code(one, "mechanism") for one in answer_assumptions(run, used, adjacency)]
    certificate = Certificate(
        mechanism=run,
        adjacency=adjacency,
        epsilon=epsilon,
        delta=delta,
        method=used.name,
        bound=used.describe,
        tier=answer_tier(run, used) if math.isfinite(epsilon) else "none",
        assumptions=_each_once("assumptions", (*rests_on, *assumptions)),
        not_covered=_each_once("not_covered", not_covered),
        extra_delta=extra,
        declared={str(k): _declared(k, v) for k, v in (declared or {}).items()},
        version=dpjax.__version__,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    certificate = dataclasses.replace(certificate, digests=field_digests(certificate))
    # Through JSON and back, so that what is held equals what is read.
    certificate = Certificate.from_json(certificate.to_json())
    check_consistency(certificate)
    return certificate


def _each_once(name: str, sentences: Iterable[str]) -> tuple[Disclosure, ...]:
    """The sentences with their codes, each once; of a user's own words the code is "other"."""
    return tuple(dict.fromkeys(with_code(read_text(name, one)) for one in sentences))


def _priced_together(parts: Sequence[Certificate], adjacency: Adjacency) -> Sequence[Certificate]:
    """The certificates, if the price of their composition is that of their runs."""
    listed = isinstance(parts, list | tuple) and len(parts) > 0
    if not listed or not all(isinstance(part, Certificate) for part in parts):
        raise TypeError(
            f"run must be a mechanism or a list of certificates, got {checks.render(parts)}"
        )
    for name, values in (
        ("adjacency", {adjacency.value, *(part.adjacency.value for part in parts)}),
        ("unit", {part.declared.get("unit", "record") for part in parts}),
    ):
        if len(values) > 1:
            raise ValueError(
                f"run must be certificates of one {name}, got {sorted(map(str, values))}"
            )
    if any(is_ex_post(part) for part in parts):
        raise ValueError(
            "run must be certificates of whole runs, got one that was stopped by what it released: "
            "its delta is of each of its moments, which no composition counts; certify its whole "
            "plan, plan.certify()"
        )
    names = [name for part in parts for name in str(part.declared.get("noise", "")).split()]
    again = sorted({name for name in names if names.count(name) > 1})
    if again:
        raise ValueError(
            f"run must be certificates of runs with a key each, got two with the noise {again[0]}: "
            "their difference is free of it, so that no composition prices them; train again "
            "without a fixed key or random_state"
        )
    return parts
