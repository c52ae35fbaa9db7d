"""Real data sets by name: their facts, and refusal of files that are something else."""

from __future__ import annotations

import hashlib
import pathlib

import pytest

from dpjax import data
from dpjax.data import catalogue


def test_bundled_data_needs_neither_files_nor_schema():
    table = data.load_table("digits")
    found = data.from_frame(table.train, target=table.target, schema=table.schema)
    assert found.features.shape == (1797, 64)
    assert found.learned == ()
    assert found.classes == tuple("0123456789")
    assert data.load_table("breast-cancer").train.shape == (569, 31)


@pytest.mark.parametrize(
    ("name", "rows", "columns", "test_rows"),
    [
        ("adult", 32_561, 15, 16_281),
        ("bank", 45_211, 17, None),
        ("sonar", 208, 61, None),
        ("boston", 506, 14, None),
        ("admission", 500, 9, None),
        ("swedish-auto", 63, 2, None),
        ("swedish-motor", 2_182, 7, None),
        ("mnist", 60_000, 785, 10_000),
    ],
)
def test_published_facts_hold_of_the_real_files(data_dir, name, rows, columns, test_rows):
    table = data.load_table(name, data_dir)
    assert table.train.shape == (rows, columns)
    assert (None if table.test is None else len(table.test)) == test_rows
    assert table.target in table.train.columns


@pytest.mark.at_length
def test_the_adult_schema_covers_everything(data_dir):
    root = pathlib.Path(__file__).resolve().parents[2]
    schema = data.read_schema(root / "experiments" / "adult" / "schema.toml")
    assert len(schema.columns) == 14
    frame = data.read_table(data_dir / "adult" / "adult.data.gz", schema=schema)
    held_out = data.read_table(data_dir / "adult" / "adult.test.gz", schema=schema)
    train = data.from_frame(frame, target=None, schema=schema)
    assert train.learned == ()
    assert (train.labels == 0).sum() == 24_720
    test = data.encode(held_out, schema)
    assert len(test) == 16_281
    assert (test.labels == 0).sum() == 12_435


def test_a_file_that_is_not_the_published_one_is_refused(tmp_path):
    (tmp_path / "sonar.all-data").write_text(("0.5," * 60 + "R\n" + "0.5," * 60 + "M\n") * 5)
    with pytest.raises(data.DataError, match=r"sonar\.all-data has 10 rows where sonar .* 208"):
        data.load_table("sonar", tmp_path)
    with pytest.raises(data.DataError, match="no data set named 'sonnar'; known are"):
        data.load_table("sonnar")


@pytest.fixture
def far_away(tmp_path, monkeypatch):
    """The sonar file on a 'server' (a file URL), an empty cache, and no other place to look."""
    served = tmp_path / "served.csv"
    served.write_text("".join("0.5," * 60 + ("M\n" if i < 111 else "R\n") for i in range(208)))
    digest = hashlib.sha256(served.read_bytes()).hexdigest()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    published = catalogue.SOURCES["sonar"]
    file = published.files[0]._replace(url=served.as_uri(), sha256=digest)
    monkeypatch.setitem(catalogue.SOURCES, "sonar", published._replace(files=(file,)))
    return served


def test_a_fetched_file_is_kept_and_found_again(far_away, tmp_path):
    assert data.load_table("sonar").train.shape == (208, 61)
    assert (tmp_path / "cache" / "dpjax" / "sonar" / "sonar.all-data").exists()
    far_away.unlink()
    assert data.load_table("sonar").train.shape == (208, 61)
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_a_fetched_file_that_changed_is_not_kept(far_away, tmp_path):
    far_away.write_text(far_away.read_text() + "\n")
    with pytest.raises(data.DataError, match="no longer serves the published file"):
        data.load_table("sonar")
    assert not list((tmp_path / "cache").rglob("sonar*"))
    far_away.unlink()
    with pytest.raises(data.DataError, match=r"fetching .* failed"):
        data.load_table("sonar")


def test_what_cannot_be_fetched_says_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    with pytest.raises(data.DataError, match=r"put Admission_Predict_Ver1\.1\.csv into a folder"):
        data.load_table("admission")
