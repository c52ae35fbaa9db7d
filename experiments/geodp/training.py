"""One training loop for every row of the tables: DP-SGD, GeoDP and recentred clipping."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.flatten_util import ravel_pytree

from dpjax import gradients, sampling, transforms
from dpjax._numerics.normal import normal
from experiments.geodp.models import initialise
from experiments.geodp.published import geodp
from experiments.images import Images

Strategy = gradients.Strategy
CLIP_NORM = 0.1
_MICROBATCH = 64
# Selective updates: each record's loss difference is clipped to ±1; DPSUR's noise, over that clip.
_LOSS_CLIP, LOSS_NOISE = 1.0, 1.0
VALIDATION = 256  # expected records of the validation batch
# Importance sampling renews its norms once, half way, releases their sum with this noise
# multiplier, and lets no record take part with more than this multiple of the rate B/n.
NORMALISER_NOISE, RATE_CAP = 10.0, 1.5


class Problem(NamedTuple):
    """A model and its data. `correct(logits, label)` says whether a prediction is right."""

    model: nn.Module
    loss: Callable[[Any, Any], jax.Array]
    correct: Callable[[jax.Array, jax.Array], jax.Array]
    data: Images


class Method(NamedTuple):
    """A row of a table.

    Attributes:
        name: as printed.
        noise: "none", "gaussian" (DP-SGD), "geodp" (Algorithm 1 as published: no guarantee) or
            "recentred" (clipping around the previous release, G3).
        strategy: how per-example gradients are clipped.
        bounding_factor: GeoDP's β.
        radius: G3's radius over the clip norm.
        shrink: weight of the previous release in the next one, which costs no privacy.
        selective: selective update; every attempt is a step and is charged.
        importance: sampling in proportion to the clipped norm of the last refresh.
    """

    name: str
    noise: Literal["none", "gaussian", "geodp", "recentred"] = "gaussian"
    strategy: Strategy = gradients.Flat()
    bounding_factor: float = 1.0
    radius: float = 1.0
    shrink: float = 0.0
    selective: bool = False
    importance: bool = False


class Numbers(NamedTuple):
    """What may change between runs without compiling again."""

    noise_multiplier: float
    learning_rate: float
    bounding_factor: float = 1.0
    radius: float = 1.0


class Outcome(NamedTuple):
    """What a run is judged by; the losses are measured on training records and are not private."""

    accuracy: float
    losses: np.ndarray


Trainer = Callable[..., Outcome]


def trainer(problem: Problem, method: Method, batch_size: int) -> Trainer:
    """A training loop `(numbers, steps, seed, record_every=0) -> Outcome`, compiled once.

    Poisson batches, division by the expected batch size. The method's bounding factor and radius
    are taken from `numbers`, so that methods that differ in them alone can share a trainer.
    """
    population = len(problem.data.labels)
    images, labels = jnp.asarray(problem.data.images), jnp.asarray(problem.data.labels)
    start = initialise(problem.model, jax.random.key(0), images.shape[1:])
    restore = ravel_pytree(start)[1]
    step = _make_step(problem, method, batch_size, restore, population)
    refresh = jax.jit(partial(_clipped_norms, problem.loss, method.strategy, restore))
    shown = images[:4096], labels[:4096]
    mean_loss = jax.jit(lambda w: jnp.mean(jax.vmap(lambda e: problem.loss(restore(w), e))(shown)))
    right = jax.jit(partial(_accuracy, problem, restore))

    def run(numbers: Numbers, steps: int, seed: int, record_every: int = 0) -> Outcome:
        key, start_key = jax.random.split(jax.random.key(seed))
        params = initialise(problem.model, start_key, images.shape[1:])
        weights = ravel_pytree(params)[0]
        anchor, losses = jnp.zeros_like(weights), []
        # Before the first refresh every record counts alike.
        norms = jnp.full(population, CLIP_NORM)
        normaliser = jnp.float32(population * CLIP_NORM)
        traced = Numbers(*map(jnp.float32, numbers))
        for t, step_key in enumerate(jax.random.split(key, steps)):
            step_key, refresh_key = jax.random.split(step_key)
            if method.importance and t == steps // 2:
                norms = refresh(weights, images, labels)
                estimate = transforms.importance_normaliser(
                    norms, CLIP_NORM, NORMALISER_NOISE, refresh_key
                )
                # Three deviations up: an estimate below the true sum would only raise the rate.
                normaliser = estimate + 3.0 * NORMALISER_NOISE * CLIP_NORM
            weights, anchor = step(
                step_key, weights, anchor, traced, images, labels, norms, normaliser
            )
            if record_every and t % record_every == 0:
                losses.append(float(mean_loss(weights)))
        return Outcome(float(right(weights)), np.asarray(losses))

    return run


def _make_step(problem, method, batch_size, restore, population):
    """One jitted step (key, weights, anchor, numbers, data…) -> (weights, anchor)."""
    capacity = batch_size + math.ceil(6 * math.sqrt(batch_size))
    capacity = math.ceil(capacity / _MICROBATCH) * _MICROBATCH

    def release(key, anchor, average, numbers, scale):
        """The perturbed average; `scale` is the clip norm that the noise belongs to."""
        sigma = numbers.noise_multiplier
        if method.noise == "none":
            return average
        if method.noise == "geodp":
            return geodp(sigma, CLIP_NORM, batch_size, numbers.bounding_factor)(key, average)
        radius = numbers.radius if method.noise == "recentred" else 1.0
        noise = sigma * radius * scale / batch_size * normal(key, average.shape)
        return average + noise + (anchor if method.noise == "recentred" else 0.0)

    @jax.jit
    def step(key, weights, anchor, numbers, images, labels, norms, normaliser):
        sample_key, noise_key, choose_key = jax.random.split(key, 3)
        scale, boost = jnp.float32(CLIP_NORM), jnp.ones(capacity)
        if method.importance:
            draw = transforms.importance_inclusion(
                sample_key,
                0,
                norms,
                normaliser=normaliser,
                batch_size=batch_size,
                clip_norm=CLIP_NORM,
                rate=min(RATE_CAP * batch_size / population, 1.0),
            )
            indices = jnp.nonzero(draw.included, size=capacity, fill_value=0)[0]
            mask = jnp.arange(capacity) < jnp.sum(draw.included)
            chosen = jnp.maximum(draw.probabilities[indices], 1e-12)
            scale, boost = draw.sensitivity * batch_size, batch_size / (population * chosen)
        else:
            indices, mask = sampling.poisson(
                sample_key,
                0,
                population=population,
                rate=batch_size / population,
                capacity=capacity,
            )
        batch = images[indices], labels[indices]
        args = problem.loss, method, numbers.radius, restore, weights, anchor
        total = _clipped_sum(*args, batch, mask, boost, scale)
        released = release(noise_key, anchor, total / batch_size, numbers, scale)
        released = released + method.shrink * (anchor - released)
        candidate = weights - numbers.learning_rate * released
        if method.selective:
            candidate = _select(
                choose_key, problem.loss, restore, weights, candidate, images, labels
            )
        return candidate, released

    return step


def _clipped_sum(loss, method, radius, restore, weights, anchor, batch, mask, boost, scale):
    """Σ clip(gᵢ), or Σ clip_r(clip(gᵢ) − anchor), in microbatches; absent records contribute 0."""

    def shorten(vectors, norm):
        squared = jnp.sum(vectors**2, axis=1)[None]
        return vectors * gradients.Flat().factors(squared, norm)[0][:, None]

    def piece(total, rows):
        examples, present, boost = rows
        grads = jax.vmap(lambda e: jax.grad(lambda w: loss(restore(w), e))(weights))(examples)
        factors = method.strategy.factors(jnp.sum(grads**2, axis=1)[None], jnp.float32(CLIP_NORM))[
            0
        ]
        clipped = grads * factors[:, None]
        if method.importance:
            # The norms behind the weights are those of the last refresh: only the second clip
            # bounds what a record can add.
            clipped = shorten(clipped * boost[:, None], scale)
        if method.noise == "recentred":
            clipped = shorten(clipped - anchor[None], radius * scale)
        kept = present & jnp.isfinite(factors)
        return total + jnp.sum(jnp.where(kept[:, None], clipped, 0.0), axis=0), None

    pieces = jax.tree.map(
        lambda leaf: leaf.reshape(-1, min(_MICROBATCH, len(mask)), *leaf.shape[1:]),
        (batch, mask, boost),
    )
    return jax.lax.scan(piece, jnp.zeros_like(weights), pieces)[0]


def _select(key, loss, restore, weights, candidate, images, labels):
    """Keep the candidate if a noisy validation loss is lower; every attempt is charged."""
    sample_key, noise_key = jax.random.split(key)
    rows, mask = sampling.poisson(
        sample_key,
        0,
        population=len(labels),
        rate=min(VALIDATION / len(labels), 1.0),
        capacity=min(VALIDATION + 128, len(labels)),
    )

    def losses(flat):
        return jax.vmap(lambda e: loss(restore(flat), e))((images[rows], labels[rows]))

    test = transforms.selective_update(_LOSS_CLIP, LOSS_NOISE, VALIDATION, noise_key, attempts=1)
    update, _ = test.update(
        candidate - weights,
        test.init(weights),
        weights,
        validation_losses=losses,
        validation_mask=mask,
    )
    return weights + update


def _clipped_norms(loss, strategy, restore, weights, images, labels):
    """Norms of all clipped per-example gradients: the pass that importance sampling pays for."""

    def norm(example):
        gradient = jax.grad(lambda w: loss(restore(w), example))(weights)
        squared = jnp.sum(gradient**2)
        factor = strategy.factors(squared[None, None], jnp.float32(CLIP_NORM))[0, 0]
        return factor * jnp.sqrt(squared)

    return jax.lax.map(norm, (images, labels), batch_size=_MICROBATCH)


def _accuracy(problem, restore, weights):
    def one(example):
        image, label = example
        return problem.correct(problem.model.apply(restore(weights), image), label)

    test = jnp.asarray(problem.data.test_images), jnp.asarray(problem.data.test_labels)
    return jnp.mean(jax.lax.map(one, test, batch_size=500).astype(jnp.float32))
