"""Certificates: round trip, tampering, contradictions, words."""

import contextlib
import dataclasses
import json
import math
import pathlib

import numpy as np
import pytest
from scipy.special import ndtr

import dpjax
from dpjax import accounting as acc
from dpjax.accounting.answers import certificate as certificate_module
from dpjax.accounting.answers.verification import _check_declared
from dpjax.accounting.mechanisms.base import FIXED_IN_ADVANCE, all_assumptions, walk
from tests.accounting.mechanism_examples import EXAMPLES

RUN = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), rate=0.01), steps=1_000)


@pytest.fixture(scope="module")
def certificate():
    return acc.certify(
        RUN,
        delta=1e-5,
        extra_delta={"a batch beyond the capacity": 1e-8},
        not_covered=["the ranges of the columns were learned from the rows"],
        declared={"records": 60_000, "batch_size": 600, "steps": 1_000, "noise_multiplier": 1.1},
    ).bind_files({"model.json": b"{}", "model.safetensors": b"123"})


def test_round_trip_is_lossless(certificate):
    again = acc.Certificate.from_json(certificate.to_json())
    assert again == certificate
    assert again.to_json() == certificate.to_json()
    for marked in "\ufeff" + again.to_json(), ("\ufeff" + again.to_json()).encode():
        assert acc.Certificate.from_json(marked) == certificate  # as Windows editors save it
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
    assert found.value.field == (field if field != "digests" else "subject")


def test_a_forger_who_renews_the_digests_is_found_by_recomputing(certificate):
    import dataclasses

    from dpjax.accounting.answers.certificate import field_digests

    for change in ({"epsilon": 0.5}, {"delta": 1e-9}, {"tier": "conditional"}, {"assumptions": ()}):
        forged = dataclasses.replace(certificate, **change)
        forged = dataclasses.replace(forged, digests=field_digests(forged))
        with pytest.raises(acc.CertificateError):
            forged.verify()


@pytest.mark.parametrize("field", sorted({*acc.Certificate.__dataclass_fields__} - {"subject"}))
def test_missing_fields_are_named(certificate, field):
    raw = json.loads(certificate.to_json())
    del raw[field]
    with pytest.raises(acc.CertificateError) as found:
        acc.Certificate.from_json(json.dumps(raw))
    assert found.value.field == field


def test_a_certificate_of_no_file_is_written_as_before_files_were_bound(certificate):
    plain = acc.certify(RUN, 1e-5)
    raw = json.loads(plain.to_json())
    assert "subject" not in raw
    assert "subject" not in raw["digests"]
    assert plain.check_files(pathlib.Path(__file__).parent) == ()
    assert "Files: none is bound" in plain.describe()
    assert "Files: model.json, model.safetensors, by their SHA-256" in certificate.describe()
    # Files that are bound later take nothing else with them.
    again = plain.bind_files({"a": b"1"})
    assert dataclasses.replace(again, subject={}, digests=plain.digests) == plain
    with pytest.raises(ValueError, match="subject must name a file"):
        plain.to_statement()


def test_bound_files_are_compared_by_their_bytes(certificate, tmp_path):
    assert certificate.check_files(tmp_path) == ()
    (tmp_path / "model.json").write_bytes(b"{}")
    assert certificate.check_files(tmp_path) == ("model.json",)
    digest = "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"  # by sha256sum
    assert acc.certify(RUN, 1e-5).bind_files({"a": b"{}\n"}).subject == {"a": digest}
    assert certificate.subject["model.json"] != digest
    (tmp_path / "model.json").write_bytes(b"{}\n")
    with pytest.raises(acc.CertificateError, match=r"names another model\.json") as refused:
        certificate.check_files(tmp_path)
    assert refused.value.field == "subject"


