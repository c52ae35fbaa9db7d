"""The contour of what runs on the host, one by one: random allocation, users, noisy counts.

Random allocation enters by the outcomes of its density ratio's law: of the one from above for an
upper end, of the one from below for a lower end.

The pairs of all records of a user in a Poisson sample are the weight tables of `pairs.count_law`:
few and on one side. Those are known to a relative error o only: with P ≤ (1 + o)P′ and
Q ≥ (1 − o)Q′ in each of n steps ε is at most ε′(δ(1 + o)^{−n}) + n·log((1 + o)/(1 − o)), and at
least the same with the signs of o turned.

Noise on the whole numbers has no decay of its own: its transform is periodic. LATTICE: moved by a,
that of the discrete Gaussian of variance σ² is, with θ(f) = Σ_y e^{−(y−f)²/2σ²} over the integers,

    E_P[e^{zL}] = e^{μ²z(z+1)/2}·θ(a(1 + z))/θ(0),  μ = a/σ.

By Poisson summation θ(f) ∝ 1 + 2Σ_{k≥1} e^{−2π²σ²k²} cos(2πkf). So θ(f) ≤ θ(0) at real f, and for
|Im z| ≤ V = πσ²/2a, where |cos(2πkf)| ≤ e^{π²σ²k}, the quotient is within 4Σ_{k≥1} e^{−π²σ²k} of 1.
The profiles of a run with the discrete Gaussians and with Gaussians of the same μ instead therefore
differ, on a line Re z = c with |M(z)| ≤ ρM(c) of all else beyond V, by at most

    M(c)e^{−cε}·(η/2c + 2ρ/πV),  1 + η = the product of what the quotients may be,

as ∫ dv/|z(z + 1)| is at most π/2c over all v > 0, and at most 1/V over v > V.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from dpjax._numerics.arrays import NUMPY, Numbers, tree_map
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour import half, interval
from dpjax.accounting.contour import line as lines
from dpjax.accounting.contour import tilt as tilts
from dpjax.accounting.contour.method import USABLE
from dpjax.accounting.contour.saddle import (
    Composition,
    Group,
    Step,
    approximate_moments,
    find_saddle,
    sum_over,
)
from dpjax.accounting.loss_distribution import method as grids
from dpjax.accounting.mechanisms import Composed, Gaussian, Mechanism
from dpjax.accounting.mechanisms.steps import widen
from dpjax.accounting.method import Method
from dpjax.accounting.pairs.added_records import AddedRecordsPair
from dpjax.accounting.pairs.allocation import Allocation
from dpjax.accounting.pairs.atoms import GRIDS, PAIRS, is_gaussian_family, split_run, times
from dpjax.accounting.pairs.count_law import relative_weight_error
from dpjax.accounting.pairs.mixtures import Mixture
from dpjax.accounting.pairs.on_grid import round_to_atoms
from dpjax.accounting.pairs.outcomes import Outcomes
from dpjax.accounting.pairs.pair import Atoms
from dpjax.accounting.pairs.protocol import LatticeRelease
from dpjax.accounting.pairs.user_level import ADDED, REPLACED

# Pairs that are known by the outcomes of a law from above and of one from below.
_LAWS = [name for name, pair in GRIDS.items() if isinstance(pair, Allocation)]
_TILTS = np.geomspace(1e-2, 1e5, 80)
GOOD_OF_LAWS = 3e-4  # relative width of a line, as good as the laws themselves
# Of steps that are rounded to outcomes, where the lines of their densities are too short.
_GOOD_OF_ROUNDED = 2e-5
_MOST_KINDS, _LOUDEST = 16, 1e3  # of steps that are rounded to outcomes, μ of each
_DRAWS, _RARE = 3.0, 1e-4  # of a record in all those steps, or the rate of one kind of them
_SHARES = (1e-6, 1e-5, 1e-4, 1e-3)  # of δ, charged for what lies beyond all outcomes
_LOOKS = 3  # how often it is looked at which δ that is of
_OF_DELTA, _FURTHEST = 1e-9, 1e9  # of LATTICE: what it may cost, and V


def _supports(run: Mechanism, adjacency: Adjacency) -> bool:
    known, rest = grids.split_releases(run, adjacency)
    releases = [grids.known_release(step, adjacency) for step, _ in known]
    users = all(own is not None and own.release in (ADDED, REPLACED) for own in releases)  # pyrefly: ignore
    drawn = is_gaussian_family(rest, adjacency, [*PAIRS, *_LAWS])
    return users and drawn and (bool(known) or not is_gaussian_family(rest, adjacency))


def _laws(pairs: list[grids.Pair], delta: float, upper: bool) -> tuple[float, list]:
    """Return Σμ² of allocations that are plain Gaussians, and the outcomes of the others."""
    mu2, laws = 0.0, []
    for name, sign, mu, rate, count in pairs:
        found = GRIDS[name].outcomes(sign, mu, rate, delta / max(count, 1.0), upper)  # pyrefly: ignore
        if isinstance(found, Outcomes):
            laws.append((found, count))
        else:
            mu2 += count * mu * mu
    return mu2, laws


def _with_allocations(
    run: Composition, pairs: list[grids.Pair], given: float, question: str, upper: bool
) -> Composition:
    """Return the run with random allocation by few outcomes, where those of the answer weigh.

    Whatever δ a law is made for and whatever outcomes are kept, it bounds: a rough look says which.
    """
    asked = question == "epsilon"
    delta, tilt = (given if asked else 1e-6), None
    for _ in range(2):
        mu2, laws = _laws(pairs, delta, upper)
        found = (law.rough() if tilt is None else law.few(tilt, upper) for law, _ in laws)
        stacked = [Atoms(*(np.asarray(v)[None] for v in one)) for one in found]
        groups = (Group(a, NUMPY.asarray([n])) for a, (_, n) in zip(stacked, laws, strict=True))
        whole = Composition(run.gaussian_mu2 + mu2, (*run.groups, *groups))
        if tilt is not None or not laws:
            break
        # Chernoff's bound at every tilt, of which the least is near the saddle point.
        moment = approximate_moments(whole, NUMPY.asarray(_TILTS))[0]
        if asked:
            tilt = float(_TILTS[np.nanargmin((moment - np.log(given)) / _TILTS)])
        else:
            height = moment - _TILTS * given - np.log(_TILTS) - np.log1p(_TILTS)
            tilt = float(_TILTS[np.nanargmin(height)])
            delta = float(np.clip(np.exp(np.nanmin(height)), 1e-250, 0.1))
    return whole  # pyrefly: ignore


def _group(pair: grids.Pair, upper: bool) -> tuple[Group, float]:
    """Return the steps of one kind as a table, and what its weights may be off by."""
    family, off = pair.family, 0.0
    if isinstance(family, AddedRecordsPair):
        found, off = family.mixture(upper), 2 * relative_weight_error(family.law)
    else:
        assert isinstance(family, str)
        found = PAIRS[family].table(np.float64(pair.mu), np.float64(pair.rate))
    if pair.sign < 0:
        found = found.reversed()
    return Group(tree_map(lambda v: np.asarray(v)[None], found), NUMPY.asarray([pair.count])), off


def read_composition(pairs: list[grids.Pair], upper: bool) -> tuple[Composition, float, float]:
    """Return the run without random allocations; what ε, and log δ, may be off by."""
    mu2, groups, shift, scale = 0.0, [], 0.0, 0.0
    for pair in pairs:
        if pair.family == "gaussian":
            mu2 += pair.count * pair.mu**2
        elif pair.family not in _LAWS:
            group, off = _group(pair, upper)
            groups.append(group)
            shift += pair.count * (math.log1p(off) - math.log1p(-off))
            scale -= pair.count * math.log1p(-off)  # of (1 − o)^n, and more than of (1 + o)^n
    return Composition(NUMPY.asarray(mu2), tuple(groups)), shift, scale


def _round_steps(run: Composition, charge: float, upper: bool, tilt: float) -> Composition:
    """Return the run with its sampled steps by few outcomes, and what lies beyond charged to δ."""
    rare = charge / sum(float(count[0]) for _, count in run.groups)
    groups = []
    for pair, count in run.groups:
        found = round_to_atoms(tree_map(lambda v: v[0], pair), rare, upper, tilt)
        groups.append(Group(tree_map(lambda v: np.asarray(v)[None], found), count))
    return Composition(run.gaussian_mu2, tuple(groups))


def _of_rounded(run: Composition, given: float, question: str, upper: bool) -> tuple[float, bool]:
    """Return one end of an answer by few outcomes of every step, and whether its line was fine.

    Whatever is charged, both ends hold, so that the best of several is an end. The less is charged
    the larger losses are kept, and the longer the line that they take: where that is too long,
    short lines tell how much charge is best; and of a δ that is asked for, about how much it is.
    """
    asked = question == "epsilon"
    log_delta, epsilon = (NUMPY.log(given), None) if asked else (None, NUMPY.asarray(given))
    at = find_saddle(run, log_delta, epsilon)
    tilt = float(at.c) if np.isfinite(at.c) else 0.0
    read = interval.line_epsilon if asked else interval.line_delta
    goal = given if asked else float(np.exp(-at.depth))
    best, fine = nothing_known(question, upper), False

    def round_by(share: float) -> Composition | None:
        found = _round_steps(run, float(np.clip(share * goal, 1e-280, 0.1)), upper, tilt)
        if all(cast(Atoms, group.pair).loss.size for group in found.groups):
            return found
        return None  # all outcomes lie beyond, at infinite losses

    for _ in range(0 if asked else _LOOKS):
        if (few := round_by(_SHARES[0])) is None:
            break
        last, goal = goal, float(read(few, given, good=1.0).upper)
        if 0.1 * last <= goal <= 10 * last:
            break
    tried = [few for share in _SHARES if (few := round_by(share)) is not None]
    for k, few in enumerate(tried[:2]):
        if k > 0:  # the one of the others whose short line is the best
            looks = [(read(other, given, good=1.0), other) for other in tried[1:]]
            few = min(looks, key=lambda one: one[0].upper if upper else -one[0].lower)[1]
        ends = read(few, given, good=_GOOD_OF_ROUNDED)
        best = min(best, float(ends.upper)) if upper else max(best, float(ends.lower))
        fine = fine or bool(ends.upper - ends.lower <= 10 * GOOD_OF_LAWS * ends.upper)
        if interval.is_good(ends, _GOOD_OF_ROUNDED):
            break
    return best, fine


def _can_round(pairs: Sequence[grids.Pair]) -> bool:
    """Whether these are few kinds of sampled steps of finite losses, for which grids are too short.

    By them a record is hardly ever drawn, or one kind is so rare that a grid as fine as its losses
    does not hold the others.
    """
    drawn = [pair for pair in pairs if pair.family != "gaussian"]
    rare = sum(pair.count * pair.rate for pair in drawn) <= _DRAWS
    rare = rare or any(pair.rate <= _RARE for pair in drawn)
    quiet = all(pair.mu < _LOUDEST for pair in pairs)
    return rare and quiet and 0 < len(drawn) <= _MOST_KINDS


def nothing_known(question: str, upper: bool) -> float:
    """Return the end of which nothing is known."""
    return (np.inf if question == "epsilon" else 1.0) if upper else 0.0


def keep_used(pairs: list[grids.Pair]) -> list[grids.Pair]:
    """Return the steps that release something."""
    return [pair for pair in pairs if not (pair.count <= 0 or pair.mu <= 0 or pair.rate <= 0)]


def host_bound(pairs: list[grids.Pair], given: float, question: str, *, upper: bool) -> float:
    """Return one end of an answer in one direction; ∞, 1 or 0 where lines are too short."""
    pairs = keep_used(pairs)
    allocations = [pair for pair in pairs if pair.family in _LAWS]
    nothing = nothing_known(question, upper)
    run, shift, scale = read_composition(pairs, upper)
    if not (np.isfinite(run.gaussian_mu2) and 0 <= given < np.inf):
        return nothing
    sign = 1.0 if upper else -1.0
    if question == "epsilon" and not 1e-290 < given < 1:
        return nothing if given < 1 else 0.0
    if allocations:
        with np.errstate(all="ignore"):
            run = _with_allocations(run, allocations, given, question, upper)
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
    usable = 1 - max(10 * good, USABLE)
    if upper and not (usable * found.upper <= found.lower and found.upper < np.inf):
        return nothing
    return float(ends[0] if upper else ends[1])


@functools.lru_cache(maxsize=64)
def _find_rounded(
    pairs: tuple[grids.Pair, ...], given: float, question: str, upper: bool
) -> tuple[float, bool]:
    """Return one end in one direction by few outcomes, and whether its line was fine."""
    nothing = nothing_known(question, upper), False
    if not _can_round(pairs) or not all(isinstance(pair.family, str) for pair in pairs):
        return nothing
    run, _, _ = read_composition(list(pairs), upper)
    if not all(isinstance(group.pair, Mixture) for group in run.groups):
        return nothing
    if not (np.isfinite(run.gaussian_mu2) and 0 <= given < np.inf):
        return nothing
    if question == "epsilon" and not 1e-290 < given < 1:
        return nothing if given < 1 else (0.0, True)
    with np.errstate(all="ignore"):
        return _of_rounded(run, given, question, upper)


def _rounded_bound(
    pairs: list[grids.Pair], given: float, question: str, *, upper: bool, fine: bool = False
) -> float:
    """Return one end in one direction by few outcomes, or by those alone whose line was fine."""
    found, is_fine = _find_rounded(tuple(keep_used(pairs)), given, question, upper)
    return found if is_fine or not fine else nothing_known(question, upper)


def as_host_part(question: str, upper: bool, bound: Callable[..., float] = host_bound) -> Any:
    """Return what a method answers to a question, setting by setting."""
    of_pairs = functools.partial(bound, question=question)

    def ask(run: Mechanism, given: Numbers, adjacency: Adjacency) -> np.ndarray:
        """Of the pairs in every step; of a user, whose contributions are aligned or opposite."""
        return grids.each_setting(of_pairs, run, given, adjacency, upper=upper)

    return ask


# --- LATTICE: noise on the whole numbers ---------------------------------------------------------


class _Lattice(NamedTuple):
    """Of all such steps of all settings: V, log(1 + η) at most, and Σμ² at most."""

    end: float
    error: float
    mu2: float


def _split_lattice(run: Mechanism) -> tuple[list[tuple[Any, tuple]], Composed]:
    return split_run(run, lambda step: isinstance(step.release, LatticeRelease))


def _supports_lattice(run: Mechanism, adjacency: Adjacency) -> bool:
    steps, rest = _split_lattice(run)
    return bool(steps and rest.mechanisms) and is_gaussian_family(rest, adjacency)


def _without_lattice(run: Mechanism, adjacency: Adjacency) -> tuple[Mechanism, _Lattice]:
    """Return the run with Gaussians of the same μ in the place of noise on whole numbers."""
    steps, rest = _split_lattice(run)
    moved = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    end, error, mu2, parts = _FURTHEST, 0.0, 0.0, list(rest.mechanisms)
    for step, factors in steps:
        numbers = step.release.numbers(widen(step), adjacency)
        own_end, own_error = step.release.lattice(numbers)
        count = functools.reduce(np.multiply, factors, np.float64(1.0))
        end = min(end, float(np.min(own_end)))
        error += float(np.max(count * np.log1p(own_error)))
        mu2 += float(np.max(count * np.square(numbers.mu)))
        # Two quotients, rounded towards less privacy by far less than _OF_DELTA.
        parts.append(times(Gaussian(moved / numbers.mu * (1 - 2.0**-51)), factors))
    return Composed(tuple(parts)), _Lattice(end, error, mu2)


def _lattice_error(run: Composition, epsilon: float, c: Numbers, lattice: _Lattice) -> float:
    """Return what δ(ε) may be off by on the line Re z = c."""
    nodes, t = interval.LEVELS[1][0], NUMPY.asarray(np.geomspace(1e-3, 1.0, 12) * lattice.end)

    def fall(pair: Step, _: Numbers) -> Numbers:
        step = half.tilt(pair, c, nodes)
        return NUMPY.log(tilts.decay(step, t, lines.moment_error(step))[-1])

    own = max(float(run.gaussian_mu2) - lattice.mu2 * (1 + 1e-9), 0.0)  # what is rounded is none
    rho = np.exp(sum_over(fall, run, NUMPY.asarray(-0.5 * own * lattice.end**2)))
    # Of k(c)M(c), k(c) = c^c/(1 + c)^{c+1}; 1 % for rounding.
    moment = lines.bound_moment(run, c, nodes) + np.log1p(c) + c * np.log1p(1 / c)
    each = np.expm1(lattice.error) / (2 * c) + 2 * rho / (math.pi * lattice.end)
    return 1.01 * float(np.exp(moment - c * epsilon) * each)


def _lattice_bound(
    pairs: list[grids.Pair], given: float, question: str, *, upper: bool, lattice: _Lattice
) -> float:
    """Return one end in one direction: of Gaussians instead, where δ is off by next to nothing."""
    asked = question == "epsilon"
    nothing = (np.inf if asked else 1.0) if upper else 0.0
    spared = _OF_DELTA * asked * (1 if upper else -1)
    found = host_bound(pairs, given * (1 - spared), question, upper=upper)
    if found == nothing:
        return nothing
    epsilon, delta = (found, given) if asked else (given, max(found, 1e-300))  # never 0
    used = [pair for pair in pairs if pair.count > 0 and pair.mu > 0 and pair.rate > 0]
    run, _, _ = read_composition(used, upper)
    with np.errstate(all="ignore"):  # what is no number is no answer
        at = find_saddle(run, NUMPY.log(delta), NUMPY.asarray(epsilon))
        off = _lattice_error(run, epsilon, at.c, lattice)
    if off <= _OF_DELTA * delta:
        return found if asked else min(delta + off, 1.0)
    return nothing


def _lattice_part(question: str, upper: bool) -> Any:
    def ask(run: Mechanism, given: Numbers, adjacency: Adjacency) -> Numbers:
        """Of the pairs in every step; of counts, that of the cells which a record is in."""
        with np.errstate(divide="ignore", over="ignore"):  # no noise
            smooth, lattice = _without_lattice(run, adjacency)
        bound = functools.partial(_lattice_bound, question=question, lattice=lattice)
        return grids.each_setting(bound, smooth, given, adjacency, upper=upper)

    return ask


USER_METHODS = (
    Method(
        "contour",
        rank=11.0,
        tight=True,
        dear=True,
        supports=_supports_lattice,
        needs="release",
        epsilon=_lattice_part("epsilon", True),
        delta=_lattice_part("delta", True),
        epsilon_lower=_lattice_part("epsilon", False),
        describe="privacy profile by contour integration, discrete Gaussian noise by the Gaussian "
        "whose transform it shares up to a bounded error, all errors bounded and added",
    ),
    Method(
        "contour",
        rank=12.0,
        tight=True,
        dear=True,
        supports=_supports,
        epsilon=as_host_part("epsilon", True),
        delta=as_host_part("delta", True),
        epsilon_lower=as_host_part("epsilon", False),
        describe="privacy profile by contour integration, random allocation by the law of its "
        "density ratio in convex order, a user's records in a Poisson sample by mixtures of "
        "Gaussians, all errors bounded and added",
    ),
    *(
        Method(
            "pld",
            rank=19.0 if fine else 19.5,
            tight=fine,
            dear=True,
            supports=lambda run, adjacency: is_gaussian_family(run, adjacency),
            epsilon=as_host_part("epsilon", True, functools.partial(_rounded_bound, fine=fine)),
            delta=as_host_part("delta", True, functools.partial(_rounded_bound, fine=fine)),
            epsilon_lower=as_host_part("epsilon", False, _rounded_bound),
            describe="privacy-loss distributions of few rare steps, rounded to finitely "
            "many outcomes in convex order and composed by contour integration",
        )
        for fine in (True, False)
    ),
)
