"""Gaussian differential privacy: the privacy of telling N(0, 1) from N(μ, 1).

A mechanism is μ-GDP when distinguishing two neighbouring inputs from its output is at least as
hard as distinguishing N(0, 1) from N(μ, 1) (Dong, Roth and Su 2022). One Gaussian release of
sensitivity Δ and standard deviation s is exactly μ = Δ/s; k of them are exactly μ = √(Σ μᵢ²).

Arguments broadcast against each other and every function works under jit, vmap and grad; it is
evaluated in float64 whatever the caller's default. Every δ and ε is rounded up, every trade-off
curve and every calibrated μ down. Under a trace what is out of range is no privacy: ε = +inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics import float64
from dpjax._numerics.arrays import Numbers, NumbersLike, Values, namespace
from dpjax._numerics.checks import Range, number
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.gaussian import pair
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.mechanisms.validity import validate
from dpjax.accounting.method import Method
from dpjax.accounting.pairs.atoms import GroupedSteps, has_attained_atoms, only_gaussian, query
from dpjax.accounting.typing import Answer

Releases = Float[ArrayLike, "... releases"]

_NOT_NEGATIVE, _PROBABILITY = Range(0.0, infinite=True), Range(0.0, 1.0)
_RANGES = {
    "mu": _NOT_NEGATIVE,
    "mus": _NOT_NEGATIVE,
    "epsilon": _NOT_NEGATIVE,
    "any_epsilon": Range(infinite=True),
    "delta": _PROBABILITY,
    "false_positive_rate": _PROBABILITY,
    "orders": Range(1.0, open_low=True, infinite=True),
}


def _ask(core: Callable, rounding: float64.Rounding, ndim: int = 0, **given: NumbersLike) -> Answer:
    """The core's answer in float64, its arguments checked against the ranges of their names."""
    values = [
        number(name.removeprefix("any_"), value, _RANGES[name]) for name, value in given.items()
    ]
    found = float64.evaluate(core, values, (ndim,) * len(values), batch=512, rounding=rounding)
    return float64.to_float(found)


def log_delta(mu: Values, epsilon: Values) -> Answer:
    """log of the privacy profile of μ-GDP, for values of δ below the smallest float."""
    return _ask(pair.pair_log_delta, "up", mu=mu, any_epsilon=epsilon)


def delta(mu: Values, epsilon: Values) -> Answer:
    """Privacy profile of μ-GDP: the smallest δ for which μ-GDP implies (ε, δ).

    δ_G(μ, ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).

    References:
        Balle, Wang 2018, Theorem 8.
    """
    return _ask(pair.pair_delta, "up", mu=mu, any_epsilon=epsilon)


def epsilon(mu: Values, delta: Values) -> Answer:
    """Smallest ε ≥ 0 for which μ-GDP implies (ε, δ), rounded up.

    The root of δ_G(μ, ε) = δ by Newton's method; its derivative is exact, by the implicit function
    theorem.

    References:
        Balle, Wang 2018, Theorem 8.
    """
    return _ask(pair.pair_epsilon, "up", mu=mu, delta=delta)


def mu(epsilon: Values, delta: Values) -> Answer:
    """Largest μ for which μ-GDP implies (ε, δ), rounded down.

    The root of δ_G(μ, ε) = δ. A Gaussian release of sensitivity Δ is (ε, δ)-private exactly when
    its standard deviation is at least Δ/μ(ε, δ): rounding μ down never overshoots the budget.

    References:
        Balle, Wang 2018, Algorithm 1 (the analytic Gaussian mechanism).
    """
    return _ask(pair.pair_mu, "down", epsilon=epsilon, delta=delta)


def compose(mus: Releases) -> Answer:
    """GDP parameter of an adaptive composition, over the last axis: √(Σ μᵢ²), exactly.

    References:
        Dong, Roth, Su 2022, Corollary 2.
    """
    return _ask(_add_squares, "up", 1, mus=mus)


