"""A paper's protocol as data: what each table is made of, as published, small and full.

The runner (`experiments.cells`), the report and the tests read it; nothing about the size of a run
is stated anywhere else. A column's cells are every combination of its values, but for those that a
cell takes together, as it does a grid that it chooses from.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ENTRIES = ("data", "encoding", "methods", "grid", "folds", "repeats", "seeds")
Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Column:
    """One size of a table.

    Attributes:
        data: data sets, by the names that the table's code knows.
        encoding: how records become numbers, in words.
        methods: what is compared.
        grid: every other setting, a name to its values.
        folds: splits into the rows that choose settings and the rows reported; 0: no rows are held
            back.
        repeats: runs of one setting that differ in their noise alone.
        seeds: of the data (splits, or records that are drawn); those in a tuple share a cell.
        together: the names, out of data, methods, seeds and grid, whose values go whole into every
            cell, because it compares them or chooses among them.
    """

    data: tuple[str, ...]
    encoding: str
    methods: tuple[str, ...]
    grid: Mapping[str, tuple]
    folds: int
    repeats: int
    seeds: tuple[int | tuple[int, ...], ...]
    together: tuple[str, ...] = ()

    def cells(self) -> list[dict[str, Any]]:
        """The settings of every cell, in the order they are run."""
        whole = {"data": self.data, "methods": self.methods, "seeds": self.seeds, **self.grid}
        unknown = [name for name in self.together if name not in whole]
        if unknown:
            raise ValueError(f"together must name data, methods, seeds or the grid, got {unknown}")
        kept = {name: _plain(whole[name]) for name in self.together}
        kept |= {"folds": self.folds, "repeats": self.repeats}
        return [{**one, **kept} for one in self._combinations(whole)]

    def _combinations(self, whole: Mapping[str, tuple]) -> list[dict[str, Any]]:
        each = {k: _plain(v) for k, v in whole.items() if k not in self.together and v}
        return [dict(zip(each, c, strict=True)) for c in itertools.product(*each.values())]

    def words(self) -> dict[str, str]:
        """The column as the report prints it, by the names of ENTRIES."""
        grid = " / ".join(f"{name}: {_listed(values)}" for name, values in self.grid.items())
        seeds = [one for s in self.seeds for one in (s if isinstance(s, tuple) else (s,))]
        return {
            "data": _listed(self.data) or "none",
            "encoding": self.encoding,
            "methods": _listed(self.methods),
            "grid": grid or "none",
            "folds": str(self.folds) if self.folds else "none",
            "repeats": str(self.repeats),
            "seeds": _listed(seeds) or "none",
        }


@dataclasses.dataclass(frozen=True)
class Table:
    """A table or figure of a paper.

    Attributes:
        name: as the command line knows it.
        about: what it is about, in one line.
        published: the column of the paper in words, by the names of ENTRIES; "not said" where the
            paper does not say.
        small: what two processor cores run in minutes.
        full: the paper's size.
        compute: "module:function", (settings of a cell, folder of the data sets) -> rows.
        code: further modules that the rows depend on.
        needs: of a table on files that may not be passed on: the place of the user's own, a pattern
            in the folder of the data sets in which {data} is the name of the data set.
    """

    name: str
    about: str
    published: Mapping[str, str]
    small: Column
    full: Column
    compute: str
    code: tuple[str, ...] = ()
    needs: str = ""

    def column(self, name: str) -> Column:
        """`small` or `full`."""
        if name not in ("small", "full"):
            raise ValueError(f"column must be 'small' or 'full', got {name!r}")
        return getattr(self, name)

    def modules(self) -> tuple[str, ...]:
        """The modules whose source the rows depend on."""
        return (self.compute.partition(":")[0], *self.code)

    def function(self) -> Callable[..., Rows]:
        """What computes a cell."""
        module, _, name = self.compute.partition(":")
        return getattr(importlib.import_module(module), name)


def tables(paper: str) -> dict[str, Table]:
    """The tables of a paper that has a protocol; none otherwise."""
    if importlib.util.find_spec(f"experiments.{paper}.protocol") is None:
        return {}
    return {t.name: t for t in importlib.import_module(f"experiments.{paper}.protocol").TABLES}


def _listed(values: Sequence) -> str:
    between = "; " if any(isinstance(v, str) for v in values) else ", "
    return between.join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)


def _plain(value: Any) -> Any:
    """Tuples as the lists that JSON makes of them, so that settings compare equal to a file's."""
    return [_plain(v) for v in value] if isinstance(value, (tuple, list)) else value
