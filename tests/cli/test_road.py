"""The road of a new user, from a file to a report: the commands of README and Start, as written.

`.ci/package` runs those of Start once more, from an installed package.
"""

from __future__ import annotations

import csv
import json
import pathlib
import re
import runpy
import shlex
import tomllib

import pytest
from typer.testing import CliRunner

from dpjax.cli import app
from maintenance import project

_START = project.ROOT / "docs" / "index.md"
_COMMAND = re.compile(r"^    (dpjax .*)$", re.M)


def _follow(commands: list[str]) -> None:
    """Run each command; none may be refused."""
    for command in commands:
        found = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
        assert found.exit_code == 0, f"{command}\n{found.output}"


def _written_under(page: str, first: str) -> str:
    """The indented lines of a page from the one that starts so, as a user would copy them."""
    lines = page[page.index(f"    {first}") :].split("\n")
    stop = next(i for i, line in enumerate(lines) if not line.startswith("    "))
    return "\n".join(line[4:] for line in lines[:stop]) + "\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder with the files that a user has."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(pathlib.Path(__file__).with_name("patients.py")))["write"](tmp_path)
    return tmp_path


@pytest.mark.processes
def test_the_commands_of_the_first_page(folder):
    text = (project.ROOT / "README.md").read_text(encoding="utf-8")
    block = text.split("\n## From your own table to a report\n")[1].split("\n## ")[0]
    commands = _COMMAND.findall(block)
    assert len(commands) == 4
    _follow(commands)
    assert (folder / "runs/patients/report.html").read_text().startswith("<!")
    assert len((folder / "predictions.csv").read_text().splitlines()) == 6


@pytest.mark.processes
def test_the_commands_of_start_from_a_file_to_a_report(folder):
    page = _START.read_text(encoding="utf-8")
    about, schema = (_written_under(page, first) for first in ("organisation = ", "target = "))
    (folder / "about.toml").write_text(about, encoding="utf-8")
    (folder / "patients.toml").write_text(schema, encoding="utf-8")
    _follow(_COMMAND.findall(page))

    # The person is protected, and neither the number of a patient nor a date of birth is learned.
    for run in ("patients", "patients-comma", "declared"):
        certificate = json.loads((folder / f"runs/{run}/certificate.json").read_text())
        assert certificate["declared"]["unit"] == "person"
        assert certificate["declared"]["person_column"] == "patient_id"
        assert certificate["epsilon"] <= 1.0
        assert certificate["not_covered"] == []
        model = (folder / f"runs/{run}/model.json").read_text()
        assert "P00001" not in model
        assert not re.search(r"19\d\d-\d\d-\d\d", model)
        # The column of numbers is one, with a comma too: it is no list of texts.
        assert '"26.1"' not in model
        assert '"26,1"' not in model
    report = (folder / "runs/patients/report.html").read_text(encoding="utf-8")
    for value in tomllib.loads(about).values():
        assert value in report
    lines = list(csv.reader((folder / "predictions.csv").read_text("utf-8").splitlines()))
    assert lines[0][0] == "patient_id"
    assert lines[1][0] == "P00000"
    assert len(lines) == 6
    assert "patient_id" in (folder / "draft.toml").read_text(encoding="utf-8")
    found = json.loads((folder / "runs/patients/evaluation.json").read_text())
    assert found["accuracy"] > found["largest_class_share"]
