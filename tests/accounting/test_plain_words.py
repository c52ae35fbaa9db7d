"""What a certificate says to whoever decides about it, against exact attacks."""

from __future__ import annotations

import math

import mpmath
import pytest
from scipy.special import ndtr, ndtri

from dpjax import accounting as acc
from dpjax.accounting.answers.plain_words import (
    certificate_summary,
    describe_several,
    details,
    format_percent,
)
from dpjax.accounting.answers.risks import bound_success, success

_ADD, _SWAP = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE
_ALPHA = 1e-3


def _found(run, delta=1e-5, adjacency=_ADD, **options):
    epsilon = acc.epsilon(run, delta, adjacency=adjacency)
    return success(run, epsilon, delta, adjacency=adjacency, **options)


def _gaussian_attack(mu):
    """Φ(Φ⁻¹(α) + μ): the likelihood-ratio test of N(0, 1) against N(μ, 1)."""
    with mpmath.workdps(40):
        threshold = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(_ALPHA))
        return float(mpmath.ncdf(mu - threshold))


@pytest.mark.parametrize("noise", [0.05, 0.5, 1.0, 4.0, 1e3])
@pytest.mark.parametrize("adjacency", [_ADD, _SWAP])
def test_of_a_gaussian_it_is_the_best_attack(noise, adjacency):
    truth = _gaussian_attack((1 if adjacency is _ADD else 2) / noise)
    found = _found(acc.Gaussian(noise), adjacency=adjacency)
    assert truth * (1 - 1e-12) <= found
    assert found <= truth * 1.001  # the best line touches the curve; a search comes near it


@pytest.mark.parametrize("noise", [2.0, 10.0, 300.0])
@pytest.mark.parametrize("delta", [0.01, 0.3])
def test_a_large_delta_does_not_hide_how_little_an_attack_can_do(noise, delta):
    # Where δ is all of the total variation ε is 0, and the best line is of another ε.
    truth = _gaussian_attack(1 / noise)
    found = _found(acc.Gaussian(noise), delta)
    assert truth * (1 - 1e-12) <= found <= truth * 1.01


@pytest.mark.parametrize(("noise", "rate"), [(0.7, 0.01), (1.0, 0.2), (0.5, 0.9)])
def test_of_one_sampled_step_it_is_above_the_exact_attack(noise, rate):
    # Present: (1 − q) N(0, σ²) + q N(1, σ²); absent: N(0, σ²). The ratio rises in the output.
    with mpmath.workdps(40):
        threshold = noise * mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(_ALPHA))
        caught = mpmath.ncdf((1 - threshold) / noise)
        truth = float((1 - rate) * mpmath.mpf(_ALPHA) + rate * caught)
    found = _found(acc.PoissonSampled(acc.Gaussian(noise), rate))
    assert truth <= found <= 1.05 * truth


def test_the_release_with_the_worst_profile_is_met():
    # Every (ε, δ)-private release is randomised response that tells all with probability δ, made
    # worse: absent, the answer with odds e^ε comes with (1 − δ) / (1 + e^ε) (Kairouz et al. 2015,
    # Theorem 3.2). The attack says yes to what tells all, and to that answer as often as it may.
    often = (1 - 0.01) / (1 + math.e)
    truth = 0.01 + (_ALPHA / often) * (often * math.e)
    run = acc.ApproximateDP(1.0, 0.01, adjacency="replace-one")
    found = success(run, 1.0, 0.01, adjacency=_SWAP)
    assert truth * (1 - 1e-12) <= found <= truth * (1 + 1e-9)


def test_what_is_reserved_of_delta_is_added():
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 100)
    without = _found(run)
    reserved = _found(run, reserved=1e-4)
    epsilon = acc.epsilon(run, 1e-5)
    assert without < reserved <= without + 1e-4 + 1e-9
    assert reserved <= bound_success(epsilon, 1e-5 + 1e-4, _ALPHA)


@pytest.mark.parametrize("run", [acc.Gaussian(1e-3), acc.Gaussian(1e9), acc.Laplace(1e9)])
@pytest.mark.parametrize("delta", [1e-13, 1e-5, 0.5])
def test_at_the_corners_it_is_a_probability(run, delta):
    found = _found(run, delta)
    assert _ALPHA <= found <= 1.0


def test_where_no_epsilon_is_finite_the_curve_is_known_all_the_same():
    # It tells all with probability 1e-2, and no ε is finite at δ = 1e-5.
    run = acc.Composed((acc.Gaussian(2.0), acc.ApproximateDP(0.0, 1e-2, "replace-one")))
    assert acc.epsilon(run, 1e-5, adjacency=_SWAP) == math.inf
    truth = 1e-2 + 0.99 * ndtr(ndtri(_ALPHA / 0.99) + 1.0)  # μ = 2 / 2, of the alarms that remain
    found = success(run, math.inf, 1e-5, adjacency=_SWAP)
    assert truth * (1 - 1e-9) <= found <= 1.03 * truth < 0.1


