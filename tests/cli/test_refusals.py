"""What a command refuses is one line that says what to change, before anything is written."""

from __future__ import annotations

import resource

import pytest
from typer.testing import CliRunner

from dpjax.cli import app


def dpjax(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("age,sick\n" + "".join(f"{20 + k},{'ny'[k % 2]}\n" for k in range(40)))
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("epsilon", "--noise-multiplier", 1, "--delta", 1e-5, "--rate", 0.1, "--method", "gdp"),
        (
            "sweep",
            "--noise-multiplier",
            "1,2",
            "--rate",
            0.5,
            "--method",
            "gdp",
            "--out",
            "new.csv",
        ),
    ],
)
def test_a_bound_that_has_no_answer_is_one_line(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = dpjax(*arguments)
    assert found.exit_code == 2, found.output
    assert found.output.startswith("error: ")
    assert "'gdp'" in found.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            (
                *("--sampling", "random-allocation", "--adjacency", "replace-one"),
                *("--preprocessing", "from-records"),
            ),
            "Repeated(RandomAllocation(Gaussian)) has no epsilon by any method under replace-one",
        ),
        (("--seed", 2**32), "--seed must lie between"),
        (("--seed", -1), "--seed must lie between"),
        (("--adjacency", "swap"), "adjacency must be one of ['add-remove', 'replace-one'], got"),
    ],
)
def test_training_refuses_before_it_makes_a_folder(people, tmp_path, options, message):
    out = tmp_path / "run"
    settings = ("--target", "sick", "--epsilon", 3, "--delta", 1e-3, "--steps", 8)
    # A key that holds out some of the 40 records: one in 8,000 holds out none, which is refused.
    settings += ("--seed", 1)
    found = dpjax("train", "--data", people, *settings, "--out", out, *options)
    assert found.exit_code == 2, found.output
    assert f"error: {message}" in found.output
    assert not out.exists()


@pytest.mark.parametrize("spelt", ["Replace One", "replace_one", " REPLACE-ONE "])
@pytest.mark.at_length(every=3)
def test_an_adjacency_is_spelt_as_in_python(spelt, tmp_path):
    run = ("--steps", 10, "--delta", 1e-5, "--adjacency", spelt)
    found = dpjax("epsilon", "--noise-multiplier", 2, *run)
    assert found.exit_code == 0, found.output
    assert "(replace-one)" in found.output
    assert "(replace-one)" in dpjax("calibrate", "--epsilon", 2, *run).output
    assert "[add-remove|replace-one]" in dpjax("epsilon", "--help").output
    grid = ("--noise-multiplier", "1,2", "--rate", "0.1", "--method", "rdp", *run)
    assert dpjax("sweep", *grid, "--out", tmp_path / "a.csv").exit_code == 0
    assert "replace-one" in (tmp_path / "a.csv").read_text()
    refused = dpjax("epsilon", "--noise-multiplier", 2, *run[:4], "--adjacency", "swap")
    assert refused.exit_code == 2
    assert "adjacency must be one of ['add-remove', 'replace-one'], got 'swap'" in refused.output


@pytest.mark.parametrize("spelt", ["Replace One", "replace_one", " REPLACE-ONE "])
@pytest.mark.at_length
def test_train_spells_an_adjacency_so_too(spelt, people, tmp_path):
    settings = ("--data", people, "--target", "sick", "--epsilon", 3, "--delta", 1e-3)
    settings += ("--classes", "no,yes", "--steps", 10, "--adjacency", spelt)
    found = dpjax("train", *settings, "--out", tmp_path / "a")
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize(
    ("command", "option"), [("curve", "--out"), ("sweep", "--out"), ("sweep", "--picture")]
)
def test_a_file_that_exists_or_has_no_folder_is_refused_and_nothing_is_written(
    tmp_path, command, option
):
    what = ("gaussian:noise=20",) if command == "curve" else ("--noise-multiplier", "1,2")
    out = () if option == "--out" else ("--out", tmp_path / "new.csv")
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for path, message in (
        (mine, f"{option} must be a new file"),
        (tmp_path / "nowhere" / "a.png", f"{option} must be in a folder that exists"),
    ):
        found = dpjax(command, *what, *out, option, path)
        assert found.exit_code == 2, found.output
        assert message in found.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("curve", "gaussian:noise=20", "--steps", 1, "--out"), "new.png"),
        (("sweep", "--noise-multiplier", "1,2", "--rate", 0.5, "--out"), "new.csv"),
    ],
)
def test_a_full_disk_leaves_nothing_under_the_name_that_was_asked_for(tmp_path, arguments, name):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
    try:
        found = dpjax(*arguments, tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found.exit_code == 2, found.output
    assert f"error: {tmp_path / name}: File too large" in found.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("curve", "gaussian:noise=20", "--out", "a.gif"), ".png, .pdf, .svg, .jpg, got a.gif"),
        (("curve", "gaussian:noise=20", "--out", "a"), ".png, .pdf, .svg, .jpg, got a"),
        (("sweep", "--out", "a.xlsx"), ".csv, .csv.gz, got a.xlsx"),
        (("sweep", "--out", "a.csv", "--picture", "a.csv.gz"), ".jpg, got a.csv.gz"),
        (("report", "run", "--out", "a.pdf"), ".html, .htm, got a.pdf"),
        (("predict", "run", "--data", "b.csv", "--out", "a.parquet"), ".csv, got a.parquet"),
    ],
)
def test_a_name_of_a_format_that_is_not_written_is_refused_before_any_work(
    arguments, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    found = dpjax(*arguments)
    assert found.exit_code == 2, found.output
    assert found.output.endswith(f"{message}\n")
    assert found.output.startswith(f"error: {arguments[-2]} must end in .")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("suffix", "begins"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("JPG", b"\xff\xd8\xff")]
)
def test_a_picture_has_the_format_that_its_name_says(tmp_path, suffix, begins):
    out, picture = tmp_path / "a.csv", tmp_path / f"a.{suffix}"
    settings = ("--noise-multiplier", "1,2", "--rate", 0.5, "--method", "rdp")
    found = dpjax("sweep", *settings, "--out", out, "--picture", picture)
    assert found.exit_code == 0, found.output
    assert picture.read_bytes().startswith(begins)


def test_a_run_that_costs_nothing_is_drawn(tmp_path):
    out = tmp_path / "curve.png"
    found = dpjax("curve", "gaussian:noise=1e9", "--steps", 10, "--out", out)
    assert found.exit_code == 0, found.output
    assert out.read_bytes().startswith(b"\x89PNG")
