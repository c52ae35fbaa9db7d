"""A private search over settings: several runs, of which the best one alone is released."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from dpjax import accounting as acc
from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.checks import POSITIVE, Range, one_number, render
from dpjax._numerics.keys import name_of_key
from dpjax._numerics.normal import normal
from dpjax.training.checkpoint import CheckpointError, Checkpoints, discard_key, open_folder
from dpjax.training.fingerprint import array_digest
from dpjax.training.one_step import training_step
from dpjax.training.options import check_functions, first_average, next_average
from dpjax.training.plan import ARITHMETIC, DELTAS, Plan, treat_as_public
from dpjax.training.run import choose_key

if TYPE_CHECKING:
    from dpjax._numerics.typing import Loss, Params, PRNGKey
    from dpjax.accounting.answers.query import Answer
    from dpjax.training.typing import AverageWeights, RunData, RunState

_FOR_ARITHMETIC = 1e-3  # of δ, set aside for arithmetic in all runs together
_ENDED = "ended"  # the note of a search whose result has left
# What the search's key is folded with; run i trains with the key of (_RUNS, i).
_NUMBER, _SETTINGS, _SCORES, _RUNS = 0, 1, 2, 3
# Standard deviation of a run's score in records, times ε: about a tenth of what a run may spend.
SCORE_NOISE = 24.0
HELD_OUT = acc.Disclosure(
    "score",
    "the records that the score counts are none of those that are trained on, and one of them "
    "moves the count by at most 1",
)


OneSetting = TypeVar("OneSetting")  # whatever `train` takes
RunResult = TypeVar("RunResult")  # whatever it returns


class Search(NamedTuple, Generic[OneSetting, RunResult]):
    """What a search leaves; the number of runs and the other runs are secret, and gone.

    Fields:
        result: what `train` returned in the best run, `nothing` where there was no run.
        setting: of that run; None where there was no run.
        score: of that run, with its noise; None where there was no run.
        plan: what every run executed; what it says of ε is of the whole search.
        certificate: of all of it: `BestOf` of a run with its score.

    Example:
        >>> Search(result={}, setting=None, score=None, plan=None, certificate=None).result
        {}
    """

    result: RunResult
    setting: OneSetting | None
    score: float | None
    plan: Plan
    certificate: acc.Certificate


@suggests_argument_names
def search(
    space: Sequence[OneSetting],
    train: Callable[[OneSetting, Plan, PRNGKey], RunResult],
    *,
    plan: Callable[[float], Plan],
    budget: tuple[float, float],
    score: Callable[[RunResult], float],
    score_noise: float | None = None,
    public: str | None = None,
    law: str = "poisson",
    mean: float = 10.0,
    default_share: float = 0.5,
    nothing: RunResult | None = None,
    key: PRNGKey | None = None,
    folder: str | pathlib.Path | None = None,
    resume: bool = False,
) -> Search[OneSetting, RunResult | None]:
    """Train with several settings and release the best, at the price of few runs.

    K is drawn from `law`, a setting for each of K runs from `space`, by the key alone; every run is
    trained with fresh noise, and that of the largest score is returned. All runs execute one
    mechanism, whose noise is the least that keeps the budget of the whole search: settings may
    differ in all that it does not see, such as learning rate, clip norm and model.

    It pays where no good default exists. The runs of a search have more noise than a single one of
    the same budget: where a good setting is known, train with that.

    Args:
        space: the settings, fixed without a look at the records; the first is the default.
        train: `train(setting, plan, key)` returns a result, by `fit` with this plan (its clip norm
            may be replaced) and this key, without a folder, a ledger or logging: nothing of a run
            may leave but what it returns.
        plan: from a noise multiplier to the plan of a run, such as
            `lambda noise: make_plan(…, noise_multiplier=noise)`. What it names as `preceding` was
            released once, and the runs may depend on it.
        budget: (ε, δ) of the search.
        score: `score(result)`, the larger the better: how many held-out private records the result
            gets right, say. One record may move it by at most 1, and is none that is trained on.
            NaN and infinity are the lowest score.
        score_noise: standard deviation of the noise that the score gets, in records. It is part of
            every run's price: at ε = 1, δ = 1e-6 and ten runs expected, 24 records take about a
            tenth of what a run may spend.
        public: in its place, the name of the public data that the score is computed on.
        law, mean: of the number of runs, as of `accounting.BestOf`. Of "geometric" and
            "logarithmic" a single run is frequent, whose setting is then the only one tried.
        default_share: how many of the runs take the default setting, on average.
        nothing: returned where there is no run (of 10 expected once in 22,000): a constant model.
        key: decides everything, and must stay secret; by default 64 unpredictable bits.
        folder: holds the key, and nothing of any run, until the search has ended: one that was
            killed begins anew with `resume`, with the same K, to the same result.
        resume: go on with the search in `folder`, or begin one there.

    Raises:
        ValueError: no settings, a mean below 1, neither or both of `score_noise` and `public`, a
            plan that reserves δ for more than arithmetic and what precedes.
        ImpossibleBudget: no noise keeps the budget.
        CheckpointError: a folder of another search, or of one that has ended.

    Guarantee:
        (ε, δ)-differential privacy of the result for the records that are trained on and those that
        are held out, given that the number of runs, the running time and all runs but the best stay
        secret, and that `train` does what `plan` says.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from dpjax import training
        >>> x = jnp.linspace(-1, 1, 400)[:, None]
        >>> y = (x[:, 0] > 0.1).astype(jnp.int32)
        >>> model = training.logistic(features=1)
        >>> def train(rate, plan, key):
        ...     data, loss = (x[::2], y[::2]), training.cross_entropy(model)
        ...     found = training.fit(loss, model.init(key), data, plan, optimizer=optax.sgd(rate),
        ...                          key=key)
        ...     return found.params
        >>> def plan(noise):
        ...     return training.make_plan(
        ...         200, delta=1e-3, steps=20, batch_size=50, noise_multiplier=noise)
        >>> right = training.accuracy(model, x[1::2], y[1::2])
        >>> found = search(
        ...     [1.0, 0.1], train, plan=plan, budget=(4.0, 1e-3), mean=3.0,
        ...     score=lambda params: 200 * right(params), score_noise=4.0, key=jax.random.key(4))
        >>> found.setting, right(found.result) > 0.8, 3.9 < found.certificate.epsilon <= 4.0
        (1.0, True, True)

    References:
        Liu and Talwar 2019; Papernot and Steinke 2022; price: `accounting/best_of.py`.
    """
    if isinstance(space, str) or not isinstance(space, Sequence) or not len(space):
        raise ValueError(f"space must be a list of at least one setting, got {render(space)}")
    space = list(space)
    check_functions(train=train, plan=plan, score=score)
    budget = _check_budget(budget)
    selection = Selection(len(space), law, mean, default_share, score_noise, public).check()
    if resume and folder is None:
        raise ValueError("folder must be given with resume=True, got None")
    made = calibrate_plan(plan, selection, *budget)
    key = choose_key(key)
    with contextlib.closing(open_folder(folder)) as store:
        if isinstance(store, Checkpoints) and store.noted(_ENDED, False):
            raise CheckpointError(
                f"{store.folder} is of a search that has ended and returned its result: another "
                "one is another release; choose another folder"
            )
        key = store.bind(key, lambda _: _identify(space, made, selection), resume=resume)
        named = dataclasses.replace(made)
        named.keys.append(name_of_key(key))
        certificate = named.certify(not_covered=[treat_as_public(made.population)])
        # A plan lists the keys of its runs: were it one for all, the best one's would tell K.
        winner = selection.run(
            key, lambda i, own: train(space[i], dataclasses.replace(made), own), score
        )
        if isinstance(store, Checkpoints):  # before the result leaves: it leaves once
            store.noted(_ENDED, True)
            discard_key(store.folder)
    if winner is None:
        return Search(nothing, None, None, made, certificate)
    place, result, found = winner
    return Search(result, space[place], found, made, certificate)


def _check_budget(budget: object) -> tuple[float, float]:
    if not isinstance(budget, tuple | list) or len(budget) != 2:
        raise ValueError(f"budget must be two numbers, (epsilon, delta), got {render(budget)}")
    return (
        float(one_number("budget's epsilon", budget[0], POSITIVE)),
        float(one_number("budget's delta", budget[1], DELTAS)),
    )


class Selection(NamedTuple):
    """How many runs a search makes, with which of its settings, and how the best is chosen."""

    settings: int  # how many there are
    law: str = "poisson"  # of the number of runs, as of `accounting.BestOf`
    mean: float = 10.0
    default_share: float = 0.5  # of the runs that take the first setting
    score_noise: float | None = None  # in records; None where the score is of public data alone
    public: str | None = None  # their name

    def check(self) -> Selection:
        """The same; refuses arguments of which no search can be made."""
        one_number("mean", self.mean, Range(1.0))
        one_number("default_share", self.default_share, Range(0.0, 1.0))
        if (self.score_noise is None) is (self.public is None):
            raise ValueError(
                "score_noise must be given, or public for a score of public records alone, got "
                f"score_noise={render(self.score_noise)} and public={render(self.public)}"
            )
        if self.score_noise is not None:
            one_number("score_noise", self.score_noise, POSITIVE)
        self.price(acc.Gaussian(1.0))  # which refuses an unknown law
        return self

    def price(self, run: acc.Mechanism) -> acc.BestOf:
        """The best of the runs, each with its score: a count, whose sensitivity is 1."""
        if self.score_noise is not None:
            run = acc.Composed((run, acc.Gaussian(float(self.score_noise))))
        return acc.BestOf(run, self.mean, self.law)

    def describe(self) -> tuple[dict[str, int | str], list[str]]:
        """What every certificate of the search declares and assumes."""
        is_public, count = self.public is not None, "a noisy count of held-out records"
        score = f"on public data: {self.public}" if is_public else count
        return {"settings": self.settings, "score": score}, [] if is_public else [HELD_OUT]

    @staticmethod
    def find_method(released: acc.Mechanism, adjacency: acc.Adjacency) -> str:
        """The tight price where there is one: the curve beside it would take seconds a question."""
        return "selection" if "selection" in acc.methods(released, adjacency) else "best"

    def draw(self, key: PRNGKey) -> list[int]:
        """The setting of each run: the first with a given probability, else any other alike."""
        trials = acc.draw_trials(jax.random.fold_in(key, _NUMBER), self.price(acc.Gaussian(1.0)))
        words = np.asarray(jax.random.key_data(jax.random.fold_in(key, _SETTINGS))).ravel().tolist()
        # They follow from the key alone: else the settings that were tried would tell of a result.
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))
        others = generator.integers(1, max(self.settings, 2), trials)
        default = (generator.random(trials) < self.default_share) | (self.settings == 1)
        return np.where(default, 0, others).tolist()

    def run(
        self,
        key: PRNGKey,
        train: Callable[[int, PRNGKey], RunResult],
        score: Callable[[RunResult], float],
    ) -> tuple[int, RunResult, float] | None:
        """The setting's number, the result and the score of the best run; None where none is made.

        `train(number, key)` is a run with a setting.
        """
        # The runs are alike and independent: that the first of equal scores wins is as if chance
        # decided.
        winner, (runs, scores) = None, (jax.random.fold_in(key, fold) for fold in (_RUNS, _SCORES))
        for i, place in enumerate(self.draw(key)):
            result = train(place, jax.random.fold_in(runs, i))
            # What is no number is the lowest score: that a losing run had none must not show.
            found = float(score(result))
            found = found if math.isfinite(found) else -math.inf
            if self.score_noise is not None and found > -math.inf:
                # jax.random.normal in float32 ends near 5.4 standard deviations: δ would be 4e-6.
                drawn = self.score_noise * float(normal(jax.random.fold_in(scores, i)))
                found = float(round(found + drawn))  # whole, so that no last bit tells
            if winner is None or found > winner[2]:
                winner = place, result, found
        return winner


@suggests_argument_names
def compile_train(
    loss: Loss,
    params: Params,
    data: RunData,
    *,
    optimizer: Callable[..., optax.GradientTransformation],
    average: AverageWeights | None = None,
) -> Callable[[Mapping[str, float], Plan, PRNGKey], Params]:
    """A `train` for `search`, by which all runs are one compiled program, one after another.

    Settings may differ in the clip norm and in any number that the optimiser is made of. Each run
    takes the memory of one. Nothing is logged or written.

    Args:
        loss: `loss(params, example) -> scalar`, of one record, see `fit`.
        params: the first parameters of every run, floating-point arrays.
        data: a tree of arrays with a leading axis of the plan's records.
        optimizer: from a setting's numbers, but the clip norm, to an optax optimiser.
        average: of the iterates, which is then returned in their place: `tail_average(begin)`, see
            `fit`.

    Returns:
        `train(setting, plan, key)`, of settings such as `{"learning_rate": 2.0, "clip_norm": 0.5}`,
        which returns the parameters. Without a clip norm it is the plan's.

    Guarantee:
        As of `training_step`: each run executes the plan, whose noise allows for rounding at any ε.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from dpjax import training
        >>> plan = training.make_plan(8, noise_multiplier=1.0, delta=1e-5, steps=3, batch_size=4)
        >>> train = compile_train(
        ...     lambda w, x: w * x, jnp.zeros(()), jnp.ones(8), optimizer=optax.sgd)
        >>> runs = [train({"learning_rate": rate}, plan, jax.random.key(0)) for rate in (1.0, 2.0)]
        >>> round(float(runs[1] / runs[0]), 5)
        2.0
    """
    made: list[tuple[Plan, Callable]] = []

    def compile_for(plan: Plan) -> Callable:
        @jax.jit
        def run(key: PRNGKey, clip_norm: float, numbers: dict[str, Array], data: RunData) -> Params:
            own = dataclasses.replace(plan, clip_norm=clip_norm)
            step = training_step(loss, params, own, optimizer=optimizer(**numbers))

            def take(_: Array, carry: tuple[RunState, Params]) -> tuple[RunState, Params]:
                state, mean = step.update(carry[0], data, key)[0], carry[1]
                if average is not None:
                    mean = next_average(mean, state["params"], average(state["step"]))
                return state, mean

            first = step.init(params)
            mean = None if average is None else first_average(first["params"])
            state, mean = jax.lax.fori_loop(0, plan.steps, take, (first, mean))
            return state["params"] if average is None else mean

        return run

    def train(setting: Mapping[str, float], plan: Plan, key: PRNGKey) -> Params:
        if not made or made[0][0] != plan:
            made[:] = [(plan, compile_for(plan))]
        numbers = {name: jnp.float32(value) for name, value in setting.items()}
        clip_norm = numbers.pop("clip_norm", jnp.float32(plan.clip_norm))
        return made[0][1](key, clip_norm, numbers, data)

    return train


def calibrate_plan(
    make: Callable[[float], Plan], selection: Selection, epsilon: float, delta: float
) -> Plan:
    """The plan of every run, with the least noise by which the whole search keeps a budget."""

    def plan(noise: Answer) -> Plan:
        made = make(float(noise))
        if not isinstance(made, Plan):
            raise TypeError(f"plan must return a Plan, such as make_plan's, got {render(made)}")
        reserved = {why: part for why, part in made.extra_delta.items() if why != ARITHMETIC}
        if reserved and made.preceding is None:  # such a part would be of every run
            raise ValueError(
                f"plan must reserve delta for arithmetic alone, got {', '.join(reserved)}"
            )
        reserved[ARITHMETIC] = _FOR_ARITHMETIC * delta
        return dataclasses.replace(made, delta=delta, extra_delta=reserved, selection=selection)

    def price(noise: Answer) -> acc.Mechanism:
        return (made := plan(noise)).compose(made.mechanism)

    first = plan(1.0)
    left = delta - sum(first.extra_delta.values())
    how = {"adjacency": first.adjacency, "method": first.method}
    return plan(acc.calibrate(price, epsilon=epsilon, delta=left, **how))


def _identify(space: list[OneSetting], plan: Plan, selection: Selection) -> dict[str, object]:
    """What has to agree before a stored key is used again."""
    mechanism = plan.compose(plan.mechanism)
    return {
        "settings": [str(setting) for setting in space],
        "mechanism": repr(mechanism),
        "mechanism's numbers": array_digest(mechanism),
        "records": plan.population,
        "clip norm": plan.clip_norm,
        "score's noise": selection.score_noise,
        "share of the default": selection.default_share,
    }
