"""`--model auto`: what it costs, what it takes, and every command on what it leaves."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import data, training
from dpjax.cli import app, choice, options, settings, tune
from dpjax.cli.evaluation import Counts, Evaluation
from dpjax.training.networks import NetworkSettings
from dpjax.training.search import Selection
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
    return choice.TwoModels.between("logistic", *rules)


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
    few = dataclasses.replace(asked, epsilon=0.5 * least * 3 / 10_000)
    (said,) = choice.describe_no_trial(few, rule)
    assert choice.describe_no_trial(dataclasses.replace(few, model=None), rule) == []
    assert f"{0.5 * least:,.0f} for each of 3 columns" in said


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


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_the_certificate_has_the_settings_of_the_model_that_was_chosen(model):
    made = _between()
    plan = training.make_plan(
        4_000, delta=1e-5, steps=made.whole(400), batch_size=1_000, noise_multiplier=9.0
    )
    linear = made.rules["logistic"]
    declared = {"model": "logistic", "encoding": "asinh", **linear.declare(9.0)}
    declared |= made.declare(is_search=False)
    asked = options.RunOptions(data="x.csv", epsilon=1.0, by_rule=True)
    none = (None,) * 3
    run = settings.Run(
        asked, *none, plan, plan.certify(declared=declared), "logistic", 1.0, linear, made
    )
    found = made.settle(run, model)
    rule, shown = made.rules[model], found.certificate.declared
    assert (found.model, found.tables, found.plan.clip_norm) == (model, rule, rule.clip_norm)
    assert shown["model"] == model
    assert {name: shown[name] for name in rule.declare(9.0)} == rule.declare(9.0)
    assert (shown["clip_norm"], "bias_feature" in shown) == (rule.clip_norm, model == "logistic")
    assert (shown["chosen_of"], shown["trial_steps"]) == ("logistic, mlp", 200)
    assert shown["encoding"] == "asinh"
    # The price is that of the choice, and settling twice is settling once.
    assert found.certificate.epsilon == run.certificate.epsilon
    assert made.settle(made.settle(run, "mlp"), model).certificate == found.certificate


def test_the_network_sees_one_feature_of_a_number_and_is_released_for_all():
    columns = (
        data.Column(
            *("age",), range=(0.0, 10.0), scale="asinh", centre=5.0, width=2.0, cuts=(3.0, 7.0),
            line_weight=0.9,
        ),
        data.Column("job", "category", categories=("a", "b")),
        data.Column("id", "ignore"),
        data.Column("wage", range=(0.0, 9.0)),
    )  # fmt: skip
    schema = data.Schema(columns, target="y", classes=("no", "yes"), missing=("",))
    frame = pd.DataFrame({"age": ["0", "5", "9"], "job": ["a", "b", "c"], "wage": ["1", "9", ""],
                          "id": ["1"] * 3, "y": ["no"] * 3})  # fmt: skip
    features = data.encode_released(frame, schema).features
    kept, weights = choice.find_lines(data.describe_encoding(schema))
    assert (features.shape[1], kept.tolist()) == (8, [4, 5, 6, 7])
    np.testing.assert_allclose(weights, [0.9, 1, 1, 1])
    rule = NetworkSettings.choose(4_000, columns=3)
    trained, release = choice.train_on_lines(rule, data.describe_encoding(schema), 8)
    params = trained.init(jax.random.key(0))
    assert params[0]["weights"].shape == (4, 64)
    np.testing.assert_allclose(
        jax.vmap(trained.apply, (None, 0))(params, features),
        jax.vmap(rule.model(8).apply, (None, 0))(release(params), features),
        atol=1e-5,
    )
    np.testing.assert_allclose(release(params)[0]["weights"][:4], 0)


@pytest.mark.at_length
def test_every_command_takes_the_network_that_a_run_chose(signs, tmp_path, monkeypatch):
    """The run is killed after its trials, of which nothing is left, and makes them again."""
    out, asked = tmp_path / "run", ("train", "--data", signs, *AUTO, "--epsilon", 8)
    real, fits = training.fit, []

    def killed(*positional, **named):
        fits.append((positional[3].steps, positional[1]))
        if len(fits) == 3:
            whole = named["on_log"]

            def stop(row):
                whole(row)
                if row["step"] >= 40:
                    raise KeyboardInterrupt

            named |= {"on_log": stop, "checkpoint_every": 1}
        return real(*positional, **named)

    monkeypatch.setattr(training, "fit", killed)
    stopped = dpjax(*asked, "--out", out)
    assert (stopped.exit_code, [steps for steps, _ in fits]) == (130, [200] * 3), stopped.output
    left = {path.name.split("-")[0] for path in (out / "checkpoint").iterdir()}
    assert {"table", "step"} <= left
    found = dpjax(*asked, "--out", out, "--resume")
    assert found.exit_code == 0, found.output
    jax.tree.map(np.testing.assert_array_equal, fits[2][1], fits[5][1])  # where the trial ended
    said = " ".join(found.output.split())
    for words in (
        *("two models are tried, logistic and mlp, for 200 steps each", "mlp: clip norm 4"),
        *("logistic: bias feature", "chosen by the trials: mlp", "steps 400: "),
    ):
        assert words in said
    certificate = _certificate(out)
    declared, (looks, steps) = certificate.declared, certificate.mechanism.mechanisms
    assert steps.steps == declared["training_steps"] == 600
    assert isinstance(looks.mechanism, acc.Histogram)
    assert (declared["model"], declared["chosen_of"]) == ("mlp", "logistic, mlp")
    assert (declared["trial_steps"], declared["averaged_steps"]) == (200, 200)
    assert declared["rounding_slack"] > 0
    assert 7.9 < certificate.epsilon <= 8
    assert any("two models' losses" in line for line in certificate.assumptions)
    assert json.loads((out / "evaluation.json").read_text())["accuracy"] > 0.75
    assert training.load_model(out).model.architecture["kind"] == "mlp"
    assert not (out / "effects.png").exists()
    again = dpjax(*asked, "--out", out, "--resume")
    assert "nothing is left to do" in " ".join(again.output.split()), again.output
    assert dpjax("verify", out).exit_code == 0
    page = dpjax("report", out)
    assert page.exit_code == 0, page.output
    assert "logistic, mlp" in (out / "report.html").read_text()
    predictions = tmp_path / "predictions.csv"
    assert dpjax("predict", out, "--data", signs, "--out", predictions).exit_code == 0
    labels = np.loadtxt(predictions, delimiter=",", skiprows=1, usecols=0, dtype=str)
    truth = np.loadtxt(signs, delimiter=",", skiprows=1, usecols=2, dtype=str)
    assert np.mean(labels == truth) > 0.75
    explained = dpjax("predict", out, "--data", signs, "--explain", "--out", tmp_path / "e.csv")
    assert explained.exit_code == 2


@pytest.mark.at_length
def test_a_search_has_runs_of_both_models(signs, tmp_path, monkeypatch):
    # A run of the first setting, and one of the first of the network, which is then the best.
    monkeypatch.setattr(Selection, "draw", lambda self, key: [0, 6])
    monkeypatch.setattr(
        Evaluation, "count_right", lambda self, params: 800 * isinstance(params, list)
    )
    out = tmp_path / "run"
    asked = ("tune", "--data", signs, *AUTO, "--epsilon", 8, "--steps", 20, "--out", out)
    found = dpjax(*asked, "--runs", 2, "--law", "fixed")
    assert found.exit_code == 0, found.output
    declared, model = _certificate(out).declared, training.load_model(out).model
    assert (declared["settings"], declared["chosen_of"]) == (12, "logistic, mlp")
    assert {"8", "4"} <= set(declared["clip_norm"].split(", "))
    assert declared["model"] == model.architecture["kind"] == "mlp"
    assert "runs train one of two models" in " ".join(found.output.split())
