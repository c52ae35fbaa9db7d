"""Random mixtures of releases, sampled and repeated, beside dp_accounting's PLD on a fine grid.

Theirs are bounds of the same quantity from below and from above: our upper end lies between.
`DPJAX_ALL_RELEASES=1` asks two hundred mixtures.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from dpjax import accounting as acc

theirs = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")

MIXTURES = 200 if os.environ.get("DPJAX_ALL_RELEASES") else 6
_GRID = 1e-4


def part(generator):
    """One release, and their distribution of it, given whether it is to be an upper bound."""
    noise = float(10 ** generator.uniform(0.3, 1.2))
    rate = float(generator.choice([1.0, 10 ** generator.uniform(-2.5, -0.5)]))
    sampled = {"sampling_prob": rate, "value_discretization_interval": _GRID}
    kind = generator.choice(["laplace", "discrete laplace", "discrete gaussian", "gaussian", "rr"])
    if kind == "laplace":
        run, make = (
            acc.Laplace(noise),
            lambda up: theirs.from_laplace_mechanism(
                noise, pessimistic_estimate=up, use_connect_dots=up, **sampled
            ),
        )
    elif kind == "discrete laplace":
        moved = int(generator.integers(1, 5))
        run, make = (
            acc.DiscreteLaplace(noise, moved),
            lambda up: theirs.from_discrete_laplace_mechanism(
                1 / (noise * moved), moved, pessimistic_estimate=up, use_connect_dots=up, **sampled
            ),
        )
    elif kind == "discrete gaussian":
        moved = int(generator.integers(1, 5))
        run, make = (
            acc.DiscreteGaussian(noise, moved),
            lambda up: theirs.from_discrete_gaussian_mechanism(
                noise * moved, moved, pessimistic_estimate=up, use_connect_dots=up, **sampled
            ),
        )
    elif kind == "gaussian":
        run, make = (
            acc.Gaussian(noise),
            lambda up: theirs.from_gaussian_mechanism(
                noise, pessimistic_estimate=up, use_connect_dots=up, **sampled
            ),
        )
    else:
        epsilon, categories = 1 / noise, int(generator.integers(2, 9))
        uniform = categories / (np.exp(epsilon) + categories - 1)
        return acc.RandomizedResponse(
            epsilon, categories
        ), lambda up: theirs.from_randomized_response(
            uniform,
            categories,
            pessimistic_estimate=up,
            value_discretization_interval=_GRID,
        )
    return (acc.PoissonSampled(run, rate) if rate < 1 else run), make


def test_random_mixtures_lie_between_their_ends():
    generator = np.random.default_rng(11)
    for _ in range(MIXTURES):
        parts = [
            (*part(generator), int(10 ** generator.uniform(0, 1.5)))
            for _ in range(generator.integers(1, 4))
        ]
        run = acc.Composed(tuple(acc.Repeated(step, count) for step, _, count in parts))
        ends = []
        for up in (False, True):
            total = theirs.identity(_GRID, pessimistic_estimate=up)
            for _, make, count in parts:
                total = total.compose(make(up).self_compose(count))
            ends.append(total)
        for delta in (1e-6, 1e-3):
            low, high = (end.get_epsilon_for_delta(delta) for end in ends)
            found = acc.epsilon(run, delta)
            assert low <= found <= high + 1e-6, (run, delta)
