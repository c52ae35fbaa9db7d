"""Certificates: round trip, tampering, contradictions, words."""

import json
import math

import numpy as np
import pytest

import dpjax
from dpjax import accounting as acc

RUN = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), rate=0.01), steps=1_000)


@pytest.fixture(scope="module")
def certificate():
    return acc.certify(
        RUN,
        delta=1e-5,
        extra_delta={"a batch beyond the capacity": 1e-8},
        not_covered=["the ranges of the columns were learned from the rows"],
        declared={"records": 60_000, "batch_size": 600, "steps": 1_000, "noise_multiplier": 1.1},
    )


def test_round_trip_is_lossless(certificate):
    again = acc.Certificate.from_json(certificate.to_json())
    assert again == certificate
    assert again.to_json() == certificate.to_json()
    assert again.epsilon == acc.epsilon(RUN, np.nextafter(1e-5 - 1e-8, 0))


def test_verifies_by_itself_and_by_another_method(certificate):
    found = certificate.verify()
    assert found.epsilon == certificate.epsilon
    assert found.checked_by not in (None, certificate.method)
    assert found.lower <= certificate.epsilon <= found.upper * (1 + 1e-9)


def tamper(raw, field):
    value = raw[field]
    if field == "mechanism":
        return {**value, "steps": 500}
    if field == "adjacency":
        return "replace-one"
    if isinstance(value, str):
        return value + " (improved)"
    if isinstance(value, list):
        return value[:-1]
    if isinstance(value, dict):
        return dict(list(value.items())[:-1])
    return value / 2 if isinstance(value, float) else value + 1


@pytest.mark.parametrize("field", list(acc.Certificate.__dataclass_fields__))
def test_every_tampered_field_is_found_and_named(certificate, field):
    raw = json.loads(certificate.to_json())
    raw[field] = tamper(raw, field)
    with pytest.raises(acc.CertificateError) as found:
        acc.Certificate.from_json(json.dumps(raw)).verify()
    # the last digest removed is that of the field it belonged to
    assert found.value.field == (field if field != "digests" else "format")


def test_a_forger_who_renews_the_digests_is_found_by_recomputing(certificate):
    import dataclasses

    from dpjax.accounting.answers.certificate import _digests

    for change in ({"epsilon": 0.5}, {"delta": 1e-9}, {"tier": "conditional"}, {"assumptions": ()}):
        forged = dataclasses.replace(certificate, **change)
        forged = dataclasses.replace(forged, digests=_digests(forged))
        with pytest.raises(acc.CertificateError):
            forged.verify()


@pytest.mark.parametrize("field", list(acc.Certificate.__dataclass_fields__))
def test_missing_fields_are_named(certificate, field):
    raw = json.loads(certificate.to_json())
    del raw[field]
    with pytest.raises(acc.CertificateError) as found:
        acc.Certificate.from_json(json.dumps(raw))
    assert found.value.field == field


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "json"),
        ("[1]", "json"),
        ("{", "json"),
        (b"\xff\xfe\x00", "json"),
        ('{"format": 1}', "mechanism"),
    ],
)
def test_what_is_no_certificate(text, field):
    with pytest.raises(acc.CertificateError) as found:
        acc.Certificate.from_json(text)
    assert found.value.field == field


def corrupt(certificate, **changes):
    return json.dumps({**json.loads(certificate.to_json()), **changes})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"epsilon": "much"}, "epsilon"),
        ({"epsilon": True}, "epsilon"),
        ({"delta": None}, "delta"),
        ({"format": 99}, "format"),
        ({"mechanism": {"kind": "Perfect"}}, "mechanism"),
        ({"mechanism": {"kind": "Gaussian", "sigma": 1.0}}, "mechanism"),
        ({"mechanism": {"kind": "Gaussian", "noise_multiplier": -1.0}}, "mechanism"),
        ({"mechanism": 3}, "mechanism"),
        ({"adjacency": "none"}, "adjacency"),
        ({"assumptions": "all fine"}, "assumptions"),
        ({"extra": 1}, "extra"),
    ],
)
def test_malformed_fields_are_named(certificate, changes, field):
    with pytest.raises(acc.CertificateError) as found:
        acc.Certificate.from_json(corrupt(certificate, **changes))
    assert found.value.field == field


@pytest.mark.parametrize(
    "declared",
    [
        {"records": 50_000, "batch_size": 600},
        {"steps": 999},
        {"noise_multiplier": 1.2},
    ],
)
def test_contradicting_declarations_are_refused(declared):
    with pytest.raises(acc.CertificateError, match="declared"):
        acc.certify(RUN, 1e-5, method="rdp", declared=declared)


def test_extra_delta_is_paid_for():
    plain = acc.certify(RUN, 1e-5, method="rdp")
    reserved = acc.certify(RUN, 1e-5, method="rdp", extra_delta={"overflow": 5e-6})
    assert reserved.epsilon == acc.epsilon(RUN, np.nextafter(5e-6, 0), method="rdp")
    assert reserved.epsilon > plain.epsilon
    for bad in (1e-5, 2e-5, -1e-9, math.nan):
        with pytest.raises(ValueError, match="extra_delta"):
            acc.certify(RUN, 1e-5, extra_delta={"overflow": bad})
    with pytest.raises(ValueError, match="extra_delta"):
        acc.certify(RUN, 1e-5, extra_delta={"a": 6e-6, "b": 6e-6})


def test_many_distinct_steps_round_trip():
    parts = tuple(acc.Gaussian(4.0 + k / 7) for k in range(300))
    certificate = acc.certify(acc.Composed(parts), 1e-5, method="rdp")
    assert acc.Certificate.from_json(certificate.to_json()) == certificate


def test_sweeps_are_not_certified():
    with pytest.raises(ValueError, match="one setting"):
        acc.certify(acc.Gaussian(np.array([1.0, 2.0])), 1e-5, method="rdp")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda run: run,
        lambda run: acc.Repeated(run, 5),
        lambda run: acc.Composed((run, acc.Gaussian(4.0))),
        lambda run: acc.BestOf(run, 3.0),
    ],
)
@pytest.mark.parametrize(
    "run",
    [
        acc.ObjectivePerturbation(1.0, 50.0, 0.25, 100.0),
        acc.NoisyGradientDescent(10, 0.1, 0.1, 0.1, 1.0, 2.0),
    ],
    ids=["objective", "descent"],
)
def test_a_conditional_release_stays_conditional_whatever_is_around_it(run, wrap):
    own = acc.certify(run, 1e-5)
    assert own.tier == "conditional"
    wrapped = acc.certify(wrap(run), 1e-5)
    assert wrapped.tier == "conditional"
    assert set(own.assumptions) <= set(wrapped.assumptions)
    wrapped.verify()


def test_no_guarantee_is_said_so():
    geo = acc.GeoDP(1.0, 0.1, batch_size=2048, dimension=10, unsafe_no_dp=True)
    certificate = acc.certify(geo, 1e-5)
    assert certificate.tier == "none"
    assert certificate.epsilon == math.inf
    assert "Guarantee: none" in certificate.describe()
    assert acc.Certificate.from_json(certificate.to_json()) == certificate


def test_words(certificate):
    text = certificate.describe()
    for part in (
        "1,000 adaptive uses",
        "Poisson sample at rate 0.01",
        "adding or removing one record",
        "Tier: proven",
        "a batch beyond the capacity",
        "Not covered: the ranges of the columns were learned from the rows.",
        f"dpjax {dpjax.__version__}",
    ):
        assert part in text
