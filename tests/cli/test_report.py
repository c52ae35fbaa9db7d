"""`dpjax report` writes one file that says everything and asks the network for nothing."""

from __future__ import annotations

import base64
import html
import html.parser
import io
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import audit, data, plotting, training
from dpjax._digits import format_rounded_up
from dpjax.accounting.answers.disclosure import KINDS, Actor
from dpjax.cli import app, private, report, settings
from dpjax.cli.options import TrainOptions
from dpjax.cli.report import render_page
from dpjax.training import plan
from maintenance import project

_EMPTY = {"img", "meta", "br", "link"}


class _Page(html.parser.HTMLParser):
    """What a page refers to, what its pictures are, and whether its elements are closed."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.references, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.references += [v for k, v in attrs if k in ("src", "href", "action", "data")]
        assert tag not in ("script", "iframe", "link"), tag
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run = acc.Repeated(acc.Gaussian(8.0), 10)
    uncovered = ["a column called <b>age</b> & more"]
    certificate = acc.certify(
        run, 1e-5, not_covered=uncovered, declared={"records": 600, "batch_size": 59.00000007}
    )
    (folder / "certificate.json").write_text(certificate.to_json(), encoding="utf-8")
    (folder / "metrics.csv").write_text("step,epsilon,test_accuracy\n0,0,0.5\n10,1,0.875\n")
    metrics = {"step": np.arange(2), "epsilon": np.arange(2.0), "test_accuracy": np.ones(2)}
    plotting.plot_training(metrics, folder / "training.png")
    return folder


@pytest.fixture(scope="module")
def page(folder):
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 0, result.output
    return folder / "report.html"


def test_the_page_is_whole_and_needs_nothing_else(folder, page):
    text = page.read_text(encoding="utf-8")
    read = _Page(text)
    assert read.open == []
    assert len(read.references) == 3
    install = f"<pre>pip install 'dpjax[cli] @ git+{project.address()}'\n"  # read, not fetched
    assert text.count(install) == 1
    assert "http" not in text.replace(install, "")
    assert "url(" not in text
    for reference in read.references:
        kind, _, content = reference.partition(",")
        assert kind == "data:image/png;base64"
        assert matplotlib.image.imread(io.BytesIO(base64.b64decode(content))).size
    shown = "".join(read.text)
    certificate = acc.Certificate.from_json((folder / "certificate.json").read_text())
    for line in certificate.describe().split("\n"):
        assert line.partition(": ")[2] in shown  # texts of the run are shown, never obeyed
    assert "87.5%" in shown
    for row in acc.summary(certificate.mechanism, (1e-5, 5e-6, 2e-6)).rows():
        assert all(cell in shown for cell in row)
    assert "600" in shown
    assert "59.00000007" not in shown[: shown.index('{\n  "')]
    assert text.count("<dt>Assumes</dt>") == 1  # with all that is assumed
    assert "dpjax verify" in shown
    start = shown.index('{\n  "')
    written = shown[start : shown.rindex("}") + 1]
    assert acc.Certificate.from_json(written) == certificate


def _three(folder, tmp_path, audit):
    shutil.copy(folder / "certificate.json", tmp_path)
    (tmp_path / "audit.json").write_text(audit)
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    text = (tmp_path / "report.html").read_text(encoding="utf-8") if not result.exit_code else ""
    return result, text


def test_the_page_shows_proven_estimated_and_audited(folder, page, tmp_path):
    certificate = acc.Certificate.from_json((folder / "certificate.json").read_text())
    shown = "".join(_Page(page.read_text(encoding="utf-8")).text)
    assert "an audit.json beside the certificate would be shown here" in shown
    estimate = acc.estimate_last_iterate(certificate.mechanism, certificate.delta)
    assert f"{estimate:.4g}, were the loss linear and only the last iterate" in shown
    assert "Heuristic, no certificate" in shown
    bound = audit.one_run_bound(canaries=1000, guesses=100, correct=75, delta=1e-5)
    text = _three(folder, tmp_path, bound.to_json())[1]
    assert f"ε is at least {bound.epsilon:.4g} with 99.9 % confidence" in text
    assert "CONTRADICTION" not in text
    # One above the certificate refutes it.
    planted = bound.to_json().replace(str(bound.epsilon), str(certificate.epsilon + 1))
    assert "CONTRADICTION" in _three(folder, tmp_path, planted)[1]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"epsilon": -1, "delta": 1e-5, "confidence": 0.9}',
     '{"epsilon": NaN, "delta": 1e-5, "confidence": 0.9}',
     '{"epsilon": 1, "delta": 1e-9, "confidence": 0.9}',
     '{"epsilon": 1, "delta": 5, "confidence": 0.9}',
     '{"epsilon": 1, "delta": 1e-5, "confidence": 0.01}',
     '{"epsilon": 1, "delta": 1e-5, "confidence": 1.0}',
     '{"epsilon": 1, "delta": 1e-5, "confidence": 0.9, "proof": false}',
     audit.BootstrapInterval(9.0, 9.5, 10.0, 1e-5, 0.95, "normal", 100).to_json()],
)  # fmt: skip
def test_what_is_no_audit_is_refused(folder, tmp_path, text):
    result, _ = _three(folder, tmp_path, text)
    assert (result.exit_code, "audit.json must" in result.output) == (2, True)
    says_so = '"proof": false' in text
    assert ("no proof, as a bootstrap" in " ".join(result.output.split())) == says_so


def test_screen_and_colour_change_nothing_of_the_page(folder, page):
    before = page.read_bytes()
    for columns, colour in (("40", {"FORCE_COLOR": "1"}), ("200", {"NO_COLOR": "1"})):
        told = {"COLUMNS": columns, "TERM": "xterm", **colour}
        result = CliRunner().invoke(app, ["report", str(folder)], env=told, color=True)
        assert result.output == f"wrote {page}\n"
        assert page.read_bytes() == before


def test_a_changed_certificate_gets_no_report(folder, tmp_path):
    content = json.loads((folder / "certificate.json").read_text())
    content["epsilon"] = 0.1
    (tmp_path / "certificate.json").write_text(json.dumps(content))
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 1
    assert not (tmp_path / "report.html").exists()
    assert CliRunner().invoke(app, ["report", str(tmp_path / "none")]).exit_code == 2


def _rendered(certificate, folder, **files):
    """The text of the page of a certificate that binds these files, written beside it."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_json", ".json")).write_text(json.dumps(content))
    bound = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    certificate = certificate.bind_files(bound) if bound else certificate
    return "".join(_Page(render_page(certificate, folder)).text), certificate


