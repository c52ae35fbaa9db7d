"""Our own line: the noise RSGD-AR needs under the direct mixture, and where the gain is from."""

from __future__ import annotations

import pathlib
from typing import Any

from dpjax.accounting.gaussian.randomized_sensitivity import batch_sensitivities, batch_weights
from experiments.chen2019.routes import noise_by_route
from experiments.common import Run

# Adult's training rows of one 80/20 split, as the paper's Figure 1 has them.
_SIZES, _DELTA, _SMOOTHNESS, _CONVEXITY = [4000] * 9 + [3073], 1e-8, 0.251, 1e-3
_SETTINGS = ((1.0, 10), (0.1, 10), (1.0, 20), (4.0, 10), (4.0, 50))


def _rows() -> list[dict[str, Any]]:
    weights, _ = batch_weights(_SIZES)
    rows = []
    for step_size, epochs in _SETTINGS:
        constants = {
            "epochs": epochs,
            "step_size": step_size,
            "smoothness": _SMOOTHNESS,
            "strong_convexity": _CONVEXITY,
        }
        averaged = batch_sensitivities(_SIZES, average_every=5, **constants)
        plain = batch_sensitivities(_SIZES, **constants)
        for epsilon in (0.05, 0.1, 0.5, 1.0):
            target = {"epsilon": epsilon, "delta": _DELTA}
            route = noise_by_route(averaged, weights, **target)
            rows.append(
                {
                    "step size": step_size,
                    "epochs": epochs,
                    "epsilon": epsilon,
                    "RSGD-AR as published": route.classic,
                    "RSGD-AR, better conversion": route.improved,
                    "RSGD-AR, direct mixture": route.hockey_stick,
                    "gain": route.gain,
                    "of it by conversion": route.from_conversion,
                    "of it by mixture": route.from_mixture,
                    "no averaging, direct mixture": noise_by_route(
                        plain, weights, **target
                    ).hockey_stick,
                    "NSGD, exact Gaussian": noise_by_route(plain, weights, **target).worst_batch,
                }
            )
    return rows


def noise(run: Run) -> list[pathlib.Path]:
    """σ of RSGD-AR by the published route and by the direct hockey-stick mixture."""
    return [run.save_table("noise", run.rows("noise", {"settings": str(_SETTINGS)}, _rows))]
