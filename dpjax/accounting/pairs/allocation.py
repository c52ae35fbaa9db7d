"""Random allocation: (1/t)Σᵢ N(eᵢ, σ²I) against N(0, σ²I), a record in one of t steps.

Under Q the density ratio is W = (1/t)Σᵢ exp(μzᵢ − μ²/2), zᵢ independent standard normal, and in
either direction the run's outputs are at most as easy to tell apart as by W alone, however the
contributions are chosen from step to step (Feldman and Shenfeld 2025, Theorem 4.1).

`chosen` = k of t. Cut a uniformly random order of the steps into t mod k blocks of ⌈t/k⌉ steps and
k − (t mod k) of ⌊t/k⌋, and draw one step from each: all sets of k steps are equally likely, as the
blocks' sizes are fixed. Who is told the blocks sees k independent allocations, of which at most one
touches any step (Feldman and Shenfeld 2025, Lemma on decomposition; with the exact mix, derived for
dpjax). That pair dominates and is not attained, so that no lower end is read off it.

References:
  Feldman, Shenfeld 2025 and 2026; Dong et al. 2025; Chua et al. 2024 (balls and bins).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpjax._numerics.arrays import namespace
from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import RandomAllocation
from dpjax.accounting.pairs.allocation_moments import steps_of
from dpjax.accounting.pairs.gaussian import pair_of, samplable
from dpjax.accounting.pairs.mean_ratio import mean_ratio
from dpjax.accounting.pairs.outcomes import Outcomes
from dpjax.accounting.pairs.plain import Plain
from dpjax.accounting.pairs.protocol import Discretisable
from dpjax.accounting.pairs.scheme import Scheme

_WIDEST = 20.0  # μ beyond which Q's mass of likely outcomes underflows
_LEAST = 1e-7  # standard deviation of W that float64 still resolves
_MOST = 1 << 20  # steps beyond which more are not told apart
_PLAIN = Plain()


class Allocation:
    """The mean ratio of t = 1/rate steps, on grids that bound it from above and from below."""

    name = "allocation"
    directed = True
    folded = False

    def atom(self, mu: Any, rate: Any) -> Any:
        return 0.0

    def side(self, sign: int, mu: float, rate: float, reach: float, upper: bool) -> Discretisable:
        """The law to be laid on a grid for an upper bound, or for a lower one.

        W of fewer steps is larger in convex order, so that where t is beyond what is resolved an
        upper bound takes fewer steps, of which one is the plain Gaussian; a lower bound says
        nothing there.
        """
        steps = round(steps_of(rate))
        resolved = mu <= _WIDEST and mu >= _LEAST * np.sqrt(min(steps, _MOST))
        if steps == 1 or (upper and not resolved):
            return _PLAIN
        if not upper and (steps > _MOST or not resolved):
            return Outcomes(np.zeros(1), np.ones(1), 0.0, 0.0)
        law = mean_ratio(mu, min(steps, _MOST), float(np.ceil(reach)), upper)
        slack = law.slack if upper else -law.slack
        if sign > 0:
            mass, beyond = law.mass * np.exp(law.log_ratio), law.beyond
            return Outcomes(law.log_ratio, mass, beyond, slack)
        return Outcomes(-law.log_ratio[::-1], law.mass[::-1], law.zero, slack)

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        return self.side(sign, mu, rate, reach, True).loss_range(sign, mu, rate, reach)

    def masses(
        self, sign: int, mu: float, rate: float, losses: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        raise NotImplementedError("its law is known from above and from below: ask side")

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        return 0.0, False


def _refusal(step: RandomAllocation, adjacency: Adjacency, kind_of: Callable) -> str:
    if adjacency is not Adjacency.ADD_REMOVE:
        return (
            "is defined for ADD_REMOVE only (no dominating pair is proven for a replaced record): "
            "ask with adjacency=Adjacency.ADD_REMOVE, or sample by PoissonSampled"
        )
    good = kind_of(step.mechanism) == "gaussian" and samplable(step.mechanism)
    return "" if good else "is priced around Gaussian releases only"


def _parameters(step: RandomAllocation, adjacency: Adjacency) -> tuple[Any, Any, Any]:
    """Blocks of ⌊t/k⌋ and of ⌈t/k⌉ steps, stacked; where k divides t the second count is 0."""
    xp: Any = namespace(step)
    mu = xp.sqrt(pair_of(step.mechanism).add_remove)
    steps: Any = step.steps
    chosen: Any = step.chosen
    short = xp.floor(steps / chosen)
    left = steps - chosen * short
    mu, short, chosen, left = xp.broadcast_arrays(mu, short, chosen, left)
    sizes = xp.stack([short, short + 1])
    return mu, 1 / sizes, xp.stack([chosen - left, left])


def _exhibited(step: RandomAllocation) -> bool:
    return not is_traced(step.chosen) and bool(np.all(np.asarray(step.chosen) == 1))


SCHEME = Scheme(
    "allocation",
    RandomAllocation,
    _refusal,
    _parameters,
    dominating=lambda adjacency: "allocation",
    attained=lambda adjacency: "allocation",
    exhibited=_exhibited,
)
