"""Every notebook runs at a small size, and is kept with the outputs of a full run."""

from __future__ import annotations

import re

import nbformat
import pytest

from notebooks.__main__ import HERE, execute, kernel

NOTEBOOKS = sorted(HERE.glob("*.ipynb"))


def test_there_are_thirteen():
    assert len(NOTEBOOKS) == 13


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


def test_the_road_of_an_open_model_is_short():
    notebook = nbformat.read(HERE / "open_model.ipynb", as_version=4)
    (road,) = [cell.source for cell in notebook.cells if "training.save_like(" in cell.source]
    code = [line for line in road.splitlines() if line.strip() and not line.startswith("# Needs")]
    assert len(code) <= 40


def test_a_cell_that_needs_what_is_absent_says_so_and_others_run(client):
    """Without the libraries of the open model, whatever this machine has."""
    notebook = nbformat.read(HERE / "open_model.ipynb", as_version=4)
    (source,) = [cell.source for cell in notebook.cells if "find_spec" in cell.source]
    absent = source.replace('"torch", "transformers", "tunix"', '"nowhere_to_be_found",')
    assert absent != source
    cells = [absent, "# Needs it.\nraise ValueError", "print('runs')"]
    client.nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    client.execute(cleanup_kc=False)
    assert ["".join(o.text for o in cell.outputs) for cell in client.nb.cells] == [
        "not installed: nowhere_to_be_found\n",
        "skipped, for want of nowhere_to_be_found\n",
        "runs\n",
    ]
    undo = nbformat.v4.new_code_cell("get_ipython().input_transformers_cleanup.remove(skip)")
    client.nb = nbformat.v4.new_notebook(cells=[undo])
    client.execute(cleanup_kc=False)


@pytest.fixture(scope="module")
def client():
    """One process for all: what one notebook has imported and compiled, the next one finds."""
    with kernel(small=True) as running:
        yield running


# What must hold in a notebook at the small size too, said in its own names.
HOLDS = {
    "quickstart": 'accuracy(open_params)["test_accuracy"] >= result.metrics["test_accuracy"][-1]',
    "private_deep_learning": 'all(without >= run.metrics["accuracy"][-1] for run in runs.values())',
    # both libraries compute one function of the files, before training and after it
    "open_model": "missing or (same and untouched < 1e-4 and difference < 1e-4 < largest)",
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_at_a_small_size(path, client):
    notebook = execute(path, client)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    if path.stem in HOLDS:  # a model without privacy is no worse than the private one
        cell = nbformat.v4.new_code_cell(f"assert {HOLDS[path.stem]}")
        client.nb = nbformat.v4.new_notebook(cells=[cell])
        client.execute(cleanup_kc=False)
