"""Many runs of a mechanism on two neighbouring data sets, and how well they are told apart."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped

from dpjax._argument_names import suggests_argument_names
from dpjax._extras import extra
from dpjax._numerics import checks
from dpjax._numerics.typing import PRNGKey
from dpjax.audit.bound import (
    EmpiricalBound,
    best_threshold,
    check_level,
    check_mechanism,
    check_one_key,
)
from dpjax.audit.gaussian_fit import gaussian_bound, normal_shift_bound

RandomizedFunction = Callable[[PRNGKey, Any], Shaped[Array, ""]]


@suggests_argument_names
def run_trials(
    mechanism: RandomizedFunction,
    dataset: PyTree,
    neighbour: PyTree,
    *,
    key: PRNGKey,
    trials: int = 100_000,
    chunk_size: int = 1_000,
    progress: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of `trials` independent runs in each of two worlds.

    Both worlds run in one compiled call, `chunk_size` runs at a time (of each world, where the
    shapes of their data differ). Trial i uses the i-th child of its world's key, whatever the
    chunk size. Repeated calls with the same function and shapes do not compile again.

    Args:
        mechanism: pure function (key, data set) -> score, a real scalar; the larger (or the
            smaller) the score, the more the attacker believes in the neighbour.
        dataset: pytree of arrays, the first argument world.
        neighbour: pytree of arrays that differs in one record; its shapes may differ.
        key: a typed PRNG key.
        trials: runs per world.
        chunk_size: runs held in memory at once.
        progress: shows a bar that advances with every chunk.

    Returns:
        Two NumPy arrays of shape [trials]: scores on the data set and on the neighbour.

    Raises:
        ValueError: if `trials` or `chunk_size` is not positive, `key` is no key, or the score is
            not a real scalar.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import audit
        >>> noisy_sum = lambda key, data: data.sum() + jax.random.normal(key)
        >>> worlds = jnp.zeros(3), jnp.array([0.0, 0.0, 1.0])
        >>> scores, others = audit.run_trials(noisy_sum, *worlds, key=jax.random.key(0), trials=999)
        >>> scores.shape, bool(others.mean() - scores.mean() > 0.9)
        ((999,), True)
    """
    trials = checks.whole("trials", trials)
    chunk_size = checks.whole("chunk_size", chunk_size)
    check_mechanism(mechanism)
    check_one_key(key)
    worlds = {"dataset": dataset, "neighbour": neighbour}
    if _have_one_shape(dataset, neighbour):
        del worlds["neighbour"]  # one program runs both: to look at its score once is enough
    for world, data in worlds.items():
        score = jax.eval_shape(mechanism, key, data)
        leaves = jax.tree.leaves(score)
        if len(leaves) != 1 or leaves[0].shape or not jnp.issubdtype(leaves[0].dtype, jnp.floating):
            raise ValueError(
                f"mechanism must return one real scalar a run, got {score} on the {world}; project "
                "a vector release on the direction in which the two worlds differ"
            )
    chunks = -(-trials // chunk_size)
    run = functools.partial(_run_worlds, mechanism, chunks, chunk_size)
    if not progress:
        scores = run(0, key, dataset, neighbour)  # a number that nobody listens to
    else:
        with extra("cli"):
            from rich.progress import Progress

        with Progress(transient=True) as bar:
            total = chunks * (2 // len(worlds))  # of one shape, the worlds run one after the other
            task = bar.add_task(f"{2 * trials} runs", total=total)
            shown = next(_numbers)
            _listeners[shown] = functools.partial(bar.advance, task)
            try:
                scores = run(shown, key, dataset, neighbour)
                jax.block_until_ready(scores)
                jax.effects_barrier()  # what every chunk reports has arrived
            finally:
                del _listeners[shown]
    first, second = (np.asarray(world, np.float64)[:trials] for world in scores)
    if np.isnan(first).any() or np.isnan(second).any():
        raise ValueError("mechanism must return scores that can be ordered, got NaN")
    return first, second


# Who is told of a finished chunk. The program only knows a number, so that it is one and the same
# program, and gives the same bits, whether or not someone watches.
_listeners: dict[int, Callable[[], None]] = {}
_numbers = itertools.count(1)


def _report_chunk(listener: Array, _: Array) -> None:
    _listeners.get(int(listener), lambda: None)()


def _have_one_shape(dataset: PyTree, neighbour: PyTree) -> bool:
    """Whether one program takes both worlds."""

    def shapes(data: PyTree):
        leaves, tree = jax.tree.flatten(data)
        return tree, [(x.shape, x.dtype, x.weak_type) for x in map(jax.typeof, leaves)]

    return shapes(dataset) == shapes(neighbour)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _run_worlds(
    mechanism: RandomizedFunction,
    chunks: int,
    chunk_size: int,
    listener: Array,
    key: PRNGKey,
    dataset: PyTree,
    neighbour: PyTree,
) -> tuple[Array, Array]:
    """The scores of both worlds, chunk after chunk."""
    shape = (chunks, chunk_size)
    keys = [jax.random.split(world, chunks * chunk_size) for world in jax.random.split(key)]
    first, second = (world.reshape(shape) for world in keys)  # one key a run

    def run(keys: Array, data: PyTree):
        scores = jax.vmap(mechanism, (0, None))(keys, data)
        jax.debug.callback(_report_chunk, listener, scores[0])  # once the chunk is done
        return scores

    if not _have_one_shape(dataset, neighbour):
        one, other = jax.lax.map(
            lambda keys: (
                jax.vmap(mechanism, (0, None))(keys[0], dataset),
                run(keys[1], neighbour),
            ),
            (first, second),
        )
        return one.reshape(-1), other.reshape(-1)

    # One program for both worlds, told which one it runs in.
    def chunk(item: tuple[Array, Array]):
        keys, world = item
        choose = functools.partial(jax.lax.select_n, world)  # the first argument in world 0
        return run(keys, jax.tree.map(choose, dataset, neighbour))

    number = jnp.repeat(jnp.arange(2), chunks)  # 0 for the data set, 1 for its neighbour
    scores = jax.lax.map(chunk, (jnp.concatenate([first, second]), number))
    return scores[:chunks].reshape(-1), scores[chunks:].reshape(-1)


@suggests_argument_names
def distinguish(
    mechanism: RandomizedFunction,
    dataset: PyTree,
    neighbour: PyTree,
    *,
    key: PRNGKey,
    delta: float,
    trials: int = 100_000,
    confidence: float = 0.999,
    method: Literal["threshold", "gaussian", "normal"] = "threshold",
    chunk_size: int = 1_000,
    progress: bool = False,
) -> EmpiricalBound:
    """Runs a mechanism on two neighbouring data sets and bounds its ε from below.

    Args:
        mechanism, key, chunk_size, progress: as in `run_trials`.
        dataset: pytree of arrays.
        neighbour: the same with one record added, removed or replaced; the bound speaks of the
            adjacency that relates the two.
        delta: the δ at which ε is bounded: in [0, 1) by "threshold", in (0, 1) by the others.
        trials: runs in each world; n runs show no more than about ln(n/15) by "threshold".
        confidence: probability with which the bound is right, in [0.5, 1).
        method: "threshold" assumes nothing; "gaussian" and "normal" assume more and reach further
            (`gaussian_bound`, `normal_shift_bound`).

    Returns:
        An `EmpiricalBound`.

    Raises:
        ValueError: as `run_trials`, another method, fewer than 4 trials (2 by "normal"), or `delta`
            or `confidence` outside its range.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import accounting as acc, audit
        >>> half_the_noise = lambda key, data: data.sum() + 0.5 * jax.random.normal(key)
        >>> bound = audit.distinguish(half_the_noise, jnp.zeros(2), jnp.array([0.0, 1.0]),
        ...                           key=jax.random.key(1), delta=1e-2, trials=20_000)
        >>> bound.contradicts(acc.epsilon(acc.Gaussian(1.0), delta=1e-2))
        True
    """
    bounds = {"threshold": distinguishing_bound, "gaussian": gaussian_bound}
    bounds["normal"] = normal_shift_bound
    checks.choice("method", method, sorted(bounds))
    check_level(delta, confidence, gaussian=method != "threshold")
    scores = run_trials(
        mechanism,
        dataset,
        neighbour,
        key=key,
        trials=trials,
        chunk_size=chunk_size,
        progress=progress,
    )
    return bounds[method](*scores, delta=delta, confidence=confidence)


def distinguishing_bound(
    scores: Float[np.ndarray, " runs"],
    neighbour_scores: Float[np.ndarray, " runs"],
    *,
    delta: float,
    confidence: float = 0.999,
) -> EmpiricalBound:
    """Lower bound on ε from the scores of independent runs in two worlds, with no assumption.

    An (ε, δ)-private mechanism lets no test have 1 − FNR > e^ε·FPR + δ or 1 − FPR > e^ε·FNR + δ.
    The threshold and its side are chosen on the first half of the runs; the second half gives the
    upper Clopper-Pearson limits of both error rates, each at level (1 − confidence)/2, and

        ε ≥ max{ ln((1 − FNR − δ)/FPR), ln((1 − FPR − δ)/FNR), 0 }.

    Args:
        scores: scores of runs on the data set.
        neighbour_scores: as many scores of runs on the neighbour.
        delta: the δ at which ε is bounded.
        confidence: probability with which the bound is right, in [0.5, 1).

    Returns:
        An `EmpiricalBound` with `ThresholdEvidence`.

    Raises:
        ValueError: if there are fewer than 4 runs or the two worlds have different numbers of runs.

    Example:
        >>> import numpy as np
        >>> from dpjax import audit
        >>> nothing_hidden = np.zeros(2000), np.ones(2000)
        >>> round(audit.distinguishing_bound(*nothing_hidden, delta=0.0).epsilon, 2)
        4.88

    References:
        Jagielski, Ullman, Oprea (2020), Auditing differentially private machine learning; Kairouz,
        Oh, Viswanath (2015), Theorem 2.1 (the testing region).
    """
    check_level(delta, confidence)
    evidence = best_threshold(
        scores, neighbour_scores, confidence, lambda fpr, fnr: threshold_epsilon(fpr, fnr, delta)
    )
    epsilon = threshold_epsilon(
        np.array(evidence.false_positive_rate), np.array(evidence.false_negative_rate), delta
    )
    return EmpiricalBound(float(epsilon), delta, confidence, "threshold", "", evidence)


def threshold_epsilon(fpr: np.ndarray, fnr: np.ndarray, delta: float) -> np.ndarray:
    """The ε below which no test may have these error rates."""
    # 1 − FNR ≤ e^ε·FPR + δ and 1 − FPR ≤ e^ε·FNR + δ, solved for ε.
    ratio = np.maximum((1.0 - fnr - delta) / fpr, (1.0 - fpr - delta) / fnr)
    return np.log(np.maximum(ratio, 1.0))
