"""Selection of bounded range: the exponential mechanism, and permute-and-flip.

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

from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics.arrays import Numbers, namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.pairs.finite import MOST, NOTHING, Finite, bound_unknown, make_two_sided
from dpjax.accounting.pairs.laplace import LAPLACE, LaplaceNumbers, edges, root_cells
from dpjax.accounting.pairs.protocol import ClosedFormRelease, CurveRelease


class SelectionNumbers(NamedTuple):
    """The range of the losses, and 1 by permute-and-flip, else 0."""

    epsilon: Numbers
    flip: float


class SelectionRelease(ClosedFormRelease[SelectionNumbers], CurveRelease[SelectionNumbers]):
    """The exponential mechanism; by permute-and-flip, with the profile of Laplace noise."""

    sampled = True

    def numbers(self, step: Any, adjacency: Adjacency) -> SelectionNumbers:
        range_ = step.epsilon * (2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0)
        return SelectionNumbers(range_, 1.0 if step.permute_and_flip else 0.0)

    def largest(self, numbers: SelectionNumbers) -> Numbers:
        return numbers.epsilon

    def pair(self, numbers: SelectionNumbers, *, upper: bool) -> Finite:
        epsilon, flip = map(float, numbers)
        if epsilon == 0:
            return NOTHING
        if epsilon > MOST:
            return bound_unknown(upper=upper)
        if upper and flip:
            return LAPLACE.pair(LaplaceNumbers(numbers.epsilon), upper=True)
        if upper:
            losses, mass = root_cells(edges(epsilon), upper=True)
            return make_two_sided(losses, mass / -np.expm1(-epsilon))
        # Two candidates whose scores change places.
        loss, keep = epsilon / 2, 1 / (1 + np.exp(-epsilon / 2))
        if flip:
            keep = 1 - 0.5 * np.exp(-epsilon / 2)
            loss = epsilon / 2 + np.log1p(-np.expm1(-epsilon / 2))
        return make_two_sided([-loss, loss], [keep * np.exp(-loss), keep])

    def epsilon(self, numbers: SelectionNumbers, delta: Numbers) -> Numbers:
        epsilon, flip = numbers
        xp = namespace(epsilon, delta)
        if flip:
            return LAPLACE.epsilon(LaplaceNumbers(epsilon), delta)
        # inverse of δ = (1 − e^{(ε'−ε)/2})²/(1 − e^{−ε})
        return epsilon + 2 * xp.log1p(-xp.sqrt(delta * -xp.expm1(-epsilon)))

    def delta(self, numbers: SelectionNumbers, epsilon: Numbers) -> Numbers:
        own, flip = numbers
        xp = namespace(own, epsilon)
        gap = xp.minimum(epsilon - own, 0.0)
        if flip:
            return LAPLACE.delta(LaplaceNumbers(own), epsilon)
        safe = xp.where(own > 0, own, 1.0)
        value = xp.expm1(gap / 2) ** 2 / -xp.expm1(-safe)
        return xp.where(own > 0, value, 0.0)

    def divergence(self, numbers: SelectionNumbers, orders: Numbers) -> Numbers:
        epsilon, flip = numbers
        xp = namespace(epsilon, orders)
        k = orders - 1
        if flip:
            return LAPLACE.divergence(LaplaceNumbers(epsilon), orders)
        quadratic = orders * epsilon * epsilon / 8  # Cesar and Rogers 2021, Lemma 3.2
        safe = xp.clip(epsilon, 1e-6, 500.0)
        share = xp.expm1(-k * safe) / xp.expm1(-safe)
        a, b = xp.exp(-k * safe) + share, share * xp.exp(-safe)
        # the best e^t, within what the range allows
        z = xp.clip(k * a / (orders * b), 1.0, xp.exp(safe))
        value = xp.log(z) + xp.log(a - b * z) / k
        value = xp.where(
            (epsilon > 1e-3) & (epsilon < 500), value * (1 + 1e-9) + 1e-14 / k, epsilon
        )
        return xp.minimum(xp.minimum(value, quadratic), epsilon)


SELECTION = SelectionRelease()
