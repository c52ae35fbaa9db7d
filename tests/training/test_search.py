"""A private search: what is drawn, trained, released, left on the disk and certified."""

from __future__ import annotations

import dataclasses
import json
import math

import jax
import numpy as np
import optax
import pytest
import scipy.stats

from dpjax import accounting as acc
from dpjax import training
from dpjax._numerics.normal import normal
from dpjax.gradients import AdaptiveQuantile
from dpjax.training.plan import ADAPTIVE, ARITHMETIC, OF_USERS
from dpjax.training.search import Selection
from dpjax.training.step_config import failure_probability

BUDGET = (2.0, 1e-5)


def make_plan(noise):
    return training.make_plan(
        1_000, delta=1e-5, steps=1, batch_size=1_000, sampling="full", noise_multiplier=noise
    )


class Trainer:
    """`train` that trains nothing: its result is its place, its score what was planted."""

    def __init__(self, scores=None, stop_at=None):
        self.calls, self.scores, self.stop_at = [], scores, stop_at

    def __call__(self, setting, plan, key):
        self.calls.append((setting, plan, bytes(np.asarray(jax.random.key_data(key)))))
        if len(self.calls) == self.stop_at:
            raise KeyboardInterrupt
        return {"place": len(self.calls) - 1, "setting": setting}

    def score(self, result):
        return 500 + (10 * result["place"] if self.scores is None else self.scores(result))


def search(trainer, **options):
    options = {"public": "a sheet of paper", "key": jax.random.key(4), **options}
    return training.search(
        [0.1, 1.0, 10.0],
        trainer,
        plan=make_plan,
        budget=BUDGET,
        score=trainer.score,
        **options,
    )


def test_the_best_of_as_many_runs_as_were_drawn_is_released():
    trainer = Trainer(scores=lambda result: -abs(result["place"] - 2))
    found = search(trainer)
    best = acc.BestOf(found.plan.mechanism, 10.0, "poisson")
    trials = acc.draw_trials(jax.random.fold_in(jax.random.key(4), 0), best)
    assert len(trainer.calls) == trials > 3
    assert (found.result["place"], found.score) == (2, 500.0)
    assert found.setting == trainer.calls[2][0]
    assert len({key for _, _, key in trainer.calls}) == trials  # fresh noise each
    assert all(plan == found.plan for _, plan, _ in trainer.calls)
    again = Trainer(scores=trainer.scores)
    assert search(again).result == found.result
    assert again.calls == trainer.calls
    other = Trainer()
    search(other, key=jax.random.key(5))
    assert {key for _, _, key in other.calls}.isdisjoint(key for _, _, key in trainer.calls)


def test_the_certificate_is_of_the_best_run_with_its_score():
    found = search(Trainer(), public=None, score_noise=8.0)
    certificate = found.certificate
    run = acc.Composed((found.plan.mechanism, acc.Gaussian(8.0)))
    assert certificate.mechanism == acc.BestOf(run, 10.0, "poisson")
    assert 0.999 * BUDGET[0] < certificate.epsilon <= BUDGET[0]
    assert certificate.delta == BUDGET[1]
    certificate.verify()
    assert any("held-out" in text or "score counts" in text for text in certificate.assumptions)
    # Not a search: with the noise of one run of the same budget the claim would be refused.
    alone = training.make_plan(
        1_000, delta=1e-5, steps=1, batch_size=1_000, sampling="full", epsilon=BUDGET[0]
    )
    assert alone.noise_multiplier < 0.9 * found.plan.noise_multiplier
    public = search(Trainer()).certificate
    assert isinstance(public.mechanism.mechanism, acc.Repeated)  # no score beside it
    assert public.declared["score"] == "on public data: a sheet of paper"


def test_the_certificate_says_whose_privacy_it_is_and_what_the_clip_norm_does():
    adaptive = AdaptiveQuantile(count_noise=100.0, batch_size=1_000)

    def plan(noise):
        return dataclasses.replace(make_plan(noise), unit="user", adaptive=adaptive)

    trainer = Trainer()
    found = training.search(
        [1.0], trainer, plan=plan, budget=BUDGET, score=trainer.score, public="paper",
        key=jax.random.key(4),
    )  # fmt: skip
    run = found.plan.certify()
    for name in ("unit", "adaptive"):
        assert found.certificate.declared[name] == run.declared[name]
    assert {OF_USERS, ADAPTIVE} <= set(found.certificate.assumptions)
    with pytest.raises(ValueError, match="certificates of one unit"):
        acc.certify([found.certificate, search(Trainer()).certificate], delta=1e-4)
    plain = search(Trainer()).certificate
    assert not {OF_USERS, ADAPTIVE} & set(plain.assumptions)
    assert not {"unit", "adaptive"} & set(plain.declared)


