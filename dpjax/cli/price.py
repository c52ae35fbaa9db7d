"""`dpjax epsilon`, `calibrate`, `curve` and `sweep`: what runs cost, without any data."""

from __future__ import annotations

import gzip
import inspect
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpjax._digits import format_rounded_up
from dpjax._files import write_atomically
from dpjax.cli import inputs
from dpjax.cli.inputs import adjacency_option, option
from dpjax.cli.options import AsJson
from dpjax.cli.texts import say

if TYPE_CHECKING:
    import numpy as np

    from dpjax import accounting as acc

Noise = Annotated[float, option("Noise standard deviation divided by the clip norm.")]
Releases = Annotated[int, option("How often the noisy sum is released.")]
FailureProbability = Annotated[
    float, option("The probability with which ε may fail; well below 1 / records.")
]
Rate = Annotated[
    float | None, option("Probability that a record takes part in a step (Poisson sampling).")
]
ExpectedRecords = Annotated[
    int | None, option("Expected records a step; with --records, instead of --rate.")
]
RecordCount = Annotated[int | None, option("Records in the training data.")]
PricedRelation = Annotated[
    str, adjacency_option("What ε protects against: one record more or less, or one exchanged.")
]
Neighbours = Annotated[str, adjacency_option("One record more or less, or one exchanged.")]


def epsilon_command(
    noise_multiplier: Noise,
    delta: FailureProbability,
    steps: Releases = 1,
    rate: Rate = None,
    batch_size: ExpectedRecords = None,
    records: RecordCount = None,
    adjacency: PricedRelation = "add-remove",
    method: Annotated[
        str, option("A bound by name, such as rdp, or best: the tightest certified.")
    ] = "best",
    as_json: AsJson = False,
) -> None:
    """The ε that a noisy, sampled, repeated sum costs.

    Without --rate (or --batch-size and --records) every record takes part in every step.

        dpjax epsilon --noise-multiplier 1.1 --rate 0.01 --steps 1000 --delta 1e-5
    """
    with inputs.exit_on_bad_input():
        from dpjax import accounting as acc

        inputs.check_positive(noise_multiplier=noise_multiplier, steps=steps)
        relation = acc.Adjacency(adjacency)
        run = _make_run(steps, rate, batch_size, records)(noise_multiplier)
        certificate = acc.certify(run, delta, adjacency=relation, method=method)
    if as_json:
        found = {"epsilon": certificate.epsilon, "delta": delta, "adjacency": relation.value}
        inputs.print_json({**found, "method": certificate.method, "tier": certificate.tier})
        return
    cost = format_rounded_up(certificate.epsilon)
    say(f"ε = {cost} at δ = {delta:g} ({relation.value}), an upper bound")
    say(f"by {certificate.method}: {certificate.bound}")
    if records is not None and delta >= 1 / records:
        say(f"warning: δ is not below 1 / {records} records", err=True)


def calibrate_command(
    epsilon: Annotated[float, option("The privacy budget to keep.")],
    delta: FailureProbability,
    steps: Releases = 1,
    rate: Rate = None,
    batch_size: ExpectedRecords = None,
    records: RecordCount = None,
    adjacency: PricedRelation = "add-remove",
    as_json: AsJson = False,
) -> None:
    """The smallest noise multiplier that keeps a budget (ε, δ).

    The answer is rounded up, so that the ε it costs never exceeds the budget.

        dpjax calibrate --epsilon 2 --delta 1e-5 --rate 0.01 --steps 1000
    """
    with inputs.exit_on_bad_input():
        from dpjax import accounting as acc

        inputs.check_positive(epsilon=epsilon, steps=steps)
        make_run, relation = _make_run(steps, rate, batch_size, records), acc.Adjacency(adjacency)
        noise = float(acc.calibrate(make_run, epsilon=epsilon, delta=delta, adjacency=relation))
        if not as_json:  # priced is what is shown
            noise = float(format_rounded_up(noise))
        spent = float(acc.epsilon(make_run(noise), delta, adjacency=relation))
    if as_json:
        found = {"noise_multiplier": noise, "epsilon": spent, "delta": delta}
        inputs.print_json({**found, "adjacency": relation.value})
        return
    cost = f"ε = {format_rounded_up(spent)} at δ = {delta:g} ({relation.value})"
    say(f"noise multiplier {noise:.6g} costs {cost}")


def _make_run(
    steps: int, rate: float | None, batch_size: int | None, records: int | None
) -> Callable[[float], acc.Mechanism]:
    """The run of a noise multiplier, sampled by `rate`, or by `batch_size` of `records`."""
    from dpjax import accounting as acc

    if records is not None and records < 1:
        raise ValueError(f"--records must be at least 1, got {records}")
    if rate is not None and batch_size is not None:
        raise ValueError("give either --rate, or --batch-size and --records")
    if rate is not None and not 0 < rate <= 1:
        raise ValueError(f"--rate must be in (0, 1], got {rate}")
    if batch_size is not None:
        if records is None:
            raise ValueError("--records is missing: --batch-size alone gives no sampling rate")
        if not 1 <= batch_size <= records:
            raise ValueError(
                f"--batch-size must be between 1 and {records} records, got {batch_size}"
            )
        rate = batch_size / records

    def run(noise: float) -> acc.Mechanism:
        step = acc.Gaussian(noise)
        return acc.Repeated(step if rate in (None, 1) else acc.PoissonSampled(step, rate), steps)

    return run


