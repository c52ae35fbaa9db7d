"""Mistakes planted in the source one at a time, and which tests find them.

    python -m benchmarks.planted                    # all, into results/planted.md, half an hour
    python -m benchmarks.planted --only NAME ...    # these anew, the other rows kept
    python -m benchmarks.planted --missing          # those that are not found, or not in the table
    python -m benchmarks.planted --whole            # what the named tests miss, by all of them

The mistakes stand in `planted.toml`: a text of one file, what is written in its place, and the
tests that are meant to find it. A copy of the tree has the edit, the named tests run in it one
after another until one fails, and the edit is undone. Those that `make test` leaves out, by folder
or by mark, are asked last: what they alone find, only continuous integration finds. At the end,
the tests that failed run once without any mistake: one that fails then has found nothing, and the
next is asked.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIST = pathlib.Path(__file__).with_suffix(".toml")
RESULTS = pathlib.Path(__file__).parent / "results" / "planted.md"
_NONE = "–"
_LIMIT = 1_200  # seconds of one run of the named tests
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", re.M)
_HEAD = ("mistake", "file of `dpjax/`", "`make test`", "continuous integration", "first to fail")
_ROW = re.compile(r"^\| (\S.*?) \| (\S+) \| (\S.*?) \| (\S.*?) \| (\S.*?) \|$", re.M)


class Mistake(NamedTuple):
    """One edit of the source.

    Fields:
        name: what is wrong, in a few words.
        file: relative to `dpjax/`.
        old, new: a text that the file has once, and what is written in its place.
        tests: that are meant to find it: paths of pytest, the likeliest first.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


class Finding(NamedTuple):
    """One row of the table.

    Fields:
        name, file: of the mistake.
        by_test, by_whole: "found" or "not found", by `make test` and by all that continuous
            integration runs.
        test: the first that failed; "–" where none did.
    """

    name: str
    file: str
    by_test: str
    by_whole: str
    test: str


def read_mistakes(path: pathlib.Path = LIST) -> list[Mistake]:
    """The list, in its order."""
    found = tomllib.loads(path.read_text())["mistake"]
    return [Mistake(**{**one, "tests": tuple(one["tests"])}) for one in found]


class LeftOut(NamedTuple):
    """What `make test` does not run.

    Fields:
        folders: of tests.
        marks: what it asks of the marks of others, as pytest's `-m`; "" where nothing.
    """

    folders: tuple[str, ...] = ()
    marks: str = ""


def find_left_out(root: pathlib.Path = ROOT) -> LeftOut:
    """What `make test` leaves out, as its own command says."""
    said = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "test"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    command = next(line for line in reversed(said.stdout.split("\n")) if "-m pytest" in line)
    options = shlex.split(command)
    options = options[options.index("pytest") + 1 :]
    marks = options[options.index("-m") + 1] if "-m" in options else ""
    ignored = (o.removeprefix("--ignore=") for o in options if o.startswith("--ignore="))
    return LeftOut(tuple(ignored), marks)


