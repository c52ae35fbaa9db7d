"""One record is one record: whatever its cells hold, the others are what they are without it.

The truth of CSV and TSV files is a reader of RFC 4180 that walks over characters, below; of the
other formats it is the list of records that the test wrote.
"""

from __future__ import annotations

import csv
import gzip
import io

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import data
from dpjax.cli import app
from dpjax.data import records
from dpjax.data.read import BROKEN_QUOTES
from dpjax.data.records import Records
from dpjax.data.single_cells import as_numbers, as_texts

CELLS = {
    "long": "a" * 131_073,
    "long lines": "1,hacked\n" * 16_000,
    "nul": "a\0b\0",
    "cr": "a\rb\r",
    "crlf": "a\r\nb\n\r\n",
    "quote": '"',
    "quotes": '""a"",""\n"""',
    "quote in front": '"a',
    "quote behind": 'a"',
    "marks": ",;\t#|,\n,,\n",
    "controls": "".join(map(chr, range(32))) + "\x7f\x80\x85\x9f\u2028\u2029",
    "bom": "\ufeff\ufeffa\ufeff",
    "nested": "[" * 20_000 + '{"a":' * 1_000,
    "blank": " \t ",
    "empty": "",
    "large": '0123456,"\n' * 1_000_000,
    "comment": "#a\n#b\n",
    "formula": '=cmd|" /C calc"!A0',
    "digits": "9" * 6_000,
    "marks of letters": "\u0301\u0327" * 200_000,
}
ROWS = [["1", "a"], ["2", 'b,\n"c'], ["3", "d"]]  # beside the hostile one
NAMES = ("x", "y")


def walk(text, separator):
    """The records of a text by RFC 4180, a character at a time."""
    records, record, cell, quoted, at = [], [], [], False, 0
    while at < len(text):
        here, after = text[at], text[at + 1 : at + 2]
        if quoted and here == '"' and after == '"':
            cell.append('"')
            at += 1
        elif quoted and here == '"':
            quoted = False
        elif quoted:
            cell.append(here)
        elif here == '"' and not cell:
            quoted = True
        elif here == separator:
            record, cell = [*record, "".join(cell)], []
        elif here == "\n" or (here == "\r" and after == "\n"):
            records.append([*record, "".join(cell)])
            record, cell = [], []
            at += here == "\r"
        else:
            cell.append(here)
        at += 1
    return records + ([[*record, "".join(cell)]] if record or cell else [])


def _write_table(rows, separator):
    out = io.StringIO()
    csv.writer(out, delimiter=separator, quoting=csv.QUOTE_ALL).writerows(rows)
    return out.getvalue()


def _read_file(path, text, header, *, as_written=True, names=NAMES):
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    separator = "\t" if ".tsv" in path.name else ","
    schema = data.Schema((), header=header, names=None if header else names, separator=separator)
    return data.read_table(path, schema=schema, as_written=as_written)


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz"])
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_of_any_kind_is_one_cell_of_one_record(tmp_path, name, kind, header):
    separator = "\t" if kind == "tsv" else ","
    if name == "large" and (kind != "csv" or header):
        pytest.skip("ten million characters once")
    for place in (0, 2):
        rows = [*ROWS[:place], ["9", CELLS[name]], *ROWS[place:]]
        text = _write_table([NAMES, *rows] if header else rows, separator)
        found = _read_file(tmp_path / f"a.{kind}", text, header).to_numpy().tolist()
        assert found == rows
        if len(text) < 500_000:
            assert found == walk(text, separator)[header:]
        if name == "large":
            break


