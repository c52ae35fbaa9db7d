"""What the commands share: options, refusals with exit code 2, reading the data."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

if TYPE_CHECKING:
    import pandas as pd

    from dpjax.accounting import Certificate, CertificateError, Verification
    from dpjax.data import Dataset, Schema


def option(words: str, *names: str) -> Any:
    """An option of a command, whose default is shown unless the words say what it is."""
    return typer.Option(*names, help=words, show_default="[default:" not in words)


def adjacency_option(words: str) -> Any:
    """The option of a neighbouring relation, whose spellings `accounting.Adjacency` knows."""
    return typer.Option(help=words, metavar="[add-remove|replace-one]")


MissingOption = Annotated[
    list[str] | None,
    option(
        'A text that stands for no value, such as "?"; "" for empty cells alone. May be given '
        "several times. A number without a value is then encoded as the middle of its range, a "
        "category as none."
    ),
]
DecimalOption = Annotated[str | None, option('The decimal mark of numbers, such as ",".')]
ThousandsOption = Annotated[str | None, option('The mark between thousands, such as ".".')]

BAD_INPUT = 2
INTERRUPTED = 130  # as a shell does it


_NOTHING = "nothing was written"
_LONGEST = 1 << 24  # characters of a certificate; `Certificate.from_json` refuses longer ones


def verify_certificate(
    path: pathlib.Path, as_json: bool = False
) -> tuple[Certificate, Verification]:
    """A certificate, or that of a run's folder, and its verification; exit code 1 if it fails.

    The files that it names are compared with those beside it.
    """
    path = path / "certificate.json" if path.is_dir() else path
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LONGEST + 1)  # no further than certificates go
    except UnicodeDecodeError:
        raise ValueError(f"the certificate must be a text in UTF-8, got {path}") from None

    from dpjax import accounting as acc

    try:
        found = acc.Certificate.from_json(text)
        checked = found.verify()
        found.check_files(path.parent)
        return found, checked
    except acc.CertificateError as error:
        refuse(error, as_json)


def refuse(error: CertificateError, as_json: bool = False) -> NoReturn:
    """Say what is wrong with a certificate, and end with exit code 1."""
    if as_json:
        print_json({"valid": False, "field": error.field, "reason": str(error)})
    else:
        typer.echo(f"REFUSED: {error}", err=True)
    raise typer.Exit(1) from None


def check_ledger(path: pathlib.Path, data: str, adjacency: str) -> None:
    """Refuse, before a record is read, a ledger of other data or of another adjacency."""
    from dpjax import accounting as acc

    source = pathlib.Path(data)
    found = acc.LedgerFile(path, source if source.is_file() else None).read()
    if found.adjacency != acc.Adjacency(adjacency):
        raise ValueError(f"--adjacency must be the ledger's, {found.adjacency}, got {adjacency}")


@contextlib.contextmanager
def exit_on_bad_input(interrupted: str = _NOTHING) -> Iterator[None]:
    """Turn the library's complaints about its input into one line on stderr and exit code 2."""
    # `interrupted` is what to say at Ctrl-C, which ends with exit code 130, and on a full disk.
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\ninterrupted; {interrupted}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except (ValueError, TypeError, OSError) as error:
        if isinstance(error, TypeError):
            # The accountant is loaded after a refusal alone, to start quickly.
            from dpjax.accounting import UnsupportedQuery

            if not isinstance(error, UnsupportedQuery):
                raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        kept = isinstance(error, OSError) and interrupted != _NOTHING
        typer.echo(f"error: {where}{reason}" + (f"; {interrupted}" if kept else ""), err=True)
        raise typer.Exit(BAD_INPUT) from None


