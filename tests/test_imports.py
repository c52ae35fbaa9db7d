"""Files import each other in one direction, and no private name crosses a package."""

from __future__ import annotations

import ast
import functools
import pathlib

import pytest

import dpjax

_PACKAGE = pathlib.Path(dpjax.__file__).resolve().parent

_HELD = sorted(
    {path.stem for path in _PACKAGE.glob("[!_]*.py")}
    | {path.parent.name for path in _PACKAGE.glob("*/__init__.py")}
)


def _files(package: str) -> list[pathlib.Path]:
    folder = _PACKAGE / package
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [_PACKAGE / f"{package}.py"]


def _modules() -> dict[str, pathlib.Path]:
    """Every file of dpjax by its module's name, but for the root, which loads on first use."""
    found = {}
    for file in sorted(_PACKAGE.rglob("*.py")):
        parts = file.relative_to(_PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    del found["dpjax"]
    return found


def _imports(tree: ast.AST) -> list[tuple[str, str]]:
    """(module, name) of every import from dpjax, inside functions too, and not for types alone."""
    found = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name their package in full"
            found += [(node.module or "", alias.name) for alias in node.names]
        waiting += ast.iter_child_nodes(node)
    return [(module, name) for module, name in found if module.split(".")[0] == "dpjax"]


@functools.cache
def _needs() -> dict[str, set[str]]:
    """The modules of dpjax that each of them imports."""
    modules = _modules()
    needs = {}
    for module, file in modules.items():
        named = {
            inner if (inner := f"{source}.{name}") in modules else source
            for source, name in _imports(ast.parse(file.read_text()))
        }
        needs[module] = named & modules.keys() - {module}
    return needs


@pytest.mark.parametrize("package", _HELD)
def test_files_do_not_import_each_other_in_a_circle(package):
    needs = _needs()
    for module in needs:
        if module.split(".")[1] != package:
            continue
        path = _way_back(module, needs)
        assert not path, "imports in a circle: " + " -> ".join(path)


def _way_back(start: str, needs: dict[str, set[str]]) -> list[str]:
    """A chain of imports from a module to itself, or nothing."""
    came_from = dict.fromkeys(needs[start], start)
    waiting = list(came_from)
    while waiting:
        name = waiting.pop()
        if name == start:
            path = [name]
            while len(path) == 1 or path[-1] != start:
                path.append(came_from[path[-1]])
            return path[::-1]
        for after in needs[name] - came_from.keys():
            came_from[after] = name
            waiting.append(after)
    return []


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("package", _HELD)
def test_no_private_name_of_another_package_is_used(package):
    """What is private right below dpjax, as `_numerics`, is open to every package in it."""
    for file in _files(package):
        tree = ast.parse(file.read_text())
        others = set()  # what this file calls modules of other packages
        for node in ast.walk(tree):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            for alias in node.names:
                whole = (
                    f"{node.module}.{alias.name}"
                    if isinstance(node, ast.ImportFrom)
                    else (alias.name)
                )
                parts = whole.split(".")
                if parts[0] != "dpjax" or len(parts) < 2 or parts[1] == package:
                    continue
                inner = parts[2:] if _private(parts[1]) else parts[1:]
                assert not any(map(_private, inner)), f"{file.name} of {package} imports {whole}"
                others.add(alias.asname or alias.name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _private(node.attr):
                base = ast.unparse(node.value)
                used = others & {base, base.split(".")[0]}
                assert not used, f"{file.name} of {package} uses {base}.{node.attr}"
