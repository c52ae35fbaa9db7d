"""The audits of the step of `fit`: how often the right one is cleared, and each mistake found.

    python -m benchmarks.audit [repetitions] [page]

Every repetition runs all audits of `benchmarks.mistakes_in_fit`, which are wrong together with a
probability of at most 0.1 %, on the step as it is; then each mistake is planted and audited ten
times: by the fixed sample, and by bets that stop as soon as the claim is refuted, at the same
level. Then one run with many canaries is audited in four ways, and honest runs by bets a thousand
times: pairs of runs, and the canaries of one. Prints one JSON object, and writes `page` as Markdown
where one is named. A hundred repetitions take about six processor minutes.
"""

from __future__ import annotations

import json
import math
import pathlib
import sys
import textwrap
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import mistakes_in_fit
from dpjax import accounting as acc
from dpjax import audit
from dpjax.audit import power

MISTAKE_SEEDS = 10
WATCHED = 3  # repetitions of the step as it is in which bets go on to the last pair
HONEST = 1_000  # sequences of honest runs
HONEST_PAIRS = 500  # pairs of runs in each, with a look after every one
HONEST_LEVEL = 0.05
LEVEL = 1.0 - mistakes_in_fit.CONFIDENCE
# Canaries of one run that are revealed one by one: how many, noise of the claim, its δ, the level.
BY_ONE, BY_ONE_STD, BY_ONE_DELTA, BY_ONE_LEVEL = 1_000, 4.0, 1e-6, 0.01
# One run with many canaries: δ, how many, and how many of them are guessed about.
DELTA, CANARIES, GUESSES = 1e-5, 5_000, 1_000


def cleared(repetitions: int) -> dict[str, Any]:
    """In how many repetitions no audit contradicted its claim, and the largest bounds."""
    runs = {run: mistakes_in_fit.mechanism(run) for run in mistakes_in_fit.PLANS}
    claims = {name: mistakes_in_fit.claim(name) for name in mistakes_in_fit.AUDITS}
    largest, clean = dict.fromkeys(mistakes_in_fit.AUDITS, 0.0), 0
    factors = {}
    for seed in range(repetitions):
        bounds = {
            name: mistakes_in_fit.measure(name, runs[chosen.run], seed)
            for name, chosen in mistakes_in_fit.AUDITS.items()
        }
        clean += not any(bounds[name].contradicts(claims[name]) for name in bounds)
        largest = {name: max(largest[name], bounds[name].epsilon) for name in bounds}
        factors = factors or {
            name: audit.smallest_factor(bounds[name], claims[name]) for name in bounds
        }
    rows = {
        name: {
            "claim": claims[name],
            "largest bound": largest[name],
            "smallest factor": factors[name],
            "smallest factor by bets": bets_factor(name),
        }
        for name in claims
    }
    watched = min(repetitions, WATCHED)
    return {
        "repetitions": repetitions,
        "cleared": clean,
        "watched": watched,
        "cleared by bets": sum(_clears(runs, seed) for seed in range(watched)),
        "audits": rows,
    }


def _clears(runs: dict[str, Any], seed: int) -> bool:
    """Whether bets on the same runs, looked at after every pair, contradict no audit's claim."""
    return all(
        mistakes_in_fit.pairs_until_found(
            mistakes_in_fit.claimed_curve(name),
            *mistakes_in_fit.draw(name, runs[chosen.run], seed),
            LEVEL,
        )
        is None
        for name, chosen in mistakes_in_fit.AUDITS.items()
    )


def bets_factor(name: str) -> float:
    """The smallest reduction of Gaussian noise that bets would have seen with as many pairs."""
    chosen = mistakes_in_fit.AUDITS[name]
    claimed = power.gaussian_mu(
        mistakes_in_fit.claim(name), mistakes_in_fit.PLANS[chosen.run].delta
    )
    lines = audit.GaussianCurve(claimed).lines(10)
    bets = audit.start_evidence(audit.PiecewiseCurve(*lines), range(33)).log_wealth.size
    pairs = audit.PairsEvidence(chosen.trials - mistakes_in_fit.PILOT, bets)
    return power.first_factor(
        lambda mu: power.is_refuted_by_pairs(mu, pairs, lines, LEVEL), claimed
    )


