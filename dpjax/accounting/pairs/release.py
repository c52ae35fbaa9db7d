"""What a release says of itself whose pair of distributions is known: one class in one file.

A new one is a mechanism, a class with these methods, and a line in `pairs/table.py`; loss
distributions then compose it with everything else, sampled and repeated, Rényi curves add its
moments, and a single use has the closed form that it states.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.pairs.finite import Finite
from dpjax.accounting.pairs.protocol import Discretisable


class Release(Protocol):
    """One kind of release. Its pair is its own mirror image, so that one direction says all.

    Fields:
        kind: the class of mechanism.
        tight: whether some neighbours attain the pair itself, composed as well as alone.
        sampled: whether neighbours attain its Poisson samples too; otherwise lower ends are 0.
    """

    kind: type
    tight: bool
    sampled: bool

    def numbers(self, step: Any, adjacency: Adjacency) -> tuple[Any, ...] | None:
        """What `pair` is made of, numbers or arrays; None where no pair is known."""
        ...

    def pair(self, *numbers: Any, **upper: Any) -> Finite:
        """(*numbers, upper=): a pair that dominates, or one that neighbours attain. NumPy alone."""
        ...


class Laid(Protocol):
    """A kind of step without a finite list of outcomes, whose pair is laid on a grid.

    Loss distributions alone read it, both directions of it.

    Fields:
        kind: the class of mechanism.
        tight, sampled: as of `Release`; neighbours attain the pair itself where `sampled` is true.
    """

    kind: type
    tight: bool
    sampled: bool

    def known(self, step: Any, adjacency: Adjacency) -> Known | None:
        """The step's numbers, of which the first is the displacement over the noise, or None."""
        ...

    def grid(self, own: Known) -> Discretisable:
        """The pair of one concrete setting. NumPy alone."""
        ...


class Closed(Release, Protocol):
    """A release whose profile and Rényi curve are known in closed form, for NumPy and JAX."""

    def epsilon(self, *numbers: Any) -> Any:
        """The last of the numbers is δ; not rounded, not clipped at 0."""
        ...

    def delta(self, *numbers: Any) -> Any:
        """The last of the numbers is ε >= 0."""
        ...

    def divergence(self, *numbers: Any) -> Any:
        """The last of the numbers is the Rényi order, above one."""
        ...


class Known(NamedTuple):
    """A release whose pair is known, and how it is sampled.

    Fields:
        release: a `Release`, or a `Laid` where loss distributions ask.
        numbers: what its pair is made of.
        rate: sampling rate.
        symmetric: whether an upper bound takes both directions of the sampled pair at once.
    """

    release: Any
    numbers: tuple[Any, ...]
    rate: Any = 1.0
    symmetric: bool = False
