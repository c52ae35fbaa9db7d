"""What the methods read of a dominating pair, and so what a new mechanism has to write.

A pair is two distributions (P, Q) on the line that are at least as easy to tell apart as any two
neighbours' outputs of one step, with the loss L(y) = log dP/dQ. Methods know no mechanism by name:
they ask its pair. There are two kinds of part to add, and most people want the first.

A new *release* (noise of another law, another way to answer) is an object of a class made from
`Release`, which its mechanism's class has as `release`. That is all: no other file names it. Loss
distributions then compose it with everything else, sampled and repeated. A single use has the
closed form of a `ClosedFormRelease`; Rényi curves add the moments of a `CurveRelease`, and refuse
a release that is none. A release that one Gaussian pair dominates needs nothing from here, but a
line in `pairs/gaussian.py`.

A new way of *sampling* Gaussian releases is a `SamplingRule`, which says which pair its steps take
and when it has none, and a line in `pairs/atoms.py`. Parameters of such a pair are μ, how far a
record can move the sum in standard deviations of the noise, and the sampling rate q. Only where no
pair there fits does it bring a `GridPair` of its own, named in `pairs/atoms.py` as well.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics.namespace import Numbers, NumbersLike
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.typing import Real

if TYPE_CHECKING:
    from dpjax.accounting.pairs.finite import Finite


Own = TypeVar("Own", bound=tuple)  # the numbers that a release's pair is made of
Masses = tuple[np.ndarray, np.ndarray, float]  # as `GridPair.masses` returns them


class StepGroup(NamedTuple):
    """Steps that share a kind of pair, grouped by their parameters.

    Fields:
        mu: distance of the means over the noise's standard deviation.
        rate: sampling rate in [0, 1].
        count: how many steps of this kind; 0 for padding.
    """

    mu: Float[Array, " groups"]
    rate: Float[Array, " groups"]
    count: Float[Array, " groups"]


class GridPair:
    """A pair whose loss can be laid on a grid: what loss distributions read. NumPy alone.

    `sign` is +1 for (P, Q) and −1 for the reverse; only pairs that are `directed` look at it.

    Fields:
        name: in `pairs.atoms.PAIRS`.
        directed: whether the two directions differ, so that both have to be asked.
        folded: whether the two halves of the line are one function and its mirror image, with an
            atom at loss 0 between them.
    """

    name = ""
    directed = folded = False

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        """Losses between which all of P lies but for normal tails beyond `reach`."""
        raise NotImplementedError

    def masses(self, sign: int, mu: float, rate: float, losses: np.ndarray) -> Masses:
        """P and Q mass between successive losses, and P mass above the last."""
        raise NotImplementedError

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        """A grid offset l₀, and whether outcomes within h of it may be lumped there from below.

        A lump is a function of the outcome, and has the loss log(P/Q) of its total masses:
        second-order exact where most of the mass lies in one bin. Any l₀ ≤ log(P/Q) of what lies
        within h of it will do; for symmetric pairs 0 does.
        """
        return 0.0, False

    def atom(self, mu: float, rate: float) -> float:
        """P mass of the outcome of loss 0 that `masses` leaves out."""
        return 0.0


class BoundedPair(GridPair):
    """A pair whose law is known from above and from below only: `side` is laid on a grid."""

    directed = True

    def side(self, sign: int, mu: float, rate: float, reach: float, upper: bool) -> GridPair:
        """The pair to be laid on a grid in its place, for an upper bound or for a lower one."""
        raise NotImplementedError

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        return self.side(sign, mu, rate, reach, True).loss_range(sign, mu, rate, reach)


class Release(abc.ABC, Generic[Own]):
    """One kind of release: what its pair depends on, and the pair as a list of outcomes.

    A subclass writes `numbers` and `pair`, and `largest` where losses end; one object of it is the
    `release` of the mechanism's class. The reverse (Q, P) must be the mirror image of (P, Q), as
    it is where the noise is symmetric: then one direction says all, and the methods ask no other.
    Where the Rényi curve or the profile δ(ε) has a closed form the class is made from
    `CurveRelease`, `ClosedFormRelease` or both in the place of this one.

    Fields:
        tight: whether some neighbours attain the pair itself, composed as well as alone. As long
            as it is not set, upper ends hold and lower ends are 0.
        sampled: whether neighbours attain its Poisson samples too; as long as it is not set, lower
            ends of a sampled release are 0.
    """

    tight: ClassVar[bool] = False
    sampled: ClassVar[bool] = False

    @abc.abstractmethod
    def numbers(self, step: Any, adjacency: Adjacency) -> Own | None:
        """Return what the pair depends on, in a NamedTuple; None where no pair is known.

        Args:
            step: the mechanism, whose fields are numbers, arrays of a sweep, or traced ones.
            adjacency: the neighbouring relation; replacing a record may move twice as far.
        """

    @abc.abstractmethod
    def pair(self, numbers: Own, *, upper: bool) -> Finite:
        """Return the losses of finitely many outcomes and their masses. NumPy alone.

        Args:
            numbers: as `numbers` gave them, of one setting: floats.
            upper: True for a pair that is at least as easy to tell apart as the true one, such as
                each cell of outcomes split between its two ends; False for one that is at most as
                easy, such as each cell lumped into one outcome.
        """

    def largest(self, numbers: Own) -> NumbersLike | None:
        """Return the largest loss; None where losses have no end, or none that is known."""
        return None


class CurveRelease(Release[Own]):
    """A release whose Rényi curve is known in closed form, for NumPy and JAX."""

    @abc.abstractmethod
    def divergence(self, numbers: Own, orders: Numbers) -> Numbers:
        """Return the Rényi divergence of each order, above one."""


class ClosedFormRelease(Release[Own]):
    """A release whose profile is known in closed form, for NumPy and JAX."""

    @abc.abstractmethod
    def epsilon(self, numbers: Own, delta: Numbers) -> Numbers:
        """Return ε(δ), neither rounded nor clipped at 0."""

    @abc.abstractmethod
    def delta(self, numbers: Own, epsilon: Numbers) -> Numbers:
        """Return δ(ε), ε >= 0."""


class LatticeRelease(CurveRelease[Own]):
    """A release of Gaussian noise on the whole numbers, which is nearly a Gaussian one."""

    @abc.abstractmethod
    def lattice(self, numbers: Own) -> tuple[np.ndarray, np.ndarray]:
        """Return V and η of LATTICE in `contour.lattice`."""


class SampledRelease(NamedTuple):
    """A release whose pair is known, and how it is sampled.

    Fields:
        release: a `Release`, or what is `Laid` where loss distributions ask.
        numbers: what its pair is made of.
        rate: sampling rate.
        symmetric: whether an upper bound takes both directions of the sampled pair at once.
    """

    release: Release | Laid
    numbers: tuple[Any, ...]
    rate: Real = 1.0
    symmetric: bool = False

    @property
    def is_laid(self) -> bool:
        """Whether it has no finite list of outcomes, so that a grid is laid for it."""
        return isinstance(self.release, Laid)

    def at(self, numbers: Iterable[float], rate: float) -> SampledRelease:
        """Return the same release with other numbers, one setting's of a sweep."""
        make = getattr(self.numbers, "_make", tuple)  # where the numbers have names they keep them
        return self._replace(numbers=make(numbers), rate=rate)


