"""Training of a row: through `dpjax.training.fit` wherever that can express it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from dpjax import accounting as acc
from dpjax import sampling, transforms
from dpjax.training import Plan, fit
from experiments.duan2025 import loop
from experiments.duan2025.methods import CLIP_NORM, Method, Setting
from experiments.duan2025.models import initialise
from experiments.images import Images

DELTA = 1e-5
# A clip norm that no gradient of these losses reaches: training without clipping.
UNCLIPPED = 1e6


class Problem(NamedTuple):
    """A model and its data. `correct(logits, label)` says whether a prediction is right."""

    model: nn.Module
    loss: Callable[[Any, Any], jax.Array]
    correct: Callable[[jax.Array, jax.Array], jax.Array]
    data: Images


class Run(NamedTuple):
    """The size of a run.

    Attributes:
        batch_size: expected. sigma: noise multiplier. steps: of a selective update, those that are
            counted.
    """

    batch_size: int
    sigma: float
    steps: int


class Outcome(NamedTuple):
    """A run's parameters, the candidates that it made and kept, and rows of what was evaluated."""

    params: Any
    attempts: int
    accepted: int
    metrics: Mapping[str, Any]


Evaluate = Callable[[Any], Mapping[str, float]]


def train(
    problem: Problem,
    method: Method,
    run: Run,
    setting: Setting,
    seed: int,
    *,
    clip_norm: float = CLIP_NORM,
    evaluate: Evaluate | None = None,
    log_every: int | None = None,
) -> Outcome:
    """Trains a row from the initial weights of `seed`; one seed has one draw of batches a method.

    The released mean is C·σ/B noisy in every number, on batches drawn independently.
    """
    start_key, key = jax.random.split(jax.random.key(seed))
    images, labels = jnp.asarray(problem.data.images), jnp.asarray(problem.data.labels)
    params = initialise(problem.model, start_key, images.shape[1:])
    if not method.by_fit:
        return Outcome(*loop.train(problem.loss, params, (images, labels), method, run, setting,
                                   key, evaluate, log_every))  # fmt: skip
    noise_key, fit_key = jax.random.split(key)
    sigma = run.sigma if method.noise == "gaussian" else 0.0
    rate = sampling.realised_rate(run.batch_size / len(labels))
    step = acc.PoissonSampled(acc.Gaussian(sigma), rate)
    plan = Plan(acc.Repeated(step, run.steps), clip_norm, len(labels), DELTA)
    links = []
    if method.noise == "geodp":
        links.append(spherical(method, run, clip_norm, noise_key))
    if method.average:
        links.append(optax.ema(setting.decay, debias=False))
    # The learning rate travels with the state, so that runs that differ in it share a program.
    links.append(optax.inject_hyperparams(optax.sgd)(learning_rate=setting.rate))
    found = fit(
        problem.loss,
        params,
        (images, labels),
        plan,
        optimizer=optax.chain(*links),
        key=fit_key,
        clipping=method.strategy,
        evaluate=evaluate,
        log_every=log_every or run.steps,
    )
    return Outcome(found.params, found.steps, found.steps, found.metrics)


def spherical(method: Method, run: Run, clip_norm: float, key: jax.Array) -> Any:
    """Algorithm 1's perturbation of an averaged clipped gradient. It has no privacy guarantee."""
    return transforms.spherical_noise(
        run.sigma,
        clip_norm / run.batch_size,  # of the mean: the angles of a sum are those of its mean
        run.batch_size,
        method.bounding_factor,
        key,
        unsafe_no_dp=True,
    )


def accuracy(problem: Problem, images: Any, labels: Any) -> Callable[[Any], float]:
    """`accuracy(params)` on these rows, in percent, compiled once."""
    held_out = jnp.asarray(images), jnp.asarray(labels)

    @jax.jit
    def share(params, held_out):
        def one(example):
            image, label = example
            return problem.correct(problem.model.apply(params, image), label)

        return jnp.mean(jax.lax.map(one, held_out, batch_size=500).astype(jnp.float32))

    return lambda params: 100.0 * float(share(params, held_out))
