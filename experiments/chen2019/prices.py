"""Our own line: the noise RSGD-AR needs under the direct mixture, and where the gain is from."""

from __future__ import annotations

import pathlib
from typing import Any

from dpjax.accounting.gaussian.permuted_sgd import batch_sensitivities, batch_weights
from experiments.chen2019.routes import noise_by_route
from experiments.protocol import Rows

# a9a's training rows of one 80/20 split, in batches of the published size.
_SIZES, _DELTA, _SMOOTHNESS, _CONVEXITY = [4000] * 9 + [3073], 1e-8, 0.251, 1e-3


def routes(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """σ of one step size and number of epochs by every route, at every ε."""
    weights, _ = batch_weights(_SIZES)
    step_size, epochs = settings["step size, epochs"]
    constants = {
        "epochs": epochs,
        "step_size": step_size,
        "smoothness": _SMOOTHNESS,
        "strong_convexity": _CONVEXITY,
    }
    averaged = batch_sensitivities(_SIZES, average_every=5, **constants)
    plain = batch_sensitivities(_SIZES, **constants)
    rows = []
    for epsilon in settings["epsilon"]:
        target = {"epsilon": epsilon, "delta": _DELTA}
        route = noise_by_route(averaged, weights, **target)
        without = noise_by_route(plain, weights, **target)
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
                "no averaging, direct mixture": without.hockey_stick,
                "NSGD, exact Gaussian": without.worst_batch,
            }
        )
    return rows
