"""The questions a mechanism answers, and the table of methods that answer them.

A method is a named set of functions with a predicate saying which mechanisms it can price; it joins
by `register_method`, in the file that implements it. `"best"` asks the methods in the order of
their rank, tightest first, and where one has no finite answer, the next.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics import float64
from dpjax.accounting import conversion, lowering, renyi
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import Mechanism

Answer = float | np.ndarray | Array


class Method(NamedTuple):
    """One way to price mechanisms.

    Fields:
        name: what the user passes as `method=`.
        rank: place in `"best"`, tightest first; None keeps it out of `"best"`.
        supports: (mechanism, adjacency) -> bool, from structure alone, never from values.
        epsilon: (mechanism, delta, adjacency) -> upper bound; +inf where it has none.
        delta: (mechanism, epsilon, adjacency) -> upper bound.
        epsilon_lower: (mechanism, delta, adjacency) -> lower bound of the best possible ε.
        rdp: (mechanism, orders, adjacency) -> Rényi curve.
        tradeoff: (mechanism, false_positive_rates, adjacency) -> false-negative rates, lower bound.
        describe: one sentence for certificates: the bound and its source.
        tier: `proven`, or `conditional` when it rests on `assumptions`.
        assumptions: what the caller must have made true, one sentence each.
        traceable: False for methods that need concrete values; `"best"` skips them under a trace.

    >>> methods()["rdp"].name
    'rdp'
    """

    name: str
    rank: float | None
    supports: Callable[[Mechanism, Adjacency], bool]
    epsilon: Callable[..., Any] | None = None
    delta: Callable[..., Any] | None = None
    epsilon_lower: Callable[..., Any] | None = None
    rdp: Callable[..., Any] | None = None
    tradeoff: Callable[..., Any] | None = None
    describe: str = ""
    tier: str = "proven"
    assumptions: tuple[str, ...] = ()
    traceable: bool = True


_METHODS: dict[str, list[Method]] = {}


def register_method(
    name: str,
    *,
    supports: Callable[[Mechanism, Adjacency], bool],
    rank: float | None = None,
    **parts: Any,
) -> Method:
    """Add a way to price mechanisms; see `Method` for the parts.

    Several entries may share a name (say `closed_form`) as long as they support different
    mechanisms. Registering the same name, rank and description again replaces the entry.

    >>> _ = register_method("nothing", supports=lambda run, adjacency: False, describe="an example")
    >>> "nothing" in methods()
    True
    >>> del _METHODS["nothing"]
    """
    method = Method(name, rank, supports, **parts)
    entries = _METHODS.setdefault(name, [])
    entries[:] = [m for m in entries if (m.rank, m.describe) != (rank, method.describe)]
    entries.append(method)
    return method


def methods(
    run: Mechanism | None = None, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> dict[str, Method]:
    """Methods by name, those that support `run` if one is given, tightest first.

    >>> from dpjax import accounting as acc
    >>> "rdp" in acc.methods(acc.Gaussian(1.0))
    True
    """
    entries = [m for group in _METHODS.values() for m in group]
    if run is not None:
        entries = [m for m in entries if m.supports(run, adjacency)]
    entries.sort(key=lambda m: np.inf if m.rank is None else m.rank)
    found: dict[str, Method] = {}
    for m in entries:
        found.setdefault(m.name, m)
    return found


def _choose(run: Mechanism, part: str, name: str, adjacency: Adjacency) -> list[Method]:
    """Methods to try in turn for one part, or a refusal that says what would answer."""
    if not isinstance(run, Mechanism):
        raise TypeError(f"expected a mechanism, such as Gaussian(1.1), got {run!r}")
    able = [m for group in _METHODS.values() for m in group if getattr(m, part) is not None]
    able.sort(key=lambda m: np.inf if m.rank is None else m.rank)
    wanted = [m for m in able if (m.rank is not None if name == "best" else m.name == name)]
    chosen = [m for m in wanted if m.supports(run, adjacency)]
    if chosen:
        return chosen
    able = [m for m in able if m.supports(run, adjacency)]
    if name != "best" and name not in _METHODS:
        raise ValueError(f"method must be 'best' or one of {sorted(_METHODS)}, got {name!r}")
    question = part.replace("_", " ")
    if able:
        would = " or ".join(repr(m.name) for m in able)
        raise UnsupportedQuery(
            f"{_name(run)} has no {question} by method {name!r} under {adjacency.value}; "
            f"method={would} answers"
        )
    other = Adjacency.REPLACE_ONE if adjacency is Adjacency.ADD_REMOVE else Adjacency.ADD_REMOVE
    elsewhere = [
        m
        for group in _METHODS.values()
        for m in group
        if getattr(m, part) and m.rank is not None and m.supports(run, other)
    ]
    elsewhere.sort(key=lambda m: m.rank or 0.0)
    reason = ""
    try:
        lowering.check_lowers(run, adjacency)
    except UnsupportedQuery as refusal:
        reason = f": {refusal}"
    advice = ""
    if elsewhere:
        advice = f"; adjacency=Adjacency.{other.name} with method={elsewhere[0].name!r} answers"
    raise UnsupportedQuery(
        f"{_name(run)} has no {question} by any method under {adjacency.value}{reason}{advice}"
    )


def _name(run: Mechanism) -> str:
    inner = getattr(run, "mechanism", None)
    return (
        f"{type(run).__name__}({_name(inner)})"
        if isinstance(inner, Mechanism)
        else type(run).__name__
    )


def check_adjacency(adjacency: Adjacency | str) -> Adjacency:
    """The adjacency, from its name too.

    >>> check_adjacency("replace_one").value
    'replace-one'
    """
    try:
        return Adjacency(adjacency)
    except ValueError:
        names = [a.value for a in Adjacency]
        raise ValueError(f"adjacency must be one of {names}, got {adjacency!r}") from None


def check_range(
    name: str,
    value: Any,
    low: float,
    high: float,
    *,
    closed_low: bool = False,
    closed_high: bool = False,
) -> None:
    """Check a concrete query argument; tracers pass.

    >>> check_range("delta", 2.0, 0.0, 1.0)
    Traceback (most recent call last):
    ValueError: delta must be in (0, 1), got 2.0
    """
    if float64.is_traced(value):
        return
    if isinstance(value, str):
        raise TypeError(f"{name} must be a number, got the text {value!r}")
    numbers = np.asarray(value, np.float64)
    good = ((numbers >= low) if closed_low else (numbers > low)) & (
        (numbers <= high) if closed_high else (numbers < high)
    )
    if not np.all(good):
        shown = value if numbers.ndim == 0 else numbers[~good].ravel()[0]
        ends = f"{'[' if closed_low else '('}{low:g}, {high:g}{']' if closed_high else ')'}"
        raise ValueError(f"{name} must be in {ends}, got {shown}")


def _least(part: str, chosen: list[Method], run: Mechanism, given: Any, rest: tuple) -> Any:
    """The first method's answer; where it is none (∞, or δ = 1), the next one's.

    Later methods see only the settings that need them: they may be far slower.
    """
    hopeless = np.inf if part == "epsilon" else 1.0

    def ask(method: Method, run: Mechanism = run, given: Any = given) -> Any:
        return getattr(method, part)(run, given, *rest)

    answer = ask(chosen[0])
    for method in chosen[1:]:
        if float64.is_traced(answer):
            if method.traceable:
                answer = _otherwise(answer, lambda m=method: ask(m), hopeless)  # pyrefly: ignore
            continue
        answer = np.asarray(answer)
        poor = ~(answer < hopeless)
        if not poor.any():
            break
        if answer.ndim == 0 or not lowering.lowers(run, *rest):
            answer = np.fmin(answer, ask(method))
            continue
        some, part_given = jax.tree.map(
            lambda leaf: np.broadcast_to(leaf, answer.shape)[poor],  # noqa: B023
            (run, given),
        )
        answer[poor] = np.fmin(answer[poor], ask(method, some, part_given))
    return answer if float64.is_traced(answer) else float64.plain(np.asarray(answer))


def _otherwise(answer: Array, ask: Callable[[], Any], hopeless: float) -> Array:
    """The same under a trace: the next method runs only if it is needed."""
    return jax.lax.cond(
        jnp.all(answer < hopeless),
        lambda: answer,
        lambda: jnp.minimum(answer, jnp.asarray(ask(), answer.dtype)),
    )


def price(
    run: Mechanism,
    delta: Float[ArrayLike, "..."],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
) -> tuple[float | np.ndarray, Method]:
    """ε as by `epsilon`, with the method that gave it (for arrays: the first that was asked).

    >>> from dpjax import accounting as acc
    >>> acc.price(acc.Gaussian(1.0), 1e-5, method="rdp")[1].name
    'rdp'
    """
    adjacency = check_adjacency(adjacency)
    check_range("delta", delta, 0.0, 1.0)
    chosen = _choose(run, "epsilon", method, adjacency)
    best, used = np.asarray(np.inf), chosen[0]
    for candidate in chosen:
        value = np.asarray(candidate.epsilon(run, delta, adjacency))  # pyrefly: ignore
        if np.all(value < best):
            used = candidate
        best = np.minimum(best, value)
        if np.all(best < np.inf):
            break
    return float64.plain(np.asarray(best)), used


def epsilon(
    run: Mechanism,
    delta: Float[ArrayLike, "..."],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
) -> Answer:
    """An upper bound of the least ε such that the run is (ε, δ)-differentially private.

    Arguments:
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

    >>> from dpjax import accounting as acc
    >>> run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 1_000)
    >>> round(acc.epsilon(run, delta=1e-5, method="rdp"), 3)
    2.101
    """
    adjacency = check_adjacency(adjacency)
    check_range("delta", delta, 0.0, 1.0)
    chosen = _choose(run, "epsilon", method, adjacency)
    return _least("epsilon", chosen, run, delta, (adjacency,))


def delta(
    run: Mechanism,
    epsilon: Float[ArrayLike, "..."],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
) -> Answer:
    """An upper bound of the least δ such that the run is (ε, δ)-differentially private.

    Arguments, result and errors as for `epsilon`; here ε >= 0 is given.

    >>> from dpjax import accounting as acc
    >>> run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 1_000)
    >>> acc.delta(run, epsilon=2.102, method="rdp") <= 1e-5
    True
    """
    adjacency = check_adjacency(adjacency)
    check_range("epsilon", epsilon, 0.0, np.inf, closed_low=True)
    chosen = _choose(run, "delta", method, adjacency)
    return _least("delta", chosen, run, epsilon, (adjacency,))


def rdp(
    run: Mechanism,
    orders: Float[ArrayLike, "orders"],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> np.ndarray | Array:
    """The Rényi divergence of the run at each order, as an upper bound.

    Arguments:
        run: what is released; array fields of shape S give a curve for each setting.
        orders: [k], above one (others give +inf).

    Returns:
        Shape S + [k].

    Raises:
        UnsupportedQuery: the mechanism has no Rényi curve here.

    >>> from dpjax import accounting as acc
    >>> acc.rdp(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), [2.0, 8.0]).round(7)
    array([0.0001718, 0.0008936])
    """
    adjacency = check_adjacency(adjacency)
    orders = orders if float64.is_traced(orders) else np.atleast_1d(np.asarray(orders, np.float64))
    chosen = _choose(run, "rdp", "best", adjacency)
    least, *others = [m.rdp(run, orders, adjacency) for m in chosen]  # pyrefly: ignore
    for other in others:
        traced = float64.is_traced(least, other)
        least = jnp.minimum(least, other) if traced else np.minimum(least, other)
    return least


def epsilon_interval(
    run: Mechanism,
    delta: Float[ArrayLike, "..."],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> tuple[Answer, Answer]:
    """(lower, upper): the least ε for this δ lies in between. How tight is the guarantee?

    The lower end holds for the worst pair of data sets and outputs that the mechanism allows; a
    particular data set may be better off.

    >>> from dpjax import accounting as acc
    >>> low, high = acc.epsilon_interval(acc.Repeated(acc.Gaussian(4.0), 10), delta=1e-5)
    >>> low <= high
    True
    """
    adjacency = check_adjacency(adjacency)
    check_range("delta", delta, 0.0, 1.0)
    upper = epsilon(run, delta, adjacency=adjacency)
    chosen = _choose(run, "epsilon_lower", "best", adjacency)
    lower: Any = 0.0 * np.asarray(upper) if not float64.is_traced(upper) else jnp.zeros_like(upper)
    for method in chosen:
        found = method.epsilon_lower(run, delta, adjacency)  # pyrefly: ignore
        if float64.is_traced(found, upper):
            lower = jnp.maximum(lower, jnp.where(jnp.isnan(found), 0.0, found))
        else:
            lower = np.fmax(lower, found)
            if np.all(lower > 0):
                break
    return (lower if float64.is_traced(lower) else float64.plain(np.asarray(lower))), upper


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

    Arguments:
        false_positive_rates: [k], each in [0, 1].

    Returns:
        Shape S + [k], S the shape of the run's fields.

    >>> from dpjax import accounting as acc
    >>> bool(acc.tradeoff(acc.Gaussian(1.0), [0.05])[0] > 0.7)
    True
    """
    adjacency = check_adjacency(adjacency)
    check_range(
        "false_positive_rates", false_positive_rates, 0.0, 1.0, closed_low=True, closed_high=True
    )
    rates = (
        false_positive_rates
        if float64.is_traced(false_positive_rates)
        else np.atleast_1d(np.asarray(false_positive_rates, np.float64))
    )
    return _choose(run, "tradeoff", method, adjacency)[0].tradeoff(run, rates, adjacency)  # pyrefly: ignore


