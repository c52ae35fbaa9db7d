"""The sentences of a certificate, each with a code: who must act, and which files tell of records.

Software acts on codes alone. A sentence may be shortened or translated, and changes no advice.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from dpjax._numerics import checks

OTHER = "other"


class Actor(enum.StrEnum):
    """Who has to act on a sentence of a certificate."""

    TRAINER = "whoever trained"
    PUBLISHER = "whoever publishes"
    OPERATOR = "whoever runs the machine"
    ORGANISATION = "the organisation"
    SIGNER = "whoever signs"
    NOBODY = ""


class SentenceKind(NamedTuple):
    """What follows from a code.

    Fields:
        actor: who has to act.
        files: those of a run's folder that tell of records because of it.
        earlier: what such a sentence holds in certificates of format 1, a regular expression; none
            where nothing followed from it then.
    """

    actor: Actor
    files: tuple[str, ...] = ()
    earlier: str = ""


_RESULTS = "metrics.csv", "training.png", "evaluation.json"
_MODEL = "model.safetensors", "model.json", "effects.png"

# Sentences of format 1 are of the first kind whose expression they hold.
KINDS: dict[str, SentenceKind] = {
    # A part of δ, by which ε is of the moment at which the run stopped: no composition counts it.
    "stopped-by-release": SentenceKind(Actor.NOBODY, (), "^stopping at one of "),
    # What ε does not cover.
    "key-by-hand": SentenceKind(Actor.TRAINER, (*_MODEL, *_RESULTS), "seed given by hand"),
    # A picture of the model shows its ranges and categories too.
    "learned-from-rows": SentenceKind(Actor.TRAINER, _MODEL[1:], "learned from the rows"),
    "accuracy-without-privacy": SentenceKind(
        Actor.PUBLISHER, ("training.png",), "accuracy without privacy"
    ),
    "held-out-exact": SentenceKind(Actor.PUBLISHER, _RESULTS, "held-out records, which"),
    "training-losses": SentenceKind(Actor.PUBLISHER, ("metrics.csv",), "functions of the training"),
    "running-time": SentenceKind(Actor.OPERATOR, (), "running time"),
    "settings-chosen": SentenceKind(Actor.TRAINER, (), "^choosing settings.*by looking at results"),
    "columns-as-found": SentenceKind(Actor.SIGNER),
    "earlier-steps": SentenceKind(Actor.SIGNER),
    "file-divided": SentenceKind(Actor.SIGNER),
    "shown-on-screen": SentenceKind(Actor.SIGNER),
    # What is taken as true.
    "duration-unseen": SentenceKind(Actor.OPERATOR, (), "how long the run took"),
    "nothing-chosen": SentenceKind(Actor.TRAINER, (), "by looking at results"),
    "records-public": SentenceKind(Actor.ORGANISATION, (), "treated as public"),
    "columns-public": SentenceKind(Actor.ORGANISATION, (), "columns are public"),
    "held-out-public": SentenceKind(Actor.ORGANISATION, (), "^public: the held-out"),
    "given-as-public": SentenceKind(Actor.ORGANISATION, (), "public: "),
    "key-secret": SentenceKind(Actor.OPERATOR, (), "key of the run stays secret"),
    "held-out-by-coin": SentenceKind(
        Actor.NOBODY, (), "^a record is trained on or held out by a secret coin"
    ),
    "mechanism": SentenceKind(Actor.NOBODY),  # of what is released, or of the bound that prices it
    "computation": SentenceKind(Actor.NOBODY),
    "unit": SentenceKind(Actor.NOBODY),
    "score": SentenceKind(Actor.NOBODY),
    "table-as-given": SentenceKind(Actor.NOBODY),
    # What a part of δ is reserved for.
    "rounding": SentenceKind(Actor.NOBODY),
    "lone-value": SentenceKind(Actor.NOBODY),
    # What dpjax did not write.
    OTHER: SentenceKind(Actor.SIGNER),
}


class Disclosure(str):
    """A sentence of a certificate: a text like any other, with a code that software acts on.

    What is cut, joined or formatted of it is a plain text again, without the code.

    Args:
        code: of what kind it is, one of those that dpjax knows; "other" of a user's own words.
        text: the sentence, in any language.

    Raises:
        ValueError: an unknown code.

    Example:
        >>> from dpjax import accounting as acc
        >>> said = acc.Disclosure("key-by-hand", "la graine est connue")
        >>> said, str(said.actor), said.files[:2]
        ('la graine est connue', 'whoever trained', ('model.safetensors', 'model.json'))
        >>> acc.certify(acc.Gaussian(4.0), 1e-5, not_covered=[said, "my own"]).not_covered[1].code
        'other'
    """

    _code: str

    def __new__(cls, code: str, text: str) -> Disclosure:
        checks.choice("code", code, tuple(KINDS))
        made = super().__new__(cls, text)
        made._code = code
        return made

    def __reduce__(self) -> tuple[type[Disclosure], tuple[str, str]]:
        return Disclosure, (self._code, str(self))

    @property
    def code(self) -> str:
        """The kind of sentence that it is, by name."""
        return self._code

    @property
    def actor(self) -> Actor:
        """Who has to act."""
        return KINDS[self._code].actor

    @property
    def files(self) -> tuple[str, ...]:
        """The files of a run's folder that tell of records because of it."""
        return KINDS[self._code].files

    def reword(self, text: str) -> Disclosure:
        """The same in other words."""
        return Disclosure(self._code, text)


def with_code(text: str, code: str = OTHER) -> Disclosure:
    """The sentence as it is where it has a code, else with this one."""
    return text if isinstance(text, Disclosure) else Disclosure(code, str(text))


def read_sentence(text: str) -> Disclosure:
    """A sentence of a certificate of format 1, with the code that it would have been given."""
    if isinstance(text, Disclosure):
        return text
    kinds = ((code, kind.earlier) for code, kind in KINDS.items() if kind.earlier)
    return Disclosure(next((code for code, part in kinds if re.search(part, text)), OTHER), text)
