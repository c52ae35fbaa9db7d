"""Noisy gradient descent of which only the last iterate is released.

Every bound here rests on what the mechanisms' `rests_on` says. `NoisyGradientDescent` costs the
least of plain composition, the strongly convex and the bounded-domain bound by shifted
interpolation; `descent_bounds` says which. For quadratics that is exact, so that under the same
constants nothing smaller holds.

Noisy SGD over batches drawn afresh without replacement costs the least of plain composition of the
sampled Gaussians and, over windows ν and shares θ, one Gaussian release for everything older than ν
steps with ν sampled ones of noise variance θ (`shifted_interpolation.sampled_split`, derived for
dpjax; Bok, Su and Altschuler 2024 treat θ = 1/2).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from dpjax._numerics import checks, float64
from dpjax._numerics.arrays import NUMPY, Numbers, namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour import method as contour
from dpjax.accounting.gaussian import gaussian_dp as gaussian
from dpjax.accounting.gaussian import pair
from dpjax.accounting.gaussian.randomized_sensitivity import mixture_delta, mixture_epsilon
from dpjax.accounting.gaussian.shifted_interpolation import (
    bounds2,
    contraction_gap,
    descent_mu2,
    mu_squared_by_position,
    sampled_split,
    units,
)
from dpjax.accounting.loss_distribution import method as loss_distribution
from dpjax.accounting.mechanisms import (
    Composed,
    FixedBatchSampled,
    Gaussian,
    Mechanism,
    NoisyCyclicDescent,
    NoisyGradientDescent,
    NoisySampledDescent,
    Repeated,
    flatten,
)
from dpjax.accounting.mechanisms.steps import widen
from dpjax.accounting.method import Method, Part, bound_by, evaluate_bound
from dpjax.accounting.pairs.atoms import is_gaussian_family
from dpjax.accounting.renyi import method as renyi
from dpjax.accounting.typing import Answer, Real

_MOST_POSITIONS = 2048


class DescentBounds(NamedTuple):
    """GDP parameters of one run by each argument; the least is what the accountant uses.

    Fields:
        composition: as if every iterate were released; needs no convexity.
        strongly_convex: shifted interpolation; +inf where the step does not contract.
        bounded: shifted interpolation within a bounded domain; +inf without one.
    """

    composition: Answer
    strongly_convex: Answer
    bounded: Answer

    @property
    def best(self) -> str:
        """Name of the least bound (of one setting)."""
        return self._fields[int(np.argmin([float(value) for value in self]))]


def _all_bounds(run: NoisyGradientDescent, adjacency: None) -> tuple[Array, ...]:
    return tuple(map(namespace(run).sqrt, bounds2(run)))


def of_kind(run: Mechanism, kind: type) -> None:
    """Refuse what is not of a kind."""
    if not isinstance(run, kind):
        raise TypeError(f"run must be a {kind.__name__}, got {checks.render(run)}")


def descent_bounds(run: NoisyGradientDescent) -> DescentBounds:
    """The GDP parameter of the last iterate by each argument that applies, and which is least.

    References:
        Bok, Su and Altschuler 2024; the whole-number minimum of the bounded form is derived for
        dpjax.
    """
    of_kind(run, NoisyGradientDescent)
    return DescentBounds(*map(float64.to_float, evaluate_bound(_all_bounds, run, None)))


# --- as a method --------------------------------------------------------------------------------


def _hidden(run: Mechanism, adjacency: Adjacency) -> bool:
    kinds = NoisyGradientDescent, NoisyCyclicDescent
    return is_gaussian_family(run, adjacency) and any(isinstance(s, kinds) for s, _ in flatten(run))


# What prices any run of Gaussian and sampled Gaussian pairs; Rényi curves last.
_SHARP = (*gaussian.GDP_METHODS, *contour.CONTOUR_METHODS, *loss_distribution.LOSS_METHODS)
_OF_GAUSSIANS = (*_SHARP, *renyi.RENYI_METHODS)


def _quadratic(run: NoisyGradientDescent, adjacency: Adjacency, delta: Array) -> Array:
    """ε of the quadratic of least curvature, which no bound under these constants can go below."""
    xp = namespace(run, delta)
    _, _, ratio = units(run)
    gap = contraction_gap(run.step_size, run.strong_convexity, run.strong_convexity)
    mu = xp.sqrt(descent_mu2(gap, xp.asarray(run.steps), ratio)) * (1 - 1e-11)
    attained = xp.isinf(run.diameter) & (run.step_size * run.strong_convexity <= 1)
    value = pair.pair_epsilon(mu, delta * (1 + 1e-11)) * (1 - 1e-11)  # rounded down
    return xp.where(attained, value, 0.0)


def _descent_lower(run: Mechanism, delta: Numbers, adjacency: Adjacency) -> Numbers:
    """A lower end, of last iterates on two quadratics of curvature m whose minima are S/m apart."""
    if not isinstance(run, NoisyGradientDescent):
        known = delta if float64.is_traced(delta) else NUMPY.asarray(delta)
        return 0.0 * known
    return evaluate_bound(_quadratic, run, adjacency, delta, rounding="down")


def _shuffled_once(run: Mechanism, adjacency: Adjacency) -> bool:
    return isinstance(run, NoisyCyclicDescent)


@functools.lru_cache(maxsize=64)
def _mixture(batches: int, price: Callable) -> Callable:
    groups = min(batches, _MOST_POSITIONS)
    # Positions in order of their last use; of each group the latest, which is the worst, stands
    # for all.
    edges = np.floor(np.arange(groups + 1) * (batches / groups))  # whole positions
    weights = np.diff(edges) / batches  # the share of positions in each group

    def kernel(run: NoisyCyclicDescent, adjacency: Adjacency, given: Array) -> Array:
        xp = namespace(run, given)
        mus = xp.sqrt(
            mu_squared_by_position(run, xp.asarray(edges[:-1]))
        )  # the latest use of each group
        return price(mus, xp.asarray(weights), given)

    return kernel


def _cyclic(price: Callable, nothing: float) -> Callable:
    def answer(run: NoisyCyclicDescent, given: Numbers, adjacency: Adjacency) -> Numbers | float:
        if float64.is_traced(run.batches) or np.ndim(run.batches) != 0:
            return nothing  # the number of components must be known; "hidden_state" answers
        return evaluate_bound(_mixture(int(run.batches), price), run, adjacency, given)  # pyrefly: ignore

    return answer


_WINDOW_SHARES = (0.5, 0.75, 0.85, 0.93)


def releases(run: NoisySampledDescent, window: int, share: float) -> Mechanism:
    """Releases that reveal at least as much as the last iterate, for a window and a share.

    With the whole window and share 1 it is plain composition.
    """
    wide = widen(run)  # quotients of float64, whatever the fields are
    _, noise, ratio = map(float, units(wide))
    past, update = sampled_split(
        float(contraction_gap(wide.step_size, wide.strong_convexity, wide.smoothness)),
        ratio,
        int(run.steps),
        diameter_ratio=float(run.diameter) / noise,
        window=window,
        share=share,
    )
    # A Gaussian of noise multiplier s is (2/s)-GDP when a record is replaced.
    sampled = Repeated(
        FixedBatchSampled(Gaussian(2 / max(update, 1e-150)), run.batch_size, run.population), window
    )
    # A smaller past would take noise whose square overflows.
    return Composed((Gaussian(2 / past), sampled)) if past > 1e-150 else sampled


def _has_descent(run: Mechanism, adjacency: Adjacency) -> bool:
    return isinstance(run, NoisySampledDescent) and adjacency is Adjacency.REPLACE_ONE


def _candidates(run: NoisySampledDescent) -> list[Mechanism]:
    steps = int(run.steps)
    # A projection or a contraction forgets; the share cannot be used where neither does.
    sound = run.step_size * run.smoothness <= 2 and run.strong_convexity <= run.smoothness
    windows = np.unique(np.geomspace(1, max(steps - 1, 1), 16).astype(int)) if sound else ()
    found = [releases(run, steps, 1.0)] if steps > 0 else [Composed(())]
    return found + [
        releases(run, int(w), share) for w in windows if w < steps for share in _WINDOW_SHARES
    ]


def _ask(part: Part) -> Callable[[NoisySampledDescent, Real, Adjacency], Answer]:
    def one(run: NoisySampledDescent, given: Real, adjacency: Adjacency) -> np.ndarray:
        # Rényi bounds choose, since they are quick; the tightest method prices the choice.
        options = _candidates(run)
        # each is an upper bound by itself
        rough = [bound_by(renyi.RENYI_METHODS[:1], part, m, given, adjacency) for m in options]
        chosen = options[int(np.argmin([float(np.max(value)) for value in rough]))]
        found = bound_by(_SHARP, part, chosen, given, adjacency)
        return functools.reduce(np.minimum, map(np.asarray, (*rough, found)))

    def ask(run: NoisySampledDescent, given: Real, adjacency: Adjacency) -> Answer:
        """The settings of a sweep one after the other: each has its own candidates."""
        leaves, tree = jax.tree.flatten((run, given))
        columns = np.broadcast_arrays(*leaves)  # every field in the sweep's shape
        rows = zip(*(column.ravel() for column in columns), strict=True)
        asked = (jax.tree.unflatten(tree, row) for row in rows)
        found = [one(each, number, adjacency) for each, number in asked]
        return np.reshape(found, columns[0].shape)

    return ask


DESCENT_METHODS = (
    Method(
        "hidden_state",
        rank=2.0,
        tight=True,
        complete=True,
        epsilon_lower=_descent_lower,
        supports=_hidden,
        needs=(NoisyGradientDescent, NoisyCyclicDescent),
        epsilon=functools.partial(bound_by, _OF_GAUSSIANS, "epsilon"),
        delta=functools.partial(bound_by, _OF_GAUSSIANS, "delta"),
        describe="Gaussian DP of the last iterate by shifted interpolation (Bok, Su and Altschuler "
        "2024), the least of the composition, strongly convex and bounded-domain forms",
    ),
    Method(
        "shuffled_once",
        rank=1.0,
        supports=_shuffled_once,
        needs=(NoisyCyclicDescent,),
        epsilon=_cyclic(mixture_epsilon, np.inf),
        delta=_cyclic(mixture_delta, 1.0),
        describe="mean over the record's batch of its Gaussian privacy profile (joint convexity), "
        "the batch's μ by shifted interpolation; derived for dpjax",
    ),
    Method(
        "sampled_descent",
        rank=2.0,
        dear=True,
        supports=_has_descent,
        needs=(NoisySampledDescent,),
        epsilon=_ask("epsilon"),
        delta=_ask("delta"),
        describe="shifted interpolation, the noise of the last steps split between hiding the "
        "batch and hiding the past; derived for dpjax",
    ),
)
