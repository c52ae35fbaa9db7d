"""The privacy profile of one run, read once for whoever asks at many ε."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour.allocations import LAWS
from dpjax.accounting.contour.profile import Profile, read_profiles
from dpjax.accounting.loss_distribution import method as grids
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.pairs.atoms import PAIRS, all_settings, is_gaussian_family, one_setting
from dpjax.accounting.pairs.protocol import SampledRelease


def has_profile(run: Mechanism, adjacency: Adjacency, pairs: Container[str] = PAIRS) -> bool:
    """Whether a run is known by pairs that lines can be drawn for, or by a few outcomes."""
    known, rest = grids.split_releases(run, adjacency)
    releases = [grids.known_release(step, adjacency) for step, _ in known]
    laid = any(own is None or own.is_laid for own in releases)
    return is_gaussian_family(rest, adjacency, pairs) and not laid


def pairs_of_setting(run: Mechanism, adjacency: Adjacency, upper: bool) -> list[list]:
    """Return the pairs of one setting of a run, in either direction."""
    known, rest = grids.split_releases(run, adjacency)
    often: dict[SampledRelease, float] = {}
    for step, factors in known:
        own = grids.known_release(step, adjacency)
        assert own is not None  # as `split_releases` says
        own = own.at(map(float, own.numbers), float(own.rate))
        often[own] = often.get(own, 0.0) + float(np.prod([1.0, *map(float, factors)]))
    atoms, _ = all_settings(rest, adjacency)
    return grids.pairs_by_direction(
        one_setting(atoms, ()), list(often.items()), adjacency, upper=upper
    )


def profiles(
    run: Mechanism,
    adjacency: Adjacency,
    level: float,
    *,
    upper: bool = True,
) -> list[Profile] | None:
    """Return the profile of one setting in either direction, see `read_profiles`; None if unknown.

    That of the pairs which dominate its steps, or of those that neighbours attain.
    """
    if not has_profile(run, adjacency):
        return None
    return read_profiles(pairs_of_setting(run, adjacency, upper), level, with_neighbours=not upper)


def worse_direction(
    run: Mechanism,
    adjacency: Adjacency,
    level: float,
    also: np.ndarray | None = None,
    lines_at: Sequence[float] = (),
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return ε, rising from 0, and upper ends of δ there, of one setting; None if unknown.

    Random allocation is known too, by laws from above. See `read_profiles`.
    """
    if not has_profile(run, adjacency, (*PAIRS, *LAWS)):
        return None
    ways = pairs_of_setting(run, adjacency, upper=True)
    known = read_profiles(ways, level, with_neighbours=False, also=also, lines_at=lines_at)
    if known is None:
        return None
    # δ(ε) of the run is that of its worse direction at every ε.
    return known[0].epsilon, np.max([one.high for one in known], axis=0)
