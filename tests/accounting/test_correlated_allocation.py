"""Random allocation under correlated noise: above integrals, equal where it is known, refused."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from benchmarks.correlated_allocation import (
    Dense,
    all_choices,
    is_above,
    moved,
    price_and_simulate,
    simulate,
    toeplitz,
)
from dpjax import accounting as acc
from dpjax._numerics.overlaps import overlaps_of_column, overlaps_of_matrix
from dpjax.accounting.pairs.mean_ratio import nested_ratio
from dpjax.accounting.pairs.raised_overlaps import list_bounds, list_nested
from dpjax.correlation import BandedInverse, Toeplitz, Tree, identity, square_root
from tests.accounting.correlated_allocation_truth import delta_against, delta_of_two

REPLACE = acc.Adjacency.REPLACE_ONE


def run_of(sigma, strategy, bins, epochs=1, **options):
    return acc.RandomAllocationCorrelated(sigma, strategy, bins, epochs, **options)


# --- the overlaps


def brute(c, bins, epochs, redrawn):
    """(the most by distance, the least of one choice, the least of two), entry by entry."""
    if not redrawn:
        k = moved(c, bins, epochs) @ moved(c, bins, epochs).T
        return [np.diagonal(k, d).max() for d in range(bins)], np.diag(k).min(), k.min()
    v = all_choices(c, bins, epochs)
    k = v @ v.T
    places = list(itertools.product(range(bins), repeat=epochs))
    most = np.zeros(bins)
    for (i, a), (j, b) in itertools.product(enumerate(places), repeat=2):
        apart = {abs(x - y) for x, y in zip(a, b, strict=True)}
        if len(apart) == 1:
            most[apart.pop()] = max(most[abs(a[0] - b[0])], k[i, j])
    return most, np.diag(k).min(), k.min()


@pytest.mark.parametrize("redrawn", [False, True])
def test_overlaps_are_those_of_the_columns_added_up(redrawn):
    rng = np.random.default_rng(1)
    for _ in range(12):
        bins, epochs = rng.integers(1, 5), rng.integers(1, 4)
        column = rng.exponential(size=rng.integers(1, bins * epochs + 2))
        c = toeplitz(column, bins * epochs)[: bins * epochs, : bins * epochs]
        dense = np.tril(rng.exponential(size=c.shape)) * (rng.random(c.shape) < 0.7)
        for found, matrix in (
            (overlaps_of_column(column, bins, epochs, redrawn), c),
            (overlaps_of_matrix(Dense(c).matrix, bins, epochs, redrawn), c),
            (overlaps_of_matrix(Dense(dense).matrix, bins, epochs, redrawn), dense),
        ):
            for some in range(1, epochs + 1):
                steps = bins * some
                most, *_ = brute(matrix[:steps, :steps], bins, some, redrawn)
                assert np.all(found.most[some - 1] >= most)
                assert redrawn or np.allclose(found.most[some - 1], most, rtol=1e-12)
            _, own, shared = brute(matrix, bins, epochs, redrawn)
            assert found.least_own <= own * (1 + 1e-12)
            assert found.least_shared <= shared * (1 + 1e-12)
            assert redrawn or np.isclose(found.least_own, own)


def test_overlaps_of_whole_numbers_are_exact_and_others_rounded_up():
    assert overlaps_of_column(np.ones(1), 4, 3, False).most.tolist() == [
        [1, 0, 0, 0], [2, 0, 0, 0], [3, 0, 0, 0],
    ]  # fmt: skip
    assert overlaps_of_column(np.array([0.1]), 2, 1, False).most[0, 0] > 0.1 * 0.1
    tiny = overlaps_of_column(np.array([1.0, 1e-200, 1e-200]), 3, 1, False).most[0]
    assert np.all(tiny[1:] > 0)  # 1e-400 is no number, and not nothing


# --- where the price is known


@pytest.mark.parametrize(("sigma", "bins"), [(2.0, 7), (0.5, 1), (0.5, 7), (2.0, 1)])
@pytest.mark.at_length(every=4)
def test_without_correlation_it_is_random_allocation_to_the_last_bit(sigma, bins):
    plain = acc.RandomAllocation(acc.Gaussian(sigma), bins)
    assert acc.epsilon(run_of(sigma, identity(), bins), 1e-5) == acc.epsilon(plain, 1e-5)
    one_bin = run_of(2 * sigma, identity(), bins, 4)  # four uses are one of twice the size
    assert acc.delta(one_bin, 0.7) == acc.delta(plain, 0.7)
    afresh = run_of(sigma, identity(), bins, 3, redrawn=True)
    assert acc.delta(afresh, 0.7) == acc.delta(acc.Repeated(plain, 3), 0.7)


def test_one_bin_is_the_run_in_order_and_rows_that_all_share_have_no_amplification():
    c = square_root(6)
    order = acc.epsilon(acc.CorrelatedGaussian(3.0, c, 6, 1), 1e-5)
    for redrawn in (False, True):
        found = acc.epsilon(run_of(3.0, c, 1, 6, redrawn=redrawn), 1e-5)
        assert order * (1 - 1e-12) <= found <= order * (1 + 1e-9)
    same = np.zeros((4, 4))
    same[3] = 1.0  # all steps are one and the same number of the release
    plain = acc.epsilon(acc.Gaussian(3.0), 1e-5)
    assert plain <= acc.epsilon(run_of(3.0, Dense(same), 4), 1e-5) <= plain * (1 + 1e-9)


@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 0.5), (0.6, 2.0), (3.0, 0.3)])
@pytest.mark.at_length(every=3)
def test_two_bins_by_quadrature(sigma, epsilon):
    """Exactly of equal diagonals; of others above, and not far."""
    for c, factor in (
        (np.array([[1.0, 0.0], [0.5, np.sqrt(1.25)]]), 1 + 2e-3),
        (np.array([[1.0, 0.0], [0.5, 1.0]]), 3.0),
        (np.array([[0.3, 0.0], [0.9, 1.0]]), 3.0),
    ):
        exact = max(delta_of_two(c.T @ c / sigma**2, epsilon))
        found = acc.delta(run_of(sigma, Dense(c), 2), epsilon)
        assert exact <= found <= exact * factor


_CHOICES = [
    lambda y: np.ones_like(y),
    lambda y: np.where(y > 0.5, 1.0, -1.0),
    lambda y: np.where(y > 0.5, -1.0, 1.0),
    lambda y: np.where(y > 1.0, 1.0, 0.0),
    lambda y: np.tanh(3 * y),
]


@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 0.5), (0.6, 1.5)])
@pytest.mark.at_length(every=2)
def test_no_contribution_that_follows_the_outputs_is_told_better(sigma, epsilon):
    for c in ([[1.0, 0.0], [0.6, 0.8]], [[0.4, 0.0], [1.0, 1.0]]):
        found = acc.delta(run_of(sigma, Dense(np.array(c)), 2), epsilon)
        known = [max(delta_against(np.array(c), sigma, one, epsilon)) for one in _CHOICES]
        assert max(known) <= found * (1 + 1e-6)  # the grid's own error at the kink
        assert found <= 1.6 * max(known)


@pytest.mark.parametrize("number", range(12))
@pytest.mark.at_length(every=12)
def test_no_strategy_is_priced_below_its_simulation(number):
    _, found, seen = price_and_simulate(number, 20_000)
    assert is_above(found, seen)


def test_a_price_that_is_too_low_would_be_seen():
    """The same comparison refutes an amplification as if nothing were shared."""
    c = square_root(12)
    v = moved(c.matrix(12), 12, 1)
    seen = simulate(v, 2.0, [1.0], 40_000, np.random.default_rng(0))[0, 0]
    wrong = acc.delta(acc.RandomAllocation(acc.Gaussian(2.0 / c.norm), 12), 1.0)
    assert wrong < seen[0] - 6 * seen[1]
    assert acc.delta(run_of(2.0, c, 12), 1.0) > seen[0]


# --- bounds of one another


def test_bands_apart_share_nothing_and_cost_what_fewer_bins_do():
    """Three bands: every third bin, an allocation of a third as many."""
    c = Toeplitz((1.0, 1.0, 1.0))
    bounds = list_bounds(run_of(1.0, c, 20))
    assert [(b.shared, b.bins) for b in bounds] == [(2.0, 20), (1.0, 10), (0.0, 6)]
    thirds = acc.epsilon(acc.RandomAllocation(acc.Gaussian(3.0 / 3**0.5), 6), 1e-5)
    found = acc.epsilon(run_of(3.0, c, 20), 1e-5)
    assert found <= thirds * (1 + 1e-9)


def test_two_levels_are_at_least_the_overlaps_of_every_turn_of_their_bins():
    rng = np.random.default_rng(3)
    column, bins = np.sort(rng.exponential(size=40))[::-1], 20
    v = moved(toeplitz(column, 40)[:40, :40], bins, 2)
    k = v @ v.T
    bounds = list_nested(run_of(1.0, Toeplitz(tuple(column.tolist())), bins, 2))
    assert len(bounds) > 10
    for bound in bounds:
        block = np.repeat(np.arange(bound.blocks), bound.inner)
        places = bound.period * block + bound.apart * np.tile(np.arange(bound.inner), bound.blocks)
        like = bound.shared + bound.block * (block[:, None] == block)
        like = like + bound.own * np.eye(len(block))
        for turn in range(bins):
            at = (places + turn) % bins
            assert len(set(at.tolist())) == len(at)  # all turns together hold each bin as often
            assert np.all(k[np.ix_(at, at)] <= like * (1 + 1e-12))


def test_the_law_of_blocks_is_that_of_its_simulation():
    shared, block, own = 0.1, 0.3, 0.8
    rng = np.random.default_rng(0)

    def factor(v, *shape):
        return np.exp(np.sqrt(v) * rng.normal(size=shape) - v / 2)

    within = factor(own, 100_000, 4, 3).mean(2)
    ratio = factor(shared, 100_000) * (factor(block, 100_000, 4) * within).mean(1)
    law = nested_ratio((shared, block, own), 4, 3, 9.0)
    assert law.mass @ law.ratio + law.beyond == pytest.approx(1.0, abs=1e-11)
    for level in (0.3, 1.2, 3.0):
        seen = np.maximum(ratio - level, 0.0), np.maximum(level - ratio, 0.0)
        known = np.maximum(law.ratio - level, 0.0) @ law.mass + law.beyond
        known = known, np.maximum(level - law.ratio, 0.0) @ law.mass + level * law.zero
        for one, other in zip(seen, known, strict=True):
            error = one.std() / np.sqrt(len(one))
            assert abs(one.mean() - other) < 5 * error + 1e-3 * other


@pytest.mark.at_length
def test_more_noise_more_bins_and_fewer_epochs_cost_less():
    def price(sigma, bins, epochs, **options):
        return acc.epsilon(run_of(sigma, square_root(8), bins, epochs, **options), 1e-5)

    order = acc.epsilon(acc.CorrelatedGaussian(3.0, square_root(8), 64, 32), 1e-5)
    assert price(3.0, 32, 2) < price(3.0, 16, 2) < order
    assert price(4.0, 32, 2) < price(3.0, 32, 2) < price(3.0, 32, 3)
    assert price(3.0, 32, 2) < price(3.0, 32, 2, redrawn=True)


@pytest.mark.at_length
def test_the_interval_holds_what_is_known_of_two_bins():
    c = np.array([[1.0, 0.0], [0.5, np.sqrt(1.25)]])
    run = run_of(1.0, Dense(c), 2)
    delta = max(delta_of_two(c.T @ c, 1.0))
    low, high = acc.epsilon_interval(run, delta)
    assert 0.99 < low <= 1.0 <= high < 1.01


# --- a run among others


def test_a_certificate_keeps_the_overlaps_and_verifies():
    run = run_of(3.0, square_root(4), 8, 2)
    certificate = acc.certify(run, 1e-5, declared={"records": 80, "batch_size": 10, "steps": 16})
    again = acc.Certificate.from_json(certificate.to_json())
    assert again.verify().epsilon == certificate.epsilon
    assert again.mechanism == run
    assert certificate.method == "kahane"
    with pytest.raises(acc.CertificateError, match="batch_size"):
        acc.certify(run, 1e-5, declared={"records": 80, "batch_size": 11})


@pytest.mark.at_length
def test_it_composes_with_others_and_with_itself():
    run = run_of(3.0, square_root(4), 8, 2)
    other = acc.PoissonSampled(acc.Gaussian(2.0), 0.1)
    whole = acc.Composed((acc.Repeated(run, 2), acc.Repeated(other, 5)))
    parts = [acc.epsilon(part, 1e-5) for part in (acc.Repeated(run, 2), acc.Repeated(other, 5))]
    certificate = acc.certify(whole, 1e-5)
    assert max(parts) < certificate.epsilon < sum(parts)
    assert acc.Certificate.from_json(certificate.to_json()).verify().epsilon == certificate.epsilon


def test_sweeps_are_their_settings():
    run = run_of(3.0, square_root(4), 8, 2)
    sigmas, epochs = np.array([0.0, 3.0, 3.0]), np.array([2, 1, 2])
    swept = acc.epsilon(dataclasses.replace(run, noise_multiplier=sigmas, epochs=epochs), 1e-5)
    each = [acc.epsilon(run_of(s, run.overlaps, 8, k), 1e-5)
            for s, k in zip(sigmas.tolist(), epochs.tolist(), strict=True)]  # fmt: skip
    assert swept.tolist() == each
    assert each[0] == np.inf


@pytest.mark.at_length
def test_within_a_trace_the_noise_may_be_unknown():
    run = run_of(3.0, square_root(4), 8, 2)
    ask = lambda s: acc.epsilon(dataclasses.replace(run, noise_multiplier=s), 1e-5)  # noqa: E731
    # Blocks are not tried there, and what is asked of laws elsewhere is asked of the contour.
    assert ask(3.0) * (1 - 1e-3) <= jax.jit(ask)(3.0) <= 1.1 * ask(3.0)
    with pytest.raises(acc.UnsupportedQuery, match="noise alone"):
        jax.jit(lambda k: acc.epsilon(dataclasses.replace(run, epochs=k), 1e-5))(1.0)


# --- the best of several runs


def attack_on_best(v, sigma, epsilon, trials, draws, rng):
    """What the best of a geometric number of runs shows, whose score is the density ratio.

    In either direction the largest, over events that are high scores, of P[best in it] less e^ε
    times the same of the neighbour; half of the draws choose the event.
    """
    k = v @ v.T / sigma**2
    root = np.linalg.cholesky(k + 1e-12 * np.eye(len(k)))
    ratio = np.exp(rng.normal(size=(draws, len(k))) @ root.T - np.diag(k) / 2).mean(1)

    def win(p):  # E of 1 − (1 − p)^K, of a geometric K of this mean
        return trials * p / (1 + (trials - 1) * p)

    shown = []
    for sign in (1, -1):  # added: high ratios are high scores; removed: low ones
        seen = []
        for part in np.split(sign * ratio, 2):
            cuts = np.quantile(sign * ratio, np.linspace(0.5, 0.999, 60))
            above = part[:, None] > cuts
            seen.append([(above * ratio_).mean(0) for ratio_ in (sign * part[:, None], 1.0)])
        gains = [win(own) - np.exp(epsilon) * win(other) if sign == 1
                 else win(other) - np.exp(epsilon) * win(own) for own, other in seen]  # fmt: skip
        shown.append(gains[1][np.argmax(gains[0])])
    return max(shown)


@pytest.mark.parametrize(("sigma", "epsilon"), [(3.0, 0.5), (1.5, 1.0)])
@pytest.mark.at_length
def test_the_best_of_several_runs_is_priced_above_an_attack_on_it(sigma, epsilon):
    """An attack that refutes the price of one run: it has more δ at that ε."""
    c, bins, trials = square_root(6), 6, 5.0
    run, v = run_of(sigma, c, bins), moved(c.matrix(bins), bins, 1)
    seen = attack_on_best(v, sigma, epsilon, trials, 400_000, np.random.default_rng(2))
    assert acc.epsilon(run, seen) < epsilon
    assert epsilon < acc.epsilon(acc.BestOf(run, trials), seen) < np.inf


@pytest.mark.parametrize("law", ["geometric", "logarithmic", "fixed"])
@pytest.mark.at_length(every=2)
def test_the_best_of_runs_without_correlation_costs_what_the_best_of_allocations_does(law):
    plain = acc.RandomAllocation(acc.Gaussian(2.0), 7)
    own, other = (
        acc.epsilon(acc.BestOf(run, 4.0, law), 1e-5) for run in (run_of(2.0, identity(), 7), plain)
    )
    assert own == other


@pytest.mark.at_length
def test_the_best_of_runs_of_which_all_bins_share_everything_is_that_of_one_release():
    same = np.zeros((4, 4))
    same[3] = 1.0
    run = acc.Composed((run_of(3.0, Dense(same), 4), acc.Gaussian(20.0)))  # a score beside it
    plain = acc.Composed((acc.Gaussian(3.0), acc.Gaussian(20.0)))
    found, one = (acc.epsilon(acc.BestOf(m, 10.0), 1e-5) for m in (run, plain))
    assert one * (1 - 1e-9) <= found
    assert found <= acc.epsilon(acc.BestOf(plain, 10.0), 1e-5, method="rdp") * (1 + 1e-9)


@pytest.mark.at_length
def test_a_certificate_of_the_best_of_several_runs_verifies():
    best = acc.BestOf(run_of(4.0, square_root(4), 8, 2), 10.0)
    certificate = acc.certify(best, 1e-5)
    assert certificate.method == "kahane"
    assert np.isfinite(certificate.epsilon)
    assert acc.Certificate.from_json(certificate.to_json()).verify().epsilon == certificate.epsilon
    assert acc.epsilon_interval(best, 1e-5)[0] == 0.0  # no score is known to attain it
    sweep = dataclasses.replace(best, expected_trials=np.array([2.0, 10.0]))
    few, many = acc.epsilon(sweep, 1e-5)
    assert few < many == certificate.epsilon
    with pytest.raises(acc.UnsupportedQuery, match="outside the trace"):
        jax.jit(lambda k: acc.epsilon(dataclasses.replace(best, expected_trials=k), 1e-5))(2.0)


def test_the_best_of_several_runs_is_refused_by_name_of_what_one_run_is_refused_for():
    run = run_of(4.0, square_root(4), 8)
    why = (
        r"BestOf\(RandomAllocationCorrelated\) is priced by one run, and that has no price: "
        r"RandomAllocationCorrelated is priced for ADD_REMOVE only.*adjacency=Adjacency.ADD_REMOVE "
        "with method='kahane' answers"
    )
    with pytest.raises(acc.UnsupportedQuery, match=why):
        acc.epsilon(acc.BestOf(run, 10.0), 1e-5, adjacency=REPLACE)
    with pytest.raises(acc.UnsupportedQuery, match=r"no price: .* neither sampled nor shuffled"):
        acc.epsilon(acc.BestOf(acc.PoissonSampled(run, 0.1), 10.0), 1e-5)


# --- corners


@pytest.mark.parametrize("redrawn", [False, True])
def test_noise_whose_square_no_number_holds_has_a_price(redrawn):
    little, much = (run_of(s, square_root(4), 10, 2, redrawn=redrawn) for s in (1e-300, 1e308))
    assert acc.epsilon(little, 1e-5) == np.inf
    assert acc.delta(little, 1.0) == 1
    assert acc.epsilon(much, 1e-5) == 0
    assert acc.delta(much, 1.0) == 0
    # Overlaps that are as small as their noise move as much as those of size 1.
    small = acc.RandomAllocationCorrelated(1e-153, (1e-306, 3e-307), 2)
    parts = acc.Gaussian(0.3**-0.5), acc.RandomAllocation(acc.Gaussian(0.7**-0.5), 2)
    assert acc.epsilon(small, 1e-5) == pytest.approx(acc.epsilon(acc.Composed(parts), 1e-5), 1e-9)


def test_corners():
    c = square_root(50)  # more bands than steps
    assert acc.epsilon(run_of(2.0, c, 1), 1e-5) == pytest.approx(
        acc.epsilon(acc.Gaussian(2.0), 1e-5), rel=1e-9
    )
    assert acc.epsilon(run_of(0.0, c, 4), 1e-5) == np.inf
    assert acc.delta(run_of(0.0, c, 4), 3.0) == 1.0
    assert acc.epsilon(run_of(1e-3, c, 4), 1e-5) > 1e5
    assert acc.epsilon(run_of(1e9, c, 4), 1e-5) <= 1e-5
    assert acc.epsilon(run_of(1.0, Dense(np.zeros((3, 3))), 3), 1e-5) == 0.0
    column = np.array([[1.0, 0.0, 0.0], [0.5, 0.0, 0.0], [0.2, 0.0, 1.0]])  # one moves nothing
    known = acc.delta(run_of(1.0, Dense(column), 3), 0.5)
    seen = simulate(moved(column, 3, 1), 1.0, [0.5], 20_000, np.random.default_rng(0))
    assert known >= (seen[..., 0] - 6 * seen[..., 1]).max()


@pytest.mark.parametrize("scale", [1e-100, 1e100])
@pytest.mark.at_length(every=2)
def test_a_strategy_and_its_noise_may_be_scaled(scale):
    c = np.array([1.0, 0.5, 0.25])
    one, other = (run_of(2.0 * s, Toeplitz(tuple(s * c)), 6, 2) for s in (1.0, scale))
    assert acc.epsilon(other, 1e-5) == pytest.approx(acc.epsilon(one, 1e-5), rel=1e-9)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (lambda: run_of(1.0, Dense(np.array([[1.0, 0.0], [-0.1, 1.0]])), 2), "entries >= 0, got -"),
        (lambda: run_of(1.0, Dense(np.full((2, 2), np.nan)), 2), "entries >= 0, got nan"),
        (lambda: run_of(1.0, Dense(np.full((2, 2), np.inf)), 2), "largest entry"),
        (lambda: run_of(1.0, Dense(np.full((2, 2), 1e-200)), 2), "largest entry"),
        (lambda: run_of(1.0, Dense(np.ones((2, 2))), 3), "matrix of 3 columns"),
        (lambda: run_of(1.0, Tree(), 1025, 4), "epochs must be at most 3"),
        (lambda: run_of(1.0, identity(), 0), "bins must be"),
        (lambda: run_of(1.0, identity(), 2, 1.5), "epochs must be"),
        (lambda: run_of(-1.0, identity(), 2), "noise_multiplier must be"),
        (lambda: run_of(1.0, [1.0, 0.5], 2, 2), "epochs must be at most what the 2 overlaps"),
        (lambda: run_of(1.0, [1.0, -0.5], 2), "overlaps must be"),
        (lambda: run_of(1.0, [1.0, np.nan], 2), "overlaps must be"),
        (lambda: run_of(1.0, [1.0, 0.5], 2, least_own=0.1, least_shared=0.2), "least_shared must"),
    ],
)  # fmt: skip
def test_what_has_no_price_is_refused_by_name(bad, why):
    with pytest.raises(ValueError, match=why):
        bad()


def test_other_relations_and_wrappers_are_refused_by_name():
    run = run_of(1.0, BandedInverse((1.0, -0.5)), 4)
    with pytest.raises(acc.UnsupportedQuery, match="RandomAllocationCorrelated is priced for ADD"):
        acc.epsilon(run, 1e-5, adjacency=REPLACE)
    for wrap in (lambda m: acc.PoissonSampled(m, 0.1), lambda m: acc.Shuffled(m, 3)):
        with pytest.raises(acc.UnsupportedQuery):
            acc.epsilon(wrap(run), 1e-5)
    inside = acc.RandomAllocation(acc.CorrelatedGaussian(1.0, identity(), 4, 4), 4)
    with pytest.raises(acc.UnsupportedQuery, match="RandomAllocationCorrelated"):
        acc.epsilon(inside, 1e-5)
