"""`dpjax report`: a run as one HTML file, for whoever has to approve it.

Twelve questions, each under its heading, with an answer or with who can give it.
"""

from __future__ import annotations

import csv
import datetime
import json
import math
import pathlib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpjax._digits import format_plain, format_rounded_up
from dpjax._files import JsonObject, write_atomically
from dpjax.cli import page
from dpjax.cli.inputs import check_new_file, exit_on_bad_input, option, verify_certificate
from dpjax.cli.page import Html
from dpjax.cli.texts import make_printable, say

if TYPE_CHECKING:
    from dpjax.accounting import Certificate, Disclosure, Ledger

# The facts of --about: what no certificate knows, and whom to ask.
_ABOUT = {
    "organisation": "whoever ordered the training",
    "purpose": "whoever ordered the training",
    "responsible": "the organisation for the person who is responsible",
    "file": "whoever trained for the file and where it came from",
    "period": "whoever exported the records",
    "persons": "whoever exported the records how many there are, and how many rows one has at most",
}
# What whoever must act on a sentence of a certificate has to do, by its code.
_ACTS = {
    "key-by-hand": "train again without a seed, or keep it as secret as the records.",
    "learned-from-rows": "declare these in a schema, or train with --preprocessing private.",
    "accuracy-without-privacy": "keep training.png inside the organisation.",
    "held-out-exact": "keep metrics.csv, training.png and evaluation.json inside the organisation.",
    "training-losses": "keep metrics.csv inside the organisation.",
    "running-time": "show no times to outsiders; delete the checkpoints.",
    "duration-unseen": "confirm it; delete the checkpoints.",
    "settings-chosen": "confirm it, or book every run in one ledger.",
    "nothing-chosen": "confirm it, or book every run in one ledger.",
    "records-public": "confirm that it may be known.",
    "columns-public": "confirm that these may be known.",
    "held-out-public": "confirm that this was not read off the records.",
    "given-as-public": "confirm that this was not read off the records.",
    "key-secret": "delete the checkpoints.",
}
_OTHERS_ACT = "ask whoever trained what it tells of the records."
_CLEAR = "Yes: nothing in it is uncovered."
_OWN_WORDS = "Ask whoever trained whether it shows what question 6 lists in their own words."
# Files of a run that may leave the organisation where the certificate covers them, and others.
_RESULTS = "metrics.csv", "training.png", "evaluation.json"
_LEAVE = "certificate.json", "model.safetensors", "model.json", "effects.png", *_RESULTS
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

        for name, file, formats in (("--out", out, ()), ("--registry", registry, (".json",))):
            if file is not None:
                check_new_file(name, file, (".html", ".htm", *formats))
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
        say(f"wrote {path}")


def _read_about(file: pathlib.Path) -> dict[str, str]:
    """The facts of --about by name; an empty one is none."""
    from dpjax.accounting.answers.plain_words import PRODUCT

    names = [*_ABOUT, *(n for n in PRODUCT if n not in ("curator", "intended_use"))]
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:  # no TOML, or no UTF-8
        raise ValueError(f"--about must be TOML, got {file}: {error}") from None
    for name, value in raw.items():
        if name not in names or not isinstance(value, str | int | float | datetime.date):
            listed = ", ".join(names)
            raise ValueError(f"--about must hold texts of {listed}, got {name} = {value!r}")
    return {name: str(value).strip() for name, value in raw.items() if str(value).strip()}


def _registry_entry(certificate: Certificate, about: Mapping[str, str], file: pathlib.Path) -> str:
    """The entry of a registry, as JSON or as a page."""
    own = {"organisation": "curator", "purpose": "intended_use"}
    product = {own.get(n, n): v for n, v in about.items() if n in own or n not in _ABOUT}
    text = certificate.to_registry(**product)
    if file.suffix.lower() == ".json":
        return text
    sections = []
    for group, fields in json.loads(text).items():
        rows = [
            (field.replace("_", " "), page.show_value(value)) for field, value in fields.items()
        ]
        name = group.replace("nist_sp_800_226", "NIST SP 800-226").replace("_", " ")
        sections.append(page.section(name, [page.table(rows)]))
    return page.whole_page(f"Registry entry: {_title(certificate)}", sections)


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
    answers: dict[str, Iterable[str]] = {
        "Which data is it, and who answers for it?": _describe_data(c, about or {}),
        "Which columns were used, and which were left out?": _list_columns(c, folder),
        "What is promised, and what can an attack still do?": [
            page.definitions(promised),
            *_warn_of_delta(c),
            page.pictures(c, folder),
        ],
        "What is promised to a person with several records?": _describe_several(c),
        "Are the records that were held out protected?": _describe_held_out(c),
        "What is not covered, and who must act?": _list_uncovered(c),
        "Which files may leave the organisation, and which must be deleted?": [
            _list_files(c, folder, booked)
        ],
        "What do all models on these persons cost together?": _add_up(c, booked),
        "Does this certificate belong to this model?": _compare_files(c, folder),
        "Is the model good enough?": _rate_model(c, folder),
        "Who vouches for the random numbers?": _describe_randomness(c),
        "How can this be checked?": _CHECK,
    }
    learned = page.effects(c, folder)
    folded = {
        **({"What the model learned": learned} if learned else {}),
        "In numbers": page.numbers(c),
        "The plan": page.plan(c),
        "The certificate": page.definitions([*opening, *details]),
        "certificate.json": f"<pre>{page.escape(c.to_json())}</pre>",
    }
    sections = [page.section(f"{k}. {name}", answers[name]) for k, name in enumerate(answers, 1)]
    sections += [f"<details><summary>{n}</summary>{text}</details>" for n, text in folded.items()]
    return page.whole_page(f"Privacy report: {_title(c)}", sections)


