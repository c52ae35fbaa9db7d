"""The parts of a report: HTML for a telephone, in the dark and printed, numbers, pictures."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import math
import pathlib
import tempfile
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dpjax._digits import format_rounded_up
from dpjax.cli.texts import show_plainly

if TYPE_CHECKING:
    from dpjax.accounting import Certificate

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2937; --paper: #fff; --line: #d1d5db; --box: #f3f4f6;
        --ask: #b45309; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e7eb; --paper: #111827; --line: #4b5563; --box: #1f2937; --ask: #fbbf24; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem;
       color: var(--ink); background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 1.8rem 0 .4rem; }
p, dl, table { margin: .4rem 0; } dt { font-weight: 600; margin-top: .5rem; } dd { margin: 0; }
dd + dd { margin-top: .25rem; } .ask { color: var(--ask); }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem 1rem .2rem 0;
       border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child { min-width: 7.5rem; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
pre { overflow-x: auto; background: var(--box); padding: .7rem; overflow-wrap: normal; }
td pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: 0; margin: 0; background: none; }
.whole { white-space: nowrap; } .wide { overflow-x: auto; } .wide img { min-width: 48rem; }
summary { cursor: pointer; font-weight: 600; margin-top: 1rem; }
@page { size: A4; margin: 11mm 12mm; }
@media print {
  :root { color-scheme: light; --ink: #000; --paper: #fff; --line: #bbb; --box: #fff; --ask: #000; }
  body { font-size: 8.6pt; line-height: 1.3; margin: 0; padding: 0; max-width: none; }
  h1 { font-size: 12pt; margin: 0; } h2 { font-size: 9.6pt; margin: 5pt 0 1pt; break-after: avoid; }
  p, dl, table { margin: 1pt 0; } dt { margin-top: 1pt; } pre { padding: 2pt; }
  td, th { padding: 0 6pt 0 0; } dd + dd { margin: 0; } details { display: none; }
  .pictures { display: flex; gap: 4mm; align-items: flex-start; break-inside: avoid; }
  .pictures img { max-height: 50mm; max-width: 49%; object-fit: contain; }
  th:first-child { min-width: 7.4em; } }
"""


class Html(str):
    """A text that is HTML already; any other is escaped: texts of a run are shown, never obeyed."""


def escape(text: str) -> str:
    """A text as HTML, shown plainly: no character hides, or turns the direction of reading."""
    return html.escape(show_plainly(text))


def join(*texts: str) -> Html:
    """Texts one after the other, each escaped where it is no HTML."""
    return Html("".join(map(_escape, texts)))


def _escape(text: str) -> str:
    return text if isinstance(text, Html) else escape(text)


def whole_page(title: str, sections: list[str]) -> str:
    """A page that needs nothing else."""
    title = escape(title)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def section(heading: str, parts: Iterable[str]) -> str:
    """What stands under a heading: HTML, and a paragraph a text."""
    written = (p if isinstance(p, Html) else f"<p>{escape(p)}</p>" for p in parts)
    return f"<section><h2>{heading}</h2>\n{''.join(written)}</section>"


def ask(whom: str) -> Html:
    """That something is not stated, and who knows it."""
    return Html(f'<span class="ask">not stated; ask {escape(whom)}</span>')


def table(rows: Sequence[tuple[str, ...]], head: tuple[str, ...] = ()) -> Html:
    """Rows of texts, the first of each a name."""
    lines = [f"<tr>{''.join(f'<th>{escape(n)}</th>' for n in head)}</tr>"] if head else []
    for name, *others in rows:
        cells = "".join(f"<td>{_escape(text)}</td>" for text in others)
        lines.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    return Html(f"<table>{''.join(lines)}</table>")


def definitions(lines: list[str]) -> Html:
    """Lines of the form "term: words", each term once with all its words."""
    found: dict[str, list[str]] = {}
    for line in lines:
        term, _, words = line.partition(": ")
        found.setdefault(escape(term), []).append(f"<dd>{escape(words)}</dd>")
    rows = (f"<dt>{term}</dt>{''.join(words)}" for term, words in found.items())
    return Html(f"<dl>{''.join(rows)}</dl>")


def show_value(value: object) -> str:
    """A JSON value in a cell; null is what nobody stated."""
    if isinstance(value, dict):
        return Html(f"<pre>{escape(json.dumps(value, indent=1, ensure_ascii=False))}</pre>")
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return ask("the organisation") if value is None else str(value)


def images(drawn: dict[str, pathlib.Path]) -> Html:
    """Pictures within the page, by what each shows, for those who do not see it."""
    found = ""
    for words, path in drawn.items():
        encoded = base64.b64encode(path.read_bytes()).decode()
        found += f'<img alt="{escape(words)}" src="data:image/png;base64,{encoded}">'
    return Html(f'<div class="pictures">{found}</div>')


