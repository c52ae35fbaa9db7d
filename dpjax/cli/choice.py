"""`--model auto`: a linear model or a network, by a short trial of both, within the same ε.

Both are trained for the first steps of a run, and the held-out records say with noise which of them
has the lower loss. That one alone goes on, from where its trial ended. All steps of both trials and
of the rest are one mechanism's: with trials of half the steps, six hundred for four hundred. Where
records and ε are too few for a network to win, which their numbers say, nothing is tried, and
nothing is spent: the model is the linear one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dpjax.cli.options import ModelOption

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Array, Float, PyTree

    from dpjax.cli.evaluation import Evaluation
    from dpjax.cli.options import RunOptions
    from dpjax.cli.settings import Run
    from dpjax.training import Model, Plan
    from dpjax.training.descent import DescentSettings

PILOT = 0.5  # of the steps, for each of the two models: by a quarter a product is not learned
LEAST = 3_000.0  # records × ε a column, from which on a network is tried
NETWORK = "mlp"
_TRIAL_FOLD = 0xFFFF_FFF8  # of the run's key, for the trials' batches and noise


class PreparedModel(NamedTuple):
    """What is trained, what is released of it, and how that is evaluated.

    Fields:
        model: that is released.
        trained: that `fit` trains, the same but for the scale of its bias and its link.
        loss: of one record, by the trained model.
        features: that it is trained on, of every record.
        evaluation: of the released model.
        release: from trained parameters to those that are released.
    """

    model: Model
    trained: Model
    loss: Callable[..., Array]
    features: Float[np.ndarray, "records features"]
    evaluation: Evaluation
    release: Callable[[PyTree], PyTree]


def is_worth_a_trial(records: int, epsilon: float, columns: int) -> bool:
    """Whether a network may win by more than its trial costs, by public numbers alone."""
    return records * epsilon >= LEAST * columns


def describe_no_trial(options: RunOptions, rule: DescentSettings | None) -> list[str]:
    """Why the linear model is taken without a trial, in words; nothing where none was asked for."""
    if options.model != ModelOption.auto or rule is None:
        return []
    share = rule.records * options.epsilon / rule.columns
    return [
        f"--model auto: the linear model, and nothing is spent on a trial: {rule.records:,} "
        f"records times ε are {share:,.0f} for each of {rule.columns} columns, and a network is "
        f"tried from {LEAST:,.0f} on"
    ]


def find_lines(encoding: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The places of features that are no cell of a number with a line of its own, and the weights.

    By two features a network learns a product in fewer steps than by two dozen cells beside them.
    """
    import numpy as np

    from dpjax.cli.evaluation import count_features

    kept, weights, place = [], [], 0
    for column in encoding["columns"]:
        cells, line = count_features(column)
        weight = column.get("line_weight")
        first = place if weight is None else place + cells
        place += cells + line
        kept += range(first, place)
        weights += [1.0 if weight is None else weight] * (place - first)
    return np.array(kept), np.array(weights, np.float32)


def train_on_lines(
    rule: DescentSettings, encoding: dict[str, Any], features: int
) -> tuple[Model, Callable[[PyTree], PyTree]]:
    """The network as it is trained on these features alone, and its release for all of them."""
    import jax.numpy as jnp

    from dpjax.training import Model

    kept, weights = find_lines(encoding)
    inner = rule.training_model(len(kept))

    def apply(params: PyTree, x: Array) -> Array:
        return inner.apply(params, x[kept] / weights)

    def release(params: PyTree) -> PyTree:
        first, *others = params
        rows = jnp.zeros((features, first["weights"].shape[1]), first["weights"].dtype)
        rows = rows.at[kept].set(first["weights"] / weights[:, None])
        return [{**first, "weights": rows}, *others]

    return Model(inner.init, apply), release


