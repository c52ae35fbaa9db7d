"""What the methods read of a dominating pair.

A pair is two distributions (P, Q) on the line that are at least as easy to tell apart as any two
neighbours' outputs of one step, with the loss L(y) = log dP/dQ. In units of the noise's standard
deviation its parameters are μ, how far a record can move the sum, and the sampling rate q. Contour
integration, Rényi curves and loss distributions know no pair by name: a new one is a class with
these methods in a file of its own, and a line in `pairs/atoms.py`.

What a release says of itself whose pair of distributions is known is its class's `release`, an
object of a class made from `Release`: loss distributions then compose it with everything else,
sampled and repeated, and a single use has the closed form it states. Rényi curves add its moments
where it is a `CurveRelease`, which states them.

A mechanism that samples (`SamplingRule`) says which pair its steps take, and when it has none.
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
    """One kind of release. Its pair is its own mirror image, so that one direction says all.

    A subclass says what its pair is made of, a tuple with a name for each number, and lays the pair
    out. One whose Rényi curve or profile is known in closed form is a `CurveRelease`, a
    `ClosedFormRelease` or both.

    Fields:
        tight: whether some neighbours attain the pair itself, composed as well as alone.
        sampled: whether neighbours attain its Poisson samples too; otherwise lower ends are 0.
    """

    tight: ClassVar[bool] = False
    sampled: ClassVar[bool] = False

    @abc.abstractmethod
    def numbers(self, step: Any, adjacency: Adjacency) -> Own | None:
        """Return what the pair is made of, numbers or arrays; None where no pair is known."""

    @abc.abstractmethod
    def pair(self, numbers: Own, *, upper: bool) -> Finite:
        """Return a pair that dominates, or one that neighbours attain. NumPy alone."""

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
