"""Randomised response, and selection of bounded range.

A release of bounded range ε has likelihood ratios within some [e^{t−ε}, e^t], 0 ≤ t ≤ ε, and is a
function of the pair of two outcomes that has just these two. The largest of their profiles at ε' is
that of t = (ε + ε')/2, (1 − e^{(ε'−ε)/2})²/(1 − e^{−ε}) (Dong, Durfee and Rogers 2020), which is
itself the profile of a pair: losses in [−ε, ε] of density e^{(l−ε)/2}/(2(1 − e^{−ε})), derived
for dpjax by differentiating it twice in e^{ε'}. That pair dominates whichever t is chosen, hence
also composed. At one Rényi order the largest divergence is taken at e^t = (α − 1)A/(αB), where the
moment is e^{(α−1)t}(A − B e^t).

Permute-and-flip is dominated by Laplace noise of scale 1 on a number that moves by ε (derived for
dpjax). Let f(x) be the probability that a candidate of S is chosen when the scores of S have been
raised by x over the others', in units in which all that a record can do is x = ε. The choice is
ε-differentially private at every ε, so neither log f nor log(1 − f) has a slope beyond ±1:
f' ≤ min(f, 1 − f), which is Laplace's density at f. So F⁻¹(f(x + ε)) ≤ F⁻¹(f(x)) + ε, F being
Laplace's distribution function, and a record that moves the scores otherwise moves f by less, as f
falls with the scores of the others. Two candidates attain every point of the profile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpjax._numerics.arrays import namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.pairs.finite import MOST, NOTHING, Finite, two_sided, unknown
from dpjax.accounting.pairs.laplace import LAPLACE, edges, root_cells


class Response:
    """k-ary randomised response: losses ±ε, and 0 for the k − 2 other categories."""

    tight, sampled = True, False

    def numbers(self, step: Any, adjacency: Adjacency) -> tuple[Any, ...]:
        return step.epsilon, step.categories

    def largest(self, epsilon: Any, categories: Any) -> Any:
        """The largest loss."""
        return epsilon

    def pair(self, epsilon: float, categories: float, *, upper: bool) -> Finite:
        if epsilon == 0:
            return NOTHING
        likely = 1 / (1 + (categories - 1) * np.exp(-epsilon))
        rare = 1 / (np.exp(epsilon) + categories - 1)
        return two_sided([-epsilon, 0.0, epsilon], [rare, (categories - 2) * rare, likely])

    def epsilon(self, epsilon: Any, categories: Any, delta: Any) -> Any:
        xp: Any = namespace(epsilon, categories, delta)
        lost = delta * (1 + (categories - 1) * xp.exp(-epsilon))
        return epsilon + xp.log1p(-xp.minimum(lost, 1.0))

    def delta(self, own: Any, categories: Any, epsilon: Any) -> Any:
        xp: Any = namespace(own, categories, epsilon)
        likely = 1 / (1 + (categories - 1) * xp.exp(-own))
        return (0.0 - xp.expm1(xp.minimum(epsilon - own, 0.0))) * likely

    def divergence(self, epsilon: Any, categories: Any, orders: Any) -> Any:
        xp: Any = namespace(epsilon, categories, orders)
        k = orders - 1
        near = k * epsilon < 300
        small = xp.where(near & (epsilon < 300), epsilon, 0.0)
        excess = xp.expm1(small) * xp.expm1(k * small) + 4 * xp.sinh(k * small / 2) ** 2
        low = xp.log1p(excess / (xp.expm1(small) + categories)) / k
        other = xp.exp(-(2 * orders - 1) * epsilon) + (categories - 2) * xp.exp(-orders * epsilon)
        high = xp.log1p(other) - xp.log1p((categories - 1) * xp.exp(-epsilon))
        high = epsilon + high / k
        return xp.minimum(xp.where(near & (epsilon < 300), low, high), epsilon)


class Selection:
    """The exponential mechanism; by permute-and-flip, with the profile of Laplace noise."""

    tight, sampled = False, True

    def numbers(self, step: Any, adjacency: Adjacency) -> tuple[Any, ...]:
        range_ = step.epsilon * (2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0)
        return range_, 1.0 if step.permute_and_flip else 0.0

    def largest(self, epsilon: Any, flip: Any) -> Any:
        """The largest loss."""
        return epsilon

    def pair(self, epsilon: float, flip: float, *, upper: bool) -> Finite:
        if epsilon == 0:
            return NOTHING
        if epsilon > MOST:
            return unknown(upper=upper)
        if upper and flip:
            return LAPLACE.pair(epsilon, upper=True)
        if upper:
            losses, mass = root_cells(edges(epsilon), upper=True)
            return two_sided(losses, mass / -np.expm1(-epsilon))
        # Two candidates whose scores change places.
        loss, keep = epsilon / 2, 1 / (1 + np.exp(-epsilon / 2))
        if flip:
            keep = 1 - 0.5 * np.exp(-epsilon / 2)
            loss = epsilon / 2 + np.log1p(-np.expm1(-epsilon / 2))
        return two_sided([-loss, loss], [keep * np.exp(-loss), keep])

    def epsilon(self, epsilon: Any, flip: Any, delta: Any) -> Any:
        xp: Any = namespace(epsilon, delta)
        if flip:
            return LAPLACE.epsilon(epsilon, delta)
        return epsilon + 2 * xp.log1p(-xp.sqrt(delta * -xp.expm1(-epsilon)))

    def delta(self, own: Any, flip: Any, epsilon: Any) -> Any:
        xp: Any = namespace(own, epsilon)
        gap = xp.minimum(epsilon - own, 0.0)
        if flip:
            return LAPLACE.delta(own, epsilon)
        safe = xp.where(own > 0, own, 1.0)
        value = xp.expm1(gap / 2) ** 2 / -xp.expm1(-safe)
        return xp.where(own > 0, value, 0.0)

    def divergence(self, epsilon: Any, flip: Any, orders: Any) -> Any:
        xp: Any = namespace(epsilon, orders)
        k = orders - 1
        if flip:
            return LAPLACE.divergence(epsilon, orders)
        quadratic = orders * epsilon * epsilon / 8  # Cesar and Rogers 2021, Lemma 3.2
        safe = xp.clip(epsilon, 1e-6, 500.0)
        share = xp.expm1(-k * safe) / xp.expm1(-safe)
        a, b = xp.exp(-k * safe) + share, share * xp.exp(-safe)
        z = xp.clip(k * a / (orders * b), 1.0, xp.exp(safe))
        value = xp.log(z) + xp.log(a - b * z) / k
        value = xp.where(
            (epsilon > 1e-3) & (epsilon < 500), value * (1 + 1e-9) + 1e-14 / k, epsilon
        )
        return xp.minimum(xp.minimum(value, quadratic), epsilon)


RESPONSE, SELECTION = Response(), Selection()
