"""Docstrings follow one template, errors one shape, and words are plain, wherever this is held."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pathlib
import re
import subprocess

import pytest

import dpjax

_ROOT = pathlib.Path(dpjax.__file__).resolve().parents[1]
_HELD = (
    "_numerics",
    "accounting",
    "audit",
    "cli",
    "correlation",
    "data",
    "effects",
    "erm",
    "estimators",
    "features",
    "gradients",
    "plotting",
    "sampling",
    "training",
    "transforms",
)

# ------------------------------------------------------------------------------ docstrings

_SECTIONS = ("Args", "Returns", "Raises", "Fields", "Guarantee", "Example", "References")
# Words that open a section elsewhere, or one of ours with text on the same line.
_HEADING = re.compile(
    rf"(?:{'|'.join(_SECTIONS)}|Arguments|Attributes|Examples|Notes?|Parameters|Reference|Returned"
    r"|Source|Usage|Warnings?|Yields)(?:\b[^:.]{0,20})?:"
)
_NAMED = re.compile(r"\*{0,2}\w+(?:(?:, | and |/)\*{0,2}\w+)*:(?: |$)")


def _public(package: str) -> list[tuple[str, object]]:
    """The exported classes and functions of a package, and their public methods."""
    module = importlib.import_module(f"dpjax.{package}")
    found = []
    for name in getattr(module, "__all__", ()):
        thing = getattr(module, name)
        if inspect.ismodule(thing):
            found += [(f"{name}.{n}", getattr(thing, n)) for n in getattr(thing, "__all__", ())]
        else:
            found.append((name, thing))
    for name, thing in list(found):
        if inspect.isclass(thing):
            # An override without a docstring has the one of the method it overrides.
            bases = {n for base in thing.__mro__[1:] for n in vars(base)}
            methods = [n for n in vars(thing) if not n.startswith("_")]
            methods = [n for n in methods if n not in bases or vars(thing)[n].__doc__]
            own = ((n, inspect.unwrap(_function(vars(thing)[n]))) for n in methods)
            found += [(f"{name}.{n}", part) for n, part in own if inspect.isfunction(part)]
    return [(name, thing) for name, thing in found if inspect.isclass(thing) or callable(thing)]


def _function(attribute: object) -> object:
    if isinstance(attribute, property):
        return attribute.fget
    return getattr(attribute, "__func__", attribute)


def _complaints(name: str, thing: object) -> list[str]:
    """What is against the template in a docstring."""
    own = thing.__doc__ or ""
    if not own.strip():
        return [f"{name}: no docstring"]
    if dataclasses.is_dataclass(thing) and own.startswith(f"{thing.__name__}("):
        return [f"{name}: no docstring"]  # dataclasses write a signature there
    lines, wrong = inspect.cleandoc(own).split("\n"), []
    section, seen = "", []
    for number, line in enumerate(lines):
        where = f"{name}, line {number + 1} {line.strip()[:40]!r}"
        heading = _HEADING.match(line)
        if line.rstrip(":") in _SECTIONS and line.endswith(":"):
            section = line[:-1]
            if number < 2 or lines[number - 1].strip():
                wrong.append(f"{where}: an empty line comes before a section")
            if seen and _SECTIONS.index(section) <= _SECTIONS.index(seen[-1]):
                wrong.append(f"{where}: after {seen[-1]}; the order is {', '.join(_SECTIONS)}")
            if not lines[number + 1 : number + 2] or not lines[number + 1].startswith("    "):
                wrong.append(f"{where}: its text is indented by 4")
            seen.append(section)
        elif heading:
            wrong.append(f"{where}: the sections are {', '.join(_SECTIONS)}, alone on their line")
        elif line and section and not line.startswith("    "):
            wrong.append(f"{where}: text after the section {section} that is not indented")
        elif line.lstrip().startswith(">>>") and section != "Example":
            wrong.append(f"{where}: examples belong to the section Example")
        elif section in ("Args", "Raises", "Fields") and re.match(r" {4}\S", line):
            if not _NAMED.match(line.strip()):
                wrong.append(f"{where}: an entry is `name: what it is`")
            elif section == "Args" and not inspect.isclass(thing):
                known = inspect.signature(thing).parameters
                named = re.split(r", | and |/", line.strip().split(":")[0])
                unknown = [n for n in named if n.lstrip("*") not in known]
                if unknown and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
                    wrong.append(f"{where}: {unknown[0]} is no argument")
    return wrong


@pytest.mark.parametrize("package", _HELD)
def test_docstrings_follow_the_template(package):
    wrong = [line for name, thing in _public(package) for line in _complaints(name, thing)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_template_is_held():
    def undocumented(): ...

    def late(x):
        """Late.

        Example:
            >>> 1
            1

        Args:
            x: anything.
        """

    def inline(x):
        """Inline.

        Returns: nothing.
        """

    def stray(x):
        """Stray.

        Args:
            y: not there.

        >>> 1
        """

    def good(x):
        """Good.

        Args:
            x: anything.

        Example:
            >>> 1
            1
        """

    assert _complaints("f", undocumented) == ["f: no docstring"]
    assert "after Example" in _complaints("f", late)[0]
    assert "alone on their line" in _complaints("f", inline)[0]
    assert len(_complaints("f", stray)) == 2
    assert _complaints("f", good) == []


# ------------------------------------------------------------------------------ errors

# "NAME must be …, got VALUE", with advice after a semicolon or a colon if there is any. And what
# has no value to show: an argument, or one of several, that was not given.
_SHAPES = (
    re.compile(r"^\S.* must .+, got .+$", re.S),
    re.compile(r"^(give|pass) .+$", re.S),  # which of the arguments that exclude each other
    re.compile(r"^\S+( \S+)? is missing(: .+)?$", re.S),
    re.compile(r"^.+ has no differential-privacy guarantee.*$", re.S),
)


def _text(node: ast.expr) -> str:
    """A message with {} for every value; several where it depends on a condition."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "{}"


