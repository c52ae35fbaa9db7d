"""One step of a Gaussian mixture whose loss rises or falls: its profile without a line.

Where p_i/q_i rises with the mean the loss rises (RATIO), and what δ counts at ε = L(x) is y > x:

    δ = Σ_i a_i ∫_0^∞ φ(x + u − m_i)(1 − e^{−(m_i − m_r)u}) du,  a_i = p_i − e^ε q_i,

for any r, as Σ a_i e^{m_i x − m_i²/2} = 0 where p = e^ε q. The sign of a_i rises with i; with r
where it changes no term is negative, so that nothing is lost to cancellation, and the term r drops
out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpjax._numerics.arrays import gauss_legendre, namespace
from dpjax.accounting.contour.tilt import EPS, least, pick
from dpjax.accounting.pairs.mixtures import Mixture

_X, _W = gauss_legendre(96)
# GAUSS: n nodes on half-width H are off by at most 64/15·H·M·ρ^{−2(n−1)}/(1 − ρ^{−2}), M the
# modulus on the ellipse of half-axes summing to ρH (Trefethen 2019, Theorem 19.3). With half-axes
# 1.2H and 0.7H, ρ^{−190} < 1e−52, and at H ≤ 12.5 a Gaussian grows there by less than e^{45}; what
# lies beyond H weighs e^{−60}; exponents below 1,000 are rounded by less than 1e−12.
_MARGIN = 1e-12
_LONGEST = 25.0
_HALVINGS = 80
_MOST = 600.0  # ε above which nothing is said


def _facing(pair: Mixture, side: Any) -> Mixture:
    """Return the pair, or a change of it, mirrored where the loss falls."""
    xp: Any = namespace(pair, side)
    back = Mixture(*(s * v[::-1] for s, v in zip((-1, 1, 1), pair, strict=True)))
    return Mixture(*(xp.where(side < 0, b, a) for a, b in zip(pair, back, strict=True)))


def _loss(pair: Mixture, x: Any) -> tuple[Any, Any]:
    """Return L(x), and what it is rounded by."""
    p, q = pair.spread(x)
    a, b = p.value, q.value
    return a - b, EPS * (p.rounding + q.rounding + namespace(x).abs(a - b)) + 1e-300


def _delta_at(pair: Mixture, x: Any) -> tuple[Any, Any]:
    """Return δ at ε = L(x), and a bound on its error."""
    xp: Any = namespace(pair, x)
    epsilon = _loss(pair, x)[0]
    grow = xp.exp(xp.minimum(epsilon, _MOST))
    p, q, means = (v[:, None] for v in (pair.p, pair.q, pair.means))
    used = (p > 0) | (q > 0)
    a, both = p - grow * q, p + grow * q
    near = xp.where(used, xp.abs(a) / xp.maximum(both, 1e-300), np.inf)
    r = least(near.T).T
    middle = xp.sum(xp.where(r, means, 0.0), axis=0)
    peak = x - xp.maximum(means, middle)
    half = 0.5 * (xp.sqrt(peak * peak + 120.0) - peak)
    u = half[..., None] * (1 + _X)
    place = (x - means)[..., None] + u
    size = -0.5 * place**2 + xp.log(xp.abs(a))[..., None]
    apart = (means - middle)[..., None] * u
    # |1 − e^{−v}|, with e^{−v} left in the exponent where that is large
    term = xp.exp(size - xp.minimum(apart, 0.0)) * -xp.expm1(-xp.abs(apart))
    found = half * (term @ _W) / math.sqrt(2 * math.pi)
    found = xp.where(r | ~used | (a == 0), 0.0, found)
    longest = xp.max(xp.where(used & ~r, half, 0.0), axis=0)
    value = xp.sum(found, axis=0)
    # Of a_i what is lost where p_i and e^ε q_i nearly cancel.
    lost = xp.sum(found * (8 * EPS * both / xp.maximum(xp.abs(a), 1e-300)), axis=0)
    good = (2 * longest <= _LONGEST) & (epsilon <= _MOST)
    return value, xp.where(good, _MARGIN * value + lost, np.inf)


def _halve(pair: Mixture, low: Any, high: Any, is_past: Any) -> tuple[Any, Any]:
    """Return points on either side of where `is_past` becomes true."""
    xp: Any = namespace(pair, low, high)

    def body(_: Any, state: tuple) -> tuple:
        low, high = state
        x = 0.5 * (low + high)
        past = is_past(x)
        return xp.where(past, low, x), xp.where(past, x, high)

    return xp.fori_loop(0, _HALVINGS, body, (low, high))


def slopes(pair: Mixture, changes: tuple[Mixture, ...], x: Any, epsilon: Any) -> list[Any]:
    """Return ∂δ/∂ε and the derivatives of δ by changes of the pair, what lies beyond x counting.

    Args:
        pair, changes: of one direction, as `ends` takes it and `mixtures.moves` gives them.
        x, epsilon: as `ends` returns them.
    """
    xp: Any = namespace(pair, x)
    side = pair.direction()
    m, p, q = _facing(pair, side)
    grow, beyond = xp.exp(epsilon), 0.5 * xp.erfc((x - m) / math.sqrt(2.0))
    density = xp.exp(-0.5 * (x - m) ** 2) / math.sqrt(2 * math.pi)
    found = [-grow * xp.sum(q * beyond)]
    for change in changes:
        dm, dp, dq = _facing(change, side)
        found.append(xp.sum((dp - grow * dq) * beyond + (p - grow * q) * dm * density))
    return found


def ends(question: str, pair: Mixture, given: Any) -> tuple[Any, Any, Any]:
    """Return lower and upper end of ε(δ) or δ(ε) of one step, and where the upper one is read off.

    Args:
        question: "epsilon" or "delta".
        pair: of one direction.
        given: δ or ε.
    """
    xp: Any = namespace(pair, given)
    side = pair.direction()
    pair, monotone = _facing(pair, side), side != 0
    spread = xp.max(xp.abs(pair.means)) + 45.0
    two = xp.ones(2) * spread
    signs = np.array([1.0, -1.0])  # of the upper end and of the lower
    none = np.inf if question == "epsilon" else 1.0
    low, high = _halve(pair, -two, two, lambda x: sum(_loss(pair, x)) > 0)
    if question == "epsilon":
        value, error = _delta_at(pair, low)
        free = (value + error <= given)[0]  # at no ε above 0

        def is_past(x: Any) -> Any:
            value, error = _delta_at(pair, x)
            return value + signs * error <= given

        low, high = _halve(pair, low, two, is_past)
        x = xp.where(signs > 0, high, low)
        value, error = _loss(pair, x)
        upper, lower = value + signs * error
        value, error = _delta_at(pair, x)
        # What counts: looked up where it is stated.
        sure = (value + signs * error <= given) == (signs > 0)
        upper = xp.where(sure[0], xp.maximum(upper, 0.0), none)
        upper = xp.where(free, 0.0, upper)
        lower = xp.where(sure[1] & (error[1] < np.inf), xp.maximum(lower, 0.0), 0.0)
    else:

        def is_past(x: Any) -> Any:
            value, error = _loss(pair, x)
            return value + signs * error > given

        low, high = _halve(pair, low - 1e-9, two, is_past)
        x = xp.where(signs > 0, low, high)
        value, error = _loss(pair, x)
        sure = (value + signs * error > given) == (signs < 0)
        value, error = _delta_at(pair, x)
        upper, lower = value + signs * error
        upper, lower = xp.where(sure[0], upper, none), xp.where(sure[1], lower, 0.0)
    upper = xp.where(monotone & (upper >= 0), upper, none)
    lower = xp.where(monotone & (lower >= 0), lower, 0.0)
    return xp.minimum(lower, upper), upper, pick(np.array([True, False]), x)
