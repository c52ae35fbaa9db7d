"""Rényi curves of the (subsampled) Gaussian, at every real order above one, as upper bounds.

For a dominating pair (P, Q) with densities p, q relative to N(0, 1), the log-moment is

    K(α) = log E_{N(0,1)}[ q (p/q)^α ],        D_α(P‖Q) = K(α)/(α−1),

and every integrand is positive. Since E[q] = E[p] = 1, the moment equals 1 + E[H] with
H = q((p/q)^α − 1 − α(p/q − 1)) >= 0: summing H by the trapezoid rule and taking log1p loses nothing
where the log-moment is tiny (the sum over k >= 2 of a binomial expansion, without its alternating
signs), and scaled by its largest term it never overflows.

The trapezoid rule's error is bounded, not guessed. Left out: two tails, bounded by Gaussian tails
under the tangent of log p, log q. Aliases: the integrand is analytic in the strip |Im z| < π/μ and
there |integrand(z + iy)| <= integrand(z)·e^{y²/2}·cos(μy/2)^{−κ} (κ counts negative powers), so the
relative error of step h is at most 2e^{−2πy/h + y²/2}cos(μy/2)^{−κ}/(1 − e^{−2πy/h}) for any
admissible y. Both are added to the moment. Where the nodes do not resolve the integrand the answer
is +inf.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpjax._numerics.logarithm import log1p
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.lowering import Atoms, Steps

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_CUT = 42.0  # tails are cut where they hold e^-42 of the moment
_BISECTIONS = 24
_RELATIVE, _ABSOLUTE = 1e-9, 1e-15  # final inflation of every Rényi divergence
_SERIES = 0.02  # below this α|p/q − 1| the integrand H is summed as a series

PAIRS = ("remove", "add", "replace")


class _Mix(NamedTuple):
    """1 − q + q e^w: its logarithm, that logarithm's slope in w, and its excess over one."""

    log: Array
    slope: Array
    excess: Array


def _mix(w: Array, rate: Array) -> _Mix:
    """Exact to rounding for tiny rates and arguments, and without overflow (excess excepted)."""
    e = jnp.exp(-jnp.abs(w))
    em = jnp.expm1(-jnp.abs(w))
    up = w > 0
    huge = w > 700.0
    excess = rate * jnp.where(up, -em / jnp.where(huge, 1.0, e), em)
    log = jnp.where(huge, w + jnp.log(rate), log1p(excess))
    share = rate * jnp.where(up, 1.0, e)
    slope = share / (share + (1 - rate) * jnp.where(up, e, 1.0))
    return _Mix(jnp.where(rate > 0, log, 0.0), slope, excess)


def _exponent(pair: str, mu: Array, rate: Array, order: Array, z: Array) -> tuple[Array, ...]:
    """log(q (p/q)^α) at z, its slope, and the slope that bounds it from there to the right."""
    up = _mix(mu * z - 0.5 * mu * mu, rate)
    if pair == "remove":
        return order * up.log, order * mu * up.slope, order * mu + 0.0 * z
    if pair == "add":
        return (1 - order) * up.log, (1 - order) * mu * up.slope, 0.0 * z
    down = _mix(-mu * z - 0.5 * mu * mu, rate)
    fall = (order - 1) * mu * down.slope
    value = order * up.log - (order - 1) * down.log
    return value, order * mu * up.slope + fall, order * mu + fall