@pytest.mark.parametrize("name", [name for name in CELLS if name not in ("large", "long lines")])
def test_in_the_open_a_cell_changes_no_other(tmp_path, name):
    rows = [*ROWS, ["9", CELLS[name]]]
    frame = _read_file(
        tmp_path / "a.csv", _write_table([NAMES, *rows], ","), True, as_written=False
    )
    assert frame["x"].tolist() == [1, 2, 3, 9]
    assert frame["y"].tolist()[:3] == [row[1] for row in ROWS]
    if CELLS[name].strip():
        # Before its version 3 pandas ends a cell at a NUL; a cell of nothing is missing.
        kept = CELLS[name] if int(pd.__version__.split(".")[0]) >= 3 else CELLS[name].split("\0")[0]
        assert frame["y"].iloc[3:].fillna("").item() == kept


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("zipped", [False, True])
def test_no_boundary_between_pieces_of_a_file_divides_a_record(tmp_path, ends, zipped):
    # Files are read in pieces of 8,192 bytes: a first record of every length puts every byte of
    # the others at such an end.
    small = [["é\0", '"'], ['a"\r\n', "\r"], ["", '""\n'], ["\ufeff", "z"]]
    body = _write_table(small, ",").replace("\r\n", ends).encode()
    name = tmp_path / ("a.csv.gz" if zipped else "a.csv")
    for pad in range(8_192 - len(body) - 8, 8_192):
        text = b"p" * pad + b",p" + ends.encode() + body
        found = _read_file(name, text, False).to_numpy().tolist()
        assert found[0] == ["p" * pad, "p"]
        assert found[1:] == walk(body.decode(), ",")


@pytest.mark.parametrize("bad", [b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\x80"])
def test_bytes_that_are_no_utf8_take_nothing_behind_them(tmp_path, bad):
    for cell in (bad, b'"' + bad + b'"', b'"' + bad + b"\n" + bad + b'"'):
        for text in (b"1,a\n9," + cell + b"\n2,b\n", b"1,a\n" + cell + b",9\n2,b\n"):
            found = _read_file(tmp_path / "a.csv", text, False).to_numpy().tolist()
            assert len(found) == 3
            assert (found[0], found[2]) == (["1", "a"], ["2", "b"])
            assert "9" in found[1]


def test_every_short_record_is_read_as_a_walk_over_its_characters_reads_it(tmp_path):
    # 1 to 3 characters of those that may end a cell, between two records that must not change.
    marks = ['"', ",", "\r", "a", "\0"]
    short = [a + b + c for a in ["", *marks] for b in ["", *marks] for c in marks]
    schema = data.Schema((), header=False, names=("x", "y", "z"))
    path = tmp_path / "a.csv"
    for odd in dict.fromkeys(short):
        text = f"1,2,3\n5,6,{odd}\n7,8,9\n"
        path.write_bytes(text.encode())
        found = data.read_table(path, schema=schema, as_written=True)
        true = walk(text, ",")
        if len(true) == 3:
            assert found.to_numpy()[[0, 2]].tolist() == [["1", "2", "3"], ["7", "8", "9"]]
            # CRs before the end of a line are parts of it.
            inner = true[1][2].rstrip("\r") if len(true[1]) == 3 else ""
            assert len(found) == 3
            if len(true[1]) == 3 and not odd.startswith('"'):
                assert found["z"].iloc[1] == inner
            assert found.attrs.get("division") is None
        else:
            assert found.attrs["division"] == BROKEN_QUOTES


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('1,a\n2,"b\n3,c\n', 2),  # never closed
        ('1,a\n2,"b\n3,"c"\n4,d\n', 3),  # closed by another, behind which a text follows
        ('1,a\n2,"b"c\n3,d\n', 3),  # within a line: it touches no other
    ],
)
def test_a_quote_that_never_closes_is_a_fact_of_the_file(tmp_path, text, count):
    found = _read_file(tmp_path / "a.csv", text, False)
    assert len(found) == count
    assert found.attrs.get("division") == (BROKEN_QUOTES if count != 3 or "4" in text else None)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("names", ['"x,y', 'x,"y'])
def test_a_quote_that_the_names_do_not_close_makes_no_names_of_private_records(
    tmp_path, names, end, closed
):
    cell = 'secret"' if closed else "secret"
    with pytest.raises(data.DataError, match="must stand in one line") as caught:
        _read_file(tmp_path / "a.csv", end.join([names, "1,a", f"2,{cell}", "3,b", ""]), True)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("limit", [131_072, 3])
