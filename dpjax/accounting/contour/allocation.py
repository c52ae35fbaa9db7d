"""Contour integration of runs with random allocation, one setting at a time on the host.

The transform of `pairs.allocation_line` multiplies those of all other steps of the run, and the
line is that of every other run: `contour.line` bounds what the sum is off by.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpjax._numerics import float64
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour import integral
from dpjax.accounting.contour.composition import Composition, Steps
from dpjax.accounting.contour.method import GOOD, USABLE
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.method import Method
from dpjax.accounting.pairs.atoms import (
    Atoms,
    all_settings,
    by_pair,
    directions,
    exhibited,
    lowers,
    one_setting,
)
from dpjax.accounting.pairs.table import PAIRS, TRANSFORMS


def _supports(run: Mechanism, adjacency: Adjacency) -> bool:
    return lowers(run, adjacency, {**PAIRS, **TRANSFORMS}) and not lowers(run, adjacency)


def _composition(atoms: Atoms, adjacency: Adjacency) -> Composition:
    """Of one concrete setting: without idle steps, and one step of one as the Gaussian it is."""
    mu2: Any = atoms.gaussian_mu2
    found = {}
    for name, steps in by_pair(atoms, adjacency).items():
        used = ~(steps.count <= 0)
        if name in TRANSFORMS:
            plain = used & TRANSFORMS[name].plain(steps.mu, steps.rate)
            mu2 = mu2 + np.sum(steps.count[plain] * steps.mu[plain] ** 2)
            used = used & ~plain
        if used.any():
            found[name] = Steps(*(v[used] for v in steps))
    return Composition(mu2, found)


def bounds(
    question: str, run: Composition, given: float, signs: tuple[int, ...]
) -> integral.Bounds:
    """ε(δ) or δ(ε) at the first of the resolutions that is good enough.

    Args:
        question: "epsilon" or "delta".
        run: what is composed, as NumPy arrays.
        given: δ or ε.
        signs: see `contour.integral.epsilon`.

    Example:
        >>> steps = Steps(np.array([1.0]), np.array([1 / 20]), np.array([1.0]))
        >>> run = Composition(np.float64(0.0), {"allocation": steps})
        >>> found = bounds("epsilon", run, 1e-5, (1, -1))
        >>> print(f"{found.lower:.7f} {found.upper:.7f}")
        1.6090923 1.6090923
    """
    ask = integral.epsilon if question == "epsilon" else integral.delta
    best = integral.Bounds(0.0, np.inf, np.inf)  # pyrefly: ignore
    for at in integral.RESOLUTIONS[:-1]:  # the last has more nodes, and no more points
        with np.errstate(all="ignore"):
            new = ask(run, np.float64(given), signs, at)  # pyrefly: ignore
        # All of them hold: the best of each end.
        upper, lower = np.fmin(best.upper, new.upper), np.fmax(best.lower, new.lower)
        lower = np.minimum(lower, upper)
        share = (upper - lower) / upper if 0 < upper < np.inf else 0.0 if upper == 0 else np.inf
        gained = share < 0.3 * best.share
        best = integral.Bounds(lower, upper, np.float64(share))  # pyrefly: ignore
        # What is lost in rounding, or is too much to compute, stays so on a finer line.
        if share <= GOOD or not gained:
            break
    return best


def _each_setting(question: str, run: Any, given: Any, adjacency: Adjacency) -> np.ndarray:
    """Lower and upper end and share of every setting, along a first axis."""
    if float64.is_traced(run, given):
        raise UnsupportedQuery(
            "the lower end of random allocation runs on the host and cannot be traced"
        )
    atoms, lead = all_settings(run, adjacency)
    signs = directions(by_pair(atoms, adjacency))
    given = np.asarray(given, np.float64)
    shape = np.broadcast_shapes(lead, given.shape)
    given = np.broadcast_to(given, shape)
    found = np.empty((3, *shape))
    for index in np.ndindex(*shape):
        single = _composition(one_setting(atoms, index), adjacency)
        found[(slice(None), *index)] = bounds(question, single, given[index], signs)
    return found


def _upper(question: str, nothing: float):
    def ask(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        _, upper, share = _each_setting(question, run, given, adjacency)
        # A loose bound is valid, but another method may do better.
        return np.where((share <= USABLE) & (upper < np.inf), upper, nothing)

    return ask


def _epsilon_lower(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
    """Of the atoms' pairs in every step; one step chosen of several is attained by its pair."""
    lower = _each_setting("epsilon", run, given, adjacency)[0]
    return lower if exhibited(run) else 0 * lower


METHODS = (
    Method(
        "contour",
        rank=11.0,
        tight=True,
        dear=True,
        supports=_supports,
        epsilon=_upper("epsilon", np.inf),
        delta=_upper("delta", 1.0),
        epsilon_lower=_epsilon_lower,
        describe="privacy profile by contour integration, random allocation by the complex moments "
        "of its density ratio, all errors bounded and added",
    ),
)
