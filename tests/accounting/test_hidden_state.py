"""What a noisy descent's last iterate costs, and which argument says so."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax import accounting as acc
from dpjax._numerics.scope import enable_x64
from dpjax.accounting import last_iterate
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.accounting.gaussian.shifted_interpolation import mu_squared_by_position

REPLACE = acc.Adjacency.REPLACE_ONE


def descent(steps=100, step_size=0.01, noise=0.02, moved=4 / 5000, m=1.0, M=1.0, **rest):
    return acc.NoisyGradientDescent(steps, step_size, noise, moved, m, M, **rest)


def test_golden_value_in_langevin_units():
    # Exact Gaussian quadratic, mpmath: μ = 0.027181573426112136.
    epsilon = acc.epsilon(descent(), delta=1e-5, adjacency=REPLACE)
    truth = gaussian_dp.epsilon(0.027181573426112136, 1e-5)
    assert truth <= epsilon <= truth * (1 + 1e-10)
    # The sensitivity is the adjacency's own: the price does not depend on the adjacency.
    assert acc.epsilon(descent(), delta=1e-5) == pytest.approx(epsilon, rel=1e-12)


def test_the_least_bound_wins():
    assert last_iterate.descent_bounds(descent()).best == "strongly_convex"
    assert last_iterate.descent_bounds(descent(m=0.0)).best == "composition"
    assert last_iterate.descent_bounds(descent(5000, m=0.0, diameter=1e-4)).best == "bounded"


def test_no_claim_where_the_preconditions_fail():
    long = last_iterate.descent_bounds(descent(step_size=2.5, diameter=0.1))
    assert long.best == "composition"
    assert long.strongly_convex == long.bounded == np.inf
    contradictory = last_iterate.descent_bounds(descent(m=2.0, M=1.0, diameter=0.1))
    assert contradictory.best == "composition"
    assert contradictory.bounded == np.inf


def test_price_stops_growing_with_the_steps():
    costs = acc.epsilon(descent(np.array([10, 100, 1_000, 10_000, 10**9])), delta=1e-5)
    assert np.all(np.diff(costs) >= 0)
    assert costs[-1] == pytest.approx(costs[-2], rel=1e-9)
    released = acc.Repeated(acc.Gaussian(0.02 * np.sqrt(0.02) / (0.01 * 4 / 5000)), 10_000)
    assert costs[3] < 0.2 * acc.epsilon(released, delta=1e-5, method="gdp")


@given(
    st.integers(1, 3000),
    st.floats(1e-3, 0.9),
    st.floats(0.05, 1.0),
    st.floats(1.0, 2.0),
)
def test_monotone_and_below_composition(steps, step_size, m, scale):
    run = descent(steps, step_size, m=m, M=1.0)
    bounds = last_iterate.descent_bounds(run)
    least = min(bounds)
    assert least <= bounds.composition
    assert min(last_iterate.descent_bounds(descent(steps + 1, step_size, m=m))) >= least
    louder = descent(steps, step_size, noise=0.02 * scale, m=m)
    assert min(last_iterate.descent_bounds(louder)) <= least * (1 + 1e-12)


def test_edges():
    assert acc.epsilon(descent(steps=0), delta=1e-5) == 0.0
    assert acc.epsilon(descent(moved=0.0), delta=1e-5) == 0.0
    assert acc.epsilon(descent(noise=0.0), delta=1e-5) == np.inf
    one = descent(steps=1, step_size=1.0, noise=1.0, moved=1.0)
    assert last_iterate.descent_bounds(one).strongly_convex == pytest.approx(np.sqrt(0.5))


def test_certificates_are_conditional_and_list_why():
    certificate = acc.certify(descent(), delta=1e-5)
    assert (certificate.method, certificate.tier) == ("hidden_state", "conditional")
    text = " ".join(certificate.assumptions)
    for word in ("clipping", "momentum", "last iterate", "start", "smooth"):
        assert word in text
    assert certificate.verify().epsilon == certificate.epsilon


def test_composes_with_other_releases():
    both = acc.Composed((descent(), acc.Repeated(acc.Gaussian(5.0), 3)))
    mu = np.hypot(0.027181573426112136, np.sqrt(3) / 5)
    assert acc.epsilon(both, delta=1e-5) == pytest.approx(gaussian_dp.epsilon(mu, 1e-5), rel=1e-9)
    sampled = acc.Composed((descent(), acc.PoissonSampled(acc.Gaussian(1.0), 0.01)))
    first = next(iter(acc.methods(sampled).values()))
    assert first.name == "hidden_state"
    with pytest.raises(acc.UnsupportedQuery):
        acc.epsilon(acc.PoissonSampled(descent(), 0.1), delta=1e-5)


def test_interval_holds_for_quadratics():
    lower, upper = acc.epsilon_interval(descent(), delta=1e-5)
    assert lower <= upper <= lower * (1 + 1e-8)


def cyclic(epochs, batches, c, ratio, steps=None):
    step = 1 - c
    moved = ratio / np.sqrt(step / 2)
    return acc.NoisyCyclicDescent(
        epochs * batches if steps is None else steps, step, 1.0, moved, 1.0, 1.0, batches=batches
    )


def test_cyclic_oracles(oracles):
    for row in oracles["hidden_cgd_shuffled_once_eps"]:
        p = row["params"]
        run = cyclic(p["E"], p["l"], p["c"], p["L_over_b_sigma"])
        assert acc.epsilon(run, delta=p["delta"]) == pytest.approx(row["value"], rel=1e-10)
    for row in oracles["hidden_cgd_worst_position_eps"]:
        p = row["params"]
        run = cyclic(p["E"], p["l"], p["c"], p["L_over_b_sigma"])
        found = acc.epsilon(run, delta=p["delta"], method="hidden_state")
        assert found == pytest.approx(row["value"], rel=1e-10)


def test_cyclic_golden_values():
    # 40 batches, displacement over noise 2/3, δ = 1e-5, c = 0.9999: 3.48 after 50 passes.
    run = cyclic(50, 40, 0.9999, 2 / 3)
    assert acc.epsilon(run, delta=1e-5) == pytest.approx(3.482598489981, rel=1e-10)
    certificate = acc.certify(run, delta=1e-5)
    assert (certificate.method, certificate.tier) == ("shuffled_once", "conditional")
    assert "permutation" in " ".join(certificate.assumptions)
    certificate.verify()


def _position_mus(run):
    """The GDP parameter for a record in each batch of the cycle; the j-th was last used when?"""
    batches, steps = int(run.batches), float(run.steps)
    place = np.arange(1, batches + 1)
    since_last = np.where(steps >= place, np.mod(steps - place, batches), steps + place)
    return np.sqrt(mu_squared_by_position(run, since_last))


def test_partial_passes_and_positions():
    run = cyclic(3, 5, 0.9, 0.5, steps=13)  # the last pass stops after its third batch
    mus = _position_mus(run)
    assert np.argmax(mus) == 2
    assert acc.epsilon(run, delta=1e-5, method="hidden_state") == pytest.approx(
        gaussian_dp.epsilon(mus.max(), 1e-5), rel=1e-10
    )
    short = _position_mus(cyclic(1, 5, 0.9, 0.5, steps=2))
    np.testing.assert_array_equal(short[2:], 0.0)  # not used yet
    assert short[1] == pytest.approx(0.5)


def test_many_positions_are_grouped_upwards(monkeypatch):
    monkeypatch.setattr(last_iterate, "_MOST_POSITIONS", 60)
    run = cyclic(3, 97, 0.99, 0.5)
    found = acc.epsilon(run, delta=1e-3)
    mus = _position_mus(run)
    exact = acc.epsilon(acc.RandomizedSensitivity(mus, np.full(97, 1 / 97), 1.0), delta=1e-3)
    assert exact < found < 1.5 * exact + 0.05


def test_derivatives_against_finite_differences():
    rng = np.random.default_rng(12)
    n = 100
    noise, moved = 10 ** rng.uniform(-2, 0, n), 10 ** rng.uniform(-4, -2, n)
    delta = 10 ** rng.uniform(-10, -2, n)

    def price(noise, moved, delta):
        run = acc.NoisyGradientDescent(100.0, 0.01, noise, moved, 1.0, 1.0)
        return gaussian_dp.epsilon(last_iterate.descent_bounds(run).strongly_convex, delta)

    found = price(noise, moved, delta)
    keep = found > 1e-6
    fields = [v[keep] for v in (noise, moved, delta)]
    with enable_x64(True):
        slopes = jax.jit(jax.vmap(jax.grad(price, argnums=(0, 1, 2))))(*fields)
    for k in range(3):
        h = 1e-4 * fields[k]
        moves = [[g + s * h * (i == k) for i, g in enumerate(fields)] for s in (-2, -1, 1, 2)]
        points = [price(*move) for move in moves]
        wanted = (points[0] - 8 * points[1] + 8 * points[2] - points[3]) / (12 * h)
        np.testing.assert_allclose(slopes[k], wanted, rtol=1e-5)