_CHECK = (
    "Save the text at the end of this page as certificate.json, or take that file from the folder "
    "of the run. On any machine with Python:",
    Html(
        "<pre>pip install 'dpjax[cli] @ git+https://github.com/dpjax/dpjax'\n"
        "dpjax verify certificate.json</pre>"
    ),
    "The mechanism in the certificate is priced again, by the bound that it names and by an "
    "independent one where there is one; an edited ε, δ, adjacency or mechanism is refused, and a "
    "model file other than the one released. It cannot tell whether the run was the one described: "
    "for that, read the code that ran, or audit it. What is not covered, how many records there "
    "are and whether they are all of one person's is the word of whoever issued it.",
)


def _title(c: Certificate) -> str:
    return f"ε = {format_rounded_up(c.epsilon, 4)} at δ = {c.delta:g} ({c.adjacency.value})"


# ------------------------------------------------------------------------------ the answers


def _describe_data(c: Certificate, about: Mapping[str, str]) -> list[str]:
    unit, count = str(c.declared.get("unit", "record")), c.declared.get("records")
    # The certificate names the file that was trained on; where that came from it cannot know.
    named = {"file": str(c.declared["data"])} if "data" in c.declared else {}
    rows = [
        (name, about.get(name) or page.ask(f"{whom}; give it in --about as {name} = …"))
        for name, whom in _ABOUT.items()
        if (name != "persons" or unit == "record") and name not in named
    ]
    for name, value in named.items():
        more = about.get(name) or page.ask(f"{_ABOUT[name]}; give it in --about as {name} = …")
        rows.append(
            (name, page.join(f"{value}, as the certificate names it. Where it came from: ", more))
        )
    known = f"{count:,.0f} {unit}s" if isinstance(count, int | float) else ""
    rows.append(("trained on", known or page.ask("whoever trained")))
    facts = [n for n in ("person_column", "records_per_person") if n in c.declared]
    return [page.table([*rows, *((n.replace("_", " "), str(c.declared[n])) for n in facts)])]


def _refuse_constant(text: str) -> None:
    raise ValueError(f"numbers must be finite, got {text}")


def _read_bound(c: Certificate, folder: pathlib.Path, name: str) -> JsonObject:
    """A JSON file beside the certificate, if it binds it; of others it says nothing."""
    if name not in c.subject or not (folder / name).is_file():
        return {}
    try:
        text = (folder / name).read_text(encoding="utf-8")
        found = json.loads(text, parse_constant=_refuse_constant)
        if not isinstance(found, dict):
            raise ValueError(f"it must hold names, got {type(found).__name__}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON, got {folder / name}: {error}") from None
    return found


def _list_columns(c: Certificate, folder: pathlib.Path) -> list[str]:
    encoding = _read_bound(c, folder, "model.json").get("encoding")
    encoding = encoding if isinstance(encoding, dict) else {}
    columns = encoding.get("columns")
    if not isinstance(columns, list):
        return [page.ask("whoever trained: no model.json says it")]
    used: dict[str, list[str]] = {}
    left = [text for text in str(c.declared.get("columns_left_out", "")).split(", ") if text]
    for column in filter(lambda one: isinstance(one, dict), columns):
        # The certificate holds names in this form.
        is_used, name = column.get("kind") != "ignore", make_printable(str(column.get("name")))
        name += _flag_column(column) if is_used else ""
        (used.setdefault(str(column.get("origin")), []) if is_used else left).append(name)
    named = {f"used ({origin})": names for origin, names in used.items()}
    named |= {"left out": list(dict.fromkeys(left)) or ["none is named"]}
    rows = [("predicted", str(encoding.get("target")))]
    for what, names in named.items():
        more = f", and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
        rows.append((what, ", ".join(names[:_SHOWN]) + more))
    return [page.table(rows)]


