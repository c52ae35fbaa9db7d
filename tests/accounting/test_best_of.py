"""The best of several runs costs no less than the attack on the largest of their outputs."""

import numpy as np
import pytest
from scipy.special import ndtr

from dpjax import accounting as acc


@pytest.mark.parametrize(("sigma", "runs", "delta"), [(1.0, 4, 1e-3), (3.0, 20, 1e-6)])
def test_the_largest_of_several_outputs_tells_no_more_than_is_priced(sigma, runs, delta):
    epsilon = acc.epsilon(acc.BestOf(acc.Gaussian(sigma), runs, "fixed"), delta)
    # Where the score is the output, the best of m runs is the largest of m draws of N(1/σ, 1) or of
    # N(0, 1). Of it P(> x) − e^ε Q(> x) is at most δ(ε), whatever x is.
    x = np.linspace(-5.0, 10.0, 3_001)
    with_record, without = (-np.expm1(runs * np.log(ndtr(x - mu))) for mu in (1 / sigma, 0.0))
    assert np.max(with_record - np.exp(epsilon) * without) <= delta
    assert epsilon > acc.epsilon(acc.Gaussian(sigma), delta)
