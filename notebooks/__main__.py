"""`python -m notebooks [name …]`: execute the notebooks and keep their outputs."""

from __future__ import annotations

import os
import pathlib
import sys
import time
from unittest import mock

import nbclient
import nbformat

HERE = pathlib.Path(__file__).resolve().parent


def execute(path: pathlib.Path, *, small: bool = False) -> nbformat.NotebookNode:
    """The notebook with a fresh run's outputs; raises `CellExecutionError` where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    settings = {"DPJAX_SMALL": "1"} if small else {}
    with mock.patch.dict(os.environ, settings):
        if not small:
            os.environ.pop("DPJAX_SMALL", None)
        nbclient.NotebookClient(
            notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": HERE}}
        ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day make every run a change
    return notebook


def main() -> None:
    """Execute the named notebooks, or all, at full size and write them back."""
    for path in sorted(HERE.glob("*.ipynb")):
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            start = time.perf_counter()
            notebook = execute(path)
            notebook.metadata.pop("language_info", None)
            scratch = path.with_suffix(".tmp")
            nbformat.write(notebook, scratch)
            scratch.replace(path)
            print(f"{path.name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
