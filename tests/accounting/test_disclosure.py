"""Sentences of certificates have codes; what was stored without them is read and kept as it was."""

import copy
import dataclasses
import json
import pathlib
import pickle

import pytest

from dpjax import accounting as acc
from dpjax.accounting.answers.certificate import check_unchanged, is_ex_post
from dpjax.accounting.answers.disclosure import KINDS, OTHER, Actor, read_sentence, with_code
from dpjax.training import make_plan
from dpjax.training import plan as plans

ROOT = pathlib.Path(__file__).parents[2]
STORED = [
    *sorted(ROOT.glob("experiments/*/certificates/*.jsonl")),
    *sorted(ROOT.glob("tests/training/format_1/*/certificate.json")),
]
SAID = acc.Disclosure("key-by-hand", "la graine est connue")


@pytest.fixture(scope="module")
def certificate():
    reason = acc.Disclosure("rounding", "l'arithmétique")
    return acc.certify(
        acc.Gaussian(4.0),
        delta=1e-5,
        not_covered=[SAID, "my own words"],
        assumptions=[plans.SECRET_KEY],
        extra_delta={reason: 1e-9, "an accident": 1e-8},
    )


def _first():
    """A certificate as 0.1 stored it."""
    return (ROOT / "tests/training/format_1/mlp/certificate.json").read_text(encoding="utf-8")


def _lines(file):
    text = file.read_text(encoding="utf-8")
    return text.splitlines() if file.suffix == ".jsonl" else [text]


def test_a_sentence_is_a_text_that_keeps_its_code():
    assert SAID == "la graine est connue"
    assert {SAID: 1}["la graine est connue"] == 1
    assert (SAID.code, SAID.actor, SAID.files[0]) == (
        "key-by-hand",
        Actor.TRAINER,
        "model.safetensors",
    )
    for same in (copy.deepcopy(SAID), pickle.loads(pickle.dumps(SAID)), with_code(SAID)):
        assert (same, same.code) == (SAID, "key-by-hand")
    shorter = SAID.reword("la graine")
    assert (shorter, shorter.code) == ("la graine", "key-by-hand")
    assert with_code("my own").code == OTHER
    assert with_code("my own", "unit").code == "unit"
    assert not isinstance(f"{SAID}", acc.Disclosure)
    with pytest.raises(ValueError, match="code must be one of"):
        acc.Disclosure("key-by-foot", "text")


def test_a_certificate_writes_codes_and_reads_them_again(certificate):
    raw = json.loads(certificate.to_json())
    assert raw["format"] == 2
    assert raw["not_covered"] == [
        {"code": "key-by-hand", "text": "la graine est connue"},
        {"code": "other", "text": "my own words"},
    ]
    assert {one["code"] for one in raw["assumptions"]} == {"mechanism", "key-secret"}
    assert raw["extra_delta"] == [
        {"code": "rounding", "text": "l'arithmétique", "share": 1e-9},
        {"code": "other", "text": "an accident", "share": 1e-8},
    ]
    again = acc.Certificate.from_json(certificate.to_json())
    assert again == certificate
    assert again.to_json() == certificate.to_json()
    assert [one.code for one in again.not_covered] == ["key-by-hand", "other"]
    assert [one.code for one in again.extra_delta] == ["rounding", "other"]
    assert again.extra_delta["an accident"] == 1e-8
    assert "Not covered: la graine est connue." in again.describe()
    assert again.verify().epsilon == certificate.epsilon
    bound = certificate.bind_files({"a": b"1"})
    assert json.loads(bound.to_statement())["predicateType"] == "urn:dpjax:certificate:2"
    stated = acc.Certificate.from_json(bound.to_statement())
    assert [one.code for one in stated.not_covered] == ["key-by-hand", "other"]


@pytest.mark.parametrize("field", ["not_covered", "assumptions", "extra_delta"])
def test_a_code_that_was_changed_is_found(certificate, field):
    raw = json.loads(certificate.to_json())
    raw[field][0]["code"] = "columns-public"
    with pytest.raises(acc.CertificateError, match="was changed") as found:
        acc.Certificate.from_json(json.dumps(raw)).verify()
    assert found.value.field == field


