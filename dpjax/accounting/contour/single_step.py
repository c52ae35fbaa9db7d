"""ε(δ) and δ(ε) of one step of a Gaussian mixture whose loss rises or falls: no line is needed.

Where p_i/q_i rises with the mean the loss rises (RATIO), and what δ counts at ε = L(x) is y > x:

    δ = Σ_i a_i ∫_0^∞ φ(x + u − m_i)(1 − e^{−(m_i − m_r)u}) du,  a_i = p_i − e^ε q_i,

for any r, as Σ a_i e^{m_i x − m_i²/2} = 0 where p = e^ε q. The sign of a_i rises with i; with r
where it changes no term is negative, so that nothing is lost to cancellation, and the term r drops
out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpjax._numerics.arrays import NUMPY, Numbers, halve, namespace, tree_map
from dpjax._numerics.quadrature import gauss_legendre
from dpjax.accounting.contour.saddle import Composition
from dpjax.accounting.contour.tilt import EPS, least, pick
from dpjax.accounting.pairs.finite_profile import discrete_delta, discrete_epsilon
from dpjax.accounting.pairs.mixtures import Mixture
from dpjax.accounting.pairs.pair import Atoms, Folded
from dpjax.accounting.pairs.uses import Discrete

# The nodes of one step without a line.
_X, _W = gauss_legendre(96)
# GAUSS: n nodes on half-width H are off by at most 64/15·H·M·ρ^{−2(n−1)}/(1 − ρ^{−2}), M the
# modulus on the ellipse of half-axes summing to ρH (Trefethen 2019, Theorem 19.3). With half-axes
# 1.2H and 0.7H, ρ^{−190} < 1e−52, and at H ≤ 12.5 a Gaussian grows there by less than e^{45}; what
# lies beyond H weighs e^{−60}; exponents below 1,000 are rounded by less than 1e−12.
_MARGIN = 1e-12
_LONGEST_RANGE = 25.0
_HALVINGS = 80
_LAST_EPSILON = 600.0  # ε above which nothing is said


class Bounds(NamedTuple):
    """Certified ends of an answer."""

    lower: Numbers
    upper: Numbers


def _facing(pair: Mixture, side: Numbers) -> Mixture:
    """Return the pair, or a change of it, mirrored where the loss falls."""
    xp = namespace(pair, side)
    return tree_map(lambda a, b: xp.where(side < 0, b, a), pair, pair.turned_round())


def _loss(pair: Mixture, x: Numbers) -> tuple[Numbers, Numbers]:
    """Return L(x), and what it is rounded by."""
    p, q = pair.spread(x)
    a, b = p.value, q.value
    return a - b, EPS * (p.rounding + q.rounding + namespace(x).abs(a - b)) + 1e-300


def _delta_at(pair: Mixture, x: Numbers) -> tuple[Numbers, Numbers]:
    """Return δ at ε = L(x), and a bound on its error."""
    xp = namespace(pair, x)
    epsilon = _loss(pair, x)[0]
    grow = xp.exp(xp.minimum(epsilon, _LAST_EPSILON))
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
    # What a_i loses where p_i and e^ε q_i nearly cancel.
    lost = xp.sum(found * (8 * EPS * both / xp.maximum(xp.abs(a), 1e-300)), axis=0)
    good = (2 * longest <= _LONGEST_RANGE) & (epsilon <= _LAST_EPSILON)
    return value, xp.where(good, _MARGIN * value + lost, np.inf)


def single_step_slopes(
    pair: Mixture, changes: tuple[Mixture, ...], x: Numbers, epsilon: Numbers
) -> list[Numbers]:
    """Return ∂δ/∂ε and the derivatives of δ by changes of the pair, what lies beyond x counting.

    Args:
        pair, changes: of one direction, as `mixtures.moves` gives them.
        x, epsilon: as `single_step_ends` returns them.
    """
    xp = namespace(pair, x)
    side = pair.direction()
    m, p, q = _facing(pair, side)
    grow, beyond = xp.exp(epsilon), 0.5 * xp.erfc((x - m) / math.sqrt(2.0))
    density = xp.exp(-0.5 * (x - m) ** 2) / math.sqrt(2 * math.pi)
    found = [-grow * xp.sum(q * beyond)]
    for change in changes:
        dm, dp, dq = _facing(change, side)
        found.append(xp.sum((dp - grow * dq) * beyond + (p - grow * q) * dm * density))
    return found


def single_step_ends(
    question: str, pair: Mixture, given: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """Return lower and upper end of ε(δ) or δ(ε) of one step, and where the upper one is read off.

    Args:
        question: "epsilon" or "delta".
        pair: of one direction.
        given: δ or ε.
    """
    xp = namespace(pair, given)
    side = pair.direction()
    pair, monotone = _facing(pair, side), side != 0
    spread = xp.max(xp.abs(pair.means)) + 45.0
    two = xp.ones(2) * spread
    signs = np.array([1.0, -1.0])  # of the upper end and of the lower
    none = np.inf if question == "epsilon" else 1.0
    low, high = halve(-two, two, lambda x: sum(_loss(pair, x)) > 0, _HALVINGS)
    asked = question == "epsilon"
    free = asked and (sum(_delta_at(pair, low)) <= given)[0]  # at no ε above 0
    probe, read = (_delta_at, _loss) if asked else (_loss, _delta_at)

    def is_past(x: Numbers) -> Numbers:
        value, error = probe(pair, x)
        found = value + signs * error
        return (found <= given) if asked else (found > given)

    low, high = halve(low if asked else low - 1e-9, two, is_past, _HALVINGS)
    past = (signs > 0) == asked  # δ falls in x, so that the two ends change places
    x = xp.where(past, high, low)
    value, error = read(pair, x)
    upper, lower = value + signs * error
    # What counts: looked up where it is stated.
    sure = (is_past(x) == past) & xp.isfinite(probe(pair, x)[1])
    upper = xp.where(free, 0.0, xp.where(sure[0], xp.maximum(upper, 0.0), none))
    lower = xp.where(sure[1], xp.maximum(lower, 0.0), 0.0)
    upper = xp.where(monotone & (upper >= 0), upper, none)
    lower = xp.where(monotone & (lower >= 0), lower, 0.0)
    return xp.minimum(lower, upper), upper, pick(np.array([True, False]), x)


def find_single_step(run: Composition) -> Mixture | Atoms | None:
    """Return the pair of a run's only row of steps, of a folded one that on the whole line.

    At ε ≥ 0 their profiles are the same.
    """
    if len(run.groups) != 1 or np.shape(run.groups[0].count) != (1,):
        return None
    pair = run.groups[0].pair
    pair = tree_map(lambda v: v[0], pair.pair if isinstance(pair, Folded) else pair)
    return pair if isinstance(pair, Mixture | Atoms) else None


def of_single_step(
    question: str, run: Composition, signs: tuple[int, ...], given: Numbers
) -> Bounds:
    """Return the ends of one step without a line; none where the run is not one such step."""
    xp = namespace(run, given)
    none = np.inf if question == "epsilon" else 1.0
    pair = find_single_step(run)
    one = pair is not None and (run.groups[0].count[0] == 1) & (run.gaussian_mu2 == 0)
    if pair is None or (xp is NUMPY and not one):
        return Bounds(0.0 * given, none + 0.0 * given)
    if isinstance(pair, Atoms):
        return _of_atoms(question, pair, given)
    lower, upper = 0.0 * given, 0.0 * given
    for sign in signs:
        low, high, _ = single_step_ends(question, pair if sign > 0 else pair.reversed(), given)
        lower, upper = xp.maximum(lower, low), xp.maximum(upper, high)
    return Bounds(xp.where(one, lower, 0.0), xp.where(one, upper, none))


def _of_atoms(question: str, pair: Atoms, given: Numbers) -> Bounds:
    """Return the ends of one outcome among finitely many: δ(ε) is a sum, 2n units of roundoff off.

    Its root moves by at most what δ is off by, over −dδ/dε = Σ m·e^{ε − l} over the losses above ε.
    """
    all_of_it = Discrete(np.append(pair.loss, np.inf), np.append(pair.mass, pair.infinite))
    off = EPS * (len(pair.loss) + 8)
    if question == "delta":
        found = discrete_delta(all_of_it, float(given))
        return _concrete_bounds(found * (1 - off), min(found * (1 + off), 1.0))
    ends = [discrete_epsilon(all_of_it, float(given) * (1 + way * off)) for way in (1, -1)]
    least = max(ends[0] - 1e-13 * (1 + ends[0]), 0.0)
    return _concrete_bounds(least, ends[1] + 1e-13 * (1 + ends[1]))


def _concrete_bounds(lower: float, upper: float) -> Bounds:
    return Bounds(NUMPY.asarray(lower)[()], NUMPY.asarray(upper)[()])