def found(mistake: str) -> dict[str, Any]:
    """How often a mistake was found, the smallest bound on it, and after how many runs by bets."""
    plant, name = mistakes_in_fit.MISTAKES[mistake]
    with plant():
        run = mistakes_in_fit.mechanism(mistakes_in_fit.AUDITS[name].run)
        claim, curve = mistakes_in_fit.claim(name), mistakes_in_fit.claimed_curve(name)
        worlds = [mistakes_in_fit.draw(name, run, seed) for seed in range(MISTAKE_SEEDS)]
    bounds = [mistakes_in_fit.judge(name, *pair) for pair in worlds]
    times = sum(bound.contradicts(claim) for bound in bounds)
    smallest = min(bound.epsilon for bound in bounds)
    until = [mistakes_in_fit.pairs_until_found(curve, *pair, LEVEL) for pair in worlds]
    fixed = mistakes_in_fit.AUDITS[name].trials
    return {
        "found": times,
        "of": len(bounds),
        "claim": claim,
        "smallest bound": smallest,
        "pairs of the fixed sample": fixed,
        "pairs that it needed": _least_sample(name, worlds, claim),
        "found by bets": sum(pairs is not None for pairs in until),
        # What was not found by the last pair is counted as that many: too few, and said so above.
        "mean pairs by bets": float(np.mean([fixed if one is None else one for one in until])),
        "most pairs by bets": max(fixed if one is None else one for one in until),
    }


def _least_sample(
    name: str, worlds: list[tuple[np.ndarray, np.ndarray]], claim: float
) -> int | None:
    """The smallest power of two of pairs by which all samples of that size find the mistake.

    Known in hindsight alone: an audit by a fixed sample has to choose its size before.
    """
    for exponent in range(4, 17):
        size = 2**exponent
        if size > len(worlds[0][0]):
            return None
        bounds = (mistakes_in_fit.judge(name, *(w[:size] for w in pair)) for pair in worlds)
        if all(bound.contradicts(claim) for bound in bounds):
            return size
    return None


def is_sooner(mistakes: dict[str, dict[str, Any]]) -> bool:
    """Whether bets found every mistake every time, with fewer runs in the mean than the sample."""
    return bool(mistakes) and all(
        row["found by bets"] == row["of"]
        and row["mean pairs by bets"] < row["pairs of the fixed sample"]
        for row in mistakes.values()
    )


def honest_runs() -> dict[str, Any]:
    """How many of many sequences of honest runs were ever contradicted, with a look after each."""
    start = audit.start_evidence(audit.GaussianCurve(1.0), np.linspace(-3.0, 4.0, 15), lines=4)
    draw = jax.random.normal(jax.random.key(0), (HONEST, HONEST_PAIRS, 2))
    pairs = draw + jnp.array([0.0, 1.0])

    def last(one):
        return jax.lax.scan(lambda state, pair: (state.update(*pair), None), start, one)[0]

    # The largest evidence of all times: beyond 1/level where any look would have contradicted.
    largest = jax.jit(lambda batch: jax.lax.map(last, batch, batch_size=50).log_largest)(pairs)
    wrong = int(np.sum(np.asarray(largest) >= -math.log(HONEST_LEVEL)))
    return {
        "sequences": HONEST,
        "pairs": HONEST_PAIRS,
        "level": HONEST_LEVEL,
        "contradicted": wrong,
    }


def by_canary(divided: float, runs: int, level: float) -> np.ndarray:
    """Of every run the guess after which it was first contradicted, or +inf; the surest first."""
    claim = float(acc.epsilon(acc.Gaussian(BY_ONE_STD), BY_ONE_DELTA))
    start = audit.start_guesses(claim, BY_ONE_DELTA, canaries=BY_ONE)

    def first(key):
        coin, noise = jax.random.split(key)
        coins = jax.random.bernoulli(coin, 0.5, (BY_ONE,))
        sure = coins - 0.5 + jax.random.normal(noise, (BY_ONE,)) * BY_ONE_STD / divided
        rights = ((sure > 0) == coins)[jnp.argsort(-jnp.abs(sure))]
        last = jax.lax.scan(
            lambda state, right: (state.update(right), state.update(right).rejects(level)),
            start,
            rights,
        )[1]
        return jnp.where(last.any(), jnp.argmax(last) + 1.0, jnp.inf)

    keys = jax.random.split(jax.random.key(int(10 * divided)), runs)
    return np.asarray(jax.jit(lambda keys: jax.lax.map(first, keys, batch_size=50))(keys))