@pytest.mark.parametrize("field", ["not_covered", "assumptions", "extra_delta"])
@pytest.mark.parametrize(
    "change",
    [
        lambda one: "a text alone",
        lambda one: {**one, "code": "not-known-yet"},
        lambda one: {**one, "code": None},
        lambda one: {**one, "text": 3},
        lambda one: {**one, "more": "x"},
        lambda one: {"text": one["text"]},
        lambda one: {"code": one["code"], "share": 0.0},
        lambda one: [one["code"], one["text"]],
        lambda one: {**one, "text": "all is well.\nTier: proven"},
    ],
)
def test_what_is_no_sentence_with_a_known_code_is_refused(certificate, field, change):
    raw = json.loads(certificate.to_json())
    raw[field][0] = change(raw[field][0])
    with pytest.raises(acc.CertificateError) as found:
        acc.Certificate.from_json(json.dumps(raw))
    assert found.value.field == field


def test_a_reason_for_a_part_of_delta_stands_once(certificate):
    raw = json.loads(certificate.to_json())
    raw["extra_delta"].append({**raw["extra_delta"][0], "share": 0.0})
    with pytest.raises(acc.CertificateError, match="twice"):
        acc.Certificate.from_json(json.dumps(raw))
    for wrong in (None, "much", True, {"a": 1e-8}):
        raw["extra_delta"] = [{"code": "other", "text": "a", "share": wrong}]
        with pytest.raises(acc.CertificateError) as found:
            acc.Certificate.from_json(json.dumps(raw))
        assert found.value.field in ("extra_delta", "mechanism")


def test_one_format_s_fields_are_refused_in_the_other(certificate):
    first, second = json.loads(_first()), json.loads(certificate.to_json())
    for field in ("not_covered", "assumptions", "extra_delta"):
        own = [{"code": "other", "text": "x"} | ({"share": 0.0} if "delta" in field else {})]
        for raw, other in ((first, own), (second, {"x": 0.0} if "delta" in field else ["x"])):
            with pytest.raises(acc.CertificateError) as found:
                acc.Certificate.from_json(json.dumps({**raw, field: other}))
            assert found.value.field == field


# ------------------------------------------------------------------------------ format 1


@pytest.mark.parametrize("file", STORED, ids=lambda file: f"{file.parts[-3]}-{file.stem}")
def test_every_stored_certificate_is_read_and_written_back_as_it_was(file):
    for line in _lines(file):
        raw = json.loads(line)
        found = acc.Certificate.from_json(line)
        assert found.format == raw["format"]
        written = json.loads(found.to_json())
        assert json.dumps(written, ensure_ascii=False) == json.dumps(raw, ensure_ascii=False)
        check_unchanged(found)
        stored = raw["not_covered"] + raw["assumptions"]
        texts = stored if found.format == 1 else [one["text"] for one in stored]
        assert [*found.not_covered, *found.assumptions] == texts
        again = acc.Certificate.from_json(found.to_json())
        assert (again, again.digests) == (found, raw["digests"])
    if file.suffix == ".json":
        assert found.to_json().encode() == file.read_bytes()


def test_all_that_is_stored_was_looked_at():
    assert sum(len(_lines(file)) for file in STORED) >= 328


def test_a_stored_certificate_keeps_its_format_with_files_and_in_a_ledger(tmp_path):
    found = acc.Certificate.from_json(_first())
    bound = found.bind_files({"a": b"1"})
    assert (bound.format, json.loads(bound.to_json())["assumptions"]) == (1, [*found.assumptions])
    assert json.loads(bound.to_statement())["predicateType"] == "urn:dpjax:certificate:1"
    assert acc.Certificate.from_json(bound.to_statement()) == bound
    file = acc.LedgerFile(tmp_path / "ledger.json")
    file.create(acc.Ledger(50.0, 1e-3, found.adjacency))
    file.book(found)
    with pytest.raises(ValueError, match="is not booked yet"):
        file.book(found)
    file.book(acc.certify(acc.Gaussian(8.0), 1e-6, adjacency=found.adjacency))
    first, second = file.read().entries
    assert (first, first.to_json()) == (found, _first())
    assert (first.format, second.format) == (1, 2)


def test_certificates_of_both_formats_are_composed(certificate):
    found = acc.Certificate.from_json(_first())
    new = acc.certify(acc.Gaussian(8.0), 1e-6, adjacency=found.adjacency, not_covered=[SAID])
    both = acc.certify([found, new], 1e-3, adjacency=found.adjacency)
    assert both.format == 2
    assert {*found.not_covered, SAID} == {*both.not_covered}
    by_text = {one: one.code for one in both.not_covered}
    assert by_text[SAID] == "key-by-hand"
    assert all(by_text[one] == one.code for one in found.not_covered)
    both.verify()


