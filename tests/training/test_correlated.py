"""Training under correlated noise: what runs is what is priced, and it resumes to the last bit."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import training
from dpjax.correlation import (
    Banded,
    BandedInverse,
    BufferedToeplitz,
    Toeplitz,
    Tree,
    inverse_square_root,
    square_root,
)
from dpjax.training.draws import SamplerShape

N = 60
KINDS = [
    "cyclic",
    "cyclic-poisson",
    "cyclic, banded inverse",
    "cyclic, tree",
    "cyclic, buffered",
    "min-separated",
    "cyclic, columns",
    "cyclic, full columns",
]
DRAWN = ["balls-in-bins", "random-allocation", "balls-in-bins, banded inverse"]
COLUMNS = Banded(
    tuple((1.0 + t / 8, -0.5 * (t < 9), 0.25 * (t < 8)) for t in range(10))  # each of its own
)
# A full matrix, in which a record's columns overlap.
FULL = Banded(tuple((1 + t / 50, *0.6 * 0.8 ** np.arange(9 - t), *[0.0] * t) for t in range(10)))
BUFFERED = BufferedToeplitz((0.9, 0.3), (0.25, 0.25))


def strategy_of(kind):
    if "tree" in kind:
        return Tree()
    if "full" in kind:
        return FULL
    if "columns" in kind:
        return COLUMNS
    if "buffered" in kind:
        return BUFFERED
    return inverse_square_root(3) if "inverse" in kind else square_root(3)


def plan_of(kind, **options):
    given = {"delta": 1e-5, "batch_size": 15, "steps": 10, "noise_multiplier": 2.0} | options
    given = {"correlation": strategy_of(kind)} | given
    given |= {"batch_size": 17} if kind == "min-separated" else {}  # a third at most
    return training.make_plan(N, sampling=kind.split(",")[0], **given)


def bins_of(plan):
    """The bin of every record in every epoch, off the draws of a plan's steps."""
    scheme = plan.phases[0].scheme
    shape = SamplerShape(N, N, plan.phases, N, flags=True)
    drawn = [scheme.draw(shape, jax.random.key(3), t, None)[0] for t in range(plan.steps)]
    drawn = np.stack(drawn).reshape(-1, scheme.bins, N)
    assert np.all(drawn.sum(1) == 1)  # one step of every epoch
    return drawn.argmax(1)


def loss(w, x):
    return w @ x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.at_length(every=3)
def test_the_run_is_the_plans_sums_plus_the_strategys_noise(kind):
    """Contributions of known size and a linear loss: the parameters give every step away."""
    plan, key = plan_of(kind), jax.random.key(0)
    data = jnp.eye(N)  # record i has gradient e_i
    step = training.training_step(loss, jnp.zeros(N), plan, optimizer=optax.sgd(1.0))
    state, sums, before = step.init(jnp.zeros(N)), [], np.zeros(N)
    update = jax.jit(step.update)
    for _ in range(plan.steps):
        state, seen = update(state, data, key)
        after = np.asarray(state["params"], np.float64)
        sums.append(((before - after) * plan.expected_batch_size, int(seen[1])))
        before = after
    fresh = training.training_step(
        lambda w, x: 0.0 * jnp.sum(w), jnp.zeros(N), plan, optimizer=optax.sgd(1.0)
    )
    still, noise, before = fresh.init(jnp.zeros(N)), [], np.zeros(N)
    only_noise = jax.jit(fresh.update)
    for _ in range(plan.steps):
        still, _ = only_noise(still, data, key)
        after = np.asarray(still["params"], np.float64)
        noise.append((before - after) * plan.expected_batch_size)
        before = after
    groups = 3 if kind == "cyclic-poisson" else 4
    counts, last = np.zeros(N), np.full(N, -3)
    for t, ((noisy, size), z) in enumerate(zip(sums, noise, strict=True)):
        records = np.rint(noisy - z)
        np.testing.assert_allclose(noisy - z, records, atol=1e-3)
        assert set(np.unique(records)) <= {0.0, 1.0}
        if kind == "min-separated":
            assert np.all(t - last[records == 1] >= 3)
            last[records == 1] = t
        else:
            assert np.all(np.flatnonzero(records) % groups == t % groups)
        assert records.sum() == size
        counts += records
        if kind.startswith("cyclic,"):
            assert size == 15
    if kind == "min-separated":
        assert 130 < counts.sum() < 210  # 170 of as many as 200
    elif kind != "cyclic-poisson":
        assert counts.tolist() == [3.0 if i % 4 < 2 else 2.0 for i in range(N)]
    # Of a tree: the noise of its blocks, a row each.
    white = strategy_of(kind).matrix(plan.steps) @ np.array(noise) / 2.0
    assert 0.85 < white.std() < 1.15  # of 600 numbers
    assert abs(np.corrcoef(white[:-1].ravel(), white[1:].ravel())[0, 1]) < 0.2
    sign = -1 if kind == "cyclic, columns" else 1  # whose numbers beside the diagonal are negative
    beside = np.corrcoef(np.array(noise)[:-1].ravel(), np.array(noise)[1:].ravel())[0, 1]
    assert sign * beside < -0.2


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_run_is_what_is_priced(kind):
    plan = plan_of(kind, epsilon=2.0, noise_multiplier=None)
    assert 2.0 * (1 - 1e-6) <= plan.epsilon() <= 2.0
    assert plan.steps == (12 if kind == "cyclic-poisson" else 10)  # whole rounds of three groups
    size = 17.0 if kind == "min-separated" else 15.0
    assert plan.expected_batch_size == pytest.approx(size, rel=1e-6)
    assert plan.strategy == strategy_of(kind)
    some = [0, 1, 3, 4, plan.steps]
    spent = [plan.spent(t) for t in some]
    assert spent[0] == 0.0
    assert spent == sorted(spent)
    np.testing.assert_allclose(plan.epsilon(some), spent, rtol=1e-9)
    certificate = plan.certify()
    again = acc.Certificate.from_json(certificate.to_json())
    assert again.verify().epsilon <= plan.epsilon() * (1 + 1e-9)
    assert certificate.epsilon == plan.epsilon()