def check_new_file(option: str, path: pathlib.Path, suffixes: Sequence[str]) -> None:
    """Refuse, before any work, a file that exists, or of another format, or without a folder."""
    if path.exists():
        raise ValueError(f"{option} must be a new file, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"{option} must be in a folder that exists, got {path}")
    if not path.name.lower().endswith(tuple(suffixes)):
        raise ValueError(f"{option} must end in {', '.join(suffixes)}, got {path}")


def check_writable(folder: pathlib.Path) -> None:
    """Make the folder, or say why it cannot be one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"--out must be writable, got {folder}: {error.strerror or error}"
        ) from None


def check_positive(**values: float) -> None:
    """Refuse an option that is not a positive, finite number."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            dashed = name.replace("_", "-")
            raise ValueError(f"--{dashed} must be a positive, finite number, got {value}")


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, and the call that moves it on by one."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def print_json(values: dict[str, Any]) -> None:
    """One JSON object on stdout; infinities become null, since JSON has none."""
    infinite = (float("inf"), float("-inf"))
    clean = {name: None if value in infinite else value for name, value in values.items()}
    json.dump(clean, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def with_cell_options(
    schema: Schema | None, missing: list[str] | None, decimal: str | None, thousands: str | None
) -> Schema | None:
    """The schema, with what the options say of how cells are written in its place."""
    from dataclasses import replace

    from dpjax.data import Schema

    listed = tuple(missing) if missing else None
    given: Any = {"decimal": decimal, "thousands": thousands, "missing": listed}
    given = {name: value for name, value in given.items() if value is not None}
    return replace(schema or Schema(()), **given) if given else schema


def with_task(schema: Schema | None, target: str, task: str) -> Schema | None:
    """The schema of a target that is a class, or of one that is a number within a range."""
    from dataclasses import replace

    from dpjax.data import Schema

    if task != "regression":
        return schema and replace(schema, target_range=None)
    schema = schema or Schema(())
    is_own = schema.target in (None, target)
    if is_own and schema.classes:
        raise ValueError(
            f"--task must be classification where a schema declares classes of {target!r}, got "
            "regression"
        )
    # Without a target of its own, or with another, a schema has this one among its columns.
    ranges = [column.range for column in schema.columns if column.name == target]
    return replace(
        schema,
        columns=tuple(column for column in schema.columns if column.name != target),
        target=target,
        classes=(),
        aliases=(),
        target_range=ranges[0] if ranges else schema.target_range if is_own else None,
    )


class Rows(NamedTuple):
    """What is read of the files, before anything of it is encoded."""

    train: pd.DataFrame
    held_out: pd.DataFrame | None  # of a file or a part of their own
    target: str
    schema: Schema | None


def read_rows(
    data: str,
    target: str | None,
    schema_file: pathlib.Path | None,
    test: pathlib.Path | None,
    written: tuple[list[str] | None, str | None, str | None] = (None, None, None),
    as_written: bool = False,
    task: str = "classification",
    by: str | None = None,
) -> Rows:
    """The rows of the files, and what is said of them; `as_written` as of `data.read_table`."""
    from dpjax import data as reading

    schema = reading.read_schema(schema_file) if schema_file is not None else None
    held_out, source = None, pathlib.Path(data)
    if data in reading.names() and not source.exists():
        table = reading.load_table(data)
        frame, held_out = table.train, table.test
        target = target or table.target
        schema = with_cell_options(schema or table.schema, *written)
    else:
        schema = with_cell_options(schema, *written)
        if target is None:
            is_libsvm = source.name.lower().removesuffix(".gz").endswith("svm")
            target = (schema.target if schema else None) or ("label" if is_libsvm else None)
        frame = reading.read_table(data, target=target, schema=schema, as_written=as_written)
    if target is None or target not in frame.columns:
        shown = f"the columns are {', '.join(frame.columns[:20])}"
        if as_written:  # of a file without a header its "names" are those of a private record
            shown = (
                f"the table has {len(frame.columns)} columns (if the first line of the file is a "
                "record, name them in a schema with header = false)"
            )
        wrong = "--target is missing" if target is None else f"--target {target!r} is no column"
        raise reading.DataError(f"{wrong}: name the column to predict; {shown}")
    if by is not None and (by == target or by not in frame.columns):
        raise reading.DataError(f"--by must name a column besides the target, got {by!r}")
    if test is not None:
        if test.exists() and source.exists() and test.samefile(source):
            raise reading.DataError(f"--test must be another file than --data, got {test}")
        held_out = reading.read_table(test, target=target, schema=schema, as_written=as_written)
        if held_out.equals(frame):
            raise reading.DataError(
                f"--test must hold other records than --data, got the same in {test}"
            )
    return Rows(frame, held_out, target, with_task(schema, target, task))


def read_inputs(
    data: str,
    target: str | None,
    schema_file: pathlib.Path | None,
    test: pathlib.Path | None,
    written: tuple[list[str] | None, str | None, str | None] = (None, None, None),
    task: str = "classification",
    by: str | None = None,
) -> tuple[Dataset, Dataset, dict[str, Any]]:
    """Training records, held-out ones (a fifth, unless there are others) and the encoding."""
    from dataclasses import replace

    from dpjax import data as reading

    rows = read_rows(data, target, schema_file, test, written, task=task, by=by)
    number = task == "regression"
    complete, learned = reading.complete_schema(rows.train, rows.target, rows.schema, number=number)
    encoding = reading.describe_encoding(complete, rows.schema)
    records = replace(reading.encode(rows.train, complete), learned=learned)
    if rows.held_out is None:
        return *reading.split(records), encoding
    try:
        return records, reading.encode(rows.held_out, complete), encoding
    except reading.DataError as error:
        raise reading.DataError(f"--test {test or 'records'}: {error}") from None
