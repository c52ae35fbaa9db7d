"""`dpjax sweep`: ε over a grid of noise multipliers and sampling rates."""

from __future__ import annotations

import gzip
import pathlib
from typing import Annotated, Any

import typer

from dpjax._files import write_atomically
from dpjax.cli.inputs import AdjacencyOption, adjacency_of, check_new_file, refusing


def sweep(
    out: Annotated[pathlib.Path, typer.Option(help="Where the table (CSV) goes.")],
    noise_multiplier: Annotated[
        str, typer.Option(help="Values: 0.5:4:30 (30 of them, evenly in the logarithm) or 1,2,4.")
    ] = "0.5:8:40",
    rate: Annotated[str, typer.Option(help="Sampling rates, in the same form.")] = "0.001:0.1:30",
    steps: Annotated[int, typer.Option(help="Steps of every run.")] = 1000,
    delta: Annotated[float, typer.Option(help="δ of every run.")] = 1e-5,
    adjacency: Annotated[
        AdjacencyOption, typer.Option(help="One record more or less, or one exchanged.")
    ] = AdjacencyOption.add_remove,
    method: Annotated[str, typer.Option(help="A bound by name, or best.")] = "best",
    picture: Annotated[
        pathlib.Path | None,
        typer.Option(help="Where a heat map goes, if wanted: .png, .pdf, .svg or .jpg."),
    ] = None,
) -> None:
    """Price a grid of noises and sampling rates: CSV and heat map.

    Every pair of a noise multiplier and a rate of Poisson sampling.

    dpjax sweep --noise-multiplier 0.5:4:30 --rate 0.001:0.1:20 --out sweep.csv
    """
    with refusing():
        import numpy as np
        import pandas as pd

        from dpjax import accounting as acc

        check_new_file("--out", out, (".csv", ".csv.gz"))
        if picture is not None:
            from dpjax.plotting.appearance import SUFFIXES

            check_new_file("--picture", picture, SUFFIXES)
        if steps < 1:
            raise ValueError(f"--steps must be at least 1, got {steps}")
        noises = parse_grid("--noise-multiplier", noise_multiplier)
        rates = parse_grid("--rate", rate)
        relation = adjacency_of(adjacency)
        step = acc.PoissonSampled(acc.Gaussian(noises[None, :]), rates[:, None])
        cost = acc.epsilon(acc.Repeated(step, steps), delta, adjacency=relation, method=method)
        cost = np.broadcast_to(np.asarray(cost), (rates.size, noises.size))
        columns = np.meshgrid(noises, rates)
        table = pd.DataFrame(
            {
                "noise_multiplier": columns[0].ravel(),
                "rate": columns[1].ravel(),
                "steps": steps,
                "delta": delta,
                "adjacency": relation.value,
                "epsilon": cost.ravel(),
            }
        )
        content = table.to_csv(index=False).encode()
        write_atomically(out, gzip.compress(content) if out.suffix.lower() == ".gz" else content)
        if picture is not None:
            from dpjax.plotting.accounting import plot_sweep

            title = f"ε at δ = {delta:g} after {steps:,} steps ({relation.value})"
            plot_sweep(noises, rates, cost, picture, title=title)
    typer.echo(f"wrote {out}" + (f" and {picture}" if picture is not None else ""))


def parse_grid(option: str, text: str) -> Any:
    """Increasing positive numbers from `low:high:count` or a comma-separated list.

    Example:
        >>> parse_grid("--rate", "0.01:1:3").round(3).tolist()
        [0.01, 0.1, 1.0]
    """
    import numpy as np

    try:
        if ":" in text:
            low, high, count = text.split(":")
            values = np.geomspace(float(low), float(high), int(count))
        else:
            values = np.array([float(part) for part in text.split(",")])
    except ValueError:
        raise ValueError(
            f"{option} must be low:high:count or a list such as 1,2,4, got {text!r}"
        ) from None
    values = np.unique(values)
    if values.size == 0 or not np.all(np.isfinite(values)) or values[0] <= 0:
        raise ValueError(f"{option} must be positive and finite numbers, got {text!r}")
    return values
