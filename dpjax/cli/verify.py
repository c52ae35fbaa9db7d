"""`dpjax verify` and `ledger`: does a certificate hold, and what do those of a data set add up to?

Both read certificates and no records.
"""

from __future__ import annotations

import math
import pathlib
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from dpjax._digits import format_rounded_up
from dpjax.cli.inputs import (
    adjacency_option,
    exit_on_bad_input,
    option,
    print_json,
    verify_certificate,
)
from dpjax.cli.texts import show_plainly

if TYPE_CHECKING:
    from rich.console import Console

    from dpjax.accounting import Ledger


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
    from dpjax.cli.console import PlainConsole

    console = PlainConsole()
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


def ledger(
    file: Annotated[pathlib.Path, typer.Argument(help="The ledger, a JSON file beside the data.")],
    epsilon: Annotated[float | None, option("The budget of a new ledger.")] = None,
    delta: Annotated[float | None, option("The δ of a new ledger's budget.")] = None,
    adjacency: Annotated[
        str, adjacency_option("Of a new ledger; every run must have it.")
    ] = "add-remove",
    unit: Annotated[str, option("Of a new ledger: record, user or person.")] = "record",
    measure: Annotated[
        str, option("What adds up, of a new ledger: renyi (any run), gaussian (without sampling).")
    ] = "renyi",
    order: Annotated[
        float | None, option("The Rényi order of a new ledger. [default: what the budget suggests]")
    ] = None,
    data: Annotated[
        pathlib.Path | None, option("The data set's file; refused if its content is another one.")
    ] = None,
    add: Annotated[
        list[pathlib.Path] | None,
        option("A certificate, or the folder of a run, of one that train --ledger has not booked."),
    ] = None,
    merge: Annotated[
        pathlib.Path | None, option("A copy of the ledger whose runs are to be booked here too.")
    ] = None,
    as_json: Annotated[bool, option("Print the state as JSON.", "--json")] = False,
) -> None:
    """What a data set has spent of its budget, run by run.

    A file that does not exist is made, of --epsilon and --delta. Runs that were chosen after
    results of earlier ones were seen cost more than those that were planned together: both prices
    are shown, and the first one is kept below the budget. `dpjax train --ledger` books a run before
    it starts.

        dpjax ledger people.ledger.json --epsilon 3 --delta 1e-6 --data people.csv
        dpjax ledger people.ledger.json --add runs/people
    """
    with exit_on_bad_input():
        from dpjax import accounting as acc

        place = acc.LedgerFile(file, data)
        if (epsilon is None) is not (delta is None):
            raise ValueError("give both --epsilon and --delta, or none of them")
        if epsilon is not None and delta is not None:
            head = {"unit": unit, "measure": measure, "order": order}
            place.create(acc.Ledger(epsilon, delta, acc.Adjacency(adjacency), **head))
        elif not file.exists():
            raise ValueError(f"--epsilon is missing: {file} is no ledger yet")
        for path in add or ():
            place.book(verify_certificate(path, as_json)[0])
        found = place.read() if merge is None else place.merge(acc.LedgerFile(merge).read())
        spent, planned = found.spent(), found.planned()
    if as_json:
        names = "created", "epsilon", "delta"
        runs = [{name: getattr(entry, name) for name in names} for entry in found.entries]
        values = {"epsilon": found.epsilon, "delta": found.delta, "spent": spent}
        values |= {"planned": planned, "adjacency": found.adjacency.value, "unit": found.unit}
        print_json({**values, "measure": found.measure, "order": found.order, "runs": runs})
        return
    from dpjax.cli.console import PlainConsole

    show_labelled(PlainConsole(), "\n".join(_describe_ledger(found, spent, planned)))


def _describe_ledger(found: Ledger, spent: float, planned: float) -> list[str]:
    kept = f"ε = {found.epsilon:g} at δ = {found.delta:g} ({found.adjacency.value})"
    how = "μ² of Gaussians" if found.measure == "gaussian" else f"Rényi at order {found.order:g}"
    lines = [f"Budget: {kept}, for each {found.unit}; {how} adds up."]
    for entry in found.entries:
        cost = f"ε = {format_rounded_up(entry.epsilon, 4)} at δ = {entry.delta:g} alone"
        lines.append(f"Run: {entry.created}, {cost}: {entry.mechanism.describe()}.")
    lines.append(f"Spent: ε = {format_rounded_up(spent, 4)}, whatever each run was chosen by.")
    if found.entries:
        words = "if all of these had been declared before the first one"
        lines.append(f"Planned: ε = {format_rounded_up(planned, 4)} {words}.")
    return lines


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
    for line in show_plainly(text).split("\n"):
        label, colon, _ = line.partition(": ")
        style = f"bold {_COLOURS.get(label, '')}".strip()
        wrapped = textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False) or [""]
        for number, part in enumerate(wrapped):
            shown = Text(part)
            if colon and number == 0:
                shown.stylize(style, 0, min(len(label) + 1, len(part)))
            console.print(shown, soft_wrap=True, highlight=False)
