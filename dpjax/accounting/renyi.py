"""Rényi curves of the (subsampled) Gaussian, at every real order above one, as upper bounds.

For a dominating pair (P, Q) with densities p, q relative to N(0, 1), the log-moment is

    K(α) = log E_{N(0,1)}[ q (p/q)^α ],        D_α(P‖Q) = K(α)/(α−1),

and every integrand is positive. Since E[q] = E[p] = 1, the moment equals 1 + E[H] with
H = q((p/q)^α − 1 − α(p/q − 1)) >= 0: summing H by the trapezoid rule and taking log1p loses nothing
where the log-moment is tiny (the sum over k >= 2 of a binomial expansion, without its alternating
signs), and scaled by its largest term it never overflows.

The trapezoid rule's error is bounded, not guessed. Left out: two tails, bounded by Gaussian tails under
the tangent of log p, log q. Aliases: the integrand is analytic in the strip |Im z| < π/μ and there
|integrand(z + iy)| <= integrand(z)·e^{y²/2}·cos(μy/2)^{−κ} (κ counts negative powers), so the relative
error of step h is at most 2e^{−2πy/h + y²/2}cos(μy/2)^{−κ}/(1 − e^{−2πy/h}) for any admissible y. Both
are added to the moment. Where the nodes do not resolve the integrand the answer is +inf.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.lowering import Atoms, Steps

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_CUT = 42.0  # tails are cut where they hold e^-42 of the moment
_BISECTIONS = 24
_RELATIVE, _ABSOLUTE = 1e-9, 1e-15  # final inflation of every Rényi divergence
_SERIES = 0.02  # below this α|p/q − 1| the integrand H is summed as a series

PAIRS = ("remove", "add", "replace")


def _log_mix(w: Array, rate: Array) -> Array:
    """log(1 − q + q e^w) without overflow, exact to rounding for tiny q and w."""
    small = jnp.minimum(w, 30.0)
    large = jnp.maximum(w, 30.0)
    return jnp.where(
        w < 30.0,
        jnp.log1p(rate * jnp.expm1(small)),
        # rate = 0 would be log 0: the value is then 0 for any w
        jnp.where(
            rate > 0, large + jnp.log(jnp.maximum(rate, 1e-300) + (1 - rate) * jnp.exp(-large)), 0.0
        ),
    )


def _weight(w: Array, rate: Array) -> Array:
    """Slope of log(1 − q + q e^w) in w, in [0, 1]."""
    e = jnp.exp(-jnp.abs(w))
    return jnp.where(
        w > 0, rate / (rate + (1 - rate) * e + 1e-300), rate * e / (1 - rate + rate * e + 1e-300)
    )


def _exponent(pair: str, mu: Array, rate: Array, order: Array, z: Array) -> tuple[Array, Array]:
    """log(q (p/q)^α) at z and its derivative in z."""
    up = mu * z - 0.5 * mu * mu
    if pair == "remove":
        return order * _log_mix(up, rate), order * mu * _weight(up, rate)
    if pair == "add":
        return (1 - order) * _log_mix(up, rate), (1 - order) * mu * _weight(up, rate)
    down = -mu * z - 0.5 * mu * mu
    value = order * _log_mix(up, rate) + (1 - order) * _log_mix(down, rate)
    return value, mu * (order * _weight(up, rate) + (order - 1) * _weight(down, rate))


def _left_tail(pair: str, mu: Array, rate: Array, order: Array, a: Array) -> Array:
    """log of an upper bound of the moment's part below a, Chernoff for the Gaussian tail."""
    value, slope = _exponent(pair, mu, rate, order, a)
    if pair == "add":  # concave and falling: below its tangent
        shifted = jnp.minimum(a - slope, 0.0)
        return value - slope * a + 0.5 * slope * slope - 0.5 * shifted * shifted
    edge = jnp.minimum(a, 0.0)  # rising: below its value at a
    return value - 0.5 * edge * edge


def _right_tail(pair: str, mu: Array, rate: Array, order: Array, b: Array) -> Array:
    value, _ = _exponent(pair, mu, rate, order, b)
    if pair == "add":
        edge = jnp.maximum(b, 0.0)
        return value - 0.5 * edge * edge
    steepest = order * mu  # of log p^α beyond b
    if pair == "replace":
        steepest = steepest + (order - 1) * mu * _weight(-mu * b - 0.5 * mu * mu, rate)
    edge = jnp.maximum(b - steepest, 0.0)
    return value - steepest * b + 0.5 * steepest * steepest - 0.5 * edge * edge


def _window(pair: str, mu: Array, rate: Array, order: Array) -> tuple[Array, Array]:
    """An interval outside of which the moment's tails are below e^-42 of it."""
    if pair == "add":
        low, high = -(order - 1) * mu - 10.0, jnp.asarray(10.0)
        start = jnp.asarray(0.0)
    else:
        low = jnp.asarray(-10.0)
        high = (order if pair == "remove" else 2 * order - 1) * mu + 10.0
        start = high - 10.0

    # A lower bound of the moment's logarithm, good enough to know which tails matter: the integrand
    # near its outermost peak. A poor guess widens or narrows the window; the tails are added anyway.
    peak = jax.lax.fori_loop(0, 6, lambda _, z: _exponent(pair, mu, rate, order, z)[1], start)
    guess = jnp.maximum(_exponent(pair, mu, rate, order, peak)[0] - 0.5 * peak * peak, 0.0) - _CUT

    def halve(_: int, ends: tuple) -> tuple:
        a0, a1, b0, b1 = ends
        a, b = 0.5 * (a0 + a1), 0.5 * (b0 + b1)
        cut_left = _left_tail(pair, mu, rate, order, a) <= guess
        cut_right = _right_tail(pair, mu, rate, order, b) <= guess
        return (
            jnp.where(cut_left, a, a0),
            jnp.where(cut_left, a1, a),
            jnp.where(cut_right, b0, b),
            jnp.where(cut_right, b, b1),
        )

    a, _, _, b = jax.lax.fori_loop(0, _BISECTIONS, halve, (low, high, low, high))
    return a, b