def canary_by_canary() -> dict[str, Any]:
    """How often honest runs were ever contradicted, and after how many guesses mistakes are."""
    found = {by: by_canary(by, MISTAKE_SEEDS, BY_ONE_LEVEL) for by in (2.0, 4.0, 8.0)}
    return {
        "claim": float(acc.epsilon(acc.Gaussian(BY_ONE_STD), BY_ONE_DELTA)),
        "contradicted": int(np.sum(by_canary(1.0, HONEST, HONEST_LEVEL) < math.inf)),
        "found": {f"{by:g}": int(np.sum(first < math.inf)) for by, first in found.items()},
        # What was never found is counted as all canaries: too few, and said so beside it.
        "guesses": {f"{by:g}": float(np.mean(np.minimum(f, BY_ONE))) for by, f in found.items()},
    }


ONE_RUN = {
    "guesses against (ε, δ)": {"method": "guesses", "guesses": GUESSES},
    "guesses against a Gaussian curve": {"method": "curve", "guesses": GUESSES},
    "error rates of canaries": {"method": "gaussian"},
    "mean and variance of canaries": {"method": "normal"},
}


def one_run(way: str) -> dict[str, Any]:
    """One audit of one run: its bounds on honest noise, and how often too little noise is found."""
    claim = float(acc.epsilon(acc.Gaussian(1.0), DELTA))

    def bounds(divided: float) -> list[audit.EmpiricalBound]:
        def train(key, included):
            return included + jax.random.normal(key, included.shape) / divided

        settings = {"canaries": CANARIES, "delta": DELTA} | ONE_RUN[way]
        keys = jax.random.split(jax.random.key(int(10 * divided)), MISTAKE_SEEDS)
        return [audit.one_run(train, key=key, **settings) for key in keys]

    honest = bounds(1.0)
    return {
        "claim": claim,
        "assumption": honest[0].assumption,
        "largest bound": max(bound.epsilon for bound in honest),
        "noise / 1.5": sum(bound.contradicts(claim) for bound in bounds(1.5)),
        "noise / 2": sum(bound.contradicts(claim) for bound in bounds(2.0)),
        "noise / 4": sum(bound.contradicts(claim) for bound in bounds(4.0)),
        "smallest factor": audit.smallest_factor(honest[0], claim),
    }


