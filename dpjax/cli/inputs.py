"""What the commands share: options, refusals with exit code 2, reading the data."""

from __future__ import annotations

import contextlib
import difflib
import json
import pathlib
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from dpjax.cli.texts import quote_path, say, show_plainly

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
        'Texts that stand for no value, such as "NA,?"; "" for empty cells alone. A number without '
        "a value is then encoded as the middle of its range, a category as none."
    ),
]
DecimalOption = Annotated[str | None, option('The decimal mark of numbers, such as ",".')]
ThousandsOption = Annotated[str | None, option('The mark between thousands, such as ".".')]

BAD_INPUT = 2
MISTAKE = 3  # of the program: what no command foresaw
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
        say(f"REFUSED: {error}", err=True)
    raise typer.Exit(1) from None


def check_ledger(path: pathlib.Path, data: str, adjacency: str, unit: str) -> None:
    """Refuse, before a record is read, a ledger of other data, another adjacency or unit."""
    from dpjax import accounting as acc

    source = pathlib.Path(data)
    found = acc.LedgerFile(path, source if source.is_file() else None).read()
    if found.adjacency != acc.Adjacency(adjacency):
        raise ValueError(f"--adjacency must be the ledger's, {found.adjacency}, got {adjacency}")
    if found.unit != unit:
        raise ValueError(f"--ledger must be of the unit {unit}, got one of {found.unit}s")


@contextlib.contextmanager
def exit_on_bad_input(interrupted: str = _NOTHING) -> Iterator[None]:
    """Turn the library's complaints about its input into one line on stderr and exit code 2."""
    # `interrupted` is what to say at Ctrl-C, which ends with exit code 130, and on a full disk.
    try:
        yield
    except KeyboardInterrupt:
        say(f"\ninterrupted; {interrupted}", err=True)
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
        say(f"error: {where}{reason}" + (f"; {interrupted}" if kept else ""), err=True)
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
    from rich.progress import Progress

    from dpjax.cli.console import PlainConsole

    with Progress(console=PlainConsole(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def print_json(values: dict[str, Any]) -> None:
    """One JSON object on stdout; infinities become null, since JSON has none."""
    infinite = (float("inf"), float("-inf"))
    clean = {name: None if value in infinite else value for name, value in values.items()}
    # A stream of another encoding spells what it cannot say, which is another value.
    is_ascii = "utf" not in (getattr(sys.stdout, "encoding", None) or "utf").lower()
    text = json.dumps(clean, indent=2, ensure_ascii=is_ascii)
    sys.stdout.write(f"{show_plainly(text)}\n")


def with_cell_options(
    schema: Schema | None, missing: list[str] | None, decimal: str | None, thousands: str | None
) -> Schema | None:
    """The schema, with what the options say of how cells are written in its place."""
    from dataclasses import replace

    from dpjax.data import Schema

    listed = tuple(text for one in missing for text in one.split(",")) if missing else None
    given: Any = {"decimal": decimal, "thousands": thousands, "missing": listed}
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
    persons: Any = None  # [rows to train on], the number of the person whose row it is
    shown: tuple[str, ...] = ()  # facts of the files that are said, and that no ε covers


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
) -> tuple[pd.DataFrame, Any, tuple[str, ...]]:
    """The rows that say whose they are, the number of the person of each, and what is shown."""
    from dpjax._numerics.persons import are_mixed, number_persons
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
    shown = (f"ids both as numbers and as other texts: {column}",) if is_mixed else ()
    return (frame[~absent] if absent.any() else frame), persons, shown


def read_rows(options: types.SimpleNamespace, *, as_written: bool = False) -> Rows:
    """The rows of the files, and what is said of them; `as_written` as of `data.read_table`."""
    from dpjax import data as reading
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
    for name in left_out:  # the person's last
        option = "--person" if name == person else "--ignore"
        check_column(option, name, list(frame.columns))
        if name == target or left_out.count(name) > 1:
            other = "target" if name == target else "ignore"
            raise ValueError(f"{option} must name another column than --{other}, got {name!r}")
    if not set(frame.columns) - {target, *left_out}:
        raise ValueError("--ignore must leave features, got all columns but the target")
    if both := [name for name in list_names(options.numeric) if name in left_out]:
        raise ValueError(f"--numeric must name features, got {both[0]!r}, which is left out")
    if options.by is not None and options.by in (*left_out, target):
        raise ValueError(f"--by must name a feature, got {options.by!r}")
    schema, persons = with_task(schema, target, options.task), None
    schema = with_classes(schema, target, options.classes)
    files = (frame,) if held_out is None else (frame, held_out)
    shown = [one.attrs[DIVISION] for one in files if DIVISION in one.attrs]
    if person:
        frame, persons, mixed = _number_persons(frame, person, schema, as_written)
        shown += mixed
    return Rows(frame, held_out, target, schema, persons, tuple(dict.fromkeys(shown)))


def read_inputs(
    options: types.SimpleNamespace,
) -> tuple[Dataset, Dataset, dict[str, Any], str | None]:
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
