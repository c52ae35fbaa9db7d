"""The settings of a linear model on the command line: by the rule, replaced, and as before."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import data, training
from dpjax.cli import app, settings
from dpjax.cli.options import TrainOptions

ASKED = ("--target", "income", "--epsilon", "3", "--delta", "1e-4", "--numeric", "age", "--seed", 1)


def dpjax(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    rng = np.random.default_rng(0)
    age, job = rng.integers(18, 90, 2_000), rng.choice(["baker", "smith"], 2_000)
    lines = [f"{a},{j},{'high' if a > 70 else 'low'}" for a, j in zip(age, job, strict=True)]
    path = tmp_path_factory.mktemp("data") / "people.csv"
    path.write_text("age,job,income\n" + "\n".join(lines) + "\n")
    return path


def _read(folder):
    certificate = acc.Certificate.from_json((folder / "certificate.json").read_text())
    return certificate, training.load_model(folder)


@pytest.mark.at_length
def test_every_setting_of_the_rule_is_on_the_screen_and_in_the_certificate(people, tmp_path):
    out = tmp_path / "run"
    found = dpjax("train", "--data", people, *ASKED, "--clip-norm", "0.3", "--out", out)
    assert found.exit_code == 0, found.output
    said = " ".join(found.output.split())
    for words in ("steps 400: ", "batch size ", "momentum 0.9: ", "averaged the last 200 steps: ",
                  "bias feature 0.7071: 1/√2 of so many columns", "clip norm 0.3: as it was given",
                  "learning rate ", "probabilities are those at which"):  # fmt: skip
        assert words in said
    certificate, model = _read(out)
    declared = certificate.declared
    noise, batch = declared["training_noise_multiplier"], declared["batch_size"]
    assert (declared["momentum"], declared["averaged_steps"]) == (0.9, 200)
    rate = 2 * 0.1 * round(batch) / (noise * 0.3 * 20)
    assert declared["learning_rate"] == pytest.approx(rate, rel=1e-6)
    assert model.model.architecture["link"] == {
        "clip_norm": pytest.approx(0.3),
        "bias_feature": pytest.approx(2**-0.5),
    }
    assert model.encoding["columns"][0]["line_weight"] == 0.9
    assert certificate.verify().epsilon <= 3
    # The released model is what was evaluated, and what predicts.
    out_file = tmp_path / "predictions.csv"
    found = dpjax("predict", out, "--data", people, "--out", out_file)
    assert found.exit_code == 0, found.output
    chances = np.loadtxt(out_file, delimiter=",", skiprows=1, usecols=(1, 2))
    assert chances[:, 0].mean() == pytest.approx(0.26, abs=0.06)  # 19 of 72 ages are above 70
    finished = dpjax("train", "--data", people, *ASKED, "--clip-norm", "0.3", "--out", out,
                     "--resume")  # fmt: skip
    assert "nothing is left to do" in " ".join(finished.output.split()), finished.output


@pytest.mark.at_length
def test_the_settings_of_before_are_an_option(people, tmp_path):
    out = tmp_path / "run"
    found = dpjax("train", "--data", people, *ASKED, "--recipe", "fixed", "--out", out)
    assert found.exit_code == 0, found.output
    certificate, model = _read(out)
    declared = certificate.declared
    assert (declared["training_steps"], declared["learning_rate"]) == (200, 2.0)
    assert (declared["clip_norm"], declared["encoding"]) == (0.5, "tail-bins")
    assert not {"momentum", "averaged_steps", "bias_feature"} & declared.keys()
    assert model.model.architecture.keys() == {"kind", "features"}
    # Without a word a finished run of before is recognised as one.
    finished = dpjax("train", "--data", people, *ASKED, "--out", out, "--resume")
    assert "nothing is left to do" in " ".join(finished.output.split()), finished.output


@pytest.mark.at_length
def test_several_classes_and_numbers_follow_the_rule_too(people, tmp_path):
    lines = people.read_text().splitlines()
    three = [f"{line.rsplit(',', 1)[0]},{int(line.split(',')[0]) // 30}" for line in lines[1:]]
    path = tmp_path / "three.csv"
    path.write_text("\n".join([lines[0], *three]) + "\n")
    asked = (*ASKED, "--steps", "60")
    for task, out in (
        ("classification", tmp_path / "classes"),
        ("regression", tmp_path / "number"),
    ):
        found = dpjax("train", "--data", path, *asked, "--task", task, "--out", out)
        assert found.exit_code == 0, found.output
        certificate, model = _read(out)
        assert (certificate.declared["training_steps"], certificate.declared["averaged_steps"]) == (
            *(60, 30),
        )
        architecture = model.model.architecture
        assert (architecture["kind"], "link" in architecture) == ("softmax", task != "regression")
        bound = np.sqrt(0.5 if task != "regression" else 0.25) * np.sqrt(1.5)
        assert certificate.declared["clip_norm"] == pytest.approx(bound, rel=1e-6)
        found = json.loads((out / "evaluation.json").read_text())
        if task == "regression":
            assert found["root_mean_squared_error"] < found["baseline_error"]
        else:
            assert found["accuracy"] > found["largest_class_share"]


@pytest.mark.at_length
def test_a_network_follows_a_rule_of_its_own_and_finds_an_interaction(tmp_path):
    """Whether two numbers have one sign, wrong once in twenty times: a sum over columns cannot."""
    rng = np.random.default_rng(0)
    path, (x, y) = tmp_path / "signs.csv", rng.uniform(-1, 1, (2, 20_000)).round(3)
    same = (x * y > 0) ^ (rng.random(20_000) < 0.05)
    lines = (f"{a},{b},{'yes' if c else 'no'}" for a, b, c in zip(x, y, same, strict=True))
    path.write_text("\n".join(["x,y,same", *lines]) + "\n")
    asked = ("--target", "same", "--epsilon", "3", "--numeric", "x,y", "--seed", 1)
    out = tmp_path / "run"
    found = dpjax("train", "--data", path, *asked, "--model", "mlp", "--out", out)
    assert found.exit_code == 0, found.output
    said = " ".join(found.output.split())
    for words in (
        *("steps 400: ", "averaged the last 200 steps: ", "clip norm 4: above the gradient"),
        *("learning rate 0.125: the noise of all steps together", "the network's own"),
    ):
        assert words in said
    assert "bias feature" not in said
    certificate, _ = _read(out)
    declared = certificate.declared
    assert (declared["training_steps"], declared["averaged_steps"]) == (400, 200)
    assert (declared["clip_norm"], declared["learning_rate"]) == (4.0, 0.125)
    assert json.loads((out / "evaluation.json").read_text())["accuracy"] > 0.85
    assert not (out / "effects.png").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("--momentum", "1"), "--momentum must be at least 0 and below 1"),
        (("--average", "-0.5"), "--average must be at least 0 and below 1"),
        (("--clip-norm", "0"), "--clip-norm must be a positive"),
    ],
)
def test_an_impossible_setting_is_refused_before_a_look(people, tmp_path, changes, told):
    found = dpjax("train", "--data", people, *ASKED, *changes, "--out", tmp_path / "run")
    assert (found.exit_code, told in " ".join(found.output.split())) == (2, True), found.output
    assert not (tmp_path / "run").exists()


def test_a_key_of_an_earlier_version_keeps_its_settings(tmp_path):
    asked = TrainOptions(data="x.csv", epsilon=1.0, resume=True, clip_norm=0.25)
    begun = settings.choose_defaults(asked, tmp_path)  # nothing is there: a run that begins now
    assert (begun.by_rule, begun.steps, begun.clip_norm) == (True, None, 0.25)
    place = tmp_path / "checkpoint" / "table"
    place.mkdir(parents=True)
    (place / "noise_key.json").write_text("{}")  # and no note of the rule beside it
    kept = settings.choose_defaults(asked, tmp_path)
    assert (kept.by_rule, kept.steps, kept.clip_norm) == (False, 200, 0.25)
    assert (kept.momentum, kept.average) == (0.9, 0.0)
    assert (asked.steps, asked.momentum) == (None, None)  # what was asked for stays as it was
    (place / f"{settings.BY_RULE}.note").write_text("1")
    again = settings.choose_defaults(asked, tmp_path)
    assert (again.by_rule, again.steps) == (True, None)


def test_a_table_of_cells_and_a_line_has_rows_of_norm_one_at_most():
    column = data.Column(
        "age", range=(0.0, 10.0), scale="asinh", centre=5.0, width=2.0, cuts=(3.0, 7.0),
        line_weight=0.9,
    )  # fmt: skip
    schema = data.Schema((column,), target="y", classes=("a", "b"), missing=("",))
    import pandas as pd

    frame = pd.DataFrame({"age": ["0", "5", "99", ""], "y": ["a"] * 4})
    found = data.encode_released(frame, schema).features
    cell = np.sqrt(1 - 0.81)
    expected = [[cell, 0, 0, 0, -0.9], [0, cell, 0, 0, 0], [0, 0, cell, 0, 0.9], [0, 0, 0, cell, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    again = data.described_schema(json.loads(json.dumps(data.describe_encoding(schema))))
    assert again.columns == schema.columns
    for wrong in ({"line_weight": 1.0}, {"line_weight": None}, {"range": None}):
        with pytest.raises(data.DataError, match="line_weight must be above 0"):
            data.Column(**{**vars(column), **wrong})
