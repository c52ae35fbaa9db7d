"""What a run permits an attacker: how often one can be right at so many false alarms."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpjax._argument_names import suggests_argument_names
from dpjax._digits import format_rounded_up
from dpjax._numerics import checks
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers import pricing, query
from dpjax.accounting.answers.methods import methods
from dpjax.accounting.best_of import read_selection
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.profiles import profiles, worse_direction

_QUERIES = 14  # at most: each is a bound of its own, and costs a δ
_NEAR = 0.01  # of the range of √ε that is searched: the least is flat, δ barely moves within it


def bound_success(epsilon: float, delta: float, false_alarms: float) -> float:
    """How often an attack on an (ε, δ)-private release is right, at a rate of false alarms.

    min(e^ε α + δ, 1 − e^−ε (1 − δ − α), 1)          (Wasserman and Zhou 2010, Theorem 2.4)
    """
    if epsilon == math.inf:
        return 1.0
    direct = delta + (math.exp(epsilon) * false_alarms if epsilon < 700 else math.inf)
    mirrored = 1 - math.exp(-epsilon) * max(1 - delta - false_alarms, 0.0)
    # Three roundings of at most 2^-53 each.
    return min(min(direct, mirrored) * (1 + 4e-16), 1.0)


def success(
    run: Mechanism,
    epsilon: float,
    delta: float,
    *,
    adjacency: Adjacency,
    reserved: float = 0.0,
    false_alarms: float = 1e-3,
) -> float:
    """The most often that any attack on a run is right, at a rate of false alarms.

    The run is (ε, δ(ε) + reserved)-private for every ε, and each of these is a bound: the least of
    a few is taken, and of the (ε, δ) given, whose ε may be infinite. `reserved` is the part of δ
    for failures outside the mechanism; 1 if nothing can be said.
    """
    best = bound_success(epsilon, delta, false_alarms)
    # Where δ counts beside α the best ε may be any below −log α.
    ends = 0.0, 4 * epsilon if delta < 0.1 * false_alarms else math.inf
    search = {"near": _NEAR, "queries": _QUERIES, "reserved": reserved}
    with contextlib.suppress(UnsupportedQuery):
        best = min(best, strongest_attack(run, false_alarms, adjacency, ends, **search)[0])
    return best


def strongest_attack(
    run: Mechanism,
    false_alarms: float,
    adjacency: Adjacency,
    ends: tuple[float, float] = (0.0, math.inf),
    *,
    near: float = 1e-4,
    queries: int = 40,
    reserved: float = 0.0,
    method: str = "best",
) -> tuple[float, float]:
    """The least of the lines e^ε α + δ(ε) + reserved between two ε, and the ε where it was met.

    Each is an upper bound of how often an attack is right, and e^ε α + δ(ε), convex in e^ε, has one
    valley: Brent's method ends within `near` of the range of √ε, and returns a line that was asked.
    """
    from scipy.optimize import minimize_scalar  # loaded here: it is slow to import

    found = []

    def ask(root: float) -> float:  # of ε: the best may be much smaller than the largest
        epsilon = root * root
        spent = float(np.asarray(pricing.delta(run, epsilon, adjacency=adjacency, method=method)))
        found.append((bound_success(epsilon, spent + reserved, false_alarms), epsilon))
        return found[-1][0]

    # Where e^ε is 1/α the line is above one.
    low, high = ends[0], min(ends[1], -math.log(max(false_alarms, 1e-300)))
    span = math.sqrt(low), math.sqrt(max(high, low))
    options = {"xatol": near * span[1], "maxiter": queries}
    minimize_scalar(ask, bounds=span, method="bounded", options=options)
    return min(found)


# ------------------------------------------------------------------------------ in numbers

_ASKED_EPSILONS = 40  # ε at which δ is asked: μ is then within a percent of the curve's own
_TAIL = 1e-10  # a μ holds but for this probability: no sampled run is Gaussian in its far tail
_AS_GOOD = 0.1  # of log δ, by which a whole profile may lie above the prices
_LOW = (0.03, 0.3)  # places of lines, over the least ε of a price
_ABOUT = np.geomspace(0.01, 30.0, 40)  # places of knots, over the ε of a price
_FAR = 300.0  # ε at which δ is about the probability of an infinite loss
_ALARMS = (1e-3, 1e-2)
_POINTS = 4_001  # of the curve, where the regret is looked for
_UP = 1 + 1e-9
_NEIGHBOURS = {
    Adjacency.ADD_REMOVE: "with one record as without it",
    Adjacency.REPLACE_ONE: "with one record as with another in its place",
}


class Summary(NamedTuple):
    """What a run permits, in numbers that a person can sign; of `summary`. Printed, a table.

    Fields:
        epsilons: ε at each δ, as pairs (δ, ε).
        mu, mu_delta: the run is μ-GDP, but for this probability: its trade-off curve is nowhere
            further below that of μ.
        regret: by how much, in both error rates, the run's curve may be better than that of μ.
        advantage: the most that an attack's true- exceeds its false-positive rate.
        true_positive_rates: the most records that an attack finds, as pairs (its FPR, its TPR).
        adjacency: whom an attack tells apart.

    Example:
        >>> from dpjax import accounting as acc
        >>> round(acc.summary(acc.Gaussian(2.0)).mu, 6)
        0.5
    """

    epsilons: tuple[tuple[float, float], ...]
    mu: float
    mu_delta: float
    regret: float
    advantage: float
    true_positive_rates: tuple[tuple[float, float], ...]
    adjacency: Adjacency

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value and a sentence of each number, the value rounded up.

        Example:
            >>> from dpjax import accounting as acc
            >>> acc.summary(acc.Gaussian(2.0)).rows()[-1][:2]
            ('TPR at FPR 1 %', '0.0339')
        """
        told = _NEIGHBOURS[self.adjacency]
        rows = [
            (
                f"ε at δ = {delta:g}",
                format_rounded_up(epsilon, 4),
                f"no outcome is more than e^{format_rounded_up(epsilon, 4)} times as likely "
                f"{told}, but for a probability of {delta:g}"
                if math.isfinite(epsilon)
                else "nothing is promised",
            )
            for delta, epsilon in self.epsilons
        ]
        rows += [
            (
                "μ",
                format_rounded_up(self.mu, 4),
                "telling neighbours apart is at least as hard as telling one draw of N(0, 1) from "
                f"one of N({format_rounded_up(self.mu, 4)}, 1)"
                + f", but for a probability of {self.mu_delta:g}"
                * (self.mu_delta > 0),
            ),
            (
                "regret of μ",
                format_rounded_up(self.regret, 2),
                "the curve of μ overstates both error rates of the best attack by no more than "
                "this short of the run's own bound",
            ),
            (
                "advantage",
                format_rounded_up(self.advantage, 4),
                "the most by which an attack's true-positive rate exceeds its false-positive rate",
            ),
        ]
        return rows + [
            (
                f"TPR at FPR {100 * rate:g} %",
                format_rounded_up(found, 4),
                f"an attack that is wrong about {100 * rate:g} % of those who are not there finds "
                "at most this share of those who are",
            )
            for rate, found in self.true_positive_rates
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:<17}{value:<11}{words}" for name, value, words in self.rows())


