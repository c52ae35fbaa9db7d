"""`python -m maintenance house`: what makes a package hard to read, counted, against bars.

Counted are the syntax trees of a package, tests left out. A count above its bar fails.

    python -m maintenance house                     # dpjax, against the bars
    python -m maintenance house --detail "-> Any"   # where one count comes from
    python -m maintenance house SOME/PACKAGE        # the counts of another package, as JSON
"""

from __future__ import annotations

import ast
import collections
import io
import json
import pathlib
import re
import sys
import tokenize

from maintenance import project

LONG_FUNCTION, LONG_FILE = 60, 400  # lines: of a function without its docstring, and of a file

# The most of each that a package may hold.
BARS: dict[str, float] = {
    ": Any per 1,000 lines": 6,
    "xp: Any = namespace()": 0,
    "-> Any": 40,
    "Any inside a result": 40,
    "unannotated arguments in 100": 10,
    "hasattr of own attributes": 4,
    "SimpleNamespace": 0,
    "locals()": 0,
    "public names in 2 modules": 15,
    "private names in 3 modules": 10,
    "second summaries": 11,
    "docstrings that open with a code word": 0,
    "openings Of, Whose": 5,
    "fmt: skip": 6,
    "noqa": 10,
    "long functions": 7,
    "long files": 30,
}

_ANY = ("Any", "typing.Any")
_OPENING = re.compile(r"^\s*(Of|Whose|In which|By which|From which)\b")
_CODE_WORD = re.compile(r"^\s*(Return \w+: )?[A-Z][A-Z_]{2,}\b[:.]")  # RIGHT: …, BLUR: …
_SECTION = re.compile(r"\s*(References|Args|Example|Note|Fields|Returns|Raises)\b")


def files(root: pathlib.Path) -> list[pathlib.Path]:
    """The modules of a package, without its tests."""
    found = []
    for file in sorted(root.rglob("*.py")):
        inside = file.relative_to(root)
        tests = any(part.startswith("test") for part in inside.parts)
        if not tests and not file.name.endswith("_test.py"):
            found.append(file)
    return found


def is_any(annotation: ast.expr | None) -> bool:
    """Whether an annotation is Any and nothing else."""
    return annotation is not None and ast.unparse(annotation).strip("'\"") in _ANY


def holds_any(annotation: ast.expr | None) -> bool:
    """Whether Any stands anywhere in an annotation, as in tuple[Any, int]."""
    return annotation is not None and re.search(r"\bAny\b", ast.unparse(annotation)) is not None


def has_second_summary(docstring: str) -> bool:
    """Whether a docstring goes on, after its body, with what reads as another first line.

    That is a paragraph of one or two lines, at most 120 characters, that ends in a period and is
    followed by another paragraph; or the last of three.
    """
    parts = [part.strip() for part in re.split(r"\n\s*\n", docstring) if part.strip()]
    later = parts[2:] if len(parts) == 3 else parts[2:-1]
    return any(
        part.count("\n") <= 1
        and len(part) <= 120
        and part.endswith(".")
        and not _SECTION.match(part)
        for part in later
    )


