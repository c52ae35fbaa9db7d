"""`dpjax train`: from a file to a model, a picture and a certificate."""

from __future__ import annotations

import enum
import pathlib
from typing import Annotated, Any

import typer

from dpjax.cli import endings
from dpjax.cli.inputs import AdjacencyOption, adjacency_of, print_json, read_inputs, refusing
from dpjax.cli.train_loop import train_privately
from dpjax.cli.train_output import check_same_settings, check_writable, unused_folder, write_results
from dpjax.cli.train_settings import (
    CLIP_NORM,
    LARGEST_BATCH,
    MOMENTUM,
    STEPS,
    check_numbers,
    completed,
    plan_of,
    uncovered,
)
from dpjax.cli.train_shown import show_plan, show_result, title_of


class ModelOption(enum.StrEnum):
    """The models of the command line."""

    logistic = "logistic"
    softmax = "softmax"
    mlp = "mlp"


class SamplingOption(enum.StrEnum):
    """How the records of a step are drawn, on the command line."""

    poisson = "poisson"
    random_allocation = "random-allocation"


def train(
    data: Annotated[
        str,
        typer.Option(
            help="A file (CSV, TSV, NPZ, Parquet, LIBSVM; .gz too), or the name of a data set, "
            "such as digits, adult, mnist.",
        ),
    ],
    epsilon: Annotated[
        float,
        typer.Option(help="The privacy budget ε; smaller is more private (1 strong, 8 weak)."),
    ],
    target: Annotated[
        str | None, typer.Option(help="The column to predict; named data sets and schemas know it.")
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="The probability δ with which ε may fail; keep it well below 1 / records. "
            "[default: 1e-5, or 1 / (10 records) if that is smaller]",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        ModelOption | None,
        typer.Option(help="[default: logistic for two classes, else softmax]", show_default=False),
    ] = None,
    steps: Annotated[int, typer.Option(help="Noisy gradient steps.")] = STEPS,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Expected records a step. Larger is better: "
            "noise is added once a step. [default: a quarter of the records, at most "
            f"{LARGEST_BATCH}]",
            show_default=False,
        ),
    ] = None,
    sampling: Annotated[
        SamplingOption,
        typer.Option(
            help="Each record takes part in every step with one probability, or in one step of "
            "every epoch, drawn at random (add-remove only; --steps is rounded up to whole epochs)."
        ),
    ] = SamplingOption.poisson,
    clip_norm: Annotated[
        float, typer.Option(help="Bound on one record's gradient norm; the noise scales with it.")
    ] = CLIP_NORM,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help=f"Of gradient descent with momentum {MOMENTUM}. [default: 2, mlp: 1]",
            show_default=False,
        ),
    ] = None,
    adjacency: Annotated[
        AdjacencyOption,
        typer.Option(
            help="What ε protects against: one record more or less, or one record exchanged (needs "
            "about twice the noise)."
        ),
    ] = AdjacencyOption.add_remove,
    schema: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="Ranges, categories and classes that are public (TOML or JSON). Without it they "
            "are learned from the rows, and the certificate says that ε does not cover them."
        ),
    ] = None,
    test: Annotated[
        pathlib.Path | None,
        typer.Option(help="Held-out records in a file of their own. [default: a fifth of --data]"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="For reproduction only: whoever guesses the seed can subtract the noise. "
            "[default: unpredictable]",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="[default: runs/<data>]; never overwritten.", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out after an interruption.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare-without-privacy",
            help="Also train without noise and show that accuracy: NOT covered by ε.",
        ),
    ] = False,
    private_losses: Annotated[
        bool,
        typer.Option(
            "--log-private-losses",
            help="Also show and write exact training losses: NOT covered by ε.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a classifier privately, and certify it.

    Prints the plan (noise, sampling, what they cost, and what ε does not cover), trains, and leaves
    certificate.json, model.json, params.npz, metrics.csv, training.png and a checkpoint in the
    output folder. `dpjax predict` uses the model, `dpjax verify` recomputes the certificate.

        dpjax train --data digits --epsilon 3 --delta 1e-4
        dpjax train --data people.csv --target income --epsilon 1 --schema people.toml
    """
    from rich.console import Console

    endings.end_by_closed_pipes(False)  # a run says how to go on, whoever listens
    console = Console(stderr=as_json)
    with refusing():
        folder = (out or pathlib.Path("runs") / pathlib.Path(data).name.split(".")[0]).resolve()
        check_numbers(epsilon, delta, clip_norm, seed)
        training_set, held_out, encoding = read_inputs(data, target, schema, test)
        options = completed(training_set, delta, model, batch_size, learning_rate)
        plan = plan_of(
            len(training_set),
            epsilon,
            options,
            steps,
            clip_norm,
            adjacency_of(adjacency),
            sampling=sampling.value,
        )
        not_covered = uncovered(training_set, seed, compared=compare, private_losses=private_losses)
        declared = {"model": options["model"], "learning_rate": options["learning_rate"]}
        certificate = plan.certify(not_covered=not_covered, declared=declared)
        if resume and (folder / "certificate.json").exists():
            check_same_settings(folder, certificate, encoding)
            console.print(
                f"{folder} holds a finished run of these settings; nothing is left to do.",
                markup=False,
            )
            return
        folder = folder if resume else unused_folder(folder, console)
        check_writable(folder)
    show_plan(console, plan, certificate, options, data, training_set.learned)
    if options["delta"] >= 1 / plan.population:
        console.print(
            f"warning: δ = {options['delta']:g} is not below 1 / {plan.population} records: such "
            "a δ allows a whole record to be published",
            style="yellow",
            markup=False,
        )
    trained, result, accuracy, reference = train_privately(
        console,
        plan,
        training_set,
        held_out,
        options,
        folder,
        seed=seed,
        resume=resume,
        quiet=as_json,
        compare=compare,
        private_losses=private_losses,
    )
    title = title_of(data, options, certificate)
    with refusing(f"the run is trained: the same command with --out {folder} --resume goes on"):
        write_results(
            folder, plan, result, trained, encoding, certificate, reference=reference, title=title
        )
    summary: dict[str, Any] = {
        "folder": str(folder),
        "epsilon": certificate.epsilon,
        "delta": plan.delta,
        "adjacency": plan.adjacency.value,
        "noise_multiplier": plan.noise_multiplier,
        "test_accuracy": accuracy,
    }
    if compare:
        summary["test_accuracy_without_privacy"] = reference
    if private_losses:
        summary["nonfinite_gradients"] = int(result.metrics["nonfinite"][-1])
    if as_json:
        print_json(summary)
    else:
        show_result(console, summary)