def test_a_registry_entry_says_what_the_certificate_knows_and_null_for_the_rest(certificate):
    product = {"name": "Income", "curator": "An office", "security": "an audit of the code"}
    entry = json.loads(certificate.to_registry(**product))
    assert entry["data_product"]["name"] == "Income"
    assert entry["data_product"]["region"] is None
    loss = entry["privacy_loss"]
    assert (loss["epsilon"], loss["delta"]) == (certificate.epsilon, certificate.delta)
    assert loss["privacy_unit"] == "record"
    assert entry["flavor"]["neighbouring_relation"].startswith("add-remove: adding or removing one")
    assert entry["flavor"]["unprotected_quantities"] == list(certificate.not_covered)
    assert entry["implementation"]["files"] == dict(certificate.subject)
    nist = entry["nist_sp_800_226"]
    assert nist["side channels and security"] == "an audit of the code"
    assert all(text in nist["algorithm and its correctness"] for text in certificate.assumptions)
    users = acc.certify(acc.UserLevel(acc.Gaussian(4.0), 3), 1e-5)
    assert (
        json.loads(users.to_registry())["privacy_loss"]["privacy_unit"]
        == "up to 3 records of one user"
    )
    with pytest.raises(ValueError, match="product must be one of"):
        certificate.to_registry(nmae="Income")


def test_a_statement_is_in_toto_and_is_read_as_its_certificate(certificate):
    stated = json.loads(certificate.to_statement())
    assert stated["_type"] == "https://in-toto.io/Statement/v1"
    assert set(stated) == {"_type", "subject", "predicateType", "predicate"}
    assert [set(entry) for entry in stated["subject"]] == [{"name", "digest"}] * 2
    assert acc.Certificate.from_json(certificate.to_statement()) == certificate
    stated["subject"][0]["digest"]["sha256"] = "0" * 64
    with pytest.raises(acc.CertificateError) as refused:
        acc.Certificate.from_json(json.dumps(stated)).verify()
    assert refused.value.field == "subject"


_ZEROS = {"sha256": "0" * 64}


@pytest.mark.parametrize(
    "subject",
    [
        {},
        "model.json",
        [{"name": "a"}],
        [{"name": "../a", "digest": _ZEROS}],
        [{"name": "/etc/passwd", "digest": _ZEROS}],
        [{"name": "..", "digest": _ZEROS}],
        [{"name": "C:a", "digest": _ZEROS}],
        [{"name": "a", "digest": {"sha256": "0" * 63}}],
        [{"name": "a", "digest": {"sha1": "0" * 64}}],
        [{"name": "a", "digest": _ZEROS}] * 2,
        [["a", "0" * 64]],
    ],
)
def test_a_subject_that_names_no_file_beside_it_is_refused(certificate, subject):
    with pytest.raises(acc.CertificateError) as refused:
        acc.Certificate.from_json(corrupt(certificate, subject=subject))
    assert refused.value.field == "subject"


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


@pytest.mark.parametrize("name", ["certificate.json", pathlib.Path("runs/certificate.json")])
def test_a_name_of_a_file_is_told_to_be_read(name):
    with pytest.raises(acc.CertificateError) as found:
        acc.Certificate.from_json(name)
    assert "read_text()" in str(found.value)


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


def _facts(run):
    """(name, value) of every number of a run that a declared fact may name."""
    for step in walk(run):
        if not isinstance(step, acc.UserLevel):
            names = (n for n in step._ranges if not step.component_axes[n] and n != "steps")
            yield from ((name, float(getattr(step, name))) for name in names)


@pytest.mark.parametrize("run", EXAMPLES, ids=lambda run: type(run).__name__)
def test_a_declared_fact_agrees_with_whatever_the_mechanism_says_of_it(run):
    found = list(_facts(run))
    for name, value in found:
        agrees = all(other == value for known, other in found if known == name)
        for declared in (value, 1.5 * value + 1, str(value)):
            with contextlib.ExitStack() as stack:
                if not agrees or declared != value:
                    stack.enter_context(pytest.raises(acc.CertificateError, match=name))
                _check_declared(run, acc.Adjacency.ADD_REMOVE, {name: declared})