def test_the_score_has_its_noise_and_the_best_noisy_score_wins():
    winners, scores = [], []
    for seed in range(40):
        trainer = Trainer(scores=lambda result: 0)
        found = search(
            trainer, public=None, score_noise=8.0, key=jax.random.key(seed), law="fixed", mean=5.0
        )
        assert len(trainer.calls) == 5
        winners.append(found.result["place"])
        scores.append(found.score - 500)
    assert set(winners) == set(range(5))  # of equal scores the noise decides
    # The largest of five normal numbers of deviation 8, rounded.
    law = scipy.stats.norm(scale=8.0)
    assert scipy.stats.kstest(scores, lambda x: law.cdf(x) ** 5).pvalue > 1e-3
    assert scipy.stats.kstest(scores, law.cdf).pvalue < 1e-6
    assert all(score == round(score) for score in scores)


def test_the_score_s_noise_has_the_tails_that_the_certificate_states():
    """The package's own generator, whose tails `_numerics/test_normal.py` measures."""
    for seed in range(3):
        found = search(
            Trainer(scores=lambda result: 0), public=None, score_noise=1e6,
            key=jax.random.key(seed), law="fixed", mean=1.0,
        )  # fmt: skip
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 2), 0)
        assert found.score == round(500 + 1e6 * float(normal(key)))


def test_settings_are_drawn_with_half_on_the_default():
    def draw(runs, settings, share):
        return Selection(settings, "fixed", float(runs), share, None, "x").draw(jax.random.key(1))

    drawn = np.bincount(draw(30_000, 3, 0.5)) / 30_000
    assert drawn == pytest.approx([0.5, 0.25, 0.25], abs=0.015)
    assert set(draw(50, 1, 0.0)) == {0}
    assert set(draw(300, 4, 0.0)) == {1, 2, 3}


def test_without_a_run_nothing_is_told_but_that():
    for seed in range(200):
        trainer = Trainer()
        if not acc.draw_trials(
            jax.random.fold_in(jax.random.key(seed), 0),
            acc.BestOf(acc.Gaussian(1.0), 1.0, "poisson"),
        ):
            break
    found = search(trainer, mean=1.0, key=jax.random.key(seed), nothing="constant")
    assert (found.result, found.setting, found.score, trainer.calls) == ("constant", None, None, [])
    found.certificate.verify()


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_killed_search_begins_again_with_the_same_number_and_leaves_no_run(tmp_path):
    folder = tmp_path / "search"
    whole = Trainer()
    expected = search(whole)
    killed = Trainer(stop_at=4)
    with pytest.raises(KeyboardInterrupt):
        search(killed, folder=folder)
    left = files(folder)
    assert set(left) == {"lock", "noise_key.json"}
    content = json.loads(left["noise_key.json"])
    assert set(content) == {"implementation", "words", "identity", "check"}
    assert "500" not in json.dumps(content["identity"])  # no score
    with pytest.raises(training.CheckpointError, match="resume it, or choose another folder"):
        search(Trainer(), folder=folder)
    with pytest.raises(training.CheckpointError, match="settings differs"):
        training.search(
            [0.1], Trainer(), plan=make_plan, budget=BUDGET, score=Trainer().score,
            public="paper", folder=folder, resume=True,
        )  # fmt: skip
    # Without its key at hand: that in the folder.
    resumed = Trainer()
    found = search(resumed, folder=folder, resume=True, key=None)
    assert resumed.calls == whole.calls
    assert found.result == expected.result
    # The result leaves once.
    assert set(files(folder)) == {"lock", "ended.note"}
    with pytest.raises(training.CheckpointError, match="has ended"):
        search(Trainer(), folder=folder, resume=True)


