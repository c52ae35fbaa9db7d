"""The rooms import only what they may: accounting and training never know each other."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

import dpjax

_PACKAGE = pathlib.Path(dpjax.__file__).resolve().parent

_FORBIDDEN = {
    "_numerics": {
        "accounting",
        "gradients",
        "transforms",
        "sampling",
        "erm",
        "training",
        "audit",
        "cli",
        "plotting",
        "data",
    },
    "accounting": {
        "gradients",
        "transforms",
        "sampling",
        "erm",
        "training",
        "audit",
        "cli",
        "plotting",
        "data",
    },
    "gradients": {"accounting", "erm", "training", "audit", "cli", "plotting", "data"},
    "transforms": {"accounting", "erm", "training", "audit", "cli", "plotting", "data"},
    "sampling": {"accounting", "erm", "training", "audit", "cli", "plotting", "data"},
    "erm": {"cli"},
    "training": {"cli"},
    "audit": {"cli"},
}


def _files(room: str) -> list[pathlib.Path]:
    folder = _PACKAGE / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [_PACKAGE / f"{room}.py"]


def _imported_rooms(file: pathlib.Path) -> set[str]:
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("dpjax.")}
    return rooms


@pytest.mark.parametrize("room", sorted(_FORBIDDEN))
def test_room_imports_only_what_it_may(room):
    for file in _files(room):
        wrong = _imported_rooms(file) & _FORBIDDEN[room]
        assert not wrong, f"{file.name} of {room} imports {sorted(wrong)}"


def test_pricing_does_not_load_the_training_libraries():
    code = (
        "import sys, dpjax.accounting; "
        "heavy = {'optax', 'flax', 'orbax', 'matplotlib', 'sklearn', 'pandas', 'typer'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"
