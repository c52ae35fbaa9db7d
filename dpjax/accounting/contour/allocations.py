"""Random allocation as lines take it: by outcomes of its density ratio's law.

An upper end takes the law from above, a lower end the one from below.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpjax._numerics.arrays import NUMPY
from dpjax.accounting.contour.saddle import Composition, Group, approximate_moments
from dpjax.accounting.loss_distribution.step import Pair
from dpjax.accounting.pairs.allocation import Allocation
from dpjax.accounting.pairs.atoms import GRIDS
from dpjax.accounting.pairs.outcomes import Outcomes
from dpjax.accounting.pairs.pair import Atoms

# Pairs that are known by the outcomes of a law from above and of one from below.
LAWS = [name for name, pair in GRIDS.items() if isinstance(pair, Allocation)]
_TILTS = np.geomspace(1e-2, 1e5, 80)


def _laws(
    pairs: list[Pair], delta: float, upper: bool
) -> tuple[float, list[tuple[Outcomes, float]]]:
    """Return Σμ² of allocations that are plain Gaussians, and the outcomes of the others."""
    mu2, laws = 0.0, []
    for name, sign, mu, rate, count in pairs:
        found = GRIDS[name].outcomes(sign, mu, rate, delta / max(count, 1.0), upper)  # pyrefly: ignore
        if isinstance(found, Outcomes):
            laws.append((found, count))
        else:
            mu2 += count * mu * mu
    return mu2, laws


class Allocated(NamedTuple):
    """A run with random allocation by outcomes of its laws.

    Fields:
        run: what else is composed.
        laws: the outcomes of each allocation, and how often it is made.
        upper: whether the laws are those from above.
    """

    run: Composition
    laws: list[tuple[Outcomes, float]]
    upper: bool = True

    def rough(self) -> Composition:
        """Return about the run, to look where a line goes; no bound rests on it."""
        return self._compose([law.rough() for law, _ in self.laws])

    def few(self, tilt: float, delta: float) -> Composition:
        """Return the run by few outcomes, fine where lines of this tilt weigh them."""
        return self._compose([law.few(tilt, self.upper) for law, _ in self.laws])

    def _compose(self, found: list[Atoms]) -> Composition:
        stacked = [Atoms(*(v[None] for v in one)) for one in found]
        groups = (
            Group(a, NUMPY.asarray([n])) for a, (_, n) in zip(stacked, self.laws, strict=True)
        )
        return Composition(self.run.gaussian_mu2, (*self.run.groups, *groups))


def allocate(run: Composition, pairs: list[Pair], delta: float, upper: bool = True) -> Allocated:
    """Return the run with random allocations, whose laws are made for a δ of about so much."""
    mu2, laws = _laws(pairs, delta, upper)
    return Allocated(run._replace(gaussian_mu2=run.gaussian_mu2 + mu2), laws, upper)


def with_allocations(
    run: Composition, pairs: list[Pair], given: float, question: str, upper: bool
) -> Composition:
    """Return the run with random allocation by few outcomes, where those of the answer weigh.

    Whatever δ a law is made for and whatever outcomes are kept, it bounds: a rough look says which.
    """
    asked = question == "epsilon"
    delta, tilt = (given if asked else 1e-6), None
    for _ in range(2):
        allocated = allocate(run, pairs, delta, upper)
        whole = allocated.rough() if tilt is None else allocated.few(tilt, delta)
        if tilt is not None or not allocated.laws:
            break
        # Chernoff's bound at every tilt, of which the least is near the saddle point.
        moment = approximate_moments(whole, NUMPY.asarray(_TILTS))[0]
        if asked:  # log δ ≤ K(c) − c·ε, solved for ε
            tilt = float(_TILTS[np.nanargmin((moment - np.log(given)) / _TILTS)])
        else:
            height = moment - _TILTS * given - np.log(_TILTS) - np.log1p(_TILTS)
            tilt = float(_TILTS[np.nanargmin(height)])
            # About the answer, for which the laws are made anew.
            delta = float(np.clip(np.exp(np.nanmin(height)), 1e-250, 0.1))
    return whole
