"""Random allocation: its law against quadrature, simulation and published intervals."""

from __future__ import annotations

import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting.loss_distribution.grid import delta_bound
from dpjax.accounting.loss_distribution.step import Pair
from dpjax.accounting.pairs.mean_ratio import mean_ratio
from tests.accounting.allocation_truth import delta_of_two

REPLACE_ONE = acc.Adjacency.REPLACE_ONE


def _run(sigma, steps, epochs=1, chosen=1):
    return acc.Repeated(acc.RandomAllocation(acc.Gaussian(sigma), steps, chosen), epochs)


def _ends(sigma, steps, epsilon, sign, epochs=1):
    """The certified bounds on δ(ε) in one direction."""
    own = [Pair("allocation", sign, 1 / sigma, 1 / steps, epochs)]
    return [delta_bound(own, epsilon, upper=upper) for upper in (False, True)]


@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 0.5), (0.6, 2.0), (3.0, 0.3)])
def test_two_steps_by_quadrature(sigma, epsilon):
    for sign, exact in zip((1, -1), delta_of_two(sigma, epsilon), strict=True):
        low, high = _ends(sigma, 2, epsilon, sign)
        assert low <= exact <= high
        assert high - low <= 1e-3 * exact


def test_three_steps_by_quadrature():
    """Gauss–Hermite over two steps' noises, the third in closed form."""
    from scipy.special import ndtr

    mu, epsilon = 0.5, 0.4
    z = np.linspace(-11.0, 12.0, 1201)
    weight = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    ratio = np.exp(mu * z - mu * mu / 2)
    level = 3 * np.exp(epsilon) - np.add.outer(ratio, ratio)
    near = np.maximum(level, 1e-300)
    y = (np.log(near) + mu * mu / 2) / mu
    excess = np.where(level > 0, ndtr(mu - y) - near * ndtr(-y), 1 - level)
    exact = float(weight @ excess @ weight) / 3
    low, high = _ends(2.0, 3, epsilon, 1)
    assert low <= exact * (1 + 1e-7)
    assert exact <= high * (1 + 1e-7)  # the kink of the integrand
    assert high - low <= 1e-3 * exact


# sigma, steps, epochs, epsilon, δ remove, δ add: THEORY 9.3, by contour integration
@pytest.mark.parametrize(
    ("sigma", "steps", "epochs", "epsilon", "remove", "add"),
    [
        (1.0, 20, 1, 0.5, 7.937e-3, 3.935e-3),
        (2.0, 20, 1, 0.2, 2.595e-3, 2.388e-3),
        (1.0, 100, 10, 2.0, 7.276e-7, 4.198e-8),
    ],
)
def test_derived_values(sigma, steps, epochs, epsilon, remove, add):
    for sign, exact in ((1, remove), (-1, add)):
        low, high = _ends(sigma, steps, epsilon, sign, epochs)
        assert low <= exact * 1.0002  # which has four digits
        assert high >= exact * 0.9998
        assert high - low <= 0.04 * exact


def test_published_intervals_contain_ours():
    """Those of the random-allocation package of 2026, δ = 1e-5, wide by 1 to 2 %."""
    for sigma, steps, low, high in (
        (2.0, 20, 0.4184, 0.4278),
        (1.0, 20, 1.6062, 1.6163),
        (1.0, 100, 0.6172, 0.6279),
    ):
        own = acc.epsilon_interval(_run(sigma, steps), 1e-5)
        assert low <= own[0] <= own[1] <= high
        assert own[1] - own[0] <= 3e-4 * own[1]


def test_simulation():
    rng = np.random.default_rng(0)
    sigma, steps, epsilon = 0.8, 6, 0.7
    ratio = np.exp(rng.normal(size=(400_000, steps)) / sigma - 0.5 / sigma**2).mean(axis=1)
    for sign, seen in (
        (1, np.maximum(ratio - np.exp(epsilon), 0)),
        (-1, np.maximum(1 - np.exp(epsilon) * ratio, 0)),
    ):
        low, high = _ends(sigma, steps, epsilon, sign)
        spread = seen.std() / np.sqrt(len(seen))
        assert low - 4 * spread <= seen.mean() <= high + 4 * spread
        assert spread < 0.01 * seen.mean()


def test_laws_keep_their_masses_and_their_mean():
    for upper in (False, True):
        law = mean_ratio(1.3, 11, 9.0, upper, 300)
        assert abs(law.mass.sum() + law.zero - 1) < 1e-13
        assert abs(law.mass @ law.ratio + law.beyond - 1) < 1e-13
    coarse, fine = (mean_ratio(1.3, 11, 9.0, True, points) for points in (300, 1200))
    gaps = [np.maximum(w.ratio - 1.5, 0) @ w.mass for w in (coarse, fine)]
    assert gaps[1] < gaps[0]


