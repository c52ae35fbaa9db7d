"""Packages import only what they may, and the core works without any extra."""

from __future__ import annotations

import ast
import inspect
import io
import pathlib
import re
import subprocess
import sys
import tokenize
import tomllib
import types

import pytest

import dpjax

_PACKAGE = pathlib.Path(dpjax.__file__).resolve().parent
_ROOT = _PACKAGE.parent

# Which packages of dpjax a package may import, besides itself and the helper for extras.
_PARTS = {"_numerics", "correlation", "gradients", "sampling", "transforms"}
_MAY_IMPORT = {
    "_extras": set(),
    "_digits": set(),
    "_files": set(),
    "_argument_names": {"_numerics"},  # which may not import it
    "_numerics": set(),
    "accounting": {"_numerics"},
    "gradients": {"_numerics"},
    "features": {"_numerics"},
    "sampling": {"_numerics"},
    "correlation": {"_numerics"},
    "transforms": _PARTS,
    "audit": _PARTS | {"accounting"},
    "erm": _PARTS | {"accounting"},
    "training": _PARTS | {"accounting"},
    "data": _PARTS | {"accounting"},
    "effects": {"accounting", "data", "training"},
    "plotting": _PARTS | {"accounting", "effects", "training"},
    "estimators": _PARTS | {"accounting", "data", "erm", "training"},
    "cli": _PARTS | {"accounting", "data", "effects", "erm", "estimators", "plotting", "training"},
}
# The one file of a package that may import more: it turns a chain into the mechanism it releases.
_FILES_MAY_IMPORT = {("transforms", "released.py"): {"accounting"}}
_CORE = {"jax", "jaxtyping", "numpy", "optax", "scipy"}
# These need their extra as a whole, and say so when they are imported; see their __init__.py.
_WHOLLY_EXTRA = {"cli", "data", "estimators", "plotting"}
_EXTRAS = ("flax", "safetensors", "pandas", "pyarrow", "sklearn", "matplotlib", "typer", "rich")
_BLOCKED = (*_EXTRAS, "dp_accounting")


def _files(package: str) -> list[pathlib.Path]:
    folder = _PACKAGE / package
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [_PACKAGE / f"{package}.py"]


def _packages() -> list[str]:
    names = {path.stem for path in _PACKAGE.glob("*.py")}
    return sorted(names | {path.parent.name for path in _PACKAGE.glob("*/__init__.py")})


def _imports(tree: ast.AST) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "imports are absolute"
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def test_training_asks_for_the_kind_of_a_mechanism_in_one_file():
    from dpjax import accounting as acc

    kinds = {name for name in acc.__all__ if isinstance(getattr(acc, name), type)}
    kinds = {k for k in kinds if issubclass(getattr(acc, k), acc.Mechanism)} - {"Mechanism"}
    composed = {"Composed", "Repeated"}  # a plan unrolls these; they sample nothing
    for file in _files("training"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                asked = {name.removeprefix("acc.") for name in _names(node.args[1])} & kinds
                assert asked <= (kinds if file.name == "schemes.py" else composed), (file, asked)


def _names(node: ast.AST) -> set[str]:
    parts = (ast.unparse(n) for n in ast.walk(node) if isinstance(n, ast.Attribute | ast.Name))
    return set(parts)


def _is_import_error(kind: ast.expr | None) -> bool:
    return kind is not None and ast.unparse(kind) in ("ImportError", "ModuleNotFoundError")


class _Unguarded(ast.NodeTransformer):
    """Removes imports under an extra, if it is there, and for the type checker alone."""

    def visit_With(self, node):
        return None if ast.unparse(node.items[0]).startswith("extra(") else node

    def visit_Try(self, node):
        return None if any(_is_import_error(h.type) for h in node.handlers) else node

    def visit_If(self, node):
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


@pytest.mark.parametrize(
    "package", [name for name in _packages() if name not in ("__init__", "__main__")]
)
def test_package_imports_only_what_it_may(package):
    allowed = _MAY_IMPORT[package] | {package, "_digits", "_extras", "_files", "_argument_names"}
    allowed -= {"_argument_names"} if package == "_numerics" else set()
    for file in _files(package):
        names = [name.split(".") for name in _imports(ast.parse(file.read_text()))]
        wrong = {name[1] for name in names if name[0] == "dpjax" and len(name) > 1} - allowed
        wrong -= _FILES_MAY_IMPORT.get((package, file.name), set())
        assert not wrong, f"{file.name} of {package} imports {sorted(wrong)}"


@pytest.mark.parametrize("package", sorted(set(_packages()) - _WHOLLY_EXTRA))
def test_libraries_outside_the_core_are_imported_under_their_extra(package):
    known = _CORE | set(sys.stdlib_module_names) | {"dpjax"}
    for file in _files(package):
        tree = _Unguarded().visit(ast.parse(file.read_text()))
        wrong = {name.split(".")[0] for name in _imports(tree)} - known
        assert not wrong, f"{file.name} of {package} imports {sorted(wrong)} without their extra"


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("package", "heavy"),
    [
        ("accounting", {"optax", *_EXTRAS}),
        ("erm", set(_EXTRAS)),
        ("gradients", {"optax", *_EXTRAS}),
        ("transforms", set(_EXTRAS)),
    ],
)
@pytest.mark.processes
def test_importing_a_package_loads_no_library_it_can_do_without(package, heavy):
    loaded = _run(f"import sys, dpjax.{package}; print(*sorted({heavy!r} & set(sys.modules)))")
    assert loaded == ""


