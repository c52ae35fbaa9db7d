"""Fixed batches without replacement, one record replaced: C_q(G_μ) and the one-sided pair.

The symmetrised pair has the trade-off curve C_q(G_μ) = min(f, f⁻¹)** with f = qG_μ + (1−q)Id: both
directions of a fixed batch at once, an upper bound however an adversary mixes them between steps.
The one-sided pair, `pairs/poisson.py`'s at the same displacement, is attained by a record whose
replacement is like all the others.

References:
  Dong, Roth, Su 2022, Definition 4.1 and Theorem 4.2 (C_q, fixed batches).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Array

from dpjax._numerics.arrays import namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import FixedBatchSampled
from dpjax.accounting.pairs.errors import WIDEST, least_turn, log_total, shifts
from dpjax.accounting.pairs.gaussian import pair_of, samplable
from dpjax.accounting.pairs.poisson import Poisson
from dpjax.accounting.pairs.protocol import Tilted
from dpjax.accounting.pairs.ratio import inverse, log_ratio, log_ratio_slopes, ndtr, posterior
from dpjax.accounting.pairs.release import Known
from dpjax.accounting.pairs.scheme import Scheme
from dpjax.accounting.pairs.subsampled import (
    REACH,
    Subsampled,
    capped,
    log_normal_tail,
    log_tail,
)

_PANEL = 32
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(_PANEL)
_LAST = np.polynomial.legendre.legval(_NODES, np.eye(_PANEL)[:, _PANEL - 2 :]).T
_STRIPS = np.pi * np.array([0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96])[:, None]  # times 1/μ
_ONE_SIDED = Poisson()


class Symmetrised(Subsampled):
    """g·r against g on y > μ/2, its mirror image with P and Q exchanged, and an atom at loss 0.

    Gauss–Legendre panels on the half-line: there the integrand ends where it does not vanish.
    """

    name = "symmetrised"
    folded = True

    def atom(self, mu: Any, rate: Any) -> Any:
        return (1 - rate) * namespace(mu).erf(mu / np.sqrt(8.0))

    def exponents(
        self, sign: Any, mu: Any, rate: Any, c: Any, y: Any, log_r: Any, ratio: Any = None
    ) -> tuple[Any, Any, Any]:
        xp: Any = namespace(mu, c, log_r)
        return xp.stack([(c + 1) * log_r, -c * log_r]), xp.stack([log_r, -log_r]), None

    def reach(self, sign: Any, mu: Any, rate: Any, c: Any) -> tuple[Any, Any]:
        return 0.5 * mu, 0.5 * mu + REACH + (c + 0.5) * mu

    def tails(
        self, sign: Any, mu: Any, rate: Any, c: Any, ends: tuple, ratio: Any, value: Any
    ) -> tuple[Any, Any]:
        xp: Any = namespace(mu, rate, c)
        low, high = ends
        right = log_tail(value[-1], (c + 1) * mu, high)
        return xp.full_like(low, -1e3), xp.logaddexp(right, log_normal_tail(high))

    def grid(self, low: Any, high: Any, nodes: int) -> tuple[Any, Any, Any]:
        xp: Any = namespace(low, high)
        panels = nodes // _PANEL
        half = (high - low) / (2 * panels)
        centre = low + half * (2 * xp.arange(panels) + 1)
        y = (centre[:, None] + half * _NODES).reshape(-1)
        return half, y, xp.log(half) + xp.tile(xp.log(_WEIGHTS), panels)

    def integrand(
        self, sign: Any, mu: Any, rate: Any, c: Any, y: Any, base: Any, log_r: Any, rise: Any
    ) -> tuple[Any, ...]:
        xp: Any = namespace(mu, c, log_r)
        atom = xp.log1p(-rate) + xp.log(xp.erf(mu / np.sqrt(8.0)))
        value = xp.concatenate([base + (c + 1) * log_r, base - c * log_r, atom[None]])
        loss = xp.concatenate([log_r, -log_r, xp.zeros(1)])
        units = 16 + 4 * y * y + 8 * (c + 1) * xp.abs(log_r)
        units = xp.concatenate([units, units, 16 * xp.ones(1)])
        return value, loss, units, capped((c + 1) * log_r) + capped(-c * log_r), rise

    def positions(self, tilted: Tilted) -> Any:
        panels = (tilted.weight.shape[0] - 1) // (2 * _PANEL)
        centre = tilted.first + tilted.spacing * (2 * namespace(tilted).arange(panels) + 1)
        return (centre[:, None] + tilted.spacing * _NODES).reshape(-1)

    def quadrature_error(
        self, sign: Any, mu: Any, rate: Any, c: Any, tilted: Tilted, t: Any, knots: Any
    ) -> Any:
        """Gauss panels of half-width H: 64/15·M ρ^{−2n}/(1 − ρ^{−2}), half-axes summing to ρH.

        In the ellipse |arg r(y + ib)| ≤ μ|b|. The best of several (Trefethen 2019, Theorem 19.3).
        """
        xp: Any = namespace(mu, c, tilted, t)
        spacing = tilted.spacing
        a = xp.minimum(_STRIPS / mu, 4.0)
        ratio = a / spacing
        ellipse = ratio + xp.sqrt(1 + ratio * ratio)
        # The ellipse bulges past a panel's ends by half·(cosh − 1); the modulus grows with it.
        bulge = spacing * (xp.sqrt(1 + ratio * ratio) - 1)
        log_error = (
            np.log(64 / 15 * 4)
            + 0.5 * a * a
            + mu * t * a
            - c * xp.log(xp.cos(0.5 * mu * a))
            + bulge * (REACH + (c + 1) * mu)
            - 2 * _PANEL * xp.log(ellipse)
            - xp.log1p(-(ellipse**-2.0))
        )
        return xp.exp(xp.minimum(xp.min(log_error, axis=0), 50.0))

    def decay(self, sign: Any, mu: Any, rate: Any, c: Any, tilted: Tilted, t: Any) -> Any:
        """As `errors.line_decay` on y > μ/2, where the path starts on the real axis.

        The angle is multiplied by x/(1 + x), x = y − μ/2.
        """
        xp: Any = namespace(mu, rate, c, tilted, t)
        theta, t = shifts(mu, t), t[:, None, None]
        count = (tilted.weight.shape[0] - 1) // 2
        centre = tilted.spacing * (2 * xp.arange(count // _PANEL) + 1)
        x = (centre[:, None] + tilted.spacing * _NODES).reshape(-1)
        hit = posterior(x + 0.5 * mu, mu, rate)
        pull = theta * hit
        bend = pull / (1 + pull / WIDEST)
        # From the real axis and back to it.
        u = x / (2 * tilted.spacing * (count // _PANEL))
        start = x / (1 + x) * (1 - u**8)
        rises = (1 - u**8) / (1 + x) ** 2 - 8 * u**8 / (1 + x)
        angle = start * bend
        slope = start * theta * hit * (1 - hit) / (1 + pull / WIDEST) ** 2 + rises * bend / mu
        log_size, argument = least_turn(hit, angle)
        shared = 0.5 * (angle / mu) ** 2 - t * argument + 0.5 * xp.log1p(slope * slope)
        both = [shared + (c + 1) * log_size, shared - c * log_size]
        exponent = xp.concatenate([*both, xp.zeros_like(shared[..., :1])], axis=2)

        def check(values: Array) -> Array:
            # In place of the alternating sum: the last coefficients in Legendre polynomials.
            panels = (values * tilted.weight)[..., : 2 * count].reshape(
                *values.shape[:2], -1, _PANEL
            )
            return xp.sum(xp.abs(panels @ _LAST), axis=(2, 3))

        return log_total(tilted, tilted.weight, exponent, check)

    def slopes(self, sign: Any, mu: Any, rate: Any, tilted: Tilted) -> tuple[Any, Any, Any]:
        """L = 0 at the atom and where the half-lines begin, and both densities there are g(μ/2).

        The atom (1 − q)(2Φ(μ/2) − 1) changes by (1 − q)g(μ/2) with μ; the half-lines lose g(μ/2).
        """
        xp: Any = namespace(mu, rate, tilted)
        own = xp.stack(log_ratio_slopes(self.positions(tilted), mu, rate))
        zero = xp.zeros_like(own)
        atom = zero[:, :1]
        density = xp.exp(-mu * mu / 8) / np.sqrt(2 * np.pi)
        moved = xp.stack([-rate * density, -xp.erf(mu / np.sqrt(8.0))])
        x, y = xp.concatenate([own, zero, atom], axis=1), xp.concatenate([zero, own, atom], axis=1)
        return x, y, moved

    # C_q's profile is q·δ_G(ln(1 + (e^ε − 1)/q)), ε ≥ 0: that of the one-sided pair.

    def boundary(self, sign: int, mu: Any, rate: Any, s: Any) -> tuple[Any, Any, Any]:
        return _ONE_SIDED.boundary(1, mu, rate, s)

    def one_step_density(self, sign: int, mu: Any, t: Any, epsilon: Any, x: Any) -> Any:
        return _ONE_SIDED.one_step_density(1, mu, t, epsilon, x)

    def one_step_slopes(self, sign: int, mu: Any, rate: Any, t: Any, epsilon: Any) -> tuple:
        return _ONE_SIDED.one_step_slopes(1, mu, rate, t, epsilon)

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        most = float(log_ratio(mu + reach, mu, rate))
        return -most, most

    def masses(
        self, sign: int, mu: float, rate: float, losses: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        y = np.maximum(inverse(np.abs(losses), mu, rate), 0.5 * mu)
        # Above 0 the pair is (g·r, g) on y > μ/2, below 0 its mirror image with P and Q exchanged.
        tail_g = ndtr(-y)
        tail_gr = (1 - rate) * tail_g + rate * ndtr(mu - y)
        upper = losses[:-1] >= 0
        p = np.where(upper, tail_gr[:-1] - tail_gr[1:], tail_g[1:] - tail_g[:-1])
        q = np.where(upper, tail_g[:-1] - tail_g[1:], tail_gr[1:] - tail_gr[:-1])
        return np.maximum(p, 0.0), np.maximum(q, 0.0), float(tail_gr[-1])


def _refusal(step: FixedBatchSampled, adjacency: Adjacency, kind_of: Callable) -> str:
    if adjacency is not Adjacency.REPLACE_ONE:
        return (
            "is defined for REPLACE_ONE only (a batch of fixed size does not survive adding a "
            "record): ask with adjacency=Adjacency.REPLACE_ONE, sample by PoissonSampled, or price "
            "TruncatedPoissonSampled(mechanism, 1.0, population, batch_size), population being the "
            "larger neighbour's"
        )
    good = kind_of(step.mechanism) == "gaussian" and samplable(step.mechanism)
    return "" if good else "is priced around Gaussian releases only"


def _participation(step: FixedBatchSampled, adjacency: Adjacency) -> Any:
    size: Any = step.batch_size
    return size / step.population if adjacency is Adjacency.REPLACE_ONE else None


def _parameters(step: FixedBatchSampled, adjacency: Adjacency) -> tuple[Any, Any]:
    xp: Any = namespace(step)
    return xp.sqrt(pair_of(step.mechanism).replace_one), _participation(step, adjacency)


def _amplify(step: FixedBatchSampled, adjacency: Adjacency, inner: Known) -> Known | None:
    """Balle, Barthe, Gaboardi 2018, Theorem 9: the profile under replace-one; no batch of one."""
    if adjacency is not Adjacency.REPLACE_ONE or inner.symmetric:
        return None
    size: Any = step.batch_size
    return inner._replace(rate=size / step.population, symmetric=True)


SCHEME = Scheme(
    "fixed",
    FixedBatchSampled,
    _refusal,
    _parameters,
    dominating=lambda adjacency: "symmetrised",
    attained=lambda adjacency: "poisson",
    participation=_participation,
    amplify=_amplify,
)
