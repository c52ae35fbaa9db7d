"""`--model auto`: what it costs, what it takes, and every command on what it leaves."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import training
from dpjax.cli import app, choice, options, settings, tune
from dpjax.cli.evaluation import Counts, Evaluation
from dpjax.training.networks import NetworkSettings
from dpjax.training.tables import TableSettings

ASKED = ("--target", "same", "--delta", "1e-5", "--numeric", "x,y", "--classes", "no,yes")
AUTO = (*ASKED, "--model", "auto", "--seed", 1)


def dpjax(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def _write(path, truth, rows=4_000):
    """Two numbers, and a class that follows from them but once in twenty times."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (2, rows)).round(3)
    same = truth(x, y) ^ (rng.random(rows) < 0.05)
    lines = (f"{a},{b},{'yes' if c else 'no'}" for a, b, c in zip(x, y, same, strict=True))
    path.write_text("\n".join(["x,y,same", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def signs(tmp_path_factory):
    """Whether two numbers have one sign, which no sum over columns can tell."""
    return _write(tmp_path_factory.mktemp("data") / "signs.csv", lambda x, y: x * y > 0)


def _certificate(folder):
    return acc.Certificate.from_json((folder / "certificate.json").read_text())


def _between(records=4_000, columns=2, steps=None):
    rules = (rule.choose(records, columns=columns, steps=steps) for rule in _RULES)
    return choice.Choice.between("logistic", *rules)


_RULES = TableSettings, NetworkSettings


def test_the_price_of_the_last_steps_is_that_of_all_with_both_trials():
    made = _between()
    looks = acc.Repeated(acc.Histogram(40.0), 5)
    plan = training.make_plan(
        *(4_000,), delta=1e-5, steps=made.whole(400), batch_size=1_000, noise_multiplier=9.0,
        preceding=looks,
    )  # fmt: skip
    step, last = plan.step, made.last(plan)
    assert (plan.steps, made.pilot, last.steps) == (600, 200, 200)
    each = acc.Composed((looks, *(acc.Repeated(step, steps) for steps in (200, 200, 200))))
    expected = acc.epsilon(each, plan.delta - sum(plan.extra_delta.values()))
    assert last.epsilon() == pytest.approx(expected, rel=1e-9)
    assert plan.epsilon() == pytest.approx(expected, rel=1e-9)
    assert 0 < last.spent(0) < last.spent(200)  # the trials have been paid before its first step


def test_whether_a_network_is_tried_follows_from_public_numbers_alone():
    least = choice.LEAST
    assert choice.is_worth_a_trial(10_000, 2 * least * 3 / 10_000, columns=3)
    assert not choice.is_worth_a_trial(10_000, 0.5 * least * 3 / 10_000, columns=3)
    rule = TableSettings.choose(10_000, columns=3)
    asked = options.RunOptions(
        data="x.csv", epsilon=4 * least * 3 / 10_000, by_rule=True, model=options.ModelOption.auto
    )
    found = settings.choose_choice(asked, "logistic", rule)
    assert [*found.rules] == ["logistic", "mlp"]
    assert found.rules["mlp"] == NetworkSettings.choose(10_000, columns=3)
    for changes in ({"epsilon": least * 3 / 40_000}, {"model": None}):
        assert settings.choose_choice(dataclasses.replace(asked, **changes), "", rule) is None
    assert settings.choose_choice(asked, "logistic", None) is None  # without the rule


class _Scores(Evaluation):
    """Records whose losses are given as parameters: with a noise of none."""

    def __init__(self, records, counts=None):
        self.counts, self.records = counts, records


def test_no_record_moves_the_sum_that_chooses_by_more_than_its_price_says():
    losses, others = np.array([0.1, 5.0, np.inf, 0.2, np.inf]), np.array([0.3, 0.0, 0.1, 0.2, 9.0])
    found = _Scores(5).mean_lead(losses, others, ())
    assert found == pytest.approx((-0.2 + 1 + 1 + 0 + 1) / 5)
    counts = Counts(2, 11, stddev=1e-4, key=jax.random.key(0), chooses=True)
    sums = [
        round(5 * _Scores(5, counts).mean_lead(np.append(losses[:4], last), others, ()) / 2, 9)
        for last in (-np.inf, 9.0, np.inf)
    ]
    assert np.ptp(sums) == pytest.approx(
        1.0, abs=1e-3
    )  # replaced; the sensitivity of adding is half of it
    one = counts.mechanism(40.0).mechanisms[-1]
    assert one == acc.Repeated(acc.DiscreteGaussian(40.0, 1 << 15), 1)


def test_a_sum_decides_by_the_lower_loss_with_its_noise():
    losses, others = np.full(4_000, 0.7), np.full(4_000, 0.6)
    counts = Counts(2, 11, stddev=8.0, key=jax.random.key(0), chooses=True)
    leads = [
        _Scores(4_000, dataclasses.replace(counts, key=jax.random.key(k))).mean_lead(
            losses, others, ()
        )
        for k in range(200)
    ]
    assert np.mean(leads) == pytest.approx(0.1, abs=5 * 8 / 4_000 / np.sqrt(200))
    assert np.std(leads) == pytest.approx(8 / 4_000, rel=0.25)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("--clip-norm", "1"), "--clip-norm must be left out with --model auto"),
        (("--learning-rate", "1"), "--learning-rate must be left out"),
        (("--recipe", "fixed"), "--recipe must be left out"),
        (("--sampling", "random-allocation"), "--sampling must be left out"),
        (("--preprocessing", "from-records"), "--preprocessing must be left out"),
    ],
)
def test_what_would_be_of_one_model_alone_is_refused(tmp_path, changes, told):
    out = tmp_path / "run"
    found = dpjax("train", "--data", tmp_path / "absent.csv", *AUTO, "--epsilon", 1, *changes,
                  "--out", out)  # fmt: skip
    assert (found.exit_code, told in " ".join(found.output.split())) == (2, True), found.output
    asked = options.TuneOptions(
        data="x.csv", epsilon=1.0, model=options.ModelOption.auto, clip_norms="0.5"
    )
    with pytest.raises(ValueError, match="--clip-norms must be left out with --model auto"):
        tune._read_search(asked)