def _tails(pair: str, mu: Array, rate: Array, order: Array, ends: Array, level: Array) -> Array:
    """log of upper bounds of the moment's parts left of ends[0] and right of ends[1].

    log(q (p/q)^α) is below a line through the cut, so the part is below a Gaussian tail, which is
    below its Chernoff bound. The line: on the left a constant where it rises, its tangent where it
    falls (`add`, concave); on the right its steepest slope, 0 where it falls. Where the left cut is
    far right, (A + B)^α <= (1−λ)^{1−α} A^α + λ^{1−α} B^α splits p^α into its two Gaussians, with λ
    such that the first is e^-44 of exp(level). The terms that H takes away are at most α times a
    tail of N(0), N(μ) or (`replace`, left) N(−μ).
    """
    value, slope, steepest = _exponent(pair, mu, rate, order, ends)
    line = jnp.stack([jnp.minimum(slope[0], 0.0), steepest[1]])
    away = jnp.asarray([-1.0, 1.0])
    gap = jnp.maximum((ends - line) * away, 0.0)  # distance of the cut from the tilted centre
    moment = value - line * ends + 0.5 * line * line - 0.5 * gap * gap
    if pair != "add":
        a, fall = ends[0], steepest[0] - order * mu  # p's partner is below its tangent at the cut
        rest = value[0] - order * _mix(mu * a - 0.5 * mu * mu, rate).log - fall * a
        share = jnp.maximum(level - 44.0, 0.0) / (order - 1)  # −log(1 − λ)
        low, high = fall, fall + order * mu
        gaps = jnp.maximum(jnp.stack([low, high]) - a, 0.0)
        first = order * log1p(-rate) + (order - 1) * share + 0.5 * low * low
        second = order * (jnp.log(rate) - 0.5 * mu * mu) + 0.5 * high * high
        second = second - (order - 1) * jnp.log(-jnp.expm1(-share))
        split = rest + jnp.logaddexp(first - 0.5 * gaps[0] ** 2, second - 0.5 * gaps[1] ** 2)
        moment = jnp.stack([jnp.fmin(moment[0], split), moment[1]])
    bulk = jnp.stack([-mu if pair == "replace" else 0.0 * mu, mu])
    gap = jnp.maximum((ends - bulk) * away, 0.0)
    return jnp.logaddexp(moment, jnp.log(order) - 0.5 * gap * gap)


def _window(
    pair: str, mu: Array, rate: Array, order: Array, bisections: int
) -> tuple[Array, Array]:
    """An interval outside of which the moment's tails are below e^-42 of it, and its level."""
    if pair == "add":
        start, low, high = 0.0 * mu, -(order - 1) * mu - 11.0, 11.0 + mu
    else:
        start = (order if pair == "remove" else 2 * order - 1) * mu
        low, high = -11.0 - (mu if pair == "replace" else 0.0 * mu), start + 11.0

    # A lower bound of the moment's logarithm, good enough to know which tails matter: the integrand
    # near its outermost peak. A poor guess widens or narrows the window; the tails are added
    # anyway.
    peak = jax.lax.fori_loop(0, 5, lambda _, z: _exponent(pair, mu, rate, order, z)[1], start)
    level = jnp.maximum(_exponent(pair, mu, rate, order, peak)[0] - 0.5 * peak * peak, 0.0)

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        outer, inner = ends
        middle = 0.5 * (outer + inner)
        cut = _tails(pair, mu, rate, order, middle, level) <= level - _CUT
        return jnp.where(cut, middle, outer), jnp.where(cut, inner, middle)

    ends = (jnp.stack([low, high]), jnp.stack([high, low]))
    return jax.lax.fori_loop(0, bisections, halve, ends)[0], level