def _flag_column(column: Mapping[str, Any]) -> str:
    """What whoever signs should ask of a column that was used, in brackets."""
    from dpjax.data.schema import is_named_as_id

    # Models of before 0.2 have no remarks of their own.
    flag = str(column.get("remark", ""))
    if not flag and column.get("kind") == "category" and not any(column.get("categories") or []):
        flag = "no value stood out of the noise"
    if not flag and is_named_as_id(str(column.get("name"))):
        flag = "an id by its name"
    return f" ({flag})" if flag else ""


def _warn_of_delta(c: Certificate) -> list[str]:
    """That δ alone allows somebody to be published, as whoever trains is told."""
    unit, count = str(c.declared.get("unit", "record")), c.declared.get("records")
    if not (math.isfinite(c.epsilon) and isinstance(count, int | float) and c.delta * count >= 1):
        return []
    return [
        f"δ = {c.delta:g} IS NOT BELOW 1 / {count:,.0f} {unit}s: the promise would hold even if a "
        f"whole {unit}, drawn at random, were published."
    ]


def _describe_several(c: Certificate) -> list[str]:
    from dpjax.accounting.answers.plain_words import describe_persons

    if not math.isfinite(c.epsilon):
        return ["Nothing is promised to anybody."]
    if c.declared.get("unit", "record") == "record":
        return describe_persons(c)
    # The mechanism may speak of them too; nothing prices what is only declared.
    said = "That a record of the run is all of one's records is declared, and not checked."
    return [*describe_persons(c), said]


def _describe_held_out(c: Certificate) -> list[str]:
    from dpjax.accounting.answers.plain_words import name_users

    uncovered = [said for said in c.not_covered if said.code == "held-out-exact"]
    assumed = {said.code for said in c.assumptions}
    if uncovered:
        return ["No, and their results are not covered:", *uncovered]
    if "held-out-public" in assumed:
        return ["No: they were given as public. Ask the organisation whether they are."]
    if "held-out-by-coin" in assumed:
        return [
            name_users(c, "Yes, as the records that were trained on."),
            name_users(
                c,
                "Each record was held out or not by a secret coin of its own. What this page and "
                "the files say of those held out are counts and sums with noise. The noise is so "
                "large that they cost a held-out record at most what the run costs a record that "
                "was trained on. All of them, with their noise, are in the certificate, under "
                "Assumes.",
            ),
        ]
    return [page.ask("whoever trained whether results on held-out records are shown, and how")]


def _name_act(said: Disclosure, otherwise: str = "") -> str:
    """Who must act on a sentence, and how."""
    if act := _ACTS.get(said.code):
        return f"{said.actor.capitalize()}: {act}"
    return f"Whoever signs: {otherwise}" if otherwise else ""


def _list_uncovered(c: Certificate) -> list[str]:
    def list_acts(said: Iterable[Disclosure], otherwise: str = "") -> list[tuple[str, str]]:
        # Lists of columns may be long; question 2 has the names.
        rows = (
            (_name_act(one, otherwise), one if len(one) <= 240 else f"{one[:180]} … {one[-40:]}")
            for one in said
        )
        return [row for row in rows if row[0]]

    if not math.isfinite(c.epsilon):
        return ["Nothing is covered."]
    text = "Nothing is listed. What leaves the data in another way never is covered."
    head = "who must act", "taken as true by the certificate"
    rows, asked = list_acts(c.not_covered, _OTHERS_ACT), list_acts(c.assumptions)
    listed = page.table(rows, ("who must act", "not covered by ε")) if rows else text
    return [listed, page.table(asked, head) if asked else Html()]