def _answer(text, number):
    """What the page says under one of its questions."""
    end = f"\n{number + 1}. " if number < 12 else "In numbers"
    return text.split(f"\n{number}. ")[1].split(end)[0]


def test_twelve_questions_are_answered_in_order(page):
    headings = re.findall(r"<h2>(.*?)</h2>", page.read_text(encoding="utf-8"))
    assert [line.split(". ")[0] for line in headings] == [str(k) for k in range(1, 13)]
    words = (
        "data", "columns", "promised", "several records", "held out", "not covered", "leave",
        "cost together", "belong", "good enough", "random numbers", "checked",
    )  # fmt: skip
    assert all(w in line and line.endswith("?") for w, line in zip(words, headings, strict=True))


@pytest.mark.parametrize(
    ("epsilon", "word", "five"),
    [
        (0.1, "a strong promise", "a strong promise"),
        (1.0, "a strong promise", "a weak promise"),
        (3.0, "a moderate promise", "nothing is promised"),
        (9.0, "a weak promise", "nothing is promised"),
        (500.0, "no promise in practice", "nothing is promised"),
    ],
)
def test_the_promise_is_in_words_chosen_by_epsilon(tmp_path, epsilon, word, five):
    text, _ = _rendered(acc.certify(acc.ApproximateDP(epsilon, 1e-7), 1e-5), tmp_path)
    assert f"This is {word}." in _answer(text, 3)
    assert "almost the same" not in text
    line = next(x for x in _answer(text, 4).split("A person with ") if x.startswith("5 records"))
    assert five in line


@pytest.mark.parametrize(("delta", "warned"), [(0.01, True), (1 / 165, True), (0.006, False)])
def test_that_a_whole_person_may_be_published_is_said(tmp_path, delta, warned):
    declared: dict[str, Any] = {"unit": "person", "records": 165}
    text, _ = _rendered(acc.certify(acc.Gaussian(4.0), delta, declared=declared), tmp_path)
    assert ("IS NOT BELOW 1 / 165 persons" in _answer(text, 3)) is warned
    assert "with one person as without it" in text.split("In numbers")[-1]


