"""`dpjax report`: a run as one HTML file, for whoever has to approve it.

Twelve questions, each under its heading, with an answer or with who can give it.
"""

from __future__ import annotations

import csv
import datetime
import html
import json
import math
import pathlib
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpjax._digits import format_rounded_up
from dpjax._files import write_atomically
from dpjax.cli import page
from dpjax.cli.inputs import check_new_file, exit_on_bad_input, option, verify_certificate

if TYPE_CHECKING:
    from dpjax.accounting import Certificate, Ledger

# Of --about: what no certificate knows, and whom to ask.
_ABOUT = {
    "organisation": "whoever ordered the training",
    "purpose": "whoever ordered the training",
    "responsible": "the organisation for the person who is responsible",
    "file": "whoever trained for the file and where it came from",
    "period": "whoever exported the records",
    "persons": "whoever exported the records how many there are, and how many rows one has at most",
}
# Sentences of certificates by a part of their text: who must act, and how.
_ACTS = {
    "key or a seed given by hand": "Whoever trained: train again without a seed, or keep it as "
    "secret as the records.",
    "learned from the rows": "Whoever trained: declare these in a schema, or train with "
    "--preprocessing private.",
    "accuracy without privacy": "Whoever publishes: keep training.png inside the organisation.",
    "held-out records, which": "Whoever publishes: keep metrics.csv, training.png and "
    "evaluation.json inside the organisation.",
    "functions of the training": "Whoever publishes: keep metrics.csv inside the organisation.",
    "running time": "Whoever runs the machine: show no times to outsiders; delete the checkpoints.",
    "how long the run took": "Whoever runs the machine: confirm it; delete the checkpoints.",
    "by looking at results": "Whoever trained: confirm it, or book every run in one ledger.",
    "treated as public": "The organisation: confirm that it may be known.",
    "columns are public": "The organisation: confirm that these may be known.",
    "public: ": "The organisation: confirm that this was not read off the records.",
    "key of the run stays secret": "Whoever runs the machine: delete the checkpoints.",
}
_OTHERS_ACT = "Whoever signs: ask whoever trained what it tells of the records."
# Files of a run that may leave the organisation, and why.
_LEAVE = {
    "certificate.json": "it is made to be shown.",
    "model.safetensors": "what is promised is promised of it.",
    "model.json": "the ranges and categories in it are public or covered.",
    "metrics.csv": "the results in it are covered.",
    "training.png": "the results in it are covered.",
    "evaluation.json": "the results in it are covered.",
}
_STAY = {
    "audit.json": "Ask whoever audited: it may speak of single records.",
    "checkpoint": "No: delete it. It is needed no more once the run has ended.",
}
_KEY = "NO: DELETE IT NOW. It holds the key of the noise: whoever has it can subtract the noise."
_NO_BETTER = " THAT THE MODEL IS BETTER IS NOT SHOWN."
_SHOWN = 24  # names of columns, and classes, in the part that is printed


def report(
    run: Annotated[
        pathlib.Path, typer.Argument(help="The folder of a finished run, or a certificate.json.")
    ],
    out: Annotated[
        pathlib.Path | None, option("[default: report.html beside the certificate]")
    ] = None,
    about: Annotated[
        pathlib.Path | None,
        option(
            f"What no certificate knows (TOML): {', '.join(_ABOUT)}; and for --registry name, "
            "description, publication_year, region, sector, security, collection, utility."
        ),
    ] = None,
    ledger: Annotated[
        pathlib.Path | None, option("The ledger of all models on the same records or persons.")
    ] = None,
    registry: Annotated[
        pathlib.Path | None,
        option("Also write an entry for a public registry of deployments (.html or .json)."),
    ] = None,
) -> None:
    """A run as one HTML file, for whoever has to approve it.

    Answers twelve questions: which data, what is promised to whom, what is not covered and who must
    act, which files may leave the organisation, whether the model is good enough, how to check it.
    The certificate is recomputed first and the files that it names are compared; the page needs no
    network, holds its pictures, and prints on two sheets.

        dpjax report runs/digits
        dpjax report runs/digits --about about.toml --ledger digits.ledger.json
        dpjax report runs/digits --about about.toml --registry entry.html
    """
    with exit_on_bad_input():
        from dpjax.accounting import LedgerFile

        if out is not None:
            check_new_file("--out", out, (".html", ".htm"))
        if registry is not None:
            check_new_file("--registry", registry, (".html", ".htm", ".json"))
        facts = {} if about is None else _read_about(about)
        booked = None if ledger is None else LedgerFile(ledger).read()
        folder = run if run.is_dir() else run.parent
        goal = out or folder / "report.html"
        if registry is not None and registry.resolve() == goal.resolve():
            raise ValueError(f"--registry must be another file than the report, got {registry}")
        certificate, _ = verify_certificate(run)
        pages = {goal: render_page(certificate, folder, facts, booked)}
        if registry is not None:
            pages[registry] = _registry_entry(certificate, facts, registry)
        for path, text in pages.items():
            write_atomically(path, text.encode())
    for path in pages:
        typer.echo(f"wrote {path}")


