"""The tight answers of subsampled Gaussians: contour integration, at rising resolution."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpjax._numerics import float64
from dpjax.accounting import contour, lowering, queries
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.lowering import Atoms
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.queries import register_method

_GOOD = 1e-6  # share of δ that error bounds may take before a finer resolution is tried
_USABLE = 1e-3  # share above which the answer is left to another method


def composition(
    atoms: Atoms, adjacency: Adjacency, *, lower: bool = False
) -> tuple[contour.Composition, tuple[int, ...]]:
    """A run's atoms as the contour's pairs, with the directions to be taken.

    Fixed batches take the symmetrised pair, which bounds an adversary who changes direction between
    steps, or, for a lower bound, the one-sided pair in every step.

    >>> run, signs = composition(Atoms(jnp.asarray(0.25), None, None), Adjacency.ADD_REMOVE)
    >>> signs
    (1, -1)
    """
    steps: dict[Any, contour.Steps] = {}
    if atoms.poisson is not None:
        family = "poisson" if adjacency is Adjacency.ADD_REMOVE else "replace"
        steps[family] = contour.Steps(*atoms.poisson)
    if atoms.fixed is not None:
        steps["poisson" if lower else "symmetrised"] = contour.Steps(*atoms.fixed)
    signs = (1, -1) if "poisson" in steps or adjacency is Adjacency.ADD_REMOVE else (1,)
    return contour.Composition(atoms.gaussian_mu2, steps), signs


@functools.cache
def _kernel(question: str, lower: bool, level: int):
    ask = contour.epsilon if question == "epsilon" else contour.delta

    def kernel(atoms: Atoms, adjacency: Adjacency, given: Array) -> contour.Bounds:
        run, signs = composition(atoms, adjacency, lower=lower)
        return ask(run, given, signs, contour.RESOLUTIONS[level])

    return kernel


def _poor(bounds: contour.Bounds) -> Any:
    with np.errstate(invalid="ignore"):  # ∞ − ∞ is poor
        close = bounds.upper - bounds.lower <= _GOOD * bounds.upper
    return ~((bounds.share <= _GOOD) | close)


def _bounds(
    question: str, run: Mechanism, given: Any, adjacency: Adjacency, *, lower: bool = False
) -> contour.Bounds:
    settings = max(np.size(leaf) for leaf in [*jax.tree.leaves(run), given])
    levels = len(contour.RESOLUTIONS) if settings <= queries.PATIENCE else 2
    finer = [_kernel(question, lower, k) for k in range(1, levels)]
    return lowering.query(
        _kernel(question, lower, 0),
        run,
        adjacency,
        (given,),
        (0,),
        batch=4,
        rounding="down" if lower else "up",
        finer=finer,
        poor=_poor,
    )


def _upper(question: str, nothing: float):
    def ask(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        bounds = _bounds(question, run, given, adjacency)
        xp = jnp if float64.is_traced(bounds) else np
        # A loose bracket is valid, but another method may do better.
        close = ~(bounds.upper - bounds.lower > 1e-2 * bounds.upper)
        good = (bounds.share <= _USABLE) & close & (bounds.upper < np.inf)
        return xp.where(good, bounds.upper, nothing)

    return ask


def _epsilon_lower(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
    steps = [step for step, _ in lowering.flatten(run)]
    kinds = {lowering.atom_kind(jax.tree.structure(step), adjacency) for step in steps}
    # Both ends come from one evaluation, unless the pairs differ or the ends round differently.
    lower = "fixed" in kinds or float64.is_traced(run, given)
    return _bounds("epsilon", run, given, adjacency, lower=lower).lower


register_method(
    "contour",
    rank=10.0,
    supports=lowering.lowers,
    epsilon=_upper("epsilon", np.inf),
    delta=_upper("delta", 1.0),
    epsilon_lower=_epsilon_lower,
    describe="privacy profile by contour integration of the privacy loss's transform, all errors "
    "bounded and added",
)