class _Killed(Exception):
    pass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.at_length(every=4)
def test_a_killed_run_resumes_to_the_last_bit(kind, tmp_path):
    plan, data = plan_of(kind), jax.random.normal(jax.random.key(1), (N, 5))
    options = {"optimizer": optax.sgd(0.1, momentum=0.9), "log_every": 1, "checkpoint_every": 2}
    whole = training.fit(loss, jnp.zeros(5), data, plan, key=jax.random.key(2), **options)

    def stop(row):
        if row["step"] == 5:
            raise _Killed

    with pytest.raises(_Killed):
        training.fit(
            loss, jnp.zeros(5), data, plan, key=jax.random.key(2), folder=tmp_path, on_log=stop,
            **options,
        )  # fmt: skip
    rest = training.fit(loss, jnp.zeros(5), data, plan, folder=tmp_path, resume=True, **options)
    np.testing.assert_array_equal(rest.params, whole.params)
    assert not np.array_equal(whole.params, np.zeros(5))
    other = Toeplitz((1.0, 0.5, 0.375 * (1 - 1e-12)))
    if kind.startswith("cyclic,"):
        assert plan.mechanism.separation == 4
    if "inverse" in kind or "buffered" in kind:  # another way to draw noise of the same price
        other = strategy_of(kind).toeplitz(10)
    other = plan_of(kind, correlation=other)
    with pytest.raises(training.CheckpointError, match=r"strategy|mechanism"):
        training.fit(loss, jnp.zeros(5), data, other, folder=tmp_path, resume=True, **options)


def test_bins_are_drawn_once_or_in_every_epoch_as_is_priced():
    once, anew = (bins_of(plan_of(kind, steps=12)) for kind in DRAWN[:2])
    assert once.shape == anew.shape == (3, N)
    assert np.all(once == once[0])
    assert 0.1 < np.mean(anew[1:] == anew[0]) < 0.4  # a quarter of 120
    for bins in (once[0], *anew):
        assert np.bincount(bins, minlength=4).min() > 5  # of 15 each


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.at_length(every=3)
def test_what_is_drawn_at_random_is_what_is_priced(kind):
    plan = plan_of(kind, steps=12)
    run = acc.RandomAllocationCorrelated(
        2.0, strategy_of(kind), bins=4, epochs=3, redrawn="random" in kind
    )
    assert plan.mechanism == run
    assert plan.strategy == plan.correlation == strategy_of(kind)
    assert plan.expected_batch_size == 15.0
    assert plan.epsilon() == pytest.approx(acc.epsilon(run, 0.999e-5), rel=1e-9)
    # An epoch is paid when it begins.
    first = acc.RandomAllocationCorrelated(
        2.0, strategy_of(kind), bins=4, epochs=1, redrawn="random" in kind
    )
    assert plan.spent(1) == plan.spent(4)
    assert plan.spent(1) == pytest.approx(acc.epsilon(first, 0.999e-5), rel=1e-9)
    np.testing.assert_allclose(plan.epsilon([0, 4, 12]), [0, plan.spent(4), plan.epsilon()])


