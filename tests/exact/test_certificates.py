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
from dpjax import audit, correlation, sampling, transforms
from dpjax._numerics.normal import normal

_ADD, _REPLACE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE
_clipped = dpjax.clipped_grad(audit.linear_loss, clip_norm=1.0)


class Case(NamedTuple):
    mechanism: Any
    release: Callable
    worlds: tuple[Any, Any]
    adjacency: acc.Adjacency = _ADD
    delta: float = 1e-2
    reach: float = 0.4


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
        0.3,
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


def _sampled_descent(steps, size, std, sensitivity, curvature, batch, population):
    """The record is in each step's batch with probability batch/population, and moves its mean."""

    def release(key, moved):
        batch_key, noise_key = jax.random.split(key)
        inside = jax.random.bernoulli(batch_key, batch / population, (steps,))
        noise = jnp.sqrt(2.0 * size) * std * normal(noise_key, (steps,))

        def step(theta, t):
            gradient = curvature * theta - jnp.where(inside[t], moved * sensitivity, 0.0)
            return theta - size * gradient + noise[t], None

        return jax.lax.scan(step, 0.0, jnp.arange(steps))[0]

    mechanism = acc.NoisySampledDescent(
        steps, size, std, sensitivity, curvature, curvature, batch, population
    )
    # Composition of sampled steps is not tight for the last iterate.
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)), _REPLACE, reach=0.1)


def _shifted(mechanism, shift, noise_std, adjacency=_ADD, reach=0.5):
    """A vector moved by `shift` in one world, with its own noise on every coordinate."""
    shift, noise_std = jnp.asarray(shift), jnp.asarray(noise_std)

    def release(key, present):
        out = present * shift + noise_std * normal(key, shift.shape)
        return jnp.sum(out * shift / noise_std**2)

    worlds = jnp.float32(0.0), jnp.float32(1.0)
    return Case(mechanism, release, worlds, adjacency, reach=reach)


def _recentred(radius, noise_std, batch):
    """clip_r(g − a)/B for a record far from the anchor."""
    gradient, anchor = jnp.array([9.0, 0.0, 3.0]), jnp.array([0.5, 0.0, 3.0])
    centred = gradient - anchor
    moved = centred * jnp.minimum(1.0, radius / jnp.linalg.norm(centred)) / batch
    return _shifted(acc.RecentredGaussian(radius, noise_std, batch), moved, noise_std)


def _boxed(beta, noise_std, batch, dimension):
    """A record whose angles all lie at the corner of the box."""
    width = jnp.full(dimension - 1, beta * jnp.pi / 2).at[-1].set(beta * jnp.pi)
    moved = jnp.clip(jnp.full(dimension - 1, 9.0), -width, width) / batch
    return _shifted(acc.BoxedAngles(beta, noise_std, batch, dimension), moved, noise_std)


def _tangent(radius, noise_std, batch):
    moved = jnp.array([radius / batch, 0.0, 0.0])
    return _shifted(acc.TangentBall(radius, noise_std, batch), moved, noise_std)


def _anisotropic(parallel, perpendicular, stds, batch):
    moved = jnp.array([parallel / batch, perpendicular / batch])
    mechanism = acc.Anisotropic(parallel, perpendicular, *stds, batch)
    return _shifted(mechanism, moved, jnp.array(stds))


def _geodp(beta, sigma, batch):
    """Published GeoDP in the plane: priced +inf, and every audit is below that."""
    norm_std, angle_std = sigma / batch, 2.0 * beta * jnp.pi * sigma / batch

    def release(key, sign):
        average = jnp.array([1.0 - 1.0 / batch, 0.0]).at[1].set(sign / batch)
        noise = normal(key, (2,))
        norm = jnp.linalg.norm(average) + norm_std * noise[0]
        angle = jnp.arctan2(average[1], average[0]) + angle_std * noise[1]
        return jnp.arctan2(norm * jnp.sin(angle), norm * jnp.cos(angle))

    mechanism = acc.GeoDP(sigma, beta, batch, 2, unsafe_no_dp=True)
    worlds = jnp.float32(-1.0), jnp.float32(1.0)
    return Case(mechanism, release, worlds, _REPLACE, reach=0.0)


