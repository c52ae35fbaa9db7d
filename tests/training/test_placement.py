"""`fit(mesh=…)`: one device's parameters and certificate, with records and noise divided."""

from __future__ import annotations

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpjax import accounting as acc
from dpjax import correlation, training
from dpjax._numerics.normal import drawn_in_place, normal_like
from dpjax.gradients.compensated import Compensated
from dpjax.training import devices, step
from dpjax.training.devices import place_parameters, place_rows, place_state
from dpjax.training.loop import zero_totals
from dpjax.training.step_config import first_state

RECORDS = 60  # not a multiple of eight: the last blocks are padded
KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def loss(params, example):
    x, y = example
    return jnp.square(jnp.tanh(x @ params["w"] + params["b"]) @ params["v"] - y)


@functools.cache
def task():
    keys = jax.random.split(jax.random.key(0), 2)
    params = {"w": jax.random.normal(keys[0], (64, 128)) / 8}
    params |= {"b": np.zeros(128, np.float32), "v": np.full(128, 0.1, np.float32)}
    x = jax.random.normal(keys[1], (RECORDS, 64))
    return jax.tree.map(np.asarray, (params, (x, jnp.sin(x[:, 0]))))


def plan_of(kind):
    gaussian, steps = acc.Gaussian(1.0), 3
    strategy = correlation.banded_toeplitz(2, steps)
    buffered = correlation.BufferedToeplitz((0.9, 0.3), (0.25, 0.25))
    mechanism = {
        "poisson": acc.Repeated(acc.PoissonSampled(gaussian, 0.25), steps),
        "fixed": acc.Repeated(acc.FixedBatchSampled(gaussian, 15, RECORDS), steps),
        "truncated": acc.Repeated(acc.TruncatedPoissonSampled(gaussian, 0.25, RECORDS, 16), steps),
        "allocation": acc.RandomAllocation(gaussian, steps),
        "cyclic": acc.CorrelatedGaussian(1.0, strategy, steps, separation=2),
        "buffered": acc.CorrelatedGaussian(1.0, buffered, steps, separation=2),
        "separated": acc.MinSeparatedCorrelated(1.0, strategy, steps, 2, 0.25),
        "warm-up": acc.Composed(
            (acc.PoissonSampled(gaussian, 0.25), acc.Repeated(acc.PoissonSampled(gaussian, 0.5), 2))
        ),
    }[kind]
    adjacency = acc.Adjacency.REPLACE_ONE if kind == "fixed" else acc.Adjacency.ADD_REMOVE
    drawn = buffered if kind == "buffered" else None
    return training.Plan(mechanism, 0.5, RECORDS, 1e-4, adjacency=adjacency, correlation=drawn)


plan_of = functools.cache(plan_of)


def trained(kind="poisson", mesh=None, params=None, loss=loss, **options):
    settings = {
        "optimizer": optax.sgd(1.0, momentum=0.9),
        "key": jax.random.key(3),
        "log_every": 3,
    }
    params = task()[0] if params is None else params
    return training.fit(loss, params, task()[1], plan_of(kind), mesh=mesh, **settings | options)


single = functools.cache(trained)


def mesh_of(kind="auto", shape=(8,), names=("data",)):
    devices = jax.devices()[: math.prod(shape)]
    return jax.make_mesh(shape, names, (KINDS[kind],) * len(shape), devices=devices)


def assert_same(found, expected):
    np.testing.assert_array_equal(found.metrics["epsilon"], expected.metrics["epsilon"])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=5e-6),
        found.params,
        expected.params,
    )


@pytest.mark.parametrize(
    "kind",
    ["fixed", "truncated", "allocation", "cyclic", "buffered", "separated", "warm-up"],
)
@pytest.mark.at_length
def test_every_sampling_draws_the_same_records_and_noise_on_eight_devices(kind):
    assert_same(trained(kind, training.fully_sharded(mesh_of())), single(kind))


@pytest.mark.parametrize("divided", [training.data_parallel, training.fully_sharded])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.at_length(every=3)
def test_meshes_of_both_kinds_and_what_is_divided(kind, divided):
    mesh = mesh_of(kind)
    found = trained(mesh=divided(mesh))
    assert_same(found, single())
    for leaf in jax.tree.leaves(found.params):
        assert leaf.sharding.mesh == mesh
    shares = {"data_parallel": (64, 128), "fully_sharded": (8, 128)}
    assert found.params["w"].addressable_shards[0].data.shape == shares[divided.__name__]


