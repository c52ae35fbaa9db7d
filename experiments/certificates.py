"""`python -m experiments verify`: every certificate of the experiments, recomputed."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable


def verify(folder: pathlib.Path, say: Callable[[str], None]) -> int:
    """Checks each line of every certificates/*.jsonl below `folder`; 0 if all hold, else 1.

    A certificate holds if nothing in it was changed, its ε recomputes from its mechanism, and a
    cell of its table has it: one that no line of a table refers to is refused.
    """
    from dpjax import accounting as acc

    refused, total = 0, 0
    for file in sorted(folder.rglob("certificates/*.jsonl")):
        lines = file.read_text().splitlines()
        known = _of_the_cells(file.parents[1] / "cells" / file.stem)
        before = refused
        for number, line in enumerate(lines, 1):
            try:
                certificate = acc.Certificate.from_json(line)
                certificate.verify()
                problem = None if line in known else "no cell of its table has it: an older run's"
            except acc.CertificateError as error:
                problem = str(error)
            if problem is not None:
                refused += 1
                say(f"REFUSED: {file.relative_to(folder)}, line {number}, {_name(line)}: {problem}")
        total += len(lines)
        held = len(lines) - (refused - before)
        say(f"{file.relative_to(folder)}: {held} of {len(lines)} certificates hold")
    say(f"{total - refused} of {total} certificates hold")
    return int(refused > 0)


def _of_the_cells(folder: pathlib.Path) -> set[str]:
    """The certificates that the cells of a table keep, one a line or a list of them."""
    found: set[str] = set()
    for file in folder.glob("*.json"):
        for row in json.loads(file.read_text())["rows"]:
            found |= {row["certificate"]} if "certificate" in row else set()
            found |= set(row.get("certificates", ()))
    return found


def _name(line: str) -> str:
    """Which method, data set and ε a certificate says it is of."""
    try:
        said = json.loads(line).get("declared", {})
    except json.JSONDecodeError:
        return "not JSON"
    return f"{said.get('method')} on {said.get('data set')} at ε = {said.get('target epsilon')}"