def test_texts_of_all_marks_are_read_as_a_walk_over_their_characters_reads_them(limit):
    # `csv` reads plain records, and refuses others; the limit of a process decides which.
    before = csv.field_size_limit(limit)
    rng = np.random.default_rng(11)
    marks = np.array(['"', '""', '","', '"\n"', ",", "\n", "\r\n", "\r", "a", "b1", "\0", "é,"])
    told = 0
    try:
        for _ in range(4_000):
            text = "".join(rng.choice(marks, rng.integers(1, 30)))
            found = records.Records(io.StringIO(text, newline="\n"), ",")
            cells = [row for _, row in found]
            if found.broken is not None:
                told += 1
                continue
            # Empty lines are none; CRs before the end of a line are parts of that end.
            read, true = (
                [one for row in rows if (one := [cell.rstrip("\r") for cell in row]) != [""]]
                for rows in (cells, walk(text, ","))
            )
            assert read == true, text
    finally:
        csv.field_size_limit(before)
    assert 500 < told < 3_500


def test_plain_records_of_quoted_cells_are_left_to_the_fast_reader(monkeypatch):
    monkeypatch.delattr(records.Records, "_read_any")
    rows = [[str(n), 'a, "b"\nc' if n % 3 else ""] for n in range(1_000)]
    lines = io.StringIO(_write_table(rows, ","), newline="\n")
    assert [row for _, row in records.Records(lines, ",")] == rows


