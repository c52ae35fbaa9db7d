"""The packages and what imports what, drawn from the code as a Mermaid graph."""

from __future__ import annotations

import ast
import functools
import pathlib

from maintenance import project

_PACKAGE = project.ROOT / "dpjax"
_SHARED = {"_extras", "_files", "_argument_names"}  # helpers; everything may use them


def packages() -> list[str]:
    """The packages of dpjax."""
    return sorted(path.parent.name for path in _PACKAGE.glob("*/__init__.py"))


def _runs(node: ast.AST) -> bool:
    """Whether this is more than an import for the type checker alone."""
    return not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")


def _walk(node: ast.AST):
    yield node
    for child in ast.iter_child_nodes(node):
        if _runs(child):
            yield from _walk(child)


def imported(file: pathlib.Path) -> set[str]:
    """The packages of dpjax that a file imports when it runs."""
    found = set()
    for node in _walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("dpjax.")} - _SHARED


@functools.cache
def imports() -> dict[str, set[str]]:
    """Package -> the other packages that it imports."""
    known = set(packages())
    return {
        package: (
            set().union(*map(imported, (_PACKAGE / package).rglob("*.py"))) & known - {package}
        )
        for package in packages()
    }


def _reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen, waiting = set(), [start]
    while waiting:
        for other in graph[waiting.pop()] - seen:
            seen.add(other)
            waiting.append(other)
    return seen


def essential() -> list[tuple[str, str]]:
    """The imports that follow from no others, in order: enough to draw.

    Raises:
        ValueError: packages import each other in a circle.
    """
    graph = imports()
    circles = sorted(name for name in graph if name in _reached(name, graph))
    if circles:
        raise ValueError(f"no package must import itself through others, got {circles}")
    return sorted(
        (package, other)
        for package, others in graph.items()
        for other in others
        if not any(other in _reached(between, graph) for between in others - {other})
    )


def mermaid() -> str:
    """The graph; an arrow goes from a package to one that it is made of."""
    lines = ["```mermaid", "graph TD"]
    lines += [f"  {package} --> {other}" for package, other in essential()]
    return "\n".join([*lines, "```"])
