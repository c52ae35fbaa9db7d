"""`python -m experiments verify`: every certificate of the experiments, recomputed."""

from __future__ import annotations

import pathlib
from collections.abc import Callable


def verify(folder: pathlib.Path, say: Callable[[str], None]) -> int:
    """Checks each line of every certificates/*.jsonl below `folder`; 0 if all hold, else 1.

    A certificate holds if nothing in it was changed and its ε recomputes from its mechanism.
    """
    from dpjax import accounting as acc

    refused, total = 0, 0
    for file in sorted(folder.rglob("certificates/*.jsonl")):
        lines = file.read_text().splitlines()
        for number, line in enumerate(lines, 1):
            total += 1
            try:
                acc.Certificate.from_json(line).verify()
            except acc.CertificateError as error:
                refused += 1
                say(f"REFUSED: {file}, line {number}: {error}")
        say(f"{file.relative_to(folder)}: {len(lines)} certificates")
    say(f"{total - refused} of {total} certificates hold")
    return int(refused > 0)
