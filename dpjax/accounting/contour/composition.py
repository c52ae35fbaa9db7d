"""What is composed in one setting, and its steps as the pairs of the kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from dpjax._numerics.arrays import namespace
from dpjax.accounting.contour.saddle import Group, Run
from dpjax.accounting.pairs.mixtures import moves
from dpjax.accounting.pairs.protocol import Steps
from dpjax.accounting.pairs.table import PAIRS

_MOST_MU = 20.0


class Composition(NamedTuple):
    """What is composed, in one setting.

    Fields:
        gaussian_mu2: Σ μ² of the plain Gaussian steps, whose transform is known: K(z) = μ²z(z +
            1)/2.
        steps: the sampled steps, by the names of their pairs.
    """

    gaussian_mu2: Float[Array, ""]
    steps: dict[str, Steps]


def as_run(run: Composition) -> Run:
    """Return the run as `interval` takes it."""
    groups = (Group(PAIRS[name].table(g.mu, g.rate), g.count) for name, g in run.steps.items())
    return Run(run.gaussian_mu2, tuple(groups))


def changes(run: Composition) -> Run:
    """Return how the pairs of `as_run` change with μ and with the rate of their steps."""
    groups = (
        Group(moves(PAIRS[name].table, g.mu, g.rate), g.count) for name, g in run.steps.items()
    )
    return Run(run.gaussian_mu2, tuple(groups))


def is_one_step(run: Composition) -> Any:
    """Whether there is exactly one step, of noise that `single_step` takes, and nothing else."""
    xp: Any = namespace(run)
    counts = [g.count for g in run.steps.values()]
    if len(counts) != 1 or counts[0].shape[0] != 1:
        return xp.zeros(()) > 0
    (group,) = run.steps.values()
    return (group.count[0] == 1) & (run.gaussian_mu2 == 0) & (group.mu[0] <= _MOST_MU)


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
        distance = PAIRS[name].total_variation(group.mu, group.rate)
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