@dataclass(frozen=True)
class TwoModels:
    """Two models of which a run trains one, and for how many steps each is tried.

    Fields:
        rules: the settings of each, by its name; the first is the linear one.
        pilot: steps of each trial.
    """

    rules: dict[str, DescentSettings]
    pilot: int

    @classmethod
    def between(cls, linear: str, rule: DescentSettings, network: DescentSettings) -> TwoModels:
        """The choice between a linear model and a network of the same steps and batches."""
        return cls({linear: rule, NETWORK: network}, max(1, round(PILOT * rule.steps)))

    def whole(self, steps: int) -> int:
        """The steps of a run: both trials, and what is left for the model that is chosen."""
        return steps + self.pilot

    def last(self, plan: Plan) -> Plan:
        """The plan of the steps after the trials, whose price includes theirs."""
        from dpjax import accounting as acc

        trials = acc.Repeated(plan.step, 2 * self.pilot)
        before = trials if plan.preceding is None else acc.Composed((plan.preceding, trials))
        rest = acc.Repeated(plan.step, plan.steps - 2 * self.pilot)
        return replace(plan, mechanism=rest, preceding=before)

    def settle(self, run: Run, model: str) -> Run:
        """The run of the model that was chosen; its price is that of the choice."""
        tables = self.rules[model]
        noise = run.plan.noise_multiplier
        declared = dict(run.certificate.declared)
        if run.options.search is not None:  # which declares the settings of all its runs
            certificate = replace(run.certificate, declared=declared | {"model": model})
            return replace(run, model=model, tables=tables, certificate=certificate)
        for rule in self.rules.values():  # what the other rule alone has
            for name in rule.declare(noise):
                declared.pop(name, None)
        declared |= {"model": model, "clip_norm": tables.clip_norm, **tables.declare(noise)}
        return replace(
            run,
            model=model,
            tables=tables,
            learning_rate=tables.learning_rate(noise),
            plan=replace(run.plan, clip_norm=tables.clip_norm),
            certificate=replace(run.certificate, declared=declared),
        )

    def declare(self, *, is_search: bool) -> dict[str, str | int]:
        """What the certificate says of the choice, whichever model it took."""
        steps = {} if is_search else {"trial_steps": self.pilot}
        return {"chosen_of": ", ".join(self.rules), **steps}

    def explain(self, *, is_search: bool) -> str:
        """What is done, in a sentence."""
        linear, network = self.rules
        if is_search:
            return f"runs train one of two models, {linear} and {network}"
        return (
            f"two models are tried, {linear} and {network}, for {self.pilot:,} steps each: the one "
            "with the lower loss on the held-out records, by a noisy sum, goes on for "
            f"{self.rules[linear].steps - self.pilot:,} more"
        )

    def choose(self, run: Run, prepare: Callable[[Run], PreparedModel]) -> tuple[Run, Plan, PyTree]:
        """Try both models; the run of the better one, its last steps, and where its trial ended.

        Nothing of a trial is kept or shown. Its batches and noise follow from the run's key, so
        that a run which was killed tries the same again.
        """
        linear, network = (
            self._try(self.settle(run, model), prepare, place)
            for place, model in enumerate(self.rules)
        )
        shown = [linear.released, network.released]
        lead = linear.evaluation.mean_lead(linear.losses, network.losses, shown)
        better = network if lead > 0 else linear
        return better.run, self.last(better.run.plan), better.end

    def _try(self, run: Run, prepare: Callable[[Run], PreparedModel], place: int) -> _Trial:
        """The trial of one model."""
        import jax

        from dpjax import accounting as acc
        from dpjax import training
        from dpjax._numerics.keys import fold_in_words
        from dpjax.training.descent import AVERAGED, average_last, descend_with_momentum

        assert run.key is not None, "of a private table"
        made = prepare(run)
        found = training.fit(
            made.loss,
            made.trained.init(jax.random.key(0)),  # public: it depends on no record
            (made.features, run.records.labels),
            replace(run.plan, mechanism=acc.Repeated(run.plan.step, self.pilot), preceding=None),
            optimizer=descend_with_momentum(run.learning_rate, run.momentum),
            average=average_last(AVERAGED, self.pilot),
            key=fold_in_words(run.key, _TRIAL_FOLD, place),
            log_every=self.pilot,
            **run.users,
        )
        shown = made.release(found.params if found.average is None else found.average)
        return _Trial(run, made.evaluation, found.params, shown, made.evaluation.losses(shown))


class _Trial(NamedTuple):
    """What one model came to in its trial.

    Fields:
        run: of this model.
        evaluation: by which both are compared.
        end: the parameters after the last step, from which it may go on.
        released: what would be released of the trial.
        losses: of that on each held-out record, exactly.
    """

    run: Run
    evaluation: Evaluation
    end: PyTree
    released: PyTree
    losses: np.ndarray
