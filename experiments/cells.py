"""The runner of a protocol's tables: one file a cell, so that a long table is made in sittings.

`<paper>/cells/<table>/<settings>-<digest>.json` holds the settings, the rows, the commit, the time,
the seconds of processor time and a digest of the code that made it. A cell whose code has changed
since is run again; comments, docstrings and annotations do not count, nor does the module of dpjax
that a name is imported from.
"""

from __future__ import annotations

import ast
import datetime
import functools
import hashlib
import importlib.util
import json
import pathlib
import re
import subprocess
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments import protocol
from experiments.protocol import Rows, Table

DONE, OLDER, MISSING = "done", "older code", "missing"
_CODE = (":(glob)dpjax/**/*.py", ":(glob)experiments/**/*.py")
_WIDE = 18  # of a column of `status`
_HERE = pathlib.Path(__file__).resolve().parent


class Unfinished(Exception):
    """A table of which some cells have not been run."""


class Count(NamedTuple):
    """Cells of one column of a table.

    Attributes:
        done: run by the present code. older: run by code that has changed since.
        planned: all of them. last: (time, commit) of the newest that is done, or None.
    """

    done: int
    older: int
    planned: int
    last: tuple[str, str] | None


def file_of(folder: pathlib.Path, table: Table, settings: dict[str, Any]) -> pathlib.Path:
    """Where the cell of these settings is kept; a function of the settings alone."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=False)
    own = [value for name, value in settings.items() if name not in ("folds", "repeats")]
    shown = "-".join(f"{v:g}" if isinstance(v, float) else str(v) for v in own if not _many(v))
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", shown).strip("-").lower() or "all"
    return folder / "cells" / table.name / f"{slug}-{_digest(text)[:8]}.json"


def read(file: pathlib.Path, table: Table) -> tuple[str, dict[str, Any]]:
    """(DONE, OLDER or MISSING; the content, empty if missing)."""
    if not file.is_file():
        return MISSING, {}
    content = json.loads(file.read_text())
    return DONE if content["code"] == code_of(table.modules()) else OLDER, content


def run(
    folder: pathlib.Path,
    table: Table,
    column: str,
    data: pathlib.Path,
    *,
    limit: int | None = None,
    say=lambda line: None,
) -> Rows:
    """The rows of all cells of a column; runs those that are missing or of older code.

    Args:
        folder: of the paper.
        limit: at most so many cells are run now.
        say: told of every cell that was run.

    Raises:
        Unfinished: if the limit left cells out, or none of the files that the table needs is there;
            cells whose file is not there are left out.
    """
    rows, left, ran, absent = [], 0, 0, []
    chosen = table.column(column)
    for settings in chosen.cells():
        file = file_of(folder, table, settings)
        state, content = read(file, table)
        if state != DONE:
            needed = table.needs.format(**settings)
            if needed and not any(data.glob(needed)):
                absent.append(str(data / needed))
                continue
            if limit is not None and ran >= limit:
                left += 1
                continue
            content = _computed(table, settings, data)
            file.parent.mkdir(parents=True, exist_ok=True)
            # The whole file or none of it: an interrupted run leaves nothing half done.
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
            partial.replace(file)
            ran += 1
            say(f"{table.name}: {file.stem} ({content['seconds']:.0f} s)")
        rows += content["rows"]
    if absent and not rows:
        raise Unfinished(f"{table.name}: needs {' or '.join(sorted({*absent}))}")
    if left:
        raise Unfinished(f"{table.name}: {left} of {len(chosen.cells())} cells of {column} to run")
    return rows


def count(folder: pathlib.Path, table: Table, column: str) -> Count:
    """How much of a column has been run."""
    chosen = table.column(column)
    states, made = [], []
    for settings in chosen.cells():
        state, content = read(file_of(folder, table, settings), table)
        states.append(state)
        if state == DONE:
            made.append((content["time"], content["commit"]))
    last = max(made, default=None)
    return Count(states.count(DONE), states.count(OLDER), len(states), last)


def status(here: pathlib.Path, papers: list[str], targets) -> list[str]:
    """The lines of `python -m experiments status`: cells done and planned of every table."""
    lines = [f"{'paper':<15}{'table':<16}{'small':>{_WIDE}}{'full':>{_WIDE}}  newest cell"]
    for paper in papers:
        known = protocol.tables(paper)
        for table in known.values():
            both = {c: count(here / paper, table, c) for c in ("small", "full")}
            last = max((c.last for c in both.values() if c.last), default=None)
            when = f"{last[0]} at {last[1]}" if last else "none"
            shown = "".join(f"{_shown(n, table):>{_WIDE}}" for n in both.values())
            lines.append(f"{paper:<15}{table.name:<16}{shown}  {when}")
            older = {c: n.older for c, n in both.items() if n.older}
            if older:
                told = ", ".join(f"{n} of {c}" for c, n in older.items())
                lines.append(f"{'':<27}made by code that has changed since: {told}")
        rest = [name for name in targets(paper) if name not in known]
        if rest:
            lines.append(f"{paper:<15}without a protocol: {', '.join(rest)}")
    return lines


def _many(value: Any) -> bool:
    return isinstance(value, list)


def _shown(found: Count, table: Table) -> str:
    if table.needs and not found.done:
        return "needs the extract"
    return f"{found.done} of {found.planned}"


def _computed(table: Table, settings: dict[str, Any], data: pathlib.Path) -> dict[str, Any]:
    # Read before the run: what runs, even if a file changes meanwhile.
    made_by = {"commit": commit(), "code": code_of(table.modules())}
    start = time.process_time()
    rows = table.function()(settings, data)
    now = datetime.datetime.now(datetime.UTC)
    return {
        "settings": settings,
        **made_by,
        "time": now.strftime("%Y-%m-%d %H:%M UTC"),
        "seconds": round(time.process_time() - start, 1),
        "rows": rows,
    }


@functools.cache
def code_of(modules: tuple[str, ...]) -> str:
    """A digest of what the modules do (`what_runs`)."""
    sources = []
    for name in modules:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise ValueError(f"code must name modules, got {name!r}")
        sources.append(pathlib.Path(found.origin).read_text())
    return digest_of(sources)


def digest_of(sources: Sequence[str]) -> str:
    """A digest of what the source of some modules does."""
    return _digest("\n".join(map(what_runs, sources)))[:16]


def what_runs(source: str) -> str:
    """A module's source without what no number depends on.

    Left out are comments, layout, docstrings, the annotations of functions and what is imported for
    them alone. Of what is imported from dpjax the name counts and its module does not: cells are
    made again where the code of their paper changes, not where the library does.

    >>> print(what_runs("from dpjax.erm.losses import Huber\\ndef f(x: int): return Huber(x)"))
    from dpjax import Huber
    def f(x):
        return Huber(x)
    """
    tree = _Bare().visit(ast.parse(source))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    imports, rest = set(), []
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            rest.append(ast.unparse(node))
            continue
        for name in node.names:
            if (name.asname or name.name.partition(".")[0]) in used:
                node.names = [name]
                imports.add(ast.unparse(node))
    return "\n".join([*sorted(imports), *rest])


class _Bare(ast.NodeTransformer):
    """Leaves out docstrings, modules of dpjax in imports, and annotations but those of fields."""

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self.generic_visit(_without_docstring(node))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(_without_docstring(node))

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        body = _without_docstring(node).body
        # A field's annotation is what makes it one.
        node.body = [one if isinstance(one, ast.AnnAssign) else self.visit(one) for one in body]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        return self.generic_visit(ast.Assign([node.target], node.value, lineno=node.lineno))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if (node.module or "").split(".")[0] == "dpjax":
            node.module = "dpjax"
        return node


def _without_docstring(node: Any) -> Any:
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:] or [ast.Pass()]
    return node


@functools.cache
def commit() -> str:
    """The commit that is checked out; "+" where the code of dpjax or experiments differs."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD").strip()
        return head + ("+" if _git("status", "--porcelain", "--", *_CODE).strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=_HERE.parent, capture_output=True, check=True)
    return done.stdout.decode()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
