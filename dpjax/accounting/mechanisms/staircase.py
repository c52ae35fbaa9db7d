"""Staircase noise: the pure noise of least expected size (Geng and Viswanath 2014).

With b = e^{−ε} and a = (1 − b)/(2(γ + b(1 − γ))), the noise has density a·b^j at a distance from 0
of [j + γ − 1, j + γ), the first step [0, γ): it falls by the factor b once in every unit.

SHIFT   δ(ε') of any density f that is even and falls away from 0, against f(· − s), grows with s:
        its derivative is e^{ε'} Σ f′(x − s) over A = {f(x) > e^{ε'} f(x − s)}. For ε' ≥ 0 A lies
        where |x| < |x − s|, left of s/2, so that x − s < 0, where f rises. Hence a query that
        moves by at most k is dominated by one that moves by k, which some neighbours attain.
MASSES  At a shift of k whole units the losses are lε, l = −k … k. Of (i, i + 1) inside (0, k), the
        first min(γ, 1 − γ) has l = k − 2i, the last l = k − 2i − 2 and what is between
        l = k − 2i − 1; left of 0 l is k. So l = k has mass ½ + m·a, m = min(γ, 1 − γ); l = k − 2i,
        0 < i < k, has 2m·a·b^i; and l = k − 2i − 1, 0 ≤ i < k, has |1 − 2γ|·a·b^i, times b where
        γ < ½. The pair is its own mirror image: the mass of −l is e^{−lε} that of l.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dpjax._numerics import checks
from dpjax._numerics.arrays import Numbers, namespace
from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms.base import (
    FieldRelation,
    Mechanism,
    Real,
    build,
    keep,
    number_field,
    register_mechanism,
)
from dpjax.accounting.pairs.finite import EVERYTHING, MOST, Finite, bound_unknown, make_two_sided
from dpjax.accounting.pairs.protocol import CurveRelease

_TERMS = 64  # shifts whose Rényi curve is summed term by term
_OUTCOMES = 1 << 20  # that are laid out


def _masses(epsilon: Real, gamma: Real, shift: Real, most: int) -> tuple[Numbers, Numbers]:
    """Return the positive losses over ε, largest first, and the masses of the first `most`."""
    xp = namespace(epsilon, gamma, shift)
    epsilon, gamma, shift = (v[..., None] for v in xp.broadcast_arrays(epsilon, gamma, shift))
    # m/(γ + b(1 − γ)) and |1 − 2γ|/(…), times b where γ < ½: there both are divided by b, since
    # b = 0 in a float where γ = 0 would be 0/0. γ/b by its logarithm, which does not overflow.
    rise = xp.exp(xp.minimum(xp.log(xp.where(gamma > 0, gamma, 1.0)) + epsilon, 700.0))
    rise = xp.where(gamma > 0, rise, 0.0)
    low, wide = rise + 1 - gamma, gamma + xp.exp(-epsilon) * (1 - gamma)
    wide = xp.where(gamma < 0.5, 1.0, wide)
    place = np.arange(most)
    level = -xp.expm1(-epsilon) * xp.exp(-epsilon * (place // 2))
    ends = level * xp.where(gamma < 0.5, rise / low, (1 - gamma) / wide)
    between = 0.5 * level * xp.abs(1 - 2 * gamma) / xp.where(gamma < 0.5, low, wide)
    mass = xp.where(place % 2 == 0, xp.where(place == 0, 0.5 + 0.5 * ends, ends), between)
    loss = shift - place
    return loss, xp.where(loss > 0, mass, 0.0)


class StaircaseNumbers(NamedTuple):
    """ε of a unit, the share of a unit before the first step, and the shift in units."""

    epsilon: Numbers
    gamma: Numbers
    shift: Numbers


class StaircaseRelease(CurveRelease[StaircaseNumbers]):
    """The pair of a shift by whole units."""

    tight = sampled = True

    def numbers(self, step: Any, adjacency: Adjacency) -> StaircaseNumbers:
        moved = step.sensitivity * (2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0)
        return StaircaseNumbers(step.epsilon, step.gamma, moved)

    def largest(self, numbers: StaircaseNumbers) -> Numbers:
        return numbers.epsilon * numbers.shift

    def pair(self, numbers: StaircaseNumbers, *, upper: bool) -> Finite:
        epsilon, gamma, shift = map(float, numbers)
        if epsilon == np.inf:
            return EVERYTHING
        if shift > _OUTCOMES or epsilon * shift > MOST:
            return bound_unknown(upper=upper)
        loss, mass = _masses(*map(np.float64, (epsilon, gamma, shift)), most=int(shift))
        loss, mass = loss[::-1], mass[::-1]
        loss = epsilon * loss
        # What is left of 1 has loss 0, where no test gains; mirror images have e^{−loss} as much.
        back = mass * np.exp(-loss)
        zero = max(1.0 - float(np.sum(mass) + np.sum(back)), 0.0)
        both = np.concatenate([back[::-1], [zero], mass])
        return make_two_sided(np.concatenate([-loss[::-1], [0.0], loss]), both)

    def divergence(self, numbers: StaircaseNumbers, orders: Numbers) -> Numbers:
        """log(1 + Σ p(e^{(α−1)l} − 1)(1 − e^{−αl}))/(α − 1) over losses l > 0 of mass p.

        Each term is that of l and −l together. Beyond 64 units only ε-DP is used: min(l, αl²/2) at
        the largest loss l (Bun and Steinke 2016, Proposition 3.3).
        """
        epsilon, gamma, shift = numbers
        xp = namespace(epsilon, gamma, shift, orders)
        loss, mass = _masses(epsilon, gamma, shift, _TERMS)
        loss = loss * xp.asarray(epsilon)[..., None] if np.ndim(epsilon) else loss * epsilon
        k = orders - 1
        # In logarithms, from the largest loss down: e^{(α−1)l} may overflow.
        high, order = xp.asarray(k * epsilon * shift)[..., None], xp.asarray(orders)[..., None]
        steep = (order - 1) * loss
        log_terms = steep + xp.log(-xp.expm1(-xp.maximum(steep, 1e-300)))
        terms = xp.where(loss > 0, mass * xp.exp(log_terms - high), 0.0)
        terms = terms * -xp.expm1(-order * xp.maximum(loss, 0.0))
        total = xp.sum(terms, axis=-1)
        high = high[..., 0]
        far = high > 300
        near = xp.log1p(total * xp.exp(xp.where(far, 0.0, high)))
        value = xp.where(far, high + xp.log(total + xp.exp(-xp.minimum(high, 700.0))), near) / k
        pure = epsilon * shift
        pure = xp.minimum(pure, 0.5 * orders * pure * pure)
        return xp.where(shift > _TERMS, pure, xp.minimum(value, pure))


@register_mechanism
class Staircase(Mechanism):
    """A number plus staircase noise, whose density falls by e^{−ε} once in every unit.

    Args:
        epsilon: ε of one unit: the release is ε-differentially private where the sensitivity is 1.
        gamma: the share of a unit before the first step, in [0, 1]; by default
            1/(1 + e^{ε/2}), of the least expected size.
        sensitivity: by how many units one record moves the number at most, a whole number.

    Raises:
        ValueError: epsilon < 0, gamma outside [0, 1], or a sensitivity that is no whole number.

    Guarantee:
        δ(ε') of the loss that takes the values lε, |l| ≤ sensitivity; attained by neighbours that
        are as far apart (SHIFT and MASSES in this file). Under replace-one, of twice the
        sensitivity.

    Example:
        >>> from dpjax import accounting as acc
        >>> round(acc.epsilon(Staircase(1.0), delta=0), 6), round(Staircase(1.0).gamma, 4)
        (1.0, 0.3775)
        >>> acc.epsilon(Staircase(1.0), 1e-5) < acc.epsilon(acc.PureDP(1.0), 1e-5)
        True

    References:
        Geng and Viswanath 2014, "The optimal mechanism in differential privacy", section III.
    """

    epsilon: Real = number_field(infinite=True)
    gamma: Real | None = number_field(high=1.0, default=None)
    sensitivity: Real = number_field(1.0, whole=True, default=1.0)

    released = "a number plus staircase noise, {epsilon}-private a unit, moved by {sensitivity}"
    rests_on = (
        "adding or removing one record moves the number by at most the sensitivity",
        "the noise is staircase-shaped, fresh at every step, and drawn independently of the data",
        "the noise has no gaps of floating point",
    )
    release = StaircaseRelease()

    def __post_init__(self) -> None:
        if self.gamma is None:
            checks.number("Staircase.epsilon", self.epsilon, self._ranges["epsilon"])
            half = self.epsilon
            if is_traced(half):
                # Beyond what the trace's numbers hold γ is rounded up, which raises the price.
                half = jnp.minimum(0.5 * half, 0.9 * math.log(jnp.finfo(jnp.result_type(half)).max))
                share = 1 / (1 + jnp.exp(half))
            else:
                share = 1 / (1 + np.exp(np.minimum(0.5 * np.asarray(half, np.float64), 690.0)))
                share = share if np.ndim(share) else float(share)
            keep(self, "gamma", share)
        super().__post_init__()

    def relations(self) -> tuple[FieldRelation, ...]:
        # A γ between 0 and that has no digits over b; a trace would take it for 0.
        gamma = self.gamma
        assert gamma is not None  # set where it was not given
        return (FieldRelation(("gamma",), (gamma == 0) | (gamma >= 1e-300), "0 or >= 1e-300", 0.5),)

    def for_group(self, records: Real) -> Mechanism:
        """A user's records together move the number as many times as far."""
        return build(Staircase, {**vars(self), "sensitivity": self.sensitivity * records})