def _objective_perturbation(noise_std, regularization):
    """One logistic record with x = y = 1: minimise ln(1 + e^{−w}) + (λ/2)w² + bw by bisection."""

    def release(key, present):
        tilt = noise_std * normal(key)

        def halve(_, ends):
            middle = (ends[0] + ends[1]) / 2
            slope = regularization * middle + tilt - present * jax.nn.sigmoid(-middle)
            return jnp.where(slope > 0, ends[0], middle), jnp.where(slope > 0, middle, ends[1])

        return jax.lax.fori_loop(0, 40, halve, (jnp.float32(-100.0), jnp.float32(100.0)))[0]

    mechanism = acc.ObjectivePerturbation(1.0, noise_std, 0.25, regularization)
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)), reach=0.2)


def _pure(epsilon):
    """Randomised response."""

    def release(key, truth):
        lie = jax.random.bernoulli(key, 1.0 / (1.0 + jnp.exp(epsilon)))
        return jnp.where(lie, 1.0 - truth, truth)

    worlds = jnp.float32(0.0), jnp.float32(1.0)
    return Case(acc.PureDP(epsilon), release, worlds, _REPLACE, 1e-6, 0.8)


def _approximate(epsilon, delta):
    """Randomised response that tells the truth, and that it does, with probability δ."""

    def release(key, truth):
        lie_key, tell_key = jax.random.split(key)
        lie = jax.random.bernoulli(lie_key, 1.0 / (1.0 + jnp.exp(epsilon)))
        told = jax.random.bernoulli(tell_key, delta)
        return jnp.where(told, 3.0 * truth - 1.0, jnp.where(lie, 1.0 - truth, truth))

    worlds = jnp.float32(0.0), jnp.float32(1.0)
    mechanism = acc.ApproximateDP(epsilon, delta, "replace-one")
    return Case(mechanism, release, worlds, _REPLACE, 2 * delta, 0.8)


def _zero_concentrated(rho):
    noise_std = (2.0 * rho) ** -0.5
    return _shifted(acc.ZeroConcentrated(rho), jnp.array([1.0]), noise_std, reach=0.3)


def _best_of(sigma, expected):
    """The largest of a geometric number of noisy counts."""

    def release(key, count):
        number_key, noise_key = jax.random.split(key)
        number = jax.random.geometric(number_key, 1.0 / expected)
        tries = count + sigma * normal(noise_key, (100,))
        return jnp.max(jnp.where(jnp.arange(100) < number, tries, -jnp.inf))

    mechanism = acc.BestOf(acc.Gaussian(sigma), expected)
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)), reach=0.2)


def _whole(mechanism, log_weights, reach):
    """A whole number between −60 and 60 of this law, around a count that moves by one."""
    at = jnp.arange(-60.0, 61.0)

    def release(key, count):
        return count + at[jax.random.categorical(key, log_weights(at))]

    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)), reach=reach)


def _laplace(scale):
    def release(key, count):
        return count + scale * jax.random.laplace(key)

    return Case(acc.Laplace(scale), release, (jnp.float32(0.0), jnp.float32(1.0)), reach=0.7)


def _staircase(epsilon, gamma):
    """Geng and Viswanath 2014, Algorithm 1: a sign, whole units, a place in one of two parts."""
    b = jnp.exp(-epsilon)

    def release(key, count):
        sign, units, part, place = jax.random.split(key, 4)
        far = jnp.floor(jnp.log(jax.random.uniform(units, minval=1e-30)) / -epsilon)
        beyond = jax.random.bernoulli(part, (1 - gamma) * b / (gamma + (1 - gamma) * b))
        inside = jax.random.uniform(place)
        size = far + jnp.where(beyond, gamma + (1 - gamma) * inside, gamma * inside)
        return count + size * jax.random.rademacher(sign, (), jnp.float32)

    worlds = jnp.float32(0.0), jnp.float32(1.0)
    return Case(acc.Staircase(epsilon, gamma), release, worlds, reach=0.7)