def _integrand(pair: str, mu: Array, rate: Array, order: Array, z: Array) -> tuple[Array, ...]:
    """log of φ q (p/q)^α; φ((1−α)q + αp); and φ·H where its series holds, elsewhere −1."""
    log_phi = -0.5 * z * z - _LOG_SQRT_2PI
    phi = jnp.exp(log_phi)
    w = mu * z - 0.5 * mu * mu
    up = _mix(w, rate)
    shifted = rate * (jnp.exp(log_phi + w) - phi)  # φ·(p − 1), with no overflow on the way
    small = w < 1.0
    gain = jnp.where(small, up.excess, 0.0)
    if pair == "remove":
        log_value, linear = order * up.log, phi + order * shifted
        base, excess = 1.0, gain
    elif pair == "add":
        log_value, linear = (1 - order) * up.log, phi + (1 - order) * shifted
        base, excess = 1.0 + gain, -gain / (1.0 + gain)
    else:
        v = -mu * z - 0.5 * mu * mu
        down = _mix(v, rate)
        log_value = order * up.log - (order - 1) * down.log
        back = rate * (jnp.exp(log_phi + v) - phi)
        linear = phi + order * shifted - (order - 1) * back
        small &= v < 1.0
        base = 1.0 + jnp.where(small, down.excess, 0.0)
        reach = jnp.where(small, mu * z, 0.0)
        excess = 2.0 * rate * jnp.exp(-0.5 * mu * mu) * jnp.sinh(reach) / base
    near = small & (order * jnp.abs(excess) < _SERIES)
    d = jnp.where(near, excess, 0.0)
    tail = 1.0 + (order - 5) / 6.0 * d * (1.0 + (order - 6) / 7.0 * d)
    tail = 1.0 + (order - 3) / 4.0 * d * (1.0 + (order - 4) / 5.0 * d * tail)
    series = phi * base * 0.5 * order * (order - 1) * d * d * (1.0 + (order - 2) / 3.0 * d * tail)
    return log_value + log_phi, linear, jnp.where(near, series, -1.0)


def _alias(pair: str, mu: Array, order: Array, step: Array) -> Array:
    """log of the trapezoid rule's relative aliasing bound at step h."""
    if pair == "remove":
        y = jnp.minimum(2 * jnp.pi / step, 0.999 * jnp.pi / mu)
        bend = 0.0
    else:  # any admissible y is valid: try some around the optimum of the quadratic approximation
        y = 2 * jnp.pi / (step * (1.0 + (order - 1) * mu * mu / 4.0))
        y = jnp.minimum(y * jnp.asarray([0.3, 0.45, 0.65, 0.8, 1.0]), 0.97 * jnp.pi / mu)
        bend = -(order - 1) * jnp.log(jnp.cos(0.5 * mu * y))
    decay = 2 * jnp.pi * y / step
    return jnp.min(math.log(2.0) - decay + 0.5 * y * y + bend - jnp.log(-jnp.expm1(-decay)))


def log_moment(
    pair: str,
    mu: Float[Array, ""],
    rate: Float[Array, ""],
    order: Float[Array, ""],
    *,
    nodes: int = 512,
    certified: bool = True,
) -> Float[Array, ""]:
    """K(α) of one subsampled Gaussian pair; an upper bound if certified, +inf if unresolved.

    Arguments:
        pair: `remove` ((1−q)N(0)+qN(μ) against N(0)), `add` (its reverse) or `replace`
            ((1−q)N(0)+qN(μ) against (1−q)N(0)+qN(−μ)).
        mu, rate, order: displacement over noise, sampling rate q, Rényi order α > 1; float64.
        nodes: of the trapezoid rule. certified: False skips the error bound (to locate an optimum).

    >>> from dpjax._numerics.float64 import evaluate
    >>> core = lambda m, q, a: log_moment("remove", m, q, a)
    >>> bool(abs(evaluate(core, [1.0, 0.01, 2.0], [0, 0, 0]) - 1.7181334e-4) < 1e-10)
    True
    """
    fixed = jax.lax.stop_gradient((mu, rate, order))
    bisections = _BISECTIONS if certified else 12
    ends, level = jax.lax.stop_gradient(_window(pair, *fixed, bisections))
    step = (ends[1] - ends[0]) / (nodes - 1)
    z = ends[0] + step * jnp.arange(nodes)
    log_value, linear, series = _integrand(pair, mu, rate, order, z)
    top = jax.lax.stop_gradient(jnp.maximum(jnp.max(log_value), 0.0))
    scale = jnp.exp(-top)
    terms = jnp.where(series >= 0, series * scale, jnp.exp(log_value - top) - scale * linear)
    total = jnp.maximum(step * jnp.sum(terms), 0.0)  # H >= 0: below is rounding noise
    if certified:
        log_moment_ = top + jnp.log(total + scale)
        tails = _tails(pair, mu, rate, order, ends, level)
        errors = jnp.logaddexp(jnp.logaddexp(*tails), log_moment_ + _alias(pair, mu, order, step))
        total = total + jax.lax.stop_gradient(jnp.exp(errors - top))
        resolved = errors - log_moment_ < math.log(1e-6)
    else:
        resolved = jnp.isfinite(total)
    value = jnp.where(top > 0, top + jnp.log(total + scale), log1p(total))
    value = jnp.where(resolved & (value >= 0), value, jnp.inf)
    value = jnp.where(rate > 0, value, 0.0)
    shift = 2 * mu if pair == "replace" else mu
    return jnp.where(rate < 1, value, 0.5 * order * (order - 1) * shift * shift)


