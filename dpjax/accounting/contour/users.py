"""The contour of what runs on the host, one by one: random allocation, and users.

The pairs of all records of a user in a Poisson sample are the weight tables of `pairs.count_law`:
few and on one side. Those are known to a relative error o only: with P ≤ (1 + o)P′ and
Q ≥ (1 − o)Q′ in each of n steps ε is at most ε′(δ(1 + o)^{−n}) + n·log((1 + o)/(1 − o)), and at
least the same with the signs of o turned.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import ArrayLike

from dpjax._numerics.arrays import NUMPY, tree_map
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour import interval
from dpjax.accounting.contour.allocations import LAWS, with_allocations
from dpjax.accounting.contour.saddle import Composition, Group
from dpjax.accounting.loss_distribution import method as grids
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.method import HostPart, Method
from dpjax.accounting.pairs.added_records import AddedRecordsPair
from dpjax.accounting.pairs.atoms import PAIRS, is_gaussian_family
from dpjax.accounting.pairs.count_law import relative_weight_error
from dpjax.accounting.pairs.user_level import ADDED, REPLACED

GOOD_OF_LAWS = 3e-4  # relative width of a line, as good as the laws themselves


def _has_users(run: Mechanism, adjacency: Adjacency) -> bool:
    known, rest = grids.split_releases(run, adjacency)
    releases = [grids.known_release(step, adjacency) for step, _ in known]
    users = all(own is not None and own.release in (ADDED, REPLACED) for own in releases)  # pyrefly: ignore
    drawn = is_gaussian_family(rest, adjacency, [*PAIRS, *LAWS])
    return users and drawn and (bool(known) or not is_gaussian_family(rest, adjacency))


def _group(pair: grids.Pair, upper: bool) -> tuple[Group, float]:
    """Return the steps of one kind as a table, and what its weights may be off by."""
    family, off = pair.family, 0.0
    if isinstance(family, AddedRecordsPair):
        found, off = family.mixture(upper), 2 * relative_weight_error(family.law)
    else:
        assert isinstance(family, str)
        found = PAIRS[family].table(NUMPY.asarray(pair.mu), NUMPY.asarray(pair.rate))
    if pair.sign < 0:
        found = found.reversed()
    return Group(tree_map(lambda v: np.asarray(v)[None], found), NUMPY.asarray([pair.count])), off


def read_composition(pairs: list[grids.Pair], upper: bool) -> tuple[Composition, float, float]:
    """Return the run without random allocations; what ε, and log δ, may be off by."""
    mu2, groups, shift, scale = 0.0, [], 0.0, 0.0
    for pair in pairs:
        if pair.family == "gaussian":
            mu2 += pair.count * pair.mu**2
        elif pair.family not in LAWS:
            group, off = _group(pair, upper)
            groups.append(group)
            shift += pair.count * (math.log1p(off) - math.log1p(-off))
            scale -= pair.count * math.log1p(-off)  # of (1 − o)^n, and more than of (1 + o)^n
    return Composition(NUMPY.asarray(mu2), tuple(groups)), shift, scale


def nothing_known(question: str, upper: bool) -> float:
    """Return the end of which nothing is known."""
    return (np.inf if question == "epsilon" else 1.0) if upper else 0.0


def keep_used(pairs: list[grids.Pair]) -> list[grids.Pair]:
    """Return the steps that release something."""
    return [pair for pair in pairs if not (pair.count <= 0 or pair.mu <= 0 or pair.rate <= 0)]


def host_bound(pairs: list[grids.Pair], given: float, question: str, *, upper: bool) -> float:
    """Return one end of an answer in one direction; ∞, 1 or 0 where lines are too short."""
    pairs = keep_used(pairs)
    allocations = [pair for pair in pairs if pair.family in LAWS]
    nothing = nothing_known(question, upper)
    run, shift, scale = read_composition(pairs, upper)
    if not (np.isfinite(run.gaussian_mu2) and 0 <= given < np.inf):
        return nothing
    sign = 1.0 if upper else -1.0
    if question == "epsilon" and not 1e-290 < given < 1:
        return nothing if given < 1 else 0.0
    if allocations:
        with np.errstate(all="ignore"):
            run = with_allocations(run, allocations, given, question, upper)
    good = GOOD_OF_LAWS if allocations else interval.GOOD
    if question == "epsilon":
        found = interval.line_epsilon(run, given * math.exp(-sign * scale), good=good)
        ends = found.upper + shift, max(found.lower - shift, 0.0)
    else:
        found = interval.line_delta(run, max(given - sign * shift, 0.0), good=good)
        # Below 0 the profile rises by at most 1 − e^−s ≤ s over a stretch s, since Q(L > ε) ≤ 1.
        above_zero = found.upper + max(shift - given, 0.0)
        ends = min(above_zero * math.exp(scale), 1.0), found.lower * math.exp(-scale)
    # A loose bound is valid, but another method may do better.
    usable = 1 - max(10 * good, interval.USABLE)
    if upper and not (usable * found.upper <= found.lower and found.upper < np.inf):
        return nothing
    return float(ends[0] if upper else ends[1])


def as_host_part(question: str, upper: bool, bound: Callable[..., float] = host_bound) -> HostPart:
    """Return what a method answers to a question, setting by setting."""
    of_pairs = functools.partial(bound, question=question)

    def ask(run: Mechanism, given: ArrayLike, adjacency: Adjacency) -> np.ndarray:
        """The end of the pairs in every step; a user's contributions are aligned or opposite."""
        return grids.each_setting(of_pairs, run, given, adjacency, upper=upper)

    return ask


USER_METHODS = (
    Method(
        "contour",
        rank=12.0,
        tight=True,
        dear=True,
        supports=_has_users,
        epsilon=as_host_part("epsilon", True),
        delta=as_host_part("delta", True),
        epsilon_lower=as_host_part("epsilon", False),
        describe="privacy profile by contour integration, random allocation by the law of its "
        "density ratio in convex order, a user's records in a Poisson sample by mixtures of "
        "Gaussians, all errors bounded and added",
    ),
)
