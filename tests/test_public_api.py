"""Every public name is documented by an example, and every example in code and documents runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pathlib
import pkgutil
import warnings

import pytest

import dpjax

_ROOT = pathlib.Path(dpjax.__file__).resolve().parents[1]
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(dpjax.__path__, "dpjax.")
    if not name.endswith("__main__")
)
_PACKAGES = [f"dpjax.{package}" for package in dpjax._PACKAGES]
_DOCUMENTS = sorted([_ROOT / "README.md", *(_ROOT / "docs").glob("*.md")])


def _public_names() -> list[tuple[str, str]]:
    names = [
        (package, name)
        for package in _PACKAGES
        for name in getattr(importlib.import_module(package), "__all__", ())
    ]
    return [pair for pair in names if not inspect.ismodule(_resolve(*pair))]


def _resolve(package: str, name: str):
    return getattr(importlib.import_module(package), name)


@pytest.mark.parametrize("package", _PACKAGES)
def test_every_package_exports_its_names_explicitly(package):
    module = importlib.import_module(package)
    assert getattr(module, "__all__", ()), f"{package} has no __all__"
    for name in module.__all__:
        assert hasattr(module, name), f"{package}.__all__ names {name}, which does not exist"


def test_every_public_name_has_a_docstring_with_an_example():
    missing = []
    for package, name in _public_names():
        thing = _resolve(package, name)
        if not (inspect.isclass(thing) or callable(thing)):
            continue
        if inspect.isclass(thing) and issubclass(thing, Exception):
            continue  # an error is shown by the call that raises it
        text = inspect.getdoc(thing) or ""
        if ">>>" not in text:
            missing.append(f"{package}.{name}")
    assert not missing, "no example in the docstring of: " + ", ".join(missing)


def _run(test: doctest.DocTest) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=_FLAGS)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # an example may show a warning
        result = runner.run(test, out=report.append)
    assert result.failed == 0, "".join(report)


@pytest.mark.usefixtures("lenient_promotion")
@pytest.mark.parametrize("module", _MODULES)
@pytest.mark.examples
@pytest.mark.at_length
def test_docstring_examples_run(module):
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    for test in found:
        if test.examples:
            _run(test)


@pytest.mark.usefixtures("lenient_promotion")
@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: path.name)
@pytest.mark.examples
@pytest.mark.at_length(every=99)  # README's, which come first, are never left out
def test_document_examples_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(
        document.read_text(), {}, document.name, str(document), 0
    )
    if test.examples:
        _run(test)
