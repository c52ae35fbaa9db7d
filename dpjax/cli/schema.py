"""`dpjax schema`: a draft of a schema by the form of a table's cells, for its owner to decide."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from dpjax.cli import inputs
from dpjax.cli.inputs import option
from dpjax.cli.rows import check_column, with_cell_options
from dpjax.cli.texts import say

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
MARKS = ((".", None), (",", None), (",", "."), (".", ","))  # of decimals and thousands
_EITHER = '  # "," if 1,500 is one and a half; if it is 1500: ".", and a line thousands = ","'
_EITHER_POINT = '  # "." and a line thousands = "," if 1.500 is one and a half; else "," and "."'
_DATE = r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T].*)?"


def schema(
    data: Annotated[str, typer.Argument(help="A file, as of train --data.")],
    out: Annotated[pathlib.Path, option("The draft, as TOML; never overwritten.")],
    target: Annotated[str | None, option("The column to predict.")] = None,
    missing: inputs.MissingOption = None,
    decimal: inputs.DecimalOption = None,
    thousands: inputs.ThousandsOption = None,
) -> None:
    """Draft a schema: names and kinds of columns, for you to decide.

    It is read off the form of the cells, so that it is NOT private and not for release. Ranges,
    categories and classes are not in it: add those that are public; train finds the others with
    noise, or off the records, as --preprocessing says.

        dpjax schema patients.csv --out patients.toml
        dpjax train --data patients.csv --target readmitted --epsilon 1 --schema patients.toml
    """
    with inputs.exit_on_bad_input():
        from dpjax import data as reading

        inputs.check_new_file("--out", out, (".toml",))
        given = with_cell_options(None, missing, decimal, thousands)
        # In a sparse file alone the cells must be read to know its columns.
        frame = reading.read_table(data, schema=given, as_written="svm" not in data.lower())
        if target is not None:
            check_column("--target", target, list(frame.columns))
        text, undecided = _draft(frame, given or reading.Schema(()), target)
        out.write_text(_HEAD.format(name=pathlib.Path(data).name) + text, encoding="utf-8")
    say(f"{out} is a draft of {len(frame.columns)} columns: NOT private, not for release")
    if undecided:
        say(f"still to be decided there: {', '.join(undecided)}")


def _draft(frame: pd.DataFrame, given: Schema, target: str | None) -> tuple[str, list[str]]:
    """The text of the draft, and the columns that are still to be decided."""
    from dpjax.data.cells import find_unclear_point, parse_cells, parse_number, tidy_text

    frame, missing = frame.mask(frame == ""), (*given.missing, *_MISSING)
    own = given.decimal, given.thousands
    marked = MARKS if own == MARKS[0] else (own,)
    # The first of those by which most columns are numbers.
    texts = [{cell for cell in values if isinstance(cell, str)} for _, values in frame.items()]
    texts = [{cell for cell in cells if tidy_text(cell) not in missing} for cells in texts]
    counts = [sum(all(parse_number(c, *m) for c in cells) for cells in texts) for m in marked]
    best = [marks for marks, count in zip(marked, counts, strict=True) if count == max(counts)]
    decimal, thousands = best[0]
    schema = replace(given, missing=missing, decimal=decimal, thousands=thousands)
    either = ""
    if best[0] == MARKS[0] and any(map(find_unclear_point, texts)):
        either, schema = _EITHER_POINT, replace(schema, thousands=",")
    # By commas that all have three digits behind them, 1,500 may be either.
    elif decimal == "," and (".", ",") in best:
        either = _EITHER
    table = parse_cells(frame, schema)
    numbers = frame[table.select_dtypes("number").columns]
    absent = [text for text in missing if (numbers == text).any(axis=None)]
    lines = [f"target = {_quote(target)}" if target else '# target = "…", or --target']
    if absent or frame.isna().any(axis=None):
        listed = ", ".join(map(_quote, absent or [""]))
        lines.append(f"missing = [{listed}]  # these, and empty cells, hold no value")
    undecided = ["decimal"] if either else []
    if either or decimal != ".":
        lines.append(f"decimal = {_quote('decide' if either else decimal)}{either}")
    lines += [f"thousands = {_quote(thousands)}"] if thousands else []
    for name in [column for column in table.columns if column != target]:
        kind, why = _guess(table, name, schema)
        undecided += [name] if kind == "decide" else []
        said = f"  # {why}" if why else ""
        lines += ["", "[[columns]]", f"name = {_quote(name)}", f"kind = {_quote(kind)}{said}"]
    return "\n".join(lines) + "\n", undecided


def _guess(table: pd.DataFrame, name: str, schema: Schema) -> tuple[str, str]:
    """A column's kind, and why it must be decided."""
    from dpjax.data.cells import DataError, check_kind, check_variety
    from dpjax.data.schema import is_named_as_id

    given = table[name].dropna()
    if given.empty:
        return "ignore", "no cell holds a value"
    is_number = given.dtype.kind in "biuf"  # of which none is a date, and each as a text is slow
    if not is_number and given.astype(str).str.fullmatch(_DATE).all():
        return "decide", "dates: ignore, or write an age or a year in the file"
    if is_named_as_id(name) or (given.dtype.kind == "i" and len(given) > 20 and given.is_unique):
        return "decide", "an id? ignore, or --person"
    try:
        if (kind := check_kind(table, name, schema)) == "category":
            check_variety(name, given.nunique(), len(given), "")
    except DataError:
        return "decide", "neither numbers nor few texts: a unit, another mark, names, ids?"
    return kind, ""


def _quote(text: str) -> str:
    # What JSON leaves as it is and TOML does not.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
