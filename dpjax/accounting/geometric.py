"""Noise uniform in a ball (Tholeti and Kalyani 2021): a mechanism all of whose privacy is in δ.

Two shifted uniform balls overlap, with density ratio one, or do not: hence δ(ε) is the same total
variation distance at every ε >= 0, after sampling and after composition too. With δ_t per step
the total is exactly 1 − Π(1 − δ_t) for the worst pair. An analysis tool: a useful δ needs a radius
that drowns the signal (`ball_displacement` says which), where Gaussian noise of a small fraction
of it gives the same δ and a finite ε.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array

from dpjax._numerics import float64
from dpjax._numerics.arrays import (
    JAX,
    NUMPY,
    Numbers,
    Values,
    falling_root,
    namespace,
    with_derivative,
)
from dpjax._numerics.checks import Range, number
from dpjax._numerics.quadrature import gauss_legendre
from dpjax._numerics.warning import DpjaxWarning
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour import method as contour
from dpjax.accounting.envelope import envelope
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.gaussian import gaussian_dp as gaussian
from dpjax.accounting.geodp import published_geodp_mu as published_geodp_mu
from dpjax.accounting.loss_distribution import method as loss_distribution
from dpjax.accounting.mechanisms import (
    Composed,
    Mechanism,
    PoissonSampled,
    Repeated,
    Shuffled,
    UniformBall,
)
from dpjax.accounting.mechanisms.base import walk
from dpjax.accounting.method import Method, bound_by, rank_methods
from dpjax.accounting.pairs.atoms import PAIRS, SAMPLING_RULES, is_gaussian_family
from dpjax.accounting.pairs.stacked import flatten_run, groups, split_run, times
from dpjax.accounting.renyi import method as renyi
from dpjax.accounting.typing import Real

_NODES, _WEIGHTS = gauss_legendre(48)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2
_DIMENSION = Range(1.0, whole=True)
_ROUND_UP = 1 + 1e-11  # the quadrature agrees with mpmath to 1e-13
# Γ(x + 1/2)/Γ(x) = √x Σ a_k x^−k.
_GAMMA_RATIO = (1, -1 / 8, 1 / 128, 5 / 1024, -21 / 32768, -399 / 262144, 869 / 4194304)


def _parts(displacement: Array, dimension: Array) -> tuple[Array, Array]:
    """I_{Δ²/4}(1/2, (d+1)/2) = 2κ_d ∫₀^φ cos^d, sin φ = Δ/2, rounded up; its derivative by Δ.

    By quadrature, because `betainc` is off by 1e-6 at d = 1e9: it subtracts logarithms of
    factorials.
    """
    xp = namespace(displacement, dimension)
    known = (displacement >= 0) & (displacement < 2.0) & (dimension >= 1)
    displacement, dimension = xp.where(known, displacement, 0.0), xp.where(known, dimension, 1.0)
    x = (dimension + 1.0) / 2
    large, small = xp.maximum(x, 20.0), xp.minimum(x, 20.0)
    # asymptotic; its first omitted term is below 1e-12 from x = 20
    series = xp.sqrt(large) * xp.polyval(_GAMMA_RATIO[::-1], 1 / large)
    exact = xp.exp(xp.gammaln(small + 0.5) - xp.gammaln(small))  # few digits cancel below 20
    constant = xp.where(x > 20.0, series, exact) / np.sqrt(np.pi)
    # cos^d φ <= exp(−dφ²/2): what lies beyond nine standard deviations is below the rounding.
    end = xp.arcsin(displacement / 2)
    angle = xp.minimum(end, 9.0 / xp.sqrt(dimension))
    sines = xp.square(xp.sin(angle[..., None] * _NODES))  # cos^d = (1 − sin²)^{d/2}
    powers = xp.exp(dimension[..., None] / 2 * xp.log1p(-sines))
    value = 2 * constant * angle * xp.sum(_WEIGHTS * powers, axis=-1) * _ROUND_UP
    # d/dΔ of 2κ∫: κ·cos^{d−1}φ, as dφ/dΔ = 1/(2 cos φ)
    slope = constant * xp.exp((dimension - 1) / 2 * xp.log1p(-xp.square(displacement / 2)))
    return xp.where(known, xp.minimum(value, 1.0), 1.0), xp.where(known, slope, 0.0)


def _ball_delta(displacement: Array, dimension: Array) -> Array:
    return _parts(displacement, dimension)[0]


def ball_delta(displacement: Values, dimension: Values) -> Numbers:
    """δ of one release with noise uniform in a ball, at every ε >= 0.

    The total variation distance of two uniform unit balls whose centres are Δ apart in d
    dimensions, I_{Δ²/4}(1/2, (d+1)/2) for Δ <= 2 and 1 beyond; about 2Φ(Δ√(d+2)/2) − 1 for large d.

    References:
        Tholeti and Kalyani 2021, Theorem 1; re-derived, since the printed formula cancels.
    """
    given = (
        number("displacement", displacement, Range(0.0, infinite=True)),
        number("dimension", dimension, _DIMENSION),
    )
    return float64.to_float(float64.evaluate(_ball_delta, given, (0, 0), batch=512, rounding="up"))


@with_derivative
def _displacement(delta: Array, dimension: Array) -> Array:
    """Root in log(1/Δ) of log δ, which is concave in it and falls."""
    xp = namespace(delta, dimension)

    def function(log_radius: Array) -> tuple[Array, Array]:
        displacement = xp.exp(-log_radius)
        value, slope = _parts(displacement, dimension)
        return xp.log(value) - xp.log(delta), -displacement * slope / value

    # δ <= κ_d Δ with κ_d <= √((d+1)/2π), so that this displacement is private enough.
    least = delta * np.sqrt(2 * np.pi) / xp.sqrt(dimension + 1.0) * (1 - 1e-9)
    high = -xp.log(xp.minimum(least, 2.0))
    low = xp.full_like(high, -np.log(2.0))  # Δ = 2: the balls are apart and δ = 1
    return xp.exp(-falling_root(function, high, low, high, tolerance=1e-12))


@_displacement.defjvp
def _displacement_jvp(primals: tuple, tangents: tuple) -> tuple:
    root = _displacement(*primals)
    (_, slope), (by_dimension, _) = jax.jvp(
        lambda dimension: _parts(root, dimension), primals[1:], tangents[1:]
    )
    return root, (tangents[0] - by_dimension) / slope  # implicit function theorem


def _most_displacement(delta: Array, dimension: Array) -> Array:
    xp = namespace(delta, dimension)
    delta, dimension = xp.broadcast_arrays(delta, dimension)
    known = (delta > 0) & (delta < 1) & (dimension >= 1)
    root = _displacement(xp.where(known, delta, 0.5), xp.where(known, dimension, 1.0))
    return xp.where(known, root, xp.where((delta >= 1) & (dimension >= 1), 2.0, 0.0))


def ball_displacement(delta: Values, dimension: Values) -> Numbers:
    """Largest sensitivity-to-radius ratio whose single release costs at most δ, rounded down.

    Its inverse is the radius needed, in units of the sensitivity. It inverts `ball_delta`.
    """
    given = number("delta", delta, Range(0.0, 1.0)), number("dimension", dimension, _DIMENSION)
    return float64.to_float(
        float64.evaluate(_most_displacement, given, (0, 0), batch=512, rounding="down")
    )


# --- as a method --------------------------------------------------------------------------------


def _sampling(step: Mechanism, adjacency: Adjacency) -> Real | None:
    """With which probability the step's release sees a record; None of a step that does not sample.

    By joint convexity the total variation is at most that share of the one inside, and it is that
    share where the rest of the batch stays as it is.
    """
    return (
        SAMPLING_RULES[type(step)].participation(step, adjacency)
        if type(step) in SAMPLING_RULES
        else None
    )


def _is_ball(step: Mechanism) -> bool:
    if type(step) in SAMPLING_RULES or isinstance(step, Shuffled | Repeated | Composed):
        return bool(step.parts()) and all(map(_is_ball, step.parts()))
    return isinstance(step, UniformBall)


def _split(run: Mechanism) -> tuple[Composed, Composed]:
    """The run's ball releases and everything else."""
    ball, rest = split_run(run, _is_ball)
    return Composed(tuple(times(step, factors) for step, factors in ball)), rest


