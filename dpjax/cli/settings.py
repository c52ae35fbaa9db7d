"""The settings of `dpjax train`, checked before a record is touched, and what it says of them.

`prepare` makes a `Run`, which the rest of the command reads: its data, its plan, its certificate.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

from dpjax._digits import format_rounded_up
from dpjax._numerics.warning import DpjaxWarning
from dpjax.cli.inputs import check_positive
from dpjax.cli.options import LARGEST_BATCH, ModelOption, PreprocessingOption, RunOptions
from dpjax.cli.rows import list_names, read_inputs
from dpjax.cli.texts import make_printable, quote_path

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import PRNGKeyArray
    from rich.console import Console

    from dpjax.accounting import Certificate, Disclosure
    from dpjax.accounting.typing import Fact
    from dpjax.cli.choice import TwoModels
    from dpjax.cli.evaluation import Counts
    from dpjax.cli.options import TrainOptions
    from dpjax.cli.tune import Search
    from dpjax.data import Dataset
    from dpjax.training import Plan
    from dpjax.training.descent import DescentSettings
    from dpjax.training.search import Selection

# For `--recipe fixed`. Chosen by looking at results on Adult and digits; a certificate says that
# such choices are not covered where the records themselves decided them.
STEPS, CLIP_NORM, MOMENTUM = 200, 0.5, 0.9
_LEARNING_RATE = {"logistic": 2.0, "softmax": 2.0, "mlp": 1.0}
NUMBER_RATE = 0.5  # of a squared error, whose curvature is up to 2
BY_RULE = "settings_by_rule"  # the note of a run beside its key; runs of before 0.2 have none
_AVERAGED = "averaged_steps"  # declared by certificates of runs by the rule


class UsersGiven(TypedDict, total=False):
    """What `fit` is told of persons, where records are theirs."""

    users: np.ndarray
    records_per_user: int | None


@dataclass(frozen=True)
class Run:
    """A run of `dpjax train` whose settings are complete: what it trains on, and what it costs."""

    options: RunOptions
    records: Dataset
    held_out: Dataset
    encoding: dict[str, Any]
    plan: Plan
    certificate: Certificate
    model: str
    learning_rate: float
    tables: DescentSettings | None = None  # by the rule for tables
    choice: TwoModels | None = None  # of the model, which is the linear one until it is made
    # Where the table is private: the run's key, how held-out records are counted, steps between two
    # rows of the metrics, and what the user should hear of the table.
    key: PRNGKeyArray | None = None
    counts: Counts | None = None
    log_every: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def momentum(self) -> float:
        """The momentum of the gradient descent."""
        if self.tables is not None:
            return self.tables.momentum
        return MOMENTUM if self.options.momentum is None else self.options.momentum

    def list_rules(self) -> dict[str, DescentSettings]:
        """The rules that may make the settings, by the model: none, one, or those of a choice."""
        if self.choice is not None:
            return self.choice.rules
        return {} if self.tables is None else {self.model: self.tables}

    @property
    def users(self) -> UsersGiven:
        """What `fit` is told of persons."""
        if self.records.users is None:
            return {}
        most = self.options.records_per_person
        return {"users": self.records.users, "records_per_user": most}


def prepare(options: RunOptions, folder: pathlib.Path) -> Run:
    """The run, with defaults that depend on the number of records and classes alone."""
    from dpjax import accounting as acc

    del folder  # only a run whose key comes first asks for it
    check_options(options)
    records, held_out, encoding, unlisted = read_inputs(options)
    model, learning_rate = choose_model(options, len(records.classes))
    if model == "logistic" and len(records.classes) != 2:
        raise ValueError(
            f"--model must be softmax or mlp for {len(records.classes)} classes, got logistic"
        )
    columns = sum(column["kind"] != "ignore" for column in encoding["columns"])
    tables = choose_tables(options, records.population, columns, model, len(records.classes))
    plan = plan_for(options, records.population, tables)
    tables = tables and replace(tables, steps=plan.steps)  # whole epochs may be more
    learning_rate = tables.learning_rate(plan.noise_multiplier) if tables else learning_rate
    shown = acc.Disclosure(
        "shown-on-screen", "the screen: how many cells are in none of the declared categories"
    )
    certificate = certify_run(
        plan,
        not_covered=[*list_disclosures(records, options), *([shown] if unlisted else [])],
        declared={"model": model, "learning_rate": learning_rate}
        | (tables.declare(plan.noise_multiplier) if tables else declare_momentum(options))
        | declare_columns(options),
    )
    notes = (unlisted,) if unlisted else ()
    made = options, records, held_out, encoding, plan, certificate, model, learning_rate, tables
    return Run(*made, notes=notes)


def choose_defaults(
    options: TrainOptions, folder: pathlib.Path, search: Search | None = None
) -> RunOptions:
    """Say whether the rule for tables makes what is not given, else fill it in.

    A run that began before there was the rule goes on without it.
    """
    asked, before = options.recipe, options.resume and _began_by_rule(folder) is False
    by_rule = asked == "tables" or (asked is None and not before)
    complete = RunOptions(**vars(options), search=search, by_rule=by_rule)
    if by_rule:
        return complete
    if search is not None:
        search = search.fix(options)
        rate, norm = search.space[0]
        complete = replace(complete, search=search, learning_rate=rate, clip_norm=norm)
    return replace(
        complete,
        steps=STEPS if complete.steps is None else complete.steps,
        clip_norm=CLIP_NORM if complete.clip_norm is None else complete.clip_norm,
        momentum=MOMENTUM if complete.momentum is None else complete.momentum,
        average=complete.average or 0.0,
    )


def _began_by_rule(folder: pathlib.Path) -> bool | None:
    """Whether the run in a folder was begun by the rule for tables; None where there is none."""
    from dpjax import accounting as acc
    from dpjax.training import Checkpoints

    if (folder / "certificate.json").is_file():
        found = acc.Certificate.from_json((folder / "certificate.json").read_bytes())
        return _AVERAGED in found.declared
    place = folder / "checkpoint" / "table"
    if not (place / "noise_key.json").is_file():
        return None
    with contextlib.closing(Checkpoints(place)) as notes:
        return notes.noted(BY_RULE, False)


def choose_tables(
    options: RunOptions, records: int, columns: int, model: str, classes: int
) -> DescentSettings | None:
    """The settings by the rule of the model, as far as they were not given; None without it.

    What is public alone is known: of classes that are still to be released it is told two.
    """
    from dpjax.training.networks import NetworkSettings
    from dpjax.training.tables import TableSettings

    if not options.by_rule:
        return None
    rule = NetworkSettings if model == "mlp" else TableSettings
    return rule.choose(
        records,
        columns=columns,
        classes=0 if options.task == "regression" else 2 if model == "logistic" else classes,
        steps=options.steps,
        batch_size=options.batch_size,
        momentum=options.momentum,
        averaged=options.average,
        clip_norm=options.clip_norm,
        learning_rate=options.learning_rate,
    )


def choose_choice(
    options: RunOptions, model: str, tables: DescentSettings | None
) -> TwoModels | None:
    """The choice between this linear model and a network, where it was asked for and may pay."""
    from dpjax.cli import choice

    if options.model is not ModelOption.auto or tables is None:
        return None
    records, columns = tables.records, tables.columns
    if not choice.is_worth_a_trial(records, options.epsilon, columns):
        return None
    network = choose_tables(options, records, columns, choice.NETWORK, tables.classes)
    assert network is not None, "by the rule, as the linear one"
    return choice.TwoModels.between(model, tables, network)


def certify_run(
    plan: Plan,
    *,
    declared: Mapping[str, Any],
    not_covered: Sequence[Disclosure],
    assumptions: Sequence[Disclosure] = (),
) -> Certificate:
    """The certificate of a plan; it holds printable texts alone, and names of columns need not be.

    To be refused for a name would come after the first look at the records, which has cost.
    """
    texts = {n: make_printable(v) if isinstance(v, str) else v for n, v in declared.items()}
    with warnings.catch_warnings():
        # The command says it in words of its own.
        warnings.filterwarnings("ignore", "epsilon should be at most 10", DpjaxWarning)
        return plan.certify(
            declared=texts,
            not_covered=[one.reword(make_printable(one)) for one in not_covered],
            assumptions=[one.reword(make_printable(one)) for one in assumptions],
        )


def check_options(options: TrainOptions) -> None:
    """Refuse options that no run can have."""
    delta, seed = options.delta, options.seed
    check_positive(epsilon=options.epsilon)
    if options.clip_norm is not None:
        check_positive(clip_norm=options.clip_norm)
    for name, value in {"momentum": options.momentum, "average": options.average}.items():
        if value is not None and not 0 <= value < 1:
            raise ValueError(f"--{name} must be at least 0 and below 1, got {value}")
    if not 1 <= options.records_per_person <= 1_000:
        raise ValueError(
            "--records-per-person must lie between 1 and 1,000, got "
            f"{options.records_per_person:,}: every person takes the memory of so many"
        )
    if options.model is ModelOption.auto:
        _check_choice(options)
    if options.task == "regression" and options.model not in (None, "mlp"):
        raise ValueError(
            "--model must be mlp, or be left out for a linear one, with --task regression, got "
            f"{options.model}"
        )
    if options.task == "regression" and options.by is not None:
        raise ValueError("--by must be left out with --task regression, got " + options.by)
    if options.task == "regression" and options.classes is not None:
        raise ValueError(
            "--classes must be left out with --task regression, got " + options.classes
        )
    if options.learning_rate is not None:
        check_positive(learning_rate=options.learning_rate)
    if delta is not None and not 0 < delta < 1:
        raise ValueError(f"--delta must lie strictly between 0 and 1, got {delta}")
    # JAX takes 32 bits of a seed: others of the same bits would draw the same noise.
    if seed is not None and not 0 <= seed < 2**32:
        raise ValueError(f"--seed must lie between 0 and 2^32 - 1, got {seed}")


def _check_choice(options: TrainOptions) -> None:
    """Refuse what would be one model's setting, or none of a choice that ε covers."""
    for name, value, allowed in (
        ("recipe", options.recipe, (None, "tables")),
        ("clip-norm", options.clip_norm, (None,)),
        ("learning-rate", options.learning_rate, (None,)),
        ("sampling", options.sampling, ("poisson",)),
        ("preprocessing", options.preprocessing, (PreprocessingOption.private,)),
        ("task", options.task, ("classification",)),
    ):
        if value not in allowed:
            raise ValueError(
                f"--{name} must be left out with --model auto, which tries two models by settings "
                f"of their own, got {value}"
            )


