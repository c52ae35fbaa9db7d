"""Strategies: sensitivity by brute force, errors by dense linear algebra, optima by comparison."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.correlation import Toeplitz, Workload, banded_toeplitz, identity, square_root


def brute_force(strategy, steps, separation, participations):
    """‖Σ C[:, t]‖ at its largest over every allowed set of steps."""
    c = strategy.matrix(steps)
    inner, best = c.T @ c, 0.0
    for count in range(1, steps + 1):
        if count > participations or (count - 1) * separation >= steps:
            break
        for used in itertools.combinations(range(steps), count):
            if np.all(np.diff(used) >= separation):
                best = max(best, inner[np.ix_(used, used)].sum())
    return math.sqrt(best)


@settings(max_examples=150, deadline=None)
@given(
    ratios=st.lists(st.floats(0.0, 1.0), max_size=12),
    first=st.floats(1e-3, 1e3),
    steps=st.integers(1, 10),
    separation=st.integers(1, 12),
    participations=st.sampled_from([1, 2, 3, 7, math.inf]),
)
def test_sensitivity_is_the_largest_over_all_sets_of_steps(
    ratios, first, steps, separation, participations
):
    strategy = Toeplitz(tuple(np.cumprod([first, *ratios]).tolist()))
    found = strategy.sensitivity(steps, separation, participations)
    truth = brute_force(strategy, steps, separation, participations)
    assert truth * (1 - 4e-16) <= found <= truth * (1 + 1e-12)


def test_contributions_of_other_directions_or_signs_move_less():
    strategy, rng = square_root(5), np.random.default_rng(0)
    c = strategy.matrix(9)
    bound = strategy.sensitivity(9, 3)
    for _ in range(300):
        used = [0, 3, 6] if rng.random() < 0.5 else [1, 5]
        x = np.zeros((9, 4))
        x[used] = rng.normal(size=(len(used), 4))
        x[used] /= np.linalg.norm(x[used], axis=1, keepdims=True)
        assert np.linalg.norm(c @ x) <= bound * (1 + 1e-12)


@pytest.mark.parametrize(
    ("strategy", "steps", "separation", "participations"),
    [
        (square_root(4000), 4000, 250, math.inf),
        (square_root(4000), 4000, 250, 3),
        (square_root(64), 5000, 7, 100),
        (square_root(64), 5000, 1, math.inf),
    ],
)
def test_sensitivity_at_the_size_of_a_training_run(strategy, steps, separation, participations):
    column = np.zeros(steps)
    column[: strategy.bands] = strategy.coefficients
    total = np.zeros(steps)
    for j in range(int(min(participations, -(-steps // separation)))):
        total[j * separation :] += column[: steps - j * separation]
    found = strategy.sensitivity(steps, separation, participations)
    assert np.linalg.norm(total) * (1 - 1e-14) <= found <= np.linalg.norm(total) * (1 + 1e-9)


def test_a_scaled_strategy_has_the_scaled_sensitivity():
    for scale in (1e-300, 1e-160, 1e160, 1e300):
        c = Toeplitz(tuple(scale * x for x in square_root(3).coefficients))
        assert c.norm == pytest.approx(scale * square_root(3).norm, rel=1e-14)
        truth = scale * square_root(3).sensitivity(10, 2)
        assert c.sensitivity(10, 2) == pytest.approx(truth, rel=1e-14)


def test_bands_within_the_separation_cost_the_root_of_the_number_of_uses():
    c = square_root(8)
    assert c.sensitivity(64, 8) == pytest.approx(math.sqrt(8) * c.norm, rel=1e-12)
    assert identity().sensitivity(10**9, 10**3) == 1000.0


@pytest.mark.parametrize(
    "bad", [(), (0.0,), (1.0, 1.1), (1.0, -0.1), (math.nan,), (math.inf, 1.0), "ab", (True,), None]
)
def test_what_has_no_known_sensitivity_is_refused(bad):
    with pytest.raises((TypeError, ValueError), match="coefficients must"):
        Toeplitz(bad)


@pytest.mark.parametrize("kind", ["mean", "max"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [False, True])
def test_errors_are_those_of_the_matrices(kind, momentum, decay):
    steps, strategy = 17, square_root(5)
    rates = np.linspace(1.0, 0.05, steps) if decay else np.ones(steps)
    work = Workload(steps, momentum, tuple(rates) if decay else ())
    apart = np.subtract.outer(np.arange(steps), np.arange(steps))
    buffer = np.where(apart >= 0, momentum ** np.maximum(apart, 0.0), 0.0)
    a = np.tril(np.ones((steps, steps))) @ np.diag(rates) @ buffer
    rows = np.linalg.norm(a @ np.linalg.inv(strategy.matrix(steps)), axis=1)
    np.testing.assert_allclose(work.errors(strategy), rows, rtol=1e-12)
    size = rows.max() if kind == "max" else np.sqrt(np.mean(rows**2))
    truth = size * brute_force(strategy, steps, 6, math.inf)
    assert work.error(strategy, separation=6, kind=kind) == pytest.approx(truth, rel=1e-12)


def test_the_inverse_is_the_inverse():
    c = square_root(5)
    np.testing.assert_allclose(
        c.inverse(12), np.linalg.inv(c.matrix(12))[:, 0], rtol=1e-12, atol=1e-15
    )


def test_the_full_square_root_is_the_best_of_the_largest_error():
    # Dvijotham et al. 2024: optimal among Toeplitz strategies, one use a record
    best = Workload(32).error(square_root(32), kind="max")
    assert best == pytest.approx(np.sum(np.square(square_root(32).coefficients)), rel=1e-12)
    tuned = banded_toeplitz(32, steps=32, kind="max")
    assert best * (1 - 1e-9) <= Workload(32).error(tuned, kind="max") <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        (Workload(40), "mean"),
        (Workload(40, momentum=0.9), "max"),
        (Workload(40, rates=tuple(np.linspace(1, 0, 40))), "mean"),
    ],
)
def test_an_optimum_has_no_better_strategy_beside_it(work, kind):
    tuned = banded_toeplitz(6, workload=work, separation=4, kind=kind)
    least = work.error(tuned, separation=4, kind=kind)
    assert least < work.error(square_root(6), separation=4, kind=kind)
    assert least < work.error(identity(), separation=4, kind=kind)
    rng = np.random.default_rng(0)
    for _ in range(30):
        near = np.asarray(tuned.coefficients) * np.exp(0.01 * rng.normal(size=tuned.bands))
        other = Toeplitz(tuple(np.minimum.accumulate(near).tolist()))
        assert work.error(other, separation=4, kind=kind) >= least * (1 - 1e-7)


def test_what_is_asked_is_checked():
    for call in (
        lambda: banded_toeplitz(4),
        lambda: banded_toeplitz(0, steps=4),
        lambda: banded_toeplitz(4, steps=4, kind="least"),
        lambda: banded_toeplitz(4, steps=4, separation=0),
        lambda: Workload(0),
        lambda: Workload(4, momentum=1.0),
        lambda: Workload(4, rates=(1.0,)),
        lambda: identity().sensitivity(4, 1.5),
        lambda: square_root(0),
    ):
        with pytest.raises(ValueError, match=r"must be|give either"):
            call()