def test_failures_of_arithmetic_in_all_runs_fit_into_what_is_reserved():
    found = search(Trainer(), mean=30.0, law="geometric")
    failures = 30.0 * 3 * found.plan.steps * failure_probability(found.plan)
    reserved, best = found.certificate.extra_delta[ARITHMETIC], found.certificate.mechanism
    # At every ε they cost p + G(p), and G(p) ≤ e^x·p + δ(x) for any x.
    costs = [failures * (1 + math.exp(x)) + acc.delta(best, x) for x in np.linspace(1.0, 8.0, 36)]
    assert 0.05 * reserved < min(costs) <= reserved


def test_what_precedes_the_search_is_priced_beside_it_once():
    looks = acc.Repeated(acc.Histogram(40.0), 4)

    def plan(noise):
        return training.make_plan(
            1_000, delta=1e-5, steps=1, batch_size=1_000, sampling="full", noise_multiplier=noise,
            preceding=looks, extra_delta={"a threshold": 1e-6},
        )  # fmt: skip

    found = training.search(
        [0.1, 1.0], trainer := Trainer(), plan=plan, budget=BUDGET, score=trainer.score,
        score_noise=20.0, key=jax.random.key(4),
    )  # fmt: skip
    certificate, run = found.certificate, found.plan.mechanism
    best = acc.BestOf(acc.Composed((run, acc.Gaussian(20.0))), 10.0, "poisson")
    assert certificate.mechanism == acc.Composed((looks, best))
    assert certificate.extra_delta == {"a threshold": 1e-6, ARITHMETIC: 1e-8}
    assert certificate.method == "selection"
    assert 0.999 * BUDGET[0] < certificate.verify().epsilon <= BUDGET[0]
    # Without the search's own price, or the looks', less noise would have kept the budget.
    alone = training.search(
        [0.1, 1.0], trainer, plan=make_plan, budget=BUDGET, score=trainer.score,
        score_noise=20.0, key=jax.random.key(4),
    )  # fmt: skip
    assert 1.001 < found.plan.noise_multiplier / alone.plan.noise_multiplier < 1.2
    assert found.plan.epsilon() == pytest.approx(certificate.epsilon, rel=1e-9)


@pytest.mark.at_length
def test_a_search_trains():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1_200, 3)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int32)
    model = training.logistic(features=3)
    right = training.accuracy(model, x[1_000:], y[1_000:])
    certificates = []

    def train(rate, plan, key):
        params = training.fit(
            training.cross_entropy(model), model.init(key), (x[:1_000], y[:1_000]), plan,
            optimizer=optax.sgd(rate), key=key, evaluate=None,
        ).params  # fmt: skip
        certificates.append(plan.certify())
        return params

    def plan(noise):
        return training.make_plan(
            1_000, delta=1e-5, steps=20, batch_size=200, noise_multiplier=noise
        )

    found = training.search(
        [1e-6, 1.0], train, plan=plan, budget=(3.0, 1e-5), mean=4.0, law="fixed",
        score=lambda params: 200 * right(params), score_noise=3.0, key=jax.random.key(1),
    )  # fmt: skip
    assert found.setting == 1.0  # the default learns nothing
    assert right(found.result) > 0.9
    assert abs(found.score - 200 * right(found.result)) < 15
    assert found.plan.keys == []  # as many as there were runs
    # The certificate of a run, which may leave with it, does not tell how many went before.
    names = [certificate.declared["noise"] for certificate in certificates]
    assert [len(name.split()) for name in names] == [1] * 4
    assert len(set(names)) == 4


def test_the_average_of_a_compiled_run_is_that_of_fit():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    model = training.logistic(features=3)
    loss, first = training.cross_entropy(model), model.init(None)
    plan = training.make_plan(400, delta=1e-4, steps=12, batch_size=100, noise_multiplier=1.0)
    average, key = training.tail_average(6), jax.random.key(1)
    how = {"optimizer": optax.sgd(1.0)}
    alone = training.fit(loss, first, (x, y), plan, key=key, average=average, **how)
    train = training.compile_train(loss, first, (x, y), optimizer=optax.sgd, average=average)
    found = train({"learning_rate": 1.0}, plan, key)
    np.testing.assert_allclose(found["weights"], alone.average["weights"], rtol=2e-3, atol=1e-4)
    assert np.max(np.abs(found["weights"] - alone.params["weights"])) > 0.01


