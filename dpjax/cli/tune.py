"""`dpjax tune`: several runs of `dpjax train` with several settings, of which the best is released.

It is `dpjax train` with `training.search` where that calls `training.fit`: the same options, the
same key for table, split, number of runs and noise, stored before any of it is used, and the same
folder. Of the other runs nothing is written or shown.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from dpjax.cli import settings, train
from dpjax.cli.inputs import exit_on_bad_input
from dpjax.cli.options import ModelOption, TrainOptions, TuneOptions

if TYPE_CHECKING:
    from jaxtyping import Array, PRNGKeyArray, PyTree

    from dpjax.training import Fit, Plan
    from dpjax.training.descent import DescentSettings
    from dpjax.training.search import Selection


_NUMBER = "model"  # the column of the metrics that says which of two models the best run has
# Times the rule's. Half its clip norm would make every probability between ¼ and ¾ one of ½.
_RATES, _NORMS = (1.0, 0.5, 2.0), (1.0, 2.0)
_FIXED_RATES, _FIXED_NORMS = (1.0, 0.5, 2.0), (0.5, 0.25, 1.0)  # of runs of before 0.2


@dataclass(frozen=True)
class Search:
    """The settings of a search and the law of its number of runs, from the options."""

    space: tuple[tuple[float, float], ...]  # learning rate and clip norm; the first by default
    law: str
    runs: float

    def list_settings(
        self, tables: DescentSettings | None, noise_multiplier: float
    ) -> tuple[tuple[float, float], ...]:
        """The learning rate and the clip norm of each setting, at the noise of a run."""
        del tables, noise_multiplier  # whose rule decides nothing of numbers that were given
        return self.space

    def describe(
        self, rules: Sequence[DescentSettings | None], noise_multiplier: float
    ) -> dict[str, str]:
        """What the certificate declares of the settings, by the rules of one model or several."""
        space = [one for rule in rules for one in self.list_settings(rule, noise_multiplier)]
        rates, norms = (dict.fromkeys(each) for each in zip(*space, strict=True))
        return {
            "learning_rate": ", ".join(f"{rate:.4g}" for rate in rates),
            "clip_norm": ", ".join(f"{norm:.4g}" for norm in norms),
            "runs": f"{self.law}, {self.runs:g} expected",
        }

    def fix(self, options: TrainOptions) -> Search:
        """The search where no rule makes the settings that are not given."""
        del options
        return self

    def select(self, options: TrainOptions, *, models: int = 1, is_public: bool) -> Selection:
        """How the number of runs, their settings and the best one are drawn and priced."""
        from dpjax.training.search import SCORE_NOISE, Selection

        public = "the held-out records" if is_public else None
        # Public records are counted exactly; of others the score has noise that follows ε.
        noise = None if is_public else SCORE_NOISE / options.epsilon
        tried = models * len(self.space)
        return Selection(tried, self.law, self.runs, 0.5, noise, public).check()

    def hide_held_out(self, run: settings.Run) -> settings.Run:
        """The run as it is, and with blank held-out records where none is trained."""
        # That no run is made has one probability whatever the records are: nothing may be counted.
        selection = run.plan.selection
        assert selection is not None, "of a search"
        assert run.key is not None, "of a search"
        if selection.public is not None or selection.draw(run.key):
            return run
        found = run.held_out
        # The features too: `--by` counts the records of each group.
        blank = {"features": 0 * found.features, "labels": 0 * found.labels - 1}
        return replace(run, held_out=replace(found, **blank))

    def fit(
        self,
        run: settings.Run,
        loss: Callable[..., Array],
        params: PyTree,
        data: PyTree,
        plan: Plan,
        *,
        on_log: Callable[[dict[str, float]], None],
        **of_one_run: object,
    ) -> Fit:
        """The best run in the place of `training.fit`'s, with one row of metrics, its last."""
        import jax
        import numpy as np

        from dpjax import training

        del loss, params  # which each model has of its own
        if of_one_run.get("users") is not None:  # the program of all runs clips records
            raise ValueError("users must be None in a search, got some")
        models = [_Tried.make(own, data) for own in _runs_of_each_model(run)]
        space = [
            (number, setting)
            for number, one in enumerate(models)
            for setting in self.list_settings(one.run.tables, plan.noise_multiplier)
        ]

        def train_with(place: int, key: PRNGKeyArray) -> tuple[int, PyTree]:
            number, (rate, norm) = space[place]
            return number, models[number].train({"rate": rate, "clip_norm": norm}, plan, key)

        def count_right(found: tuple[int, PyTree]) -> float:
            return models[found[0]].count_right(found[1])

        assert plan.selection is not None, "of a search"
        assert run.key is not None, "of a search"
        best = plan.selection.run(run.key, train_with, count_right)
        # Where no run is made, the constant model.
        nothing = 0, jax.tree.map(lambda leaf: 0 * leaf, models[0].first)
        place, (number, params), _ = best or (None, nothing, None)
        rate, norm = (math.nan, math.nan) if place is None else space[place][1]
        row = {"step": plan.steps, "epsilon": run.certificate.epsilon}
        row |= models[number].evaluate(params)
        on_log(row | {"records_per_second": math.nan})
        row |= {"learning_rate": rate, "clip_norm": norm}
        row |= {} if run.choice is None else {_NUMBER: number}
        metrics = {name: np.asarray([value]) for name, value in row.items()}
        return training.Fit(params, metrics, steps=plan.steps)

    @staticmethod
    def settle(run: settings.Run, found: Fit) -> settings.Run:
        """The run with the clip norm of the best one, by which its probabilities are corrected."""
        norm = float(found.metrics["clip_norm"][0])
        if run.choice is not None:
            number = int(found.metrics[_NUMBER][0])
            run = run.choice.settle(run, [*run.choice.rules][number])
        if run.tables is None or math.isnan(norm):
            return run
        return replace(run, tables=replace(run.tables, clip_norm=norm))

    @staticmethod
    def name_setting(found: Fit) -> str:
        """The setting of the best run, in words."""
        rate, norm = (found.metrics[name][0] for name in ("learning_rate", "clip_norm"))
        if math.isnan(rate):
            return "none: no run was made, and the model is a constant"
        return f"learning rate {rate:.4g}, clip norm {norm:.4g}"