def test_one_step_is_the_gaussian():
    for delta in (1e-13, 1e-5, 0.1):
        low, high = acc.epsilon_interval(_run(0.7, 1), delta)
        exact = acc.epsilon(acc.Gaussian(0.7), delta)
        assert low <= exact <= high * (1 + 1e-12)
        assert high - low <= 1e-5 * exact


def test_all_steps_chosen_is_every_step():
    every, plain = _run(2.0, 5, chosen=5), acc.Repeated(acc.Gaussian(2.0), 5)
    assert acc.epsilon(every, 1e-5, method="pld") == pytest.approx(
        acc.epsilon(plain, 1e-5, method="pld"), rel=1e-5
    )


def test_several_chosen_are_blocks_of_both_lengths():
    """7 steps, 3 chosen: one block of three and two of two."""
    step = acc.Gaussian(1.5)
    blocks = acc.Composed(
        (acc.RandomAllocation(step, 3), acc.Repeated(acc.RandomAllocation(step, 2), 2))
    )
    whole = acc.RandomAllocation(step, 7, chosen=3)
    assert acc.epsilon(whole, 1e-5) == pytest.approx(acc.epsilon(blocks, 1e-5), rel=1e-9)
    assert acc.epsilon_interval(whole, 1e-5)[0] == 0  # an upper bound that nobody attains


def test_the_price_of_three_of_seven_is_above_simulation():
    """The likelihood ratio of a uniform set of three among seven steps."""
    import itertools

    rng = np.random.default_rng(1)
    mu, epsilon = 1 / 1.5, 1.5
    ratio = np.exp(mu * rng.normal(size=(200_000, 7)) - mu * mu / 2)
    sets = list(itertools.combinations(range(7), 3))
    mixed = sum(ratio[:, s].prod(axis=1) for s in sets) / len(sets)
    seen = np.maximum(mixed - np.exp(epsilon), 0)
    bound = acc.delta(acc.RandomAllocation(acc.Gaussian(1.5), 7, chosen=3), epsilon)
    assert seen.mean() - 4 * seen.std() / np.sqrt(len(seen)) < bound < 2 * seen.mean()


def test_more_steps_more_noise_and_fewer_epochs_cost_less():
    def price(*setting):
        return acc.epsilon(_run(*setting), 1e-6)

    assert price(1.0, 8) > price(1.0, 16) > price(1.5, 16)
    assert price(1.5, 16, 4) > price(1.5, 16, 2) > price(1.5, 16)
    assert price(1.5, 16) <= acc.epsilon(acc.Shuffled(acc.Gaussian(1.5), 16), 1e-6)


def test_composed_with_other_releases():
    other = acc.PoissonSampled(acc.Gaussian(1.0), 0.05)
    both = acc.Composed((_run(1.5, 10, 2), acc.Repeated(other, 5), acc.PureDP(0.1, "add-remove")))
    low, high = acc.epsilon_interval(both, 1e-6)
    assert max(acc.epsilon(_run(1.5, 10, 2), 1e-6), 0.1) < low <= high < low * 1.001


def test_where_no_theorem_covers_it_it_is_refused_by_name():
    with pytest.raises(acc.UnsupportedQuery, match="RandomAllocation is defined for ADD_REMOVE"):
        acc.epsilon(_run(1.0, 10), 1e-5, adjacency=REPLACE_ONE)
    sampled = acc.PoissonSampled(acc.Gaussian(1.0), 0.1)
    with pytest.raises(acc.UnsupportedQuery, match="RandomAllocation"):
        acc.epsilon(acc.RandomAllocation(sampled, 10), 1e-5)
    for wrap in (lambda m: acc.PoissonSampled(m, 0.1), lambda m: acc.Shuffled(m, 3)):
        with pytest.raises(acc.UnsupportedQuery):
            acc.epsilon(wrap(_run(1.0, 10)), 1e-5)
    with pytest.raises(ValueError, match="chosen must be at most the steps"):
        acc.RandomAllocation(acc.Gaussian(1.0), 3, chosen=4)


@pytest.mark.parametrize("sigma", [1e-3, 0.05, 0.2, 30.0, 1e9])
@pytest.mark.parametrize("steps", [1, 3, 10**12])
def test_corners_are_ordered_and_below_the_whole_gaussian(sigma, steps):
    if steps > 3 and sigma not in (1e-3, 0.2):
        return
    for delta in (1e-13, 0.3):
        low, high = acc.epsilon_interval(_run(sigma, steps), delta)
        whole = acc.epsilon(acc.Gaussian(sigma), delta)
        assert 0 <= low <= high
        assert low <= whole * (1 + 1e-9)
        if sigma <= 30 and high < np.inf:  # beyond, losses are of the size of the transform's noise
            assert high <= whole * (1 + 1e-3)
