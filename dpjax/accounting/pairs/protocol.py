"""What the methods read of a dominating pair.

A pair is two distributions (P, Q) on the line that are at least as easy to tell apart as any two
neighbours' outputs of one step, with the loss L(y) = log dP/dQ. In units of the noise's standard
deviation its parameters are μ, how far a record can move the sum, and the sampling rate q. Contour
integration, Rényi curves and loss distributions know no pair by name: a new one is a class with
these methods in a file of its own, and a line in `pairs/table.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Array, Float


class Steps(NamedTuple):
    """Steps that share a kind of pair, grouped by their parameters.

    Fields:
        mu: distance of the means over the noise's standard deviation.
        rate: sampling rate in [0, 1].
        count: how many steps of this kind; 0 for padding.
    """

    mu: Float[Array, " groups"]
    rate: Float[Array, " groups"]
    count: Float[Array, " groups"]


class Tilted(NamedTuple):
    """A step's privacy loss under the measure ∝ e^{cL} dP, on quadrature nodes.

    Fields:
        log_moment: K(c) = log E_P[e^{cL}].
        weight: probabilities of the nodes, summing to one.
        loss: L at the nodes.
        spread: E|L| under the weights, the condition of the transform's sum.
        rounding: E[ε] and E[ε|L|] under the weights, ε bounding a weight's relative rounding error.
        moment_error: bound on the relative rounding error of e^{K(c)}.
        truncated: bound on what the cut ends of the line add, relative to e^{K(c)}.
        spacing: distance of the nodes (trapezoid) or half-width of a panel (Gauss).
        first: position of the first node.
    """

    log_moment: Float[Array, ""]
    weight: Float[Array, " nodes"]
    loss: Float[Array, " nodes"]
    spread: Float[Array, ""]
    rounding: Float[Array, "2"]
    moment_error: Float[Array, ""]
    truncated: Float[Array, ""]
    spacing: Float[Array, ""]
    first: Float[Array, ""]


class Discretisable(Protocol):
    """A pair whose loss can be laid on a grid: what loss distributions read. NumPy alone.

    `sign` is +1 for (P, Q) and −1 for the reverse; only pairs that are `directed` look at it.

    Fields:
        name: in `pairs.table.PAIRS`.
        directed: whether the two directions differ, so that both have to be asked.
        folded: whether the two halves of the line are one function and its mirror image, with an
            atom at loss 0 between them.
    """

    name: str
    directed: bool
    folded: bool

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        """Losses between which all of P lies but for normal tails beyond `reach`."""
        ...

    def masses(
        self, sign: int, mu: float, rate: float, losses: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """P and Q mass between successive losses, and P mass above the last."""
        ...

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        """A grid offset l₀, and whether outcomes within h of it may be lumped there from below.

        A lump is a function of the outcome, and has the loss log(P/Q) of its total masses:
        second-order exact where most of the mass lies in one bin. Any l₀ ≤ log(P/Q) of what lies
        within h of it will do; for symmetric pairs 0 does.
        """
        ...

    def atom(self, mu: Any, rate: Any) -> Any:
        """P mass of the outcome of loss 0 that `masses` leaves out."""
        ...


class Sided(Discretisable, Protocol):
    """A pair whose law is known from above and from below only."""

    def side(self, sign: int, mu: float, rate: float, reach: float, upper: bool) -> Discretisable:
        """The pair to be laid on a grid in its place, for an upper bound or for a lower one."""
        ...


class Pair(Discretisable, Protocol):
    """A pair whose transform E_P[e^{zL}] is known on lines Re z = c, for contour integration.

    Fields:
        mirrored: whether P and Q are each other's mirror images; its Rényi integral is then that
            of (g·r(y), g·r(−y)) instead of (g·r, g).
    """

    mirrored: bool

    def reach(self, sign: Any, mu: Any, rate: Any, c: Any) -> tuple[Any, Any]:
        """An interval beyond which a Gaussian tail with the steepest slope bounds what is left."""
        ...

    def terms(self, sign: Any, mu: Any, rate: Any, c: Any, y: Any) -> tuple[Any, Any]:
        """About log of e^{cL}dP/dy, and L, at y; of both halves, stacked, if folded."""
        ...

    def tilt(self, sign: Any, mu: Any, rate: Any, c: Any, nodes: int) -> Tilted:
        """The tilted privacy loss, for c > 0 and q in (0, 1]."""
        ...

    def quadrature_error(
        self, sign: Any, mu: Any, rate: Any, c: Any, tilted: Tilted, t: Any, knots: Any
    ) -> Any:
        """Bound on the error of E_P[e^{(c+it)L}] by the nodes of `tilt`, relative to e^{K(c)}.

        It may be taken at the `knots` alone, from 0 to the last t, and by its chords between them.
        """
        ...

    def decay(self, sign: Any, mu: Any, rate: Any, c: Any, tilted: Tilted, t: Any) -> Any:
        """log ρ(t) with |E_P[e^{(c+iτ)L}]| ≤ ρ(t)·e^{K(c)} for every |τ| ≥ t."""
        ...

    def slopes(self, sign: Any, mu: Any, rate: Any, tilted: Tilted) -> tuple[Any, Any, Any]:
        """X and Y with ∂(log density of e^{zL}dP) = (z + 1)X − zY at the nodes; what else moves.

        Each for μ and q: the third is what the ends of the line add to ∂E_P[e^{zL}].
        """
        ...

    def total_variation(self, mu: Any, rate: Any) -> Any:
        """The total variation distance of P and Q."""
        ...

    def boundary(self, sign: int, mu: Any, rate: Any, s: Any) -> tuple[Any, Any, Any]:
        """Where the outcomes begin that δ(ε) counts, at a distance s from where ε = 0.

        Returns:
            The point t, the loss ε there, and how far beyond the peak of the integrand it lies.
        """
        ...

    def one_step_density(self, sign: int, mu: Any, t: Any, epsilon: Any, x: Any) -> Any:
        """√(2π)/q times the density of P − e^ε Q at the distance x beyond t."""
        ...

    def one_step_slopes(self, sign: int, mu: Any, rate: Any, t: Any, epsilon: Any) -> tuple:
        """∂δ/∂ε, ∂δ/∂μ and ∂δ/∂q of one step, from the densities alone: t is where P = e^ε Q."""
        ...


class OnLine(NamedTuple):
    """A transform on a line Re z = c.

    Fields:
        log_moment: K(c) = log E_P[e^{cL}].
        moment_error: bound on the relative error of e^{K(c)}; ∞ where nothing is known.
        real, imag: of E_P[e^{(c+it)L}]/e^{K(c)} − 1.
        error: bound on their absolute error, for an exact K(c).
    """

    log_moment: Any
    moment_error: Any
    real: Any
    imag: Any
    error: Any


class Transform(Protocol):
    """A pair whose transform E_P[e^{zL}] is known with bounds, and no density: NumPy alone.

    Contour integration takes it in place of a `Pair`; as no trace goes through it, a method that
    does so calls it on the host.

    Fields:
        directed: as of `Discretisable`.
    """

    name: str
    directed: bool

    def plain(self, mu: Any, rate: Any) -> Any:
        """Which steps are one Gaussian release at that displacement."""
        ...

    def variance(self, mu: Any, rate: Any) -> Any:
        """About the variance of the loss."""
        ...

    def most_tilt(self, sign: Any, mu: Any, rate: Any, count: Any) -> Any:
        """The largest c at which the power `count` of the transform is known on the whole line."""
        ...

    def look(self, sign: Any, mu: Any, rate: Any, tilts: Any) -> tuple[Any, Any, Any]:
        """About log-moment, mean and variance of the loss at every tilt, for the saddle point."""
        ...

    def rises(self, sign: Any, mu: Any, rate: Any, c: Any, more: Any) -> Any:
        """An upper bound on K(c + α) − K(c) for every α of `more`, ascending; 1e30 for none."""
        ...

    def on_line(self, sign: Any, mu: Any, rate: Any, c: Any, t: Any, count: Any) -> OnLine:
        """E_P[e^{(c+it)L}] at evenly spaced t from 0, of which the power `count` is wanted."""
        ...

    def log_moments(self, mu: Any, rate: Any, c: Any, quick: bool) -> Any:
        """Upper bounds on K(c) of the larger direction at every c of an array; looser if quick."""
        ...

    def log_decay(self, mu: Any, rate: Any, t: Any) -> Any:
        """log ρ(t) with |E_P[e^{(c+iτ)L}]| ≤ ρ(t)·e^{K(c)} for every |τ| ≥ t and every c."""
        ...

    def total_variation(self, mu: Any, rate: Any) -> Any:
        """An upper bound on the total variation distance of P and Q."""
        ...
