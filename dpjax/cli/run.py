"""The private run of `dpjax train` with its bar of progress, and the folder that it leaves."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import pathlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dpjax._digits import format_rounded_up
from dpjax._files import JsonObject, remove_partial
from dpjax.cli import released
from dpjax.cli.choice import NETWORK, PreparedModel, train_on_lines
from dpjax.cli.inputs import exit_on_bad_input
from dpjax.cli.settings import Run
from dpjax.cli.texts import make_printable, quote_path

if TYPE_CHECKING:
    from jaxtyping import PyTree
    from rich.console import Console

    from dpjax.accounting import Certificate
    from dpjax.cli.evaluation import Evaluation
    from dpjax.training import Fit, Model
    from dpjax.training.typing import AverageWeights

_FILES = (
    *("model.safetensors", "model.json", "metrics.csv", "evaluation.json", "training.png"),
    *("effects.png", "certificate.json"),
)


class Trained(NamedTuple):
    """The model, what `fit` found, its evaluation, and the accuracy of one without privacy.

    The run is that of the model: the one that was begun, but for what was chosen.
    """

    run: Run
    model: Model
    fit: Fit
    evaluation: dict[str, Any]
    reference: float | None

    def summarise(self) -> JsonObject:
        """What the command prints of a finished run."""
        run = self.run
        summary: dict[str, Any] = {
            "epsilon": run.certificate.epsilon,
            "delta": run.plan.delta,
            "adjacency": run.plan.adjacency.value,
            "noise_multiplier": run.plan.noise_multiplier,
        }
        found = self.evaluation
        metric = "test_error" if found["task"] == "regression" else "test_accuracy"
        summary[metric] = float(self.fit.metrics[metric][-1])
        summary[f"{metric}_margin"] = found.get("accuracy_margin", found.get("margin"))
        if run.counts is not None:
            summary[f"{metric}_stddev"] = found.get("accuracy_stddev", found["stddev"])
        if run.options.compare:
            summary[f"{metric}_without_privacy"] = self.reference
        if run.choice is not None:
            summary["model"] = run.model
        if run.options.search is not None:
            summary["setting"] = run.options.search.name_setting(self.fit)
        if run.options.private_losses:
            summary["nonfinite_gradients"] = int(self.fit.metrics["nonfinite"][-1])
        return summary | {"evaluation": self.evaluation}


def _keep(params: PyTree) -> PyTree:
    """The parameters as they are trained."""
    return params


def prepare_model(run: Run) -> PreparedModel:
    """The model of a run, by the rule for tables where that makes its settings."""
    from dpjax import training
    from dpjax.cli.evaluation import Evaluation, NumberEvaluation, find_groups
    from dpjax.training.descent import add_places, squared_error

    features = run.records.features
    sizes = features.shape[1], len(run.records.classes) or 1
    if run.tables is None:
        kind = "softmax" if run.model == "linear" else run.model  # of one output: a linear function
        model = trained = getattr(training, kind)(*(sizes[:1] if kind == "logistic" else sizes))
        release = _keep
    else:
        # A search compiles a program of its own, for what it was given.
        places = sizes[0] if run.options.search else run.tables.count_places(sizes[0])
        features = add_places(features, places)
        model, trained = run.tables.model(sizes[0]), run.tables.training_model(places)
        release = partial(run.tables.release, features=sizes[0])
        if run.choice is not None and run.model == NETWORK:
            trained, release = train_on_lines(run.tables, run.encoding, sizes[0])
    if run.options.task == "regression":
        ends = run.encoding["target_range"]
        found = NumberEvaluation(model, run.held_out, run.counts, ends)
        return PreparedModel(model, trained, squared_error(trained), features, found, release)
    groups = find_groups(run.encoding, run.held_out.features, run.options.by)
    found = Evaluation(model, run.held_out, run.counts, groups)
    return PreparedModel(model, trained, training.cross_entropy(trained), features, found, release)


def train_privately(console: Console, run: Run, folder: pathlib.Path) -> Trained:
    """Trains as the plan says, after an interruption from the last completed step on."""
    import jax

    from dpjax import training
    from dpjax.accounting import BudgetExceeded
    from dpjax.training.descent import descend_with_momentum

    options, search, begun = run.options, run.options.search, None
    plan = run.plan
    if run.choice is not None and search is None:
        run, plan, begun = run.choice.choose(run, prepare_model)
        console.print(f"chosen by the trials: {run.model}")
    model, trained, loss, features, evaluation, release = prepare_model(run)
    if options.by is not None and not evaluation.groups.column:
        console.print(f"warning: {options.by!r} holds no categories: no group is shown")
    # Public, as it depends on no record; or where a trial ended.
    params = trained.init(jax.random.key(0)) if begun is None else begun
    key = None if options.seed is None else jax.random.key(options.seed)

    records = (features, run.records.labels)
    with show_progress(console, plan.steps, options.as_json, options.private_losses) as on_log:
        try:
            fit = training.fit if search is None else partial(search.fit, run)
            result = fit(
                loss,
                params,
                records,
                plan,
                optimizer=descend_with_momentum(run.learning_rate, run.momentum),
                average=_choose_average(run, plan.steps),
                key=key if run.key is None else run.key,
                log_every=run.log_every,
                evaluate=lambda params: {evaluation.metric: evaluation.row(release(params))},
                folder=folder / "checkpoint",
                resume=options.resume,
                # What the certificate says of the seed is true of the whole run or of none of it.
                identity={
                    "model": run.model,
                    "learning rate": run.learning_rate,
                    "seed": options.seed,
                },
                on_log=on_log,
                log_private_losses=options.private_losses,
                ledger=options.ledger,
                **run.users,
            )
        except (training.CheckpointError, BudgetExceeded) as error:
            with exit_on_bad_input():
                raise error
    if search is not None:
        run = search.settle(run, result)
        model, trained, loss, features, evaluation, release = prepare_model(run)
    elif begun is not None:
        run.plan.rounding.extend(plan.rounding)
    reference = None
    if options.compare:
        reference = evaluation.row(
            release(training.train_without_privacy(loss, params, records)), exact=True
        )
    # What is released is the average where there is one: the iterates before it are not kept.
    last = result.params if result.average is None else result.average
    result = result._replace(params=release(last), average=None)
    return Trained(run, model, *_evaluate_released(result, evaluation), reference)


def _choose_average(run: Run, steps: int) -> AverageWeights | None:
    """The average of so many steps that is released, the last ones of all the run's steps."""
    from dpjax.training import tail_average

    share, whole = run.options.average or 0.0, run.plan.steps
    if run.tables is not None:
        share, whole = run.tables.averaged, run.tables.steps
    last = round(share * whole)
    return tail_average(max(steps - last, 0)) if last else None


