"""Averages of the iterates, runs that stop early, and what the steps taken cost."""

from __future__ import annotations

import math
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from dpjax import accounting as acc
from dpjax import training
from dpjax._numerics import keys

N, STEPS = 30, 9
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
PLAN = training.Plan(
    acc.Repeated(acc.PoissonSampled(acc.Gaussian(0.8), 0.5), STEPS), 0.7, N, delta=1e-5
)
AVERAGES = {"exponential": training.exponential_average(0.8), "tail": training.tail_average(4)}


class Killed(Exception):
    pass


@pytest.fixture
def flat_price(monkeypatch):
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(()))


def loss(w, x):
    return jnp.sum((w - x) ** 2)


def run(plan=PLAN, dtype=jnp.float32, **options):
    settings = {"optimizer": optax.sgd(0.3), "key": jax.random.key(2), "log_every": 1, **options}
    return training.fit(loss, jnp.full(4, 0.5, dtype), X, plan, **settings)


def iterates(dtype=jnp.float32):
    seen = []
    run(dtype=dtype, evaluate=lambda w: seen.append(np.asarray(w, np.float64)) or {})
    return seen[1:]  # the first is the start


def by_hand(kind, values):
    """The defining sums, in float64."""
    if kind == "exponential":
        weights = 0.8 ** np.arange(len(values))[::-1]
        return (weights[:, None] * values).sum(0) / weights.sum()
    return np.mean(values[4:] or values[-1:], axis=0)


# ------------------------------------------------------------------------------ averages


@pytest.mark.parametrize("kind", AVERAGES)
def test_an_average_is_that_of_the_iterates(kind, flat_price):
    found = run(average=AVERAGES[kind])
    np.testing.assert_allclose(found.average, by_hand(kind, iterates()), rtol=2e-6)
    plain = run()
    np.testing.assert_array_equal(found.params, plain.params)  # it changes nothing
    assert plain.average is None


def test_weights_are_right_for_long_memories():
    decay, steps = 1 - 1e-6, np.array([1, 2, 1000, 10**6, 10**7])
    exact = -np.expm1(np.log(decay)) / -np.expm1(steps * np.log(decay))
    weights = [float(training.exponential_average(decay)(int(t))) for t in steps]
    np.testing.assert_allclose(weights, exact, rtol=3e-7)
    assert float(training.exponential_average(0.0)(5)) == 1.0


def test_an_average_of_bfloat16_is_kept_in_float32(flat_price, lenient_promotion):
    found = run(dtype=jnp.bfloat16, average=AVERAGES["tail"])
    assert found.average.dtype == jnp.float32
    assert found.params.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.average, by_hand("tail", iterates(jnp.bfloat16)), rtol=1e-5)


def test_an_average_is_part_of_a_checkpoint(flat_price, tmp_path):
    def stop(row):
        if row["step"] == 6:
            raise Killed

    options = {"average": AVERAGES["exponential"], "checkpoint_every": 2}
    whole = run(**options)
    with pytest.raises(Killed):
        run(folder=tmp_path, on_log=stop, **options)
    rest = run(folder=tmp_path, resume=True, **options)
    np.testing.assert_array_equal(rest.average, whole.average)
    for other in (training.exponential_average(0.7), None):
        with pytest.raises(training.CheckpointError, match="its average differs"):
            run(folder=tmp_path, resume=True, **(options | {"average": other}))


@pytest.mark.parametrize("bad", [-0.1, 1.0, float("nan")])
def test_bad_averages_are_refused(bad):
    with pytest.raises(ValueError, match=r"decay must be in \[0, 1\), got"):
        training.exponential_average(bad)
    with pytest.raises(ValueError, match="begin must be a whole number >= 0, got -1"):
        training.tail_average(-1)


def test_an_average_lies_as_the_parameters_on_a_mesh(flat_price):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    found = run(mesh=mesh, average=AVERAGES["tail"], stop_when=lambda row: row["step"] == 7)
    np.testing.assert_allclose(found.average, by_hand("tail", iterates()[:7]), rtol=2e-5)
    assert found.average.sharding == found.params.sharding
    assert found.steps == 7


# ------------------------------------------------------------------------------ stopping


def test_a_run_stops_where_it_is_told_and_resumes_to_the_same_place(flat_price, tmp_path):
    seen = []

    def stop_when(row):
        seen.append(dict(row))
        return row["step"] >= 4

    options = {"log_every": 2, "evaluate": lambda w: {"norm": float(jnp.linalg.norm(w))}}
    options |= {"log_private_losses": True, "stop_when": stop_when}
    found = run(folder=tmp_path, **options)
    assert found.steps == found.metrics["step"][-1] == 4
    assert found.looks == 5  # steps 2, 4, 6, 8, 9
    assert [row["step"] for row in seen] == [2, 4]
    assert all(set(row) == {"step", "epsilon", "norm"} for row in seen)  # nothing private
    again = run(folder=tmp_path, resume=True, **options)
    np.testing.assert_array_equal(again.params, found.params)
    assert again.steps == 4
    # The steps taken are those of the whole run.
    values = []
    run(evaluate=lambda w: values.append(np.asarray(w)) or {})
    np.testing.assert_array_equal(found.params, values[4])
    # Told otherwise, it goes on; that it might have stopped still counts.
    rest = run(folder=tmp_path, resume=True, **(options | {"stop_when": None}))
    np.testing.assert_array_equal(rest.params, values[-1])
    assert (rest.steps, rest.looks) == (STEPS, 5)


