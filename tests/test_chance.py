"""No test is decided by chance: what draws is given a seed, or draws by the test's name."""

from __future__ import annotations

import ast
import hashlib
import pathlib

import jax
import numpy as np
import pytest

from dpjax import transforms

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# What draws from the operating system where it is given no seed.
_SEEDED = {"default_rng", "Random", "RandomState", "SeedSequence", "seed"}
_OF_THE_SYSTEM = {"secrets", "os.urandom", "uuid.uuid1", "uuid.uuid4", "random.SystemRandom"}
# Where dpjax does: keys, for which tests/conftest.py puts bits of a test's name; names of keys and
# salts, which decide nothing that a test may ask.
_DRAWS = {"_numerics/normal.py", "_numerics/keys.py", "accounting/answers/ledger_file.py"}


def _imported(tree: ast.AST) -> dict[str, str]:
    """The modules and functions that a file imports, by the names they have there."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.asname or one.name: one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = node.names
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in names}
    return found


def _drawn_by_chance(source: str) -> list[str]:
    """The calls of a file that draw without a seed."""
    tree = ast.parse(source)
    imported, found = _imported(tree), []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        said = ast.unparse(node.func)
        first, _, rest = said.partition(".")
        name = f"{imported.get(first, '')}.{rest}".strip(".")
        module, _, function = name.rpartition(".")
        no_seed = not node.args and not node.keywords
        no_seed |= any(isinstance(a, ast.Constant) and a.value is None for a in node.args[:1])
        if module in ("random", "numpy.random"):
            by_chance = no_seed if function in _SEEDED else not function[:1].isupper()
        else:
            by_chance = any(f"{name}.".startswith(f"{one}.") for one in _OF_THE_SYSTEM)
        if by_chance:
            found.append(f"{node.lineno}: {said}")
    return found


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "experiments", "notebooks"])
def test_what_draws_is_given_a_seed(folder):
    wrong = {
        path.relative_to(_ROOT).as_posix(): found
        for path in (_ROOT / folder).rglob("*.py")
        if (found := _drawn_by_chance(path.read_text(encoding="utf-8")))
    }
    assert not wrong


@pytest.mark.parametrize(
    "line",
    [
        "import numpy as np; np.random.default_rng()",
        "import numpy as np; np.random.default_rng(None)",
        "import numpy; numpy.random.normal(size=3)",
        "from numpy.random import default_rng; default_rng()",
        "import random; random.random()",
        "import random; random.Random()",
        "from random import shuffle; shuffle([1, 2])",
        "import secrets; secrets.token_bytes(8)",
        "from secrets import token_hex; token_hex()",
        "import os; os.urandom(8)",
        "import uuid; uuid.uuid4()",
    ],
)
def test_a_draw_without_a_seed_is_seen(line):
    assert _drawn_by_chance(line)


def test_a_draw_with_a_seed_and_a_name_that_looks_like_one_are_not():
    seeded = "import random, numpy as np\nrandom.Random(0).random(); np.random.default_rng(1)"
    assert _drawn_by_chance(seeded) == []
    assert _drawn_by_chance("import jax\njax.random.normal(jax.random.key(0))") == []
    assert _drawn_by_chance("random = draws()\nrandom.random()") == []


def test_the_package_draws_from_the_system_where_tests_know_of_it():
    package = _ROOT / "dpjax"
    drawing = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if _drawn_by_chance(path.read_text(encoding="utf-8"))
    }
    assert drawing == _DRAWS


@pytest.fixture
def key_of_a_fixture():
    return jax.random.key_data(transforms.fresh_key())


_SEEN: list[np.ndarray] = []


@pytest.mark.parametrize("turn", [0, 1])
def test_keys_are_those_of_the_test_and_of_its_fixture(turn, key_of_a_fixture, request):
    own = [np.asarray(jax.random.key_data(transforms.fresh_key())) for _ in range(2)]
    _SEEN.extend([np.asarray(key_of_a_fixture), *own])
    assert len({tuple(key) for key in _SEEN}) == len(_SEEN)
    # In whichever process and order: frozen, as the names above are.
    words = hashlib.sha256(f"{request.node.nodeid} 0".encode()).digest()[:8]
    assert own[0].tobytes() == words