def _add_squares(mus: Array) -> Array:
    xp = namespace(mus)
    scale = xp.max(mus, axis=-1)  # so that no square overflows
    plain = (scale > 0) & xp.isfinite(scale)
    safe = xp.where(plain, scale, 1.0)
    # The square root of exactly 0 has no derivative.
    squares = xp.where(plain, xp.sum(xp.square(mus / safe), axis=-1), 1.0)
    value = xp.where(plain, safe * xp.sqrt(squares), scale)  # 0 and ∞ are their own sums
    return xp.where(xp.all(mus >= 0, axis=-1), value, xp.inf)


def rdp(mu: Values, orders: Values) -> Answer:
    """Rényi divergence of order α > 1 of μ-GDP: α μ²/2.

    References:
        Mironov 2017, Corollary 3.
    """
    return _ask(_rdp, "up", mu=mu, orders=orders)


def _rdp(mu: Array, order: Array) -> Array:
    xp = namespace(mu, order)
    return xp.where((mu >= 0) & (order > 1), order * xp.square(mu) / 2, xp.inf)


def tradeoff(mu: Values, false_positive_rate: Values) -> Answer:
    """Trade-off curve of μ-GDP, rounded down: least false-negative at a false-positive rate.

    G_μ(a) = Φ(Φ⁻¹(1 − a) − μ): no attack that accuses the innocent with probability a misses the
    guilty less often than this.

    References:
        Dong, Roth, Su 2022, Definition 2.6.
    """
    return _ask(pair.pair_tradeoff, "down", mu=mu, false_positive_rate=false_positive_rate)


def true_positive_rate(mu: Values, false_positive_rate: Values) -> Answer:
    """Most a membership attack can catch at a false-positive rate: Φ(Φ⁻¹(a) + μ), rounded up."""
    return _ask(_caught, "up", mu=mu, false_positive_rate=false_positive_rate)


def _caught(mu: Array, rate: Array) -> Array:
    xp = namespace(mu, rate)
    known = (rate > 0) & (rate < 1) & (mu >= 0) & (mu < xp.inf)
    shift = xp.ndtri(xp.where(known, rate, 0.5)) + xp.where(known, mu, 0.0)  # Φ⁻¹(a) + μ
    value = xp.minimum(pair.normal_cdf(shift) * (1 + 1e-12), 1.0)
    return xp.where(known, value, xp.where((rate == 0) & (mu >= 0) & (mu < xp.inf), 0.0, 1.0))


def advantage(mu: Values) -> Answer:
    """Largest membership advantage (true minus false-positive rate), rounded up: 2Φ(μ/2) − 1."""
    return _ask(_advantage, "up", mu=mu)


def _advantage(mu: Array) -> Array:
    xp = namespace(mu)
    return xp.where(mu >= 0, xp.minimum(xp.erf(mu / math.sqrt(8)) * (1 + 1e-12), 1.0), 1.0)


def approximate_tradeoff(epsilon: Values, delta: Values, false_positive_rate: Values) -> Answer:
    """Trade-off curve of (ε, δ)-differential privacy, rounded down.

    f(a) = max(0, 1 − δ − e^ε a, e^{−ε}(1 − δ − a)).

    References:
        Wasserman, Zhou 2010; Dong, Roth, Su 2022, Equation 5.
    """
    return _ask(
        two_lines, "down", epsilon=epsilon, delta=delta, false_positive_rate=false_positive_rate
    )


def two_lines(epsilon: Array, delta: Array, rate: Array) -> Array:
    """Return the least false-negative rate under (ε, δ), rounded down; float64 only."""
    xp = namespace(epsilon, delta, rate)
    steep = xp.where(rate > 0, 1 - delta - xp.exp(epsilon) * rate, 1 - delta)  # 0·∞ is 0
    value = xp.maximum(steep, xp.exp(-epsilon) * (1 - delta - rate)) * (1 - 1e-12)  # rounded down
    known = (epsilon >= 0) & (delta >= 0) & (rate >= 0)
    return xp.where(known, xp.clip(value, 0.0, 1.0), 0.0)