def test_parameters_divided_along_another_axis_stay_there():
    mesh = mesh_of(shape=(4, 2), names=("data", "model"))
    given = NamedSharding(mesh, PartitionSpec(None, "model"))
    params = task()[0] | {"w": jax.device_put(task()[0]["w"], given)}
    found = trained(mesh=training.data_parallel(mesh, ("data",)), params=params)
    assert_same(found, single())
    assert found.params["w"].sharding == given


@pytest.mark.at_length
def test_a_records_key_is_that_of_its_place_in_the_whole_data():
    def noisy(params, example, key):
        return loss(params, example) * jax.random.uniform(key)

    options = {"loss": noisy, "loss_takes_key": True}
    assert_same(trained(mesh=training.data_parallel(mesh_of()), **options), trained(**options))


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.at_length(every=2)
def test_any_number_of_devices_and_pieces(devices):
    """Capacity 4: a step's records take several pieces on every device."""
    found = trained(mesh=mesh_of(shape=(devices,)), capacity=4)
    assert_same(found, trained(capacity=4))


def compiled_step(placement, params=None):
    params = place_parameters(placement, task()[0] if params is None else params)
    rows = place_rows(placement, task()[1], RECORDS)
    plan, optimizer = plan_of("poisson"), optax.sgd(1.0, momentum=0.9)
    state = place_state(placement, first_state(params, plan, optimizer, np.int32(0)))
    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
    made_of = (loss, params, plan, optimizer, None, "auto", 1e-9)
    recipe = step.StepConfig(*made_of, placement=placement, counted=True)
    advance = step.compile_step(recipe, example).advance
    given = state, zero_totals(), jax.random.key(3), rows, np.int32(3)
    return state, advance.lower(*given).compile().as_text()


def bytes_of(shape):
    """Of an array or a tuple of them, as the compiled program writes it."""
    widths = {"f32": 4, "s32": 4, "u32": 4, "pred": 1, "f64": 8, "u8": 1, "c64": 8}
    return sum(
        widths[kind] * math.prod(int(n) for n in sizes.split(",") if n)
        for kind, sizes in re.findall(r"(\w+)\[([\d,]*)\]", shape)
    )


def traffic(program):
    """Bytes a device is given by every kind of collective operation, per step."""
    found = {}
    names = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
    for shape, name in re.findall(rf"= (\(.*?\)|\S+) ({names})(?:-start)?\(", program):
        found[name] = found.get(name, 0) + bytes_of(shape)
    return found


def drawn(program):
    """The numbers of the largest array that a device holds while it draws noise for `w`."""
    lines = [line for line in program.splitlines() if "jit(_leaf)" in line]
    shapes = (re.search(r"= (\w+\[[\d,]*\])", line) for line in lines)
    sizes = (re.findall(r"\d+", shape[1].split("[")[1]) for shape in shapes if shape)
    return max(math.prod(map(int, size)) for size in sizes)


