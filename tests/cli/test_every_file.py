"""Every file that `train` and `tune` write is read by every command that reads it.

The runs cover every pair of options that changes what is in a file; the table is so small that
noise hides some groups, classes and columns, which leaves null where a number else is.
"""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax.cli import app, page

_OPTIONS = {
    "command": ("train", "tune"),
    "target": ("two", "three", "number"),
    "by": (False, True),
    "person": (False, True),
    "public": (False, True),
    "rows": ("private", "from-records"),
    "shown": (False, True),  # results that ε does not cover
    "model": ("default", "mlp"),
}
_RUNS = [
    ("train", "two", True, False, False, "private", False, "default"),
    ("train", "two", True, True, True, "from-records", True, "mlp"),
    ("train", "three", False, True, False, "private", True, "mlp"),
    ("train", "three", True, False, True, "from-records", False, "default"),
    ("train", "number", False, True, True, "private", False, "default"),
    ("train", "number", False, False, False, "from-records", True, "mlp"),
    ("train", "two", False, False, True, "private", True, "default"),
    ("train", "three", True, True, False, "from-records", False, "default"),
    ("tune", "two", True, False, True, "private", False, "mlp"),
    ("tune", "three", False, False, False, "private", False, "default"),
]
_EPSILON = "3"


def _is_possible(one, other):
    """Whether two options may be given together."""
    found = dict((one, other))
    if found.get("command") == "tune" and (
        found.get("target") == "number"
        or found.get("person")
        or found.get("rows") == "from-records"
        or found.get("shown")
    ):
        return False
    return not (found.get("target") == "number" and found.get("by"))


def test_every_pair_of_options_that_may_be_given_is_in_a_run():
    made = [dict(zip(_OPTIONS, run, strict=True)) for run in _RUNS]
    for (one, values), (other, others) in itertools.combinations(_OPTIONS.items(), 2):
        for value, second in itertools.product(values, others):
            if _is_possible((one, value), (other, second)):
                given = {one: value, other: second}
                assert any(given.items() <= run.items() for run in made), given


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("files")
    for name in ("people.csv", "public.csv"):
        age, job = rng.integers(18, 90, 240), rng.choice(["baker", "smith"], 240)
        text = "pid,age,job,rare,two,three,number\n"
        for k, (a, j) in enumerate(zip(age, job, strict=True)):
            classes = f"{'high' if a > 50 else 'low'},{'abc'[a % 3]}"
            text += f"p{k // 2},{a},{j},r{k},{classes},{a * 2.5}\n"
        (folder / name).write_text(text)
    return folder


def _invoke(*arguments):
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == 0, (arguments, result.output, result.exception)
    return result.output


def _command(table, out, run):
    command, target, by, person, public, rows, shown, model = run
    others = [name for name in ("two", "three", "number") if name != target]
    # Read off the rows, a column of texts that are all different is refused.
    texts = ["rare"] * (rows == "from-records")
    left_out = ",".join([*others, *texts, *([] if person else ["pid"])])
    words = [command, "--data", table / "people.csv", "--target", target, "--epsilon", _EPSILON]
    words += ["--steps", 4, "--ignore", left_out, "--out", out]
    words += ["--task", "regression"] * (target == "number")
    words += ["--by", "job"] * by + ["--person", "pid"] * person
    words += ["--test", table / "public.csv"] * public
    words += ["--preprocessing", rows] * (rows != "private")
    words += ["--compare-without-privacy", "--log-private-losses"] * shown
    words += ["--model", model] * (model != "default")
    return words + ["--runs", 2, "--clip-norms", "0.5"] * (command == "tune")


@pytest.mark.at_length
@pytest.mark.parametrize("run", _RUNS, ids=lambda run: "-".join(map(str, run)))
def test_every_command_reads_what_a_run_leaves(run, table, tmp_path, monkeypatch):
    # What is drawn and priced of the certificate alone is no file of the run.
    monkeypatch.setattr(page, "pictures", lambda *_: page.Html("<p>drawn</p>"))
    monkeypatch.setattr(page, "numbers", lambda *_: page.Html("<p>priced</p>"))
    out, unit = tmp_path / "a run", "person" if run[3] else "record"
    ledger = tmp_path / "ledger.json"
    acc.LedgerFile(ledger).create(acc.Ledger(20.0, 1e-3, unit=unit))
    command = [*_command(table, out, run), "--ledger", ledger]
    _invoke(*command)
    assert "nothing is left to do" in _invoke(*command, "--resume")
    assert "The certificate holds" in _invoke("verify", out)
    assert "Run: " in _invoke("ledger", ledger)
    other = tmp_path / "other.json"
    acc.LedgerFile(other).create(acc.Ledger(20.0, 1e-3, unit=unit))
    _invoke("ledger", other, "--add", out)
    _invoke("predict", out, "--data", table / "people.csv", "--out", tmp_path / "p.csv")
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 241
    said = _invoke("report", out, "--ledger", ledger, "--registry", tmp_path / "entry.json")
    assert "wrote" in said
    _check_page((out / "report.html").read_text(encoding="utf-8"), out, run)


def _check_page(text, out, run):
    """The page says what each file holds: every group, or that noise hides it, and the file."""
    found = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
    assert "people.csv, as the certificate names it" in text
    assert "± is two standard deviations" in text
    for name, part in (found.get("by") or {"job": {}}).get("job", {}).items():
        share = part["accuracy"]
        none = "hidden by noise" if found["stddev"] else "no such record"
        is_hidden = share is None or (part["accuracy_stddev"] or 0.0) > 0.1  # as on the screen
        shown = none if is_hidden else f"{share:.1%} ±"
        assert f"job = {name}: {shown}" in text
    if run[2]:
        assert None in {part["accuracy"] for part in found["by"]["job"].values()}
    if run[5] == "private":  # a column of 240 values, of which noise hides each
        assert re.search(r"rare \([^)]*no value stood out of the noise", text)
