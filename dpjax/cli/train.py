"""`dpjax train`: from a file to a model, a picture and a certificate.

Its options are here, one type each; what they lead to is in `settings.py` and `run.py`.
"""

from __future__ import annotations

import enum
import pathlib
import types
from typing import Annotated

import typer

from dpjax.cli import inputs, private, run, settings, signals
from dpjax.cli.inputs import adjacency_option, option
from dpjax.cli.texts import quote_path, say


class ModelOption(enum.StrEnum):
    """The models of the command line."""

    logistic = "logistic"
    softmax = "softmax"
    mlp = "mlp"


class TaskOption(enum.StrEnum):
    """What is predicted."""

    classification = "classification"
    regression = "regression"


class SamplingOption(enum.StrEnum):
    """How the records of a step are drawn, on the command line."""

    poisson = "poisson"
    random_allocation = "random-allocation"


class RecipeOption(enum.StrEnum):
    """What makes the settings of training that are not given."""

    tables = "tables"
    fixed = "fixed"


class PreprocessingOption(enum.StrEnum):
    """How ranges, categories and classes are found that no schema declares."""

    private = "private"
    from_records = "from-records"


Data = Annotated[
    str,
    option(
        "A file (CSV, TSV, NPZ, Parquet, LIBSVM; .gz too), or the name of a data set, such as "
        "digits, adult, mnist."
    ),
]
Epsilon = Annotated[
    float, option("The privacy budget ε; smaller is more private (1 strong, 8 weak).")
]
Target = Annotated[
    str | None, option("The column to predict; named data sets and schemas know it.")
]
Task = Annotated[
    TaskOption,
    option("Predict a class, or a number, which is clipped to a declared or released range."),
]
Classes = Annotated[
    str | None,
    option(
        "The classes of the target, such as no,yes, where they are public: none is hidden by "
        "noise, and no look is spent on them. [default: a schema's, or found as --preprocessing "
        "says]"
    ),
]
Delta = Annotated[
    float | None,
    option(
        "The probability δ with which ε may fail; keep it well below 1 / records. "
        "[default: 1e-5, or 1 / (10 records) if that is smaller]"
    ),
]
Model = Annotated[
    ModelOption | None,
    option("[default: logistic for two classes, else softmax; of a number a linear one]"),
]
Recipe = Annotated[
    RecipeOption | None,
    option(
        "What makes the settings that are not given: a rule for models of tables, from the numbers "
        "of records and columns and the noise; or fixed: 200 steps, of which the last is released, "
        "clip norm 0.5, rate 2 (mlp: 1). [default: tables]"
    ),
]
Steps = Annotated[int | None, option("Noisy gradient steps. [default: 400]")]
BatchSize = Annotated[
    int | None,
    option(
        "Expected records a step. Larger is better: noise is added once a step. [default: a "
        f"quarter of the records, at most {settings.LARGEST_BATCH}]"
    ),
]
Sampling = Annotated[
    SamplingOption,
    option(
        "Each record takes part in every step with one probability, or in one step of every "
        "epoch, drawn at random (add-remove only; --steps is rounded up to whole epochs)."
    ),
]
ClipNorm = Annotated[
    float | None,
    option(
        "Bound on one record's gradient norm; the noise scales with it. [default: that of an error "
        "of one half, mlp: 4]"
    ),
]
Momentum = Annotated[float | None, option("Of the gradient descent. [default: 0.9]")]
Average = Annotated[
    float | None,
    option(
        "The share of the steps, the last ones, whose mean is released; 0 releases the last step "
        "alone. [default: 0.5]"
    ),
]
LearningRate = Annotated[
    float | None,
    option("Of the gradient descent. [default: by the noise]"),
]
Relation = Annotated[
    str,
    adjacency_option(
        "What ε protects against: one record more or less, or one record exchanged (needs about "
        "twice the noise)."
    ),
]
SchemaFile = Annotated[
    pathlib.Path | None,
    option(
        "Ranges, categories and classes that are public (TOML or JSON). What it leaves open is "
        "found as --preprocessing says."
    ),
]
Preprocessing = Annotated[
    PreprocessingOption,
    option(
        "Learn what is not declared from noisy counts, which ε covers, or read it off the records, "
        "which the certificate lists as not covered."
    ),
]
Numeric = Annotated[
    str | None,
    option(
        "The columns that hold numbers, such as age,hours; the others hold texts. [default: what a "
        "noisy count of their cells says]"
    ),
]
Encoding = Annotated[
    str | None,
    option(
        "What a number becomes: tail-bins (between quantiles), asinh, range or standard (one "
        "feature), bins-and-line (tail-bins and asinh), or grid (public powers of two). [default: "
        "bins-and-line, with --recipe fixed tail-bins, mlp: asinh]"
    ),
]
Person = Annotated[
    str | None,
    option(
        "The column that says whose a row is: ε then protects a person with all rows. Ids that are "
        "one number, such as 17, 17.0 and 017, are one person. It is no feature, and its values "
        "are written nowhere."
    ),
]
RecordsPerPerson = Annotated[
    int,
    option(
        "Of a person with more rows, how many are trained on, the first in the file. ε does not "
        "change; memory and time grow."
    ),
]
Ignore = Annotated[str | None, option("Columns that are no features, such as name,address.")]
Test = Annotated[
    pathlib.Path | None,
    option(
        "Held-out records in a file of their own, which is public: the accuracy on them is exact. "
        "[default: a fifth of --data, and a noisy count]"
    ),
]
By = Annotated[
    str | None,
    option("Also evaluate by the categories of this column, from the same noisy table."),
]
Seed = Annotated[
    int | None,
    option(
        "For reproduction only: whoever guesses the seed can subtract the noise. "
        "[default: unpredictable]"
    ),
]
Out = Annotated[pathlib.Path | None, option("[default: runs/<data>]; never overwritten.")]
Resume = Annotated[bool, option("Continue the run in --out after an interruption.", "--resume")]
Compare = Annotated[
    bool,
    option(
        "Also train without noise and show that accuracy: NOT covered by ε.",
        "--compare-without-privacy",
    ),
]
PrivateLosses = Annotated[
    bool,
    option("Also show and write exact training losses: NOT covered by ε.", "--log-private-losses"),
]
Ledger = Annotated[
    pathlib.Path | None,
    option("Book the run in this ledger before it starts, or refuse it; see dpjax ledger."),
]
AsJson = Annotated[bool, option("Print the result as JSON.", "--json")]


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