@pytest.mark.processes
def test_importing_the_accountant_loads_no_special_functions():
    # scipy.special alone takes a third of a second, and the first epsilon of a subsampled Gaussian
    # needs none of it.
    loaded = _run(
        """
import sys, jax
before = set(sys.modules)
import dpjax.accounting
slow = ("scipy", "jax.scipy", "jax._src.scipy")
print(*sorted(m for m in set(sys.modules) - before if m.startswith(slow)))
"""
    )
    assert loaded == ""


_CORE_ONLY = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {_BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import importlib, pathlib, tempfile
import jax, jax.numpy as jnp, numpy as np, optax
import dpjax
from dpjax import accounting as acc, audit, erm, gradients, sampling, training, transforms

def refused(extra, call):
    try:
        call()
    except ImportError as error:
        assert f'pip install "dpjax[{{extra}}]"' in str(error), error
    else:
        raise AssertionError(f"worked without the extra {{extra}}")
"""


@pytest.mark.processes
def test_the_core_works_without_any_extra():
    _run(
        _CORE_ONLY
        + """
run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), 0.01), 1_000)
assert abs(acc.epsilon(run, delta=1e-5) - 1.5154) < 1e-4
grad = dpjax.clipped_grad(lambda w, x: w @ x, clip_norm=1.0)(jnp.zeros(2), jnp.array([[3.0, 4.0]]))
np.testing.assert_allclose(grad.sum, [0.6, 0.8], rtol=1e-6)
noise = transforms.gaussian_noise(noise_std=1.0, key=jax.random.key(0))
noisy, _ = noise.update(grad.sum, noise.init(grad.sum))
assert not np.array_equal(noisy, grad.sum)
sampling.poisson(jax.random.key(0), 0, population=100, rate=0.5)
x = np.repeat([[1.0], [-1.0]], 50, axis=0)
problem = erm.logistic_regression(x, x[:, 0] > 0, l2=1e-2)
fit = erm.dp_gd(problem, jax.random.key(0), steps=5, step_size=1.0, noise_multiplier=1.0)
assert np.isfinite(acc.epsilon(fit.mechanism, delta=1e-5))
model = training.logistic(features=1)
plan = training.make_plan(100, noise_multiplier=2.0, delta=1e-4, steps=2, batch_size=20)
data = (jnp.asarray(x), jnp.asarray(x[:, 0] > 0, jnp.int32))
params = model.init(jax.random.key(1))
training.fit(training.cross_entropy(model), params, data, plan, optimizer=optax.sgd(1.0))
"""
    )


@pytest.mark.processes
def test_a_missing_extra_is_named_by_the_call_that_needs_it():
    _run(
        _CORE_ONLY
        + """
for package, extra in (("cli", "cli"), ("data", "data"), ("estimators", "data")):
    refused(extra, lambda: importlib.import_module(f"dpjax.{package}"))
refused("plot", lambda: dpjax.plotting.plot_training)
refused("data", lambda: dpjax.data.load_table("digits"))
refused("train", lambda: training.from_nnx(lambda rngs: None))
refused("train", lambda: training.save_model("nowhere", {"w": jnp.ones(1)}))
key = jax.random.key(0)
problem = erm.logistic_regression([[1.0], [-1.0]], [1, 0], l2=0.1)
refused("erm", lambda: erm.sweep(erm.dp_gd, problem, {"steps": [1]}, repeats=1, key=key))
from dpjax.accounting import interop
refused("interop", lambda: interop.to_dp_event(acc.Gaussian(1.0)))
refused("cli", lambda: audit.run_trials(
    lambda key, data: data.sum(), jnp.zeros(1), jnp.ones(1), key=key, trials=2, progress=True))
