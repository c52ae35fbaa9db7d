"""What a stranger meets first: links, licence, metadata, and what files take from one place."""

from __future__ import annotations

import json
import re

import pytest

from maintenance import architecture, extension_points, links, measured, project
from maintenance.__main__ import written

_ROOT = project.ROOT
_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
_PAPERS = _ROOT / "docs" / "papers"
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("path", list(written()), ids=lambda path: path.name)
def test_files_are_as_they_would_be_written(path):
    assert path.read_text(encoding="utf-8") == written()[path](), "run: make written"


@pytest.mark.parametrize("name", _PAGES)
def test_links_of_the_root_pages_work_from_anywhere_and_lead_somewhere(name):
    found = _LINK.findall((_ROOT / name).read_text(encoding="utf-8"))
    for target in found:
        start = re.match(re.escape(project.address()) + r"/(?:blob|raw)/main/([^#]+)", target)
        assert start, f"{target} does not work on the page of a package index"
        assert (_ROOT / start[1]).exists(), target


def test_a_relative_link_and_an_address_of_before_become_the_address_of_today():
    here = project.address()
    page = "[a](docs/noise.md#x) [b](https://old.example/them/it/blob/main/docs/noise.md) [c](#d)"
    assert links.absolute(page) == (
        f"[a]({here}/blob/main/docs/noise.md#x) [b]({here}/blob/main/docs/noise.md) [c](#d)"
    )
    assert links.absolute("![p](docs/sampling.png)") == f"![p]({here}/raw/main/docs/sampling.png)"


def test_no_file_names_another_address_of_the_project():
    ours = project.owner_and_name()
    for path in [_ROOT / name for name in (*_PAGES, "CITATION.cff", "pyproject.toml")]:
        for found in re.findall(r"github\.com/([\w-]+/dpjax)", path.read_text(encoding="utf-8")):
            assert found == ours, path.name


@pytest.mark.parametrize("path", sorted((_ROOT / "docs").rglob("*.md")), ids=lambda p: p.name)
def test_links_between_the_documents_lead_somewhere(path):
    for target in _LINK.findall(path.read_text(encoding="utf-8")):
        file, _, part = target.partition("#")
        if "://" in target:
            continue
        page = (path.parent / file) if file else path
        assert page.exists(), f"{path.name} links to {target}"
        if part:
            headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert part in anchors, f"{path.name} links to {target}"


def test_a_marked_place_takes_the_tables_of_the_file_it_names(tmp_path, monkeypatch):
    monkeypatch.setattr(project, "ROOT", tmp_path)
    first, second = "| a |\n|---|\n| 1 |", "| b |\n|---|\n| 2 |"
    (tmp_path / "r.md").write_text(f"# R\n\n{first}\n\n## More\n\nwords\n\n{second}\n")
    page = "x\n<!-- from r.md # More -->\nold\n<!-- /from -->\n<!-- from r.md -->\n<!-- /from -->\n"
    assert measured.page(page) == (
        f"x\n<!-- from r.md # More -->\n\n{second}\n\n<!-- /from -->\n"
        f"<!-- from r.md -->\n\n{first}\n\n<!-- /from -->\n"
    )
    assert measured.page(measured.page(page)) == measured.page(page)
    absent = page.replace("r.md", "none.md")
    assert measured.page(absent) == absent
    with pytest.raises(ValueError, match="heading must be one of the page's, got 'Less'"):
        measured.page(page.replace("More", "Less"))


def test_every_paper_has_a_page_with_all_its_verdicts():
    report = (_ROOT / "experiments" / "RESULTS.md").read_text(encoding="utf-8")
    papers = re.findall(r"\((\w+)/RESULTS\.md\)", report)
    pages = {path.stem: path.read_text(encoding="utf-8") for path in _PAPERS.glob("*.md")}
    assert sorted(pages) == sorted(papers)
    verdicts = sum(text.count("**") // 2 for text in pages.values())
    claims = re.findall(rf"^\| (?:{'|'.join(papers)}) \|", report, flags=re.M)
    assert verdicts == len(claims) > 10
    for name, text in pages.items():
        assert f"python -m experiments {name} " in text


def test_what_a_page_says_to_install_is_ours():
    """On no index is the name ours: what is not installed yet comes from the project's address."""
    bare = re.compile(r"pip install (?:-\w+ )*['\"]?dpjax(?:\[[\w,]+\])?(?![\w/\[]| @ git\+)")
    assert bare.search("pip install 'dpjax[cli]'\n")
    assert bare.search("`pip install dpjax`")
    assert not bare.search("pip install 'dpjax[cli] @ git+https://example.org/a'")
    files = [_ROOT / "README.md", *(_ROOT / "docs").glob("*.md"), _ROOT / "dpjax/cli/report.py"]
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not bare.search(text), path.name
        for found in re.findall(r"dpjax\[\w+\] @ git\+([^\s'\"]+)", text):
            assert found == project.address(), path.name


def test_metadata_is_complete():
    stated = project.stated()
    assert stated["license"] == "Apache-2.0"
    assert stated["authors"] == [{"name": "The dpjax authors"}]
    for part in ("readme", "description", "keywords", "requires-python", "license-files"):
        assert stated[part], part
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(stated["urls"])
    assert all(url.startswith(project.address()) for url in stated["urls"].values())
    pythons = [c.split(" :: ")[-1] for c in stated["classifiers"] if ":: 3." in c]
    assert pythons == ["3.11", "3.12", "3.13"]
    licence = (_ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in licence
    assert "The dpjax authors" in licence


def test_the_version_is_stated_once_and_the_same_everywhere():
    import dpjax

    assert project.stated()["version"] == dpjax.__version__
    assert f"version: {dpjax.__version__}\n" in (_ROOT / "CITATION.cff").read_text()


def test_the_picture_reaches_every_import_and_nothing_else():
    # A reduction that is right has the same reachability as all the imports.
    everything, drawn = architecture.imports(), {name: set() for name in architecture.packages()}
    for package, other in architecture.essential():
        drawn[package].add(other)

    def reach(graph, start):
        found, before = set(graph[start]), set()
        while found != before:
            before, found = found, found.union(*(graph[name] for name in found))
        return found

    for name in drawn:
        assert drawn[name] <= everything[name]
        assert reach(drawn, name) == reach(everything, name)


def test_the_counts_are_of_code_and_not_of_words():
    assert extension_points.files_of("inequality") == []  # a word of docstrings alone
    assert "accounting/mechanisms/guarantees.py" in extension_points.files_of("ZeroConcentrated")


def test_the_install_cell_keeps_what_colab_brings():
    # The lines of the shell, in the order in which they run.
    shell = [line.strip()[1:] for line in links.install_cell().split("\n") if "!pip" in line]
    kept, install = shell
    assert kept.startswith("pip list --format=freeze")
    file = kept.split("> ")[1]
    assert f"-c {file} " in install
    assert project.address() in install
    for path in (_ROOT / "notebooks").glob("*.ipynb"):
        cell = json.loads(path.read_text(encoding="utf-8"))["cells"][1]
        assert "".join(cell["source"]) == links.install_cell(), path.name
