"""What a data set has spent: prices that hold, refusals before a run, files that lose nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import multiprocessing

import numpy as np
import pytest
from scipy.special import ndtr

from dpjax import accounting as acc

_SWAP = acc.Adjacency.REPLACE_ONE


def _run(noise):
    return acc.Repeated(acc.PoissonSampled(acc.Gaussian(noise), 0.01), 1_000)


def _certify(run, **how):
    return acc.certify(run, 1e-6, **how)


def _many(*runs, **head):
    ledger = acc.Ledger(**{"epsilon": 50.0, "delta": 1e-5} | head)
    for run in runs:
        ledger = ledger.book(_certify(run))
    return ledger


def test_gaussian_runs_add_up_in_mu_squared():
    noises = (2.0, 3.0, 6.0)
    ledger = _many(*map(acc.Gaussian, noises), measure="gaussian")
    mu, usable = math.sqrt(sum(1 / s**2 for s in noises)), 0.9e-5

    def spent(epsilon):
        return ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon) * ndtr(-epsilon / mu - mu / 2)

    assert spent(ledger.spent()) <= usable * (1 + 1e-9)
    assert spent(ledger.spent() * (1 - 1e-6)) > usable
    with pytest.raises(acc.UnsupportedQuery, match="not a run of Gaussian"):
        ledger.book(_certify(_run(2.0)))


def test_renyi_adds_up_at_one_order_that_was_fixed_before():
    ledger = _many(acc.Gaussian(2.0), acc.Laplace(2.0), acc.Gaussian(3.0), order=4.0)
    order, usable = 4.0, 0.9e-5
    # Rényi of a Gaussian α/(2σ²); of Laplace noise (Mironov 2017, Proposition 6).
    laplace = math.log(
        order / (2 * order - 1) * math.exp((order - 1) / 2)
        + (order - 1) / (2 * order - 1) * math.exp(-order / 2)
    ) / (order - 1)
    total = order / 2 * (1 / 4 + 1 / 9) + laplace
    # Canonne, Kamath, Steinke 2020, Proposition 12.
    epsilon = total + math.log1p(-1 / order) - math.log(usable * order) / (order - 1)
    assert ledger.spent() == pytest.approx(epsilon, rel=1e-7)
    assert ledger.spent() >= epsilon * (1 - 1e-12)


def test_runs_chosen_on_the_way_cost_more_than_planned_and_less_than_their_sum():
    runs = [_run(noise) for noise in (1.4, 1.6, 1.8, 2.0, 2.2)]
    ledger = _many(*runs, epsilon=2.1)
    exact = acc.epsilon(acc.Composed(tuple(runs)), 1e-5)
    assert ledger.planned() == pytest.approx(exact, rel=1e-9)
    assert exact == pytest.approx(1.808, abs=5e-4)
    summed = sum(acc.epsilon(run, 1e-5 / 5) for run in runs)
    assert exact < ledger.spent() < 2.1 < summed
    # No other order of a fine grid, chosen afterwards, would have saved much.
    orders = np.linspace(3, 40, 75)
    curve = sum(acc.rdp(run, orders) for run in runs)
    assert ledger.spent() < 1.1 * np.min(acc.rdp_to_epsilon(orders, curve, 0.9e-5))


def test_a_release_chosen_by_what_another_showed_is_not_priced_as_if_it_were_planned():
    """Three paths, each (4, 1e-5)-private alone; the whole has δ = 2.1e-5: each is refused."""
    second = (
        acc.Gaussian(1 / 0.7781),
        acc.Laplace(1 / 2.0848),
        acc.RandomizedResponse(2.0219, 2),
    )
    for run in second:
        together = acc.Composed((acc.Gaussian(2.0), run))
        assert acc.epsilon(together, 1e-5) <= 4.0 + 1e-3
        ledger = acc.Ledger(4.0, 1e-5).book(_certify(acc.Gaussian(2.0)))
        with pytest.raises(acc.BudgetExceeded, match="budget epsilon=4 at delta=1e-05, got"):
            ledger.book(_certify(run))


def test_the_order_of_what_is_expected_admits_a_table_and_a_sampled_run():
    """A sampled run's curve is no multiple of the order: beyond 45 or so it is out of bounds."""
    table = acc.Repeated(acc.Histogram(200.0), 16)
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(2.0), 0.005), 1_000)
    both = acc.Composed((table, run))
    planned = acc.epsilon(both, 0.9e-5)
    assert planned == pytest.approx(0.303, abs=1e-3)
    ledger = acc.Ledger(2.0, 1e-5).book(_certify(both))
    assert ledger.spent() > 0.9  # at the order of many small steps, which adds most of it
    ledger = acc.Ledger(0.35, 1e-5, order=both)
    for number, one in enumerate((table, run)):
        ledger = ledger.book(_certify(one, declared={"number": number}))
    # The conversion written out, at any order: those that are tried are 5 % apart.
    orders = np.geomspace(2.0, 100.0, 400)
    at = (np.log(1 / 0.9e-5) - np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
    assert planned < ledger.spent() < 1.005 * np.min(acc.rdp(both, orders) + at)
    assert acc.Ledger.from_json(ledger.to_json()) == ledger
    with pytest.raises(acc.BudgetExceeded):
        acc.Ledger(0.35, 1e-5).book(_certify(run))
    with pytest.raises(ValueError, match="order must be a number or one setting of a run"):
        acc.Ledger(0.35, 1e-5, order=acc.Gaussian(np.array([1.0, 2.0])))


def test_a_plan_has_its_exact_price_and_no_run_beside_it():
    runs = (_run(1.4), _run(2.0), _run(2.0))
    exact = acc.epsilon(acc.Composed(runs), 0.9e-5)
    ledger = acc.Ledger(exact * (1 + 1e-9), 1e-5, plan=runs)
    assert ledger.spent() == exact  # from the first on: all of it was declared
    for run in runs:
        ledger = ledger.book(_certify(run, declared={"number": len(ledger.entries)}))
    for beside in (_run(2.0), acc.Gaussian(1e3)):
        with pytest.raises(acc.BudgetExceeded, match="of the ledger's plan"):
            ledger.book(_certify(beside, declared={"number": 9}))
    with pytest.raises(acc.BudgetExceeded, match="must keep the budget"):
        acc.Ledger(exact * (1 - 1e-6), 1e-5, plan=runs)
    # The same three, chosen one after the other, are too dear.
    ledger = acc.Ledger(exact * 1.001, 1e-5)
    for number, run in enumerate(runs[:2]):
        ledger = ledger.book(_certify(run, declared={"number": number}))
    with pytest.raises(acc.BudgetExceeded):
        ledger.book(_certify(runs[2]))


def test_what_certificates_reserve_of_delta_is_kept_too():
    ledger = acc.Ledger(5.0, 1e-5)
    for number in range(2):
        run = _certify(acc.Gaussian(9.0), extra_delta={"a tail": 4e-7}, declared={"n": number})
        ledger = ledger.book(run)
    why = r"got inf together .* reserve 1.2e-06 of their delta, and .* a tenth of its own .*, 1e-06"
    with pytest.raises(acc.BudgetExceeded, match=why):
        ledger.book(_certify(acc.Gaussian(9.0), extra_delta={"a tail": 4e-7}))
    nothing = acc.GeoDP(1.0, 0.1, batch_size=2048, dimension=10, unsafe_no_dp=True)
    with pytest.raises(acc.BudgetExceeded, match=r"got inf .*: one of the runs has no finite eps"):
        ledger.book(_certify(nothing))
    with pytest.raises(acc.BudgetExceeded, match=r"got inf .* no finite epsilon at delta=9e-06"):
        acc.Ledger(5.0, 1e-5, plan=(acc.ApproximateDP(1.0, 1e-3),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adjacency": _SWAP}, "of the ledger's adjacency, add-remove, got replace-one"),
        ({"declared": {"unit": "user"}}, "of the ledger's unit, record, got user"),
        ({"declared": {"unit": "person"}}, "of the ledger's unit, record, got person"),
    ],
)
def test_one_ledger_has_one_adjacency_and_one_unit(change, message):
    other = _certify(acc.Gaussian(4.0), **change)
    own = {"adjacency": other.adjacency, "unit": other.declared.get("unit", "record")}
    assert acc.Ledger(3.0, 1e-5, **own).book(other).entries == (other,)
    with pytest.raises(ValueError, match=message):
        acc.Ledger(3.0, 1e-5).book(other)
    with pytest.raises(ValueError, match=message):
        acc.Ledger(3.0, 1e-5, entries=(other,))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a finite number > 0"),
        ({"delta": 1.0}, r"delta must be in \(0, 1\)"),
        ({"measure": "zcdp"}, "measure must be one of"),
        ({"order": 1.0}, "order must be a finite number > 1"),
        ({"unit": "row"}, "unit must be one of"),
        ({"adjacency": "swap"}, "swap"),
        ({"plan": ("run",)}, "plan must hold mechanisms"),
        ({"entries": ("run",)}, "certificate must be a Certificate"),
    ],
)
def test_what_is_no_ledger_is_refused(given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        acc.Ledger(**{"epsilon": 3.0, "delta": 1e-5} | given)


def test_a_certificate_that_was_changed_is_not_booked():
    run = _certify(acc.Gaussian(4.0), extra_delta={"a tail": 4e-7})
    renewed = dataclasses.replace(run, extra_delta={"a tail": -1.0}).bind_files({})
    for changed, field in (
        (dataclasses.replace(run, mechanism=acc.Gaussian(100.0)), "mechanism"),
        (dataclasses.replace(run, extra_delta={}), "extra_delta"),
        (renewed, "extra_delta"),  # with digests of what it says now
    ):
        with pytest.raises(acc.CertificateError) as refused:
            acc.Ledger(3.0, 1e-5).book(changed)
        assert refused.value.field == field
        with pytest.raises(acc.CertificateError):
            acc.Ledger(3.0, 1e-5, entries=(changed,))


def test_a_certificate_is_booked_once_and_noise_too():
    run = _certify(acc.Gaussian(4.0), declared={"noise": "a1 b2"})
    ledger = acc.Ledger(3.0, 1e-5).book(run)
    with pytest.raises(ValueError, match="a run that is not booked yet"):
        ledger.book(run)
    again = _certify(acc.Gaussian(5.0), declared={"noise": "b2"})  # another price, the same noise
    with pytest.raises(ValueError, match="two runs of one key have no price together"):
        ledger.book(again)
    with pytest.raises(ValueError, match="not booked yet"):
        ledger.book(run.bind_files({"model.json": b"{}"}))  # of the same run, at its end


def test_a_run_that_ended_early_is_booked_in_its_own_place(tmp_path):
    other = _certify(acc.Gaussian(5.0), declared={"noise": "b2"})
    whole = _certify(_run(2.0), declared={"noise": "a1"})
    part = _certify(acc.Gaussian(30.0), declared={"noise": "a1"})
    file = acc.LedgerFile(tmp_path / "ledger.json")
    file.create(acc.Ledger(3.0, 1e-5).book(other).book(whole))
    assert file.correct(whole, part).entries == (other, part)
    assert file.read() == acc.Ledger(3.0, 1e-5).book(other).book(part)
    before = file.path.read_bytes()
    dear = _certify(acc.Gaussian(0.5), declared={"noise": "a1"})
    same = _certify(acc.Gaussian(9.0), declared={"noise": "b2"})
    for booked, certificate, error in (
        (part, dear, acc.BudgetExceeded),
        (part, same, ValueError),  # of the noise of another run
        (whole, part, ValueError),  # is booked no more
    ):
        with pytest.raises(error):
            file.correct(booked, certificate)
    assert file.path.read_bytes() == before
    planned = acc.Ledger(3.0, 1e-5, plan=(whole.mechanism,)).book(whole)
    with pytest.raises(acc.BudgetExceeded, match="a run of the ledger's plan"):
        planned.correct(whole, part)


def test_copies_of_a_ledger_are_merged_by_digest():
    first, second, third = (_certify(acc.Gaussian(s)) for s in (4.0, 5.0, 6.0))
    common = acc.Ledger(3.0, 1e-5).book(first)
    one, other = common.book(second), common.book(third)
    merged = one.merge(other)
    assert merged.entries == (first, second, third)
    assert merged.merge(one) == merged
    with pytest.raises(ValueError, match="other must be a copy"):
        merged.merge(acc.Ledger(4.0, 1e-5))
    small = acc.Ledger(0.9 * merged.spent(), 1e-5, order=merged.order)
    with pytest.raises(acc.BudgetExceeded):
        small.book(first).book(second).merge(small.book(third))


def test_a_ledger_comes_back_and_a_damaged_one_does_not():
    ledger = acc.Ledger(3.0, 1e-5, _SWAP, "user", plan=(acc.Gaussian(4.0),), data=("1", "2"))
    entry = _certify(acc.Gaussian(4.0), adjacency=_SWAP, declared={"unit": "user"})
    ledger = ledger.book(entry)
    assert acc.Ledger.from_json(ledger.to_json()) == ledger
    raw = json.loads(ledger.to_json())
    for change in ({"epsilon": 9.0}, {"entries": []}, {"format": 2}, {"more": 1}):
        with pytest.raises(acc.CertificateError, match="a damaged one"):
            acc.Ledger.from_json(json.dumps(raw | change))


# ------------------------------------------------------------------------------ files


def _book(path, begin, barrier):
    barrier.wait()
    for number in range(begin, begin + 4):
        run = acc.certify(acc.Gaussian(50.0), 1e-6, declared={"number": number})
        acc.LedgerFile(path).book(run)


@pytest.mark.processes
def test_two_processes_lose_no_entry(tmp_path):
    path = tmp_path / "ledger.json"
    acc.LedgerFile(path).create(acc.Ledger(3.0, 1e-5))
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    workers = [context.Process(target=_book, args=(path, 10 * k, barrier)) for k in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    numbers = [entry.declared["number"] for entry in acc.LedgerFile(path).read().entries]
    assert sorted(numbers) == [0, 1, 2, 3, 10, 11, 12, 13]


def test_a_torn_write_is_refused_and_left_as_it_is(tmp_path):
    file = acc.LedgerFile(tmp_path / "ledger.json")
    file.create(acc.Ledger(3.0, 1e-5))
    file.book(_certify(acc.Gaussian(4.0)))
    whole = file.path.read_bytes()
    (tmp_path / ".ledger.json.x1").write_bytes(whole[:9])  # of a process that was killed
    assert len(file.book(_certify(acc.Gaussian(5.0))).entries) == 2
    for torn in (whole[: len(whole) // 2], whole.replace(b"4.0", b"9.0", 1), b""):
        file.path.write_bytes(torn)
        with pytest.raises(acc.CertificateError, match=r"whole ledger, got .*ledger\.json: d"):
            file.book(_certify(acc.Gaussian(6.0)))
        assert file.path.read_bytes() == torn


def test_other_data_under_the_same_name_are_refused(tmp_path):
    table = tmp_path / "people.csv"
    table.write_text("age\n20\n")
    file = acc.LedgerFile(tmp_path / "ledger.json", data=table)
    ledger = file.create(acc.Ledger(3.0, 1e-5))
    assert ledger.data is not None
    file.book(_certify(acc.Gaussian(4.0)))
    with pytest.raises(ValueError, match="path must be a new file"):
        file.create(acc.Ledger(9.0, 1e-5))
    table.write_text("age\n21\n")
    for call in (file.read, lambda: file.book(_certify(acc.Gaussian(4.0)))):
        with pytest.raises(ValueError, match="data must be the data set of the ledger"):
            call()
    assert len(acc.LedgerFile(file.path).read().entries) == 1
    # The digest cannot be looked up: it is salted.
    table.write_text("age\n20\n")
    other = acc.LedgerFile(tmp_path / "b.json", data=table).create(acc.Ledger(3.0, 1e-5))
    assert other.data not in (None, ledger.data)
    assert file.path.stat().st_mode & 0o077 == 0


def test_a_link_to_a_ledger_is_no_second_budget(tmp_path):
    file = acc.LedgerFile(tmp_path / "ledger.json")
    file.create(acc.Ledger(1.0, 1e-5))
    link = tmp_path / "other" / "link.json"
    link.parent.mkdir()
    link.symlink_to(file.path)
    acc.LedgerFile(link).book(_certify(acc.Gaussian(9.0)))
    assert link.is_symlink()
    assert len(file.read().entries) == 1
    with pytest.raises(ValueError, match="path must be a new file"):
        acc.LedgerFile(link).create(acc.Ledger(1.0, 1e-5))
    link.unlink()
    link.hardlink_to(file.path)
    for path in (file.path, link):
        with pytest.raises(ValueError, match=r"path must be a file of one name, got .* of 2"):
            acc.LedgerFile(path).book(_certify(acc.Gaussian(10.0)))
    link.unlink()
    assert len(file.book(_certify(acc.Gaussian(10.0))).entries) == 2
