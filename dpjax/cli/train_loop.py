"""The private run itself, with one bar of progress."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import typer

from dpjax.cli.inputs import INTERRUPTED, refusing
from dpjax.cli.train_settings import MOMENTUM

if TYPE_CHECKING:
    from dpjax.data import Dataset
    from dpjax.training import Plan


def train_privately(
    console,
    plan: Plan,
    data: Dataset,
    held_out: Dataset,
    options: dict[str, Any],
    folder,
    *,
    seed: int | None,
    resume: bool,
    quiet: bool,
    compare: bool,
    private_losses: bool,
) -> tuple[Any, Any, float, float | None]:
    """The model, what `fit` found, its test accuracy, and that of the model without privacy."""
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
    with Bar(console, plan.steps, quiet, private_losses) as on_log:
        try:
            result = training.fit(
                loss,
                params,
                records,
                plan,
                optimizer=optax.sgd(options["learning_rate"], momentum=MOMENTUM),
                key=None if seed is None else jax.random.key(seed),
                evaluate=lambda params: {"test_accuracy": score(params)},
                folder=folder / "checkpoint",
                resume=resume,
                # What the certificate says of the seed is true of the whole run or of none of it.
                identity={
                    "model": options["model"],
                    "learning rate": options["learning_rate"],
                    "seed": seed,
                },
                on_log=on_log,
                log_private_losses=private_losses,
            )
        except training.CheckpointError as error:
            with refusing():
                raise error
        except KeyboardInterrupt:
            typer.echo(
                f"\ninterrupted; the last completed step is saved in {folder}: the same command "
                f"with --out {folder} --resume goes on",
                err=True,
            )
            raise typer.Exit(INTERRUPTED) from None
    reference = None
    if compare:
        reference = score(training.train_without_privacy(loss, params, records))
    return model, result, score(result.params), reference


class Bar:
    """Test accuracy, ε so far, speed and memory; loss and clipped share where asked for.

    On a narrow screen what is left out is speed and memory, then loss, then words.

    Example:
        >>> import io
        >>> from rich.console import Console
        >>> with Bar(Console(file=io.StringIO()), 10, False, False) as log:
        ...     callable(log)
        True
    """

    def __init__(self, console, steps: int, quiet: bool, private_losses: bool):
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        losses = 25 if private_losses else 0  # what they take of the screen
        width = console.width
        self._bar = Progress(
            *([TextColumn("training")] if width >= 60 else []),
            BarColumn(bar_width=None if width >= 60 else 4),
            MofNCompleteColumn(),
            *([TextColumn("{task.fields[private]}")] if losses and width >= 70 + losses else []),
            TextColumn(("test accuracy " if width >= 60 else "") + "{task.fields[accuracy]:.1%}"),
            TextColumn("ε {task.fields[epsilon]:.3f}"),
            *([TextColumn("{task.fields[speed]}")] if width >= 100 + losses else []),
            TimeRemainingColumn(),
            console=console,
            disable=quiet,
        )
        self._task = self._bar.add_task(
            "", total=steps, private="", accuracy=float("nan"), epsilon=0.0, speed=""
        )

    def __enter__(self):
        self._bar.start()
        return self._log

    def _log(self, row: dict[str, float]) -> None:
        private, speed = "", f"{row['memory'] / 1e6:,.0f} MB"
        if not math.isnan(row.get("train_loss", math.nan)):
            private = f"loss {row['train_loss']:.3f}, {row['clipped']:.0%} clipped"
        if not math.isnan(row["records_per_second"]):
            speed = f"{row['records_per_second']:,.0f} records/s, {speed}"
        self._bar.update(
            self._task,
            completed=row["step"],
            private=private,
            accuracy=row["test_accuracy"],
            epsilon=row["epsilon"],
            speed=speed,
        )

    def __exit__(self, *_):
        self._bar.stop()