def _list_files(c: Certificate, folder: pathlib.Path, booked: Ledger | None) -> str:
    from dpjax.accounting.answers.disclosure import OTHER
    from dpjax.accounting.answers.plain_words import NO_PROMISE, grade

    uncovered = {name for said in c.not_covered for name in said.files}
    # Nobody knows of which file a user's own words speak.
    is_known = all(said.code != OTHER for said in c.not_covered)
    refused = "No, unless whoever signs accepts what question 6 says of it."
    if grade(c, c.epsilon, c.delta) == NO_PROMISE:
        uncovered, refused = {*_LEAVE[1:]}, f"No: of it there is {NO_PROMISE}."
    results = not uncovered.isdisjoint(_RESULTS)
    said = f"It shows results. {refused}" if results else "Yes: it repeats these."
    others = ["audit.json"] * (folder / "audit.json").is_file() + ["the ledger"] * bool(booked)
    asked = [f"Ask: it repeats these, and what {' and '.join(others)} says."] * bool(others)
    asked += [] if is_known else [_OWN_WORDS]
    if asked and not results:
        said = " ".join(asked)
    rows = [("this page", said)]
    for name in sorted(name for name in (*_LEAVE, *_STAY) if (folder / name).exists()):
        words = _STAY.get(name, "Ask whoever trained: the certificate does not name it.")
        if name == "certificate.json":
            words = _CLEAR
        elif name in c.subject:
            words = refused if name in uncovered else _CLEAR if is_known else _OWN_WORDS
        rows.append((name, words))
    for depth in ("", "*/", "*/*/", "*/*/*/"):  # of a large folder no further
        for key in sorted(folder.glob(f"{depth}noise_key.json")):
            where = key.parent if depth else key
            rows.append((f"{where.relative_to(folder)}", _KEY))
    rows.append(("other files, if there are any", "Ask whoever made them: they are of no run."))
    rows.append(("the records, a seed, the ledger", "No: these speak of the records themselves."))
    return page.table(rows)


def _add_up(c: Certificate, booked: Ledger | None) -> list[str]:
    from dpjax.accounting.answers.plain_words import grade

    if booked is None:
        whom = "whoever holds the records for the ledger of all models; give it by --ledger"
        return [page.ask(whom), "Every further model on the same persons adds to what they lose."]
    spent, known = booked.spent(), [one.digests["mechanism"] for one in booked.entries]
    # One of another adjacency or unit takes no run of this certificate's.
    same = (booked.adjacency, booked.unit) == (c.adjacency, c.declared.get("unit", "record"))
    total = f"ε = {format_rounded_up(spent, 4)} at δ = {booked.delta:g}"
    return [
        f"Runs that are booked: {len(known)}. Together {total} ({booked.adjacency.value}) for each "
        f"{booked.unit}: {grade(c, spent, booked.delta)}. The budget is ε = {booked.epsilon:g}.",
        "A run of this certificate's mechanism is among them."
        if same and c.digests["mechanism"] in known
        else "THIS RUN IS NOT AMONG THEM: the total is without it.",
    ]


def _compare_files(c: Certificate, folder: pathlib.Path) -> list[str]:
    if not c.subject:
        return ["Nobody can say: the certificate names no file. Ask for one that does."]
    found = c.check_files(folder)  # refuses another file of that name
    rows = [
        (name, f"{digest[:16]}…", "the same" if name in found else "not here: not compared")
        for name, digest in c.subject.items()
    ]
    words = "Yes, the files that were compared" if found else "Not compared: no file is here"
    head = "file", "SHA-256 in the certificate", "the file beside it"
    return [f"{words}. Another file of one of these names is refused.", page.table(rows, head)]


def _rate_model(c: Certificate, folder: pathlib.Path) -> list[str]:
    found, names = _read_bound(c, folder, "evaluation.json"), c.subject or _RESULTS
    describe = _describe_numbers if found.get("task") == "regression" else _describe_classes
    try:
        words = describe(found) if found else []
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            "evaluation.json must be what dpjax train writes, got "
            f"{folder / 'evaluation.json'}: {error!r}"
        ) from None
    metrics, picture = folder / "metrics.csv", folder / "training.png"
    if not words and metrics.name in names and metrics.is_file():
        rows = list(csv.DictReader(metrics.read_text(encoding="utf-8").splitlines()))
        if rows and (share := rows[-1].get("test_accuracy")) is not None:
            if not re.fullmatch(r"[01](\.\d+)?|\d(\.\d+)?e-\d+", share):
                raise ValueError(f"metrics.csv must hold shares as test_accuracy, got {share!r}")
            words = [f"{float(share):.1%} of the held-out records are classified rightly."]
    words = words or [page.ask("whoever trained: no evaluation is bound")]
    if picture.name in names and picture.is_file():
        words.append(page.images({"accuracy and ε by step": picture}))
    return [*words, "Whether that is enough, whoever uses the model must say."]


def _around(
    found: Mapping[str, Any], name: str, spread: float | None, form: Callable[[float], str]
) -> str:
    """What ± an estimate has, in brackets; files of earlier releases know the noise alone."""
    if (margin := _number(found, f"{name}_margin".removeprefix("_"))) is not None:
        return f" ± {form(margin)}"
    return f" (noise: ± {form(2 * spread)})" if spread else ""


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _number(found: Mapping[str, Any], name: str) -> float | None:
    """A number of an evaluation; None where noise hides it, or the file does not know it."""
    value = found.get(name)
    return None if value is None else float(value)