def interval() -> str:
    """A bootstrap interval of the same canaries, in its own words."""
    rng = np.random.default_rng(0)
    worlds = rng.normal(size=CANARIES // 2), 1.0 + rng.normal(size=CANARIES // 2)
    return audit.bootstrap_interval(*worlds, key=jax.random.key(0), delta=DELTA).describe()


def _factor(factor: float) -> str:
    return "none" if math.isinf(factor) else f"{factor:.2f}"


def _paragraph(*sentences: str) -> list[str]:
    """Sentences as lines of a page, and an empty line after them."""
    return [*textwrap.wrap(" ".join(sentences), 120, break_on_hyphens=False), ""]


def _table(head: str, rows: list[list[str]]) -> list[str]:
    """A table as lines of a page, and an empty line after it."""
    columns = head.count("|") + 1
    lines = [" | ".join(row) for row in rows]
    return [f"| {head} |", "|" + "---|" * columns, *(f"| {line} |" for line in lines), ""]


def write_page(report: dict[str, Any]) -> str:
    """The report as a page."""
    right, mistakes = report["the step as it is"], report["mistakes"]
    honest, ways = report["honest runs"], report["one run"]
    single = report["canary by canary"]
    sooner = "Every mistake was found" if is_sooner(mistakes) else "NOT every mistake was found"
    lines = [
        "# Audits of the step of `fit`",
        "",
        *_paragraph(
            f"`python -m benchmarks.audit {right['repetitions']}` on two CPU cores, "
            f"{report['processor seconds']:.0f} "
            "processor seconds. Six audits, which are wrong together with a probability of at most "
            f"0.1 %, ran on the step as it is, and cleared it {right['cleared']} times out of "
            f"{right['repetitions']}. The last two columns say what each could have seen at all: "
            "the factor by which Gaussian noise of the same ε has to be too small to be found nine "
            "times in ten, by the fixed sample and by bets on as many pairs of runs (an estimate "
            "above the truth, which charges the best bet for all others)."
        ),
        *_table(
            "audit of the step as it is | claim | largest bound | smallest factor | by bets",
            [
                [
                    name,
                    f"{row['claim']:.3f}",
                    f"{row['largest bound']:.3f}",
                    _factor(row["smallest factor"]),
                    _factor(row["smallest factor by bets"]),
                ]
                for name, row in right["audits"].items()
            ],
        ),
        *_table(
            "planted mistake | found | claim | smallest bound",
            [
                [
                    name,
                    f"{row['found']} of {row['of']}",
                    f"{row['claim']:.3f}",
                    f"{row['smallest bound']:.3f}",
                ]
                for name, row in mistakes.items()
            ],
        ),
        "## Stopped as soon as it is found",
        "",
        *_paragraph(
            "The same scores, pair by pair, as bets against the claimed trade-off curve at the "
            f"same level ({LEVEL:.2g}), stopped where the claim is refuted; the "
            f"{mistakes_in_fit.PILOT} pairs that chose the cuts are counted. {sooner} with fewer "
            "runs in the mean than the fixed sample takes. What that sample needed is the smallest "
            "power of two that finds the mistake 10 times of 10: a size that nobody knows before "
            "the mistake is known. On the step as it is, bets contradicted nothing in "
            f"{right['cleared by bets']} of {right['watched']} repetitions. The fixed samples "
            "along a leaf and of a record exchanged assume normal scores; bets assume nothing."
        ),
        *_table(
            "planted mistake | fixed sample | it needed | found by bets | pairs, mean | most",
            [
                [
                    name,
                    f"{row['pairs of the fixed sample']:,}",
                    f"{row['pairs that it needed']:,}" if row["pairs that it needed"] else "more",
                    f"{row['found by bets']} of {row['of']}",
                    f"{row['mean pairs by bets']:,.0f}",
                    f"{row['most pairs by bets']:,}",
                ]
                for name, row in mistakes.items()
            ],
        ),
        *_paragraph(
            f"Of {honest['sequences']:,} sequences of {honest['pairs']} pairs of honest runs, "
            "exactly as private as is claimed and looked at after every pair, "
            f"{honest['contradicted']} were ever contradicted at level {honest['level']}."
        ),
        "## One run",
        "",
        *_paragraph(
            f"{CANARIES:,} canaries that do not disturb each other, Gaussian noise of σ = 1 "
            f"claimed, ε at δ = {DELTA:g}; by guesses on {GUESSES:,}."
        ),
        *_table(
            "audit of one run | claim | largest bound, honest | noise / 1.5 | noise / 2 | "
            "noise / 4 | smallest factor",
            [
                [
                    name,
                    f"{row['claim']:.3f}",
                    f"{row['largest bound']:.3f}",
                    *(f"{row[f'noise / {by}']} of {MISTAKE_SEEDS}" for by in ("1.5", "2", "4")),
                    _factor(row["smallest factor"]),
                ]
                for name, row in ways.items()
            ],
        ),
        *_paragraph(
            "Guesses against (ε, δ) assume nothing; against a Gaussian curve μ assumes nothing, "
            "and ε that the curve is Gaussian; the last two assume besides that canaries do not "
            "disturb each other. A bootstrap interval is no bound, and says so:"
        ),
        *textwrap.wrap("> " + report["interval"], 120, subsequent_indent="> "),
        "",
        "## Canary by canary",
        "",
        *_paragraph(
            f"{BY_ONE:,} canaries of one run, revealed one by one, the surest first; Gaussian "
            f"noise of σ = {BY_ONE_STD:g} claimed, ε = {single['claim']:.3f} at δ = "
            f"{BY_ONE_DELTA:g}; level {BY_ONE_LEVEL}. Of {HONEST:,} honest runs, looked at after "
            f"every guess, {single['contradicted']} were ever contradicted at level {HONEST_LEVEL}."
        ),
        *_table(
            "noise too small by | found | guesses, mean",
            [
                [by, f"{times} of {MISTAKE_SEEDS}", f"{single['guesses'][by]:,.0f}"]
                for by, times in single["found"].items()
            ],
        )[:-1],
        "",
    ]
    return "\n".join(lines)


def main(repetitions: int = 100, page: str | None = None) -> None:
    """Measure and print."""
    began = time.process_time()
    report = {
        "the step as it is": cleared(repetitions),
        "mistakes": {mistake: found(mistake) for mistake in mistakes_in_fit.MISTAKES},
        "honest runs": honest_runs(),
        "one run": {way: one_run(way) for way in ONE_RUN},
        "interval": interval(),
        "canary by canary": canary_by_canary(),
        "confidence of a repetition": 0.999,
    }
    report["processor seconds"] = time.process_time() - began
    print(json.dumps(report, indent=1))
    if page is not None:
        pathlib.Path(page).write_text(write_page(report), encoding="utf-8")


if __name__ == "__main__":
    main(*(int(given) if given.isdigit() else given for given in sys.argv[1:]))
