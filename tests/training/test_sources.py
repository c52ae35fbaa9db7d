"""Records on the host train the same model, to the last bit, and only those drawn are loaded."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import training
from dpjax._numerics.scope import enable_x64

N = 40
X = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
KEY = jax.random.key(5)
MODEL = training.mlp(6, 2, hidden=(5,))
CROSS = training.cross_entropy(MODEL)
START = MODEL.init(jax.random.key(1))


@pytest.fixture(autouse=True)
def flat_price(monkeypatch):
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(()))


def of_columns(params, example):
    """The same loss for a record that is a dict of columns."""
    x = jnp.stack([example[f"x{i}"] for i in range(6)])
    return CROSS(params, (x, example["y"]))


class Numbered:
    """Records by number alone, as grain's map datasets and PyTorch's have them."""

    def __init__(self):
        self.seen, self.threads = [], set()

    def __len__(self):
        return N

    def __getitem__(self, number):
        if not isinstance(number, int):
            raise TypeError("indices must be integers")
        self.seen.append(number)
        self.threads.add(threading.current_thread())
        return X[number], Y[number]


class Batched(Numbered):
    """Whole batches, by an array of numbers."""

    def __getitem__(self, rows):
        return X[rows], Y[rows]


class Misleading(Numbered):
    """An array of numbers gives arrays of the right shapes, of other records."""

    def __getitem__(self, rows):
        return (X[rows], Y[rows]) if np.ndim(rows) == 0 else (X[rows] - X[rows].mean(0), Y[rows])


def mapped(folder):
    pair = []
    for name, values in (("x", X), ("y", Y)):
        path = folder / name
        if not path.exists():
            values.tofile(path)
        pair.append(np.memmap(path, values.dtype, "r", shape=values.shape))
    return tuple(pair)


def frame():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({**{f"x{i}": X[:, i] for i in range(6)}, "y": Y})


def table():
    arrow = pytest.importorskip("pyarrow")
    return arrow.table({**{f"x{i}": X[:, i] for i in range(6)}, "y": Y})


SOURCES = {
    "arrays": lambda folder: training.HostData((X, Y)),
    "wide arrays": lambda folder: training.HostData((X.astype(np.float64), Y.astype(np.int64))),
    "memory map": mapped,
    "list": lambda folder: list(zip(X, Y, strict=True)),
    "numbered": lambda folder: Numbered(),
    "batched": lambda folder: Batched(),
    "misleading": lambda folder: Misleading(),
    "pandas": lambda folder: frame(),
    "arrow": lambda folder: table(),
}


def plan_of(kind="poisson", steps=6, noise=0.8):
    gaussian = acc.Gaussian(noise)
    step = {
        "poisson": acc.PoissonSampled(gaussian, 0.25),
        "fixed": acc.FixedBatchSampled(gaussian, 8, N),
        "replaced": acc.WithReplacement(gaussian, 40, N),
        "everyone": gaussian,
        "allocation": acc.RandomAllocation(gaussian, 3),
        "cut": acc.TruncatedPoissonSampled(gaussian, 0.5, N, 16),
    }[kind]
    sized = kind in ("fixed", "replaced")
    relation = acc.Adjacency.REPLACE_ONE if sized else acc.Adjacency.ADD_REMOVE
    run = acc.Repeated(step, steps // 3 if kind == "allocation" else steps)
    return training.Plan(run, clip_norm=0.7, population=N, delta=1e-5, adjacency=relation)


def run(data, plan=None, loss=CROSS, params=START, **options):
    settings = {"optimizer": optax.sgd(0.3, momentum=0.9), "key": KEY, **options}
    return training.fit(loss, params, data, plan or plan_of(), **settings)


def same(found, held):
    """Up to rounding: the compiler's settings in these tests fuse one program unlike another."""
    for one, two in zip(*map(jax.tree.leaves, (found.params, held.params)), strict=True):
        np.testing.assert_allclose(one, two, rtol=3e-6, atol=3e-7)