def test_where_nothing_is_known_nothing_is_promised():
    geo = acc.GeoDP(1.0, 0.1, batch_size=2048, dimension=10, unsafe_no_dp=True)
    assert success(geo, math.inf, 1e-5, adjacency=_ADD) == 1.0
    assert certificate_summary(acc.certify(geo, 1e-5))[0].startswith("Protected: nobody")
    assert bound_success(1e4, 0.0, _ALPHA) == 1.0
    # A run whose δ(ε) no method has still has the (ε, δ) that was found.
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(2.0), 0.01), 10)
    unknown = success(acc.BestOf(run, 5.0), 0.5, 1e-6, adjacency=_ADD)
    assert unknown <= bound_success(0.5, 1e-6, _ALPHA)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.00123, "0.13 %"), (0.0179, "1.8 %"), (0.25, "25 %"), (0.991, "100 %")],
)
def test_percentages_are_rounded_up(share, text):
    assert format_percent(share) == text


def test_percentages_never_promise_more():
    for k in range(1, 2_000):
        share = k / 2_000
        assert float(format_percent(share).split()[0]) >= 100 * share * (1 - 1e-15)


def test_the_guarantee_that_is_shown_is_no_less_than_it_is():
    for k in range(1, 200):
        certificate = acc.certify(acc.ApproximateDP(k / 7, 1 / (1e4 + k)), 1e-3, adjacency=_SWAP)
        shown = details(certificate)[1].split("(")[1].split(")")[0].split(", ")
        epsilon, delta = map(float, shown)
        assert certificate.epsilon <= epsilon <= certificate.epsilon * (1 + 1e-5)
        assert certificate.delta <= delta <= certificate.delta * (1 + 1e-5)


@pytest.mark.parametrize(
    "epsilon", [1e-3, 0.1, 0.999, 1.0, 3.0, 8.0, 19.0, 50.0, 95.4349, 123.4501, 348.004, 500.0]
)
@pytest.mark.parametrize("adjacency", [_ADD, _SWAP])
def test_the_promise_follows_from_epsilon(epsilon, adjacency):
    run = acc.ApproximateDP(epsilon, 1e-7, adjacency=adjacency.value)
    first, _, third = certificate_summary(acc.certify(run, 1e-6, adjacency=adjacency))[:3]
    if epsilon > 20:
        power = float(first.split("up to e^")[1].split(" times")[0])
        assert epsilon <= power <= epsilon * 1.001
    else:
        ratio = float(first.split("more than ")[1].split(" times")[0].replace(",", ""))
        truth = float(mpmath.exp(mpmath.mpf(epsilon)))
        assert truth <= ratio <= max(truth * 1.1, truth + 0.01)
    own = first.partition("A person with")[0]
    named = [word for word in ("strong", "moderate", "weak", "no promise") if word in own]
    assert len(named) == 1
    assert "almost the same" not in first
    # Nothing that is called strong lets an attack find more than a few of a hundred.
    share = float(third.split("at most ")[1].split(" %")[0])
    assert (named == ["strong"]) is (epsilon <= 1)
    assert share < 1 or named != ["strong"]
    assert (named == ["no promise"]) is (epsilon > 10)


@pytest.mark.parametrize(
    ("delta", "records", "word"),
    [
        (0.9, None, "no promise"), (0.05, None, "weak"), (5e-3, None, "moderate"),
        (1e-4, None, "strong"), (0.01, 1_500, "weak"), (1e-4, 50_000, "moderate"),
        (1e-4, 10**8, "no promise"), (1e-4, 10_000, "strong"),
    ],
)  # fmt: skip
def test_no_promise_is_strong_that_gives_records_away(delta, records, word):
    # A release of every record, each with probability δ, is (0, δ)-private.
    declared = {} if records is None else {"records": records}
    found = acc.certify(acc.ApproximateDP(0.0, delta / 2), delta, declared=declared)
    assert word in certificate_summary(found)[0].partition("A person with")[0]


