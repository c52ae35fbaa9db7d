"""The parameter that keeps a risk of the best attack: an advantage, a rate, a Bayes risk."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike

from dpjax._numerics import checks
from dpjax._numerics.arrays import NUMPY
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers import pricing, query
from dpjax.accounting.answers.risks import bound_success, strongest_attack
from dpjax.accounting.answers.root_search import Calibration, CalibrationQuestion
from dpjax.accounting.errors import ImpossibleBudget
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.typing import Answer

_LINES = 6  # of lines at one ε each; three are usual
_FULL = 1e-6  # of a true-positive rate: what is not worth another round


class _Risk(NamedTuple):
    """A risk that the best attack may reach, by the name of its argument, and where it is read."""

    name: str
    value: float
    at: float  # the false-positive rate, or the smaller prior; 0 of the advantage

    def solve(self, question: CalibrationQuestion, bounds: tuple[float, float] | None) -> float:
        """The parameter that keeps the risk."""
        if self.name == "true_positive_rate":
            return self._solve_rate(question, bounds)
        epsilon, allowed = 0.0, self.value  # an advantage is δ(0)
        if self.name == "bayes_risk":
            # The errors of the best attack are m(1 − δ(ln((1 − m)/m))) (the minimum of
            # m·P(miss) + (1 − m)·P(false alarm) is m minus m times a hockey stick): ε is rounded
            # down, where δ is larger, and the δ allowed too.
            odds = math.log((1 - self.at) / self.at)
            epsilon = max(odds - 4e-16 * (1 + odds), 0.0)
            allowed = max(1 - self.value / self.at - 4 * math.ulp(1.0), 1e-300)
        try:
            return _keep_delta(question, epsilon, allowed, bounds)
        except ImpossibleBudget as refusal:
            run = question.make(refusal.parameter)
            least = float(np.asarray(pricing.delta(run, epsilon, adjacency=question.adjacency)))
            raise self._refuse(refusal, self.at * (1 - least) if self.at else least) from None

    def _refuse(self, refusal: ImpossibleBudget, reachable: float) -> ImpossibleBudget:
        """The same refusal in terms of the risk."""
        most = "largest" if self.name == "bayes_risk" else "smallest"
        new = ImpossibleBudget(
            f"{self.name}={self.value:g} cannot be reached: the {most} reachable {self.name} is "
            f"{reachable:.6g}, at parameter {refusal.parameter:.6g}; lower the steps or the "
            "sampling rate, raise the noise, or allow more risk"
        )
        new.beyond, new.reachable, new.parameter = refusal.beyond, reachable, refusal.parameter
        return new

    def _solve_rate(
        self, question: CalibrationQuestion, bounds: tuple[float, float] | None
    ) -> float:
        """The parameter at which the best attack finds so many records.

        At a fixed ε the line e^ε α + δ(ε) ≤ TPR asks for a δ. Whatever ε, its answer keeps the
        risk; the ε whose line is the lowest there gives a fuller one, and so on. The distance to
        the best ε enters squared, so that a few rounds are enough where δ is smooth.
        """
        # The curve is symmetric: TPR t at FPR α is kept where 1 − α at 1 − t is.
        alpha, rate = min(self.at, 1 - self.value), min(self.value, 1 - self.at)
        # The ε that is right of a Gaussian mechanism with this curve, whose threshold is x.
        x = -float(NUMPY.ndtri(alpha))
        mu = x + float(NUMPY.ndtri(rate))  # of the curve through (α, rate): Φ⁻¹(rate) − Φ⁻¹(α)
        epsilon, answer = max(mu * (x - mu / 2), 0.0), None
        with contextlib.suppress(ImpossibleBudget):  # by this line; another may keep it
            for _ in range(_LINES):
                # Rounded down: e^ε to an ulp, α to half an ulp of 1.
                spare = rate * (1 - 4e-16) - math.exp(epsilon) * (alpha * (1 + 8e-16) + 1.2e-16)
                answer = _keep_delta(question, epsilon, max(spare, 1e-300), bounds, answer)
                lower = _lower_line(question, answer, alpha, epsilon, mu)
                if lower is None:
                    break
                if lower[0] > rate * (1 - _FULL) or abs(lower[1] - epsilon) <= 1e-6 * epsilon:
                    return answer
                epsilon = lower[1]
        return self._solve_by_attacks(question, bounds, answer, alpha, rate)

    def _solve_by_attacks(
        self,
        question: CalibrationQuestion,
        bounds: tuple[float, float] | None,
        start: float | None,
        alpha: float,
        rate: float,
    ) -> float:
        """The same where the lowest line moves with the parameter: by all ε at every parameter."""
        goal = float(NUMPY.ndtri(rate) - NUMPY.ndtri(alpha))  # in units of μ, which falls evenly

        def attack(run: Mechanism) -> float:
            how = {"method": question.method, "near": 1e-7, "queries": 60}
            return strongest_attack(run, alpha, question.adjacency, **how)[0]

        def measure(run: Mechanism) -> float:
            found = attack(run)
            cost = max(float(NUMPY.ndtri(found) - NUMPY.ndtri(alpha)), 0.0)
            # Decided by the risk itself, whatever the rounding of the cost.
            return min(cost, goal) if found <= rate else max(cost, math.nextafter(goal, math.inf))

        begin = None if start is None else np.asarray(start)
        asked = question._replace(measure=measure)
        try:
            return float(Calibration(asked, np.asarray(goal), bounds, begin).solve()[0])
        except ImpossibleBudget as refusal:
            least = attack(question.make(refusal.parameter))
            raise self._refuse(refusal, least if alpha == self.at else 1 - alpha) from None


def _keep_delta(
    question: CalibrationQuestion,
    epsilon: float,
    most: float,
    bounds: tuple[float, float] | None,
    start: float | None = None,
) -> float:
    """The last parameter at which δ(ε) is at most this.

    The cost is the μ of the Gaussian mechanism with that δ, which falls with the noise as ε does.
    """
    goal = gaussian_dp.mu(epsilon, most)  # rounded down

    def measure(run: Mechanism) -> Answer:
        spent = _ask_delta(question, run, epsilon)
        cost = gaussian_dp.mu(epsilon, spent)
        # Decided by δ itself, whatever the rounding of μ.
        return min(cost, goal) if spent <= most else max(cost, math.nextafter(goal, math.inf))

    begin = None if start is None else np.asarray(start)
    asked = question._replace(measure=measure)
    return float(Calibration(asked, np.asarray(goal), bounds, begin).solve()[0])


def _ask_delta(question: CalibrationQuestion, run: Mechanism, epsilon: float) -> float:
    """δ(ε), remembered: a round begins where the one before has asked."""
    query = pricing.delta, run, epsilon, question.adjacency, question.method
    try:
        return _cached_delta(*query)
    except TypeError:  # a field that is an array has no hash
        return _cached_delta.__wrapped__(*query)


@functools.lru_cache(maxsize=64)
def _cached_delta(
    query: Callable[..., Answer], run: Mechanism, epsilon: float, adjacency: Adjacency, method: str
) -> float:
    return float(np.asarray(query(run, epsilon, adjacency=adjacency, method=method)))


def _lower_line(
    question: CalibrationQuestion, value: float, alpha: float, epsilon: float, mu: float
) -> tuple[float, float] | None:
    """The line e^ε α + δ(ε) that is about the lowest at a parameter, and its ε; None of a kinked δ.

    Found by a parabola through log δ at three ε, if what it says is met within 1e-4.
    """
    run = question.make(value)
    step = 0.1 * min(mu, 3.0)
    middle = max(epsilon, step)
    places = np.asarray([middle - step, middle, middle + step])
    spent = np.asarray([_ask_delta(question, run, at) for at in places.tolist()])
    if not np.all(spent > 0):
        return None
    curve = np.polynomial.Polynomial.fit(places, np.log(spent), 2)
    near = np.linspace(max(middle - 4 * step, 0.0), middle + 4 * step, 4001)
    lines = np.exp(near) * alpha + np.exp(np.minimum(curve(near), 0.0))
    least = int(np.argmin(lines))
    found = bound_success(float(near[least]), _ask_delta(question, run, float(near[least])), alpha)
    if abs(found - lines[least]) > 1e-4 * found:
        return None
    return min((found, float(near[least])), (bound_success(middle, float(spent[1]), alpha), middle))


def read_risk(
    epsilon: ArrayLike | None,
    delta: ArrayLike | None,
    advantage: float | None,
    rate: float | None,
    alarms: float | None,
    errors: float | None,
    prior: float | None,
) -> _Risk | None:
    """The risk that was given, None where it is ε and δ; refuses several and none."""
    groups = {
        "epsilon and delta": (epsilon, delta),
        "advantage": (advantage,),
        "true_positive_rate and false_positive_rate": (rate, alarms),
        "bayes_risk and prior": (errors, prior),
    }
    given = [name for name, values in groups.items() if any(v is not None for v in values)]
    if len(given) != 1 or any(v is None for v in groups[given[0]]):
        wanted = ", or ".join(groups)
        raise ValueError(f"give {wanted}; got {' and '.join(given) or 'none of them'}")
    if epsilon is not None:
        return None
    if advantage is not None:
        value = checks.one_number("advantage", advantage, query.PROBABILITY)
        return _Risk("advantage", value, 0.0)
    if rate is not None:
        at = checks.one_number("false_positive_rate", alarms, query.PROBABILITY)
        above = checks.Range(at, 1.0, True, True)
        value = checks.one_number("true_positive_rate", rate, above)
        return _Risk("true_positive_rate", value, at)
    prior = checks.one_number("prior", prior, query.PROBABILITY)
    least = min(prior, 1 - prior)
    below = checks.Range(0.0, least, True, True)
    return _Risk("bayes_risk", checks.one_number("bayes_risk", errors, below), least)
