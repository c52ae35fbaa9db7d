"""A run by a schema: declared ranges have cells in each of its files; runs of before have none."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from dpjax import training
from dpjax.cli import app

ASKED = ("--target", "paid", "--epsilon", "2", "--delta", "1e-5", "--steps", "20", "--seed", "3")
SCHEMA = """
target = "paid"
classes = ["no", "yes"]
[[columns]]
name = "patient_id"
range = [0, 10]
[[columns]]
name = "gain"
range = [0, 1000]
scale = "log"
"""


def dpjax(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    x, gain = rng.uniform(0, 10, 3_000), np.exp(rng.normal(3, 1, 3_000))
    paid = np.where(np.sin(2 * x) > 0, "yes", "no")
    rows = zip(x, gain, paid, strict=True)
    (folder / "rows.csv").write_text(
        "patient_id,gain,paid\n" + "".join(f"{a:.3f},{b:.2f},{c}\n" for a, b, c in rows)
    )
    (folder / "schema.toml").write_text(SCHEMA)
    return folder


def run(files, out, *more):
    given = ("--data", files / "rows.csv", "--schema", files / "schema.toml", *ASKED)
    found = dpjax("train", *given, "--out", out, *more)
    assert found.exit_code == 0, found.output
    return found.output


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return out, run(files, out)


def read_columns(out):
    return json.loads((out / "model.json").read_text())["encoding"]["columns"]


def test_declared_ranges_have_cells_and_are_called_public(finished):
    out, said = finished
    assert "id by its name" not in said  # whoever declares a column knows what it is
    for column in read_columns(out):
        assert len(column["cuts"]) >= 7
        assert column["line_weight"] == 0.9
        assert "public" in column["origin"]
        assert "remark" not in column
    certificate = json.loads((out / "certificate.json").read_text())
    listed = json.dumps(certificate, ensure_ascii=False)
    assert "ranges of patient_id, gain: given by the user" in listed
    assert [one["code"] for one in certificate["not_covered"]] == ["key-by-hand"]  # by --seed


def test_a_share_of_each_column_adds_up_to_the_score(finished, files, tmp_path):
    out, _ = finished
    parts, new = tmp_path / "parts.csv", tmp_path / "new.csv"
    new.write_text("patient_id,gain\n" + "".join(f"{x},{x}\n" for x in (-1, 0, 0.001, 2.5, 10, 99)))
    found = dpjax("predict", out, "--data", new, "--out", parts, "--explain")
    assert found.exit_code == 0, found.output
    with parts.open() as file:
        rows = [[float(cell) for cell in list(row.values())[-4:]] for row in csv.DictReader(file)]
    for score, base, x, gain in rows:
        assert base + x + gain == pytest.approx(score, abs=1e-3)
    # A cell that holds the lower end alone differs from the next; beyond the range nothing moves.
    assert rows[0] == rows[1] != rows[2]
    assert rows[4][2] == rows[5][2]
    found = dpjax("report", out)
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize(
    ("more", "has"),
    [
        ((), True),
        (("--encoding", "tail-bins"), False),
        (("--encoding", "asinh"), False),
        (("--model", "mlp"), False),
        (("--task", "regression"), True),
        (("--model", "auto"), True),
        (("--epsilon", "0.05"), False),
        (("--preprocessing", "from-records"), False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_which_runs_have_cells_of_declared_ranges(files, tmp_path, more, has):
    data, schema, options = tmp_path / "rows.csv", tmp_path / "schema.toml", list(ASKED)
    rows = (files / "rows.csv").read_text()
    data.write_text(rows.replace("yes", "1").replace("no", "0") if "regression" in more else rows)
    given = (files / "schema.toml").read_text()
    if "regression" in more:
        given = given.replace('classes = ["no", "yes"]', "")
        given += '[[columns]]\nname = "paid"\nrange = [0, 1]\n'
    schema.write_text(given)
    for name, value in zip(more[::2], more[1::2], strict=True):
        if name in options:
            options[options.index(name) + 1] = value
        else:
            options += [name, value]
    out = tmp_path / "run"
    found = dpjax("train", "--data", data, "--schema", schema, *options, "--out", out)
    assert found.exit_code == 0, found.output
    assert all((column["cuts"] is not None) == has for column in read_columns(out))


def test_a_run_that_was_begun_before_there_were_cells_goes_on_without(files, tmp_path, monkeypatch):
    out, other = tmp_path / "run", tmp_path / "other"

    def end(*arguments, **settings):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "compile_train", end)
        patch.setattr(training, "fit", end)
        found = dpjax(
            "train", "--data", files / "rows.csv", "--schema", files / "schema.toml", *ASKED,
            "--out", out,
        )  # fmt: skip
        assert found.exit_code != 0
    shutil.copytree(out, other)
    (note,) = out.rglob("declared_ranges_have_cells.note")
    note.unlink()
    run(files, out, "--resume")
    run(files, other, "--resume")
    assert all(column["cuts"] is None for column in read_columns(out))
    assert all(column["cuts"] is not None for column in read_columns(other))
