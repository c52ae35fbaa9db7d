"""What a run released of its records before it trains: a file of its folder, with the price.

A run that ends after its looks at the records has spent them. The table that they found is kept
beside the key of the run, so that `--resume` goes on from it, also where what is predicted or how
it is trained has changed, and nobody looks twice.
"""

from __future__ import annotations

import hashlib
import json
import math
import pathlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpjax._digits import format_rounded_up

if TYPE_CHECKING:
    from dpjax.accounting import Certificate
    from dpjax.data import PrivateTable, Schema
    from dpjax.training import Checkpoints, Plan

FILE = "private_table.json"
_FORMAT = 1


@dataclass(frozen=True)
class Released:
    """A table that was released: what was found, and what that cost alone."""

    schema: Schema  # complete
    certificate: Certificate  # of the looks alone
    class_threshold: int  # the noisy count above which a class was released

    def describe_cost(self) -> str:
        """What the looks cost, in words."""
        own = self.certificate
        cost = f"ε = {format_rounded_up(own.epsilon, 4)} at δ = {own.delta:g}"
        return f"the looks at the records cost {cost} ({own.adjacency.value})"


def certify_looks(table: PrivateTable, plan: Plan, noise: str) -> Certificate:
    """The certificate of a table's looks alone, at the δ of the run that they are the start of."""
    from dpjax import accounting as acc
    from dpjax.training.plan import NOTHING_CHOSEN

    unit = {} if plan.unit == "record" else {"unit": plan.unit}
    return acc.certify(
        table.mechanism,
        plan.delta,
        adjacency=plan.adjacency,
        extra_delta=table.extra_delta,
        assumptions=(*NOTHING_CHOSEN, *table.public),
        declared={"noise": noise, "records": table.records, **unit},
    )


def write_released(
    folder: pathlib.Path, found: Released, declared: Schema | None, store: Checkpoints
):
    """Keep a released table in the folder of its run."""
    from dpjax import data
    from dpjax.data.schema import RELEASED
    from dpjax.training import write_atomically

    content = {
        "format": _FORMAT,
        "encoding": data.describe_encoding(found.schema, declared, learned=RELEASED),
        "class_threshold": found.class_threshold,
        "certificate": json.loads(found.certificate.to_json()),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False).encode()
    # The note, beside the key, says that the file is of this run, and it holds no digest of a key.
    store.noted(_name_note(text), True)
    write_atomically(folder / FILE, text)


def read_released(folder: pathlib.Path, store: Checkpoints) -> Released | None:
    """The table that this run released, None where there is none, or another's, or a damaged one.

    The run then makes the same release again, by its key.
    """
    from dpjax import accounting as acc
    from dpjax import data

    try:
        text = (folder / FILE).read_bytes()
    except OSError:
        return None
    if not store.noted(_name_note(text), False):
        return None
    content: dict[str, Any] = json.loads(text)  # as it was written, by the note
    if content["format"] != _FORMAT:
        raise ValueError(
            f"{folder / FILE} must be of format {_FORMAT}, got {content['format']}: resume the run "
            "with the version of dpjax that it began with"
        )
    certificate = acc.Certificate.from_json(json.dumps(content["certificate"]))
    schema = data.described_schema(content["encoding"])
    return Released(schema, certificate, int(content["class_threshold"]))


def _name_note(text: bytes) -> str:
    return f"released_{hashlib.sha256(text).hexdigest()[:32]}"


def choose_target(found: Schema, asked: Schema, *, is_number: bool) -> Schema:
    """The released table for the target as it is asked for now, without a further look.

    What is declared holds, and else what was released: the classes, or of a number the range, which
    follows from classes that were all numbers.
    """
    if is_number:
        ends = asked.target_range or found.target_range or _find_range(found)
        if ends is None:
            raise ValueError(
                "--task must be classification, or a schema must declare the range of "
                f"{found.target!r}, got regression: the looks that were taken found no numbers"
            )
        return replace(found, classes=(), aliases=(), target_range=ends)
    if asked.classes is None and found.target_range is not None:
        raise ValueError(
            f"--classes must declare the classes of {found.target!r}, or --task be regression, got "
            "neither: the looks that were taken found the range of a number"
        )
    classes = found.classes if asked.classes is None else asked.classes
    return replace(found, classes=classes, aliases=asked.aliases, target_range=None)


def parse_classes(schema: Schema) -> list[float] | None:
    """The classes as numbers, None where one is none or there is none."""
    from dpjax.data.cells import parse_number

    marks = schema.decimal, schema.thousands
    parsed = [parse_number(one, *marks) for one in schema.classes or ()]
    numbers = [float(text) for text in parsed if text is not None]
    all_are = len(numbers) == len(parsed) and all(map(math.isfinite, numbers))
    return numbers if numbers and all_are else None


def _find_range(schema: Schema) -> tuple[float, float] | None:
    numbers = parse_classes(schema)
    return (min(numbers), max(numbers)) if numbers and min(numbers) < max(numbers) else None
