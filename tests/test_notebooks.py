"""Every notebook runs at a small size, and is kept with the outputs of a full run."""

from __future__ import annotations

import re

import nbformat
import pytest

from notebooks.__main__ import HERE, execute, kernel

NOTEBOOKS = sorted(HERE.glob("*.ipynb"))


def test_there_are_twelve():
    assert len(NOTEBOOKS) == 12


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_kept_with_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    opening = notebook.cells[0].source
    assert f"/github/dpjax/dpjax/blob/main/notebooks/{path.name})" in opening
    assert re.search(r"Expected run time: \w+", opening)
    assert re.search(r"What it costs: \w+", opening)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert '"google.colab" in sys.modules' in code[0].source
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    text = path.read_text()
    assert not re.search(r"/(home|root|tmp|work|Users)/", text), "a path of one machine"


@pytest.fixture(scope="module")
def client():
    """One process for all: what one notebook has imported and compiled, the next one finds."""
    with kernel(small=True) as running:
        yield running


# What must hold in a notebook at the small size too, said in its own names.
HOLDS = {
    "quickstart": 'accuracy(open_params)["test_accuracy"] >= result.metrics["test_accuracy"][-1]',
    "private_deep_learning": 'all(without >= run.metrics["accuracy"][-1] for run in runs.values())',
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_at_a_small_size(path, client):
    notebook = execute(path, client)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    if path.stem in HOLDS:  # a model without privacy is no worse than the private one
        cell = nbformat.v4.new_code_cell(f"assert {HOLDS[path.stem]}")
        client.nb = nbformat.v4.new_notebook(cells=[cell])
        client.execute(cleanup_kc=False)
