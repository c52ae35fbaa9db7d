"""Tables whose encoding is released with noise: what is priced, what leaves, what never refuses."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from dataclasses import replace
from decimal import Decimal

import jax
import numpy as np
import pandas as pd
import pytest

from dpjax import accounting as acc
from dpjax._numerics.keys import fold_in_words
from dpjax.data import (
    Column,
    DataError,
    PrivateTable,
    Schema,
    describe_encoding,
    encode_released,
    private_table,
)
from dpjax.data.schema import remark_on

BOTH = tuple(acc.Adjacency)
ENCODINGS = private_table.ENCODINGS


def people(n=2_000, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, n)
    return pd.DataFrame(
        {
            "age": age.astype(str),
            "gain": np.where(rng.random(n) < 0.9, 0, rng.lognormal(8, 1, n)).astype(str),
            "job": rng.choice(["baker", "smith", ""], n),
            "paid": np.where(age > 50, "high", "low"),
        }
    )


COLUMNS = ("age", "gain", "job")


def words(keys):
    return np.asarray(jax.random.key_data(keys))


def table(frame, **settings):
    settings = {"schema": Schema((), target="paid"), "stddev": 8.0, **settings}
    return PrivateTable(COLUMNS, records=len(frame), **settings)


# ------------------------------------------------------------------------------------------ price


@pytest.mark.parametrize(
    ("settings", "kinds", "counts"),
    [
        # three columns and the target; then three that may be numbers
        ({}, 0, 4 + 3),
        ({"zooms": 2}, 0, 4 + 3 * 3),
        ({"rough_kinds": True}, 3, 4 + 3),
        ({"numeric": ("age", "gain")}, 0, 4 + 2),
        ({"numeric": ("age", "gain"), "encoding": "grid"}, 0, 2),
        ({"encoding": "grid"}, 3, 4),
        ({"schema": Schema((), target="paid", classes=("low", "high"))}, 0, 3 + 3),
        (
            {"schema": Schema((Column("age", range=(0, 99)), Column("gain")), target="paid")},
            0,
            3 + 2,
        ),
        (
            {
                "schema": Schema((Column("job", "ignore"),), target="paid"),
                "numeric": ("age", "gain"),
            },
            0,
            3 + 2,
        ),
    ],
)
@pytest.mark.parametrize("adjacency", BOTH)
def test_the_price_is_that_of_one_cell_a_column_and_look(settings, kinds, counts, adjacency):
    found = table(people(10), **settings)
    # By the Gaussian law of the same deviation: √d, or √(2d) where a record is replaced.
    moved = counts / 8.0**2 + kinds / (4 * 8.0) ** 2
    moved *= 2 if adjacency is acc.Adjacency.REPLACE_ONE else 1
    multiplier = (2 if adjacency is acc.Adjacency.REPLACE_ONE else 1) / math.sqrt(moved)
    expected = acc.epsilon(acc.Gaussian(multiplier), 1e-5, adjacency=adjacency)
    priced = acc.epsilon(found.mechanism, 1e-5, adjacency=adjacency)
    assert priced == pytest.approx(expected, rel=2e-3)


def _divergence(steps, factor, epsilon):
    """δ(ε) of independent discrete Gaussians, each of `counts` numbers moved by one, by their law.

    `steps` holds (σ, how many). The loss of one is (2y − 1)/(2σ²), so that those of one σ are a
    lattice, over which the law of their sum is a convolution.
    """
    losses, masses = np.zeros(1), np.ones(1)
    for stddev, count in steps:
        y = np.arange(-14 * int(stddev + 1), 14 * int(stddev + 1) + 1)
        law = np.exp(-0.5 * (y / stddev) ** 2)
        law = one = law / law.sum()
        for _ in range(factor * count - 1):
            law = np.convolve(law, one)
        total = factor * count * y[0] + np.arange(len(law))
        loss = (2 * total - factor * count) / (2 * stddev**2)
        losses = (losses[:, None] + loss).ravel()
        masses = (masses[:, None] * law).ravel()
    # From the first data set, under whose law y has mean 0: its loss against the second is −loss.
    return np.sum(masses * np.clip(-np.expm1(epsilon + losses), 0, None))


@pytest.mark.parametrize("adjacency", BOTH)
def test_the_classes_own_look_is_priced_by_its_own_noise(adjacency):
    found = table(people(10), stddev=5.0, target_stddev=3.0, numeric=("age", "gain"))
    unknown, first, following = found._histograms
    assert (unknown, first, following) == (0, 3, 2)
    factor = 2 if adjacency is acc.Adjacency.REPLACE_ONE else 1
    for epsilon in (0.1, 0.7, 2.0):
        exact = _divergence([(5.0, 5), (3.0, 1)], factor, epsilon)
        priced = acc.delta(found.mechanism, epsilon, adjacency=adjacency)
        assert exact <= priced <= exact * (1 + 1e-3)
    # Without a look of their own the classes are counted as a column is, as they were in 0.1.
    shared = replace(found, target_stddev=None)
    assert shared.mechanism == acc.Repeated(acc.Histogram(5.0), 6)
    assert shared.class_threshold == shared.threshold
    declared = replace(found, schema=Schema((), target="paid", classes=("low", "high")))
    assert declared.mechanism == acc.Repeated(acc.Histogram(5.0), 5)


def _counts(found, frame, answers, monkeypatch):
    """Every count vector of a release, whose outcomes are `answers`, or become them."""
    seen = {}

    def noisy(self, counts, look, scale=1.0):
        place = (len(seen), look, scale)
        seen[place] = np.asarray(counts)
        return answers.setdefault(place, seen[place])

    def values(self, texts):
        place = (len(seen), 1, 1.0)
        seen[place] = Counter(texts.tolist())
        names, counts = np.unique(texts, return_counts=True)
        return answers.setdefault(place, (tuple(names.tolist()), counts))

    monkeypatch.setattr(private_table._Looks, "noisy", noisy)
    monkeypatch.setattr(private_table._Looks, "values", values)
    found.release(frame, jax.random.key(0))
    return seen


def _distance(one, other):
    if isinstance(one, Counter):
        return sum((one[value] - other[value]) ** 2 for value in one | other)
    return int(np.sum((one - other) ** 2))


@pytest.mark.parametrize(
    ("encoding", "rough"),
    [("tail-bins", False), ("tail-bins", True), ("grid", False), ("bins-and-line", False)],
)
@pytest.mark.parametrize("change", ["add", "replace"])
def test_a_record_moves_the_counts_by_no_more_than_is_priced(encoding, rough, change, monkeypatch):
    frame = people(300)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        cells = [rng.choice(["7", "1e300", "-3", "x", "", "baker"]) for _ in range(4)]
        other = frame.copy()
        place = len(frame) if change == "add" else int(rng.integers(len(frame)))
        other.loc[place] = cells
        shared = {"buckets": encoding == "bins-and-line"}
        found = table(frame, zooms=1, encoding=encoding, rough_kinds=rough, **shared)
        answers = {}
        before = _counts(found, frame, answers, monkeypatch)
        after = _counts(found, other, answers, monkeypatch)  # on the same released outcomes
        assert before.keys() == after.keys()
        unknown, first, following = found._histograms
        factor = 1 if change == "add" else 2
        for scale, most in ((4.0, unknown), (1.0, first + 2 * following)):
            moved = sum(_distance(before[p], after[p]) for p in before if p[2] == scale)
            assert moved <= factor * most
        assert sum(_distance(before[p], after[p]) for p in before) > 0


def test_the_noise_is_of_the_stated_law_and_of_keys_that_training_has_not(monkeypatch):
    frame, key, used = people(50), jax.random.key(3), []
    real = private_table.discrete_gaussian

    def recorded(one, stddev, shape):
        used.append((jax.random.key_data(one).tobytes(), stddev))
        return real(one, stddev, shape)

    monkeypatch.setattr(private_table, "discrete_gaussian", recorded)
    table(frame, target_stddev=5.0).release(frame, key)
    drawn = [name for name, _ in used]
    assert len(set(drawn)) == len(drawn)
    own = [key, *(jax.random.fold_in(key, number) for number in range(4))]
    assert not {jax.random.key_data(one).tobytes() for one in own} & set(drawn)
    assert {stddev for _, stddev in used} == {8.0, 5.0}
    assert [stddev for _, stddev in used].count(5.0) == 1
    used.clear()
    table(frame, rough_kinds=True).release(frame, key)
    assert {stddev for _, stddev in used} == {8.0, 32.0}


def test_a_release_is_a_function_of_the_key_and_of_the_records_without_their_order():
    frame, key = people(500), jax.random.key(0)
    found = table(frame)
    mixed = frame.sample(frac=1.0, random_state=1).reset_index(drop=True)
    assert found.release(frame, key) == found.release(mixed, key)
    assert found.release(frame, key) != found.release(frame, jax.random.key(1))


# -------------------------------------------------------------------------------------- threshold


def _tail(stddev, least):
    """P(Y ≥ least) of the discrete Gaussian, by its sum."""
    k = np.arange(-40 * int(stddev) - 10, 40 * int(stddev) + 11)
    weights = np.exp(-0.5 * (k / stddev) ** 2)
    return weights[k >= least].sum() / weights.sum()


@pytest.mark.parametrize("stddev", [3.0, 8.0, 115.3])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3, 0.2])
@pytest.mark.parametrize("numeric", [None, COLUMNS])
def test_a_value_that_one_record_holds_passes_with_the_stated_probability(stddev, delta, numeric):
    found = table(people(10), stddev=stddev, threshold_delta=delta, numeric=numeric)
    lists = 4 if numeric is None else 1
    seen = 1 - (1 - _tail(stddev, found.threshold)) ** lists
    assert seen <= delta
    # No more is withheld than the bound on the tail and whole counts cost.
    assert 1 - (1 - _tail(stddev, found.threshold - 3)) ** lists > delta
    assert found.extra_delta == {private_table._THRESHOLD: delta}
    # Of classes with a look of their own too: the union is over lists of either noise.
    own = replace(found, target_stddev=3.5)
    columns = (1 - _tail(stddev, own.threshold)) ** (lists - 1)
    seen = 1 - columns * (1 - _tail(3.5, own.class_threshold))
    assert seen <= delta
    assert 1 - columns * (1 - _tail(3.5, own.class_threshold - 3)) > seen


def test_values_of_many_leave_and_those_of_one_do_not():
    frame = people().assign(job=lambda f: f.job.where(f.index > 0, "astronaut"))
    for seed in range(5):
        schema = table(frame).release(frame, jax.random.key(seed))
        assert schema.columns[2].categories == ("", "baker", "smith")
        assert schema.classes == ("high", "low")


def test_where_all_is_noise_no_value_leaves_and_nothing_is_refused():
    frame = people(30)
    schema = table(frame, stddev=100.0).release(frame, jax.random.key(0))
    data = encode_released(frame, schema)
    assert schema.classes == ()
    assert len(data) == 30
    assert set(data.labels.tolist()) == {0}


# ------------------------------------------------------------------------------------ bad records


def _awkward(n=400):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "constant": np.full(n, 7.0),
            "all missing": np.full(n, np.nan),
            "zero": np.zeros(n),
            "cauchy": rng.standard_cauchy(n),
            "1e300 once": np.r_[1e300, rng.normal(size=n - 1)],
            "inf": np.r_[np.inf, -np.inf, rng.normal(size=n - 2)],
            "subnormal": np.full(n, 5e-324),
            "beyond 2^53": (2**60 + rng.integers(0, 1000, n)).astype(float),
            "far": 1e6 + rng.normal(size=n),
            "huge": pd.Series([10**400, 1] * (n // 2), dtype=object),
            "text in numbers": pd.Series(["x"] * n).where(rng.random(n) < 0.3, "3"),
            "bool": rng.random(n) < 0.5,
            "id": [f"user{i}" for i in range(n)],
            "none": pd.Series(["a", None, "b", "a"] * (n // 4)),
            "look alike": pd.Series(["a", "a\u200b"] * (n // 2)),
            "nan as text": np.where(rng.random(n) < 0.5, "nan", "NaN"),
            "mixed": pd.Series([1, "1", 1.0, True] * (n // 4), dtype=object),
            "lists": pd.Series([[1], {"a": 2}, (3,), "x"] * (n // 4), dtype=object),
            "dates": pd.date_range("2020", periods=n),
            "complex": np.full(n, 1j),
            "y": np.where(rng.random(n) < 0.5, "p", "q"),
        }
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_column_is_refused_and_every_row_keeps_its_norm(encoding):
    frame = _awkward()
    names = tuple(frame.columns[:-1])
    found = PrivateTable(names, Schema((), target="y"), len(frame), 4.0, encoding=encoding)
    data = encode_released(frame, found.release(frame, jax.random.key(1)))
    assert np.isfinite(data.features).all()
    assert np.linalg.norm(data.features, axis=1).max() <= 1 + 1e-6
    assert data.learned == ()


def test_a_record_is_encoded_by_itself():
    frame = _awkward()
    names = tuple(frame.columns[:-1])
    found = PrivateTable(names, Schema((), target="y"), len(frame), 4.0)
    schema = found.release(frame, jax.random.key(1))
    whole = encode_released(frame, schema)
    for row in (0, 1, 2, 3, 399):
        alone = encode_released(frame.iloc[[row]], schema)
        np.testing.assert_array_equal(alone.features[0], whole.features[row])
        assert alone.labels[0] == whole.labels[row]


def test_bad_cells_are_missing_and_missing_is_a_category():
    columns = (
        Column("x", range=(0.0, 10.0)),
        Column("k", cuts=(1.0, 2.0)),
        Column("c", "category", categories=("", "u")),
    )
    schema = Schema(columns, target="y", classes=("a", "b"), missing=("?",))
    frame = pd.DataFrame(
        {
            "x": ["0", "ten", "99"],
            "k": ["1", "?", "3"],
            "c": [None, "u", "w"],
            "y": ["a", None, "b"],
        }
    )
    data = encode_released(frame, schema)
    expected = [[-1, 1, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 0, 1], [1, 0, 0, 1, 0, 0, 0]]
    np.testing.assert_allclose(data.features * math.sqrt(3), expected, atol=1e-6)
    assert data.labels.tolist() == [0, 0, 1]


# -------------------------------------------------------------------------------- what is learned


@pytest.mark.parametrize(
    "cell",
    [
        *(
            "1e99999999999999999999",
            "\ud800",
            "1e400",
        ),  # an exponent beyond decimals; half a character
        *(10**5_000, 10**400, Decimal("sNaN"), Decimal("1e999999"), 1 + 2j, b"\xff"),
        *([1, 2], np.array([1, 2]), {}, pd.NA, pd.NaT),
    ],
    ids=lambda cell: type(cell).__name__,
)
@pytest.mark.parametrize("name", ["age", "job", "paid"])
@pytest.mark.at_length(every=3)
def test_one_cell_of_any_kind_is_refused_nowhere_and_changes_no_other(cell, name):
    frame = people(400)
    odd = frame[name].tolist()
    odd[7] = cell
    odd = frame.assign(**{name: pd.Series(odd, dtype=object)})
    schema = table(odd, schema=Schema((Column("age", range=(0, 99)),), target="paid")).release(
        odd, jax.random.key(0)
    )
    assert schema.classes == ("high", "low")
    before, after = encode_released(frame, schema), encode_released(odd, schema)
    others = np.arange(400) != 7
    np.testing.assert_array_equal(after.features[others], before.features[others])
    np.testing.assert_array_equal(after.labels[others], before.labels[others])
    assert np.isfinite(after.features).all()


def test_without_noise_to_speak_of_the_quantiles_are_those_of_the_records():
    n, rng = 40_000, np.random.default_rng(1)
    frame = pd.DataFrame({"x": 50 + 20 * rng.normal(size=n), "y": rng.choice(["a", "b"], n)})
    make = lambda how: PrivateTable(("x",), Schema((), target="y"), n, 3.0, ("x",), how)  # noqa: E731
    column = lambda how: make(how).release(frame, jax.random.key(0)).columns[0]  # noqa: E731
    cuts = np.asarray(column("tail-bins").cuts)
    for q in (*np.arange(1, 10) / 10, 0.01, 0.99):
        assert np.min(np.abs(cuts - np.quantile(frame.x, q))) < 0.8
    low, high = column("range").range
    assert abs(low - np.quantile(frame.x, 0.005)) < 2
    assert abs(high - np.quantile(frame.x, 0.995)) < 2
    low, high = column("standard").range
    assert abs((low + high) / 2 - frame.x.mean()) < 0.5
    assert abs((high - low) / 6 - frame.x.std()) < 0.5
    asinh = column("asinh")
    assert asinh.scale == "asinh"
    assert abs(asinh.centre - 50) < 1
    assert abs(asinh.width - 20 * 1.349) < 1.5


def test_a_narrow_column_far_from_zero_needs_further_looks():
    n, rng = 20_000, np.random.default_rng(0)
    frame = pd.DataFrame({"x": 1e6 + rng.normal(size=n), "y": rng.choice(["a", "b"], n)})
    found = {}
    for zooms in (0, 4):
        one = PrivateTable(("x",), Schema((), target="y"), n, 10.0, ("x",), "asinh", zooms)
        found[zooms] = one.release(frame, jax.random.key(0)).columns[0]
    assert abs(found[4].centre - 1e6) < 0.1 < abs(found[0].centre - 1e6)
    assert 1 < found[4].width < 2


def test_an_amount_that_is_mostly_zero_keeps_its_tail():
    frame = people(20_000)
    one = table(frame, stddev=20.0, numeric=("age", "gain"))
    cuts = one.release(frame, jax.random.key(0)).columns[1].cuts
    top = np.quantile(frame.gain.astype(float), 0.98)
    assert max(cuts) > 0.7 * top
    # All that is not above zero is on one side of a cut.
    assert any(0 <= cut < 1 for cut in cuts)


def test_noise_far_beyond_the_numbers_moves_no_quantile(monkeypatch):
    """An empty cell that passed for one with records in the first look has none in the last."""
    frame = people(5_000)
    real = private_table._Looks.noisy

    def planted(self, counts, look, scale=1.0):
        found = real(self, counts, look, scale)
        if look == 1 and len(found) > 100:  # numbers, not texts
            found[-20] = 100  # five deviations, at about 2^46
        return found

    monkeypatch.setattr(private_table._Looks, "noisy", planted)
    for seed in range(12):
        one = table(frame, stddev=20.0, numeric=("age", "gain"), encoding="range")
        column = one.release(frame, jax.random.key(seed)).columns[0]
        assert 60 < column.range[1] < 150


def test_the_kind_of_a_column_follows_from_the_noisy_count_or_is_given():
    frame = people().assign(job=lambda f: f.job.where(f.index % 50 > 0, "12"))
    kinds = [c.kind for c in table(frame).release(frame, jax.random.key(0)).columns]
    assert kinds == ["number", "number", "category"]
    given = table(frame, numeric=("job",)).release(frame, jax.random.key(0))
    assert [c.kind for c in given.columns] == ["category", "category", "number"]


def test_a_kind_is_told_by_the_first_look_where_a_rough_one_is_wrong():
    """A column of 300 numbers by noise of 77, as it is at ε = 0.25 of seven columns."""
    n = 300
    schema = Schema((), target="y", classes=("a", "b"))
    wrong = {}
    for rough in (False, True):
        one = PrivateTable(("x",), schema, n, 77.0, rough_kinds=rough)
        kinds = []
        for seed in range(60):
            looks = private_table._Looks(one, jax.random.key(seed))
            numbers, texts = np.full(n, 3.5), np.full(n, "3.5", object)
            kind = looks.kind(numbers, texts) if rough else looks.kind_and_counts(numbers, texts)[0]
            kinds.append(kind)
        wrong[rough] = kinds.count("category")
    # P(2 N(0, 77²) > 300) = .026, and P(N(0, 2 · 308²) > 300) = .25, of 60.
    assert wrong[False] <= 5
    assert 7 <= wrong[True] <= 25


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1"] * 51 + ["x"] * 49, "number"),
        (["1"] * 49 + ["x"] * 51, "category"),
        (["1"] * 12 + ["x"] * 8 + [""] * 80, "number"),
        (["1"] * 8 + ["x"] * 12 + [""] * 80, "category"),
        (["True"] * 60 + ["1"] * 40, "category"),
        (["inf"] * 60 + ["1"] * 40, "category"),
    ],
)
def test_a_column_holds_numbers_where_more_cells_parse_than_are_other_texts(
    cells, kind, monkeypatch
):
    frame = pd.DataFrame({"x": cells, "y": ["a", "b"] * 50})
    one = PrivateTable(("x",), Schema((), target="y"), 100, 3.0)
    monkeypatch.setattr(private_table._Looks, "noisy", lambda self, counts, *_: np.asarray(counts))
    assert one.release(frame, jax.random.key(0)).columns[0].kind == kind


def test_numbers_that_do_not_stand_out_are_where_all_records_likeliest_lie():
    """By the normal law of the noise, over all cells, of every run of at most eight cells."""
    stddev, n = 40.0, 100
    for seed in range(20):
        counts = np.random.default_rng(seed).normal(scale=stddev, size=60)
        counts[20:23] += n / 3
        found = private_table._find_likeliest(counts, n, stddev)
        runs = [np.arange(0)]
        runs += [np.arange(a, a + size) for size in range(1, 9) for a in range(61 - size)]

        def log_likelihood(run, counts=counts):
            means = np.zeros(60)
            means[run] = n / max(len(run), 1)
            least = private_table._LEAST_EVIDENCE if len(run) else 0.0
            return -np.sum((counts - means) ** 2) / (2 * stddev**2) - least

        best = max(runs, key=log_likelihood)
        assert found.tolist() == best.tolist()
    assert len(private_table._find_likeliest(np.full(60, -1.0), n, 1.0)) == 0


def test_of_numbers_without_a_likely_place_it_is_learned_which_are_above_zero(monkeypatch):
    frame = people(30)
    monkeypatch.setattr(
        private_table._Looks, "noisy", lambda self, counts, *_: np.full(np.shape(counts), -1)
    )
    found = table(frame, numeric=("age", "gain")).release(frame, jax.random.key(0))
    assert [column.cuts for column in found.columns] == [(0.0,), (0.0,), None]
    assert np.isfinite(encode_released(frame, found).features).all()


@pytest.mark.parametrize("encoding", [how for how in ENCODINGS if how != "grid"])
def test_a_column_of_which_noise_hid_all_is_flagged_in_every_encoding(encoding, monkeypatch):
    def flags() -> set[str]:
        made = table(frame, numeric=("age", "gain"), encoding=encoding)
        found = made.release(frame, jax.random.key(0))
        return {remark_on(column) for column in found.columns if column.kind == "number"}

    frame = people(2_000).assign(gain=np.arange(2_000) % 2.0)
    assert flags() == {""}
    monkeypatch.setattr(
        private_table._Looks, "noisy", lambda self, counts, *_: np.full(np.shape(counts), -1)
    )
    assert flags() == {"at most one number stood out of the noise"}


def test_numbers_in_two_cells_that_noise_hides_are_found_where_they_are():
    """Of 300 records 150 are in either cell, and noise of 50 passes 174 in one of 195 cells."""
    n, hits = 300, {False: 0, True: 0}
    numbers = np.r_[np.linspace(20, 31, n // 2), np.linspace(33, 60, n // 2)]
    frame = pd.DataFrame({"x": numbers, "y": np.where(numbers > 32, "a", "b")})
    schema = Schema((), target="y", classes=("a", "b"))
    for rough in hits:
        one = PrivateTable(("x",), schema, n, 50.0, ("x",), "asinh", rough_kinds=rough)
        for seed in range(30):
            column = one.release(frame, jax.random.key(seed)).columns[0]
            hits[rough] += 8 <= column.range[0] <= column.range[1] <= 128
    assert hits[True] <= 16 < 21 <= hits[False]


def test_classes_that_are_numbers_are_in_their_own_order():
    frame = people().assign(paid=lambda f: np.where(f.paid == "low", "9", "10"))
    assert table(frame).release(frame, jax.random.key(0)).classes == ("9", "10")


# --------------------------------------------------------------------------------- public schemas


def test_what_is_declared_is_kept_column_by_column_and_said():
    job = Column("job", "category", categories=("baker", "smith"))
    schema = Schema((Column("age", range=(18, 90)), job), target="paid", classes=("low", "high"))
    frame = people()
    found = table(frame, schema=schema, numeric=("gain",))
    released = found.release(frame, jax.random.key(0))
    assert released.columns[0] == schema.columns[0]
    assert released.columns[2] == job
    assert released.classes == ("low", "high")
    assert released.columns[1].cuts is not None
    assert found.extra_delta == {}
    assert found.public[:4] == (
        "public: ranges of age: given by the user",
        "public: categories of job: given by the user",
        "public: which columns hold numbers (gain): given by the user",
        "public: classes of paid: given by the user",
    )
    assert "the number of records and how a file is divided into them" in found.public[-1]


def test_declared_cuts_are_kept_and_cost_nothing():
    schema = Schema((Column("age", cuts=(30.0, 60.0)),), target="paid", classes=("low", "high"))
    frame = people(50)
    found = PrivateTable(("age",), schema, len(frame), 8.0)
    assert found.mechanism == acc.Composed(())
    assert found.public[0] == "public: ranges of age: given by the user"
    released = found.release(frame, jax.random.key(0))
    assert released.columns == schema.columns
    origins = [c["origin"] for c in describe_encoding(released, schema)["columns"]]
    assert origins == ["public, from a schema"]
    # Those that are learned of a column that is declared are not public.
    named = replace(schema, columns=(Column("age"),))
    learned = describe_encoding(
        replace(found, schema=named).release(frame, jax.random.key(0)), named
    )
    assert learned["columns"][0]["cuts"] is not None
    assert learned["columns"][0]["origin"] != origins[0]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("scale", ["linear", "log", "asinh"])
def test_a_declared_scale_without_a_range_is_refused_nowhere_after_the_looks(encoding, scale):
    frame = people(500).assign(age=np.random.default_rng(0).normal(size=500))
    schema = Schema((Column("age", scale=scale),), target="paid")
    found = table(frame, schema=schema, encoding=encoding).release(frame, jax.random.key(0))
    assert np.isfinite(encode_released(frame, found).features).all()


def test_a_table_that_is_all_declared_releases_nothing():
    columns = (
        Column("age", range=(18, 90)),
        Column("gain", range=(0, 1e5), scale="log"),
        Column("job", "category", categories=("baker", "smith")),
    )
    schema = Schema(columns, target="paid", classes=("low", "high"))
    frame = people(50)
    found = PrivateTable.for_budget(COLUMNS, schema, 50, epsilon=1.0, delta=1e-5)
    assert found.mechanism == acc.Composed(())
    assert found.release(frame, jax.random.key(0)).columns == columns


# ---------------------------------------------------------------------------------------- budgets


def _budget(records, epsilon=1.0, **settings):
    """A table of three columns and its target, within (ε, 1e-5)."""
    return PrivateTable.for_budget(
        COLUMNS, Schema((), target="paid"), records, epsilon=epsilon, delta=1e-5, **settings
    )


def _part(found, mu, adjacency=acc.Adjacency.ADD_REMOVE):
    """What the looks at columns, and that at the classes, take of μ², by the sum of 1/σ²."""
    unknown, first, following = found._histograms
    each = 2 if adjacency is acc.Adjacency.REPLACE_ONE else 1
    columns = (unknown / 16 + first + following) / found.stddev**2
    return each * columns / mu**2, each / found.target_stddev**2 / mu**2


def test_columns_take_three_per_cent_of_rho_and_classes_one_and_more_where_records_are_few():
    mu = 1 / float(acc.calibrate(acc.Gaussian, epsilon=1.0, delta=1e-5))
    for adjacency in BOTH:
        factor = 2 if adjacency is acc.Adjacency.REPLACE_ONE else 1
        many = _budget(100_000, adjacency=adjacency)
        assert _part(many, mu, adjacency) == pytest.approx((0.03, 0.01), rel=1e-6)
        multiplier = factor / (mu * math.sqrt(0.04))  # a record that is replaced moves a sum by 2
        expected = acc.epsilon(acc.Gaussian(multiplier), 1e-5, adjacency=adjacency)
        spent = acc.epsilon(many.mechanism, 1e-5, adjacency=adjacency)
        assert spent == pytest.approx(expected, rel=1e-5)
    few = _budget(5_000)
    assert _part(few, mu) == pytest.approx((0.15, 0.1), rel=1e-6)
    fewer = _budget(3_000)
    assert fewer.stddev == pytest.approx(3_000 / 150, rel=1e-6)
    several = _budget(16_000)  # lists of texts are worth more
    assert several.stddev == pytest.approx(16_000 / 400, rel=1e-6)
    numbers = _budget(16_000, numeric=COLUMNS)
    assert numbers.stddev > 16_000 / 400
    assert _part(numbers, mu)[0] == pytest.approx(0.03, rel=1e-6)
    between = _budget(12_000)
    assert between.target_stddev == pytest.approx(12_000 / 450, rel=1e-6)
    with pytest.warns(UserWarning, match=r"records should be at least 2,\d\d\d .* got 500"):
        fewest = _budget(500)
    assert _part(fewest, mu) == pytest.approx((0.4, 0.1), rel=1e-6)


def test_a_share_that_is_given_is_that_of_all_looks():
    mu = 1 / float(acc.calibrate(acc.Gaussian, epsilon=1.0, delta=1e-5))
    assert _part(_budget(1_000, share=0.2), mu) == pytest.approx((0.15, 0.05), rel=1e-6)
    given = _budget(100_000, share=0.2, target_share=0.15)
    assert _part(given, mu) == pytest.approx((0.05, 0.15), rel=1e-6)
    columns = tuple(Column(name, "ignore") for name in COLUMNS)
    alone = PrivateTable.for_budget(
        COLUMNS, Schema(columns, "paid"), 1_000, epsilon=1.0, delta=1e-5, share=0.2
    )
    assert _part(alone, mu) == pytest.approx((0.0, 0.2), rel=1e-6)
    for wrong in (-0.1, 0.2, 0.5):
        with pytest.raises(ValueError, match="target_share must be"):
            _budget(1_000, share=0.2, target_share=wrong)


@pytest.mark.parametrize("records", [2_000, 20_000, 1_000_000])
def test_without_a_share_of_their_own_classes_are_counted_as_by_the_rule_of_before(records):
    """Runs that were begun by it go on with the noise that they have drawn."""
    mu = 1 / float(np.asarray(acc.calibrate(acc.Gaussian, epsilon=1.0, delta=1e-5)))
    weight = 3 / 16 + 7
    share = min(max(0.03, weight * (150 / (records * mu)) ** 2), 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few records
        found = _budget(records, target_share=0, rough_kinds=True)
    assert found.stddev == math.sqrt(weight / share) / mu
    assert found.target_stddev is None


def test_a_class_of_few_is_seen_that_the_noise_of_many_columns_hid():
    names = tuple(f"c{number}" for number in range(40))
    n, rng = 8_000, np.random.default_rng(0)
    target = np.where(rng.permutation(n) < 450, "attack", "normal")
    frame = pd.DataFrame({name: np.zeros(n) for name in names}).assign(y=target)
    make = lambda **given: PrivateTable.for_budget(  # noqa: E731
        names, Schema((), target="y"), n, epsilon=0.25, delta=1e-5, encoding="grid", **given
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own, shared = make(), make(target_share=0)
    columns = Schema(tuple(Column(name, "ignore") for name in names), target="y")
    for seed in range(3):
        found = replace(own, schema=columns).release(frame, jax.random.key(seed))
        assert found.classes == ("attack", "normal")
        found = replace(shared, schema=columns).release(frame, jax.random.key(seed))
        assert found.classes == ("normal",)


def test_table_and_training_are_one_certificate():
    found = PrivateTable.for_budget(
        COLUMNS, Schema((), target="paid"), 20_000, epsilon=1.0, delta=1e-5
    )
    train = acc.Repeated(acc.PoissonSampled(acc.Gaussian(5.0), 0.05), 100)
    whole = acc.Composed((found.mechanism, train))
    certificate = acc.certify(whole, 1e-5, extra_delta=found.extra_delta, assumptions=found.public)
    assert certificate.verify().epsilon == certificate.epsilon
    assert certificate.tier == "proven"
    assert certificate.not_covered == ()
    # Within 1e-6 of Gaussian noise of the same deviation.
    unknown, first, following = found._histograms
    moved = (unknown / 16 + first + following) / found.stddev**2 + 1 / found.target_stddev**2
    gaussian = acc.Composed((acc.Gaussian(1 / math.sqrt(moved)), train))
    expected = acc.epsilon(gaussian, 9e-6)
    assert certificate.epsilon == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"stddev": 2.0}, "stddev must be"),
        ({"records": 0}, "records must be"),
        ({"encoding": "rank"}, "encoding must be"),
        ({"zooms": -1}, "zooms must be"),
        ({"threshold_delta": 0.0}, "threshold_delta must be"),
        ({"schema": Schema(())}, "schema must name the target"),
        ({"numeric": ("agee",)}, "numeric names 'agee', which is no feature column"),
        ({"schema": Schema((Column("x"),), target="paid")}, "the schema names 'x'"),
        ({"stddev": 1e19}, r"stddev must be .*1e\+15"),
        ({"schema": Schema((), target="job")}, "each once, got 'job', the target"),
        ({"columns": ("age", "gain", "age")}, "each once, got 'age', twice the same"),
    ],
)
def test_bad_arguments_are_named(settings, told):
    usual = {"columns": COLUMNS, "schema": Schema((), target="paid"), "records": 10, "stddev": 8.0}
    with pytest.raises(ValueError, match=told):
        PrivateTable(**{**usual, **settings})


@pytest.mark.parametrize("threshold", [1e-5, 1e-4, 0.0])
def test_a_threshold_that_takes_all_of_delta_is_refused_before_a_record_is_read(threshold):
    with pytest.raises(ValueError, match=r"threshold_delta must be .*1e-05"):
        PrivateTable.for_budget(
            COLUMNS, Schema((), target="paid"), 10_000, epsilon=1.0, delta=1e-5,
            threshold_delta=threshold,
        )  # fmt: skip


def test_the_largest_noise_that_is_taken_can_be_drawn():
    frame = people(50)
    for encoding in ENCODINGS:
        found = table(frame, stddev=private_table._MOST_STDDEV, encoding=encoding)
        assert found.release(frame, jax.random.key(0)).classes == ()


def test_a_missing_column_is_named():
    with pytest.raises(DataError, match="the column 'gain' is missing; the columns are age, job"):
        table(people(10)).release(people(10).drop(columns="gain"), jax.random.key(0))


# ----------------------------------------------------------------------------------- warnings, keys


def test_no_warning_of_numpy_shows_that_a_column_is_odd():
    frame = _awkward()
    names = tuple(frame.columns[:-1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)  # of a later release, at any column
        one = PrivateTable(names, Schema((), target="y"), len(frame), 40.0)
        encode_released(frame, one.release(frame, jax.random.key(2)))


def test_the_keys_of_a_table_are_none_of_those_that_training_draws():
    names = ("TABLE_FOLD", "SPLIT_FOLD", "SCORE_FOLD", "ROW_FOLD")
    folds = [getattr(private_table, name) for name in names]
    key = jax.random.key(7)
    own = {bytes(words(fold_in_words(key, fold))) for fold in folds}
    # A solver splits the key by its classes, or folds in the number of a round: below 2^31.
    rounds = jax.vmap(lambda number: jax.random.fold_in(key, number))(np.arange(3_000))
    drawn = {bytes(row) for keys in (rounds, jax.random.split(key, 3_000)) for row in words(keys)}
    assert len(own) == 4
    assert drawn.isdisjoint(own)
    assert all(2**31 <= fold < 2**32 - 2 for fold in folds)  # the last two are a sampler's
    assert bytes(words(fold_in_words(key, 16))) in drawn


def test_the_nearest_rising_sequence_is_that_of_scipy():
    from scipy.optimize import isotonic_regression

    from dpjax.data.private_table import nearest_rising

    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 50):
        for values in rng.normal(size=(20, size)).cumsum(axis=1):
            np.testing.assert_allclose(
                nearest_rising(values), isotonic_regression(values).x, rtol=1e-12, atol=1e-12
            )