def wide(picture: Html) -> Html:
    """A picture that is moved sideways where it is wider than the screen."""
    return Html(f'<div class="wide">{picture}</div>')


def numbers(c: Certificate) -> str:
    """What the run permits, each number with a sentence."""
    from dpjax import accounting as acc
    from dpjax.accounting.answers.plain_words import name_users

    deltas, reserved = [c.delta * share for share in (1.0, 0.5, 0.2)], sum(c.extra_delta.values())
    found = acc.summary(c.mechanism, deltas, adjacency=c.adjacency, reserved=reserved)
    rows = []
    for name, number, words in found.rows():
        whole = Html(f'<span class="whole">{escape(number)}</span>')  # in one line
        rows.append((name, whole, name_users(c, words)))
    return table(rows)


_DRAWN = {"proven": "proven", "heuristic": "estimated", "audited": "audited"}


def pictures(c: Certificate, folder: pathlib.Path) -> Html:
    """The best attack; ε as proven, by the last iterate's heuristic, and as an audit found it."""
    from dpjax import accounting as acc
    from dpjax.accounting.answers.plain_words import name_users
    from dpjax.plotting import plot_attack, plot_bounds

    audit, found = folder / "audit.json", {"proven": c.epsilon}
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
        words.append("Audited: no; an audit.json beside the certificate would be shown here.")
    bounds = f"ε as {' and as '.join(_DRAWN[name] for name in found)}"
    with tempfile.TemporaryDirectory() as scratch:
        attack = name_users(
            c,
            "the share of records that the best attack finds, at most, by its rate of false "
            "alarms; on the dotted line are guesses",
        )
        drawn = {
            attack: plot_attack(c, f"{scratch}/attack.png"),
            bounds: plot_bounds(found, f"{scratch}/bounds.png"),
        }
        shown = images(drawn)
    return Html(f"{definitions(words)}{shown}<p>Drawn: {'; '.join(drawn)}.</p>")


def effects(c: Certificate, folder: pathlib.Path) -> Html:
    """What moves a prediction, as a list and a picture; nothing where no linear model is bound."""
    from dpjax import training
    from dpjax.effects import is_linear, read_effects
    from dpjax.plotting import plot_effects

    names = ("model.json", "model.safetensors")
    if not all(name in c.subject and (folder / name).is_file() for name in names):
        return Html()
    saved = training.load_model(folder)
    if not is_linear(saved):
        return Html()
    found = read_effects(saved)
    rows = []
    for one in found.steepest():
        around = "" if one.noise is None else f" ± {one.noise:.2f}"
        rows.append((one.column, one.output, one.low, one.high, f"{one.size:+.2f}{around}"))
    head = ("column", "score of", "from", "to", "change")
    with tempfile.TemporaryDirectory() as scratch:
        picture = plot_effects(found, pathlib.Path(scratch) / "effects.png")
        shown = images({"the effect of each column on the score, by its value": picture})
    words = (
        f"The largest change of the {found.score} that each column makes, the steepest first. "
        f"{found.noise}. In the picture {found.centred}."
    )
    # On a telephone its letters would be too small to read: it moves under the finger instead.
    return join(Html(f"<p>{escape(words)}</p>"), table(rows, head), wide(shown))


def _read_audit(file: pathlib.Path, delta: float) -> tuple[float, float]:
    """The lower end and the confidence of an audit of this δ; what is not so is bad input."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        is_proof, names = raw.get("proof") is not False, ("epsilon", "delta", "confidence")
        low, at, confidence = (float(raw[name]) if is_proof else math.nan for name in names)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"audit.json must be what EmpiricalBound.to_json() writes, got {file}: {error!r}"
        ) from None
    if not is_proof:
        raise ValueError(
            f"audit.json must hold a bound with a confidence, got {file}, which says that it is "
            "no proof, as a bootstrap interval does"
        )
    # A bound at a larger δ holds at a smaller one; below, ε may be larger than what was audited.
    if not (low >= 0 and 0.5 <= confidence < 1 and delta <= at < 1):
        raise ValueError(
            f"audit.json must hold ε >= 0, a confidence in [0.5, 1) and δ >= {delta:g} that is "
            f"below 1, got {raw}"
        )
    return low, confidence


def plan(c: Certificate) -> str:
    """What was planned, and what the issuer declares besides."""
    from dpjax.accounting.answers.plain_words import format_fact

    facts = {"ε": format_rounded_up(c.epsilon), "δ": f"{c.delta:g}"}
    facts |= {"adjacency": c.adjacency.value, "bound": c.method, "tier": c.tier}
    for name, value in c.declared.items():
        words = name.replace("_", " ")
        facts[f"declared {words}" if words in facts else words] = format_fact(value)
    return table(list(facts.items()))
