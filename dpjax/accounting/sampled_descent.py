"""Noisy SGD over batches drawn afresh without replacement; only the last iterate is released."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float

from dpjax._numerics import float64
from dpjax.accounting import queries
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import (
    Composed,
    FixedBatchSampled,
    Gaussian,
    Mechanism,
    Repeated,
    check_number,
    register_mechanism,
)
from dpjax.accounting.shifted_interpolation import ASSUMPTIONS, sampled_split

_SHARES = (0.5, 0.75, 0.85, 0.93)


@register_mechanism
class NoisySampledDescent(Mechanism):
    """Noisy SGD with fixed-size batches drawn without replacement, of which the last iterate
    leaves.

    As `NoisyGradientDescent`, with F the average loss of a fresh uniform batch at every step; the
    noise of a step has standard deviation √(2η)·noise_std. Priced by the least of plain
    composition of the sampled Gaussians and, over windows ν and shares θ, one Gaussian release for
    everything older than ν steps with ν sampled ones of noise variance θ
    (`shifted_interpolation.sampled_split`, derived for dpjax). REPLACE_ONE only, one setting at a
    time.

    Fields:
        steps, step_size, noise_std: as `NoisyGradientDescent`.
        gradient_sensitivity: how far replacing one record moves the *batch-average* gradient.
        strong_convexity, smoothness: certified constants of every batch's average loss.
        batch_size, population: records in a batch and in the data set (public).
        diameter: of the convex set every step projects on; +inf without projection.

    >>> from dpjax import accounting as acc
    >>> from dpjax.accounting.sampled_descent import NoisySampledDescent
    >>> run = NoisySampledDescent(20_000, 0.01, 1.0, 0.2 * 200**0.5, 1.0, 1.0, 20, 1000)
    >>> run.population
    1000

    References: Bok, Su and Altschuler 2024 treat θ = 1/2.
    """

    steps: Float[ArrayLike, ""]
    step_size: Float[ArrayLike, ""]
    noise_std: Float[ArrayLike, ""]
    gradient_sensitivity: Float[ArrayLike, ""]
    strong_convexity: Float[ArrayLike, ""]
    smoothness: Float[ArrayLike, ""]
    batch_size: Float[ArrayLike, ""]
    population: Float[ArrayLike, ""]
    diameter: Float[ArrayLike, ""] = math.inf

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size"):
            check_number(self, name, 0.0, whole=True)
        check_number(self, "population", 1.0, whole=True)
        check_number(self, "step_size", 0.0, open_low=True)
        check_number(self, "smoothness", 0.0, open_low=True)
        for name in ("gradient_sensitivity", "strong_convexity"):
            check_number(self, name, 0.0)
        check_number(self, "noise_std", 0.0, open_low=True)


def releases(run: NoisySampledDescent, window: int, share: float) -> Mechanism:
    """Releases that reveal at least as much as the last iterate, for a window and a share.

    With the whole window and share 1 it is plain composition.

    Example:
      >>> from dpjax.accounting.sampled_descent import NoisySampledDescent, releases
      >>> run = NoisySampledDescent(500, 0.01, 1.0, 0.2 * 200**0.5, 1.0, 1.0, 20, 1000)
      >>> plain = releases(run, 500, 1.0)
      >>> plain.steps, round(plain.mechanism.mechanism.noise_multiplier, 9)
      (500, 10.0)
    """
    step, curvature = float(run.step_size), float(run.strong_convexity)  # pyrefly: ignore
    smoothness, noise = float(run.smoothness), float(run.noise_std)  # pyrefly: ignore
    scale = math.sqrt(2 * step) * noise
    ratio = step * float(run.gradient_sensitivity) / scale  # pyrefly: ignore
    gap = max(0.0, min(step * curvature, 2 - step * smoothness)) if curvature <= smoothness else 0.0
    past, update = sampled_split(
        min(gap, 1 - 1e-15) * (1 - 1e-14),
        ratio,
        int(run.steps),  # pyrefly: ignore
        diameter_ratio=float(run.diameter) / scale,  # pyrefly: ignore
        window=window,
        share=share,
    )
    # A Gaussian of noise multiplier s is (2/s)-GDP when a record is replaced.
    sampled = Repeated(
        FixedBatchSampled(Gaussian(2 / max(update, 1e-150)), run.batch_size, run.population), window
    )
    return Composed((Gaussian(2 / past), sampled)) if past > 1e-150 else sampled


def _supports(run: Mechanism, adjacency: Adjacency) -> bool:
    return isinstance(run, NoisySampledDescent) and adjacency is Adjacency.REPLACE_ONE


def _candidates(run: Any) -> list[Mechanism]:
    leaves = [getattr(run, name) for name in run.__dataclass_fields__]
    if float64.is_traced(*leaves) or any(np.ndim(leaf) for leaf in leaves):
        raise queries.UnsupportedQuery(
            "NoisySampledDescent is priced one setting at a time: loop over the settings"
        )
    steps = int(run.steps)
    # A projection or a contraction forgets; the share cannot be used where neither does.
    sound = run.step_size * run.smoothness <= 2 and run.strong_convexity <= run.smoothness
    windows = np.unique(np.geomspace(1, max(steps - 1, 1), 16).astype(int)) if sound else ()
    found = [releases(run, steps, 1.0)] if steps > 0 else [Composed(())]
    return found + [releases(run, int(w), share) for w in windows if w < steps for share in _SHARES]


def _ask(question: Any) -> Any:
    def ask(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        # Rényi bounds choose, since they are quick; the tightest method prices the choice.
        options = _candidates(run)
        rough = [question(m, given, adjacency=adjacency, method="rdp") for m in options]
        chosen = options[int(np.argmin([float(np.max(value)) for value in rough]))]
        return np.minimum(np.min(rough, axis=0), question(chosen, given, adjacency=adjacency))

    return ask


queries.register_method(
    "sampled_descent",
    rank=2.0,
    supports=_supports,
    epsilon=_ask(queries.epsilon),
    delta=_ask(queries.delta),
    describe="shifted interpolation, the noise of the last steps split between hiding the batch "
    "and hiding the past; derived for dpjax",
    tier="conditional",
    assumptions=(
        *ASSUMPTIONS,
        "each step's batch is drawn uniformly without replacement, in secret",
    ),
)
