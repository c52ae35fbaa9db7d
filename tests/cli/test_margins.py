"""What ± means: two deviations of noise and sampling, against draws from a known population."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from dpjax import training
from dpjax.cli import evaluation
from dpjax.cli.evaluation import NumberEvaluation
from dpjax.data import Dataset

# True classes (rows) by predicted ones of a population, and a cell of no class.
_POPULATION = np.array([[0.55, 0.10], [0.05, 0.28]])
_UNKNOWN = 0.02
_DRAWS = 400


def _tables(records, stddev):
    """Tables of so many records drawn from the population, with noise."""
    rng = np.random.default_rng(0)
    chances = [*_POPULATION.ravel(), _UNKNOWN]
    counts = rng.multinomial(records, chances, _DRAWS)
    return counts + np.rint(rng.normal(0.0, stddev, counts.shape) if stddev else 0)


@pytest.mark.parametrize("stddev", [0.0, 3.0, 12.0])
def test_margins_hold_the_population_s_value_nineteen_times_of_twenty(stddev):
    right = np.diag(_POPULATION)
    truth = {
        "accuracy": right.sum(),
        "largest_class_share": _POPULATION.sum(axis=1).max(),
        "precision": (right / _POPULATION.sum(axis=0))[1],
        "recall": (right / _POPULATION.sum(axis=1))[1],
    }
    held, noise_alone = dict.fromkeys(truth, 0), 0
    for cells in _tables(400, stddev):
        found = evaluation._describe_table(cells, ("no", "yes"), stddev)
        for name in truth:
            value, margin = found[name], found[f"{name}_margin"]
            if name in ("precision", "recall"):
                value, margin = value["yes"], margin["yes"]
            held[name] += abs(value - truth[name]) <= margin
        noise_alone += abs(found["accuracy"] - truth["accuracy"]) <= 2 * found["accuracy_stddev"]
    # Two deviations hold 95.4 % of a normal law; 400 draws tell 92 from it, and 99.5.
    for name, count in held.items():
        assert 0.92 <= count / _DRAWS <= 0.995, name
    if stddev < 4:  # the noise alone, which ± once was, does not
        assert noise_alone / _DRAWS < 0.9


def test_the_margin_of_the_lead_holds_and_tells_a_better_model():
    lead = np.trace(_POPULATION) - _POPULATION.sum(axis=1).max()
    held = shown = 0
    for cells in _tables(400, 0.0):
        found = evaluation._describe_table(cells, ("no", "yes"), 0.0)
        own = found["accuracy"] - found["largest_class_share"]
        held += abs(own - lead) <= found["lead_margin"]
        shown += own > found["lead_margin"]
    assert 0.92 <= held / _DRAWS <= 0.995
    assert shown == _DRAWS  # of 18 points
    # Of a model that is as good as the largest class it is said once in forty times or less.
    rng, chances = np.random.default_rng(1), [0.6, 0.1, 0.1, 0.2, 0.0]
    luck = 0
    for cells in rng.multinomial(400, chances, _DRAWS):
        found = evaluation._describe_table(cells, ("no", "yes"), 0.0)
        luck += found["accuracy"] - 0.7 > 0.1 + found["lead_margin"]
    assert luck <= 0.05 * _DRAWS


@pytest.mark.parametrize(("negative", "positive", "gap"), [(60, 40, 1.0), (150, 20, 2.0)])
def test_the_margin_of_an_area_is_at_least_two_deviations_of_its_draws(negative, positive, gap):
    """Areas of normal scores: by Φ(gap/√2), which cells round a little."""
    rng, areas, margins = np.random.default_rng(2), [], []
    edges = np.linspace(-3.0, 5.0, 60)
    for _ in range(200):
        scores = rng.normal(0.0, 1.0, negative), rng.normal(gap, 1.0, positive)
        places = [np.bincount(np.searchsorted(edges, s), minlength=61) for s in scores]
        area, noise, margin = evaluation._area(np.array(places), 0.0)
        assert noise == 0.0
        areas.append(area)
        margins.append(margin)
    assert np.mean(margins) >= 2 * np.std(areas) > 0
    truth = 0.5 * (1 + math.erf(gap / 2))
    assert np.mean(np.abs(np.array(areas) - truth) <= margins) >= 0.93


def test_what_is_right_of_a_few_records_always_has_a_margin():
    found = evaluation._describe_table(np.array([6, 0, 0, 4, 0]), ("no", "yes"), 0.0)
    assert found["accuracy"] == 1.0
    assert found["accuracy_stddev"] == 0.0
    # Ten of ten are right once in five times for a model that is right for 85 %.
    assert 1.0 - found["accuracy_margin"] < 0.85
    area, _, margin = evaluation._area(np.array([[6, 0], [0, 4]]), 0.0)
    assert area - margin < 0.85


def test_the_margin_of_an_error_covers_noise_and_the_worst_spread():
    """Without noise from the records' own errors, with it from the mean alone, which is more."""
    model = training.softmax(1, 1)
    params = model.init(jax.random.key(0))
    labels = np.random.default_rng(3).uniform(-1, 1, 500).astype(np.float32)
    held_out = Dataset(np.zeros((500, 1), np.float32), labels, ())
    found = NumberEvaluation(model, held_out, None, (0.0, 20.0)).summarise(params)
    squares = np.asarray(labels, np.float64) ** 2  # of predicting the middle
    root = 10 * math.sqrt(squares.mean())
    assert found["root_mean_squared_error"] == pytest.approx(root)
    assert found["stddev"] == 0.0
    # The root of a mean m ± d is √m ± d/(2√m) to first order.
    spread = squares.std(ddof=1) / math.sqrt(500)
    assert found["margin"] == pytest.approx(10 * spread / math.sqrt(squares.mean()), rel=0.05)
    counts = evaluation.Counts(0, 1, stddev=1e-3, key=jax.random.key(1))
    noisy = NumberEvaluation(model, held_out, counts, (0.0, 20.0)).summarise(params)
    assert noisy["margin"] > found["margin"]
