"""A shuffled pass costs one Gaussian release; nothing is gained by the shuffling."""

import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting.gaussian import gaussian_dp as gaussian_runs


@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
def test_passes_are_gaussian_releases(adjacency):
    passes = acc.Repeated(acc.Shuffled(acc.Gaussian(4.0), batches=20), 9)
    moved = 2.0 if adjacency is acc.Adjacency.REPLACE_ONE else 1.0
    assert gaussian_runs.gdp_mu(passes, adjacency=adjacency) == pytest.approx(moved * 3 / 4)
    plain = acc.Repeated(acc.Gaussian(4.0), 9)
    for method in ("rdp", "gdp"):
        ask = {"delta": 1e-6, "adjacency": adjacency, "method": method}
        assert acc.epsilon(passes, **ask) == pytest.approx(acc.epsilon(plain, **ask), rel=1e-12)


def test_never_priced_as_subsampling():
    shuffled = acc.Repeated(acc.Shuffled(acc.Gaussian(1.0), batches=100), 10)
    poisson = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 1_000)
    cost = acc.epsilon(shuffled, delta=1e-5, method="gdp")
    assert cost > 5 * acc.epsilon(poisson, delta=1e-5, method="rdp")


def test_the_number_of_batches_does_not_matter():
    costs = acc.epsilon(acc.Shuffled(acc.Gaussian(2.0), np.array([1, 10, 1000])), delta=1e-5)
    np.testing.assert_allclose(costs, costs[0], rtol=1e-12)


def test_sampling_inside_a_pass_is_refused():
    inside = acc.Shuffled(acc.PoissonSampled(acc.Gaussian(1.0), 0.1), 10)
    with pytest.raises(acc.UnsupportedQuery, match="shuffled"):
        acc.epsilon(inside, delta=1e-5)
