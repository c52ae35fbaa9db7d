"""What is printed fits the screen and says the same with and without colour."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax.cli import app
from dpjax.cli.words import WIDEST, show_labelled

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
