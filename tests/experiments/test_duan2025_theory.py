"""duan2025: what holds of its theorems and lemmas, and counterexamples to the rest."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from experiments.duan2025 import theory


def _angles(vector: np.ndarray) -> np.ndarray:
    """The paper's Equation 25."""
    tails = np.sqrt(np.cumsum(np.square(vector[::-1]))[::-1])
    first = np.arctan2(tails[1:-1], vector[:-2])
    return np.append(first, np.arctan2(vector[-1], vector[-2]))


def _vector(norm: float, angles: np.ndarray) -> np.ndarray:
    sines = np.concatenate([[1.0], np.cumprod(np.sin(angles))])
    return norm * sines * np.append(np.cos(angles), 1.0)


def test_the_angles_go_there_and_back():
    vector = np.array([0.3, -1.2, 0.5, -0.7])
    np.testing.assert_allclose(_vector(np.linalg.norm(vector), _angles(vector)), vector)


def test_theorem_1_is_an_identity():
    rng = np.random.default_rng(0)
    for _ in range(20):
        w, best, gradient, noise = rng.normal(size=(4, 5))
        size, clip, batch = rng.uniform(0.1, 2.0, 3)
        noisy, plain = (w - size * (gradient + n) for n in (clip * noise / batch, 0.0))
        expected = np.sum((noisy - best) ** 2) - np.sum((plain - best) ** 2)
        found = theory.theorem1(
            gradient, noise, best - w, step_size=size, clip_norm=clip, batch_size=batch
        )
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_mean_of_theorem_1_depends_on_no_direction():
    rng = np.random.default_rng(1)
    settings = {"step_size": 0.5, "clip_norm": 2.0, "batch_size": 4}
    gradient, away = rng.normal(size=(2, 6))
    draws = 1.5 * rng.normal(size=(40_000, 6))
    values = [theory.theorem1(gradient, noise, away, **settings) for noise in draws]
    mean = theory.theorem1_mean(dimension=6, noise_multiplier=1.5, **settings)
    assert abs(np.mean(values) - mean) < 4 * stats.sem(values)
    assert mean == pytest.approx(6 * (0.5 * 2.0 * 1.5 / 4) ** 2)


def test_the_density_of_theorems_2_and_3_needs_b_where_it_prints_b_squared():
    batch, mean, variance = 16, 0.5, 1 / 12
    x = np.linspace(-1.0, 2.0, 20_001)
    kept = {"mean": mean, "variance": variance, "batch_size": batch}
    whole = integrate.trapezoid(theory.averaged_density(x, **kept), x)
    printed = integrate.trapezoid(theory.averaged_density(x, **kept, printed=True), x)
    assert whole == pytest.approx(1.0, abs=1e-9)
    assert printed == pytest.approx(batch**-0.5, rel=1e-9)  # no density
    averages = np.random.default_rng(2).random((20_000, batch)).mean(1)
    spread = np.sqrt(variance / batch)
    assert stats.kstest(averages, stats.norm(mean, spread).cdf).pvalue > 1e-3
    assert stats.kstest(averages, stats.norm(mean, spread / batch**0.5).cdf).pvalue < 1e-12


def test_the_averaged_angle_of_theorem_3_is_not_the_angle_that_geodp_perturbs():
    first, second = np.array([1.0, 0.0]), np.array([0.0, 3.0])
    averaged = (_angles(first) + _angles(second)) / 2
    assert averaged[0] == pytest.approx(np.pi / 4)
    assert _angles((first + second) / 2)[0] == pytest.approx(np.arctan2(3.0, 1.0))
    # Two gradients that point almost the same way, on both sides of ±π: their average angle is 0.
    both = np.array([[-1.0, 0.01], [-1.0, -0.01]])
    assert np.mean([_angles(g) for g in both]) == pytest.approx(0.0)
    assert abs(_angles(both.mean(0))[0]) == pytest.approx(np.pi)


def test_lemma_1_holds_by_leaving_out_noise_and_its_bias_is_of_the_coordinates():
    rng = np.random.default_rng(3)
    gradient, sigma, batch = np.array([0.6, 0.8]), 1.0, 16
    noisy = gradient + sigma / batch * rng.normal(size=(20_000, 2))
    turned = np.array([_angles(g)[0] for g in noisy]) - _angles(gradient)[0]
    # In the plane Gaussian noise turns a gradient left as often as right: no bias.
    assert abs(turned.mean()) < 4 * stats.sem(turned)
    kept = {"noise_multiplier": sigma, "batch_size": batch, "dimension": 2}
    factor = theory.lemma1_factor(np.square(turned).mean(), **kept)
    error = theory.geodp_angle_error(bounding_factor=factor, **kept)
    assert error == pytest.approx(np.square(turned).mean())
    assert 0.1 < factor < 0.2  # at β = 1 GeoDP's error is above DP's
    # A thousandth of the error asks for a factor 1/√1000: some β is small enough.
    assert theory.lemma1_factor(1e-3 * error, **kept) == pytest.approx(factor / 1e3**0.5)


def test_lemma_2_bounds_from_below_by_more_than_from_above():
    # Angles uniform over the whole box, as its proof takes them for the upper bound.
    for dimension, factor in ((3, 0.5), (10, 0.9), (1_000, 0.999)):
        low, high = theory.lemma2_bounds(factor, covered=factor ** (dimension - 1))
        assert low > high
    low, high = theory.lemma2_bounds(0.3, covered=0.3)  # the plane, the only case where they agree
    assert low == pytest.approx(high)