def _errors(file: pathlib.Path) -> list[tuple[int, str]]:
    """Line and message of every ValueError and TypeError; subclasses speak for themselves."""
    return [
        (node.lineno, _text(node.exc.args[0]) if node.exc.args else "")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        if isinstance(node.exc.func, ast.Name) and node.exc.func.id in ("ValueError", "TypeError")
    ]


def _files(package: str) -> list[pathlib.Path]:
    folder = _ROOT / "dpjax" / package
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


@pytest.mark.parametrize("package", _HELD)
def test_errors_have_one_shape(package):
    wrong = [
        f"{file.name}:{line}: {message}"
        for file in _files(package)
        for line, message in _errors(file)
        if message != "{}" and not any(shape.match(message) for shape in _SHAPES)
    ]
    assert not wrong, "not 'NAME must be …, got VALUE':\n" + "\n".join(wrong)


# ------------------------------------------------------------------------------ words

# Pictures, and the plain word for each. Written apart, so that this file does not hold them.
_PICTURES = "roo" + "ms?|hou" + "ses?|hope" + "less|pati" + "ence|gl" + "ances?"
# A name that somebody else gave, and the one of the check that counts what stays untidy.
_QUOTED = re.compile(
    "priv-hou"
    + "se-serv|warehou"
    + "se|import hou"
    + "se as|counting.Hou"
    + "se|nce/hou"
    + "se.py",
    re.I,
)


def test_words_are_plain():
    listed = subprocess.run(
        ["git", "ls-files", "README.md", "CHANGELOG.md", "docs", "dpjax", "tests", "experiments",
         "benchmarks", "notebooks"],
        cwd=_ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("needs the git repository, to know which files are ours")
    names = [n for n in listed.stdout.split() if n.endswith((".py", ".md", ".toml", ".ipynb"))]
    picture, wrong = re.compile(rf"(?<![A-Za-z])(?:{_PICTURES})(?![A-Za-z])", re.I), []
    for name in names:
        if not (_ROOT / name).exists():
            continue
        for number, line in enumerate((_ROOT / name).read_text().split("\n"), 1):
            if picture.search(_QUOTED.sub("", line)):
                wrong.append(f"{name}:{number}: {line.strip()[:80]}")
    assert not wrong, "\n" + "\n".join(wrong)
