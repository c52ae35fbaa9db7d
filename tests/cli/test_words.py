"""What is printed fits the screen and says the same with and without colour."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax.cli import app
from dpjax.cli.run import show_progress
from dpjax.cli.verify import WIDEST, show_labelled

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), 0.01), 1_000)
    certificate = acc.certify(
        run, 1e-5, not_covered=["the ranges of the columns: age, a" + "x" * 30]
    )
    (folder / "certificate.json").write_text(certificate.to_json(), encoding="utf-8")
    return folder


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.at_length(every=3)
def test_verify_fits_the_screen(folder, columns, colour):
    told = {"COLUMNS": str(columns), "TERM": "xterm"}
    told |= {"FORCE_COLOR": "1", "NO_COLOR": ""} if colour else {"NO_COLOR": "1"}
    result = CliRunner().invoke(app, ["verify", str(folder)], env=told, color=True)
    assert result.exit_code == 0, result.output
    assert bool(_COLOUR.search(result.output)) == colour
    plain = _COLOUR.sub("", result.output)
    assert max(map(len, plain.split("\n"))) <= min(columns, WIDEST)
    for label in ("Protected", "Against", "How well", "Not covered", "Released", "Recomputed"):
        assert re.search(rf"^{label}: ", plain, re.M), label
    said = acc.Certificate.from_json((folder / "certificate.json").read_text()).describe()
    assert " ".join(said.split()) in " ".join(plain.split())


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_nothing_is_lost_by_wrapping(columns):
    text = "Label: " + " ".join(f"word-{k}" for k in range(60)) + "\n\nNo label here."
    out = io.StringIO()
    show_labelled(Console(file=out, width=columns), text)
    assert out.getvalue().split() == text.split()
    assert out.getvalue().count("\n\n") == 1


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("losses", [False, True])
def test_the_bar_of_a_run_is_whole_on_every_screen(columns, losses):
    out = io.StringIO()
    console = Console(file=out, width=columns, force_terminal=True, color_system=None)
    row = {"step": 2_000, "epsilon": 3.25, "test_accuracy": 0.936, "memory": 4.48e8}
    row |= {"records_per_second": 605_585.0, "train_loss": 0.512, "clipped": 0.75}
    with show_progress(console, 2_000, False, losses) as log:
        log(row)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    line = shown.rstrip().split("\n")[-1].split("\r")[-1]
    assert len(line) <= columns
    assert "…" not in line
    for part in ("2000/2000", "93.6%", "ε 3.250", "0:00:00"):
        assert part in line, line
    if columns == 200:
        assert "605,585 records/s" in line
        assert " MB" not in line  # of the process, which nobody asked for
        assert ("loss 0.512, 75% clipped" in line) == losses
