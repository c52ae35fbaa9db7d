"""Exact samplers: their laws by chi-square at fixed keys, and that a wrong law is noticed."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from scipy import stats

from dpjax import transforms
from dpjax._numerics.scope import enable_x64

DRAWS = 4_000


def p_value(found, law):
    """Chi-square of draws against probabilities; rare outcomes are counted together."""
    counts = np.array([np.sum(found == k) for k in law])
    expected = DRAWS * np.array(list(law.values()))
    rare = expected < 8
    counts = np.append(counts[~rare], DRAWS - counts[~rare].sum())
    expected = np.append(expected[~rare], DRAWS - expected[~rare].sum())
    if not rare.any():
        counts, expected = counts[:-1], expected[:-1]
    return stats.chisquare(counts, expected).pvalue


def normalised(weight, reach=80):
    mass = {k: weight(k) for k in range(-reach, reach + 1)}
    return {k: m / sum(mass.values()) for k, m in mass.items()}


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.7])
def test_discrete_laplace(scale):
    found = transforms.discrete_laplace(jax.random.key(1), scale, (DRAWS,))
    assert p_value(found, normalised(lambda k: np.exp(-abs(k) / scale))) > 1e-3
    assert p_value(found, normalised(lambda k: np.exp(-abs(k) / (1.25 * scale)))) < 1e-6


@pytest.mark.parametrize("stddev", [0.4, 1.0, 5.5])
def test_discrete_gaussian(stddev):
    found = transforms.discrete_gaussian(jax.random.key(2), stddev, (DRAWS,))
    law = lambda s: normalised(lambda k: np.exp(-k * k / (2 * s * s)))  # noqa: E731
    assert p_value(found, law(stddev)) > 1e-3
    assert p_value(found, law(1.15 * stddev)) < 1e-6


def test_draws_are_those_of_the_key_whatever_the_default_precision():
    """The generator's own default is words of 64 bits then, of which next to none is accepted."""
    draw = lambda: [  # noqa: E731
        transforms.discrete_gaussian(jax.random.key(2), 5.5, (20,)).tolist(),
        transforms.discrete_laplace(jax.random.key(2), 2.5, (20,)).tolist(),
        transforms.randomized_response(jax.random.key(2), [0, 1, 2], 1.0, 3).tolist(),
        transforms.select(jax.random.key(2), [0.0, 1.0, 2.0], 1.0, 1.0),
    ]
    expected = draw()
    with enable_x64():
        assert draw() == expected


def test_randomized_response():
    found = transforms.randomized_response(jax.random.key(3), np.full(DRAWS, 2), 1.2, 5)
    law = lambda e: {k: (np.exp(e) if k == 2 else 1) / (np.exp(e) + 4) for k in range(5)}  # noqa: E731
    assert p_value(found, law(1.2)) > 1e-3
    assert p_value(found, law(1.0)) < 1e-4


@pytest.mark.parametrize("monotone", [False, True])
def test_selection(monotone):
    scale = 1.5 / (1 if monotone else 2)
    weights = np.exp(scale * np.array([1.0, 3.5, 2.0]))
    law = dict(enumerate(weights / weights.sum()))
    found = _few(monotone=monotone)
    assert _few_p(found, law) > 1e-3
    assert _few_p(found, {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}) < 1e-6


def test_permute_and_flip():
    chance = np.exp(0.75 * (np.array([1.0, 3.5, 2.0]) - 3.5))
    law = dict.fromkeys(range(3), 0.0)
    for order in itertools.permutations(range(3)):
        alive = 1 / 6
        for k in order:
            law[k] += alive * chance[k]
            alive *= 1 - chance[k]
    found = _few(permute_and_flip=True)
    assert _few_p(found, law) > 1e-3
    weights = chance / chance.sum()
    assert law[1] > weights[1]  # never less accurate


def _few(**options):
    keys = jax.random.split(jax.random.key(4), 500)
    return np.array([transforms.select(k, [1.0, 3.5, 2.0], 1.5, 1.0, **options) for k in keys])


def _few_p(found, law):
    counts = [np.sum(found == k) for k in law]
    return stats.chisquare(counts, len(found) * np.array(list(law.values()))).pvalue


def test_draws_are_functions_of_the_key_and_exact_at_the_corners():
    draw = transforms.discrete_gaussian
    key = jax.random.key(5)
    np.testing.assert_array_equal(draw(key, 2.5, (20,)), draw(key, 2.5, (20,)))
    assert not np.array_equal(draw(key, 2.5, (20,)), draw(jax.random.key(6), 2.5, (20,)))
    assert draw(key, 1e-3, (50,)).tolist() == [0] * 50  # the chance of another is e^{−500,000}
    wide = draw(key, 1e9, (200,))
    assert 0.7e9 < wide.std() < 1.3e9
    assert transforms.discrete_laplace(key, 2.0).shape == ()
    with pytest.raises(ValueError, match="scale must be"):
        transforms.discrete_laplace(key, 0.0)
    with pytest.raises(ValueError, match="values must be"):
        transforms.randomized_response(key, [3], 1.0, 3)
    with pytest.raises(TypeError, match="key must be"):
        jax.jit(lambda k: transforms.discrete_laplace(k, 1.0))(key)
