"""Output perturbation: noise on the result of descent, sensitivity computed step by step.

Of gradient descent (Zhang et al. 2017), of SGD over a permutation (Wu et al. 2017), and of cyclic
SGD whose noise knows that a record's position is random (chen2019).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax import accounting as acc
from dpjax._numerics.namespace import Values
from dpjax._numerics.typing import PRNGKey
from dpjax.accounting.gaussian.permuted_sgd import batch_sensitivities
from dpjax.erm import check, descent
from dpjax.erm.problems import Problem
from dpjax.erm.sensitivity import descent_sensitivity, scheduled_sensitivities
from dpjax.erm.solver import REPLACE_ONE, Budget, Solution, private_solver


class OutputHistory(NamedTuple):
    """What an output-perturbation solver added; every field is independent of the data.

    Fields:
        noise_std: standard deviation of the noise per coordinate.
        sensitivities: [m] bound on how far one replaced record in batch j moves the parameters.

    Example:
        >>> OutputHistory(noise_std=0.1, sensitivities=[0.01]).noise_std
        0.1
    """

    noise_std: Values
    sensitivities: Float[ArrayLike, " m"]


def _rsgd_mechanism(
    problem: Problem,
    noise: Values,
    *,
    epochs: int,
    step_size: Values,
    batch_size: int,
    average_every: int | None = None,
    **_: object,
) -> acc.RandomizedSensitivity:
    """Gaussian noise on a sensitivity that the random position of a record decides."""
    sizes = descent.batch_sizes(problem.n, batch_size)
    moves = batch_sensitivities(
        sizes,
        epochs=epochs,
        step_size=step_size,
        average_every=average_every,
        gradient_radius=problem.gradient_bound,
        strong_convexity=problem.strong_convexity,
        smoothness=problem.smoothness,
    )
    # The permutation is uniform: a record is in batch j with probability |B_j|/n.
    return acc.RandomizedSensitivity(moves, sizes / problem.n, noise)


def _rsgd_ar_mechanism(
    problem: Problem, noise: Values, *, average_every: int | None = 5, **hyperparameters: Any
) -> acc.RandomizedSensitivity:
    return _rsgd_mechanism(problem, noise, average_every=average_every, **hyperparameters)


def _nsgd_mechanism(
    problem: Problem, noise: Values, **hyperparameters: Any
) -> acc.RandomizedSensitivity:
    moves = _rsgd_mechanism(problem, noise, **hyperparameters).sensitivities
    return _worst_position(np.asarray(moves), noise)


def _worst_position(moves: Array | np.ndarray, noise: Values) -> acc.RandomizedSensitivity:
    # No permutation hides the position: the largest sensitivity, with weight 1.
    return acc.RandomizedSensitivity(moves.max(axis=-1, keepdims=True), np.ones(1), noise)


@private_solver("noise_std", _nsgd_mechanism, adjacency=REPLACE_ONE, copies_data=True)
def nsgd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    epochs: int,
    batch_size: int,
    step_size: Values,
    init: Array | None = None,
) -> Solution[acc.Mechanism]:
    """Cyclic SGD over the records in their own order, worst-case noise (chen2019, Algorithm 1).

    Epoch s uses step size η₀/s. A record in batch j moves the result by at most
    `Δ_j = Σ_t (S η_t/|B_j|) Π_{s>t} ρ_s`, ρ = max(|1 − ημ|, |1 − ηL|); released: w + N(0,
    noise_std² I).

    Args:
        epochs, batch_size, step_size, init: as in `rsgd_ar`.
        noise_std: standard deviation of the noise per coordinate.

    Raises:
        ValueError: as `rsgd_ar`.

    Guarantee:
        That of `rsgd_ar`, at the worst position instead of a random one.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = nsgd(problem, jax.random.key(0), epochs=2, batch_size=20, step_size=1.0,
        ...                 noise_std=1.0)
        >>> solution.mechanism.sensitivities.shape
        (1,)
    """
    sizes = _epoch_steps(problem, epochs, batch_size, step_size, None)
    keys = jax.random.split(key)[0], None  # the records keep their order
    return _perturb(problem, keys, budget, sizes, batch_size, init)


@private_solver("noise_std", _rsgd_mechanism, adjacency=REPLACE_ONE, copies_data=True)
def rsgd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    epochs: int,
    batch_size: int,
    step_size: Values,
    init: Array | None = None,
) -> Solution[acc.Mechanism]:
    """`nsgd` over one secret random permutation: the sensitivity is drawn with a record's position.

    At the same first step size and more than a few averaging intervals this needs less noise than
    `rsgd_ar`, whose restarts raise the sensitivity.

    Args:
        epochs, batch_size, step_size, init: as in `rsgd_ar`.
        noise_std: standard deviation of the noise per coordinate.

    Raises:
        ValueError: as `rsgd_ar`.

    Guarantee:
        That of `rsgd_ar`.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = rsgd(problem, jax.random.key(0), epochs=2, batch_size=20, step_size=1.0,
        ...                 noise_std=1.0)
        >>> solution.mechanism.sensitivities.shape
        (5,)
    """
    sizes = _epoch_steps(problem, epochs, batch_size, step_size, None)
    return _perturb(problem, jax.random.split(key), budget, sizes, batch_size, init)


@private_solver("noise_std", _rsgd_ar_mechanism, adjacency=REPLACE_ONE, copies_data=True)
def rsgd_ar(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    epochs: int,
    batch_size: int,
    step_size: Values,
    average_every: int = 5,
    init: Array | None = None,
) -> Solution[acc.Mechanism]:
    """RSGD-AR: permuted cyclic SGD, periodic averaging, step-size restart (chen2019, Algorithm 3).

    Every `average_every` = τ epochs the parameters become the mean of the last mτ iterates and the
    step size, η₀/h in the h-th epoch since, starts again. Released: w + N(0, noise_std² I).

    Args:
        epochs: passes over the data.
        batch_size: records a batch, at most n. The last may be short, and is then the most
            sensitive by far: prefer ⌈n/m⌉ for m batches.
        step_size: η₀ > 0. Beyond 2/L a step expands; the sensitivity then grows but stays a bound.
        average_every: τ.
        noise_std: standard deviation of the noise per coordinate; 0 is the non-private twin.
        init: initial parameters, chosen without looking at the data.

    Raises:
        ValueError: if batch_size > n, or the loss has no gradient bound.

    Guarantee:
        RandomizedSensitivity over the position of the replaced record, with weights |B_j|/n
        (chen2019 Prop. 3; the hockey-stick mixture prices it 1.2 to 1.4 times below the paper).
        Conditional on what the problem enforces: ‖x‖ ≤ feature_norm, a convex L-smooth loss. The
        regulariser cancels in the difference of two gradients, hence no bound on ‖w‖. The key (and
        so the permutation) must stay secret; n is public.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = rsgd_ar(problem, jax.random.key(0), epochs=10, batch_size=20, step_size=1.0,
        ...                    epsilon=1.0, delta=1e-5)
        >>> bool(acc.epsilon(solution.mechanism, delta=1e-5, adjacency="replace-one") <= 1.0)
        True
    """
    sizes = _epoch_steps(problem, epochs, batch_size, step_size, average_every)
    return _perturb(problem, jax.random.split(key), budget, sizes, batch_size, init, average_every)


def _epoch_steps(
    problem: Problem, epochs: int, batch_size: int, step_size: Values, average_every: int | None
) -> Array:
    """η₀/h for every batch of the h-th epoch since the start or the last averaging."""
    batches = len(descent.batch_sizes(problem.n, batch_size))
    # h counts from 1, and anew after every averaging.
    since = np.arange(epochs).repeat(batches) % (average_every or epochs) + 1
    return jnp.asarray(step_size, problem.dtype) / jnp.asarray(since, problem.dtype)


def _perturb(
    problem: Problem,
    keys: tuple[PRNGKey, PRNGKey | None] | PRNGKey,
    budget: Budget[acc.RandomizedSensitivity],
    sizes: ArrayLike,
    batch_size: int,
    init: Array | None,
    average_every: int | None = None,
) -> Solution[acc.Mechanism]:
    """Cyclic descent and noise on its result; keys of the noise, and of the order or None."""
    check.bounded_gradient(problem)
    noise, mechanism = budget.resolve()
    sizes, first = jnp.asarray(sizes, problem.dtype), descent.initial_params(problem, init)
    params = descent.perturb_cyclic_descent(
        problem, *keys, first, sizes, noise, batch_size, average_every
    )
    return Solution(params, mechanism, OutputHistory(noise, mechanism.sensitivities))


class _Constants(TypedDict):
    """What the sensitivity of descent depends on, beside its steps."""

    gradient_diameter: float
    strong_convexity: float
    smoothness: float


def _constants(problem: Problem) -> _Constants:
    return {
        "gradient_diameter": problem.gradient_diameter,
        "strong_convexity": problem.strong_convexity,
        "smoothness": problem.smoothness,
    }


def _gd_mechanism(
    problem: Problem, noise: Values, *, steps: int, step_size: Values, **_: object
) -> acc.RandomizedSensitivity:
    move = descent_sensitivity(problem.n, steps, step_size, **_constants(problem))
    return _worst_position(move[..., None], noise)  # every record is in the one batch


@private_solver("noise_std", _gd_mechanism, adjacency=REPLACE_ONE)
def output_perturbed_gd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    steps: int,
    step_size: Values,
    init: Array | None = None,
) -> Solution[acc.Mechanism]:
    """Gradient descent with noise on the result (Zhang et al. 2017), at its tight sensitivity.

    `Δ = (ηS/n)(1 − ρ^T)/(1 − ρ)`, S = 2R, which is at most 2R/(nμ) for η ≤ 2/(L + μ); released:
    w_T + N(0, noise_std² I).

    Args:
        steps: T.
        step_size: a constant η ≤ 2/L, where gradient descent does not expand.
        noise_std: standard deviation of the noise per coordinate.
        init: initial parameters, chosen without looking at the data.

    Raises:
        ValueError: if η > 2/L, or the loss has no gradient bound.

    Guarantee:
        A Gaussian mechanism, replace-one, conditional on what the problem enforces.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = output_perturbed_gd(problem, jax.random.key(0), steps=20, step_size=4.0,
        ...                                noise_std=0.5)
        >>> bool(solution.mechanism.sensitivities[0] <= 2 / (100 * 0.1))
        True
    """
    check.scalar("step_size", step_size)
    check.step_size_within(step_size, 2.0 / problem.smoothness, "step_size <= 2/L")
    sizes = jnp.full((steps,), jnp.asarray(step_size, problem.dtype))
    return _perturb(problem, (key, None), budget, sizes, problem.n, init)


def _schedule(
    problem: Problem,
    schedule: str,
    step_size: Values | None,
    passes: int,
    batch_size: int,
    exponent: float,
) -> Array | np.ndarray:
    """The step sizes of a schedule of Wu et al. (2017), one a batch."""
    batches = len(descent.batch_sizes(problem.n, batch_size))
    times = np.arange(1.0, passes * batches + 1.0)
    beta = problem.smoothness
    offset = float(problem.n) ** exponent  # n^c
    if schedule == "constant":
        return jnp.broadcast_to(jnp.asarray(step_size), times.shape)
    if schedule == "decreasing":
        return 2.0 / (beta * (times + offset))
    if schedule == "sqrt":
        return 2.0 / (beta * (np.sqrt(times) + offset))
    # At most 1/β, where a step contracts by 1 − ηγ.
    return np.minimum(1.0 / beta, 1.0 / (problem.strong_convexity * times))


def _sgd_mechanism(
    problem: Problem,
    noise: Values,
    *,
    passes: int,
    batch_size: int,
    schedule: str = "constant",
    step_size: Values | None = None,
    exponent: float = 0.5,
    **_: object,
) -> acc.RandomizedSensitivity:
    sizes = descent.batch_sizes(problem.n, batch_size)
    steps = _schedule(problem, schedule, step_size, passes, batch_size, exponent)
    # The worst position holds whatever permutation comes out.
    return _worst_position(scheduled_sensitivities(sizes, steps, **_constants(problem)), noise)


@private_solver("noise_std", _sgd_mechanism, adjacency=REPLACE_ONE, copies_data=True)
def output_perturbed_sgd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    passes: int,
    batch_size: int,
    schedule: str = "constant",
    step_size: Values | None = None,
    exponent: float = 0.5,
    init: Array | None = None,
) -> Solution[acc.Mechanism]:
    """Permutation-based SGD with noise on the result: bolt-on privacy (Wu et al. 2017).

    Step t uses η = `step_size` ("constant", η ≤ 2/β), 2/(β(t + n^c)) ("decreasing"),
    2/(β(√t + n^c)) ("sqrt"), or min(1/β, 1/(γt)) ("strongly_convex", γ = l2). The sensitivity is
    the recurrence for the worst position, never above the paper's closed forms
    (`sensitivity.bolton_sensitivity`) where those apply, and right for a short last batch too.

    Args:
        passes: k.
        batch_size: b ≤ n.
        schedule, step_size, exponent: see above; exponent is c.
        noise_std: standard deviation of the noise per coordinate.
        init: initial parameters, chosen without looking at the data.

    Raises:
        ValueError: if a condition fails: η > 2/β, l2 = 0 for "strongly_convex", b > n.

    Guarantee:
        A Gaussian mechanism, replace-one, whatever the permutation; conditional on what the problem
        enforces.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = output_perturbed_sgd(problem, jax.random.key(0), passes=3, batch_size=10,
        ...                                 schedule="strongly_convex", noise_std=0.5)
        >>> bool(solution.mechanism.sensitivities[0] <= 2 / (0.1 * 100) * (1 + 1e-9))
        True
    """
    check.positive_values("exponent", exponent, allow_zero=True)
    if schedule not in ("constant", "decreasing", "sqrt", "strongly_convex"):
        raise ValueError(
            f"schedule must be constant, decreasing, sqrt or strongly_convex, got {schedule!r}"
        )
    if schedule == "strongly_convex" and not problem.strong_convexity > 0:
        raise ValueError(
            f'l2 must be positive for schedule="strongly_convex", got {problem.strong_convexity}'
        )
    if (schedule == "constant") == (step_size is None):
        raise ValueError(
            "step_size must come with the constant schedule, and with no other, got "
            f"step_size={step_size} and schedule={schedule!r}"
        )
    if step_size is not None:
        check.step_size_within(step_size, 2.0 / problem.smoothness, "step_size <= 2/beta")
    sizes = _schedule(problem, schedule, step_size, passes, batch_size, exponent)
    return _perturb(problem, jax.random.split(key), budget, sizes, batch_size, init)
