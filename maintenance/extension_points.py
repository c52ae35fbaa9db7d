"""How many files a new mechanism, sampling scheme, solver, … takes: counted from one that is there.

The count is of the files whose code names the example: definitions, imports, uses; not words in
docstrings. Tests of it are files of their own and are not counted.
"""

from __future__ import annotations

import ast
import functools
import pathlib

from maintenance import project

# Extension point -> the name that stands for it, and in words what it is.
POINTS = {
    "a release of a number or a choice": "RandomizedResponse",
    "a way to sample, trained and priced": "TruncatedPoissonSampled",
    "a family of bounds": "randomized_sensitivity",
    "a convex solver": "dp_gd",
    "an optax transformation": "periodic_average",
    "an estimator": "DPLinearSVC",
    "a rule of the ghost method": "_row_slice_rule",
    "a strategy of correlated noise": "banded_toeplitz",
}


def _names(file: pathlib.Path) -> set[str]:
    found = {file.stem}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found |= set(node.name.split("."))
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
    return found


@functools.cache
def _named() -> dict[pathlib.Path, set[str]]:
    files = sorted((project.ROOT / "dpjax").rglob("*.py"))
    return {file.relative_to(project.ROOT / "dpjax"): _names(file) for file in files}


def files_of(name: str) -> list[str]:
    """The files of the package whose code names it."""
    return [file.as_posix() for file, names in _named().items() if name in names]


def table() -> str:
    """A Markdown table: extension point, example, number of files, which."""
    lines = ["| a new … | as | files | which |", "|---|---|---|---|"]
    for point, name in POINTS.items():
        files = files_of(name)
        if not files:
            raise ValueError(f"POINTS must name something of dpjax, got {name!r}")
        shown = ", ".join(f"`{file}`" for file in files)
        lines.append(f"| {point} | `{name}` | {len(files)} | {shown} |")
    return "\n".join(lines)