"""
    )


def _declared() -> dict[str, str]:
    """Library -> its lowest version, over the core and the extras that users install."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"]]
    for name in ("train", "data", "plot", "erm", "cli", "test"):
        lines += extras[name]
    return dict(line.split(">=") for line in lines if ">=" in line)


def test_the_oldest_environment_has_the_lowest_declared_versions():
    pinned = dict(line.split("==") for line in (_ROOT / "tests" / "oldest.txt").read_text().split())
    declared = _declared()
    tools = {"pytest", "pytest-xdist", "hypothesis", "mpmath", "gmpy2", "beartype", "nbclient"}
    tools |= {
        "nbformat",
        "ipykernel",
        "polars",
    }  # run the tests; dpjax never meets them
    # Newer ones of these warn that typer and matplotlib of that time are out of date.
    needed_by_them = {"jaxlib", "click", "pyparsing"}
    assert set(pinned) - needed_by_them == set(declared) - tools
    for name, lowest in declared.items():
        if name not in tools:
            parts = lowest.split(".")
            assert pinned[name].split(".")[: len(parts)] == parts, name


# --------------------------------------------------------------------------- how it hangs together

_MOST_FAN_OUT = 11


def _import_graph() -> dict[str, set[str]]:
    """Which modules of the package each module imports when it is loaded."""
    modules = {
        ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in _PACKAGE.rglob("*.py")
    }
    graph = {}
    for path in _PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
        loaded = [
            n
            for n in ast.parse(path.read_text()).body
            if isinstance(n, ast.Import | ast.ImportFrom)
        ]
        found = set(_imports(ast.Module(loaded, [])))
        graph[name] = (found & modules) - {name}
    return graph


