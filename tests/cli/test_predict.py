"""A model trained by the command line is used in a new process, on rows without a target."""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import data, training
from dpjax.cli import app
from dpjax.cli.options import TrainOptions
from dpjax.cli.rows import read_inputs

SETTINGS = [
    "--preprocessing",
    "from-records",
    "--epsilon",
    "8",
    "--delta",
    "1e-3",
    "--steps",
    "30",
    "--seed",
    "1",
]
_COMMA = ("--decimal", ",", "--thousands", ".")


def dpjax(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    rng = np.random.default_rng(0)
    age, job = rng.integers(18, 90, size=300), rng.choice(["baker", "smith"], size=300)
    path = tmp_path_factory.mktemp("data") / "people.csv"
    lines = [f"{a},{j},{'high' if a > 50 else 'low'}" for a, j in zip(age, job, strict=True)]
    path.write_text("age,job,income\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module", params=["logistic", "mlp"])
def trained(request, people, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / request.param
    arguments = ("--target", "income", *SETTINGS, "--model", request.param, "--out", out)
    result = dpjax("train", "--data", people, *arguments)
    assert result.exit_code == 0, result.output
    assert f"use it: dpjax predict {out}" in " ".join(result.output.split())
    return out


@pytest.mark.processes
def test_new_rows_are_predicted_in_a_new_process(trained, tmp_path):
    new = tmp_path / "new.csv"
    # Other order, no target, a column more, a job that was never seen, an age out of range.
    new.write_text("job,note,age\nsmith,x,20\nbaker,y,85\ntailor,z,999\n")
    out = tmp_path / "predictions.csv"
    code = "from dpjax.cli import main; main()"
    command = [sys.executable, "-c", code, "predict", str(trained), "--data", str(new)]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "left out: note" in done.stdout
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["prediction"] for row in rows] == ["low", "high", "high"]
    saved = training.load_model(trained)
    root = np.sqrt(2)
    low, high = 18.0, 89.0
    ages = [2 * (min(age, high) - low) / (high - low) - 1 for age in (20, 85, 999)]
    jobs = [[0, 1], [1, 0], [0, 0]]
    for row, age, job in zip(rows, ages, jobs, strict=True):
        logits = saved.model.apply(saved.params, np.float32([age, *job]) / np.float32(root))
        expected = np.exp(logits) / np.exp(logits).sum()
        found = [float(row[f"probability of {name}"]) for name in ("high", "low")]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        assert row["prediction"] == ("high", "low")[int(found[1] > found[0])]


@pytest.mark.at_length(every=2)
def test_the_model_says_what_was_learned_from_private_rows(trained):
    saved = training.load_model(trained)
    assert saved.certificate.epsilon <= 8.0
    origins = {column["name"]: column["origin"] for column in saved.encoding["columns"]}
    learned = "learned from private rows, not covered by ε"
    assert origins == {"age": learned, "job": learned}
    assert saved.encoding["origin of the classes"] == learned
    assert data.described_schema(saved.encoding).classes == ("high", "low")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("age,note\n20,x\n", "the column 'job' is missing; the columns are age, note"),
        ("note\nx\n", "the columns 'age', 'job' are missing"),
        ("age,job\nold,smith\n", "column 'age' holds old in line 2 of new.csv"),
        ("age,job\n20,smith\n30\n", "line 3: 1 cells"),
        ("age,job\n20,\n", "column 'job' has no value in line 2 of new.csv"),
    ],
)
def test_rows_that_cannot_be_encoded_are_refused_by_column(trained, tmp_path, content, message):
    new = tmp_path / "new.csv"
    new.write_text(content)
    result = dpjax("predict", trained, "--data", new, "--out", tmp_path / "p.csv")
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["encoding"]["classes"].append("c"), "each of its 3 classes"),
        (lambda d: d["encoding"]["columns"].pop(), "from the 1 features of its encoding"),
        (lambda d: d["encoding"]["columns"][1].update(name="x"), "names a column twice"),
        (lambda d: d["encoding"]["columns"][0].update(range=None), "the encoding is incomplete"),
        (lambda d: d["encoding"]["columns"][0].update(range=[0, 1, 2]), "incomplete"),
        (lambda d: d["encoding"]["columns"][0].update(kind="category"), "categories as texts"),
        (lambda d: d["encoding"].update(classes="ab"), "classes as texts"),
    ],
)
def test_an_encoding_that_is_not_the_model_s_is_refused(change, message, tmp_path):
    folder = small_model(tmp_path, 1.0)
    description = json.loads((folder / "model.json").read_text())
    change(description)
    (folder / "model.json").write_text(json.dumps(description))
    (tmp_path / "new.csv").write_text("x,z\n0.1,0.5\n")
    found = dpjax("predict", folder, "--data", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert found.exit_code == 2, found.output
    assert message in found.output
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize("weight", [np.nan, np.inf])
def test_parameters_that_are_no_numbers_predict_nothing(weight, tmp_path):
    folder = small_model(tmp_path, weight)
    (tmp_path / "new.csv").write_text("x,z\n0.5,0.9\n")
    found = dpjax("predict", folder, "--data", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert found.exit_code == 2, found.output
    assert "MODEL must give probabilities, got NaN" in found.output
    assert not (tmp_path / "p.csv").exists()


def small_model(folder, weight):
    columns = tuple(data.Column(name, range=(0.0, 1.0)) for name in "xz")
    schema = data.Schema(columns, target="y", classes=("a", "b"))
    params = {"weights": np.float32([weight, 1.0]), "bias": np.float32(0.0)}
    encoding = data.describe_encoding(schema, schema)
    return training.save_model(folder / "m", params, training.logistic(2), encoding=encoding)


def test_new_rows_are_read_as_the_training_rows_were_unless_told_otherwise(tmp_path):
    """Written in three ways, the same numbers are encoded and predicted alike."""
    files = {
        "plain": ("x,z,y\n0.25,1000.5,a\n0.75,,b\n", ("--missing", "")),
        "comma": ("x;z;y\n0,25;1.000,5;a\n0,75;?;b\n", ("--missing", "?", *_COMMA)),
        "blank": ("x;z;y\n0,25;1 000,5;a\n0,75;NA;b\n", ("--missing", "NA", *_COMMA[:3], " ")),
    }
    columns = data.Column("x", range=(0, 1)), data.Column("z", range=(0, 2001))
    schema = data.Schema(columns, target="y", classes=("a", "b"), missing=("?",))
    given = {"decimal": ",", "thousands": "."}
    encoding = data.describe_encoding(dataclasses.replace(schema, **given), schema)
    params = {"weights": np.float32([2.0, 1.0]), "bias": np.float32(0.0)}
    training.save_model(tmp_path / "m", params, training.logistic(2), encoding=encoding)
    (tmp_path / "s.toml").write_text(
        'target = "y"\nclasses = ["a", "b"]\n[[columns]]\nname = "x"\nrange = [0, 1]\n'
        '[[columns]]\nname = "z"\nrange = [0, 2001]\n'
    )
    said = set()
    for name, (text, options) in files.items():
        new, out = tmp_path / f"{name}.csv", tmp_path / f"{name}-out.csv"
        new.write_text(text)
        settings = () if name == "comma" else options  # the model's own
        if name == "plain":
            settings = (*options, "--decimal", ".", "--thousands", ",")
        found = dpjax("predict", tmp_path / "m", "--data", new, "--out", out, *settings)
        assert found.exit_code == 0, found.output
        said.add(out.read_text())
        many = tmp_path / f"{name}-many.csv"
        head, *rows = text.splitlines()
        many.write_text("\n".join([head, *rows * 5]))
        decimal, thousands = options[3::2] or (None, None)
        asked = TrainOptions(
            data=str(many),
            epsilon=1.0,
            schema=tmp_path / "s.toml",
            missing=[options[1]],
            decimal=decimal,
            thousands=thousands,
        )
        train, test, kept, _ = read_inputs(asked)
        expected = np.array([[-0.5, 0.0], [0.5, 0.0]]) / np.sqrt(2)
        np.testing.assert_allclose(train.features, expected[train.labels], atol=1e-6)
        np.testing.assert_allclose(test.features, expected[test.labels], atol=1e-6)
        read = data.described_schema(kept)
        assert (read.missing, read.decimal) == ((options[1],), "." if name == "plain" else ",")
    assert len(said) == 1
    wrong = dpjax("predict", tmp_path / "m", "--data", tmp_path / "plain.csv", "--out", "p.csv")
    assert wrong.exit_code == 2
    assert "column 'x' holds 0.25 in line 2 of plain.csv" in wrong.output
    two = dpjax("predict", tmp_path / "m", "--data", new, "--out", "p.csv", "--decimal", ".")
    assert two.exit_code == 2
    assert "decimal and thousands must differ, got '.' for both" in two.output


def test_predictions_are_never_overwritten_and_a_folder_must_hold_a_model(
    trained, people, tmp_path
):
    out = tmp_path / "p.csv"
    found = dpjax("predict", trained, "--data", people, "--out", out, "--json")
    assert json.loads(found.stdout) == {"rows": 300, "out": str(out), "columns_left_out": []}
    before = out.read_bytes()
    again = dpjax("predict", trained, "--data", people, "--out", out)
    assert again.exit_code == 2
    assert "--out must be a new file" in again.output
    assert out.read_bytes() == before
    (tmp_path / "named.csv").write_text(people.read_text().replace("income", "prediction", 1))
    named = "--data", tmp_path / "named.csv", "--id", "prediction", "--out", tmp_path / "q.csv"
    twice = dpjax("predict", trained, *named)
    assert (twice.exit_code, "no column of the predictions" in twice.output) == (2, True)
    nothing = dpjax("predict", tmp_path, "--data", people, "--out", tmp_path / "q.csv")
    assert nothing.exit_code == 2
    assert "must hold a model" in nothing.output


@pytest.mark.at_length
def test_adult_is_trained_predicted_and_verified_by_a_schema(data_dir, tmp_path):
    root = pathlib.Path(__file__).resolve().parents[2]
    import gzip

    schema = root / "experiments" / "adult" / "schema.toml"
    rows = gzip.decompress((data_dir / "adult" / "adult.data.gz").read_bytes()).decode()
    lines = [line for line in rows.splitlines() if line.strip()][:2_000]
    (tmp_path / "adult.csv").write_text("\n".join(lines) + "\n")
    unlabelled = [line.rpartition(",")[0] for line in lines[:50]]
    (tmp_path / "new.csv").write_text("\n".join(unlabelled) + "\n")
    run = tmp_path / "run"
    arguments = ("--data", tmp_path / "adult.csv", "--schema", schema, *SETTINGS, "--out", run)
    trained = dpjax("train", *arguments)
    assert trained.exit_code == 0, trained.output
    assert "(proven)" in trained.output
    out = tmp_path / "p.csv"
    found = dpjax("predict", run, "--data", tmp_path / "new.csv", "--out", out)
    assert found.exit_code == 0, found.output
    with out.open() as file:
        labels = [row["prediction"] for row in csv.DictReader(file)]
    truth = [line.rpartition(",")[2].strip() for line in lines[:50]]
    assert np.mean([a == b for a, b in zip(labels, truth, strict=True)]) > 0.7
    assert dpjax("verify", run).exit_code == 0


@pytest.fixture(scope="module")
def two_budgets(people, tmp_path_factory):
    """The folders of an ε = 1 run and of an ε = 500 run."""
    folder = tmp_path_factory.mktemp("budgets")
    for epsilon in ("1", "500"):
        settings = ["--epsilon", epsilon, "--delta", "1e-3", "--steps", "3", "--target", "income"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what ε = 500 permits
            result = dpjax("train", "--data", people, *settings, "--out", folder / epsilon)
        assert result.exit_code == 0, result.output
    return folder


@pytest.mark.at_length
def test_a_model_of_another_budget_is_refused_beside_the_certificate(two_budgets, tmp_path):
    honest = two_budgets / "1"
    names = ["model.safetensors", "model.json", "metrics.csv", "evaluation.json"]
    names += ["training.png", "effects.png"]
    assert dpjax("verify", honest).exit_code == 0
    found = json.loads(dpjax("verify", honest, "--json").stdout)
    assert found["files_compared"] == list(found["files"]) == names
    # The certificate alone holds too, and says that it saw no file.
    (tmp_path / "alone.json").write_bytes((honest / "certificate.json").read_bytes())
    shown = dpjax("verify", tmp_path / "alone.json")
    assert shown.exit_code == 0
    assert "Files compared: none; not there: model.safetensors" in " ".join(shown.output.split())
    rows = tmp_path / "new.csv"
    rows.write_text("age,job\n20,smith\n")
    for planted in names[:2], names[2:3]:
        forged = tmp_path / f"with another {planted[-1]}"
        shutil.copytree(honest, forged)
        for name in planted:
            shutil.copy(two_budgets / "500" / name, forged / name)
        commands = [["verify", forged], ["verify", forged, "--json"], ["report", forged]]
        commands += [["predict", forged, "--data", rows, "--out", tmp_path / "out.csv"]]
        for command in commands:
            result = dpjax(*command)
            assert result.exit_code == 1, command
            assert f"names another {planted[0]}" in result.output
        assert not (forged / "report.html").exists()
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.at_length
def test_a_ledger_books_runs_before_they_start_and_refuses_what_it_cannot_pay(people, tmp_path):
    file = tmp_path / "people.ledger.json"
    made = dpjax("ledger", file, "--epsilon", "2", "--delta", "1e-2", "--data", people)
    assert made.exit_code == 0, made.output
    settings = ["--delta", "1e-3", "--steps", "3", "--target", "income", "--ledger", file]
    how = ["train", "--data", people, *settings, "--out", tmp_path / "run"]
    assert dpjax(*how, "--epsilon", "1").exit_code == 0
    state = json.loads(dpjax("ledger", file, "--json").stdout)
    assert state["planned"] <= state["spent"] <= 2.0
    (run,) = state["runs"]
    assert run["epsilon"] <= 1.0
    shown = " ".join(dpjax("ledger", file).output.split())
    assert "Budget: ε = 2 at δ = 0.01 (add-remove), for each record" in shown
    assert "Spent: ε =" in shown
    refused = dpjax(*how[:-1], tmp_path / "dear", "--epsilon", "2")
    assert refused.exit_code == 2
    assert "must keep the budget epsilon=2" in refused.output
    assert not list((tmp_path / "dear").glob("**/*.json"))
    assert len(json.loads(dpjax("ledger", file, "--json").stdout)["runs"]) == 1
    other = dpjax(*how[:-1], tmp_path / "other", "--epsilon", "1", "--adjacency", "replace-one")
    assert (other.exit_code, "--adjacency must be the ledger's" in other.output) == (2, True)
    changed = tmp_path / "changed.csv"
    changed.write_text(people.read_text() + "20,smith,low\n")
    for command in (["ledger", file, "--data", changed], ["train", "--data", changed, *how[3:]]):
        result = dpjax(*command, *["--epsilon", "1"][: 2 * (command[0] == "train")])
        said = " ".join(result.output.split())
        assert (result.exit_code, "must be the data set of the ledger" in said) == (2, True)
    # Certificates of elsewhere are verified, and copies merged.
    copy = tmp_path / "copy.json"
    shutil.copy(file, copy)
    certificate = tmp_path / "certificate.json"
    certificate.write_text(acc.certify(acc.Gaussian(20.0), 1e-3).to_json())
    assert dpjax("ledger", copy, "--add", certificate).exit_code == 0
    again = dpjax("ledger", copy, "--add", certificate)
    assert (again.exit_code, "not booked yet" in again.output) == (2, True)
    assert dpjax("ledger", file, "--merge", copy).exit_code == 0
    assert len(json.loads(dpjax("ledger", file, "--json").stdout)["runs"]) == 2
    content = json.loads(certificate.read_text())
    certificate.write_text(json.dumps(content | {"epsilon": 0.01}))
    assert dpjax("ledger", file, "--add", certificate).exit_code == 1
    for wrong in ([tmp_path / "none.json"], [tmp_path / "none.json", "--epsilon", "1"]):
        assert dpjax("ledger", *wrong).exit_code == 2


def test_each_column_s_part_of_a_row_is_explained(trained, tmp_path):
    new, out = tmp_path / "new.csv", tmp_path / "parts.csv"
    new.write_text("job,age,=who\nsmith,20,a\nbaker,85,b\ntailor,999,c\n")
    named = ("--id", "=who", "--out", out)
    result = dpjax("predict", trained, "--data", new, *named, "--explain")
    if json.loads((trained / "model.json").read_text())["architecture"]["kind"] == "mlp":
        assert result.exit_code == 2
        assert "got a perceptron: its score is no sum over columns" in result.output
        assert not out.exists()
        return
    assert result.exit_code == 0, result.output
    with out.open() as file:
        rows = list(csv.DictReader(file))
    names = ["score of low", "base", "part of age", "part of job"]
    assert list(rows[0])[-4:] == names
    assert next(iter(rows[0])) == "'=who"  # no formula to a spreadsheet
    saved = training.load_model(trained)
    schema = data.described_schema(saved.encoding)
    features = data.encode_features(data.read_table(new, schema=schema), schema)
    # Before the link, which makes of it the probabilities.
    scores = features @ np.asarray(saved.params["weights"]) + float(saved.params["bias"])
    for row, score in zip(rows, scores, strict=True):
        whole, *parts = (float(row[name]) for name in names)
        assert whole == pytest.approx(score, abs=1e-4)
        assert sum(parts) == pytest.approx(whole, abs=1e-4)
        assert (whole > 0) == (row["prediction"] == "low")
    # Cells that are written otherwise are read otherwise, and no effect is another for it.
    other = dpjax("predict", trained, "--data", new, "--out", tmp_path / "b.csv", "--explain",
                  "--missing", "tailor")  # fmt: skip
    assert other.exit_code == 0, other.output
    with (tmp_path / "b.csv").open() as file:
        again = list(csv.DictReader(file))
    assert [row["base"] for row in again] == [row["base"] for row in rows]
    taken = dpjax("predict", trained, "--data", new, "--out", tmp_path / "c.csv", "--explain",
                  "--id", "base")  # fmt: skip
    assert taken.exit_code == 2