def _runs_of_each_model(run: settings.Run) -> list[settings.Run]:
    """The run itself, or of a choice one of each model, the linear one first."""
    if run.choice is None:
        return [run]
    return [run.choice.settle(run, model) for model in run.choice.rules]


class _Tried(NamedTuple):
    """One model of a search: its runs are one compiled program."""

    run: settings.Run
    first: PyTree  # its parameters before any step
    train: Callable[..., PyTree]
    count_right: Callable[[PyTree], int]
    evaluate: Callable[[PyTree], dict[str, float]]

    @classmethod
    def make(cls, run: settings.Run, data: PyTree) -> _Tried:
        """The model of a run, to be trained on its records."""
        import jax
        import optax

        from dpjax import training
        from dpjax.cli.evaluation import Evaluation
        from dpjax.cli.run import prepare_model

        made = prepare_model(run)
        first = made.trained.init(jax.random.key(0))  # public: it depends on no record
        train = training.compile_train(
            made.loss,
            first,
            data,
            optimizer=lambda rate: optax.sgd(rate, momentum=run.momentum),
            average=None if run.tables is None else run.tables.average,
        )

        def evaluate(params: PyTree) -> dict[str, float]:
            return {made.evaluation.metric: made.evaluation.row(made.release(params))}

        right = Evaluation(made.trained, run.held_out).count_right
        return cls(run, first, train, right, evaluate)


