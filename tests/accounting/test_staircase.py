"""Staircase noise: its profile by enumeration, its Rényi curve in mpmath, its samples and users."""

from __future__ import annotations

import itertools

import jax
import mpmath
import numpy as np
import pytest

from dpjax import accounting as acc

REPLACE_ONE = acc.Adjacency.REPLACE_ONE


def _cells(epsilon, gamma, shift, widest=60.0):
    """(width, density, density of the shifted noise) of the cells where both are constant."""
    units = np.arange(int(widest / epsilon) + 2 * shift + 5)
    steps = np.concatenate([gamma + units, -gamma - units])
    edges = np.unique(np.concatenate([steps, steps + shift]))
    middle, b = (edges[1:] + edges[:-1]) / 2, np.exp(-epsilon)

    def density(x):
        level = np.maximum(np.ceil(np.abs(x) - gamma), 0.0)
        return (1 - b) / (2 * (gamma + b * (1 - gamma))) * b**level

    return np.diff(edges), density(middle), density(middle - shift)


def _settings(number):
    rng = np.random.default_rng(number)
    for _ in range(number):
        gamma = None if rng.random() < 0.4 else float(rng.random())
        yield float(np.exp(rng.uniform(-2, 1.5))), gamma, int(rng.integers(1, 5))


@pytest.mark.parametrize(("adjacency", "times"), [("add-remove", 1), ("replace-one", 2)])
def test_the_profile_is_what_the_densities_say(adjacency, times):
    for epsilon, gamma, moved in _settings(8):
        run = acc.Staircase(epsilon, gamma, moved)
        width, p, q = _cells(epsilon, run.gamma, times * moved)
        for asked in (0.0, 0.4 * epsilon, 0.99 * epsilon, 1.3 * epsilon):
            truth = float(np.sum(width * np.maximum(p - np.exp(asked) * q, 0.0)))
            found = acc.delta(run, epsilon=asked, adjacency=adjacency)
            assert truth - 1e-15 <= found <= truth * (1 + 1e-6) + 1e-15
        assert acc.epsilon(run, 0, adjacency=adjacency) == pytest.approx(epsilon * times * moved)


@pytest.mark.parametrize("gamma", [0.2, 0.5, 0.9])
def test_no_shorter_move_is_told_apart_better(gamma):
    # By cells of their own, at moves that are no whole number of units.
    run = acc.Staircase(0.7, gamma, 2)
    for moved in (0.3, 0.99, 1.0, 1.4, 1.99):
        edges = np.unique(
            [s * (gamma + i) + t for s in (-1, 1) for t in (0, moved) for i in range(60)]
        )
        middle, b = (edges[1:] + edges[:-1]) / 2, np.exp(-0.7)
        a = (1 - b) / (2 * (gamma + b * (1 - gamma)))
        p, q = (a * b ** np.maximum(np.ceil(np.abs(middle - t) - gamma), 0) for t in (0, moved))
        for asked in (0.0, 0.5, 0.7, 1.0):
            reached = np.sum(np.diff(edges) * np.maximum(p - np.exp(asked) * q, 0.0))
            assert reached <= acc.delta(run, epsilon=asked) + 1e-15


@pytest.mark.parametrize(
    ("epsilon", "gamma", "moved", "order"),
    [(1.0, None, 1, 1.0001), (1.0, 0.9, 3, 2.0), (0.05, 0.2, 2, 50.0), (5.0, None, 4, 300.0)],
)
def test_the_renyi_curve_is_the_integral(epsilon, gamma, moved, order):
    run = acc.Staircase(epsilon, gamma, moved)
    with mpmath.workdps(30):
        width, p, q = (map(mpmath.mpf, v) for v in _cells(epsilon, run.gamma, moved))
        total = mpmath.fsum(
            w * a**order * b ** (1 - order) for w, a, b in zip(width, p, q, strict=True)
        )
        truth = float(mpmath.log(total) / (order - 1))
    found = float(np.asarray(acc.rdp(run, [order]))[0])
    assert truth * (1 - 1e-9) <= found <= truth * (1 + 1e-7) + 1e-12


