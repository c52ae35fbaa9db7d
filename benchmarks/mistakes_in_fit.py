"""Mistakes planted inside the step of `fit`, and the audits of that step that have to find them.

Every audit runs `training.training_step` itself, tens of thousands of times in one compiled call,
on records that are gradients (`audit.linear_loss`), and compares what it measures with what the
plan claims. A mistake replaces a part that the step calls, for as long as the context lasts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import accounting as acc
from dpjax import audit, gradients, sampling, training, transforms

CLIP, LOUD = 0.5, 1e3
_ADD, _REPLACE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE
_ZERO = {"first": jnp.zeros(2), "second": jnp.zeros(2)}


class Audit(NamedTuple):
    """Two worlds and a score of what the steps released; the plan says what is claimed.

    Fields:
        run: which of the compiled runs it looks at.
        worlds: data set and neighbour, each with the direction that the score looks along.
        adjacency: how the two are related.
        method: of `audit.distinguish`.
        trials: runs in each world.
    """

    run: str
    worlds: tuple[Any, Any]
    adjacency: acc.Adjacency
    method: str
    trials: int


def _along(leaf: str, size: float) -> Any:
    return {**_ZERO, leaf: jnp.zeros(2).at[0].set(size)}


def _records(others: Any, count: int, canary: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.stack([a] * count + [b]), others, canary)


def _worlds(leaf: str, others: Any, count: int, without: Any, canary: Any) -> tuple[Any, Any]:
    look = _along(leaf, 1.0)
    return (_records(others, count, without), look), (_records(others, count, canary), look)


PLANS = {
    "full": training.Plan(acc.Repeated(acc.Gaussian(1.0), 1), CLIP, 5, 1e-3),
    "sampled": training.Plan(
        acc.Repeated(acc.PoissonSampled(acc.Gaussian(0.8), 0.25), 1), CLIP, 40, 1e-2
    ),
    "steps": training.Plan(
        acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), sampling.realised_rate(0.1)), 16),
        CLIP,
        8,
        1e-2,
    ),
}
_ADDED = {leaf: _worlds(leaf, _ZERO, 4, _ZERO, _along(leaf, LOUD)) for leaf in _ZERO}
_REPLACED = _worlds("first", _ZERO, 4, _along("first", -LOUD), _along("first", LOUD))
# All other records agree on the other direction: a canary that disagrees moves a batch of fixed
# size, or a mean over the batch, by two clip norms.
_AGAINST = _along("first", -LOUD)
_OPPOSITE = _worlds("first", _AGAINST, 39, _AGAINST, _along("first", LOUD))
_SILENT = _worlds("first", _ZERO, 7, _ZERO, _along("first", LOUD))

AUDITS = {
    "a record added along the first leaf": Audit("full", _ADDED["first"], _ADD, "normal", 10_000),
    "a record added along the second leaf": Audit("full", _ADDED["second"], _ADD, "normal", 10_000),
    "a record exchanged": Audit("full", _REPLACED, _REPLACE, "normal", 10_000),
    "the tail": Audit("full", _ADDED["first"], _ADD, "threshold", 40_000),
    "a record against all others": Audit("sampled", _OPPOSITE, _REPLACE, "threshold", 20_000),
    "several steps": Audit("steps", _SILENT, _ADD, "threshold", 10_000),
}
# The audits together are wrong with a probability of at most 0.1 %.
CONFIDENCE = 1.0 - 1e-3 / len(AUDITS)


def mechanism(run: str) -> Callable[[Any, Any], Any]:
    """(key, world) -> score of one run of the steps of `fit` as they are at this moment."""
    plan = PLANS[run]
    # An optimiser that keeps what the step hands to it, and leaves the parameters where they are.
    witness = optax.GradientTransformation(
        lambda params: params,
        lambda mean, state, params: (jax.tree.map(jnp.zeros_like, mean), mean),
    )
    step = training.training_step(audit.linear_loss, _ZERO, plan, optimizer=witness)

    def score(key, world):
        records, look = world

        def once(state, _):
            state, _ = step.update(state, records, key)
            return state, audit.linear_loss(state["optimizer"], look)

        along = jax.lax.scan(once, step.init(_ZERO), None, length=plan.steps)[1]
        along = along * (plan.expected_batch_size / CLIP)  # the noisy sums, in clip norms
        return along[0] if plan.steps == 1 else _over_steps(along, plan)

    return score


def _over_steps(along: Any, plan: training.Plan) -> Any:
    """The likelihood ratio; above it, two sums that differ by just the canary: one noise twice."""
    ratio = audit.canary_score(along[:, None], jnp.ones(1), plan.noise_multiplier, plan.rate)
    apart = jnp.abs(jnp.abs(along[:, None] - along[None, :]) - 1.0)
    return jnp.where(jnp.any(apart < 1e-5), 1e3, ratio)


def draw(name: str, run: Callable[[Any, Any], Any], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The scores of one audit in both worlds, on steps made by `mechanism`."""
    chosen = AUDITS[name]
    return audit.run_trials(
        run,
        *chosen.worlds,
        key=jax.random.fold_in(jax.random.key(seed), list(AUDITS).index(name)),
        trials=chosen.trials,
        chunk_size=5_000,
    )


