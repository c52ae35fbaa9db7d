"""What the commands share: options, refusals with exit code 2, certificates and JSON."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from dpjax.cli.texts import say, show_plainly

if TYPE_CHECKING:
    from typer.models import OptionInfo

    from dpjax.accounting import Certificate, CertificateError, Verification


def option(words: str, *names: str) -> OptionInfo:
    """An option of a command, whose default is shown unless the words say what it is."""
    return typer.Option(*names, help=words, show_default="[default:" not in words)


def adjacency_option(words: str) -> OptionInfo:
    """The option of a neighbouring relation, whose spellings `accounting.Adjacency` knows."""
    return typer.Option(help=words, metavar="[add-remove|replace-one]")


MissingOption = Annotated[
    list[str] | None,
    option(
        'Texts that stand for no value, such as "NA,?"; "" for empty cells alone. A number without '
        "a value is then encoded as the middle of its range, where it has cells as one more of "
        "them, a category as none."
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