@pytest.mark.parametrize("kind", DRAWN[:1])
@pytest.mark.at_length
def test_noise_is_found_for_a_budget_and_certified(kind):
    plan = plan_of(kind, steps=None, epochs=3, epsilon=2.0, noise_multiplier=None)
    assert 2.0 * (1 - 1e-6) <= plan.epsilon() <= 2.0
    assert plan.steps == 12
    certificate = plan.certify()
    again = acc.Certificate.from_json(certificate.to_json())
    assert again.verify().epsilon == certificate.epsilon == plan.epsilon()
    assert plan.certify(steps=5).epsilon == plan.spent(8)


@pytest.mark.parametrize("kind", DRAWN[:1])
@pytest.mark.at_length
def test_a_run_over_bins_is_its_draws_plus_the_strategys_noise_and_resumes(kind, tmp_path):
    plan, key, data = plan_of(kind, steps=12), jax.random.key(5), jnp.eye(N)
    step = training.training_step(loss, jnp.zeros(N), plan, optimizer=optax.sgd(1.0))
    still = training.training_step(
        lambda w, x: 0.0 * jnp.sum(w), jnp.zeros(N), plan, optimizer=optax.sgd(1.0)
    )
    seen = []
    for one in (step, still):
        state, update, at = one.init(jnp.zeros(N)), jax.jit(one.update), [np.zeros(N)]
        for _ in range(plan.steps):
            state, _ = update(state, data, key)
            at.append(np.asarray(state["params"], np.float64))
        seen.append(-np.diff(at, axis=0) * plan.expected_batch_size)
    records = np.rint(seen[0] - seen[1])
    np.testing.assert_allclose(seen[0] - seen[1], records, atol=1e-3)
    assert np.all(records.reshape(3, 4, N).sum(1) == 1)
    where = records.reshape(3, 4, N).argmax(1)
    assert np.all(where == where[0]) == ("balls" in kind)
    white = strategy_of(kind).matrix(plan.steps) @ seen[1] / 2.0
    assert 0.85 < white.std() < 1.15
    assert abs(np.corrcoef(white[:-1].ravel(), white[1:].ravel())[0, 1]) < 0.2

    def stop(row):
        if row["step"] == 6:
            raise _Killed

    options = {"optimizer": optax.sgd(0.1), "log_every": 1, "checkpoint_every": 2}
    whole = training.fit(loss, jnp.zeros(N), data, plan, key=key, **options)
    with pytest.raises(_Killed):
        training.fit(
            loss, jnp.zeros(N), data, plan, key=key, folder=tmp_path, on_log=stop, **options
        )
    rest = training.fit(loss, jnp.zeros(N), data, plan, folder=tmp_path, resume=True, **options)
    np.testing.assert_array_equal(rest.params, whole.params)


@dataclasses.dataclass(frozen=True)
class _Negative:
    """A strategy of which no price is known."""

    def matrix(self, steps):
        return np.eye(steps) - 0.5 * np.eye(steps, k=-1)


