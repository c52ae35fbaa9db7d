"""`dpjax curve`: the privacy of several mechanisms in one picture."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any

import typer

from dpjax.cli.inputs import AdjacencyOption, adjacency_of, check_new_file, progress, refusing

_KINDS = {
    "gaussian": ("noise",),
    "poisson": ("noise", "rate"),
    "fixed": ("noise", "batch", "records"),
    "shuffled": ("noise", "batches"),
    "ball": ("displacement", "dimension"),
}


def curve(
    mechanisms: Annotated[
        list[str],
        typer.Argument(
            help="One step of each, as kind:name=value,…: gaussian:noise=4, "
            "poisson:noise=1,rate=0.01, fixed:noise=4,batch=256,records=60000, "
            "shuffled:noise=4,batches=20, ball:displacement=1e-6,dimension=10."
        ),
    ],
    out: Annotated[
        pathlib.Path, typer.Option(help="Where the picture goes: .png, .pdf, .svg or .jpg.")
    ],
    steps: Annotated[int, typer.Option(help="The largest number of steps.")] = 1000,
    delta: Annotated[float, typer.Option(help="δ at which ε is drawn.")] = 1e-5,
    adjacency: Annotated[
        AdjacencyOption, typer.Option(help="One record more or less, or one exchanged.")
    ] = AdjacencyOption.add_remove,
    title: Annotated[str, typer.Option(help="Above the picture.")] = "",
) -> None:
    """Rényi and trade-off curves, and ε by steps, in one picture.

    Of one or several mechanisms.

    dpjax curve poisson:noise=1,rate=0.01 gaussian:noise=20 --steps 1000 --out curve.png
    """
    with refusing():
        import numpy as np

        from dpjax.plotting.accounting import plot_privacy
        from dpjax.plotting.appearance import SUFFIXES

        check_new_file("--out", out, SUFFIXES)
        if steps < 1:
            raise ValueError(f"--steps must be at least 1, got {steps}")
        # Few steps are the dear ones: where the contour says nothing, loss distributions do.
        counts = np.unique(np.round(np.geomspace(1, steps, 13)).astype(int))
        steps_by_name = {_label(text): parse_step(text) for text in mechanisms}
        with progress("drawing", 3 * len(steps_by_name)) as advance:
            plot_privacy(
                steps_by_name,
                out,
                steps=counts.tolist(),
                delta=delta,
                adjacency=adjacency_of(adjacency),
                title=title,
                on_panel=advance,
            )
    typer.echo(f"wrote {out}")


def _label(text: str) -> str:
    kind, _, rest = text.partition(":")
    return f"{kind}, {rest.replace('=', ' ').replace(',', ', ')}"


def parse_step(text: str) -> Any:
    """One step of a mechanism from `kind:name=value,…`.

    Example:
        >>> parse_step("poisson:noise=1,rate=0.01")
        PoissonSampled(mechanism=Gaussian(noise_multiplier=1.0), rate=0.01)
    """
    from dpjax import accounting as acc

    kind, _, rest = text.partition(":")
    if kind not in _KINDS:
        raise ValueError(f"the kind must be one of {', '.join(_KINDS)}, got {text!r}")
    wanted, given = _KINDS[kind], {}
    for part in filter(None, rest.split(",")):
        name, equals, number = part.partition("=")
        if name not in wanted or not equals:
            raise ValueError(f"{text!r} must set {', '.join(wanted)} to numbers, got {part!r}")
        if name in given:
            raise ValueError(f"{name} must be given once, got {text!r}")
        try:
            given[name] = float(number)
        except ValueError:
            raise ValueError(f"{name} must be a number, got {number!r}") from None
    missing = [name for name in wanted if name not in given]
    if missing:
        raise ValueError(f"{', '.join(missing)} is missing: {text!r}")
    if kind == "ball":
        return acc.UniformBall(given["displacement"], given["dimension"])
    step = acc.Gaussian(given["noise"])
    if kind == "poisson":
        return acc.PoissonSampled(step, given["rate"])
    if kind == "fixed":
        return acc.FixedBatchSampled(step, given["batch"], given["records"])
    return acc.Shuffled(step, given["batches"]) if kind == "shuffled" else step