# --- the Rényi method ---------------------------------------------------------------------------


def _epsilon_kernel(
    atoms: lowering.Atoms, adjacency: Adjacency, delta: Array
) -> conversion.Converted:
    return conversion.epsilon_from_atoms(atoms, adjacency, delta)


def _classic_kernel(
    atoms: lowering.Atoms, adjacency: Adjacency, delta: Array
) -> conversion.Converted:
    return conversion.epsilon_from_atoms(atoms, adjacency, delta, classic=True)


def _delta_kernel(
    atoms: lowering.Atoms, adjacency: Adjacency, epsilon: Array
) -> conversion.Converted:
    return conversion.delta_from_atoms(atoms, adjacency, epsilon)


def _converted(kernel: Callable) -> Callable:
    def ask(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        found = lowering.query(kernel, run, adjacency, (given,), (0,))
        # At enormous ε nobody waits for a better order.
        if not float64.is_traced(found) and np.any((found.at_edge > 0) & (found.value < 1e3)):
            warnings.warn(
                f"the best Rényi order for {_name(run)} lies beyond the widest grid searched; "
                "the bound holds but may be loose",
                stacklevel=4,
            )
        return found.value

    return ask


def _rdp(run: Mechanism, orders: Any, adjacency: Adjacency) -> Any:
    return lowering.query(renyi.rdp_curve, run, adjacency, (orders,), (1,), batch=1)


register_method(
    "rdp",
    rank=30.0,
    supports=lowering.lowers,
    epsilon=_converted(_epsilon_kernel),
    delta=_converted(_delta_kernel),
    rdp=_rdp,
    describe="Rényi curve at real orders by certified quadrature, converted by Canonne, Kamath and "
    "Steinke (2020), Proposition 12",
)
register_method(
    "rdp_classic",
    supports=lowering.lowers,
    epsilon=_converted(_classic_kernel),
    describe="Rényi curve at real orders by certified quadrature, converted by Mironov (2017), "
    "Proposition 3",
)
