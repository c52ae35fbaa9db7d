"""The list of planted mistakes stays true of the source, and its script tells found from not."""

from __future__ import annotations

import pytest

import dpjax
from benchmarks import planted

MISTAKES = planted.read_mistakes()
LONG = planted.LeftOut(("long",))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_every_mistake_can_be_planted_and_names_tests(mistake):
    source = (planted.ROOT / "dpjax" / mistake.file).read_text()
    assert source.count(mistake.old) == 1
    compile(source.replace(mistake.old, mistake.new), mistake.file, "exec")
    assert mistake.new != mistake.old
    assert mistake.tests
    for test in mistake.tests:
        file, _, name = test.partition("::")
        text = (planted.ROOT / file).read_text()
        assert not name or f"\ndef {name}(" in text, f"there is no test {test}"


def test_mistakes_have_names_of_their_own_and_are_in_every_package():
    names = [mistake.name for mistake in MISTAKES]
    assert len(set(names)) == len(names) >= 60
    assert not any("|" in name for name in names)  # a cell of a table
    packages = {mistake.file.split("/")[0].removesuffix(".py") for mistake in MISTAKES}
    public = {name for name in dpjax.__all__ if (planted.ROOT / "dpjax" / name).is_dir()}
    assert packages >= {*public, "cli", "plotting"}


def test_the_table_is_of_the_list():
    """What it says of each; whether it is still so takes a run of the script."""
    found = planted.read_findings()
    assert set(found) <= {mistake.name for mistake in MISTAKES}
    by_test, by_whole = (
        [one.name for one in found.values() if getattr(one, column) != "found"]
        for column in ("by_test", "by_whole")
    )
    assert len(by_test) <= len(MISTAKES) // 20
    assert by_whole == []


def test_what_make_test_leaves_out_is_read_off_it(tmp_path):
    assert "tests/experiments" in planted.find_left_out().folders
    command = 'python -m pytest -n 2 -m "not a and not b" --ignore=tests/one --ignore=tests/two'
    (tmp_path / "Makefile").write_text(f"test:\n\techo 'it is'\n\t{command}\n")
    found = planted.find_left_out(tmp_path)
    assert found == planted.LeftOut(("tests/one", "tests/two"), "not a and not b")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A package of one function, with a test in a folder of its own and one in another."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they need none
    (tmp_path / "dpjax").mkdir()
    (tmp_path / "dpjax" / "one.py").write_text("def double(x):\n    return 2 * x\n")
    for folder, at in (("tests", 3), ("long", 4)):
        (tmp_path / folder).mkdir()
        check = f"import one\n\ndef test_{folder}():\n    assert one.double({at}) == {2 * at}\n"
        path = "import sys\nsys.path.insert(0, 'dpjax')\n"
        (tmp_path / folder / "test_one.py").write_text(path + check)
    return tmp_path


@pytest.mark.parametrize(
    ("new", "by_test", "by_whole"),
    [
        ("x * 2", "not found", "not found"),  # harmless
        ("3 * x", "found", "found"),
        ("2 * x - (x > 3)", "not found", "found"),  # by what is left out alone
    ],
)
def test_a_harmful_edit_is_found_and_a_harmless_one_is_not(tree, new, by_test, by_whole):
    tests = ("tests/test_one.py::test_tests", "long/test_one.py")
    before = (tree / "dpjax" / "one.py").read_text()
    found = planted.look_for(tree, planted.Mistake("a", "one.py", "2 * x", new, tests), LONG)
    assert (found.by_test, found.by_whole) == (by_test, by_whole)
    assert (found.test == "–") == (by_whole == "not found")
    assert (tree / "dpjax" / "one.py").read_text() == before


def test_what_is_left_out_by_its_mark_is_asked_last(tree):
    (tree / "pytest.ini").write_text("[pytest]\nmarkers = exact\n")
    test = tree / "tests" / "test_one.py"
    test.write_text("import pytest\npytestmark = pytest.mark.exact\n" + test.read_text())
    mistake = planted.Mistake("a", "one.py", "2 * x", "3 * x", ("tests/test_one.py",))
    found = planted.look_for(tree, mistake, planted.LeftOut((), "not exact"))
    assert (found.by_test, found.by_whole) == ("not found", "found")


def test_all_tests_are_asked_where_those_that_are_named_find_nothing(tree):
    (tree / "tests" / "test_two.py").write_text("def test_two():\n    assert True\n")
    mistake = planted.Mistake("a", "one.py", "2 * x", "3 * x", ("tests/test_two.py",))
    assert planted.look_for(tree, mistake, LONG).by_whole == "not found"
    found = planted.look_for(tree, mistake, LONG, everything=True)
    assert (found.by_test, found.test) == ("found", "`tests/test_one.py::test_tests`")


def test_an_edit_that_does_not_fit_is_refused(tree):
    for old, count in (("x", 2), ("5 * x", 0)):
        with (
            pytest.raises(ValueError, match=f"got {count} times"),
            planted.plant(tree, planted.Mistake("a", "one.py", old, "y", ())),
        ):
            pass


def test_a_test_that_fails_without_a_mistake_finds_none(tree):
    mistake = planted.Mistake("a", "one.py", "2 * x", "3 * x", ("tests/test_one.py",))
    assert planted.look_for(tree, mistake, broken=["tests/test_one.py::test_tests"]).test == "–"
