"""The documentation builds without a warning; its menu holds every page, its API every name."""

from __future__ import annotations

import codeop
import importlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import dpjax
from maintenance import pages, project

_DOCS = project.ROOT / "docs"
_PAGES = [project.ROOT / "README.md", *sorted(_DOCS.rglob("*.md"))]


def _menu() -> list[str]:
    text = (project.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return re.findall(r"([\w/-]+\.md)$", text, re.M)


def test_every_page_is_in_the_menu_once():
    pages = [path.relative_to(_DOCS).as_posix() for path in _DOCS.rglob("*.md")]
    assert sorted(_menu()) == sorted(pages)


def _assert_leads_somewhere(target: str) -> None:
    """A link from a notebook names a file of the repository, and a heading that it has."""
    path, _, part = target.removeprefix(f"{project.address()}/blob/main/").partition("#")
    page = project.ROOT / path
    assert page.is_file(), target
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M) if part else []
    anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
    assert not part or part in anchors, target


def test_every_notebook_is_in_the_menu_and_on_a_page():
    menu = (project.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    start = (_DOCS / "index.md").read_text(encoding="utf-8")
    for path in (project.ROOT / "notebooks").glob("*.ipynb"):
        address = f"{project.address()}/blob/main/notebooks/{path.name}"
        assert address in menu
        assert address in start
        subjects = [
            p for p in _DOCS.glob("*.md") if p.name != "index.md" and path.name in p.read_text()
        ]
        assert subjects, f"{path.name} is linked from no page of its subject"
        last = json.loads(path.read_text(encoding="utf-8"))["cells"][-1]
        text = "".join(last["source"])
        assert last["cell_type"] == "markdown", path.name
        assert text.startswith("## What next"), path.name
        found = re.findall(r"\]\(([^)\s]+)\)", text)
        assert any("/docs/" in target for target in found), path.name
        for target in found:
            _assert_leads_somewhere(target)


def test_every_package_has_a_page_of_the_reference():
    assert {f"api/{name}.md" for name in dpjax._PACKAGES} <= set(_menu())
    for name in dpjax._PACKAGES:
        assert f"::: dpjax.{name}\n" in (_DOCS / "api" / f"{name}.md").read_text()


@pytest.mark.parametrize("path", _PAGES, ids=lambda path: path.name)
def test_an_example_is_code_wherever_it_is_shown_and_can_be_pasted(path):
    """A bare >>> is a quotation on the page of a repository or a package index."""
    outside, typed = True, []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith("```"):
            outside, typed = not outside, []
        if not line.startswith((">>>", "...")):
            continue
        assert not outside, line
        typed.append(line[4:])
        # As Python asks line by line: None while more is to come.
        if codeop.compile_command("\n".join(typed)) is not None:
            typed = []


def test_examples_are_fenced_once():
    bare, inside = ">>> a\n1\n>>> b\n2", "```python\n>>> c\n3\n```"
    assert pages.fenced(f"x\n\n{bare}\n\n{inside}\n") == (
        f"x\n\n```pycon\n{bare}\n```\n\n```pycon\n>>> c\n3\n```\n"
    )
    assert pages.fenced("```python\nc = 3\n```") == "```python\nc = 3\n```"


def test_the_address_is_the_projects():
    text = (project.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"repo_url: {project.address()}\n" in text


@pytest.mark.parametrize("path", sorted(_DOCS.glob("*.md")), ids=lambda path: path.name)
def test_no_page_teaches_a_private_import(path):
    text = path.read_text(encoding="utf-8")
    imports = re.findall(r"^\s*>>> (?:from|import) .*$", text, re.M)
    assert not [line for line in imports if re.search(r"(?<!\w)_[a-z]", line)]


def test_there_are_few_pages():
    assert len(list(_DOCS.glob("*.md"))) <= 16


@pytest.mark.parametrize("path", sorted(_DOCS.glob("*.md")), ids=lambda path: path.name)
def test_a_page_opens_with_its_reader(path):
    first = path.read_text(encoding="utf-8").split("\n\n")[1]
    assert first.startswith("For "), first


# ------------------------------------------------------------------- the table of capabilities

_PEERS = ("jax_privacy", "Opacus", "Opake")
_OURS = re.compile(r"`((?:dpjax|acc|[a-z]+)(?:\.\w+)+)(?:\(([^`]*)\))?`")


def _capabilities(page: str) -> list[list[str]]:
    """The rows of the table: capability, whose, here, why."""
    part = page.split("## Every capability of jax_privacy, Opacus and Opake\n")[1].split("\n## ")[0]
    lines = [line for line in part.split("\n") if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def _resolve(dotted: str, arguments: str | None) -> None:
    """Raise where a name of ours is not there, or does not take an argument that is named."""
    first, *rest = dotted.split(".")
    inside = {"dpjax": "dpjax", "acc": "dpjax.accounting"}.get(first, f"dpjax.{first}")
    thing = importlib.import_module(inside)
    for name in rest:
        public = getattr(thing, "__all__", (name,)) if inspect.ismodule(thing) else (name,)
        # a field without a default is no attribute of its class
        fields = getattr(thing, "__dataclass_fields__", {})
        assert name in public, dotted
        assert hasattr(thing, name) or name in fields, dotted
        thing = getattr(thing, name, None)
    if arguments:
        taken = inspect.signature(thing).parameters
        for argument in arguments.split(", "):
            assert argument.removesuffix("=") in taken, f"{dotted}({argument})"


def _complaints_of_row(row: list[str]) -> list[str]:
    """What is wrong with a row: a peer that is none, a name or page of ours that is not there."""
    capability, whose, here, why = row
    wrong = [] if capability and why else ["a cell is empty"]
    if not all(part.strip().startswith(_PEERS) for part in whose.split(";")):
        wrong.append(f"{whose!r} names no peer")
    named = _OURS.findall(here)
    linked = re.findall(r"\]\(([\w-]+\.md)", here)
    if here != "not here" and not (named or linked):
        wrong.append(f"{here!r} names nothing of ours")
    if re.sub(r"`[^`]*`|\[[^]]*\]\([^)]*\)|,| ", "", here.replace("not here", "")):
        wrong.append(f"{here!r} has words besides names and pages")
    if len(re.findall("`[^`]*`", here)) != len(named):
        wrong.append(f"{here!r} has a name that is none of ours")
    wrong += [f"no page {page}" for page in linked if not (_DOCS / page).is_file()]
    for dotted, arguments in [*named, *_OURS.findall(why)]:
        try:
            _resolve(dotted, arguments)
        except (AssertionError, ImportError) as error:
            wrong.append(f"{dotted}: {error}")
    return wrong


def test_the_table_of_capabilities_names_what_is_there():
    rows = _capabilities((_DOCS / "peers.md").read_text(encoding="utf-8"))
    assert not [wrong for row in rows for wrong in _complaints_of_row(row)]
    assert len({row[0] for row in rows}) == len(rows) > 90
    for peer in _PEERS:  # of each there is something here, and something not
        own = [row[2] for row in rows if peer in row[1]]
        assert "not here" in own
        assert len(own) > 30


@pytest.mark.parametrize(
    ("here", "why"),
    [
        ("`training.fit_all`", "a function that is not there"),
        ("`training.fit(fit_to=)`", "an argument that it does not take"),
        ("`acc.Gaussian.sharpness`", "neither a method nor a field"),
        ("`accounting.answers.certify`", "a module that is not public"),
        ("[page](nowhere.md)", "a page that is not there"),
        ("`fit`", "a name without its package"),
        ("partly", "neither a name nor a page"),
        ("not here", "as `training.fit_all` does it"),
        ("not here", ""),
    ],
)
def test_a_row_that_names_what_is_not_there_is_found(here, why):
    assert _complaints_of_row(["something", "Opacus `PrivacyEngine`", here, why])
    good = ["something", "Opacus `A`; Opake `b`", "`acc.Gaussian.noise_multiplier`", "a field"]
    assert _complaints_of_row(good) == []
    assert _complaints_of_row(["something", "Somebody `A`", *good[2:]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built documentation; built once for the tests below."""
    if importlib.util.find_spec("mkdocs") is None or not importlib.util.find_spec("mkdocstrings"):
        pytest.skip('needs the extra "docs": pip install "dpjax[docs]"')
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=project.ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


# What people type, and the page that has to be shown first.
_TYPED = {
    "missing values": "prepare-data.html",
    "choose epsilon": "choose-epsilon.html",
    "how many records do I need": "choose-epsilon.html",
    "several rows per patient": "budget.html",
    "StandardScaler": "prepare-data.html",
    "which files may I publish": "report.html",
    "GDPR, anonymous": "report.html",
    "predict a number": "command-line.html",
    "cross-validation budget": "budget.html",
    "imbalanced classes, AUC": "choose-epsilon.html",
}
# Runs the search of the site, the worker that a browser runs, and prints the pages in its order.
_SEARCH = """
const fs = require("fs"), [worker, index, ...typed] = process.argv.slice(1), found = []
let search
globalThis.self = globalThis
globalThis.addEventListener = (_, listener) => { search = listener }
globalThis.postMessage = (message) => { if (message.data) found.push(message.data.items) }
new Function("require", fs.readFileSync(worker, "utf8"))(require)
const ask = async (type, data) => { await search({ data: { type, data } }); await null }
;(async () => {
  await ask(0, { ...JSON.parse(fs.readFileSync(index, "utf8")), options: { suggest: true } })
  for (const one of typed) await ask(2, one)
  await new Promise((done) => setTimeout(done, 100))
  const page = (items) => items.map((one) => one[0].location.split("#")[0])
  console.log(JSON.stringify(found.map(page)))
})()
"""


def _search(site, typed: list[str]) -> list[list[str]]:
    """The pages that each text finds, best first."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js, which runs the search of the site as a browser does")
    worker = next((site / "assets" / "javascripts" / "workers").glob("search.*.js"))
    done = subprocess.run(
        [node, "-e", _SEARCH, worker, site / "search" / "search_index.json", *typed],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.processes
def test_what_people_type_leads_to_the_page_that_answers_it(site):
    found = _search(site, list(_TYPED))
    first = {typed: pages[:1] for typed, pages in zip(_TYPED, found, strict=True)}
    assert first == {typed: [page] for typed, page in _TYPED.items()}


@pytest.mark.processes
def test_the_search_finds_words_of_a_page_and_nothing_where_there_is_none(site):
    (threefry, nothing) = _search(site, ["Threefry Salmon", "zyzzyva"])
    assert threefry[0] == "noise.html"
    assert nothing == []


@pytest.mark.processes
def test_it_builds_without_a_warning(site):
    for package in dpjax._PACKAGES:
        page = (site / "api" / f"{package}.html").read_text(encoding="utf-8")
        module = importlib.import_module(f"dpjax.{package}")
        for name in module.__all__:
            thing = getattr(module, name)
            path = thing.__name__ if inspect.ismodule(thing) else f"dpjax.{package}.{name}"
            # A function named as its file is shown under both names.
            assert f'id="{path}"' in page or f'id="{path}.{name}"' in page, path
    assert (site / "search" / "search_index.json").stat().st_size > 10_000
    start = (site / "index.html").read_text()
    assert "fonts.googleapis" not in start
    # The prompts that the copied text leaves out are marked as such.
    assert 'href="copy.css"' in start
    assert '<span class="gp">&gt;&gt;&gt; </span>' in start
    assert "[data-md-copying] .gp" in (site / "copy.css").read_text()
