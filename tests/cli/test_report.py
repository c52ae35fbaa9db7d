"""`dpjax report` writes one file that says everything and asks the network for nothing."""

from __future__ import annotations

import base64
import html.parser
import io
import json
import pathlib
import shutil
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import audit, plotting
from dpjax.cli import app
from dpjax.cli.report import render_page
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
    for row in acc.summary(certificate.mechanism, (1e-5, 1e-6, 1e-7)).rows():
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
     '{"epsilon": 1, "delta": 1e-5, "confidence": 1.0}'],
)  # fmt: skip
def test_what_is_no_audit_is_refused(folder, tmp_path, text):
    result, _ = _three(folder, tmp_path, text)
    assert (result.exit_code, "audit.json must" in result.output) == (2, True)


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


def _opened(page, width):
    """What Qt's Chromium shows of the page; skips where there is none."""
    command = [sys.executable, str(pathlib.Path(__file__).with_name("browser.py")), page.as_uri()]
    done = subprocess.run(
        [*command, str(width)], capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode == 3:
        pytest.skip(f"needs Qt's Chromium, pip install '.[browser]': {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("width", [400, 1200])
def test_a_browser_shows_it_whole_on_a_telephone_and_on_a_screen(page, width):
    shown = _opened(page, width)
    assert "How can this be checked?" in shown["text"]
    assert "<b>age</b>" in shown["text"]  # shown, not obeyed
    assert len(shown["pictures"]) == 3
    assert min(shown["pictures"]) > 500  # decoded
    assert shown["width"] <= width  # nothing to scroll sideways for
    assert shown["requests"] == []


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