def top_level_names(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [name for target in node.targets for name in _assigned(target)]
    if isinstance(node, ast.AnnAssign):
        return _assigned(node.target)
    if isinstance(node, ast.If):  # under TYPE_CHECKING, and what is chosen by a version
        return [name for inner in node.body for name in top_level_names(inner)]
    return []


def _assigned(target: ast.expr) -> list[str]:
    """The names that an assignment to this target sets."""
    elements = target.elts if isinstance(target, ast.Tuple) else [target]
    return [element.id for element in elements if isinstance(element, ast.Name)]


class House:
    """The counts of one package, and where each comes from.

    Fields:
        root: the package's folder.
        where: what is counted -> the places, each with what stands there.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.where: dict[str, list[str]] = collections.defaultdict(list)
        self._names: dict[str, set[str]] = collections.defaultdict(set)
        self._sizes: collections.Counter[str] = collections.Counter()
        texts = {file: file.read_text(encoding="utf-8") for file in files(root)}
        trees = {file: ast.parse(text) for file, text in texts.items()}
        self._attributes = {name for tree in trees.values() for name in _own_attributes(tree)}
        for file, tree in trees.items():
            self._count_module(file, texts[file], tree)
            self._count_comments(file, texts[file])
            for node in ast.walk(tree):
                self._count_node(file, node)
        self._count_names()

    def counts(self) -> dict[str, float]:
        """What is counted -> how many, in the order of the bars."""
        found = {what: float(len(self.where[what])) for what in BARS}
        lines, arguments = self._sizes["lines"], self._sizes["arguments"]
        anys, bare = len(self.where[": Any"]), len(self.where["unannotated arguments"])
        found[": Any per 1,000 lines"] = round(1_000 * anys / max(lines, 1), 1)
        found["unannotated arguments in 100"] = round(100 * bare / max(arguments, 1), 1)
        return found

    def _note(self, what: str, file: pathlib.Path, line: int, shown: str = "") -> None:
        self.where[what].append(f"{file.relative_to(self.root)}:{line} {shown}".strip())

    def _count_module(self, file: pathlib.Path, text: str, tree: ast.Module) -> None:
        """Count what is said of a file as a whole, and keep its names."""
        length = len(text.splitlines())
        self._sizes["lines"] += length
        if length > LONG_FILE:
            self._note("long files", file, 1, str(length))
        if has_second_summary(ast.get_docstring(tree) or ""):
            self._note("second summaries", file, 1)
        for name in {name for node in tree.body for name in top_level_names(node)}:
            if not (name.startswith("__") and name.endswith("__")):
                self._names[name].add(str(file.relative_to(self.root)))

    def _count_node(self, file: pathlib.Path, node: ast.AST) -> None:
        if isinstance(node, ast.AnnAssign) and is_any(node.annotation):
            self._note(": Any", file, node.lineno, ast.unparse(node)[:60])
            value = node.value
            if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("namespace"):
                self._note("xp: Any = namespace()", file, node.lineno)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._count_function(file, node)
        if isinstance(node, ast.Call):
            self._count_call(file, node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = (ast.get_docstring(node) or "").split("\n")[0]
            if _OPENING.match(first):
                self._note("openings Of, Whose", file, node.lineno, first[:70])
            if _CODE_WORD.match(first):
                what = "docstrings that open with a code word"
                self._note(what, file, node.lineno, f"{node.name}: {first[:60]}")

    def _count_function(
        self, file: pathlib.Path, node: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        """Count a function's annotations and its lines."""
        if is_any(node.returns):
            self._note("-> Any", file, node.lineno, node.name)
        elif holds_any(node.returns):
            self._note("Any inside a result", file, node.lineno, node.name)
        listed = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        for arg in [*listed, *filter(None, (node.args.vararg, node.args.kwarg))]:
            if arg.arg in ("self", "cls"):
                continue
            self._sizes["arguments"] += 1
            if arg.annotation is None:
                self._note("unannotated arguments", file, arg.lineno, f"{node.name}({arg.arg})")
            elif is_any(arg.annotation):
                self._note(": Any", file, arg.lineno, f"{node.name}({arg.arg})")
        docstring = ast.get_docstring(node, clean=False) or ""
        length = (node.end_lineno or 0) - node.lineno + 1 - len(docstring.splitlines())
        if length > LONG_FUNCTION:
            self._note("long functions", file, node.lineno, f"{node.name} {length}")

    def _count_call(self, file: pathlib.Path, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if name == "hasattr" and len(node.args) == 2:
            what = node.args[1]
            if isinstance(what, ast.Constant) and what.value in self._attributes:
                self._note("hasattr of own attributes", file, node.lineno, ast.unparse(node))
        if name.endswith("SimpleNamespace"):
            self._note("SimpleNamespace", file, node.lineno)
        if name == "locals":
            self._note("locals()", file, node.lineno)

    def _count_comments(self, file: pathlib.Path, text: str) -> None:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type != tokenize.COMMENT:
                continue
            line, said = token.start[0], token.string.lstrip("#: ")
            if _OPENING.match(said):
                self._note("openings Of, Whose", file, line, said[:70])
            if re.search(r"fmt:\s*(skip|off)", said):
                self._note("fmt: skip", file, line)
            if re.match(r"noqa\b", said) or " noqa" in said:
                self._note("noqa", file, line, said[:40])

    def _count_names(self) -> None:
        """Count the names that several modules define: after all modules were read."""
        for what, private, least in (
            ("public names in 2 modules", False, 2),
            ("private names in 3 modules", True, 3),
        ):
            self.where[what] = [
                f"{name} {len(places)}: {', '.join(sorted(places))}"
                for name, places in sorted(self._names.items())
                if name.startswith("_") == private and len(places) >= least
            ]


def _own_attributes(tree: ast.Module) -> set[str]:
    """Names of methods and fields of all classes in a module."""
    found: set[str] = set()
    for node in ast.walk(tree):
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            found |= set(top_level_names(inner))
    return found


def above(counts: dict[str, float]) -> list[str]:
    """A sentence for each count above its bar."""
    return [
        f"{what}: {count:g}, at most {BARS[what]:g}"
        for what, count in counts.items()
        if count > BARS[what]
    ]


def table(counts: dict[str, float]) -> str:
    """The counts beside the bars, one a line."""
    rows = [f"{'':38} {'now':>7} {'bar':>5}"]
    rows += [f"{what:38} {count:7g} {BARS[what]:5g}" for what, count in counts.items()]
    return "\n".join(rows)


def main(arguments: list[str]) -> None:
    """Print the counts; exit with 1 if one of dpjax's own is above its bar.

    Raises:
        SystemExit: a count is above its bar, with the counts that are.
    """
    detail = arguments.index("--detail") if "--detail" in arguments else len(arguments)
    folders, what = arguments[:detail], arguments[detail + 1 :]
    counted = House(pathlib.Path(folders[0]) if folders else project.ROOT / "dpjax")
    if what:
        print(*counted.where[what[0]], sep="\n")
    elif folders:
        print(json.dumps(counted.counts(), ensure_ascii=False))
    else:
        print(table(counted.counts()))
        if wrong := above(counted.counts()):
            sys.exit("above its bar (`--detail NAME` says where):\n" + "\n".join(wrong))
