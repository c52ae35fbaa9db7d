"""`dpjax tune`: a private search behind the pipeline of `dpjax train`."""

from __future__ import annotations

import csv
import dataclasses
import json

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import data, training
from dpjax.cli import app, options, private, settings, tune
from dpjax.training.networks import NetworkSettings
from dpjax.training.search import Selection
from dpjax.training.tables import TableSettings

QUICK = ["--target", "income", "--epsilon", "3", "--delta", "1e-4", "--steps", "10"]
QUICK += ["--numeric", "age", "--learning-rates", "2,1e-6", "--clip-norms", "0.5"]

# What a run notes of how its table was looked at, so that `--resume` goes on by the same rule.
NOTES = (
    "classes_counted_apart.note",
    "declared_ranges_have_cells.note",
    "hidden_values_share_buckets.note",
    "kinds_by_the_first_look.note",
    "searched.note",
    "settings_by_rule.note",
)


def dpjax(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def _write(path, rows, seed=0):
    rng = np.random.default_rng(seed)
    age, job = rng.integers(18, 90, rows), rng.choice(["baker", "smith"], rows)
    lines = [f"{a},{j},{'high' if a > 50 else 'low'}" for a, j in zip(age, job, strict=True)]
    path.write_text("age,job,income\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return _write(tmp_path_factory.mktemp("data") / "people.csv", 3_000)


@pytest.fixture(scope="module")
def finished(people, tmp_path_factory):
    """A run by a seed, and which runs were made on the way."""
    out, made = tmp_path_factory.mktemp("runs") / "first", []
    with pytest.MonkeyPatch.context() as patch:
        real = training.compile_train

        def watched(*arguments, **settings):
            train_one = real(*arguments, **settings)

            def call(setting, plan, key):
                made.append((setting["rate"], train_one(setting, plan, key)))
                return made[-1][1]

            return call

        patch.setattr(training, "compile_train", watched)
        result = dpjax("tune", "--data", people, *QUICK, "--seed", "3", "--out", out)
    assert result.exit_code == 0, result.output
    return out, result.output, made


def _certificate(folder):
    return acc.Certificate.from_json((folder / "certificate.json").read_text())


@pytest.mark.at_length
def test_the_certificate_covers_the_table_and_all_runs_with_their_scores(finished):
    out, shown, _ = finished
    certificate = _certificate(out)
    looks, best = certificate.mechanism.mechanisms
    assert isinstance(best, acc.BestOf)
    assert (best.expected_trials, best.distribution) == (10.0, "poisson")
    run, score = best.mechanism.mechanisms
    assert (run.steps, score) == (10, acc.Gaussian(24.0 / 3.0))
    # Two looks at two columns, and one at the classes, with less noise.
    assert [(type(part.mechanism), part.steps) for part in looks.mechanisms] == [
        (acc.Histogram, 3),
        (acc.Histogram, 1),
    ]
    assert looks.mechanisms[1].mechanism.stddev < looks.mechanisms[0].mechanism.stddev
    assert certificate.method == "selection"
    assert 2.99 < certificate.verify().epsilon <= 3.0
    assert certificate.tier == "proven"
    (given,) = certificate.not_covered  # the seed
    assert "given by hand" in given
    assert "other" not in {one.code for one in (*certificate.not_covered, *certificate.assumptions)}
    declared = certificate.declared
    assert (declared["learning_rate"], declared["clip_norm"]) == ("2, 1e-06", "0.5")
    assert (declared["settings"], declared["runs"]) == (2, "poisson, 10 expected")
    assert any("records that the score counts" in line for line in certificate.assumptions)
    assert certificate.extra_delta["a value that one record alone holds is released"] == 1e-5
    assert "selection (proven)" in shown


@pytest.mark.at_length
def test_the_best_run_is_left_as_train_leaves_one_and_no_other(finished, people, tmp_path):
    out, shown, made = finished
    key = jax.random.key(3)
    assert len(made) == len(Selection(2, score_noise=8.0).draw(key)) > 3
    assert {rate for rate, _ in made} == {2.0, 1e-6}
    saved = training.load_model(out)
    rates = [
        rate for rate, params in made if np.array_equal(params["weights"], saved.params["weights"])
    ]
    assert rates == [2.0]  # a rate of 1e-6 learns nothing
    names = {"certificate.json", "model.json", "model.safetensors", "metrics.csv", "training.png"}
    left = {path.name for path in out.iterdir()}
    assert names <= left
    # The notes say what was done, and of the released table its digest.
    kept = {p.name.split("_")[0] for p in out.rglob("checkpoint/**/*") if p.is_file()}
    assert kept == {"lock", "released", *(name.split("_")[0] for name in NOTES)}
    with (out / "metrics.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["step"], row["learning_rate"], row["clip_norm"]) == ("10", "2.0", "0.5")
    assert float(row["epsilon"]) == _certificate(out).epsilon
    assert float(row["test_accuracy"]) > 0.75
    assert "learning rate 2, clip norm 0.5" in shown
    assert dpjax("verify", out).exit_code == 0
    predicted = tmp_path / "p.csv"
    assert dpjax("predict", out, "--data", people, "--out", predicted).exit_code == 0
    labels = [line.split(",")[0] for line in predicted.read_text().splitlines()[1:]]
    truth = [line.split(",")[2] for line in people.read_text().splitlines()[1:]]
    assert np.mean(np.array(labels) == np.array(truth)) > 0.8


@pytest.mark.at_length
def test_a_killed_search_goes_on_with_the_same_runs_and_leaves_none(
    finished, people, tmp_path, monkeypatch
):
    whole, _, _ = finished
    out = tmp_path / "run"
    arguments = ("tune", "--data", people, *QUICK, "--seed", "3", "--out", out)

    real = training.compile_train

    def killed(*arguments, **settings):
        train_one, calls = real(*arguments, **settings), []

        def call(setting, plan, key):
            if len(calls) == 2:
                raise KeyboardInterrupt
            calls.append(1)
            return train_one(setting, plan, key)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(training, "compile_train", killed)
        stopped = dpjax(*arguments)
    assert stopped.exit_code == 130, stopped.output
    left = {path.name for path in out.rglob("*") if path.is_file()}
    # Of the table, which is released, and of no run.
    assert {name for name in left if not name.startswith("released_")} == {
        "lock", "noise_key.json", "private_table.json", *NOTES
    }  # fmt: skip
    other = dpjax(*arguments, "--runs", "9", "--resume")
    assert other.exit_code == 2
    assert "its search differs" in " ".join(other.output.split())
    resumed = dpjax(*arguments, "--resume")
    assert resumed.exit_code == 0, resumed.output
    for name in ("model.safetensors", "metrics.csv", "model.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    again = dpjax(*arguments, "--resume")
    assert "nothing is left to do" in " ".join(again.output.split())


@pytest.mark.at_length
def test_a_ledger_books_the_whole_search_before_the_first_look(people, tmp_path, monkeypatch):
    file, out, looked = tmp_path / "people.ledger.json", tmp_path / "run", []
    dpjax("ledger", file, "--epsilon", "3.5", "--delta", "1e-3", "--data", people)

    def booked():
        return json.loads(dpjax("ledger", file, "--json").stdout)["runs"]

    def killed(self, frame, key):
        looked.append(len(booked()))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(data.PrivateTable, "release", killed)
        assert dpjax("tune", "--data", people, *QUICK, "--ledger", file, "--out", out).exit_code
    assert looked == [1]
    (entry,) = acc.LedgerFile(file).read().entries
    assert isinstance(entry.mechanism.mechanisms[1], acc.BestOf)


@pytest.mark.at_length
def test_where_no_run_is_made_the_model_is_constant_and_no_record_is_counted(
    people, tmp_path, monkeypatch
):
    """That no run is made costs nothing, and so nothing of the held-out records may leave."""
    monkeypatch.setattr(Selection, "draw", lambda self, key: [])
    seen = []
    real = tune.Search.hide_held_out

    def watched(self, run):
        seen.append(real(self, run))
        return seen[-1]

    monkeypatch.setattr(tune.Search, "hide_held_out", watched)
    out = tmp_path / "run"
    result = dpjax("tune", "--data", people, *QUICK, "--by", "job", "--out", out)
    assert result.exit_code == 0, result.output
    assert np.all(seen[0].held_out.labels == -1)
    groups = json.loads((out / "evaluation.json").read_text())["by"]["job"]
    assert max(part["records"] for name, part in groups.items() if name != "none of these") < 150
    assert "no run was made" in result.output
    assert not np.any(training.load_model(out).params["weights"])
    with (out / "metrics.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["test_accuracy"]) < 0.1  # noise about 0


@pytest.mark.at_length
def test_a_public_test_file_scores_without_noise_and_is_named(people, tmp_path):
    test, out = _write(tmp_path / "test.csv", 500, seed=9), tmp_path / "run"
    result = dpjax("tune", "--data", people, *QUICK, "--test", test, "--runs", 2, "--out", out)
    assert result.exit_code == 0, result.output
    certificate = _certificate(out)
    assert certificate.not_covered == ()
    assert isinstance(certificate.mechanism.mechanisms[1].mechanism, acc.Repeated)  # no score
    assert certificate.declared["score"] == "on public data: the held-out records"
    assert not any("records that the score counts" in line for line in certificate.assumptions)


def test_what_is_counted_of_the_best_run_costs_no_more_than_one_run():
    plan = training.make_plan(500, noise_multiplier=2.0, delta=1e-5, steps=10, batch_size=100)
    own = dataclasses.replace(
        plan, selection=Selection(2, score_noise=8.0), preceding=acc.Histogram(30.0)
    )
    assert private._rows_apart(own) == 10
    assert private._rows_apart(plan) == 1
    one, searched = (
        private._plan_counts(p, 2, 1_000, jax.random.key(0))[0].stddev for p in (plan, own)
    )
    assert searched < one  # fewer rows of the metrics, beside the same run


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("--runs", "0.5"), "--runs must be at least 1"),
        (("--runs", "nan"), "--runs must be at least 1"),
        (("--runs", "2.5", "--law", "fixed"), "--runs must be a whole number"),
        (("--runs", "1", "--law", "logarithmic"), "--runs must be above 1"),
        (("--learning-rates", "1,zero"), "--learning-rates must be positive numbers"),
        (("--learning-rates", "1,-1"), "--learning-rates must be positive numbers"),
        (("--clip-norms", ""), "--clip-norms must be positive numbers"),
        (("--law", "uniform"), "uniform"),
        (("--sampling", "random-allocation"), "--sampling must be poisson"),
    ],
)
def test_bad_options_are_refused_before_a_record_is_read(tmp_path, changes, told):
    out = tmp_path / "run"
    result = dpjax("tune", "--data", tmp_path / "absent.csv", *QUICK, *changes, "--out", out)
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())
    assert not out.exists()


def test_it_has_the_options_of_train_but_those_of_one_setting():
    own, theirs = (
        {field.name: field for field in dataclasses.fields(kind)}
        for kind in (options.TuneOptions, options.TrainOptions)
    )
    assert own.keys() - theirs.keys() == {"learning_rates", "clip_norms", "law", "runs"}
    assert theirs.keys() - own.keys() == {
        *("learning_rate", "clip_norm", "preprocessing", "compare", "private_losses"),
        *("momentum", "average", "recipe"),
    }
    shared = [name for name in theirs if name in own]
    assert shared == [name for name in own if name in theirs]  # in one order on both pages
    assert all(own[name].type == theirs[name].type for name in shared)
    assert all(own[name].default == theirs[name].default for name in shared)


def test_a_run_of_a_search_has_its_options_and_no_setting_yet(tmp_path):
    asked = options.TuneOptions(
        data="x.csv", epsilon=2.0, steps=7, seed=3, out=tmp_path, as_json=True
    )
    one = asked.of_one_run()
    assert (one.learning_rate, one.clip_norm, one.steps) == (None, None, 7)
    assert (one.epsilon, one.seed, one.out, one.as_json) == (2.0, 3, tmp_path, True)
    usual = options.TrainOptions(data="x.csv", epsilon=2.0)
    assert (one.preprocessing, one.compare) == (usual.preprocessing, False)


@pytest.mark.parametrize("command", ["train", "tune"])
def test_every_option_of_the_class_is_one_of_the_command(command):
    kind = {"train": options.TrainOptions, "tune": options.TuneOptions}[command]
    shown = dpjax(command, "--help").output
    renamed = {"compare": "compare-without-privacy", "private_losses": "log-private-losses"}
    renamed["as_json"] = "json"
    names = [field.name for field in dataclasses.fields(kind)]
    flags = ["--" + renamed.get(name, name.replace("_", "-")) for name in names]
    listed = [line.split()[0] for line in shown.split("\n") if line.startswith("  --")]
    assert listed == flags


def test_whose_records_are_a_person_s_is_left_to_train():
    asked = options.TuneOptions(data="x.csv", epsilon=1.0, clip_norms="0.5")
    for more in ({"person": "name"}, {"task": options.TaskOption.regression}):
        with pytest.raises(ValueError, match=f"--{next(iter(more))} must be left out"):
            tune._read_search(dataclasses.replace(asked, **more))
    search = tune._read_search(asked)
    with pytest.raises(ValueError, match="users must be None in a search"):
        search.fit(*[None] * 5, on_log=None, users=[0])


def _search(**given):
    return tune._read_search(options.TuneOptions(data="x.csv", epsilon=1.0, **given))


@pytest.mark.parametrize("rule", [TableSettings, NetworkSettings])
def test_the_settings_are_around_train_s_at_the_noise_of_a_run(rule):
    made = rule.choose(4_000, columns=9)
    usual = made.clip_norm
    space = _search().list_settings(made, 30.0)
    assert space[0] == (made.learning_rate(30.0), usual)  # train's, which half the runs take
    assert {norm / usual for _, norm in space} == {1.0, 2.0}
    # At twice the clip norm noise is twice as large, and the rate of one spread half of it.
    own = {norm: [rate for rate, of in space if of == norm] for _, norm in space}
    assert np.allclose(np.divide(own[usual], own[usual][0]), [1.0, 0.5, 2.0])
    assert np.allclose(own[2 * usual], np.divide(own[usual], 2))


def test_numbers_that_are_given_are_those_that_are_tried():
    made = TableSettings.choose(4_000, columns=9)
    both = _search(learning_rates="3,1", clip_norms="0.4")
    assert both.list_settings(made, 30.0) == ((3.0, 0.4), (1.0, 0.4))
    one = _search(clip_norms="0.4").list_settings(made, 30.0)
    assert one[0] == (dataclasses.replace(made, clip_norm=0.4).learning_rate(30.0), 0.4)
    assert len(one) == 3
    rates = _search(learning_rates="3").list_settings(made, 30.0)
    assert rates == ((3.0, made.clip_norm), (3.0, 2 * made.clip_norm))


@pytest.mark.parametrize(("model", "first"), [(None, 2.0), (options.ModelOption.mlp, 1.0)])
def test_a_search_of_an_earlier_version_goes_on_with_its_own_settings(model, first):
    asked = options.TrainOptions(data="x.csv", epsilon=1.0, model=model)
    found = _search(model=model).fix(asked)
    assert (found.space[0], len(found.space)) == ((first, 0.5), 9)
    # By this text its key is bound to it.
    assert repr(found).startswith(f"Search(space=(({first}, 0.5), ({first}, 0.25), ({first}, 1.0)")
    assert found.list_settings(None, 30.0) == found.space


def test_the_probabilities_of_the_best_run_are_corrected_by_its_own_clip_norm():
    made = TableSettings.choose(4_000, columns=9)
    run = settings.Run(*[None] * 8, tables=made)
    found = training.Fit({}, {"clip_norm": np.array([2 * made.clip_norm])}, steps=1)
    settled = tune.Search.settle(run, found)
    link = settled.tables.model(5).architecture["link"]
    assert link["clip_norm"] == pytest.approx(2 * made.clip_norm)
    none = found._replace(metrics={"clip_norm": np.array([np.nan])})
    assert tune.Search.settle(run, none) is run
