"""A statement of what a run costs that anyone can recompute."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dpjax._numerics import checks
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers.as_json import from_plain, parse, to_plain
from dpjax.accounting.answers.disclosure import KINDS, Disclosure, read_sentence, with_code
from dpjax.accounting.answers.plain_words import (
    PRODUCT,
    certificate_summary,
    details,
    registry_entry,
)
from dpjax.accounting.answers.verification import (
    Verification,
    check_consistency,
    compare_files,
    recompute,
)
from dpjax.accounting.errors import CertificateError
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.typing import Fact

# In format 1 sentences are texts, in format 2 they have codes. A certificate keeps its own.
_Value = TypeVar("_Value")
FORMATS = 1, 2
_STATEMENT, _PREDICATE = "https://in-toto.io/Statement/v1", "urn:dpjax:certificate:{}"


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
        assumptions: what must be true of the run; each is a `Disclosure`, a text with a code.
        not_covered: what depends on the private data and is not in the number, likewise.
        extra_delta: parts of δ reserved for other failures; ε is computed at δ minus their sum.
        declared: facts of the run, which must agree with the mechanism where it knows them.
        version, created: of the software, and when (UTC).
        digests: of every other field, to find out which was changed.
        subject: the released files that it belongs to, by name their SHA-256; see `bind_files`.

    Example:
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
    assumptions: tuple[Disclosure, ...] = ()
    not_covered: tuple[Disclosure, ...] = ()
    extra_delta: Mapping[str, float] = dataclasses.field(default_factory=dict)
    declared: Mapping[str, Fact] = dataclasses.field(default_factory=dict)
    version: str = ""
    created: str = ""
    format: int = FORMATS[-1]
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    subject: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        read = read_sentence if self.format == 1 else with_code
        for name in ("assumptions", "not_covered"):
            object.__setattr__(self, name, tuple(map(read, getattr(self, name))))
        reserved = {read(reason): share for reason, share in self.extra_delta.items()}
        object.__setattr__(self, "extra_delta", reserved)

    def to_json(self) -> str:
        """The certificate as JSON text; `from_json` gives an equal certificate.

        Example:
            >>> from dpjax import accounting as acc
            >>> '"kind": "Gaussian"' in acc.certify(acc.Gaussian(4.0), delta=1e-5).to_json()
            True
        """
        return json.dumps(_plain_fields(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Certificate:
        """Read a certificate's text (of a file: `path.read_text()`); `verify` recomputes it.

        Raises:
            CertificateError: not JSON, a missing, unknown or malformed field.

        Example:
            >>> from dpjax import accounting as acc
            >>> acc.Certificate.from_json("{}")
            Traceback (most recent call last):
            dpjax.accounting.errors.CertificateError: certificate field 'mechanism': is missing
        """
        return _read_json(parse(text))

    def bind_files(self, contents: Mapping[str, bytes]) -> Certificate:
        """The certificate of these files alone: it names their SHA-256, for `check_files`.

        Give what was released (a model, its parameters, its description), never records: of a file
        that few guesses find, the digest tells which it is.

        Example:
            >>> from dpjax import accounting as acc
            >>> bound = acc.certify(acc.Gaussian(4.0), delta=1e-5).bind_files({"w.bin": b"1.5"})
            >>> bound.verify().epsilon == bound.epsilon, list(bound.subject)
            (True, ['w.bin'])
        """
        found = {str(n): hashlib.sha256(content).hexdigest() for n, content in contents.items()}
        bound = dataclasses.replace(self, subject=found)
        bound = dataclasses.replace(bound, digests=field_digests(bound))
        return Certificate.from_json(bound.to_json())  # names are checked as when they are read

    def check_files(self, folder: str | pathlib.Path) -> tuple[str, ...]:
        """The names of the bound files that are in a folder, each the one that was released.

        Raises:
            CertificateError: one of them is another file, or the certificate was changed after it
                was made. Only `verify` recomputes what it claims.

        Example:
            >>> from dpjax import accounting as acc
            >>> acc.certify(acc.Gaussian(4.0), delta=1e-5).check_files("anywhere")  # none is bound
            ()
        """
        check_unchanged(self)
        return compare_files(self.subject, pathlib.Path(folder))

    def to_statement(self) -> str:
        """The certificate as an in-toto statement about its files, to be signed by other tools.

        `from_json` reads it too.

        Raises:
            ValueError: no file is bound.

        Example:
            >>> from dpjax import accounting as acc
            >>> bound = acc.certify(acc.Gaussian(4.0), delta=1e-5).bind_files({"w.bin": b"1.5"})
            >>> acc.Certificate.from_json(bound.to_statement()) == bound
            True

        References:
            in-toto Attestation Framework, Statement v1.
        """
        if not self.subject:
            raise ValueError("subject must name a file for a statement about it, got none")
        predicate = _plain_fields(self)
        subject = predicate.pop("subject")
        kind = _PREDICATE.format(self.format)
        named = {"_type": _STATEMENT, "subject": subject, "predicateType": kind}
        return json.dumps(named | {"predicate": predicate}, indent=2, ensure_ascii=False) + "\n"

    def to_registry(self, **product: Any) -> str:
        """An entry for a public registry of deployments, as JSON text; what is not known is null.

        Args:
            product: what a certificate cannot know: name, curator, description, intended_use,
                publication_year, region, sector; and security, collection, utility, answers to
                questions of NIST SP 800-226.

        Raises:
            ValueError: another name than these.

        Example:
            >>> from dpjax import accounting as acc
            >>> text = acc.certify(acc.Gaussian(4.0), delta=1e-5).to_registry(name="Income")
            >>> entry = json.loads(text)
            >>> entry["data_product"]["name"], entry["flavor"]["name"], entry["model"]["name"]
            ('Income', 'approximate DP', 'central')

        References:
            Nanayakkara, Ghazi, Vadhan 2025, "Practitioners' perspectives on a differential privacy
            deployment registry" (the groups of fields); NIST SP 800-226, 2025 (the questions).
        """
        for name in product:
            checks.choice("product", name, PRODUCT)
        return json.dumps(registry_entry(self, product), indent=2, ensure_ascii=False) + "\n"

    def verify(self) -> Verification:
        """Recompute ε from the certificate alone, by its own method and by an independent one.

        Raises:
            CertificateError: names in `.field` what was changed, contradicts itself, or does not
                recompute.

        Example:
            >>> from dpjax import accounting as acc
            >>> certificate = acc.certify(acc.Repeated(acc.Gaussian(4.0), 10), delta=1e-5)
            >>> certificate.verify().epsilon == certificate.epsilon
            True
        """
        try:
            written = Certificate.from_json(self.to_json())  # what is checked is what the file says
            check_unchanged(written)
            return recompute(written)
        except CertificateError:
            raise
        except Exception as error:  # whatever a forgery does to the accountant, it is refused
            raise CertificateError("mechanism", f"cannot be checked: {error}") from error

    def describe(self) -> str:
        """The certificate in words: for whoever decides about it, an empty line, then the details.

        Example:
            >>> from dpjax import accounting as acc
            >>> text = acc.certify(acc.Gaussian(4.0), delta=1e-5).describe()
            >>> text.splitlines()[5]
            'Released: a sum of clipped contributions plus Gaussian noise of 4 clip norms.'
        """
        return "\n".join([*certificate_summary(self), "", *details(self)])


def is_ex_post(certificate: Certificate) -> bool:
    """Whether ε is of the moment at which a run stopped, as `Plan.certify` says of a part of δ."""
    return any(one.code == "stopped-by-release" for one in map(with_code, certificate.extra_delta))


# --- as JSON, without losing a bit --------------------------------------------------------------


def _plain_fields(certificate: Certificate) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(certificate)]
    found = {name: to_plain(getattr(certificate, name)) for name in names}  # floats to the last bit
    if certificate.format != 1:
        for name in ("assumptions", "not_covered"):
            found[name] = [_plain_sentence(one) for one in getattr(certificate, name)]
        reserved = certificate.extra_delta.items()
        found["extra_delta"] = [
            {**_plain_sentence(one), "share": to_plain(v)} for one, v in reserved
        ]
    # As in-toto names what a statement is about; of no file nothing is said, as ever before.
    files = found.pop("subject").items()
    subject = [{"name": name, "digest": {"sha256": digest}} for name, digest in files]
    return found | ({"subject": subject} if subject else {})


def _plain_sentence(sentence: str) -> dict[str, str]:
    return {"code": with_code(sentence).code, "text": str(sentence)}


def _read_json(raw: dict[str, Any]) -> Certificate:
    names = [f.name for f in dataclasses.fields(Certificate)]
    if raw.get("_type") == _STATEMENT and isinstance(raw.get("predicate"), dict):
        raw = {**raw["predicate"], "subject": raw.get("subject")}
    for name in names:
        if name not in raw and name != "subject":
            raise CertificateError(name, "is missing")
    for name in raw:  # what is not known may not be ignored
        if name not in names:
            raise CertificateError(name, "is not a field of a certificate")
    if type(raw["format"]) is not int or raw["format"] not in FORMATS:
        known = " and ".join(map(str, FORMATS))
        raise CertificateError("format", f"is {raw['format']!r}; this version reads {known}")
    fields = {**raw, "mechanism": from_plain(raw["mechanism"])}
    if not isinstance(fields["mechanism"], Mechanism):
        raise CertificateError(
            "mechanism", f"is not a mechanism: {checks.render(raw['mechanism'])}"
        )
    try:
        fields["adjacency"] = Adjacency(raw["adjacency"])
    except ValueError:
        raise CertificateError("adjacency", f"{raw['adjacency']!r} is not known") from None
    readers = _READERS | (_READERS_1 if raw["format"] == 1 else {})
    read = {name: read(name, raw[name]) for name, read in readers.items() if name in raw}
    return Certificate(**{**fields, **read})


def _of_kind(
    name: str, value: Any, kind: type[_Value] | tuple[type[_Value], ...], what: str
) -> _Value:
    if not isinstance(value, kind) or isinstance(value, bool):  # True is an int to Python
        raise CertificateError(name, f"must {what}, got {value!r}")
    return value


def read_text(name: str, value: Any) -> str:
    return _of_kind(name, value, str, "be text")


def _check_number(name: str, value: Any) -> float:
    found = _of_kind(name, from_plain(value), (int, float), "be a number")
    if math.isnan(found):  # NaN compares with nothing
        raise CertificateError(name, f"must be a number, got {found!r}")
    return float(found)


def _fact(name: str, value: Any) -> Fact:
    return from_plain(_of_kind(name, value, (int, float, str), "hold numbers and texts"))


def _texts(name: str, value: Any) -> tuple[str, ...]:
    return tuple(read_text(name, s) for s in _of_kind(name, value, list, "be a list of sentences"))


def _disclosures(name: str, value: Any, *more: str) -> tuple[Disclosure, ...]:
    """The sentences of a list of objects, each of code and text, and of no key but `more`."""
    found = []
    for entry in _of_kind(name, value, list, "be a list of sentences with codes"):
        if not isinstance(entry, dict) or set(entry) != {"code", "text", *more}:
            keys = ", ".join(("code", "text", *more))
            raise CertificateError(name, f"must hold objects of {keys}, got {checks.render(entry)}")
        code, text = (read_text(name, entry[key]) for key in ("code", "text"))
        if code not in KINDS:  # what it asks of whom is not known
            raise CertificateError(
                name, f"holds the code {code!r}, which this version does not know"
            )
        found.append(Disclosure(code, text))
    return tuple(found)


def _read_reserved(name: str, value: Any) -> dict[str, float]:
    """The parts of δ by reason."""
    found: dict[str, float] = {}
    for reason, entry in zip(_disclosures(name, value, "share"), value, strict=True):
        if reason in found:  # two shares of one reason would hide one
            raise CertificateError(name, f"names {str(reason)!r} twice")
        found[reason] = _check_number(name, entry["share"])
    return found


def _table(read: Callable[[str, Any], Any], name: str, value: Any) -> dict[str, Any]:
    return {k: read(name, v) for k, v in _of_kind(name, value, dict, "be a table").items()}


def _files(name: str, value: Any) -> dict[str, str]:
    """The digests by file, whose names lead into no other folder."""
    found: dict[str, str] = {}
    for entry in _of_kind(name, value, list, "be a list of files"):
        known = isinstance(entry, dict) and isinstance(entry.get("digest"), dict)
        file = entry.get("name") if known else None
        digest = entry["digest"].get("sha256") if known else None
        plain = isinstance(file, str) and re.fullmatch(r"[^/\\:]+", file) and file.strip(".")
        if not plain or not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise CertificateError(name, f"must name files and SHA-256, got {checks.render(entry)}")
        if file in found:  # two digests of one name would hide one
            raise CertificateError(name, f"names {file!r} twice")
        found[file] = digest
    return found


# How the fields of a file that others wrote are read, in the order in which they are refused.
_READERS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("epsilon", "delta"), _check_number),
    **dict.fromkeys(("method", "bound", "tier", "version", "created"), read_text),
    **dict.fromkeys(("assumptions", "not_covered"), _disclosures),
    "extra_delta": _read_reserved,
    "declared": functools.partial(_table, _fact),
    "digests": functools.partial(_table, read_text),
    "subject": _files,
}

_READERS_1: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("assumptions", "not_covered"), _texts),
    "extra_delta": functools.partial(_table, _check_number),
}


def field_digests(certificate: Certificate) -> dict[str, str]:
    plain = _plain_fields(certificate)
    return {
        name: hashlib.sha256(
            json.dumps([name, value], sort_keys=True, ensure_ascii=True).encode()
        ).hexdigest()
        for name, value in plain.items()  # one digest a field, to say which was changed
        if name != "digests"
    }


def check_unchanged(certificate: Certificate) -> None:
    """Refuse what was changed or contradicts itself, without pricing anything."""
    expected = field_digests(certificate)
    for name, digest in expected.items():
        if certificate.digests.get(name) != digest:
            raise CertificateError(name, "was changed after the certificate was made")
    unknown = set(certificate.digests) - set(expected)  # an added one would hide a missing one
    if unknown:
        raise CertificateError("digests", f"holds entries of no field: {sorted(unknown)}")
    check_consistency(certificate)
