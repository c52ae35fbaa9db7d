"""The rows that a command reads: of files or a named data set, by the options that say how."""

from __future__ import annotations

import difflib
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dpjax._files import JsonObject
from dpjax.cli.texts import quote_path

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from dpjax.accounting import Disclosure
    from dpjax.cli.options import TrainOptions
    from dpjax.data import Dataset, Schema


def with_cell_options(
    schema: Schema | None, missing: list[str] | None, decimal: str | None, thousands: str | None
) -> Schema | None:
    """The schema, with what the options say of how cells are written in its place."""
    from dataclasses import replace

    from dpjax.data import Schema

    listed = tuple(text for one in missing for text in one.split(",")) if missing else None
    given: dict[str, Any] = {"decimal": decimal, "thousands": thousands, "missing": listed}
    given = {name: value for name, value in given.items() if value is not None}
    return replace(schema or Schema(()), **given) if given else schema


def list_names(given: str | None) -> tuple[str, ...]:
    """The columns that an option names, with commas between them, each once."""
    names = (" ".join(part.split()) for part in (given or "").split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def with_task(schema: Schema | None, target: str, task: str) -> Schema | None:
    """The schema of a target that is a class, or of one that is a number within a range."""
    from dataclasses import replace

    from dpjax.data import Schema

    if schema is None and task != "regression":
        return None
    schema = schema or Schema(())
    # Without a target of its own, or with another, a schema has this one among its columns.
    ranges = [column.range for column in schema.columns if column.name == target]
    columns = tuple(column for column in schema.columns if column.name != target)
    schema = replace(schema, columns=columns)
    if task != "regression":
        return replace(schema, target_range=None)
    is_own = schema.target in (None, target)
    if is_own and schema.classes:
        raise ValueError(
            f"--task must be classification where a schema declares classes of {target!r}, got "
            "regression"
        )
    return replace(
        schema,
        target=target,
        classes=(),
        aliases=(),
        target_range=ranges[0] if ranges else schema.target_range if is_own else None,
    )


def with_classes(schema: Schema | None, target: str, given: str | None) -> Schema | None:
    """The schema, with the classes of an option in the place of its own."""
    from dataclasses import replace

    from dpjax.data import Schema

    if given is None:
        return schema
    classes = list_names(given)
    if len(classes) < 2:
        raise ValueError(f"--classes must be two texts or more, such as no,yes, got {given!r}")
    schema = schema or Schema(())
    kept = tuple((spelt, name) for spelt, name in schema.aliases if name in classes)
    return replace(schema, target=target, classes=classes, aliases=kept)


class Rows(NamedTuple):
    """What is read of the files, before anything of it is encoded."""

    train: pd.DataFrame
    held_out: pd.DataFrame | None  # of a file or a part of their own
    target: str
    schema: Schema | None
    persons: np.ndarray | None = (
        None  # [rows to train on], the number of the person whose row it is
    )
    shown: tuple[Disclosure, ...] = ()  # facts of the files that are said, and that no ε covers


def leave_out(schema: Schema | None, names: Sequence[str]) -> Schema | None:
    """The schema, in which these columns are no features."""
    from dataclasses import replace

    from dpjax.data import Column, Schema

    if not names:
        return schema
    schema = schema or Schema(())
    kept = [column for column in schema.columns if column.name not in names]
    return replace(schema, columns=(*kept, *(Column(name, "ignore") for name in names)))


def check_column(option: str, name: str, columns: Sequence[str]) -> None:
    """Refuse a column that the table does not have, and name those that are spelt alike."""
    if name not in columns:
        near = difflib.get_close_matches(name, columns) or list(columns[:20])
        raise ValueError(f"{option} must name a column, got {name!r}; there is {', '.join(near)}")


def _number_persons(
    frame: pd.DataFrame, column: str, schema: Schema | None, as_written: bool
) -> tuple[pd.DataFrame, np.ndarray, tuple[Disclosure, ...]]:
    """The rows that say whose they are, the number of the person of each, and what is shown."""
    from dpjax._numerics.persons import are_mixed, number_persons
    from dpjax.accounting import Disclosure
    from dpjax.data import DataError, Schema
    from dpjax.data.cells import describe_place
    from dpjax.data.single_cells import as_ids

    names = as_ids(frame[column], schema or Schema(()))
    absent = names == ""
    if absent.any() and not as_written:  # of private rows nothing is refused
        raise DataError(
            f"--person {column}: there is no value {describe_place(frame, absent)} "
            f"({absent.sum()} such rows); say there whose row it is, or drop it"
        )
    persons = number_persons(names[~absent])
    # Whether they are mixed is an exact function of the ids: said in the open alone.
    is_mixed = not as_written and are_mixed(names)
    said = Disclosure("file-divided", f"ids both as numbers and as other texts: {column}")
    shown = (said,) if is_mixed else ()
    return (frame[~absent] if absent.any() else frame), persons, shown


def _check_left_out(
    options: TrainOptions, columns: Sequence[str], target: str, left_out: Sequence[str]
) -> None:
    """Refuse columns to leave out that are none, or the target, or that another option needs."""
    for name in left_out:  # the person's last
        option = "--person" if name == options.person else "--ignore"
        check_column(option, name, columns)
        if name == target or left_out.count(name) > 1:
            other = "target" if name == target else "ignore"
            raise ValueError(f"{option} must name another column than --{other}, got {name!r}")
    if not set(columns) - {target, *left_out}:
        raise ValueError("--ignore must leave features, got all columns but the target")
    if both := [name for name in list_names(options.numeric) if name in left_out]:
        raise ValueError(f"--numeric must name features, got {both[0]!r}, which is left out")
    if options.by is not None and options.by in (*left_out, target):
        raise ValueError(f"--by must name a feature, got {options.by!r}")


def read_rows(options: TrainOptions, *, as_written: bool = False) -> Rows:
    """The rows of the files, and what is said of them; `as_written` as of `data.read_table`."""
    from dpjax import data as reading
    from dpjax.accounting import Disclosure
    from dpjax.data.read import DIVISION

    target, test, person = options.target, options.test, options.person
    schema = None if options.schema is None else reading.read_schema(options.schema)
    written = options.missing, options.decimal, options.thousands
    left_out = [*list_names(options.ignore), *([person] if person else [])]
    held_out, source = None, pathlib.Path(options.data)
    if options.data in reading.names() and not source.exists():
        table = reading.load_table(options.data)
        frame, held_out = table.train, table.test
        target = target or table.target
        schema = leave_out(with_cell_options(schema or table.schema, *written), left_out)
    else:
        schema = leave_out(with_cell_options(schema, *written), left_out)
        if target is None:
            is_libsvm = source.name.lower().removesuffix(".gz").endswith("svm")
            target = (schema.target if schema else None) or ("label" if is_libsvm else None)
        frame = reading.read_table(source, target=target, schema=schema, as_written=as_written)
    if target is None or target not in frame.columns:
        shown = f"the columns are {', '.join(frame.columns[:20])}"
        if as_written:  # of a file without a header its "names" are those of a private record
            shown = (
                f"the table has {len(frame.columns)} columns (if the first line of the file is a "
                "record, name them in a schema with header = false)"
            )
        wrong = "--target is missing" if target is None else f"--target {target!r} is no column"
        raise reading.DataError(f"{wrong}: name the column to predict; {shown}")
    if options.by is not None:
        check_column("--by", options.by, list(frame.columns))
    if test is not None:
        if test.exists() and source.exists() and test.samefile(source):
            raise reading.DataError(f"--test must be another file than --data, got {test}")
        # By its path alone: whether it holds the same records is a function of these.
        held_out = reading.read_table(test, target=target, schema=schema, as_written=as_written)
        names = [name for name in frame.columns if name not in left_out]
        if as_written and (absent := [name for name in names if name not in held_out.columns]):
            raise reading.DataError(
                f"--test {test}: the column {absent[0]!r} is missing; the columns are those of "
                "--data"
            )
    _check_left_out(options, list(frame.columns), target, left_out)
    schema, persons = with_task(schema, target, options.task), None
    schema = with_classes(schema, target, options.classes)
    files = (frame,) if held_out is None else (frame, held_out)
    shown = [
        Disclosure("file-divided", one.attrs[DIVISION]) for one in files if DIVISION in one.attrs
    ]
    if person:
        frame, persons, mixed = _number_persons(frame, person, schema, as_written)
        shown += mixed
    return Rows(frame, held_out, target, schema, persons, tuple(dict.fromkeys(shown)))


def read_inputs(
    options: TrainOptions,
) -> tuple[Dataset, Dataset, JsonObject, str | None]:
    """Records to train on and to hold out, the encoding, and what to say of other categories."""
    from dataclasses import replace

    from dpjax import data as reading
    from dpjax.data.encoding import describe_unlisted

    rows, test = read_rows(options), options.test
    try:
        complete, learned = reading.complete_schema(
            rows.train, rows.target, rows.schema, number=options.task == "regression"
        )
    except reading.DataError as error:
        command = f"dpjax schema {quote_path(options.data)} --out schema.toml"
        draft = f"{command} drafts a schema to decide it in"
        raise reading.DataError(f"{error}\n{draft}") from None
    encoding = reading.describe_encoding(complete, rows.schema)
    learned += rows.shown
    records = replace(reading.encode(rows.train, complete), learned=learned, users=rows.persons)
    unlisted = describe_unlisted(rows.train, complete)
    if rows.held_out is None:
        return *reading.split(records), encoding, unlisted
    try:
        return records, reading.encode(rows.held_out, complete), encoding, unlisted
    except reading.DataError as error:
        raise reading.DataError(f"--test {test or 'records'}: {error}") from None