def _circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a circle; empty if there are none."""
    left = {name: set(found) for name, found in graph.items()}
    while leaves := [name for name, found in left.items() if not found & left.keys()]:
        for name in leaves:
            del left[name]
    return sorted(left)


# Lines of code, without docstring and comments.
_MOST_OF_A_FUNCTION = 60


def _lines_of_code(source: str) -> dict[str, int]:
    """Lines of every function that hold code."""
    code: set[int] = set()
    skipped = tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            code |= set(range(token.start[0], token.end[0] + 1))
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            lines = code & set(range(node.lineno, (node.end_lineno or 0) + 1))
            if ast.get_docstring(node) is not None:
                lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
            found[node.name] = max(len(lines), found.get(node.name, 0))
    return found


def test_no_function_is_longer_than_a_page():
    planted = "def one():\n    'words'\n    # and a remark\n\n    return (\n        1)\n"
    assert _lines_of_code(planted) == {"one": 3}
    for path in _PACKAGE.rglob("*.py"):
        for name, lines in _lines_of_code(path.read_text()).items():
            assert lines <= _MOST_OF_A_FUNCTION, f"{path}: {name}, {lines} lines"


# The most values of its own that a function holds, beside its arguments: only ever fewer.
_MOST_VALUES = {
    "audit": 18,
    "correlation": 12,
    "erm": 23,
    "gradients": 29,
    "sampling": 12,
    "training": 12,
    "transforms": 15,
}
_SCOPES = (
    ast.FunctionDef | ast.Lambda | ast.ClassDef | ast.ListComp | ast.SetComp | ast.DictComp
    | ast.GeneratorExp
)  # fmt: skip


def _own_values(function: ast.FunctionDef) -> set[str]:
    """The names that a function binds itself, without its arguments and the scopes within it."""
    found, left = set(), list(function.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        left += [] if isinstance(node, _SCOPES) else list(ast.iter_child_nodes(node))
    given = ast.walk(function.args)
    return found - {argument.arg for argument in given if isinstance(argument, ast.arg)} - {"_"}


def test_functions_hold_few_values():
    planted = "def one(a):\n    b, c = a\n    a = [d for d in b]\n    def e():\n        f = 1\n"
    assert _own_values(ast.parse(planted).body[0]) == {"b", "c", "e"}
    for package, most in _MOST_VALUES.items():
        for path in _files(package):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    own = _own_values(node)
                    assert len(own) <= most, f"{path}: {node.name} holds {sorted(own)}"


# The most values that a function is given or takes from around it; these are lists of options, and
# the factors of a matrix product, whose dimensions have twelve names.
_MOST_GIVEN, _GIVEN_MORE = 12, {"fit": 26, "make_plan": 17, "search": 14, "factor": 14}


def _given_values(code: types.CodeType) -> dict[str, int]:
    """Of every function in the code, its arguments and what it takes from the functions around."""
    found = {}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            flags = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS
            starred = sum(bool(inner.co_flags & flag) for flag in flags)
            given = inner.co_argcount + inner.co_kwonlyargcount + starred + len(inner.co_freevars)
            for name, size in (*_given_values(inner).items(), (inner.co_name, given)):
                found[name] = max(size, found.get(name, 0))
    return found


@pytest.mark.parametrize("package", _MOST_VALUES)
def test_functions_are_given_few_values(package):
    planted = "def one(a, *b, c, **d):\n def two(e):\n  return a, b, e\n def two():\n  pass\n"
    assert _given_values(compile(planted, "", "exec")) == {"one": 4, "two": 3}
    for path in _files(package):
        for name, given in _given_values(compile(path.read_text(), "", "exec")).items():
            assert given <= _GIVEN_MORE.get(name, _MOST_GIVEN), f"{path}: {name}, {given} values"


# Lines with a comment for 100 lines of code, signatures left out, in each of these packages and in
# the modules at the top: only ever more.
_FEWEST_COMMENTS = 9
_COMMENTED = ("audit", "correlation", "erm", "gradients", "sampling", "training", "transforms")


def _count_lines(source: str) -> tuple[int, int]:
    """Lines with a comment, and lines that hold code, without docstrings and signatures."""
    skipped = tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
    code, comments = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        lines = range(token.start[0], token.end[0] + 1)
        if token.type == tokenize.COMMENT:
            comments |= set(lines)
        elif token.type not in skipped:
            code |= set(lines)
    for node in ast.walk(ast.parse(source)):
        kinds = ast.FunctionDef | ast.ClassDef | ast.Module
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            code -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        if isinstance(node, ast.FunctionDef):
            code -= set(range(node.lineno, node.body[0].lineno))
    return len(comments), len(code)


@pytest.mark.parametrize("package", [*_COMMENTED, "accounting", "the top"])
def test_numerical_steps_are_explained(package):
    planted = "'words'\n\nx = 1  # why\n# and how\ny = (\n    2)\ndef f(\n    z):\n    return z\n"
    assert _count_lines(planted) == (2, 4)
    top = [*_PACKAGE.glob("*.py")]
    counts = [
        _count_lines(p.read_text()) for p in (top if package == "the top" else _files(package))
    ]
    comments, code = map(sum, zip(*counts, strict=True))
    assert comments >= _FEWEST_COMMENTS / 100 * code, f"{comments} comments on {code} lines of code"


@pytest.mark.parametrize("package", _COMMENTED)
def test_private_functions_are_described_in_one_line(package):
    for path in _files(package):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and re.match("_[^_]", node.name):
                text = ast.get_docstring(node) or ""
                assert "\n" not in text, f"{path}: {node.name}: say why in a comment"


# Words that modules of more than three files define, each for itself: only ever fewer.
_MOST_SHARED_WORDS = 13
# Functions named by a participle, where a verb says what they do and a noun what they give: those
# that are public, and those that are left. Only ever fewer.
_PARTICIPLE = re.compile(
    r"_*([a-z]+[^e]ed|drawn|known|written|held|laid|built|taken|found|left|told|kept|shown|given"
    r"|spent|seen|made)(_(as|by|down|for|in|like|on|once|out|place|to|up))*"
)
_PUBLIC_PARTICIPLES = {
    "augmented",
    "charged",
    "constrained",
    "moved",
    "noted",
    "planned",
    "released",
    "spent",
}
_PARTICIPLES_LEFT = {
    "_asked", "_boxed", "_bundled", "_checked", "_correlated", "_declared", "_directed",
    "_divided", "_drawn", "_evaluated_once", "_exhibited", "_folded", "_given", "_interpolated",
    "_lifted", "_moved", "_numbered", "_owned", "_protected", "_reversed", "_rounded",
    "_rounded_down", "_sampled", "_shown", "_shuffled_once", "_signed", "_spliced",
    "_stacked", "_summed", "_traced", "_trimmed", "_unsampled", "asked", "batched",
    "closed", "covered", "drawn_in_place", "given", "joined", "kept", "known", "labelled",
    "materialised", "placed_like", "priced", "raised", "reversed", "solved", "stated_for",
    "symmetrised", "turned", "typed", "unmasked",
}  # fmt: skip
# Files of one name within one package.
_SAME_FILES_LEFT = {"accounting": {"geometric.py", "method.py", "pair.py", "releases.py"}}


def _shared_words(definitions: list[tuple[str, str]]) -> list[str]:
    """The names, without leading underscores, that more than three files define at their top."""
    files: dict[str, set[str]] = {}
    for file, name in definitions:
        files.setdefault(name.lstrip("_"), set()).add(file)
    return sorted(name for name, where in files.items() if len(where) > 3)


def test_names_say_what_they_are():
    """A function is a verb or what it gives, not `something_of`; one word has one meaning."""
    functions, definitions = set(), []
    for path in _PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        functions |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        kinds = ast.FunctionDef | ast.ClassDef
        definitions += [(str(path), n.name) for n in tree.body if isinstance(n, kinds)]
    assert {name for name in functions if name.endswith("_of")} == {"mechanism_of"}  # public
    planted = [(file, "_same") for file in "abcd"] + [("a", "other")]
    assert _shared_words(planted) == ["same"]
    shared = _shared_words(definitions)
    assert len(shared) <= _MOST_SHARED_WORDS, shared
    named = {name for name in functions if _PARTICIPLE.fullmatch(name)}
    assert {"_padded", "rounded_up", "drawn"} == {
        name for name in ("_padded", "rounded_up", "drawn", "list_flagged", "speed", "feed", "red")
        if _PARTICIPLE.fullmatch(name)
    }  # fmt: skip
    assert named <= _PUBLIC_PARTICIPLES | _PARTICIPLES_LEFT, named


def test_no_two_files_of_a_package_have_one_name():
    for package in _packages():
        names = [path.name for path in _files(package) if path.name != "__init__.py"]
        twice = {name for name in names if names.count(name) > 1}
        assert twice <= _SAME_FILES_LEFT.get(package, set()), f"{package} has two files {twice}"


def test_modules_import_few_others_and_none_in_a_circle():
    graph = _import_graph()
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]
    # `from package import name` also names the package itself, which imports its modules.
    packages = {name for name in graph if (_ROOT / name.replace(".", "/")).is_dir()}
    graph = {name: found - packages for name, found in graph.items() if name not in packages}
    assert _circle(graph) == []
    counts = sorted(len(found) for found in graph.values())
    assert counts[int(0.95 * len(counts))] <= _MOST_FAN_OUT


# Files and functions of the package that the first price of a sampled run goes through, helpers
# of one expression (lambdas, comprehensions) not counted: only ever fewer, but for files that were
# cut in two because they held two ideas, and for sums that read several ε off a line at once.
_MOST_FILES_OF_A_PRICE, _MOST_FUNCTIONS_OF_A_PRICE = 23, 185
# And files that the first run of ten steps goes through, its price included.
# Questions, the order of a batch, memory, what a run is given, what keeps it and what feeds it are
# files of their own; so are the pair of a sampled step, runs of many kinds of step, what makes a
# mechanism valid, and the interval of a single step.
_MOST_FILES_OF_A_FIT = 58
_A_PRICE = """
from dpjax import accounting as acc
run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), 0.01), 1_000)
call = lambda: acc.epsilon(run, 1e-5)
"""
_A_FIT = """
import jax, jax.numpy as jnp, optax
from dpjax import training
data = jnp.ones((400, 5)), jnp.zeros(400, jnp.int32)
model = training.logistic(features=5)
plan = training.make_plan(400, noise_multiplier=1.1, delta=1e-4, steps=10, batch_size=100)
loss, params = training.cross_entropy(model), model.init(jax.random.key(1))
key = jax.random.key(2)
call = lambda: training.fit(loss, params, data, plan, optimizer=optax.sgd(1.0), key=key)
"""
_PROFILED = """
import pathlib, sys
import dpjax

package, entered = str(pathlib.Path(dpjax.__file__).parent), set()

def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(package):
        entered.add((code.co_filename, code.co_qualname))

sys.setprofile(note)
call()
sys.setprofile(None)
functions = {name for name in entered if not name[1].endswith(">")}
print(len({file for file, _ in entered}), len(functions))
"""


@pytest.mark.processes
def test_one_price_goes_through_few_files_and_functions():
    files, functions = map(int, _run(_A_PRICE + _PROFILED).split())
    assert files <= _MOST_FILES_OF_A_PRICE, files
    assert functions <= _MOST_FUNCTIONS_OF_A_PRICE, functions


@pytest.mark.processes
def test_one_fit_goes_through_few_files():
    files, _ = map(int, _run(_A_FIT + _PROFILED).split())
    assert files <= _MOST_FILES_OF_A_FIT, files
