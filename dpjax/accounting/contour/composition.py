"""What is composed in one setting, and sums over its steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Float

from dpjax._numerics.arrays import namespace, tree_map
from dpjax.accounting.pairs.protocol import Steps
from dpjax.accounting.pairs.table import PAIRS, TRANSFORMS


class Composition(NamedTuple):
    """What is composed, in one setting.

    Fields:
        gaussian_mu2: Σ μ² of the plain Gaussian steps, whose transform is known: K(z) = μ²z(z +
            1)/2.
        steps: the sampled steps, by the names of their pairs.
    """

    gaussian_mu2: Float[Array, ""]
    steps: dict[str, Steps]


def line_of(name: str) -> Any:
    """What is known of a pair's transform on lines: a `Pair` or a `Transform`."""
    return PAIRS[name] if name in PAIRS else TRANSFORMS[name]


def weighted_sum(function: Callable, run: Composition, plain: Any) -> Any:
    """`plain` and Σ over steps of count·function(pair, mu, rate, count), few steps at a time."""
    xp: Any = namespace(run, plain)
    total = plain
    for name, steps in run.steps.items():
        pair, groups = line_of(name), steps.mu.shape[0]
        if groups == 1:
            values = function(pair, steps.mu[0], steps.rate[0], steps.count[0])
            values = tree_map(lambda v, n=steps.count[0]: n * v, values)
        else:
            rows = (steps.mu, steps.rate, steps.count)
            one = functools.partial(function, pair)
            values = xp.map(lambda row, f=one: f(*row), rows, batch_size=min(groups, 16))
            values = tree_map(lambda v, n=steps.count: xp.tensordot(n, v, axes=1), values)
        total = tree_map(xp.add, total, values)
    return total


def clean(run: Composition) -> Composition:
    """Steps that release nothing get count 0 and harmless parameters."""
    xp: Any = namespace(run)

    def clean(steps: Steps) -> Steps:
        idle = (steps.mu <= 0) | (steps.rate <= 0) | (steps.count <= 0) | ~xp.isfinite(steps.mu)
        return Steps(
            xp.where(idle, 0.1, steps.mu),
            xp.where(idle, 1e-3, xp.clip(steps.rate, 1e-300, 1.0)),
            xp.where(idle, 0.0, steps.count),
        )

    mu2 = xp.where(xp.isfinite(run.gaussian_mu2), run.gaussian_mu2, 1.0)
    return Composition(xp.maximum(mu2, 0.0), {f: clean(g) for f, g in run.steps.items()})


def total_variation(run: Composition) -> Array:
    """δ(0) ≤ 1 − Π(1 − TV)^count, from the total variation distances of the steps."""
    xp: Any = namespace(run)
    plain = xp.clip(xp.erf(xp.sqrt(run.gaussian_mu2 / 8.0)), 0.0, 1 - 1e-16)
    log_agree = xp.log1p(-plain)
    for name, group in run.steps.items():
        distance = line_of(name).total_variation(group.mu, group.rate)
        distance = xp.clip(distance, 0.0, 1 - 1e-16)
        log_agree = log_agree + xp.sum(group.count * xp.log1p(-distance))
    return -xp.expm1(log_agree) * (1 + 1e-12)


def impossible(run: Composition) -> Array:
    """Whether some step adds no noise, or a parameter is not a number."""
    xp: Any = namespace(run)
    bad = ~xp.isfinite(run.gaussian_mu2)
    for g in run.steps.values():
        loud = ~xp.isfinite(g.mu) & (g.rate > 0) & (g.count > 0)
        lost = xp.isnan(g.mu) | xp.isnan(g.rate) | ~xp.isfinite(g.count)
        bad = bad | xp.any(loud | lost)
    return bad
