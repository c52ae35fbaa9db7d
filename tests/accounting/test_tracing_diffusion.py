"""The tracing-diffusion bound, its numerical solution and the exact divergence of quadratics."""

import fractions

import numpy as np
import pytest
import scipy.integrate

from dpjax import accounting as acc
from dpjax.accounting.tracing_diffusion import tracing_rate


def descent(steps, step_size, convexity, moved=1.0, noise=1.0):
    return acc.NoisyGradientDescent(
        steps, step_size, noise, moved, convexity, smoothness=convexity or 1.0
    )


def exact_quadratic(steps, step_size, convexity):
    """RDP/α of the exactly Gaussian last iterate, by summing its mean and variance."""
    c = 1 - step_size * convexity
    powers = c ** np.arange(steps)
    mean = step_size * powers.sum()
    variance = 2 * step_size * np.sum(powers**2)
    return mean**2 / variance / 2


def integrated(convexity, time, gamma=None):
    """a(t) of a' = 1/(4γ) − λ(1−γ)a, a(0) = 0; the best γ at every time if none is given."""

    def slope(_, a):
        best = min(1.0, 1 / np.sqrt(4 * max(convexity * a[0], 1e-300))) if gamma is None else gamma
        return [1 / (4 * best) - convexity * (1 - best) * a[0]]

    found = scipy.integrate.solve_ivp(slope, (0, time), [0.0], rtol=1e-11, atol=1e-14)
    return found.y[0, -1]


def test_oracles(oracles):
    forms = {
        "noisygd_rdp_per_alpha_lower": "lower",
        "noisygd_rdp_per_alpha_chourasia": "published",
        "noisygd_rdp_per_alpha_pdi_optimal_gamma": "optimal",
        "noisygd_exact_gdp_mu_quadratic": "quadratic",
    }
    for quantity, form in forms.items():
        for row in oracles[quantity]:
            p = row["params"]
            run = descent(p["K"], p["eta"], p["lam"], p["S_g"] / p["n"], p["sigma"])
            found = tracing_rate(run, form)
            found = np.sqrt(2 * found) if form == "quadratic" else found
            assert found == pytest.approx(row["value"], rel=2e-12)


def test_published_bound_is_above_exact_with_the_corrected_exponent():
    unsafe = 0
    for convexity in (0.1, 0.5, 1.0, 2.0, 3.0, 8.0, 20.0):
        for turn in (0.01, 0.1, 0.5, 0.9):
            for steps in (1, 3, 10, 100):
                run = descent(steps, turn / convexity, convexity)
                exact = exact_quadratic(steps, turn / convexity, convexity)
                assert tracing_rate(run, "quadratic") == pytest.approx(exact, rel=1e-10)
                published, best = tracing_rate(run), tracing_rate(run, "optimal")
                assert exact <= best * (1 + 1e-9) <= published * (1 + 1e-9)
                assert 1.5 < published / exact < 4.01
                printed = -np.expm1(-steps * turn / convexity / 2) / convexity
                unsafe += printed < exact
    assert unsafe > 5  # the exponent as printed elsewhere in the paper is not a bound


@pytest.mark.parametrize(("gamma", "form"), [(0.5, "published"), (None, "optimal")])
def test_numerical_solution_is_the_closed_form(gamma, form):
    for convexity, time in ((3.0, 2.0), (0.2, 1.0), (1.0, 10.0)):
        run = descent(1000, time / 1000, convexity)
        found = integrated(convexity, time, gamma)
        assert found == pytest.approx(tracing_rate(run, form), rel=1e-9)


def test_no_fixed_gamma_beats_the_optimal_one():
    best = tracing_rate(descent(1000, 4e-3, 1.0), "optimal")
    assert all(integrated(1.0, 4.0, g) >= best * (1 - 1e-9) for g in (0.2, 0.5, 0.8, 1.0))


