"""The settings of a private training run, completed and checked before a record is touched."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpjax.data import Dataset
    from dpjax.training import Plan

# Chosen by looking at results on Adult and digits; a certificate says that such choices are not
# covered where they were made on the records themselves.
STEPS, LARGEST_BATCH, CLIP_NORM, MOMENTUM = 200, 2_048, 0.5, 0.9
_LEARNING_RATE = {"logistic": 2.0, "softmax": 2.0, "mlp": 1.0}


def check_numbers(epsilon: float, delta: float | None, clip_norm: float, seed: int | None) -> None:
    """Refuse numbers that no run can keep."""
    if not 0 < epsilon < float("inf"):
        raise ValueError(f"--epsilon must be a positive, finite number, got {epsilon}")
    if delta is not None and not 0 < delta < 1:
        raise ValueError(f"--delta must lie strictly between 0 and 1, got {delta}")
    if not 0 < clip_norm < float("inf"):
        raise ValueError(f"--clip-norm must be a positive, finite number, got {clip_norm}")
    # Of a seed JAX takes 32 bits: others of the same bits would draw the same noise.
    if seed is not None and not 0 <= seed < 2**32:
        raise ValueError(f"--seed must lie between 0 and 2^32 - 1, got {seed}")


def completed(data: Dataset, delta, model, batch_size, learning_rate) -> dict[str, Any]:
    """The options with their defaults, which depend on the number of records and classes alone."""
    records, classes = len(data), len(data.classes)
    if model is None:
        model = "logistic" if classes == 2 else "softmax"
    if model == "logistic" and classes != 2:
        raise ValueError(f"--model must be softmax or mlp for {classes} classes, got logistic")
    if learning_rate is None:
        learning_rate = _LEARNING_RATE[model]
    if not 0 < learning_rate < float("inf"):
        raise ValueError(f"--learning-rate must be a positive, finite number, got {learning_rate}")
    return {
        "model": str(model),
        "delta": min(1e-5, 0.1 / records) if delta is None else delta,
        "batch_size": min(max(records // 4, 1), LARGEST_BATCH)
        if batch_size is None
        else batch_size,
        "learning_rate": learning_rate,
    }


def plan_of(
    records: int, epsilon, options, steps, clip_norm, adjacency, *, sampling="poisson"
) -> Plan:
    """The plan that keeps the budget, unless its noise would drown every gradient."""
    from dpjax import training

    if sampling == "random-allocation":
        length = math.ceil(records / max(options["batch_size"], 1))
        steps = math.ceil(steps / length) * length
    settings = {
        "delta": options["delta"],
        "steps": steps,
        "batch_size": options["batch_size"],
        "sampling": sampling,
        "clip_norm": clip_norm,
        "adjacency": adjacency,
    }
    plan = training.make_plan(records, epsilon=epsilon, **settings)
    # Beyond this noise, all gradients of the run together, each at the clip norm and all pointing
    # the same way, would not stand out of one coordinate of the noise.
    most = plan.expected_batch_size * math.sqrt(steps)
    if plan.noise_multiplier > most:
        least = training.make_plan(records, noise_multiplier=most, **settings).epsilon()
        raise ValueError(
            f"--epsilon must be at least {least:.3g} with these settings, got {epsilon:g}, which "
            f"takes a noise multiplier of {plan.noise_multiplier:.3g} and drowns every gradient "
            f"(at most {most:.3g} leaves a trace); raise --delta, or train on more records"
        )
    return plan


def uncovered(
    data: Dataset, seed: int | None, *, compared: bool, private_losses: bool
) -> list[str]:
    """One line for everything that the run shows or uses and ε does not cover."""
    from dpjax.training.uncovered import usual_uncovered

    lines = [
        *data.learned,
        *usual_uncovered(len(data), seeded=seed is not None),
        "metrics.csv, training.png: test accuracy is an exact function of the held-out records, "
        "which ε does not protect",
        "running time, and the checkpoint folder of an unfinished run (it holds the noise key)",
    ]
    if private_losses:
        lines.append(
            "metrics.csv: train_loss, nonfinite and clipped are exact functions of the training "
            "records"
        )
    if compared:
        lines.append(
            "training.png and the closing message: the accuracy without privacy comes from a model "
            "trained on the same records without noise"
        )
    return lines
