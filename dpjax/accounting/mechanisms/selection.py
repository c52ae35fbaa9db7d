"""Private tuning: releasing the best of a random number of runs (Papernot and Steinke 2022).

Running a private algorithm k times and keeping the best run, k fixed, costs almost k runs. If k is
random and not revealed, it costs little more than one or two. Draw k with `draw_trials`, use fresh
randomness (and possibly a random candidate from a fixed list of settings) in each run, release
only the best by a score that is computed inside the run's guarantee, and certify `BestOf` the run.
If settings differ in their cost, the run's mechanism must cover the costliest.

The tight price, from one run's privacy profile, is in `accounting/best_of.py`, that of runs of
which only a Rényi curve is known in `renyi/method.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from dpjax._numerics import checks
from dpjax._numerics.arrays import Numbers, namespace
from dpjax.accounting.mechanisms.base import (
    FieldRelation,
    Mechanism,
    Real,
    choice_field,
    number_field,
    register_mechanism,
)

FIXED = "fixed"
_LAWS = ("geometric", "logarithmic", "poisson", FIXED)


@register_mechanism
class BestOf(Mechanism):
    """The best of K runs of a mechanism, K random and secret; only the winner is released.

    K is truncated negative binomial of shape 1 (`"geometric"`) or 0 (`"logarithmic"`), at least 1,
    or `"poisson"`, which can be 0: something independent of the data is then released. `"fixed"` is
    always the same number, at about the price of releasing all runs.

    Fields:
        mechanism: one run, with the score that ranks it: computing the score on private data is
            part of the run and must be paid in it.
        expected_trials: E K, at least 1 (above 1 for `"logarithmic"`, a whole number for
            `"fixed"`); of `"poisson"` above 0.
        distribution: `"geometric"`, `"logarithmic"`, `"poisson"` or `"fixed"`.

    Guarantee:
        Every run draws fresh randomness and returns a result and a totally ordered score; settings
        are drawn independently of the data from a fixed list; K is drawn before and not told.

    Example:
        >>> from dpjax import accounting as acc
        >>> run = acc.Gaussian(4.0)
        >>> once, best = (acc.epsilon(m, 1e-5, method="rdp") for m in (run, acc.BestOf(run, 30.0)))
        >>> print(f"{once:.3f} {best:.3f} {acc.epsilon(acc.Repeated(run, 30), delta=1e-5):.3f}")
        1.012 2.442 6.326

    References:
        Papernot and Steinke 2022, Theorems 2 and 6 (with the outcome of no run); Koskela, Redberg
        and Wang 2024, whose bound by the profile is here taken without its estimates.
    """

    mechanism: Mechanism
    expected_trials: Real = number_field(open_low=True)
    distribution: str = choice_field(*_LAWS, default="geometric")

    def has_several_releases(self) -> bool:
        return True

    def relations(self) -> tuple[FieldRelation, ...]:
        expected = self.expected_trials
        if self.distribution == "poisson":
            return ()
        if self.distribution == "logarithmic":
            return (FieldRelation(("expected_trials",), expected > 1, "a finite number > 1", 2.0),)
        if self.distribution == FIXED:
            whole = (expected >= 1) & (expected % 1 == 0)
            return (FieldRelation(("expected_trials",), whole, "a whole number >= 1"),)
        return (FieldRelation(("expected_trials",), expected >= 1, "a finite number >= 1"),)

    released = (
        "the best of a secret {distribution} number of runs, {expected_trials} expected, of: "
        "{mechanism}"
    )
    rests_on = (
        "the number of runs is drawn from the stated law before the first, and stays secret "
        "with all runs but the best",
        "every run draws fresh randomness and a setting independent of the data, and its "
        "score is computed inside its own guarantee",
    )


def log_inverse_gamma(expected: Array, distribution: str) -> Array:
    """log(1/γ) of the truncated negative binomial law of this mean, rounded up.

    Geometric: E K = 1/γ. Logarithmic: E K = (1/γ − 1)/log(1/γ).

    References:
        Papernot and Steinke 2022, Definition 1.
    """
    xp = namespace(expected, distribution)
    if distribution == "geometric":  # E K = 1/γ
        return xp.log(expected)

    # Logarithmic: E K = (1/γ − 1)/log(1/γ), that is expm1(u)/u with u = log(1/γ).
    def halve(_: int, ends: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers]:
        low, high = ends
        middle = (low + high) / 2
        under = xp.expm1(middle) / middle < expected
        return xp.where(under, middle, low), xp.where(under, high, middle)

    # expm1(u)/u >= 1 + u/2 and >= e^{u/2}.
    mean = expected
    expected = xp.stop_gradient(expected)
    high = xp.minimum(2 * (expected - 1), 2 * xp.log(expected)) * (1 + 1e-12) + 1e-300
    u = xp.fori_loop(0, 80, halve, (high * 1e-12, high))[1]
    # A bisection has no derivative: that of the equation it solves, 2 at u = 0.
    small = u < 1e-4
    v = xp.where(small, 1.0, u)
    slope = xp.where(small, 2.0, v * v / (v * xp.exp(v) - xp.expm1(v)))
    return u + xp.stop_gradient(slope) * (mean - expected)


class Trials(NamedTuple):
    """The law of K by its generating function f(x) = E x^K, for NumPy.

    Every term is positive and formed without cancellation, off by a few units of roundoff, and of
    an exponential by one for every unit of its exponent.

    Fields:
        mean: f′(1).
        slope: a → f′(1 − a).
        bend: a → f″(1 − a).
        win: (a, p) → f(1 − a) − f(1 − a − p), the probability that the best outcome lies in a set
            of probability p that another of probability a is better than.
    """

    mean: float
    slope: Callable[[Real], Real]
    bend: Callable[[Real], Real]
    win: Callable[[Real, Real], Real]


def law_of_trials(best: BestOf) -> Trials:
    """The law of the number of runs of one setting.

    Example:
        >>> from dpjax import accounting as acc
        >>> law = law_of_trials(acc.BestOf(acc.Gaussian(4.0), 30.0))
        >>> round(float(law.slope(0.0)), 9), round(float(law.win(0.25, 0.75)), 9)
        (30.0, 0.090909091)
    """
    m = float(best.expected_trials)
    if best.distribution == "poisson":  # f(x) = e^{m(x − 1)}
        return Trials(
            m,
            lambda a: m * np.exp(-m * a),
            lambda a: m * m * np.exp(-m * a),
            lambda a, p: np.exp(-m * a) * -np.expm1(-m * p),
        )
    if best.distribution == FIXED:  # f(x) = x^m
        most = 1 - 2.0**-53  # the float below 1: log1p of −1 is −∞

        def power(a: Real, k: float) -> Real:
            return np.where(a < 1, np.exp(k * np.log1p(-np.minimum(a, most))), float(k == 0))

        def win(a: Real, p: Real) -> Real:
            # (1 − a)^m − (1 − a − p)^m, by the ratio of the two, so that nothing cancels.
            share = np.minimum(p / np.maximum(1 - a, 2.0**-53), most)
            return power(a, m) * -np.expm1(m * np.log1p(-share))

        return Trials(
            m,
            lambda a: m * power(a, m - 1),
            lambda a: m * (m - 1) * power(a, max(m - 2, 0.0)),
            win,
        )
    # γ = e^{−u}: of many trials it is small, and of few 1 − γ is, which expm1 keeps.
    u = float(log_inverse_gamma(np.float64(m), best.distribution))  # pyrefly: ignore
    gamma, rest = math.exp(-u), -math.expm1(-u)

    def under(a: Real) -> Real:
        return gamma + rest * a

    if best.distribution == "geometric":  # f(x) = γx/(1 − (1 − γ)x)
        return Trials(
            m,
            lambda a: gamma / under(a) ** 2,
            lambda a: 2 * gamma * rest / under(a) ** 3,
            lambda a, p: gamma * p / (under(a) * under(a + p)),
        )
    return Trials(  # f(x) = log(1 − (1 − γ)x)/log γ
        m,
        lambda a: m * gamma / under(a),
        lambda a: m * gamma * rest / under(a) ** 2,
        lambda a, p: np.log1p(rest * p / under(a)) / u,
    )


def trial_parameter(expected_trials: float, distribution: str = "geometric") -> float:
    """γ of the truncated negative binomial law whose mean is `expected_trials`.

    Args:
        expected_trials: E K >= 1.
        distribution: "geometric" or "logarithmic".

    References:
        Papernot and Steinke 2022, Definition 1.
    """
    checks.choice("distribution", distribution, _LAWS[:2])
    checks.number("expected_trials", expected_trials, checks.Range(1.0))
    expected = np.asarray(expected_trials, np.float64)
    return math.exp(-float(log_inverse_gamma(expected, distribution)))  # pyrefly: ignore


def draw_trials(key: PRNGKeyArray, best: BestOf) -> int:
    """How many runs to make: one draw of K. Keep it, and the losing runs, secret.

    Args:
        key: a JAX key, used once.
        best: the mechanism that will be certified.

    Example:
        >>> import jax
        >>> from dpjax import accounting as acc
        >>> best = acc.BestOf(acc.Gaussian(4.0), 30.0)
        >>> draws = [acc.draw_trials(key, best) for key in jax.random.split(jax.random.key(0), 400)]
        >>> min(draws) >= 1, 25 < sum(draws) / 400 < 35
        (True, True)
    """
    if not isinstance(best, BestOf):
        raise TypeError(f"best must be a BestOf, got {checks.render(best)}")
    typed = isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not (typed and key.shape == ()) and getattr(key, "dtype", None) != np.uint32:
        raise TypeError(f"key must be one JAX key, got {checks.render(key)}")
    seed = np.asarray(jax.random.key_data(key) if typed else key).ravel()
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed.tolist())))
    expected = float(best.expected_trials)
    if best.distribution == FIXED:
        return int(expected)
    if best.distribution == "poisson":
        return int(generator.poisson(expected))
    gamma = trial_parameter(expected, best.distribution)
    if best.distribution == "geometric":
        return int(generator.geometric(gamma))
    return int(generator.logseries(1.0 - gamma)) if gamma < 1 else 1