def curve_command(
    mechanisms: Annotated[
        list[str],
        typer.Argument(
            help="One step of each, as kind:name=value,…: gaussian:noise=4, "
            "poisson:noise=1,rate=0.01, fixed:noise=4,batch=256,records=60000, "
            "shuffled:noise=4,batches=20, ball:displacement=1e-6,dimension=10."
        ),
    ],
    out: Annotated[pathlib.Path, option("Where the picture goes: .png, .pdf, .svg or .jpg.")],
    steps: Annotated[int, option("The largest number of steps.")] = 1000,
    delta: Annotated[float, option("δ at which ε is drawn.")] = 1e-5,
    adjacency: Neighbours = "add-remove",
    title: Annotated[str, option("Above the picture.")] = "",
) -> None:
    """Rényi and trade-off curves, and ε by steps, in one picture.

    Of one or several mechanisms.

    dpjax curve poisson:noise=1,rate=0.01 gaussian:noise=20 --steps 1000 --out curve.png
    """
    with inputs.exit_on_bad_input():
        import numpy as np

        from dpjax import accounting as acc
        from dpjax.plotting import plot_privacy
        from dpjax.plotting.look import SUFFIXES

        inputs.check_new_file("--out", out, SUFFIXES)
        if steps < 1:
            raise ValueError(f"--steps must be at least 1, got {steps}")
        # Few steps are the dear ones: where the contour says nothing, loss distributions do.
        counts = np.unique(np.round(np.geomspace(1, steps, 13)).astype(int))
        # gaussian:noise=4 is "gaussian, noise 4" in the legend.
        named = {
            text.replace(",", ", ").replace(":", ", ").replace("=", " "): parse_step(text)
            for text in mechanisms
        }
        with inputs.progress("drawing", 3 * len(named)) as advance:
            plot_privacy(
                named,
                out,
                steps=counts.tolist(),
                delta=delta,
                adjacency=acc.Adjacency(adjacency),
                title=title,
                on_panel=advance,
            )
    say(f"wrote {out}")


def parse_step(text: str) -> acc.Mechanism:
    """One step of a mechanism from `kind:name=value,…`."""
    from dpjax import accounting as acc

    # The arguments of each are what its text has to set.
    kinds: dict[str, Callable[..., Any]] = {
        "gaussian": lambda noise: acc.Gaussian(noise),
        "poisson": lambda noise, rate: acc.PoissonSampled(acc.Gaussian(noise), rate),
        "fixed": lambda noise, batch, records: acc.FixedBatchSampled(
            acc.Gaussian(noise), batch, records
        ),
        "shuffled": lambda noise, batches: acc.Shuffled(acc.Gaussian(noise), batches),
        "ball": lambda displacement, dimension: acc.UniformBall(displacement, dimension),
    }
    kind, _, rest = text.partition(":")
    if kind not in kinds:
        raise ValueError(f"the kind must be one of {', '.join(kinds)}, got {text!r}")
    wanted, given = tuple(inspect.signature(kinds[kind]).parameters), {}
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
    return kinds[kind](**given)


def sweep_command(
    out: Annotated[pathlib.Path, option("Where the table (CSV) goes.")],
    noise_multiplier: Annotated[
        str, option("Values: 0.5:4:30 (30 of them, evenly in the logarithm) or 1,2,4.")
    ] = "0.5:8:40",
    rate: Annotated[str, option("Sampling rates, in the same form.")] = "0.001:0.1:30",
    steps: Annotated[int, option("Steps of every run.")] = 1000,
    delta: Annotated[float, option("δ of every run.")] = 1e-5,
    adjacency: Neighbours = "add-remove",
    method: Annotated[str, option("A bound by name, or best.")] = "best",
    picture: Annotated[
        pathlib.Path | None, option("Where a heat map goes, if wanted: .png, .pdf, .svg or .jpg.")
    ] = None,
) -> None:
    """Price a grid of noises and sampling rates: CSV and heat map.

    Every pair of a noise multiplier and a rate of Poisson sampling.

    dpjax sweep --noise-multiplier 0.5:4:30 --rate 0.001:0.1:20 --out sweep.csv
    """
    with inputs.exit_on_bad_input():
        import numpy as np
        import pandas as pd

        from dpjax import accounting as acc

        inputs.check_new_file("--out", out, (".csv", ".csv.gz"))
        if picture is not None:
            from dpjax.plotting.look import SUFFIXES

            inputs.check_new_file("--picture", picture, SUFFIXES)
        if steps < 1:
            raise ValueError(f"--steps must be at least 1, got {steps}")
        noises = parse_grid("--noise-multiplier", noise_multiplier)
        rates = parse_grid("--rate", rate)
        relation = acc.Adjacency(adjacency)
        step = acc.PoissonSampled(acc.Gaussian(noises[None, :]), rates[:, None])
        cost = acc.epsilon(acc.Repeated(step, steps), delta, adjacency=relation, method=method)
        cost = np.broadcast_to(np.asarray(cost), (rates.size, noises.size))
        across, up = np.meshgrid(noises, rates)
        table = pd.DataFrame({"noise_multiplier": across.ravel(), "rate": up.ravel()})
        table = table.assign(steps=steps, delta=delta, adjacency=relation.value)
        table["epsilon"] = cost.ravel()
        content = table.to_csv(index=False).encode()
        write_atomically(out, gzip.compress(content) if out.suffix.lower() == ".gz" else content)
        if picture is not None:
            from dpjax.plotting import plot_sweep

            title = f"ε at δ = {delta:g} after {steps:,} steps ({relation.value})"
            plot_sweep(noises.tolist(), rates.tolist(), cost, picture, title=title)
    say(f"wrote {out}" + (f" and {picture}" if picture is not None else ""))


def parse_grid(option: str, text: str) -> np.ndarray:
    """Increasing positive numbers from `low:high:count` or a comma-separated list."""
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