def _log_survival(step: Mechanism, adjacency: Adjacency, attained: bool) -> Numbers:
    """log(1 − δ) of a ball release; attained: of the pair that `_balls_lower` names."""
    xp = namespace(step)
    if isinstance(step, UniformBall):
        return xp.log1p(-_ball_delta(xp.asarray(step.displacement), xp.asarray(step.dimension)))
    share = _sampling(step, adjacency)
    inner = step.parts()
    if attained and _opposite(step, adjacency):
        inner, attained = tuple(_halve(jax.tree.map(xp.asarray, part)) for part in inner), False
    lost = (_log_survival(part, adjacency, attained) for part in inner)
    total = functools.reduce(operator.add, lost, xp.zeros(()))
    if share is not None:
        return xp.log1p(share * xp.expm1(total))  # 1 − qδ of a sample
    # independent releases: survivals multiply
    return total * step.steps if isinstance(step, Repeated) else total


def _opposite(step: Mechanism, adjacency: Adjacency) -> bool:
    """Whether the pair attained is that of two opposite contributions, half as far from none."""
    scheme = SAMPLING_RULES.get(type(step))
    return scheme is not None and PAIRS[scheme.attained(adjacency)].mirrored


def _halve(step: Mechanism) -> Mechanism:
    """The release with half of all its displacements."""

    def halve(part: UniformBall | Numbers) -> UniformBall | Numbers:
        ball = isinstance(part, UniformBall)
        return UniformBall(0.5 * part.displacement, part.dimension) if ball else part

    return jax.tree.map(halve, step, is_leaf=lambda part: isinstance(part, UniformBall))