@pytest.mark.parametrize(
    ("run", "declared"),
    [
        (acc.Laplace(4.0), {"noise_multiplier": 900}),
        (acc.PoissonSampled(acc.Gaussian(1.0), 0.1), {"rate": 0.2}),
        (acc.Gaussian(1.0), {"adjacency": "replace-one"}),
        (
            acc.CyclicPoissonCorrelated(2.0, [1.0, 0.5], 4, 0.4),
            {"records": 10_000, "batch_size": 900},  # 1,000 are priced
        ),
    ],
)
def test_a_certificate_with_a_wrong_fact_is_neither_made_nor_verified(run, declared):
    with pytest.raises(acc.CertificateError, match="declared"):
        acc.certify(run, 1e-5, declared=declared)
    right = {"records": 10_000, "batch_size": 1_000} if "records" in declared else {}
    made = acc.certify(run, 1e-5, declared=right)
    forged = dataclasses.replace(made, declared=declared)
    forged = dataclasses.replace(forged, digests=certificate_module.field_digests(forged))
    with pytest.raises(acc.CertificateError, match="declared"):
        forged.verify()


def test_what_the_mechanism_does_not_know_is_shown_as_the_issuers_word():
    declared = {"steps": 1_000, "learning_rate": 0.5, "model": "linear"}
    lines = acc.certify(RUN, 1e-5, method="rdp", declared=declared).describe().split("\n")
    assert "Declared: steps = 1000." in lines
    assert "Declared, and not checked: learning_rate = 0.5, model = linear." in lines


_DESCENT = (10, 0.1, 4.0, 1.0, 0.1, 1.0)
_SAMPLED = acc.NoisySampledDescent(10, 0.1, 4.0, 1.0, 0.1, 1.0, 20, 1_000)


@pytest.mark.parametrize(
    ("run", "steps"),
    [
        (acc.NoisyGradientDescent(*_DESCENT), 10),
        (acc.NoisyCyclicDescent(*_DESCENT, batches=5), 10),
        (_SAMPLED, 10),
        (acc.Repeated(acc.NoisyGradientDescent(*_DESCENT), 3), 30),
        (acc.Repeated(_SAMPLED, 3), 30),
        (acc.Shuffled(acc.Gaussian(4.0), 10), 10),
        (acc.Repeated(acc.Shuffled(acc.Gaussian(4.0), 10), 2), 20),
        (acc.Composed((acc.Repeated(acc.Gaussian(4.0), 5), acc.Gaussian(4.0))), 6),
        (acc.Composed(()), 0),
        (acc.BestOf(acc.Repeated(acc.Gaussian(4.0), 5), 2.0), 5),
        (acc.UserLevel(acc.Repeated(acc.Gaussian(4.0), 5), 2), 5),
        (acc.Repeated(acc.RandomAllocation(acc.Gaussian(4.0), 5), 2), 10),
        (acc.Repeated(acc.CyclicPoissonCorrelated(4.0, [1.0], 4, 0.1), 2), 8),
    ],
)
def test_declared_steps_are_those_of_the_whole_run(run, steps):
    relation = acc.Adjacency.REPLACE_ONE
    _check_declared(run, relation, {"steps": steps})
    for wrong in (1, steps + 1):
        with pytest.raises(acc.CertificateError, match=f"steps = {wrong}, priced {steps}$"):
            _check_declared(run, relation, {"steps": wrong})


_BEST = acc.BestOf(acc.Gaussian(4.0), 2.0)


@pytest.mark.parametrize(
    ("run", "right", "wrong"),
    [
        (acc.Exponential(1.0), {"monotone": 0}, {"monotone": 1}),
        (acc.Exponential(1.0), {"permute_and_flip": "false"}, {"permute_and_flip": "yes"}),
        (_BEST, {"distribution": "geometric"}, {"distribution": "poisson"}),
        (_BEST, {"distribution": "geometric"}, {"distribution": 1.0}),
        (acc.Gaussian(4.0), {"adjacency": "Add Remove"}, {"adjacency": "replace_one"}),
        (acc.Gaussian(4.0), {"adjacency": "add_remove"}, {"adjacency": 1.0}),
        (_SAMPLED, {"records": 1_000}, {"records": 5}),
    ],
)
def test_a_declared_flag_or_word_agrees_with_the_field_of_its_name(run, right, wrong):
    _check_declared(run, acc.Adjacency.ADD_REMOVE, right)
    with pytest.raises(acc.CertificateError, match=next(iter(wrong))):
        _check_declared(run, acc.Adjacency.ADD_REMOVE, wrong)


