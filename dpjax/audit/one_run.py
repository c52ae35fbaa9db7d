"""Auditing with a single run: many canaries, each in or out by its own fair coin.

A white-box canary is a record whose gradient the auditor chooses, sent through training code.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree
from scipy.stats import binom

from dpjax._numerics import checks
from dpjax._numerics.typing import PRNGKey
from dpjax.audit.bound import (
    EmpiricalBound,
    GuessEvidence,
    check_level,
    check_mechanism,
    check_one_key,
    check_scores,
    real,
)
from dpjax.audit.curve_guesses import check_counts, one_run_curve_bound
from dpjax.audit.gaussian_fit import gaussian_bound, normal_shift_bound


def linear_loss(params: PyTree, example: PyTree) -> Float[Array, ""]:
    """⟨params, example⟩: the loss whose per-example gradient is the example itself.

    With it, the records of a data set are the gradients that enter clipping, so a canary of any
    size and direction can be sent through a training loop as it stands, for one step or for a run.

    Args:
        params: pytree of arrays.
        example: pytree of arrays with the same structure and shapes.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import audit
        >>> jax.grad(audit.linear_loss)(jnp.zeros(3), jnp.array([1.0, 2.0, 3.0]))
        Array([1., 2., 3.], dtype=float32)
    """
    products = jax.tree.map(lambda p, e: jnp.sum(p * e), params, example)
    return jax.tree.reduce(jnp.add, products)


def orthogonal_canaries(
    key: PRNGKey, count: int, dimension: int, norm: float
) -> Float[Array, "count dimension"]:
    """Pairwise orthogonal gradients of equal norm, in random directions.

    Orthogonal canaries do not disturb each other, so one run audits all of them (`one_run`).

    Args:
        key: a typed PRNG key.
        count: number of canaries, at most `dimension`.
        dimension: length of each gradient.
        norm: Euclidean norm of each; the clip norm makes the attack strongest.

    Returns:
        Array of shape [count, dimension].

    Raises:
        ValueError: if `count` exceeds `dimension`, or a number is not positive.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import audit
        >>> canaries = audit.orthogonal_canaries(jax.random.key(0), 3, 5, norm=2.0)
        >>> bool(jnp.allclose(canaries @ canaries.T, 4.0 * jnp.eye(3), atol=1e-5))
        True
    """
    dimension, count = checks.whole("dimension", dimension), checks.whole("count", count)
    norm = real("norm", norm, checks.POSITIVE, "be positive and finite")
    check_one_key(key)
    if count > dimension:
        raise ValueError(
            f"count must be between 1 and dimension = {dimension}, for orthogonal directions, "
            f"got {count}"
        )
    draw = jax.random.normal(key, (dimension, count))
    basis, _ = jnp.linalg.qr(draw)  # [dimension, count], orthonormal columns
    return norm * basis.T


def canary_score(
    releases: Float[Array, "steps dimension"],
    canary: Float[Array, " dimension"],
    noise_std: float,
    rate: float = 1.0,
) -> Float[Array, ""]:
    """Log-likelihood ratio "the canary took part" against "it did not", summed over steps.

    With x_t = ⟨release_t, canary⟩/‖canary‖, Δ = ‖canary‖ and noise of standard deviation s,

        Σ_t ln(1 − q + q·exp((2·x_t·Δ − Δ²)/(2·s²))),

    the most powerful score if the other records do not contribute in the canary's direction.

    Args:
        releases: noisy gradient sums, one row a step.
        canary: the canary's clipped gradient.
        noise_std: standard deviation of the noise in each coordinate of a release.
        rate: probability q with which the canary takes part in a step.

    Returns:
        A scalar score.

    Raises:
        ValueError: `noise_std` that is not positive or `rate` outside [0, 1], where they are known;
            arrays of other shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import audit
        >>> audit.canary_score(jnp.array([[1.0, 0.0]]), jnp.array([1.0, 0.0]), 1.0)
        Array(0.5, dtype=float32)
    """
    positive = checks.Range(0.0, open_low=True)
    checks.scalar("noise_std", noise_std, positive)
    checks.scalar("rate", rate, checks.Range(0.0, 1.0))
    if jnp.ndim(releases) != 2 or jnp.shape(canary) != jnp.shape(releases)[1:]:
        raise ValueError(
            "releases and canary must have shapes [steps, dimension] and [dimension], got "
            f"{jnp.shape(releases)} and {jnp.shape(canary)}"
        )
    size = jnp.linalg.norm(canary)
    along = releases @ canary / size  # x_t: of a step nothing else tells the two apart
    ratio = (2.0 * along * size - size**2) / (2.0 * noise_std**2)  # ln N(x; Δ, s²)/N(x; 0, s²)
    if rate == 1.0:
        return jnp.sum(ratio)
    return jnp.sum(jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + ratio))


def one_run(
    mechanism: Callable[[PRNGKey, Bool[Array, " canaries"]], Float[Array, " canaries"]],
    *,
    key: PRNGKey,
    canaries: int,
    guesses: int | None = None,
    delta: float,
    confidence: float = 0.999,
    method: Literal["guesses", "curve", "gaussian", "normal"] = "guesses",
) -> EmpiricalBound:
    """Audits one execution: flips a coin per canary, runs, and looks at the canaries' scores.

    By "guesses", the `guesses`/2 canaries with the highest scores are guessed "in", as many lowest
    ones "out" (`one_run_bound`). The number of guesses is fixed before the scores are seen, as the
    bound requires. By "curve" the same guesses are held against Gaussian trade-off curves
    (`one_run_curve_bound`), which shows more of a Gaussian mechanism. By "gaussian" or "normal",
    the scores of canaries that were out and in are the runs in two worlds (`canary_bound`), which
    assumes more and reaches any ε.

    Args:
        mechanism: pure function (key, included) -> scores: trains once with the canaries for which
            `included` [canaries] is true, and scores every canary; high means "was in".
        key: a typed PRNG key.
        canaries: number of canary records, each in or out with probability ½.
        guesses: even number of canaries to guess on, at most `canaries`; by "guesses" and "curve".
        delta: the δ at which ε is bounded: in [0, 1) by "guesses", in (0, 1) by the others.
        confidence: probability with which the bound is right, in [0.5, 1).
        method: how the scores become a bound.

    Returns:
        An `EmpiricalBound` under add/remove adjacency.

    Raises:
        ValueError: if `guesses` is odd or exceeds `canaries`, the scores have another shape, or a
            number is outside its range.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import audit
        >>> release = lambda key, included: included + 0.1 * jax.random.normal(key, included.shape)
        >>> bound = audit.one_run(release, key=jax.random.key(0), canaries=1000, guesses=200,
        ...                       delta=1e-6)
        >>> bound.epsilon > 3.0
        True
    """
    # All is checked before what may train for hours.
    checks.choice("method", method, ("guesses", "curve", "gaussian", "normal"))
    check_level(delta, confidence, gaussian=method != "guesses")
    canaries = checks.whole("canaries", canaries)
    check_mechanism(mechanism)
    check_one_key(key)
    by_guesses = method in ("guesses", "curve")
    whole = isinstance(guesses, int | np.integer) and not isinstance(guesses, bool)
    if by_guesses and not (whole and 0 < guesses <= canaries and guesses % 2 == 0):
        raise ValueError(
            f"guesses must be even and between 2 and canaries = {canaries}, got {guesses}"
        )
    coin, run = jax.random.split(key)
    included = jax.random.bernoulli(coin, 0.5, (canaries,))  # the fair coins of the theorem
    scores = check_scores("scores of mechanism", mechanism(run, included), events=True)
    if scores.shape != (canaries,):
        raise ValueError(f"mechanism must return shape ({canaries},), got shape {scores.shape}")
    if np.isnan(scores).any():
        raise ValueError("mechanism must return scores that can be ordered, got NaN")
    truth = np.asarray(included)
    level = {"delta": delta, "confidence": confidence}
    if guesses is None or not by_guesses:
        kind = "gaussian" if method == "gaussian" else "normal"
        return canary_bound(scores, truth, method=kind, **level)
    order, half = np.argsort(scores, kind="stable"), guesses // 2
    correct = int(truth[order[-half:]].sum() + (~truth[order[:half]]).sum())
    bound = one_run_curve_bound if method == "curve" else one_run_bound
    return bound(canaries=canaries, guesses=guesses, correct=correct, **level)


def canary_bound(
    scores: Float[np.ndarray, " canaries"],
    included: Bool[np.ndarray, " canaries"],
    *,
    delta: float,
    confidence: float = 0.999,
    method: Literal["gaussian", "normal"] = "normal",
) -> EmpiricalBound:
    """Lower bound on ε from the scores of independent canaries in one run, of Gaussian privacy.

    Canaries that do not disturb each other (orthogonal gradients, noise that is independent between
    their directions) make one run as many trials: those that were out are runs on the data set,
    those that were in are runs on its neighbour. The bound on μ is that of `gaussian_bound`, from
    error rates, or of `normal_shift_bound`, from means and variance. Guesses are bounded against
    every dependence between canaries, and therefore cannot show a large ε in one run; this can.

    Args:
        scores: one a canary; high means "was in".
        included: which canaries took part, by independent fair coins.
        delta: the δ at which ε is bounded, in (0, 1).
        confidence: probability with which the bound is right, in [0.5, 1).
        method: "normal", or "gaussian".

    Returns:
        An `EmpiricalBound` under add/remove adjacency, of as many canaries in each world as the
        coins left in the smaller.

    Raises:
        ValueError: if shapes differ, `included` is not of booleans, or the coins left too few
            canaries in a world.

    Example:
        >>> import numpy as np
        >>> from dpjax import audit
        >>> rng = np.random.default_rng(0)
        >>> included = rng.random(5000) < 0.5
        >>> bound = audit.canary_bound(included + 0.5 * rng.normal(size=5000), included, delta=1e-5)
        >>> 1.8 < bound.evidence.mu < 2.0
        True

    References:
        Nasr et al. (2023), Tight auditing of differentially private machine learning, §4; Dong,
        Roth, Su (2022), Gaussian differential privacy, Corollary 2.13.
    """
    checks.choice("method", method, ("gaussian", "normal"))
    scores, included = check_scores("scores", scores, events=True), np.asarray(included)
    if included.dtype != np.bool_:  # of whole numbers, "not included" would be other indices
        raise ValueError(
            f"included must be an array of booleans, got {checks.render(included)} of dtype "
            f"{included.dtype}"
        )
    if scores.shape != included.shape or scores.ndim != 1:
        raise ValueError(
            "scores and included must be one a canary, got shapes "
            f"{scores.shape} and {included.shape}"
        )
    # How many are counted is decided by the coins, not by the scores.
    runs = int(min(included.sum(), (~included).sum()))
    least = 4 if method == "gaussian" else 2
    if runs < least:
        raise ValueError(
            f"included must leave at least {least} canaries in and as many out, got {runs}"
        )
    worlds = scores[~included][:runs], scores[included][:runs]
    bounds = {"gaussian": gaussian_bound, "normal": normal_shift_bound}
    bound = bounds[method](*worlds, delta=delta, confidence=confidence)
    assumption = f"{bound.assumption}, and canaries do not disturb each other"
    return dataclasses.replace(bound, assumption=assumption)


def one_run_bound(
    *, canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.999
) -> EmpiricalBound:
    """Lower bound on ε from the number of right guesses about m independent fair coins.

    For an (ε, δ)-private mechanism (add/remove), r guesses and B ~ Binomial(r, e^ε/(1 + e^ε)),

        P[correct ≥ v] ≤ P[B ≥ v] + 2·m·δ·max_{1 ≤ i ≤ v} P[v − i ≤ B < v]/i,

    which grows with ε; the bound is the ε at which it reaches 1 − confidence.

    Args:
        canaries: m, the coins that were flipped.
        guesses: r, the canaries on which the auditor did not abstain; fixed in advance.
        correct: v, the right guesses.
        delta: the δ at which ε is bounded.
        confidence: probability with which the bound is right, in [0.5, 1).

    Returns:
        An `EmpiricalBound` with `GuessEvidence`.

    Raises:
        ValueError: unless 0 ≤ correct ≤ guesses ≤ canaries ≥ 1, or `delta` or `confidence` is
            outside its range.

    Example:
        >>> from dpjax import audit
        >>> round(audit.one_run_bound(canaries=100, guesses=100, correct=100, delta=0.0).epsilon, 2)
        2.64

    References:
        Steinke, Nasr, Jagielski (2023), Privacy auditing with one (1) training run, Theorem 5.2.
    """
    check_level(delta, confidence)
    check_counts(canaries, guesses, correct)

    def is_refuted(epsilon: float) -> bool:
        return _p_value(canaries, guesses, correct, epsilon, delta) < 1.0 - confidence

    # The p-value grows with ε: below an ε that is refuted all are.
    low, high = 0.0, 1.0 if guesses > 0 and is_refuted(0.0) else 0.0
    while high > low and is_refuted(high):
        low, high = high, 2.0 * high  # doubled until it is not refuted
    for _ in range(60):  # bisection: a lower end above 0 is refuted
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    evidence = GuessEvidence(canaries, guesses, correct)
    return EmpiricalBound(low, delta, confidence, "one_run", "", evidence)


def _p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Upper bound on the chance of so many right guesses under (ε, δ)-differential privacy."""
    # Steinke et al., Theorem 5.2, with the tail and the masses of B.
    accuracy = 1.0 / (1.0 + math.exp(-epsilon))  # the most that ε-privacy lets a guess be right
    tail = binom.sf(correct - 1, guesses, accuracy)  # P(B ≥ v)
    if delta == 0.0 or correct == 0:
        return min(float(tail), 1.0)
    steps = np.arange(1, correct + 1)
    below = np.cumsum(binom.pmf(correct - steps, guesses, accuracy))  # P(v − i ≤ B < v), by i
    return min(float(tail + 2.0 * canaries * delta * np.max(below / steps)), 1.0)
