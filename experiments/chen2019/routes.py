"""The noise that ways of accounting ask for: four of RSGD-AR's, and the bounds of 2019."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from dpjax import accounting as acc
from dpjax.accounting.gaussian import gaussian_dp

_Excess = Callable[[acc.Mechanism], float]
_MOMENTS = np.arange(2.0, 34.0)  # orders λ + 1 of the moments accountant, which stops at λ = 32


class Route(NamedTuple):
    """Noise standard deviation that each way of accounting asks for; smaller is better.

    Fields:
        classic: Rényi mixture (Proposition 3) with Mironov's conversion, as published.
        improved: the same curve with the conversion of Canonne, Kamath and Steinke (2020).
        worst_batch: max_j Δ_j with the exact Gaussian profile, ignoring that j is random.
        hockey_stick: Σ q_j δ_G(Δ_j/σ, ε), what `acc.epsilon` uses.
    """

    classic: float
    improved: float
    worst_batch: float
    hockey_stick: float

    @property
    def gain(self) -> float:
        """Of the published route over ours: (classic/improved) · (improved/hockey_stick)."""
        return self.classic / self.hockey_stick

    @property
    def from_conversion(self) -> float:
        """The part of the gain that better conversion of the same Rényi curve brings."""
        return self.classic / self.improved

    @property
    def from_mixture(self) -> float:
        """The part that mixing hockey sticks instead of Rényi moments brings."""
        return self.improved / self.hockey_stick


def noise_by_route(
    sensitivities: np.ndarray, weights: np.ndarray, *, epsilon: float, delta: float
) -> Route:
    """The noise that each way of accounting asks for at the same (ε, δ)."""

    def exact(run: acc.Mechanism) -> float:
        found = acc.delta(run, epsilon, adjacency=acc.Adjacency.REPLACE_ONE, method="hockey_stick")
        return float(np.log(max(found, 1e-300) / delta))

    target = {"epsilon": epsilon, "delta": delta}
    start = _worst_batch(sensitivities, **target)
    return Route(
        noise_as_published(sensitivities, weights, **target),
        _smallest(sensitivities, weights, start, _by_orders(classic=False, **target)),
        start,
        _smallest(sensitivities, weights, start, exact),
    )


def noise_as_published(
    sensitivities: np.ndarray, weights: np.ndarray, *, epsilon: float, delta: float
) -> float:
    """The noise by Proposition 3 and the conversion of 2017."""
    start = _worst_batch(sensitivities, epsilon=epsilon, delta=delta)
    excess = _by_orders(classic=True, epsilon=epsilon, delta=delta)
    return _smallest(sensitivities, weights, start, excess)


def _worst_batch(sensitivities: np.ndarray, *, epsilon: float, delta: float) -> float:
    return float(np.max(sensitivities)) / gaussian_dp.mu(epsilon, delta)


def _smallest(sensitivities, weights, start: float, excess: _Excess) -> float:
    """The noise at which `excess`, which falls with it, is zero."""

    def at(log_share: float) -> float:
        noise = start * np.exp(log_share)
        return excess(acc.RandomizedSensitivity(sensitivities, weights, noise))

    return start * float(np.exp(brentq(at, -4.0, 1.0, xtol=1e-11)))


def _by_orders(*, classic: bool, epsilon: float, delta: float) -> _Excess:
    """ln(ε by the best Rényi order / ε)."""

    def excess(run: acc.Mechanism) -> float:
        def bound(log_order: np.ndarray) -> np.ndarray:
            orders = 1 + np.exp(log_order)
            curve = acc.rdp(run, orders, adjacency=acc.Adjacency.REPLACE_ONE)
            return np.asarray(acc.rdp_to_epsilon(orders, curve, delta, classic=classic))

        logs, width = np.linspace(-8.0, 20.0, 57), 0.5
        for _ in range(3):  # a narrower grid about the best order
            logs = logs[np.argmin(bound(logs))] + width * np.linspace(-1.0, 1.0, 33)
            width /= 16
        return float(np.log(max(bound(logs).min(), 1e-300) / epsilon))

    return excess


def zcdp_of_2016(epsilon: float, delta: float) -> float:
    """ρ with ρ + 2√(ρ ln(1/δ)) = ε (Bun and Steinke 2016, Proposition 1.3)."""
    log = math.log(1.0 / delta)
    return (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2


def objective_noise_of_2012(gradient_bound: float, epsilon: float, delta: float) -> float:
    """ζ√(8 ln(2/δ) + 4ε)/ε (Kifer, Smith and Thakurta 2012, Algorithm 1), ridge at least 2c/ε."""
    return gradient_bound * math.sqrt(8.0 * math.log(2.0 / delta) + 4.0 * epsilon) / epsilon


def output_noise_of_2017(sensitivity: float, epsilon: float, delta: float) -> float:
    """Δ√(2 ln(2/δ))/ε (Zhang et al. 2017)."""
    return sensitivity * math.sqrt(2.0 * math.log(2.0 / delta)) / epsilon


def multiplier_by_moments(run: Callable, epsilon: float, delta: float) -> float:
    """The noise multiplier by the moments accountant (Abadi et al. 2016); inf where it has none.

    Args:
        run: from a noise multiplier to the mechanism, under add/remove.
    """
    floor = math.log(1.0 / delta) / (_MOMENTS[-1] - 1.0)
    if epsilon <= floor:  # order λ charges ln(1/δ)/λ even where the loss is zero
        return math.inf

    def excess(log_noise: float) -> float:
        moments = np.asarray(acc.rdp(run(math.exp(log_noise)), _MOMENTS))
        return float(np.min(moments + math.log(1.0 / delta) / (_MOMENTS - 1.0))) - epsilon

    return math.exp(brentq(excess, math.log(0.3), math.log(1e4), xtol=1e-9))
