"""`dpjax sweep` prices a grid to a table and a heat map."""

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax.cli import price


def run(*arguments):
    app = typer.Typer()
    app.command()(price.sweep_command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_table_and_picture(tmp_path):
    out, picture = tmp_path / "sweep.csv", tmp_path / "sweep.png"
    found = run(
        *("--noise-multiplier", "1,2"),
        *("--rate", "0.01:0.1:3"),
        *("--steps", 100),
        *("--method", "rdp"),
        *("--out", out),
        *("--picture", picture),
    )
    assert found.exit_code == 0, found.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    table = pd.read_csv(out)
    assert len(table) == 6
    row = table[(table.noise_multiplier == 2) & np.isclose(table.rate, 0.1)].iloc[0]
    step = acc.PoissonSampled(acc.Gaussian(2.0), 0.1)
    truth = acc.epsilon(acc.Repeated(step, 100), delta=1e-5, method="rdp")
    assert row.epsilon == pytest.approx(truth, rel=1e-9)
    assert (row.steps, row.delta, row.adjacency) == (100, 1e-5, "add-remove")


@pytest.mark.parametrize("text", ["1:2", "one,two", "-1,2", "0:1:3"])
def test_bad_grids_are_refused(tmp_path, text):
    found = run("--noise-multiplier", text, "--out", tmp_path / "x.csv")
    assert found.exit_code == 2
    assert "--noise-multiplier" in found.output
