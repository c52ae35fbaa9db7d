"""A certificate in words: first for whoever must decide about it, then the details."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpjax._digits import rounded_up
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers.attacker import success
from dpjax.accounting.mechanisms import UserLevel

if TYPE_CHECKING:
    from dpjax.accounting.answers.certificate import Certificate

FALSE_ALARMS = 1e-3

_RELATION = {
    Adjacency.ADD_REMOVE: "adding or removing one record",
    Adjacency.REPLACE_ONE: "replacing one record by another",
}
_PROTECTED = {
    Adjacency.ADD_REMOVE: "whoever contributed one record: what was released looks almost the same "
    "with and without it. Of several records, each costs again",
    Adjacency.REPLACE_ONE: "whoever contributed one record: what was released looks almost the "
    "same whatever that record says. Of several records, each costs again",
}
_AGAINST = {
    Adjacency.ADD_REMOVE: "anyone who sees what was released and tries to find out whether a "
    "record was in the data, even knowing all the others",
    Adjacency.REPLACE_ONE: "anyone who sees what was released and tries to find out which of two "
    "records was in the data, even knowing all the others",
}


def shown(value: object) -> str:
    """A declared fact in words: a fraction to six digits, anything else as it is.

    Example:
        >>> shown(359.0000000772998), shown(200), shown("user")
        ('359', '200', 'user')
    """
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


def percent(share: float) -> str:
    """A share of one as a percentage, rounded up to two digits.

    Example:
        >>> percent(0.0018001), percent(0.5), percent(0.999)
        ('0.19 %', '50 %', '100 %')
    """
    value = 100 * share
    if value <= 0:
        return "0 %"
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    up = math.ceil(value / unit) * unit
    return f"{min(up, 100.0):.2g} %" if up < 99.5 else "100 %"


def _whole_users(c: Certificate) -> bool:
    """Whether a record is all that one user contributes, as a plan of that unit declares."""
    return c.declared.get("unit") == "user"


def _protected(c: Certificate) -> str:
    words = _PROTECTED[c.adjacency]
    if isinstance(c.mechanism, UserLevel) or _whole_users(c):
        most = "any number of records"
        if isinstance(c.mechanism, UserLevel):
            most = f"at most {c.mechanism.records:g} records"
        words = words.split(". ")[0].replace("one record", most)
        words = words.replace("with and without it", "with and without them")
        words = words.replace("that record says", "those records say")
    return words


def _relation(c: Certificate) -> str:
    words = _RELATION[c.adjacency]
    if isinstance(c.mechanism, UserLevel):
        many = f"up to {c.mechanism.records:g} records of one user"
        words = words.replace("one record by another", f"{many} by others")
        return words.replace("one record", many)
    if _whole_users(c):
        words = words.replace("one record by another", "all records of one user by others")
        return words.replace("one record", "all records of one user")
    return words


def _whom(c: Certificate, words: str) -> str:
    """The same of users, where they are what is protected."""
    if not (isinstance(c.mechanism, UserLevel) or _whole_users(c)):
        return words
    return words.replace("records", "users").replace("record", "user")


def _sentence(text: str) -> str:
    return text.rstrip(".") + "."


def summary(certificate: Certificate) -> list[str]:
    """Who is protected, against what, how well, under which conditions, and what is not covered.

    Returns:
        Lines `Label: a sentence.`

    Example:
        >>> from dpjax import accounting as acc
        >>> lines = summary(acc.certify(acc.Gaussian(4.0), delta=1e-5))
        >>> lines[2][:60]
        'How well: with one false alarm in a thousand, such an attack'
        >>> [line.split(":")[0] for line in lines]
        ['Protected', 'Against', 'How well', 'Not covered']
    """
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
            f"Against: {_whom(c, _AGAINST[c.adjacency])}.",
            "How well: with one false alarm in a thousand, such an attack is right about at most "
            f"{percent(caught)} of the {_whom(c, 'records')} it is after (a guess: 0.1 %).",
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
    """What was released, what it costs, by which bound, and what that rests on; as `summary`.

    Example:
        >>> from dpjax import accounting as acc
        >>> details(acc.certify(acc.Gaussian(4.0), delta=1e-5))[1]
        'Guarantee: (0.926342, 1e-05)-differential privacy.'
    """
    c = certificate
    lines = [f"Released: {c.mechanism.describe()}."]
    if math.isfinite(c.epsilon):
        lines.append(
            f"Guarantee: ({rounded_up(c.epsilon)}, {rounded_up(c.delta)})-differential privacy."
        )
    else:
        lines.append("Guarantee: none; no finite ε can be stated.")
    lines.append(f"Neighbours: {_relation(c)} ({c.adjacency.value}).")
    lines.append(f"Bound: {c.method}: {c.bound}.")
    lines.append(f"Tier: {c.tier}.")
    for reason, share in c.extra_delta.items():
        lines.append(f"Reserved of δ: {share:g} for {reason}.")
    lines += [f"Assumes: {a}." for a in c.assumptions]
    if c.declared:
        facts = (f"{k} = {shown(v)}" for k, v in c.declared.items())
        lines.append(f"Declared: {', '.join(facts)}.")
    lines.append(f"Software: dpjax {c.version}, {c.created}.")
    return lines
