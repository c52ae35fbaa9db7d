"""The questions that a mechanism answers: checked where concrete, priced as +inf where traced."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._argument_names import suggests_argument_names
from dpjax._numerics import checks, float64
from dpjax._numerics.arrays import JAX, NUMPY, namespace
from dpjax._numerics.scope import is_traced, plain_rules
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers.methods import METHODS, check_adjacency, check_method, choose
from dpjax.accounting.mechanisms import (
    ApproximateDP,
    Mechanism,
    PoissonSampled,
    UserLevel,
    flatten,
)
from dpjax.accounting.mechanisms.base import (
    check_broadcast,
    invalid,
    map_axes,
    replace_invalid,
    validate,
    walk,
)
from dpjax.accounting.mechanisms.steps import (
    is_group_attained,
    replace_noiseless,
    rewrite_for_group,
    widen,
)
from dpjax.accounting.method import Method, ask_open, best_bound, chosen_settings, rank_methods

_CLOSE = 0.999  # of the upper end, from which on a lower end is not looked for elsewhere
PROBABILITY = checks.Range(0.0, 1.0, open_low=True, open_high=True)
RATES = checks.Range(0.0, 1.0)
EPSILONS = checks.Range(0.0, infinite=True)
ORDERS = checks.Range(infinite=True)

Answer = float | np.ndarray | Array
_Question = TypeVar("_Question", bound=Callable[..., Any])
_ANOTHER_RUN = {"noise_multiplier": 0.0, "records": 1.0}  # at these numbers a step is another


def validate_query(run: Any, name: str, given: Any, allowed: checks.Range) -> tuple[Any, Any, Any]:
    """The run and the argument to ask about, and which settings `mask_invalid` overrules.

    A trace cannot raise: what a constructor would refuse is replaced by a number that the methods
    can answer, and marked.
    """
    validate(run)
    given = checks.number(name, given, allowed)
    several = allowed in (ORDERS, RATES)  # of such a list each is its own answer
    if np.ndim(given) and not several:
        check_broadcast(run, **{name: given})
    if not is_traced(run, given):
        return rewrite_for_group(run), given, False
    bad = jnp.expand_dims(invalid(run), -1) if several else invalid(run)
    if is_traced(given):
        with plain_rules():
            good = allowed.holds(given)
            given = jnp.where(good, given, allowed.example())
            bad = bad | ~good
    return rewrite_for_group(replace_invalid(run)), given, bad


# What is asked about by each part of a method, and what it may be.
_GIVEN = {
    "epsilon": ("delta", PROBABILITY),
    "delta": ("epsilon", EPSILONS),
    "rdp": ("orders", ORDERS),
    "tradeoff": ("false_positive_rates", RATES),
}


def _ready(
    part: str, run: Any, given: Any, adjacency: Adjacency | str, method: str
) -> tuple[Any, ...]:
    """The methods to ask, the run, what is given, the adjacency, and what `mask_invalid` overrules.

    Releases that tell all or nothing are asked about as such, where the method can price that.
    """
    adjacency = check_adjacency(adjacency)
    name, allowed = _GIVEN[part]
    run, given, bad = validate_query(run, name, given, allowed)
    if part in ("rdp", "tradeoff") and not is_traced(given):
        given = np.atleast_1d(np.asarray(given, np.float64))
    if (
        part != "rdp"
        and isinstance(method, str)
        and (told := replace_noiseless(run, adjacency)) is not run
    ):
        able = {"best", *(m.name for m in rank_methods(METHODS, "epsilon", told, adjacency))}
        run = told if method in able else run
    chosen = choose(run, part, method, adjacency)
    return chosen, run, given, adjacency, bad


def mask_invalid(answer: Any, bad: Any, worst: float) -> Any:
    """The answer, and the worst one where the question was none."""
    if bad is False:
        return answer
    with plain_rules():
        return jnp.where(bad, worst, answer)


def _by_kind(question: _Question) -> _Question:
    """The question, where settings of a sweep without noise, or of one record, are asked apart.

    These are other runs (`replace_noiseless`, `rewrite_for_group`), and a sweep says what its
    settings say.
    """
    signature = inspect.signature(question)
    name = list(signature.parameters)[1]
    swept = name in ("delta", "epsilon")  # of a list of orders or rates each is its own answer

    @functools.wraps(question)
    def asked(*args: Any, **how: Any) -> Any:
        try:
            given = signature.bind(*args, **how).arguments
            run = given["run"]
            kinds = _kinds(run, *(given[name],) * swept)
        except (TypeError, ValueError):  # the question says what is wrong
            return question(*args, **how)
        if kinds is None:
            grouped = isinstance(run, UserLevel) and isinstance(given.get("method"), str)
            if grouped and given["method"] == "group":
                inner = rewrite_for_group(run)
                if inner is run.mechanism:  # a group of one: what the record is charged
                    given.update(run=inner, method="best")
            return question(**given)
        places = [kinds == kind for kind in np.unique(kinds)]
        found = []
        for here in places:

            def some(leaf: Any, axes: int, here: np.ndarray = here) -> Any:
                part = chosen_settings(here, leaf, axes)
                return part[0] if not axes and np.all(part == part[0]) else part

            part = {**given, "run": jax.tree.map(some, run, map_axes(run))}
            if swept:
                part[name] = chosen_settings(here, given[name], 0)
            found.append(asked(**part))

        def joined(answers: Any) -> Any:
            if isinstance(answers[0], Method):
                return answers[0]
            whole = np.empty(kinds.shape + (() if swept else np.shape(answers[0])[-1:]))
            for here, answer in zip(places, answers, strict=True):
                whole[here] = answer
            return whole

        several = isinstance(found[0], tuple)
        return tuple(map(joined, zip(*found, strict=True))) if several else joined(found)

    return asked  # pyrefly: ignore


def _kinds(run: Any, *given: Any) -> np.ndarray | None:
    """A number for every setting, one for each kind; None where no setting is another run."""
    if not isinstance(run, Mechanism) or is_traced(run, *given):
        return None
    marks = [
        np.asarray(getattr(step, field)) == number
        for step in walk(run)
        for field, number in _ANOTHER_RUN.items()
        if np.ndim(getattr(step, field, 0.0)) and not step.component_axes[field]
    ]
    if not any(mark.any() for mark in marks):
        return None
    leaves, axes = (
        jax.tree.leaves((run, given)),
        jax.tree.leaves((map_axes(run), (0,) * len(given))),
    )
    fronts = (np.shape(x)[: np.ndim(x) - n] for x, n in zip(leaves, axes, strict=True))
    return np.broadcast_to(
        sum(2**i * mark for i, mark in enumerate(marks)), np.broadcast_shapes(*fronts)
    )


@suggests_argument_names
@_by_kind
def price(
    run: Mechanism,
    delta: Float[ArrayLike, "..."],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
) -> tuple[float | np.ndarray, Method]:
    """ε as by `epsilon`, with the method that gave it (for arrays: the first that was asked).

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.price(acc.Gaussian(1.0), 1e-5, method="rdp")[1].name
        'rdp'
    """
    chosen, *asked, _ = _ready("epsilon", run, delta, adjacency, method)
    return best_bound("epsilon", chosen, *asked)


@suggests_argument_names
@_by_kind
def epsilon(
    run: Mechanism,
    delta: Float[ArrayLike, "..."],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
) -> Answer:
    """An upper bound of the least ε such that the run is (ε, δ)-differentially private.

    Args:
        run: what is released; array fields broadcast against each other and against `delta`.
        delta: in (0, 1); or 0, of releases whose loss is bounded (Laplace noise, randomised
            response, the exponential mechanism, pure guarantees, Poisson samples and compositions
            of them), where `method` chooses nothing.
        adjacency: the neighbouring relation.
        method: `"best"` (tightest certified) or a method's name, see `methods`. The best method
            gives a sweep what it gives its settings one by one, at the same cost: what the contour
            does not resolve takes a fraction of a second each, with a progress bar. To leave that
            out name `"contour"`, which says +inf there, or `"rdp"`.

    Returns:
        A float, or a float64 array of the broadcast shape; a traced value under a trace. Never NaN,
        never negative, +inf where nothing can be said.

    Raises:
        UnsupportedQuery: the mechanism has no answer by this method.
        ValueError: δ outside (0, 1), an unknown method or adjacency.

    Example:
        >>> from dpjax import accounting as acc
        >>> run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 1_000)
        >>> round(acc.epsilon(run, delta=1e-5, method="rdp"), 3)
        2.101
    """
    adjacency = check_adjacency(adjacency)
    plain = type(delta) in (int, float) or isinstance(delta, np.ndarray | np.number)
    if plain and not is_traced(run) and np.size(delta) and not np.any(np.asarray(delta) != 0):
        check_method(method)
        pure = _pure_epsilon(run, adjacency)
        if pure is not None:
            return float64.to_float(np.asarray(pure + np.zeros(np.shape(delta))))
    chosen, *asked, bad = _ready("epsilon", run, delta, adjacency, method)
    return mask_invalid(best_bound("epsilon", chosen, *asked)[0], bad, np.inf)


def _pure_epsilon(run: Mechanism, adjacency: Adjacency) -> Any:
    """ε at δ = 0, the sum of the largest losses; None where one of them is not known to end."""
    validate(run)
    total: Any = 0.0
    for step, factors in flatten(widen(rewrite_for_group(run))):
        count: Any = functools.reduce(operator.mul, map(np.asarray, factors), np.asarray(1.0))
        if not np.any(count > 0):
            continue
        rate: Any = np.asarray(1.0)
        while isinstance(step, PoissonSampled) and adjacency is Adjacency.ADD_REMOVE:
            rate, step = rate * step.rate, step.mechanism
        release = step.release
        numbers = release.numbers(step, adjacency) if release is not None else None
        if release is None or numbers is None:
            return None
        largest = release.largest(numbers)
        if largest is None:
            return None
        if isinstance(step, ApproximateDP) and np.any(np.asarray(step.delta) > 0):
            return None
        largest = np.asarray(largest)
        with np.errstate(divide="ignore", invalid="ignore"):
            # The mixture's density over that without the record is at most 1 + q(e^ε − 1).
            near = np.log1p(rate * np.expm1(np.minimum(largest, 500.0)))
            mixed = np.where(largest < 500.0, near, largest)
            loss = np.where(rate < 1, mixed, largest)
            total = total + np.where((count > 0) & (rate > 0), count * loss, 0.0)
    # Each addition is off by at most half a unit of the last place.
    return total * (1 + 1e-14 + 2.0**-52 * sum(1 for _ in flatten(run)))


@suggests_argument_names
@_by_kind
def delta(
    run: Mechanism,
    epsilon: Float[ArrayLike, "..."],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
) -> Answer:
    """An upper bound of the least δ such that the run is (ε, δ)-differentially private.

    Arguments, result and errors as for `epsilon`; here ε >= 0 is given.

    Example:
        >>> from dpjax import accounting as acc
        >>> run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 1_000)
        >>> acc.delta(run, epsilon=2.102, method="rdp") <= 1e-5
        True
    """
    chosen, *asked, bad = _ready("delta", run, epsilon, adjacency, method)
    return mask_invalid(best_bound("delta", chosen, *asked)[0], bad, 1.0)


@suggests_argument_names
@_by_kind
def rdp(
    run: Mechanism,
    orders: Float[ArrayLike, "orders"],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
) -> np.ndarray | Array:
    """The Rényi divergence of the run at each order, as an upper bound.

    Args:
        run: what is released; array fields of shape S give a curve for each setting.
        orders: [k], above one (others give +inf).
        adjacency: the neighbouring relation.
        method: `"best"` (the least of all certified curves) or a method's name, see `methods`.

    Returns:
        Shape S + [k].

    Raises:
        UnsupportedQuery: the mechanism has no Rényi curve by this method.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.rdp(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), [2.0, 8.0]).round(7)
        array([0.0001718, 0.0008936])
    """
    chosen, run, orders, adjacency, bad = _ready("rdp", run, orders, adjacency, method)
    curves = [m.rdp(run, orders, adjacency) for m in chosen]  # pyrefly: ignore
    xp = JAX if is_traced(curves) else NUMPY
    return mask_invalid(functools.reduce(xp.minimum, curves), bad, np.inf)


@suggests_argument_names
@_by_kind
def epsilon_interval(
    run: Mechanism,
    delta: Float[ArrayLike, "..."],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> tuple[Answer, Answer]:
    """(lower, upper): the least ε for this δ lies in between. How tight is the guarantee?

    The lower end is that of two distributions which some neighbours attain (each method's
    `epsilon_lower` names them), and 0 where no such pair is known. A particular data set may be
    better off.

    Example:
        >>> from dpjax import accounting as acc
        >>> low, high = acc.epsilon_interval(acc.Repeated(acc.Gaussian(4.0), 10), delta=1e-5)
        >>> low <= high
        True
    """
    adjacency = check_adjacency(adjacency)
    stated = run
    run, delta, bad = validate_query(run, "delta", delta, PROBABILITY)
    upper = epsilon(run, delta, adjacency=adjacency)
    lower: Any = np.zeros(np.shape(upper))
    attained = is_group_attained(stated, adjacency) and replace_noiseless(run, adjacency) is run
    able = rank_methods(METHODS, "epsilon_lower", run, adjacency) if attained else []
    for method in able:
        if method.dear and float64.is_traced(run, delta):
            continue
        ask: Any = functools.partial(method.epsilon_lower, adjacency=adjacency)  # pyrefly: ignore
        if float64.is_traced(run, delta):
            found = ask(run, delta)
            lower = namespace(found, upper).fmax(lower, found)
            continue
        # Where ends are close no other method is worth its time.
        apart = ~(np.asarray(lower) >= _CLOSE * np.asarray(upper))
        if not apart.any():
            break
        lower = np.fmax(lower, ask_open(ask, run, delta, adjacency, apart, 0.0))
    # Both ends hold; where rounding crosses them, neither may be above the other.
    lower = namespace(lower, upper).minimum(lower, upper)
    lower = lower if float64.is_traced(lower) else float64.to_float(np.asarray(lower))
    return mask_invalid(lower, bad, 0.0), mask_invalid(upper, bad, np.inf)


@suggests_argument_names
@_by_kind
def tradeoff(
    run: Mechanism,
    false_positive_rates: Float[ArrayLike, "rates"],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
) -> np.ndarray | Array:
    """The least false-negative rate of any attack with these false-positive rates (a lower bound).

    Distinguishing the two neighbours from the release, an attacker who is wrong at rate α when the
    record is absent is wrong at rate at least f(α) when it is present (Dong, Roth and Su 2022).

    Args:
        false_positive_rates: [k], each in [0, 1].

    Returns:
        Shape S + [k], S the shape of the run's fields.

    Example:
        >>> from dpjax import accounting as acc
        >>> bool(acc.tradeoff(acc.Gaussian(1.0), [0.05])[0] > 0.7)
        True
    """
    chosen, run, rates, adjacency, bad = _ready(
        "tradeoff", run, false_positive_rates, adjacency, method
    )
    return mask_invalid(chosen[0].tradeoff(run, rates, adjacency), bad, 0.0)  # pyrefly: ignore
