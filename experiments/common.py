"""What every experiment needs: where files go, a cache by content, tables, figures, progress."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import inspect
import json
import pathlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from experiments import cells
from experiments.protocol import Rows, Table

_Item = TypeVar("_Item")


@dataclasses.dataclass(frozen=True)
class Run:
    """One invocation of a target.

    Attributes:
        out: folder for the PNG and CSV files of the paper.
        data: folder of the data sets (adult/, mnist/, …).
        full: the paper's whole grid instead of the smaller one that a laptop finishes in minutes.
        tiny: the smallest grid that exercises the code, for tests of papers without a protocol.
        limit: run at most so many cells of a protocol's table; None: all that are missing.
        say: told of every cell that was run.
    """

    out: pathlib.Path
    data: pathlib.Path
    full: bool = False
    tiny: bool = False
    limit: int | None = None
    say: Callable[[str], None] = lambda line: None

    def cells(self, table: Table) -> Rows:
        """The rows of a protocol's table, at the size of this run."""
        column = "full" if self.full else "small"
        return cells.run(self.out, table, column, self.data, limit=self.limit, say=self.say)

    def choose(self, small: _Item, full: _Item, tiny: _Item) -> _Item:
        """The setting that belongs to the size of this run."""
        return full if self.full else tiny if self.tiny else small

    @property
    def size(self) -> str:
        return self.choose("small", "full", "tiny")

    def rows(
        self,
        name: str,
        settings: Mapping[str, Any],
        compute: Callable[[], Rows],
        *,
        code: Sequence[Any] = (),
    ) -> Rows:
        """Rows of `compute()`, from the cache if name, settings and code are unchanged.

        The key is a hash of the settings and of the source of the functions, classes and modules in
        `code`: name those that the rows depend on, and not those that only draw. A change in dpjax
        itself is not seen: delete the `cache` folder then. Long runs ask once for every part, so
        that an interrupted one goes on where it was.
        """
        file = self._cached(name, settings, code, "json")
        if not file.is_file():
            content = json.dumps(compute())
            _replace(file, lambda partial: partial.write_text(content))
        return json.loads(file.read_text())

    def arrays(
        self,
        name: str,
        settings: Mapping[str, Any],
        compute: Callable[[], dict[str, np.ndarray]],
        *,
        code: Sequence[Any] = (),
    ) -> dict[str, np.ndarray]:
        """Arrays of `compute()`, cached like `rows`."""
        file = self._cached(name, settings, code, "npz")
        if not file.is_file():
            content = compute()
            _replace(file, lambda partial: np.savez(partial, **content))
        with np.load(file) as stored:
            return dict(stored)

    def save_table(self, name: str, rows: Rows | pd.DataFrame) -> pathlib.Path:
        """Writes `name`.csv."""
        self.out.mkdir(parents=True, exist_ok=True)
        file = self.out / f"{name}.csv"
        table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
        table.to_csv(file, index=False, float_format="%.6g")
        return file

    def save_certificates(self, name: str, lines: Sequence[str]) -> pathlib.Path:
        """Writes certificates/`name`.jsonl, a certificate a line; `dpjax verify` reads each."""
        folder = self.out / "certificates"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}.jsonl"
        file.write_text("".join(f"{line}\n" for line in lines))
        return file

    def save_figure(self, name: str, figure: Any) -> pathlib.Path:
        """Writes `name`.png and closes the figure."""
        import matplotlib.pyplot as plt

        self.out.mkdir(parents=True, exist_ok=True)
        file = self.out / f"{name}.png"
        figure.savefig(file, dpi=140, bbox_inches="tight")
        plt.close(figure)
        return file

    def _cached(
        self, name: str, settings: Mapping[str, Any], code: Sequence[Any], suffix: str
    ) -> pathlib.Path:
        digest = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode())
        for part in code:
            digest.update(_source(part).encode())
        folder = self.out / "cache"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}-{digest.hexdigest()[:16]}.{suffix}"


@functools.lru_cache
def _source(part: Any) -> str:
    """The source at first use: what runs, even if the file changes meanwhile."""
    return inspect.getsource(part)


def _replace(file: pathlib.Path, write: Callable[[pathlib.Path], Any]) -> None:
    """Writes the whole file or none of it, so that an interrupted run leaves nothing half done."""
    partial = file.with_name(f"partial-{file.name}")
    write(partial)
    partial.replace(file)


Target = Callable[[Run], Sequence[pathlib.Path]]


def papers() -> list[str]:
    """Names of the folders that reproduce a paper."""
    import experiments

    return sorted(m.name for m in pkgutil.iter_modules(experiments.__path__) if m.ispkg)


def targets(paper: str) -> dict[str, Target]:
    """The figures and tables of a paper, by name."""
    if paper not in papers():
        raise KeyError(f"no paper {paper!r}; there are {', '.join(papers())}")
    return dict(importlib.import_module(f"experiments.{paper}").TARGETS)


def track(items: Iterable[_Item], description: str) -> Iterable[_Item]:
    """The items, behind a progress bar where someone watches."""
    from rich.progress import track as rich_track

    return rich_track(list(items), description, transient=True, disable=not sys.stderr.isatty())


def markdown_table(rows: Rows, columns: Sequence[str] | None = None) -> str:
    """A Markdown table of rows; numbers to four significant digits."""
    columns = list(columns or rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(c, "")) for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def fill_report(file: pathlib.Path, sections: Mapping[str, str]) -> None:
    """Replaces the text between `<!-- name -->` and `<!-- /name -->` in a report, for every name.

    Raises:
        ValueError: if the report has no such pair of marks.
    """
    text = file.read_text()
    for name, content in sections.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if start not in text or end not in text:
            raise ValueError(f"{file.name} has no section marked {start} … {end}")
        head, rest = text.split(start, 1)
        text = f"{head}{start}\n\n{content}\n\n{end}{rest.split(end, 1)[1]}"
    file.write_text(text)
