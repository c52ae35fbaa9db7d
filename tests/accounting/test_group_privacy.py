"""Group privacy costs at least what several records of a Gaussian release really do."""

import pytest

from dpjax import accounting as acc


@pytest.mark.parametrize(("sigma", "records", "delta"), [(4.0, 3, 1e-5), (20.0, 10, 1e-8)])
def test_a_group_costs_no_less_than_its_records_together(sigma, records, delta):
    # k records move a sum by k clip norms: one release of a k-th of the noise, exactly.
    exact = acc.epsilon(acc.Gaussian(sigma / records), delta)
    group = acc.UserLevel(acc.Gaussian(sigma), records)
    assert acc.epsilon(group, delta, method="group") > exact
    assert acc.epsilon(group, delta, method="gdp") == pytest.approx(exact, rel=1e-9)