def _randomised_response(epsilon, categories):
    def release(key, truth):
        keep_key, other_key = jax.random.split(key)
        keep = jax.random.bernoulli(keep_key, 1 / (1 + (categories - 1) * jnp.exp(-epsilon)))
        other = (truth + jax.random.randint(other_key, (), 1, categories)) % categories
        report = jnp.where(keep, truth, other)
        return jnp.float32(report == 1) - jnp.float32(report == 0)

    mechanism = acc.RandomizedResponse(epsilon, categories)
    return Case(mechanism, release, (jnp.int32(0), jnp.int32(1)), _REPLACE, 1e-3, 0.7)


def _exponential(epsilon):
    """Two candidates, whose scores a record moves in opposite directions."""

    def release(key, scores):
        return jax.random.categorical(key, 0.5 * epsilon * scores).astype(jnp.float32)

    worlds = jnp.array([0.0, 0.0]), jnp.array([-1.0, 1.0])
    return Case(acc.Exponential(epsilon), release, worlds, reach=0.3)


def _random_allocation(sigma, steps):
    def release(key, canary):
        records = jnp.zeros((4, 1)).at[3, 0].set(canary)
        sample_key, noise_key = jax.random.split(key)

        def step(index):
            draw = sampling.random_allocation(sample_key, 0, index, population=4, steps=steps)
            return _sum(records[draw.indices], draw.mask)[0]

        sums = jax.vmap(step)(jnp.arange(steps)) + sigma * normal(noise_key, (steps,))
        return jax.nn.logsumexp((sums - 0.5) / sigma**2)

    mechanism = acc.RandomAllocation(acc.Gaussian(sigma), steps)
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)))


def _truncated(sigma, rate, population, capacity):
    """The others contribute −1 each: of a full batch the record displaces one."""

    def release(key, records):
        sample_key, noise_key = jax.random.split(key)
        draw = sampling.truncated_poisson(
            sample_key, 0, population=population, rate=rate, capacity=capacity
        )
        return _sum(records[draw.indices], draw.mask)[0] + sigma * normal(noise_key)

    others = -jnp.ones((population, 1))
    mechanism = acc.TruncatedPoissonSampled(acc.Gaussian(sigma), rate, population, capacity)
    return Case(mechanism, release, (others, others.at[-1, 0].set(1.0)), _REPLACE, 1e-3, 0.1)


def _with_replacement(sigma, draws, population):
    """The others contribute −1 each, and so does the record that takes the place of a 1."""

    def release(key, records):
        sample_key, noise_key = jax.random.split(key)
        draw = sampling.with_replacement(sample_key, 0, population=population, batch_size=draws)
        return _sum(records[draw.indices], draw.mask)[0] + sigma * normal(noise_key)

    others = -jnp.ones((population, 1))
    mechanism = acc.WithReplacement(acc.Gaussian(sigma), draws, population)
    return Case(mechanism, release, (others, others.at[-1, 0].set(1.0)), _REPLACE)


def _users(sigma, rate, records):
    """All records of a user contribute 1, each if it is drawn."""

    def release(key, canary):
        sample_key, noise_key = jax.random.split(key)
        drawn = sampling.poisson_inclusion(sample_key, 0, population=records, rate=rate)
        contributions = jnp.full((records, 1), canary)
        return _sum(contributions, drawn)[0] + sigma * normal(noise_key)

    mechanism = acc.UserLevel(acc.PoissonSampled(acc.Gaussian(sigma), rate), records)
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)))


def _correlated(sigma, separation, steps):
    """The record enters every `separation` steps; the score undoes the correlation."""
    strategy = correlation.square_root(8)
    c = jnp.asarray(strategy.matrix(steps), jnp.float32)
    once = jnp.zeros(steps).at[::separation].set(1.0)

    def release(key, canary):
        noise = transforms.correlated_noise(strategy, sigma, key)

        def step(state, contribution):
            noisy, state = noise.update({"w": canary * contribution}, state)
            return state, noisy["w"]

        _, released = jax.lax.scan(step, noise.init({"w": jnp.zeros(())}), once)
        return (c @ once) @ (c @ released)

    mechanism = acc.CorrelatedGaussian(sigma, strategy, steps, separation)
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)))


