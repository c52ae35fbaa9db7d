"""Calibration to what an attack may reach: dpjax beside riskcal, side by side in one run.

    python -m benchmarks.risks      # into results/risks.md

Processor time of one call in a process that has made the same call before, medians of three; of
riskcal one call. Both answers are priced by dpjax's bound of the trade-off curve, which is exact to
nine digits here: an answer that permits more than was asked, or less, shows it there. Without
riskcal (`pip install riskcal`, 1.5) its columns are left out.
"""

from __future__ import annotations

import pathlib
import statistics
import time
from collections.abc import Callable

from dpjax import accounting as acc
from dpjax.accounting.answers import calibrated_risk
from dpjax.accounting.answers.risks import strongest_attack

RESULTS = pathlib.Path(__file__).parent / "results" / "risks.md"
SETTINGS = ((0.01, 1_000),)  # more take riskcal minutes each
ADVANTAGE, ALARMS, FOUND = 0.1, 0.001, 0.01


def _run(rate: float, steps: int) -> Callable[[float], acc.Mechanism]:
    return lambda noise: acc.Repeated(acc.PoissonSampled(acc.Gaussian(noise), rate), steps)


def _timed(call: Callable[[], float], repeats: int) -> tuple[float, float]:
    """The last answer, and the median of the processor's seconds."""
    seconds, answer = [], 0.0
    for _ in range(repeats):
        calibrated_risk._cached_delta.cache_clear()
        start = time.process_time()
        answer = call()
        seconds.append(time.process_time() - start)
    return answer, statistics.median(seconds)


def _reached(run: acc.Mechanism, risk: str) -> float:
    if risk == "advantage":
        return float(acc.delta(run, 0.0))
    return strongest_attack(run, ALARMS, acc.Adjacency.ADD_REMOVE, near=1e-7, queries=60)[0]


def _rivals(rate: float, steps: int) -> dict[str, Callable[[], float]]:
    try:
        from riskcal import calibration as theirs
    except ImportError:
        return {}
    how = {"sample_rate": rate, "num_steps": steps}
    return {
        "advantage": lambda: theirs.find_noise_multiplier_for_advantage_dpsgd(
            advantage=ADVANTAGE, **how
        ),
        "true positives": lambda: theirs.find_noise_multiplier_for_err_rates_dpsgd(
            alpha=ALARMS, beta=1 - FOUND, **how
        ),
    }


def main() -> None:
    rows = [
        "# Calibration to a risk",
        "",
        f"Advantage at most {ADVANTAGE}; at most {FOUND:.0%} found at {ALARMS:.1%} false alarms.",
        "",
        "| rate | steps | risk | dpjax: noise | reached | s | riskcal: noise | reached | s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    budgets = {
        "advantage": {"advantage": ADVANTAGE},
        "true positives": {"true_positive_rate": FOUND, "false_positive_rate": ALARMS},
    }
    for rate, steps in SETTINGS:
        make, rivals = _run(rate, steps), _rivals(rate, steps)
        for risk, budget in budgets.items():
            acc.calibrate(make, **budget)
            noise, seconds = _timed(lambda b=budget, m=make: acc.calibrate(m, **b), 3)
            cells = [f"{noise:.6g}", f"{_reached(make(noise), risk):.8f}", f"{seconds:.3f}"]
            if risk in rivals:
                noise, seconds = _timed(rivals[risk], 1)
                cells += [f"{noise:.6g}", f"{_reached(make(noise), risk):.8f}", f"{seconds:.1f}"]
            else:
                cells += ["not installed", "", ""]
            rows.append(f"| {rate} | {steps:,} | {risk} | " + " | ".join(cells) + " |")
            print(rows[-1])
    RESULTS.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
