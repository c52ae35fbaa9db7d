"""Forged certificates: whatever is done to one, it is refused, or what it says is true."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import random

import numpy as np
import pytest
from scipy.special import log_ndtr

from dpjax import accounting as acc
from dpjax.accounting.answers import verification
from dpjax.accounting.answers.certificate import field_digests

_CERTIFICATES = {
    "gaussian": lambda: acc.certify(
        acc.Composed((acc.Repeated(acc.Gaussian(4.0), 10), acc.Gaussian(7.0))),
        1e-5,
        extra_delta={"a batch beyond the capacity": 1e-8},
        not_covered=["the ranges of the columns were learned from the rows"],
        declared={"records": 60_000, "steps": 11},
    ),
    "replace": lambda: acc.certify(
        acc.Repeated(acc.Gaussian(9.0), 3), 1e-6, adjacency="replace-one", method="gdp"
    ),
    "rdp": lambda: acc.certify(acc.Repeated(acc.Gaussian(2.5), 2), 1e-4, method="rdp"),
    "shuffled": lambda: acc.certify(acc.Shuffled(acc.Gaussian(3.0), 20), 1e-5),
}


@pytest.fixture(scope="module")
def certificates():
    return [make() for make in _CERTIFICATES.values()]


def _mu2(run):
    """μ² of a run of Gaussian releases under add/remove, by its definition."""
    if isinstance(run, acc.Gaussian):
        return (1.0 / run.noise_multiplier) ** 2 if run.noise_multiplier else math.inf
    if isinstance(run, acc.Repeated):
        return run.steps * _mu2(run.mechanism) if run.steps else 0.0
    if isinstance(run, acc.Shuffled):
        return _mu2(run.mechanism)
    assert isinstance(run, acc.Composed), run
    return math.fsum(_mu2(part) for part in run.mechanisms)


def _is_true(certificate):
    """δ(ε) of the Gaussian pair (Balle and Wang 2018, Theorem 8) is at most what is claimed."""
    c = certificate
    mu = math.sqrt(_mu2(c.mechanism)) * (2 if c.adjacency == "replace-one" else 1)
    if math.isinf(c.epsilon) or mu == 0:
        return True
    if math.isinf(mu):
        return False
    low, high = log_ndtr(-c.epsilon / mu + mu / 2), log_ndtr(-c.epsilon / mu - mu / 2)
    if math.isinf(low):  # beyond what a logarithm holds: of such tails nothing is left
        return True
    exact = math.exp(low) * -math.expm1(min(c.epsilon + high - low, 0.0))
    rest = c.delta - math.fsum(c.extra_delta.values())
    assert c.tier == "proven"
    assert any("clipped to the clip norm" in a for a in c.assumptions) or not exact
    return exact <= rest * (1 + 1e-9) + 1e-300


def _forge(certificate, **changes):
    """The same with changed fields and all digests renewed: what an attacker would do."""
    forged = dataclasses.replace(certificate, **changes)
    return dataclasses.replace(forged, digests=field_digests(forged))


def _refused(text, field=None):
    with pytest.raises(acc.CertificateError) as found:
        acc.Certificate.from_json(text).verify()
    assert field is None or found.value.field == field, found.value


def test_a_claim_may_be_above_what_follows_but_not_below(certificates):
    for c in certificates:
        assert _forge(c, epsilon=c.epsilon * 1.5).verify().epsilon == c.epsilon
        for factor in (1 - 1e-6, 1 - 1e-9, 1 - 1e-12, 0.5, 0.0):
            with pytest.raises(acc.CertificateError, match="epsilon"):
                _forge(c, epsilon=c.epsilon * factor).verify()


def test_a_claim_of_an_earlier_version_may_have_been_rounded_otherwise(certificates, monkeypatch):
    monkeypatch.setattr("dpjax.__version__", "0.9.1")
    for c in certificates:
        assert _forge(c, epsilon=c.epsilon * (1 - 1e-11)).verify().epsilon == c.epsilon
        for version, factor in (("0.1.0", 1 - 1e-9), ("0.9.1", 1 - 1e-11)):
            with pytest.raises(acc.CertificateError, match="epsilon"):
                _forge(c, epsilon=c.epsilon * factor, version=version).verify()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bound", "exact, and reviewed by everybody"),
        ("method", "best"),
        ("method", "nothing"),
        ("version", "99.0"),
        ("version", "yesterday's"),
        ("created", "long ago"),
        ("created", "2026-01-01T00:00:00"),
        ("tier", "conditional"),
        ("tier", "none"),
        ("assumptions", ()),
        ("delta", 1e-9),
        ("delta", math.nan),
        ("epsilon", math.nan),
        ("epsilon", -1.0),
        ("epsilon", True),
        ("epsilon", None),
        ("epsilon", 10**400),
        ("epsilon", object()),
        ("extra_delta", {"a": math.inf}),
        ("not_covered", ("all is well.\nTier: proven",)),
        ("declared", {"steps": 10**400}),
        ("declared", {"steps": True}),
        ("declared", {"steps": None}),
        ("declared", {"steps": 12}),
        ("format", True),
        ("format", 1.0),
        ("mechanism", None),
        ("mechanism", acc.Gaussian(np.array([1.0, 2.0]))),
    ],
)
def test_lies_and_nonsense_with_renewed_digests_are_refused(certificates, field, value):
    try:
        forged = _forge(certificates[0], **{field: value})
    except (TypeError, ValueError, AttributeError):  # cannot be digested: leave the old ones
        forged = dataclasses.replace(certificates[0], **{field: value})
    with pytest.raises(acc.CertificateError):
        forged.verify()


def test_infinite_claims_are_true_and_say_none(certificates):
    assert _forge(certificates[0], epsilon=math.inf, tier="none").verify().epsilon < math.inf
    with pytest.raises(acc.CertificateError, match="tier"):
        _forge(certificates[0], epsilon=math.inf).verify()


@pytest.mark.parametrize("depth", [99, 300, 900, 1_000, 20_000])
def test_nesting_is_refused_by_name(certificates, depth):
    text = certificates[0].to_json()
    deep = "[" * depth + "]" * depth
    _refused(text.replace('"assumptions": [', f'"assumptions": [{deep}, '))
    gaussian = '{"kind": "Gaussian", "noise_multiplier": 4.0}'
    nested = '{"kind": "Repeated", "steps": 1, "mechanism": ' * depth + gaussian + "}" * depth
    raw = json.loads(text)
    raw["mechanism"] = "HERE"
    _refused(json.dumps(raw).replace('"HERE"', nested))


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"epsilon": ', '"epsilon": 0.1, "epsilon": ', "epsilon"),
        ('"steps": 10', '"steps": 10, "steps": 10', "steps"),
        ('"steps": 10', f'"steps": {10**400}', "mechanism"),
        ('"steps": 10', '"steps": 1' + "0" * 5000, "mechanism"),
        ('"steps": 10', '"steps": 1e400', "mechanism"),
        ('"steps": 10', '"steps": NaN', "mechanism"),
        ('"steps": 10', '"steps": null', "mechanism"),
        ('"steps": 10', '"steps": true', "mechanism"),
        ('"steps": 10', '"steps": {"array": [[1, 2], [3]]}', "mechanism"),
        ('"steps": 10', '"steps": {"array": [true]}', "mechanism"),
        ('"steps": 10', '"steps": {"array": {}}', "mechanism"),
        ('"steps": 10', '"steps": "nan"', "mechanism"),
        ('"steps": 11', '"steps": 1e999', "declared"),
        ('"format": 2', '"format": true', "format"),
        ('"delta": ', '"delta": null, "x": ', None),
    ],
)
def test_texts_that_readers_differ_on_are_refused(certificates, old, new, field):
    text = certificates[0].to_json()
    assert old in text
    _refused(text.replace(old, new, 1), field)


@pytest.mark.parametrize("text", [None, 3, {}, "", "null", "[]", b"\xff", "\ufeff[", "{" * 10**6])
def test_what_is_no_text_or_no_certificate_is_refused(text):
    _refused(text, "json")


def test_a_text_beyond_the_limit_is_not_read(certificates):
    _refused(certificates[0].to_json() + " " * (1 << 24), "json")


# --- ten thousand mutations ---------------------------------------------------------------------

_HOSTILE = [
    None, True, False, 0, 1, -1, 2, 0.5, 1e-300, -0.0, 1e308, 10**40, 10**400, "", "inf", "-inf",
    "nan", "proven", "none", "rdp", "gdp", "add-remove", [], {}, [[]], {"kind": "Gaussian"},
    {"kind": "Gaussian", "noise_multiplier": 1e9}, {"array": [1.0, 2.0]}, {"array": []}, "\n",
    {"kind": "Composed", "mechanisms": []}, [None], "\ud800",
]  # fmt: skip


def _places(value, path=()):
    yield path
    if not isinstance(value, dict | list):
        return
    for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if path or key != "digests":
            yield from _places(part, (*path, key))


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def _mutated(raw, rng):
    """One to three changes at random places of the tree."""
    raw = copy.deepcopy(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        places = [p for p in _places(raw) if p]
        *where, key = rng.choice(places)
        parent = _at(raw, where)
        kind = rng.randrange(6)
        if kind == 0:
            parent[key] = copy.deepcopy(rng.choice(_HOSTILE))
        elif kind == 1:
            parent[key] = copy.deepcopy(_at(raw, rng.choice(places)))
        elif kind == 2:
            del parent[key]
        elif isinstance(parent, list):
            parent.insert(key, copy.deepcopy(rng.choice(_HOSTILE)))
        elif kind == 3:
            parent[f"{key}_"] = parent.pop(key)
        elif type(parent[key]) is float or (type(parent[key]) is int and abs(parent[key]) < 1e300):
            parent[key] = parent[key] * rng.choice([0.5, 2, 1 - 1e-6, 1 + 1e-6, 1 - 1e-15, 1.1, -1])
        else:
            parent[key] = copy.deepcopy(rng.choice(_HOSTILE))
    return raw


def _renewed(raw):
    """The digests of what the text now says, as an attacker computes them."""
    raw["digests"] = {}
    try:
        read = acc.Certificate.from_json(json.dumps(raw))
        raw["digests"] = field_digests(read)
    except acc.CertificateError:
        pass
    return raw


@pytest.mark.parametrize("part", range(4))
@pytest.mark.at_length(every=4)
def test_ten_thousand_mutations_are_refused_or_true(certificates, part, monkeypatch):
    # The second method's opinion takes most of the time, and only ever refuses more.
    monkeypatch.setattr(verification, "_checked", lambda *args: None)
    rng = random.Random(part)
    accepted = changed = 0
    for count in range(2_500):
        certificate = certificates[count % len(certificates)]
        text = certificate.to_json()
        if count % 5 == 0:  # of the text
            at, kind = rng.randrange(len(text)), rng.randrange(3)
            piece = rng.choice(['"', "{", "}", ",", "9", "0", "e", "-", "null", "true", " ", "\\"])
            cut = text[at : at + rng.randrange(40)]
            text = text[:at] + (piece, cut + cut, "")[kind] + text[at + len(cut) * (kind > 0) :]
        else:
            raw = _mutated(json.loads(text), rng)
            text = json.dumps(_renewed(raw) if count % 5 < 4 else raw)
        try:
            found = acc.Certificate.from_json(text)
            found.verify()
        except acc.CertificateError:
            continue
        accepted += 1
        changed += found != certificate
        assert _is_true(found), found.describe()
    assert changed > 20  # true ones are not all refused: larger ε, other declarations
    assert accepted < 1_500


def test_the_independent_check_has_an_answer_where_a_method_of_its_name_has_one():
    """Two methods are called pld: one prices few rare steps alone, and says nothing of this run."""
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), 0.01), 1_000)
    found = acc.certify(run, 1e-5).verify()
    assert (found.method, found.checked_by) == ("contour", "pld")
    assert 0.99 * found.epsilon < found.lower <= found.epsilon <= found.upper * (1 + 1e-6)
    assert found.upper < 1.001 * found.epsilon
