"""A private search over settings: several runs, of which the best one alone is released."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Key

from dpjax import accounting as acc
from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.checks import Range, one_number, render
from dpjax._numerics.keys import name_of_key
from dpjax._numerics.normal import fresh_key, normal
from dpjax.training.checkpoint import CheckpointError, Checkpoints, discard_key
from dpjax.training.fingerprint import array_digest
from dpjax.training.options import check_functions, check_key
from dpjax.training.plan import (
    ARITHMETIC,
    BY_HAND,
    DELTAS,
    Plan,
    describe_plan,
    warn_of_large_epsilon,
)

_SHARE = 1e-3  # of δ, set aside for arithmetic in all runs together
_POSITIVE = Range(0.0, open_low=True)
_EXPECTED = Range(1.0)
_ENDED = "ended"  # the note of a search whose result has left
# What the search's key is folded with; run i trains with the key of (_RUNS, i).
_NUMBER, _SETTINGS, _SCORES, _RUNS = 0, 1, 2, 3
HELD_OUT = (
    "the records that the score counts are none of those that are trained on, and one of them "
    "moves the count by at most 1"
)


class Search(NamedTuple):
    """What a search leaves; the number of runs and the other runs are secret, and gone.

    Fields:
        result: what `train` returned in the best run, `nothing` where there was no run.
        setting: of that run; None where there was no run.
        score: of that run, with its noise; None where there was no run.
        plan: what every run executed; its own certificate, of one run, states less than all cost.
        certificate: of all of it: `BestOf` of a run with its score.

    Example:
        >>> Search(result={}, setting=None, score=None, plan=None, certificate=None).result
        {}
    """

    result: Any
    setting: Any
    score: float | None
    plan: Plan
    certificate: acc.Certificate


@suggests_argument_names
def search(
    space: Sequence[Any], train: Callable[[Any, Plan, Key[Array, ""]], Any], *,
    plan: Callable[[float], Plan], budget: tuple[float, float], score: Callable[[Any], float],
    score_noise: float | None = None, public: str | None = None, law: str = "poisson",
    mean: float = 10.0, default_share: float = 0.5, nothing: Any = None,
    key: Key[Array, ""] | None = None, folder: str | pathlib.Path | None = None,
    resume: bool = False,
) -> Search:  # fmt: skip
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
            `lambda noise: make_plan(…, noise_multiplier=noise)`.
        budget: (ε, δ) of the search.
        score: `score(result)`, the larger the better: how many held-out private records the result
            gets right, say. One record may move it by at most 1, and is none that is trained on.
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
            plan that reserves δ for more than arithmetic or has `preceding`, a score that is no
            number.
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
    space = _check_space(space)
    check_functions(train=train, plan=plan, score=score)
    epsilon, delta = _check_budget(budget)
    one_number("mean", mean, _EXPECTED)
    one_number("default_share", default_share, Range(0.0, 1.0))
    if (score_noise is None) is (public is None):
        raise ValueError(
            "score_noise must be given, or public for a score of public records alone, got "
            f"score_noise={render(score_noise)} and public={render(public)}"
        )
    if score_noise is not None:
        one_number("score_noise", score_noise, _POSITIVE)
    if resume and folder is None:
        raise ValueError("folder must be given with resume=True, got None")
    made, best = _calibrate(plan, score_noise, law, mean, epsilon, delta)
    key = fresh_key() if key is None else key
    check_key(key)
    identity = _identify(space, best, made, score_noise, default_share)
    with _open_folder(folder) as store:
        key = key if store is None else store.bind(key, lambda key: identity, resume=resume)
        certificate = _certify(made, best, delta, key, len(space), public)
        winner = _run_all(space, train, score, score_noise, made, best, default_share, key)
        if store is not None:  # before the result leaves: it leaves once
            store.noted(_ENDED, True)
            discard_key(store.folder)
    setting, result, found = winner or (None, nothing, None)
    # A plan knows the keys of its runs, and thereby how many there were: a fresh one knows none.
    return Search(result, setting, found, dataclasses.replace(made), certificate)


def _check_space(space: Any) -> list[Any]:
    """The settings as a list."""
    if isinstance(space, str | dict) or not isinstance(space, Sequence) or not len(space):
        raise ValueError(f"space must be a list of at least one setting, got {render(space)}")
    return list(space)


def _check_budget(budget: Any) -> tuple[float, float]:
    if not isinstance(budget, tuple | list) or len(budget) != 2:
        raise ValueError(f"budget must be two numbers, (epsilon, delta), got {render(budget)}")
    return (
        float(one_number("budget's epsilon", budget[0], _POSITIVE)),
        float(one_number("budget's delta", budget[1], DELTAS)),
    )


def _calibrate(
    make: Callable[[float], Plan],
    score_noise: float | None,
    law: str,
    mean: float,
    epsilon: float,
    delta: float,
) -> tuple[Plan, acc.BestOf]:
    """The plan of every run and the mechanism of the search, with the least noise it takes."""

    def plan(noise: Any) -> Plan:
        made = make(float(noise))
        if not isinstance(made, Plan):
            raise TypeError(f"plan must return a Plan, such as make_plan's, got {render(made)}")
        if set(made.extra_delta) - {ARITHMETIC}:
            raise ValueError(
                "plan must reserve delta for arithmetic alone, got "
                f"{', '.join(set(made.extra_delta) - {ARITHMETIC})}"
            )
        if made.preceding is not None:  # released once, and not by each of the runs
            raise ValueError(
                "plan must have preceding=None, got "
                f"{render(made.preceding)}: a search prices its runs alone"
            )
        return made

    def price(noise: Any) -> acc.BestOf:
        run = plan(noise).mechanism
        if score_noise is not None:  # a count, whose sensitivity is 1
            run = acc.Composed((run, acc.Gaussian(float(score_noise))))
        return acc.BestOf(run, mean, law)

    adjacency = plan(1.0).adjacency
    noise = acc.calibrate(
        price,
        epsilon,
        delta * (1 - _SHARE),
        adjacency=adjacency,
        method=_find_method(price(1.0), adjacency),
    )
    made = plan(noise)
    # A run's bounds on rounding may fail with a probability p, by the union bound E K·p in all: of
    # the δ reserved half is (1 + e^ε)E K·p and half δ(ε), as in `failure_probability`. `fit` takes
    # p from half of what its plan reserves, over 1 + e^ε of one run, which is least at a larger δ.
    half, best = _SHARE * delta / 2, price(noise)
    own = made.spent(made.steps, half)
    whole = acc.epsilon(best, half, adjacency=adjacency, method=_find_method(best, adjacency))
    whole = min(float(whole), 300.0)
    share = math.exp(np.logaddexp(0.0, min(own, whole)) - np.logaddexp(0.0, whole)) / mean
    reserved = {ARITHMETIC: 2 * half * share}
    return dataclasses.replace(made, delta=delta, extra_delta=reserved), best


def _find_method(best: acc.BestOf, adjacency: acc.Adjacency) -> str:
    """The tight price where there is one: the curve beside it would take seconds a question."""
    return "selection" if "selection" in acc.methods(best, adjacency) else "best"


def _identify(
    space: list[Any], best: acc.BestOf, plan: Plan, score_noise: float | None, share: float
) -> dict[str, Any]:
    """What has to agree before a stored key is used again."""
    return {
        "settings": [str(setting) for setting in space],
        "mechanism": repr(best),
        "mechanism's numbers": array_digest(best),
        "records": plan.population,
        "clip norm": plan.clip_norm,
        "score's noise": score_noise,
        "share of the default": share,
    }


@contextlib.contextmanager
def _open_folder(folder: str | pathlib.Path | None) -> Iterator[Checkpoints | None]:
    """The folder of the key, locked; refused where its search has ended."""
    if folder is None:
        yield None
        return
    with contextlib.closing(Checkpoints(pathlib.Path(folder))) as store:
        if store.noted(_ENDED, False):
            raise CheckpointError(
                f"{store.folder} is of a search that has ended and returned its result: another "
                "one is another release; choose another folder"
            )
        yield store


def _run_all(
    space: list[Any],
    train: Callable,
    score: Callable,
    score_noise: float | None,
    plan: Plan,
    best: acc.BestOf,
    share: float,
    key: Any,
) -> tuple[Any, Any, float] | None:
    """The setting, result and score of the best of K runs; None where there is none."""
    # The runs are alike and independent: that the first of equal scores wins is as if chance
    # decided.
    trials = acc.draw_trials(jax.random.fold_in(key, _NUMBER), best)
    chosen = draw_settings(jax.random.fold_in(key, _SETTINGS), trials, len(space), share)
    runs, scores = (jax.random.fold_in(key, number) for number in (_RUNS, _SCORES))
    winner = None
    for i, place in enumerate(chosen.tolist()):
        # A plan lists the keys of its runs: were it one for all, the best run's would tell K.
        result = train(space[place], dataclasses.replace(plan), jax.random.fold_in(runs, i))
        found = float(one_number("score's result", float(score(result)), Range()))
        if score_noise is not None:
            # jax.random.normal in float32 ends near 5.4 standard deviations: δ would be 4e-6.
            drawn = float(normal(jax.random.fold_in(scores, i)))
            found = float(round(found + score_noise * drawn))  # whole, so that no last bit tells
        if winner is None or found > winner[2]:
            winner = space[place], result, found
    return winner


def draw_settings(key: Any, trials: int, settings: int, share: float) -> np.ndarray:
    """Which setting each run takes: the first with a given probability, else any other alike."""
    words = np.asarray(jax.random.key_data(key)).ravel().tolist()
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))
    others = generator.integers(1, max(settings, 2), trials)
    return np.where((generator.random(trials) < share) | (settings == 1), 0, others)


def _certify(
    plan: Plan, best: acc.BestOf, delta: float, key: Any, settings: int, public: str | None
) -> acc.Certificate:
    name, drawn = name_of_key(key)
    score = "a noisy count of held-out records" if public is None else f"on public data: {public}"
    facts, assumptions = describe_plan(plan)
    certificate = acc.certify(
        best,
        delta,
        adjacency=plan.adjacency,
        method=_find_method(best, plan.adjacency),
        extra_delta={ARITHMETIC: _SHARE * delta},
        not_covered=(
            f"the number of training records ({plan.population}) is treated as public",
            *(() if drawn else (BY_HAND,)),
        ),
        assumptions=(*assumptions, *(() if public is not None else (HELD_OUT,))),
        declared={
            **facts,
            "records": plan.population,
            "settings": settings,
            "score": score,
            "noise": name,
        },
    )
    warn_of_large_epsilon(certificate.epsilon, plan.unit, stacklevel=3)
    return certificate
