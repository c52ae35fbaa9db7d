"""The one file of versions, and a machine on which a library has had a later release."""

from __future__ import annotations

import ast
import inspect
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_SETTINGS = tomllib.loads((_ROOT / "pyproject.toml").read_text())
_PROJECT = _SETTINGS["project"]
_LOCKED = [
    Requirement(line)
    for line in (_ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
]
# What the targets of the Makefile install.
_INSTALLED = ("test", "lint", "browser")


def _required(extra: str) -> list[Requirement]:
    """What an extra asks for, with what the extras of dpjax that it names ask for."""
    found = []
    for requirement in map(Requirement, _PROJECT["optional-dependencies"][extra]):
        if requirement.name == "dpjax":
            found += [each for inner in requirement.extras for each in _required(inner)]
        else:
            found.append(requirement)
    return found


def test_the_lock_names_versions_and_nothing_else():
    for requirement in _LOCKED:
        assert requirement.url is None, requirement
        assert re.fullmatch(r"==[\w.!+]+", str(requirement.specifier)), requirement


@pytest.mark.parametrize("python", ["3.11.7", "3.12.1", "3.13.0"])
def test_every_requirement_has_one_locked_version_that_it_allows(python):
    there = {
        "python_version": python.rpartition(".")[0],
        "python_full_version": python,
        "sys_platform": "linux",
    }
    # To build editably hatchling asks for editables.
    lines = [*_PROJECT["dependencies"], *_SETTINGS["build-system"]["requires"], "editables"]
    required = [Requirement(line) for line in lines]
    for requirement in [*required, *(each for extra in _INSTALLED for each in _required(extra))]:
        versions = [
            next(iter(locked.specifier)).version
            for locked in _LOCKED
            if _plain(locked.name) == _plain(requirement.name)
            and (locked.marker is None or locked.marker.evaluate(there))
        ]
        assert len(versions) == 1, (requirement, versions)
        assert requirement.specifier.contains(Version(versions[0]), prereleases=True), requirement


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_linters_are_pinned_for_every_target_and_run_by_check_alone():
    assert all(
        re.fullmatch(r"[\w-]+==[\d.]+", line) for line in _PROJECT["optional-dependencies"]["lint"]
    )
    commands = {
        target: subprocess.run(
            ["make", "--dry-run", "--no-print-directory", target],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for target in ("run", "test", "check", "docs", "test-browser")
    }
    for target in ("test", "check"):
        assert ("ruff check" in commands[target]) == (target == "check")
        assert ("pyrefly check" in commands[target]) == (target == "check")
    for target, text in commands.items():
        for line in text.splitlines():
            if "pip install" in line:
                assert line.endswith(" -c constraints.txt"), (target, line)
                # An environment made for a build would be of versions that no lock decides.
                assert ("--editable" in line) == ("--no-build-isolation" in line), (target, line)


def _wheel(folder: pathlib.Path, name: str, version: str, **modules: str) -> None:
    """Write a wheel of a few modules, a file each."""
    made = f"{name}-{version}"
    facts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    files = {f"{made}.dist-info/{file}": text for file, text in facts.items()}
    files |= {f"{module.replace('__', '/')}.py": text for module, text in modules.items()}
    with zipfile.ZipFile(folder / f"{made}-py3-none-any.whl", "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)


# A build backend that writes its own version into what it builds.
_A_BACKEND = """
import pathlib, zipfile

{wheel}
def build_editable(folder, settings=None, metadata=None):
    _wheel(pathlib.Path(folder), "dpjax", "0.1.0", built_by="print({version!r})")
    return "dpjax-0.1.0-py3-none-any.whl"

def get_requires_for_build_editable(settings=None):
    return ["editables"]
"""


@pytest.mark.processes
def test_the_lock_decides_what_builds_the_package(tmp_path):
    """An index has a later release of the backend; the lock names the one before."""
    index, clone = tmp_path / "index", tmp_path / "clone"
    index.mkdir()
    clone.mkdir()
    for version in ("2.0", "3.0"):
        backend = _A_BACKEND.format(wheel=inspect.getsource(_wheel), version=version)
        _wheel(index, "hatchling", version, hatchling__build=backend)
        _wheel(index, "editables", version)
    (clone / "Makefile").write_text((_ROOT / "Makefile").read_text())
    (clone / "constraints.txt").write_text("hatchling==2.0\neditables==2.0\n")
    project = '[project]\nname = "dpjax"\nversion = "0.1.0"\noptional-dependencies = {cli = []}\n'
    build = '[build-system]\nrequires = ["hatchling>=1.26"]\nbuild-backend = "hatchling.build"\n'
    (clone / "pyproject.toml").write_text(project + build)

    def run(*command: str) -> str:
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
        return subprocess.run(
            command,
            cwd=clone,
            env=os.environ | offline,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    python = ".venv/bin/python"
    run("make", f"PYTHON={sys.executable}", ".venv/.installed-run")
    assert run(python, "-m", "built_by") == "2.0\n"
    # Left to itself pip builds by the later one, whatever is installed and constrained.
    run(python, "-m", "pip", "install", "--editable", ".", "-c", "constraints.txt")
    assert run(python, "-m", "built_by") == "3.0\n"


# A later release of optax: it warns where it is imported and, in the name of its caller, where one
# of its functions is called.
_LATER_RELEASE = """
import functools, importlib.abc, importlib.machinery, sys, warnings

class Later(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "optax":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            for kind in (FutureWarning, DeprecationWarning, UserWarning):
                warnings.warn("optax is imported", kind, stacklevel=2)
            apply_updates = module.apply_updates

            @functools.wraps(apply_updates)
            def warned(*args, **options):
                for kind in (FutureWarning, DeprecationWarning, UserWarning):
                    warnings.warn("apply_updates has another name", kind, stacklevel=2)
                return apply_updates(*args, **options)

            module.apply_updates = warned

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Later())
"""
_A_STEP = """
import warnings
import jax.numpy as jnp, optax
from dpjax import training
from dpjax._numerics.warning import DpjaxWarning

def test_a_fit():
    data = jnp.ones((4, 2), jnp.float32)
    plan = training.make_plan(4, epsilon=1.0, delta=1e-2, epochs=1, batch_size=2)
    loss = lambda w, row: jnp.sum((w - row) ** 2)
    training.fit(loss, jnp.zeros(2), data, plan, optimizer=optax.sgd(0.1))
    optax.apply_updates(jnp.zeros(2), jnp.ones(2))

OWN
"""
_AN_OWN_WARNING = """
def test_what_dpjax_says():
    warnings.warn("said by dpjax", DpjaxWarning)
"""


@pytest.mark.parametrize(
    ("strict", "own", "passes"),
    [("0", "", True), ("1", "", False), ("0", _AN_OWN_WARNING, False)],
    ids=["a user's machine", "continuous integration", "a warning of dpjax"],
)
@pytest.mark.processes
def test_a_later_release_that_warns_fails_no_test_of_a_user(tmp_path, strict, own, passes):
    (tmp_path / "sitecustomize.py").write_text(_LATER_RELEASE)
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text((_ROOT / "tests" / "conftest.py").read_text())
    (tests / "test_step.py").write_text(_A_STEP.replace("OWN", own))
    paths = [str(tmp_path), str(_ROOT)]
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            str(tests),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "DPJAX_STRICT_WARNINGS": strict},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode == 0) == passes, ran.stdout + ran.stderr
    if not own:
        assert "optax is imported" in ran.stdout or "apply_updates has another" in ran.stdout


def test_every_warning_of_the_package_is_of_its_own_category():
    """A plain UserWarning of dpjax would be taken for one of a library's."""
    for path in (_ROOT / "dpjax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
                said = [ast.unparse(argument) for argument in node.args]
                own = {"DpjaxWarning", "OldNameWarning", "PrivacyWarning"} & {*said[1:]}
                assert own or said[0].startswith("DifferentPrice("), (path, node.lineno)


def _uses_unfiltered(tree: ast.AST) -> list[int]:
    """Lines that count or take warnings which were recorded, whoever raised them."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = []
    for block in ast.walk(tree):
        if not isinstance(block, ast.FunctionDef):
            continue
        recorded = {"recwarn"} & {one.arg for one in block.args.args}
        for inner in ast.walk(block):
            for item in inner.items if isinstance(inner, ast.With) else ():
                call = ast.unparse(item.context_expr)
                if item.optional_vars and re.match(r"pytest\.warns\(|.*record=True", call):
                    recorded.add(ast.unparse(item.optional_vars))
        for name in ast.walk(block):
            if not (isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)):
                continue
            owner = parents[name]
            is_filtered = isinstance(owner, ast.comprehension) and owner.ifs
            if name.id in recorded and not is_filtered:
                found.append(name.lineno)
    return found


def test_no_test_counts_the_warnings_of_a_library():
    """A later release may warn of what it likes, beside what dpjax says."""
    counted = {
        str(path.relative_to(_ROOT)): lines
        for path in sorted((_ROOT / "tests").rglob("*.py"))
        if (lines := _uses_unfiltered(ast.parse(path.read_text())))
    }
    assert not counted


def test_a_count_of_all_warnings_is_found():
    """The check itself, on a test that a library's warning would fail."""
    text = (
        "def test_it():\n    with pytest.warns(UserWarning) as seen:\n        f()\n    assert {}\n"
    )
    assert _uses_unfiltered(ast.parse(text.format("len(seen) == 1"))) == [4]
    assert _uses_unfiltered(ast.parse(text.format("[w for w in seen] == [1]"))) == [4]
    assert not _uses_unfiltered(ast.parse(text.format("[w for w in seen if w.ours] == [1]")))
