"""`dpjax train`: from a file to a model, a picture and a certificate."""

from __future__ import annotations

import csv
import enum
import io
import math
import pathlib
import tempfile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpjax.cli.inputs import AdjacencyOption, adjacency_of, print_json, read_inputs, refusing

if TYPE_CHECKING:
    from dpjax.data import Dataset
    from dpjax.training import Fit, Plan

# Chosen by looking at results on Adult and digits; a certificate says that such choices are not
# covered where they were made on the records themselves.
_STEPS, _LARGEST_BATCH, _CLIP_NORM, _MOMENTUM = 200, 2_048, 0.5, 0.9
_LEARNING_RATE = {"logistic": 2.0, "softmax": 2.0, "mlp": 1.0}


class ModelOption(enum.StrEnum):
    """The models of the command line."""

    logistic = "logistic"
    softmax = "softmax"
    mlp = "mlp"


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
    steps: Annotated[int, typer.Option(help="Noisy gradient steps.")] = _STEPS,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Expected records a step; each takes part independently. Larger is better: "
            "noise is added once a step. [default: a quarter of the records, at most "
            f"{_LARGEST_BATCH}]",
            show_default=False,
        ),
    ] = None,
    clip_norm: Annotated[
        float, typer.Option(help="Bound on one record's gradient norm; the noise scales with it.")
    ] = _CLIP_NORM,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help=f"Of gradient descent with momentum {_MOMENTUM}. [default: 2, mlp: 1]",
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
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a classifier privately, and certify it.

    Prints the plan (noise, sampling, and what they cost), trains, and leaves certificate.json,
    metrics.csv, training.png, params.npz and a checkpoint in the output folder. `dpjax verify`
    recomputes the certificate.

        dpjax train --data digits --epsilon 3 --delta 1e-4
        dpjax train --data people.csv --target income --epsilon 1 --schema people.toml
    """
    from rich.console import Console

    console = Console(stderr=as_json)
    with refusing():
        folder = (out or pathlib.Path("runs") / pathlib.Path(data).name.split(".")[0]).resolve()
        if resume and (folder / "certificate.json").exists():
            console.print(f"{folder} holds a finished run; nothing is left to do.", markup=False)
            return
        _check_budget(epsilon, delta, clip_norm)
        training_set, held_out = read_inputs(data, target, schema, test)
        options = _complete(training_set, delta, model, batch_size, learning_rate)
        plan = _plan(len(training_set), epsilon, options, steps, clip_norm, adjacency_of(adjacency))
        not_covered = _not_covered(training_set, seed)
        certificate = plan.certify(not_covered=not_covered)
        folder = folder if resume else _unused(folder, console)
        _check_writable(folder)
    _show_plan(console, plan, certificate, options, data)
    if options["delta"] >= 1 / plan.population:
        console.print(
            f"warning: δ = {options['delta']:g} is not below 1 / {plan.population} records: such "
            "a δ allows a whole record to be published",
            style="yellow",
            markup=False,
        )
    result, accuracy, reference = _run(
        console, plan, training_set, held_out, options, folder, seed, resume, as_json
    )
    _write(folder, plan, result, certificate, reference, title=_title(data, options, certificate))
    summary = {
        "folder": str(folder),
        "epsilon": certificate.epsilon,
        "delta": plan.delta,
        "adjacency": plan.adjacency.value,
        "noise_multiplier": plan.noise_multiplier,
        "test_accuracy": accuracy,
        "test_accuracy_without_privacy": reference,
        "nonfinite_gradients": int(result.metrics["nonfinite"][-1]),
    }
    if as_json:
        print_json(summary)
    else:
        _show_result(console, summary)


def _check_budget(epsilon: float, delta: float | None, clip_norm: float) -> None:
    if not 0 < epsilon < float("inf"):
        raise ValueError(f"--epsilon must be a positive, finite number, got {epsilon}")
    if delta is not None and not 0 < delta < 1:
        raise ValueError(f"--delta must lie strictly between 0 and 1, got {delta}")
    if not 0 < clip_norm < float("inf"):
        raise ValueError(f"--clip-norm must be a positive, finite number, got {clip_norm}")


def _complete(data: Dataset, delta, model, batch_size, learning_rate) -> dict[str, Any]:
    """The options with their defaults, which depend on the number of records and classes alone."""
    records, classes = len(data), len(data.classes)
    if model is None:
        model = ModelOption.logistic if classes == 2 else ModelOption.softmax
    if model is ModelOption.logistic and classes != 2:
        raise ValueError(f"--model must be softmax or mlp for {classes} classes, got logistic")
    if learning_rate is None:
        learning_rate = _LEARNING_RATE[model]
    if not 0 < learning_rate < float("inf"):
        raise ValueError(f"--learning-rate must be a positive, finite number, got {learning_rate}")
    return {
        "model": model.value,
        "delta": min(1e-5, 0.1 / records) if delta is None else delta,
        "batch_size": min(max(records // 4, 1), _LARGEST_BATCH)
        if batch_size is None
        else batch_size,
        "learning_rate": learning_rate,
    }


def _plan(records: int, epsilon, options, steps, clip_norm, adjacency) -> Plan:
    from dpjax import training

    settings = {
        "delta": options["delta"],
        "steps": steps,
        "batch_size": options["batch_size"],
        "clip_norm": clip_norm,
        "adjacency": adjacency,
    }
    plan = training.make_plan(records, epsilon=epsilon, **settings)
    # Beyond this noise, all gradients of the run together, each at the clip norm and all pointing
    # the same way, would not stand out of one coordinate of the noise.
    most = plan.expected_batch_size * math.sqrt(steps)
    if plan.noise_multiplier > most:
        least = training.make_plan(records, noise_multiplier=most, **settings).epsilon()
        raise ValueError(
            f"--epsilon must be at least {least:.3g} with these settings, got {epsilon:g}, which "
            f"takes a noise multiplier of {plan.noise_multiplier:.3g} and drowns every gradient "
            f"(at most {most:.3g} leaves a trace); raise --delta, or train on more records"
        )
    return plan


def _not_covered(data: Dataset, seed: int | None) -> list[str]:
    lines = [
        *data.learned,
        f"the number of training records ({len(data)}) is treated as public",
        "choosing settings, or among several runs, by looking at results on the same records",
        "metrics.csv: train_loss and nonfinite are exact functions of the training records",
        "metrics.csv, training.png: test accuracy is an exact function of the held-out records, "
        "which ε does not protect",
        "training.png and the closing message: the accuracy without privacy comes from a model "
        "trained on the same records without noise",
        "running time, and the checkpoint folder of an unfinished run (it holds the noise key)",
    ]
    if seed is not None:
        lines.append("the noise comes from a seed given by hand: who guesses it can subtract it")
    return lines


def _unused(folder: pathlib.Path, console) -> pathlib.Path:
    """The folder itself if it is empty, else the first free `folder-2`, `folder-3`, …"""
    candidate, number = folder, 2
    while candidate.exists() and not (candidate.is_dir() and not any(candidate.iterdir())):
        if not candidate.is_dir():
            raise ValueError(f"--out must be a folder, got the file {candidate}")
        candidate = folder.with_name(f"{folder.name}-{number}")
        number += 1
    if candidate != folder:
        state = (
            "holds a finished run"
            if (folder / "certificate.json").exists()
            else "is not empty (--resume continues an unfinished run)"
        )
        console.print(f"{folder} {state}; this run goes to {candidate}", markup=False)
    return candidate


def _check_writable(folder: pathlib.Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"--out must be writable, got {folder}: {error.strerror or error}"
        ) from None


def _run(
    console, plan: Plan, data: Dataset, held_out: Dataset, options, folder, seed, resume, quiet
):
    import jax
    import optax

    from dpjax import training

    features, classes = data.features.shape[1], len(data.classes)
    model = {
        "logistic": lambda: training.logistic(features),
        "softmax": lambda: training.softmax(features, classes),
        "mlp": lambda: training.mlp(features, classes),
    }[options["model"]]()
    loss = training.cross_entropy(model)
    params = model.init(jax.random.key(0))  # public: it depends on no record
    score = training.accuracy(model, held_out.features, held_out.labels)
    records = (data.features, data.labels)
    with _progress(console, plan.steps, quiet) as on_log:
        try:
            result = training.fit(
                loss,
                params,
                records,
                plan,
                optimizer=optax.sgd(options["learning_rate"], momentum=_MOMENTUM),
                key=None if seed is None else jax.random.key(seed),
                evaluate=lambda params: {"test_accuracy": score(params)},
                folder=folder / "checkpoint",
                resume=resume,
                identity={"model": options["model"], "learning rate": options["learning_rate"]},
                on_log=on_log,
            )
        except training.CheckpointError as error:
            with refusing():
                raise error
    reference = score(training.train_without_privacy(loss, params, records))
    return result, score(result.params), reference


class _progress:
    """One bar with loss, test accuracy and ε so far."""

    def __init__(self, console, steps: int, quiet: bool):
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TextColumn("test accuracy {task.fields[accuracy]:.1%}"),
            TextColumn("ε {task.fields[epsilon]:.3f}"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet,
        )
        self._task = self._bar.add_task(
            "", total=steps, loss=float("nan"), accuracy=float("nan"), epsilon=0.0
        )

    def __enter__(self):
        self._bar.start()
        return self._log

    def _log(self, row: dict[str, float]) -> None:
        self._bar.update(
            self._task,
            completed=row["step"],
            loss=row["train_loss"],
            accuracy=row["test_accuracy"],
            epsilon=row["epsilon"],
        )

    def __exit__(self, *_):
        self._bar.stop()


def _write(folder: pathlib.Path, plan: Plan, result: Fit, certificate, reference, title) -> None:
    """The outputs, each whole or absent; the certificate last, since it marks a finished run."""
    import jax
    import numpy as np

    from dpjax import plotting, training

    arrays = {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(result.params)
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyrefly: ignore
    training.write_atomically(folder / "params.npz", buffer.getvalue())
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(result.metrics)
    rows.writerows(zip(*(column.tolist() for column in result.metrics.values()), strict=True))
    training.write_atomically(folder / "metrics.csv", text.getvalue().encode())
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        picture = plotting.plot_training(
            result.metrics,
            pathlib.Path(scratch) / "training.png",
            title=title,
            delta=plan.delta,
            reference=reference,
        )
        training.write_atomically(folder / "training.png", picture.read_bytes())
    training.write_atomically(folder / "certificate.json", certificate.to_json().encode())
    training.discard_key(folder / "checkpoint")


def _title(data: str, options, certificate) -> str:
    cost = f"ε = {certificate.epsilon:.4g} at δ = {certificate.delta:g}"
    return (
        f"{options['model']} on {pathlib.Path(data).name}: {cost} ({certificate.adjacency.value})"
    )


def _show_plan(console, plan: Plan, certificate, options, data: str) -> None:
    from rich.table import Table

    table = Table(title=f"Plan: {options['model']} on {data}", title_justify="left")
    table.add_column("setting")
    table.add_column("value", justify="right")
    rows = [
        ("training records", f"{plan.population:,}"),
        ("adjacency", plan.adjacency.value),
        ("expected batch size", f"{plan.expected_batch_size:,.1f}"),
        ("sampling rate (Poisson)", f"{plan.rate:.6g}"),
        ("steps", f"{plan.steps:,}"),
        ("clip norm", f"{plan.clip_norm:g}"),
        ("noise multiplier", f"{plan.noise_multiplier:.6g}"),
        ("ε it will cost", f"{certificate.epsilon:.6g}"),
        ("at δ", f"{plan.delta:g}"),
        ("by the bound", f"{certificate.method} ({certificate.tier})"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)


def _show_result(console, summary: dict[str, Any]) -> None:
    console.print(
        f"test accuracy {summary['test_accuracy']:.1%} "
        f"(same model without privacy: {summary['test_accuracy_without_privacy']:.1%}) "
        f"at ε = {summary['epsilon']:.4g}, δ = {summary['delta']:g}, {summary['adjacency']}",
        highlight=False,
        markup=False,
    )
    if summary["nonfinite_gradients"]:
        console.print(
            f"{summary['nonfinite_gradients']} gradients were NaN or infinite and counted as zero",
            markup=False,
        )
    folder = pathlib.Path(summary["folder"])
    shown = (
        folder.relative_to(pathlib.Path.cwd())
        if folder.is_relative_to(pathlib.Path.cwd())
        else folder
    )
    console.print(f"check it: dpjax verify {shown}/certificate.json", markup=False, highlight=False)
