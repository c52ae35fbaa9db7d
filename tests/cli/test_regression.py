"""`dpjax train --task regression`: a number within a released, declared or learned range."""

from __future__ import annotations

import csv
import itertools
import json

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import data, training
from dpjax.cli import app, evaluation
from dpjax.cli.evaluation import Counts, NumberEvaluation
from dpjax.data import Column, Dataset, Schema
from dpjax.data.schema import RELEASED

QUICK = ["--target", "weight", "--task", "regression", "--epsilon", "3", "--steps", "60"]


def dpjax(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def _write(path, rows=3_000, seed=0, extra=()):
    """Weights that are linear in the others but for a deviation of 4; their own is about 10."""
    rng = np.random.default_rng(seed)
    age, height = rng.integers(18, 90, rows), rng.normal(170, 10, rows)
    job = rng.choice(["baker", "smith"], rows)
    weight = 15 + 0.3 * age + 0.6 * (height - 120) + 5 * (job == "smith") + rng.normal(0, 4, rows)
    lines = zip(age, height, job, weight, strict=True)
    text = "\n".join([f"{a},{h:.1f},{j},{w:.1f}" for a, h, j, w in lines] + [*extra])
    path.write_text(f"age,height,job,weight\n{text}\n")
    return path


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    bad = ["20,170,baker,", "20,170,baker,heavy", "20,170,baker,1e999"]
    return _write(tmp_path_factory.mktemp("data") / "people.csv", extra=bad)


@pytest.fixture(scope="module")
def finished(people, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "first"
    result = dpjax("train", "--data", people, *QUICK, "--seed", "1", "--out", out)
    assert result.exit_code == 0, result.output
    return out, result.output


def test_a_default_run_reaches_the_noise_of_its_target_and_covers_its_range(finished):
    out, shown = finished
    found = json.loads((out / "evaluation.json").read_text())
    assert found["task"] == "regression"
    # 4 is the error of the truth, and 10 that of the mean, less what the released range cuts off;
    # the noise of either, another one for other last bits of the model, has a deviation of .2.
    assert 3 < found["root_mean_squared_error"] < 6.5 < 8 < found["baseline_error"] < 11
    assert 0 < found["stddev"] < 0.7
    assert "root mean squared error" in shown
    assert "better than" not in shown
    certificate = acc.Certificate.from_json((out / "certificate.json").read_text())
    assert all("seed" in line for line in certificate.not_covered)
    assert set(certificate.subject) >= {"evaluation.json", "model.json"}
    assert certificate.verify().epsilon <= 3.0
    # Three columns of unknown kind, and the target, which is known to be a number.
    looks = certificate.mechanism.mechanisms[0]
    assert looks.steps == 4 + 4
    assert certificate.declared["model"] == "linear"
    encoding = training.load_model(out).encoding
    low, high = encoding["target_range"]
    assert 30 < low < 50 < 80 < high < 128
    assert (encoding["classes"], encoding["origin of the target_range"]) == ([], RELEASED)
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["test_error"]) == found["root_mean_squared_error"]
    assert dpjax("verify", out).exit_code == 0


def test_predictions_are_numbers_within_the_range(finished, tmp_path):
    out, _ = finished
    rows = _write(tmp_path / "new.csv", 200, seed=5, extra=["nobody,,,"])
    frame = pd.read_csv(rows).iloc[:200]
    written = tmp_path / "predictions.csv"
    result = dpjax("predict", out, "--data", rows, "--missing", "nobody", "--out", written)
    assert result.exit_code == 0, result.output
    found = pd.read_csv(written)
    assert [*found.columns] == ["prediction"]
    assert len(found) == 201
    assert np.std(found["prediction"][:200] - frame["weight"]) < 6.5
    low, high = training.load_model(out).encoding["target_range"]
    assert found["prediction"].between(low, high).all()


@pytest.mark.at_length
def test_a_killed_run_goes_on_with_the_same_noisy_numbers(people, finished, tmp_path, monkeypatch):
    out, _ = finished
    whole_fit, again = training.fit, tmp_path / "again"

    def interrupted(*positional, on_log, **named):
        def stop(row):
            on_log(row)
            if row["step"] == 30:
                raise KeyboardInterrupt

        return whole_fit(*positional, on_log=stop, checkpoint_every=1, **named)

    arguments = ("train", "--data", people, *QUICK, "--seed", "1", "--out", again)
    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", interrupted)
        assert dpjax(*arguments).exit_code == 130
    other = dpjax(*arguments, "--task", "classification", "--resume")
    assert (other.exit_code, "its task differs" in " ".join(other.output.split())) == (2, True)
    assert dpjax(*arguments, "--resume").exit_code == 0
    for name in ("evaluation.json", "metrics.csv", "model.safetensors", "model.json"):
        assert (again / name).read_bytes() == (out / name).read_bytes()
    assert "nothing is left to do" in " ".join(dpjax(*arguments, "--resume").output.split())


@pytest.mark.at_length
def test_a_declared_range_is_public_and_a_test_file_exact(people, tmp_path):
    schema, out = tmp_path / "people.toml", tmp_path / "run"
    schema.write_text('[[columns]]\nname = "weight"\nrange = [30, 130]\n')
    test = _write(tmp_path / "test.csv", 400, seed=9)
    asked = ("--schema", schema, "--test", test, "--numeric", "age,height,weight", "--json")
    result = dpjax("train", "--data", people, *QUICK, *asked, "--out", out)
    assert result.exit_code == 0, result.output
    certificate = acc.Certificate.from_json((out / "certificate.json").read_text())
    assert "public: range of weight: given by the user" in certificate.assumptions
    looks = certificate.mechanism.mechanisms[0]
    assert (looks.steps, certificate.not_covered) == (5, ())  # two columns twice, jobs once
    saved = training.load_model(out)
    assert saved.encoding["target_range"] == [30.0, 130.0]
    # The same from the written predictions, by hand.
    written = tmp_path / "predictions.csv"
    assert dpjax("predict", out, "--data", test, "--out", written).exit_code == 0
    truth = pd.read_csv(test)["weight"].to_numpy()
    errors = np.minimum(np.abs(pd.read_csv(written)["prediction"].to_numpy() - truth), 50.0)
    summary = json.loads(result.stdout[result.stdout.index("{") :])
    exact = float(np.sqrt(np.mean(errors**2)))
    assert summary["test_error"] == pytest.approx(exact, rel=1e-4)
    assert summary["evaluation"]["baseline_error"] == pytest.approx(np.std(truth), rel=1e-4)
    assert "test_error_stddev" not in summary


def test_from_records_the_range_is_learned_and_said_so(tmp_path):
    people, out = _write(tmp_path / "people.csv", 500), tmp_path / "run"
    asked = ("--preprocessing", "from-records", "--model", "mlp", "--steps", "5", "--out", out)
    result = dpjax("train", "--data", people, *QUICK, *asked)
    assert result.exit_code == 0, result.output
    certificate = acc.Certificate.from_json((out / "certificate.json").read_text())
    (line,) = [line for line in certificate.not_covered if line.startswith("ranges learned")]
    assert line.endswith("age, height, weight")
    assert any("evaluation.json" in line for line in certificate.not_covered)
    weight = pd.read_csv(people)["weight"]
    saved = training.load_model(out)
    assert saved.encoding["target_range"] == [weight.min(), weight.max()]
    assert json.loads((out / "evaluation.json").read_text())["stddev"] == 0.0
    again = dpjax("train", "--data", people, *QUICK, *asked, "--resume")
    assert "nothing is left to do" in " ".join(again.output.split())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("--model", "logistic"), "--model must be mlp, or be left out for a linear one"),
        (("--target", "job", "--preprocessing", "from-records"), "'job' holds"),
    ],
)
def test_what_no_regression_can_do_is_refused(people, tmp_path, changes, told):
    out = tmp_path / "run"
    result = dpjax("train", "--data", people, *QUICK, *changes, "--out", out)
    assert (result.exit_code, out.exists()) == (2, False)
    assert told in " ".join(result.output.split())


