"""The transformations themselves, audited: what the code releases keeps within its price.

`test_certificates` audits each mechanism's definition. Here the releases come from
`dpjax.transforms` on neighbours that are as bad as each clip allows, and the price from what a
transformation says of itself. Published GeoDP and noise on a sphere must be caught.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from dpjax import accounting as acc
from dpjax import audit, gradients, transforms

_DELTA, _RUNS, _ANCHOR = 1e-2, 20_000, jnp.array([1.0, 0.0, 0.0])
_ABSENT, _PRESENT = jnp.array([True, True, False]), jnp.ones(3, bool)


class Case(NamedTuple):
    release: Callable
    price: Any
    reach: float = 0.5
    method: str = "gdp"  # cheaper to compile than the default, and exact for what it takes


def _keyed(state, key):
    return state._replace(noise=transforms.NoiseState(key, jnp.zeros((), jnp.int32)))


def _clipped_sum(strategy):
    """Two records at zero, and a canary of ten clip norms."""
    records = jnp.zeros((3, 4)).at[2, 1].set(10.0)
    clip = transforms.clip_per_example(1.0, strategy)

    def release(key, mask):
        total, _ = clip.update(records, clip.init(None), mask=mask)
        noise = transforms.gaussian_noise(1.5, key)
        return noise.update(total, noise.init(total))[0][1]

    return Case(release, acc.Gaussian(1.5))


def _about_anchor(make, far, score, others=(0.0, 0.0, 0.0), reach=0.4):
    """A canary that the clip moves as far as it may; `others` are the two that stay."""
    records = jnp.stack([jnp.array(others), jnp.array(others), jnp.array(far)])

    def release(key, mask):
        tx = make(key)
        state = _keyed(tx.init(_ANCHOR), key)._replace(anchor=_ANCHOR)
        return score(tx.update(records, state, mask=mask)[0])

    released = make(jax.random.key(0)).released
    price = acc.Composed(tuple(getattr(acc, name)(**fields) for name, fields in released.items()))
    return Case(release, price, reach)


def _turn(x):
    """The angle from the anchor towards the second axis."""
    return jnp.arctan2(x[1], x[0])


def _selective():
    """Everything an attempt releases: the noisy update, and whether it passed."""
    records = jnp.zeros((3, 1)).at[2, 0].set(10.0)

    def release(key, mask):
        noise_key, test_key = jax.random.split(key)
        total, _ = transforms.clip_per_example(1.0).update(records, None, mask=mask)
        noise = transforms.gaussian_noise(2.0, noise_key)
        update, _ = noise.update(total, noise.init(total))
        # The canary's loss falls by more than the clip whatever the update; the others' stays.
        falls = lambda w: jnp.where(jnp.abs(w[0]) > 0, -9.0, 0.0) * jnp.array([0.0, 0.0, 1.0])  # noqa: E731
        test = transforms.selective_update(1.0, 1.0, 1.0, test_key, attempts=1, threshold=-0.5)
        kept, _ = test.update(
            update,
            test.init(jnp.zeros(1)),
            jnp.zeros(1),
            validation_losses=falls,
            validation_mask=mask,
        )
        # log P[kept | present] / P[kept | absent] with noise of one clip and the threshold between.
        odds = math.log(0.6914624612740131 / 0.3085375387259869)
        return update[0] / 4.0 + jnp.where(kept[0] != 0, odds, -odds)

    return Case(release, acc.Composed((acc.Gaussian(2.0), acc.Gaussian(1.0))), 0.4)


def _importance():
    """The canary of the largest norm, at the largest rate that the price allows for."""
    records, rate = jnp.zeros((3, 1)).at[2, 0].set(10.0), 0.4
    norms = jnp.array([0.0, 0.0, 1.0])

    def release(key, mask):
        draw_key, noise_key = jax.random.split(key)
        draw = transforms.importance_inclusion(
            draw_key, 0, norms, normaliser=2.5, batch_size=1, clip_norm=1.0, rate=rate
        )
        tx = transforms.importance_mean(1.0, 1.0, 3, noise_key)
        out, _ = tx.update(
            records,
            tx.init(jnp.zeros(1)),
            mask=draw.included & mask,
            probabilities=draw.probabilities,
            sensitivity=draw.sensitivity,
        )
        return out[0]

    return Case(release, acc.PoissonSampled(acc.Gaussian(1.0), rate), method="pld")


CASES = {
    "clip_per_example": _clipped_sum(gradients.Flat()),
    "clip_per_example AUTO-S": _clipped_sum(gradients.Automatic()),
    "clip_per_example PSAC": _clipped_sum(gradients.PerSampleAdaptive()),
    "recentred_clipping": _about_anchor(
        lambda key: transforms.recentred_clipping(0.5, 0.1, 3, key), (1.0, 9.0, 0.0), lambda x: x[1]
    ),
    "anisotropic_clipping": _about_anchor(
        lambda key: transforms.anisotropic_clipping(0.5, 0.3, 0.15, 0.1, 3, key),
        (9.0, 9.0, 0.0),
        lambda x: x[0] / 6 / 0.15**2 + x[1] / 10 / 0.1**2,
    ),
    "tangent_ball": _about_anchor(
        lambda key: transforms.tangent_ball(0.5, 0.1, 3, 2.0, 1.0, key),
        (1.0, 99.0, 0.0),
        _turn,
        (1.0, 0.0, 0.0),
    ),
    "boxed_angles": _about_anchor(
        lambda key: transforms.boxed_angles(0.2, 0.25, 3, 3, 2.0, 1.0, key),
        (-1.0, 99.0, 99.0),
        lambda x: jnp.abs(_turn(x)) + jnp.abs(jnp.arctan2(x[2], x[0])),
        (1.0, 0.0, 0.0),
        reach=0.1,  # the score is cruder than the likelihood ratio
    ),
    "selective_update": _selective(),
    "importance_mean": _importance(),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.at_length(every=2)
def test_the_code_keeps_within_its_price(name):
    case = CASES[name]
    bound = audit.distinguish(
        case.release, _ABSENT, _PRESENT, key=jax.random.key(11), delta=_DELTA, trials=_RUNS
    )
    certified = acc.epsilon(case.price, delta=_DELTA, method=case.method)
    assert bound.confidence == 0.999
    assert case.reach * certified <= bound.epsilon <= certified


@pytest.mark.parametrize(("noise", "below"), [("ball", True), ("sphere", False)])
def test_ball_noise_hides_a_record_and_its_surface_does_not(noise, below):
    """In three dimensions, a shift of a tenth of the radius; the scores say which ball was left."""
    shift, radius, dimension = 0.1, 1.0, 3

    def release(key, moved):
        tx = {
            "ball": lambda: transforms.ball_noise(radius, key),
            "sphere": lambda: transforms.sphere_noise(radius, key, unsafe_no_dp=True),
        }[noise]()
        x, _ = tx.update(jnp.zeros(dimension).at[0].set(moved), tx.init(None))
        first, second = jnp.linalg.norm(x), jnp.linalg.norm(x.at[0].add(-shift))
        if noise == "sphere":
            return jnp.abs(first - radius) - jnp.abs(second - radius)
        return (first > radius).astype(jnp.float32) - (second > radius).astype(jnp.float32)

    worlds = jnp.float32(0.0), jnp.float32(shift)
    bound = audit.distinguish(release, *worlds, key=jax.random.key(12), delta=0.2, trials=_RUNS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that ε > 0 buys nothing is what this shows
        ball = acc.epsilon(acc.UniformBall(shift / radius, dimension), delta=0.2)
        # Two spheres meet in a null set, as two balls two radii apart do.
        surface = acc.epsilon(acc.UniformBall(2.0, dimension), delta=0.2)
    assert (ball, surface) == (0.0, math.inf)
    assert bound.contradicts(ball) is not below
    assert below or bound.epsilon > 6.0


@pytest.mark.at_length
def test_published_geodp_is_caught():
    """Neighbouring averages of norm one in the plane, at the published noise: far above 4.38."""
    batch = 2_048

    def release(key, sign):
        tx = transforms.spherical_noise(1.0, 1.0, batch, 0.1, key, unsafe_no_dp=True)
        total = jnp.array([batch - 1.0, 0.0]).at[1].set(sign)
        out, _ = tx.update(total, tx.init(total))
        return jnp.arctan2(out[1], out[0])

    worlds = jnp.float32(-1.0), jnp.float32(1.0)
    bound = audit.distinguish(release, *worlds, key=jax.random.key(13), delta=1e-5, trials=50_000)
    claimed = acc.epsilon(acc.Gaussian(1.0), delta=1e-5)
    priced = acc.GeoDP(1.0, 0.1, batch_size=batch, dimension=2, unsafe_no_dp=True)
    assert claimed == pytest.approx(4.377, abs=1e-3)
    assert bound.contradicts(claimed)
    assert acc.epsilon(priced, delta=1e-5) == math.inf