def _integrand(
    pair: str, mu: Array, rate: Array, order: Array, z: Array
) -> tuple[Array, Array, Array]:
    """log of φ q (p/q)^α; φ((1−α)q + αp); and φ·H by its series (nan-safe) with a flag folded in."""
    log_phi = -0.5 * z * z - _LOG_SQRT_2PI
    up = mu * z - 0.5 * mu * mu
    phi = jnp.exp(log_phi)
    phi_up = jnp.exp(log_phi + up)
    up_small = jnp.minimum(up, 1.0)
    value, _ = _exponent(pair, mu, rate, order, z)
    gain = rate * jnp.expm1(up_small)  # p − 1 where that is small, never where it overflows
    if pair == "remove":
        linear = phi + order * rate * (phi_up - phi)
        base, excess = 1.0, gain
        far = up > 1.0
    elif pair == "add":
        linear = phi + (1 - order) * rate * (phi_up - phi)
        base, excess = 1.0 + gain, -gain / (1.0 + gain)
        far = up > 1.0
    else:
        down = -mu * z - 0.5 * mu * mu
        phi_down = jnp.exp(log_phi + down)
        linear = phi + rate * (order * (phi_up - phi) + (1 - order) * (phi_down - phi))
        below = rate * jnp.expm1(jnp.minimum(down, 1.0))
        base = 1.0 + below
        reach = jnp.clip(mu * z, -1.5, 1.5)
        excess = 2.0 * rate * jnp.exp(-0.5 * mu * mu) * jnp.sinh(reach) / base
        far = jnp.abs(mu * z) > 1.0
    near = ~far & (order * jnp.abs(excess) < _SERIES)
    d = jnp.where(near, excess, 0.0)
    tail = 1.0 + (order - 5) / 6.0 * d * (1.0 + (order - 6) / 7.0 * d)
    tail = 1.0 + (order - 3) / 4.0 * d * (1.0 + (order - 4) / 5.0 * d * tail)
    series = phi * base * 0.5 * order * (order - 1) * d * d * (1.0 + (order - 2) / 3.0 * d * tail)
    return value + log_phi, linear, jnp.where(near, series, -1.0)


def _alias(pair: str, mu: Array, order: Array, step: Array) -> Array:
    """log of the trapezoid rule's relative aliasing bound at step h."""
    negative = jnp.asarray(0.0) if pair == "remove" else order - 1
    y = 2 * jnp.pi / (step * (1.0 + negative * mu * mu / 4.0))
    y = jnp.minimum(y, (0.999 if pair == "remove" else 0.9) * jnp.pi / jnp.maximum(mu, 1e-300))
    decay = 2 * jnp.pi * y / step
    bend = -negative * jnp.log(jnp.cos(0.5 * mu * y)) if pair != "remove" else 0.0
    return math.log(2.0) - decay + 0.5 * y * y + bend - jnp.log(-jnp.expm1(-decay))


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
    a, b = jax.lax.stop_gradient(_window(pair, *map(jax.lax.stop_gradient, (mu, rate, order))))
    step = (b - a) / (nodes - 1)
    z = a + (b - a) * jnp.linspace(0.0, 1.0, nodes)
    log_value, linear, series = _integrand(pair, mu, rate, order, z)
    top = jax.lax.stop_gradient(jnp.maximum(jnp.max(log_value), 0.0))
    scale = jnp.exp(-top)
    terms = jnp.where(series >= 0, series * scale, jnp.exp(log_value - top) - scale * linear)
    total = step * jnp.sum(terms)
    if certified:
        log_moment_ = top + jnp.log(jnp.maximum(total, 0.0) + scale)
        tails = jnp.logaddexp(
            _left_tail(pair, mu, rate, order, a), _right_tail(pair, mu, rate, order, b)
        )
        errors = jnp.logaddexp(tails, log_moment_ + _alias(pair, mu, order, step))
        total = total + jax.lax.stop_gradient(jnp.exp(errors - top))
        resolved = errors - log_moment_ < math.log(1e-6)
    else:
        resolved = total >= 0
    value = jnp.where(top > 0, top + jnp.log(jnp.maximum(total, 0.0) + scale), jnp.log1p(total))
    return jnp.where(resolved & (value >= 0), value, jnp.where(rate > 0, jnp.inf, 0.0))


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
    orders: Float[Array, k],
    *,
    nodes: int,
    certified: bool = True,
) -> Float[Array, k]:
    """K(α) = (α−1)·RDP(α) of a whole run, at float64 orders above one.

    Under ADD_REMOVE the sampled steps take the `remove` pair: its Rényi divergence is never below the
    reverse one's at the same order (Mironov, Talwar and Zhang 2019, Theorem 5). Fixed batches take the
    same pair at the replace-one displacement.

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


def rdp_curve(atoms: Atoms, adjacency: Adjacency, orders: Float[Array, k]) -> Float[Array, k]:
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