def _describe_numbers(found: Mapping[str, Any]) -> list[str]:
    """How well a model predicts a number."""
    names = "root_mean_squared_error", "baseline_error", "stddev", "records"
    error, baseline, spread, records = (float(found[name]) for name in names)
    margin = 2 * math.hypot(spread, float(found.get("baseline_stddev", spread)))
    if (own := _number(found, "margin")) is not None:
        margin = math.hypot(own, float(found["baseline_margin"]))
    around = _around(found, "", spread, lambda number: format_plain(number, 2))
    mean = format_plain(baseline, 4)
    return [
        f"Root mean squared error {format_plain(error, 4)}{around} on {records:,.0f} held-out "
        f"records; of always saying the mean it is {mean}."
        f"{_NO_BETTER * (error >= baseline - margin)}",
        *_say_margins(found),
    ]


def _say_margins(found: Mapping[str, Any]) -> list[str]:
    from dpjax.cli.evaluation import PLUS_MINUS

    return [f"{PLUS_MINUS}."] if "margins" in found else []


def _say_none(found: Mapping[str, Any]) -> str:
    """Why a share is not known: of records that are counted exactly there may be none."""
    return "hidden by noise" if float(found["stddev"]) else "no such record"


def _describe_share(found: Mapping[str, Any], name: str = "") -> str:
    """How many records are classified rightly, of all or of a group."""
    from dpjax.cli.evaluation import is_hidden

    right, largest = (_number(found, n) for n in ("accuracy", "largest_class_share"))
    records, count = float(found["records"]), float(found["stddev"])
    # The noise of the sum of a count a class, each with noise of its own, where it is not said.
    spread = _number(found, "accuracy_stddev")
    if right is None or largest is None or is_hidden(right, spread):
        return f"{name}{_say_none(found)}."
    if spread is None:
        spread = count * len(found["confusion"]) ** 0.5 / records
    margin = _number(found, "lead_margin")
    if margin is None:
        margin = 2 * math.hypot(spread, float(found.get("largest_class_share_stddev", spread)))
    around = _around(found, "accuracy", spread, _percent)
    return (
        f"{name}{right:.1%}{around} of {records:,.0f} held-out "
        "records are classified rightly; always saying the most frequent class is right for "
        f"{largest:.1%}.{_NO_BETTER * (right <= largest + margin)}"
    )


def _describe_classes(found: Mapping[str, Any]) -> list[str]:
    """How well a model predicts a class, of all records and of each group."""
    from dpjax.cli.evaluation import is_hidden

    if found["accuracy"] is None:
        raise ValueError("accuracy must be a number, got null")  # of all records noise hides none
    text = [_describe_share(found)]
    if (area := _number(found, "auc")) is not None:
        around = _around(found, "auc", _number(found, "auc_stddev"), "{:.2g}".format)
        text.append(f"Area under the ROC curve: {area:.3f}{around}; of guesses 0.5.")
    rows = []
    for one in map(str, found["classes"][:_SHOWN]):
        cells = []
        for what in ("precision", "recall"):
            share = found[what][one]
            of_class = {
                f"{what}_{end}": found[f"{what}_{end}"].get(one)
                for end in ("stddev", "margin")
                if found.get(f"{what}_{end}")
            }
            spread = _number(of_class, f"{what}_stddev")
            around = _around(of_class, what, spread, _percent)
            hidden = is_hidden(share, spread)
            cells.append(_say_none(found) if hidden else f"{share:.1%}{around}")
        rows.append((one, *cells))
    head = "class", "right where it is predicted", "found where it is true"
    text.append(page.table(rows, head))
    for column, groups in (found.get("by") or {}).items():
        text += [_describe_share(part, f"{column} = {group}: ") for group, part in groups.items()]
    return [*text, *_say_margins(found)]


def _describe_randomness(c: Certificate) -> list[str]:
    if any(said.code == "key-by-hand" for said in c.not_covered):
        return ["Whoever gave the seed: who knows or guesses it can subtract the noise."]
    for said in c.assumptions:
        if said.code == "key-secret":
            return [
                "The certificate lists no seed and no key given by hand: dpjax then takes the key "
                "from the operating system. For what follows from it by the generator Threefry "
                f"nobody vouches; the certificate assumes: {said}."
            ]
    return [page.ask("whoever trained where the random numbers came from")]