def bits(found):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(found.params)]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.at_length(every=3)
def test_any_source_trains_the_model_of_the_device(kind, tmp_path):
    loss = of_columns if kind in ("pandas", "arrow") else CROSS
    columns = {**{f"x{i}": X[:, i] for i in range(6)}, "y": Y}
    held = run(columns if loss is of_columns else (X, Y), loss=loss, log_private_losses=True)
    found = run(SOURCES[kind](tmp_path), loss=loss, log_private_losses=True)
    same(found, held)
    for name, column in held.metrics.items():
        np.testing.assert_allclose(found.metrics[name], column, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "capacity"),
    [
        ("poisson", 3),
        ("fixed", None),
        ("replaced", 7),
        ("everyone", 7),
        ("allocation", None),
        ("cut", 3),
    ],
)
@pytest.mark.at_length(every=4)
def test_every_sampling_is_the_same_from_the_host(kind, capacity):
    plan = plan_of(kind)
    held, found = (run(data, plan, capacity=capacity) for data in ((X, Y), Batched()))
    same(found, held)


_BITS = """
import numpy as np
from tests.training import test_sources as here
here.acc.epsilon = lambda run, *_, **__: np.ones(())
pair = ((here.X, here.Y), here.Batched())
one, two = (here.run(data, here.plan_of(steps=3), capacity=3) for data in pair)
assert here.bits(one) == here.bits(two)
from tests.training import test_users_on_host as users
one, two = (users.run(data, users.plan_of(steps=3), capacity=3) for data in pair)
assert here.bits(one) == here.bits(two)
print("the same bits")
"""


@pytest.mark.processes
def test_under_the_compilers_own_settings_the_bits_are_the_same():
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    root = pathlib.Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _BITS], cwd=root, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout == "the same bits\n", done.stderr


@pytest.mark.at_length
def test_a_loss_with_a_key_is_given_the_same_keys():
    def loss(params, example, key):
        x, y = example
        return CROSS(params, (jnp.where(jax.random.bernoulli(key, 0.7, x.shape), x, 0.0), y))

    held, found = (run(data, loss=loss, loss_takes_key=True) for data in ((X, Y), Batched()))
    same(found, held)
    assert not np.allclose(found.params[0]["weights"], run((X, Y)).params[0]["weights"])


@pytest.mark.parametrize("devices", [None, 2])
@pytest.mark.at_length(every=2)
def test_floats_of_64_bits_in_a_scope_are_loaded_as_they_are(devices):
    with enable_x64():
        wide = X.astype(np.float64) + 1e-9
        start = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), START)
        some = jax.devices()[:devices]
        mesh = None if devices is None else jax.make_mesh((devices,), ("data",), devices=some)
        held = run((wide, Y), plan_of(steps=2), params=start)
        found = run(training.HostData((wide, Y)), plan_of(steps=2), params=start, mesh=mesh)
        for one, two in zip(*map(jax.tree.leaves, (found.params, held.params)), strict=True):
            assert one.dtype == jnp.float64
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-13)


def test_only_the_records_of_a_step_are_loaded_ahead_by_a_thread():
    data = Numbered()
    plan = plan_of("fixed")
    run(data, plan)
    assert len(data.seen) == 1 + plan.steps * 8  # record 0 for its shape
    assert len(data.threads) == 2
    assert all(not thread.is_alive() for thread in data.threads - {threading.current_thread()})


def test_no_array_of_all_records_is_made(monkeypatch):
    """Every array on a device is as long as a step's records, however many there are."""
    sizes, put = [], jax.device_put
    monkeypatch.setattr(
        jax,
        "device_put",
        lambda tree, *a, **k: sizes.append(jax.tree.leaves(tree)) or put(tree, *a),
    )
    data = training.HostData((np.zeros((5000, 6), np.float32), np.zeros(5000, np.int32)))
    plan = training.Plan(
        acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(1.0), 8, 5000), 3), 1.0, 5000, 1e-5,
        acc.Adjacency.REPLACE_ONE,
    )  # fmt: skip
    run(data, plan)
    shapes = {np.shape(leaf)[:1] for leaves in sizes for leaf in leaves if hasattr(leaf, "shape")}
    assert (8,) in shapes
    assert max(shape[0] for shape in shapes if shape) == 8


