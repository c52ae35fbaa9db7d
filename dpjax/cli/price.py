"""`dpjax epsilon` and `dpjax calibrate`: what a run costs, and the noise that a budget buys."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dpjax._digits import rounded_up
from dpjax.cli.inputs import AdjacencyOption, adjacency_of, print_json, refusing

Noise = Annotated[float, typer.Option(help="Noise standard deviation divided by the clip norm.")]
Steps = Annotated[int, typer.Option(help="How often the noisy sum is released.")]
Delta = Annotated[
    float, typer.Option(help="The probability with which ε may fail; well below 1 / records.")
]
Rate = Annotated[
    float | None,
    typer.Option(help="Probability that a record takes part in a step (Poisson sampling)."),
]
BatchSize = Annotated[
    int | None, typer.Option(help="Expected records a step; with --records, instead of --rate.")
]
Records = Annotated[int | None, typer.Option(help="Records in the training data.")]
Relation = Annotated[
    AdjacencyOption,
    typer.Option(help="What ε protects against: one record more or less, or one exchanged."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def epsilon(
    noise_multiplier: Noise,
    delta: Delta,
    steps: Steps = 1,
    rate: Rate = None,
    batch_size: BatchSize = None,
    records: Records = None,
    adjacency: Relation = AdjacencyOption.add_remove,
    method: Annotated[
        str, typer.Option(help="A bound by name, such as rdp, or best: the tightest certified.")
    ] = "best",
    as_json: AsJson = False,
) -> None:
    """The ε that a noisy, sampled, repeated sum costs.

    Without --rate (or --batch-size and --records) every record takes part in every step.

        dpjax epsilon --noise-multiplier 1.1 --rate 0.01 --steps 1000 --delta 1e-5
    """
    with refusing():
        from dpjax import accounting as acc

        _positive(noise_multiplier=noise_multiplier, steps=steps)
        run = _run(noise_multiplier, steps, _sampling_rate(rate, batch_size, records))
        relation = adjacency_of(adjacency)
        certificate = acc.certify(run, delta, adjacency=relation, method=method)
    found: dict[str, Any] = {
        "epsilon": certificate.epsilon,
        "delta": delta,
        "adjacency": relation.value,
        "method": certificate.method,
        "tier": certificate.tier,
    }
    if as_json:
        print_json(found)
        return
    cost = rounded_up(certificate.epsilon)
    typer.echo(f"ε = {cost} at δ = {delta:g} ({relation.value}), an upper bound")
    typer.echo(f"by {certificate.method}: {certificate.bound}")
    if records is not None and delta >= 1 / records:
        typer.echo(f"warning: δ is not below 1 / {records} records", err=True)


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The privacy budget to keep.")],
    delta: Delta,
    steps: Steps = 1,
    rate: Rate = None,
    batch_size: BatchSize = None,
    records: Records = None,
    adjacency: Relation = AdjacencyOption.add_remove,
    as_json: AsJson = False,
) -> None:
    """The smallest noise multiplier that keeps a budget (ε, δ).

    The answer is rounded up, so that the ε it costs never exceeds the budget.

        dpjax calibrate --epsilon 2 --delta 1e-5 --rate 0.01 --steps 1000
    """
    with refusing():
        from dpjax import accounting as acc

        _positive(epsilon=epsilon, steps=steps)
        q = _sampling_rate(rate, batch_size, records)
        relation = adjacency_of(adjacency)
        noise = float(
            acc.calibrate(
                lambda noise: _run(noise, steps, q),
                epsilon=epsilon,
                delta=delta,
                adjacency=relation,
            )
        )
        if not as_json:  # priced is what is shown
            noise = float(rounded_up(noise))
        spent = float(acc.epsilon(_run(noise, steps, q), delta, adjacency=relation))
    if as_json:
        print_json(
            {
                "noise_multiplier": noise,
                "epsilon": spent,
                "delta": delta,
                "adjacency": relation.value,
            }
        )
        return
    cost = f"ε = {rounded_up(spent)} at δ = {delta:g} ({relation.value})"
    typer.echo(f"noise multiplier {noise:.6g} costs {cost}")


def _run(noise, steps: int, rate: float):
    from dpjax import accounting as acc

    step = acc.Gaussian(noise)  # pyrefly: ignore
    sampled = step if rate == 1 else acc.PoissonSampled(step, rate)  # pyrefly: ignore
    return acc.Repeated(sampled, steps)  # pyrefly: ignore


def _sampling_rate(rate: float | None, batch_size: int | None, records: int | None) -> float:
    if records is not None and records < 1:
        raise ValueError(f"--records must be at least 1, got {records}")
    if rate is not None:
        if batch_size is not None:
            raise ValueError("give either --rate, or --batch-size and --records")
        if not 0 < rate <= 1:
            raise ValueError(f"--rate must be in (0, 1], got {rate}")
        return rate
    if batch_size is None:
        return 1.0
    if records is None:
        raise ValueError("--records is missing: --batch-size alone gives no sampling rate")
    if not 1 <= batch_size <= records:
        raise ValueError(f"--batch-size must be between 1 and {records} records, got {batch_size}")
    return batch_size / records


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < float("inf"):
            option = name.replace("_", "-")
            raise ValueError(f"--{option} must be a positive, finite number, got {value}")
