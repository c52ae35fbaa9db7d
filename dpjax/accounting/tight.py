"""The tight answers of subsampled Gaussians: contour integration, at rising resolution."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpjax._numerics import float64
from dpjax.accounting import contour, lowering
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.lowering import Atoms
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.queries import register_method

# Share of the answer that error bounds may take before a finer resolution is tried. Long schedules
# of distinct steps are held to less: there a finer line costs seconds.
_GOOD = 1e-8
_GOOD_OF_MANY, _MANY = 1e-6, 16
_HOPELESS = 1e4  # ε above which no finer line is tried: few would gain, and nobody by them
_USABLE = 1e-5  # share above which the answer is left to another method
_LOOSE = 1e-3  # the same under a trace, where the next method is much looser


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


def _width(bounds: contour.Bounds) -> Any:
    """What the answer is loose by, relative: certified where both ends are known."""
    with np.errstate(invalid="ignore", divide="ignore"):  # ∞ − ∞ and 0/0 say nothing
        width = (bounds.upper - bounds.lower) / bounds.upper
    return np.where(bounds.upper == 0, 0.0, np.fmin(width, bounds.share))


def _poor(bounds: contour.Bounds, good: float = _GOOD) -> Any:
    hopeless = (bounds.upper >= _HOPELESS) & np.isfinite(bounds.upper)
    return ~(_width(bounds) <= good) & ~hopeless


def _merge(old: contour.Bounds, new: contour.Bounds) -> contour.Bounds:
    """All of them hold: the best of each end, so that a finer line never loses."""
    upper, lower = np.fmin(old.upper, new.upper), np.fmax(old.lower, new.lower)
    # An estimate goes with the upper end it was made for.
    share = np.where(new.upper < old.upper, new.share, old.share)
    return contour.Bounds(np.minimum(lower, upper), upper, share)  # pyrefly: ignore


def _bounds(
    question: str, run: Mechanism, given: Any, adjacency: Adjacency, *, lower: bool = False
) -> contour.Bounds:
    finer = [_kernel(question, lower, k) for k in range(1, len(contour.RESOLUTIONS))]
    few = len(lowering.flatten(run)) <= _MANY
    return lowering.query(
        _kernel(question, lower, 0),
        run,
        adjacency,
        (given,),
        (0,),
        batch=4,
        rounding="down" if lower else "up",
        finer=finer,
        poor=functools.partial(_poor, good=_GOOD if few else _GOOD_OF_MANY),
        merge=_merge,
    )


def _upper(question: str, nothing: float):
    def ask(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        bounds = _bounds(question, run, given, adjacency)
        if float64.is_traced(bounds):
            # What could answer instead may not be traceable: any bound is better than none.
            good = (bounds.share <= _LOOSE) & (bounds.upper < np.inf)
            return jnp.where(good, bounds.upper, nothing)
        # A loose bound is valid, but another method may do better.
        good = (_width(bounds) <= _USABLE) & (bounds.upper < np.inf)
        return np.where(good, bounds.upper, nothing)

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