@suggests_argument_names
def summary(
    run: Mechanism,
    deltas: Sequence[float] = (1e-5, 1e-6, 1e-7),
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    reserved: float = 0.0,
) -> Summary:
    """What a run permits: ε at several δ, μ and its regret, advantage, and true-positive rates.

    All follow from lines α ↦ 1 − δ(ε) − e^ε α below the run's trade-off curve f. The least μ is
    that whose curve G_μ(α) = Φ(Φ⁻¹(1 − α) − μ) lies below the lines (it does where it does at their
    corners, as it is convex), all raised by the least δ of them: 1e-10, and more of a run that may
    fail. Its regret is the least κ with f(α + κ) − κ ≤ G_μ(α) for all α, f by the same lines.

    Args:
        run: what is released, one setting.
        deltas: at which ε is given.
        adjacency: the neighbouring relation.
        reserved: parts of δ for failures outside of the mechanism; added to every probability.

    Raises:
        UnsupportedQuery, ValueError: as `epsilon`.

    Guarantee:
        Every number but the regret is an upper bound, +inf or 1 where nothing can be said.

    Example:
        >>> from dpjax import accounting as acc
        >>> run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 1_000)
        >>> found = acc.summary(run)
        >>> round(found.epsilons[0][1], 3), round(found.mu, 2), round(found.advantage, 3)
        (1.828, 0.52, 0.161)

    References:
        Gomez, Kulynych, Kaissis, Calmon, Hayes, Balle, Honkela 2025, "Gaussian DP for reporting
        differential privacy guarantees in machine learning" (μ and regret); Kaissis, Kolek, Balle,
        Hayes, Rueckert 2024 (the divergence); Dong, Roth, Su 2022, Proposition 2.12.
    """
    adjacency = pricing.check_adjacency(adjacency)
    reserved = checks.one_number("reserved", reserved, checks.Range(0.0, 1.0))
    each = [checks.one_number("deltas", delta, query.PROBABILITY) for delta in deltas]
    price, is_dear = [math.inf] * len(each), False
    for k, d in enumerate(each):
        if d > reserved:
            found, used = pricing.price(run, d - reserved, adjacency=adjacency)
            price[k], is_dear = float(found), is_dear or used.dear
    prices = tuple(zip(each, price, strict=True))
    known = [(epsilon, d - reserved) for d, epsilon in prices if math.isfinite(epsilon)]
    whole = _read_profile(run, adjacency, known) if is_dear else []
    with contextlib.suppress(UnsupportedQuery):
        known += whole or _ask_profile(run, adjacency)
    if not known:
        rates = [(rate, 1.0) for rate in _ALARMS]
        return Summary(prices, math.inf, reserved, 0.0, 1.0, tuple(rates), adjacency)
    epsilons, spent = np.asarray(sorted(known)).T
    try:
        mu, regret, tail = float(gaussian_dp.gdp_mu(run, adjacency=adjacency)), 0.0, reserved
    except UnsupportedQuery:
        least = float(np.min(spent))
        # f ≥ G_μ − p is f + p ≥ G_μ, whose lines are those of δ(ε) − p.
        mu, tail = _fit_mu(epsilons, spent - least), reserved + least
        regret = _find_regret(epsilons, spent, mu)
    # On the diagonal, where a symmetric curve is nearest to no errors at all.
    with np.errstate(over="ignore", invalid="ignore"):
        even = np.where(epsilons < 700, np.tanh(epsilons / 2), 1.0)
        most = float(np.min(even + spent * (1 - even))) * _UP
    rates = []
    for rate in _ALARMS:
        found = [bound_success(at, p, rate) for at, p in zip(epsilons, spent, strict=True)]
        near = int(np.argmin(found))
        ends = float(epsilons[max(near - 1, 0)]), float(epsilons[min(near + 1, len(found) - 1)])
        with contextlib.suppress(UnsupportedQuery):
            if not whole:
                found.append(strongest_attack(run, rate, adjacency, ends, near=1e-3, queries=4)[0])
        rates.append((rate, float(min(min(found) + reserved, 1.0))))
    most = min(most + reserved, 1.0)
    return Summary(prices, mu, tail, regret, most, tuple(rates), adjacency)


