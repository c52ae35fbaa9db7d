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


class Kind(NamedTuple):
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
KINDS: dict[str, Kind] = {
    # A part of δ, by which ε is of the moment at which the run stopped: no composition counts it.
    "stopped-by-release": Kind(Actor.NOBODY, (), "^stopping at one of "),
    # What ε does not cover.
    "key-by-hand": Kind(Actor.TRAINER, (*_MODEL, *_RESULTS), "seed given by hand"),
    # A picture of the model shows its ranges and categories too.
    "learned-from-rows": Kind(Actor.TRAINER, _MODEL[1:], "learned from the rows"),
    "accuracy-without-privacy": Kind(
        Actor.PUBLISHER, ("training.png",), "accuracy without privacy"
    ),
    "held-out-exact": Kind(Actor.PUBLISHER, _RESULTS, "held-out records, which"),
    "training-losses": Kind(Actor.PUBLISHER, ("metrics.csv",), "functions of the training"),
    "running-time": Kind(Actor.OPERATOR, (), "running time"),
    "settings-chosen": Kind(Actor.TRAINER, (), "^choosing settings.*by looking at results"),
    "columns-as-found": Kind(Actor.SIGNER),
    "earlier-steps": Kind(Actor.SIGNER),
    "file-divided": Kind(Actor.SIGNER),
    "shown-on-screen": Kind(Actor.SIGNER),
    # What is taken as true.
    "duration-unseen": Kind(Actor.OPERATOR, (), "how long the run took"),
    "nothing-chosen": Kind(Actor.TRAINER, (), "by looking at results"),
    "records-public": Kind(Actor.ORGANISATION, (), "treated as public"),
    "columns-public": Kind(Actor.ORGANISATION, (), "columns are public"),
    "held-out-public": Kind(Actor.ORGANISATION, (), "^public: the held-out"),
    "given-as-public": Kind(Actor.ORGANISATION, (), "public: "),
    "key-secret": Kind(Actor.OPERATOR, (), "key of the run stays secret"),
    "held-out-by-coin": Kind(
        Actor.NOBODY, (), "^a record is trained on or held out by a secret coin"
    ),
    "mechanism": Kind(Actor.NOBODY),  # of what is released, or of the bound that prices it
    "computation": Kind(Actor.NOBODY),
    "unit": Kind(Actor.NOBODY),
    "score": Kind(Actor.NOBODY),
    "table-as-given": Kind(Actor.NOBODY),
    # What a part of δ is reserved for.
    "rounding": Kind(Actor.NOBODY),
    "lone-value": Kind(Actor.NOBODY),
    # What dpjax did not write.
    OTHER: Kind(Actor.SIGNER),
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
        """Of what kind it is."""
        return self._code

    @property
    def actor(self) -> Actor:
        """Who has to act."""
        return KINDS[self._code].actor

    @property
    def files(self) -> tuple[str, ...]:
        """The files of a run's folder that tell of records because of it."""
        return KINDS[self._code].files

    def reworded(self, text: str) -> Disclosure:
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
