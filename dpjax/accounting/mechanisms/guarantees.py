"""Releases of which only the guarantee is known, which is taken on trust."""

from __future__ import annotations

import contextlib

import jax
import numpy as np

from dpjax._numerics.arrays import namespace
from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms.base import (
    Mechanism,
    Real,
    choice_field,
    keep,
    number_field,
    register_mechanism,
)
from dpjax.accounting.mechanisms.rounded import times_up, unit_roundoff, with_fields
from dpjax.accounting.pairs import guarantee

AS_ASKED = "as asked"  # a promise for whichever relation a query names
_RELATIONS = (AS_ASKED, *(a.value for a in Adjacency))


class StatedGuarantee(Mechanism):
    """A release of which only the guarantee is known: it is taken on trust.

    A promise about one record more or less implies one about a replacement, which is a removal and
    an addition: (2ε, (1 + e^ε)δ) and 4ρ. A promise about replacements implies none about data sets
    of another size, whose number of records it may publish.
    """

    tier = "conditional"

    def __post_init__(self) -> None:
        given = vars(self)["adjacency"]
        if isinstance(given, str) and given not in _RELATIONS:
            with contextlib.suppress(ValueError):  # what is no name is refused below
                keep(self, "adjacency", Adjacency(given).value)
        super().__post_init__()

    def assumptions(self, adjacency: Adjacency) -> tuple[str, ...]:
        kept = f"what is released keeps the guarantee stated for it: {self.describe()}"
        asked = f", for the {Adjacency(adjacency).value} relation"
        return (kept + asked * (vars(self)["adjacency"] == AS_ASKED),)

    def describe(self) -> str:
        return super().describe().removesuffix(f" ({AS_ASKED})")

    def stated_for(self, adjacency: Adjacency) -> Mechanism | None:
        """The promise under an adjacency, or None where there is none; replacing is two steps."""
        adjacency = Adjacency(adjacency)
        if vars(self)["adjacency"] in (AS_ASKED, adjacency.value):
            return self
        if adjacency is not Adjacency.REPLACE_ONE:
            return None
        if is_traced(self):
            return self.for_group(2.0)
        # in float64, whatever the numbers came in
        return jax.tree.map(lambda x: np.asarray(x, np.float64)[()], self).for_group(2.0)


@register_mechanism
class PureDP(StatedGuarantee):
    """Any (ε, 0)-differentially private release, for the stated adjacency.

    Dominated by randomised response: `δ(ε') = (e^ε − e^ε')₊/(1 + e^ε)` (Kairouz, Oh and Viswanath
    2017).

    Fields:
        epsilon: ε >= 0.
        adjacency: the relation it holds for, "replace-one" or "add-remove"; by default the one that
            a query asks about. One for "add-remove" answers for replacements as two steps of it.

    Example:
        >>> from dpjax import accounting as acc
        >>> f"{acc.epsilon(acc.PureDP(1.0), delta=1e-9):.4f}"
        '1.0000'
    """

    epsilon: Real = number_field()
    adjacency: str = choice_field(*_RELATIONS, default=AS_ASKED)

    released = "a release that is {epsilon}-differentially private ({adjacency})"
    release = guarantee.GUARANTEE

    def for_group(self, records: Real) -> Mechanism:
        return with_fields(self, epsilon=times_up(self.epsilon, records))


@register_mechanism
class ApproximateDP(StatedGuarantee):
    """Any (ε, δ)-differentially private release, for the stated adjacency.

    Dominated by a pair that reveals everything with probability δ and is randomised response
    otherwise (Kairouz, Oh and Viswanath 2017).

    Fields:
        epsilon: ε >= 0.
        delta: δ in [0, 1].
        adjacency: the relation it holds for, "replace-one" or "add-remove"; by default the one that
            a query asks about. One for "add-remove" answers for replacements as two steps of it.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.ApproximateDP(1.0, 1e-6, "add-remove").delta
        1e-06
    """

    epsilon: Real = number_field()
    delta: Real = number_field(0.0, 1.0)
    adjacency: str = choice_field(*_RELATIONS, default=AS_ASKED)

    released = "a release that is ({epsilon}, {delta})-differentially private ({adjacency})"
    release = guarantee.GUARANTEE

    def for_group(self, records: Real) -> Mechanism:
        """δ becomes δ(1 + e^ε + … + e^{(k−1)ε}), at most 1."""
        k = records
        xp = namespace(self, k)
        epsilon = self.epsilon
        # The sum is at most k·e^{(k−1)ε}, which is all that is left of it at ε near 0.
        some = (epsilon > 1e-8) & (k > 1)
        safe = xp.where(some, epsilon, 1.0)
        rises = (k - 1) * safe + xp.log(xp.expm1(-k * safe) / xp.expm1(-safe))
        flat = xp.log(k + 0.0) + (k - 1) * epsilon
        log_factor = xp.where(some, rises, flat)
        log_factor = log_factor + 16 * unit_roundoff(log_factor) * (1 + abs(log_factor))
        # In logarithms, so that nothing overflows: in float32 neither.
        stated = self.delta
        some = stated > 0
        log_delta = (
            xp.log(xp.where(some, stated, 1.0)) * (1 - unit_roundoff(log_factor)) + log_factor
        )
        delta = xp.where(some, xp.exp(xp.minimum(log_delta, 0.0)), 0.0)
        delta = xp.where(k == 1, self.delta, delta)
        return with_fields(self, epsilon=times_up(epsilon, k), delta=delta)


@register_mechanism
class ZeroConcentrated(StatedGuarantee):
    """Any ρ-zCDP release, for the stated adjacency: RDP(α) = ρα (Bun and Steinke 2016).

    An adaptive run kept below ρ by a filter is one such release (Feldman and Zrnic 2021).

    Fields:
        rho: ρ >= 0.
        adjacency: as of `PureDP`.

    Example:
        >>> from dpjax import accounting as acc
        >>> round(acc.epsilon(acc.ZeroConcentrated(0.1), delta=1e-5), 4) <= 2.1
        True
    """

    rho: Real = number_field()
    adjacency: str = choice_field(*_RELATIONS, default=AS_ASKED)

    released = "a release that is {rho}-zCDP ({adjacency})"

    def for_group(self, records: Real) -> Mechanism:
        """A group of k costs k²ρ (Bun and Steinke 2016, Proposition 27)."""
        return with_fields(self, rho=times_up(times_up(self.rho, records), records))