def judge(name: str, scores: np.ndarray, others: np.ndarray) -> audit.EmpiricalBound:
    """The bound of one audit, by all of the scores that it is given."""
    chosen = AUDITS[name]
    bounds = {"threshold": audit.distinguishing_bound, "normal": audit.normal_shift_bound}
    delta = PLANS[chosen.run].delta
    return bounds[chosen.method](scores, others, delta=delta, confidence=CONFIDENCE)


def measure(name: str, run: Callable[[Any, Any], Any], seed: int = 0) -> audit.EmpiricalBound:
    """The bound of one audit, on steps made by `mechanism`."""
    return judge(name, *draw(name, run, seed))


def claimed_curve(name: str) -> audit.PiecewiseCurve:
    """The trade-off curve that the plan of an audit claims for the adjacency of its two worlds."""
    return _claimed_curve(name, acc.epsilon)


@functools.cache
def _claimed_curve(name: str, _: Callable[..., Any]) -> audit.PiecewiseCurve:
    """It takes seconds: once for each audit, and for each function that prices."""
    chosen = AUDITS[name]
    # No audit of some ten thousand runs tells a δ below 1e-4 from zero: ten lines above it.
    return audit.claimed_curve(
        PLANS[chosen.run].mechanism, adjacency=chosen.adjacency, points=10, least_delta=1e-4
    )


PILOT = 64  # pairs of runs that choose the cuts, and are counted among the runs it took


@functools.partial(jax.jit, static_argnums=3)
def _bet(state: audit.RunningEvidence, scores: Any, others: Any, level: float) -> Any:
    def step(state, pair):
        state = state.update(*pair)
        return state, state.rejects(level)

    return jax.lax.scan(step, state, (scores, others))


def pairs_until_found(
    curve: audit.TradeoffCurve, scores: np.ndarray, others: np.ndarray, level: float
) -> int | None:
    """After how many pairs of runs, with those of the pilot, bets refute the curve; None: never."""
    cuts = audit.choose_cuts(scores[:PILOT], others[:PILOT])
    state = audit.start_evidence(curve, cuts)
    for begin in range(PILOT, len(scores), 500):
        end = min(begin + 500, len(scores))
        state, path = _bet(state, scores[begin:end], others[begin:end], level)
        if np.any(path):
            return begin + int(np.argmax(path)) + 1
    return None


def claim(name: str) -> float:
    """What the plan of an audit claims for the adjacency of its two worlds."""
    chosen = AUDITS[name]
    return dataclasses.replace(PLANS[chosen.run], adjacency=chosen.adjacency).epsilon()


def _noise(change: Callable[[Any, Any, Any], Any]) -> contextlib.AbstractContextManager:
    """Noise by `change(updates, state, draw)`; `draw(updates, state, scale)` is the right one."""
    right = transforms.gaussian_noise

    def wrong(stddev, key):
        def draw(updates, state, scale=1.0):
            return right(stddev * scale, key).update(updates, state)[0]

        return optax.GradientTransformation(
            lambda params: right(stddev, key).init(params),
            lambda updates, state, params=None: (change(updates, state, draw), state),
        )

    return mock.patch.object(transforms, "gaussian_noise", wrong)


def _divided(by: float) -> contextlib.AbstractContextManager:
    return _noise(lambda updates, state, draw: draw(updates, state, 1.0 / by))


def _reused_key() -> contextlib.AbstractContextManager:
    """The noise of step 0 in every step."""
    return _noise(
        lambda updates, state, draw: draw(updates, state._replace(step=jnp.zeros((), jnp.int32)))
    )


def _one_leaf_twice() -> contextlib.AbstractContextManager:
    def change(updates, state, draw):
        once = draw(updates, state)
        twice = draw(once, state._replace(step=state.step + 1_000))
        return {"first": twice["first"], "second": updates["second"]}

    return _noise(change)


