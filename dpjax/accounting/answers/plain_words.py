"""A certificate in words: first for whoever must decide about it, then the details."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpjax._digits import format_rounded_up
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers.as_json import to_plain
from dpjax.accounting.answers.risks import success
from dpjax.accounting.answers.verification import compare_declared
from dpjax.accounting.mechanisms import UserLevel
from dpjax.accounting.mechanisms.base import all_assumptions

if TYPE_CHECKING:
    from dpjax.accounting.answers.certificate import Certificate

FALSE_ALARMS = 1e-3

_RELATION = {
    Adjacency.ADD_REMOVE: "adding or removing one record",
    Adjacency.REPLACE_ONE: "replacing one record by another",
}
_PROTECTED = {
    Adjacency.ADD_REMOVE: "whoever contributed one record: {promise} with it as without it, or the "
    "other way round",
    Adjacency.REPLACE_ONE: "whoever contributed one record: {promise} with it as with any other in "
    "its place",
}
NO_PROMISE = "no promise in practice"
# Up to which ε, and for how many records that δ may give away, a guarantee is called so.
_GRADES = (
    (1.0, 1.0, "a strong promise"),
    (3.0, 10.0, "a moderate promise"),
    (10.0, 100.0, "a weak promise"),
    (math.inf, math.inf, NO_PROMISE),
)
_SEVERAL_RECORDS = 5  # records of a person, of whom every certificate speaks
_RECORDS = 1e3  # where a certificate does not say how many there are
_AGAINST = {
    Adjacency.ADD_REMOVE: "anyone who sees what was released and tries to find out whether a "
    "record was in the data, even knowing all the others",
    Adjacency.REPLACE_ONE: "anyone who sees what was released and tries to find out which of two "
    "records was in the data, even knowing all the others",
}


def format_fact(value: object) -> str:
    """A declared fact in words: a fraction to six digits, anything else as it is."""
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


def _is_small_slack(name: str, value: object) -> bool:
    """Whether a fact says of noise beyond the mechanism's that it is no more than promised."""
    return name == "rounding_slack" and isinstance(value, float) and 0 <= value <= 2e-3


def format_percent(share: float) -> str:
    """A share of one as a percentage, rounded up to two digits."""
    value = 100 * share
    if value <= 0:
        return "0 %"
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)  # of the second digit
    up = math.ceil(value / unit) * unit  # a share that is shown is never too small
    return f"{min(up, 100.0):.2g} %" if up < 99.5 else "100 %"


def _owned(c: Certificate) -> tuple[str, str] | None:
    """What one user owns, as who is protected and as neighbours; None where a record is one's."""
    if isinstance(c.mechanism, UserLevel):
        records = f"{c.mechanism.records:,.0f} records"
        return f"at most {records}", f"up to {records} of one user"
    if (unit := c.declared.get("unit")) in ("user", "person"):  # as a plan of that unit declares
        return "any number of records", f"all records of one {unit}"
    return None


def _promise(epsilon: float) -> str:
    """What ε means for the probability of an outcome: a ratio of at most e^ε, rounded up."""
    if epsilon > 20.0:
        return f"any outcome may be up to e^{format_rounded_up(epsilon, 4)} times as likely"
    ratio = math.exp(epsilon) * (1 + 1e-12)  # beyond the rounding of exp
    digits = max(10.0 ** (math.floor(math.log10(ratio)) - 1), 0.01)  # two, or hundredths
    return f"no outcome is more than {math.ceil(ratio / digits) * digits:,.6g} times as likely"


def grade(c: Certificate, epsilon: float, delta: float) -> str:
    """What an ε at a δ is called, of as many records as the certificate declares."""
    records = c.declared.get("records", _RECORDS)
    away = delta * (records if isinstance(records, int | float) else _RECORDS)
    return next(text for most, lost, text in _GRADES if epsilon <= most and not away > lost)


def describe_several(c: Certificate, records: int) -> str:
    """What the certificate of one record promises to a person with several.

    k steps of one record each: ε becomes kε and δ becomes δ(1 + e^ε + … + e^((k−1)ε)) (Vadhan
    2017, Lemma 2.2). It follows from (ε, δ) alone: of held-out records, of what is reserved of δ
    and of rare values the price of the run for a group would not be right.
    """
    powers = [i * c.epsilon for i in range(records)]
    delta = c.delta * (1 + 1e-12)  # beyond the rounding of exp and of the sum
    delta *= math.fsum(map(math.exp, powers)) if powers[-1] < 700.0 else math.inf
    epsilon, words = records * c.epsilon, f"A person with {records} records: "
    if not delta < 1.0:  # any release keeps δ = 1
        at = format_rounded_up(epsilon, 4)
        return f"{words}ε would be {at} and δ above 1, so that nothing is promised"
    away = f"but for a probability of {format_rounded_up(delta, 2)}"
    return f"{words}{_promise(epsilon)}, {away}; {grade(c, epsilon, delta)}"


def describe_persons(c: Certificate) -> list[str]:
    """What is promised to persons with several records, one sentence a number of them."""
    if owned := _owned(c):
        return [f"Together protected: {owned[1]}; what is promised is promised for all of them."]
    return [
        f"{describe_several(c, records)}."
        for records in (2, _SEVERAL_RECORDS, 2 * _SEVERAL_RECORDS)
    ]


def _protected(c: Certificate) -> str:
    words = _PROTECTED[c.adjacency].format(promise=_promise(c.epsilon))
    several = f". {describe_several(c, _SEVERAL_RECORDS)}"
    if owned := _owned(c):
        several = ""  # of all of one's records it speaks already
        words = words.replace("one record", owned[0]).replace("with it", "with them")
        words = words.replace("without it", "without them").replace("its place", "their place")
    away, named = format_rounded_up(c.delta), grade(c, c.epsilon, c.delta)
    return f"{words}, but for a probability of {away}. This is {named}{several}"


