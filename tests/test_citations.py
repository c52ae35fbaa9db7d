"""Citations of the five papers beside one table of their titles, theorems and sections."""

from __future__ import annotations

import pathlib
import re
import unicodedata
from typing import NamedTuple

import pytest

import dpjax

_PACKAGE = pathlib.Path(dpjax.__file__).resolve().parent


class _Paper(NamedTuple):
    """What a citation of a paper may name: the title, and how many of each kind it has."""

    title: str
    counts: dict[str, int]


_PAPERS = {
    "Chen, Lee and Kifer 2019": _Paper(
        "Rényi differentially private ERM for smooth objectives",
        {"Algorithm": 3, "Lemma": 3, "Proposition": 3, "Definition": 4},
    ),
    "Yu et al. 2020": _Paper(
        "Gradient perturbation is underrated for differentially private convex optimization",
        {"Algorithm": 2, "Theorem": 2, "Lemma": 1, "Definition": 3},
    ),
    "Tholeti and Kalyani 2021": _Paper(
        "On the differentially private nature of perturbed gradient descent",
        {"Algorithm": 1, "Theorem": 2, "Definition": 5},
    ),
    "Chourasia, Ye and Shokri 2021": _Paper(
        "Differential privacy dynamics of Langevin diffusion and noisy gradient descent",
        {"Algorithm": 1, "Theorem": 4, "Lemma": 2},
    ),
    "Duan et al. 2025": _Paper(
        "Analyzing and optimizing perturbation of DP-SGD geometrically",
        {"Algorithm": 1, "Theorem": 5, "Corollary": 2, "Lemma": 2, "Definition": 4},
    ),
}
# What the lines beside some numbers must say, so that a number belongs to its statement.
_BELONG = (
    ("Chourasia, Ye and Shokri 2021", r"Theorem (\d+) \(lower\)", {"2"}),
    ("Chourasia, Ye and Shokri 2021", r"Theorem (\d+) \(published\)", {"1"}),
    ("Duan et al. 2025", r"Equations? (\d+)", {"24", "25"}),  # the angles, in Section V-A
)


def _plain(text: str) -> str:
    """Without accents, line breaks and capital letters."""
    letters = unicodedata.normalize("NFKD", " ".join(text.split())).casefold()
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def _citations(text: str) -> list[tuple[str, str]]:
    """(paper, the rest of its reference, up to a full stop at a line's end or an empty line)."""
    found = []
    for name in _PAPERS:
        pattern = r"\s+".join(map(re.escape, name.split()))
        for match in re.finditer(pattern + r"(.*?)(\.\n|;|\n\s*\n|\"\"\"|\Z)", text, re.DOTALL):
            found.append((name, match[1]))
    return found


def _faults(text: str) -> list[str]:
    """What is wrong with the citations of a text."""
    wrong = []
    for name, rest in _citations(text):
        paper = _PAPERS[name]
        title = re.match(r",\s+\"([A-Z][^\"]+)\"", rest)
        if title and _plain(title[1]) != _plain(paper.title):
            wrong.append(f"{name}: {title[1]!r}")
        for kind, number in re.findall(r"([A-Z][a-z]+?)s?\s+(\d+)", rest):
            if kind in {"Algorithm", "Theorem", "Lemma", "Corollary", "Proposition", "Definition"}:
                is_there = 1 <= int(number) <= paper.counts.get(kind, 0)
                wrong += [] if is_there else [f"{name}: {kind} {number}"]
        for of, pattern, right in _BELONG:
            if of == name:
                numbers = {*re.findall(pattern, rest)}
                wrong += [f"{name}: {pattern}: {numbers}"] if numbers - right else []
    return wrong


def test_planted_citations_are_told_from_right_ones():
    right = 'Duan et al. 2025, "Analyzing and optimizing perturbation of DP-SGD geometrically", '
    assert _faults(right + "Section V-A, Equations 24 to 27.\n") == []
    assert _faults("Duan et al. 2025, Section III (Equations 5 and 6).\n")
    assert _faults('Tholeti and Kalyani 2021, "Gradient descent with unit-ball noise".\n')
    assert _faults("Chourasia, Ye and Shokri 2021, Theorem 1 (published), Theorem 3 (lower).\n")
    assert _faults("Chen, Lee and Kifer 2019, Theorem 1.\n")
    assert _faults("Chen, Lee and Kifer 2019, Lemma 3.\n") == []


@pytest.mark.parametrize("folder", sorted(p.name for p in _PACKAGE.iterdir() if p.is_dir()))
def test_citations_are_those_of_the_papers(folder):
    for path in (_PACKAGE / folder).rglob("*.py"):
        assert _faults(path.read_text(encoding="utf-8")) == [], path


def test_citations_outside_the_package_are_those_of_the_papers():
    root = pathlib.Path(__file__).resolve().parents[1]
    files = [
        path
        for folder, kind in (("experiments", "py"), ("docs", "md"), ("notebooks", "ipynb"))
        for path in (root / folder).rglob(f"*.{kind}")
    ]
    assert any(_citations(path.read_text(encoding="utf-8")) for path in files)
    for path in files:
        assert _faults(path.read_text(encoding="utf-8")) == [], path


def test_every_paper_is_cited():
    text = "\n".join(path.read_text(encoding="utf-8") for path in _PACKAGE.rglob("*.py"))
    cited = {name for name, _ in _citations(text)}
    # The convex solvers name yu2020 by its key, as the pages of the papers do.
    assert cited >= _PAPERS.keys() - {"Yu et al. 2020"}