def copy_tree(target: pathlib.Path, root: pathlib.Path = ROOT) -> None:
    """Copy what git has or would have, with the times of its files; compile the package."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)
    subprocess.run([sys.executable, "-m", "compileall", "-q", target / "dpjax"], check=True)


@contextlib.contextmanager
def plant(tree: pathlib.Path, mistake: Mistake) -> Iterator[None]:
    """Write a mistake into a tree, for as long as the context lasts.

    Raises:
        ValueError: the file does not have the old text exactly once.
    """
    file = tree / "dpjax" / mistake.file
    source, times = file.read_text(), file.stat()
    if (count := source.count(mistake.old)) != 1:
        raise ValueError(
            f"old must be found once in dpjax/{mistake.file}, got {count} times {mistake.old!r}"
        )
    file.write_text(source.replace(mistake.old, mistake.new))
    try:
        yield
    finally:
        file.write_text(source)
        # As before for whatever was compiled of it.
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def failed_tests(tree: pathlib.Path, tests: Sequence[str], *options: str) -> list[str]:
    """Which of some tests fail in a tree, the first with `-x`.

    Raises:
        RuntimeError: pytest could not run them.
    """
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        # A file that is edited twice within a second must not be taken for the one before.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *options, *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return []  # a test that does not end says nothing
    if done.returncode not in (0, 1, 5):  # 5: no test is left
        raise RuntimeError(f"pytest must end with 0, 1 or 5, got {done.returncode}:\n{done.stdout}")
    return _FAILED.findall(done.stdout) if done.returncode == 1 else []


def look_for(
    tree: pathlib.Path,
    mistake: Mistake,
    left_out: LeftOut = LeftOut(),  # noqa: B008 (a tuple)
    broken: Sequence[str] = (),
    everything: bool = False,
) -> Finding:
    """Plant a mistake in a tree and run its tests.

    Args:
        tree: a copy, which is left as it was.
        mistake: what is planted.
        left_out: what `make test` does not run.
        broken: tests that fail without any mistake.
        everything: whether to run all tests where the named ones find nothing.
    """
    folders, marks = left_out
    named = [t for t in mistake.tests if not t.startswith(folders)]
    others = [t for t in mistake.tests if t.startswith(folders)]
    short = ["-m", marks] if marks else []
    runs = [(True, named, short), (False, others, [])]
    if marks:
        runs.append((False, named, ["-m", f"not ({marks})"]))
    if everything:
        ignored = [f"--ignore={folder}" for folder in folders]
        runs.insert(1, (True, ["tests"], [*ignored, *short]))
        runs.append((False, ["tests"], []))
    with plant(tree, mistake):
        for is_ours, tests, options in runs:
            skipped = [f"--deselect={test}" for test in broken]
            found = failed_tests(tree, tests, "-x", *options, *skipped) if tests else []
            if found:
                by_test = "found" if is_ours else "not found"
                return Finding(mistake.name, mistake.file, by_test, "found", f"`{found[0]}`")
    return Finding(mistake.name, mistake.file, "not found", "not found", _NONE)


def read_findings(path: pathlib.Path = RESULTS) -> dict[str, Finding]:
    """The rows of a table that was written before, by name."""
    rows = _ROW.findall(path.read_text()) if path.exists() else []
    return {row[0]: Finding(*row) for row in rows if row[2] in ("found", "not found")}


def write_findings(findings: Iterable[Finding], path: pathlib.Path = RESULTS) -> str:
    """Write the table, in the order of the list, and return what it opens with."""
    rows = list(findings)
    count = {what: sum(getattr(r, what) == "found" for r in rows) for what in Finding._fields[2:4]}
    opening = (
        f"Of {len(rows)} mistakes `make test` finds {count['by_test']}, and all that continuous "
        f"integration runs {count['by_whole']}."
    )
    lines = [
        "# Mistakes planted in the source, and what finds them",
        "",
        f"`python -m benchmarks.planted` writes each into a copy of the tree, alone. {opening}",
        "A mistake is found where a test that is named for it fails, which passes without it.",
        "Edits and names of tests are in [planted.toml](../planted.toml).",
        "",
        *("| " + " | ".join(row) + " |" for row in (_HEAD, ["---"] * len(_HEAD), *rows)),
    ]
    path.write_text("\n".join(lines) + "\n")
    return opening


def _prepare(tree: pathlib.Path) -> None:
    """Set what the tests of a copy share with those of the tree: compiled programs and data."""
    import tests.conftest  # noqa: F401  # asks once which options the compiler knows

    shared = ROOT.parent / "shared"
    if shared.is_dir():
        os.environ.setdefault("DPJAX_SHARED", str(shared))
    copy_tree(tree)


def _keep(mistakes: Sequence[Mistake], findings: dict[str, Finding]) -> str:
    """Write the rows that there are of the list, and return what the table opens with."""
    return write_findings([findings[m.name] for m in mistakes if m.name in findings])


def main(given: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--whole", action="store_true")
    asked = parser.parse_args(given)
    mistakes, findings = read_mistakes(), read_findings()
    wanted = [m for m in mistakes if asked.only is None or m.name in asked.only]
    if asked.missing:
        found = {name for name, one in findings.items() if one.by_test == "found"}
        wanted = [m for m in wanted if m.name not in found]
    left_out = find_left_out()
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = pathlib.Path(folder) / ROOT.name
        tree.mkdir()
        _prepare(tree)
        for number, mistake in enumerate(wanted, 1):
            found = look_for(tree, mistake, left_out, everything=asked.whole)
            findings[mistake.name] = found
            _keep(mistakes, findings)
            place = f"{number}/{len(wanted)}"
            print(f"{place} {mistake.name}: {found.by_test}, by {found.test}", flush=True)
        # What fails without a mistake has found none.
        blamed = {findings[m.name].test.strip("`") for m in wanted} - {_NONE}
        broken = failed_tests(tree, sorted(blamed)) if blamed else []
        for mistake in wanted:
            if findings[mistake.name].test.strip("`") in broken:
                print(f"fails without a mistake: {findings[mistake.name].test}", flush=True)
                findings[mistake.name] = look_for(tree, mistake, left_out, broken, asked.whole)
    print(_keep(mistakes, findings))


if __name__ == "__main__":
    main()
