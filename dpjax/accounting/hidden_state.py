"""Noisy gradient descent of which only the last iterate is released.

Every bound here is conditional: on losses that are smooth and (strongly) convex with the constants
stated, on plain steps (no momentum, no adaptive step), on a start that does not depend on the
data, and on nothing but the last iterate leaving the room. Clipping breaks convexity, except for
generalised linear models with the regulariser added outside the clip.

`NoisyGradientDescent` costs the least of plain composition, the strongly convex and the
bounded-domain bound by shifted interpolation; `descent_bounds` says which. For quadratics that is
exact, so that under the same constants nothing smaller holds. The tracing-diffusion bound of
Chourasia, Ye and Shokri (2021) is kept under its own method name, with the exponent that its proof
gives.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpjax._numerics import float64
from dpjax.accounting import gaussian_dp, lowering, queries, sampled_descent
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.gaussian_mixture import mixture_epsilon, mixture_log_delta
from dpjax.accounting.lowering import flatten
from dpjax.accounting.mechanisms import Composed, Gaussian, Mechanism, Repeated
from dpjax.accounting.run_mechanisms import NoisyCyclicDescent, NoisyGradientDescent
from dpjax.accounting.shifted_interpolation import (
    ASSUMPTIONS,
    bounded_descent_mu2,
    contraction_gap,
    cyclic_mu2,
    descent_mu2,
)

# Imported with this room's hidden-state methods, so that its own joins the table of queries.
NoisySampledDescent = sampled_descent.NoisySampledDescent

_MOST_POSITIONS = 2048


class DescentBounds(NamedTuple):
    """GDP parameters of one run by each argument; the least is what the accountant uses.

    Fields:
        composition: as if every iterate were released; needs no convexity.
        strongly_convex: shifted interpolation; +inf where the step does not contract.
        bounded: shifted interpolation within a bounded domain; +inf without one.

    Example:
      >>> from dpjax.accounting.hidden_state import DescentBounds
      >>> DescentBounds(2.0, 1.0, float("inf")).best
      'strongly_convex'
    """

    composition: Any
    strongly_convex: Any
    bounded: Any

    @property
    def best(self) -> str:
        """Name of the least bound (of one setting)."""
        return self._fields[int(np.argmin([float(value) for value in self]))]


def _units(run: Any) -> tuple[Array, Array, Array]:
    """Displacement of an update, its noise, and their ratio."""
    shift = run.step_size * run.gradient_sensitivity
    noise = jnp.sqrt(2.0 * run.step_size) * run.noise_std
    quiet = noise <= 0
    ratio = jnp.where(quiet, jnp.inf, shift / jnp.where(quiet, 1.0, noise))
    return shift, noise, jnp.where(shift > 0, ratio, 0.0)


def _bounds2(run: Any) -> tuple[Array, Array, Array]:
    """μ² by each argument, for one setting or broadcast fields."""
    shift, noise, ratio = _units(run)
    steps = jnp.asarray(run.steps, float)
    gap = contraction_gap(run.step_size, run.strong_convexity, run.smoothness)
    moves = (ratio > 0) & (steps > 0)
    finite = jnp.where(jnp.isfinite(ratio) & moves, ratio, 1.0)
    known = moves & jnp.isfinite(ratio)

    def settle(value: Array) -> Array:
        return jnp.where(known, value, jnp.where(moves, jnp.inf, 0.0))

    composition = steps * jnp.square(finite) * (1 + 1e-15)
    convex = jnp.where(gap > 0, descent_mu2(gap, steps, finite), jnp.inf)
    expands = (run.step_size * run.smoothness > 2) | (run.strong_convexity > run.smoothness)
    bounded = bounded_descent_mu2(
        gap,
        steps,
        jnp.where(known, shift, 1.0),
        jnp.where(known, noise, 1.0),
        jnp.asarray(run.diameter, float),
    )
    bounded = jnp.where(expands, jnp.inf, bounded)
    return settle(composition), settle(convex), settle(bounded)


def _least2(run: Any) -> Array:
    composition, convex, bounded = _bounds2(run)
    return jnp.minimum(composition, jnp.minimum(convex, bounded))


def _position2(run: Any, since_last: Array) -> Array:
    """μ² of the record whose last use is r = since_last + 1 updates before the end."""
    _, _, ratio = _units(run)
    gap = contraction_gap(run.step_size, run.strong_convexity, run.smoothness)
    steps, batches = jnp.asarray(run.steps, float), jnp.asarray(run.batches, float)
    uses = jnp.maximum(jnp.ceil((steps - since_last) / batches), 0.0)
    finite = jnp.where(jnp.isfinite(ratio), ratio, 1.0)
    value = cyclic_mu2(gap, since_last + 1.0, uses, batches, finite)
    return jnp.where(jnp.isfinite(ratio) | (uses == 0), value, jnp.inf)


def _all_bounds(*leaves: Array) -> tuple[Array, Array, Array]:
    return jax.tree.map(jnp.sqrt, _bounds2(NoisyGradientDescent(*leaves)))


def _fields(run: Any, kind: type) -> tuple[Any, ...]:
    return tuple(getattr(run, name) for name in kind.__dataclass_fields__)  # pyrefly: ignore


def descent_bounds(run: NoisyGradientDescent) -> DescentBounds:
    """The GDP parameter of the last iterate by each argument that applies, and which is least.

    Example:
      >>> from dpjax import accounting as acc
      >>> from dpjax.accounting.hidden_state import descent_bounds
      >>> run = acc.NoisyGradientDescent(steps=100, step_size=0.01, noise_std=0.02,
      ...     gradient_sensitivity=4 / 5000, strong_convexity=1.0, smoothness=1.0)
      >>> found = descent_bounds(run)
      >>> found.best, round(found.strongly_convex, 8), round(found.composition, 8)
      ('strongly_convex', 0.02718157, 0.02828427)

    References:
      Bok, Su and Altschuler 2024; the whole-number minimum of the bounded form is derived for
      dpjax.
    """
    fields = _fields(run, NoisyGradientDescent)
    found = float64.evaluate(_all_bounds, fields, (0,) * len(fields), rounding="up")
    return DescentBounds(*map(float64.plain, found))


def _position_core(*leaves: Array) -> Array:
    *fields, since_last = leaves
    return jnp.sqrt(_position2(NoisyCyclicDescent(*fields), since_last))


def position_mus(run: NoisyCyclicDescent) -> np.ndarray:
    """GDP parameter of the last iterate for a record in each batch of the cycle, shape [..., l].

    Which batch the record is in may be known to the attacker: a fixed public order costs the
    maximum. If the order is a secret uniform permutation drawn once, `epsilon` averages the
    privacy profiles.

    Example:
      >>> from dpjax import accounting as acc
      >>> from dpjax.accounting.hidden_state import position_mus
      >>> run = acc.NoisyCyclicDescent(200, 0.1, 5**-0.5 / 2, 1.0, 1.0, 1.0, batches=10)
      >>> [f"{mu:.6f}" for mu in position_mus(run)[[0, 1, 9]]]
      ['0.259277', '0.288086', '1.033066']
    """
    if np.ndim(run.batches) != 0:
        raise ValueError(f"position_mus needs one number of batches, got {run.batches}")
    batches = int(run.batches)  # pyrefly: ignore
    # Position j of l is last used (t − j) mod l updates before the last one.
    place = np.arange(1, batches + 1)
    steps = np.asarray(run.steps, np.float64)[..., None]
    since_last = np.where(steps >= place, np.mod(steps - place, batches), steps + place)
    fields = [np.asarray(v, np.float64)[..., None] for v in _fields(run, NoisyCyclicDescent)]
    return float64.evaluate(
        _position_core, (*fields, since_last), (0,) * (len(fields) + 1), batch=64, rounding="up"
    )


# --- as a method --------------------------------------------------------------------------------


def _hidden(run: Mechanism, adjacency: Adjacency) -> bool:
    steps = [step for step, _ in flatten(run)]
    if not any(isinstance(step, NoisyGradientDescent | NoisyCyclicDescent) for step in steps):
        return False
    rest = [s for s in steps if not isinstance(s, NoisyGradientDescent | NoisyCyclicDescent)]
    return all(lowering.lowers(step, adjacency) for step in rest)


def _multiplier_core(*leaves: Array, kind: type) -> Array:
    run = kind(*leaves)
    mu2 = _least2(run) if kind is NoisyGradientDescent else _position2(run, jnp.zeros(()))
    # No movement at all is noise beyond measure; rounding down is towards less privacy.
    return jnp.where(mu2 > 0, 1 / jnp.sqrt(jnp.where(mu2 > 0, mu2, 1.0)), 1e150) * (1 - 1e-15)


_MULTIPLIERS: dict[type, Any] = {
    kind: functools.partial(_multiplier_core, kind=kind)
    for kind in (NoisyGradientDescent, NoisyCyclicDescent)
}


def gaussian_equivalent(run: Mechanism, adjacency: Adjacency) -> Mechanism:
    """The run with every hidden-state part replaced by a Gaussian release at least as revealing.

    For noisy cyclic descent it is the release of the worst batch's record. An upper bound of the
    run's cost, and not a lower one: no interval may be read off it.

    Example:
      >>> from dpjax import accounting as acc
      >>> from dpjax.accounting.hidden_state import gaussian_equivalent
      >>> run = acc.NoisyGradientDescent(1, 0.5, 1.0, 1.0, 0.0, 1.0)
      >>> gaussian_equivalent(run, acc.Adjacency.ADD_REMOVE).mechanisms[0]
      Gaussian(noise_multiplier=...1.99...)
    """
    parts = []
    for step, factors in flatten(run):
        part: Any = step
        if type(step) in _MULTIPLIERS:
            fields = _fields(step, type(step))
            multiplier = float64.evaluate(
                _MULTIPLIERS[type(step)], fields, (0,) * len(fields), rounding="down"
            )
            # A Gaussian of noise multiplier s is (1/s)-GDP, and (2/s)-GDP when a record is
            # replaced.
            scale = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
            part = Gaussian(float64.plain(scale * multiplier))
        for factor in factors:
            part = Repeated(part, factor)
        parts.append(part)
    return Composed(tuple(parts))


def _through(question: Any) -> Any:
    def ask(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        return question(gaussian_equivalent(run, adjacency), given, adjacency=adjacency)

    return ask


def _quadratic_core(*leaves: Array) -> Array:
    """μ of the quadratic of least curvature, which no bound under these constants can go below."""
    *fields, delta = leaves
    run: Any = NoisyGradientDescent(*fields)
    _, _, ratio = _units(run)
    gap = contraction_gap(run.step_size, run.strong_convexity, run.strong_convexity)
    mu = jnp.sqrt(descent_mu2(gap, jnp.asarray(run.steps, float), ratio)) * (1 - 1e-11)
    attained = jnp.isinf(run.diameter) & (run.step_size * run.strong_convexity <= 1)
    value = gaussian_dp.epsilon(mu, delta * (1 + 1e-11)) * (1 - 1e-11)
    return jnp.where(attained, value, 0.0)


def _epsilon_lower(run: Mechanism, delta: Any, adjacency: Adjacency) -> Any:
    if not isinstance(run, NoisyGradientDescent):
        return 0.0 * (delta if float64.is_traced(delta) else np.asarray(delta, np.float64))
    fields = (*_fields(run, NoisyGradientDescent), delta)
    return float64.evaluate(_quadratic_core, fields, (0,) * len(fields), rounding="down")


queries.register_method(
    "hidden_state",
    rank=2.0,
    epsilon_lower=_epsilon_lower,
    supports=_hidden,
    epsilon=_through(queries.epsilon),
    delta=_through(queries.delta),
    rdp=_through(queries.rdp),
    tradeoff=_through(queries.tradeoff),
    describe="Gaussian DP of the last iterate by shifted interpolation (Bok, Su and Altschuler "
    "2024), the least of the composition, strongly convex and bounded-domain forms",
    tier="conditional",
    assumptions=ASSUMPTIONS,
)


def _shuffled_once(run: Mechanism, adjacency: Adjacency) -> bool:
    return isinstance(run, NoisyCyclicDescent)


@functools.lru_cache(maxsize=64)
def _mixture_core(batches: int, question: str) -> Any:
    groups = min(batches, _MOST_POSITIONS)
    # Positions in order of their last use; of each group the latest, which is the worst, stands
    # for all.
    edges = np.floor(np.arange(groups + 1) * (batches / groups))
    weights = np.diff(edges) / batches

    def core(*leaves: Array) -> Array:
        *fields, given = leaves
        run = NoisyCyclicDescent(*fields)
        mus = jnp.sqrt(jax.vmap(lambda r: _position2(run, r))(jnp.asarray(edges[:-1])))
        bad = jnp.isinf(mus)
        mus = jnp.where(bad, 0.0, mus)
        if question == "epsilon":
            value = mixture_epsilon(mus, jnp.asarray(weights), given)
            return jnp.where(jnp.any(bad), jnp.inf, value)
        value = jnp.exp(mixture_log_delta(mus, jnp.asarray(weights), given))
        return jnp.where(jnp.any(bad), 1.0, value)

    return core


def _cyclic_ask(question: str, hopeless: float) -> Any:
    def ask(run: NoisyCyclicDescent, given: Any, adjacency: Adjacency) -> Any:
        if float64.is_traced(run.batches) or np.ndim(run.batches) != 0:
            return hopeless  # the number of components must be known; "hidden_state" answers
        core = _mixture_core(int(run.batches), question)  # pyrefly: ignore
        fields = _fields(run, NoisyCyclicDescent)
        return float64.evaluate(
            core, (*fields, given), (0,) * (len(fields) + 1), batch=8, rounding="up"
        )

    return ask


queries.register_method(
    "shuffled_once",
    rank=1.0,
    supports=_shuffled_once,
    epsilon=_cyclic_ask("epsilon", np.inf),
    delta=_cyclic_ask("delta", 1.0),
    describe="mean over the record's batch of its Gaussian privacy profile (joint convexity), the "
    "batch's μ by shifted interpolation; derived for dpjax",
    tier="conditional",
    assumptions=(*ASSUMPTIONS, "the batches come from one secret uniform permutation, drawn once"),
)
