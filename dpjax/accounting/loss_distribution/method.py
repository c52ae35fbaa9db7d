"""What loss distributions price: Gaussian families and known releases, mixed; and one release."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
from jaxtyping import Array, ArrayLike

from dpjax._numerics import float64
from dpjax._numerics.arrays import ROUND_UP, Numbers, namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.accounting.loss_distribution.grid import delta_bound, epsilon_bound
from dpjax.accounting.loss_distribution.step import Pair
from dpjax.accounting.mechanisms import Composed, Mechanism, flatten
from dpjax.accounting.mechanisms.steps import Factors, is_group_attained, rewrite_for_group, widen
from dpjax.accounting.method import Method, as_method_part, evaluate_bound
from dpjax.accounting.pairs.atoms import (
    GRIDS,
    GroupedSteps,
    all_settings,
    by_pair,
    has_attained_atoms,
    is_gaussian_family,
    one_setting,
)
from dpjax.accounting.pairs.dominating import LAID, dominating_pair
from dpjax.accounting.pairs.protocol import (
    ClosedFormRelease,
    CurveRelease,
    Laid,
    Release,
    SampledRelease,
)
from dpjax.accounting.pairs.stacked import split_run
from dpjax.accounting.pairs.uses import Discrete, repeat_release
from dpjax.accounting.typing import Real

_LOUD = 1e3  # ε from which on the price of unsampled releases is asked too
_UNSHOWN = 16  # settings that take a few seconds at most


def known_release(step: Mechanism, adjacency: Adjacency) -> SampledRelease | None:
    """The release by whose pair a step is priced, one that lays its own grid among them."""
    return LAID.get(type(step), dominating_pair)(widen(step), adjacency)


def split_releases(
    run: Mechanism, adjacency: Adjacency
) -> tuple[list[tuple[Mechanism, Factors]], Composed]:
    """Releases whose pair is known, with their factors, and everything else."""
    return split_run(run, lambda step: known_release(step, adjacency) is not None)


def _supports(run: Mechanism, adjacency: Adjacency) -> bool:
    return is_gaussian_family(split_releases(run, adjacency)[1], adjacency, GRIDS)


def pairs_by_direction(
    atoms: GroupedSteps,
    releases: list[tuple[SampledRelease, float]],
    adjacency: Adjacency,
    *,
    upper: bool,
) -> list[list[Pair | Discrete]]:
    """The pairs of one concrete setting, once for each direction to be taken.

    The Gaussian releases are N(μ, 1) against N(0, 1), a known release its own pair, sampled as
    `pairs.finite` says, one without a finite list of outcomes the grid it names, and a sampled
    Gaussian step the pair that its scheme names: for a lower end one that mechanisms of the kind
    attain, for an upper end one that covers an adversary who changes direction between steps.
    """
    sampled = by_pair(atoms, adjacency, attained=not upper)
    directed = any(GRIDS[name].directed for name in sampled)
    for own, _ in releases:
        kind = own.release
        both = kind.grid(own).directed if isinstance(kind, Laid) else own.rate < 1
        directed |= both and not (upper and own.symmetric)
    mu2 = float(atoms.gaussian_mu2)
    found = []
    for sign in (1, -1) if directed else (1,):
        pairs: list[Pair | Discrete] = []
        if mu2 > 0:
            pairs.append(Pair("gaussian", sign, float(np.sqrt(mu2)), 1.0, 1))
        for name, steps in sampled.items():
            rows = zip(steps.mu, steps.rate, steps.count, strict=True)
            pairs += [Pair(name, sign, float(m), float(r), float(n)) for m, r, n in rows]
        for own, count in releases:
            if isinstance(own.release, Laid):
                grid = own.release.grid(own)
                pairs.append(Pair(grid, sign, own.numbers[0], float(own.rate), count))
            elif count > 0 and own.rate > 0:
                pairs.append(repeat_release(own, count, sign=sign, upper=upper))
        found.append(pairs)
    return found


def _unsampled(pairs: list[Pair | Discrete]) -> float:
    """μ of one Gaussian release that the steps are functions of, where their pairs say how far
    apart they get.
    """
    mu2 = 0.0
    for pair in pairs:
        if isinstance(pair, Discrete):
            return np.inf
        plain = pair.family == "gaussian"
        most = pair.mu if plain else getattr(pair.family, "most", np.inf)
        mu2 += pair.count * most * most
    return float(np.sqrt(mu2)) * (1 + 1e-12)


def _shown(settings: list) -> Iterable:
    """The settings, with a progress bar where someone waits for many at a terminal."""
    if len(settings) <= _UNSHOWN:
        return settings
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        return settings
    console = Console(stderr=True)
    return track(
        settings,
        "loss distributions",
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


_NO_ANSWER = {
    epsilon_bound: (np.inf, gaussian_dp.epsilon),
    delta_bound: (1.0, gaussian_dp.delta),
}


def each_setting(
    bound: Callable[..., float], run: Mechanism, given: ArrayLike, adjacency: Adjacency, upper: bool
) -> np.ndarray:
    """Run over the settings one by one; the worse direction of each.

    A lower end is 0 unless some neighbours attain the pairs. `given` is a δ, or, for an upper bound
    alone, an ε: δ falls, so that beyond an ε of 1e6 its value there still bounds it from above.
    """
    if float64.is_traced(run, given):
        raise UnsupportedQuery(
            "method 'pld', and 'contour' of users and of random allocation, run on the host: "
            "price outside the trace"
        )
    own, rest = split_releases(run, adjacency)
    atoms, lead = all_settings(rest, adjacency)
    releases = [r for step, _ in own if (r := known_release(step, adjacency)) is not None]
    counts = [np.prod(np.broadcast_arrays(1.0, *n), axis=0) for _, n in own]
    fields = [(r.rate, n, *r.numbers) for r, n in zip(releases, counts, strict=True)]
    shape = np.broadcast_shapes(lead, np.shape(given), *(np.shape(v) for f in fields for v in f))
    given = np.broadcast_to(np.minimum(np.asarray(given, np.float64), 1e6), shape)
    if not (upper or is_attained(run, adjacency)):
        return np.zeros(shape)
    fields = [[np.broadcast_to(np.asarray(v, np.float64), shape) for v in f] for f in fields]
    answer = np.empty(shape)
    for index in _shown(list(np.ndindex(*shape))):
        often: dict[SampledRelease, float] = {}
        for release, row in zip(releases, fields, strict=True):
            rate, count, *numbers = (float(v[index]) for v in row)
            one = release.at(numbers, rate)
            often[one] = often.get(one, 0.0) + count
        ways = pairs_by_direction(
            one_setting(atoms, index), list(often.items()), adjacency, upper=upper
        )
        answer[index] = max(bound(way, float(given[index]), upper=upper) for way in ways)
    return answer


def _or_unsampled(bound: Callable) -> Callable:
    """The bound, or that of unsampled releases where losses lie too far apart for a fine grid."""
    nothing, plain = _NO_ANSWER[bound]

    def lesser(pairs: list[Pair | Discrete], given: float, *, upper: bool) -> float:
        found = bound(pairs, given, upper=upper)
        if upper and found >= min(nothing, _LOUD):
            mu = _unsampled(pairs)
            found = min(found, plain(mu, given)) if np.isfinite(mu) else found
        return found

    return lesser


def _epsilon_upper(run: Mechanism, delta: Real, adjacency: Adjacency) -> np.ndarray:
    return each_setting(_or_unsampled(epsilon_bound), run, delta, adjacency, upper=True)


def _epsilon_lower(run: Mechanism, delta: Real, adjacency: Adjacency) -> np.ndarray:
    """A lower end, of the two distributions that `pairs_by_direction` names for every step."""
    return each_setting(epsilon_bound, run, delta, adjacency, upper=False)


def is_attained(run: Mechanism, adjacency: Adjacency) -> bool:
    """Whether some neighbours attain the pairs of a lower end."""
    # Users of a stated guarantee are a chain of such steps: no neighbours that attain it are known.
    own = (known_release(step, adjacency) for step, _ in flatten(run))
    loose = any(one and isinstance(one.release, Laid) and not one.release.sampled for one in own)
    return has_attained_atoms(run) and is_group_attained(run, adjacency) and not loose


def _delta_upper(run: Mechanism, epsilon: Real, adjacency: Adjacency) -> np.ndarray:
    return each_setting(_or_unsampled(delta_bound), run, epsilon, adjacency, upper=True)


def _tight(run: Mechanism, adjacency: Adjacency) -> bool:
    own, _ = split_releases(run, adjacency)
    return all(known_release(step, adjacency).release.tight for step, _ in own)  # pyrefly: ignore


def _method(tight: bool) -> Method:
    """Not tight where an adversary may choose among several pairs: Rényi curves may be less."""
    return Method(
        "pld",
        rank=20.0,
        tight=tight,
        dear=True,
        supports=lambda run, adjacency: (
            _supports(run, adjacency) and _tight(run, adjacency) is tight
        ),
        epsilon=_epsilon_upper,
        delta=_delta_upper,
        epsilon_lower=_epsilon_lower,
        describe="privacy-loss distributions, discretised pessimistically by connecting the dots "
        "and composed by tilted FFT; releases of a known pair by it, multiplied out where it is "
        "small",
    )


# --- one release of which the profile and the Rényi curve are known in closed form --------------

_ULPS = 1.0 + 1e-14  # what is asked at, a few units of roundoff off
_Kind = TypeVar("_Kind", bound=Release)


def _is_known(kind: type[Release], run: Mechanism, adjacency: Adjacency) -> bool:
    """Whether a run is one release of a kind, whose pair is known."""
    release = run.release
    return isinstance(release, kind) and release.numbers(run, adjacency) is not None


def _read_release(kind: type[_Kind], run: Mechanism, adjacency: Adjacency) -> tuple[_Kind, tuple]:
    """Return the release of a run that `_is_known`, and its numbers."""
    # A user's records in a release of a closed form are the same release at other numbers.
    run = rewrite_for_group(run)
    assert isinstance(run.release, kind)
    numbers = run.release.numbers(run, adjacency)
    assert numbers is not None
    return run.release, numbers


def _one_epsilon(run: Mechanism, adjacency: Adjacency, delta: Array) -> Array:
    xp = namespace(run, delta)
    release, numbers = _read_release(ClosedFormRelease, run, adjacency)
    # A unit of roundoff of δ may be many of a small ε.
    value = release.epsilon(numbers, delta * (1 - 1e-14))
    return xp.maximum(value * ROUND_UP, 0.0)


def _one_lower_kernel(run: Mechanism, adjacency: Adjacency, delta: Array) -> Array:
    xp = namespace(run, delta)
    release, numbers = _read_release(ClosedFormRelease, run, adjacency)
    value = release.epsilon(numbers, xp.minimum(delta * (1 + 1e-13), 1.0))
    return xp.maximum(value / ROUND_UP, 0.0)


def _one_lower(run: Mechanism, delta: Real, adjacency: Adjacency) -> Numbers:
    """A lower end, of the release's own pair where some neighbours attain it: it is exact."""
    found = as_method_part(_one_lower_kernel, "down")(run, delta, adjacency)
    release, _ = _read_release(ClosedFormRelease, run, adjacency)
    return found if release.tight else namespace(found).zeros_like(found)


