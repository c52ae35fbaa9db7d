"""Reading, schemas and encoding: what comes out, and what is refused."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
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
        ("a.csv", "x,y\ncafé,2\n".encode("latin-1"), "a.csv is not text in UTF-8; save it so"),
        ("a.csv", "x,y\n1,2\n".encode("utf-16"), "a.csv is not text in UTF-8; save it so"),
        ("a.csv", "x,y\n", "no rows below its header"),
        ("a.csv", "x,y\n1,2\n1,2,3\n", "line 3: 3 cells where the first row has 2"),
        ("a.csv", "x,y\n1\n", "line 2: 1 cells"),
        ("a.csv", 'x,y\n1,2\n"3,2\n4,2\n', "line 3: a cell begins with a quote that is not closed"),
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


@pytest.mark.parametrize(
    ("row", "read"),
    [
        (b"4,\xff\xe9", ["4", "\ufffd\ufffd"]),  # no UTF-8
        (b"a" * 140_000 + b",b", ["a" * 140_000, "b"]),  # longer than the csv module takes
        (b"1,2,3", ["", ""]),
        (b"5,nan", ["5", ""]),
        (b"1e99999999999999999999,c", ["1e99999999999999999999", "c"]),
    ],
)
def test_as_written_one_bad_row_is_refused_nowhere_and_changes_no_other(tmp_path, row, read):
    path = write(tmp_path, "a.csv", b"x,y\n1,a\n" + row + b"\n2,b\n")
    found = data.read_table(path, target="y", as_written=True)
    assert found.to_numpy().tolist() == [["1", "a"], read, ["2", "b"]]


def test_a_number_too_large_for_a_decimal_is_a_class_of_its_own(tmp_path):
    path = write(tmp_path, "a.csv", "x,y\n1,1e99999999999999999999\n2,b\n")
    assert data.read_table(path, target="y")["y"].tolist() == ["1e99999999999999999999", "b"]


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
        ({"age": [np.nan] * 3}, "income", "'age' is empty; leave it out"),
        ({"job": [None] * 3}, "income", "'job' is empty; leave it out"),
        ({"Unnamed: 0": range(3)}, "income", "'Unnamed: 0' has no name in the file"),
    ],
)
def test_cells_that_cannot_be_encoded_are_named(change, target, message):
    with pytest.raises(data.DataError, match=message):
        data.from_frame(FRAME.assign(**change), target=target)


@pytest.mark.parametrize("cell", ["4O", "?", '"1,234"', "12%", "n/a", "-"])
def test_one_bad_cell_in_a_column_of_numbers_is_named_by_its_line(tmp_path, cell):
    # A quoted cell over two lines and an empty line before it: lines are those of an editor.
    text = f'age,note,income\n1,"two\nlines",a\n\n2,x,b\n{cell},x,a\n3,x,b\n'
    frame = data.read_table(write(tmp_path, "a.csv", text))
    shown = re.escape(cell.strip('"'))
    with pytest.raises(data.DataError, match=f"'age' holds '{shown}' in line 6 of a.csv"):
        data.from_frame(frame, target="income")
    declared = data.Schema((data.Column("age", "category"),), target="income")
    assert data.from_frame(frame, target="income", schema=declared).features.shape[0] == 4


@pytest.mark.parametrize(
    "text",
    [
        "#c\nx,c,y\n1,a#b,u\n#no\n\n2,z,v#\n3,#q,u\n",
        '#"\nx;c;y\n1;a#b;u\n#"no\n2;z;v#\n#\n3;"#q";u\n',
        'x\tc\ty\n"1"\ta#b\tu\n"2"\t"z"\tv#\n#no\ttoo\n3\t#q\tu\n',
    ],
)
def test_a_comment_is_a_line_and_no_part_of_a_cell(tmp_path, text):
    path, schema = write(tmp_path, "a.csv", text), data.Schema((), comment="#")
    found = data.read_table(path, schema=schema)
    assert found.to_dict("list") == {"x": [1, 2, 3], "c": ["a#b", "z", "#q"], "y": ["u", "v#", "u"]}
    numbers = found.attrs["lines"].numbers
    lines = text.split("\n")
    assert [lines[n - 1].strip('"')[0] for n in numbers] == ["1", "2", "3"]
    quoted = data.read_table(write(tmp_path, "b.csv", 'x,y\n"#1",u\n"2\n#3",v\n'), schema=schema)
    assert quoted.to_dict("list") == {"x": ["#1", "2\n#3"], "y": ["u", "v"]}
    assert quoted.attrs["lines"].numbers.tolist() == [2, 3]


@pytest.mark.parametrize("comment", [None, "#"])
def test_a_point_before_thousands_or_decimals_is_asked_for_by_its_line(tmp_path, comment):
    path = write(tmp_path, "paid.csv", "paid,y\n999,a\n-1.000,b\n2.500,a\n")
    read = lambda **marks: data.read_table(path, schema=data.Schema((), comment=comment, **marks))  # noqa: E731
    with pytest.raises(data.DataError, match=r"holds -1\.000 in line 3 of paid\.csv, and 999"):
        read()
    assert read(decimal=",", thousands=".").paid.tolist() == [999, -1000, 2500]
    assert read(thousands=",").paid.tolist() == [999, -1, 2.5]
    with pytest.raises(data.DataError, match=r"'paid' holds -1\.000 in row 1, and 999"):
        data.from_frame(data.read_table(path, as_written=True), target="y")


@pytest.mark.parametrize("cell", ["999.000", "0.999", "999.5", "1234", "1e2"])
def test_a_cell_of_another_form_says_what_a_point_stands_before(tmp_path, cell):
    path = write(tmp_path, "paid.csv", f"paid,y\n1.000,a\n{cell},b\n2.500,a\n")
    assert data.read_table(path).paid.tolist() == [1.0, float(cell), 2.5]


def test_a_column_of_words_with_a_few_numbers_is_a_category():
    frame = FRAME.assign(job=["baker", "7", "smith"])
    assert data.from_frame(frame, target="income").features.shape == (3, 4)


def test_lines_are_those_of_the_file_only_where_the_rows_are(tmp_path):
    frame = data.read_table(write(tmp_path, "a.csv", "x,y\n1,a\n2,b\n3,a\n"))
    moved = frame.iloc[::-1].assign(x=[3.0, np.nan, 1.0])
    with pytest.raises(data.DataError, match="'x' holds nan in row 1"):
        data.from_frame(moved, target="y")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,x,y\n1,2,a\n3,4,b\n", "two columns named 'x'"),
        ("x, x,y\n1,2,a\n3,4,b\n", "two columns named 'x'"),
        ("x,y\n1,01\n2,1\n", "the target 'y' is '01' in line 2 and '1' in line 3"),
        ("x,y\n1,1.0\n2,1\n", "'1.0' in line 2 and '1' in line 3, the same number"),
    ],
)
def test_what_pandas_would_quietly_change_is_refused(tmp_path, text, message):
    with pytest.raises(data.DataError, match=message):
        data.read_table(write(tmp_path, "a.csv", text), target="y")


def test_numbers_too_large_for_a_range_are_refused_and_clipped_by_a_declared_one():
    frame = FRAME.assign(age=[20.0, 1e308, -1e308])
    with pytest.raises(data.DataError, match=r"'age' holds 1e\+308 in row 1, beyond 1e\+30"):
        data.from_frame(frame, target="income")
    schema = data.Schema((data.Column("age", range=(0, 100)),), target="income")
    found = data.from_frame(frame, target="income", schema=schema).features[:, 0] * np.sqrt(2)
    np.testing.assert_allclose(found, [-0.6, 1.0, -1.0], atol=1e-6)
    with pytest.raises(data.DataError, match="low < high"):
        data.Column("age", range=(-1e308, 1e308))


def test_complex_numbers_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.ones((2, 2), complex), y=np.array([0, 1]))
    with pytest.raises(data.DataError, match="'features' holds complex128; give real numbers"):
        data.read_table(tmp_path / "a.npz", target="y")
    np.savez(tmp_path / "b.npz", features=np.ones((2, 2)), y=np.array([0, 1j]))
    with pytest.raises(data.DataError, match="'y' holds complex128"):
        data.read_table(tmp_path / "b.npz", target="y")
    with pytest.raises(data.DataError, match="'age' holds complex numbers"):
        data.from_frame(FRAME.assign(age=[1j, 2, 3]), target="income")


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


def test_categories_are_found_by_value_whatever_the_type_of_the_column():
    from dpjax.data.cells import class_name

    columns = [
        pd.Series(["u", "v", "w", "u"]),
        pd.Series([1, 2, 3, 1]),
        pd.Series([1.0, 2.5, 3.0, 1.0]),
        pd.Series([True, False, True, True]),
        pd.Series([1, True, "1", "v"], dtype=object),
        pd.Series(["u", "v", "u", "w"], dtype="category"),
    ]
    listed = ("u", "1", "2.5", "True", "v")
    schema = data.Schema((data.Column("c", "category", categories=listed),))
    for column in columns:
        found = data.encode_features(column.to_frame("c"), schema)
        expected = [[float(class_name(cell) == name) for name in listed] for cell in column]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("value", "name"),
    [(True, "True"), (np.False_, "False"), (1, "1"), (1.0, "1"), (np.float32(2.5), "2.5")],
)
def test_a_truth_is_no_number_on_any_python(value, name):
    listed = ("True", "False", "1", "2.5")
    schema = data.Schema((data.Column("c", "category", categories=listed),))
    frame = pd.Series([value, "other"], dtype=object).to_frame("c")
    found = data.encode_features(frame, schema)[0]
    np.testing.assert_array_equal(found, [float(one == name) for one in listed])


def test_a_file_as_it_is_written_has_texts_alone_and_refuses_no_row(tmp_path):
    file = tmp_path / "odd.csv"
    file.write_text('x,y\n01,"a, b"\n1\n4O,nan\n1,2,3\n , \n')
    found = data.read_table(file, as_written=True)
    assert found.to_numpy().tolist() == [
        ["01", "a, b"], ["", ""], ["4O", ""], ["", ""], ["", ""]
    ]  # fmt: skip
    with pytest.raises(data.DataError, match="line 3: 1 cells"):
        data.read_table(file)
    assert data.read_table(
        file, schema=data.Schema((), header=False, names=("a", "b")), as_written=True
    ).shape == (6, 2)


def test_without_a_header_the_first_record_does_not_decide_how_others_are_read(tmp_path):
    columns = (data.Column("x", range=(0, 1)),)
    schema = data.Schema(columns, target="y", header=False, names=("x", "y"))
    whole = b"1;a\n2;b\n"
    for first in (b"", b"9;9;9\n", b"one;two,three,four,five\n"):
        path = write(tmp_path, "a.csv", first + whole.replace(b";", b","))
        found = data.read_table(path, schema=schema, as_written=True)
        assert found.to_numpy().tolist()[-2:] == [["1", "a"], ["2", "b"]]
        path = write(tmp_path, "a.csv", first + whole)
        semicolons = replace(schema, separator=";")
        for rows in (semicolons, data.described_schema(data.describe_encoding(semicolons))):
            found = data.read_table(path, schema=rows, as_written=True)
            assert found.to_numpy().tolist()[-2:] == [["1", "a"], ["2", "b"]]
    tabs = write(tmp_path, "a.tsv", b"a,b,c\n1\ta\n")
    found = data.read_table(tabs, schema=schema, as_written=True)
    assert found.to_numpy().tolist() == [["", ""], ["1", "a"]]


def test_a_separator_is_said_in_a_schema_where_the_header_does_not_show_it(tmp_path):
    (tmp_path / "s.toml").write_text('target = "y"\nseparator = "|"\n')
    schema = data.read_schema(tmp_path / "s.toml")
    path = write(tmp_path, "a.csv", "x,x|y\n1|a\n2|b\n")
    for as_written in (False, True):
        found = data.read_table(path, schema=schema, as_written=as_written)
        assert list(found.columns) == ["x,x", "y"]
        assert found["y"].tolist() == ["a", "b"]


def test_of_a_private_libsvm_file_the_schema_names_the_columns(tmp_path):
    whole = "1 2:2.5 # a remark\n-1 1:1.0\n"
    columns = (data.Column("x0"), data.Column("x1", range=(0, 1)), data.Column("label"))
    rows = [["0", "2.5", "1"], ["1.0", "0", "-1"]]
    for odd in ("", "0 7:1\n", "0 0:1\n", "what is this\n", "+1 1:a 2:\ufffd b:3 :::\n"):
        path = write(tmp_path, "a.svm", whole + odd)
        found = data.read_table(path, schema=data.Schema(columns), as_written=True)
        assert list(found.columns) == ["x0", "x1", "label"]
        assert found.to_numpy().tolist()[:2] == rows
    assert found.to_numpy().tolist()[2] == ["a", "\ufffd", "1"]
    for names in ((), ("age", "x0"), ("x01",)):
        schema = data.Schema(tuple(map(data.Column, names)))
        with pytest.raises(data.DataError, match="a schema must name its columns x0, x1") as caught:
            data.read_table(path, schema=schema, as_written=True)
        assert "what" not in str(caught.value)


def test_of_a_private_parquet_file_a_missing_cell_changes_no_other(tmp_path):
    large = 2**53 + 1  # no float
    for name, numbers in (("whole", [large, 5]), ("gap", [large, None])):
        columns = pyarrow.table({"n": pyarrow.array(numbers, pyarrow.int64()), "y": ["a", None]})
        pyarrow.parquet.write_table(columns, tmp_path / f"{name}.parquet")
    schema = data.Schema((data.Column("n", "category", categories=("", str(large))),), target="y")
    for name in ("whole", "gap"):
        frame = data.read_table(tmp_path / f"{name}.parquet", as_written=True)
        assert str(frame["n"].iloc[0]) == str(large)
        found = data.encode_released(frame, replace(schema, classes=("a", "b"), missing=("",)))
        assert found.features[0].tolist() == [0.0, 1.0]
        assert found.labels[0] == 0
