"""`dpjax train` without a schema: everything that is learned is in the certificate."""

from __future__ import annotations

import csv
import json

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import data, training
from dpjax._numerics.keys import fold_in_words
from dpjax.cli import app, private
from dpjax.cli.evaluation import Counts
from dpjax.data.private_table import SPLIT_FOLD
from dpjax.data.schema import RELEASED

QUICK = ["--target", "income", "--epsilon", "3", "--delta", "1e-4", "--steps", "30"]


def dpjax(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def _write(path, rows, seed=0, extra=()):
    rng = np.random.default_rng(seed)
    age, job = rng.integers(18, 90, rows), rng.choice(["baker", "smith"], rows)
    lines = [f"{a},{j},{'high' if a > 50 else 'low'}" for a, j in zip(age, job, strict=True)]
    text = "age,job,income\n" + "\n".join([*lines, *extra]) + "\n"
    path.write_bytes(text.encode(errors="surrogateescape"))  # "\udcff" is a byte of no UTF-8
    return path


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return _write(tmp_path_factory.mktemp("data") / "people.csv", 3_000)


@pytest.fixture(scope="module")
def finished(people, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "first"
    result = dpjax("train", "--data", people, *QUICK, "--out", out)
    assert result.exit_code == 0, result.output
    return out, result.output


def _certificate(folder):
    return acc.Certificate.from_json((folder / "certificate.json").read_text())


def test_a_default_run_covers_all_that_it_learns(finished, people):
    out, shown = finished
    certificate = _certificate(out)
    assert certificate.not_covered == ()
    assert "other" not in {one.code for one in (*certificate.not_covered, *certificate.assumptions)}
    assert certificate.tier == "proven"
    assert certificate.verify().epsilon == certificate.epsilon <= 3.0
    looks = certificate.mechanism.mechanisms[0]
    # Two columns of unknown kind: two looks, and two more; and the classes'.
    counted, classes = looks.mechanisms
    assert [part.steps for part in (counted, classes)] == [4, 1]
    assert classes.mechanism.stddev < counted.mechanism.stddev
    assert certificate.extra_delta["a value that one record alone holds is released"] == 1e-5
    assert "learned from the rows" not in shown
    assert "± " in shown
    encoding = training.load_model(out).encoding
    assert {column["origin"] for column in encoding["columns"]} == {RELEASED}
    assert encoding["columns"][1]["categories"] == ["", "baker", "smith"]
    assert encoding["origin of the classes"] == RELEASED
    assert not (out / "checkpoint" / "table" / "noise_key.json").exists()
    assert dpjax("verify", out).exit_code == 0


def test_the_counts_of_the_held_out_records_are_noisy_and_priced_in_parallel(finished):
    out, _ = finished
    certificate = _certificate(out)
    (words,) = [line for line in certificate.assumptions if "secret coin" in line]
    held, shown = (
        int(words.split("Of the ")[1].split()[0]),
        int(words.split(" steps")[0].split()[-1]),
    )
    assert held + certificate.declared["records"] == 3_000
    assert max(len(sentence.split()) for sentence in words.split(". ")) <= 60
    # Table, scores, curve and rows, written to six digits.
    noise = [float(part.split(")")[0]) * (1 + 1e-6) for part in words.split(" (")[1:5]]
    parts = [acc.Histogram(stddev) for stddev in noise[:3]]
    counts = acc.Composed((*parts, acc.Repeated(acc.Histogram(noise[3]), shown)))
    run = certificate.mechanism
    evaluation = json.loads((out / "evaluation.json").read_text())
    assert (evaluation["records"], evaluation["stddev"]) == (held, pytest.approx(noise[0]))
    assert 0.5 * certificate.epsilon < acc.epsilon(counts, 1e-4) < certificate.epsilon
    # Whatever it is quoted at, and composed with others: also between the points compared.
    epsilons = certificate.epsilon * np.linspace(0.1, 2.0, 24)
    assert np.all(acc.delta(counts, epsilons) <= acc.delta(run, epsilons))
    orders = np.geomspace(1.25, 64, 30)
    assert np.all(acc.rdp(counts, orders) <= acc.rdp(run, orders))
    other = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 500)
    both = [acc.epsilon(acc.Composed((part, other)), 1e-5) for part in (counts, run)]
    assert both[0] <= both[1]
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == shown
    right = [float(row["test_accuracy"]) * held for row in rows[:-1]]
    assert all(abs(count - round(count)) < 1e-6 for count in right)
    assert 0.75 < float(rows[-1]["test_accuracy"]) == evaluation["accuracy"] <= 1.0
    # Before the first step the looks have been paid.
    assert 0 < float(rows[0]["epsilon"]) < float(rows[-1]["epsilon"])


@pytest.mark.parametrize(
    "settings",
    [{"steps": 4}, {"sampling": "random-allocation"}, {"adjacency": acc.Adjacency.REPLACE_ONE}],
)
@pytest.mark.at_length(every=3)
def test_of_no_plan_do_held_out_records_cost_more_than_the_run(settings):
    plan = training.make_plan(
        500, **{"noise_multiplier": 3.0, "delta": 1e-5, "steps": 20, "batch_size": 50, **settings}
    )
    counts, how = Counts(classes=3, rows=5), {"adjacency": plan.adjacency}
    counts = counts.mechanism(private._calibrate_counts(plan, counts))
    epsilons = plan.epsilon() * np.linspace(0.1, 2.0, 15)
    dear = acc.delta(counts, epsilons, **how) / acc.delta(plan.mechanism, epsilons, **how)
    assert 0.9 < dear.max() <= 1.0 + 1e-6


@pytest.mark.parametrize("noise", [0.7, 0.3, 0.1, 0.03])
def test_held_out_records_are_counted_at_any_epsilon_however_large(noise):
    """At a part of such an ε the run's δ is 1, to which nothing can be calibrated."""
    plan = training.make_plan(1_000, noise_multiplier=noise, delta=1e-5, steps=400, batch_size=250)
    counts = Counts(classes=2, rows=10)
    stddev = private._calibrate_counts(plan, counts)
    assert 0 < stddev < 100
    counts = counts.mechanism(stddev)
    epsilons = plan.epsilon() * np.linspace(0.1, 2.0, 15)
    assert np.all(acc.delta(counts, epsilons) <= acc.delta(plan.mechanism, epsilons) * (1 + 1e-6))
    orders = np.geomspace(1.25, 64, 12)
    assert np.all(acc.rdp(counts, orders) <= acc.rdp(plan.mechanism, orders) * (1 + 1e-6))


def test_a_very_large_epsilon_is_warned_of_once_and_trains(people, tmp_path):
    arguments = ("train", "--data", people, "--target", "income", "--delta", "1e-4")
    done = dpjax(*arguments, "--epsilon", "1000", "--steps", "10", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert done.output.count("rules almost no attack out") == 1
    assert "warning: ε = 1000 is above 10" in done.output


@pytest.mark.at_length
def test_an_interrupted_run_goes_on_with_its_own_table_and_noise(people, tmp_path, monkeypatch):
    arguments = ("train", "--data", people, *QUICK, "--seed", "1")
    whole = tmp_path / "whole"
    assert dpjax(*arguments, "--out", whole).exit_code == 0
    whole_fit = training.fit

    def interrupted(*positional, on_log, **named):
        def stop(row):
            on_log(row)
            if row["step"] == 9:
                raise KeyboardInterrupt

        return whole_fit(*positional, on_log=stop, checkpoint_every=1, **named)

    out = tmp_path / "b"
    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", interrupted)
        stopped = dpjax(*arguments, "--out", out)
    assert stopped.exit_code == 130
    assert "--resume goes on" in stopped.output
    for change, told in (
        (("--encoding", "asinh"), "its encoding differs"),
        (("--numeric", "age"), "its numeric differs"),
        (("--epsilon", "2"), "its epsilon differs"),
        (("--data", _write(tmp_path / "other.csv", 3_000, seed=1)), "its data differs"),
    ):
        other = dpjax(*arguments, *change, "--out", out, "--resume")
        assert other.exit_code == 2, other.output
        assert told in " ".join(other.output.split())
    resumed = dpjax(*arguments, "--out", out, "--resume")
    assert resumed.exit_code == 0, resumed.output
    for name in ("model.safetensors", "metrics.csv", "model.json", "evaluation.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    again = dpjax(*arguments, "--out", out, "--resume")
    assert "nothing is left to do" in " ".join(again.output.split())
    other = dpjax(*arguments, "--numeric", "age", "--out", out, "--resume")
    assert other.exit_code == 2
    assert "with other settings" in other.output


@pytest.mark.at_length
def test_a_killed_release_is_made_again_with_the_same_noise(people, tmp_path, monkeypatch):
    """Killed between the release and the first step: the key was there before either."""
    out, seen = tmp_path / "run", []
    real = data.PrivateTable.release

    def killed(self, frame, key):
        seen.append(real(self, frame, key))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(data.PrivateTable, "release", killed)
        stopped = dpjax("train", "--data", people, *QUICK, "--out", out)
    assert stopped.exit_code == 130
    assert (out / "checkpoint" / "table" / "noise_key.json").exists()
    # Its files hold nothing of the records that could be tested without the key.
    assert "noise_key" in " ".join(p.name for p in (out / "checkpoint" / "table").iterdir())

    def recorded(self, frame, key):
        seen.append(real(self, frame, key))
        return seen[-1]

    monkeypatch.setattr(data.PrivateTable, "release", recorded)
    assert dpjax("train", "--data", people, *QUICK, "--out", out, "--resume").exit_code == 0
    assert seen[0] == seen[1]
    # The key was drawn, by an earlier process: nobody gave it by hand.
    assert _certificate(out).not_covered == ()


@pytest.mark.at_length
def test_a_ledger_books_the_whole_run_before_the_first_look(people, tmp_path, monkeypatch):
    file, out, looked = tmp_path / "people.ledger.json", tmp_path / "run", []
    dpjax("ledger", file, "--epsilon", "3.5", "--delta", "1e-3", "--data", people)
    arguments = ("train", "--data", people, *QUICK, "--ledger", file)

    def booked():
        return len(json.loads(dpjax("ledger", file, "--json").stdout)["runs"])

    def killed(self, frame, key):
        looked.append(booked())
        raise KeyboardInterrupt

    schema = tmp_path / "wrong.toml"
    schema.write_text('target = "income"\n[[columns]]\nname = "agee"\n')
    wrong = dpjax(*arguments, "--schema", schema, "--out", out)
    assert (wrong.exit_code, booked(), out.exists()) == (2, 0, False)
    assert "the schema names 'agee', which is no feature column" in " ".join(wrong.output.split())
    with monkeypatch.context() as patch:
        patch.setattr(data.PrivateTable, "release", killed)
        assert dpjax(*arguments, "--out", out).exit_code == 130
    assert looked == [1]
    # Booked once, of the price of the whole run.
    finished = dpjax(*arguments, "--out", out, "--resume")
    assert (finished.exit_code, booked()) == (0, 1), finished.output
    # By the name of its noise the certificate is that of a run which is booked.
    again = dpjax("ledger", file, "--add", out)
    said = " ".join(again.output.split())
    assert (again.exit_code, "a run costs once" in said, booked()) == (2, True, 1), said
    # One that cannot be paid is refused before a look, also by --resume in a fresh folder.
    for resume in ((), ("--resume",)):
        with monkeypatch.context() as patch:
            patch.setattr(data.PrivateTable, "release", killed)
            other = dpjax(*arguments, "--out", tmp_path / "other", *resume)
        assert (other.exit_code, booked()) == (2, 1), other.output
    assert looked == [1]
    assert not (tmp_path / "other").exists()


@pytest.mark.at_length
def test_a_finished_run_that_kept_its_keys_loses_them_by_resume(people, tmp_path, monkeypatch):
    out = tmp_path / "run"
    arguments = ("train", "--data", people, *QUICK, "--numeric", "age", "--out", out)

    def refused(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    with monkeypatch.context() as patch:
        patch.setattr(training, "discard_key", refused)
        assert dpjax(*arguments).exit_code != 0
    assert (out / "certificate.json").exists()
    assert len([*out.rglob("noise_key.json")]) == 2
    again = dpjax(*arguments, "--resume")
    assert again.exit_code == 0, again.output
    assert "nothing is left to do" in " ".join(again.output.split())
    assert not [*out.rglob("noise_key.json")]


@pytest.mark.parametrize("first", ["314159,Ada Lovelace,secret", "314159,secret,secret"])
def test_of_a_private_file_no_message_shows_the_first_line(first, tmp_path):
    path = tmp_path / "bare.csv"
    path.write_text(f"{first}\n20,baker,low\n60,smith,high\n")
    for target in (("--target", "income"), ()):
        found = dpjax("train", "--data", path, *target, *QUICK[2:], "--out", tmp_path / "run")
        assert found.exit_code == 2
        told = " ".join(found.output.split())
        assert "3 columns" in told or "two columns named in one way in its first line" in told
        assert not any(word in told for word in ("314159", "Ada", "secret"))
    shown = dpjax(
        *("train", "--data", path, *QUICK, "--out", tmp_path / "run"),
        *("--preprocessing", "from-records"),
    )
    assert "secret" in shown.output


@pytest.mark.at_length
def test_bad_cells_are_missing_and_counted_nowhere(tmp_path):
    large = "1e99999999999999999999"
    odd = [f"50,{large},high", f"50,smith,{large}", f"50,{'a' * 140_000},high", "50,\udcff,high"]
    odd += ["4O,baker,low", ",smith,high", "inf,,", "20,baker", "1e999,x,low,qqq", "nan,nan,01"]
    path = _write(tmp_path / "odd.csv", 2_000, extra=odd)
    result = dpjax("train", "--data", path, *QUICK, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert not any(cell in result.output for cell in ("4O", "1e999", "qqq", "aaaa"))
    encoding = training.load_model(tmp_path / "run").encoding
    assert encoding["classes"] == ["high", "low"]
    rows = "age,job\n20,baker\n80,smith\n,unheard\n"
    (tmp_path / "new.csv").write_text(rows)
    out = tmp_path / "p.csv"
    found = dpjax("predict", tmp_path / "run", "--data", tmp_path / "new.csv", "--out", out)
    assert found.exit_code == 0, found.output
    labels = [line.split(",")[0] for line in out.read_text().splitlines()[1:3]]
    assert labels == ["low", "high"]


@pytest.mark.at_length
def test_what_a_schema_declares_is_public_and_the_rest_is_released(people, tmp_path):
    schema = tmp_path / "people.toml"
    schema.write_text(
        'target = "income"\nclasses = ["low", "high"]\n[[columns]]\nname = "age"\n'
        "range = [18, 90]\n"
    )
    out = tmp_path / "run"
    arguments = ("--data", people, "--schema", schema, *QUICK, "--numeric", "", "--out", out)
    result = dpjax("train", *arguments)
    assert result.exit_code == 0, result.output
    certificate = _certificate(out)
    assert certificate.not_covered == ()
    assert "public: ranges of age: given by the user" in certificate.assumptions
    assert "public: classes of income: given by the user" in certificate.assumptions
    looks, _ = certificate.mechanism.mechanisms
    assert looks.steps == 1  # the jobs alone
    origins = [c["origin"] for c in training.load_model(out).encoding["columns"]]
    assert origins == ["public, from a schema", RELEASED]


@pytest.mark.at_length
def test_a_public_test_file_has_an_exact_accuracy(people, tmp_path):
    test = _write(tmp_path / "test.csv", 500, seed=9)
    out = tmp_path / "run"
    result = dpjax("train", "--data", people, *QUICK, "--test", test, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    certificate = _certificate(out)
    assert certificate.declared["records"] == 3_000
    assert certificate.not_covered == ()
    assert any(line.startswith("public: the held-out records") for line in certificate.assumptions)
    summary = json.loads(result.stdout[result.stdout.index("{") :])
    assert "test_accuracy_stddev" not in summary
    saved = training.load_model(out)
    frame = data.read_table(test, as_written=True)
    encoded = data.encode_released(frame, data.described_schema(saved.encoding), unknown=-1)
    chances = training.probabilities(saved.model, saved.params, encoded.features)
    exact = np.mean(chances.argmax(axis=1) == encoded.labels)
    assert summary["test_accuracy"] == pytest.approx(exact, abs=1e-9)
    # Those of a class that was not released are never right.
    other = _write(tmp_path / "other.csv", 300, seed=8, extra=["20,baker,rare"] * 100)
    out = tmp_path / "again"
    result = dpjax("train", "--data", people, *QUICK, "--test", other, "--out", out, "--json")
    summary = json.loads(result.stdout[result.stdout.index("{") :])
    assert 0.6 < summary["test_accuracy"] <= 0.75


@pytest.mark.at_length
def test_where_noise_hides_the_classes_the_rest_of_the_budget_is_kept(tmp_path, monkeypatch):
    path, out = _write(tmp_path / "few.csv", 150), tmp_path / "run"
    command = ("train", "--data", path, *QUICK, "--epsilon", "0.5", "--out", out)
    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", lambda *_, **__: pytest.fail("a constant was trained"))
        result = dpjax(*command)
    flat = " ".join(result.output.split())
    assert result.exit_code == 2, result.output
    assert "--classes must declare the classes of 'income' where noise hides them" in flat
    assert "one of 20% of them from ε = " in flat
    assert "nothing was trained; the looks at the records cost ε = 0." in flat
    kept = json.loads((out / "private_table.json").read_text())
    looks = acc.Certificate.from_json(json.dumps(kept["certificate"]))
    assert looks.epsilon < 0.45  # a half of it as ρ at most
    # Declared, they are none of the looks that were taken: the run goes on without another.
    monkeypatch.setattr(data.PrivateTable, "release", lambda *_: pytest.fail("a second look"))
    result = dpjax(*command, "--classes", "high,low", "--resume")
    assert result.exit_code == 0, result.output
    assert training.load_model(out).encoding["classes"] == ["high", "low"]
    found = _certificate(out)
    assert found.verify().epsilon <= 0.5
    assert found.mechanism.mechanisms[0] == looks.mechanism


@pytest.mark.at_length
def test_what_is_asked_for_beyond_the_default_is_listed(people, tmp_path):
    out = tmp_path / "run"
    asked = ("--seed", 3, "--log-private-losses", "--compare-without-privacy")
    assert dpjax("train", "--data", people, *QUICK, *asked, "--out", out).exit_code == 0
    lines = " ".join(_certificate(out).not_covered)
    for words in ("given by hand", "train_loss, nonfinite", "accuracy without privacy"):
        assert words in lines


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("--numeric", "agee"), "numeric names 'agee', which is no feature column"),
        (("--encoding", "rank"), "rank"),
        (("--preprocessing", "none"), "none"),
        pytest.param(
            ("--epsilon", "1e-9"), "--epsilon must be at least", marks=pytest.mark.at_length
        ),
        (("--batch-size", "5000"), "all the records, got 5000"),
    ],
)
def test_bad_options_are_refused_before_anything_is_released(people, tmp_path, changes, told):
    out = tmp_path / "run"
    result = dpjax("train", "--data", people, *QUICK, *changes, "--out", out)
    assert result.exit_code == 2
    assert told in result.output
    assert not out.exists()


@pytest.mark.at_length
def test_with_the_networks_default_numbers_are_one_feature_each(people, tmp_path):
    out = tmp_path / "run"
    options = ("--model", "mlp", "--adjacency", "replace-one", "--numeric", "age")
    result = dpjax("train", "--data", people, *QUICK, *options, "--out", out)
    assert result.exit_code == 0, result.output
    column = training.load_model(out).encoding["columns"][0]
    assert (column["scale"], column["cuts"]) == ("asinh", None)
    certificate = _certificate(out)
    assert certificate.adjacency is acc.Adjacency.REPLACE_ONE
    assert certificate.verify().epsilon <= 3.0


@pytest.mark.at_length
def test_a_column_is_named_by_which_to_evaluate(people, tmp_path):
    out = tmp_path / "run"
    arguments = ("train", "--data", people, *QUICK, "--numeric", "age", "--by", "job", "--out", out)
    result = dpjax(*arguments)
    assert result.exit_code == 0, result.output
    assert "accuracy where job is baker" in " ".join(result.output.split())
    parts = json.loads((out / "evaluation.json").read_text())["by"]["job"]
    assert list(parts) == ["no value", "baker", "smith", "none of these"]
    assert 0.8 < parts["smith"]["accuracy"] <= 1.0
    assert _certificate(out).declared["groups"] == "job"
    assert _certificate(out).not_covered == ()
    wrong = dpjax(*arguments[:-4], "--by", "income", "--out", tmp_path / "other")
    assert (wrong.exit_code, (tmp_path / "other").exists()) == (2, False)
    assert "--by must name a feature, got 'income'" in wrong.output


def test_one_record_cannot_be_divided_whatever_the_key_is(tmp_path):
    rows = _write(tmp_path / "one.csv", 1)
    for seed in range(3):
        out = tmp_path / f"run-{seed}"
        quick = ("--target", "income", "--epsilon", 3, "--steps", 2, "--seed", seed)
        result = dpjax("train", "--data", rows, *quick, "--classes", "high,low", "--out", out)
        assert (result.exit_code, out.exists()) == (2, False)
        assert "1 person or record is too few to hold out 20%" in " ".join(result.output.split())


@pytest.mark.at_length
def test_a_table_of_few_is_trained_on_with_every_key(tmp_path):
    rows = _write(tmp_path / "few.csv", 6)
    keys = (fold_in_words(jax.random.key(seed), SPLIT_FOLD) for seed in range(20))
    coins = [jax.random.bernoulli(key, 0.2, (6,)) for key in keys]
    (empty, *_) = [n for n, drawn in enumerate(coins) if not drawn.any()]  # nobody, at first
    out = tmp_path / "run"
    quick = ("--target", "income", "--epsilon", 3, "--steps", 2, "--seed", empty)
    quick = (*quick, "--classes", "high,low")  # which nobody sees among six
    result = dpjax("train", "--data", rows, *quick, "--out", out)
    assert result.exit_code == 0, result.output
    records = json.loads((out / "evaluation.json").read_text())["records"]
    assert 0 < records < 6
    assert dpjax("verify", out).exit_code == 0
