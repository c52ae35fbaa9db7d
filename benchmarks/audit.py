"""The audits of the step of `fit`: how often the right one is cleared, and each mistake found.

    python -m benchmarks.audit [repetitions]

Every repetition runs all audits of `benchmarks.mistakes_in_fit`, which are wrong together with a
probability of at most 0.1 %, on the step as it is; then each mistake is planted and audited ten
times. Prints one JSON object. A hundred repetitions take about two processor minutes.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks import mistakes_in_fit

MISTAKE_SEEDS = 10


def cleared(repetitions: int) -> dict[str, object]:
    """In how many repetitions no audit contradicted its claim, and the largest bounds."""
    runs = {run: mistakes_in_fit.mechanism(run) for run in mistakes_in_fit.PLANS}
    claims = {name: mistakes_in_fit.claim(name) for name in mistakes_in_fit.AUDITS}
    largest, clean = dict.fromkeys(mistakes_in_fit.AUDITS, 0.0), 0
    for seed in range(repetitions):
        bounds = {
            name: mistakes_in_fit.measure(name, runs[audit.run], seed)
            for name, audit in mistakes_in_fit.AUDITS.items()
        }
        clean += not any(bounds[name].contradicts(claims[name]) for name in bounds)
        largest = {name: max(largest[name], bounds[name].epsilon) for name in bounds}
    rows = {name: {"claim": claims[name], "largest bound": largest[name]} for name in claims}
    return {"repetitions": repetitions, "cleared": clean, "audits": rows}


def found(mistake: str) -> dict[str, object]:
    """How often a mistake was found, and the smallest bound on it."""
    plant, name = mistakes_in_fit.MISTAKES[mistake]
    with plant():
        run, claim = (
            mistakes_in_fit.mechanism(mistakes_in_fit.AUDITS[name].run),
            mistakes_in_fit.claim(name),
        )
        bounds = [mistakes_in_fit.measure(name, run, seed) for seed in range(MISTAKE_SEEDS)]
    times = sum(bound.contradicts(claim) for bound in bounds)
    smallest = min(bound.epsilon for bound in bounds)
    return {"found": times, "of": len(bounds), "claim": claim, "smallest bound": smallest}


def main(repetitions: int = 100) -> None:
    """Measure and print."""
    began = time.process_time()
    report = {
        "the step as it is": cleared(repetitions),
        "mistakes": {mistake: found(mistake) for mistake in mistakes_in_fit.MISTAKES},
        "confidence of a repetition": 0.999,
    }
    print(json.dumps(report | {"processor seconds": time.process_time() - began}, indent=1))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