def _one_delta(run: Mechanism, adjacency: Adjacency, epsilon: Array) -> Array:
    xp = namespace(run, epsilon)
    release, numbers = _read_release(ClosedFormRelease, run, adjacency)
    value = release.delta(numbers, xp.minimum(epsilon, 1e300) / _ULPS)
    return xp.clip(value * ROUND_UP, 0.0, 1.0)


def _divergence(run: Mechanism, adjacency: Adjacency, orders: Array) -> Array:
    xp = namespace(run, orders)
    good = (orders > 1) & (orders < xp.inf)
    release, numbers = _read_release(CurveRelease, run, adjacency)
    value = release.divergence(numbers, xp.where(good, orders, 2.0))
    value = value * (1 + 1e-9) + xp.where(value > 0, 1e-15, 0.0)
    # Beyond what any conversion can use, and NaN.
    return xp.where(good & (value < 1e200), value, xp.inf)


def release_curve(run: Mechanism, orders: Real, adjacency: Adjacency) -> Array:
    """The Rényi curve of one release, shape S + [k]."""
    return evaluate_bound(_divergence, run, adjacency, orders, ndims=(1,))


has_release_curve = functools.partial(_is_known, CurveRelease)


LOSS_METHODS = (
    Method(
        "closed_form",
        rank=4.0,
        tight=True,
        supports=functools.partial(_is_known, ClosedFormRelease),
        needs="release",
        epsilon=as_method_part(_one_epsilon),
        delta=as_method_part(_one_delta),
        epsilon_lower=_one_lower,
        describe="the exact profile of one release",
    ),
    _method(True),
    _method(False),
)
