"""Texts on their way out: what a terminal, a page, a spreadsheet or a shell would obey."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import subprocess
import sys
import unicodedata

import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax.cli import app, inputs, page, predict, signals, texts
from dpjax.cli.console import PlainConsole

# Every character that moves a cursor, begins a sequence, or turns the direction of reading.
_CONTROLS = [chr(code) for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))]
_BIDIRECTIONAL = [chr(code) for code in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F))]
_BIDIRECTIONAL += [chr(code) for code in range(0x2066, 0x206A)]
_HOSTILE = [*_CONTROLS, *_BIDIRECTIONAL, "\u2028", "\u2029", "\ufeff", "\udcff", "\U000e0041"]


def _is_plain(text, kept="\n\t"):
    return not {unicodedata.category(c) for c in text if c not in kept} & {
        "Cc",
        "Cs",
        "Zl",
        "Zp",
        "Cf",
    }


@pytest.mark.parametrize("character", _HOSTILE, ids=ascii)
def test_no_character_that_hides_or_moves_is_shown(character):
    text = f"a{character}b"
    shown = texts.show_plainly(text, kept="")
    assert _is_plain(shown, "")
    # Its code is JSON's: what was JSON is the same JSON.
    assert json.loads(f'"{shown}"') == text
    assert _is_plain(page.escape(text))
    assert _is_plain(texts.quote_cell(text))
    stream = io.StringIO()
    console = PlainConsole()
    console.file = stream
    from rich.table import Table

    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    console.print(text, table, style="yellow")
    assert _is_plain(stream.getvalue())


def test_names_of_other_scripts_stay_as_they_are():
    for name in ("Größe", "年齢", "می\u200cخواهم", "👩\u200d⚕️", "naïve ε ≤ 3"):
        assert texts.show_plainly(name) == name


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1+1", "-1+1", "@SUM(A1)", " =1", "\t=1", "\r=1", "\n=1", "＝1", "-a", "+", "=",
     "-1.5.", "--1", "+49 170 1", '=HYPERLINK("http://a?"&A1)', "-1e5e5+1"],
)  # fmt: skip
def test_a_cell_is_no_formula(text):
    written = texts.quote_cell(text)
    (cell,) = next(csv.reader(io.StringIO(written + "\n", newline="")))
    assert cell.lstrip()[:1] not in "=+-@＝＋－＠" or texts._NUMERAL.fullmatch(cell)
    # Of another separator it is one cell, too.
    assert not set(written) & set(";|\t") or written[0] == written[-1] == '"'


@pytest.mark.parametrize("text", ["-1.5", "+2", "-1e-05", "0.25", "-1,5", "1.234,5", "-.5", "17"])
def test_a_number_stays_a_number(text):
    (cell,) = next(csv.reader(io.StringIO(texts.quote_cell(text) + "\n")))
    assert cell == text


def test_predictions_of_hostile_classes_and_ids_are_texts():
    import pandas as pd

    kept = pd.DataFrame({"=id": ["=cmd|'/c calc'!A1", "\x1b[2J17"]})
    classes = ("-1.5", "@SUM(1;2)")
    written = predict._as_csv(kept, [[0.75, 0.25], [0.25, 0.75]], classes, [])
    head, first, second = csv.reader(io.StringIO(written))
    assert head[0] == "'=id"
    assert head[1:] == ["prediction", *(f"probability of {name}" for name in classes)]
    assert first == ["'=cmd|'/c calc'!A1", "-1.5", "0.75", "0.25"]
    assert second == ["\\u001b[2J17", "'@SUM(1;2)", "0.25", "0.75"]


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii", "cp437", "utf-8"])
def test_a_stream_says_another_character_for_one_that_it_does_not_have(encoding, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    texts.spell_what_streams_cannot_say()
    everything = "".join(map(chr, range(0x20, 0x3000))) + "年👩\udcff"
    print("ε ± 1 ≤ δ", everything)
    inputs.print_json({"class": "年 ε"})
    sys.stdout.flush()
    said = written.getvalue().decode(encoding)
    if encoding == "ascii":
        assert said.startswith("epsilon +/- 1 <= delta")
    # JSON holds the same value in every encoding.
    assert json.loads(said[said.rindex("{") :]) == {"class": "年 ε"}


def test_every_symbol_of_a_message_has_an_ascii_spelling():
    assert all(word.isascii() and word for word in texts._SPELLED.values())


@pytest.mark.at_length
def test_a_certificate_that_holds_ends_with_0_on_any_stream(tmp_path):
    file = tmp_path / "certificate.json"
    file.write_text(acc.certify(acc.Gaussian(4.0), 1e-5).to_json(), encoding="utf-8")
    code = "import sys; sys.argv = ['dpjax', *sys.argv[1:]]; from dpjax.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "verify", str(file)],
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"epsilon = " in done.stdout
    assert b"The certificate holds" in done.stdout


@pytest.mark.processes
@pytest.mark.parametrize("encoding", ["ascii", "ANSI_X3.4-1968", "cp1252"])
def test_every_word_of_a_command_is_in_the_stream_s_own_characters(encoding):
    """Answers, help and refusals, as click writes them too, which takes ASCII for a mistake."""
    code = "import sys; sys.argv = ['dpjax', *sys.argv[1:]]; from dpjax.cli import main; main()"
    price = ("epsilon", "--noise-multiplier", "1", "--rate", ".01", "--steps", "3")
    for words, said in (
        ((*price, "--delta", "1e-5"), b"epsilon = "),
        (("train", "--help"), b"The privacy budget epsilon"),
        (("verify", "\u5e74.json"), b"\\u5e74.json"),
        (("\u5e74",), b"\\u5e74"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env=os.environ | {"PYTHONIOENCODING": encoding},
            capture_output=True,
            check=False,
        )
        assert done.returncode == (2 if "\u5e74" in words[-1] else 0), done.stderr
        assert said in done.stdout + done.stderr
        assert (done.stdout + done.stderr).isascii() or encoding == "cp1252"


def test_a_mistake_of_the_program_is_no_certificate_that_does_not_hold(monkeypatch):
    def fails():
        raise RuntimeError("planted")

    ended, said = [], []
    monkeypatch.setattr(signals.os, "_exit", ended.append)
    monkeypatch.setattr(sys, "excepthook", lambda *found: said.append(found[1]))
    before = signals.signal.getsignal(signals.signal.SIGINT)
    try:
        signals.finish_process(fails)
    finally:
        signals.signal.signal(signals.signal.SIGINT, before)
    assert ended == [inputs.MISTAKE] == [3]
    assert str(said[0]) == "planted"


def test_a_report_shows_names_of_columns_and_hides_none_of_their_characters(tmp_path):
    hostile = "age\x1b[31m\u202egpj.exe"
    columns = [{"name": hostile, "kind": "number", "origin": "declared"}]
    model = json.dumps({"encoding": {"target": hostile, "columns": columns}}).encode()
    certificate = acc.certify(acc.Gaussian(4.0), 1e-5).bind_files({"model.json": model})
    (tmp_path / "model.json").write_bytes(model)
    file = tmp_path / "certificate.json"
    file.write_text(certificate.to_json(), encoding="utf-8")
    for command in (["report", str(tmp_path)], ["verify", str(tmp_path)]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert _is_plain(result.output)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert _is_plain(text)
    assert "age\\u001b[31m\\u202egpj.exe" in text


@pytest.mark.parametrize("folder", ["runs/e v il", "a;rm -rf $HOME", "it's", "-x"])
def test_a_hint_is_one_command_of_a_shell(folder):
    assert shlex.split(f"dpjax verify {texts.quote_path(folder)}") == ["dpjax", "verify", folder]
