"""The options of `dpjax train` and `dpjax tune`: a type each, and a class for each command.

Typer reads the options of a command off its class, see `as_command`.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import pathlib
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

from dpjax.cli.inputs import (
    DecimalOption,
    MissingOption,
    ThousandsOption,
    adjacency_option,
    option,
)

if TYPE_CHECKING:
    from dpjax.cli.tune import Search

_Options = TypeVar("_Options")
_REQUIRED = inspect.Parameter.empty
LARGEST_BATCH, RECORDS_PER_PERSON = 2_048, 8


class ModelOption(enum.StrEnum):
    """The models of the command line."""

    logistic = "logistic"
    softmax = "softmax"
    mlp = "mlp"
    auto = "auto"


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


class LawOption(enum.StrEnum):
    """The law of the number of runs, on the command line."""

    poisson = "poisson"
    geometric = "geometric"
    logarithmic = "logarithmic"
    fixed = "fixed"


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
ModelChoice = Annotated[
    ModelOption | None,
    option(
        "auto tries a linear model and a network, and trains the better one, where records and "
        "epsilon are enough for that. [default: logistic for two classes, else softmax; of a "
        "number a linear one]"
    ),
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
        f"quarter of the records, at most {LARGEST_BATCH}]"
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
LedgerPath = Annotated[
    pathlib.Path | None,
    option("Book the run in this ledger before it starts, or refuse it; see dpjax ledger."),
]
AsJson = Annotated[bool, option("Print the result as JSON.", "--json")]
LearningRates = Annotated[
    str | None,
    option(
        "The learning rates to try, such as 2,1,4; the first is the default, which half the runs "
        "take. Fix the list without a look at the records. [default: train's at the noise of a "
        "run, its half, its double]"
    ),
]
ClipNorms = Annotated[
    str | None,
    option(
        "The clip norms to try, with every learning rate; the first is the default. [default: "
        "train's, its double]"
    ),
]
Law = Annotated[
    LawOption,
    option(
        "Of the number of runs. Of geometric and logarithmic a single run is frequent, whose "
        "setting is then released whatever it gives; fixed costs about as much as all runs."
    ),
]
Runs = Annotated[float, option("The mean number of runs; the number itself is drawn, and secret.")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What `dpjax train` is asked for, in the order of its help."""

    data: Data
    epsilon: Epsilon
    target: Target = None
    task: Task = TaskOption.classification
    classes: Classes = None
    delta: Delta = None
    model: ModelChoice = None
    steps: Steps = None
    batch_size: BatchSize = None
    sampling: Sampling = SamplingOption.poisson
    clip_norm: ClipNorm = None
    learning_rate: LearningRate = None
    momentum: Momentum = None
    average: Average = None
    recipe: Recipe = None
    adjacency: Relation = "add-remove"
    schema: SchemaFile = None
    preprocessing: Preprocessing = PreprocessingOption.private
    numeric: Numeric = None
    encoding: Encoding = None
    person: Person = None
    records_per_person: RecordsPerPerson = RECORDS_PER_PERSON
    ignore: Ignore = None
    missing: MissingOption = None
    decimal: DecimalOption = None
    thousands: ThousandsOption = None
    test: Test = None
    by: By = None
    seed: Seed = None
    out: Out = None
    resume: Resume = False
    compare: Compare = False
    private_losses: PrivateLosses = False
    ledger: LedgerPath = None
    as_json: AsJson = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What `dpjax tune` is asked for, in the order of its help.

    Those of train but for one setting, and for what ε would not cover.
    """

    data: Data
    epsilon: Epsilon
    target: Target = None
    task: Task = TaskOption.classification
    classes: Classes = None
    delta: Delta = None
    model: ModelChoice = None
    steps: Steps = None
    batch_size: BatchSize = None
    sampling: Sampling = SamplingOption.poisson
    learning_rates: LearningRates = None
    clip_norms: ClipNorms = None
    law: Law = LawOption.poisson
    runs: Runs = 10.0
    adjacency: Relation = "add-remove"
    schema: SchemaFile = None
    numeric: Numeric = None
    encoding: Encoding = None
    person: Person = None
    records_per_person: RecordsPerPerson = RECORDS_PER_PERSON
    ignore: Ignore = None
    missing: MissingOption = None
    decimal: DecimalOption = None
    thousands: ThousandsOption = None
    test: Test = None
    by: By = None
    seed: Seed = None
    out: Out = None
    resume: Resume = False
    ledger: LedgerPath = None
    as_json: AsJson = False

    def of_one_run(self) -> TrainOptions:
        """The options of train for one of the runs, whose setting is the search's."""
        theirs = {field.name for field in dataclasses.fields(TrainOptions)}
        return TrainOptions(**{name: own for name, own in vars(self).items() if name in theirs})


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(TrainOptions):
    """What a run goes on with: the options, and what follows from the command and the folder.

    Fields:
        search: how settings are tried and the best run is chosen; None of a single run.
        by_rule: whether the rule for tables makes the settings that are not given. Without it
            steps, clip norm, momentum and average are numbers.
    """

    search: Search | None = None
    by_rule: bool = False


def as_command(command: Callable[[_Options], None], kind: type[_Options]) -> Callable[..., None]:
    """The command as Typer takes one: with an argument for each field of its class of options."""
    hints = typing.get_type_hints(kind, include_extras=True)

    def run(**given: object) -> None:
        command(kind(**given))

    run.__doc__ = command.__doc__
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_REQUIRED if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(kind)  # pyrefly: ignore
    ]
    run.__signature__ = inspect.Signature(parameters)  # pyrefly: ignore
    run.__annotations__ = {own.name: own.annotation for own in parameters}
    return run
