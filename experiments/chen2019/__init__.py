"""Chen, Lee and Kifer 2019: Rényi differentially private ERM for smooth objectives."""

import functools

from experiments.chen2019.figures import (
    baseline,
    figure1,
    figure2,
    figure3,
    noise,
    sgld,
    widened,
)

TARGETS = {
    "baseline": baseline,
    "figure1": figure1,
    "figure2": figure2,
    "widened": widened,
    "figure3": figure3,
    "noise": noise,
    "sgld": sgld,
    # On the user's own extracts of IPUMS, which may not be passed on.
    "baseline_ipums": functools.partial(baseline, name="baseline_ipums"),
    "figure1_ipums": functools.partial(figure1, of="_ipums"),
    "figure2_ipums": functools.partial(figure2, of="_ipums"),
}