QUICK = (*AUTO, "--epsilon", 8, "--steps", 20)


def _decided(monkeypatch, lead):
    """The sum over the held-out records is this number: twenty steps teach too little to tell."""
    monkeypatch.setattr(Evaluation, "mean_lead", lambda self, losses, others, params: lead)


@pytest.mark.at_length
def test_a_network_is_chosen_where_no_sum_over_columns_tells_the_classes_apart(signs, tmp_path):
    out = tmp_path / "run"
    found = dpjax("train", "--data", signs, *AUTO, "--epsilon", 8, "--out", out)
    assert found.exit_code == 0, found.output
    said = " ".join(found.output.split())
    for words in (
        *("two models are tried, logistic and mlp, for 200 steps each", "mlp: clip norm 4"),
        *("logistic: bias feature", "chosen by the trials: mlp", "steps 400: "),
    ):
        assert words in said
    assert json.loads((out / "evaluation.json").read_text())["accuracy"] > 0.75


@pytest.mark.at_length
def test_every_command_takes_the_network_that_was_chosen(signs, tmp_path, monkeypatch):
    _decided(monkeypatch, 1.0)
    out, asked = tmp_path / "run", ("train", "--data", signs, *QUICK)
    real, fits = training.fit, []

    def killed(*positional, **named):  # after the trials, of which nothing is left
        fits.append(positional[3].steps)
        if len(fits) == 3:
            whole = named["on_log"]

            def stop(row):
                whole(row)
                if row["step"] >= 4:
                    raise KeyboardInterrupt

            named |= {"on_log": stop, "checkpoint_every": 1}
        return real(*positional, **named)

    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", killed)
        stopped = dpjax(*asked, "--out", out)
    assert (stopped.exit_code, fits) == (130, [10, 10, 10]), stopped.output
    left = {path.name.split("-")[0] for path in (out / "checkpoint").iterdir()}
    assert {"table", "step"} <= left
    other = dpjax(*asked, "--model", "mlp", "--out", out, "--resume")
    assert "its model differs" in " ".join(other.output.split())
    found = dpjax(*asked, "--out", out, "--resume")
    assert found.exit_code == 0, found.output
    certificate = _certificate(out)
    declared, (looks, steps) = certificate.declared, certificate.mechanism.mechanisms
    assert steps.steps == declared["training_steps"] == 30
    assert looks == _certificate(out).mechanism.mechanisms[0]
    assert (declared["model"], declared["chosen_of"]) == ("mlp", "logistic, mlp")
    assert (declared["trial_steps"], declared["averaged_steps"]) == (10, 10)
    assert (declared["clip_norm"], "bias_feature" in declared) == (4.0, False)
    assert declared["rounding_slack"] > 0
    assert 7.9 < certificate.verify().epsilon <= 8
    assert any("two models' losses" in line for line in certificate.assumptions)
    assert training.load_model(out).model.architecture["kind"] == "mlp"
    assert not (out / "effects.png").exists()
    again = dpjax(*asked, "--out", out, "--resume")
    assert "nothing is left to do" in " ".join(again.output.split()), again.output
    whole = tmp_path / "whole"
    assert dpjax(*asked, "--out", whole).exit_code == 0
    for name in ("model.safetensors", "model.json", "evaluation.json", "metrics.csv"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert dpjax("verify", out).exit_code == 0
    page = dpjax("report", out)
    assert page.exit_code == 0, page.output
    assert "logistic, mlp" in (out / "report.html").read_text()
    predictions = tmp_path / "predictions.csv"
    assert dpjax("predict", out, "--data", signs, "--out", predictions).exit_code == 0
    chances = np.loadtxt(predictions, delimiter=",", skiprows=1, usecols=(1, 2))
    assert len(chances) == 4_000
    assert np.allclose(chances.sum(axis=1), 1, atol=1e-5)
    explained = dpjax("predict", out, "--data", signs, "--explain", "--out", tmp_path / "e.csv")
    assert explained.exit_code == 2


@pytest.mark.at_length
def test_the_linear_model_that_was_chosen_has_its_own_settings_and_effects(
    signs, tmp_path, monkeypatch
):
    _decided(monkeypatch, -1e-9)
    out, asked = tmp_path / "run", ("train", "--data", signs, *QUICK)
    found = dpjax(*asked, "--out", out)
    assert found.exit_code == 0, found.output
    declared = _certificate(out).declared
    assert (declared["model"], declared["chosen_of"]) == ("logistic", "logistic, mlp")
    assert declared["clip_norm"] == pytest.approx(0.5 * np.sqrt(1.5))
    assert declared["bias_feature"] == pytest.approx(np.sqrt(0.5))
    assert (out / "effects.png").exists()
    again = dpjax(*asked, "--out", out, "--resume")
    assert "nothing is left to do" in " ".join(again.output.split()), again.output


@pytest.mark.at_length
def test_where_records_are_too_few_it_is_the_linear_model_to_the_bit(signs, tmp_path):
    asked = ("train", "--data", signs, *ASKED, "--seed", 1, "--epsilon", 0.5, "--steps", 20)
    for name, more in (("usual", ()), ("auto", ("--model", "auto"))):
        found = dpjax(*asked, *more, "--out", tmp_path / name)
        assert found.exit_code == 0, found.output
    assert "nothing is spent on a trial" in " ".join(found.output.split())
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("usual", "auto")]
    assert files[0] == files[1]
    declared = _certificate(tmp_path / "auto").declared
    assert (declared["model"], "chosen_of" in declared) == ("logistic", False)
    again = dpjax(*asked, "--model", "auto", "--out", tmp_path / "auto", "--resume")
    assert "nothing is left to do" in " ".join(again.output.split()), again.output


@pytest.mark.at_length
def test_a_search_has_runs_of_both_models(signs, tmp_path, monkeypatch):
    from dpjax.training.search import Selection

    # A run of the first setting, and one of the first of the network, which is then the best.
    monkeypatch.setattr(Selection, "draw", lambda self, key: [0, 6])
    monkeypatch.setattr(
        Evaluation, "count_right", lambda self, params: 800 * isinstance(params, list)
    )
    out = tmp_path / "run"
    asked = ("tune", "--data", signs, *QUICK, "--runs", 2, "--law", "fixed", "--out", out)
    found = dpjax(*asked)
    assert found.exit_code == 0, found.output
    declared, model = _certificate(out).declared, training.load_model(out).model
    assert (declared["settings"], declared["chosen_of"]) == (12, "logistic, mlp")
    assert {"8", "4"} <= set(declared["clip_norm"].split(", "))
    assert declared["model"] == model.architecture["kind"] == "mlp"
    assert "runs train one of two models" in " ".join(found.output.split())
    again = dpjax(*asked, "--resume")
    assert "nothing is left to do" in " ".join(again.output.split()), again.output
