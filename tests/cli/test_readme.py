"""The commands on the first page run as written there; `.ci/package` runs those of Start."""

from __future__ import annotations

import re
import shlex

import numpy as np
from typer.testing import CliRunner

from dpjax.cli import app
from maintenance import project


def test_from_a_table_to_a_report_and_predictions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (project.ROOT / "README.md").read_text(encoding="utf-8")
    block = text.split("\n## From your own table to a report\n")[1].split("\n## ")[0]
    commands = re.findall(r"^    (dpjax .*)$", block, re.M)

    rng = np.random.default_rng(0)
    age, bmi = rng.integers(18, 90, 400), rng.normal(26, 4, 400).round(1)
    rows = [f"{a},{b},{rng.choice(['yes', 'no'])}" for a, b in zip(age.tolist(), bmi, strict=True)]
    target = np.where(age > 55, "yes", "no")
    table = [f"{row},{label}" for row, label in zip(rows, target, strict=True)]
    header = "age,bmi,smoker"
    (tmp_path / "patients.csv").write_text("\n".join([f"{header},readmitted", *table]) + "\n")
    (tmp_path / "new.csv").write_text("\n".join([header, *rows[:3]]) + "\n")

    assert len(commands) == 4
    for command in commands:
        found = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
        assert found.exit_code == 0, f"{command}\n{found.output}"
    assert (tmp_path / "runs/patients/report.html").read_text().startswith("<!")
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 4
