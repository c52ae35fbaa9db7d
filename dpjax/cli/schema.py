"""`dpjax schema`: a draft of a schema by the form of a table's cells, for its owner to decide."""

from __future__ import annotations

import json
import pathlib
import re
from typing import TYPE_CHECKING, Annotated

import typer

from dpjax.cli import inputs
from dpjax.cli.inputs import option

if TYPE_CHECKING:
    import pandas as pd

    from dpjax.data import Schema

_HEAD = """\
# Drafted by dpjax schema from the cells of {name}. NOT private, and not for release.
# Of the cells their form alone was read: no range, category or class is below. A kind that stays
# says that it is known without the records, from a form or a data dictionary.
# Where a line says "decide", write "number", "category" or "ignore" (left out). To protect persons,
# name the column that says whose a row is by: dpjax train --person COLUMN
"""
_MISSING = ("NA", "N/A", "n/a", "na", "NULL", "null", "None", "?", "-", "--", ".", "#N/A")
_MARKS = ((".", None), (",", None), (",", "."), (".", ","))  # of decimals and thousands
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T].*)?")
_ID = re.compile(r"(^|.*[\W_])(id|nr|no|key|number|uuid)$|.*[a-z](Id|ID|Nr|No)$")


def schema(
    data: Annotated[str, typer.Argument(help="A file, as of train --data.")],
    out: Annotated[pathlib.Path, option("The draft, as TOML; never overwritten.")],
    target: Annotated[str | None, option("The column to predict.")] = None,
    missing: inputs.MissingOption = None,
    decimal: inputs.DecimalOption = None,
    thousands: inputs.ThousandsOption = None,
) -> None:
    """Draft a schema: names and kinds of the columns, marked where you must decide.

    It is read off the form of the cells, so that it is NOT private and not for release. Ranges,
    categories and classes are not in it: add those that are public; train finds the others with
    noise, or off the records, as --preprocessing says.

        dpjax schema patients.csv --out patients.toml
        dpjax train --data patients.csv --target readmitted --epsilon 1 --schema patients.toml
    """
    with inputs.exit_on_bad_input():
        from dpjax import data as reading

        inputs.check_new_file("--out", out, (".toml",))
        given = inputs.with_cell_options(None, missing, decimal, thousands) or reading.Schema(())
        # Of a sparse file alone the cells must be read to know its columns.
        frame = reading.read_table(data, schema=given, as_written="svm" not in data.lower())
        if target is not None:
            inputs.check_column("--target", target, list(frame.columns))
        text, undecided = _draft(frame, given, target, pathlib.Path(data).name)
        out.write_text(text, encoding="utf-8")
    typer.echo(f"{out} is a draft of {len(frame.columns)} columns: NOT private, not for release")
    if undecided:
        typer.echo(f"still to be decided there: {', '.join(undecided)}")


def _draft(
    frame: pd.DataFrame, given: Schema, target: str | None, name: str
) -> tuple[str, list[str]]:
    """The text of the draft, and the columns that are still to be decided."""
    from dpjax.data.encoding import as_texts

    columns = {column: as_texts(frame[column], given) for column in frame.columns}
    features = [column for column in columns if column != target]
    found = {column: set(cells.tolist()) for column, cells in columns.items()}
    numeric = {marks: [c for c in features if _are_numbers(found[c], *marks)] for marks in _MARKS}
    own = given.decimal, given.thousands
    marks = max(numeric, key=lambda one: len(numeric[one])) if own == _MARKS[0] else own
    absent = [m for m in _MISSING if any(m in found[c] for c in numeric.get(marks, features))]
    lines = [_HEAD.format(name=name)]
    lines += [f"target = {_quote(target)}"] if target else ['# target = "…", or --target']
    if absent or given.missing or any("" in cells for cells in found.values()):
        listed = ", ".join(map(_quote, dict.fromkeys([*given.missing, *absent]) or [""]))
        lines.append(f"missing = [{listed}]  # these, and empty cells, hold no value")
    if marks != _MARKS[0]:
        lines.append(f"decimal = {_quote(marks[0])}")
        lines += [f"thousands = {_quote(marks[1])}"] if marks[1] else []
    undecided = []
    for column in features:
        kind, why = _guess(column, columns[column].tolist(), *marks)
        undecided += [column] if kind == "decide" else []
        said = f"  # {why}" if why else ""
        lines += ["", "[[columns]]", f"name = {_quote(column)}", f"kind = {_quote(kind)}{said}"]
    return "\n".join(lines) + "\n", undecided


def _are_numbers(cells: set[str], decimal: str, thousands: str | None) -> bool:
    """Whether some cells are numbers, and no other one holds a value."""
    from dpjax.data.cells import parse_number

    rest = cells - {"", *_MISSING}
    return bool(rest) and all(parse_number(c, decimal, thousands) is not None for c in rest)


def _guess(name: str, cells: list[str], decimal: str, thousands: str | None) -> tuple[str, str]:
    """A column's kind, and why it must be decided."""
    from dpjax.data.cells import UNNAMED, DataError, check_variety, parse_number

    given = [cell for cell in cells if cell and cell not in _MISSING]
    different = set(given)
    if not different:
        return "ignore", "no cell holds a value"
    if name.startswith(UNNAMED):
        return "decide", "without a name, as an index that was written along"
    if all(_DATE.fullmatch(cell) for cell in different):
        return "decide", "dates: ignore, or write an age or a year in the file"
    parsed = sum(parse_number(cell, decimal, thousands) is not None for cell in different)
    if _ID.fullmatch(name):
        return "decide", "by its name an id: ignore, or --person"
    if parsed == len(different):
        whole = all(cell.isdigit() for cell in different)
        if whole and len(given) > 20 and len(different) == len(given):
            return "decide", "whole numbers of which none occurs twice: an id?"
        return "number", ""
    if 2 * parsed > len(different):
        return "decide", "numbers and texts: a unit, another decimal mark, or no value (missing)?"
    try:
        check_variety(name, len(different), len(given), "")
    except DataError:
        return "decide", "most cells differ: names, ids or free text? ignore, or list categories"
    return "category", ""


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
