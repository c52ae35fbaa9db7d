"""The questions that a mechanism answers: checked where concrete, priced as +inf where traced."""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import ArrayLike, Float

from dpjax._argument_names import suggests_argument_names
from dpjax._numerics import float64
from dpjax._numerics.arrays import JAX, NUMPY, namespace
from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers.methods import METHODS, check_adjacency, check_method
from dpjax.accounting.answers.query import DELTA, EPSILON, RDP, TRADEOFF, Answer, Query
from dpjax.accounting.mechanisms import ApproximateDP, Mechanism, PoissonSampled, flatten
from dpjax.accounting.mechanisms.steps import (
    count_uses,
    is_group_attained,
    replace_noiseless,
    rewrite_for_group,
    widen,
)
from dpjax.accounting.mechanisms.validity import validate
from dpjax.accounting.method import Method, ask_open, rank_methods
from dpjax.accounting.typing import Real

_CLOSE = 0.999  # of the upper end, from which on a lower end is not looked for elsewhere


@suggests_argument_names
def price(
    run: Mechanism,
    delta: Float[ArrayLike, "..."],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
) -> tuple[Answer, Method]:
    """ε as by `epsilon`, with the method that gave it (for arrays: the first that was asked).

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.price(acc.Gaussian(1.0), 1e-5, method="rdp")[1].name
        'rdp'
    """
    parts = Query(EPSILON, run, delta, adjacency, method).split()
    found = [part.resolve().price() for part in parts]
    return Query.join(parts, [epsilon for epsilon, _ in found]), found[0][1]


@suggests_argument_names
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
    parts = Query(EPSILON, run, delta, adjacency, method).split()
    return Query.join(parts, [_answer_epsilon(part) for part in parts])


def _answer_epsilon(query: Query) -> Answer:
    run, delta, adjacency = query.run, query.given, check_adjacency(query.adjacency)
    plain = type(delta) in (int, float) or isinstance(delta, np.ndarray | np.number)
    if plain and not is_traced(run) and np.size(delta) and not np.any(np.asarray(delta) != 0):
        check_method(query.method)
        pure = _pure_epsilon(run, adjacency)
        if pure is not None:
            return float64.to_float(np.asarray(pure + np.zeros(np.shape(delta))))
    return query.resolve().answer()


def _pure_epsilon(run: Mechanism, adjacency: Adjacency) -> np.ndarray | None:
    """ε at δ = 0, the sum of the largest losses; None where one of them is not known to end."""
    validate(run)
    total = np.zeros(())
    for step, factors in flatten(widen(rewrite_for_group(run))):
        count = count_uses(factors)
        if not np.any(count > 0):
            continue
        rate: Real = 1.0
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
    parts = Query(DELTA, run, epsilon, adjacency, method).split()
    return Query.join(parts, [part.resolve().answer() for part in parts])


@suggests_argument_names
def rdp(
    run: Mechanism,
    orders: Float[ArrayLike, "orders"],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
) -> Answer:
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
    parts = Query(RDP, run, orders, adjacency, method).split()
    return Query.join(parts, [_answer_rdp(part) for part in parts])


def _answer_rdp(query: Query) -> Answer:
    asked = query.resolve()
    run, orders, _ = asked.checked
    curves = [m.rdp(run, orders, asked.adjacency) for m in asked.methods]  # pyrefly: ignore
    xp = JAX if is_traced(curves) else NUMPY
    return asked.mask(functools.reduce(xp.minimum, curves))


@suggests_argument_names
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
    parts = Query(EPSILON, run, delta, adjacency).split()
    ends = [_interval(part) for part in parts]
    return Query.join(parts, [low for low, _ in ends]), Query.join(parts, [up for _, up in ends])


def _interval(query: Query) -> tuple[Answer, Answer]:
    stated, adjacency = query.run, check_adjacency(query.adjacency)
    checked = query.check()
    run, delta, _ = checked
    upper = epsilon(run, delta, adjacency=adjacency)
    lower: Answer = np.zeros(np.shape(upper))
    attained = is_group_attained(stated, adjacency) and replace_noiseless(run, adjacency) is run
    able = rank_methods(METHODS, "epsilon_lower", run, adjacency) if attained else []
    for method in able:
        if method.dear and float64.is_traced(run, delta):
            continue
        ask = functools.partial(method.epsilon_lower, adjacency=adjacency)  # pyrefly: ignore
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
    return checked.mask(lower, 0.0), checked.mask(upper, np.inf)


@suggests_argument_names
def tradeoff(
    run: Mechanism,
    false_positive_rates: Float[ArrayLike, "rates"],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
) -> Answer:
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
    parts = Query(TRADEOFF, run, false_positive_rates, adjacency, method).split()
    return Query.join(parts, [_answer_tradeoff(part) for part in parts])


def _answer_tradeoff(query: Query) -> Answer:
    asked = query.resolve()
    run, rates, _ = asked.checked
    return asked.mask(asked.methods[0].tradeoff(run, rates, asked.adjacency))  # pyrefly: ignore
