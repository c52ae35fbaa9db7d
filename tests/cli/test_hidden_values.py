"""A run whose noise hides values of a column: the buckets they share, and runs of before these."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from dpjax import data, training
from dpjax.cli import app
from dpjax.data import buckets

ASKED = ("--target", "age", "--epsilon", "5", "--delta", "1e-5", "--steps", "4", "--numeric", "x")


def dpjax(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def ages(tmp_path_factory):
    """Ages whose classes are too many, so that a run ends after its looks; and rare jobs."""
    rng = np.random.default_rng(0)
    age = rng.integers(20, 80, 6_000)
    job = np.where(rng.random(len(age)) < 0.1, rng.integers(100, 300, len(age)), 7).astype(str)
    path = tmp_path_factory.mktemp("data") / "ages.csv"
    rows = zip(rng.normal(age, 5), job, age, strict=True)
    path.write_text("x,job,age\n" + "".join(f"{x:.1f},code {j},{a}\n" for x, j, a in rows))
    return path


@pytest.fixture(scope="module")
def refused(ages, tmp_path_factory):
    out = tmp_path_factory.mktemp("refused") / "run"
    found = dpjax("train", "--data", ages, *ASKED, "--out", out)
    assert found.exit_code == 2, found.output
    return out


@pytest.mark.at_length
def test_hidden_values_share_buckets_that_predict_explain_and_the_report_know(
    refused, ages, tmp_path
):
    out = tmp_path / "run"
    shutil.copytree(refused, out)
    more = ("--task", "regression", "--out", out, "--resume")
    found = dpjax("train", "--data", ages, *ASKED, *more)
    assert found.exit_code == 0, found.output
    encoding = json.loads((out / "model.json").read_text())["encoding"]
    columns = {column["name"]: column for column in encoding["columns"]}
    assert columns["job"]["categories"] == ["", "code 7"]
    assert columns["job"]["buckets"] > 2
    assert "buckets" not in columns["x"]
    new, parts = tmp_path / "new.csv", tmp_path / "parts.csv"
    new.write_text("x,job\n30,code 7\n30,code 123\n30,never seen\n30,\n")
    found = dpjax("predict", out, "--data", new, "--out", parts, "--explain")
    assert found.exit_code == 0, found.output
    assert "taken for none" not in found.output
    with parts.open() as file:
        rows = [[float(cell) for cell in list(row.values())[-4:]] for row in csv.DictReader(file)]
    for score, base, x, job in rows:
        assert base + x + job == pytest.approx(score, abs=1e-3)
    weights = np.asarray(training.load_model(out).params["weights"]).ravel()
    own, count = weights[-2 - columns["job"]["buckets"] :], columns["job"]["buckets"]
    places = [1, *(2 + buckets.place("job", text, count) for text in ("code 123", "never seen")), 0]
    jobs = np.array([row[3] for row in rows])
    # A target from 20 to 79 is trained on as −1 to 1, and two columns share the norm.
    scale = (encoding["target_range"][1] - encoding["target_range"][0]) / 2 / np.sqrt(2)
    np.testing.assert_allclose(jobs - jobs[0], scale * (own[places] - own[1]), atol=1e-3)
    found = dpjax("report", out)
    assert found.exit_code == 0, found.output


def test_a_run_that_was_begun_before_there_were_buckets_goes_on_without(refused, ages, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(refused, out)
    (note,) = out.rglob("hidden_values_share_buckets.note")
    note.unlink()
    # Not written when it was killed: its looks are taken again, by its key.
    before = json.loads((out / "private_table.json").read_text())["encoding"]
    (out / "private_table.json").unlink()
    found = dpjax("train", "--data", ages, *ASKED, "--out", out, "--resume")
    assert found.exit_code == 2, found.output
    again = json.loads((out / "private_table.json").read_text())["encoding"]
    assert before["columns"][1].pop("buckets") > 2
    assert again == before


def test_the_table_that_was_released_keeps_its_buckets(refused):
    kept = json.loads((refused / "private_table.json").read_text())
    schema = data.described_schema(kept["encoding"])
    assert schema.columns[1].buckets > 2
    assert schema.columns[0].buckets == 0
