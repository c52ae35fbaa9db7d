"""Reading, schemas and encoding: what comes out, and what is refused."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

from dpjax import data

ROWS = "age,job,income\n20,baker,low\n60,smith,high\n40,baker,low\n"
FRAME = pd.DataFrame(
    {"age": [20, 60, 40], "job": ["baker", "smith", "baker"], "income": ["low", "high", "low"]}
)


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "tsv", "semicolon", "parquet"])
def test_every_table_format_reads_the_same(tmp_path, kind):
    path = tmp_path / f"people.{'csv' if kind == 'semicolon' else kind}"
    if kind == "parquet":
        FRAME.to_parquet(path)
    else:
        separator = {"tsv": "\t", "semicolon": ";"}.get(kind, ",")
        text = ROWS.replace(",", separator).encode()
        path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    found = data.read_table(path)
    assert found.to_dict("list") == FRAME.to_dict("list")


def test_npz_and_libsvm_become_tables(tmp_path):
    x, y = np.array([[0.0, 2.0], [1.0, 0.0]]), np.array([1, -1])
    np.savez(tmp_path / "a.npz", features=x, labels=y)
    found = data.read_table(tmp_path / "a.npz", target="labels")
    assert found.to_dict("list") == {"x0": [0.0, 1.0], "x1": [2.0, 0.0], "labels": [1, -1]}
    path = write(tmp_path, "a.libsvm", "1 2:2.0\n-1 1:1.0\n")
    found = data.read_table(path)
    assert found["label"].tolist() == [1.0, -1.0]
    assert found[["x0", "x1"]].to_numpy().tolist() == x.tolist()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "x,y\n", "no rows below its header"),
        ("a.csv", "x,y\n1,2\n1,2,3\n", "line 3: 3 cells where the first row has 2"),
        ("a.csv", "x,y\n1\n", "line 2: 1 cells"),
        ("a.docx", "x", "unknown format"),
        ("a.npz", "not a zip", "does not read as npz"),
        ("a.parquet", "nope", "does not read as parquet"),
        ("a.csv.gz", "not gzip", "does not read as csv"),
        ("a.libsvm", "what is this\n", "does not read as libsvm"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, name, content, message):
    path = write(tmp_path, name, content)
    with pytest.raises(data.DataError, match=message):
        data.read_table(path)


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(data.DataError, match=r"there is no file .*nowhere\.csv"):
        data.read_table(tmp_path / "nowhere.csv")
    with pytest.raises(data.DataError, match="is a folder"):
        data.read_table(tmp_path)
    np.savez(tmp_path / "a.npz", features=np.ones((2, 2)))
    with pytest.raises(data.DataError, match="no array 'y' for the target; it has features"):
        data.read_table(tmp_path / "a.npz", target="y")


def test_encoding_is_ranges_one_hot_and_rows_of_norm_at_most_one():
    found = data.from_frame(FRAME, target="income")
    root = np.sqrt(2)
    expected = np.array([[-1, 1, 0], [1, 0, 1], [0, 1, 0]]) / root
    np.testing.assert_allclose(found.features, expected, atol=1e-7)
    assert found.classes == ("high", "low")
    assert found.labels.tolist() == [1, 0, 1]
    assert np.linalg.norm(found.features, axis=1).max() <= 1 + 1e-6
    assert len(found.learned) == 3


def test_a_full_schema_learns_nothing_and_clips_what_exceeds_it():
    columns = (
        data.Column("age", range=(0, 50)),
        data.Column("job", "category", categories=("smith", "tailor")),
    )
    schema = data.Schema(columns, target="income", classes=("low", "high"))
    found = data.from_frame(FRAME, target=None, schema=schema)
    assert found.learned == ()
    np.testing.assert_allclose(found.features[:, 0] * np.sqrt(2), [-0.2, 1.0, 0.6], atol=1e-6)
    assert found.features[0, 1:].tolist() == [0.0, 0.0]  # baker is not in the public list
    assert found.labels.tolist() == [0, 1, 0]


def test_what_is_learned_names_columns_and_never_values():
    schema = data.Schema((data.Column("age", range=(0, 100)),), target="income")
    text = " ".join(data.from_frame(FRAME, target=None, schema=schema).learned)
    assert "job" in text
    assert "age" not in text
    assert "baker" not in text
    assert "high" not in text


def test_a_record_encodes_by_itself():
    schema, _ = data.complete_schema(FRAME, "income")
    whole = data.encode(FRAME, schema).features
    alone = [data.encode(FRAME.iloc[[i]], schema).features[0] for i in range(3)]
    np.testing.assert_array_equal(whole, np.stack(alone))


@pytest.mark.parametrize(
    ("change", "target", "message"),
    [
        ({}, "salary", "no target column 'salary'; the columns are age, job, income"),
        ({"income": ["low"] * 3}, "income", "is constant"),
        ({"income": ["low", None, "high"]}, "income", "missing in row 1"),
        ({"age": [20.0, np.nan, 40.0]}, "income", "'age' holds nan in row 1"),
        ({"age": [20.0, np.inf, 40.0]}, "income", "'age' holds inf in row 1"),
        ({"job": ["baker", None, "smith"]}, "income", "'job' has no value in row 1"),
    ],
)
def test_cells_that_cannot_be_encoded_are_named(change, target, message):
    with pytest.raises(data.DataError, match=message):
        data.from_frame(FRAME.assign(**change), target=target)


def test_a_number_declared_and_text_found():
    schema = data.Schema((data.Column("job", range=(0, 1)),), target="income")
    with pytest.raises(
        data.DataError, match=r"'job' holds baker in row 0 .* declare the column a c"
    ):
        data.from_frame(FRAME, target=None, schema=schema)


def test_continuous_targets_are_not_classes():
    frame = pd.DataFrame({"x": range(200), "y": np.linspace(0, 1, 200)})
    with pytest.raises(data.DataError, match="200 different values in 200 rows"):
        data.from_frame(frame, target="y")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("columns = 3", "must be a list"),
        ("nonsense = 1", "unknown key 'nonsense'"),
        ('[[columns]]\nname = "a"\nrange = [3, 1]', "low < high"),
        ('[[columns]]\nname = "a"\nrange = [3]', r"give \[low, high\]"),
        ('[[columns]]\nname = "a"\nkind = "date"', "kind is 'date'"),
        ('[[columns]]\nname = "a"\n[[columns]]\nname = "a"', "declared twice"),
        ("[[columns]]\nrange = [0, 1]", "has no name"),
        ("target = ", "does not parse"),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused(tmp_path, text, message):
    with pytest.raises(data.DataError, match=message):
        data.read_schema(write(tmp_path, "s.toml", text))


def test_json_schemas_read_like_toml(tmp_path):
    toml = 'target = "y"\n[[columns]]\nname = "x"\nrange = [0, 1]\n'
    text = '{"target": "y", "columns": [{"name": "x", "range": [0, 1]}]}'
    one = data.read_schema(write(tmp_path, "s.toml", toml))
    assert one == data.read_schema(write(tmp_path, "s.json", text))
    with pytest.raises(data.DataError, match="cannot read the schema"):
        data.read_schema(tmp_path / "absent.toml")


def test_split_is_by_position_and_loses_nobody():
    whole = data.Dataset(np.arange(50, dtype=np.float32)[:, None], np.zeros(50, np.int32), ("a",))
    train, test = data.split(whole, 0.2)
    assert (len(train), len(test)) == (40, 10)
    both = np.concatenate([train.features, test.features]).ravel()
    assert sorted(both) == list(range(50))
    again, _ = data.split(whole, 0.2)
    assert (again.features == train.features).all()
