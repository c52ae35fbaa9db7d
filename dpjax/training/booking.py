"""Booking a run in a ledger, once, before its first step."""

from __future__ import annotations

import dataclasses
import pathlib

import jax

from dpjax import accounting as acc
from dpjax.training.plan import Plan
from dpjax.training.run_store import RunStore


def book_once(
    run: acc.Certificate, store: RunStore, ledger: acc.LedgerFile, *, corrects: bool = False
) -> None:
    """Book a run, as it may be killed: once, unless the ledger was made anew.

    Where it `corrects`, it takes the place of what was booked of the same folder, of which nothing
    was released that it does not cover.
    """

    def name_note(one: acc.Certificate) -> str:
        # It names one key; a certificate of another source may say more than a file's name holds.
        return f"booked_{one.declared.get('noise')}"[:64]

    # A key has another name in every process: the folder keeps the one that was booked.
    booked = [one for one in ledger.read().entries if store.noted(name_note(one), False)]
    if any(one.digests["mechanism"] == run.digests["mechanism"] for one in booked):
        return
    if booked and corrects:
        ledger.correct(booked[-1], run)
    else:
        ledger.book(run)
    store.noted(name_note(run), True)


def open_ledger(
    ledger: acc.LedgerFile | str | pathlib.Path, plan: Plan, *, resume: bool
) -> acc.LedgerFile:
    """The ledger, if it can pay for the plan: refused before any record is read."""
    file = ledger if isinstance(ledger, acc.LedgerFile) else acc.LedgerFile(ledger)
    if jax.process_count() > 1:
        raise ValueError(
            f"ledger must be None where several processes train together, got {file.path}: book "
            "plan.certify() by LedgerFile.book before they start"
        )
    found = file.read()
    if not resume:  # such a run may be booked
        found.book(certify_alone(plan, ("", True)))
    return file


def certify_alone(plan: Plan, named: tuple[str, bool]) -> acc.Certificate:
    """The certificate of one run of a plan, whatever other runs it has had."""
    alone = dataclasses.replace(plan)
    object.__setattr__(alone, "_named_budget", True)  # a budget's own warning is not repeated
    alone.keys.append(named)
    alone.rounding.extend(plan.rounding)
    return alone.certify()