def _full_columns(sigma, steps, separation):
    """A record that enters the steps of its batch, under a matrix whose columns overlap."""
    table = [(1 + t / 50, *[0.6 * 0.8**l for l in range(steps - 1 - t)], *[0.0] * t)
             for t in range(steps)]  # fmt: skip
    strategy = correlation.Banded(tuple(table))
    c = jnp.asarray(strategy.matrix(steps), jnp.float32)
    once = jnp.zeros(steps).at[::separation].set(1.0)

    def release(key, canary):
        noise = transforms.correlated_noise(strategy, sigma, key)

        def step(state, contribution):
            noisy, state = noise.update({"w": canary * contribution}, state)
            return state, noisy["w"]

        _, released = jax.lax.scan(step, noise.init({"w": jnp.zeros(())}), once)
        return (c @ once) @ (c @ released)

    mechanism = acc.CyclicMatrixGaussian(sigma, strategy, steps, separation)
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)))


def _min_separated(sigma, steps, separation):
    """A record of random steps, as often as it may, seen by one who knows which they are."""
    strategy = correlation.BufferedToeplitz((0.9, 0.3), (0.25, 0.25))
    c = jnp.asarray(strategy.matrix(steps), jnp.float32)
    sizes = {"population": 1, "rate": 1 / separation, "separation": separation}

    def release(key, canary):
        sample_key, noise_key = jax.random.split(key)
        draw = partial(sampling.min_separated_inclusion, sample_key, **sizes)
        used = jnp.concatenate([draw(step) for step in range(steps)]).astype(jnp.float32)
        noise = transforms.correlated_noise(strategy, sigma, noise_key)

        def step(state, contribution):
            noisy, state = noise.update({"w": canary * contribution}, state)
            return state, noisy["w"]

        _, released = jax.lax.scan(step, noise.init({"w": jnp.zeros(())}), used)
        return (c @ used) @ (c @ released)

    mechanism = acc.MinSeparatedCorrelated(sigma, strategy, steps, separation, 1 / separation)
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)))


def _tree(sigma, steps, separation):
    """A record that enters step 0 and the one `separation` after it, under the tree's noise."""
    tree = correlation.Tree()
    c = jnp.asarray(tree.matrix(steps), jnp.float32)
    once = jnp.zeros(steps).at[jnp.array([0, separation])].set(1.0)

    def release(key, canary):
        noise = transforms.correlated_noise(tree, sigma, key)

        def step(state, contribution):
            noisy, state = noise.update({"w": canary * contribution}, state)
            return state, noisy["w"]

        _, released = jax.lax.scan(step, noise.init({"w": jnp.zeros(())}), once)
        return (c @ once) @ (c @ released)

    mechanism = acc.MatrixGaussian(sigma, tree, steps, separation)
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)))


def _cyclic_correlated(sigma, rate, groups):
    """The first group's record, which enters the first step of the round if it is drawn."""
    strategy = correlation.square_root(groups)
    c = jnp.asarray(strategy.matrix(groups), jnp.float32)

    def release(key, canary):
        sample_key, noise_key = jax.random.split(key)
        drawn = jnp.float32(jax.random.bernoulli(sample_key, rate))
        first = jnp.zeros(groups).at[0].set(canary * drawn)
        # The released C⁻¹(C·first + σz), correlated again.
        return c[:, 0] @ (c @ first + sigma * normal(noise_key, (groups,)))

    mechanism = acc.CyclicPoissonCorrelated(sigma, strategy, groups, rate)
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)), delta=1e-3)


