"""The parameter that spends a privacy budget and no more."""

from __future__ import annotations

import contextlib
import math

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._argument_names import suggests_argument_names
from dpjax._numerics import checks, float64
from dpjax._numerics.arrays import Numbers, namespace, with_derivative
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers import pricing, query
from dpjax.accounting.answers.calibrated_risk import read_risk
from dpjax.accounting.answers.methods import describe
from dpjax.accounting.answers.root_search import (
    Calibration,
    CalibrationQuestion,
    MakeMechanism,
    is_whole,
)
from dpjax.accounting.errors import ImpossibleBudget, UnsupportedQuery


def _solve(
    question: CalibrationQuestion, target: np.ndarray, bounds: tuple[float, float] | None
) -> np.ndarray:
    """The last parameters that keep the targets.

    A method may have answers again beyond parameters at which it has none. Where those end the
    search, it begins once more where the best method's answers keep the budget.
    """
    best = question._replace(method="best")
    try:
        found, cut = Calibration(question, target, bounds).solve()
    except ImpossibleBudget as refusal:
        if question.method == "best" or np.isfinite(refusal.reachable):
            raise
        full = Calibration(best, target, bounds).solve()[0]
        try:
            return Calibration(question, target, bounds, full).solve()[0]
        except ValueError:
            raise _no_answer(question, full, target) from refusal
    if question.method == "best" or not np.any(cut):
        return found
    with contextlib.suppress(ValueError, UnsupportedQuery):  # the first keeps the budget too
        full = Calibration(best, target, bounds).solve()[0]
        again = Calibration(question, target, bounds, full).solve()[0]
        nearer = abs(np.log(again / full)) < abs(np.log(found / full))
        return np.where(cut & nearer, again, found)
    return found


def _no_answer(
    question: CalibrationQuestion, full: np.ndarray, target: np.ndarray
) -> UnsupportedQuery:
    """What is said where a method has no answer about parameters that keep the budget."""
    one = int(np.argmax(question.upper(full)))  # the setting that is furthest from an answer
    value, chance = (
        float(np.broadcast_to(v, full.shape).flat[one]) for v in (full, question.delta)
    )
    run = question.make(value)
    able = pricing.price(run, chance, adjacency=question.adjacency)[1]
    return UnsupportedQuery(
        f"{describe(run)} has no epsilon by method {question.method!r} about parameter "
        f"{value:.6g}, where epsilon={target.flat[one]:g} is kept; method={able.name!r} answers"
    )


def _check_bounds(bounds: tuple[float, float] | None) -> tuple[float, float] | None:
    if bounds is None:
        return None
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise TypeError(f"bounds must be two numbers, got {checks.render(bounds)}")
    low, high = (checks.one_number("bounds", end, checks.POSITIVE) for end in bounds)
    if not low < high:  # also where an end is NaN
        raise ValueError(f"bounds must rise, got {checks.render(bounds)}")
    return low, high


