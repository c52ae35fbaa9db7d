"""Auditing with a single run: many canaries, each in or out by its own fair coin."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key
from scipy.stats import binom

from dpjax.audit.bound import EmpiricalBound, GuessEvidence, check_level


def one_run(
    mechanism: Callable[[Key[Array, ""], Bool[Array, " canaries"]], Float[Array, " canaries"]],
    *,
    key: Key[Array, ""],
    canaries: int,
    guesses: int,
    delta: float,
    confidence: float = 0.999,
) -> EmpiricalBound:
    """Audits one execution: flips a coin per canary, runs, guesses the extremes.

    The `guesses`/2 canaries with the highest scores are guessed "in", as many lowest ones "out".
    The number of guesses is fixed before the scores are seen, as the bound requires.

    Args:
        mechanism: pure function (key, included) -> scores: trains once with the canaries for which
            `included` [canaries] is true, and scores every canary; high means "was in".
        key: a typed PRNG key.
        canaries: number of canary records, each in or out with probability ½.
        guesses: even number of canaries to guess on, at most `canaries`.
        delta: the δ at which ε is bounded.
        confidence: probability with which the bound is right.

    Returns:
        An `EmpiricalBound` under add/remove adjacency.

    Raises:
        ValueError: if `guesses` is odd or exceeds `canaries`, or the scores have another shape.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import audit
        >>> release = lambda key, included: included + 0.1 * jax.random.normal(key, included.shape)
        >>> bound = audit.one_run(release, key=jax.random.key(0), canaries=1000, guesses=200,
        ...                       delta=1e-6)
        >>> bound.epsilon > 3.0
        True
    """
    if guesses % 2 or not 0 < guesses <= canaries:
        raise ValueError(
            f"guesses must be even and between 2 and canaries = {canaries}, got {guesses}"
        )
    coin, run = jax.random.split(key)
    included = jax.random.bernoulli(coin, 0.5, (canaries,))
    scores = mechanism(run, included)
    if scores.shape != (canaries,):
        raise ValueError(f"mechanism must return shape ({canaries},), got shape {scores.shape}")
    if bool(jnp.isnan(scores).any()):
        raise ValueError("mechanism must return scores that can be ordered, got NaN")
    order = np.argsort(np.asarray(scores), kind="stable")
    truth, half = np.asarray(included), guesses // 2
    correct = int(truth[order[-half:]].sum() + (~truth[order[:half]]).sum())
    return one_run_bound(
        canaries=canaries, guesses=guesses, correct=correct, delta=delta, confidence=confidence
    )


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
        confidence: probability with which the bound is right.

    Returns:
        An `EmpiricalBound` with `GuessEvidence`.

    Raises:
        ValueError: unless 0 ≤ correct ≤ guesses ≤ canaries.

    Example:
        >>> from dpjax import audit
        >>> round(audit.one_run_bound(canaries=100, guesses=100, correct=100, delta=0.0).epsilon, 2)
        2.64

    References:
        Steinke, Nasr, Jagielski (2023), Privacy auditing with one (1) training run, Theorem 5.2.
    """
    check_level(delta, confidence)
    if not 0 <= correct <= guesses <= canaries or canaries < 1:
        raise ValueError(
            "correct, guesses and canaries must obey 0 ≤ correct ≤ guesses ≤ canaries ≥ 1, "
            f"got {correct}, {guesses} and {canaries}"
        )
    level = 1.0 - confidence
    low, high = 0.0, 1.0
    if guesses == 0 or _p_value(canaries, guesses, correct, 0.0, delta) >= level:
        low = high = 0.0
    while high > low and _p_value(canaries, guesses, correct, high, delta) < level:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = (low + high) / 2
        if _p_value(canaries, guesses, correct, middle, delta) < level:
            low = middle
        else:
            high = middle
    return EmpiricalBound(
        low, delta, confidence, "one_run", "", GuessEvidence(canaries, guesses, correct)
    )


def _p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Upper bound on the chance of so many right guesses under (ε, δ)-differential privacy."""
    accuracy = 1.0 / (1.0 + math.exp(-epsilon))
    tail = binom.sf(correct - 1, guesses, accuracy)
    if delta == 0.0 or correct == 0:
        return min(float(tail), 1.0)
    steps = np.arange(1, correct + 1)
    below = np.cumsum(binom.pmf(correct - steps, guesses, accuracy))
    return min(float(tail + 2.0 * canaries * delta * np.max(below / steps)), 1.0)