def test_moments_of_an_earlier_session_count(flat_price, tmp_path):
    """A run that could have stopped, was killed, and goes on without: its moment was chosen too."""

    def killed(row):
        if row["step"] == 3:
            raise Killed

    options = {"folder": tmp_path, "checkpoint_every": 1}
    with pytest.raises(Killed):
        run(stop_when=lambda row: False, on_log=killed, **options)
    rest = run(resume=True, time_limit=1e-9, **options)
    assert rest.steps == 4
    assert rest.looks == STEPS
    assert run(time_limit=1e-9).looks == 1


def test_a_limit_in_time_stops_at_a_step_and_the_run_goes_on(flat_price, tmp_path):
    options = {"folder": tmp_path, "log_every": STEPS}
    parts = [run(time_limit=1e-9, **options)]
    while parts[-1].steps < STEPS:
        parts.append(run(time_limit=1e-9, resume=True, **options))
    assert [part.steps for part in parts] == list(range(1, STEPS + 1))
    assert all(part.metrics["step"].tolist() == [0] for part in parts[:-1])
    np.testing.assert_array_equal(parts[-1].params, run(log_every=STEPS).params)
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="time_limit must be a number > 0, got"):
            run(time_limit=bad)


@pytest.mark.filterwarnings("ignore:epsilon should be at most 10")
def test_the_steps_taken_are_certified():
    step = acc.PoissonSampled(acc.Gaussian(0.8), 0.5)
    one = PLAN.certify(steps=4)
    assert one.epsilon == acc.epsilon(acc.Repeated(step, 4), PLAN.delta) == PLAN.spent(4)
    chosen = PLAN.certify(steps=4, looks=5)
    left = PLAN.delta - sum(chosen.extra_delta.values())
    assert PLAN.delta / 5 * (1 - 1e-12) < left <= PLAN.delta / 5
    assert chosen.epsilon == acc.epsilon(acc.Repeated(step, 4), left) > one.epsilon
    assert chosen.delta == PLAN.delta
    again = acc.Certificate.from_json(chosen.to_json())
    assert again.verify().epsilon <= chosen.epsilon * (1 + 1e-9)
    # An epoch that was begun is paid whole; phases that were not begun are not paid.
    epoch = acc.RandomAllocation(acc.Gaussian(2.0), 4)
    phases = acc.Composed((acc.Repeated(epoch, 3), acc.Gaussian(0.1)))
    plan = training.Plan(phases, 1.0, N, 1e-5)
    assert plan.certify(steps=5).epsilon == acc.epsilon(acc.Repeated(epoch, 2), 1e-5)
    for bad in (0, STEPS + 1, 1.5):
        with pytest.raises(ValueError, match=r"steps must be a whole number in \[1, 9\], got"):
            PLAN.certify(steps=bad)
    # NaN is not below 1, and would have been certified as no look at all.
    for bad in (0, 1.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="looks must be a whole number >= 1, got"):
            PLAN.certify(looks=bad)
    with pytest.raises(TypeError, match="looks must be a number"):
        PLAN.certify(looks=True)


def test_a_stopped_run_is_not_composed_as_if_its_length_had_been_fixed():
    """ε of k steps at δ/40 holds for one moment of 40: a composition at all of δ would be .764."""
    plan = training.make_plan(1_000, noise_multiplier=5.0, delta=1e-6, steps=200, batch_size=100)
    stopped, whole = plan.certify(steps=100, looks=40), plan.certify()
    with pytest.raises(ValueError, match=r"certificates of whole runs.*plan\.certify\(\)"):
        acc.certify([whole, stopped], delta=1e-5)
    known = plan.certify(steps=100)
    assert acc.certify([known], delta=1e-5).epsilon < stopped.epsilon
    ledger = acc.Ledger(10.0, 1e-4)
    assert ledger.book(known).planned() < math.inf
    assert ledger.book(stopped).planned() == math.inf
    # Chosen on the way, the steps taken are what a filter pays.
    assert ledger.book(known).spent() == ledger.book(stopped).spent() < math.inf