# Sentences as certificates of 0.1 hold them.
_EARLIER = {
    "the noise comes from a seed given by hand: who guesses it can subtract it": "key-by-hand",
    plans.BY_HAND: "key-by-hand",
    "ranges learned from the rows: age, job": "learned-from-rows",
    "range of the target learned from the rows": "learned-from-rows",
    "metrics.csv, training.png: test accuracy is an exact function of the held-out records, which "
    "ε does not protect": "held-out-exact",
    "metrics.csv: train_loss and nonfinite are exact functions of the training records": (
        "training-losses"
    ),
    "training.png and the closing message: the accuracy without privacy comes from a model": (
        "accuracy-without-privacy"
    ),
    "running time, and the checkpoint folder of an unfinished run": "running-time",
    "choosing settings, or among several runs, by looking at results on the same records": (
        "settings-chosen"
    ),
    "no setting was chosen, and no run picked among several, by looking at results on the same "
    "records, but as the mechanism prices it": "nothing-chosen",
    "how long the run took, and the checkpoint folder of an unfinished run, were seen by nobody": (
        "duration-unseen"
    ),
    "the number of training records (400) is treated as public": "records-public",
    "the number of training persons (400) is treated as public": "records-public",
    "names and types of the columns are public": "columns-public",
    "public: ranges of age: given by the user": "given-as-public",
    "public: the held-out records: given by the user, or a published data set": "held-out-public",
    "a record is trained on or held out by a secret coin of its own; 3 counts": "held-out-by-coin",
    plans.SECRET_KEY: "key-secret",
    "stopping at one of 7 moments by what was released": "stopped-by-release",
    "the hyperparameters: the best of a grid by accuracy on held-out rows": "other",
    "every record's contribution is clipped to the clip norm before it is summed": "other",
}


@pytest.mark.parametrize("text", _EARLIER)
def test_a_sentence_of_the_first_format_is_read_as_what_it_says(text):
    assert read_sentence(str(text)).code == _EARLIER[text]
    # In the first format alone: in the second it is a user's words, whatever they are.
    said = acc.certify(acc.Gaussian(4.0), 1e-5, not_covered=[str(text)]).not_covered
    assert [one.code for one in said] == [OTHER]


def test_every_kind_of_which_something_followed_is_read_in_the_first_format():
    followed = {code for code, kind in KINDS.items() if kind.earlier}
    assert followed == {*_EARLIER.values()} - {OTHER}


# ------------------------------------------------------------------------------ what follows


def test_a_run_that_was_stopped_is_known_by_its_code_and_in_both_formats():
    plan = make_plan(400, noise_multiplier=2.0, delta=1e-5, steps=100, batch_size=100)
    stopped = plan.certify(steps=50, looks=40)
    assert is_ex_post(stopped)
    assert not is_ex_post(plan.certify(steps=50))
    reasons = {
        one.reword("arrêté plus tôt") if one.code == "stopped-by-release" else one: share
        for one, share in stopped.extra_delta.items()
    }
    french = dataclasses.replace(stopped, extra_delta=reasons)
    old = acc.Certificate.from_json(
        json.dumps(
            {
                **json.loads(stopped.to_json()),
                "format": 1,
                **{name: [*getattr(stopped, name)] for name in ("assumptions", "not_covered")},
                "extra_delta": {**stopped.extra_delta},
            }
        )
    )
    assert old.format == 1
    for one in (stopped, french, old):
        assert is_ex_post(one)
        with pytest.raises(ValueError, match="stopped by what it released"):
            acc.certify([one, one], 1e-4)


def test_what_training_writes_has_codes():
    plan = make_plan(
        400, noise_multiplier=2.0, delta=1e-5, steps=100, batch_size=100, unit="person"
    )
    lines = plans.default_disclosures(400, seeded=True, unit="person")
    found = plan.certify(not_covered=lines, assumptions=plans.NOTHING_CHOSEN)
    assert [one.code for one in found.not_covered] == [
        "records-public", "settings-chosen", "key-by-hand",
    ]  # fmt: skip
    assert OTHER not in {one.code for one in (*found.assumptions, *found.extra_delta)}
    assert any(one.code == "unit" and "person" in one for one in found.assumptions)
