"""Ball noise against mpmath, against brute force, and against its own warnings."""

import mpmath as mp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting import bounded_noise as ball

REPLACE = acc.Adjacency.REPLACE_ONE


def exact_tv(displacement, dimension):
    """Quadrature in 40 digits of 2κ ∫ cos^d, independent of the incomplete beta function."""
    d = mp.mpf(dimension)
    angle = mp.asin(mp.mpf(displacement) / 2)
    upper = min(angle, 40 / mp.sqrt(d))
    constant = 2 * mp.exp(mp.loggamma((d + 2) / 2) - mp.loggamma((d + 1) / 2)) / mp.sqrt(mp.pi)
    area = mp.quad(lambda u: mp.exp(d * mp.log(mp.cos(u))), mp.linspace(0, upper, 9))
    return constant * area


@pytest.mark.parametrize("dimension", [2, 3, 39, 40, 1000, 10**6, 10**12])
def test_step_is_exact_in_any_dimension(dimension):
    with mp.workdps(40):
        for displacement in (1e-9, 1e-3 / np.sqrt(dimension), 1 / np.sqrt(dimension)):
            truth = exact_tv(displacement, dimension)
            assert 0 <= ball.ball_delta(displacement, dimension) / truth - 1 < 3e-11


def test_step_oracles(oracles):
    for row in oracles["unit_ball_tv"]:
        p = row["params"]
        found = ball.ball_delta(p["Delta"] / p["r"], p["d"])
        assert 0 <= found / row["value"] - 1 < 3e-11, p


def test_step_by_monte_carlo():
    rng, n = np.random.default_rng(0), 400_000
    for d, shift in ((1, 0.3), (3, 0.5), (8, 0.2)):
        points = rng.normal(size=(n, d))
        points *= (rng.random(n) ** (1 / d) / np.linalg.norm(points, axis=1))[:, None]
        points[:, 0] -= shift
        outside = np.mean(np.linalg.norm(points, axis=1) > 1)
        assert ball.ball_delta(shift, d) == pytest.approx(outside, abs=5 * np.sqrt(0.25 / n))


def test_edges():
    assert ball.ball_delta(0.0, 5) == 0.0
    assert ball.ball_delta(2.0, 5) == 1.0
    assert ball.ball_delta(7.0, 1) == 1.0
    assert ball.ball_delta(0.2, 1) == pytest.approx(0.1, rel=1e-10)
    assert ball.ball_displacement(0.0, 5) == 0.0


