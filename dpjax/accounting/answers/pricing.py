"""The questions that a mechanism answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics import float64
from dpjax._numerics.arrays import namespace
from dpjax._other_names import taught
from dpjax.accounting.adjacency import Adjacency, unknown
from dpjax.accounting.answers.admission import (
    EPSILONS,
    ORDERS,
    PROBABILITY,
    RATES,
    admitted,
    settled,
)
from dpjax.accounting.answers.methods import METHODS, choose
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.mechanisms.users import reached
from dpjax.accounting.method import Method, least, ranked

Answer = float | np.ndarray | Array


def check_adjacency(adjacency: Adjacency | str) -> Adjacency:
    """The adjacency, from its name too."""
    if not isinstance(adjacency, str):  # arrays have no truth value to be compared by
        raise unknown(adjacency)
    return Adjacency(adjacency)


@taught
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
    adjacency = check_adjacency(adjacency)
    run, delta, _ = admitted(run, "delta", delta, PROBABILITY)
    chosen = choose(run, "epsilon", method, adjacency)
    return least("epsilon", chosen, run, delta, adjacency)


@taught
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
        delta: in (0, 1).
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
    run, delta, bad = admitted(run, "delta", delta, PROBABILITY)
    chosen = choose(run, "epsilon", method, adjacency)
    return settled(least("epsilon", chosen, run, delta, adjacency)[0], bad, np.inf)


@taught
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
    adjacency = check_adjacency(adjacency)
    run, epsilon, bad = admitted(run, "epsilon", epsilon, EPSILONS)
    chosen = choose(run, "delta", method, adjacency)
    return settled(least("delta", chosen, run, epsilon, adjacency)[0], bad, 1.0)


@taught
def rdp(
    run: Mechanism,
    orders: Float[ArrayLike, "orders"],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> np.ndarray | Array:
    """The Rényi divergence of the run at each order, as an upper bound.

    Args:
        run: what is released; array fields of shape S give a curve for each setting.
        orders: [k], above one (others give +inf).

    Returns:
        Shape S + [k].

    Raises:
        UnsupportedQuery: the mechanism has no Rényi curve here.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.rdp(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), [2.0, 8.0]).round(7)
        array([0.0001718, 0.0008936])
    """
    adjacency = check_adjacency(adjacency)
    run, orders, bad = admitted(run, "orders", orders, ORDERS)
    xp: Any = namespace(run, orders)
    orders = orders if float64.is_traced(orders) else np.atleast_1d(np.asarray(orders, np.float64))
    chosen = choose(run, "rdp", "best", adjacency)
    least, *others = [m.rdp(run, orders, adjacency) for m in chosen]  # pyrefly: ignore
    for other in others:
        traced = float64.is_traced(least, other)
        least = xp.minimum(least, other) if traced else np.minimum(least, other)
    return settled(least, bad, np.inf)


@taught
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
    run, delta, bad = admitted(run, "delta", delta, PROBABILITY)
    upper = epsilon(run, delta, adjacency=adjacency)
    lower: Any = np.zeros(np.shape(upper))
    able = ranked(METHODS, "epsilon_lower", run, adjacency) if reached(stated) else []
    for method in able:
        if method.dear and float64.is_traced(run, delta):
            continue
        found = method.epsilon_lower(run, delta, adjacency)  # pyrefly: ignore
        xp: Any = namespace(found, upper)
        lower = xp.fmax(lower, found)
        if not float64.is_traced(lower) and np.all(lower > 0):
            break
    # Both ends hold; where rounding crosses them, neither may be above the other.
    lower = namespace(lower, upper).minimum(lower, upper)
    lower = lower if float64.is_traced(lower) else float64.plain(np.asarray(lower))
    return settled(lower, bad, 0.0), settled(upper, bad, np.inf)


@taught
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
    adjacency = check_adjacency(adjacency)
    run, false_positive_rates, bad = admitted(
        run, "false_positive_rates", false_positive_rates, RATES
    )
    rates = (
        false_positive_rates
        if float64.is_traced(false_positive_rates)
        else np.atleast_1d(np.asarray(false_positive_rates, np.float64))
    )
    chosen = choose(run, "tradeoff", method, adjacency)[0]
    return settled(chosen.tradeoff(run, rates, adjacency), bad, 0.0)  # pyrefly: ignore
