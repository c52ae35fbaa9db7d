"""The command line end to end: what it leaves, what it says, what it refuses and how."""

from __future__ import annotations

import csv
import importlib
import inspect
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import training
from dpjax.cli import app
from dpjax.plotting import look

_MODULE = dict.fromkeys(("epsilon", "calibrate", "curve", "sweep"), "dpjax.cli.price")
_MODULE["ledger"] = "dpjax.cli.verify"
# What is learned is read off the records; `test_private.py` has runs of the default.
FROM_RECORDS = ["--preprocessing", "from-records"]
QUICK = ["--epsilon", "3", "--delta", "1e-4", "--steps", "8", *FROM_RECORDS, "--seed", "1"]


def dpjax(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A small table whose target follows from one column."""
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, size=240)
    job = rng.choice(["baker", "smith"], size=240)
    path = tmp_path_factory.mktemp("data") / "people.csv"
    lines = [f"{a},{j},{'high' if a > 50 else 'low'}" for a, j in zip(age, job, strict=True)]
    path.write_text("age,job,income\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def finished(people, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "first"
    result = dpjax("train", "--data", people, "--target", "income", *QUICK, "--out", out)
    assert result.exit_code == 0, result.output
    return out, result.output


def test_training_shows_the_plan_and_leaves_everything(finished):
    out, shown = finished
    names = ("training records", "adjacency", "expected batch size", "sampling rate", "steps")
    names += ("clip norm", "noise multiplier", "ε it will cost", "at δ", "by the bound")
    assert all(name in shown for name in names)
    assert {p.name for p in out.iterdir()} == {
        *("certificate.json", "metrics.csv", "training.png", "model.safetensors", "model.json"),
        *("evaluation.json", "effects.png", "checkpoint"),
    }
    assert not (out / "checkpoint" / "noise_key.json").exists()
    certificate = acc.Certificate.from_json((out / "certificate.json").read_text())
    assert certificate.epsilon <= 3.0
    assert len(str(certificate.declared["noise"])) == 16  # by which ledgers know a run
    assert any("ranges learned from the rows: age" in line for line in certificate.not_covered)
    assert any("seed given by hand" in line for line in certificate.not_covered)
    assert "other" not in {one.code for one in (*certificate.not_covered, *certificate.assumptions)}
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(9))
    prices = [float(row["epsilon"]) for row in rows]
    assert prices == sorted(prices)
    assert prices[-1] == pytest.approx(certificate.epsilon, rel=1e-6)
    assert load_file(out / "model.safetensors")["weights"].shape == (3,)


def test_nothing_of_the_run_without_privacy_or_of_exact_losses_unless_asked_for(
    finished, people, tmp_path
):
    out, shown = finished
    assert "without privacy" not in shown
    assert "loss" not in shown
    assert (out / "metrics.csv").read_text().splitlines()[0] == "step,epsilon,test_accuracy"
    certificate = (out / "certificate.json").read_text()
    assert "train_loss" not in certificate
    assert "without privacy" not in certificate
    asked = ["--compare-without-privacy", "--log-private-losses", "--out", tmp_path / "asked"]
    result = dpjax("train", "--data", people, "--target", "income", *QUICK, *asked)
    assert result.exit_code == 0, result.output
    assert "same model without privacy" in result.output
    header = (tmp_path / "asked" / "metrics.csv").read_text().splitlines()[0]
    assert header == "step,epsilon,train_loss,nonfinite,clipped,test_accuracy"
    certificate = json.loads((tmp_path / "asked" / "certificate.json").read_text())
    text = " ".join(line["text"] for line in certificate["not_covered"])
    assert "train_loss, nonfinite and clipped" in text
    assert "accuracy without privacy" in text
    # The parameters are the same: what is shown changes nothing of what is trained.
    assert (out / "model.safetensors").read_bytes() == (
        tmp_path / "asked" / "model.safetensors"
    ).read_bytes()


def test_what_is_learned_from_the_rows_is_said_before_training(finished, people, tmp_path):
    _, shown = finished
    flat = " ".join(shown.split())
    said = "ranges of 1 column; category lists of 1 column; classes of the target of 1 column"
    assert f"learned from the rows: {said}: not covered by ε; a schema avoids it" in flat
    assert shown.index("not covered") < shown.index(
        "training ━" if "training ━" in shown else "test"
    )
    assert "(proven)" not in shown
    schema = tmp_path / "people.toml"
    schema.write_text(
        'target = "income"\nclasses = ["low", "high"]\n[[columns]]\nname = "age"\n'
        'range = [18, 90]\n[[columns]]\nname = "job"\ncategories = ["baker", "smith"]\n'
    )
    result = dpjax(
        *("train", "--data", people, "--schema", schema, *QUICK, "--out", tmp_path / "run")
    )
    assert result.exit_code == 0, result.output
    assert "learned from the rows" not in result.output
    assert "(proven)" in result.output


def test_a_second_run_never_overwrites_the_first(finished, people):
    out, _ = finished
    before = (out / "certificate.json").read_bytes()
    result = dpjax(
        *("train", "--data", people, "--target", "income", *QUICK, "--out", out, "--json")
    )
    assert result.exit_code == 0, result.output
    # click 8.1's runner shows here what went to stderr too: where this run goes, in front.
    summary = json.loads(result.stdout[result.stdout.index("{") :])
    assert summary["folder"].endswith("first-2")
    assert 0.5 < summary["test_accuracy"] <= 1.0
    assert summary["epsilon"] <= 3.0
    assert (out / "certificate.json").read_bytes() == before
    again = dpjax("train", "--data", people, "--target", "income", *QUICK, "--out", out, "--resume")
    assert again.exit_code == 0, again.output
    assert "finished run of these settings; nothing is left to do" in " ".join(again.output.split())
    # The same seed gave the same bits.
    for name in ("model.safetensors", "metrics.csv"):
        assert (out / name).read_bytes() == (out.with_name("first-2") / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["--epsilon", "1"], "got OUT: epsilon (3 there, 1 here); learning rate ("),
        (["--learning-rate", "0.1"], " there, 0.1 here)\n"),  # the learning rate alone
        (["--model", "mlp"], "got OUT: model (logistic there, mlp here); learning rate ("),
        (["--steps", "9"], "steps (8 there, 9 here)"),
        (["--clip-norm", "0.25"], "clip norm (0.612372 there, 0.25 here)"),  # ½·√(1 + 1/2)
        (["--adjacency", "replace-one"], "adjacency (add-remove there, replace-one here)"),
        (["--log-private-losses"], "not covered by ε only here: metrics.csv: train_loss"),
        (["--schema", "SCHEMA"], "how records are encoded; not covered by ε only there: ranges"),
    ],
)
def test_a_finished_run_is_not_taken_for_one_of_other_settings(
    finished, people, tmp_path, changes, told
):
    out, _ = finished
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'target = "income"\nclasses = ["low", "high"]\n[[columns]]\nname = "age"\n'
        'range = [17, 90]\n[[columns]]\nname = "job"\ncategories = ["baker", "smith"]\n'
    )
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    given = [schema if change == "SCHEMA" else change for change in changes]
    arguments = ("--data", people, "--target", "income", *QUICK, "--out", out, "--resume", *given)
    found = dpjax("train", *arguments)
    assert found.exit_code == 2, found.output
    assert "--out must not hold a finished run with other settings" in found.output
    assert told.replace("OUT", str(out)) in found.output
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before


@pytest.mark.at_length
def test_an_interrupted_command_resumes_to_the_same_files(finished, people, tmp_path, monkeypatch):
    out, _ = finished
    arguments = ("train", "--data", people, "--target", "income", *QUICK, "--out", tmp_path / "b")
    whole_fit = training.fit

    def interrupted(*positional, on_log, **named):
        def stop(row):
            on_log(row)
            if row["step"] == 5:
                raise KeyboardInterrupt

        return whole_fit(*positional, on_log=stop, checkpoint_every=1, **named)

    monkeypatch.setattr(training, "fit", interrupted)
    stopped = dpjax(*arguments)
    assert stopped.exit_code == 130
    assert "--resume goes on" in stopped.output
    assert not (tmp_path / "b" / "certificate.json").exists()
    monkeypatch.setattr(training, "fit", whole_fit)
    other = dpjax(*arguments, "--resume", "--learning-rate", "0.1")
    assert other.exit_code == 2
    assert "belongs to another run: its learning rate differs" in other.output
    # Its certificate would not say that the noise comes from a seed, or from which.
    without = [argument for argument in arguments if argument not in QUICK[-2:]]
    for seed in ((), ("--seed", "2")):
        other = dpjax(*without, *seed, "--resume")
        assert other.exit_code == 2
        assert "belongs to another run: its seed differs; resume with" in other.output
    # The disk fills up while the picture is written, and a write is killed.
    with monkeypatch.context() as patch:
        patch.setattr(look, "write_atomically", lambda path, _: os.close(-1))
        full = dpjax(*arguments, "--resume")
    assert full.exit_code == 2
    told = "error: Bad file descriptor; the run is trained: the same command with --out"
    assert told in full.output
    (tmp_path / "b" / ".model.safetensors.x1").touch()
    resumed = dpjax(*arguments, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert not list((tmp_path / "b").glob(".*"))
    for name in ("model.safetensors", "metrics.csv"):
        assert (out / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    written = [json.loads((f / "certificate.json").read_text()) for f in (out, tmp_path / "b")]
    assert written[0]["epsilon"] == written[1]["epsilon"]
    assert written[0]["not_covered"] == written[1]["not_covered"]
    assert "key-by-hand" in [line["code"] for line in written[1]["not_covered"]]


def test_verify_says_in_words_what_holds(finished):
    out, _ = finished
    result = dpjax("verify", out / "certificate.json")
    assert result.exit_code == 0, result.output
    for words in ("Released:", "add-remove", "Poisson sample", "Bound:", "Assumes:", "Software:"):
        assert words in result.output
    assert result.output.startswith("Protected: whoever contributed one record")
    assert "Not covered: ranges learned from the rows: age" in result.output
    assert "The certificate holds." in " ".join(result.output.split())
    found = json.loads(dpjax("verify", out, "--json").stdout)
    assert found["valid"]
    assert found["recomputed_epsilon"] == pytest.approx(found["epsilon"], rel=1e-6)


@pytest.mark.parametrize("field", ["epsilon", "delta", "adjacency", "not_covered", "mechanism"])
def test_a_tampered_certificate_is_refused_by_field(finished, tmp_path, field):
    out, _ = finished
    content = json.loads((out / "certificate.json").read_text())
    changes = {"epsilon": 0.5, "delta": 1e-9, "adjacency": "replace-one", "not_covered": []}
    if field == "mechanism":
        content["mechanism"]["steps"] = 3
    else:
        content[field] = changes[field]
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(content))
    result = dpjax("verify", path)
    assert result.exit_code == 1
    assert "REFUSED" in result.output
    assert field in result.output
    assert json.loads(dpjax("verify", path, "--json").stdout)["field"] == field


def test_a_corrupted_certificate_is_refused(tmp_path):
    path = tmp_path / "certificate.json"
    path.write_text('{"mechanism": ')
    assert dpjax("verify", path).exit_code == 1
    missing = dpjax("verify", tmp_path / "none.json")
    assert missing.exit_code == 2
    assert "No such file" in missing.output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--data", "nowhere.csv"], "there is no file nowhere.csv"),
        (["--target", "salary"], "--target 'salary' is no column"),
        (["--epsilon", "0"], "--epsilon must be a positive, finite number, got 0.0"),
        (["--epsilon", "-1"], "--epsilon must be a positive, finite number, got -1.0"),
        pytest.param(
            ["--epsilon", "1e-9"], "--epsilon must be at least 0.0", marks=pytest.mark.at_length
        ),
        (["--delta", "0"], "--delta must lie strictly between 0 and 1, got 0.0"),
        (["--delta", "1.5"], "--delta must lie strictly between 0 and 1, got 1.5"),
        (["--batch-size", "500"], "all the records, got 500"),
        (["--clip-norm", "0"], "--clip-norm must be a positive, finite number, got 0.0"),
        (["--clip-norm", "-1"], "--clip-norm must be a positive, finite number, got -1.0"),
        (["--steps", "0"], "steps must be a whole number >= 1, got 0"),
        (["--learning-rate", "-2"], "--learning-rate must be a positive, finite number, got -2.0"),
        (["--schema", "none.toml"], "cannot read the schema none.toml"),
        (["--out", "/proc/nowhere/run"], "--out must be writable"),
        (["--model", "forest"], "forest"),
    ],
)
def test_bad_input_is_one_clear_error_and_code_2(people, tmp_path, changes, message):
    arguments = {
        "--data": people,
        "--target": "income",
        "--epsilon": "3",
        "--delta": "1e-4",
        "--out": tmp_path / "run",
    }
    arguments |= dict(zip(changes[::2], changes[1::2], strict=True))
    flat = [part for pair in arguments.items() for part in pair]
    result = dpjax("train", *flat)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x,income\n", "no rows"),
        ("x,income\n1,a\n2,a\n3,a\n4,a\n5,a\n6,a\n", "is constant"),
        ("x,income\n1,a\n,b\n3,a\n4,b\n", "'x' holds nan in line 3 of bad.csv"),
        ("x,income\n1,a\ninf,b\n3,a\n4,b\n", "'x' holds inf in line 3 of bad.csv"),
        ("x,income\n1,a\n4O,b\n3,a\n4,b\n", "'x' holds '4O' in line 3 of bad.csv"),
        ("x,x,income\n1,1,a\n2,2,b\n", "two columns named 'x'"),
        ("x,income\n1,a\n1e308,b\n-1e308,a\n", "'x' holds 1e+308 in line 3 of bad.csv"),
        ("x,income\n1,01\n2,1\n3,2\n", "'01' in line 2 and '1' in line 3, the same number"),
        ("x,income\n1,a\n2,b,3\n", "line 3: 3 cells"),
    ],
)
def test_bad_cells_are_one_clear_error_and_code_2(tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    result = dpjax("train", "--data", path, "--target", "income", "--epsilon", "1", *FROM_RECORDS)
    assert result.exit_code == 2
    assert message in result.output


def test_held_out_records_are_other_records_of_the_same_columns(people, tmp_path):
    cases = {
        "same file": (None, "--test must be another file than --data"),
        "no job": ("age,income\n20,low\n", "the column 'job' is missing; the columns are age"),
        "no target": ("age,job\n20,baker\n", "the column 'income', the target, is missing"),
    }
    for content, message in cases.values():
        test = people
        if content is not None:
            test = tmp_path / "test.csv"
            test.write_text(content)
        arguments = ("--data", people, "--target", "income", *QUICK, "--test", test)
        result = dpjax("train", *arguments, "--out", tmp_path / "run")
        assert result.exit_code == 2, result.output
        assert message in result.output
        assert len(result.output.strip().splitlines()) == 1


def test_a_delta_that_is_too_large_is_warned_about(people, tmp_path):
    settings = ["--epsilon", "3", "--delta", "0.01", "--steps", "8", *FROM_RECORDS]
    settings += ["--out", tmp_path / "run"]
    result = dpjax("train", "--data", people, "--target", "income", *settings)
    assert result.exit_code == 0, result.output
    assert "not below 1 / 192 records" in " ".join(result.output.split())


def test_epsilon_and_calibrate_agree_with_the_library_and_each_other():
    settings = ["--rate", "0.25", "--steps", "8", "--delta", "1e-4"]
    found = json.loads(dpjax("calibrate", "--epsilon", "3", *settings, "--json").stdout)
    noise = found["noise_multiplier"]
    assert found["epsilon"] <= 3.0
    priced = dpjax("epsilon", "--noise-multiplier", noise, *settings, "--json")
    assert json.loads(priced.stdout)["epsilon"] == pytest.approx(found["epsilon"], rel=1e-9)
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(noise), 0.25), 8)
    assert acc.epsilon(run, 1e-4) == pytest.approx(found["epsilon"], rel=1e-9)
    same = ["--batch-size", "50", "--records", "200", *settings[2:]]
    assert "ε = " in dpjax("epsilon", "--noise-multiplier", noise, *same).output


@pytest.mark.parametrize("epsilon", [0.37, 2.7, 3.0])
def test_the_noise_that_is_printed_keeps_the_budget(epsilon):
    """Six digits of it, rounded to the nearest, cost more than the budget."""
    words = dpjax("calibrate", "--epsilon", epsilon, "--delta", "1e-5").stdout.split()
    noise, shown = float(words[2]), float(words[6])
    spent = acc.epsilon(acc.Gaussian(noise), delta=1e-5)
    assert 0.999 * epsilon < spent <= shown <= epsilon
    priced = dpjax("epsilon", "--noise-multiplier", noise, "--delta", "1e-5").stdout.split()
    assert spent <= float(priced[2]) <= epsilon


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--noise-multiplier", "1", "--records", "0"], "--records must be at least 1, got 0"),
        (
            ["--noise-multiplier", "0"],
            "--noise-multiplier must be a positive, finite number, got 0.0",
        ),
        (["--noise-multiplier", "1", "--rate", "2"], "--rate must be in (0, 1], got 2.0"),
        (["--noise-multiplier", "1", "--batch-size", "9"], "--records is missing"),
        (["--noise-multiplier", "1", "--batch-size", "9", "--records", "4"], "between 1 and 4"),
        (["--noise-multiplier", "1", "--method", "magic"], "magic"),
        (
            ["--noise-multiplier", "1", "--steps", "-3"],
            "--steps must be a positive, finite number, got -3",
        ),
    ],
)
def test_pricing_refuses_nonsense_with_code_2(arguments, message):
    result = dpjax("epsilon", "--delta", "1e-5", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert dpjax("epsilon", "--delta", "2", "--noise-multiplier", "1").exit_code == 2
    assert dpjax("calibrate", "--epsilon", "-1", "--delta", "1e-5").exit_code == 2


_COMMANDS = [
    "train",
    "tune",
    "schema",
    "predict",
    "epsilon",
    "calibrate",
    "verify",
    "ledger",
    "report",
    "curve",
    "sweep",
]


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_teaches_with_an_example_on_a_line_of_its_own(command):
    shown = dpjax(command, "-h")
    assert shown.exit_code == 0
    assert shown.output == dpjax(command, "--help").output
    examples = [line for line in shown.output.split("\n") if f"dpjax {command} " in line]
    source = inspect.getsource(
        importlib.import_module(_MODULE.get(command, f"dpjax.cli.{command}"))
    )
    taught = [line.strip() for line in source.split("\n") if line.startswith("    ")]
    taught = [line for line in taught if line.startswith(f"dpjax {command} ")]
    assert taught
    assert set(taught) <= {line.strip() for line in examples}


def test_every_command_says_what_it_does_in_one_whole_line():
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    lines = {line.split()[0]: line for line in shown.split("Commands:\n")[1].split("\n") if line}
    assert list(lines) == _COMMANDS
    for line in lines.values():
        assert line.endswith("."), line
        assert not line.endswith("..."), line


def test_the_version_is_said():
    import dpjax as package

    found = dpjax("--version")
    assert (found.exit_code, found.output) == (0, f"dpjax {package.__version__}\n")
    done = subprocess.run(
        [sys.executable, "-m", "dpjax", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == found.output


def test_completion_is_offered():
    assert "--install-completion" in dpjax("-h").output


def test_an_interrupted_command_says_what_is_left(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(acc, "epsilon", interrupted)
    out = tmp_path / "sweep.csv"
    found = dpjax("sweep", "--noise-multiplier", "1,2", "--rate", "0.1", "--out", out)
    assert found.exit_code == 130
    assert "interrupted; nothing was written" in found.output
    assert not out.exists()


def test_the_command_starts_without_the_training_libraries():
    code = (
        "import sys, dpjax.cli; "
        "heavy = {'jax', 'pandas', 'flax', 'matplotlib', 'sklearn'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.processes
def test_a_query_loads_no_library_of_training():
    code = """
import gc, os, sys

def told(code, end=os._exit):
    slow = {'scipy', 'optax', 'pandas', 'flax', 'matplotlib', 'sklearn', 'rich.console'}
    slow &= set(sys.modules)
    print(*sorted(slow), gc.isenabled(), flush=True)
    end(code)

os._exit = told

import dpjax.cli
sys.argv = 'dpjax epsilon --noise-multiplier 1.1 --rate 0.01 --steps 9 --delta 1e-5 --json'.split()
dpjax.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer, _, told = done.stdout.rpartition("}\n")
    truth = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), 0.01), 9)
    assert json.loads(answer + "}")["epsilon"] == acc.certify(truth, 1e-5).epsilon
    assert told.split() == ["True"]


def test_random_allocation_is_a_choice_and_runs_whole_epochs(people, tmp_path):
    out = tmp_path / "allocated"
    result = dpjax(
        *("train", "--data", people, "--target", "income", *QUICK, "--out", out),
        *("--sampling", "random-allocation", "--batch-size", 100, "--steps", 3),
    )
    assert result.exit_code == 0, result.output
    assert "sampling rate (random" in result.output
    certificate = acc.Certificate.from_json((out / "certificate.json").read_text())
    assert isinstance(certificate.mechanism.mechanism, acc.RandomAllocation)
    assert certificate.mechanism.mechanism.steps * certificate.mechanism.steps == 4
