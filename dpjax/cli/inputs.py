"""What the commands share: enumerated options, refusals with exit code 2, reading the data."""

from __future__ import annotations

import contextlib
import enum
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from dpjax.data import Dataset

BAD_INPUT = 2
INTERRUPTED = 130  # as a shell does it


class AdjacencyOption(enum.StrEnum):
    """Neighbouring data sets: one record more or less, or one record exchanged."""

    add_remove = "add-remove"
    replace_one = "replace-one"


def adjacency_of(option: AdjacencyOption) -> Any:
    """The accountant's value for the option."""
    from dpjax import accounting as acc

    names = {AdjacencyOption.add_remove: acc.Adjacency.ADD_REMOVE}
    return names.get(option, acc.Adjacency.REPLACE_ONE)


_NOTHING = "nothing was written"
_LONGEST = 1 << 24  # characters of a certificate; `Certificate.from_json` refuses longer ones


def read_certificate(path: pathlib.Path) -> str:
    """The text of a certificate, read no further than certificates go."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(_LONGEST + 1)
    except UnicodeDecodeError:
        raise ValueError(f"the certificate must be a text in UTF-8, got {path}") from None


@contextlib.contextmanager
def refusing(interrupted: str = _NOTHING) -> Iterator[None]:
    """Turn the library's complaints about its input into one line on stderr and exit code 2.

    Args:
        interrupted: what to say at Ctrl-C, which ends with exit code 130, and on a full disk.
    """
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\ninterrupted; {interrupted}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except (ValueError, TypeError, OSError) as error:
        if isinstance(error, TypeError) and not _is_unsupported(error):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        kept = isinstance(error, OSError) and interrupted != _NOTHING
        typer.echo(f"error: {where}{reason}" + (f"; {interrupted}" if kept else ""), err=True)
        raise typer.Exit(BAD_INPUT) from None


def _is_unsupported(error: TypeError) -> bool:
    """Whether the accountant refused; it is loaded after a refusal alone, to start quickly."""
    from dpjax.accounting import UnsupportedQuery

    return isinstance(error, UnsupportedQuery)


def check_new_file(option: str, path: pathlib.Path, suffixes: Sequence[str]) -> None:
    """Refuse, before any work, a file that exists or whose folder does not.

    And one whose name says a format that is not written.

    Example:
        >>> check_new_file("--out", pathlib.Path("no-such-folder/a.csv"), [".csv"])
        Traceback (most recent call last):
        ValueError: --out must be in a folder that exists, got no-such-folder/a.csv
        >>> check_new_file("--out", pathlib.Path("a.xlsx"), [".csv"])
        Traceback (most recent call last):
        ValueError: --out must end in .csv, got a.xlsx
    """
    if path.exists():
        raise ValueError(f"{option} must be a new file, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"{option} must be in a folder that exists, got {path}")
    if not path.name.lower().endswith(tuple(suffixes)):
        raise ValueError(f"{option} must end in {', '.join(suffixes)}, got {path}")


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
    clean = {
        name: None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value
        for name, value in values.items()
    }
    json.dump(clean, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def read_inputs(
    data: str, target: str | None, schema_file: pathlib.Path | None, test: pathlib.Path | None
) -> tuple[Dataset, Dataset, dict[str, Any]]:
    """Training and held-out records, from a file or a named data set (a fifth is held out).

    And the encoding, to travel with the model. What was learned from the rows is listed in
    `learned` of the training records, and marked in the encoding.
    """
    from dataclasses import replace

    from dpjax import data as reading

    schema = reading.read_schema(schema_file) if schema_file is not None else None
    held_out, source = None, pathlib.Path(data)
    if data in reading.names() and not source.exists():
        table = reading.load_table(data)
        frame, held_out = table.train, table.test
        target = target or table.target
        schema = schema or table.schema
    else:
        if target is None:
            is_libsvm = source.name.lower().removesuffix(".gz").endswith(("svm",))
            target = schema.target if schema is not None else "label" if is_libsvm else None
        frame = reading.read_table(data, target=target, schema=schema)
    if target is None or target not in frame.columns:
        shown = ", ".join(map(str, frame.columns[:20]))
        raise reading.DataError(
            f"--target {target!r}: name the column to predict; the columns are {shown}"
        )
    if test is not None:
        if test.exists() and source.exists() and test.samefile(source):
            raise reading.DataError(f"--test must be another file than --data, got {test}")
        held_out = reading.read_table(test, target=target, schema=schema)
        if held_out.equals(frame):
            raise reading.DataError(
                f"--test must hold other records than --data, got the same in {test}"
            )
    everything = reading.from_frame(frame, target=target, schema=schema)
    complete, learned = reading.complete_schema(frame, target, schema)
    encoding = reading.describe_encoding(complete, schema)
    if held_out is None:
        return *reading.split(everything), encoding
    try:
        encoded = reading.encode(held_out, complete)
    except reading.DataError as error:
        raise reading.DataError(f"--test {test or 'records'}: {error}") from None
    return replace(everything, learned=learned), encoded, encoding