def test_totals_and_radii(oracles):
    for row in oracles["prgd_total_delta_eps0"]:
        p = row["params"]
        step = acc.UniformBall(p["Delta"], p["d"])
        drawn = acc.Repeated(acc.FixedBatchSampled(step, 1, p["n"]), p["T"])
        found = acc.delta(drawn, epsilon=0.0, adjacency=REPLACE)
        assert found == pytest.approx(row["value"], rel=1e-10)
        # One shuffled pass uses each record once: worse than independent draws.
        shuffled = acc.Repeated(acc.Shuffled(step, p["n"]), p["T"] // p["n"])
        assert acc.delta(shuffled, epsilon=0.0) > found
    for row in oracles["prgd_radius_over_sensitivity"]:
        p = row["params"]
        each = -np.expm1(np.log1p(-p["delta_target"]) / p["T"]) * p["n"]
        found = 1 / ball.ball_displacement(each, p["d"])
        assert row["value"] <= found < row["value"] * (1 + 1e-10)


def test_composition_formulas():
    step, delta = acc.UniformBall(0.05, 7), ball.ball_delta(0.05, 7)
    shuffled = acc.Repeated(acc.Shuffled(step, 20), 6)
    assert acc.delta(shuffled, epsilon=0.0) == pytest.approx(1 - (1 - delta) ** 6, rel=1e-9)
    poisson = acc.Repeated(acc.PoissonSampled(step, 0.1), 6)
    assert acc.delta(poisson, epsilon=0.0) == pytest.approx(1 - (1 - delta / 10) ** 6, rel=1e-9)
    mixed = acc.Composed((step, acc.Gaussian(2.0)))
    rest = acc.delta(acc.Gaussian(2.0), epsilon=1.0)
    assert acc.delta(mixed, epsilon=1.0) == pytest.approx(delta + (1 - delta) * rest, rel=1e-9)
    tiny = acc.Composed((acc.UniformBall(1e-8, 7), acc.Gaussian(2.0)))
    found = acc.epsilon(tiny, delta=1e-5)
    assert acc.epsilon(acc.Gaussian(2.0), delta=1e-5) < found
    assert acc.delta(tiny, epsilon=found) <= 1e-5 * (1 + 1e-9)


def test_two_steps_by_brute_force():
    """Adaptive composition of two one-dimensional steps, integrated on a grid."""
    delta = ball.ball_delta(0.4, 1)
    grid = (np.arange(4000) + 0.5) / 4000 * 3 - 1.2
    one, other = np.abs(grid) < 1, np.abs(grid - 0.4) < 1
    first, second = one / one.sum(), other / other.sum()
    joint = np.maximum(np.outer(second, second) - np.outer(first, first), 0).sum()
    found = acc.delta(acc.Repeated(acc.UniformBall(0.4, 1), 2), epsilon=0.0)
    assert found == pytest.approx(1 - (1 - delta) ** 2, rel=1e-9)
    assert found == pytest.approx(joint, abs=2e-3)


def test_larger_epsilon_buys_nothing_and_says_so():
    run = acc.UniformBall(0.1, 10)
    with pytest.warns(UserWarning, match="buys nothing"):
        assert acc.delta(run, epsilon=5.0) == acc.delta(run, epsilon=0.0)
    with pytest.warns(UserWarning, match="buys nothing"):
        assert acc.epsilon(run, delta=1e-5) == np.inf
    assert acc.epsilon(run, delta=0.2) == 0.0


def test_fixed_batches_are_replace_one_only():
    with pytest.raises(acc.UnsupportedQuery):
        acc.delta(acc.FixedBatchSampled(acc.UniformBall(0.1, 3), 1, 10), epsilon=0.0)


def test_optimal_composition_oracles(oracles):
    for row in oracles["kov_homogeneous_delta"]:
        p = row["params"]
        found = ball.compose_approximate(p["eps"], p["delta"], p["k"], p["eps_g"])
        assert 0 <= found / row["value"] - 1 < 1e-10
    with pytest.raises(ValueError, match="whole count"):
        ball.compose_approximate(0.1, 0.0, 2.5, 1.0)


def test_optimal_composition_by_brute_force():
    """Every outcome of k randomised responses, laid out."""
    epsilon, delta, k, total = 0.4, 0.01, 6, 0.9
    p = np.array([delta, 0.0, *((1 - delta) * np.array([np.e**epsilon, 1]) / (1 + np.e**epsilon))])
    q = np.array([0.0, delta, *((1 - delta) * np.array([1, np.e**epsilon]) / (1 + np.e**epsilon))])
    joint_p, joint_q = np.ones(1), np.ones(1)
    for _ in range(k):
        joint_p, joint_q = np.outer(joint_p, p).ravel(), np.outer(joint_q, q).ravel()
    truth = np.maximum(joint_p - np.exp(total) * joint_q, 0).sum()
    assert ball.compose_approximate(epsilon, delta, k, total) == pytest.approx(truth, rel=1e-10)


def test_tradeoff_of_balls_alone_and_with_a_gaussian():
    rates = np.array([0.0, 0.1, 0.6, 1.0])
    alone = acc.tradeoff(acc.UniformBall(0.1, 1), rates)  # δ = 0.05
    np.testing.assert_allclose(alone, np.maximum(0.95 - rates, 0), atol=1e-10)
    mixed = acc.Composed((acc.UniformBall(0.1, 1), acc.Gaussian(1.0)))
    rates = np.linspace(0.0, 1.0, 201)
    curve = acc.tradeoff(mixed, rates)
    # By duality it must be the envelope of the lines that δ(ε) gives.
    for epsilon in (0.1, 1.0, 2.0):
        line = 1 - acc.delta(mixed, epsilon=epsilon) - np.exp(epsilon) * rates
        assert np.all(curve >= line - 1e-9)
        assert np.min(curve - line) < 1e-3
