"""dp_accounting's own cases for the profiles of single releases, as data.

Source: privacy_loss_mechanism_test.py (`test_*_get_delta_for_epsilon`, also `_vectorized`, at ε ≥ 0)
and privacy_loss_distribution_test.py of dp_accounting 0.6. Theirs are per direction, ours is the
larger of the two; removing is the larger one at ε ≥ 0.

What is not here, and the difference by name:

| tests of theirs | why |
|---|---|
| `test_*_privacy_loss`, `_inverse_privacy_loss`, `_tail`, `mu_upper_cdf`, `mu_lower_log_cdf`, `connect_dots_bounds` | parts of their discretisation; no such quantity is public here |
| `test_*_varying_*`, `test_*_discretization`, `test_hockey_stick_*`, `test_composition*`, pld_pmf_test.py | masses on their grid |
| `test_discrete_gaussian_*` | of noise that is truncated at one to five σ; here it is not truncated |
| `test_mixture_gaussian_*` with weights other than binomial | their event is refused by name |
| `*_replace_adjacency_type_not_supported` | Laplace and discrete noise are priced under REPLACE_ONE here |
| `value_errors` for a sensitivity of 0, a rate of 0 | nothing is released: δ = 0 |
| attacks at a kink of the trade-off | bounded by lines at values of ε a tenth apart: up to a tenth of ε above |
| `get_epsilon(0.0)` | δ is above 0 here: asked at 1e-300 |
| `value_errors` for zero noise | δ = 1, ε = inf |
"""  # noqa: E501

from __future__ import annotations

import math

import numpy as np
import pytest

from dpjax import accounting as acc

ADD, REPLACE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE

# kind, scale or standard deviation (discrete: 1/scale), sensitivity, rate, direction, {ε: δ}
PROFILES = [
    ("Laplace", 1.0, 1.0, 1.0, "add", {1.0: 0.0, 0.0: 0.39346934}),
    ("Laplace", 1.0, 1.0, 1.0, "remove", {1.0: 0.0, 0.0: 0.39346934}),
    ("Laplace", 3.0, 3.0, 1.0, "add", {1.0: 0.0}),
    ("Laplace", 3.0, 3.0, 1.0, "remove", {1.0: 0.0}),
    (
        "Laplace",
        2.0,
        4.0,
        1.0,
        "add",
        {2.0: 0.0, 0.5: 0.5276334473, 0.0: 0.6321205588, 1.0: 0.3934693403},
    ),
    (
        "Laplace",
        2.0,
        4.0,
        1.0,
        "remove",
        {2.0: 0.0, 0.5: 0.5276334473, 0.0: 0.6321205588, 1.0: 0.3934693403},
    ),
    ("Laplace", 2.0, 2.0, 1.0, "add", {0.0: 0.39346934}),
    ("Laplace", 2.0, 2.0, 1.0, "remove", {0.0: 0.39346934}),
    ("Laplace", 1.0, 1.0, 0.8, "add", {1.0: 0.0}),
    ("Laplace", 1.0, 1.0, 0.8, "remove", {1.0: 0.0}),
    ("Laplace", 2.0, 4.0, 0.8, "add", {0.5: 0.3243606497234246}),
    ("Laplace", 2.0, 4.0, 0.8, "remove", {0.5: 0.4039564635032081}),
    ("Laplace", 1.0, 1.0, 0.6, "add", {0.2: 0.1401134521354217}),
    ("Laplace", 1.0, 1.0, 0.6, "remove", {0.2: 0.1741992102060086}),
    ("Laplace", 2.0, 2.0, 0.3, "add", {0.0: 0.1180408020862099}),
    ("Laplace", 2.0, 2.0, 0.3, "remove", {0.0: 0.1180408020862099}),
    ("Laplace", 5.0, 5.0, 0.2, "add", {2.0: 0.0}),
    ("Laplace", 1.0, 1.0, 0.2, "add", {0.0: 0.07869386806, 0.1: 0.01879989609, 0.2: 0.0, 0.3: 0.0}),
    (
        "Laplace",
        1.0,
        1.0,
        0.2,
        "remove",
        {0.0: 0.07869386806, 0.1: 0.05015600993, 0.2: 0.02391739939, 0.3: 0.0},
    ),
    ("Gaussian", 1.0, 1.0, 1.0, "add", {1.0: 0.12693674, 2.0: 0.020923636, 0.0: 0.38292492}),
    ("Gaussian", 1.0, 1.0, 1.0, "remove", {1.0: 0.12693674, 2.0: 0.020923636, 0.0: 0.38292492}),
    ("Gaussian", 1.0, 1.0, 1.0, "replace", {0.0: 0.68268949, 1.0: 0.50986166, 2.0: 0.331897999}),
    ("Gaussian", 2.0, 2.0, 1.0, "add", {1.0: 0.12693674}),
    ("Gaussian", 2.0, 2.0, 1.0, "remove", {1.0: 0.12693674}),
    ("Gaussian", 1.0, 3.0, 1.0, "add", {1.0: 0.78760074}),
    ("Gaussian", 1.0, 3.0, 1.0, "remove", {1.0: 0.78760074}),
    ("Gaussian", 2.0, 6.0, 1.0, "add", {1.0: 0.78760074}),
    ("Gaussian", 2.0, 6.0, 1.0, "remove", {1.0: 0.78760074}),
    ("Gaussian", 5.0, 5.0, 1.0, "add", {2.0: 0.02092364}),
    ("Gaussian", 5.0, 5.0, 1.0, "remove", {2.0: 0.02092364}),
    ("Gaussian", 1.0, 1.0, 0.8, "add", {1.0: 0.0231362104090899}),
    ("Gaussian", 1.0, 1.0, 0.8, "remove", {1.0: 0.0816951786585355}),
    ("Gaussian", 2.0, 2.0, 0.8, "add", {1.0: 0.0231362104090899}),
    ("Gaussian", 2.0, 2.0, 0.8, "remove", {1.0: 0.0816951786585355}),
    ("Gaussian", 1.0, 3.0, 0.7, "add", {1.0: 0.1195051215523554}),
    ("Gaussian", 1.0, 3.0, 0.7, "remove", {1.0: 0.5356298793262404}),
    ("Gaussian", 2.0, 6.0, 0.4, "add", {1.0: 0.0}),
    ("Gaussian", 2.0, 6.0, 0.4, "remove", {1.0: 0.2888308005139968}),
    ("Gaussian", 1.0, 1.0, 0.3, "add", {2.0: 0.0}),
    ("Gaussian", 1.0, 1.0, 0.3, "remove", {2.0: 0.0003341102928869332}),
    ("Gaussian", 5.0, 5.0, 0.2, "add", {2.0: 0.0}),
    ("Gaussian", 2.0, 1.0, 0.8, "replace", {1.0: 0.05808665654484252}),
    ("Gaussian", 3.0, 2.0, 0.8, "replace", {1.0: 0.13711260900644096}),
    ("Gaussian", 2.0, 3.0, 0.7, "replace", {1.0: 0.4013057526509164}),
    ("Gaussian", 3.0, 6.0, 0.4, "replace", {1.0: 0.20752885274183325}),
    ("Gaussian", 2.0, 1.0, 0.3, "replace", {2.0: 2.4770380148941894e-09}),
    (
        "Gaussian",
        1.0,
        1.0,
        0.2,
        "add",
        {0.0: 0.076584985, 0.1: 0.02337934, 0.2: 0.00020196, 0.3: 0.0},
    ),
    (
        "Gaussian",
        1.0,
        1.0,
        0.2,
        "remove",
        {0.0: 0.076584985, 0.1: 0.051816131, 0.2: 0.035738492, 0.5: 0.012494629, 1.0: 0.00229682},
    ),
    (
        "Gaussian",
        1.0,
        1.0,
        0.2,
        "replace",
        {0.0: 0.1365379, 0.1: 0.098340892, 0.2: 0.069858734, 0.5: 0.0250311655, 1.0: 0.004734828},
    ),
    ("DiscreteLaplace", 1.0, 1, 1.0, "add", {1.0: 0.0}),
    ("DiscreteLaplace", 1.0, 1, 1.0, "remove", {1.0: 0.0}),
    ("DiscreteLaplace", 0.333333, 3, 1.0, "add", {1.0: 0.0}),
    ("DiscreteLaplace", 0.333333, 3, 1.0, "remove", {1.0: 0.0}),
    (
        "DiscreteLaplace",
        0.5,
        4,
        1.0,
        "add",
        {2.0: 0.0, 0.5: 0.54202002, 1.0: 0.39346934, 0.0: 0.63212056},
    ),
    (
        "DiscreteLaplace",
        0.5,
        4,
        1.0,
        "remove",
        {2.0: 0.0, 0.5: 0.54202002, 1.0: 0.39346934, 0.0: 0.63212056},
    ),
    ("DiscreteLaplace", 1.0, 1, 0.8, "add", {1.0: 0.0}),
    ("DiscreteLaplace", 1.0, 1, 0.8, "remove", {1.0: 0.0}),
    ("DiscreteLaplace", 0.333333, 3, 0.8, "add", {1.0: 0.0}),
    ("DiscreteLaplace", 0.333333, 3, 0.8, "remove", {1.0: 0.0}),
    ("DiscreteLaplace", 0.5, 4, 0.7, "add", {0.5: 0.2293628348747755}),
    ("DiscreteLaplace", 0.5, 4, 0.7, "remove", {0.5: 0.3523838505224567}),
    ("DiscreteLaplace", 0.5, 4, 0.6, "add", {0.6: 0.0766834425063938}),
    ("DiscreteLaplace", 0.5, 4, 0.6, "remove", {1.0: 0.178181891763215}),
    ("DiscreteLaplace", 0.5, 4, 0.3, "add", {0.5: 0.0}),
    ("DiscreteLaplace", 0.5, 4, 0.3, "remove", {0.5: 0.1068168460276349}),
    (
        "DiscreteLaplace",
        0.5,
        4,
        0.2,
        "add",
        {0.0: 0.12642411, 0.1: 0.058632421, 0.2: 0.0, 0.3: 0.0},
    ),
    (
        "DiscreteLaplace",
        0.5,
        4,
        0.2,
        "remove",
        {0.0: 0.12642411, 0.1: 0.11181698, 0.2: 0.095673604, 0.3: 0.07817137},
    ),
]


