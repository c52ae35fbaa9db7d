"""Random allocation under correlated noise, by comparison with mechanisms that have a price.

A record takes part in one of b bins of steps; v_j is what it moves in bin j where its contributions
are one unit vector, and K_ij = ⟨v_i, v_j⟩/σ², with C ≥ 0. Where K ≤ K' entry by entry, diagonals
included, every hockey stick of the run, in either direction, is at most that of

    L' = b⁻¹ Σⱼ exp(Yⱼ − K'ⱼⱼ/2),  Y Gaussian with covariance K'.

KAHANE: Under Q the density ratio is L = b⁻¹Σⱼ wⱼ, wⱼ the exponential martingale of Mʲ, and step t
adds Σ C_ts C_ts' ⟨x_s, x_s'⟩/σ², over s in bin i and s' in bin j, to the bracket of Mⁱ and Mʲ. The
contribution x_s is chosen before output s is seen, |x_s| ≤ 1 and C ≥ 0: the addition is at most
that of one unit vector, dK_ij(t). Let U(t, w) = E F(b⁻¹Σ wⱼ e^{Yⱼ(T) − Yⱼ(t) − …}), F convex and
smooth. Then ∂²U/∂wᵢ∂wⱼ ≥ 0, so that the drift of U(t, w_t), half of Σ wᵢwⱼU_ij times what the
additions fall short of dK_ij, is at most 0: E F(L) ≤ U(0, 1). With K' ≥ K for K it is Kahane 1985.
(L − e^ε)₊ and (1 − e^ε L)₊ are limits of such F. The pair of L' dominates, hence also composed.

EXCHANGEABLE: with a = max Kᵢᵢ and c = max_{i≠j} K_ij, K' = c + (a − c)·1{i = j}: a Gaussian of
μ² = c, and an allocation of b steps of μ² = a − c.
EVERY w-TH: L is the mean of w sums over the bins ≡ r modulo w, and δ is convex in L: at most the
mean of theirs, each by EXCHANGEABLE with c_w = the largest K_ij at |i − j| = w, 2w, … and ⌊b/w⌋
bins; of fewer bins L is larger in convex order. Each w gives a bound, and the least is taken.
AFRESH: of k epochs with bins of their own each, indexed by tuples, K' is X, the largest overlaps
across epochs, and Σ_e (c + (a − c)·1{j_e = j'_e}): a Gaussian of X + kc, and k allocations.
LOWER: the same with the least entries for a record whose contributions are one unit vector.

References:
  Kahane 1985, "Sur le chaos multiplicatif"; for adaptive contributions derived for dpjax.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics.arrays import namespace
from dpjax._numerics.namespace import Numbers
from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import (
    Composed,
    Gaussian,
    Mechanism,
    RandomAllocation,
    RandomAllocationCorrelated,
    flatten,
)
from dpjax.accounting.mechanisms.base import build, map_axes, walk
from dpjax.accounting.method import (
    Method,
    Part,
    bound_by,
    list_settings,
    rank_in_best,
    rank_methods,
)
from dpjax.accounting.pairs.allocation import whole_moments
from dpjax.accounting.pairs.atoms import times

_U = 2.0**-53
_ASKED = 3  # bounds of a setting that are priced: those that look least by their moments
_NEAR = 0.05  # and by how much more, of ε or of log δ, they may look
_LOOKED_AT = 24  # bounds whose moments are computed
_TRACED = 4  # bounds that are priced under a trace, which cannot look
_MOMENTS = 64


class Exchangeable(NamedTuple):
    """A covariance of equal entries off its diagonal, for a noise multiplier of 1.

    Fields:
        shared: entries off the diagonal, all uses together.
        own: what the diagonal of one use has beyond them.
        bins: size of the matrix.
        uses: how many such choices are made.
    """

    shared: float
    own: float
    bins: int
    uses: int

    def mechanism(self, noise: Any) -> Mechanism:
        """The Gaussian release and the allocations that have this covariance."""
        xp = namespace(noise)

        def gaussian(mu2: float) -> Mechanism:
            root = math.sqrt(mu2)
            exact = root * root == mu2 and math.frexp(root)[0] == 0.5  # a power of 2
            # √ and the quotient are rounded to nearest: some units less noise make up for it.
            scale = 1.0 / root if exact else 1.0 / root * (1 - 4 * _U)
            return build(Gaussian, {"noise_multiplier": xp.asarray(noise) * scale})

        parts = []
        if self.shared:
            parts.append(gaussian(self.shared))
        if self.own:
            one = gaussian(self.own)
            if self.bins > 1:
                fields = {"mechanism": one, "steps": float(self.bins), "chosen": 1.0}
                one = build(RandomAllocation, fields)
            parts.append(one if self.uses == 1 else times(one, [float(self.uses)]))
        return parts[0] if len(parts) == 1 else build(Composed, {"mechanisms": tuple(parts)})

    def log_moments(self, noise: float) -> np.ndarray:
        """log E[L'^m] for m = 2, 3, …: what bounds are compared by before they are priced."""
        m = np.arange(2.0, _MOMENTS + 1)
        shared, own = self.shared / noise**2, self.own / noise**2
        known = 0.5 * shared * m * (m - 1)
        if self.own:
            alone = 0.5 * own * m * (m - 1)
            many = (
                whole_moments(own**0.5, float(self.bins), _MOMENTS)[2:] if self.bins > 1 else alone
            )
            known = known + self.uses * np.minimum(many, alone)
        return known


def list_bounds(step: RandomAllocationCorrelated) -> list[Exchangeable]:
    """EVERY w-TH of a step of concrete numbers, without those that another one is below."""
    bins, epochs = int(step.bins), int(step.epochs)  # pyrefly: ignore
    most = np.asarray(step.overlaps, np.float64)[(epochs - 1) * bins : epochs * bins]
    uses = epochs if step.redrawn else 1
    found, least = [], np.inf
    for w in range(1, bins + 1):
        shared = float(np.max(most[w::w], initial=0.0))
        if shared < least:  # of fewer bins only with less in common
            least = shared
            found.append(_split(shared, float(most[0]), bins // w, uses))
        if shared == 0.0:
            break
    # Of one number of bins the last shares least.
    last = {bound.bins: bound for bound in found}
    return [bound for bins, bound in last.items() if bins > 1 or len(last) == 1]


def _split(shared: float, own: float, bins: int, uses: int) -> Exchangeable:
    """The bound of these entries; with one bin all is one Gaussian."""
    rest = max(own - shared, 0.0) / uses
    if bins == 1:
        return Exchangeable(own, 0.0, 1, uses)
    exact = (shared == 0.0 and uses == 1) or rest * uses == own
    return Exchangeable(shared, rest if exact else rest * (1 + 4 * _U), bins, uses)


def _least(step: RandomAllocationCorrelated) -> Exchangeable:
    """LOWER, as a bound from below."""
    uses = int(step.epochs) if step.redrawn else 1  # pyrefly: ignore
    own, shared = float(step.least_own), float(step.least_shared)  # pyrefly: ignore
    rest = max(own - shared, 0.0) / uses * (1 - 16 * _U)
    return Exchangeable(shared * (1 - 16 * _U), rest, int(step.bins), uses)  # pyrefly: ignore


def _thin(bounds: list[Exchangeable], most: int) -> list[Exchangeable]:
    """At most so many, the ends among them."""
    places = np.unique(np.linspace(0, len(bounds) - 1, min(most, len(bounds))).round().astype(int))
    return [bounds[place] for place in places]


def _rank(part: str, step: RandomAllocationCorrelated, given: float) -> list[Exchangeable]:
    """The bounds that look least, by the best whole moment of each."""
    bounds = _thin(list_bounds(step), _LOOKED_AT)
    noise = float(step.noise_multiplier)  # pyrefly: ignore
    if len(bounds) <= 1 or noise == 0:
        return bounds[:1]
    order = np.arange(1.0, _MOMENTS)  # m − 1

    def look(bound: Exchangeable) -> float:
        known = bound.log_moments(noise)
        if part == "delta":
            return float(np.min(known - order * given))
        return float(np.min((known - np.log(given)) / order))

    looks = {bound: look(bound) for bound in bounds}
    least = min(looks.values())
    near = [bound for bound in bounds if looks[bound] <= least + _NEAR * abs(least)]
    return sorted(near, key=looks.__getitem__)[:_ASKED]


def _rewrite(
    run: Mechanism, choose: Callable[[RandomAllocationCorrelated], Exchangeable]
) -> Mechanism:
    """The run with a priced mechanism in the place of every correlated allocation."""
    parts = []
    for step, factors in flatten(run):
        if isinstance(step, RandomAllocationCorrelated):
            step = choose(step).mechanism(step.noise_multiplier)
        parts.append(times(step, factors))
    return parts[0] if len(parts) == 1 else build(Composed, {"mechanisms": tuple(parts)})


def _list_rewritten(part: str, run: Mechanism, given: Any) -> Iterator[Mechanism]:
    """The run by the bounds that look least, of each step the best, then the second, and so on."""
    own = [step for step in walk(run) if isinstance(step, RandomAllocationCorrelated)]
    if is_traced(run, given):
        ranked = {id(step): _thin(list_bounds(step), _TRACED) for step in own}
    else:
        ranked = {id(step): _rank(part, step, float(given)) for step in own}
    for place in range(max(map(len, ranked.values()))):
        chosen = {key: bounds[min(place, len(bounds) - 1)] for key, bounds in ranked.items()}
        yield _rewrite(run, functools.partial(_look_up, chosen))


def _look_up(chosen: dict[int, Exchangeable], step: RandomAllocationCorrelated) -> Exchangeable:
    return chosen[id(step)]


def _check_traced(run: Mechanism) -> None:
    """Of a trace the noise may be unknown, and nothing else of a correlated allocation."""
    for step in walk(run):
        if isinstance(step, RandomAllocationCorrelated):
            known = (step.overlaps, step.bins, step.epochs)
            if is_traced(known) or any(
                np.ndim(v) != n for v, n in zip(known, (1, 0, 0), strict=True)
            ):
                raise UnsupportedQuery(
                    "RandomAllocationCorrelated is priced within a trace where its noise alone is "
                    "traced, and overlaps, bins and epochs are those of one run"
                )


def kahane(table: Sequence[Method]) -> Method:
    """The method `"kahane"` over the methods of a table that price what it compares with."""

    def supports(run: Mechanism, adjacency: Adjacency) -> bool:
        holds_one = any(isinstance(step, RandomAllocationCorrelated) for step in walk(run))
        if not holds_one or adjacency is not Adjacency.ADD_REMOVE:
            return False
        # From structure alone: numbers are placeholders.
        like = _rewrite(run, lambda step: Exchangeable(1.0, 1.0, 2, 1))
        return bool(rank_in_best(table, "epsilon", like, adjacency))

    def ask(part: Part, run: Mechanism, given: Numbers, adjacency: Adjacency) -> Any:
        if is_traced(run, given):
            _check_traced(run)
            found = (bound_by(table, part, one, given, adjacency)
                     for one in _list_rewritten(part, run, given))  # fmt: skip
            return functools.reduce(namespace(run, given).minimum, found)
        shape, settings = list_settings((run, given), (map_axes(run), 0))
        answer = np.full(shape, np.inf if part == "epsilon" else 1.0)
        for index, (one, asked) in settings:
            for bound in _list_rewritten(part, one, asked):
                found = np.asarray(bound_by(table, part, bound, asked, adjacency))
                answer[index] = np.fmin(answer[index], float(found))
        return answer

    def lower(run: Mechanism, delta: Numbers, adjacency: Adjacency) -> Any:
        """By a record whose contributions are one unit vector, with the least overlaps (LOWER)."""
        if is_traced(run, delta):
            return namespace(run, delta).zeros(())
        shape, settings = list_settings((run, delta), (map_axes(run), 0))
        answer = np.zeros(shape)
        for index, (one, asked) in settings:
            like = _rewrite(one, _least)
            for method in rank_methods(table, "epsilon_lower", like, adjacency):
                assert method.epsilon_lower is not None, "as was asked"
                shown = float(np.asarray(method.epsilon_lower(like, asked, adjacency)))
                answer[index] = np.fmax(answer[index], shown)
        return answer

    return Method(
        "kahane",
        rank=12.0,
        supports=supports,
        needs=(RandomAllocationCorrelated,),
        epsilon=functools.partial(ask, "epsilon"),
        delta=functools.partial(ask, "delta"),
        epsilon_lower=lower,
        tight=True,
        describe="random allocation under correlated noise as a Gaussian release and random "
        "allocations of at least its overlaps (Kahane 1985; for adaptive gradients derived)",
    )
