"""Every number that a transformation is made with: one number, named where it is not."""

import math
from decimal import Decimal
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import correlation, transforms

KEY = jax.random.key(0)
ONE = jnp.ones(3)
# Every factory with its numbers; other arguments are bound.
FACTORIES = {
    "clip": (transforms.clip_per_example, {"clip_norm": 1.0}),
    "gaussian": (lambda **n: transforms.gaussian_noise(key=KEY, **n), {"noise_std": 1.0}),
    "ball": (lambda **n: transforms.ball_noise(key=KEY, **n), {"radius": 1.0}),
    "correlated": (
        lambda **n: transforms.correlated_noise(correlation.Tree(), key=KEY, **n),
        {"noise_std": 1.0},
    ),
    "recentred": (
        lambda **n: transforms.recentred_clipping(key=KEY, **n),
        {"radius": 1.0, "noise_std": 0.1, "batch_size": 2, "anchor_decay": 0.5},
    ),
    "anisotropic": (
        lambda **n: transforms.anisotropic_clipping(key=KEY, **n),
        {
            "parallel_radius": 1.0,
            "perpendicular_radius": 1.0,
            "parallel_noise_std": 0.1,
            "perpendicular_noise_std": 0.1,
            "batch_size": 2,
            "anchor_decay": 0.5,
        },
    ),
    "tangent": (
        lambda **n: transforms.tangent_ball(key=KEY, **n),
        {
            "radius": 1.0,
            "noise_std": 0.1,
            "batch_size": 2,
            "clip_norm": 1.0,
            "norm_noise_std": 0.1,
        },
    ),
    "boxed": (
        lambda **n: transforms.boxed_angles(key=KEY, **n),
        {
            "bounding_factor": 0.5,
            "noise_std": 0.1,
            "batch_size": 2,
            "dimension": 3,
            "clip_norm": 1.0,
            "norm_noise_std": 0.1,
        },
    ),
    "selective": (
        lambda **n: transforms.selective_update(key=KEY, **n),
        {
            "loss_clip": 1.0,
            "noise_multiplier": 1.0,
            "batch_size": 2,
            "attempts": 3,
            "threshold": 0.0,
        },
    ),
    "inclusion": (
        lambda **n: transforms.importance_inclusion(KEY, 0, ONE, **n),
        {"normaliser": 8.0, "batch_size": 2, "clip_norm": 1.0, "rate": 0.5},
    ),
    "rate": (transforms.importance_rate, {"batch_size": 2, "clip_norm": 1.0, "normaliser": 8.0}),
    "normaliser": (
        lambda **n: transforms.importance_normaliser(ONE, key=KEY, **n),
        {"clip_norm": 1.0, "noise_multiplier": 1.0},
    ),
    "mean": (
        lambda **n: transforms.importance_mean(key=KEY, **n),
        {"clip_norm": 1.0, "noise_multiplier": 1.0, "population": 3},
    ),
}
BAD = (None, True, "1", Fraction(1, 2), Decimal("0.5"), 1 + 0j, math.nan, [1.0], np.ones(3))


@pytest.mark.parametrize("name", FACTORIES)
def test_what_is_not_one_number_is_refused_by_the_argument_s_name(name):
    make, numbers = FACTORIES[name]
    make(**numbers)
    for argument in numbers:
        for bad in BAD:
            with pytest.raises((TypeError, ValueError), match=f"^{argument} must be"):
                make(**{**numbers, argument: bad})


def test_counts_beyond_32_bits_are_refused():
    with pytest.raises(ValueError, match="attempts must be at most 2147483647"):
        transforms.selective_update(1.0, 1.0, 2, KEY, attempts=2**31)


def test_angles_beyond_their_range_are_refused_whatever_their_type():
    with pytest.raises(ValueError, match="radius must be an angle"):
        transforms.tangent_ball(np.float32(4.0), 1.0, 4, 1.0, 1.0, KEY)
    with pytest.raises(ValueError, match="bounding_factor must be in"):
        transforms.boxed_angles(np.float32(1.5), 1.0, 4, 3, 1.0, 1.0, KEY)