def test_no_device_ever_holds_the_noise_of_anothers_share():
    placement = training.fully_sharded(mesh_of())
    state, program = compiled_step(placement)
    assert drawn(program) == 64 * 128 // 8
    # The momentum lies as its parameter does.
    shares = [leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(state)]
    assert shares.count(64 * 128 // 8) == 2
    # What the devices tell each other: parameters, sums, and four counts of the step.
    assert traffic(program) == {
        "all-gather": 4 * 64 * 128,
        "reduce-scatter": 4 * 64 * 128 // 8,
        "all-reduce": 4 * (2 * 128 + 4),
    }


def test_copies_of_the_noise_are_seen():
    """Where a parameter is copied, every device draws the noise of all of it."""
    assert drawn(compiled_step(training.data_parallel(mesh_of()))[1]) == 64 * 128


@pytest.mark.parametrize("shape", [(64, 64), (16, 8, 64), (3, 3, 16, 48)])
@pytest.mark.at_length
def test_layouts_that_draw_in_place_draw_their_share_alone(shape):
    placement = training.fully_sharded(mesh_of())
    whole = math.prod(shape)
    for dimension in range(len(shape)):
        if shape[dimension] % 8:
            continue
        spec = placement.sharding(PartitionSpec(*[None] * dimension, "data"))

        def noise(key, spec=spec):
            leaf = normal_like(key, jax.ShapeDtypeStruct(shape, jnp.float32))
            return jax.lax.with_sharding_constraint(leaf, spec)

        program = jax.jit(noise).lower(jax.random.key(0)).compile().as_text()
        alone = drawn(program) == whole // 8 and not traffic(program)
        assert alone == drawn_in_place(shape, dimension, 8), (shape, dimension)


def test_the_traffic_is_that_of_training_without_privacy():
    mesh = mesh_of()
    params, batch = task()
    rows = NamedSharding(mesh, PartitionSpec("data"))
    optimizer = optax.sgd(1.0, momentum=0.9)

    @jax.jit
    def plain(params, state, batch):
        mean = lambda params: jnp.mean(jax.vmap(loss, (None, 0))(params, batch))  # noqa: E731
        value, gradient = jax.value_and_grad(mean)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    batch = jax.device_put(jax.tree.map(lambda leaf: leaf[:16], batch), rows)
    without = traffic(plain.lower(params, optimizer.init(params), batch).compile().as_text())
    private = traffic(compiled_step(training.data_parallel(mesh))[1])
    assert private.keys() == without.keys() == {"all-reduce"}
    assert 0 <= private["all-reduce"] - without["all-reduce"] <= 12  # three more counts


def test_what_is_no_mesh_is_refused():
    with pytest.raises(ValueError, match="mesh must be"):
        trained(mesh="data")
    with pytest.raises(ValueError, match="axes must be"):
        training.data_parallel(mesh_of(), ("model",))


class Stopped(Exception):
    pass


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.at_length
def test_a_run_on_four_devices_is_resumed_on_any_number(tmp_path, devices):
    def stop(row):
        if row["step"] == 1:
            raise Stopped

    options = {"folder": tmp_path, "log_every": 1, "resume": True}
    with pytest.raises(Stopped):
        trained(mesh=training.fully_sharded(mesh_of(shape=(4,))), on_log=stop, **options)
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["step-000000000001.ckpt"]
    found = trained(mesh=training.fully_sharded(mesh_of(shape=(devices,))), **options)
    expected = trained(mesh=training.fully_sharded(mesh_of(shape=(4,))), log_every=1)
    assert_same(found, expected)
    if devices == 4:
        jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_has_one_noise_on_however_many_devices_it_is_resumed(tmp_path, devices):
    store = {"folder": tmp_path, "log_every": 1, "resume": True}
    on = lambda number: training.data_parallel(mesh_of(shape=(number,)))  # noqa: E731
    expected = trained(mesh=on(4), **store)
    (tmp_path / "step-000000000003.ckpt").unlink(missing_ok=True)
    assert_same(trained(mesh=None if devices == 1 else on(devices), **store), expected)


@pytest.mark.parametrize(("largest", "exact"), [(100, False), (1000, True)])
def test_devices_sums_are_added_as_exactly_as_their_slack_says(largest, exact):
    """Totals that round one way; of few records one array is sent, and slack is paid for it."""
    placement = training.data_parallel(mesh_of())
    unit, width = 2.0**-24, 5
    totals = (
        np.full((8, width), 1 + 2.0**-23, np.float32) * np.arange(1, 9, dtype=np.float32)[:, None]
    )
    errors = np.full((8, width), 0.4 * 2.0**-23, np.float32)
    specs = PartitionSpec()

    def block(params, records):
        return Compensated(*(part[0] for part in records)), jnp.int32(1)

    added = jax.jit(devices.sum_over_blocks(placement, specs, block, largest))
    pair, count = added(jnp.zeros(width), (totals, errors))
    truth = totals.astype(np.float64).sum(0) + errors.astype(np.float64).sum(0)
    off = np.abs(sum(np.asarray(part, np.float64) for part in pair) - truth) / truth
    assert int(count) == 8
    assert off.max() <= (64 * unit**2 if exact else 8 * unit)
    assert exact or off.max() > unit / 100