def _release(kind, parameter, sensitivity):
    if kind == "DiscreteLaplace":
        return acc.DiscreteLaplace(1 / (parameter * sensitivity), sensitivity)
    return getattr(acc, kind)(parameter / sensitivity)


@pytest.mark.parametrize("row", PROFILES, ids=lambda row: "-".join(map(str, row[:5])))
def test_profiles(row):
    kind, parameter, sensitivity, rate, direction, values = row
    run = _release(kind, parameter, sensitivity)
    run = run if rate == 1 else acc.PoissonSampled(run, rate)
    adjacency = REPLACE if direction == "replace" else ADD
    for epsilon, expected in values.items():
        found = acc.delta(run, epsilon, adjacency=adjacency)
        assert found >= expected - 1e-7  # theirs are to seven places
        if rate == 1 or direction != "add":
            assert found <= expected + 1e-7


def test_replacing_is_removing_of_twice_the_sensitivity():
    """No case of theirs: Laplace noise, whose replacement they refuse."""
    for epsilon in (0.0, 0.5, 1.5):
        twice = acc.delta(acc.Laplace(0.5), epsilon)
        assert acc.delta(acc.Laplace(1.0), epsilon, adjacency=REPLACE) == pytest.approx(twice)


# `test_gaussian_tpr_at_extreme_fpr`: σ = 1
@pytest.mark.parametrize(
    ("false_alarms", "caught"),
    [
        (1e-3, 0.01830),
        (1e-4, 0.003274),
        (1e-5, 0.0005475),
        (1e-6, 8.7218e-5),
        (1e-7, 1.3385e-5),
        (1e-8, 1.99405e-6),
        (1e-9, 2.8993e-7),
        (1e-10, 4.1303e-8),
    ],
)
def test_an_attack_with_few_false_alarms(false_alarms, caught):
    missed = acc.tradeoff(acc.Gaussian(1.0), false_alarms)
    assert 1 - missed == pytest.approx(caught, rel=1e-3)


