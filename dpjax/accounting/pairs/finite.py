"""Pairs of distributions with finitely many outcomes, and what sampling makes of them.

A pair is written outcome by outcome: its loss log P/Q and its mass under either distribution.
Discrete releases are such pairs; a continuous one lies between two, the outcomes of a cell lumped
together (a function of the outcome, so that the lump is no easier to tell apart) and the cell
replaced by its two ends with the same masses (so that the cell is a function of them: connecting
the dots). Both differ from the truth by the square of the cell's width.

Poisson sampling at rate q under add/remove takes a pair (P, Q) that dominates a release to
((1−q)Q + qP, Q) and the reverse, which dominate the sampled one (Zhu, Dong and Wang 2022, Theorem
11): whatever makes the release from an outcome of P or of Q makes the sampled release from one of
the mixture. Fixed batches under replace-one have δ'(log(1 + q(e^ε − 1))) ≤ qδ(ε), δ the profile of
the release under replace-one (Balle, Barthe and Gaboardi 2018, Theorem 9): that is the profile of
the mixture where its loss is positive, taken for both directions at once.

References:
  Balle, Barthe, Gaboardi 2018; Doroshenko et al. 2022 (connecting the dots); Zhu, Dong, Wang 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpjax.accounting.pairs.on_grid import log_mixture

CELLS = 4096  # outcomes of a pair that is coarsened, or made of a continuous one


class Finite(NamedTuple):
    """Two distributions with finitely many outcomes.

    Fields:
        losses: log P/Q of each outcome; +∞ where Q has no mass, −∞ where P has none.
        p: masses under P.
        q: masses under Q.
    """

    losses: np.ndarray
    p: np.ndarray
    q: np.ndarray


def make_two_sided(losses: np.ndarray | Sequence[float], p: np.ndarray | Sequence[float]) -> Finite:
    """A pair that is its own mirror image, from its losses, ascending and symmetric, and P."""
    return Finite(np.asarray(losses), np.asarray(p), np.asarray(p)[::-1])


NOTHING = Finite(np.zeros(1), np.ones(1), np.ones(1))
EVERYTHING = make_two_sided([-np.inf, np.inf], [0.0, 1.0])
MOST = 1e150  # losses that are laid out; of larger ones nothing is said


def bound_unknown(*, upper: bool) -> Finite:
    """What bounds a pair that cannot be laid out."""
    return EVERYTHING if upper else NOTHING


def reverse(pair: Finite) -> Finite:
    """(Q, P)."""
    return Finite(-pair.losses, pair.q, pair.p)


def sample_pair(pair: Finite, rate: float) -> Finite:
    """((1−q)Q + qP, Q)."""
    if rate == 1:
        return pair
    losses = np.asarray(log_mixture(pair.losses, rate))
    # log((1 − q) + q e^loss) is log_mixture
    return Finite(losses, (1 - rate) * pair.q + rate * pair.p, pair.q)


def symmetrise(pair: Finite, rate: float) -> Finite:
    """Both directions at once of a sampled pair, whose own is its mirror image."""
    mixed = sample_pair(pair, rate)
    lost = mixed.losses > 0  # the side that ε ≥ 0 reads; the other is its mirror image
    up = Finite(*(v[lost] for v in mixed))
    rest = max(1.0 - float(np.sum(up.p) + np.sum(up.q)), 0.0)  # what is left has loss 0 under both
    zero, rest = np.zeros(1), np.array([rest])
    both = zip((zero, rest, rest), up, (-up.losses, up.q, up.p), strict=True)
    return Finite(*(np.concatenate(parts) for parts in both))


def coarsen(pair: Finite, cells: int = CELLS, *, upper: bool) -> Finite:
    """The pair with at most `cells` lumps of its finite losses, or twice as many ends of cells.

    Args:
        pair: any; a small one is returned as it is.
        cells: of equal width in the loss.
        upper: whether the result dominates the pair, or is dominated by it.
    """
    if len(pair.losses) <= 2 * cells:
        return pair
    finite = np.isfinite(pair.losses)
    order = np.argsort(pair.losses[finite], kind="stable")
    losses, p, q = (np.asarray(v)[finite][order] for v in pair)
    edges = np.linspace(losses[0], losses[-1], cells + 1)[1:-1]
    starts = np.unique(np.concatenate([[0], np.searchsorted(losses, edges)]))
    starts = starts[starts < len(losses)]
    ends = np.append(starts[1:], len(losses)) - 1
    made = (
        replace_by_ends(losses, p, q, starts, ends)
        if upper
        else lump_runs(losses, p, q, starts, ends)
    )
    return Finite(*(np.concatenate([v[~finite], m]) for v, m in zip(pair, made, strict=True)))


def replace_by_ends(
    losses: np.ndarray, p: np.ndarray, q: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> Finite:
    """Every run of outcomes replaced by its least and its largest loss, with P and Q kept."""
    low, high = losses[starts], losses[ends]
    width = np.repeat(high - low, ends - starts + 1)
    above = losses - np.repeat(low, ends - starts + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        # the share of P that keeps the mass of Q: two equations
        share = np.where(width > 0, np.expm1(-above) / np.expm1(-width), 0.0)
    of_q = share * np.exp(above - width)  # the same outcome under Q, e^{−loss} of P
    both = [(p, share), (q, of_q)]
    p, q = (
        np.concatenate([np.add.reduceat(m * (1 - s), starts), np.add.reduceat(m * s, starts)])
        for m, s in both
    )
    return Finite(np.concatenate([low, high]), p, q)


def lump_runs(
    losses: np.ndarray, p: np.ndarray, q: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> Finite:
    """Every run of outcomes as one outcome."""
    p_sum, q_sum = np.add.reduceat(p, starts), np.add.reduceat(q, starts)
    some = (p_sum > 1e-290) & (q_sum > 1e-290)
    lump = np.log(np.where(some, p_sum, 1.0)) - np.log(np.where(some, q_sum, 1.0))
    # a mean of likelihood ratios lies between them
    lump = np.where(some, np.clip(lump, losses[starts], losses[ends]), losses[starts])
    return Finite(lump, p_sum, q_sum)
