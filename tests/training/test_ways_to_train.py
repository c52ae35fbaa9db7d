"""The benchmark of ways to train finds rates, marks what is best and sees what noise costs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.ways_to_train import (
    FARTHEST,
    WAYS,
    Cell,
    Regime,
    Trained,
    climb,
    compare,
    level_with_best,
    train_and_score,
    write_details,
    write_table,
)
from dpjax import training
from dpjax.correlation import BufferedToeplitz


@pytest.mark.parametrize("peak", [-7, -1, 0, 5])
def test_a_rate_is_found_with_one_tried_on_either_side(peak):
    best, tried = climb(lambda power: np.array([-abs(power - peak), -abs(power - peak) - 0.5]))
    assert best == peak
    assert {peak - 1, peak, peak + 1} <= set(tried)


def test_a_score_that_rises_for_ever_ends_the_climb():
    best, _ = climb(lambda power: np.array([power]))
    assert best == FARTHEST


def test_what_is_within_two_standard_errors_of_the_best_is_bold_and_nothing_else():
    rng = np.random.default_rng(0)
    near, far, top = (mean + rng.normal(size=8) for mean in (89.9, 80.0, 90.0))
    assert level_with_best([near, far, None, top]) == [True, False, False, True]
    assert level_with_best([near - 20, far, None, top]) == [False, False, False, True]
    exact = [np.full(8, 89.9), np.full(8, 90.0)]  # no spread: any difference tells
    assert level_with_best(exact) == [False, True]


@pytest.fixture(scope="module")
def compared():
    """Every way of a small run."""
    return compare(Regime(400, 25, 2, 2.0))


@pytest.mark.exact
def test_every_way_keeps_the_budget_and_is_the_best_of_its_sizes(compared):
    assert set(compared) <= set(WAYS)
    assert {"buffered, in order", "buffered, balls in bins"} <= set(compared)
    for name, one in compared.items():
        assert one.plan.epsilon() <= 2.0, name
        assert isinstance(one.correlation, BufferedToeplitz) == name.startswith("buffered")
    assert compared["buffered, balls in bins"].error < compared["buffered, in order"].error


@pytest.mark.exact
def test_more_noise_leaves_less_accuracy(compared):
    """The same way, at its own noise and at a hundred times as much."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600).astype(np.int32)
    inputs = (np.eye(3)[labels] + 0.3 * rng.normal(size=(600, 3))).astype(np.float32)
    parts = [(inputs[:400], labels[:400]), *[(inputs[400:], labels[400:])] * 2]
    plan = compared["buffered, balls in bins"].plan
    own = train_and_score(plan, parts, seeds=3)
    loud = dataclasses.replace(plan.mechanism, noise_multiplier=100 * plan.noise_multiplier)
    drowned = train_and_score(dataclasses.replace(plan, mechanism=loud), parts, seeds=3)
    assert own.test.shape == (3,)
    assert own.test.mean() > 90 > drowned.test.mean()


@pytest.mark.exact
def test_the_tables_say_what_was_found(compared):
    trained = Trained(0.5, np.array([80.0, 81.0]), np.array([79.0, 80.0]))
    worse = Trained(2.0, np.array([60.0, 61.0]), np.array([59.0, 60.0]))
    first, *others = compared
    cells = {first: Cell(compared[first], trained)}
    cells |= {name: Cell(compared[name], worse) for name in others}
    lines = write_table({"small": cells, "none": {first: cells[first]}})
    least = min(compared, key=lambda name: compared[name].error)
    (row,) = [line for line in lines if line.startswith(f"| {first} |")]
    assert "**79.5 ± 0.7**" in row
    (row,) = [line for line in lines if line.startswith(f"| {least} |")]
    assert f"**{compared[least].error:.3f}**" in row
    assert sum("59.5 ± 0.7" in line for line in lines) == len(others)
    assert all("**59.5" not in line for line in lines)
    assert sum("| – | – |" in line for line in lines) == len(WAYS) - 1
    details = write_details({"small": cells})
    assert any("buffered, in order, 2 buffers" in line or "3 buffers" in line for line in details)
    assert isinstance(compared[first], training.Compared)