@suggests_argument_names
def calibrate(
    make_mechanism: MakeMechanism,
    epsilon: Float[ArrayLike, "..."] | None = None,
    delta: Float[ArrayLike, "..."] | None = None,
    *,
    advantage: float | None = None,
    true_positive_rate: float | None = None,
    false_positive_rate: float | None = None,
    bayes_risk: float | None = None,
    prior: float | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
    bounds: tuple[float, float] | None = None,
) -> float | int | np.ndarray | Array:
    """The parameter that spends a budget, (ε, δ) or a risk, as fully as possible and never more.

    The parameter may be anything positive that ε is monotone in, rising or falling: a noise
    multiplier, a rate, a number of steps, a batch size. The direction is found by itself. The
    answer is the last float32 value (exact in float64 too) that keeps the budget, priced as it is
    returned, so casting it in a float32 program does not overshoot; whole parameters (such as
    steps) come back as integers. Where bounds are not monotone, since they are a grid's, it is one
    that keeps the budget while the next does not.

    Calibrate before the first release: a noise level chosen after seeing outputs is not covered by
    the composed price of the whole (see `Composed`).

    A risk is what the best attack may reach that tells two neighbours apart by what is released:

        advantage             max over attacks of TPR − FPR  =  δ(0)
        Bayes risk at prior π  min over attacks of the share of errors  =  m(1 − δ(ln((1 − m)/m))),
                              m = min(π, 1 − π)
        TPR at FPR α          min over ε ≥ 0 of e^ε α + δ(ε), where α is at most 1 − TPR

    each exact for the run's trade-off curve, and an upper bound of the risk by the bounds of δ(ε).

    Args:
        make_mechanism: from the parameter to the mechanism. For array targets it is called with
            arrays, one value per target.
        epsilon, delta: the budget; arrays give an answer for each target. Or, each one number:
        advantage: the most that a membership attack's true-positive rate may exceed its
            false-positive rate by, in (0, 1).
        true_positive_rate, false_positive_rate: the most records that an attack may find, at this
            share of false alarms; the first above the second.
        bayes_risk, prior: the least share of errors that an attack must make where a record is in
            the data with probability `prior`; below min(prior, 1 − prior), which a guess has.
        adjacency, method: as in `epsilon`.
        bounds: search between these parameters only; by default everything from 2^-40 to 2^40 (from
            1 for whole parameters) that the mechanism accepts.

    Returns:
        A float or int, or an array of the targets' shape. Under a trace a traced value that
        differentiates in ε and δ by the implicit function theorem; where no parameter keeps the
        budget it is the end that spends nothing, +inf or 0.
        A budget that every parameter keeps takes the end that costs most: of noise the least, where
        δ is above the chance that a record is drawn at all. Such a δ protects no record.

    Raises:
        ImpossibleBudget: no parameter keeps the budget; says the smallest reachable ε or risk.
        UnsupportedQuery: the method has no answer at the parameters that keep the budget, or for
            the mechanism at all; says which has.
        TypeError, ValueError: no budget, or several, ε <= 0, δ outside (0, 1), a risk that a guess
            exceeds, bounds that are no two rising positive numbers, no mechanism made, or ε shown
            not to be monotone in the parameter.

    Example:
        >>> from dpjax import accounting as acc
        >>> make = lambda s: acc.Repeated(acc.PoissonSampled(acc.Gaussian(s), 0.01), 1_000)
        >>> sigma = acc.calibrate(make, epsilon=2.0, delta=1e-5, method="rdp")
        >>> round(sigma, 3), acc.epsilon(make(sigma), 1e-5, method="rdp") <= 2.0
        (1.022, True)
        >>> acc.calibrate(lambda t: acc.Repeated(acc.Gaussian(8.0), t), 2.0, 1e-5, method="rdp")
        13
        >>> round(acc.calibrate(acc.Gaussian, advantage=0.1), 2)
        3.98
        >>> round(acc.calibrate(acc.Gaussian, true_positive_rate=0.05, false_positive_rate=0.01), 2)
        1.47

    References:
        Kulynych, Gomez, Kaissis, du Pin Calmon, Troncoso 2024, "Attack-aware noise calibration for
        differential privacy", Sections 3.1 and 3.2; Dong, Roth, Su 2022, Proposition 2.12.
    """
    adjacency = pricing.check_adjacency(adjacency)
    risks = (advantage, true_positive_rate, false_positive_rate, bayes_risk, prior)
    risk = read_risk(epsilon, delta, *risks)
    if not callable(make_mechanism):
        raise TypeError(
            "make_mechanism must be a function from a number to a mechanism, "
            f"got {checks.render(make_mechanism)}"
        )
    bounds = _check_bounds(bounds)
    if risk is not None:
        whole = is_whole(make_mechanism)
        question = CalibrationQuestion(make_mechanism, whole, math.nan, adjacency, method)
        found = risk.solve(question, bounds)
        return int(found) if whole else found
    budget = checks.number("epsilon", epsilon, checks.POSITIVE)
    chance = checks.number("delta", delta, query.PROBABILITY)
    if float64.is_traced(budget, chance):
        return _calibrate_traced(make_mechanism, budget, chance, adjacency, method, bounds)
    for name, value in (("epsilon", budget), ("delta", chance)):
        if np.size(np.asarray(value)) == 0:
            raise ValueError(
                f"{name} must be a number or a non-empty array of numbers, got {value!r}"
            )
    target, probability = np.broadcast_arrays(
        np.asarray(budget, np.float64), np.asarray(chance, np.float64)
    )
    probability = probability if probability.ndim else float(probability)
    question = CalibrationQuestion(
        make_mechanism, is_whole(make_mechanism), probability, adjacency, method
    )
    answer = _solve(question, target, bounds)
    answer = answer.astype(np.int64) if question.whole else answer
    return answer if answer.ndim else answer.item()


def _calibrate_traced(
    make: MakeMechanism,
    epsilon: ArrayLike,
    delta: ArrayLike,
    adjacency: Adjacency,
    method: str,
    bounds: tuple[float, float] | None,
) -> Array:
    """Calibration under the user's trace: the search on the host, the derivative implicit."""
    xp = namespace(make, epsilon, delta, method, bounds)
    dtype = xp.zeros(()).dtype

    def one(target: float, probability: float) -> query.Answer:
        # A trace cannot raise. No parameter keeps what is no budget either.
        if not (0 < target < np.inf and 0 < probability < 1):
            target, probability = 1e-300, 1e-200
        try:
            return calibrate(
                make, target, probability, adjacency=adjacency, method=method, bounds=bounds
            )
        except ImpossibleBudget as refusal:
            return refusal.beyond
        except UnsupportedQuery as refusal:
            if isinstance(refusal.__cause__, ImpossibleBudget):
                return refusal.__cause__.beyond
            raise

    def host(target: Numbers, probability: Numbers) -> np.ndarray:
        rows = np.broadcast(np.asarray(target, np.float64), np.asarray(probability, np.float64))
        answers = [one(float(e), float(d)) for e, d in rows]
        return np.asarray(answers, dtype).reshape(rows.shape)

    @with_derivative
    def solved(target: Array, probability: Array) -> Array:
        shape = xp.broadcast_shapes(target.shape, probability.shape)
        spec = jax.ShapeDtypeStruct(shape, dtype)
        return float64.ask_in_float64(host, None, spec, (target, probability))

    @solved.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple:
        answer = solved(*primals)

        def price(value: Array, probability: Array) -> Array:
            return xp.asarray(
                pricing.epsilon(make(value), probability, adjacency=adjacency, method=method)
            )

        found = xp.isfinite(answer) & (answer > 0)
        value, ones = xp.where(found, answer, 1.0), xp.ones_like(answer)
        probability = xp.broadcast_to(primals[1], answer.shape)
        _, by_value = jax.jvp(lambda v: price(v, probability), (value,), (ones,))
        _, by_delta = jax.jvp(lambda d: price(value, d), (probability,), (ones,))
        found = found & (by_value != 0)
        change = (tangents[0] - by_delta * tangents[1]) / xp.where(found, by_value, 1.0)
        return answer, xp.where(found, change, 0.0)

    return solved(xp.asarray(epsilon).astype(dtype), xp.asarray(delta).astype(dtype))