def _group(steps: Steps, pair: str, orders: Array, nodes: int, certified: bool) -> Array:
    """Sum over the steps of count·K(α), for every order; the steps run in blocks."""

    def one(mu: Array, rate: Array, count: Array) -> Array:
        k = jax.vmap(lambda a: log_moment(pair, mu, rate, a, nodes=nodes, certified=certified))(
            orders
        )
        return jnp.where(count > 0, count * jnp.where(count > 0, k, 0.0), 0.0)

    m = steps.mu.shape[0]
    if m == 1:
        return one(steps.mu[0], steps.rate[0], steps.count[0])
    width = min(m, 16)
    pad = -m % width
    blocks = tuple(
        jnp.pad(v, (0, pad), mode="edge" if i < 2 else "constant") for i, v in enumerate(steps)
    )
    blocks = tuple(v.reshape(-1, width) for v in blocks)

    def body(total: Array, row: tuple) -> tuple[Array, None]:
        return total + jnp.sum(jax.vmap(one)(*row), axis=0), None

    return jax.lax.scan(body, jnp.zeros_like(orders), blocks)[0]


def renyi_log_moments(
    atoms: Atoms,
    adjacency: Adjacency,
    orders: Float[Array, "k"],
    *,
    nodes: int,
    certified: bool = True,
) -> Float[Array, "k"]:
    """K(α) = (α−1)·RDP(α) of a whole run, at float64 orders above one.

    Under ADD_REMOVE the sampled steps take the `remove` pair: its Rényi divergence is never below
    the reverse one's at the same order (Mironov, Talwar and Zhang 2019, Theorem 5). Fixed batches
    take the same pair at the replace-one displacement.

    >>> from dpjax._numerics.float64 import float64_scope
    >>> with float64_scope():
    ...     atoms = Atoms(jnp.asarray(0.5), None, None)
    ...     float(renyi_log_moments(atoms, Adjacency.ADD_REMOVE, jnp.asarray([3.0]), nodes=64)[0])
    1.5
    """
    total = 0.5 * orders * (orders - 1) * atoms.gaussian_mu2
    if atoms.poisson is not None:
        pair = "remove" if adjacency is Adjacency.ADD_REMOVE else "replace"
        total = total + _group(atoms.poisson, pair, orders, nodes, certified)
    if atoms.fixed is not None:
        total = total + _group(atoms.fixed, "remove", orders, nodes, certified)
    return jnp.where(jnp.isnan(total), jnp.inf, total)


def rdp_curve(atoms: Atoms, adjacency: Adjacency, orders: Float[Array, "k"]) -> Float[Array, "k"]:
    """The Rényi divergence at each order, rounded up; +inf at orders that are not above one.

    >>> from dpjax import accounting as acc
    >>> acc.rdp(acc.Gaussian(2.0), [2.0, 4.0]).round(6)
    array([0.25, 0.5 ])
    """
    good = orders > 1
    safe = jnp.where(good & jnp.isfinite(orders), orders, 2.0)
    value = jax.lax.map(
        lambda a: renyi_log_moments(atoms, adjacency, a[None], nodes=4096)[0] / (a - 1), safe
    )
    value = value * (1 + _RELATIVE) + jnp.where(value > 0, _ABSOLUTE, 0.0)
    return jnp.where(good & jnp.isfinite(orders), value, jnp.inf)
