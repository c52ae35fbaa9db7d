"""`dpjax report`: a run as one HTML file, for people who run no commands."""

from __future__ import annotations

import base64
import contextlib
import csv
import html
import json
import pathlib
import tempfile
from typing import TYPE_CHECKING, Annotated

import typer

from dpjax._digits import format_rounded_up
from dpjax._files import write_atomically
from dpjax.cli.inputs import check_new_file, exit_on_bad_input, option, verify_certificate

if TYPE_CHECKING:
    from dpjax.accounting import Certificate

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem;
       color: #1f2937; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
dt { font-weight: 600; margin-top: .5rem; } dd { margin: 0; }
dd + dd { margin-top: .25rem; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem 1.5rem .2rem 0;
       border-bottom: 1px solid #e5e7eb; vertical-align: top; }
img { max-width: 100%; height: auto; }
pre { overflow-x: auto; background: #f3f4f6; padding: .7rem; }
"""


def report(
    run: Annotated[
        pathlib.Path, typer.Argument(help="The folder of a finished run, or a certificate.json.")
    ],
    out: Annotated[
        pathlib.Path | None, option("[default: report.html beside the certificate]")
    ] = None,
) -> None:
    """A run as one HTML file, for people who run no commands.

    What is promised, to whom, the pictures, and how to check it. The certificate is recomputed
    first; the file needs no network and holds its pictures.

        dpjax report runs/digits
    """
    with exit_on_bad_input():
        if out is not None:
            check_new_file("--out", out, (".html", ".htm"))
        folder = run if run.is_dir() else run.parent
        goal = out or folder / "report.html"
        certificate, _ = verify_certificate(run)
        write_atomically(goal, render_page(certificate, folder).encode())
    typer.echo(f"wrote {goal}")


def render_page(certificate: Certificate, folder: pathlib.Path) -> str:
    """The page of a certificate and of what lies beside it: training.png, metrics.csv."""
    opening, details = (part.split("\n") for part in certificate.describe().split("\n\n"))
    sections = [f"<h1>{_title(certificate)}</h1>", _definitions(opening)]
    sections += ["<h2>What an attacker can do</h2>", _tradeoff_picture(certificate)]
    sections += ["<h2>In numbers</h2>", _numbers(certificate)]
    sections += ["<h2>Proven, estimated, measured</h2>", _three(certificate, folder)]
    names = certificate.subject or ("training.png", "metrics.csv")  # of others it says nothing
    if "training.png" in names and (folder / "training.png").is_file():
        metrics = [_result(folder / "metrics.csv")] if "metrics.csv" in names else []
        sections += ["<h2>Training</h2>", *metrics]
        sections.append(_image((folder / "training.png").read_bytes(), "accuracy and ε by step"))
    sections += ["<h2>The plan</h2>", _plan(certificate)]
    sections += ["<h2>The certificate</h2>", _definitions(details)]
    sections += [
        "<h2>How to check it</h2>",
        "<p>Save the text below as <code>certificate.json</code>, or take the file of that name "
        "from the folder of the run. On any machine with Python:</p>"
        "<pre>pip install 'dpjax[cli] @ git+https://github.com/dpjax/dpjax'\n"
        "dpjax verify certificate.json</pre>"
        "<p>The mechanism in the certificate is priced again, by the bound that it names and by "
        "an independent one where there is one; an edited ε, δ, adjacency or mechanism is refused, "
        "and a model file other than the one released. It cannot tell whether the run was the one "
        "described: for that, read the code that ran, or audit it.</p>"
        f"<details><summary>certificate.json</summary><pre>{html.escape(certificate.to_json())}"
        "</pre></details>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_title(certificate)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def _title(certificate: Certificate) -> str:
    cost = f"ε = {format_rounded_up(certificate.epsilon, 4)} at δ = {certificate.delta:g}"
    return html.escape(f"Privacy report: {cost} ({certificate.adjacency.value})")


def _definitions(lines: list[str]) -> str:
    """Lines of the form "term: words", each term once with all its words."""
    found: dict[str, list[str]] = {}
    for line in lines:
        term, _, words = line.partition(": ")
        found.setdefault(term, []).append(words)
    rows = (
        f"<dt>{html.escape(term)}</dt>" + "".join(f"<dd>{html.escape(w)}</dd>" for w in words)
        for term, words in found.items()
    )
    return f"<dl>{''.join(rows)}</dl>"


def _numbers(certificate: Certificate) -> str:
    """What the run permits, each number with a sentence."""
    from dpjax import accounting as acc

    deltas = [certificate.delta * share for share in (1.0, 0.1, 0.01)]
    reserved = sum(certificate.extra_delta.values())
    found = acc.summary(
        certificate.mechanism, deltas, adjacency=certificate.adjacency, reserved=reserved
    )
    cells = (map(html.escape, row) for row in found.rows())
    rows = (f"<tr><th>{n}</th><td>{v}</td><td>{words}</td></tr>" for n, v, words in cells)
    return f"<table>{''.join(rows)}</table>"


def _three(certificate: Certificate, folder: pathlib.Path) -> str:
    """ε as proven, as the last iterate's heuristic has it, and as an audit found it at least."""
    from dpjax import accounting as acc
    from dpjax.plotting import plot_bounds

    c, audit = certificate, folder / "audit.json"
    found = {"proven": c.epsilon}
    words = [f"Proven: ε is at most {format_rounded_up(c.epsilon, 4)} at δ = {c.delta:g}."]
    if c.adjacency is acc.Adjacency.ADD_REMOVE:
        with contextlib.suppress(acc.UnsupportedQuery):
            found["heuristic"] = acc.estimate_last_iterate(c.mechanism, c.delta)
            words.append(
                f"Heuristic, no certificate: {found['heuristic']:.4g}, were the loss linear and "
                "only the last iterate released (Steinke et al. 2025)."
            )
    if audit.is_file():
        found["audited"], confidence = _read_audit(audit, c.delta)
        words.append(
            f"Audited: ε is at least {found['audited']:.4g} with {100 * confidence:g} % confidence."
        )
        if found["audited"] > c.epsilon:
            words.append("CONTRADICTION: the audit refutes what is certified.")
    else:
        words.append("Audited: not; an audit.json beside the certificate would be shown here.")
    with tempfile.TemporaryDirectory() as scratch:
        content = plot_bounds(found, pathlib.Path(scratch) / "bounds.png").read_bytes()
    return _definitions(words) + _image(content, "ε as proven, estimated and audited")


def _read_audit(file: pathlib.Path, delta: float) -> tuple[float, float]:
    """The lower end and the confidence of an audit of this δ; what is not so is bad input."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        low, at, confidence = (float(raw[name]) for name in ("epsilon", "delta", "confidence"))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"audit.json must be what EmpiricalBound.to_json() writes, got {file}: {error!r}"
        ) from None
    # A bound at a larger δ holds at a smaller one; below, ε may be larger than what was audited.
    if not (low >= 0 and 0 < confidence < 1 and at >= delta):
        raise ValueError(
            f"audit.json must hold ε >= 0, a confidence in (0, 1) and δ >= {delta:g}, got {raw}"
        )
    return low, confidence


def _plan(certificate: Certificate) -> str:
    from dpjax.accounting.answers.plain_words import format_fact

    facts = {
        "ε": format_rounded_up(certificate.epsilon),
        "δ": f"{certificate.delta:g}",
        "adjacency": certificate.adjacency.value,
        "bound": certificate.method,
        "tier": certificate.tier,
    }
    for name, value in certificate.declared.items():
        words = name.replace("_", " ")
        facts[f"declared {words}" if words in facts else words] = format_fact(value)
    rows = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table>{''.join(rows)}</table>"


def _result(metrics: pathlib.Path) -> str:
    """The last row of metrics.csv in a sentence, where it is there."""
    rows: list[dict[str, str]] = []
    if metrics.is_file():
        with metrics.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    if not rows or "test_accuracy" not in rows[-1]:
        return ""
    accuracy = float(rows[-1]["test_accuracy"])
    return f"<p>{accuracy:.1%} of the held-out records are classified rightly.</p>"


def _tradeoff_picture(certificate: Certificate) -> str:
    from dpjax.plotting import plot_attack

    with tempfile.TemporaryDirectory() as scratch:
        picture = plot_attack(certificate, pathlib.Path(scratch) / "attack.png")
        content = picture.read_bytes()
    words = "the share of records that the best attack finds, at most, by its rate of false alarms"
    return _image(content, words) + f"<p>Drawn: {words}. On the dotted line are guesses.</p>"


def _image(content: bytes, words: str) -> str:
    encoded = base64.b64encode(content).decode()
    return f'<p><img alt="{html.escape(words)}" src="data:image/png;base64,{encoded}"></p>'