def test_a_moment_chosen_by_what_is_released_costs_more_than_its_steps():
    """Two Gaussian steps, stopped after the first if it is large: δ by quadrature on a grid.

    Σₖ ∫ (p − e^εₖ q)₊ over the transcripts that end at k, with εₖ of k steps: at the plan's δ it
    exceeds δ for some threshold, at δ / 2 for none.
    """
    delta, sigma = 0.02, 1.0
    plan = training.Plan(acc.Repeated(acc.Gaussian(sigma), 2), 1.0, 10, delta)
    x = np.linspace(-8, 9, 1701)
    p, q = stats.norm.pdf(x, 1, sigma), stats.norm.pdf(x, 0, sigma)
    both = np.outer(p, p), np.outer(q, q)
    width = x[1] - x[0]

    def worst(looks):
        one, two = (np.exp(plan.certify(steps=k, looks=looks).epsilon) for k in (1, 2))
        early = np.maximum(p - one * q, 0.0) * width
        late = np.maximum(both[0] - two * both[1], 0.0).sum(1) * width**2
        # Stop after the first step above a threshold.
        return max(early[cut:].sum() + late[:cut].sum() for cut in range(0, len(x), 5))

    assert worst(looks=1) > 1.05 * delta
    assert worst(looks=2) <= delta
    # Whatever rule stops: at each first number, the dearer of the two moments.
    one, two = (np.exp(plan.certify(steps=k, looks=2).epsilon) for k in (1, 2))
    early = np.maximum(p - one * q, 0.0) * width
    late = np.maximum(both[0] - two * both[1], 0.0).sum(1) * width**2
    assert np.maximum(early, late).sum() <= delta


def test_time_and_moments_are_for_every_source(flat_price):
    """Records on the host: the thread that loads ends with the run."""
    found = run(stop_when=lambda row: row["step"] == 3)
    host = training.fit(
        loss, jnp.full(4, 0.5), training.HostData(X), PLAN, optimizer=optax.sgd(0.3),
        key=jax.random.key(2), log_every=1, stop_when=lambda row: row["step"] == 3,
    )  # fmt: skip
    np.testing.assert_allclose(host.params, found.params, rtol=1e-5)
    assert host.steps == 3
    assert not any(thread.name.startswith("records") for thread in threading.enumerate())


# ------------------------------------------------------------------------------ ledgers


def open_ledger(tmp_path, epsilon=60.0, **head):
    file = acc.LedgerFile(tmp_path / "ledger.json")
    file.create(acc.Ledger(epsilon, 1e-4, **head))
    return file


def test_a_run_is_booked_whole_before_its_first_step_and_once(tmp_path):
    ledger = open_ledger(tmp_path)
    folder = tmp_path / "run"

    def kill(row):
        assert [entry.mechanism for entry in ledger.read().entries] == [PLAN.mechanism]
        raise Killed

    with pytest.raises(Killed):
        run(ledger=ledger.path, folder=folder, on_log=kill)
    run(ledger=ledger, folder=folder, resume=True)
    assert len(ledger.read().entries) == 1
    # Another run with the same key draws the same noise; one with a key of its own is booked.
    with pytest.raises(ValueError, match="two runs of one key have no price together"):
        run(ledger=ledger)
    run(ledger=ledger, key=None)
    assert len(ledger.read().entries) == 2


def test_a_resumed_run_is_booked_once_in_every_ledger(tmp_path, monkeypatch):
    ledger, folder = open_ledger(tmp_path), tmp_path / "run"

    def kill(row):
        raise Killed

    with pytest.raises(Killed):
        run(ledger=ledger, folder=folder, on_log=kill)
    entries = ledger.read().entries
    monkeypatch.setattr(keys, "_NAMED", {})  # another process, where the key has another name
    with pytest.raises(Killed):
        run(ledger=ledger, folder=folder, on_log=kill, resume=True)
    assert ledger.read().entries == entries
    # A ledger that was made anew has no such run, whatever the folder says.
    for _ in range(2):
        ledger.path.unlink()
        ledger = open_ledger(tmp_path)
        run(ledger=ledger, folder=folder, resume=True)
        run(ledger=ledger, folder=folder, resume=True)
        assert [entry.mechanism for entry in ledger.read().entries] == [PLAN.mechanism]
    # Another run of the same plan, whose key is booked for this one, is not taken for it.
    with pytest.raises(ValueError, match="two runs of one key have no price together"):
        run(ledger=ledger, folder=tmp_path / "other", resume=True)
    ledger.path.unlink()
    small = open_ledger(tmp_path, epsilon=1.0)
    with pytest.raises(acc.BudgetExceeded):
        run(ledger=small, folder=folder, resume=True)


def test_a_run_that_a_ledger_cannot_pay_for_does_not_start(tmp_path):
    def never(*_):
        raise AssertionError("a step was taken, or a row evaluated")

    for head, error, message in (
        ({"epsilon": 1.0}, acc.BudgetExceeded, "must keep the budget"),
        ({"adjacency": "replace-one"}, ValueError, "of the ledger's adjacency"),
        ({"unit": "user"}, ValueError, "of the ledger's unit"),
        ({"plan": (acc.Gaussian(9.0),)}, acc.BudgetExceeded, "of the ledger's plan"),
    ):
        (tmp_path / "ledger.json").unlink(missing_ok=True)
        ledger = open_ledger(tmp_path, **head)
        with pytest.raises(error, match=message):
            run(ledger=ledger, evaluate=never, folder=tmp_path / "run")
        assert not (tmp_path / "run").exists()
        assert ledger.read().entries == ()
    with pytest.raises(FileNotFoundError):
        run(ledger=tmp_path / "none.json")