@pytest.mark.parametrize("code", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("as_written", [False, True])
def test_a_file_of_another_code_is_refused_by_its_first_line(tmp_path, code, as_written):
    # U+0A05 and U+010A hold the byte of a line end: taken for UTF-8 they would divide a record.
    (tmp_path / "a.csv").write_bytes('x,y\n1,"\u0a05\u010a"\n2,"c\nd"\n'.encode(code))
    with pytest.raises(data.DataError, match="is not text in UTF-8"):
        data.read_table(tmp_path / "a.csv", as_written=as_written)


@pytest.mark.parametrize("as_written", [False, True])
def test_two_columns_of_one_name_in_a_parquet_file_are_named(tmp_path, as_written):
    table = pyarrow.Table.from_arrays([pyarrow.array([1, 2])] * 3, names=["x", "y", "x"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(data.DataError, match=r"has two columns named 'x'$"):
        data.read_table(tmp_path / "a.parquet", as_written=as_written)


@pytest.mark.parametrize("cut", [1, 30, 10_000])
def test_a_gzipped_file_of_several_parts_is_one_table(tmp_path, cut):
    rows = [[str(n), 'a, "b"\n' if n % 2 else "é"] for n in range(2_000)]
    text = _write_table([NAMES, *rows], ",").encode()
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text[:cut]) + gzip.compress(text[cut:]))
    for as_written in (False, True):
        frame = data.read_table(tmp_path / "a.csv.gz", as_written=as_written)
        assert frame.astype(str).to_numpy().tolist() == rows


def test_an_old_file_of_cr_alone_is_read_by_its_header(tmp_path):
    found = _read_file(tmp_path / "a.csv", 'x,y\r1,a\r2,"b\rc"\r', True)
    assert found.to_numpy().tolist() == [["1", "a"], ["2", "b\rc"]]
    found = _read_file(tmp_path / "b.csv", "x,y\r\r\n1,a\r\r\n2,b\r\r\n", True)
    assert found.to_numpy().tolist() == [["1", "a"], ["2", "b"]]


@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("odd", ["a\rb", "\ra", "a\r", "\r\ra"])
def test_the_first_record_of_a_file_without_a_header_does_not_say_what_ends_lines(
    tmp_path, odd, quoted
):
    path = tmp_path / "a.csv"
    cell = f'"{odd}"' if quoted else odd
    path.write_bytes(("\n".join([f"1,{cell},0", *(f"{n},x,1" for n in range(2, 50))])).encode())
    schema = data.Schema((), target="y", header=False, names=("n", "word", "y"))
    frame = data.read_table(path, schema=schema, target="y")
    assert frame["n"].astype(int).tolist() == list(range(1, 50))


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
@pytest.mark.parametrize("odd", ["", "a", "\n", "\r", "\r\n", 'a"\n"', ",\n\r"])
def test_what_the_first_record_holds_does_not_say_what_ends_lines(tmp_path, odd, end):
    rows = [[odd, "b"], ["1", odd], ["2", "c"]]
    for names, width in (("x,y", 2), ('"x"', 1)):
        lines = [",".join('"' + cell.replace('"', '""') + '"' for cell in r[:width]) for r in rows]
        found = _read_file(tmp_path / "a.csv", end.join([names, *lines, ""]), True)
        assert found.to_numpy().tolist() == [row[:width] for row in rows]


def test_without_a_header_a_private_file_has_its_names_from_a_schema(tmp_path):
    with pytest.raises(data.DataError, match="a schema must name its columns") as caught:
        _read_file(tmp_path / "a.csv", "secret,1\n", False, names=None)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("odd", ["1\r2:7", "\0 1:5", "1 2:" + "9" * 200_000, "\x1c1 1:\ufeff", '"'])
def test_a_record_of_a_sparse_file_is_a_line(tmp_path, odd):
    schema = data.Schema((data.Column("x0"), data.Column("x1")), target="label")
    path = tmp_path / "a.svm"
    path.write_bytes(f"1 1:5\n{odd}\n-1 2:6\n".encode() + b"1 1:\xff\n")
    found = data.read_table(path, schema=schema, as_written=True).to_numpy().tolist()
    assert len(found) == 4
    assert (found[0], found[2]) == (["5", "0", "1"], ["0", "6", "-1"])


def _view(cells, kind, stored=None):
    return pyarrow.array(cells, stored or pyarrow.int64()).view(kind)


def _texts(*cells):
    return pyarrow.array(cells, pyarrow.binary()).view(pyarrow.string())


FAR = 2**62
PARQUET = {
    "text": (_texts(b"a", b"\xff", b"b"), _texts(b"a", b"b")),
    "dictionary": (
        pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, 1, 2]), _texts(b"a", b"\xff", b"b")),
        pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, 1]), _texts(b"a", b"b")),
    ),
    "list": (
        pyarrow.ListArray.from_arrays([0, 1, 2, 3], _texts(b"a", b"\xff", b"b")),
        pyarrow.ListArray.from_arrays([0, 1, 2], _texts(b"a", b"b")),
    ),
    "gap in a list": (pyarrow.array([[1], [None], [2]]), pyarrow.array([[1], [2]])),
    "nested": (pyarrow.array([[[[1]]], [[[2, 3]]], None]), pyarrow.array([[[[1]]], None])),
    "date": (
        _view([1, 10**9, 3], pyarrow.date32(), pyarrow.int32()),
        _view([1, 3], pyarrow.date32(), pyarrow.int32()),
    ),
    "hour": (_view([1, FAR, 3], pyarrow.time64("us")), _view([1, 3], pyarrow.time64("us"))),
    "time": (
        _view([1, FAR, 3], pyarrow.timestamp("us", "UTC")),
        _view([1, 3], pyarrow.timestamp("us", "UTC")),
    ),
    **{
        f"zone {zone} {unit} {far:.0e}": (
            _view([1, far, 3], pyarrow.timestamp(unit, zone)),
            _view([1, 3], pyarrow.timestamp(unit, zone)),
        )
        for zone in ("Europe/Berlin", "+01:00")
        for unit, far in (
            *(("us", FAR), ("us", -FAR), ("s", 2**40), ("ns", 2**63 - 1)),
            ("s", -(2**34)),  # the year 1425: pandas 2 reads past the end of a zone's table
        )
    },
    "whole": (pyarrow.array([2**53 + 1, None, 3]), pyarrow.array([2**53 + 1, 3])),
    "long": (pyarrow.array(["a", "b" * 10_000_000, "c"]), pyarrow.array(["a", "c"])),
    "quotes": (pyarrow.array(["a", '"\0\r\n', "c"]), pyarrow.array(["a", "c"])),
}


