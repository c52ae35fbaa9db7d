"""Intervals from resampled scores: a picture of the spread, which proves nothing."""

from __future__ import annotations

import dataclasses
import json
from typing import Literal

import jax
import numpy as np
from jaxtyping import Float

from dpjax._numerics import checks
from dpjax._numerics.typing import PRNGKey
from dpjax.audit.bound import check_one_key, real
from dpjax.audit.gaussian_fit import check_moments, gaussian_epsilon


@dataclasses.dataclass(frozen=True)
class BootstrapInterval:
    """Where an estimate of ε lies in resampled audits. No proof, and nothing takes it for one.

    It contradicts no claim: it has no `contradicts` and no confidence, and a folder whose
    `audit.json` holds it is refused by the report. A true ε may lie outside it more often than
    `level` says, for few runs, small δ and rare events above all.

    Fields:
        low: quantile (1 − level)/2 of the resampled estimates.
        estimate: ε as estimated from the scores themselves, no bound either.
        high: quantile (1 + level)/2 of the resampled estimates.
        delta: the δ at which ε is estimated.
        level: the part of the resampled estimates between the ends.
        method: "normal" or "threshold".
        resamples: how often the runs were drawn again, with replacement.
        proof: always false, and no argument.

    Example:
        >>> from dpjax import audit
        >>> audit.BootstrapInterval(2.9, 3.1, 3.3, 1e-3, 0.95, "normal", 1000).proof
        False
    """

    low: float
    estimate: float
    high: float
    delta: float
    level: float
    method: str
    resamples: int
    proof: bool = dataclasses.field(default=False, init=False)  # shown wherever the rest is

    def describe(self) -> str:
        """The interval in one sentence that says what it is not."""
        return (
            f"ε is estimated as {self.estimate:.3g} at δ = {self.delta:g} ({self.method}), between "
            f"{self.low:.3g} and {self.high:.3g} in {100 * self.level:g} % of {self.resamples} "
            "resampled audits: no proof, and no bound of ε."
        )

    def to_json(self) -> str:
        """The interval as JSON text, which says that it is no proof."""
        return json.dumps(dataclasses.asdict(self)) + "\n"


def bootstrap_interval(
    scores: Float[np.ndarray, " runs"],
    neighbour_scores: Float[np.ndarray, " runs"],
    *,
    key: PRNGKey,
    delta: float,
    method: Literal["normal", "threshold"] = "normal",
    level: float = 0.95,
    resamples: int = 1_000,
) -> BootstrapInterval:
    """Percentile interval of the estimated ε over resampled runs. It is no proof.

    By "normal" the estimate is that of a Gaussian curve with μ = |difference of the means|/standard
    deviation; by "threshold" the largest ln((1 − FNR − δ)/FPR) over all cuts and sides with the
    counts (errors + 1/2)/(runs + 1), which is chosen on the runs that it is counted on.

    Args:
        scores: of runs on the data set; or of canaries that were out.
        neighbour_scores: of as many runs on its neighbour; or of canaries that were in.
        key: a typed PRNG key, for the resampling.
        delta: the δ at which ε is estimated, in (0, 1).
        method: how ε is estimated.
        level: part of the resampled estimates between the ends, in (0, 1).
        resamples: how often the runs are drawn again.

    Raises:
        ValueError: fewer than 4 runs, different numbers of them, scores that are not finite, or a
            number outside its range.

    Guarantee:
        None.

    Example:
        >>> import jax, numpy as np
        >>> from dpjax import audit
        >>> rng = np.random.default_rng(0)
        >>> worlds = rng.normal(size=400), 1 + rng.normal(size=400)
        >>> found = audit.bootstrap_interval(*worlds, key=jax.random.key(0), delta=1e-3)
        >>> found.low < found.estimate < found.high, found.proof
        (True, False)

    References:
        Efron and Tibshirani 1993, "An introduction to the bootstrap", Section 13.3.
    """
    worlds = np.stack(check_moments(scores, neighbour_scores, 4))
    estimates = {"normal": _by_shift, "threshold": _by_threshold}
    checks.choice("method", method, sorted(estimates))
    inside = checks.Range(0.0, 1.0, open_low=True, open_high=True)
    delta = real("delta", delta, inside, "lie in (0, 1)")
    level = real("level", level, inside, "lie in (0, 1)")
    resamples = checks.whole("resamples", resamples, low=2)
    check_one_key(key)
    estimate, runs = estimates[method], worlds.shape[1]
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key), np.uint32).tolist())
    drawn = []
    for _ in range(resamples):
        rows = rng.integers(runs, size=(2, runs))  # each world by itself, with replacement
        drawn.append(estimate(np.take_along_axis(worlds, rows, axis=1), delta))
    # No interpolation: between two infinite estimates it would be NaN.
    ends = np.quantile(drawn, [(1.0 - level) / 2, (1.0 + level) / 2], method="nearest")
    low, high = (float(end) for end in ends)
    middle = estimate(worlds, delta)
    return BootstrapInterval(low, middle, high, delta, level, method, resamples)


def _by_shift(worlds: np.ndarray, delta: float) -> float:
    """ε of the Gaussian curve with the estimated shift."""
    shift = abs(float(np.mean(worlds[1]) - np.mean(worlds[0])))
    std = float(np.sqrt(np.mean(np.var(worlds, axis=1, ddof=1))))
    if std == 0.0:  # scores that never vary: told apart with certainty, or not at all
        return float("inf") if shift > 0.0 else 0.0
    return gaussian_epsilon(shift / std, delta)


def _by_threshold(worlds: np.ndarray, delta: float) -> float:
    """The largest ratio over all cuts, with half an error added to every count."""
    runs = worlds.shape[1]
    first, second = np.sort(worlds, axis=1)
    cuts = np.unique(worlds)
    # How many scores of either world are above every cut.
    above, beside = (runs - np.searchsorted(world, cuts, "right") for world in (first, second))
    ratios = [0.0]
    for hit, miss in ((beside, above), (above, beside)):
        for hits, misses in ((hit, miss), (runs - miss, runs - hit)):
            rate, error = (hits + 0.5) / (runs + 1), (misses + 0.5) / (runs + 1)
            ratios.append(float(np.max((rate - delta) / error)))
    return float(np.log(max(*ratios, 1.0)))
