"""`python -m notebooks [name …]`: execute the notebooks and keep their outputs."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from unittest import mock

import nbclient
import nbformat

HERE = pathlib.Path(__file__).resolve().parent


@contextlib.contextmanager
def kernel(*, small: bool = False) -> Iterator[nbclient.NotebookClient]:
    """What executes notebooks in their folder, one after the other; `small` as the tests do."""
    client = nbclient.NotebookClient(
        nbformat.v4.new_notebook(),
        timeout=900,
        kernel_name="python3",
        resources={"metadata": {"path": HERE}},
    )
    with mock.patch.dict(os.environ, {"DPJAX_SMALL": "1"} if small else {}):
        if not small:
            os.environ.pop("DPJAX_SMALL", None)
        with client.setup_kernel():
            yield client


def execute(path: pathlib.Path, client: nbclient.NotebookClient) -> nbformat.NotebookNode:
    """The notebook with a run's outputs; raises `CellExecutionError` where a cell fails.

    What earlier notebooks of the process have named is forgotten; what they imported stays.
    """
    notebook = nbformat.read(path, as_version=4)
    forget = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("%reset -sf")])
    for client.nb in (forget, notebook):
        client.execute(cleanup_kc=False)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day make every run a change
    return notebook


def main() -> None:
    """Execute the named notebooks, or all, at full size and write them back."""
    for path in sorted(HERE.glob("*.ipynb")):
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            start = time.perf_counter()
            with kernel() as client:
                notebook = execute(path, client)
            notebook.metadata.pop("language_info", None)
            scratch = path.with_suffix(".tmp")
            nbformat.write(notebook, scratch)
            scratch.replace(path)
            print(f"{path.name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