def declare_momentum(options: TrainOptions) -> dict[str, Fact]:
    """What a certificate declares of a momentum that was given, where no rule declares all."""
    momentum = options.momentum
    return {} if momentum is None or momentum == MOMENTUM else {"momentum": momentum}


def declare_columns(options: TrainOptions) -> dict[str, Fact | None]:
    """What a certificate declares of persons, columns that are left out, and groups."""
    declared: dict[str, Fact | None] = {}
    if options.person:
        declared |= {"person_column": options.person}
        declared |= {"records_per_person": options.records_per_person}
    if options.ignore:
        declared |= {"columns_left_out": ", ".join(list_names(options.ignore))}
    return declared | ({"groups": options.by} if options.by else {})


def choose_model(options: TrainOptions, classes: int) -> tuple[str, float]:
    """The kind of model and its learning rate, as asked or by the number of classes."""
    is_number, given = options.task == "regression", options.learning_rate
    usual = "linear" if is_number else "logistic" if classes == 2 else "softmax"
    asked = None if options.model is ModelOption.auto else options.model
    model = str(asked or usual)
    rate = NUMBER_RATE if is_number else _LEARNING_RATE[model]
    return model, rate if given is None else given


def choose_delta(options: TrainOptions, count: int) -> float:
    """δ as asked, or one that is small for so many records."""
    # A δ of 1 / count would allow one whole record to be published; a tenth of it is below that.
    return min(1e-5, 0.1 / count) if options.delta is None else options.delta


