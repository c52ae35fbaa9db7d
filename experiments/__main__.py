"""`python -m experiments <paper> <figure or table> [--full] [--data DIR] [--out DIR]`.

Also `python -m experiments status`, which counts the cells of every table, done and planned,
`python -m experiments report`, which writes RESULTS.md and each paper's page from the tables of the
last run, and `python -m experiments verify`, which checks every certificate.
"""

from __future__ import annotations

import os
import pathlib
import time
from typing import Annotated

import typer

from experiments import cells
from experiments.common import Run, papers, targets

_HERE = pathlib.Path(__file__).resolve().parent
_DATA = pathlib.Path(os.environ.get("DPJAX_SHARED", _HERE.parents[1] / "shared")) / "data"


def main(
    paper: Annotated[
        str, typer.Argument(help="folder of the paper, status, report or verify")
    ] = "",
    target: Annotated[str, typer.Argument(help='figure or table, or "all"')] = "",
    full: Annotated[bool, typer.Option(help="the paper's whole grid (wants a GPU)")] = False,
    limit: Annotated[
        int | None, typer.Option(help="run at most so many cells now; the rest another time")
    ] = None,
    data: Annotated[pathlib.Path, typer.Option(help="folder of the data sets")] = _DATA,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="output folder [default: experiments/<paper>]")
    ] = None,
) -> None:
    """Re-runs the figures and tables of a paper; writes PNG and CSV files."""
    _keep_compiled_programs()
    if paper == "report":
        from experiments.report import report

        typer.echo(f"wrote {report(_HERE, out or _HERE)}")
        if out is None:
            from maintenance.__main__ import main as write_what_repeats_it

            write_what_repeats_it()
        return
    if paper == "verify":
        from experiments.certificates import verify

        raise typer.Exit(verify(out or _HERE, typer.echo))
    if paper == "status":
        for line in cells.status(out or _HERE, papers(), targets):
            typer.echo(line)
        return
    if not target:
        for name in [paper] if paper else papers():
            typer.echo(f"{name}: {', '.join(targets(name))}")
        return
    try:
        known = targets(paper)
        chosen = known if target == "all" else {target: known[target]}
    except KeyError as error:
        raise typer.BadParameter(f"unknown: {error}; run without arguments for a list") from error
    for name, compute in chosen.items():
        start = time.perf_counter()
        run = Run(out or _HERE / paper, data, full, limit=limit, say=typer.echo)
        try:
            files = compute(run)
        except cells.Unfinished as left:
            typer.echo(str(left))
            continue
        written = ", ".join(file.name for file in files)
        typer.echo(f"{paper} {name}: {written} ({time.perf_counter() - start:.0f} s)")


def _keep_compiled_programs() -> None:
    """Compiled programs outlive the process, as for the `dpjax` command: they hold no records."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache / "dpjax" / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


if __name__ == "__main__":
    typer.run(main)
