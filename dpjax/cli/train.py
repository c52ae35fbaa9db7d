"""`dpjax train`: from a file to a model, a picture and a certificate.

Its options are in `options.py`; what they lead to is in `settings.py` and `run.py`.
"""

from __future__ import annotations

import pathlib
import types

import typer

from dpjax.cli import inputs, private, run, settings, signals
from dpjax.cli.options import (
    AsJson,
    Average,
    BatchSize,
    By,
    Classes,
    ClipNorm,
    Compare,
    Data,
    Delta,
    Encoding,
    Epsilon,
    Ignore,
    LearningRate,
    Ledger,
    Model,
    Momentum,
    Numeric,
    Out,
    Person,
    Preprocessing,
    PreprocessingOption,
    PrivateLosses,
    Recipe,
    RecordsPerPerson,
    Relation,
    Resume,
    Sampling,
    SamplingOption,
    SchemaFile,
    Seed,
    Steps,
    Target,
    Task,
    TaskOption,
    Test,
)
from dpjax.cli.texts import quote_path, say


def train(
    data: Data,
    epsilon: Epsilon,
    target: Target = None,
    task: Task = TaskOption.classification,
    classes: Classes = None,
    delta: Delta = None,
    model: Model = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    sampling: Sampling = SamplingOption.poisson,
    clip_norm: ClipNorm = None,
    learning_rate: LearningRate = None,
    momentum: Momentum = None,
    average: Average = None,
    recipe: Recipe = None,
    adjacency: Relation = "add-remove",
    schema: SchemaFile = None,
    preprocessing: Preprocessing = PreprocessingOption.private,
    numeric: Numeric = None,
    encoding: Encoding = None,
    person: Person = None,
    records_per_person: RecordsPerPerson = settings.RECORDS_PER_PERSON,
    ignore: Ignore = None,
    missing: inputs.MissingOption = None,
    decimal: inputs.DecimalOption = None,
    thousands: inputs.ThousandsOption = None,
    test: Test = None,
    by: By = None,
    seed: Seed = None,
    out: Out = None,
    resume: Resume = False,
    compare: Compare = False,
    private_losses: PrivateLosses = False,
    ledger: Ledger = None,
    as_json: AsJson = False,
) -> None:
    """Train a model privately, and certify it.

    Ranges, categories and classes are released with noise, in the same certificate, where no schema
    declares them. Prints the plan (noise, sampling, what they cost, and what ε does not cover),
    trains, and leaves certificate.json, model.json, model.safetensors, metrics.csv, training.png,
    of a linear model effects.png, which shows what it learned, and a checkpoint in the output
    folder. `dpjax predict` uses the model, `dpjax verify` recomputes the certificate.

        dpjax train --data digits --epsilon 3 --delta 1e-4
        dpjax train --data people.csv --target income --epsilon 1
        dpjax train --data people.csv --target income --epsilon 1 --schema people.toml
        dpjax train --data people.csv --target age --epsilon 1 --task regression
    """
    finish(types.SimpleNamespace(**locals(), search=None))


def finish(options: types.SimpleNamespace) -> None:
    """From the options of a run, by name, or of a search, to its folder."""
    from dpjax.cli.console import PlainConsole

    signals.exit_on_closed_pipe(False)  # a run says how to go on, whoever listens
    console = PlainConsole(stderr=options.as_json)
    resume, named = options.resume, pathlib.Path("runs") / pathlib.Path(options.data).name
    with inputs.exit_on_bad_input():
        folder = (options.out or named.with_name(named.name.split(".")[0])).resolve()
        if options.ledger is not None:
            unit = "person" if options.person else "record"
            inputs.check_ledger(options.ledger, options.data, options.adjacency, unit)
        folder = folder if resume else run.unused_folder(folder, console)
        settings.choose_defaults(options, folder)
        is_private = options.preprocessing is PreprocessingOption.private
        try:
            job = (private if is_private else settings).prepare(options, folder)
        except KeyboardInterrupt:
            typer.echo(f"\ninterrupted; {run.describe_saved_steps(folder)}", err=True)
            raise typer.Exit(inputs.INTERRUPTED) from None
        if resume and (folder / "certificate.json").exists():
            run.check_same_settings(folder, job)
            run.discard_keys(folder)
            console.print(f"{folder} is a finished run of these settings; nothing is left to do.")
            return
        inputs.check_writable(folder)
    try:
        settings.show_plan(console, job)
        job = job if options.search is None else options.search.hide_held_out(job)
        found = run.train_privately(console, job, folder)
    except KeyboardInterrupt:
        say(f"\ninterrupted; {run.describe_saved_steps(folder)}", err=True)
        raise typer.Exit(inputs.INTERRUPTED) from None
    interrupted = f"the run is trained: the same command with --out {quote_path(folder)} "
    interrupted += "--resume goes on"
    with inputs.exit_on_bad_input(interrupted):
        run.write_results(folder, job, found)
    summary = {"folder": str(folder), **found.summarise(job)}
    if options.as_json:
        inputs.print_json(summary)
    else:
        settings.show_result(console, summary)
