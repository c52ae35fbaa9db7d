"""Gradient descent with an adaptive privacy budget per step (Lee and Kifer 2018)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dpjax import accounting as acc
from dpjax._numerics.namespace import Values
from dpjax._numerics.normal import normal
from dpjax._numerics.typing import Number, PRNGKey
from dpjax.erm import check
from dpjax.erm.descent import gumbel, initial_params
from dpjax.erm.problems import Problem
from dpjax.erm.solver import REPLACE_ONE, Budget, Solution, private_solver

_REFRESH = 10  # updates between two adaptations of the step grid
_GROW = 1.1  # the grid's largest step, over the largest one chosen since


class AdaptiveHistory(NamedTuple):
    """How the budget went; a function of released values, and covered by the price.

    Fields:
        updates: steps taken.
        refinements: times no candidate improved and the gradient was measured again.
        spent: zCDP used, at most the mechanism's ρ.

    Example:
        >>> AdaptiveHistory(updates=10, refinements=2, spent=0.01).updates
        10
    """

    updates: Int[Array, ""]
    refinements: Int[Array, ""]
    spent: Float[Array, ""]


def _price_adaptive(
    problem: Problem, noise: Number, *, adjacency: str = acc.Adjacency.ADD_REMOVE, **_: object
) -> acc.ZeroConcentrated:
    # `noise` is 1/√(2ρ), the noise multiplier of one Gaussian release that costs the whole budget,
    # so that more noise is more privacy here as everywhere.
    return acc.ZeroConcentrated(0.5 / noise**2, str(acc.Adjacency(adjacency)))


@private_solver(
    "total_noise", _price_adaptive, traced=("max_step_size", "clip_norm", "loss_bound", "growth")
)
def dp_agd(
    problem: Problem,
    key: Array,
    budget: Budget[acc.ZeroConcentrated],
    *,
    planned_steps: int = 60,
    max_step_size: float = 2.0,
    candidates: int = 20,
    clip_norm: float = 1.0,
    loss_bound: float = 3.0,
    growth: float = 0.1,
    line_share: float = 0.5,
    max_iterations: int = 2000,
    init: Array | None = None,
) -> Solution[acc.Mechanism]:
    """Private gradient descent whose step size and per-step budget adapt (Lee and Kifer 2018).

    Each round measures `g̃ = Σ clip(∇ℓᵢ) + N(0, C²/(2ρ_g))`, and chooses privately among
    `candidates` steps along −g̃/‖g̃‖, geometrically spaced and 0 included, the one of least clipped
    loss. Where step 0 wins, the gradient is measured again at the same point, the two are averaged
    by their precision (a running average, never normalised), and ρ_g grows by `growth` for good.

    Args:
        planned_steps: the first rounds cost ρ/planned_steps each.
        max_step_size: largest candidate ‖step‖ at first; then 1.1 times the largest one chosen
            lately.
        clip_norm, loss_bound: C on a record's gradient, and the bound on a record's loss in the
            choice; too low a loss_bound hides the records that are wrong by far.
        growth: γ > 0.
        line_share: part of a round's budget that the choice gets, in (0, 1).
        total_noise: 1/√(2ρ) > 0, the noise multiplier of a single Gaussian release of the same
            cost.
        max_iterations: rounds at most, a public constant.

    Raises:
        ValueError: if an argument is out of range.

    Guarantee:
        ρ-zCDP for the stated adjacency: every round's cost is checked *before* it is spent (a zCDP
        filter), and the choice is an exponential mechanism by Gumbel noise, of cost ε²/8. Under
        add/remove the clipped losses are monotone in the data and the sensitivity is `loss_bound`;
        under replace-one gradients count double and so do losses. No assumption on the data.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 500, [1, 0] * 500, l2=0.01)
        >>> solution = dp_agd(problem, jax.random.key(0), epsilon=1.0, delta=1e-5)
        >>> bool(acc.epsilon(solution.mechanism, delta=1e-5) <= 1.0)
        True
        >>> bool(solution.history.spent <= solution.mechanism.rho)
        True
    """
    if not 0 < line_share < 1:
        raise ValueError(f"line_share must be in (0, 1), got {line_share}")
    if budget.noise is not None:
        check.positive_values("total_noise", budget.noise)
    _, mechanism = budget.resolve()
    # Replacing a record is one less and one more: gradients and losses count double.
    factor = 2.0 if acc.Adjacency(budget.adjacency) is REPLACE_ONE else 1.0
    numbers = _Settings(
        mechanism.rho, max_step_size, clip_norm, loss_bound, growth, line_share, factor
    )
    init = initial_params(problem, init)
    counts = _Counts(planned_steps, candidates, max_iterations)
    params, history = _adapt(problem, key, init, numbers, counts)
    return Solution(params, mechanism, history)


class _Settings(NamedTuple):
    """The numbers of a run, which one compiled program takes in."""

    rho: Values  # of the whole run
    max_step_size: Number
    clip_norm: Number
    loss_bound: Number
    growth: Number
    line_share: Number
    factor: Number  # by which a neighbour moves a sum: 1, or 2 under replace-one


class _Counts(NamedTuple):
    """What is fixed in the compiled program of a run."""

    planned_steps: int
    candidates: int
    max_iterations: int


class _State(NamedTuple):
    """What a round hands to the next."""

    params: Array
    average: Array  # precision-weighted mean of the gradients measured at params, unnormalised
    precision: Array  # zCDP already spent on them; 0 right after an update
    target: Array  # ρ_g
    left: Array
    largest: Array  # of the step grid
    chosen: Array  # largest step since the grid was refreshed
    updates: Array
    round: Array


@functools.partial(jax.jit, static_argnames="counts")
def _adapt(
    problem: Problem, key: PRNGKey, params: Array, numbers: _Settings, counts: _Counts
) -> tuple[Array, AdaptiveHistory]:
    """(parameters, history) once the next round would exceed the budget."""
    _, _, clip_norm, loss_bound, growth, line_share, factor = numbers
    dtype, candidates = problem.dtype, counts.candidates
    first = _begin(params, numbers, counts.planned_steps)
    line_cost = line_share * first.left / counts.planned_steps
    # Exponential mechanism P ∝ exp(−εL/Δ): ε²/8-zCDP where ε is the range of its exponent.
    line_epsilon = jnp.sqrt(8.0 * line_cost)
    # Three decades, so that a point where only a short step helps is not taken for a minimum.
    grid = jnp.concatenate([jnp.zeros(1), jnp.geomspace(1e-3, 1.0, candidates - 1)]).astype(dtype)
    clip_norm = jnp.asarray(clip_norm, dtype)

    def cost(s: _State) -> Array:
        return (s.target - s.precision) + line_cost  # zCDP adds up over a round's two releases

    def body(s: _State) -> _State:
        gradient_key, line_key = jax.random.split(jax.random.fold_in(key, s.round))
        fresh = s.target - s.precision
        exact = problem.gradient_sum(s.params, clip_norm=clip_norm)
        std = factor * clip_norm / jnp.sqrt(2.0 * fresh)  # ρ = Δ²/(2σ²)
        measured = exact + std * normal(gradient_key, problem.shape, dtype)
        average = (s.precision * s.average + fresh * measured) / s.target
        total = average + problem.n * problem.l2 * s.params  # the regulariser is public
        norm = jnp.linalg.norm(total.ravel())
        direction = total / jnp.where(norm > 0, norm, 1.0)
        steps = grid * s.largest
        trials = jax.vmap(lambda size: problem.project(s.params - size * direction))(steps)
        losses = problem.losses_along(s.params, direction, steps)
        squares = jnp.sum(jnp.square(trials.reshape(candidates, -1)), 1)
        ridge = 0.5 * problem.n * problem.l2 * squares
        utility = utilities(losses, ridge, loss_bound, line_epsilon / factor)
        # The largest of utilities plus Gumbel noise is a draw from their exponential mechanism.
        pick = jnp.argmax(utility + gumbel(line_key, (candidates,), dtype))
        moved = pick > 0
        updates = s.updates + moved.astype(jnp.int32)
        chosen = jnp.maximum(s.chosen, steps[pick])
        refresh = moved & (updates % _REFRESH == 0)
        return _State(
            params=trials[pick],
            average=jnp.where(moved, jnp.zeros_like(average), average),
            precision=jnp.where(moved, 0.0, s.target),
            target=jnp.where(moved, s.target, s.target * (1.0 + growth)),
            left=s.left - cost(s),  # depends on released choices alone
            largest=jnp.where(refresh, _GROW * chosen, s.largest),
            chosen=jnp.where(refresh, 0.0, chosen),
            updates=updates,
            round=s.round + 1,
        )

    # A round's cost is checked before anything of it is drawn.
    last = jax.lax.while_loop(
        lambda s: (cost(s) <= s.left) & (s.round < counts.max_iterations), body, first
    )
    spent = first.left - last.left
    return last.params, AdaptiveHistory(last.updates, last.round - last.updates, spent)


def _begin(params: Array, numbers: _Settings, planned_steps: int) -> _State:
    """What the first round is handed."""
    dtype = params.dtype
    # Round the budget down: float32 sums of costs must not pass the float64 price.
    rho = jnp.asarray(numbers.rho, dtype) * (1.0 - 1e-5)
    zero, none = jnp.zeros((), dtype), jnp.zeros((), jnp.int32)
    target = (1.0 - numbers.line_share) * rho / planned_steps
    largest = jnp.asarray(numbers.max_step_size, dtype)
    return _State(params, jnp.zeros_like(params), zero, target, rho, largest, zero, none, none)


def utilities(
    losses: Float[Array, "candidates n"],
    ridge: Float[Array, " candidates"],
    loss_bound: Number,
    scale: Number,
) -> Float[Array, " candidates"]:
    """−scale · (Σ clipped losses + ridge)/loss_bound of every candidate, less the least of them."""
    # In integers one record moves every sum by at most the bound exactly, however large sum and
    # regulariser are that a float would be rounded with. What is not finite counts as the bound.
    levels = 2 ** max(0, min(20, 30 - losses.shape[1].bit_length()))  # the sum stays below 2^30
    shares = jnp.clip(losses / loss_bound, 0.0, 1.0)
    shares = jnp.where(jnp.isfinite(losses), shares, 1.0)
    total = jnp.sum(jnp.round(shares * levels).astype(jnp.int32), axis=1)
    # Beyond 2^29 nobody can tell regularisers apart by the losses.
    public = jnp.round((ridge - ridge[0]) * (levels / loss_bound))
    total = total + jnp.clip(public, -(2.0**29), 2.0**29).astype(jnp.int32)
    # Small differences matter, and a float holds these to its relative precision.
    return (jnp.min(total) - total).astype(losses.dtype) * (scale / levels)