def test_theorem_4_fails_where_the_bounding_factor_keeps_the_noise():
    dimension, batch, sigma, clip, size = 50, 64, 1.0, 1.0, 0.5
    rng = np.random.default_rng(4)
    gradient = rng.normal(size=dimension)
    gradient *= clip / np.linalg.norm(gradient)
    to_optimum = -2.0 * size * gradient  # the step points to the optimum
    angles, distances = _angles(gradient), []
    std = np.sqrt(theory.geodp_angle_error(
        bounding_factor=1.0, noise_multiplier=sigma, batch_size=batch, dimension=dimension
    ))  # fmt: skip
    for _ in range(2_000):
        norm = clip + clip * sigma / batch * rng.normal()
        noisy = _vector(norm, angles + std * rng.normal(size=dimension - 1))
        distances.append(np.sum((size * noisy + to_optimum) ** 2))
    kept = {
        "noise_multiplier": sigma, "step_size": size, "clip_norm": clip, "batch_size": batch
    }  # fmt: skip
    exact = theory.geodp_distance(gradient, to_optimum, bounding_factor=1.0, **kept)
    assert abs(np.mean(distances) - exact) < 4 * stats.sem(distances)
    assert exact > theory.dp_distance(gradient, to_optimum, **kept)
    # With little enough noise on the angles it holds: what is left is the noise of one number.
    quiet = theory.geodp_distance(gradient, to_optimum, bounding_factor=1e-4, **kept)
    assert quiet < theory.dp_distance(gradient, to_optimum, **kept)


def test_theorem_4_fails_in_the_plane_too():
    gradient, to_optimum = np.array([0.6, 0.8]), np.array([-0.6, -0.8])
    kept = {"noise_multiplier": 1.0, "step_size": 1.0, "clip_norm": 1.0, "batch_size": 8}
    dp = theory.dp_distance(gradient, to_optimum, **kept)
    assert dp == pytest.approx(2 / 8**2)
    # One angle of variance s² = 4π²/B²: E = 1/B² + 2(1 − e^{−s²/2}), by hand.
    expected = 1 / 8**2 + 2 * (1 - np.exp(-2 * np.pi**2 / 8**2))
    found = theory.geodp_distance(gradient, to_optimum, bounding_factor=1.0, **kept)
    assert found == pytest.approx(expected)
    assert found > 10 * dp


def test_corollary_1_holds_of_both_ways_of_perturbing():
    """At the optimum, where the gradient is 0, a step of either moves away."""
    rng = np.random.default_rng(5)
    kept = {"noise_multiplier": 2.0, "step_size": 0.5, "clip_norm": 1.5, "batch_size": 4}
    found = theory.away_from_optimum(dimension=6, **kept)
    dp = np.square(0.5 * 1.5 * 2.0 / 4 * rng.normal(size=(40_000, 6))).sum(1)
    assert abs(dp.mean() - found["DP"]) < 4 * stats.sem(dp)
    # A vector of any direction whose length is the noise of one number.
    directions = rng.normal(size=(40_000, 5))
    lengths = 1.5 * 2.0 / 4 * rng.normal(size=40_000)
    moved = [0.5 * _vector(r, a) for r, a in zip(lengths, directions, strict=True)]
    geodp = np.square(moved).sum(1)
    assert abs(geodp.mean() - found["GeoDP"]) < 4 * stats.sem(geodp)
    assert found["GeoDP"] > 0


def test_corollary_2_holds_of_clipping_long_gradients_and_of_nothing_else():
    rng = np.random.default_rng(6)
    kept = {"dimension": 50, "noise_multiplier": 1.0}

    def simulated(norms, clip_norm):
        average = np.minimum(norms, clip_norm).sum()
        across = clip_norm * rng.normal(size=(20_000, 49))
        return np.square(across).sum(1) / average**2

    for norms, clip in ((np.full(16, 3.0), 1.0), (np.full(64, 3.0), 1.0), (np.full(16, 0.5), 1.0)):
        draws = simulated(norms, clip)
        found = theory.noise_across(norms, clip_norm=clip, **kept)
        assert abs(draws.mean() - found) < 4 * stats.sem(draws)
    long, short = np.full(16, 3.0), np.full(16, 0.5)
    across = [theory.noise_across(long, clip_norm=c, **kept) for c in (3.0, 1.0, 0.1)]
    assert across == pytest.approx([across[0]] * 3)  # as the corollary says
    more = theory.noise_across(np.full(32, 3.0), clip_norm=1.0, **kept)
    assert more == pytest.approx(across[0] / 4)  # it counts the batch size among what cannot help
    tuned, loose = (theory.noise_across(short, clip_norm=c, **kept) for c in (0.5, 2.0))
    assert tuned == pytest.approx(loose / 16)  # a clip norm above the gradients does turn them more


def test_examples_1_to_3_have_the_numbers_they_print():
    gradient, noise = np.array([1.0, np.sqrt(3.0)]), np.array([0.3, 0.15])
    for clip in (2.0, 1.0):  # Example 1: half the clip norm, half the noise, the same direction
        clipped = gradient * clip / 2.0
        assert _angles(clipped + noise * clip / 2.0)[0] == pytest.approx(0.97, abs=5e-3)
    # Example 2: noise of zero mean on three coordinates biases the first of two angles.
    rng, start = np.random.default_rng(7), np.array([1.0, 0.1, 0.1])
    turned = [_angles(start + 0.2 * n)[0] - _angles(start)[0] for n in rng.normal(size=(4_000, 3))]
    assert np.mean(turned) > 10 * stats.sem(turned)
    # Example 3: the same noise turns the shorter of two parallel gradients more.
    added = np.array([2.0, -1.0])
    ends = [_angles(size * np.ones(2) + added)[0] for size in (1.0, 2.0)]
    assert ends[0] == 0.0
    assert ends[1] == pytest.approx(2 * np.pi / 25, abs=0.01)