def test_declared_classes_are_no_number(people, tmp_path):
    schema = tmp_path / "people.toml"
    schema.write_text('target = "weight"\nclasses = ["50", "60"]\n')
    result = dpjax("train", "--data", people, *QUICK, "--schema", schema, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "--task must be classification where a schema declares classes" in " ".join(
        result.output.split()
    )


def test_a_number_of_many_values_is_never_taken_for_classes(tmp_path):
    """Weights of patients became classes, and stood in the model."""
    rng = np.random.default_rng(0)
    path = tmp_path / "many.csv"
    cells = [f"{a},{w}" for a, w in zip(*rng.integers(50, 114, (2, 20_000)), strict=True)]
    path.write_text("age,weight\n" + "\n".join(cells) + "\n")
    for way in ("from-records", "private"):
        asked = ("--epsilon", "50", "--delta", "1e-4", "--preprocessing", way)
        result = dpjax(
            *("train", "--data", path, "--target", "weight", *asked, "--numeric", "age"),
            *("--out", tmp_path / way),
        )
        assert result.exit_code == 2, result.output
        assert "--task regression" in result.output.replace("must be ", "")
        assert not (tmp_path / way / "model.json").exists()


@pytest.mark.at_length
def test_where_noise_hides_them_the_message_names_the_task(people, tmp_path):
    asked = ("--target", "weight", "--epsilon", "3", "--steps", "5", "--numeric", "age,height")
    result = dpjax("train", "--data", people, *asked, "--out", tmp_path / "run")
    assert result.exit_code == 2, result.output
    flat = " ".join(result.output.split())
    assert "the classes of 'weight' where noise hides them" in flat
    assert "got no class" in flat
    assert "if the target is a number give --task regression" in flat
    assert not (tmp_path / "run" / "model.json").exists()


# Of a model w·x on values from −1 to 1, in a range of width 20.
SLOPE = {"weights": np.ones((1, 1), np.float32), "bias": np.zeros(1, np.float32)}
MODEL, ENDS = training.softmax(1, 1), (0.0, 20.0)


def _numbers(guesses, values, counts=None):
    features = np.asarray(guesses, np.float32)[:, None]
    held_out = Dataset(features, np.asarray(values, np.float32), ())
    return NumberEvaluation(MODEL, held_out, counts, ENDS)


def test_the_exact_errors_are_those_by_hand():
    found = _numbers([0.5, 0.0, -1.0, 3.0], [0.5, 0.5, 1.0, 1.0]).summarise(SLOPE)
    # Errors 0, 1/2, 2 (which counts as 1), and 3 is clipped to 1: √((0 + 1/4 + 1 + 0)/4).
    assert found["root_mean_squared_error"] == pytest.approx(10 * np.sqrt(1.25 / 4))
    assert found["baseline_error"] == pytest.approx(10 * np.std([0.5, 0.5, 1.0, 1.0]))
    assert (found["stddev"], found["records"]) == (0.0, 4)
    assert _numbers([np.nan], [0.0]).row(SLOPE) == 10.0


@pytest.mark.parametrize("counts", [None, Counts(0, 11, stddev=4.0, key=jax.random.key(0))])
def test_a_planted_model_is_told_from_the_constant_one(counts):
    values = np.linspace(-1, 1, 400)
    good = _numbers(values, values, counts).summarise(SLOPE)
    constant = _numbers(0 * values, values, counts).summarise(SLOPE)
    assert good["root_mean_squared_error"] <= max(4 * good["stddev"], 1e-9)
    for name in ("root_mean_squared_error", "baseline_error"):
        assert constant[name] == pytest.approx(10 * np.sqrt(1 / 3), rel=0.06)
    assert evaluation.compare(good) is None
    assert "better than always predicting the mean" in evaluation.compare(constant)


def test_the_noise_of_an_error_has_the_deviation_that_is_stated():
    values = np.linspace(-1, 1, 400)
    models = [{**SLOPE, "bias": np.float32([k / 1e5])} for k in range(200)]
    noisy = _numbers(0 * values, values, Counts(0, 11, stddev=6.0, key=jax.random.key(2)))
    found = [noisy.summarise(params) for params in models]
    assert noisy.summarise(models[3]) == found[3]
    names = {"root_mean_squared_error": "stddev", "baseline_error": "baseline_stddev"}
    for name, stated in names.items():
        errors = np.array([one[name] for one in found])
        assert np.std(errors) == pytest.approx(np.mean([one[stated] for one in found]), rel=0.25)
        assert abs(errors.mean() - 10 * np.sqrt(1 / 3)) < 0.03


@pytest.mark.parametrize("adjacency", acc.Adjacency)
def test_a_record_moves_every_sum_by_what_is_priced(adjacency, monkeypatch):
    cells, seen = [*itertools.product([-3.0, 0.0, 1.0], [-1.0, 0.0, 0.3, 1.0])], {}

    def without_noise(self, name, counts, params):
        seen[name] = int(counts)
        return 0 if name == "mean" else counts  # as released: the noise of it decides what follows

    monkeypatch.setattr(Counts, "perturb", without_noise)

    def releases(part):
        with jax.disable_jit():  # nothing is compiled for every size
            noisy = _numbers(*zip(*part, strict=True), Counts(0, 11, stddev=1.0))
            noisy.summarise(SLOPE)
            noisy.row(SLOPE)
        return dict(seen)

    most = dict.fromkeys(Counts(0, 11).noise, 0)
    for start in [((1.0, 0.3), one) for one in cells]:
        first = releases(start)
        for one in cells:
            add = adjacency is acc.Adjacency.ADD_REMOVE
            for name, value in releases((*start, one) if add else (start[0], one)).items():
                most[name] = max(most[name], abs(value - first[name]))
    # The sensitivity when one is added, twice that when one is replaced, as `DiscreteGaussian` has.
    across = evaluation._MOST * (1 if adjacency is acc.Adjacency.ADD_REMOVE else 2)
    assert set(most.values()) == {across}


def test_the_price_is_that_of_sums_side_by_side():
    found = acc.epsilon(Counts(0, 11).mechanism(40.0), 1e-6)
    gaussian = acc.Gaussian(40.0 / np.sqrt(1 + 1 / 2 + 1 / 2 + 1))
    assert found == pytest.approx(acc.epsilon(gaussian, 1e-6), rel=1e-3)


def test_a_table_releases_the_range_of_its_target():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.random(50_000), "y": rng.normal(50, 10, 50_000)})
    schema = Schema((), target="y", classes=())
    table = data.PrivateTable(("x",), schema, 50_000, stddev=5.0, numeric=("x",))
    low, high = table.release(frame, jax.random.key(0)).target_range
    assert (low, high) == (pytest.approx(24.2, abs=3), pytest.approx(75.8, abs=3))
    # One column twice, and the target twice; no value leaves by a threshold.
    assert table.mechanism == acc.Repeated(acc.Histogram(5.0), 4)
    assert table.extra_delta == {}
    given = Schema((), target="y", classes=(), target_range=(0.0, 100.0))
    table = data.PrivateTable(("x",), given, 50_000, stddev=5.0, numeric=("x",))
    assert table.mechanism == acc.Repeated(acc.Histogram(5.0), 2)
    assert table.release(frame, jax.random.key(0)).target_range == (0.0, 100.0)


def test_a_number_travels_with_its_encoding():
    frame = pd.DataFrame({"x": [0.0, 1.0, 2.0], "y": [10.0, 20.0, 60.0]})
    declared = Schema((Column("x", range=(0, 2)),), target="y", classes=())
    complete, learned = data.complete_schema(frame, "y", declared, number=True)
    assert (complete.target_range, learned) == ((10.0, 60.0), ("ranges learned from the rows: y",))
    described = data.describe_encoding(complete, declared)
    assert data.described_schema(json.loads(json.dumps(described))) == complete
    assert data.encode(frame, complete).labels.tolist() == pytest.approx([-1.0, -0.6, 1.0])
    private_cells = frame.assign(y=["10", "none", "99"])
    released = data.encode_released(private_cells, complete)
    assert released.labels.tolist() == [-1.0, 0.0, 1.0]
    with pytest.raises(data.DataError, match="range is"):
        data.described_schema({**described, "target_range": [3, 1]})
    # Classes are classes, whatever range a file gives the column of their name.
    file = data.schema._schema({"target": "y", "columns": [{"name": "y", "range": [0, 100]}]})
    assert file.target_range == (0.0, 100.0)
    assert data.from_frame(frame, target="y", schema=file).classes == ("10", "20", "60")