def _read_profile(
    run: Mechanism, adjacency: Adjacency, known: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Many ε and their δ from one reading; none where it is not about as good as what is known."""
    asked = [e for e, _ in known if e > 0]
    # What is even may be far apart where most of the losses are: knots about the prices too.
    knots = np.unique(np.outer(asked, _ABOUT)) if asked else None
    places = [*(share * min(asked, default=0.0) for share in _LOW), *asked]
    evenly = functools.partial(worse_direction, also=knots)
    for read in (read_selection, evenly, functools.partial(evenly, lines_at=places)):
        found = read(run, adjacency, _TAIL)
        if found is None:
            continue
        epsilons, deltas = found
        # Chords of log δ, which is no bound: whether to read it is all that follows.
        at = np.interp([e for e, _ in known], epsilons, np.log(np.maximum(deltas, 1e-300)))
        if known and np.all(at <= np.log([d for _, d in known]) + _AS_GOOD):
            # Down to the tail that a μ leaves out: beyond it the last δ bounds, as δ falls.
            used = np.append(True, deltas[:-1] > _TAIL)
            deltas = np.maximum(deltas, _TAIL)
            return list(zip(epsilons[used].tolist(), deltas[used].tolist(), strict=True))
    return []


def _ask_profile(run: Mechanism, adjacency: Adjacency) -> list[tuple[float, float]]:
    """ε evenly from 0 to where δ is negligible, or hardly above what it never falls below."""
    end, last = _TAIL, math.inf
    # By the first method with an answer: a line that another would lower a little is a line too.
    for name in (*list(methods(run, adjacency))[:1], "best"):
        spent_at = functools.partial(pricing.delta, run, adjacency=adjacency, method=name)
        last_at = functools.partial(pricing.epsilon, run, adjacency=adjacency, method=name)
        if math.isfinite(last := float(last_at(_TAIL))):
            break
    else:
        end = float(np.asarray(spent_at(_FAR))) + _TAIL
        last = float(last_at(end)) if end < 1 else math.inf
    if not math.isfinite(last):
        return []
    known = profiles(run, adjacency, _TAIL)  # all at once, in both directions
    places = [0.0] if known else np.linspace(0.0, last, _ASKED_EPSILONS)[:-1].tolist()
    spent = map(spent_at, places)
    found = [(at, float(np.asarray(d))) for at, d in zip(places, spent, strict=True)]
    if known:
        worse = zip(known[0].epsilon, np.max([one.high for one in known], axis=0), strict=True)
        found += [(float(at), float(d)) for at, d in worse if 0 < at < last]
    return [*found, (last, end)]


def _fit_mu(epsilons: np.ndarray, spent: np.ndarray) -> float:
    """The least μ whose curve is below the lines."""
    from scipy.special import ndtri  # loaded here: it is slow to import

    with np.errstate(over="ignore"):
        slopes = np.exp(np.minimum(epsilons, 700.0))
    one, other = np.triu_indices(len(slopes), 1)
    rises = slopes[other] > slopes[one]
    one, other = one[rises], other[rises]
    corners = (spent[one] - spent[other]) / (slopes[other] - slopes[one])
    # The last line's piece begins where the first of the others falls below it.
    ends = corners[other == len(slopes) - 1]
    corners = corners[(corners > 0) & (corners < 1) & (corners >= np.min(ends, initial=1.0))]
    heights = np.max(1 - spent[:, None] - slopes[:, None] * corners, axis=0)
    # The curve is symmetric: corners beyond its middle repeat those before it, and there is one.
    middle = np.max((1 - spent) / (1 + slopes))
    good = (heights >= corners) & (heights < 1)
    corners, heights = np.append(corners[good], middle), np.append(heights[good], middle)
    # Φ⁻¹(1 − α) − Φ⁻¹(f), by the small numbers, whose digits are known.
    return float(np.max(-ndtri(corners) - ndtri(heights), initial=0.0)) * _UP + 0.0


def _find_regret(epsilons: np.ndarray, spent: np.ndarray, mu: float) -> float:
    """The most, along (1, 1), from the curve of μ to the lines, rounded up by the points' distance.

    Where α − β = u both curves are met once; in u each has a slope of at most 1/2, so that between
    two points the distance is off by no more than theirs.
    """
    if not math.isfinite(mu):
        return 0.0
    from scipy.special import ndtr, ndtri  # loaded here: it is slow to import

    u = np.linspace(-1.0, 0.0, _POINTS)
    slopes = np.exp(np.minimum(epsilons, 700.0))[:, None]
    own = np.max(np.maximum((1 - spent[:, None] + u) / (1 + slopes), 0.0), axis=0)
    low, high = np.zeros_like(u), np.ones_like(u)
    for _ in range(50):  # α − G_μ(α) rises
        middle = 0.5 * (low + high)
        above = middle - ndtr(-ndtri(middle) - mu) > u
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return float(np.max(own - low)) + 1.0 / (_POINTS - 1)
