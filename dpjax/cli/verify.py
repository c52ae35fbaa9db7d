"""`dpjax verify`: recompute a certificate, and say in words what it means."""

from __future__ import annotations

import math
import pathlib
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from dpjax.cli.inputs import exit_on_bad_input, option, print_json, verify_certificate

if TYPE_CHECKING:
    from rich.console import Console


def verify(
    certificate: Annotated[
        pathlib.Path, typer.Argument(help="A certificate.json, or the folder of a run.")
    ],
    as_json: Annotated[bool, option("Print the finding as JSON.", "--json")] = False,
) -> None:
    """Recompute ε from a certificate alone, and say what it covers.

    Opens with who is protected, against what, how well, and what is not covered; then the details.
    The mechanism in the certificate is priced again by the bound it names, and checked against an
    independent one where there is one; the files that it names are compared with those beside it.
    Exit code 1 if a field was changed or disagrees, or a file is another; the field is named.

        dpjax verify runs/digits/certificate.json
    """
    with exit_on_bad_input():
        found, check = verify_certificate(certificate, as_json)
    beside = certificate if certificate.is_dir() else certificate.parent
    compared = [name for name in found.subject if (beside / name).is_file()]
    if as_json:
        print_json(
            {
                "valid": True,
                "epsilon": found.epsilon,
                "delta": found.delta,
                "adjacency": found.adjacency.value,
                "tier": found.tier,
                "method": check.method,
                "recomputed_epsilon": check.epsilon,
                "checked_by": check.checked_by,
                "checked_lower": check.lower,
                "checked_upper": check.upper,
                "not_covered": list(found.not_covered),
                "files": dict(found.subject),
                "files_compared": list(compared),
                "version": found.version,
            }
        )
        return
    from rich.console import Console

    console = Console()
    recomputed = f"{check.method} gives ε = {check.epsilon:.9g}. The certificate holds."
    lines = [found.describe(), "", f"Recomputed: {recomputed}"]
    if check.checked_by is not None:
        upper = f"{check.upper:.6g}" if math.isfinite(check.upper) else "no upper bound"
        lines.append(
            f"Independently: {check.checked_by} puts ε between {check.lower:.6g} and {upper}."
        )
    if found.subject:
        absent = [name for name in found.subject if name not in compared]
        missing = f"; not there: {', '.join(absent)}" if absent else ""
        lines.append(f"Files compared: {', '.join(compared) or 'none'}{missing}.")
    if found.tier != "proven":
        lines.append(f"Note: the guarantee is {found.tier}; read what it assumes.")
    show_labelled(console, "\n".join(lines))


WIDEST = 100  # longer lines are hard to read
_COLOURS = {
    "Protected": "green",
    "Against": "green",
    "How well": "green",
    "Only if": "yellow",
    "Not covered": "yellow",
    "REFUSED": "red",
}


def show_labelled(console: Console, text: str) -> None:
    """Print lines `Label: a sentence.` wrapped under their label; the console knows of colours."""
    from rich.text import Text

    width = max(min(console.width, WIDEST), 20)
    for line in text.split("\n"):
        label, colon, _ = line.partition(": ")
        style = f"bold {_COLOURS.get(label, '')}".strip()
        wrapped = textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False) or [""]
        for number, part in enumerate(wrapped):
            shown = Text(part)
            if colon and number == 0:
                shown.stylize(style, 0, min(len(label) + 1, len(part)))
            console.print(shown, soft_wrap=True, highlight=False)