def test_where_nothing_is_promised_no_answer_says_otherwise(tmp_path):
    run = acc.GeoDP(1.0, 0.1, batch_size=2048, dimension=10, unsafe_no_dp=True)
    (tmp_path / "model.safetensors").write_bytes(b"1")
    text, _ = _rendered(acc.certify(run, 1e-5), tmp_path)
    assert "Nothing is promised to anybody" in _answer(text, 4)
    assert "Nothing is covered" in _answer(text, 6)
    assert "Yes" not in _answer(text, 7).split("model.safetensors")[1].split("the records")[0]
    assert "promise." not in text
    assert "nan" not in text


def test_every_missing_fact_is_named_with_whom_to_ask(folder, page, tmp_path):
    text = "".join(_Page(page.read_text(encoding="utf-8")).text)
    names = ("organisation", "purpose", "responsible", "file", "period", "persons")
    for name in names:
        assert re.search(rf"not stated; ask [^;]*; give it in --about as {name} = ", text), name
    about = tmp_path / "about.toml"
    lines = [f'{name} = "the {name} <i>X</i>"' for name in names[:-1]] + ["persons = 500"]
    about.write_text("\n".join(lines), encoding="utf-8-sig")  # as editors on Windows write it
    given = ["report", str(folder), "--about", str(about), "--out", str(tmp_path / "a.html")]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    text = "".join(_Page((tmp_path / "a.html").read_text(encoding="utf-8")).text)
    assert "--about" not in text
    for name in names[:-1]:
        assert f"the {name} <i>X</i>" in text  # shown, not obeyed
    assert "500" in _answer(text, 1)


@pytest.mark.parametrize(
    "text",
    ["x", "speed = 1", "[file]\nname = 1", "purpose = []", "purpose = '\u00e4".encode("latin1")],
)
def test_other_facts_are_refused(folder, tmp_path, text):
    about = tmp_path / "about.toml"
    about.write_bytes(text if isinstance(text, bytes) else text.encode())
    result = CliRunner().invoke(
        app, ["report", str(folder), "--about", str(about), "--out", str(tmp_path / "a.html")]
    )
    assert (result.exit_code, "--about must" in result.output) == (2, True)
    assert not (tmp_path / "a.html").exists()


def test_columns_that_are_used_and_left_out_are_named(tmp_path):
    kinds = {"age": "number", "ward": "category", "id": "ignore"}
    columns = [{"name": n, "kind": k, "origin": "released"} for n, k in kinds.items()]
    columns += [{"name": f"x{k}", "kind": "number", "origin": "public"} for k in range(70)]
    model = {"encoding": {"columns": columns, "target": "readmitted"}}
    certificate = acc.certify(acc.Gaussian(4.0), 1e-5, declared={"columns_left_out": "zip, name"})
    said = _answer(_rendered(certificate, tmp_path, model_json=model)[0], 2)
    for words in ("readmitted", "age, ward", "zip, name, id", "x23, and 46 more"):
        assert words in said
    assert "not stated" in _answer(_rendered(certificate, tmp_path / "none")[0], 2)


class _Nine(list):
    """Nine records of which something was learned."""

    learned, population, users = (
        (acc.Disclosure("learned-from-rows", "ranges learned from the rows: age"),),
        9,
        None,
    )


def _list_all():
    """Every sentence that a run may list, and those of a table and of held-out records."""
    asked = TrainOptions(data="x.csv", epsilon=1.0, seed=1, private_losses=True, compare=True)
    table = data.PrivateTable(("age",), data.Schema((), target="y"), 9, 3.0, numeric=("age",))
    records: Any = _Nine(range(9))
    lines = [*settings.list_disclosures(records, asked), *plan.NOTHING_CHOSEN]
    lines += [*plan.default_disclosures(9, seeded=True), plan.SECRET_KEY, *table.public]
    lines += [acc.Disclosure("held-out-public", private._PUBLIC_RECORDS)]
    lines += [acc.Disclosure("held-out-by-coin", "a record is held out by a secret coin")]
    return list(dict.fromkeys(lines))


