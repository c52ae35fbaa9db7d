"""A statement of what a run costs that anyone can recompute."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics import float64
from dpjax.accounting import lowering, queries
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import CertificateError, UnsupportedQuery
from dpjax.accounting.mechanisms import (
    FixedBatchSampled,
    Gaussian,
    Mechanism,
    PoissonSampled,
    Shuffled,
)
from dpjax.accounting.serialization import from_plain, to_plain

FORMAT = 1
_AGREEMENT = 1e-6  # of recomputed ε, relative


class Verification(NamedTuple):
    """What `Certificate.verify` found.

    Fields:
        epsilon: recomputed by the certificate's own method.
        method: that method's name.
        checked_by: another method that bounds ε independently, or None where there is none.
        lower: its lower bound of ε (0 if it has none). upper: its upper bound (+inf if it has
            none).

    >>> Verification(1.0, "rdp", None, 0.0, float("inf")).checked_by is None
    True
    """

    epsilon: float
    method: str
    checked_by: str | None
    lower: float
    upper: float


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What was released, what it costs, and what that rests on. Made by `certify`.

    Fields:
        mechanism: what was released.
        adjacency: the neighbouring relation.
        epsilon, delta: the run is (ε, δ)-differentially private under that relation.
        method, bound: how ε was computed, by name and in a sentence.
        tier: `proven` (nothing assumed of data or loss beyond what the code enforces),
            `conditional` (the assumptions must hold), or `none` (no guarantee).
        assumptions: what must be true of the run.
        not_covered: what depends on the private data and is not in the number.
        extra_delta: parts of δ reserved for other failures; ε is computed at δ minus their sum.
        declared: facts of the run, such as `records`, that the mechanism must agree with.
        version, created: of the software, and when (UTC).
        digests: of every other field, to find out which was changed.

    >>> from dpjax import accounting as acc
    >>> certificate = acc.certify(acc.Repeated(acc.Gaussian(4.0), 10), delta=1e-5)
    >>> acc.Certificate.from_json(certificate.to_json()) == certificate
    True
    """

    mechanism: Mechanism
    adjacency: Adjacency
    epsilon: float
    delta: float
    method: str
    bound: str
    tier: str
    assumptions: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    extra_delta: Mapping[str, float] = dataclasses.field(default_factory=dict)
    declared: Mapping[str, float] = dataclasses.field(default_factory=dict)
    version: str = ""
    created: str = ""
    format: int = FORMAT
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """The certificate as JSON text; `from_json` gives an equal certificate.

        >>> from dpjax import accounting as acc
        >>> '"kind": "Gaussian"' in acc.certify(acc.Gaussian(4.0), delta=1e-5).to_json()
        True
        """
        return json.dumps(_plain_fields(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Certificate:
        """Read a certificate; nothing is recomputed, see `verify`.

        Raises:
            CertificateError: not JSON, a missing, unknown or malformed field.

        >>> from dpjax import accounting as acc
        >>> acc.Certificate.from_json("{}")
        Traceback (most recent call last):
        dpjax.accounting.errors.CertificateError: certificate field 'mechanism': is missing
        """
        try:
            raw = json.loads(text)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise CertificateError("json", f"the file is not valid JSON: {error}") from None
        if not isinstance(raw, dict):
            raise CertificateError("json", "the file does not hold a certificate")
        return _read(raw)

    def verify(self) -> Verification:
        """Recompute ε from the certificate alone, by its own method and by an independent one.

        Raises:
            CertificateError: names in `.field` what was changed, contradicts itself, or does not
                recompute.

        >>> from dpjax import accounting as acc
        >>> certificate = acc.certify(acc.Repeated(acc.Gaussian(4.0), 10), delta=1e-5)
        >>> certificate.verify().epsilon == certificate.epsilon
        True
        """
        _check_digests(self)
        _check_consistency(self)
        return _recompute(self)

    def describe(self) -> str:
        """The certificate in words.

        >>> from dpjax import accounting as acc
        >>> print(acc.certify(acc.Gaussian(4.0), delta=1e-5).describe().splitlines()[0])
        Released: a sum of clipped contributions plus Gaussian noise, 4 clip norms strong.
        """
        return _describe(self)


def certify(
    run: Mechanism,
    delta: float,
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
    extra_delta: Mapping[str, float] | None = None,
    not_covered: Sequence[str] = (),
    assumptions: Sequence[str] = (),
    declared: Mapping[str, float] | None = None,
) -> Certificate:
    """A certificate of a run at δ.

    Arguments:
        run: what was released; one setting, no array fields.
        delta: the total δ to be stated.
        adjacency, method: as in `epsilon`.
        extra_delta: parts of δ by reason (a truncated batch, a noise tail); ε is computed at the
            rest.
        not_covered: data-dependent choices that the number does not cover, one sentence each.
        assumptions: further ones than those of the mechanism and the bound.
        declared: facts to hold the mechanism against: `records`, `batch_size`, `steps`,
            `noise_multiplier`; others are recorded as they are.

    Raises:
        UnsupportedQuery, ValueError: as `epsilon`; also if nothing of δ is left.
        CertificateError: a declared fact contradicts the mechanism.

    >>> from dpjax import accounting as acc
    >>> run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), rate=0.01), steps=1_000)
    >>> certificate = acc.certify(run, delta=1e-5, declared={"records": 60_000, "batch_size": 600})
    >>> certificate.tier
    'proven'
    """
    import dpjax  # the version; the package imports this module

    adjacency = queries.check_adjacency(adjacency)
    queries.check_range("delta", delta, 0.0, 1.0)
    extra = {str(k): float(v) for k, v in (extra_delta or {}).items()}
    epsilon, used = _price(run, _remaining(delta, extra), adjacency, method)
    certificate = Certificate(
        mechanism=run,
        adjacency=adjacency,
        epsilon=epsilon,
        delta=float(delta),
        method=used.name,
        bound=used.describe,
        tier=used.tier if math.isfinite(epsilon) else "none",
        assumptions=(*_assumptions(run, adjacency), *used.assumptions, *assumptions),
        not_covered=tuple(not_covered),
        extra_delta=extra,
        declared={str(k): v for k, v in (declared or {}).items()},
        version=dpjax.__version__,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    # Through plain values and back, so that what is held equals what is read.
    certificate = dataclasses.replace(certificate, mechanism=from_plain(to_plain(run)))
    certificate = dataclasses.replace(certificate, digests=_digests(certificate))
    _check_consistency(certificate)
    return certificate


def _remaining(delta: float, extra: Mapping[str, float]) -> float:
    for reason, share in extra.items():
        if not 0.0 <= share < delta:
            raise ValueError(
                f"extra_delta[{reason!r}] must be in [0, delta={delta:g}), got {share:g}"
            )
    # Rounded down: what is left for the mechanism must not exceed the difference.
    rest = np.nextafter(delta - math.fsum(extra.values()), 0.0) if extra else delta
    if not rest > 0.0:
        raise ValueError(
            f"extra_delta sums to {math.fsum(extra.values()):g}, all of delta={delta:g}"
        )
    return float(rest)


def _price(
    run: Mechanism, delta: float, adjacency: Adjacency, method: str
) -> tuple[float, queries.Method]:
    with float64.reproducible():
        epsilon, used = queries.price(run, delta, adjacency=adjacency, method=method)
    if np.ndim(epsilon):
        raise ValueError("certify one setting at a time: the mechanism has array fields")
    return float(epsilon), used


# --- reading and writing ------------------------------------------------------------------------

_TEXT = ("method", "bound", "tier", "version", "created")


def _plain_fields(certificate: Certificate) -> dict[str, Any]:
    plain = {f.name: getattr(certificate, f.name) for f in dataclasses.fields(certificate)}
    plain["mechanism"] = to_plain(certificate.mechanism)
    plain["adjacency"] = certificate.adjacency.value
    for name in ("epsilon", "delta"):
        plain[name] = to_plain(plain[name])
    for name in ("assumptions", "not_covered"):
        plain[name] = list(plain[name])
    for name in ("extra_delta", "declared", "digests"):
        plain[name] = {k: to_plain(v) for k, v in plain[name].items()}
    return plain


def _read(raw: dict[str, Any]) -> Certificate:
    names = [f.name for f in dataclasses.fields(Certificate)]
    for name in names:
        if name not in raw:
            raise CertificateError(name, "is missing")
    for name in raw:
        if name not in names:
            raise CertificateError(name, "is not a field of a certificate")
    if raw["format"] != FORMAT:
        raise CertificateError("format", f"is {raw['format']!r}; this version reads {FORMAT}")
    fields = dict(raw)
    fields["mechanism"] = from_plain(raw["mechanism"])
    if not isinstance(fields["mechanism"], Mechanism):
        raise CertificateError("mechanism", f"is not a mechanism: {raw['mechanism']!r}")
    try:
        fields["adjacency"] = Adjacency(raw["adjacency"])
    except ValueError:
        raise CertificateError("adjacency", f"{raw['adjacency']!r} is not known") from None
    for name in ("epsilon", "delta"):
        fields[name] = _number(name, raw[name])
    for name in _TEXT:
        if not isinstance(raw[name], str):
            raise CertificateError(name, f"must be text, got {raw[name]!r}")
    for name in ("assumptions", "not_covered"):
        if not isinstance(raw[name], list) or not all(isinstance(v, str) for v in raw[name]):
            raise CertificateError(name, "must be a list of sentences")
        fields[name] = tuple(raw[name])
    for name in ("extra_delta", "declared"):
        if not isinstance(raw[name], dict):
            raise CertificateError(name, "must be a table of numbers")
        fields[name] = {k: from_plain(v) for k, v in raw[name].items()}
    for reason, share in fields["extra_delta"].items():
        _number(f"extra_delta.{reason}", share)
    if not isinstance(raw["digests"], dict):
        raise CertificateError("digests", "must be a table of texts")
    return Certificate(**fields)


def _number(name: str, value: Any) -> float:
    value = from_plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise CertificateError(name, f"must be a number, got {value!r}")
    return float(value)


def _digests(certificate: Certificate) -> dict[str, str]:
    plain = _plain_fields(certificate)
    return {
        name: hashlib.sha256(
            json.dumps([name, value], sort_keys=True, ensure_ascii=True).encode()
        ).hexdigest()
        for name, value in plain.items()
        if name != "digests"
    }


# --- checking -----------------------------------------------------------------------------------


def _check_digests(certificate: Certificate) -> None:
    expected = _digests(certificate)
    for name, digest in expected.items():
        if certificate.digests.get(name) != digest:
            raise CertificateError(name, "was changed after the certificate was made")
    unknown = set(certificate.digests) - set(expected)
    if unknown:
        raise CertificateError("digests", f"holds entries of no field: {sorted(unknown)}")


def _only(kinds: type | tuple[type, ...], run: Mechanism) -> list[Any]:
    """All parts of a kind, anywhere in the mechanism."""
    found = [run] if isinstance(run, kinds) else []
    for part in getattr(run, "mechanisms", ()):
        found += _only(kinds, part)
    inner = getattr(run, "mechanism", None)
    return found + (_only(kinds, inner) if isinstance(inner, Mechanism) else [])


def _check_consistency(certificate: Certificate) -> None:
    if not 0.0 < certificate.delta < 1.0:
        raise CertificateError("delta", f"must be in (0, 1), got {certificate.delta}")
    if not certificate.epsilon >= 0.0:
        raise CertificateError("epsilon", f"must be >= 0, got {certificate.epsilon}")
    if certificate.tier not in ("proven", "conditional", "none"):
        raise CertificateError("tier", f"{certificate.tier!r} is not known")
    if certificate.tier == "none" and math.isfinite(certificate.epsilon):
        raise CertificateError("tier", "is 'none', yet epsilon is finite")
    try:
        _remaining(certificate.delta, certificate.extra_delta)
    except ValueError as error:
        raise CertificateError("extra_delta", str(error)) from None
    _check_declared(certificate.mechanism, certificate.declared)


def _check_declared(run: Mechanism, declared: Mapping[str, float]) -> None:
    records, batch = declared.get("records"), declared.get("batch_size")
    for step in _only(PoissonSampled, run):
        if records and batch and not _close(step.rate, batch / records):
            raise CertificateError(
                "declared", f"batch_size/records = {batch / records:g}, but the rate is {step.rate}"
            )
    for step in _only(FixedBatchSampled, run):
        if records and not _close(step.population, records):
            raise CertificateError("declared", f"records = {records}, priced {step.population}")
        if batch and not _close(step.batch_size, batch):
            raise CertificateError("declared", f"batch_size = {batch}, priced {step.batch_size}")
    sigma = declared.get("noise_multiplier")
    for step in _only(Gaussian, run):
        if sigma is not None and not _close(step.noise_multiplier, sigma):
            raise CertificateError(
                "declared", f"noise_multiplier = {sigma}, priced {step.noise_multiplier}"
            )
    steps = declared.get("steps")
    if steps is not None:
        priced = sum(math.prod(factors) for _, factors in lowering.flatten(run))
        if not _close(priced, steps):
            raise CertificateError("declared", f"steps = {steps}, priced {priced}")


def _close(a: Any, b: Any) -> bool:
    return bool(np.allclose(np.asarray(a, np.float64), float(b), rtol=1e-6, atol=0.0))


def _recompute(certificate: Certificate) -> Verification:
    delta = _remaining(certificate.delta, certificate.extra_delta)
    run, adjacency, claimed = certificate.mechanism, certificate.adjacency, certificate.epsilon
    try:
        epsilon, used = _price(run, delta, adjacency, certificate.method)
    except (UnsupportedQuery, ValueError) as error:
        raise CertificateError("method", str(error)) from error
    if not (epsilon == claimed or abs(epsilon - claimed) <= _AGREEMENT * max(1e-3, epsilon)):
        raise CertificateError("epsilon", f"says {claimed!r}, recomputed {epsilon!r}")
    tier = used.tier if math.isfinite(epsilon) else "none"
    if certificate.tier != tier:
        raise CertificateError("tier", f"says {certificate.tier!r}, this bound is {tier!r}")
    for assumption in (*_assumptions(run, adjacency), *used.assumptions):
        if assumption not in certificate.assumptions:
            raise CertificateError("assumptions", f"lacks: {assumption}")
    others = [
        m
        for name, m in queries.methods(run, adjacency).items()
        if name != certificate.method and m.rank is not None
    ]
    slack = 1.0 + _AGREEMENT
    for other in (m for m in others if m.epsilon_lower is not None):
        lower = float(np.asarray(other.epsilon_lower(run, delta, adjacency)))  # pyrefly: ignore
        if lower > claimed * slack:
            raise CertificateError(
                "epsilon", f"says {claimed!r}, but method {other.name!r} shows at least {lower!r}"
            )
        upper = other.epsilon(run, delta, adjacency) if other.epsilon is not None else math.inf
        return Verification(epsilon, used.name, other.name, lower, float(np.asarray(upper)))
    own = 0.0
    if used.epsilon_lower is not None:
        own = float(np.asarray(used.epsilon_lower(run, delta, adjacency)))
    for other in (m for m in others if m.epsilon is not None):
        upper = float(np.asarray(other.epsilon(run, delta, adjacency)))  # pyrefly: ignore
        if own > upper * slack:
            raise CertificateError(
                "epsilon", f"is at least {own!r}, but method {other.name!r} shows at most {upper!r}"
            )
        return Verification(epsilon, used.name, other.name, 0.0, upper)
    return Verification(epsilon, used.name, None, 0.0, math.inf)


# --- in words -----------------------------------------------------------------------------------


def _assumptions(run: Mechanism, adjacency: Adjacency) -> tuple[str, ...]:
    """What pricing takes for granted of the code that ran, by the parts the mechanism has."""
    found = []
    if _only(Gaussian, run):
        found.append("every record's contribution is clipped to the clip norm before it is summed")
        found.append(
            "the noise is Gaussian, fresh at every step, and drawn independently of the data"
        )
    if _only(PoissonSampled, run):
        found.append("each record enters each step independently with the sampling rate, in secret")
        found.append("sums are divided by a public constant, not by the realised batch size")
    if _only(FixedBatchSampled, run):
        found.append("each step's batch is drawn uniformly without replacement, in secret")
    if _only(Shuffled, run):
        found.append(
            "each pass uses every record in exactly one batch; no amplification is claimed"
        )
    found.append(
        "the number of records is public"
        if adjacency is Adjacency.REPLACE_ONE
        else "constants such as expected batch size and steps are public"
    )
    return tuple(found)


def _value(field: Any) -> float:
    return float(np.asarray(field).item())


def _words(run: Mechanism) -> str:
    count = getattr(run, "steps", None)
    inner = getattr(run, "mechanism", None)
    if isinstance(run, Gaussian):
        sigma = _value(run.noise_multiplier)
        return f"a sum of clipped contributions plus Gaussian noise, {sigma:.6g} clip norms strong"
    if isinstance(run, PoissonSampled):
        return f"{_words(run.mechanism)}, over a Poisson sample at rate {_value(run.rate):.6g}"
    if isinstance(run, FixedBatchSampled):
        size, population = _value(run.batch_size), _value(run.population)
        sampled = f"{size:,.0f} of {population:,.0f} records without replacement"
        return f"{_words(run.mechanism)}, over {sampled}"
    if isinstance(run, Shuffled):
        batches = f"{_value(run.batches):,.0f} disjoint batches of a shuffled pass"
        return f"{_words(run.mechanism)}, for {batches}"
    if isinstance(inner, Mechanism) and count is not None:
        return f"{_value(count):,.0f} adaptive uses of: {_words(inner)}"
    parts = getattr(run, "mechanisms", None)
    if parts is not None:
        shown = "; ".join(_words(p) for p in parts[:3]) + ("; …" if len(parts) > 3 else "")
        return f"{len(parts):,} adaptively composed releases: {shown}"
    fields = ", ".join(f"{k} = {v}" for k, v in to_plain(run).items() if k != "kind")
    return f"{type(run).__name__} ({fields})"


_RELATION = {
    Adjacency.ADD_REMOVE: "adding or removing one record",
    Adjacency.REPLACE_ONE: "replacing one record by another",
}


def _describe(certificate: Certificate) -> str:
    c = certificate
    lines = [f"Released: {_words(c.mechanism)}."]
    if math.isfinite(c.epsilon):
        lines.append(f"Guarantee: ({c.epsilon:.6g}, {c.delta:g})-differential privacy.")
    else:
        lines.append("Guarantee: none; no finite ε can be stated.")
    lines.append(f"Neighbours: {_RELATION[c.adjacency]} ({c.adjacency.value}).")
    lines.append(f"Bound: {c.method}: {c.bound}.")
    lines.append(f"Tier: {c.tier}.")
    for reason, share in c.extra_delta.items():
        lines.append(f"Reserved of δ: {share:g} for {reason}.")
    lines += [f"Assumes: {a}." for a in c.assumptions]
    lines += [f"Not covered: {text.rstrip('.')}." for text in c.not_covered]
    if c.declared:
        lines.append("Declared: " + ", ".join(f"{k} = {v}" for k, v in c.declared.items()) + ".")
    lines.append(f"Software: dpjax {c.version}, {c.created}.")
    return "\n".join(lines)