class Killed(Exception):
    pass


@pytest.mark.parametrize("kind", ["memory map", "numbered"])
@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.at_length(every=2)
def test_a_killed_run_resumes_to_the_last_bit(kind, step, tmp_path):
    def stop(row):
        if row["step"] == step:
            raise Killed

    source = SOURCES[kind]
    options = {"log_every": 1, "checkpoint_every": 2}
    whole = run(source(tmp_path), **options)
    with pytest.raises(Killed):
        run(source(tmp_path), folder=tmp_path / "run", on_log=stop, **options)
    assert threading.active_count() == 1 or not any(
        thread.name.startswith("records") for thread in threading.enumerate()
    )
    rest = run(source(tmp_path), folder=tmp_path / "run", resume=True, **options)
    assert bits(rest) == bits(whole)


def test_resuming_with_other_records_is_refused(tmp_path):
    def stop(row):
        raise Killed

    options = {"folder": tmp_path / "run"}
    with pytest.raises(Killed):
        run(mapped(tmp_path), on_log=stop, **options)
    with (tmp_path / "x").open("r+b") as file:
        file.seek(4 * (6 * N - 1))
        file.write(np.float32(7.0).tobytes())
    with pytest.raises(training.CheckpointError, match="its data differs;"):
        run(mapped(tmp_path), resume=True, **options)
    # Written back, the records are the same, but the file was changed: only its copy can tell.
    with pytest.raises(training.CheckpointError, match="its data differs;"):
        run((X, Y), resume=True, **options)


def test_a_fingerprint_covers_what_it_says():
    large = np.zeros((3000, 2), np.float32)
    other = large.copy()
    other[1234, 1] = 1.0

    class Source:
        def __init__(self, values, **said):
            self.values = values
            vars(self).update(said)

        def __len__(self):
            return len(self.values)

        def __getitem__(self, rows):
            return self.values[rows]

    def print_of(data, secret=b"1"):
        return training.HostData(data).fingerprint(secret)

    # Arrays in memory: every bit, and only with the key.
    assert print_of(large) == print_of(large.copy()) != print_of(other)
    assert print_of(large) != print_of(large, b"2")
    # A source: a third of these records, by the key; all of few; and what it says of itself.
    missed = [
        print_of(Source(large), bytes([i])) == print_of(Source(other), bytes([i]))
        for i in range(20)
    ]
    assert 0 < sum(missed) < 20
    assert print_of(Source(large[:1000])) != print_of(Source(other[:1000] + 1))
    assert print_of(Source(large, fingerprint="a")) != print_of(Source(large, fingerprint="b"))
    assert print_of(Source(large)) != print_of(Source(large[:-1]))


def stream():
    yield from zip(X, Y, strict=True)