def plan_for(
    options: TrainOptions,
    count: int,
    tables: DescentSettings | None,
    *,
    choice: TwoModels | None = None,
    **released: Any,
) -> Plan:
    """The plan for so many records, beside what has been released of them."""
    from dpjax import accounting as acc

    made = options if tables is None else tables
    steps, size = made.steps, made.batch_size
    assert steps is not None  # without the rule `choose_defaults` filled it in
    steps = steps if choice is None else choice.whole(steps)
    return plan_within_budget(
        count,
        options.epsilon,
        delta=choose_delta(options, count),
        steps=steps,
        batch_size=min(max(count // 4, 1), LARGEST_BATCH) if size is None else size,
        sampling=options.sampling.value,
        clip_norm=made.clip_norm,
        adjacency=acc.Adjacency(options.adjacency),
        unit="person" if options.person else "record",
        **released,
    )


def plan_within_budget(
    records: int,
    epsilon: float,
    *,
    steps: int,
    batch_size: int,
    sampling: str,
    selection: Selection | None = None,
    **settings: Any,
) -> Plan:
    """The plan that keeps the budget, unless its noise would drown every gradient."""
    from dpjax import training
    from dpjax.training.search import calibrate_plan

    if sampling == "random-allocation":
        length = math.ceil(records / max(batch_size, 1))
        steps = math.ceil(steps / length) * length
    settings |= {"steps": steps, "batch_size": batch_size, "sampling": sampling}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the command says it in words of its own

        def make(noise: float) -> Plan:
            return training.make_plan(records, noise_multiplier=noise, **settings)

        if selection is None:
            plan = training.make_plan(records, epsilon=epsilon, **settings)
        else:
            plan = calibrate_plan(make, selection, epsilon, settings["delta"])
    # Beyond this noise, all gradients of the run together, each at the clip norm and all pointing
    # the same way, would not stand out of one coordinate of the noise.
    most = plan.expected_batch_size * math.sqrt(steps)
    if plan.noise_multiplier > most:
        least = replace(make(most), selection=selection).epsilon()
        raise ValueError(
            f"--epsilon must be at least {least:.3g} with these settings, got {epsilon:g}, which "
            f"takes a noise multiplier of {plan.noise_multiplier:.3g} and drowns every gradient "
            f"(at most {most:.3g} leaves a trace); raise --delta, or train on more records"
        )
    return plan


def list_disclosures(data: Dataset, options: TrainOptions) -> list[Disclosure]:
    """One line for everything that the run shows or uses and ε does not cover."""
    from dpjax import accounting as acc
    from dpjax.accounting.answers.disclosure import with_code
    from dpjax.training.plan import default_disclosures

    return [
        *map(with_code, data.learned),
        *default_disclosures(
            data.population, seeded=False, unit="person" if options.person else "record"
        ),
        acc.Disclosure(
            "held-out-exact",
            "evaluation.json, metrics.csv, training.png: exact functions of the held-out records, "
            "which ε does not protect; drawn from the same file, which they are follows from how "
            "many there are in it and from their order: one more, or a person of another name, "
            "moves others",
        ),
        acc.Disclosure(
            "running-time",
            "running time, and the checkpoint folder of an unfinished run (it holds the noise key)",
        ),
        *list_chosen_disclosures(options),
    ]


def list_chosen_disclosures(options: TrainOptions) -> list[Disclosure]:
    """One line for everything that ε does not cover and that was asked for."""
    from dpjax import accounting as acc
    from dpjax.training.plan import BY_HAND

    lines = [BY_HAND] if options.seed is not None else []
    if options.private_losses:
        what = "metrics.csv: train_loss, nonfinite and clipped are exact functions of the training "
        lines.append(acc.Disclosure("training-losses", f"{what}records"))
    if options.compare:
        what = "training.png and the closing message: the accuracy without privacy comes from a "
        what += "model trained on the same records without noise"
        lines.append(acc.Disclosure("accuracy-without-privacy", what))
    return lines


def show_plan(console: Console, run: Run) -> None:
    """The plan, what was learned from the rows to make it, and what makes it weak."""
    from rich.table import Table

    from dpjax import accounting as acc

    plan, certificate, learned = run.plan, run.certificate, run.records.learned
    kind = "random allocation" if isinstance(plan.step, acc.RandomAllocation) else "Poisson"
    tier = certificate.tier
    if learned:
        tier += ", except for the ranges and category lists read from your rows (listed below; a "
        tier += "schema avoids this)"
    table = Table(title=f"Plan: {run.model} on {run.options.data}", title_justify="left")
    table.add_column("setting")
    table.add_column("value", justify="right")
    facts = {f"training {plan.unit}s": f"{plan.population:,}"}
    if run.records.users is not None:
        facts["records a person, at most"] = f"{run.options.records_per_person:,}"
    search = run.options.search
    facts |= {
        "adjacency": plan.adjacency.value,
        "expected batch size": f"{plan.expected_batch_size:,.1f}",
        f"sampling rate ({kind})": f"{plan.rate:.6g}",
        "steps": f"{plan.steps:,}",
        **(
            {"clip_norm": f"{plan.clip_norm:.4g}"}
            if search is None and run.choice is None
            else {}
            if search is None
            else search.describe([*run.list_rules().values()], plan.noise_multiplier)
        ),
        "noise multiplier": f"{plan.noise_multiplier:.6g}",
        "ε it will cost": format_rounded_up(certificate.epsilon),
        "at δ": f"{plan.delta:g}",
        "by the bound": f"{certificate.method} ({tier})",
    }
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), value)
    console.print(table)
    if run.choice is not None:
        console.print(run.choice.explain(is_search=search is not None))
    _explain_rules(console, run)
    for note in run.notes:
        console.print(note, style="yellow")
    if learned:
        counts = "; ".join(_count_columns(line) for line in learned)
        console.print(
            f"learned from the rows: {counts}: not covered by ε; a schema avoids it", style="yellow"
        )
    if plan.delta >= 1 / plan.population:
        console.print(
            f"warning: δ = {plan.delta:g} is not below 1 / {plan.population} {plan.unit}s: "
            f"such a δ allows a whole {plan.unit} to be published",
            style="yellow",
        )
    if run.options.epsilon > 10:
        console.print(
            f"warning: ε = {run.options.epsilon:g} is above 10: it rules almost no attack out",
            style="yellow",
        )