@pytest.mark.parametrize("name", PARQUET)
def test_a_cell_of_a_parquet_file_is_refused_nowhere_and_changes_no_other(tmp_path, name):
    read = []
    for at, column in enumerate(PARQUET[name]):
        others = {"n": pyarrow.array(range(len(column))), "y": ["u"] * len(column)}
        path = tmp_path / f"{at}.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"x": column, **others}), path)
        frame = data.read_table(path, as_written=True)
        assert list(frame.columns) == ["x", "n", "y"]
        assert len(frame["x"].to_numpy()) == len(column)  # by which a run knows its records again
        assert frame["n"].tolist() == list(range(len(column)))
        schema = data.Schema(())
        read.append((as_texts(frame["x"], schema), as_numbers(frame["x"], schema)))
    for hostile, plain in zip(*read, strict=True):
        np.testing.assert_array_equal(hostile[[0, 2]], plain)


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_of_a_frame_changes_no_other(name):
    deep: list = []
    for _ in range(50_000):
        deep = [deep]
    for odd in (CELLS[name], deep if name == "nested" else CELLS[name].encode()):
        cells = pd.Series(["1", odd, "2", 3, None], dtype=object)
        schema = data.Schema(())
        assert as_texts(cells, schema)[[0, 2, 3, 4]].tolist() == ["1", "2", "3", ""]
        np.testing.assert_array_equal(as_numbers(cells, schema)[[0, 2, 3, 4]], [1, 2, 3, np.nan])


class _Mute:
    def __str__(self):
        raise KeyError("no text")


class _Unequal:
    def __ne__(self, other):
        raise AttributeError("no comparison")


@pytest.mark.parametrize("odd", [_Mute(), _Unequal(), np.array([1, 2]), pd.Series([1]), type])
def test_an_object_without_a_text_is_missing_and_changes_no_other(odd):
    cells, schema = pd.Series(["1", None, "2"], dtype=object), data.Schema(())
    cells.array[1:2] = pd.Series([odd], dtype=object).array
    assert as_texts(cells, schema)[[0, 2]].tolist() == ["1", "2"]
    np.testing.assert_array_equal(as_numbers(cells, schema), [1, np.nan, 2])


def test_a_time_of_no_year_is_missing_in_a_frame_too():
    # 2^62 microseconds: a year of six digits, for which no zone has a table.
    times = pyarrow.table({"x": PARQUET[f"zone Europe/Berlin us {FAR:.0e}"][0]}).to_pandas()["x"]
    found = as_texts(times, data.Schema(()))
    assert found[1] == ""
    assert [text[:10] for text in found[[0, 2]]] == ["1970-01-01", "1970-01-01"]


@pytest.mark.at_length
def test_a_cell_that_poses_as_records_is_one_and_a_lost_quote_is_in_the_certificate(tmp_path):
    rows = [f"{age},{'yes' if age > 40 else 'no'}" for age in range(20, 60)] * 10
    cell = '"' + "30,hacked\n" * 14_000 + '",no'
    path, out = tmp_path / "people.csv", tmp_path / "run"
    path.write_text("\n".join(["age,y", *rows[:200], cell, *rows[200:], '"30,no', '31,"no"', ""]))
    quick = ("--target", "y", "--epsilon", "3", "--steps", "2", "--seed", "1")
    arguments = ["train", "--data", path, *quick, "--out", out]
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    assert "a quote in the file is opened" in " ".join(result.output.split())
    assert "hacked" not in (out / "model.json").read_text()
    certificate = acc.Certificate.from_json((out / "certificate.json").read_text())
    assert certificate.declared["records"] <= 402
    assert BROKEN_QUOTES in certificate.not_covered
    assert certificate.verify()


class _Slow(Records):
    """The same, of which `csv` reads no record."""

    def _read_plain(self):
        yield from (None for _ in self._take_lines())


def test_what_csv_reads_is_what_is_read_cell_after_cell():
    cells = ["", "a", '"a"', '""', '"a b"', ' "a"', '"a" ', '"a""b"', 'a"b', '"a,b"', '"', '"\n"']
    cells += [" a", "a ", "\0", "\r", '"\r"', "\x85", "\u2028", "\ufeff"]
    quick_ones = 0
    for separator in ",;\t|^]":
        for first in cells:
            for second in cells:
                text = f"{first}{separator}{second}\r\n1{separator}2\n"
                made = (
                    kind(io.StringIO(text, newline="\n"), separator) for kind in (Records, _Slow)
                )
                quick, slow = made
                assert list(quick) == list(slow), text
                assert quick.broken == slow.broken
                quick_ones += quick.broken is None
    assert quick_ones > 1_000
