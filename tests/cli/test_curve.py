"""`dpjax curve` reads mechanisms from text and draws them."""

import contextlib

import pytest
import typer
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax.cli import price


def run(*arguments):
    app = typer.Typer()
    app.command()(price.curve_command)
    return CliRunner().invoke(app, list(arguments))


def test_draws(tmp_path):
    out = tmp_path / "curve.png"
    found = run("gaussian:noise=20", "shuffled:noise=8,batches=9", "--steps", "50", "--out", out)
    assert found.exit_code == 0, found.output
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("text", ["gaussian:noise=0", "poisson:noise=1,rate=0"])
@pytest.mark.parametrize("steps", ["1", "50"])
def test_what_costs_everything_or_nothing_is_drawn(tmp_path, text, steps):
    found = run(text, "--steps", steps, "--out", tmp_path / "curve.png")
    assert found.exit_code == 0, found.output
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.at_length
def test_the_example_of_the_documentation_shows_progress_and_is_drawn(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(price.inputs, "progress", _counting(shown))
    found = run("poisson:noise=1,rate=0.01", "gaussian:noise=20", "--out", tmp_path / "curve.png")
    assert found.exit_code == 0, found.output
    assert shown == [6, *[1] * 6]  # three panels of two mechanisms


def _counting(shown):
    @contextlib.contextmanager
    def progress(what, total):
        shown.append(total)
        yield lambda: shown.append(1)

    return progress


def test_every_kind_is_read():
    assert price.parse_step("poisson:noise=1,rate=0.01") == acc.PoissonSampled(
        acc.Gaussian(1.0), 0.01
    )
    assert price.parse_step("fixed:noise=4,batch=256,records=60000") == acc.FixedBatchSampled(
        acc.Gaussian(4.0), 256.0, 60000.0
    )
    assert price.parse_step("ball:displacement=1e-6,dimension=10") == acc.UniformBall(1e-6, 10.0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("laplace:noise=1", "the kind must be one of"),
        ("poisson:noise=1", "rate is missing"),
        ("gaussian:sigma=1", "must set noise"),
        ("gaussian:noise=much", "noise must be a number"),
        ("gaussian:noise=1,noise=2", "noise must be given once"),
    ],
)
def test_bad_text_is_refused(tmp_path, text, complaint):
    found = run(text, "--out", tmp_path / "x.png")
    assert found.exit_code == 2
    assert complaint in found.output
    assert not (tmp_path / "x.png").exists()