REFUSED = {
    "a stream": (stream, "must have a length and give records by number, got generator: every"),
    "an iterator": (lambda: iter([(X[0], Y[0])]), "got list_iterator: every record must be drawn"),
    "too few": (
        lambda: list(zip(X, Y, strict=True))[:-1],
        "must share one leading axis|40 records",
    ),
    "none": (lambda: training.HostData([]), "must hold records, got none"),
    "text": (lambda: [(X[0], "a")] * N, "must hold numbers, got <U1"),
    "ragged": (lambda: [X[i][: 3 + i % 2] for i in range(N)], "must have records of one shape"),
    "one odd": (
        lambda: [X[i][: 6 - (i == 17)] for i in range(N)],
        "must have records of one shape",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_sampled_is_refused_with_the_reason(kind):
    make, reason = REFUSED[kind]
    with pytest.raises(ValueError, match=reason):
        run(make(), plan_of("everyone"), loss=lambda params, x: jnp.sum(params[0]["bias"]) * x[0])


def test_an_error_of_the_source_is_raised_and_its_thread_ends():
    class Broken(Numbered):
        def __getitem__(self, number):
            if len(self.seen) > 20:
                raise OSError("the disk is gone")
            return super().__getitem__(number)

    with pytest.raises(OSError, match="the disk is gone"):
        run(Broken())
    assert not any(thread.name.startswith("records") for thread in threading.enumerate())


class Faulty(Numbered):
    """One record is of another kind, or the source is, once a step has been taken."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def __len__(self):
        return N - (self.fault == "shorter" and len(self.seen) > 20)

    def __getitem__(self, number):
        x, y = super().__getitem__(number)
        if number != 17:
            return x, y
        return {"fraction": (x, 0.5), "text": (x.astype(str), y)}.get(self.fault, (x, y))


class Short(Batched):
    """Of several records the first alone, once it passed for one that reads batches."""

    asked = 0

    def __getitem__(self, rows):
        self.asked += np.ndim(rows)
        return super().__getitem__(rows[:1] if self.asked > 1 and np.ndim(rows) else rows)


FAULTS = {
    "fraction": "data must have records of one kind, int32 as record 0, got float64",
    "text": "data must have records of one kind, float32 as record 0, got <U32",
    "shorter": "data must keep its 40 records, got 39",
    "short batches": "data must give the 8 records it is asked for, got an array of shape",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_record_is_never_guessed(fault):
    """What NumPy would cut off, parse, or repeat in the place of another record."""
    short = fault == "short batches"
    source, plan = Short() if short else Faulty(fault), plan_of("fixed" if short else "everyone")
    with pytest.raises(ValueError, match=FAULTS[fault]):
        run(source, plan)


@pytest.mark.at_length
def test_records_from_the_host_train_on_a_mesh():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    held = run((X, Y))
    for in_force in (False, True):
        params = jax.device_put(START, everywhere)
        with jax.set_mesh(mesh) if in_force else contextlib.nullcontext():
            found = training.fit(
                CROSS, params, Batched(), plan_of(), optimizer=optax.sgd(0.3, momentum=0.9), key=KEY
            )
        for one, two in zip(*map(jax.tree.leaves, (found.params, held.params)), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("divided", [training.data_parallel, training.fully_sharded])
@pytest.mark.parametrize("kind", ["poisson", "fixed", "allocation", "cut"])
@pytest.mark.at_length
def test_records_of_the_host_are_divided_over_a_mesh(kind, divided):
    """Every device is given the records of its own block that a step drew, and no others."""
    mesh = jax.make_mesh((8,), ("data",))
    source, plan = Numbered(), plan_of(kind, steps=3)
    found = run(source, plan, mesh=divided(mesh), capacity=16)
    # To the last bit what arrays on the same devices give; up to rounding what one device gives.
    same = run((X, Y), plan, mesh=divided(mesh), capacity=16)
    jax.tree.map(np.testing.assert_array_equal, found.params, same.params)
    one = run((X, Y), plan, capacity=16)
    for a, b in zip(*map(jax.tree.leaves, (found.params, one.params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    taken = found.metrics["step"][-1]
    assert len(source.seen) < taken * N  # a step's records, and one for a block without any
    if kind == "fixed":
        assert taken * 8 < len(source.seen) <= 1 + taken * (8 + 8)


@pytest.mark.at_length
def test_a_loss_with_a_key_and_a_resumed_run_over_a_mesh(tmp_path):
    def noisy(params, example, key):
        x, y = example
        return CROSS(params, (x * jax.random.uniform(key, x.shape), y))

    def stop(row):
        if row["step"] == 2:
            raise Killed

    mesh, rows = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4]), Batched()
    options = {"loss": noisy, "loss_takes_key": True, "log_every": 1}
    one = run((X, Y), plan_of(), **options)
    options |= {"folder": tmp_path, "resume": True}
    with pytest.raises(Killed):
        run(rows, plan_of(), mesh=mesh, on_log=stop, **options)
    eight = training.fully_sharded(jax.make_mesh((8,), ("data",)))
    found = run(rows, plan_of(), mesh=eight, **options)
    for a, b in zip(*map(jax.tree.leaves, (found.params, one.params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_device_holds_no_more_than_its_share_of_a_step(monkeypatch):
    """Blocks without a record that was drawn, and blocks of padding alone, work on nothing."""
    shapes, make = [], jax.make_array_from_callback
    monkeypatch.setattr(
        jax, "make_array_from_callback",
        lambda shape, *a, **k: shapes.append(shape) or make(shape, *a, **k),
    )  # fmt: skip
    n = 5001  # the eighth block has padding
    data = training.HostData((np.zeros((n, 6), np.float32), np.zeros(n, np.int32)))
    plan = training.Plan(
        acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(1.0), 8, n), 3), 1.0, n, 1e-5,
        acc.Adjacency.REPLACE_ONE,
    )  # fmt: skip
    run(data, plan, mesh=jax.make_mesh((8,), ("data",)))
    assert max(shape[0] for shape in shapes) <= 8 * 8


NUMBERED = {
    "array": lambda x, folder: x,
    "host data": lambda x, folder: training.HostData(x),
    "memory map": lambda x, folder: _on_file(x, folder),
    "list": lambda x, folder: x.tolist(),
    "list of records": lambda x, folder: list(zip(x, x, strict=True)),
    "source": lambda x, folder: Ascending(x),
    "pandas": lambda x, folder: pytest.importorskip("pandas").DataFrame({"id": x}),
    "arrow": lambda x, folder: pytest.importorskip("pyarrow").table({"id": x}),
}


def _on_file(x, folder):
    x.tofile(folder / "ids")
    return np.memmap(folder / "ids", x.dtype, "r")


class Ascending:
    """Takes ascending numbers, each once, as h5py does; or sorts them, and says nothing."""

    def __init__(self, *columns, silent=False):
        self.columns, self.silent = columns, silent

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, rows):
        if np.ndim(rows):
            if not self.silent and not (np.diff(rows) > 0).all():
                raise TypeError("Indexing elements must be in increasing order")
            rows = np.unique(rows) if self.silent else rows
        found = tuple(column[rows] for column in self.columns)
        return found if len(found) > 1 else found[0]


@pytest.mark.parametrize(
    ("kind", "users"), [*((kind, False) for kind in NUMBERED), ("array", True)]
)
@pytest.mark.at_length(every=3)
def test_whole_numbers_that_jax_does_not_keep_are_refused(kind, users, tmp_path):
    """Cast to 32 bits, 2**32 + 1 would be record 1's number too."""
    options = {"users": list("abcd"), "records_per_user": 1} if users else {}
    unit = "user" if users else "record"
    plan = training.Plan(acc.Repeated(acc.Gaussian(1.0), 1), 1.0, 4, 1e-5, unit=unit)

    def train(x):
        loss = lambda w, x: w * sum(leaf.astype(w.dtype) for leaf in jax.tree.leaves(x))  # noqa: E731
        data = NUMBERED[kind](x, tmp_path)
        return run(data, plan, loss=loss, params=jnp.zeros(()), **options)

    train(np.array([1, -(2**31), 2**31 - 1, 3]))
    for wrong, dtype in ((2**32 + 1, np.int64), (-(2**31) - 1, np.int64), (2**33, np.uint64)):
        with pytest.raises(ValueError, match=f"data must have whole numbers from .* got {wrong}:"):
            train(np.array([1, 2, wrong, 3], dtype))
    with pytest.raises(ValueError, match=f"got {2**31}:"):  # unsigned beside a signed record 0
        training.HostData([np.int32(1), np.uint32(2**31)]).load(np.array([1]), 1)
    assert training.HostData(np.array([2**32 - 1], np.uint64)).load(np.array([0]), 1) == 2**32 - 1


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("sampling", ["poisson", "replaced"])
def test_a_source_that_takes_ascending_numbers_gives_every_record_its_own(silent, sampling):
    source = Ascending(X, Y, silent=silent)
    same(run(source, plan_of(sampling)), run((X, Y), plan_of(sampling)))
    data, numbers = training.HostData(source), np.array([7, 3, 7, 39, 0, 3])
    x, y = data.load(numbers, 8)
    np.testing.assert_array_equal(x, X[[*numbers, 7, 7]])
    np.testing.assert_array_equal(y, Y[[*numbers, 7, 7]])


def test_masked_cells_are_refused():
    with pytest.raises(ValueError, match="data must have every value, got a masked array"):
        training.HostData((np.ma.masked_less(X, 0.0), Y))
    assert training.HostData((np.ma.masked_array(X), Y)).records == N  # nothing is hidden


class Foreign:
    """What another library has for an array."""

    def __init__(self, values):
        self.values, self.dtype = values, values.dtype
        self.shape, self.ndim = values.shape, values.ndim

    def __array__(self, dtype=None, copy=None):
        return self.values

    def __len__(self):
        return len(self.values)


FOREIGN = {
    "pandas series": lambda x: pytest.importorskip("pandas").Series(x),
    "pandas index": lambda x: pytest.importorskip("pandas").Index(x),
    "pandas array": lambda x: pytest.importorskip("pandas").array(x),
    "polars": lambda x: pytest.importorskip("polars").Series(x),
    "arrow": lambda x: pytest.importorskip("pyarrow").array(x),
    "of no library": Foreign,
}


@pytest.mark.parametrize(
    ("kind", "within", "mesh"),
    [
        *((kind, tuple, False) for kind in FOREIGN),
        ("arrow", tuple, True),
        ("pandas series", lambda x: dict(enumerate(x)), False),
        ("pandas series", training.HostData, False),
    ],
)
def test_arrays_of_other_libraries_are_taken_for_their_numbers(kind, mesh, within):
    """JAX took them as they were, and wrapped 2**32 + 7 to 7: two records became one."""
    options = {"mesh": jax.make_mesh((1,), ("records",))} if mesh else {}
    plan = training.Plan(acc.Repeated(acc.Gaussian(1.0), 1), 1.0, 4, 1e-5)
    loss = lambda w, x: w * sum(leaf.astype(w.dtype) for leaf in jax.tree.leaves(x))  # noqa: E731

    def train(x, y):
        return run(within((x, y)), plan, loss=loss, params=jnp.zeros(()), **options)

    x = np.array([7, 2, 7, 3])
    same(train(FOREIGN[kind](x), FOREIGN[kind](x)), train(x, x))
    with pytest.raises(ValueError, match=f"data must have whole numbers from .* got {2**32 + 7}:"):
        train(x, FOREIGN[kind](x + 2**32 * (x == 7)))


@pytest.mark.parametrize("kind", [np.asarray, *FOREIGN.values()])
def test_a_step_of_ones_own_takes_no_number_for_another(kind):
    plan = training.Plan(acc.Repeated(acc.Gaussian(1.0), 1), 1.0, 4, 1e-5)
    step = training.training_step(
        lambda w, x: w * x[1].astype(w.dtype), jnp.zeros(()), plan, optimizer=optax.sgd(1.0)
    )
    ones = np.ones(4, np.int64)
    step.update(step.init(jnp.zeros(())), (ones, kind(ones)), KEY)
    with pytest.raises(ValueError, match="data must have whole numbers from"):
        step.update(step.init(jnp.zeros(())), (ones, kind(ones + 2**32)), KEY)