@pytest.mark.parametrize("convexity", [0.0, 1e-3, 0.1, 1.0, 4.0, 300.0])
def test_lower_bound_is_below_the_exact_process_and_every_upper_bound(convexity):
    for turn in (0.003, 0.08, 0.5, 0.99):  # ηλ, or η where nothing contracts
        for steps in (1, 2, 10, 300, 2000):
            run = descent(steps, turn / (convexity or 1.0), convexity, moved=0.3, noise=1.7)
            low, exact = (
                tracing_rate(run, "lower"),
                exact_quadratic(steps, run.step_size, convexity),
            )
            exact *= (0.3 / 1.7) ** 2
            assert 0 < low <= exact * (1 + 1e-12)
            if run.step_size * convexity < 1:
                assert low <= tracing_rate(run, "optimal") <= tracing_rate(run, "published")


def test_lower_bound_is_that_of_the_paper_at_another_scale():
    # With F/λ, S/λ, ηλ and σ/√λ the iterates are the same and λ is 1, where it was printed.
    for convexity, steps, size in ((4.0, 2000, 0.02), (0.25, 30, 0.1), (7.0, 5, 0.01)):
        run = descent(steps, size, convexity, moved=4 / 5000, noise=0.02)
        one = descent(steps, size * convexity, 1.0, 4 / 5000 / convexity, 0.02 / convexity**0.5)
        printed = one.gradient_sensitivity**2 / one.noise_std**2 / 4
        printed *= -np.expm1(-one.step_size * one.steps)
        assert tracing_rate(run, "lower") == pytest.approx(printed, rel=1e-12)
        assert tracing_rate(one, "lower") == pytest.approx(printed, rel=1e-12)


def test_of_steps_that_overshoot_no_lower_bound_is_stated():
    run = descent(2, 1.9, 1.0)
    assert tracing_rate(run, "lower") == 0.0 < exact_quadratic(2, 1.9, 1.0)


def test_the_curve_is_asked_like_every_other():
    run, orders = descent(100, 0.01, 1.0, 4 / 5000, 0.02), np.array([1.5, 2.0, 64.0])
    found = acc.rdp(run, orders, method="tracing_diffusion")
    np.testing.assert_allclose(found, tracing_rate(run) * orders, rtol=1e-12)
    swept = descent(np.array([10.0, 100.0]), 0.01, 1.0, 4 / 5000, 0.02)
    twice = acc.rdp(acc.Repeated(swept, 2), orders, method="tracing_diffusion")
    np.testing.assert_allclose(twice[1], 2 * found, rtol=1e-12)
    with pytest.raises(acc.UnsupportedQuery, match="has no rdp by method 'tracing_diffusion'"):
        acc.rdp(acc.Gaussian(1.0), orders, method="tracing_diffusion")
    with pytest.raises(ValueError, match="method must be one of"):
        acc.rdp(run, orders, method="tracing")


def test_as_a_method():
    run = descent(100, 0.01, 1.0, 4 / 5000, 0.02)
    ours = acc.epsilon(run, delta=1e-5)
    theirs = acc.epsilon(run, delta=1e-5, method="tracing_diffusion")
    assert ours < 0.9 * theirs
    certificate = acc.certify(run, delta=1e-5, method="tracing_diffusion")
    assert certificate.tier == "conditional"
    twice = acc.epsilon(acc.Repeated(run, 2), delta=1e-5, method="tracing_diffusion")
    assert twice > theirs
    too_long = descent(100, 1.5, 1.0)
    assert acc.epsilon(too_long, delta=1e-5, method="tracing_diffusion") == np.inf
    with pytest.raises(ValueError, match="form must be one of"):
        tracing_rate(run, "printed")


@pytest.mark.parametrize("turn", [1.5, 2.0, 2.5, 4.0])
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 2000, 2001])
def test_the_exact_rate_is_a_number_where_iterates_overshoot(turn, steps):
    """By (Σcʲ)²/Σc²ʲ, c = 1 − ηλ, as fractions: powers of c are beyond floats here."""
    curvature, noise, sensitivity = 4.0, 0.02, 4 / 5000
    run = acc.NoisyGradientDescent(
        steps, turn / curvature, noise, sensitivity, curvature, curvature
    )
    c = fractions.Fraction(1 - turn)
    powers = [c**j for j in range(steps)]
    share = float(sum(powers) ** 2 / sum(p * p for p in powers))
    truth = share * turn / curvature * (sensitivity / noise) ** 2 / 4
    assert tracing_rate(run, "quadratic") == pytest.approx(truth, rel=1e-12, abs=0)
