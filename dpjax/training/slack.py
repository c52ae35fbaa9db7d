"""By how much the rounding of floats raises a step's sensitivity, and how often bounds may fail."""

from __future__ import annotations

import math

import jax
import numpy as np

from dpjax import gradients
from dpjax.training.placement import Placement
from dpjax.training.plan import ARITHMETIC, Plan

# Whose sums' rounding is always paid for: up to as many devices, a run has one noise.
_DEVICES = 8


def devices_paid_for(placement: Placement | None) -> int:
    """Of how many devices the noise of a run allows for the rounding of their sums."""
    return _DEVICES if placement is None else max(placement.blocks, _DEVICES)


def failure_probability(plan: Plan, epsilon: float) -> float:
    """How often, a step, the bounds on rounding, on the batch's size and on its shares' may fail.

    Such a failure costs at most (1 + e^ε) times its probability; the three of them, over
    all steps, have to fit into what the plan reserves of δ for arithmetic.
    """
    reserve = plan.extra_delta.get(ARITHMETIC, 1e-15)
    return max(reserve / (3 * plan.steps * (1 + math.exp(min(epsilon, 300.0)))), 1e-150)


def slack_of(params, capacity: int, largest: int, failure: float, devices: int = _DEVICES) -> float:
    """By how much float rounding can raise the sensitivity of a sum worked through in pieces.

    Each piece is off by its own slack; adding up k sums rounds k − 1 times, each time by at most
    one unit round-off of the whole sum, on either neighbour. The sums are those of pieces and then
    those of devices, in whatever order they are added. Eight devices are allowed for on one too:
    up to as many, a run has the same noise on any number of them.
    """
    dimension = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))
    pieces = -(-largest // capacity)
    additions = pieces + devices - 2
    round_off = float(np.finfo(np.float32).eps) / 2
    one = gradients.rounding_slack(capacity, dimension, failure=failure / pieces)
    return pieces * one + 2 * largest * additions * round_off