def test_whoever_must_act_is_named_for_every_line_that_a_run_may_list(tmp_path):
    lines = _list_all()
    for line in lines:
        assert bool(report._name_act(line)) is (line.code != "held-out-by-coin"), line
    assert {line.code for line in lines} >= {*report._ACTS}  # each is met
    named = {code for code, kind in KINDS.items() if kind.actor not in (Actor.SIGNER, Actor.NOBODY)}
    assert named == {*report._ACTS}
    assert {file for kind in KINDS.values() for file in kind.files} == {*report._LEAVE[1:]}
    unknown = "a column called <b>age</b>"
    certificate = acc.certify(acc.Gaussian(4.0), 1e-5, not_covered=[*lines[:2], unknown])
    said = _answer(_rendered(certificate, tmp_path)[0], 6)
    assert f"ask whoever trained what it tells of the records.{unknown}" in said
    assert said.count("Whoever signs") == 1


def _advise(lines, folder, where):
    """The answers to the questions that rest on sentences, with these in one of the two lists."""
    certificate = acc.certify(acc.Gaussian(4.0), 1e-5, **{where: lines})
    certificate = certificate.bind_files(dict.fromkeys(report._LEAVE[1:], b"1"))
    answers = [
        *report._describe_held_out(certificate),
        *report._list_uncovered(certificate),
        report._list_files(certificate, folder, None),
        *report._describe_randomness(certificate),
    ]
    return html.unescape("\n".join(answers))


@pytest.mark.parametrize("where", ["not_covered", "assumptions"])
@pytest.mark.parametrize("words", ["ce qui n'est pas couvert", "short", "read the model.json"])
def test_a_sentence_in_other_words_changes_no_advice(where, words, tmp_path):
    for name in report._LEAVE[1:]:
        (tmp_path / name).write_bytes(b"1")
    for line in _list_all():
        usual = _advise([line], tmp_path, where)
        shown = line if len(line) <= 240 else f"{line[:180]} … {line[-40:]}"
        expected = usual.replace(shown, words).replace(line, words)
        assert _advise([line.reword(words)], tmp_path, where) == expected, line
    # The same words of a user have no code: they name nobody, and clear no file.
    own = _advise([words], tmp_path, where)
    if where == "assumptions":
        assert own == _advise([], tmp_path, where)
    else:
        assert own.count("Whoever signs: ask whoever trained what it tells of the records.") == 1
        assert own.count(report._OWN_WORDS) == 1 + len(report._LEAVE[1:])  # and the page itself