def _evaluate_released(result: Fit, evaluation: Evaluation) -> tuple[Fit, JsonObject]:
    """The result with the evaluation of what is released in its last row, and the evaluation."""
    import numpy as np

    found = evaluation.summarise(result.params)
    # The last row shows the same parameters: as the table has them, whose noise is smaller.
    shown = np.append(result.metrics[evaluation.metric][:-1], found[evaluation.within])
    return result._replace(metrics={**result.metrics, evaluation.metric: shown}), found


@contextlib.contextmanager
def show_progress(
    console: Console, steps: int, quiet: bool, private_losses: bool
) -> Iterator[Callable[[dict[str, float]], None]]:
    """A bar with test accuracy, ε so far and speed; loss and clipped share if asked for."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    losses = 25 if private_losses else 0  # what they take of the screen
    width = console.width
    # On a narrow screen what is left out is speed, then loss, then words.
    bar = Progress(
        *([TextColumn("training")] if width >= 60 else []),
        BarColumn(bar_width=None if width >= 60 else 4),
        MofNCompleteColumn(),
        *([TextColumn("{task.fields[private]}")] if losses and width >= 70 + losses else []),
        TextColumn("{task.fields[found]}"),
        TextColumn("ε {task.fields[epsilon]:.3f}"),
        *([TextColumn("{task.fields[speed]}")] if width >= 100 + losses else []),
        TimeRemainingColumn(),
        console=console,
        disable=quiet,
    )
    task = bar.add_task("", total=steps, private="", found="", epsilon=0.0, speed="")

    def log(row: dict[str, float]) -> None:
        private = speed = ""
        if not math.isnan(row.get("train_loss", math.nan)):
            private = f"loss {row['train_loss']:.3f}, {row['clipped']:.0%} clipped"
        if not math.isnan(row["records_per_second"]):
            speed = f"{row['records_per_second']:,.0f} records/s"
        found = f"test accuracy {row.get('test_accuracy', math.nan):.1%}"
        if "test_error" in row:
            found = f"test error {row['test_error']:.4g}"
        shown = {"found": found if width >= 60 else found.split()[-1], "epsilon": row["epsilon"]}
        bar.update(task, completed=row["step"], private=private, speed=speed, **shown)

    with bar, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "records_per_user = ")  # it counts the persons' rows
        yield log


def unused_folder(folder: pathlib.Path, console: Console) -> pathlib.Path:
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
        console.print(f"{folder} {state}; this run goes to {candidate}")
    return candidate


def describe_saved_steps(folder: pathlib.Path) -> str:
    """What an interrupted run has left in its folder, and how it goes on."""
    checkpoints = folder / "checkpoint"
    keys = (place / "noise_key.json" for place in (checkpoints, checkpoints / "table"))
    if not any(key.exists() for key in keys):
        return "nothing was written"
    saved = any(checkpoints.glob("step-*.ckpt"))
    what = "the last completed step is" if saved else "its noise but no step is"
    again = f"the same command with --out {quote_path(folder)} --resume goes on"
    return f"{what} saved in {folder}: {again}"


def check_same_settings(folder: pathlib.Path, run: Run) -> None:
    """Refuse a finished run of other settings: the run that is asked for would not be made."""
    from dpjax import training

    # A finished run keeps nothing of the records themselves, and of a seed, to compare.
    found = training.load_model(folder)
    finished = found.certificate
    assert finished is not None  # there is a certificate.json
    if run.choice is not None and (chosen := finished.declared.get("model")) in run.choice.rules:
        run = run.choice.settle(run, str(chosen))
    there, here = _describe_settings(finished), _describe_settings(run.certificate)
    # To six digits: another version may calibrate to others in the last ones.
    wrong = [
        f"{name} ({there.get(name)} there, {here.get(name)} here)"
        for name in dict.fromkeys([*here, *there])
        if there.get(name) != here.get(name)
    ]
    if _without_remarks(found.encoding) != _without_remarks(json.loads(json.dumps(run.encoding))):
        wrong.append("how records are encoded")
    listed, asked = finished.not_covered, run.certificate.not_covered
    for where, lines, others in (("there", listed, asked), ("here", asked, listed)):
        wrong += [f"not covered by ε only {where}: {line}" for line in lines if line not in others]
    if wrong:
        raise ValueError(
            "--out must not hold a finished run with other settings where this one is to be made, "
            f"got {folder}: {'; '.join(wrong)}"
        )


def _without_remarks(encoding: JsonObject | None) -> JsonObject | None:
    """The encoding as models of before 0.2 hold it."""
    if encoding is None:
        return None
    columns = [{k: v for k, v in one.items() if k != "remark"} for one in encoding["columns"]]
    return {**encoding, "columns": columns}


# What no setting says: the key's name is another one in every process, and how much noise is added
# for rounding is known when the run is made.
_OF_THE_RUN_ALONE = ("noise", "data", "rounding_slack")


def _describe_settings(certificate: Certificate) -> dict[str, str]:
    """What a certificate says of the settings of its run, in words."""
    from dpjax.accounting.answers.methods import describe
    from dpjax.accounting.answers.plain_words import format_fact

    # Two tables of one share of the budget leave training the same noise.
    parts = certificate.mechanism.parts()
    return {
        "released first": parts[0].describe() if len(parts) == 2 else "nothing",
        "epsilon": format_fact(certificate.epsilon),
        "delta": format_fact(certificate.delta),
        "adjacency": certificate.adjacency.value,
        "mechanism": describe(certificate.mechanism),
        **{
            name.replace("_", " "): format_fact(value)
            for name, value in certificate.declared.items()
            if name not in _OF_THE_RUN_ALONE
        },
    }


def write_results(folder: pathlib.Path, found: Trained) -> None:
    """The outputs, each whole or absent; the certificate last, since it marks a finished run."""
    from dpjax import plotting, training
    from dpjax._numerics.keys import name_of_key

    run = found.run
    for name in _FILES:  # of a run killed while it wrote
        remove_partial(folder / name)
    for name in ("certificate.json", "model.json"):
        (folder / name).unlink(missing_ok=True)
    training.save_model(folder, found.fit.params, found.model, encoding=run.encoding)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(found.fit.metrics)
    rows.writerows(zip(*(column.tolist() for column in found.fit.metrics.values()), strict=True))
    training.write_atomically(folder / "metrics.csv", text.getvalue().encode())
    table = json.dumps(found.evaluation, indent=1, ensure_ascii=False)
    training.write_atomically(folder / "evaluation.json", table.encode())
    certificate, name = run.certificate, pathlib.Path(run.options.data).name
    cost = f"ε = {format_rounded_up(certificate.epsilon, 4)} at δ = {certificate.delta:g}"
    title = f"{run.model} on {make_printable(name)}: {cost} ({certificate.adjacency.value})"
    plotting.plot_training(
        found.fit.metrics,
        folder / "training.png",
        title=title.replace("$", r"\$"),  # in a picture a dollar begins a formula
        delta=run.plan.delta,
        reference=found.reference,
    )
    drawn = _FILES[:-1]
    if run.model == "mlp":  # whose prediction is no sum over columns
        drawn = tuple(file for file in drawn if file != "effects.png")
    else:
        saved = training.SavedModel(found.fit.params, found.model, run.encoding, certificate)
        plotting.plot_effects(saved, folder / "effects.png", title=title)
    released = {file: (folder / file).read_bytes() for file in drawn}
    # By the name of its noise a ledger knows a run that it holds: random, and no digest of a key.
    noise = run.plan.keys[-1][0] if run.key is None else name_of_key(run.key)[0]
    declared: dict[str, float | str] = {
        **certificate.declared,
        "noise": noise,
        "data": make_printable(name),
    }
    if run.plan.rounding_slack is not None:
        declared["rounding_slack"] = run.plan.rounding_slack
    bound = replace(certificate, declared=declared).bind_files(released)
    training.write_atomically(folder / "certificate.json", bound.to_json().encode())
    discard_keys(folder)


def discard_keys(folder: pathlib.Path) -> None:
    """Delete the keys of a finished run, also of one that was killed before it did.

    The file of the released table goes with them.
    """
    from dpjax import training

    for place in ("checkpoint", "checkpoint/table"):
        training.discard_key(folder / place)
    (folder / released.FILE).unlink(missing_ok=True)  # model.json has what was released
