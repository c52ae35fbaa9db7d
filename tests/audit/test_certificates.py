"""No audit exceeds its certificate: every mechanism that is priced, at 99.9 % confidence.

Each case runs a release of the kind that the mechanism describes on its worst neighbours, scores it
with the likelihood ratio (or a monotone function of it), and compares the empirical bound with what
the accountant certifies. `reach` says how much of the certificate the attack must recover, so that
a broken attack fails too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import dpjax
from dpjax import accounting as acc
from dpjax import audit, sampling
from dpjax._numerics.normal import normal

_ADD, _REPLACE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE
_clipped = dpjax.clipped_grad(audit.linear_loss, clip_norm=1.0)


class Case(NamedTuple):
    mechanism: Any
    release: Callable
    worlds: tuple[Any, Any]
    adjacency: acc.Adjacency = _ADD
    delta: float = 1e-2
    reach: float = 0.5


def _sum(records, mask=None):
    return _clipped(jnp.zeros(records.shape[1]), records, mask).sum


def _gaussian(sigma):
    worlds = jnp.zeros((3, 2)), jnp.zeros((3, 2)).at[2, 0].set(5.0)
    return Case(
        acc.Gaussian(sigma),
        lambda key, records: (_sum(records) + sigma * normal(key, (2,)))[0],
        worlds,
    )


def _gaussian_replaced(sigma):
    worlds = jnp.array([[-1.0, 0.0]]), jnp.array([[1.0, 0.0]])
    return Case(
        acc.Gaussian(sigma),
        lambda key, records: (_sum(records) + sigma * normal(key, (2,)))[0],
        worlds,
        _REPLACE,
    )


def _uniform_ball(displacement, dimension):
    def release(key, shift):
        direction_key, radius_key = jax.random.split(key)
        direction = normal(direction_key, (dimension,))
        radius = jax.random.uniform(radius_key) ** (1 / dimension)
        x = (radius * direction / jnp.linalg.norm(direction)).at[0].add(shift)
        # Inside one ball alone, the data set is known; inside both, nothing is.
        outside_first = jnp.linalg.norm(x) > 1.0
        outside_second = jnp.linalg.norm(x.at[0].add(-displacement)) > 1.0
        return outside_first.astype(jnp.float32) - outside_second.astype(jnp.float32)

    worlds = jnp.float32(0.0), jnp.float32(displacement)
    # δ below the total variation, 0.093: the certificate is +inf, and the audit must stay finite;
    # δ above it: the certificate is zero.
    return Case(acc.UniformBall(displacement, dimension), release, worlds, delta=0.2, reach=0.0)


def _poisson(sigma, rate, steps):
    def release(key, canary):
        records = jnp.zeros((4, 1)).at[3, 0].set(canary)

        def step(index):
            batch = sampling.poisson(sample_key, index, population=4, rate=rate)
            return _sum(records[batch.indices], batch.mask)[0]

        sample_key, noise_key = jax.random.split(key)
        sums = jax.vmap(step)(jnp.arange(steps)) + sigma * normal(noise_key, (steps,))
        return audit.canary_score(sums[:, None], jnp.ones(1), sigma, rate)

    mechanism = acc.PoissonSampled(acc.Gaussian(sigma), rate)
    mechanism = acc.Repeated(mechanism, steps) if steps > 1 else mechanism
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)), delta=1e-3, reach=0.4)


def _fixed_batch(sigma, size, population):
    def release(key, records):
        sample_key, noise_key = jax.random.split(key)
        rows = sampling.fixed_batch(sample_key, 0, population=population, batch_size=size).indices
        return _sum(records[rows])[0] + sigma * normal(noise_key)

    others = -jnp.ones((population, 1))
    return Case(
        acc.FixedBatchSampled(acc.Gaussian(sigma), size, population),
        release,
        (others, others.at[-1, 0].set(1.0)),
        _REPLACE,
        1e-3,
    )


def _shuffled(sigma, batches):
    def release(key, records):
        order_key, noise_key = jax.random.split(key)
        draw = partial(sampling.cyclic_permutation, order_key, population=2 * batches, batch_size=2)
        sums = jax.vmap(lambda t: _sum(records[draw(t).indices])[0])(jnp.arange(batches))
        x = sums + 2.0 + sigma * normal(noise_key, (batches,))
        return jax.nn.logsumexp((2.0 * x - 2.0) / sigma**2)

    others = -jnp.ones((2 * batches, 1))
    return Case(
        acc.Shuffled(acc.Gaussian(sigma), batches),
        release,
        (others, others.at[-1, 0].set(1.0)),
        _REPLACE,
        reach=0.4,
    )


def _composed(first, second):
    def release(key, canary):
        scales = jnp.array([first, second])
        return jnp.sum((canary + scales * normal(key, (2,))) / scales**2)

    mechanism = acc.Composed((acc.Gaussian(first), acc.Gaussian(second)))
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)))


def _randomised_sensitivity(sensitivities, weights, std):
    def release(key, present):
        choice_key, noise_key = jax.random.split(key)
        moved = jax.random.choice(choice_key, jnp.array(sensitivities), p=jnp.array(weights))
        return present * moved + std * normal(noise_key)

    mechanism = acc.RandomizedSensitivity(sensitivities, weights, std)
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)), _REPLACE)


def _descent(steps, size, std, sensitivity, curvature, batches=0):
    """Quadratic losses ½·m·(θ − x)²: the case in which the hidden-state bound is attained."""

    def release(key, moved):
        order_key, noise_key = jax.random.split(key)
        position = jax.random.randint(order_key, (), 0, max(batches, 1))
        noise = jnp.sqrt(2.0 * size) * std * normal(noise_key, (steps,))

        def step(theta, t):
            mine = (t % max(batches, 1)) == position
            gradient = curvature * theta - jnp.where(mine, moved * sensitivity, 0.0)
            return theta - size * gradient + noise[t], None

        return jax.lax.scan(step, 0.0, jnp.arange(steps))[0]

    constants = (steps, size, std, sensitivity, curvature, curvature)
    mechanism = (
        acc.NoisyCyclicDescent(*constants, batches)
        if batches
        else acc.NoisyGradientDescent(*constants)
    )
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)), _REPLACE, reach=0.4)


CASES = {
    "Gaussian": _gaussian(1.0),
    "Gaussian replaced": _gaussian_replaced(2.0),
    "UniformBall": _uniform_ball(0.1, 5),
    "PoissonSampled": _poisson(0.7, 0.3, 1),
    "FixedBatchSampled": _fixed_batch(1.0, 3, 10),
    "Shuffled": _shuffled(1.0, 5),
    "Repeated": _poisson(1.0, 0.2, 10),
    "Composed": _composed(1.5, 2.0),
    "RandomizedSensitivity": _randomised_sensitivity([0.5, 1.5], [0.5, 0.5], 1.0),
    "NoisyGradientDescent": _descent(10, 0.2, 1.0, 1.0, 1.0),
    "NoisyCyclicDescent": _descent(12, 0.2, 0.6, 1.0, 1.0, batches=3),
}


@pytest.mark.parametrize("name", CASES)
def test_audit_stays_below_the_certificate(name):
    case = CASES[name]
    bound = audit.distinguish(
        case.release, *case.worlds, key=jax.random.key(7), delta=case.delta, trials=40_000
    )
    certified = acc.epsilon(case.mechanism, delta=case.delta, adjacency=case.adjacency)
    assert bound.confidence == 0.999
    assert bound.epsilon <= certified
    assert bound.epsilon >= case.reach * certified