def _read_about(file: pathlib.Path) -> dict[str, str]:
    """The facts of --about by name; an empty one is none."""
    from dpjax.accounting.answers.plain_words import PRODUCT

    names = [*_ABOUT, *(n for n in PRODUCT if n not in ("curator", "intended_use"))]
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # no TOML, or no UTF-8
        raise ValueError(f"--about must be TOML, got {file}: {error}") from None
    for name, value in raw.items():
        if name not in names:
            raise ValueError(f"--about must hold {', '.join(names)}, got {name!r} in {file}")
        if not isinstance(value, str | int | float | datetime.date):
            raise ValueError(f"--about must hold texts, got {name} = {value!r} in {file}")
    return {name: str(value).strip() for name, value in raw.items() if str(value).strip()}


def _registry_entry(certificate: Certificate, about: Mapping[str, str], file: pathlib.Path) -> str:
    """The entry of a registry, as JSON or as a page."""
    own = {"organisation": "curator", "purpose": "intended_use"}
    product = {own.get(n, n): v for n, v in about.items() if n in own or n not in _ABOUT}
    text = certificate.to_registry(**product)
    if file.suffix.lower() == ".json":
        return text
    title = "Registry entry: " + _title(certificate)
    body = [f"<h1>{title}</h1>"]
    for group, fields in json.loads(text).items():
        name = group.replace("nist_sp_800_226", "NIST SP 800-226").replace("_", " ")
        rows = [(field.replace("_", " "), page.show(value)) for field, value in fields.items()]
        body.append(f"<section><h2>{name}</h2>{page.table(rows)}</section>")
    return page.whole_page(title, body)


def render_page(
    certificate: Certificate,
    folder: pathlib.Path,
    about: Mapping[str, str] | None = None,
    booked: Ledger | None = None,
) -> str:
    """The page of a certificate and of what lies beside it, as far as the certificate binds it."""
    c = certificate
    opening, details = (part.split("\n") for part in c.describe().split("\n\n"))
    promised = [line for line in opening if not line.startswith("Not covered")]
    answers = {
        "Which data is it, and who answers for it?": _describe_data(c, about or {}),
        "Which columns were used, and which were left out?": _list_columns(c, folder),
        "What is promised, and what can an attack still do?": page.definitions(promised)
        + page.pictures(c, folder),
        "What is promised to a person with several records?": _describe_several(c),
        "Are the records that were held out protected?": _describe_held_out(c),
        "What is not covered, and who must act?": _list_uncovered(c),
        "Which files may leave the organisation, and which must be deleted?": _list_files(
            c, folder
        ),
        "What do all models on these persons cost together?": _add_up(c, booked),
        "Does this certificate belong to this model?": _compare_files(c, folder),
        "Is the model good enough?": _rate_model(c, folder),
        "Who vouches for the random numbers?": _describe_randomness(c),
        "How can this be checked?": _CHECK,
    }
    title = f"Privacy report: {_title(c)}"
    body = [f"<h1>{title}</h1>"]
    for number, (question, answer) in enumerate(answers.items(), 1):
        body.append(f"<section><h2>{number}. {question}</h2>\n{answer}</section>")
    for name, text in {
        "In numbers": page.numbers(c),
        "The plan": page.plan(c),
        "The certificate": page.definitions([*opening, *details]),
        "certificate.json": f"<pre>{html.escape(c.to_json())}</pre>",
    }.items():
        body.append(f"<details><summary>{name}</summary>{text}</details>")
    return page.whole_page(title, body)