class Laid(NamedTuple):
    """What lays the steps of one kind on a grid that have no finite list of outcomes.

    Loss distributions alone read it, both directions of it.

    Fields:
        grid: the pair of one concrete setting. NumPy alone.
        tight, sampled: as of `Release`; neighbours attain the pair itself where `sampled` is true.
    """

    grid: Callable[[SampledRelease], GridPair]
    tight: bool
    sampled: bool = True


class SamplingRule(NamedTuple):
    """One way of sampling: around Gaussian releases, and around those whose pair is known.

    Fields:
        name: of its steps in `atoms.GroupedSteps`.
        kind: the class of mechanism.
        refusal: (step, adjacency, kind_of) -> why no theorem covers it, "" where one does;
            kind_of tells what is sampled: "gaussian", the name of a scheme, or "mixed".
        parameters: (step, adjacency) -> displacement over noise, and sampling rate; a third value,
            if there is one, says how many such pairs each step is, along a first axis of its own.
        dominating: adjacency -> the pair that dominates however an adversary mixes directions.
        attained: adjacency -> a pair that some neighbours attain. Its Rényi divergence of the
            larger direction bounds the step's as well.
        exhibited: whether some neighbours attain it for this step's numbers.
        participation: (step, adjacency) -> with which probability a release sees the one record
            that differs, all else equal; None where no such number bounds the step.
        amplify: (step, adjacency, what is sampled) -> the same, sampled; None without a theorem.
    """

    name: str
    kind: type
    refusal: Callable[[Any, Adjacency, Callable], str]
    parameters: Callable[[Any, Adjacency], tuple[Any, ...]]
    dominating: Callable[[Adjacency], str]
    attained: Callable[[Adjacency], str]
    exhibited: Callable[[Any], bool] = lambda step: True
    participation: Callable[[Any, Adjacency], Any] = lambda step, adjacency: None
    amplify: Callable[..., SampledRelease | None] = lambda step, adjacency, inner: None