@pytest.mark.at_length
def test_files_that_may_leave_are_told_from_those_that_may_not(tmp_path):
    for name in ("model.safetensors", "metrics.csv", "training.png", "notes.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "checkpoint" / "table").mkdir(parents=True)
    run, line = acc.Gaussian(4.0), acc.Disclosure("training-losses", "the losses")
    said = _answer(_rendered(acc.certify(run, 1e-5), tmp_path)[0], 7)
    for start in (
        "this pageYes",
        "model.safetensorsYes",
        "metrics.csvYes",
        "checkpointNo: delete",
        "other files, if there are anyAsk",
        "the records, a seed, the ledgerNo",
    ):
        assert start in said
    said = _answer(_rendered(acc.certify(run, 1e-5, not_covered=[line]), tmp_path)[0], 7)
    for start in ("this pageIt shows results. No", "metrics.csvNo", "model.safetensorsYes"):
        assert start in said
    assert "training.pngYes" in said
    # Of a user's own words nobody knows of which file they speak, whatever they name.
    own = "metrics.csv: an exact function of the held-out records, which"
    said = _answer(_rendered(acc.certify(run, 1e-5, not_covered=[own]), tmp_path)[0], 7)
    for start in ("this pageAsk", "metrics.csvAsk", "model.safetensorsAsk"):
        assert start in said
    for stated in (acc.certify(run, 1e-5, not_covered=[plan.BY_HAND]),
                   acc.certify(acc.Gaussian(0.1), 1e-5)):  # fmt: skip
        said = _answer(_rendered(stated, tmp_path)[0], 7)
        assert "Yes" not in said.replace("certificate.jsonYes", "")
    (tmp_path / "checkpoint" / "table" / "noise_key.json").write_text("{}")
    said = _answer(_rendered(acc.certify(run, 1e-5), tmp_path)[0], 7)
    assert "checkpoint/tableNO: DELETE IT NOW" in said
    (tmp_path / "noise_key.json").write_text("{}")  # of checkpoints that lie beside the certificate
    said = _answer(_rendered(acc.certify(run, 1e-5), tmp_path)[0], 7)
    assert "noise_key.jsonNO: DELETE IT NOW" in said
    (tmp_path / "evaluation.json").write_text("{}")  # not bound
    certificate = acc.certify(run, 1e-5).bind_files({"model.safetensors": b"x"})
    said = _answer("".join(_Page(render_page(certificate, tmp_path)).text), 7)
    assert "evaluation.jsonAsk whoever trained" in said
    assert "model.safetensorsYes" in said
    assert "notes.txt" not in said  # names of files may tell something


@pytest.mark.at_length
def test_the_ledger_adds_up_all_models(folder, tmp_path):
    certificate = acc.Certificate.from_json((folder / "certificate.json").read_text())
    file = acc.LedgerFile(tmp_path / "ledger.json")
    file.create(acc.Ledger(5.0, 1e-4))
    other = file.book(acc.certify(acc.Gaussian(3.0), 1e-6))
    said = _answer("".join(_Page(render_page(certificate, folder, {}, other)).text), 7)
    assert "this pageAsk: it repeats these, and what the ledger says." in said
    for booked, among in ((other, False), (other.book(certificate), True)):
        said = _answer("".join(_Page(render_page(certificate, folder, {}, booked)).text), 8)
        assert f"Together ε = {format_rounded_up(booked.spent(), 4)} at δ = 0.0001" in said
        assert ("THIS RUN IS NOT AMONG THEM" in said) is not among
    for adjacency, unit in (("replace-one", "record"), ("add-remove", "person")):
        settings: dict[str, Any] = {
            "adjacency": acc.Adjacency(adjacency),
            "declared": {"unit": unit},
        }
        entry = acc.certify(certificate.mechanism, 1e-5, **settings)
        booked = acc.Ledger(50.0, 1e-4, entry.adjacency, unit=unit).book(entry)
        said = _answer("".join(_Page(render_page(certificate, folder, {}, booked)).text), 8)
        assert "THIS RUN IS NOT AMONG THEM" in said
    told = ["report", str(folder), "--ledger", str(file.path), "--out", str(tmp_path / "a.html")]
    assert CliRunner().invoke(app, told).exit_code == 0
    file.path.write_text("{}")
    told[-1] = str(tmp_path / "b.html")
    assert CliRunner().invoke(app, told).exit_code == 2


def test_a_model_of_another_run_gets_no_report(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"1")
    certificate = _rendered(acc.certify(acc.Gaussian(4.0), 1e-5), tmp_path)[1]
    (tmp_path / "certificate.json").write_text(certificate.to_json(), encoding="utf-8")
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 0
    said = "".join(_Page((tmp_path / "report.html").read_text(encoding="utf-8")).text)
    assert f"{certificate.subject['model.safetensors'][:16]}…the same" in _answer(said, 9)
    (tmp_path / "report.html").unlink()
    (tmp_path / "model.safetensors").write_bytes(b"2")
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert (result.exit_code, "model.safetensors" in result.output) == (1, True)
    assert not (tmp_path / "report.html").exists()
    (tmp_path / "model.safetensors").unlink()
    text = "".join(_Page(render_page(certificate, tmp_path)).text)
    assert "Not compared: no file is here" in _answer(text, 9)


_CLASSES = {
    "task": "classification", "classes": ["no", "<b>yes</b>"], "confusion": [[70, 10], [5, 15]],
    "stddev": 2.0, "records": 100, "accuracy": 0.85, "largest_class_share": 0.8, "auc": 0.875,
    "precision": {"no": 0.933, "<b>yes</b>": 0.6}, "recall": {"no": 0.875, "<b>yes</b>": None},
    "by": None,
}  # fmt: skip
_NUMBERS = {
    "task": "regression", "root_mean_squared_error": 2.5, "baseline_error": 4.0, "stddev": 0.1,
    "records": 80,
}  # fmt: skip


@pytest.mark.at_length
def test_whether_the_model_is_good_enough_is_said_in_numbers(tmp_path):
    certificate = acc.certify(acc.Gaussian(4.0), 1e-5)

    def say(**changed):
        return _answer(_rendered(certificate, tmp_path, evaluation_json=changed)[0], 10)

    said = say(**_CLASSES, accuracy_stddev=0.01, auc_stddev=0.02)
    for words in (
        "85.0% (noise: ± 2.0%) of 100",
        "right for 80.0%",
        "0.875 (noise: ± 0.04)",
        "60.0%hidden by noise",
    ):
        assert words in said
    assert "IS NOT SHOWN" not in said
    first = _CLASSES["classes"][0]
    said = say(**_CLASSES, recall_stddev={first: 0.04})
    share = _CLASSES["recall"][first]
    assert f"{share:.1%} (noise: ± 8.0%)" in said
    assert f"{share:.1%}" not in say(**_CLASSES, recall_stddev={first: 0.125})  # as on the screen
    assert "IS NOT SHOWN" in say(**_CLASSES)  # of noise of two counts
    assert "IS NOT SHOWN" in say(**{**_CLASSES, "accuracy": 0.79, "stddev": 0.0})
    shares = {"f": 0.9, "m": 0.4, "x": None}  # the last of a group without a record
    groups = {"sex": {name: {**_CLASSES, "accuracy": share} for name, share in shares.items()}}
    said = say(**{**_CLASSES, "by": groups})
    assert "sex = f: 90.0%" in said
    assert "sex = m: 40.0%" in said
    assert "sex = x: hidden by noise" in said
    hidden = {"sex": {"f": {**_CLASSES, "accuracy": 0.9, "accuracy_stddev": 0.11}}}
    assert "sex = f: hidden by noise" in say(**{**_CLASSES, "by": hidden})
    assert "IS NOT SHOWN" not in say(**_NUMBERS)
    large = {"root_mean_squared_error": 3057.3, "margin": 1733.0, "baseline_error": 12_346.0}
    said = say(**{**_NUMBERS, **large, "baseline_margin": 1.0})
    assert "error 3,057 ± 1,700 on 80 held-out records" in said
    assert "of always saying the mean it is 12,350" in said
    assert "IS NOT SHOWN" in say(**{**_NUMBERS, "baseline_error": 2.6})
    assert "IS NOT SHOWN" in say(**_NUMBERS, baseline_stddev=0.8)  # of noise of both errors
    wrongs = {"confusion": 1}, {"by": 3}, {"records": 0}, {"accuracy": None}, {"recall": {}}
    for wrong in ({"task": "classification"}, *({**_CLASSES, **w} for w in wrongs)):
        with pytest.raises(ValueError, match=r"evaluation\.json must be"):
            say(**wrong)


def test_numbers_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"evaluation\.json must be JSON.*finite, got NaN"):
        _rendered(
            acc.certify(acc.Gaussian(4.0), 1e-5), tmp_path,
            evaluation_json={**_CLASSES, "accuracy": math.nan},
        )  # fmt: skip


