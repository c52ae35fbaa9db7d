"""The source distribution holds every module of the repository that its tests import."""

from __future__ import annotations

import ast
import pathlib
import re
import tomllib

import pytest

from maintenance import project

_OWN = ("benchmarks", "dpjax", "experiments", "maintenance", "notebooks")


def _patterns(name: str) -> re.Pattern[str]:
    """The patterns of pyproject.toml as git reads those of a root: of files, and of folders."""
    settings = tomllib.loads((project.ROOT / "pyproject.toml").read_text())
    given = settings["tool"]["hatch"]["build"]["targets"]["sdist"][name]
    made = {"**/": "(.*/)?", "*": "[^/]*"}
    found = []
    for one in given:
        parts = re.split(r"(\*\*/|\*)", one.removeprefix("/"))
        found.append("".join(made.get(part) or re.escape(part) for part in parts))
    return re.compile(f"({'|'.join(found)})(/.*)?")


def _ships(path: pathlib.Path) -> bool:
    """Whether a file is in the source distribution."""
    name = path.relative_to(project.ROOT).as_posix()
    is_in, is_out = (_patterns(which).fullmatch(name) for which in ("include", "exclude"))
    return bool(is_in) and not is_out


def _imported(path: pathlib.Path) -> set[str]:
    """Modules of the repository that a file imports, `from a import b` as `a` and `a.b`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return {name for name in found if name.partition(".")[0] in _OWN}


def _files_of(module: str) -> list[pathlib.Path]:
    place = project.ROOT.joinpath(*module.split("."))
    return [f for f in (place.with_suffix(".py"), place / "__init__.py") if f.is_file()]


@pytest.mark.at_length
def test_what_a_test_of_the_distribution_imports_is_in_it():
    shipped = [path for path in (project.ROOT / "tests").rglob("*.py") if _ships(path)]
    assert len(shipped) > 150
    assert not _ships(project.ROOT / "tests" / "experiments" / "test_papers.py")
    assert not _ships(project.ROOT / "experiments" / "RESULTS.md")
    seen, todo = set(), set(shipped)
    while todo:  # and what these import
        path = todo.pop()
        seen.add(path)
        for module in _imported(path):
            files = _files_of(module)
            absent = [str(file) for file in files if not _ships(file)]
            assert not absent, f"{path} imports {absent}, which the distribution leaves out"
            todo |= set(files) - seen
    assert any(path.parts[-2] == "experiments" for path in seen)