def _explain_rules(console: Console, run: Run) -> None:
    """Every setting with its reason; of two models with the name of the one that it is of."""
    rules = run.list_rules()
    tried = () if run.options.search is None else ("clip_norm", "learning_rate")
    reasons = [rule.reasons(run.plan.noise_multiplier) for rule in rules.values()]
    shown = set()
    for model, rule, own in zip(rules, rules.values(), reasons, strict=True):
        for one in own:
            if one.name in tried or one in shown:
                continue
            shown.add(one)
            of = "" if all(one in others for others in reasons) else f"{model}: "
            console.print(f"{of}{one.name.replace('_', ' ')} {one.value}: {one.why}")
        of = f"{model}: " if len(rules) > 1 else ""
        console.print(f"{of}{rule.describe_link()}")


def _count_columns(line: str) -> str:
    """`ranges learned from the rows: a, b` as `ranges of 2 columns`."""
    what, _, names = line.partition(": ")
    number = len(names.split(", "))
    return f"{what.removesuffix(' learned from the rows')} of {number} column{'s' * (number > 1)}"


def show_result(console: Console, summary: dict[str, Any]) -> None:
    """The evaluation, ε, and how to check it."""
    from dpjax.cli import evaluation

    if "setting" in summary:
        console.print(f"the best run's setting: {summary['setting']}")
    evaluation.show(console, summary["evaluation"])
    metric, form = ("test_error", ".4g") if "test_error" in summary else ("test_accuracy", ".1%")
    reference, margin = summary.get(f"{metric}_without_privacy"), summary[f"{metric}_margin"]
    compared = "" if reference is None else f"(same model without privacy: {reference:{form}}) "
    around = "" if margin is None else f"± {margin:{form}} "
    console.print(
        f"{metric.replace('_', ' ')} {summary[metric]:{form}} {around}{compared}at ε = "
        f"{format_rounded_up(summary['epsilon'], 4)}, δ = {summary['delta']:g}, "
        f"{summary['adjacency']}"
    )
    if nonfinite := summary.get("nonfinite_gradients"):
        console.print(f"{nonfinite} gradients were NaN or infinite and counted as zero")
    folder, here = pathlib.Path(summary["folder"]), pathlib.Path.cwd()
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    # A command is copied whole: the screen may break it, the console does not.
    where, file = quote_path(shown), quote_path(shown / "certificate.json")
    console.print(f"check it: dpjax verify {file}", soft_wrap=True)
    use = f"use it: dpjax predict {where} --data NEW.csv --out predictions.csv"
    console.print(use, soft_wrap=True)