@pytest.mark.parametrize("share", ["x", "nan", "1e400", ""])
def test_an_accuracy_that_is_no_share_is_refused(tmp_path, share):
    (tmp_path / "metrics.csv").write_text(f"step,test_accuracy\n1,{share}\n")
    with pytest.raises(ValueError, match=r"metrics\.csv must hold shares"):
        render_page(acc.certify(acc.Gaussian(4.0), 1e-5), tmp_path)


@pytest.mark.parametrize("text", ["x", "[1]", "[" * 5_000 + "]" * 5_000])
def test_a_bound_file_that_is_no_json_is_refused(tmp_path, text):
    (tmp_path / "model.json").write_text(text)
    certificate = acc.certify(acc.Gaussian(4.0), 1e-5)
    render_page(certificate, tmp_path)  # one that is not bound is not read
    with pytest.raises(ValueError, match=r"model\.json must be JSON"):
        render_page(certificate.bind_files({"model.json": text.encode()}), tmp_path)


@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 700.0, 1e6])
def test_at_the_corners_there_is_a_page(tmp_path, epsilon):
    declared = {"records": 1, "unit": "record"}
    certificate = acc.certify(acc.ApproximateDP(epsilon, 1e-6), 0.9, declared=declared)
    text = "".join(_Page(render_page(certificate, tmp_path)).text)
    assert "1 records" in _answer(text, 1)
    assert not re.search(r"\bnan\b", text)


def test_an_evaluation_that_the_certificate_does_not_bind_is_not_shown(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"1")
    certificate = _rendered(acc.certify(acc.Gaussian(4.0), 1e-5), tmp_path)[1]
    (tmp_path / "evaluation.json").write_text(json.dumps(_CLASSES))
    said = _answer("".join(_Page(render_page(certificate, tmp_path)).text), 10)
    assert "85.0%" not in said
    assert "not stated; ask whoever trained" in said


