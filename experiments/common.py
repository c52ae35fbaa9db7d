"""What every experiment needs: where files go, tables, figures and certificates."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from experiments import cells
from experiments.protocol import Rows, Table


@dataclasses.dataclass(frozen=True)
class Run:
    """One invocation of a target.

    Attributes:
        out: folder for the PNG and CSV files of the paper.
        data: folder of the data sets (adult/, mnist/, …).
        full: the paper's whole grid instead of the smaller one that a laptop finishes in minutes.
        limit: run at most so many cells of a protocol's table; None: all that are missing.
        say: told of every cell that was run.
    """

    out: pathlib.Path
    data: pathlib.Path
    full: bool = False
    limit: int | None = None
    say: Callable[[str], None] = lambda line: None

    def cells(self, table: Table) -> Rows:
        """The rows of a protocol's table, at the size of this run."""
        column = "full" if self.full else "small"
        return cells.run(self.out, table, column, self.data, limit=self.limit, say=self.say)

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

    def save_figure(self, name: str, figure: Any, shows: str) -> pathlib.Path:
        """Writes `name`.png under a sentence of what it shows, and closes the figure.

        The sentence is also in the file, as its Description.

        Raises:
            ValueError: if an axis has no name or fewer than two ticks that are labelled.
        """
        import matplotlib.pyplot as plt

        figure.suptitle(shows, fontsize=10, wrap=True)
        _check_axes(name, figure)
        self.out.mkdir(parents=True, exist_ok=True)
        file = self.out / f"{name}.png"
        figure.savefig(file, dpi=140, bbox_inches="tight", metadata={"Description": shows})
        plt.close(figure)
        return file


def _check_axes(name: str, figure: Any) -> None:
    figure.canvas.draw()
    for axes in figure.axes:
        for which in "xy":
            axis = getattr(axes, f"{which}axis")
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            shown = [t for t in ticks if t.label1.get_text() and low <= t.get_loc() <= high]
            # Panels in one row or column share the name that stands at its end.
            span = {"x": "colspan", "y": "rowspan"}[which]
            beside = [
                other
                for other in figure.axes
                if getattr(other.get_subplotspec(), span) == getattr(axes.get_subplotspec(), span)
            ]
            named = any(getattr(other, f"get_{which}label")() for other in beside)
            text = any(not _is_number(t.label1.get_text()) for t in shown)
            if len(shown) < 2 or not (named or text):
                raise ValueError(
                    f"every axis of {name} must have a name and two ticks, got "
                    f"{len(shown)} on {which} of {axes.get_title()!r}"
                )


def _is_number(text: str) -> bool:
    return not any(c.isalpha() for c in text.replace("mathdefault", "").replace("times", ""))


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