def _allocated_correlated(sigma, bins, epochs):
    """The record's bin is drawn once; the score is the density ratio of all bins together."""
    strategy = correlation.square_root(3)
    steps = bins * epochs
    c = jnp.asarray(strategy.matrix(steps), jnp.float32)
    moved = jnp.stack([c[:, j::bins].sum(1) for j in range(bins)])

    def release(key, canary):
        sample_key, noise_key = jax.random.split(key)
        noise = transforms.correlated_noise(strategy, sigma, noise_key)

        def step(state, number):
            draw = sampling.random_allocation(
                sample_key, 0, number % bins, population=1, steps=bins
            )
            there = jnp.sum(draw.mask, dtype=jnp.float32)
            noisy, state = noise.update({"w": canary * there}, state)
            return state, noisy["w"]

        _, released = jax.lax.scan(step, noise.init({"w": jnp.zeros(())}), jnp.arange(steps))
        score = moved @ (c @ released) - jnp.sum(moved**2, axis=1) / 2
        return jax.nn.logsumexp(score / sigma**2)

    mechanism = acc.RandomAllocationCorrelated(sigma, strategy, bins, epochs)
    return Case(mechanism, release, (jnp.float32(0.0), jnp.float32(1.0)))


CASES = {
    "Laplace": _laplace(0.7),
    "DiscreteLaplace": _whole(acc.DiscreteLaplace(0.7), lambda k: -jnp.abs(k) / 0.7, 0.7),
    "DiscreteGaussian": _whole(acc.DiscreteGaussian(1.0), lambda k: -0.5 * k * k, 0.4),
    "Histogram": _whole(acc.Histogram(3.0), lambda k: -k * k / 18.0, 0.0),
    "Staircase": _staircase(1.5, 0.4),
    "RandomizedResponse": _randomised_response(1.5, 4),
    "Exponential": _exponential(2.0),
    "RandomAllocation": _random_allocation(0.7, 4),
    "TruncatedPoissonSampled": _truncated(0.7, 0.3, 4, 2),
    "WithReplacement": _with_replacement(1.5, 4, 5),
    "UserLevel": _users(1.0, 0.3, 3),
    "CorrelatedGaussian": _correlated(3.0, 5, 20),
    "CyclicMatrixGaussian": _full_columns(3.0, 6, 2),
    "MinSeparatedCorrelated": _min_separated(2.0, 4, 2),
    "MatrixGaussian": _tree(4.0, 8, 4),
    "CyclicPoissonCorrelated": _cyclic_correlated(0.8, 0.3, 4),
    "RandomAllocationCorrelated": _allocated_correlated(1.5, 4, 2),
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
    "NoisySampledDescent": _sampled_descent(6, 0.2, 0.3, 1.0, 1.0, 5, 10),
    "RecentredGaussian": _recentred(0.5, 0.02, 16),
    "BoxedAngles": _boxed(0.2, 0.04, 16, 10),
    "TangentBall": _tangent(0.3, 0.02, 16),
    "Anisotropic": _anisotropic(0.5, 0.2, (0.05, 0.02), 16),
    "GeoDP": _geodp(0.1, 1.0, 2048),
    "ObjectivePerturbation": _objective_perturbation(1.5, 5.0),
    "PureDP": _pure(1.5),
    "ApproximateDP": _approximate(1.5, 1e-3),
    "ZeroConcentrated": _zero_concentrated(0.5),
    "BestOf": _best_of(2.0, 5.0),
}


@pytest.mark.parametrize("name", CASES)
def test_audit_stays_below_the_certificate(name):
    case = CASES[name]
    bound = audit.distinguish(
        case.release, *case.worlds, key=jax.random.key(7), delta=case.delta, trials=20_000
    )
    certified = acc.epsilon(case.mechanism, delta=case.delta, adjacency=case.adjacency)
    assert bound.confidence == 0.999
    assert bound.epsilon <= certified
    assert bound.epsilon >= (case.reach * certified if case.reach else 0.0)


def test_every_priced_mechanism_is_audited():
    audited = {type(case.mechanism).__name__ for case in CASES.values()}
    own = {n for n, m in acc.registered_mechanisms().items() if m.__module__.startswith("dpjax.")}
    assert own <= audited