def _relation(c: Certificate) -> str:
    words = _RELATION[c.adjacency]
    if owned := _owned(c):
        words = words.replace("one record by another", f"{owned[1]} by others")
        return words.replace("one record", owned[1])
    return words


def name_users(c: Certificate, words: str) -> str:
    """The same of users, where they are what is protected."""
    return words.replace("record", str(c.declared.get("unit", "user"))) if _owned(c) else words


def _sentence(text: str) -> str:
    return text.rstrip(".") + "."


def certificate_summary(certificate: Certificate) -> list[str]:
    """Who is protected, against what, how well, under which conditions, and what is not covered."""
    c = certificate
    if not math.isfinite(c.epsilon):
        lines = ["Protected: nobody. What was released carries no guarantee of privacy."]
    else:
        caught = success(
            c.mechanism,
            c.epsilon,
            c.delta,
            adjacency=c.adjacency,
            reserved=sum(c.extra_delta.values()),
            false_alarms=FALSE_ALARMS,
        )
        lines = [
            f"Protected: {_protected(c)}.",
            f"Against: {name_users(c, _AGAINST[c.adjacency])}.",
            "How well: with one false alarm in a thousand, such an attack is right about at most "
            f"{format_percent(caught)} of the {name_users(c, 'records')} it is after "
            "(a guess: 0.1 %).",
        ]
        if c.tier == "conditional":
            lines.append(
                "Only if: every sentence under Assumes is true of this run; nothing enforces them."
            )
    if c.not_covered:
        lines += [f"Not covered: {_sentence(text)}" for text in c.not_covered]
    else:
        lines.append(
            "Not covered: nothing is listed. What leaves the data in another way never is covered."
        )
    return lines


def details(certificate: Certificate) -> list[str]:
    """What was released, what it costs, by which bound, and what that rests on; as `summary`."""
    c = certificate
    lines = [f"Released: {c.mechanism.describe()}."]
    if math.isfinite(c.epsilon):
        lines.append(
            f"Guarantee: ({format_rounded_up(c.epsilon)}, {format_rounded_up(c.delta)})-"
            "differential privacy."
        )
    else:
        lines.append("Guarantee: none; no finite ε can be stated.")
    lines.append(f"Neighbours: {_relation(c)} ({c.adjacency.value}).")
    lines.append(f"Bound: {c.method}: {c.bound}.")
    lines.append(f"Tier: {c.tier}.")
    for reason, share in c.extra_delta.items():
        lines.append(f"Reserved of δ: {share:g} for {reason}.")
    # Certificates of before 0.2 lack the sentence on what was fixed in advance; it holds for them.
    both = (*c.assumptions, *all_assumptions(c.mechanism, c.adjacency))
    lines += [f"Assumes: {a}." for a in dict.fromkeys(both)]
    compared = {
        k for names, *_ in compare_declared(c.mechanism, c.adjacency, c.declared) for k in names
    }
    for label, checked in (("Declared", True), ("Declared, and not checked", False)):
        facts = [
            f"{k} = {format_fact(v)}"
            for k, v in c.declared.items()
            if (k in compared) is checked and not _is_small_slack(k, v)
        ]
        lines += [f"{label}: {', '.join(facts)}."] if facts else []
    lines.append(
        f"Files: {', '.join(c.subject)}, by their SHA-256; another file of that name is refused."
        if c.subject
        else "Files: none is bound; that a model beside it is the one it is of, it does not say."
    )
    lines.append(f"Software: dpjax {c.version}, {c.created}.")
    return lines


# What a registry asks about a product that no certificate knows; the last three are NIST's.
PRODUCT = ("name", "curator", "description", "intended_use", "publication_year", "region", "sector")
PRODUCT += ("security", "collection", "utility")


def registry_entry(certificate: Certificate, product: Mapping[str, Any]) -> dict[str, Any]:
    """What a certificate says in the groups of the deployment registry, and of NIST SP 800-226."""
    c, pure = certificate, certificate.delta < 1e-50
    unit = (_owned(c) or ("", str(c.declared.get("unit", "record"))))[1]
    epsilon = c.epsilon if math.isfinite(c.epsilon) else None
    shown = certificate_summary(c)
    accounting = {
        "bound": f"{c.method}: {c.bound}",
        "composition": c.mechanism.describe(),
        "post_processing": "whatever is computed from what was released alone costs nothing more",
        "reserved_delta": dict(c.extra_delta),
    }
    return {
        "data_product": {name: product.get(name) for name in PRODUCT[:7]},
        "flavor": {
            "name": "pure DP" if pure else "approximate DP",
            "neighbouring_relation": f"{c.adjacency.value}: {_relation(c)}",
            "unprotected_quantities": list(c.not_covered),
        },
        "privacy_loss": {"privacy_unit": unit, "epsilon": epsilon, "delta": c.delta},
        "model": {"name": "central", "trusted": "whoever trains, with all records"},
        "accounting": accounting,
        "implementation": {
            "software": f"dpjax {c.version}",
            "mechanism": to_plain(c.mechanism),
            "files": dict(c.subject),
            "declared": dict(c.declared),
        },
        "nist_sp_800_226": {
            "privacy parameters": shown[0],
            "unit of privacy": _relation(c),
            "algorithm and its correctness": f"{c.tier}: {'; '.join(c.assumptions)}",
            "trust model": "central: the curator sees the records, the public what was released",
            "strength against attacks": shown[2] if len(shown) > 2 else shown[0],
            "what is released without protection": list(c.not_covered),
            "side channels and security": product.get("security"),
            "data collection and access": product.get("collection"),
            "utility and bias": product.get("utility"),
        },
    }