@pytest.mark.at_length
def test_all_runs_of_a_search_are_one_program_and_each_is_as_alone():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    model = training.logistic(features=3)
    loss, first, traces, made = training.cross_entropy(model), model.init(None), [], []

    def compile_anew():
        def optimizer(learning_rate):
            traces.append(1)  # when it is traced
            return optax.sgd(learning_rate, momentum=0.9)

        return training.compile_train(loss, first, (x, y), optimizer=optimizer)

    train = compile_anew()

    def watched(setting, plan, key):
        made.append((setting, plan, key, train(setting, plan, key)))
        return made[-1][3]

    found = training.search(
        [{"learning_rate": r, "clip_norm": c} for r in (1.0, 0.1, 4.0) for c in (0.5, 2.0)],
        watched, budget=(4.0, 1e-4), score=lambda params: float(params["weights"][0]),
        plan=lambda noise: training.make_plan(
            400, delta=1e-4, steps=12, batch_size=100, noise_multiplier=noise),
        public="nothing", law="fixed", mean=6.0, key=jax.random.key(2),
    )  # fmt: skip
    assert (len(made), len(traces)) == (6, 1)
    assert len({str(setting) for setting, *_ in made}) > 2
    weights = [params["weights"] for *_, params in made]
    assert found.result["weights"].tolist() == max(weights, key=lambda w: w[0]).tolist()
    for setting, plan, key, params in made[:2]:
        alone = compile_anew()(setting, plan, key)
        assert jax.tree.map(np.array_equal, params, alone) == {"bias": True, "weights": True}
        # As the step takes it whose numbers are constants, but for what its noise allows for
        # rounding: some thousandths of the noise.
        own = dataclasses.replace(plan, clip_norm=setting["clip_norm"])
        step = training.training_step(
            loss, first, own, optimizer=optax.sgd(setting["learning_rate"], momentum=0.9)
        )
        update, state = jax.jit(step.update), step.init(first)
        for _ in range(own.steps):
            state, _ = update(state, (x, y), key)
        most = 1e-4 * float(np.max(np.abs(params["weights"])))
        np.testing.assert_allclose(
            state["params"]["weights"], params["weights"], rtol=1e-3, atol=most
        )
    # Another plan is another program.
    train(made[0][0], dataclasses.replace(made[0][1], population=401), made[0][2])
    assert len(traces) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": 0.5}, "mean must be"),
        ({"law": "uniform"}, "distribution"),
        ({"law": "fixed", "mean": 2.5}, "whole number"),
        ({"public": None}, "score_noise must be given, or public"),
        ({"score_noise": 1.0}, "score_noise must be given, or public"),
        ({"score_noise": -1.0, "public": None}, "score_noise must be"),
        ({"default_share": 2.0}, "default_share must be"),
        ({"resume": True}, "folder must be given with resume=True"),
        ({"space": []}, "space must be a list of at least one setting"),
        ({"space": "0.1"}, "space must be a list of at least one setting"),
        ({"budget": 1.0}, "budget must be two numbers"),
        ({"budget": (1.0, 2.0)}, "budget's delta must be"),
        ({"plan": lambda noise: acc.Gaussian(noise)}, "plan must return a Plan"),
        (
            {
                "plan": lambda noise: training.make_plan(
                    1_000, delta=1e-5, steps=1, batch_size=1_000, sampling="full",
                    noise_multiplier=noise, extra_delta={"a promise": 1e-7},
                )
            },
            "plan must reserve delta for arithmetic alone, got a promise",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_named_before_anything_is_trained(options, message):
    trainer = Trainer()
    given = {
        "space": [0.1, 1.0], "train": trainer, "plan": make_plan, "budget": BUDGET,
        "score": trainer.score, "public": "paper",
    }  # fmt: skip
    with pytest.raises((TypeError, ValueError), match=message):
        training.search(**{**given, **options})
    assert trainer.calls == []


def test_a_score_that_is_no_number_is_the_lowest():
    """An error would tell of a run that lost."""
    scores = iter([math.nan, 3.0, math.inf, *[1.0] * 97])
    found = search(Trainer(scores=lambda result: next(scores)), law="fixed", mean=4.0)
    assert found.score == 503.0
    assert search(Trainer(scores=lambda result: math.nan), law="fixed", mean=2.0).score == -math.inf