def _has_balls(run: Mechanism, adjacency: Adjacency) -> bool:
    ball, rest = _split(run)
    schemes = [step for step in walk(ball) if type(step) in SAMPLING_RULES]
    if not ball.mechanisms or any(_sampling(step, adjacency) is None for step in schemes):
        return False
    return not rest.mechanisms or is_gaussian_family(rest, adjacency)


@functools.lru_cache(maxsize=64)
def _total_core(key: tuple, adjacency: Adjacency, attained: bool) -> Callable[..., Numbers]:
    def core(*leaves: Array) -> Array:
        xp = namespace(*leaves)
        total = xp.zeros(())
        for _, step, count in groups(key, leaves):
            lost = _log_survival(step, adjacency, attained)
            # 0 uses of a certain loss are no loss
            total = total + xp.sum(xp.where(count > 0, count * lost, 0.0))
        return xp.minimum(-xp.expm1(total) * _ROUND_UP, 1.0)  # 1 − Π(1 − δ_t), rounded up

    return core


def _total_delta(run: Mechanism, adjacency: Adjacency, attained: bool = False) -> Numbers:
    """δ of all ball releases together, at every ε."""
    ready = flatten_run(run)
    core = _total_core(ready.key, adjacency, attained)
    return float64.evaluate(core, ready.leaves, ready.ndims, rounding="up")


_OTHERS = (
    *gaussian.GDP_METHODS,
    *contour.CONTOUR_METHODS,
    *loss_distribution.LOSS_METHODS,
    *renyi.RENYI_METHODS,
)


def _balls_epsilon(run: Mechanism, delta: Numbers, adjacency: Adjacency) -> Numbers:
    ball, rest = _split(run)
    spent = _total_delta(ball, adjacency)
    traced = float64.is_traced(spent, delta)
    xp = JAX if traced else NUMPY
    enough = spent <= delta
    if rest.mechanisms:
        # The worst pair reveals everything with probability δ_ball and nothing otherwise.
        usable = spent < delta
        left = xp.where(usable, (delta - spent) / (1 - xp.where(usable, spent, 0.0)), 0.5)
        left = left * (1 - 1e-12)  # rounded down, so that ε is rounded up
        value = bound_by(_OTHERS, "epsilon", rest, left, adjacency)
        return xp.where(usable, value, xp.inf)
    if not traced and not np.all(enough):
        warnings.warn(
            f"noise uniform in a ball spends δ = {np.max(spent):.3g} at every ε, above the target "
            f"{np.min(delta):.3g}: a larger ε buys nothing. Enlarge the radius (see "
            "geometric.ball_displacement) or use Gaussian noise",
            DpjaxWarning,
            stacklevel=6,
        )
    return xp.where(enough, 0.0, xp.inf)


