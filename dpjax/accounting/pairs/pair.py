"""The three kinds of pairs that the contour reads: on a line, on two half-lines, and atoms.

A step is a pair of distributions (P, Q) that is at least as easy to tell apart as any two
neighbours' outputs. What is derived from a pair, and only once for all of them, is in
`contour/tilt.py`: nodes, moments, the error of the quadrature and the decay of the transform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpjax._numerics.arrays import NUMPY, Numbers, namespace

if TYPE_CHECKING:
    from dpjax.accounting.pairs.mixtures import Mixture

# How far masses of a pair may be from summing to one: what a float64 sum of many terms is off by.
MASS_ERROR = 1e-12


class Spread(NamedTuple):
    """One density of a `mixtures.Mixture` at some points, as a mixture of exponentials.

    Fields:
        value: log p.
        share: of every mean in the density, means first.
        mean, variance: of the means under these shares: (log p)′ and (log p)″.
        rounding: what `value` is rounded by, in units of eps.
    """

    value: Numbers
    share: Numbers
    mean: Numbers
    variance: Numbers
    rounding: Numbers


class Folded(NamedTuple):
    """A pair on the half-line y > start, its mirror image with P and Q exchanged, and an atom.

    Its two directions are one, and its profile at ε ≥ 0 is that of the pair on the whole line.

    Fields:
        pair: a `Mixture` whose loss rises, and is 0 at the start.
        start: where the half-lines begin.
        atom: mass, under P and under Q, of the outcome of loss 0.
    """

    pair: Mixture
    start: Numbers
    atom: Numbers

    def halves(self) -> tuple[Mixture, Mixture]:
        """Return the pairs on either half-line."""
        return self.pair, self.pair.reversed()

    def reversed(self) -> Folded:
        """Return the pair with P and Q exchanged."""
        return self


class Atoms(NamedTuple):
    """Finitely many outcomes; of masses 0 the loss does not count.

    Fields:
        loss: log P/Q of every outcome that both P and Q can give.
        mass: its mass under P.
        infinite: mass under P of the outcomes that Q never gives.
        never: mass under Q of the outcomes that P never gives.
    """

    loss: Numbers
    mass: Numbers
    infinite: Numbers
    never: Numbers

    def reversed(self) -> Atoms:
        """Return the pair with P and Q exchanged."""
        xp = namespace(self)
        return Atoms(-self.loss, self.mass * xp.exp(-self.loss), self.never, self.infinite)


def concrete_atoms(
    loss: np.ndarray, mass: np.ndarray, infinite: float = 0.0, never: float = 0.0
) -> Atoms:
    """Return the pair of one concrete setting."""
    return Atoms(*(NUMPY.asarray(v) for v in (loss, mass, infinite, never)))