@pytest.mark.parametrize(
    ("run", "declared"),
    [
        (acc.PoissonSampled(acc.Gaussian(4.0), 0.1), {"records": -5}),
        (acc.PoissonSampled(acc.Gaussian(4.0), 0.1), {"batch_size": 1e9}),
        (acc.CyclicPoissonCorrelated(2.0, [1.0, 0.5], 4, 0.4), {"batch_size": 7}),
        (acc.Gaussian(4.0), {"mechanism": "a sum"}),
    ],
)
def test_what_was_compared_with_nothing_is_shown_as_not_checked(run, declared):
    text = acc.certify(run, 1e-2, declared=declared).describe()
    assert f"\nDeclared, and not checked: {next(iter(declared))} = " in text


@pytest.mark.parametrize("run", EXAMPLES, ids=lambda run: type(run).__name__)
def test_several_releases_were_fixed_in_advance_and_their_certificate_says_so(run):
    several = isinstance(
        run,
        acc.Repeated | acc.Composed | acc.BestOf | acc.NoisyGradientDescent | acc.NoisyCyclicDescent
        | acc.NoisySampledDescent | acc.CorrelatedGaussian | acc.MatrixGaussian
        | acc.CyclicMatrixGaussian | acc.MinSeparatedCorrelated | acc.CyclicPoissonCorrelated
        | acc.RandomAllocation | acc.RandomAllocationCorrelated | acc.Shuffled,
    )  # fmt: skip
    for adjacency in acc.Adjacency:
        assert (FIXED_IN_ADVANCE in all_assumptions(run, adjacency)) is several
    assert FIXED_IN_ADVANCE in all_assumptions(
        acc.Composed((run, acc.Gaussian(1.0))), acc.Adjacency.ADD_REMOVE
    )


def test_certificates_of_before_still_verify_and_say_it_all_the_same(certificate):
    assert FIXED_IN_ADVANCE in certificate.assumptions
    rest = tuple(a for a in certificate.assumptions if a != FIXED_IN_ADVANCE)
    old = dataclasses.replace(certificate, assumptions=rest)
    old = dataclasses.replace(old, digests=certificate_module.field_digests(old))
    assert old.verify().epsilon == certificate.epsilon
    assert f"Assumes: {FIXED_IN_ADVANCE}." in old.describe().split("\n")


def test_a_noise_chosen_after_the_first_output_costs_more_than_any_path():
    """Gaussian(2), then by its output one of three releases, each path being (4, 1e-5)-private."""
    sigma, epsilon, delta = 2.0, 4.0, 1e-5
    second = [acc.Gaussian(1 / 0.7781), acc.Laplace(1 / 2.0848), acc.RandomizedResponse(2.0219, 2)]

    def gaussian(e):  # δ(ε) of a shift by μ standard deviations (Balle and Wang 2018, Theorem 8)
        mu = 0.7781
        return ndtr(mu / 2 - e / mu) - np.exp(e) * ndtr(-mu / 2 - e / mu)

    def laplace(e):  # closed form of the hockey stick of two Laplace distributions
        a = 2.0848
        inner = np.where(e <= -a, 1 - np.exp(e), 1 - np.exp((e - a) / 2))
        return np.where(e >= a, 0.0, inner)

    def response(e):
        p = 1 / (1 + math.exp(-2.0219))
        return np.maximum(p - np.exp(e) * (1 - p), 0) + np.maximum(1 - p - np.exp(e) * p, 0)

    x = np.linspace(-40, 40, 400_001)  # the first output; present: N(1, σ²), absent: N(0, σ²)
    density = np.exp(-(((x - 1) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    left = epsilon - (x - 0.5) / sigma**2  # what is left of ε after the first loss
    paths = [d(left) for d in (gaussian, laplace, response)]
    alone = [np.trapezoid(density * path, x) for path in paths]
    chosen = np.trapezoid(density * np.max(paths, axis=0), x)
    for run, exact in zip(second, alone, strict=True):
        price = acc.delta(acc.Composed((acc.Gaussian(sigma), run)), epsilon)
        assert exact * (1 - 1e-6) <= price <= delta * 1.01
    assert chosen > 2.1 * delta