@pytest.mark.parametrize(
    ("epsilon", "records"), [(0.0, 5), (0.1, 5), (0.5, 10), (1.0, 2), (1.0, 5)]
)
def test_a_person_with_several_records_is_promised_what_one_record_implies(epsilon, records):
    certificate = acc.certify(acc.ApproximateDP(epsilon, 1e-7), 1e-6)
    words = describe_several(certificate, records)
    with mpmath.workdps(40):
        ratio = float(mpmath.exp(mpmath.mpf(records) * mpmath.mpf(certificate.epsilon)))
        away = float(
            mpmath.mpf(1e-6) * sum(mpmath.exp(i * certificate.epsilon) for i in range(records))
        )
    shown = float(words.split("more than ")[1].split(" times")[0].replace(",", ""))
    assert ratio <= shown <= max(1.1 * ratio, ratio + 0.01)
    shown = float(words.split("probability of ")[1].split(";")[0])
    assert away <= shown <= 1.1 * away
    assert words in certificate_summary(certificate)[0] or records != 5


@pytest.mark.parametrize("epsilon", [3.0, 500.0, 1e3])
def test_a_person_with_several_records_is_promised_nothing_beyond_a_probability_of_one(epsilon):
    certificate = acc.certify(acc.ApproximateDP(epsilon, 1e-7), 1e-4)
    words = describe_several(certificate, 5)
    assert words.startswith(f"A person with 5 records: ε would be {5 * epsilon:g} and δ above 1")
    assert words.endswith("so that nothing is promised")


@pytest.mark.parametrize("adjacency", [_ADD, _SWAP])
@pytest.mark.parametrize("noise", [4.0, 20.0])
def test_what_is_said_of_several_records_holds_for_the_exact_price(noise, adjacency):
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(noise), 0.1), 50)
    certificate = acc.certify(run, 1e-6, adjacency=adjacency)
    words = describe_several(certificate, 5)
    away = float(words.split("probability of ")[1].split(";")[0])
    ratio = float(words.split("more than ")[1].split(" times")[0].replace(",", ""))
    assert acc.epsilon(acc.UserLevel(run, 5), away, adjacency=adjacency) <= math.log(ratio)


@pytest.mark.parametrize("adjacency", [_ADD, _SWAP])
def test_the_opening_names_who_what_how_well_and_what_is_left(adjacency):
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), 0.01), 1_000)
    certificate = acc.certify(run, 1e-5, adjacency=adjacency, not_covered=["the ranges."])
    opening, details = certificate.describe().split("\n\n")
    labels = [text.split(":")[0] for text in opening.split("\n")]
    assert labels == ["Protected", "Against", "How well", "Not covered"]
    expected = format_percent(_found(run, adjacency=adjacency))
    assert f"at most {expected} of" in opening
    assert opening.endswith("Not covered: the ranges.")
    assert details.startswith("Released: ")
    assert ("which of two" in opening) == (adjacency is _SWAP)


def test_conditions_are_pointed_at():
    run = acc.NoisyGradientDescent(100, 0.5, 0.1, 0.01, 0.1, 1.0)
    text = acc.certify(run, 1e-5).describe()
    assert "\nOnly if: " in text.split("\n\n")[0]
    assert "\nAssumes: " in text.split("\n\n")[1]


@pytest.mark.parametrize("adjacency", [_ADD, _SWAP])
def test_users_are_protected_with_all_their_records(adjacency):
    run = acc.UserLevel(acc.Gaussian(8.0), 4)
    protected, _, found, *_ = certificate_summary(acc.certify(run, 1e-5, adjacency=adjacency))
    assert protected.startswith("Protected: whoever contributed at most 4 records: ")
    assert "one record" not in protected
    factor = 4 if adjacency is _ADD else 8
    assert f"at most {format_percent(_gaussian_attack(factor / 8.0))} of" in found


@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
def test_users_are_named_wherever_a_record_would_be(adjacency):
    several = acc.certify(acc.UserLevel(acc.Gaussian(9.0), 3), 1e-5, adjacency=adjacency)
    whole = acc.certify(
        acc.Gaussian(9.0), 1e-5, adjacency=adjacency, declared={"unit": "user", "records": 9}
    )
    facts = {"unit": "person", "person_column": "id", "records_per_person": 4, "records": 9}
    persons = acc.certify(acc.Gaussian(9.0), 1e-5, adjacency=adjacency, declared=facts)
    assert "of the persons it is after" in certificate_summary(persons)[2]
    assert "all records of one person" in persons.describe()
    assert "any number of records" in certificate_summary(persons)[0]
    for certificate, whose in ((several, "up to 3 records of one user"), (whole, "one user")):
        lines = dict(line.split(": ", 1) for line in certificate.describe().splitlines() if line)
        assert "user" in lines["Against"]
        assert "record" not in lines["Against"]
        assert "of the users it is after" in lines["How well"]
        assert whose in lines["Neighbours"]
        assert "one record" not in lines["Protected"] + lines["Neighbours"]
