"""A run that ends after its looks: what these cost is said and booked, and nobody looks twice."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import data, training
from dpjax.cli import app, page, private, released
from dpjax.cli.options import TuneOptions
from dpjax.data import class_sizes

# Sixty ages, each of many people: to the noise they are sixty classes.
ASKED = ("--target", "age", "--epsilon", "5", "--delta", "1e-5", "--steps", "4", "--numeric", "x")


def dpjax(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def say(result):
    return " ".join(result.output.split())


def no_look(self, frame, key):
    raise AssertionError("a second look at the records")


@pytest.fixture(scope="module")
def ages(tmp_path_factory):
    rng = np.random.default_rng(0)
    age = rng.integers(20, 80, 12_000)
    rows = zip(age + rng.normal(0, 5, len(age)), rng.choice(["a", "b"], len(age)), age, strict=True)
    path = tmp_path_factory.mktemp("data") / "ages.csv"
    path.write_text("x,job,age\n" + "".join(f"{x:.1f},{job},{a}\n" for x, job, a in rows))
    return path


@pytest.fixture(scope="module")
def refused(ages, tmp_path_factory):
    """A run that was refused after its looks: its folder, its ledger, what it said."""
    folder = tmp_path_factory.mktemp("re fused")
    ledger = folder / "ages.ledger.json"
    dpjax("ledger", ledger, "--epsilon", "7", "--delta", "1e-4", "--data", ages)
    found = dpjax("train", "--data", ages, *ASKED, "--ledger", ledger, "--out", folder / "run")
    assert found.exit_code == 2, found.output
    return folder, say(found)


@pytest.fixture
def again(refused, ages, tmp_path):
    """A copy of it, and the command that goes on with it."""
    shutil.copytree(refused[0], tmp_path / "copy")
    out, ledger = tmp_path / "copy" / "run", tmp_path / "copy" / "ages.ledger.json"
    return out, ledger, ("train", "--data", ages, *ASKED, "--ledger", ledger, "--out", out)


def test_a_run_that_has_looked_says_what_that_cost_books_it_and_keeps_the_table(refused):
    folder, said = refused
    assert "--task must be regression for a target of 60 different numbers" in said
    kept = json.loads((folder / "run" / "private_table.json").read_text())
    certificate = acc.Certificate.from_json(json.dumps(kept["certificate"]))
    # One look at each column's kind, two at the numbers, one at the texts, one at the classes.
    looks = certificate.mechanism.mechanisms
    moved = sum(part.steps / part.mechanism.stddev**2 for part in looks)
    left = certificate.delta - sum(certificate.extra_delta.values())
    expected = acc.epsilon(acc.Gaussian(moved**-0.5), left)
    assert certificate.epsilon == pytest.approx(expected, rel=1e-3)
    cost = float(said.split("the looks at the records cost ε = ")[1].split()[0])
    assert certificate.epsilon <= cost <= certificate.epsilon * (1 + 1e-3)
    (booked,) = acc.LedgerFile(folder / "ages.ledger.json").read().entries
    assert booked.digests["mechanism"] == certificate.digests["mechanism"]
    assert booked.epsilon < 1.5
    assert "ages.ledger.json)" in said
    assert f"--out '{folder / 'run'}' --resume goes on" in said  # one word to a shell
    assert kept["encoding"]["classes"] == [str(age) for age in range(20, 80)]
    assert not (folder / "run" / "certificate.json").exists()


@pytest.mark.at_length
def test_a_search_that_is_refused_advises_what_a_search_takes(ages, tmp_path):
    """It trains classifiers: told to give --task regression, who follows is refused again."""
    asked = (*ASKED, "--runs", "2", "--out", tmp_path / "run")
    found = dpjax("tune", "--data", ages, *asked)
    said = say(found)
    assert (found.exit_code, "the looks at the records cost" in said) == (2, True), found.output
    assert "--classes must declare the classes of 'age' for a target of 60" in said
    taken = {one.name.replace("_", "-") for one in dataclasses.fields(TuneOptions)} - {"task"}
    assert set(re.findall(r"--([a-z-]+)", said)) <= taken


@pytest.mark.at_length
def test_it_goes_on_with_a_number_from_the_table_that_was_released(again, monkeypatch):
    out, ledger, command = again
    kept = json.loads((out / "private_table.json").read_text())
    monkeypatch.setattr(data.PrivateTable, "release", no_look)
    found = dpjax(*command, "--resume", "--task", "regression")
    assert found.exit_code == 0, found.output
    certificate = acc.Certificate.from_json((out / "certificate.json").read_text())
    assert certificate.verify().epsilon == certificate.epsilon <= 5
    assert certificate.not_covered == ()
    assert "other" not in {one.code for one in (*certificate.not_covered, *certificate.assumptions)}
    looks = acc.Certificate.from_json(json.dumps(kept["certificate"]))
    assert certificate.mechanism.mechanisms[0] == looks.mechanism
    assert looks.extra_delta.items() <= certificate.extra_delta.items()
    encoding = training.load_model(out).encoding
    assert encoding["columns"] == kept["encoding"]["columns"]
    assert encoding["target_range"] == [20.0, 79.0]
    # Booked once, in the place of the looks.
    (booked,) = acc.LedgerFile(ledger).read().entries
    assert booked.digests["mechanism"] == certificate.digests["mechanism"]
    assert not (out / "private_table.json").exists()
    assert not [*out.rglob("noise_key.json")]
    finished = dpjax(*command, "--resume", "--task", "regression")
    assert "nothing is left to do" in say(finished), finished.output
    other = dpjax(*command, "--resume", "--task", "regression", "--encoding", "range")
    assert (other.exit_code, "with other settings" in other.output) == (2, True)


@pytest.mark.at_length
def test_it_goes_on_with_declared_classes_and_is_one_run_from_its_first_step_on(again, monkeypatch):
    out, ledger, command = again
    classes = ("--classes", ",".join(map(str, range(20, 80))), "--resume")
    monkeypatch.setattr(data.PrivateTable, "release", no_look)
    unchanged = dpjax(
        *command, "--resume"
    )  # refused again by what was released, at no further cost
    assert (unchanged.exit_code, "60 different numbers" in say(unchanged)) == (2, True)
    assert len(acc.LedgerFile(ledger).read().entries) == 1
    for change, told in (
        (("--numeric", ""), "its numeric differs"),
        (("--epsilon", "4"), "its epsilon differs"),
        (("--ignore", "job"), "its ignore differs"),
    ):
        other = dpjax(*command, *change, *classes)
        assert (other.exit_code, told in say(other)) == (2, True), other.output
    whole_fit = training.fit

    def interrupted(*positional, on_log, **named):
        def stop(row):
            on_log(row)
            raise KeyboardInterrupt

        return whole_fit(*positional, on_log=stop, checkpoint_every=1, **named)

    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", interrupted)
        assert dpjax(*command, *classes).exit_code == 130
    # The key has drawn noise of these settings: no others.
    other = dpjax(*command, "--resume", "--task", "regression")
    assert (other.exit_code, "its task differs" in say(other)) == (2, True), other.output
    # A refusal now ends a run of which steps are made: it stays booked whole.
    before = acc.LedgerFile(ledger).read()
    with monkeypatch.context() as patch:
        patch.setattr(private, "_complete", lambda *_: (_ for _ in ()).throw(ValueError("planted")))
        other = dpjax(*command, *classes)
    assert (other.exit_code, "nothing was trained" in say(other)) == (2, False), other.output
    assert acc.LedgerFile(ledger).read() == before
    found = dpjax(*command, *classes)
    assert found.exit_code == 0, found.output
    assert training.load_model(out).encoding["origin of the classes"] == "public, from a schema"
    certificate = acc.Certificate.from_json((out / "certificate.json").read_text())
    assert "public: classes of age: given by the user" in certificate.assumptions
    (booked,) = acc.LedgerFile(ledger).read().entries
    assert booked.digests["mechanism"] == certificate.digests["mechanism"]


def test_a_table_that_was_edited_is_not_taken_for_the_released_one(again, monkeypatch):
    out, _, command = again
    file, seen = out / "private_table.json", []
    text = file.read_text()
    file.write_text(text.replace('"79"', '"78.5"'))
    real = data.PrivateTable.release

    def recorded(self, frame, key):
        seen.append(real(self, frame, key))
        return seen[-1]

    monkeypatch.setattr(data.PrivateTable, "release", recorded)
    other = dpjax(*command, "--resume", "--task", "regression")
    assert (other.exit_code, "its task differs" in say(other)) == (2, True), other.output
    # The same run makes the same release again.
    assert dpjax(*command, "--resume").exit_code == 2
    encoding = data.describe_encoding(seen[0], learned=data.schema.RELEASED)
    assert encoding == json.loads(text)["encoding"]


def test_what_the_looks_did_not_find_is_asked_for():
    found = data.Schema((data.Column("x", range=(0.0, 1.0)),), target="y", classes=("a", "b"))
    with pytest.raises(ValueError, match="a schema must declare the range of 'y'"):
        released.choose_target(found, data.Schema(()), is_number=True)
    asked = data.Schema((), target_range=(0.0, 9.0))
    assert released.choose_target(found, asked, is_number=True).target_range == (0.0, 9.0)
    numbers = data.Schema((), target="y", classes=("1.000,5", "2,5"), decimal=",", thousands=".")
    chosen = released.choose_target(numbers, data.Schema(()), is_number=True)
    assert (chosen.target_range, chosen.classes) == ((2.5, 1000.5), ())
    ranged = data.Schema((), target="y", classes=(), target_range=(0.0, 9.0))
    with pytest.raises(ValueError, match="--classes must declare the classes of 'y'"):
        released.choose_target(ranged, data.Schema(()), is_number=False)
    asked = data.Schema((), classes=("a", "b"))
    assert released.choose_target(ranged, asked, is_number=False).classes == ("a", "b")


# ---------------------------------------------------------------------------- refused before a look


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("--classes", "one"), "--classes must be two texts or more"),
        (("--classes", "a,b", "--task", "regression"), "--classes must be left out with --task"),
        (("--ignore", "x,job"), "--ignore must leave features"),
        (("--schema", "ignored.toml"), "the schema must leave features"),
        (("--test", "short.csv"), "the column 'job' is missing"),
    ],
)
def test_what_needs_no_look_is_refused_before_one(ages, tmp_path, monkeypatch, changes, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data.PrivateTable, "release", no_look)
    columns = "".join(f'[[columns]]\nname = "{name}"\nkind = "ignore"\n' for name in ("x", "job"))
    (tmp_path / "ignored.toml").write_text(columns)
    (tmp_path / "short.csv").write_text("x,age\n1,20\n")
    arguments = ASKED[:-2] if "--schema" in changes or "--ignore" in changes else ASKED
    found = dpjax("train", "--data", ages, *arguments, *changes, "--out", tmp_path / "run")
    assert (found.exit_code, told in say(found)) == (2, True), found.output
    assert "cost ε" not in found.output
    assert not (tmp_path / "run").exists()


CONTENTS = {
    "ordinary": [f"{k % 70},{'ab'[k % 2]},{['no', 'yes'][k % 3 == 0]}" for k in range(300)],
    "all alike": ["7,a,no"] * 300,
    "nothing in any cell": [",,"] * 300,
    "no number and no class twice": [f"x{k},{k}z,{k}y" for k in range(300)],
    "many numbers for classes": [f"1e400,-inf,{k}" for k in range(300)],
    "other lengths": ["1,2,3,4,5", "1"] * 150,
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.at_length(every=3)
def test_only_what_was_released_decides_whether_a_run_is_made(content, tmp_path, monkeypatch):
    """The records of --test may be the same: where a file lies is public, what it holds not."""
    monkeypatch.setattr(training, "fit", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    text = "\n".join(["x,job,y", *CONTENTS[content]]) + "\n"
    for name in ("data.csv", "test.csv"):
        (tmp_path / name).write_text(text)
    files = ("--data", tmp_path / "data.csv", "--test", tmp_path / "test.csv")
    asked = ("--target", "y", "--epsilon", "3", "--delta", "1e-4", "--steps", "4")
    found = dpjax("train", *files, *asked, "--out", tmp_path / "run")
    if content == "ordinary":
        assert found.exit_code == 130, found.output  # all is prepared, and the first step begun
    else:  # of the classes that were released, in the file that keeps them, there are too few
        assert (found.exit_code, "where noise hides them" in say(found)) == (2, True), found.output
        kept = json.loads((tmp_path / "run" / "private_table.json").read_text())
        assert len(kept["encoding"]["classes"]) < 2
        asked = (*asked, "--classes", "no,yes")
        found = dpjax("train", *files, *asked, "--out", tmp_path / "run", "--resume")
        assert found.exit_code == 130, found.output
    same = dpjax("train", *files[:3], tmp_path / "data.csv", *asked, "--out", tmp_path / "other")
    assert (same.exit_code, "--test must be another file" in say(same)) == (2, True)


@pytest.mark.at_length
def test_classes_that_are_declared_are_seen_by_nobody_and_cost_no_look(ages, tmp_path, monkeypatch):
    seen = []
    real = data.PrivateTable.release

    def recorded(self, frame, key):
        seen.append(self)
        return real(self, frame, key)

    monkeypatch.setattr(data.PrivateTable, "release", recorded)
    asked = ("--target", "job", "--classes", "c, a", *ASKED[2:])
    found = dpjax("train", "--data", ages, *asked, "--out", tmp_path / "run")
    assert found.exit_code == 0, found.output
    assert seen[0].schema.classes == ("c", "a")
    assert seen[0].extra_delta == {
        data.private_table._THRESHOLD: pytest.approx(1e-6)
    }  # of the ages' spellings
    encoding = training.load_model(tmp_path / "run").encoding
    assert (encoding["classes"], encoding["origin of the classes"]) == (
        ["c", "a"],
        "public, from a schema",
    )


# ----------------------------------------------------------------------------------- runs of before

# What version 0.1 left of a run that was killed before its release, and what it released when the
# run went on (drawn by that version).
OLD_KEY = {
    "implementation": "threefry2x32",
    "words": [794339, 2142107760],
    "identity": {
        "data": "e89125c164390bf9c5d10db354530d599148b9afb9e0aa42d7ddbe92223023bb",
        "seed": None,
        **{"target": "income", "task": "classification", "by": "None", "epsilon": "3.0"},
        **{"delta": "0.0001", "model": "None", "steps": "5", "batch size": "None"},
        **{"sampling": "poisson", "clip norm": "0.5", "adjacency": "add-remove"},
        **{"missing": "None", "decimal": "None", "thousands": "None", "numeric": "age"},
        **{"encoding": "None", "person": "None", "records per person": "8", "ignore": "None"},
        "schema": "None",
    },
}
OLD_CUTS = [
    *(19.882828282828285, 23.765656565656567, 34.00112676056338, 42.66366197183098),
    *(49.67747368421053, 56.60689655172414, 64.25829596412557, 71.15336322869955),
    *(78.04843049327354, 87.13527508090615, 92.11132686084142),
]


def _people(path):
    rng = np.random.default_rng(0)
    age, job = rng.integers(18, 90, 300), rng.choice(["baker", "smith"], 300)
    lines = [f"{a},{j},{'high' if a > 50 else 'low'}" for a, j in zip(age, job, strict=True)]
    path.write_text("age,job,income\n" + "\n".join(lines) + "\n")
    return path


@pytest.mark.at_length
def test_a_run_that_an_earlier_version_began_goes_on_with_its_own_table(tmp_path, monkeypatch):
    people, out = _people(tmp_path / "people.csv"), tmp_path / "run"
    (out / "checkpoint" / "table").mkdir(parents=True)
    check = hashlib.sha256(json.dumps(OLD_KEY, sort_keys=True).encode()).hexdigest()
    key = out / "checkpoint" / "table" / "noise_key.json"
    key.write_text(json.dumps(OLD_KEY | {"check": check}))
    asked = ("--target", "income", "--epsilon", "3", "--delta", "1e-4", "--steps", "5")
    command = ("train", "--data", people, *asked, "--numeric", "age", "--out", out, "--resume")
    found = dpjax(*command)
    assert found.exit_code == 0, found.output
    certificate = acc.Certificate.from_json((out / "certificate.json").read_text())
    looks, steps = certificate.mechanism.mechanisms
    assert looks == acc.Repeated(acc.Histogram(3.4596112473747893), 4)
    assert steps.mechanism.mechanism.noise_multiplier == pytest.approx(1.37618124485, rel=1e-9)
    encoding = training.load_model(out).encoding
    assert encoding["columns"][0]["cuts"] == OLD_CUTS
    assert encoding["columns"][1]["categories"] == ["", "baker", "smith"]
    assert encoding["classes"] == ["high", "low"]
    # A finished folder of that version is one of the same settings.
    assert "nothing is left to do" in say(dpjax(*command))


# ------------------------------------------------------------------------------------- what is seen


def _tail(stddev, least):
    """P(Y ≥ least) of the discrete Gaussian, by its sum."""
    k = np.arange(-40 * int(stddev) - 10, 40 * int(stddev) + 11)
    weights = np.exp(-0.5 * (k / stddev) ** 2)
    return weights[k >= least].sum() / weights.sum()


def _make(epsilon, records):
    schema = data.Schema((), target="y")
    return data.PrivateTable.for_budget(
        ("a", "b"), schema, records, epsilon=epsilon, delta=1e-6, encoding="grid"
    )


@pytest.mark.filterwarnings("ignore:records should be at least")
def test_the_message_says_from_where_on_a_class_is_seen():
    """By the law of the noise: at the numbers that are said with 97 %, below them with less."""

    def sees(epsilon, records, share):
        table = _make(epsilon, records)
        return _tail(table.target_stddev, table.class_threshold + 1 - int(share * records))

    said = class_sizes.describe_seen(_make(0.1, 5_000), 0.1, _make)
    first, second, third = said.split("; ")
    least = int(first.split("at least ")[1].split()[0].replace(",", ""))
    assert 0.97 < sees(0.1, 5_000, least / 5_000) < 0.99
    for part, share in ((second, 0.05), (third, 0.01)):
        assert f"one of {share:.0%} of them" in part
        epsilon = float(part.split("ε = ")[1].split()[0])
        count = int(part.split(" or ")[1].split()[0].replace(",", ""))
        assert sees(epsilon, 5_000, share) > 0.97 > sees(0.85 * epsilon, 5_000, share)
        assert sees(0.1, count, share) > 0.97 > sees(0.1, int(0.85 * count), share)


def test_released_texts_that_are_numbers_by_other_marks_are_named():
    def say_of(*texts, **marks):
        column = data.Column("paid", "category", categories=("", *texts))
        return private._describe_other_marks(data.Schema((column,), target="y", **marks))

    (said,) = say_of("3.326,60", "1.100,10", decimal=",")
    assert said.endswith("paid: texts that are all numbers by --decimal , --thousands .")
    (said,) = say_of("3,5", "1,25")
    assert said.endswith("paid: texts that are all numbers by --decimal ,")
    assert say_of("3.326,60", "unknown", decimal=",") == []
    assert say_of("3.5", "2") == []
    assert say_of() == []


@pytest.mark.at_length
def test_a_hidden_column_and_an_id_are_flagged_where_columns_are_listed(tmp_path, monkeypatch):
    # Pictures and prices of the page are other tests'.
    monkeypatch.setattr(page, "pictures", lambda *_: page.Html("<p>drawn</p>"))
    monkeypatch.setattr(page, "numbers", lambda *_: page.Html("<p>priced</p>"))
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, 2_000)
    paid = [f"{k % 9 + 1}.{k % 900 + 100},{k % 90 + 10}" for k in range(2_000)]
    rows = zip(range(2_000), age, paid, np.where(age > 50, "h", "l"), strict=True)
    lines = [";".join(map(str, row)) for row in rows]
    path, out = tmp_path / "stays.csv", tmp_path / "run"
    path.write_text("\n".join(["stay_id;age;paid;y", *lines]) + "\n")
    asked = ("--target", "y", "--epsilon", "3", "--delta", "1e-4", "--steps", "4")
    found = dpjax("train", "--data", path, *asked, "--decimal", ",", "--out", out)
    assert found.exit_code == 0, found.output
    assert "paid: no value stood out of the noise" in say(found)
    assert "stay_id: an id by its name" in say(found)
    assert "--thousands" in say(found)
    remarks = {c["name"]: c.get("remark") for c in training.load_model(out).encoding["columns"]}
    assert remarks == {
        "stay_id": "an id by its name",
        "age": None,
        "paid": "no value stood out of the noise",
    }
    assert dpjax("report", out).exit_code == 0
    text = (out / "report.html").read_text()
    assert "paid (no value stood out of the noise)" in text
    assert "stay_id (an id by its name)" in text
    assert private.released.FILE not in text
