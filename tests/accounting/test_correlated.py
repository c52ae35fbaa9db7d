"""Correlated noise is priced by the exact sensitivity of its strategy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.correlation import Tree, identity, inverse_square_root, square_root

ADD, REPLACE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE


@pytest.mark.parametrize(("adjacency", "size"), [(ADD, 1), (REPLACE, 2)])
@pytest.mark.parametrize("sigma", [1e-3, 0.7, 30.0, 1e6])
@pytest.mark.parametrize("delta", [1e-13, 1e-5, 0.3])
def test_the_price_is_that_of_one_gaussian_release(sigma, delta, adjacency, size):
    c = square_root(6)
    # columns 0, 4, 8 of ten rows, added up by hand
    rows = np.zeros(10)
    for start in (0, 4, 8):
        rows[start:] += np.pad(c.coefficients, (0, 10))[: 10 - start]
    truth = gaussian_dp.epsilon(size * np.linalg.norm(rows) / sigma, delta)
    found = acc.epsilon(acc.CorrelatedGaussian(sigma, c, 10, 4), delta, adjacency=adjacency)
    assert truth * (1 - 1e-13) <= found <= truth * (1 + 1e-9) + 1e-13


def test_without_correlation_it_is_the_gaussian_itself():
    for adjacency in acc.Adjacency:
        plain = acc.epsilon(acc.Repeated(acc.Gaussian(2.0), 4), 1e-5, adjacency=adjacency)
        for run in (
            acc.CorrelatedGaussian(2.0, identity(), 100, 25),
            acc.CorrelatedGaussian(2.0, identity(), 100, 1, 4),
            acc.Repeated(acc.CorrelatedGaussian(2.0, identity(), 1, 1), 4),
        ):
            assert acc.epsilon(run, 1e-5, adjacency=adjacency) == plain


def test_no_noise_is_no_privacy():
    assert acc.epsilon(acc.CorrelatedGaussian(0.0, [1.0], 1, 1), 1e-5) == np.inf
    assert acc.epsilon(acc.CyclicPoissonCorrelated(0.0, [1.0], 1, 0.5), 1e-5) == np.inf
    assert acc.epsilon(acc.CyclicPoissonCorrelated(1.0, [1.0], 1, 0.0), 1e-5) == 0


@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
@pytest.mark.parametrize("rate", [0.04, 1.0])
@pytest.mark.parametrize("rounds", [1, 50])
@pytest.mark.at_length(every=3)
def test_a_round_of_groups_is_one_sampled_gaussian(rate, rounds, adjacency):
    c = square_root(4)
    run = acc.Repeated(acc.CyclicPoissonCorrelated(2.0, c, groups=5, rate=rate), rounds)
    plain = acc.PoissonSampled(acc.Gaussian(2.0 / c.norm), rate)
    for method in ("contour", "pld", "rdp"):
        truth = acc.epsilon(acc.Repeated(plain, rounds), 1e-5, adjacency=adjacency, method=method)
        found = acc.epsilon(run, 1e-5, adjacency=adjacency, method=method)
        assert found == pytest.approx(truth, rel=1e-9)
    low, high = acc.epsilon_interval(run, 1e-5, adjacency=adjacency)
    assert 0 < low <= high


def test_all_compose_in_one_run():
    correlated = acc.CorrelatedGaussian(4.0, square_root(8), 100, 20)
    longer = acc.CorrelatedGaussian(4.0, square_root(3), 50, 20)
    cyclic = acc.Repeated(acc.CyclicPoissonCorrelated(2.0, square_root(4), 4, 0.1), 3)
    run = acc.Composed((correlated, correlated, longer, cyclic, acc.PureDP(0.1, "add-remove")))
    mu = [square_root(8).sensitivity(100, 20) / 4, square_root(3).sensitivity(50, 20) / 4]
    sigma = (2 * mu[0] ** 2 + mu[1] ** 2) ** -0.5
    plain = acc.PoissonSampled(acc.Gaussian(2.0 / square_root(4).norm), 0.1)
    parts = (acc.Gaussian(sigma), acc.Repeated(plain, 3), acc.PureDP(0.1, "add-remove"))
    truth = acc.epsilon(acc.Composed(parts), 1e-5)
    assert acc.epsilon(run, 1e-5) == pytest.approx(truth, rel=1e-6)


def test_sweeps_traces_and_slopes():
    c = square_root(5)

    def price(sigma, steps, separation):
        return acc.epsilon(acc.CorrelatedGaussian(sigma, c, steps, separation), 1e-5)

    sigmas, steps, apart = np.array([1.0, 4.0, 9.0]), np.array([10, 7, 3]), np.array([1, 3, 9])
    each = [price(*row) for row in zip(sigmas.tolist(), steps, apart, strict=True)]
    np.testing.assert_allclose(price(sigmas, steps, apart), each, rtol=1e-13)
    traced = jax.jit(price)(jnp.float32(4.0), 7, 3)
    np.testing.assert_allclose(traced, each[1], rtol=3e-7)
    np.testing.assert_allclose(
        jax.grad(lambda s: price(s, 7, 3))(4.0),
        (price(4.001, 7, 3) - price(3.999, 7, 3)) / 2e-3,
        rtol=1e-4,
    )
    many = np.stack([np.asarray(c.coefficients), np.ones(5)])
    both = acc.epsilon(acc.CorrelatedGaussian(4.0, many, 7, 3), 1e-5)
    ones = acc.epsilon(acc.CorrelatedGaussian(4.0, [1.0] * 5, 7, 3), 1e-5)
    np.testing.assert_allclose(both, [each[1], ones], rtol=1e-13)


def test_certificates_keep_the_strategys_numbers():
    run = acc.Composed(
        (
            acc.CorrelatedGaussian(4.0, square_root(3), 10, 4),
            acc.Repeated(acc.CyclicPoissonCorrelated(2.0, square_root(2), 4, 0.1), 3),
        )
    )
    certificate = acc.certify(run, 1e-5)
    again = acc.Certificate.from_json(certificate.to_json())
    assert again.verify().upper >= certificate.epsilon * (1 - 1e-9)
    assert again.mechanism.mechanisms[0].strategy.tolist() == [1.0, 0.5, 0.375]
    assert again.mechanism.mechanisms[0].participations == np.inf


@pytest.mark.parametrize(
    "bad",
    [
        lambda: acc.CorrelatedGaussian(1.0, [1.0, 1.1], 10, 4),
        lambda: acc.CorrelatedGaussian(1.0, [0.0], 10, 4),
        lambda: acc.CorrelatedGaussian(1.0, [1.0, -0.1], 10, 4),
        lambda: acc.CorrelatedGaussian(1.0, 1.0, 10, 4),
        lambda: acc.CorrelatedGaussian(1.0, [], 10, 4),
        lambda: acc.CorrelatedGaussian(1.0, [1.0], 10, 0),
        lambda: acc.CyclicPoissonCorrelated(1.0, [1.0, 0.5], 1, 0.1),
        lambda: acc.CyclicPoissonCorrelated(1.0, [1.0, 1.5], 2, 0.1),
    ],
)
def test_a_strategy_whose_price_is_not_known_is_refused(bad):
    with pytest.raises(ValueError, match="must be"):
        bad()


def test_a_sample_around_a_run_of_many_steps_is_refused():
    run = acc.PoissonSampled(acc.CorrelatedGaussian(1.0, [1.0], 10, 1), 0.01)
    with pytest.raises(acc.UnsupportedQuery, match="CorrelatedGaussian"):
        acc.epsilon(run, 1e-5)


def test_calibration():
    def run(sigma):
        return acc.CorrelatedGaussian(sigma, square_root(8), 100, 20)

    sigma = acc.calibrate(run, epsilon=2.0, delta=1e-5)
    assert 2.0 * (1 - 1e-6) <= acc.epsilon(run(sigma), 1e-5) <= 2.0


def test_settings_that_a_first_method_leaves_open_keep_their_strategy():
    one = acc.CyclicPoissonCorrelated(2.0, [1.0, 0.5, 0.25], 3, 0.5)
    counts = np.array([0.0, 1.0, 2.0, 40.0])
    found = acc.epsilon(acc.Repeated(one, counts), 1e-5)
    each = [acc.epsilon(acc.Repeated(one, count), 1e-5) for count in counts.tolist()]
    np.testing.assert_allclose(found, each, rtol=1e-6)
    assert found[0] == 0


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_a_strategy_and_its_noise_may_be_scaled_at_will(scale):
    c = np.array([1.0, 0.5, 0.25])
    truth = acc.epsilon(acc.CorrelatedGaussian(2.0, c, 10, 2), 1e-5)
    found = acc.epsilon(acc.CorrelatedGaussian(2.0 * scale, c * scale, 10, 2), 1e-5)
    assert found == pytest.approx(truth, rel=1e-12)
    one = acc.CyclicPoissonCorrelated(2.0, c, 3, 0.1)
    other = acc.CyclicPoissonCorrelated(2.0 * scale, c * scale, 3, 0.1)
    assert acc.epsilon(other, 1e-5) == pytest.approx(acc.epsilon(one, 1e-5), rel=1e-9)


def test_numbers_at_the_ends_of_their_ranges():
    for steps, separation in ((1e300, 1e300), (1.0, 1e308), (1e17, 1e16), (1e300, 1.0)):
        for strategy in ([1.0], [1.0, 1.0, 0.5]):
            run = acc.CorrelatedGaussian(1e3, strategy, steps, separation)
            uses = np.ceil(steps / separation)
            found = acc.epsilon(run, 1e-5)
            assert found >= acc.epsilon(acc.Gaussian(1e3 / min(uses, 1e300) ** 0.5), 1e-5)


@pytest.mark.parametrize(("adjacency", "size"), [(ADD, 1), (REPLACE, 2)])
@pytest.mark.parametrize("separation", [1, 3, 40])
@pytest.mark.parametrize("steps", [1, 7, 40])
def test_a_banded_inverse_is_priced_over_all_its_coefficients(steps, separation, adjacency, size):
    strategy = inverse_square_root(4)
    # C from its inverse, and its columns added up, by dense linear algebra
    d = strategy.inverse(steps)
    apart = np.subtract.outer(np.arange(steps), np.arange(steps))
    c = np.linalg.inv(np.where(apart >= 0, d[np.maximum(apart, 0)], 0.0))
    mu = size * np.linalg.norm(c[:, ::separation].sum(1)) / 3.0
    run = acc.CorrelatedGaussian(3.0, strategy, steps, separation)
    truth, found = gaussian_dp.epsilon(mu, 1e-5), acc.epsilon(run, 1e-5, adjacency=adjacency)
    assert truth * (1 - 1e-12) <= found <= truth * (1 + 1e-9)
    again = acc.Certificate.from_json(acc.certify(run, 1e-5, adjacency=adjacency).to_json())
    assert again.verify().upper >= found * (1 - 1e-9)


def test_steps_of_a_banded_inverse_are_known_and_its_groups_refused():
    strategy, steps = inverse_square_root(3), np.array([3, 20])
    both = acc.epsilon(acc.CorrelatedGaussian(3.0, strategy, steps, 5), 1e-5)
    each = [acc.epsilon(acc.CorrelatedGaussian(3.0, strategy, n, 5), 1e-5) for n in (3, 20)]
    np.testing.assert_allclose(both, each, rtol=1e-12)
    sigma = jax.jit(lambda s: acc.epsilon(acc.CorrelatedGaussian(s, strategy, 20, 5), 1e-5))
    np.testing.assert_allclose(sigma(3.0), each[1], rtol=3e-7)
    with pytest.raises(TypeError, match=r"steps must be known"):
        jax.jit(lambda n: acc.epsilon(acc.CorrelatedGaussian(3.0, strategy, n, 5), 1e-5))(20)
    for bad in (0, 1.5, None, float("nan"), 1e300):
        with pytest.raises((TypeError, ValueError), match="steps must be"):
            acc.CorrelatedGaussian(3.0, strategy, bad, 5)
    with pytest.raises(TypeError, match="strategy must be"):
        acc.CyclicPoissonCorrelated(3.0, strategy, 8, 0.1)


@pytest.mark.parametrize(("adjacency", "size"), [(ADD, 1), (REPLACE, 2)])
@pytest.mark.parametrize("sigma", [1e-3, 0.7, 1e6])
@pytest.mark.parametrize("delta", [1e-13, 0.3])
def test_a_matrix_is_priced_by_its_sensitivity(sigma, delta, adjacency, size):
    # uses at 0 and 3 of six steps: blocks 1, 1-2 and 1-4 of the first, 1-4 of the second
    run = acc.MatrixGaussian(sigma, Tree(), 6, 3)
    truth = gaussian_dp.epsilon(size * np.sqrt(1 + 1 + 4) / sigma, delta)
    found = acc.epsilon(run, delta, adjacency=adjacency)
    assert truth * (1 - 1e-13) <= found <= truth * (1 + 1e-9) + 1e-13
    listed = acc.MatrixGaussian(sigma, Tree().sensitivities(64, 3), 6, 3)
    assert acc.epsilon(listed, delta, adjacency=adjacency) == found


def test_a_matrix_sweeps_over_steps_and_under_traces():
    s = Tree().sensitivities(20, 4)
    steps = np.array([1, 7, 20])
    each = [acc.epsilon(acc.MatrixGaussian(3.0, Tree(), n, 4), 1e-5) for n in steps.tolist()]
    np.testing.assert_allclose(acc.epsilon(acc.MatrixGaussian(3.0, s, steps, 4), 1e-5), each)
    sigmas = np.array([[1.0], [3.0]])
    both = acc.epsilon(acc.MatrixGaussian(sigmas, s, steps, 4), 1e-5)
    np.testing.assert_allclose(both[1], each)
    assert np.all(both[0] > both[1])
    traced = jax.jit(lambda n: acc.epsilon(acc.MatrixGaussian(3.0, s, n, 4), 1e-5))
    np.testing.assert_allclose(traced(7), each[1], rtol=3e-7)
    assert traced(21) == np.inf  # more steps than there are sensitivities
    assert acc.epsilon(acc.MatrixGaussian(0.0, s, 3, 4), 1e-5) == np.inf
    again = acc.Certificate.from_json(acc.certify(acc.MatrixGaussian(3.0, s, 7, 4), 1e-5).to_json())
    assert again.verify().upper >= each[1] * (1 - 1e-9)
    with pytest.raises(acc.UnsupportedQuery, match="MatrixGaussian"):
        acc.epsilon(acc.PoissonSampled(acc.MatrixGaussian(1.0, s, 5, 4), 0.01), 1e-5)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: acc.MatrixGaussian(1.0, [1.0, 0.5], 2, 1),
        lambda: acc.MatrixGaussian(1.0, [1.0, 2.0], 3, 1),
        lambda: acc.MatrixGaussian(1.0, [-1.0, 2.0], 1, 1),
        lambda: acc.MatrixGaussian(1.0, 2.0, 1, 1),
        lambda: acc.MatrixGaussian(1.0, [], 1, 1),
        lambda: acc.MatrixGaussian(1.0, [np.nan], 1, 1),
        lambda: acc.MatrixGaussian(1.0, Tree(), 0, 1),
        lambda: acc.MatrixGaussian(1.0, Tree(), None, 1),
        lambda: acc.MatrixGaussian(1.0, Tree(), np.array([3, 4]), 1),
        lambda: acc.CorrelatedGaussian(1.0, Tree(), 4, 1),
    ],
)
def test_a_matrix_of_no_known_sensitivity_is_refused(bad):
    with pytest.raises((TypeError, ValueError), match="must be"):
        bad()
