"""Black-box distinguishing: error rates of the best threshold, with Clopper-Pearson limits."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from dpjax._other_names import taught
from dpjax.audit.bound import EmpiricalBound, check_level
from dpjax.audit.gaussian_fit import gaussian_bound, normal_shift_bound
from dpjax.audit.threshold import best_threshold
from dpjax.audit.trials import Mechanism, run_trials


@taught
def distinguish(
    mechanism: Mechanism,
    dataset: PyTree,
    neighbour: PyTree,
    *,
    key: Key[Array, ""],
    delta: float,
    trials: int = 100_000,
    confidence: float = 0.999,
    method: Literal["threshold", "gaussian", "normal"] = "threshold",
    chunk_size: int = 1_000,
    progress: bool = False,
) -> EmpiricalBound:
    """Runs a mechanism on two neighbouring data sets and bounds its ε from below.

    Args:
        mechanism: pure function (key, data set) -> score (see `run_trials`).
        dataset: pytree of arrays.
        neighbour: the same with one record added, removed or replaced; the bound speaks of the
            adjacency that relates the two.
        key: a typed PRNG key.
        delta: the δ at which ε is bounded.
        trials: runs in each world; n runs cannot show more than about ln(n/30) by "threshold".
        confidence: probability with which the bound is right.
        method: "threshold" assumes nothing; "gaussian" and "normal" assume more and reach further
            (`gaussian_bound`, `normal_shift_bound`).
        chunk_size: runs held in memory at once.
        progress: shows a progress bar.

    Returns:
        An `EmpiricalBound`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import accounting as acc, audit
        >>> half_the_noise = lambda key, data: data.sum() + 0.5 * jax.random.normal(key)
        >>> bound = audit.distinguish(half_the_noise, jnp.zeros(2), jnp.array([0.0, 1.0]),
        ...                           key=jax.random.key(1), delta=1e-2, trials=20_000)
        >>> bound.contradicts(acc.epsilon(acc.Gaussian(1.0), delta=1e-2))
        True
    """
    bounds = {
        "threshold": distinguishing_bound,
        "gaussian": gaussian_bound,
        "normal": normal_shift_bound,
    }
    if method not in bounds:
        raise ValueError(f"method must be one of {sorted(bounds)}, got {method!r}")
    check_level(delta, confidence)
    scores, others = run_trials(
        mechanism,
        dataset,
        neighbour,
        key=key,
        trials=trials,
        chunk_size=chunk_size,
        progress=progress,
    )
    return bounds[method](scores, others, delta=delta, confidence=confidence)


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

    Choosing on one half and counting on the other keeps the confidence exact, whatever the choice.

    Args:
        scores: scores of runs on the data set.
        neighbour_scores: as many scores of runs on the neighbour.
        delta: the δ at which ε is bounded.
        confidence: probability with which the bound is right.

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
    ratio = np.maximum((1.0 - fnr - delta) / fpr, (1.0 - fpr - delta) / fnr)
    return np.log(np.maximum(ratio, 1.0))
