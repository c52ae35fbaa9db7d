"""Noisy SGD over batches drawn afresh without replacement; only the last iterate is released.

Priced by the least of plain composition of the sampled Gaussians and, over windows ν and shares θ,
one Gaussian release for everything older than ν steps with ν sampled ones of noise variance θ
(`shifted_interpolation.sampled_split`, derived for dpjax; Bok, Su and Altschuler 2024 treat θ =
1/2).
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour import method as contour
from dpjax.accounting.gaussian import method as gaussian
from dpjax.accounting.last_iterate.shifted_interpolation import sampled_split
from dpjax.accounting.loss_distribution import method as loss_distribution
from dpjax.accounting.mechanisms import (
    Composed,
    FixedBatchSampled,
    Gaussian,
    Mechanism,
    NoisySampledDescent,
    Repeated,
)
from dpjax.accounting.method import Method, least, ranked
from dpjax.accounting.renyi import method as renyi

_SHARES = (0.5, 0.75, 0.85, 0.93)


def releases(run: NoisySampledDescent, window: int, share: float) -> Mechanism:
    """Releases that reveal at least as much as the last iterate, for a window and a share.

    With the whole window and share 1 it is plain composition.
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
    steps = int(run.steps)
    # A projection or a contraction forgets; the share cannot be used where neither does.
    sound = run.step_size * run.smoothness <= 2 and run.strong_convexity <= run.smoothness
    windows = np.unique(np.geomspace(1, max(steps - 1, 1), 16).astype(int)) if sound else ()
    found = [releases(run, steps, 1.0)] if steps > 0 else [Composed(())]
    return found + [releases(run, int(w), share) for w in windows if w < steps for share in _SHARES]


def _ask(part: Any) -> Any:
    def one(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        def price(methods: tuple[Method, ...], run: Mechanism) -> Any:
            return least(part, ranked(methods, part, run, adjacency), run, given, adjacency)[0]

        # Rényi bounds choose, since they are quick; the tightest method prices the choice.
        options = _candidates(run)
        rough = [price(renyi.METHODS[:1], m) for m in options]
        chosen = options[int(np.argmin([float(np.max(value)) for value in rough]))]
        table = (*gaussian.METHODS, *contour.METHODS, *loss_distribution.METHODS)
        return np.minimum(np.min(rough, axis=0), price(table, chosen))

    def ask(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        """The settings of a sweep one after the other: each has its own candidates."""
        leaves, tree = jax.tree.flatten((run, given))
        columns = np.broadcast_arrays(*leaves)
        rows = zip(*(column.ravel() for column in columns), strict=True)
        asked = (jax.tree.unflatten(tree, row) for row in rows)
        found = [one(each, number, adjacency) for each, number in asked]
        return np.reshape(found, columns[0].shape)

    return ask


METHODS = (
    Method(
        "sampled_descent",
        rank=2.0,
        dear=True,
        supports=_supports,
        epsilon=_ask("epsilon"),
        delta=_ask("delta"),
        describe="shifted interpolation, the noise of the last steps split between hiding the "
        "batch and hiding the past; derived for dpjax",
    ),
)