def test_an_allocation_of_another_strategy_or_of_none_is_refused():
    run = acc.RandomAllocationCorrelated(2.0, square_root(3), 4, 3)
    for bad, why in (
        (lambda: training.Plan(run, 1.0, N, 1e-5), "correlation must be a strategy"),
        (lambda: training.Plan(run, 1.0, N, 1e-5, correlation=square_root(2)), "other overlaps"),
        (lambda: training.Plan(run, 1.0, N, 1e-5, correlation=_Negative()), "entries >= 0"),
        (lambda: training.Plan(
            acc.Repeated(run, 2), 1.0, N, 1e-5, correlation=square_root(3)), "one run"),
        (lambda: plan_of("balls-in-bins", steps=10), "multiple of the 4"),
        (lambda: plan_of("balls-in-bins", batch_size=0), "batch_size must be between 1 and"),
        (lambda: plan_of("balls-in-bins", steps=12, correlation=None), "correlation must be given"),
        (lambda: plan_of("random-allocation", steps=12, correlation=_Negative()), "entries >= 0"),
        (lambda: plan_of("balls-in-bins", steps=12, noise_schedule=lambda t: 1.0), "None"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            bad()
    with pytest.raises(acc.UnsupportedQuery, match="ADD_REMOVE"):
        plan_of(
            "balls-in-bins", steps=12, epsilon=1.0, noise_multiplier=None,
            adjacency=acc.Adjacency.REPLACE_ONE,
        )  # fmt: skip


def test_what_has_no_price_is_refused():
    correlated = acc.CorrelatedGaussian(1.0, [1.0, 0.5], 10, 4)
    cyclic = acc.CyclicPoissonCorrelated(1.0, [1.0, 0.5], 2, 0.5)
    for run in (
        acc.Repeated(correlated, 2),  # noise that begins anew is another run
        acc.Composed((correlated, acc.Gaussian(1.0))),
        acc.Composed((acc.Repeated(cyclic, 2), acc.Repeated(cyclic, 2))),
        acc.CorrelatedGaussian(1.0, [1.0, 0.5], 10, 4, participations=2),
        acc.CorrelatedGaussian(1.0, [1.0, 0.5], 10, 61),
        acc.Repeated(acc.MinSeparatedCorrelated(1.0, [1.0, 0.5], 10, 3, 0.2), 2),
        acc.MinSeparatedCorrelated(1.0, [1.0, 0.5], 10, 3, 0.0),
        acc.MinSeparatedCorrelated(1.0, [1.0, 0.5], 10, 3, 0.34),
    ):
        with pytest.raises(ValueError, match="must"):
            training.Plan(run, clip_norm=1.0, population=N, delta=1e-5)
    for bad in (
        {"kind": "poisson"},
        {"kind": "cyclic", "noise_schedule": lambda step: 1.0},
        {"kind": "cyclic", "batch_size": lambda step: 10},
        {"kind": "cyclic-poisson", "batch_size": 40},
        {"kind": "min-separated", "correlation": Tree()},
    ):
        with pytest.raises(ValueError, match=r"must (be|have)"):
            plan_of(**bad)
    with pytest.raises(ValueError, match="correlation must be given"):
        training.make_plan(N, delta=1e-5, batch_size=9, steps=3, epsilon=1.0, sampling="cyclic")


def test_a_banded_inverse_is_the_one_that_is_priced():
    plan = plan_of("cyclic, banded inverse")
    run = acc.CorrelatedGaussian(2.0, inverse_square_root(3), 10, 4)
    truth = inverse_square_root(3).sensitivity(10, 4) / 2.0
    assert plan.epsilon() == acc.epsilon(run, plan.delta * 0.999)
    assert plan.epsilon() == pytest.approx(acc.epsilon(acc.Gaussian(1 / truth), 0.999e-5))
    assert plan.spent(4) < plan.epsilon()
    short = acc.CorrelatedGaussian(2.0, inverse_square_root(3), 9, 4)
    for bad in (
        lambda: training.Plan(run, 1.0, N, 1e-5, correlation=inverse_square_root(4)),
        lambda: training.Plan(run, 1.0, N, 1e-5, correlation=square_root(3)),
        lambda: training.Plan(
            dataclasses.replace(short, steps=10), 1.0, N, 1e-5, correlation=inverse_square_root(3)
        ),
        lambda: training.Plan(
            acc.Repeated(acc.Gaussian(1.0), 3), 1.0, N, 1e-5, correlation=BandedInverse((1.0,))
        ),
        lambda: plan_of("cyclic-poisson", correlation=inverse_square_root(3)),
        lambda: training.Plan(run, 1.0, N, 1e-5, correlation=BUFFERED),
        lambda: plan_of("cyclic-poisson", correlation=BUFFERED),
    ):
        with pytest.raises(ValueError, match="must be"):
            bad()


def test_columns_that_overlap_are_priced_for_their_order():
    plan = plan_of("cyclic, full columns")
    assert isinstance(plan.mechanism, acc.CyclicMatrixGaussian)
    assert not isinstance(plan_of("cyclic, columns").mechanism, acc.CyclicMatrixGaussian)
    used = FULL.matrix(10)[:, ::4].sum(1)  # of numbers ≥ 0: the first batch, three times
    truth = acc.epsilon(acc.Gaussian(2.0 / np.linalg.norm(used)), 0.999e-5)
    assert plan.epsilon() == pytest.approx(truth)
    run = plan.mechanism
    for bad in (
        lambda: training.Plan(run, 1.0, N, 1e-5),
        lambda: training.Plan(run, 1.0, N, 1e-5, correlation=Tree()),
        lambda: training.Plan(run, 1.0, N, 1e-5, correlation=COLUMNS),
        lambda: training.Plan(acc.Repeated(run, 2), 1.0, N, 1e-5, correlation=FULL),
        lambda: training.Plan(
            dataclasses.replace(run, separation=5), 1.0, N, 1e-5, correlation=FULL
        ),
        lambda: plan_of("min-separated", correlation=FULL),
    ):
        with pytest.raises(ValueError, match=r"must (be|have)"):
            bad()
    with pytest.raises(TypeError, match="cyclic_sensitivities"):
        acc.CyclicMatrixGaussian(2.0, Tree(), 10, 4)


def test_a_tree_is_the_one_that_is_priced():
    plan = plan_of("cyclic, tree")
    truth = Tree().sensitivity(10, 4) / 2.0
    assert plan.epsilon() == pytest.approx(acc.epsilon(acc.Gaussian(1 / truth), 0.999e-5))
    assert plan.spent(4) == pytest.approx(
        acc.epsilon(acc.Gaussian(2.0 / Tree().sensitivity(4, 4)), 0.999e-5)
    )
    run = acc.MatrixGaussian(2.0, Tree(), 10, 4)
    sooner = acc.MatrixGaussian(2.0, Tree(), 10, 5)
    less = dataclasses.replace(run, sensitivities=np.asarray(run.sensitivities) * 0.9)
    for bad in (
        lambda: training.Plan(run, 1.0, N, 1e-5),  # how its noise is drawn is not said
        lambda: training.Plan(run, 1.0, N, 1e-5, correlation=inverse_square_root(3)),
        lambda: training.Plan(less, 1.0, N, 1e-5, correlation=Tree()),
        lambda: training.Plan(
            dataclasses.replace(sooner, separation=4), 1.0, N, 1e-5, correlation=Tree()
        ),
        lambda: training.Plan(
            acc.CorrelatedGaussian(2.0, [1.0], 10, 4), 1.0, N, 1e-5, correlation=Tree()
        ),
        lambda: training.Plan(acc.Repeated(run, 2), 1.0, N, 1e-5, correlation=Tree()),
        lambda: plan_of("cyclic-poisson", correlation=Tree()),
        lambda: plan_of("cyclic-poisson", correlation=COLUMNS),
        lambda: plan_of("cyclic", correlation=COLUMNS, steps=11),
        lambda: training.Plan(run, 1.0, N, 1e-5, correlation=COLUMNS),
    ):
        with pytest.raises(ValueError, match="must be"):
            bad()


@pytest.mark.parametrize(
    ("size", "batches"), [(15, 4), (60, 1), (8, None), (9, None), (7, None), (1, 60), (40, None),
                          (12, 5), (20, 3), (31, None)],
)  # fmt: skip
def test_batches_in_turn_are_of_the_size_that_was_asked_for(size, batches):
    if batches is None and not any(N // b <= size <= -(-N // b) for b in range(1, N + 1)):
        with pytest.raises(ValueError, match="batch_size must divide"):
            plan_of("cyclic", batch_size=size)
    else:
        plan = plan_of("cyclic", batch_size=size)
        assert batches is None or plan.mechanism.separation == batches
        assert size - 1 < plan.expected_batch_size < size + 1


@pytest.mark.at_length
def test_the_way_of_least_error_is_first_and_depends_on_the_run():
    given = {"population": 400, "delta": 1e-5, "bands": (4,)}
    stream = training.compare_noise(epsilon=1.0, batch_size=10, epochs=1, **given)
    many = training.compare_noise(epsilon=2.0, batch_size=20, epochs=20, **given)
    for found in (stream, many):
        errors = [one.error for one in found]
        assert errors == sorted(errors)
        assert all(one.plan.epsilon() <= (1.0 if found is stream else 2.0) for one in found)
    assert (stream[0].sampling, stream[0].correlation.bands) == ("balls-in-bins", 4)
    # Of the same strategy: over many epochs groups in turn leave less.
    ways = [one.sampling for one in many if isinstance(one.correlation, Toeplitz)]
    assert ways.index("cyclic-poisson") < ways.index("balls-in-bins")
    order = training.compare_noise(
        epsilon=1.0, batch_size=10, epochs=1, secret=False, **given | {"bands": (), "buffers": ()}
    )
    assert [one.sampling for one in order] == ["cyclic"]
    fixed = [one for one in stream if one.sampling == "cyclic"]
    plain = [one for one in fixed if getattr(one.correlation, "bands", 0) == 1]
    assert plain[0].error == order[0].error
