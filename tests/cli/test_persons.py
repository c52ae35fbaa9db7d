"""The unit of protection is a person with several rows: from a file to predictions."""

from __future__ import annotations

import csv
import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import data, training
from dpjax._numerics.warning import DpjaxWarning
from dpjax.cli import app, private, rows
from dpjax.cli.rows import Rows

QUICK = ["--target", "readmitted", "--epsilon", "3", "--steps", "20"]
COLUMNS = ["patient_id", "birth_date", "sex", "age", "weight", "crp", "code", "readmitted"]


def dpjax(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def _patients(persons, seed=0):
    """Rows of stays: several a person, missing cells, dates, a 40-valued code."""
    rng, rows = np.random.default_rng(seed), []
    for person in range(persons):
        born = f"{rng.integers(1930, 2005)}-{rng.integers(1, 13):02d}-{rng.integers(1, 29):02d}"
        for _ in range(1 + rng.poisson(1.0)):
            age = int(rng.integers(18, 95))
            crp = "" if rng.random() < 0.1 else f"{rng.gamma(3, 2):.1f}"
            stay = [f"P{person:05d}", born, rng.choice(["f", "m"]), str(age)]
            stay += [f"{rng.normal(75, 12):.1f}", crp, f"D{rng.integers(10, 50)}"]
            rows.append([*stay, "yes" if age > 60 else "no"])
    return rows


def _write(path, rows, decimal="."):
    apart = "," if decimal == "." else ";"
    lines = [[cell.replace(".", decimal) if at in (4, 5) else cell for at, cell in enumerate(row)]
             for row in rows]  # fmt: skip
    path.write_text("\n".join(apart.join(line) for line in [COLUMNS, *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    return _write(tmp_path_factory.mktemp("data") / "patients.csv", _patients(400))


@pytest.fixture(scope="module")
def finished(patients, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    asked = ("--person", "patient_id", "--ignore", "birth_date", "--records-per-person", "3")
    result = dpjax("train", "--data", patients, *QUICK, *asked, "--out", out)
    assert result.exit_code == 0, result.output
    return out, result.output


def _certificate(folder):
    return acc.Certificate.from_json((folder / "certificate.json").read_text())


@pytest.mark.at_length
def test_a_run_of_persons_says_so_and_keeps_no_id(finished):
    out, shown = finished
    certificate = _certificate(out)
    assert "training persons" in shown
    assert certificate.not_covered == ()
    assert "other" not in {one.code for one in (*certificate.not_covered, *certificate.assumptions)}
    declared = certificate.declared
    assert declared["unit"] == "person"
    assert (declared["person_column"], declared["records_per_person"]) == ("patient_id", 3)
    assert declared["columns_left_out"] == "birth_date"
    assert 0.7 * 400 < declared["records"] < 0.9 * 400  # persons, and not their rows
    assert certificate.delta == 1e-5
    told = " ".join(certificate.assumptions)
    assert "all that one person contributes" in told
    assert "at most one record of each person" in told
    assert "rows without one are left out" in told
    encoding = training.load_model(out).encoding
    kinds = {column["name"]: column["kind"] for column in encoding["columns"]}
    assert kinds["patient_id"] == kinds["birth_date"] == "ignore"
    for file in out.rglob("*"):
        assert file.is_dir() or b"P00" not in file.read_bytes(), file
    verified = dpjax("verify", out)
    assert verified.exit_code == 0
    assert "all records of one person" in " ".join(verified.output.split())


def _divided(rows, key, monkeypatch=None):
    """What a run of these rows looks at, counts and trains on."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=COLUMNS)
    persons = np.unique(frame["patient_id"], return_inverse=True)[1]
    return private._divide(Rows(frame, None, "readmitted", None, persons), key)


def _heavy(rows, stays=500):
    """The neighbouring table: one person more, with many rows that are like no other."""
    own = ["P99999", "1900-01-01", "x", "200", "500.0", "99.9", "SPY", "never"]
    return [*rows, *([own] * stays)]


def test_a_person_is_in_one_part_and_is_counted_once():
    import jax

    rows = _heavy(_patients(60))
    number = len({row[0] for row in rows})
    held = 0
    for seed in range(40):
        parts = _divided(rows, jax.random.key(seed))
        seen = [set(part["patient_id"]) for part in (parts.train, parts.counted)]
        assert not seen[0] & seen[1]
        assert len(seen[0] | seen[1]) == number
        assert set(parts.looked_at["patient_id"]) == seen[0]
        assert (len(parts.looked_at), len(parts.counted)) == (len(seen[0]), len(seen[1]))
        assert len(parts.persons) == len(parts.train)
        held += len(seen[1])
    # A fifth of the persons, whatever rows they have: 4 deviations of 2,440 coins.
    assert abs(held - 0.2 * 40 * number) < 4 * np.sqrt(40 * number * 0.16)


def test_the_row_of_a_person_is_drawn_by_chance_and_by_its_own_rows():
    import jax

    persons = np.array([4, 0, 4, 4, 0, 2])
    drawn = np.array([private._draw_row_of_each(jax.random.key(s), persons) for s in range(600)])
    assert drawn.shape == (600, 3)  # of persons 0, 2 and 4
    for at, own in enumerate([(1, 4), (5,), (0, 2, 3)]):
        counts = np.array([np.sum(drawn[:, at] == row) for row in own])
        assert counts.sum() == 600
        assert np.all(np.abs(counts - 600 / len(own)) < 5 * np.sqrt(600 / len(own)))


def _releases_the_spy(rows, keys):
    """In how many runs a value that one person alone holds is released."""
    import jax

    table = data.PrivateTable(("code",), data.Schema((), target="readmitted"), 300, stddev=8.0,
                              numeric=())  # fmt: skip
    found = 0
    for seed in range(keys):
        key = jax.random.key(seed)
        schema = table.release(_divided(rows, key).looked_at, key)
        found += "SPY" in (schema.columns[0].categories or ()) or "never" in (schema.classes or ())
    return found


def test_one_person_with_many_rows_moves_a_look_by_one(monkeypatch):
    rows = _heavy(_patients(300))
    assert _releases_the_spy(rows, 12) == 0
    # Planted: with all rows of a person in the looks, its value stands out of the noise.
    real = private._divide

    def uncapped(rows, key):
        parts = real(rows, key)
        return parts._replace(looked_at=parts.train)

    monkeypatch.setattr(private, "_divide", uncapped)
    assert _releases_the_spy(rows, 12) >= 6


@pytest.mark.parametrize("how", ["private", "from-records"])
@pytest.mark.at_length(every=2)
def test_training_is_told_of_persons_and_of_the_cap(patients, tmp_path, monkeypatch, how):
    seen = {}
    real = training.fit

    def recorded(loss, params, records, plan, **named):
        seen.update(named, plan=plan, records=records)
        return real(loss, params, records, plan, **named)

    monkeypatch.setattr(training, "fit", recorded)
    asked = ("--preprocessing", how, "--person", "patient_id", "--ignore", "birth_date")
    asked += ("--missing", "", "--compare-without-privacy", "--log-private-losses", "--json")
    result = dpjax("train", "--data", patients, *QUICK, *asked, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert seen["plan"].unit == "person"
    assert seen["records_per_user"] == 8
    users = seen["users"]
    assert len(np.unique(users)) == seen["plan"].population == 320 or how == "private"
    assert len(users) == len(seen["records"][1]) > seen["plan"].population
    # Of a person all rows are trained on, or none.
    certificate = _certificate(tmp_path / "run")
    assert certificate.declared["records"] == seen["plan"].population
    lines = " ".join(certificate.not_covered)
    assert "accuracy without privacy" in lines
    assert ("number of training persons (320)" in lines) is (how == "from-records")
    assert ("or a person of another name, moves others" in lines) is (how == "from-records")


def test_held_out_records_are_all_records_of_some_users():
    users = np.repeat(np.arange(50), np.arange(1, 51))
    features = users[:, None].astype(np.float32) / 1e3
    records = data.Dataset(features, users.astype(np.int32), ("a",), users=users)
    assert records.population == 50
    train, test = data.split(records)
    assert (train.population, test.population) == (40, 10)
    assert not set(train.users) & set(test.users)
    np.testing.assert_array_equal(np.sort([*train.labels, *test.labels]), users)
    assert len(test) == sum(number + 1 for number in set(test.users))
    # One person more moves others, which is why the certificate of such a run says so.
    later = np.append(users, 50)
    more = dataclasses.replace(
        records, features=later[:, None] / 1e3, labels=later.astype(np.int32), users=later
    )
    assert set(data.split(more)[1].users) - {50} != set(test.users)


@pytest.mark.at_length
def test_a_run_of_persons_resumes_and_is_booked_as_one(patients, tmp_path, monkeypatch):
    file, out = tmp_path / "patients.ledger.json", tmp_path / "run"
    budget = ("--epsilon", "4", "--delta", "1e-3", "--data", patients)
    dpjax("ledger", tmp_path / "records.json", *budget)
    assert dpjax("ledger", file, *budget, "--unit", "person").exit_code == 0
    asked = ("train", "--data", patients, *QUICK, "--person", "patient_id", "--out", out)
    wrong = dpjax(*asked, "--ledger", tmp_path / "records.json")
    assert (wrong.exit_code, out.exists()) == (2, False)
    assert "--ledger must be of the unit person" in wrong.output
    real = training.fit

    def interrupted(*positional, on_log, **named):
        def stop(row):
            on_log(row)
            if row["step"] == 10:
                raise KeyboardInterrupt

        return real(*positional, on_log=stop, checkpoint_every=1, **named)

    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", interrupted)
        assert dpjax(*asked, "--ledger", file).exit_code == 130
    other = dpjax(*asked, "--ledger", file, "--resume", "--records-per-person", "2")
    assert other.exit_code == 2
    assert "its records per person differs" in " ".join(other.output.split())
    resumed = dpjax(*asked, "--ledger", file, "--resume")
    assert resumed.exit_code == 0, resumed.output
    state = json.loads(dpjax("ledger", file, "--json").stdout)
    assert (len(state["runs"]), state["unit"]) == (1, "person")
    again = dpjax(*asked, "--resume")
    assert "nothing is left to do" in " ".join(again.output.split())


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            ("--person", "patient"),
            "--person must name a column, got 'patient'; there is patient_id",
        ),
        (
            ("--ignore", "birthdate"),
            "--ignore must name a column, got 'birthdate'; there is birth_",
        ),
        (("--ignore", "readmitted"), "--ignore must name another column than --target"),
        (("--person", "readmitted"), "--person must name another column than --target"),
        (("--person", "sex", "--ignore", "sex"), "--person must name another column than --ignore"),
        (("--person", "sex", "--numeric", "sex"), "--numeric must name features, got 'sex'"),
        (("--person", "sex", "--records-per-person", "0"), "--records-per-person must lie"),
        (("--person", "birth_date", "--data", "digits"), "--person must name a column, got"),
    ],
)
def test_wrong_columns_are_refused_before_anything_is_released(patients, tmp_path, asked, told):
    target = ("--target", "digit") if "digits" in asked else ()
    out = tmp_path / "run"
    result = dpjax("train", "--data", patients, *QUICK, *asked, *target, "--out", out)
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())
    assert not out.exists()


@pytest.mark.at_length
def test_rows_without_an_id_are_left_out_of_a_private_run_and_refused_in_the_open(tmp_path):
    rows = _patients(120)
    for row in rows[:7]:
        row[0] = ""
    path = _write(tmp_path / "some.csv", rows)
    asked = ("train", "--data", path, *QUICK, "--person", "patient_id", "--ignore", "birth_date")
    out = tmp_path / "run"
    result = dpjax(*asked, "--out", out)
    assert result.exit_code == 0, result.output
    open_run = (*asked, "--preprocessing", "from-records", "--missing", "", "--out", out)
    refused = dpjax(*open_run)
    assert refused.exit_code == 2
    told = " ".join(refused.output.split())
    assert "--person patient_id: there is no value in line 2 of some.csv (7 such rows)" in told


@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.at_length
def test_from_a_file_to_predictions_with_one_refusal(tmp_path, decimal):
    """The path of a new user: refused once, a draft decided, then model, report and labels."""
    path = _write(tmp_path / "patients.csv", _patients(400), decimal)
    out, draft = tmp_path / "run", tmp_path / "patients.toml"
    asked = ("train", "--data", path, *QUICK, "--preprocessing", "from-records")
    asked += ("--person", "patient_id", "--out", out)
    refused = dpjax(*asked)
    assert refused.exit_code == 2
    names = ["birth_date", "crp"] + ["weight"] * (decimal == ",")
    assert f"{len(names)} columns need a decision" in refused.output
    assert all(f"column '{name}'" in refused.output for name in names)
    assert f"dpjax schema {path} --out" in refused.output
    named = ("--target", "readmitted") if decimal == "." else ()  # else it is a column as any other
    drafted = dpjax("schema", path, "--out", draft, *named)
    assert drafted.exit_code == 0, drafted.output
    assert "NOT private" in drafted.output
    assert "to be decided there: patient_id, birth_date" in " ".join(drafted.output.split())
    text = draft.read_text()
    assert "NOT private" in text
    assert ('decimal = ","' in text) is (decimal == ",")
    assert not any(cell in text for cell in ("P00001", "D10", "19", "yes"))
    undecided = dpjax(*asked, "--schema", draft)
    assert "kind of 'patient_id', 'birth_date' is still to be decided" in undecided.output
    draft.write_text(text.replace('"decide"', '"ignore"'))
    for how in ("private", "from-records"):
        again = (*asked[:-1], tmp_path / how, "--preprocessing", how, "--schema", draft)
        result = dpjax(*again)
        assert result.exit_code == 0, result.output
        described = training.load_model(tmp_path / how).encoding
        schema = data.described_schema(described)
        kinds = {column.name: column.kind for column in schema.columns}
        assert kinds["weight"] == kinds["crp"] == kinds["age"] == "number"
        assert kinds["code"] == kinds["sex"] == "category"
        assert schema.decimal == decimal
    assert len({c.name: c for c in schema.columns}["code"].categories) == 40
    assert dpjax("verify", tmp_path / "private").exit_code == 0
    assert dpjax("report", tmp_path / "private").exit_code == 0
    rows = [
        ["P7", "", "f", "80", "70.5", "3.5", "D10", ""],
        ["P8", "", "?", "20", "70.5", "", "D99", ""],
    ]
    new, predictions = _write(tmp_path / "new.csv", rows, decimal), tmp_path / "p.csv"
    found = dpjax("predict", tmp_path / "from-records", "--data", new, "--id", "patient_id",
                  "--out", predictions)  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "in none of the known categories, taken for none: sex (1), code (1)" in found.output
    with predictions.open() as file:
        lines = list(csv.reader(file))
    assert lines[0][:2] == ["patient_id", "prediction"]
    assert [line[0] for line in lines[1:]] == ["P7", "P8"]


@pytest.mark.at_length
def test_no_message_of_a_private_run_counts_the_rows_of_persons(tmp_path):
    rows = _patients(150)
    for number, row in enumerate(rows):
        row[0] = f"P{number}"  # of 40 rows a person, 39 are padding, which training warns of
    path = _write(tmp_path / "wide.csv", rows)
    asked = ("--person", "patient_id", "--records-per-person", "40", "--sampling")
    out = tmp_path / "run"
    result = dpjax("train", "--data", path, *QUICK, *asked, "random-allocation", "--out", out)
    assert result.exit_code == 0, result.output
    assert "records_per_user" not in result.output
    assert str(len(rows)) not in result.output
    # Dates, each of one person, are no categories; that the noise hides them is no secret.
    said = " ".join(result.output.split())
    assert "birth_date" in said.split(": no value stood out of the noise")[0].split("warning: ")[-1]


@pytest.mark.parametrize("how", ["private", "from-records"])
@pytest.mark.at_length
def test_misspelt_categories_are_counted_in_the_open_alone(patients, tmp_path, how):
    schema = tmp_path / "schema.toml"
    schema.write_text('[[columns]]\nname = "sex"\ncategories = ["f", "male"]\n')
    out = tmp_path / "run"
    asked = ("--schema", schema, "--ignore", "birth_date,patient_id", "--missing", "")
    asked = (*asked, "--preprocessing", how, "--out", out)
    result = dpjax("train", "--data", patients, *QUICK, *asked)
    assert result.exit_code == 0, result.output
    told, men = " ".join(result.output.split()), patients.read_text().count(",m,")
    line = f"cells in none of the known categories, taken for none: sex ({men})"
    assert (line in told) is (how == "from-records")
    listed = any("declared categories" in one for one in _certificate(out).not_covered)
    assert listed is (how == "from-records")


def test_a_draft_reads_units_marks_and_ids(tmp_path):
    lines = [
        f"{k};{'1.234,5' if k % 2 else '7,5'};{'NA' if k % 9 == 0 else k};{k} kg;0{k % 5};{k % 2}"
        for k in range(60)
    ]
    path, out = tmp_path / "odd.csv", tmp_path / "odd.toml"
    path.write_text("\n".join(["pid;paid;days;weight;ward;y", *lines]) + "\n")
    found = dpjax("schema", path, "--out", out)
    assert found.exit_code == 0, found.output
    text = out.read_text()
    assert 'decimal = ","\nthousands = "."\n' in text
    assert 'missing = ["NA"]' in text
    kinds = dict.fromkeys(("pid", "weight"), "decide")
    for name in ("pid", "paid", "days", "weight", "ward", "y"):
        assert f'name = "{name}"\nkind = "{kinds.get(name, "number")}"' in text
    edited = text.replace('"decide"', '"ignore"')
    out.write_text(edited, encoding="utf-8-sig")  # as editors on Windows write it
    read = data.read_schema(out)
    assert (read.decimal, read.thousands, read.missing) == (",", ".", ("NA",))
    again = dpjax("schema", path, "--out", out)
    assert (again.exit_code, "--out must be a new file" in again.output) == (2, True)


def test_a_draft_asks_whether_a_comma_is_of_thousands_or_of_decimals(tmp_path):
    path, out = tmp_path / "either.csv", tmp_path / "either.toml"
    path.write_text('paid,y\n"1,000",0\n999,1\n"2,500",1\n')
    found = dpjax("schema", path, "--out", out)
    assert "still to be decided there: decimal" in found.output
    with pytest.raises(data.DataError, match="decimal must be one mark"):
        data.read_schema(out)
    decided = 'decimal = "."\nthousands = ","'
    out.write_text(out.read_text().replace('decimal = "decide"', decided))
    assert data.read_table(path, schema=data.read_schema(out))["paid"].tolist() == [1000, 999, 2500]
    path.write_text('paid,y\n"1,000",0\n999,1\n"2,50",1\n')  # only a decimal comma reads all
    out.unlink()
    assert "decided" not in dpjax("schema", path, "--out", out).output
    assert 'decimal = ","\n' in out.read_text()


def test_a_draft_asks_whether_a_point_is_of_thousands_or_of_decimals(tmp_path):
    path, out = tmp_path / "either.csv", tmp_path / "either.toml"
    path.write_text("paid,y\n1.000,0\n999,1\nNA,1\n")
    assert "still to be decided there: decimal" in dpjax("schema", path, "--out", out).output
    text = out.read_text()
    assert '"paid"\nkind = "number"' in text
    for marks, number in (('","\nthousands = "."', 1000), ('"."\nthousands = ","', 1)):
        out.write_text(text.replace('decimal = "decide"', f"decimal = {marks}"))
        paid = data.read_table(path, schema=data.read_schema(out))["paid"]
        assert paid.tolist()[:2] == [number, 999]
    path.write_text("paid,y\n1.000,0\n999,1\n2.5,1\n")  # a cell that decides
    out.unlink()
    assert "decided" not in dpjax("schema", path, "--out", out).output


def test_a_draft_is_toml_whatever_the_names_hold(tmp_path):
    path, out = tmp_path / "odd.csv", tmp_path / "odd.toml"
    name = 'a"] \\ \x7f\x1b'
    path.write_text('"{}",y\n1,0\n2,1\n'.format(name.replace('"', '""')))
    assert dpjax("schema", path, "--out", out).exit_code == 0
    assert [column.name for column in data.read_schema(out).columns] == [name, "y"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("classes = []", "classes must list some, got none"),
        ('[[columns]]\nname = "x"\ncategories = []', "column 'x': categories must list some"),
        ('[[columns]]\nname = "x"\nkind = "decide"', "the kind of 'x' is still to be decided"),
    ],
)
def test_a_schema_that_decides_nothing_is_refused(tmp_path, text, told):
    path = tmp_path / "schema.toml"
    path.write_text(text + "\n")
    with pytest.raises(data.DataError, match=told):
        data.read_schema(path)


def _ids_read(tmp_path, frame, schema=None, as_written=True):
    return rows._number_persons(frame, "id", schema, as_written)


@pytest.mark.parametrize("kind", ["csv", "texts", "floats", "whole", "mixed"])
def test_two_exports_of_the_same_persons_are_as_many_persons(tmp_path, kind):
    one, other = [str(n) for n in range(500)], [f"{n:05d}.0" for n in range(500)]
    cells = {
        "csv": one + other,
        "texts": one + other,
        "floats": [float(n) for n in one + one],
        "whole": [int(n) for n in one + one],
        "mixed": [int(n) for n in one] + other,
    }[kind]
    frame = pd.DataFrame({"id": cells, "y": ["a", "b"] * 500})
    path = tmp_path / ("a.csv" if kind == "csv" else "a.parquet")
    if kind == "csv":
        frame.to_csv(path, index=False)
        frame = data.read_table(path, as_written=True)
    elif kind != "mixed":  # of which Parquet has no column
        frame.to_parquet(path)
        frame = data.read_table(path, as_written=True)
    found, persons, shown = _ids_read(tmp_path, frame)
    assert (len(found), len(set(persons)), shown) == (1_000, 500, ())
    assert np.array_equal(persons[:500], persons[500:])


def test_an_id_is_read_with_the_marks_of_its_file_and_a_missing_one_is_nobody(tmp_path):
    ids = ["1.000", "1000", "1000,0", 1000, 1000.0, None, "", float("nan"), "P1000", 2**53 + 1]
    frame = pd.DataFrame({"id": pd.Series([*ids, float(2**53)], dtype=object)})
    schema = data.Schema((), decimal=",", thousands=".")
    found, persons, shown = _ids_read(tmp_path, frame, schema)
    assert len(found) == 8
    assert len(set(persons[:5])) == 1
    assert len(set(persons)) == 4
    assert shown == ()  # of private records it is a fact of theirs
    plain = pd.DataFrame({"id": ["17", "P17"]})
    assert "both as numbers and as other texts: id" in _ids_read(tmp_path, plain, None, False)[2][0]


def test_fit_takes_ids_that_are_one_number_for_one_user():
    x = np.arange(4, dtype=np.float32)
    ids = ["17", "ann", "017", "17.0"]
    with pytest.warns(DpjaxWarning, match="17 in one record and P17 in another is two users"):
        _, (_, present) = training.per_user(lambda w, x: w * x, x, ids, 3)
    assert present.tolist() == [[True, True, True], [True, False, False]]
    users = np.array(["1", "01", "2", "2.0"])
    known = data.Dataset(np.zeros((4, 1)), np.zeros(4, int), ("a", "b"), users=users)
    assert known.population == 2
    assert [len(part) for part in data.split(known, 0.5)] == [2, 2]
