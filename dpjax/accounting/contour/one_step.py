"""One subsampled step: its profile in closed form, for transforms that decay too slowly.

With r and g of `pairs`, the outcomes y that the profile at ε counts lie beyond one point t, where
the loss is ε. There r(y) − r(t) = q(e^{w(y)} − e^{w(t)}), so that with x = |y − t|

| pair | ε at t | δ(ε) |
|---|---|---|
| remove, y > t | log r(t) | q ∫ φ(t + x − μ)(1 − e^{−μx}) dx |
| add, y < t | −log r(t) | e^ε q ∫ φ(t − x)e^{w(t)}(1 − e^{−μx}) dx |
| replace, y > t | log r(t)/r(−t) | q ∫ (φ(t + x − μ) + e^{ε+w(−t)} φ(t + x))(1 − e^{−μx}) dx |

and the symmetrised pair has the profile of "remove": C_q's is q·δ_G(ln(1 + (e^ε − 1)/q)), ε ≥ 0.
No term is negative, so that the quadrature loses nothing to cancellation, and t is found by
bisection, each end from its own side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Array

from dpjax._numerics.arrays import namespace
from dpjax.accounting.contour.composition import Composition, Steps
from dpjax.accounting.pairs.protocol import Pair
from dpjax.accounting.pairs.table import PAIRS

_X, _W = np.polynomial.legendre.leggauss(96)
# Of δ: rounding (exponents below 200), what lies beyond e^{−60}, and the rule's own error, which
# for Gaussians over at most 25 deviations is below 1e-15 in the ellipse of half-axes 1.2 and 0.7.
_MARGIN = 1e-12
_MOST_MU = 20.0
_HALVINGS = 64


def _at(pair: Pair, sign: int, mu: Array, rate: Array, s: Array) -> tuple[Array, Array, Array]:
    """t, ε and δ at the distance s from where ε = 0."""
    xp: Any = namespace(mu, rate, s)
    t, epsilon, beyond = pair.boundary(sign, mu, rate, s)
    epsilon = xp.maximum(epsilon, 0.0)
    half = 0.5 * (xp.sqrt(beyond * beyond + 120.0) - beyond)
    x = half[..., None] * (1 + _X)
    value = pair.one_step_density(sign, mu, t, epsilon, x) * -xp.expm1(-mu * x)
    return t, epsilon, rate * half * (value @ _W) / np.sqrt(2 * np.pi)


def single(run: Composition) -> Array:
    """Whether there is exactly one step, of noise that the closed form takes, and nothing else."""
    xp: Any = namespace(run)
    if len(run.steps) != 1:
        return xp.zeros(()) > 0
    (group,) = run.steps.values()
    one = (xp.sum(group.count) == 1) & (xp.max(group.count) == 1) & (run.gaussian_mu2 == 0)
    return one & (xp.sum(group.mu * group.count) <= _MOST_MU)


def _single(run: Composition) -> tuple[Pair, Array, Array, Array]:
    """Pair, μ and q of the one step, and whether `single` holds."""
    xp: Any = namespace(run)
    one = single(run)
    if len(run.steps) != 1:
        return next(iter(PAIRS.values())), xp.ones(()), xp.ones(()), one
    ((name, group),) = run.steps.items()
    mu, rate = xp.sum(group.mu * group.count), xp.sum(group.rate * group.count)
    return PAIRS[name], xp.where(one, mu, 1.0), xp.where(one, rate, 0.5), one


def _ends(
    question: str, pair: Pair, sign: int, mu: Array, rate: Array, given: Array
) -> tuple[Array, Array, Array]:
    """Upper and lower end of the answer, and s of the upper one."""
    xp: Any = namespace(mu, rate, given)
    if question == "epsilon":
        goal = given / (1 + np.array([1.0, -1.0]) * _MARGIN)
        most = xp.sqrt(-2 * xp.log(xp.minimum(given, 1.0))) + 2 * mu + 1
    else:
        goal = given * (1 + np.array([-1.0, 1.0]) * 1e-14)
        most = given / mu + 40.0 + 2 * mu - xp.log(rate) / mu
    low, high = xp.zeros(2), xp.ones(2) * most

    def halve(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = state
        middle = 0.5 * (low + high)
        _, epsilon, delta = _at(pair, sign, mu, rate, middle)
        past = delta <= goal if question == "epsilon" else epsilon > goal
        return xp.where(past, low, middle), xp.where(past, middle, high)

    low, high = xp.fori_loop(0, _HALVINGS, halve, (low, high))
    if question == "epsilon":
        # The upper end from where δ is small enough, the lower from where it is not.
        s = xp.stack([high[0], low[1]])
        _, epsilon, _ = _at(pair, sign, mu, rate, s)
        upper, lower = epsilon * (1 + np.array([1.0, -1.0]) * 1e-14)
        enough = _at(pair, sign, mu, rate, xp.zeros(1))[2][0] <= goal[0]
        return xp.where(enough, 0.0, upper), xp.where(enough, 0.0, lower), s[0]
    s = xp.stack([low[0], high[1]])
    _, _, delta = _at(pair, sign, mu, rate, s)
    upper, lower = delta * (1 + np.array([1.0, -1.0]) * _MARGIN)
    return upper, lower, s[0]


def bounds(
    question: str, run: Composition, given: Array, signs: tuple[int, ...]
) -> tuple[Array, Array, Array, Array]:
    """Both ends of ε(δ) or δ(ε) of one step: upper, lower, s and the position of the worse sign.

    (∞, 0, …) where the run is not one step.

    Args:
        question: "epsilon" or "delta".
        run: as `composition.clean` leaves it.
        given: δ or ε.
        signs: see `contour.integral.epsilon`.
    """
    xp: Any = namespace(run, given)
    pair, mu, rate, one = _single(run)
    found = [_ends(question, pair, sign, mu, rate, given) for sign in signs]
    upper, lower, s = (xp.stack(column) for column in zip(*found, strict=True))
    worse = xp.argmax(upper)
    none = np.inf if question == "epsilon" else 1.0
    top = xp.where(one, upper[worse], none)
    return top, xp.where(one, xp.max(lower), 0.0), s[worse], worse


def slopes(
    question: str, run: Composition, given: Array, signs: tuple[int, ...]
) -> tuple[Composition, Array]:
    """Partial derivatives of the answer by the run's parameters and by what is given.

    At fixed ε the outcomes that count are the best ones, so that moving t changes δ by nothing:
    only the densities' own derivatives remain.
    """
    xp: Any = namespace(run, given)
    pair, mu, rate, one = _single(run)
    top, _, s, worse = bounds(question, run, given, signs)
    by_epsilon, by_mu, by_rate, delta = 0.0, 0.0, 0.0, 0.0
    for k, sign in enumerate(signs):
        t, epsilon, size = (v[0] for v in _at(pair, sign, mu, rate, xp.reshape(s, (1,))))
        parts = pair.one_step_slopes(sign, mu, rate, t, epsilon)
        mine = worse == k
        by_epsilon, by_mu, by_rate, delta = (
            xp.where(mine, new, old)
            for new, old in zip((*parts, size), (by_epsilon, by_mu, by_rate, delta), strict=True)
        )
    good = one & (top > 0) & (by_epsilon < 0)
    factor = xp.where(good, 1.0, 0.0)
    by_given = by_epsilon
    if question == "epsilon":
        by_given = 1 / xp.where(good, by_epsilon, -1.0)
        factor = -by_given * factor
    group = next(iter(run.steps.values())) if len(run.steps) == 1 else None
    by_steps = {}
    for name, other in run.steps.items():
        on = xp.where(other.count == 1, 1.0, 0.0) if other is group else xp.zeros_like(other.count)
        by_steps[name] = Steps(on * by_mu * factor, on * by_rate * factor, 0.0 * on)
    return Composition(xp.zeros(()), by_steps), xp.where(good, by_given, 0.0)
