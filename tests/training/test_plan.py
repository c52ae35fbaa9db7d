"""The plan holds one mechanism, keeps its budget, and refuses what cannot be run or paid."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import sampling, training, transforms
from dpjax._numerics import keys
from dpjax._numerics.warning import DpjaxWarning

SETTINGS = {"delta": 1e-5, "steps": 20, "batch_size": 100}


def test_a_calibrated_plan_keeps_its_budget_and_certifies_it():
    plan = training.make_plan(400, epsilon=2.0, **SETTINGS)
    assert plan.rate == sampling.realised_rate(0.25)
    assert plan.expected_batch_size == 100.0
    assert plan.steps == 20
    declared = {"learning_rate": 0.5, "records": 9}
    certificate = plan.certify(not_covered=["something"], declared=declared)
    assert 1.99 < certificate.epsilon <= 2.0
    assert certificate.mechanism == plan.mechanism
    assert certificate.delta == 1e-5
    assert sum(certificate.extra_delta.values()) == pytest.approx(1e-8)
    assert certificate.not_covered == ("something",)
    assert certificate.declared["records"] == 400  # the plan's own are as they are
    assert certificate.declared["learning_rate"] == 0.5
    assert certificate.verify().epsilon == certificate.epsilon


def test_a_certificate_lists_a_key_given_by_hand_and_two_of_one_key_have_no_joint_price(
    tmp_path, monkeypatch
):
    """Two plans run with one key draw one noise; each with a key of its own compose."""
    x = jnp.ones((400, 2))

    def ran(key, seen=0):
        plan = training.make_plan(400, noise_multiplier=2.0, **SETTINGS | {"steps": 1})
        before = plan.certify()
        assert (before.not_covered, "noise" in before.declared) == ((), False)
        step = {"optimizer": optax.sgd(0.1), "key": key}
        training.fit(lambda w, e: jnp.sum(w * e), jnp.zeros(2), x, plan, **step)
        certificate = plan.certify(not_covered=["something"])
        assert sum("given by hand" in line for line in certificate.not_covered) == seen
        return certificate

    drawn, kept = ran(None), ran(transforms.fresh_key())
    seeded = [ran(jax.random.key(seed), 1) for seed in (1, 2, 1)]
    together = acc.certify([drawn, kept, *seeded[:2]], delta=1e-5)
    run = acc.Composed((drawn.mechanism,) * 4)
    reserved = 4 * sum(drawn.extra_delta.values())
    assert together.epsilon == pytest.approx(acc.epsilon(run, delta=1e-5 - reserved), rel=1e-12)
    assert sum("given by hand" in line for line in together.not_covered) == 1
    assert together.verify().epsilon == together.epsilon
    for same in (seeded, [kept, kept], [together, seeded[2]]):
        read = [acc.Certificate.from_json(one.to_json()) for one in same]
        with pytest.raises(ValueError, match="certificates of runs with a key each"):
            acc.certify(read, delta=1e-5)
    # A later session that is given no key goes on with the first one's, as another process would.
    for seen in (1, 0):
        first = jax.random.key(3) if seen else transforms.fresh_key()
        options: dict = {"optimizer": optax.sgd(0.1), "folder": tmp_path / f"{seen}"}
        for key in (first, None):
            plan = training.make_plan(400, noise_multiplier=2.0, **SETTINGS | {"steps": 1})
            options |= {"key": key, "resume": key is None}
            training.fit(lambda w, e: jnp.sum(w * e), jnp.zeros(2), x, plan, **options)
            assert sum("given by hand" in line for line in plan.certify().not_covered) == seen
            monkeypatch.setattr(keys, "_NAMED", {})
    other = acc.certify(acc.Gaussian(2.0), 1e-5, adjacency="replace-one")
    with pytest.raises(ValueError, match="certificates of one adjacency"):
        acc.certify([drawn, other], delta=1e-5)
    users = acc.certify(acc.Gaussian(2.0), 1e-5, declared={"unit": "user"})
    with pytest.raises(ValueError, match="certificates of one unit"):
        acc.certify([drawn, users], delta=1e-5)
    for none in ([], [acc.Gaussian(2.0)], 3):
        with pytest.raises(TypeError, match="run must be a mechanism or a list of certificates"):
            acc.certify(none, delta=1e-5)


def test_noise_that_float32_takes_for_none_is_refused():
    """Below the least normal number a processor may write 0: no noise, and a finite epsilon."""
    tiny = float(np.finfo(np.float32).tiny)
    for clip_norm, multiplier in ((1e-18, 1e-30), (1.0, 0.99 * tiny), (1e-18, 1e-300)):
        with pytest.raises(ValueError, match="clip_norm times the noise multiplier must be 0, or"):
            training.Plan(acc.Repeated(acc.Gaussian(multiplier), 2), clip_norm, 50, 1e-5)
    for clip_norm, multiplier in ((1e-18, 0.0), (1e-18, 1e-19), (1.0, 1.01 * tiny)):
        training.Plan(acc.Repeated(acc.Gaussian(multiplier), 2), clip_norm, 50, 1e-5)


def test_full_batches_are_not_called_sampled():
    plan = training.make_plan(50, noise_multiplier=3.0, delta=1e-5, steps=4, batch_size=50)
    assert plan.mechanism == acc.Repeated(acc.Gaussian(3.0), 4)
    assert plan.rate == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must .* got 0.0"),
        ({"epsilon": float("nan")}, "epsilon must .* got nan"),
        ({"delta": 1.0}, "delta must .* got 1.0"),
        ({"delta": 0.0}, "delta must .* got 0.0"),
        ({"steps": 0}, "steps must .* got 0"),
        ({"steps": 1.5}, "steps must be a whole number, got 1.5"),
        ({"batch_size": 99.5}, "batch_size must be a whole number, got 99.5"),
        ({"batch_size": lambda step: 1.5}, "batch_size must be a whole number, got 1.5"),
        (
            {"sampling": "truncated-poisson", "capacity": 120.5},
            "capacity must be a whole number, got 120.5",
        ),
        ({"batch_size": 401}, "batch_size must be between 1 and 400, all the records, got 401"),
        ({"batch_size": 0}, "batch_size must .* got 0"),
        ({"clip_norm": 0.0}, "clip_norm must .* got 0.0"),
        ({"clip_norm": -1.0}, "clip_norm must .* got -1.0"),
        ({"clip_norm": 1e39}, r"clip_norm must .* got 1e\+39"),
        ({"clip_norm": 1e-39}, "clip_norm must .* got 1e-39"),
        (
            {"clip_norm": 1e15, "noise_multiplier": 1e25, "epsilon": None},
            r"clip_norm times .* got 1e\+40",
        ),
        ({"noise_multiplier": 1.0}, "either epsilon, a budget, or noise_multiplier"),
        ({"extra_delta": {"an accident": 1.0}}, "reserved for .*an accident"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        training.make_plan(400, **({"epsilon": 1.0, **SETTINGS} | changes))


@pytest.mark.parametrize("value", [True, [1.0], np.ones(3)], ids=str)
@pytest.mark.parametrize(
    "name", ["delta", "batch_size", "steps", "epochs", "epsilon", "noise_multiplier", "population"]
)
def test_every_number_of_a_plan_is_one_number(name, value):
    settings = {"delta": 1e-3, "batch_size": 5, "steps": 2, "noise_multiplier": 1.0}
    if name in ("epochs", "epsilon"):
        settings.pop("steps" if name == "epochs" else "noise_multiplier")
    settings = {"population": 20} | settings | {name: value}
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be .*number"):
        training.make_plan(settings.pop("population"), **settings)


@pytest.mark.parametrize("name", ["population", "delta", "batch_size"])
def test_what_a_plan_cannot_do_without_is_named(name):
    settings = {"population": 20, "delta": 1e-3, "batch_size": 5, name: None}
    with pytest.raises(TypeError, match=f"^{name} must be a number"):
        training.make_plan(settings.pop("population"), **settings, steps=2, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="population must be at least 1, got inf"):
        training.make_plan(np.inf, delta=1e-3, batch_size=5, steps=2, noise_multiplier=1.0)


def test_a_mechanism_that_training_cannot_run_is_refused():
    def plan(step, **changes):
        settings = {"clip_norm": 1.0, "population": 100, "delta": 1e-5} | changes
        return training.Plan(acc.Repeated(step, 3), **settings)

    with pytest.raises(ValueError, match="sampler realises exactly"):
        plan(acc.PoissonSampled(acc.Gaussian(1.0), 0.1))
    with pytest.raises(ValueError, match="sample from 100 records, got 50"):
        plan(acc.FixedBatchSampled(acc.Gaussian(1.0), 10, 50))
    with pytest.raises(ValueError, match="the step must be"):
        plan(acc.UniformBall(0.1, 3))


def test_schedules_and_epochs_become_the_composition_that_is_priced():
    settings = {"delta": 1e-5, "noise_multiplier": 2.0}
    plan = training.make_plan(
        400,
        steps=10,
        batch_size=lambda step: 50 if step < 4 else 100,
        noise_schedule=lambda step: 1.0 if step < 6 else 0.5,
        **settings,
    )
    found = [(p.steps, p.step.rate, p.step.mechanism.noise_multiplier) for p in plan.phases]
    assert found == [(4, 0.125, 2.0), (2, 0.25, 2.0), (4, 0.25, 1.0)]
    assert plan.steps == 10
    expected = acc.epsilon(plan.mechanism, 1e-5 * (1 - 1e-3))
    assert plan.epsilon() == expected == plan.spent(10) == plan.certify().epsilon
    assert plan.certify().verify().epsilon == expected
    prefix = acc.Repeated(acc.PoissonSampled(acc.Gaussian(2.0), 0.125), 3)
    assert plan.spent(3) == acc.epsilon(prefix, 1e-5 * (1 - 1e-3))
    rows = [plan.spent(step) for step in range(11)]
    assert rows == sorted(rows)
    np.testing.assert_allclose(plan.epsilon([3, 10]), [rows[3], rows[10]], rtol=1e-6)
    with pytest.raises(ValueError, match="one kind of step, got 3"):
        _ = plan.noise_multiplier
    assert training.make_plan(400, epochs=3, batch_size=100, **settings).steps == 12
    budget = training.make_plan(
        400, epsilon=1.0, delta=1e-5, steps=6, batch_size=100, noise_schedule=lambda s: 1 + s % 2
    )
    assert 0.99 < budget.epsilon() <= 1.0
    relation = acc.Adjacency.REPLACE_ONE
    fixed = training.make_plan(
        400, steps=3, batch_size=100, sampling="fixed", adjacency=relation, **settings
    )
    assert fixed.step == acc.FixedBatchSampled(acc.Gaussian(2.0), 100, 400)
    full = training.make_plan(400, steps=3, batch_size=400, sampling="full", **settings)
    assert full.step == acc.Gaussian(2.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 2}, "either steps or epochs"),
        ({"steps": None}, "either steps or epochs"),
        ({"steps": None, "epochs": 0.0}, "epochs must .* got 0.0"),
        (
            {"sampling": "shuffled"},
            "sampling must be poisson, truncated-poisson, .* or balls-in-bins, got 'shu",
        ),
        (
            {"sampling": "random-allocation", "steps": 21},
            "steps must be a multiple of the 4 of an epoch for random allocation, got 21",
        ),
        (
            {"sampling": "random-allocation", "batch_size": lambda step: 100},
            "batch_size must be one number for random allocation",
        ),
        (
            {"sampling": "random-allocation", "noise_schedule": lambda step: 1.0 + (step > 5)},
            "noise_schedule must be constant within the 4 steps of an epoch",
        ),
        ({"sampling": "truncated-poisson"}, "capacity must be between 1 and 400, .* got None"),
        (
            {"sampling": "truncated-poisson", "capacity": 401},
            "capacity must be between 1 and 400, .* got 401",
        ),
        ({"capacity": 120}, "capacity must be left out unless .* got 120"),
        ({"sampling": "full"}, "batch_size must be 400 for full batches, got 100"),
        ({"batch_size": lambda step: step}, "batch_size must be between 1 and 400, .* got 0"),
        ({"noise_schedule": lambda step: -1.0}, "noise_schedule must .* got -1.0"),
    ],
)
def test_schedules_that_make_no_sense_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        training.make_plan(400, **({"epsilon": 1.0, **SETTINGS} | changes))


def test_random_allocation_runs_whole_epochs_and_pays_each_as_it_begins():
    plan = training.make_plan(
        400, noise_multiplier=2.0, delta=1e-5, epochs=3, batch_size=90, sampling="random-allocation"
    )
    step = acc.RandomAllocation(acc.Gaussian(2.0), 5)
    assert plan.mechanism == acc.Repeated(step, 3)
    assert (plan.steps, plan.expected_batch_size, plan.noise_multiplier) == (15, 80.0, 2.0)
    once, twice = (acc.epsilon(acc.Repeated(step, e), 1e-5 * (1 - 1e-3)) for e in (1, 2))
    assert [plan.spent(s) for s in (0, 1, 5, 6, 10)] == [0.0, once, once, twice, twice]
    np.testing.assert_allclose(plan.epsilon([1, 5, 6]), [once, once, twice], rtol=1e-9)
    assert plan.certify().epsilon == plan.epsilon() > twice
    warm = training.make_plan(
        400,
        noise_multiplier=2.0,
        delta=1e-5,
        steps=12,
        batch_size=100,
        sampling="random-allocation",
        noise_schedule=lambda s: 1.0 + (s >= 4),
    )
    assert [(p.steps, p.step.mechanism.noise_multiplier) for p in warm.phases] == [
        (4, 2.0),
        (8, 4.0),
    ]


def test_a_shuffled_pass_is_not_sold_as_random_allocation():
    """Neither by a plan, nor as the same price."""
    shuffled = acc.Shuffled(acc.Gaussian(2.0), 5)
    with pytest.raises(ValueError, match=r"the step must be .*, got Shuffled"):
        training.Plan(acc.Repeated(shuffled, 3), 1.0, 400, 1e-5)
    with pytest.raises(ValueError, match=r"sampling must be .* got 'shuffled'"):
        training.make_plan(400, epsilon=1.0, **SETTINGS, sampling="shuffled")
    allocated = acc.RandomAllocation(acc.Gaussian(2.0), 5)
    assert acc.epsilon(allocated, 1e-5) < 0.75 * acc.epsilon(shuffled, 1e-5)


def test_a_cut_batch_is_planned_at_its_own_price():
    settings = {"noise_multiplier": 2.0, **SETTINGS}
    plan = training.make_plan(400, sampling="truncated-poisson", capacity=120, **settings)
    step = acc.TruncatedPoissonSampled(acc.Gaussian(2.0), 0.25, 400, 120)
    assert plan.step == step
    assert plan.expected_batch_size == 100.0
    assert plan.epsilon() > training.make_plan(400, **settings).epsilon()
    with pytest.raises(ValueError, match="sample from 300 records, got 400"):
        training.Plan(step, 1.0, 300, 1e-5)


RUN = acc.Repeated(acc.PoissonSampled(acc.Gaussian(2.0), 0.25), 10)
FIELDS = {
    "mechanism": (RUN, acc.Mechanism, []),
    "clip_norm": (2.0, float, [np.float32(2), np.array(2.0), jnp.array(2), 2]),
    "population": (400, int, [np.int64(400), np.array(400), jnp.array(400), 400.0]),
    "delta": (0.125, float, [np.float32(0.125), np.array(0.125), jnp.array(0.125)]),
    "adjacency": (
        acc.Adjacency.REPLACE_ONE,
        acc.Adjacency,
        ["replace-one", "Replace One", "replace_one", np.str_("replace-one")],
    ),
    "extra_delta": ({"x": 0.25}, dict, [{"x": np.float32(0.25)}, {"x": jnp.array(0.25)}]),
    "correlation": (None, type(None), []),
    "unit": ("user", str, [np.str_("user")]),
    "adaptive": (None, type(None), []),
}
NO_FIELD = [
    "x",
    True,
    3 + 1j,
    np.array([1.0, 2.0]),
    float("nan"),
    -1,
    {"x": -0.1},
    {"x": 0.9},
    object(),
]


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_converted_or_refused_where_it_is_given(name):
    """A text for `adjacency` was certified, and `fit(folder=...)` then died of it."""
    settings = {"clip_norm": 1.0, "population": 400, "delta": 0.5}
    value, kind, spellings = FIELDS[name]
    for spelling in [value, *spellings]:
        plan = training.Plan(**{"mechanism": RUN} | settings | {name: spelling})
        found = getattr(plan, name)
        assert isinstance(found, kind)
        assert found == value
        assert type(found) in (kind, type(value))
        if name == "extra_delta":
            assert type(found["x"]) is float
    for wrong in NO_FIELD:
        with pytest.raises((TypeError, ValueError), match=rf"^{name}.* must |^delta must exceed"):
            training.Plan(**{"mechanism": RUN} | settings | {name: wrong})


@pytest.mark.parametrize(
    ("given", "said"),
    [({"delta": 0.01}, "delta must be below 1 / 1500"), ({"epsilon": 11.0}, "11")],
)
def test_a_budget_that_permits_too_much_is_warned_about(given, said):
    settings = {"epsilon": 1.0, "delta": 1e-5, "steps": 10, "batch_size": 100} | given
    with pytest.warns(UserWarning, match=said):
        training.make_plan(1_500, **settings)


@pytest.mark.at_length
def test_a_certificate_of_given_noise_warns_of_a_large_epsilon():
    """ε of 172 was certified with nothing said, as no budget was named."""
    plan = training.make_plan(1500, noise_multiplier=0.1, delta=1e-5, steps=3, batch_size=100)
    with pytest.warns(UserWarning, match=r"epsilon should be at most 10, got 172\.") as found:
        assert plan.certify().epsilon > 172
    (ours,) = [one.filename for one in found if issubclass(one.category, DpjaxWarning)]
    assert ours == __file__
    with pytest.warns(UserWarning, match="epsilon should be at most 10, got 20:"):
        plan = training.make_plan(1500, epsilon=20.0, delta=1e-5, steps=3, batch_size=100)
    plan.certify()  # said once


def test_a_schedule_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match=r"noise_schedule must be a function, got 2\.0"):
        training.make_plan(400, epsilon=1.0, **SETTINGS, noise_schedule=2.0)


def test_whole_numbers_may_be_floats():
    with pytest.raises(ValueError, match=r"population must be a whole number, got 400.5"):
        training.make_plan(400.5, noise_multiplier=1.0, delta=1e-5, steps=3, batch_size=100)
    plan = training.make_plan(4e2, noise_multiplier=1.0, delta=1e-5, steps=3.0, batch_size=1e2)
    assert plan == training.make_plan(
        400, noise_multiplier=1.0, delta=1e-5, steps=3, batch_size=100
    )


def test_what_was_released_before_the_first_step_is_paid_by_the_same_budget():
    before = acc.Repeated(acc.Gaussian(8.0), 4)  # one Gaussian of 4
    usual = {"delta": 1e-5, "steps": 20, "batch_size": 40}
    given = training.make_plan(400, noise_multiplier=3.0, **usual)
    plan = training.make_plan(400, noise_multiplier=3.0, preceding=before, **usual)
    left = plan.delta - sum(plan.extra_delta.values())
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(3.0), 0.1), 20)
    whole = acc.epsilon(acc.Composed((acc.Gaussian(4.0), run)), left)
    assert plan.epsilon() == pytest.approx(whole, rel=1e-6)
    assert plan.spent(20) == plan.epsilon() > given.epsilon()
    assert plan.spent(0) == acc.epsilon(before, left)
    assert plan.phases == given.phases  # `fit` runs the steps alone
    certificate = plan.certify()
    assert certificate.mechanism == acc.Composed((before, plan.mechanism))
    assert certificate.epsilon == plan.epsilon()
    assert certificate.declared["training_steps"] == 20
    assert certificate.verify().epsilon == certificate.epsilon
    early = plan.certify(steps=5)
    assert early.epsilon == plan.spent(5) < certificate.epsilon
    kept = training.make_plan(400, epsilon=whole, preceding=before, **usual)
    assert kept.epsilon() <= whole
    assert kept.noise_multiplier == pytest.approx(3.0, rel=1e-4)
    with pytest.raises(TypeError, match="preceding must be a mechanism or None, got"):
        training.make_plan(400, noise_multiplier=3.0, preceding=4.0, **usual)
    with pytest.raises(acc.ImpossibleBudget):
        training.make_plan(400, epsilon=0.1, preceding=before, **usual)
    of_persons = training.make_plan(
        400, noise_multiplier=3.0, preceding=before, unit="person", **usual
    ).certify()
    assert of_persons.epsilon == certificate.epsilon
    assert of_persons.declared["unit"] == "person"
    assert any("at most one record of each person" in one for one in of_persons.assumptions)
    assert not any("at most one record of each" in one for one in certificate.assumptions)