@pytest.mark.at_length(every=3)
@pytest.mark.parametrize(
    ("settings", "number", "words"),
    [
        ({"not_covered": [plan.BY_HAND]}, 11, "Whoever gave the seed"),
        ({"assumptions": [plan.SECRET_KEY]}, 11, "lists no seed and no key given by hand"),
        ({}, 11, "not stated; ask whoever trained"),
        ({"not_covered": [acc.Disclosure("held-out-exact", "results")]}, 5, "No, and"),
        ({"assumptions": [acc.Disclosure("held-out-public", "given")]}, 5, "No: they were"),
        ({"assumptions": [acc.Disclosure("held-out-by-coin", "a coin")]}, 5, "Yes, as the records"),
        ({"assumptions": [acc.Disclosure("held-out-by-coin", "a coin")]}, 5,
         "Each record was held out or not by a secret coin"),
        ({"assumptions": ["a record is held out by a secret coin"]}, 5, "not stated; ask whoever"),
        ({}, 5, "not stated; ask whoever trained"),
        ({"declared": {"unit": "person", "person_column": "id", "records_per_person": 4}}, 4,
         "Together protected: all records of one person"),
    ],
)  # fmt: skip
def test_what_the_certificate_says_decides_the_answer(tmp_path, settings, number, words):
    text, _ = _rendered(acc.certify(acc.Gaussian(4.0), 1e-5, **settings), tmp_path)
    assert words in _answer(text, number)
    assert ("person columnid" in _answer(text, 1)) is (number == 4)
    assert ("is declared, and not checked" in _answer(text, 4)) is (number == 4)
    assert "is the word of whoever issued it" in _answer(text, 12)


def test_of_a_run_of_persons_it_speaks_of_held_out_persons(tmp_path):
    certificate = acc.certify(
        acc.Gaussian(4.0),
        1e-5,
        assumptions=[acc.Disclosure("held-out-by-coin", "a coin decides")],
        declared={"unit": "person"},
    )
    said = _answer(_rendered(certificate, tmp_path)[0], 5)
    assert "Each person was held out or not by a secret coin" in said
    assert "cost a held-out person at most what the run costs a person" in said