@dataclass(frozen=True)
class SearchAround(Search):
    """The same, of multiples of what the rule says where no numbers were given."""

    gives_rates: bool = False  # whether `space` holds learning rates themselves
    gives_norms: bool = False

    def list_settings(
        self, tables: DescentSettings | None, noise_multiplier: float
    ) -> tuple[tuple[float, float], ...]:
        """The learning rate and the clip norm of each setting, at the noise of a run."""
        assert tables is not None  # `fix` makes another search where there is no rule
        found = []
        for rate, norm in self.space:
            own = replace(tables, clip_norm=norm if self.gives_norms else norm * tables.clip_norm)
            usual = own.learning_rate(noise_multiplier)
            found.append((rate if self.gives_rates else rate * usual, own.clip_norm))
        return tuple(found)

    def fix(self, options: TrainOptions) -> Search:
        """The search of before there was the rule, whose runs an earlier version began."""
        usual = settings.choose_model(options, 2)[1]
        rates = tuple(rate for rate, _ in self.space) if self.gives_rates else None
        norms = tuple(norm for _, norm in self.space) if self.gives_norms else _FIXED_NORMS
        rates = dict.fromkeys(rates or (rate * usual for rate in _FIXED_RATES))
        space = itertools.product(rates, dict.fromkeys(norms))
        return Search(tuple(space), self.law, self.runs)


def _read_numbers(name: str, text: str) -> list[float]:
    """The positive numbers of an option, separated by commas."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < number < math.inf for number in found):
        raise ValueError(f"--{name} must be positive numbers, such as 0.5,0.25, got {text!r}")
    return list(dict.fromkeys(found))


def _read_search(options: TuneOptions) -> Search:
    """The search that the options ask for, refused before a record is read."""
    law, runs = options.law.value, options.runs
    if options.model is ModelOption.auto:
        for name, given in (
            ("learning-rates", options.learning_rates),
            ("clip-norms", options.clip_norms),
        ):
            if given is not None:
                raise ValueError(
                    f"--{name} must be left out with --model auto, of which each model has its "
                    f"own, got {given!r}"
                )
    for name, value, usual in (
        ("person", options.person, None),
        ("task", options.task, "classification"),
    ):
        if value not in (None, usual):
            raise ValueError(
                f"--{name} must be left out, got {value}: a search trains classifiers, and "
                "protects records; train does the other"
            )
    if options.sampling != "poisson":
        raise ValueError(
            f"--sampling must be poisson, got {options.sampling}: to price the best of runs "
            "that are sampled so would take hours"
        )
    if not 1 <= runs < math.inf:
        raise ValueError(f"--runs must be at least 1, the mean number of runs, got {runs:g}")
    if law == "fixed" and runs % 1:
        raise ValueError(f"--runs must be a whole number with --law fixed, got {runs:g}")
    if law == "logarithmic" and runs == 1:
        raise ValueError("--runs must be above 1 with --law logarithmic, got 1")
    rates, norms = options.learning_rates, options.clip_norms
    space = itertools.product(
        _RATES if rates is None else _read_numbers("learning-rates", rates),
        _NORMS if norms is None else _read_numbers("clip-norms", norms),
    )
    return SearchAround(tuple(space), law, runs, rates is not None, norms is not None)


def tune(options: TuneOptions) -> None:
    """Train with several settings, and release the best, privately.

    About --runs times the pipeline of train is run, each with fresh noise and a setting of its own.
    The one whose noisy count of right predictions on held-out records is the largest is written, as
    train writes it. One certificate covers ranges and categories, all runs and the choice. How many
    runs were made, the others, and how long it took have to stay secret: nothing of them is written
    or shown.

    It pays where no good setting is known: every run has more noise than train's at the same
    --epsilon. With few records train alone is better.

        dpjax tune --data people.csv --target income --epsilon 1
        dpjax tune --data adult --epsilon 1 --learning-rates 4,1,16 --clip-norms 0.5,1
    """
    with exit_on_bad_input():
        search = _read_search(options)
    train.finish(options.of_one_run(), search)