# `test_randomized_response_tpr`, `_at_extreme_fprs`: their noise parameter ½
@pytest.mark.parametrize(
    ("categories", "false_alarms", "caught"),
    [
        (2, 0.125, 0.375),
        (2, 0.25, 0.75),
        (4, 0.0625, 0.3125),
        (4, 0.125, 0.625),
        (4, 0.375, 0.875),
        (4, 0.75, 0.95),
        (2, 1e-10, 3e-10),
        (2, 1e-7, 3e-7),
        (2, 1e-4, 3e-4),
    ],
)
def test_an_attack_on_randomised_response(categories, false_alarms, caught):
    run = acc.RandomizedResponse(math.log1p(categories), categories)
    found = 1 - acc.tradeoff(run, false_alarms, adjacency=REPLACE)[0]
    # an upper bound from lines at values of ε a tenth apart: at the kink e^{0.1 ε} above, ε = log 3
    assert caught * (1 - 1e-12) <= found <= caught * 3**0.102


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0, 4.0])
def test_gaussian_gdp(mu):
    assert acc.gdp_mu(acc.Gaussian(1 / mu)) == pytest.approx(mu, rel=1e-9)


def test_two_releases_of_which_epsilon_is_known():
    """`test_epsilon_basic`, `test_epsilon_delta_basic` and their attacks."""
    pure = acc.Composed((acc.PureDP(1.0, "add-remove"), acc.PureDP(2.0, "add-remove")))
    assert acc.delta(pure, 3.0) == 0
    assert acc.epsilon(pure, 1e-300) == pytest.approx(3.0)
    assert 0.8286 - 1e-3 <= 1 - acc.tradeoff(pure, 0.1)[0] <= 0.8286 * 1.01
    both = acc.Composed(
        (acc.ApproximateDP(1.0, 0.1, "add-remove"), acc.ApproximateDP(2.0, 0.2, "add-remove"))
    )
    assert acc.delta(both, 3.0) == pytest.approx(0.28, rel=1e-12)
    assert 1 - acc.tradeoff(both, 0.1) == pytest.approx(0.91938, abs=1e-3)
    selections = acc.Composed((acc.Exponential(1.0), acc.Exponential(2.0)))
    assert acc.delta(selections, 3.0) <= 1e-14
    assert 2.999 <= acc.epsilon(selections, 1e-14) <= 3.0  # theirs takes no bounded range


def test_permute_and_flip_matches_laplace():
    selection = acc.epsilon(acc.Exponential(1.0, permute_and_flip=True), 1e-5)
    assert selection == pytest.approx(acc.epsilon(acc.Laplace(1.0), 1e-5), rel=1e-6)


@pytest.mark.parametrize(
    "run",
    [
        acc.PoissonSampled(acc.Gaussian(0.02), 0.1),
        acc.TruncatedPoissonSampled(acc.Gaussian(1.0), 0.02, 1000, 20),
        acc.PoissonSampled(acc.Gaussian(0.05), 0.01),
    ],
)
def test_nothing_overflows(run):
    for adjacency in acc.Adjacency:
        for method in ("pld", "best"):
            found = acc.epsilon(run, 1e-6, adjacency=adjacency, method=method)
            assert 0 < found < math.inf


@pytest.mark.parametrize("kind", ["Laplace", "Gaussian", "DiscreteLaplace", "DiscreteGaussian"])
@pytest.mark.parametrize("noise", [-3.0, -1.0, np.nan])
def test_negative_noise_is_refused(kind, noise):
    with pytest.raises(ValueError, match="noise_multiplier"):
        getattr(acc, kind)(noise)


@pytest.mark.parametrize("rate", [1.2, -0.1])
def test_rates_that_are_none_are_refused(rate):
    with pytest.raises(ValueError, match="rate"):
        acc.PoissonSampled(acc.Gaussian(1.0), rate)


@pytest.mark.parametrize("delta", [1.1, -0.1])
def test_deltas_that_are_none_are_refused(delta):
    with pytest.raises(ValueError, match="delta"):
        acc.epsilon(acc.Gaussian(1.0), delta)
