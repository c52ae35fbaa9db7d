"""Protocols: cells, the runner that goes on where it was, and what the committed cells say."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys

import pandas as pd
import pytest
from typer.testing import CliRunner

from experiments import cells, common, protocol
from experiments.protocol import Column, Table

HERE = pathlib.Path(cells.__file__).parent
TABLES = [(paper, t) for paper in common.papers() for t in protocol.tables(paper).values()]
NAMES = [f"{paper}-{table.name}" for paper, table in TABLES]
_SMALL = Column(
    data=("a", "b"),
    encoding="none",
    methods=("first", "second"),
    grid={"size": (1, 2)},
    folds=0,
    repeats=3,
    seeds=(),
    together=("methods",),
)


@pytest.fixture
def table(tmp_path, monkeypatch) -> Table:
    """A table whose code is in the test's folder."""
    code = "def cell(settings, data):\n    return [{'size': settings['size'], 'by': 1}]  # one\n"
    (tmp_path / "made_up_cell.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("made_up_cell", None)
    cells.code_of.cache_clear()
    yield Table("t", "about", {}, _SMALL, _SMALL, "made_up_cell:cell")
    cells.code_of.cache_clear()


def test_cells_are_every_combination_of_what_is_not_taken_together():
    found = _SMALL.cells()
    assert [(c["data"], c["size"]) for c in found] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert all(c["methods"] == ["first", "second"] and c["repeats"] == 3 for c in found)
    assert "seeds" not in found[0]
    with pytest.raises(ValueError, match="together must name"):
        dataclasses.replace(_SMALL, together=("epochs",)).cells()


def test_a_table_goes_on_where_it_was(table, tmp_path):
    with pytest.raises(cells.Unfinished, match="3 of 4 cells of small"):
        cells.run(tmp_path, table, "small", tmp_path, limit=1)
    assert cells.count(tmp_path, table, "small")[:3] == (1, 0, 4)
    (first,) = (tmp_path / "cells" / "t").glob("*.json")
    made = first.stat().st_mtime_ns
    said: list[str] = []
    rows = cells.run(tmp_path, table, "small", tmp_path, say=said.append)
    assert [row["size"] for row in rows] == [1, 2, 1, 2]
    assert (len(said), first.stat().st_mtime_ns) == (3, made)
    content = json.loads(first.read_text())
    assert content["commit"] == cells.commit()
    assert pd.Timestamp(content["time"].removesuffix(" UTC")) > pd.Timestamp("2026-01-01")
    assert not list(tmp_path.rglob("*.partial"))


def test_cells_of_changed_code_are_run_again_and_comments_do_not_count(table, tmp_path):
    cells.run(tmp_path, table, "small", tmp_path)
    file = tmp_path / "made_up_cell.py"
    for old, new, older in (("# one", "# two", 0), ("'by': 1", "'by': 2", 4)):
        file.write_text(file.read_text().replace(old, new))
        cells.code_of.cache_clear()
        assert cells.count(tmp_path, table, "small").older == older


_CODE = """
from typing import NamedTuple
import numpy as np
from dpjax import erm
from dpjax.erm.losses import Logistic

class Size(NamedTuple):
    units: int
    batch: int = 4

def cell(settings, data):
    found = Logistic(settings)
    return np.mean(erm.dp_gd(found, 2))
"""


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("import numpy as np", "import numpy as np  # of arrays", False),
        ("class Size(NamedTuple):", 'class Size(NamedTuple):\n    """Of a step."""', False),
        ("(settings, data):", "(settings: dict, data) -> float:", False),
        ("found = ", "found: Logistic = ", False),
        ("from dpjax import erm\n", "from typing import Any\nfrom dpjax import erm\n", False),
        ("dpjax.erm.losses", "dpjax.erm.problems", False),
        ("from dpjax import erm\n", "", True),
        ("Logistic", "Huber", True),
        ("losses import Logistic", "losses import Huber as Logistic", True),
        ("from dpjax.erm.losses", "from experiments.losses", True),
        ("import numpy as np", "import jax.numpy as np", True),
        ("    units: int\n", "", True),
        ("batch: int = 4", "batch: int = 5", True),
        ("2))", "3))", True),
        ("dp_gd", "dp_sgd", True),
        ("settings, data", "data, settings", True),
    ],
)
def test_a_stamp_is_of_what_a_number_depends_on(old, new, counts):
    assert old in _CODE
    assert (cells.digest_of([_CODE.replace(old, new)]) != cells.digest_of([_CODE])) == counts


def test_a_table_on_the_users_own_files_has_the_cells_of_those_that_are_there(table, tmp_path):
    table = dataclasses.replace(table, needs="own/{data}.*")
    with pytest.raises(cells.Unfinished, match=r"t: needs .*own/a\.\* or .*own/b\.\*"):
        cells.run(tmp_path, table, "small", tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "b.csv").touch()
    assert [row["size"] for row in cells.run(tmp_path, table, "small", tmp_path)] == [1, 2]
    assert cells.count(tmp_path, table, "small")[:3] == (2, 0, 4)


def test_status_counts_every_table_and_names_those_without_a_protocol():
    import typer

    from experiments.__main__ import main

    app = typer.Typer()
    app.command()(main)
    said = CliRunner().invoke(app, ["status"]).output
    for paper, table in TABLES:
        (line,) = (s for s in said.splitlines() if s.split()[:2] == [paper, table.name])
        planned = len(table.small.cells())
        # A table on files of the user's own has no cells here.
        needs = "needs the extract" if table.needs else ""
        assert (needs or f"of {planned}") in line
    for paper in common.papers():
        rest = set(common.targets(paper)) - set(protocol.tables(paper))
        assert all(name in said for name in rest)


@pytest.mark.parametrize(("paper", "table"), TABLES, ids=NAMES)
def test_a_protocol_says_everything_in_three_columns(paper, table):
    assert set(table.published) == set(protocol.ENTRIES)
    assert table.name in common.targets(paper)
    assert callable(table.function())
    assert len(table.full.cells()) >= len(table.small.cells())
    for column in (table.small, table.full):
        assert set(column.words()) == set(protocol.ENTRIES)
        files = {cells.file_of(HERE, table, c) for c in column.cells()}
        assert len(files) == len(column.cells())


@pytest.mark.parametrize(("paper", "table"), TABLES, ids=NAMES)
def test_small_columns_are_complete_and_the_tables_are_what_the_cells_say(paper, table, tmp_path):
    folder, rows = HERE / paper, []
    if not (folder / "cells" / table.name).is_dir():
        pytest.skip(f"{table.name} of {paper} has not been run")
    for settings in table.small.cells():
        state, content = cells.read(cells.file_of(folder, table, settings), table)
        assert state != cells.MISSING, f"run python -m experiments {paper} {table.name}"
        assert content["settings"] == settings
        assert content["commit"] != "unknown"
        assert not content["commit"].endswith("+")
        rows += content["rows"]
    for row in rows:
        row.pop("certificate", None)
        row.pop("certificates", None)
    fresh = common.Run(tmp_path, tmp_path).save_table(table.name, rows)
    assert fresh.read_text() == (folder / f"{table.name}.csv").read_text()
