"""Five classic mistakes, planted one at a time: the audit refutes each and clears the right code.

Every mechanism below is a private gradient step or run whose records are gradients (`linear_loss`).
The claim is what the accountant says about the code as it was meant.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import dpjax
from dpjax import accounting as acc
from dpjax import audit, sampling
from dpjax._numerics.normal import normal

_CLIP = 0.5
_RUNS = 20_000
_clipped = dpjax.clipped_grad(audit.linear_loss, clip_norm=_CLIP)


def _records(count, canary):
    """`count` zero gradients and a canary of the given size along the first axis."""
    return jnp.zeros((count, 3)).at[-1, 0].set(canary)


def _along(vector):
    return vector[0]


def _audit(mechanism, worlds, delta, seed=0, runs=_RUNS):
    return audit.distinguish(mechanism, *worlds, key=jax.random.key(seed), delta=delta, trials=runs)


@pytest.mark.parametrize(("scale", "found"), [(1.0, False), (0.5, True)])
def test_halved_noise(scale, found):
    sigma = 1.0

    def step(key, batch):
        total = _clipped(jnp.zeros(3), batch).sum
        return _along(total + scale * sigma * _CLIP * normal(key, (3,)))

    claim = acc.epsilon(acc.Gaussian(sigma), delta=1e-2)
    bound = _audit(step, (_records(4, 0.0), _records(4, 10.0)), 1e-2)
    assert bound.contradicts(claim) is found
    assert bound.epsilon > 0.5 * claim


@pytest.mark.parametrize("noise_first", [False, True])
def test_noise_before_clipping(noise_first):
    # Clipping a large noisy gradient removes the noise's component along it.
    sigma = 2.0

    def step(key, batch):
        noise = sigma * _CLIP * normal(key, (3,))
        if noise_first:
            return _along(_clipped(jnp.zeros(3), batch + noise[None] / len(batch)).sum)
        return _along(_clipped(jnp.zeros(3), batch).sum + noise)

    claim = acc.epsilon(acc.Gaussian(sigma), delta=1e-2)
    bound = _audit(step, (_records(1, 0.0), _records(1, 1e4)), 1e-2)
    assert bound.contradicts(claim) is noise_first


@pytest.mark.parametrize("realised", [False, True])
def test_division_by_the_realised_batch_size(realised):
    # All other records agree, so a mean is the same for every batch without the canary, and a
    # canary that disagrees moves it by two clip norms over the batch size, not by one.
    sigma, rate, population = 1.0, 0.5, 20

    def step(key, world):
        records, present = world
        sample_key, noise_key = jax.random.split(key)
        batch = sampling.poisson(sample_key, 0, population=population, rate=rate)
        mask = batch.mask & present[batch.indices]
        total = _clipped(jnp.zeros(3), records[batch.indices], mask).sum
        expected = rate * population
        count = jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32) if realised else expected
        return _along(total / count + sigma * _CLIP / expected * normal(noise_key, (3,)))

    records = jnp.zeros((population, 3)).at[:, 0].set(-_CLIP).at[-1, 0].set(_CLIP)
    everyone = jnp.ones(population, bool)
    claim = acc.epsilon(acc.PoissonSampled(acc.Gaussian(sigma), rate), delta=1e-2)
    worlds = (records, everyone.at[-1].set(False)), (records, everyone)
    bound = _audit(step, worlds, 1e-2)
    assert bound.contradicts(claim) is realised


@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_shuffled_pass_priced_as_poisson(shuffled):
    # With all other records pointing the other way, every batch of a pass has the same sum except
    # the canary's, two clip norms away (Chua et al. 2024, How private are DP-SGD implementations?).
    sigma, batches, size = 0.6, 50, 2
    population = batches * size
    cyclic = partial(sampling.cyclic_permutation, population=population, batch_size=size)
    poisson = partial(sampling.poisson_inclusion, population=population, rate=1 / batches)

    def epoch(key, records):
        sample_key, noise_key = jax.random.split(key)

        def total(step):
            if not shuffled:
                return _clipped(jnp.zeros(1), records, poisson(sample_key, step)).sum[0]
            batch = cyclic(sample_key, step)
            return _clipped(jnp.zeros(1), records[batch.indices], batch.mask).sum[0]

        sums = jax.vmap(total)(jnp.arange(batches))
        releases = sums / _CLIP + sigma * normal(noise_key, (batches,))
        return jax.nn.logsumexp((2.0 * (releases + size) - 2.0) / sigma**2)

    worlds = -jnp.ones((population, 1)), (-jnp.ones((population, 1))).at[-1, 0].set(1.0)
    replace = acc.Adjacency.REPLACE_ONE
    sampled = acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), 1 / batches), batches)
    bound = _audit(epoch, worlds, 1e-3, runs=12_000 if shuffled else 4_000)
    assert bound.contradicts(acc.epsilon(sampled, delta=1e-3, adjacency=replace)) is shuffled
    shuffle = acc.Shuffled(acc.Gaussian(sigma), batches)
    assert not bound.contradicts(acc.epsilon(shuffle, delta=1e-3, adjacency=replace))


@pytest.mark.parametrize("reused", [False, True])
def test_keys_reused_across_steps(reused):
    # A canary that is silent in the second step: with the same noise, the difference is exact.
    sigma, active = 3.0, jnp.array([1.0, 0.0])

    def run(key, records):
        def step(index, key):
            total = _clipped(jnp.zeros(3), records * active[index]).sum
            return _along(total + sigma * _CLIP * normal(key, (3,)))

        keys = jax.random.split(key)
        if reused:
            keys = jnp.broadcast_to(keys[:1], (2,))
        releases = jax.vmap(step)(jnp.arange(2), keys)
        return releases[0] - releases[1]

    claim = acc.epsilon(acc.Repeated(acc.Gaussian(sigma), 2), delta=1e-2)
    bound = _audit(run, (_records(2, 0.0), _records(2, 1.0)), 1e-2)
    assert bound.contradicts(claim) is reused
