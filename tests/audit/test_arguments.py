"""What is no argument of an audit is refused by its name, before anything runs."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax import audit

RNG = np.random.default_rng(0)
WORLDS = {"scores": RNG.normal(size=40), "neighbour_scores": 1.0 + RNG.normal(size=40)}
COUNTS = {"canaries": 10, "guesses": 4, "correct": 3}
LEVEL = {"delta": 1e-2, "confidence": 0.9}
CURVE = audit.GaussianCurve(1.0)
EVIDENCE = audit.start_evidence(CURVE, [0.5])
BOUND = audit.one_run_bound(**COUNTS, delta=1e-5)


def _run(key, data):
    raise AssertionError("ran for nothing")


# What no argument may be, and what a number, a whole number, a probability may not be besides.
NOTHING = {"None": None, "word": "x", "empty": [], "two": [1.0, 2.0], "object": object(), "1j": 1j}
NUMBER = NOTHING | {"nan": math.nan, "-1": -1.0, "true": True, "array": np.array([0.5])}
NUMBERS = NUMBER | {"array": np.ones((2, 2))}  # one or an array of one side
WHOLE = NUMBER | {"2.5": 2.5, "inf": math.inf}
SHARE = NUMBER | {"1": 1.0, "inf": math.inf}
INSIDE = SHARE | {"0": 0.0}  # of (0, 1)
KEY = NUMBER | {"0": 0}
SCORES = {
    "None": None, "word": "x", "words": ["a"], "empty": [], "one": 1.0, "object": object(),
    "complex": np.ones(40, complex), "ragged": [[1.0], [1.0, 2.0]],
}  # fmt: skip
SCORE = NOTHING | {"nan": math.nan, "array": np.array([0.5])}
HAS_NO_CURVE = NUMBER | {"2": 2.0, "mechanism": acc.Gaussian(1.0)}
METHOD = NUMBER | {"best": "best"}

CALLS = {
    "curve_p_value": (audit.curve_p_value, {"curve": CURVE} | COUNTS,
        {"curve": HAS_NO_CURVE, "canaries": WHOLE, "guesses": WHOLE, "correct": WHOLE}),
    "one_run_curve_bound": (audit.one_run_curve_bound, COUNTS | LEVEL | {"family": "gaussian"},
        {"canaries": WHOLE, "delta": INSIDE, "confidence": SHARE | {"0": 0.01}, "family": METHOD}),
    "one_run_curve_bound without a curve": (
        audit.one_run_curve_bound, COUNTS | LEVEL | {"family": "approximate"}, {"delta": SHARE}),
    "one_run_bound": (audit.one_run_bound, COUNTS | LEVEL,
        {"canaries": WHOLE, "correct": WHOLE, "delta": SHARE, "confidence": SHARE}),
    "claimed_curve": (audit.claimed_curve,
        {"run": acc.Gaussian(1.0), "points": 2, "least_delta": 1e-2},
        {"points": WHOLE | {"0": 0}, "least_delta": INSIDE}),
    "GaussianCurve": (audit.GaussianCurve, {"mu": 1.0}, {"mu": NUMBER}),
    "GaussianCurve.lines": (CURVE.lines, {"count": 2}, {"count": WHOLE | {"0": 0}}),
    "GaussianCurve.false_positives": (
        CURVE.false_positives, {"power": 0.5}, {"power": NUMBER | {"1.1": 1.1}}),
    "PiecewiseCurve": (audit.PiecewiseCurve, {"epsilon": 1.0, "delta": 0.1},
        {"epsilon": NUMBERS, "delta": NUMBERS | {"2": 2.0}}),
    "PiecewiseCurve.false_positives": (audit.PiecewiseCurve(1.0, 0.1).false_positives,
        {"power": 0.5}, {"power": NUMBER | {"1.1": 1.1}}),
    "start_evidence": (audit.start_evidence, {"curve": CURVE, "cuts": [0.5], "lines": 2},
        {"curve": HAS_NO_CURVE, "cuts": {"None": None, "word": "x", "nan": math.nan, "1j": 1j,
         "object": object(), "true": True}, "lines": WHOLE | {"0": 0}}),
    "start_bound": (audit.start_bound, {"delta": 1e-2, "cuts": [0.5], "epsilons": [1.0]},
        {"delta": SHARE, "cuts": {"None": None, "word": "x", "empty": [], "nan": math.nan},
         "epsilons": {"word": "x", "empty": [], "nan": math.nan, "-1": -1.0, "inf": math.inf,
                      "1j": 1j}}),
    "update": (EVIDENCE.update, {"score": 0.0, "neighbour_score": 1.0},
        {"score": SCORE, "neighbour_score": SCORE}),
    "rejects": (EVIDENCE.rejects, {"level": 0.05}, {"level": INSIDE | {"0.6": 0.6}}),
    "multiply": (EVIDENCE.multiply, {"p_value": 0.05}, {"p_value": NUMBER | {"0": 0.0, "2": 2.0}}),
    "epsilon_bound": (audit.start_bound(1e-2, [0.5]).epsilon_bound, {"confidence": 0.9},
        {"confidence": SHARE | {"0": 0.01}}),
    "choose_cuts": (audit.choose_cuts, WORLDS | {"count": 5},
        {"scores": SCORES, "neighbour_scores": SCORES, "count": WHOLE | {"0": 0}}),
    "bootstrap_interval": (audit.bootstrap_interval,
        WORLDS | {"key": jax.random.key(0), "delta": 1e-2, "level": 0.9, "resamples": 2,
                  "method": "normal"},
        {"scores": SCORES, "neighbour_scores": SCORES, "key": KEY, "delta": INSIDE,
         "level": INSIDE, "resamples": WHOLE | {"1": 1}, "method": METHOD}),
    "gaussian_bound": (audit.gaussian_bound, WORLDS | LEVEL,
        {"scores": SCORES, "neighbour_scores": SCORES, "delta": INSIDE, "confidence": SHARE}),
    "normal_shift_bound": (audit.normal_shift_bound, WORLDS | LEVEL,
        {"scores": SCORES | {"huge": np.full(40, 1e200)}, "delta": INSIDE, "confidence": SHARE}),
    "distinguishing_bound": (audit.distinguishing_bound, WORLDS | LEVEL,
        {"scores": SCORES, "neighbour_scores": SCORES, "delta": SHARE, "confidence": SHARE}),
    "canary_bound": (audit.canary_bound,
        LEVEL | {"scores": WORLDS["scores"], "included": WORLDS["scores"] > 0, "method": "normal"},
        {"scores": SCORES, "delta": INSIDE, "confidence": SHARE, "method": METHOD,
         "included": {"None": None, "whole": (WORLDS["scores"] > 0).astype(int),
                      "all": np.ones(40, bool)}}),
    "canary_score": (audit.canary_score,
        {"releases": jnp.ones((2, 2)), "canary": jnp.ones(2), "noise_std": 1.0, "rate": 0.5},
        {"noise_std": {"-1": -1.0, "0": 0.0, "nan": math.nan, "array": np.ones(1)},
         "rate": {"-1": -1.0, "2": 2.0, "nan": math.nan}, "canary": {"three": jnp.ones(3)}}),
    "orthogonal_canaries": (audit.orthogonal_canaries,
        {"key": jax.random.key(0), "count": 2, "dimension": 3, "norm": 1.0},
        {"key": KEY, "count": WHOLE | {"0": 0}, "dimension": WHOLE, "norm": NUMBER | {"0": 0.0}}),
    "smallest_factor": (audit.smallest_factor, {"bound": BOUND, "claim": 1.0},
        {"bound": NUMBER | {"interval": audit.BootstrapInterval(1, 2, 3, 0.1, 0.9, "normal", 9)},
         "claim": NUMBER}),
    "contradicts": (BOUND.contradicts, {"epsilon": 1.0}, {"epsilon": NUMBER}),
}  # fmt: skip
# These would train: their right call is in other tests, and a wrong one must not run.
WOULD_RUN = {
    "run_trials": (audit.run_trials,
        {"mechanism": _run, "dataset": jnp.zeros(2), "neighbour": jnp.ones(2),
         "key": jax.random.key(0), "trials": 20, "chunk_size": 5},
        {"mechanism": NUMBER, "key": KEY, "trials": WHOLE | {"0": 0},
         "chunk_size": WHOLE | {"0": 0}}),
    "distinguish": (audit.distinguish,
        LEVEL | {"mechanism": _run, "dataset": jnp.zeros(2), "neighbour": jnp.ones(2),
                 "key": jax.random.key(0), "method": "normal"},
        {"mechanism": NUMBER, "key": KEY, "method": METHOD, "delta": INSIDE, "confidence": SHARE}),
    "one_run": (audit.one_run,
        LEVEL | {"mechanism": _run, "key": jax.random.key(0), "canaries": 20, "guesses": 4,
                 "method": "curve"},
        {"mechanism": NUMBER, "key": KEY, "canaries": WHOLE | {"0": 0}, "guesses": WHOLE,
         "method": METHOD, "delta": INSIDE, "confidence": SHARE}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS | WOULD_RUN)
def test_every_wrong_argument_is_refused_by_its_name(name):
    call, right, wrong = (CALLS | WOULD_RUN)[name]
    if name in CALLS:
        call(**right)
    for argument, values in wrong.items():
        for said, value in values.items():
            with pytest.raises((ValueError, TypeError), match=" must ") as refused:
                call(**right | {argument: value})
            assert argument in str(refused.value), said


def test_what_several_pairs_at_once_would_be_is_refused_under_a_trace_too():
    # As many scores as cuts: each cut would be given a pair of its own.
    start = audit.start_evidence(CURVE, [0.0, 1.0])
    for update in (start.update, jax.jit(start.update)):
        with pytest.raises(ValueError, match="score must be one number"):
            update(np.array([0.5, 0.5]), np.array([1.0, 1.0]))
    with pytest.raises(ValueError, match="p_value must be one number"):
        jax.jit(start.multiply)(np.array([0.5, 0.5]))


def test_pairs_are_not_counted_where_there_is_no_cut_to_settle_them():
    with pytest.raises(ValueError, match="cuts must be at least one number"):
        audit.start_evidence(CURVE).update(0.0, 1.0)


def test_lists_whole_numbers_and_events_are_scores():
    lists = [float(x) for x in WORLDS["scores"]], [float(x) for x in WORLDS["neighbour_scores"]]
    settings = {"delta": 1e-2, "confidence": 0.9}
    assert audit.distinguishing_bound(*lists, **settings) == audit.distinguishing_bound(
        *WORLDS.values(), **settings
    )
    events = np.arange(400) < 20, np.arange(400) < 380
    whole = tuple(np.array(one, np.int8) for one in events)
    rng = np.random.default_rng(1)
    order = rng.permutation(400)
    found = [
        audit.distinguishing_bound(*(one[order] for one in pair), **settings).epsilon
        for pair in (events, whole)
    ]
    assert found[0] == found[1] > 1.0
    update = EVIDENCE.update
    assert update(True, np.bool_(False)).log_evidence == update(1.0, 0).log_evidence


def test_a_gaussian_curve_has_no_bound_at_a_delta_of_zero():
    # Its ε is infinite there: an honest mechanism of pure ε would be contradicted every time.
    one = {"canaries": 100, "guesses": 100, "correct": 100, "delta": 0.0}
    with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\) for a Gaussian curve"):
        audit.one_run_curve_bound(**one)
    assert audit.one_run_curve_bound(**one, family="approximate").epsilon < math.inf
    for method in ("gaussian", "normal"):
        with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\) for a Gaussian curve"):
            audit.canary_bound(WORLDS["scores"], WORLDS["scores"] > 0, delta=0.0, method=method)