def test_a_registry_entry_is_written_as_json_and_as_a_page(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")  # whose page is then of these facts
    about = tmp_path / "about.toml"
    about.write_text('organisation = "A <i>B</i>"\npurpose = "C"\nregion = "D"\nfile = "E"')
    for name in ("entry.json", "entry.html"):
        told = ["--about", str(about), "--registry", str(tmp_path / name)]
        result = CliRunner().invoke(app, ["report", str(place), *told])
        assert result.exit_code == 0, result.output
        assert str(tmp_path / name) in result.output
    certificate = acc.Certificate.from_json((folder / "certificate.json").read_text())
    entry = certificate.to_registry(curator="A <i>B</i>", intended_use="C", region="D")
    assert (tmp_path / "entry.json").read_text(encoding="utf-8") == entry
    read = _Page((tmp_path / "entry.html").read_text(encoding="utf-8"))
    shown = "".join(read.text)
    assert (read.open, read.references) == ([], [])
    for group, fields in json.loads(entry).items():
        assert group.replace("nist_sp_800_226", "NIST SP 800-226").replace("_", " ") in shown
        for name, value in fields.items():
            assert name.replace("_", " ") in shown
            assert not isinstance(value, str) or value in shown
    assert shown.count("not stated; ask the organisation") == entry.count(": null")
    told = ["report", str(folder), "--registry", str(tmp_path / "entry.html")]
    assert CliRunner().invoke(app, told).exit_code == 2  # is there already
    told[-1] = str(tmp_path / "entry.txt")
    assert CliRunner().invoke(app, told).exit_code == 2
    told[-1] = str(tmp_path / "one.html")
    assert CliRunner().invoke(app, [*told, "--out", str(tmp_path / "one.html")]).exit_code == 2


def _opened(page, width, *more):
    """What Qt's Chromium shows of the page; skips where there is none."""
    command = [sys.executable, str(pathlib.Path(__file__).with_name("browser.py")), page.as_uri()]
    done = subprocess.run(
        [*command, str(width), *map(str, more)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode == 3:
        pytest.skip(f"needs Qt's Chromium, pip install '.[browser]': {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def large(folder, tmp_path_factory):
    """The page of a run with much to say, and its entry of a registry."""
    place = tmp_path_factory.mktemp("large")
    kinds = {"a_column_of_a_name_without_a_single_gap_" * 2: "ignore", "age": "number"}
    columns = [{"name": n, "kind": k, "origin": "released"} for n, k in kinds.items()]
    columns += [{"name": f"pixel_{k}", "kind": "number", "origin": "public"} for k in range(784)]
    model = {"encoding": {"columns": columns, "target": "readmitted"}}
    names = [f"class-{k}" for k in range(10)]
    scores = dict.fromkeys(names, 0.5)
    found = {**_CLASSES, "classes": names, "precision": scores, "recall": scores}
    lines = [f"public: ranges of {', '.join(c['name'] for c in columns)}: given by the user"]
    lines += [plan.SECRET_KEY, *plan.NOTHING_CHOSEN]
    run = acc.Composed((acc.Gaussian(8.0), acc.Repeated(acc.Gaussian(40.0), 100)))
    certificate = acc.certify(run, 1e-5, assumptions=lines, declared={"records": 600})
    shutil.copy(folder / "training.png", place)
    certificate = _rendered(certificate, place, model_json=model, evaluation_json=found)[1]
    (place / "certificate.json").write_text(certificate.to_json(), encoding="utf-8")
    told = ["report", str(place), "--registry", str(place / "entry.html")]
    assert CliRunner().invoke(app, told).exit_code == 0
    return place


@pytest.mark.parametrize("name", ["report.html", "entry.html"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_whole_on_a_telephone_and_on_a_screen(large, width, name):
    shown = _opened(large / name, width)
    assert shown["width"] <= width  # nothing to scroll sideways for
    assert shown["requests"] == []
    if name == "report.html":
        assert len(shown["pictures"]) == 3
        assert min(shown["pictures"]) > 500  # decoded
        assert re.findall(r"^(\d+)\. .*\?$", shown["text"], re.M) == [str(k) for k in range(1, 13)]


def test_in_the_dark_its_ink_is_light(large):
    for colours, is_dark in (((), False), (("dark",), True)):
        shown = _opened(large / "report.html", 390, *colours)
        ink, paper = (sum(map(int, re.findall(r"\d+", shown[n])[:3])) for n in ("ink", "paper"))
        assert (ink > paper) is is_dark
        assert abs(ink - paper) > 400


def test_it_prints_on_two_sheets(large, tmp_path):
    shown = _opened(large / "report.html", 1280, tmp_path / "sheets.pdf")
    assert 1 <= shown["sheets"] <= 2


def test_chromium_opens_it(page):
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("needs Chromium or Chrome on the PATH")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "How can this be checked?" in done.stdout


def test_what_the_model_learned_is_listed_and_drawn(tmp_path):
    columns = (data.Column("cl\u202eass", "category", categories=("a", "<b>")),)
    schema = data.Schema(columns, target="paid", classes=("no", "yes"))
    weights = {"weights": np.array([-1.0, 1.0], "f"), "bias": np.zeros((), "f")}
    model, encoding = training.logistic(2), data.describe_encoding(schema)
    training.save_model(tmp_path, weights, model, encoding=encoding)
    bound = {name: (tmp_path / name).read_bytes() for name in ("model.json", "model.safetensors")}
    certificate = acc.certify(acc.Gaussian(4.0), 1e-5, declared={"unit": "person"})
    page = render_page(certificate.bind_files(bound), tmp_path)
    learned = page.split("What the model learned")[1].split("</details>")[0]
    assert "<tr><th>cl\\u202eass</th><td>yes</td><td>a</td><td>&lt;b&gt;</td>" in learned
    assert "an effect is zero at its plain mean over the values that are listed" in learned
    assert learned.count('<div class="wide"><div class="pictures"><img ') == 1
    # Of persons an attack finds persons.
    assert "the share of persons that the best attack finds" in page
    assert "the share of records" not in page
    # A number is not divided into two lines.
    rows = acc.summary(certificate.mechanism, (1e-5, 5e-6, 2e-6)).rows()
    assert all(f'<td><span class="whole">{number}</span></td>' in page for _, number, _ in rows)


def test_what_is_declared_replaces_nothing_that_is_certified(tmp_path):
    declared = {"ε": 0.001, "tier": "measured", "clip_norm": 1.0}
    certificate = acc.certify(acc.Gaussian(4.0), 1e-5, declared=declared)
    page = render_page(certificate, tmp_path)
    for name, value in {
        "ε": "0.926342",
        "tier": "proven",
        "declared ε": "0.001",
        "declared tier": "measured",
        "clip norm": "1",
    }.items():
        assert f"<tr><th>{name}</th><td>{value}</td></tr>" in page
