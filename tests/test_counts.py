"""`make check` counts what makes the package hard to read: a planted package turns each count."""

from __future__ import annotations

import json

import pytest

from maintenance import house as counting

_FINE = '''"""One thing."""

from __future__ import annotations


def add(x: int, y: int) -> int:
    """Return the sum."""
    return x + y
'''

# What is written into a package of one file, and what is then counted once more.
_PLANTED = {
    "xp: Any = namespace()": "xp: Any = namespace(1)\n",
    "-> Any": "def f() -> Any: ...\n",
    "Any inside a result": "def f() -> tuple[Any, int]: ...\n",
    "hasattr of own attributes": "class A:\n    own = 1\nhasattr(x, 'own')\nhasattr(x, 'other')\n",
    "SimpleNamespace": "types.SimpleNamespace(a=1)\n",
    "locals()": "locals()\n",
    "public names in 2 modules": "add = 1\n",
    "second summaries": '"""One.\n\nIts body.\n\nAnother thing.\n\nAnd its body."""\n',
    "docstrings that open with a code word": 'def f() -> None:\n    """RIGHT: the sum."""\n',
    "openings Of, Whose": "x = 1  # Of which nobody knows the beginning\n",
    "fmt: skip": "x = 1  # fmt: " + "skip\n",
    "noqa": "x = 1  # noqa" + ": E501\n",
    "long functions": "def f() -> None:\n" + "    pass\n" * 60,
    "long files": "x = 1\n" * 401,
}


def _counts(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return counting.House(folder).counts()


@pytest.mark.parametrize("what", _PLANTED)
def test_what_is_planted_is_counted(tmp_path, what):
    before = _counts(tmp_path, fine=_FINE)
    after = _counts(tmp_path, planted=_PLANTED[what])
    assert (before[what], after[what]) == (0, 1)


def test_shares_are_of_all_lines_and_arguments(tmp_path):
    body = "def f(a: Any, b, c: int, d: int):\n    x: Any = 1\n" + "    pass\n" * 38
    counts = _counts(tmp_path, one=body)
    assert counts[": Any per 1,000 lines"] == 2 / 40 * 1_000
    assert counts["unannotated arguments in 100"] == 25


def test_private_names_may_be_in_two_modules(tmp_path):
    what, text = "private names in 3 modules", "_own = 1\n"
    assert _counts(tmp_path, a=text, b=text)[what] == 0
    assert _counts(tmp_path, c=text)[what] == 1


def test_tests_are_not_counted(tmp_path):
    assert _counts(tmp_path, test_it="def f() -> Any: ...\n")["-> Any"] == 0


def test_a_count_above_its_bar_is_named():
    assert counting.above({"-> Any": 41.0}) == ["-> Any: 41, at most 40"]
    assert counting.above({"-> Any": 40.0}) == []


def test_a_package_above_a_bar_fails(tmp_path, capsys, monkeypatch):
    (tmp_path / "dpjax").mkdir()
    (tmp_path / "dpjax" / "one.py").write_text("locals()\n" * 3)
    monkeypatch.setattr(counting.project, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"locals\(\): 3, at most 0"):
        counting.main([])
    counting.main(["--detail", "locals()"])
    assert "one.py:3" in capsys.readouterr().out
    counting.main([str(tmp_path)])
    assert json.loads(capsys.readouterr().out)["locals()"] == 3