def _balls_delta(run: Mechanism, epsilon: Numbers, adjacency: Adjacency) -> Numbers:
    ball, rest = _split(run)
    spent = _total_delta(ball, adjacency)
    traced = float64.is_traced(spent, epsilon)
    xp = JAX if traced else NUMPY
    if rest.mechanisms:
        other = bound_by(_OTHERS, "delta", rest, epsilon, adjacency)
        # told with probability δ_ball, else as private as the rest
        return xp.minimum((spent + (1 - spent) * other) * (1 + 1e-15), 1.0)
    if not traced and np.any(np.asarray(epsilon) > 0):
        warnings.warn(
            "noise uniform in a ball has the same δ at every ε: ε > 0 buys nothing",
            DpjaxWarning,
            stacklevel=6,
        )
    return spent + 0.0 * xp.isfinite(epsilon)  # also at an infinite ε


def _tradeoff(run: Mechanism, rates: Numbers, adjacency: Adjacency) -> Numbers:
    """(1 − δ) f(a/(1 − δ)): with probability δ the attacker is told, else all that is left is f."""
    ball, rest = _split(run)
    spent = _total_delta(ball, adjacency)
    xp = namespace(spent, rates)
    kept = xp.maximum(1 - xp.asarray(spent)[..., None], 0.0)
    if not rest.mechanisms:
        return xp.clip(kept - rates, 0.0, 1.0)
    if np.ndim(kept) > 1:
        raise UnsupportedQuery("trade-off curves of ball noise: one setting at a time")
    inner = xp.clip(rates / xp.maximum(kept, 1e-300), 0.0, 1.0)  # the rate among what is left
    table = (*_OTHERS, envelope(_OTHERS))
    best = rank_methods(table, "tradeoff", rest, adjacency)[0].tradeoff
    assert best is not None
    return kept * best(rest, inner, adjacency)


def _balls_lower(run: Mechanism, delta: Numbers, adjacency: Adjacency) -> Numbers:
    """A lower end, of outputs with and without a record whose contribution has the whole size.

    Each release then has an event of probability δ_t under the one and of none under the other: no
    ε is enough below their total. With Poisson sampling under REPLACE_ONE the pair is that of the
    contributions ±Δ/2: (1−q)U(0) + qU(±Δ/2), U the uniform law of the ball. U(Δ/2) and U(−Δ/2)
    meet inside U(0) only, so that with a = TV(Δ/2), b = TV(Δ) the event has probability qa, and
    the ratio is 1/(1−q) on a further b − a: δ(ε) = qa + (b−a)(1 − e^ε(1−q))₊ for one step.
    """
    ball, _ = _split(run)
    never = _total_delta(ball, adjacency, attained=True)
    xp = namespace(never, delta)
    # rounded down: a lower end claims no more than is true
    value = xp.where(never * (1 - 1e-10) > delta, xp.inf, 0.0)
    if not (isinstance(run, PoissonSampled) and _opposite(run, adjacency)):
        return value
    ball, rate = run.mechanism, xp.asarray(run.rate)
    if not isinstance(ball, UniformBall):
        return value
    ends = [ball_delta(f * ball.displacement, ball.dimension) for f in (0.5, 1)]
    left = 1 - (xp.asarray(delta) * (1 + 1e-6) - rate * ends[0]) / (ends[1] - ends[0] + 1e-300)
    ratio = xp.maximum(left, 1e-300) / xp.maximum(1 - rate, 1e-300)
    return xp.maximum(value, xp.maximum(xp.log(ratio) - 1e-6, 0.0))


BALL_METHODS = (
    Method(
        "total_variation",
        rank=5.0,
        supports=_has_balls,
        needs=(UniformBall,),
        epsilon=_balls_epsilon,
        delta=_balls_delta,
        epsilon_lower=_balls_lower,
        tradeoff=_tradeoff,
        describe="total variation of shifted uniform balls (Tholeti and Kalyani 2021), composed as "
        "1 − Π(1 − δ_t)",
    ),
)