def _cut_tail() -> contextlib.AbstractContextManager:
    """Noise that never exceeds three standard deviations."""
    bound = 3.0 * CLIP

    def change(updates, state, draw):
        noise = draw(jax.tree.map(jnp.zeros_like, updates), state)
        return jax.tree.map(lambda u, z: u + jnp.clip(z, -bound, bound), updates, noise)

    return _noise(change)


def _clipping(change: Callable[[Any, Any, Any, Any], Any]) -> contextlib.AbstractContextManager:
    """A sum by `change(clipped, params, batch, mask)`; `clipped(norm)` is the right one."""
    right = gradients.clipped_grad

    def wrong(loss, clip_norm, *options, **more):
        clipped = functools.partial(right, loss)
        return lambda params, batch, mask, **given: change(clipped, params, batch, mask)

    return mock.patch.object(gradients, "clipped_grad", wrong)


def _after_averaging() -> contextlib.AbstractContextManager:
    def change(clipped, params, batch, mask):
        out = clipped(1e19)(params, batch, mask=mask)
        count = jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)
        squares = jax.tree.map(lambda total: jnp.sum(total**2), out.sum)
        norm = jnp.sqrt(jax.tree.reduce(jnp.add, squares)) / count
        factor = jnp.minimum(1.0, CLIP / jnp.maximum(norm, 1e-9))
        return out._replace(sum=jax.tree.map(lambda total: total * factor, out.sum))

    return _clipping(change)


def _realised_size() -> contextlib.AbstractContextManager:
    """A mean over the records drawn, where the noise is that of the expected number."""
    expected = PLANS["sampled"].expected_batch_size

    def change(clipped, params, batch, mask):
        out = clipped(CLIP)(params, batch, mask=mask)
        factor = expected / jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)
        return out._replace(sum=jax.tree.map(lambda total: total * factor, out.sum))

    return _clipping(change)


def _batch_statistics() -> contextlib.AbstractContextManager:
    """Records centred by the mean of their batch before they are clipped one by one."""

    def change(clipped, params, batch, mask):
        def centred(rows):
            weight = mask.astype(rows.dtype)[:, None]
            mean = jnp.sum(rows * weight, 0) / jnp.maximum(jnp.sum(weight), 1.0)
            return rows - mean[None]

        return clipped(CLIP)(params, jax.tree.map(centred, batch), mask=mask)

    return _clipping(change)


def _fixed_size() -> contextlib.AbstractContextManager:
    """Batches of exactly the expected size."""

    def wrong(key, step, *, population, rate):
        size = round(rate * population)
        drawn = sampling.fixed_batch(key, step, population=population, batch_size=size).indices
        return jnp.zeros(population, bool).at[drawn].set(True)

    return mock.patch.object(sampling, "poisson_inclusion", wrong)


def _frozen_mask() -> contextlib.AbstractContextManager:
    """The batch of step 0 in every step."""
    right = sampling.poisson_inclusion
    return mock.patch.object(
        sampling, "poisson_inclusion", lambda key, step, **settings: right(key, 0, **settings)
    )


@contextlib.contextmanager
def _wrong_adjacency() -> Iterator[None]:
    """An exchanged record priced with the sensitivity of an added one."""

    def wrong(right):
        return lambda *asked, adjacency, **how: right(*asked, adjacency=_ADD, **how)

    with (
        mock.patch.object(acc, "epsilon", wrong(acc.epsilon)),
        mock.patch.object(acc, "delta", wrong(acc.delta)),
    ):
        yield


# The mistake, and the audit that is meant to find it.
MISTAKES: dict[str, tuple[Callable[[], contextlib.AbstractContextManager], str]] = {
    "noise / 1.5": (lambda: _divided(1.5), "a record added along the first leaf"),
    "noise / 2": (lambda: _divided(2.0), "a record added along the first leaf"),
    "clipping after averaging": (_after_averaging, "a record added along the first leaf"),
    "division by the realised size": (_realised_size, "a record against all others"),
    "reused key": (_reused_key, "several steps"),
    "fixed batch priced as Poisson": (_fixed_size, "a record against all others"),
    "batch statistics": (_batch_statistics, "a record added along the first leaf"),
    "frozen mask": (_frozen_mask, "several steps"),
    "sensitivity of the wrong adjacency": (_wrong_adjacency, "a record exchanged"),
    "noise twice on one leaf, never on another": (
        _one_leaf_twice,
        "a record added along the second leaf",
    ),
    "a cut tail": (_cut_tail, "the tail"),
}