def test_samples_of_it_are_priced_as_all_their_outcomes_say():
    epsilon, rate, steps = 1.5, 0.3, 2
    run = acc.Repeated(acc.PoissonSampled(acc.Staircase(epsilon), rate), steps)
    width, p, q = _cells(epsilon, acc.Staircase(epsilon).gamma, 1)
    one = {}
    for loss in (-epsilon, 0.0, epsilon):
        cells = np.abs(np.log(p / q) - loss) < 1e-6
        one[loss] = (np.sum((width * p)[cells]), np.sum((width * q)[cells]))
    with_record = [(rate * a + (1 - rate) * b, b) for a, b in one.values()]
    for asked in (0.0, 0.2, 0.5):
        truth = 0.0
        for pairs in (with_record, [(b, a) for a, b in with_record]):
            found = [np.prod(chosen, axis=0) for chosen in itertools.product(pairs, repeat=steps)]
            truth = max(truth, sum(max(a - np.exp(asked) * b, 0.0) for a, b in found))
        assert truth * (1 - 1e-9) <= acc.delta(run, epsilon=asked) <= truth * (1 + 1e-4)


def test_a_users_records_move_it_as_many_times_as_far():
    one = acc.UserLevel(acc.Staircase(0.5, 0.3), 3)
    assert acc.epsilon(one, 1e-3) == acc.epsilon(acc.Staircase(0.5, 0.3, 3), 1e-3)


def test_it_costs_less_than_any_pure_release_and_never_less_than_nothing():
    for run in (acc.Repeated(acc.Staircase(0.3), 50), acc.Staircase(2.0)):
        pure = acc.Repeated(acc.PureDP(0.3), 50) if run != acc.Staircase(2.0) else acc.PureDP(2.0)
        assert 0 < acc.epsilon(run, 1e-6) < acc.epsilon(pure, 1e-6)
    corners = [acc.epsilon(acc.Staircase(e), 1e-5) for e in (0.0, 1e-9, 800.0, np.inf)]
    assert corners[:2] == [0.0, 0.0]
    assert corners[2] == pytest.approx(800)
    assert corners[3] == np.inf


@pytest.mark.parametrize("epsilon", [700.0, 720.0, 745.0, 1e4])
def test_a_density_that_is_nearly_flat_hides_no_more_than_it_does(epsilon):
    """γ = 0: half of what is near moves out of reach, however small e^{−ε} is in a float."""
    run = acc.Staircase(epsilon, 0.0)
    assert 0.5 <= acc.delta(run, epsilon=0.5) <= 0.5 + 1e-9
    for one in (run, acc.Repeated(run, 3), acc.PoissonSampled(run, 0.5)):
        assert acc.epsilon(one, 1e-6) > epsilon - 3
    assert acc.epsilon(acc.Composed((acc.Gaussian(1.0), run)), 1e-6) > epsilon - 3


def test_the_share_of_least_size_is_the_same_in_arrays_and_never_lost():
    for epsilon in (1.0, 178.0, 700.0, 1420.0):
        one = acc.Staircase(epsilon)
        for kind in (np.float64, np.float32):
            many = acc.Staircase(np.array([epsilon], kind))
            assert np.asarray(many.gamma)[0] == pytest.approx(one.gamma, rel=1e-6)
            assert acc.epsilon(many, 0.6)[0] == pytest.approx(acc.epsilon(one, 0.6))
        traced = jax.jit(lambda e: acc.delta(acc.Staircase(e), epsilon=0.5))(epsilon)
        assert float(traced) >= acc.delta(one, epsilon=0.5) * (1 - 1e-9)
    with pytest.raises(ValueError, match="0 or >= 1e-300"):
        acc.Staircase(1.0, 1e-310)


def test_it_is_traced_by_its_curve():
    run = lambda e: acc.Repeated(acc.Staircase(e), 10)  # noqa: E731
    traced = jax.jit(lambda e: acc.epsilon(run(e), 1e-5, method="rdp"))(0.1)
    concrete = acc.epsilon(run(0.1), 1e-5, method="rdp")
    assert concrete * (1 - 1e-9) <= float(traced) <= concrete * (1 + 1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epsilon": -1.0}, "Staircase.epsilon must be a number >= 0, got -1.0"),
        ({"epsilon": None}, "Staircase.epsilon must be"),
        ({"epsilon": 1.0, "gamma": 1.5}, r"Staircase.gamma must be in \[0, 1\], got 1.5"),
        ({"epsilon": 1.0, "sensitivity": 1.5}, "Staircase.sensitivity must be a whole number"),
    ],
)
def test_bad_numbers_are_named(fields, message):
    with pytest.raises((ValueError, TypeError), match=message):
        acc.Staircase(**fields)
