"""What the loss-distribution method can price: Gaussian families and (ε, δ) guarantees, mixed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from dpjax._numerics import float64
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.loss_distribution.composition import delta_bound, epsilon_bound
from dpjax.accounting.loss_distribution.discretisation import Pair
from dpjax.accounting.mechanisms import Composed, Mechanism
from dpjax.accounting.method import Method
from dpjax.accounting.pairs import atoms as lowering
from dpjax.accounting.pairs.discrete import Discrete, Guarantee, guarantee, repeated

_UNSHOWN = 16  # settings that take a few seconds at most


def _split(run: Mechanism, adjacency: Adjacency) -> tuple[list, Composed]:
    """Steps of which the guarantee is known, with their factors, and everything else."""
    return lowering.split(run, lambda step: guarantee(step, adjacency) is not None)


def _supports(run: Mechanism, adjacency: Adjacency) -> bool:
    return lowering.lowers(_split(run, adjacency)[1], adjacency)


def directions(
    atoms: lowering.Atoms,
    known: list[tuple[Guarantee, float]],
    adjacency: Adjacency,
    *,
    upper: bool,
) -> list[list[Pair | Discrete]]:
    """The pairs of one concrete setting, once for each direction to be taken.

    What they are is what both bounds rest on. "gaussian": N(μ, 1) against N(0, 1). "poisson":
    (1−q)N(0, 1) + qN(μ, 1) against N(0, 1), or the reverse. "replace": the same against
    (1−q)N(0, 1) + qN(−μ, 1). Guarantees: the sampled four outcomes of `pairs.discrete`. All of them
    are attained by mechanisms of the kind that is priced, so that the lower end is a lower end.
    Fixed batches take "poisson" with both means' distance for the lower end, attained by a record
    whose replacement is like all others; for the upper end the symmetrised pair, which covers an
    adversary who changes direction between steps.

    Args:
        atoms: one setting of a run's Gaussian steps, as NumPy numbers.
        known: its guarantees and how often each is used.
        adjacency: the neighbouring relation.
        upper: whether for an upper bound.
    """
    add_remove = adjacency is Adjacency.ADD_REMOVE
    sampled = atoms.poisson is not None if add_remove else atoms.fixed is not None and not upper
    sampled |= any(own.rate < 1 for own, _ in known) and (add_remove or not upper)
    fixed = "symmetrised" if upper else "poisson"
    mu2 = float(atoms.gaussian_mu2)
    found = []
    for sign in (1, -1) if sampled else (1,):
        pairs: list[Pair | Discrete] = []
        if mu2 > 0:
            pairs.append(Pair("gaussian", sign, float(np.sqrt(mu2)), 1.0, 1))
        groups = ((atoms.poisson, "poisson" if add_remove else "replace"), (atoms.fixed, fixed))
        for steps, family in groups:
            if steps is not None:
                rows = zip(steps.mu, steps.rate, steps.count, strict=True)
                pairs += [Pair(family, sign, float(m), float(r), float(n)) for m, r, n in rows]
        symmetric = upper and not add_remove
        pairs += [
            repeated(own, count, sign=sign, symmetric=symmetric, upper=upper)
            for own, count in known
            if count > 0 and own.rate > 0 and (own.epsilon > 0 or own.delta > 0)
        ]
        found.append(pairs)
    return found


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


def _atoms(atoms: lowering.Atoms, adjacency: Adjacency) -> lowering.Atoms:
    return atoms


def _each_setting(bound: Callable, run: Any, given: Any, adjacency: Adjacency, upper: bool) -> Any:
    """Run over the settings one by one; the worse direction of each."""
    if float64.is_traced(run, given):
        raise UnsupportedQuery(
            "method 'pld' runs on the host and cannot be traced; method='contour' or 'rdp' can"
        )
    known, rest = _split(run, adjacency)
    atoms = lowering.query(_atoms, rest, adjacency)
    lead = np.shape(atoms.gaussian_mu2)
    fields = [
        (*guarantee(step, adjacency), np.prod(np.broadcast_arrays(1.0, *n), axis=0))  # pyrefly: ignore
        for step, n in known
    ]
    shape = np.broadcast_shapes(lead, np.shape(given), *(np.shape(v) for f in fields for v in f))
    given, *flat = (
        np.broadcast_to(np.asarray(v, np.float64), shape)
        for v in (given, *(v for f in fields for v in f))
    )
    answer = np.empty(shape)
    for index in _shown(list(np.ndindex(*shape))):
        place = tuple(
            0 if n == 1 else i for n, i in zip(lead, index[len(shape) - len(lead) :], strict=True)
        )
        single = lowering.Atoms(
            atoms.gaussian_mu2[place],
            *(
                None if group is None else lowering.Steps(*(a[place] for a in group))
                for group in (atoms.poisson, atoms.fixed)
            ),
        )
        counts: dict[Guarantee, float] = {}
        for row in zip(*[iter(float(v[index]) for v in flat)] * 4, strict=True):
            own = Guarantee(*row[:3])
            counts[own] = counts.get(own, 0.0) + row[3]
        ways = directions(single, list(counts.items()), adjacency, upper=upper)
        answer[index] = max(bound(way, float(given[index]), upper=upper) for way in ways)
    return answer


def _epsilon_upper(run: Mechanism, delta: Any, adjacency: Adjacency) -> Any:
    return _each_setting(epsilon_bound, run, delta, adjacency, upper=True)


def _epsilon_lower(run: Mechanism, delta: Any, adjacency: Adjacency) -> Any:
    """Of the two distributions that `directions` names for every kind of step."""
    found = _each_setting(epsilon_bound, run, delta, adjacency, upper=False)
    return found if lowering.exhibited(run) else 0 * found


def _delta_upper(run: Mechanism, epsilon: Any, adjacency: Adjacency) -> Any:
    return _each_setting(delta_bound, run, epsilon, adjacency, upper=True)


METHODS = (
    Method(
        "pld",
        rank=20.0,
        tight=True,
        dear=True,
        supports=_supports,
        epsilon=_epsilon_upper,
        delta=_delta_upper,
        epsilon_lower=_epsilon_lower,
        describe="privacy-loss distributions, discretised pessimistically by connecting the dots "
        "and composed by tilted FFT; (ε, δ) guarantees by their worst pair",
    ),
)
