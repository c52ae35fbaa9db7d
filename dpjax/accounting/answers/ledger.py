"""What one data set has spent, run by run, and whether it may pay for another one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax._digits import format_rounded_up
from dpjax._numerics import checks
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers import pricing, query
from dpjax.accounting.answers.as_json import from_plain, parse, to_plain
from dpjax.accounting.answers.certificate import Certificate, check_unchanged, is_ex_post
from dpjax.accounting.errors import BudgetExceeded, CertificateError
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.accounting.mechanisms import Composed, Mechanism
from dpjax.accounting.renyi.conversion import rdp_to_epsilon

_LEDGER_FORMAT = 1
_FAILURES = 0.1  # of δ, kept for what certificates reserve of theirs
_ORDERS = 1 + np.exp(np.linspace(-3.0, 8.0, 221))


@dataclasses.dataclass(frozen=True)
class Ledger:
    """A budget (ε, δ) of one data set and the certificates of the runs that spent of it.

    Runs whose settings are chosen after results of earlier ones were seen are priced by a filter:
    the sum of what they cost in a measure that adds up whatever was chosen, converted to ε. It is
    Rényi ε at one order, fixed here before the first run, or μ² of runs of Gaussian releases.
    With a `plan` all runs are declared before the first one: their exact composed price holds, and
    no other run is booked.

    Raises:
        BudgetExceeded: the plan, or the entries, cost more than the budget.
        ValueError, TypeError: a number out of range, or entries of another adjacency or unit.

    Fields:
        epsilon, delta: the budget. A tenth of δ is kept for what certificates reserve of theirs.
        adjacency, unit: of every certificate; the unit is "record", "user" or "person".
        measure: "renyi" or "gaussian" (μ², which is 2ρ of zero-concentrated privacy).
        order: of "renyi"; or what all runs together are expected to be, for the order at which that
            is cheapest; by default the one at which (ε, δ) buys most runs of many small steps.
        plan: all runs, where they are declared in advance.
        entries: the certificates that were booked.
        data: salt and digest of the data set's file, where there is one; see `LedgerFile`.

    Guarantee:
        All booked runs together are (ε, δ)-differentially private, adaptively chosen or planned.

    Example:
        >>> from dpjax import accounting as acc
        >>> ledger = acc.Ledger(epsilon=2.0, delta=1e-5)
        >>> run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(2.0), 0.01), 1_000)
        >>> ledger = ledger.book(acc.certify(run, delta=1e-6))
        >>> round(ledger.spent(), 2), round(ledger.planned(), 2)
        (1.03, 0.62)
        >>> ledger.book(acc.certify(acc.Gaussian(1.0), delta=1e-6))
        Traceback (most recent call last):
        dpjax.accounting.errors.BudgetExceeded: ...

    References:
        Feldman, Zrnic 2021, "Individual privacy accounting via a Rényi filter", Theorem 3.1 (at one
        order); Smith, Thakurta 2022, "Fully adaptive composition for Gaussian differential
        privacy", Theorem 1.1; Koskela, Tobaben, Honkela 2023, "Individual privacy accounting with
        Gaussian differential privacy" (μ²).
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: str = "record"
    measure: str = "renyi"
    order: float | Mechanism | None = None
    plan: tuple[Mechanism, ...] = ()
    entries: tuple[Certificate, ...] = ()
    data: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        positive = checks.Range(0.0, open_low=True)
        fields: dict[str, Any] = {
            "epsilon": checks.one_number("epsilon", self.epsilon, positive),
            "delta": checks.one_number("delta", self.delta, query.PROBABILITY),
            "adjacency": pricing.check_adjacency(self.adjacency),
            "unit": checks.choice("unit", self.unit, ("record", "user", "person")),
            "measure": checks.choice("measure", self.measure, ("renyi", "gaussian")),
            "plan": tuple(self.plan),
            "entries": tuple(self.entries),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        order = self.order
        if order is None or isinstance(order, Mechanism):
            order = self._best_order(order)
        order = checks.one_number("order", order, checks.Range(1.0, open_low=True))
        object.__setattr__(self, "order", order)
        for run in self.plan:
            if not isinstance(run, Mechanism):
                raise TypeError(f"plan must hold mechanisms, got {checks.render(run)}")
        for entry in self.entries:
            self._check_entry(entry)
        self._check_budget()

    def _best_order(self, expected: Mechanism | None) -> float:
        """Where the expected runs cost least; of none the order whose budget per order is largest.

        That is the best of runs of many small steps, whose curve is proportional to the order.
        """
        if expected is None:
            # ε of Rényi r at an order is r plus a number of that order and δ.
            added = np.asarray(rdp_to_epsilon(_ORDERS, self.epsilon, self._usable)) - self.epsilon
            cost = -(self.epsilon - added) / _ORDERS
        else:
            # What is expected is known before the first run: so is the order, as a filter asks.
            curve = pricing.rdp(expected, _ORDERS, adjacency=self.adjacency)
            if np.ndim(curve) > 1:
                raise ValueError(
                    f"order must be a number or one setting of a run, got {np.shape(curve)[:-1]}"
                )
            cost = np.asarray(rdp_to_epsilon(_ORDERS, curve, self._usable))
        return float(f"{_ORDERS[int(np.argmin(cost))]:.4g}")

    @property
    def _usable(self) -> float:
        """The part of δ for the runs' mechanisms, fixed in advance as everything of a filter is."""
        return self.delta * (1 - _FAILURES)

    def _check_entry(self, entry: Certificate) -> None:
        if not isinstance(entry, Certificate):
            raise TypeError(f"certificate must be a Certificate, got {checks.render(entry)}")
        unit = str(entry.declared.get("unit", "record"))
        both = {"adjacency": (self.adjacency, entry.adjacency), "unit": (self.unit, unit)}
        for name, (own, theirs) in both.items():
            if own != theirs:
                raise ValueError(f"certificate must be of the ledger's {name}, {own}, got {theirs}")
        check_unchanged(entry)

    def _check_budget(self) -> None:
        left = list(self.plan)  # runs of one mechanism count as often as they are planned
        for entry in self.entries if self.plan else ():
            if entry.mechanism not in left:
                raise BudgetExceeded(
                    "certificate must be of a run of the ledger's plan that was not made yet, got "
                    f"{entry.mechanism.describe()}: a run that was not declared before the first "
                    "one needs a ledger without a plan"
                )
            left.remove(entry.mechanism)
        spent = self.spent()
        if not spent <= self.epsilon:  # NaN keeps no budget
            raise BudgetExceeded(
                f"certificate must keep the budget epsilon={self.epsilon:g} at delta="
                f"{self.delta:g}, got {format_rounded_up(spent, 4)} together with what is booked"
                + ("" if math.isfinite(spent) else f": {self._explain_infinity()}")
            )

    def _explain_infinity(self) -> str:
        """Why no ε holds of what is booked and planned."""
        if any(entry.tier == "none" for entry in self.entries):
            return "one of the runs has no finite epsilon"
        kept = _FAILURES * self.delta
        if self._reserve > kept:
            return (
                f"certificates reserve {self._reserve:.3g} of their delta, and the ledger keeps a "
                f"tenth of its own for that, {kept:.3g}: certify the runs at smaller deltas"
            )
        return f"one of the runs has no finite epsilon at delta={self._usable:.3g} in this measure"

    @property
    def _reserve(self) -> float:
        """What the booked certificates reserve of δ, together."""
        return math.fsum(sum(entry.extra_delta.values()) for entry in self.entries)

    def spent(self) -> float:
        """ε at the ledger's δ of what is booked, chosen on the way; of a plan, that of the plan.

        Raises:
            UnsupportedQuery: a run has no price in the ledger's measure.
        """
        if self._reserve > _FAILURES * self.delta or any(e.tier == "none" for e in self.entries):
            return math.inf
        if self.plan:
            return self._compose(self.plan, self._usable)
        runs = [entry.mechanism for entry in self.entries]
        if not runs:
            return 0.0
        if self.measure == "gaussian":
            mus = [float(gaussian_dp.gdp_mu(run, adjacency=self.adjacency)) for run in runs]
            return float(gaussian_dp.epsilon(gaussian_dp.compose(np.asarray(mus)), self._usable))
        costs = [pricing.rdp(run, [self.order], adjacency=self.adjacency)[0] for run in runs]  # pyrefly: ignore
        # A sum of n doubles, each exact to an ulp, is off by less than n ulps.
        total = math.fsum(map(float, costs)) * (1 + len(costs) * 4e-16)
        assert isinstance(self.order, float)  # a run was made one when the ledger was
        return float(rdp_to_epsilon(self.order, total, self._usable))

    def planned(self) -> float:
        """ε at the ledger's δ if the booked runs had all been declared before the first one.

        +inf where one of them was stopped by what it released: its length was not declared.

        Raises:
            UnsupportedQuery: as `epsilon`.
        """
        runs = tuple(entry.mechanism for entry in self.entries)
        if not runs:
            return 0.0
        if self._reserve >= self.delta or any(map(is_ex_post, self.entries)):
            return math.inf
        return self._compose(runs, self.delta - self._reserve)

    def _compose(self, runs: Sequence[Mechanism], delta: float) -> float:
        whole = runs[0] if len(runs) == 1 else Composed(tuple(runs))
        return float(pricing.epsilon(whole, delta, adjacency=self.adjacency))

    def book(self, certificate: Certificate) -> Ledger:
        """The ledger with one more run; call it before the run starts.

        Noise is known by the names in its certificate, which a process draws: two runs in different
        processes with one key given by hand are not found, and are booked as if independent.

        Raises:
            BudgetExceeded: the runs together would cost more than the budget, or the plan lacks it.
            CertificateError: the certificate was changed after it was made, or contradicts itself.
            ValueError: another adjacency or unit, a certificate that is booked, or one of noise
                that is: two runs of one key cost what nobody knows.
        """
        self._check_entry(certificate)
        noise = _name_noise(certificate)  # two runs of one key have no joint price
        for entry in self.entries:
            if entry.digests == certificate.digests or noise & _name_noise(entry):
                raise ValueError(
                    f"certificate must be of a run that is not booked yet, got {entry.created}, "
                    f"{entry.mechanism.describe()}: a run costs once, and two runs of one key have "
                    "no price together"
                )
        return dataclasses.replace(self, entries=(*self.entries, certificate))

    def correct(self, booked: Certificate, certificate: Certificate) -> Ledger:
        """The ledger with another certificate of a run that was booked before it was made.

        For a run that ended before it released all that was booked: the new certificate must cover
        whatever was released of what the old one covers.

        Raises:
            BudgetExceeded, CertificateError, ValueError: as `book`; the ledger is as it was.

        Example:
            >>> from dpjax import accounting as acc
            >>> whole, part = (acc.certify(acc.Gaussian(noise), 1e-6) for noise in (4.0, 16.0))
            >>> ledger = acc.Ledger(epsilon=2.0, delta=1e-5).book(whole)
            >>> ledger.correct(whole, part).entries == (part,)
            True
        """
        left = tuple(one for one in self.entries if one.digests != booked.digests)
        if len(left) == len(self.entries):
            raise ValueError(f"booked must be a certificate of the ledger, got {booked.created}")
        return dataclasses.replace(self, entries=left).book(certificate)

    def merge(self, other: Ledger) -> Ledger:
        """The ledger with the runs of a copy that was booked elsewhere; none is lost or paid twice.

        Raises:
            BudgetExceeded: together they cost more than the budget; both ledgers are as they were.
            ValueError: the other ledger is of another budget, plan or data set.
        """
        if dataclasses.replace(other, entries=()) != dataclasses.replace(self, entries=()):
            raise ValueError("other must be a copy of this ledger, got one of another head")
        merged, known = self, [entry.digests for entry in self.entries]
        for entry in other.entries:
            if entry.digests not in known:
                merged = merged.book(entry)
        return merged

    def to_json(self) -> str:
        """The ledger as JSON text, with a digest that finds a damaged file."""
        content = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        content["plan"] = to_plain(self.plan)  # floats to the last bit
        content["entries"] = [json.loads(entry.to_json()) for entry in self.entries]
        content = {"format": _LEDGER_FORMAT, **content}
        return (
            json.dumps(content | {"check": _check_sum(content)}, indent=1, ensure_ascii=False)
            + "\n"
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Ledger:
        """Read a ledger's text.

        Raises:
            CertificateError: it is damaged, or no ledger.
        """
        raw = parse(text)
        names = {f.name for f in dataclasses.fields(cls)}
        check = raw.pop("check", None)  # a digest of all else, against a torn or edited file
        is_whole = check == _check_sum(raw) and raw.pop("format", None) == _LEDGER_FORMAT
        if not is_whole or set(raw) != names:
            raise CertificateError("check", "the text must be a whole ledger, got a damaged one")
        entries = (Certificate.from_json(json.dumps(entry)) for entry in raw.pop("entries"))
        plan, data = from_plain(raw.pop("plan")), from_plain(raw.pop("data"))
        return cls(**raw, plan=plan, entries=tuple(entries), data=data)


def _check_sum(content: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(content))  # as it will be read: tuples are lists
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _name_noise(certificate: Certificate) -> set[str]:
    return set(str(certificate.declared.get("noise", "")).split())