# --- as a method: runs made of Gaussian releases only -------------------------------------------


def _total_mu(atoms: GroupedSteps, adjacency: Adjacency) -> Array:
    # The square root of exactly 0 has no derivative: a run that releases nothing.
    xp = namespace(atoms)
    mu2 = atoms.gaussian_mu2
    return xp.where(mu2 > 0, xp.sqrt(xp.where(mu2 > 0, mu2, 1.0)) * (1 + 1e-15), 0.0)


def _epsilon_kernel(atoms: GroupedSteps, adjacency: Adjacency, delta: Array) -> Array:
    return pair.pair_epsilon(_total_mu(atoms, adjacency), delta)


def _lower_kernel(atoms: GroupedSteps, adjacency: Adjacency, delta: Array) -> Array:
    # The upper bound is off by at most about 1e-12 in μ and in log δ.
    return pair.pair_epsilon(_total_mu(atoms, adjacency) * (1 - 1e-12), delta * (1 + 1e-11)) * (
        1 - 1e-12
    )


def _gaussian_lower(run: Mechanism, delta: NumbersLike, adjacency: Adjacency) -> Numbers:
    """A lower end, of N(0, 1) against N(μ, 1), as neighbours attain that differ in one vector."""
    value = _as_method_part(_lower_kernel, rounding="down")(run, delta, adjacency)
    return value if has_attained_atoms(run) else 0 * value  # 0 in the shape of the sweep


def _delta_kernel(atoms: GroupedSteps, adjacency: Adjacency, epsilon: Array) -> Array:
    return pair.pair_delta(_total_mu(atoms, adjacency), epsilon)


def _tradeoff_kernel(atoms: GroupedSteps, adjacency: Adjacency, rates: Array) -> Array:
    xp = namespace(atoms, rates)
    return pair.pair_tradeoff(xp.broadcast_to(_total_mu(atoms, adjacency), rates.shape), rates)


def _as_method_part(
    kernel: Callable[..., Numbers], ndim: int = 0, rounding: float64.Rounding = "up"
) -> Callable[[Mechanism, NumbersLike, Adjacency], Numbers]:
    def ask(run: Mechanism, given: NumbersLike, adjacency: Adjacency) -> Numbers:
        return query(kernel, run, adjacency, (given,), (ndim,), batch=64, rounding=rounding)

    return ask


def gdp_mu(
    run: Mechanism, *, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> float | np.ndarray | Array:
    """The GDP parameter of a run of Gaussian releases, exact up to rounding up.

    Raises:
        UnsupportedQuery: the run has releases that are not dominated by a Gaussian pair.

    Example:
        >>> from dpjax import accounting as acc
        >>> from dpjax.accounting.gaussian.gaussian_dp import gdp_mu
        >>> round(gdp_mu(acc.Repeated(acc.Gaussian(2.0), 100)), 12)
        5.0

    References:
        Dong, Roth, Su 2022, Corollary 2.
    """
    validate(run)
    adjacency = Adjacency(adjacency)
    if not only_gaussian(run, adjacency):
        raise UnsupportedQuery(
            f"{type(run).__name__} is not a run of Gaussian releases; acc.tradeoff and acc.epsilon "
            "answer for sampled ones"
        )
    return float64.to_float(query(_total_mu, run, adjacency))


GDP_METHODS = (
    Method(
        "gdp",
        rank=3.0,
        tight=True,
        complete=True,
        supports=only_gaussian,
        epsilon=_as_method_part(_epsilon_kernel),
        delta=_as_method_part(_delta_kernel),
        epsilon_lower=_gaussian_lower,
        tradeoff=_as_method_part(_tradeoff_kernel, 1, "down"),
        describe="exact Gaussian DP, composed by adding μ² (Dong, Roth and Su 2022)",
    ),
)