_CHECK = (
    "<p>Save the text at the end of this page as <code>certificate.json</code>, or take that file "
    "from the folder of the run. On any machine with Python:</p>"
    "<pre>pip install 'dpjax[cli] @ git+https://github.com/dpjax/dpjax'\n"
    "dpjax verify certificate.json</pre>"
    "<p>The mechanism in the certificate is priced again, by the bound that it names and by an "
    "independent one where there is one; an edited ε, δ, adjacency or mechanism is refused, and a "
    "model file other than the one released. It cannot tell whether the run was the one described: "
    "for that, read the code that ran, or audit it.</p>"
)


def _title(certificate: Certificate) -> str:
    cost = f"ε = {format_rounded_up(certificate.epsilon, 4)} at δ = {certificate.delta:g}"
    return html.escape(f"{cost} ({certificate.adjacency.value})")


def _shorten(names: list[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


# ------------------------------------------------------------------------------ the answers


def _describe_data(c: Certificate, about: Mapping[str, str]) -> str:
    unit, count = str(c.declared.get("unit", "record")), c.declared.get("records")
    rows = [
        (name, about.get(name) or page.ask(f"{whom}; give it in --about as {name} = …"))
        for name, whom in _ABOUT.items()
        if name != "persons" or unit == "record"
    ]
    known = f"{count:,.0f} {unit}s" if isinstance(count, int | float) else ""
    rows.append(("trained on", known or page.ask("whoever trained")))
    for name in ("person_column", "records_per_person"):
        if name in c.declared:
            rows.append((name.replace("_", " "), str(c.declared[name])))
    return page.table(rows)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _read_bound(c: Certificate, folder: pathlib.Path, name: str) -> Any:
    """A JSON file beside the certificate, if it binds it; of others it says nothing."""
    if (c.subject and name not in c.subject) or not (folder / name).is_file():
        return None
    try:
        text = (folder / name).read_text(encoding="utf-8")
        found = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise ValueError(f"{name} must be JSON, got {folder / name}: {error}") from None
    return found if isinstance(found, dict) else None


def _list_columns(c: Certificate, folder: pathlib.Path) -> str:
    encoding: Any = (_read_bound(c, folder, "model.json") or {}).get("encoding")
    columns = encoding.get("columns") if isinstance(encoding, dict) else None
    if not isinstance(columns, list):
        return page.paragraphs(page.ask("whoever trained: no model.json says it"))
    used: dict[str, list[str]] = {}
    left = [text for text in str(c.declared.get("columns_left_out", "")).split(", ") if text]
    for column in filter(lambda one: isinstance(one, dict), columns):
        is_used, name = column.get("kind") != "ignore", str(column.get("name"))
        (used.setdefault(str(column.get("origin")), []) if is_used else left).append(name)
    rows: list[tuple[str, ...]] = [("predicted", str(encoding.get("target")))]
    rows += [(f"used ({origin})", _shorten(names)) for origin, names in used.items()]
    return page.table([*rows, ("left out", _shorten(list(dict.fromkeys(left))) or "none is named")])


def _describe_several(c: Certificate) -> str:
    from dpjax.accounting.answers.plain_words import describe_persons

    if not math.isfinite(c.epsilon):
        return page.paragraphs("Nothing is promised to anybody.")
    return page.paragraphs(*describe_persons(c))


def _describe_held_out(c: Certificate) -> str:
    open_lines = [line for line in c.not_covered if "held-out" in line]
    lines = [line for line in c.assumptions if "held" in line and "out" in line]
    if open_lines:
        return page.paragraphs("No, and their results are not covered:", *open_lines)
    if any(line.startswith("public: the held-out") for line in lines):
        return page.paragraphs(
            "No: they were given as public. Ask the organisation whether they are."
        )
    if lines:
        return page.paragraphs("Yes, as the records that were trained on:", *lines)
    return page.paragraphs(
        page.ask("whoever trained whether results on held-out records are shown, and how")
    )


def _list_uncovered(c: Certificate) -> str:
    def act(line: str, otherwise: str = "") -> str:
        return next((who for part, who in _ACTS.items() if part in line), otherwise)

    def cut(line: str) -> str:  # lists of columns may be long; question 2 has the names
        return line if len(line) <= 240 else f"{line[:180]} … {line[-40:]}"

    rows = [(act(line, _OTHERS_ACT), cut(line)) for line in c.not_covered]
    asked = [(act(line), cut(line)) for line in c.assumptions if act(line)]
    if not math.isfinite(c.epsilon):
        return page.paragraphs("Nothing is covered.")
    text = "Nothing is listed. What leaves the data in another way never is covered."
    listed = (
        page.table(rows, ("who must act", "not covered by ε")) if rows else page.paragraphs(text)
    )
    head = "who must act", "taken as true by the certificate"
    return listed + (page.table(asked, head) if asked else "")


def _list_files(c: Certificate, folder: pathlib.Path) -> str:
    uncovered = " ".join(c.not_covered)
    uncovered += " model.json" * ("learned from the rows" in uncovered)
    uncovered += " evaluation.json" * ("held-out" in uncovered)
    refused = "No, unless whoever signs accepts what question 6 says of it."
    if not math.isfinite(c.epsilon):
        uncovered, refused = " ".join(_LEAVE), "No: nothing is promised of it."
    results = any(name in uncovered for name in ("metrics.csv", "training.png", "evaluation.json"))
    rows: list[tuple[str, ...]] = [
        ("this page", f"It shows results. {refused}" if results else "Yes: it repeats these files.")
    ]
    for path in sorted(p for p in (folder / name for name in (*_LEAVE, *_STAY)) if p.exists()):
        words = _STAY.get(path.name, "Ask whoever trained: the certificate does not name it.")
        if path.name in c.subject or path.name == "certificate.json":
            words = refused if path.name in uncovered else f"Yes: {_LEAVE[path.name]}"
        rows.append((path.name + "/" * path.is_dir(), words))
    for depth in ("*", "*/*", "*/*/*"):  # of a large folder no further
        for key in sorted(folder.glob(f"{depth}/noise_key.json")):
            rows.append((f"{key.parent.relative_to(folder)}/", _KEY))
    rows.append(("other files, if there are any", "Ask whoever made them: they are of no run."))
    rows.append(("the records, a seed, the ledger", "No: these speak of the records themselves."))
    return page.table(rows)


def _add_up(c: Certificate, booked: Ledger | None) -> str:
    from dpjax.accounting.answers.plain_words import grade

    if booked is None:
        whom = "whoever holds the records for the ledger of all models; give it by --ledger"
        more = "Every further model on the same persons adds to what they lose."
        return page.paragraphs(page.ask(whom), more)
    spent, known = booked.spent(), [one.digests["mechanism"] for one in booked.entries]
    total = f"ε = {format_rounded_up(spent, 4)} at δ = {booked.delta:g}"
    held = f"This is {grade(c, spent, booked.delta)}; the budget is ε = {booked.epsilon:g}."
    return page.paragraphs(
        f"{len(known)} run{'s are' if len(known) != 1 else ' is'} booked, together {total} "
        f"({booked.adjacency.value}) for each {booked.unit}. {held}",
        "A run of this certificate's mechanism is among them."
        if c.digests["mechanism"] in known
        else "THIS RUN IS NOT AMONG THEM: the total is without it.",
    )


def _compare_files(c: Certificate, folder: pathlib.Path) -> str:
    if not c.subject:
        return page.paragraphs(
            "Nobody can say: the certificate names no file. Ask for one that does."
        )
    found = c.check_files(folder)  # refuses another file of that name
    rows = [
        (name, f"{digest[:16]}…", "the same" if name in found else "not here: not compared")
        for name, digest in c.subject.items()
    ]
    words = "Yes, the files that were compared" if found else "Not compared: no file is here"
    return page.paragraphs(f"{words}. Another file of one of these names is refused.") + page.table(
        rows, ("file", "SHA-256 in the certificate", "the file beside it")
    )


def _rate_model(c: Certificate, folder: pathlib.Path) -> str:
    found, names = _read_bound(c, folder, "evaluation.json"), c.subject or ("metrics.csv",)
    if found is not None:
        try:
            words = (_describe_numbers if found["task"] == "regression" else _describe_classes)(
                found
            )
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ValueError(
                "evaluation.json must be what dpjax train writes, got "
                f"{folder / 'evaluation.json'}: {error!r}"
            ) from None
    else:
        words = _result(folder / "metrics.csv") if "metrics.csv" in names else ""
        words = words or page.paragraphs(page.ask("whoever trained: no evaluation is bound"))
    if "training.png" in (c.subject or ("training.png",)) and (folder / "training.png").is_file():
        drawn = page.image((folder / "training.png").read_bytes(), "accuracy and ε by step")
        words += f'<div class="pictures">{drawn}</div>'
    return words + page.paragraphs("Whether that is enough, whoever uses the model must say.")


def _share(value: Any) -> str:
    return "unknown" if value is None else f"{float(value):.1%}"


def _describe_numbers(found: Mapping[str, Any]) -> str:
    """Of a model that predicts a number."""
    error, baseline = float(found["root_mean_squared_error"]), float(found["baseline_error"])
    spread = float(found["stddev"])
    better = "" if error < baseline - 2 * spread else _NO_BETTER
    return page.paragraphs(
        f"Root mean squared error {error:.4g} on {float(found['records']):,.0f} held-out records"
        + (f" (noise: ± {2 * spread:.2g})" if spread else "")
        + f"; of always saying the mean it is {baseline:.4g}.{better}"
    )


def _describe_classes(found: Mapping[str, Any], name: str = "") -> str:
    """Of a model that predicts a class, then of each group."""
    right, largest = float(found["accuracy"]), float(found["largest_class_share"])
    records, counts = float(found["records"]), len(found["confusion"])
    spread = found.get("accuracy_stddev")  # else of the sum of independent counts
    spread = float(found["stddev"]) * counts**0.5 / records if spread is None else float(spread)
    noise = f" (noise: ± {2 * spread:.1%})" if spread else ""
    margin = 2 * math.hypot(spread, float(found.get("largest_class_share_stddev", spread)))
    better = "" if right > largest + margin else _NO_BETTER
    auc = found.get("auc")
    text = page.paragraphs(
        f"{name}{right:.1%}{noise} of {records:,.0f} held-out records are classified rightly; "
        f"always saying the most frequent class is right for {largest:.1%}.{better}"
        + (
            f" Area under the ROC curve: {float(auc):.3f} (guesses: 0.5)."
            if auc is not None
            else ""
        )
    )
    if not name:
        rows: list[tuple[str, ...]] = [
            (str(one), _share(found["precision"][one]), _share(found["recall"][one]))
            for one in map(str, found["classes"][:_SHOWN])
        ]
        text += page.table(rows, ("class", "right where it is predicted", "found where it is true"))
    for column, groups in (found.get("by") or {}).items():
        for group, part in groups.items():
            text += _describe_classes(part, f"{column} = {group}: ")
    return text


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


def _describe_randomness(c: Certificate) -> str:
    if any("key or a seed given by hand" in line for line in c.not_covered):
        return page.paragraphs(
            "Whoever gave the seed: who knows or guesses it can subtract the noise."
        )
    lines = [line for line in c.assumptions if line.startswith("the key of the run")]
    if not lines:
        return page.paragraphs(page.ask("whoever trained where the random numbers came from"))
    return page.paragraphs(
        "The certificate lists no seed and no key given by hand: dpjax then takes the key from the "
        "operating system. For what follows from it by the generator Threefry nobody vouches; the "
        f"certificate assumes: {lines[0]}."
    )
