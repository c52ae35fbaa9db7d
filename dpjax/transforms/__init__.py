"""Optax transformations that clip, perturb and average; none of them knows what privacy costs."""

from dpjax._numerics.normal import fresh_key
from dpjax.transforms.angles import boxed_angles, tangent_ball
from dpjax.transforms.average import AverageState, periodic_average, shrink_towards
from dpjax.transforms.clip import clip_per_example
from dpjax.transforms.coordinates import Spherical, from_spherical, spherical_noise, to_spherical
from dpjax.transforms.geometric import (
    AnchorState,
    Release,
    angle_between,
    anisotropic_clipping,
    recentred_clipping,
)
from dpjax.transforms.importance import (
    ImportanceDraw,
    importance_inclusion,
    importance_mean,
    importance_normaliser,
    importance_rate,
)
from dpjax.transforms.integer_noise import (
    discrete_gaussian,
    discrete_laplace,
    randomized_response,
    select,
)
from dpjax.transforms.noise import CorrelatedState, NoiseState, correlated_noise, gaussian_noise
from dpjax.transforms.released import released
from dpjax.transforms.scaled import ScaledState, scale_then_privatise
from dpjax.transforms.selective import Attempts, Selective, SelectiveState, selective_update
from dpjax.transforms.uniform_noise import ball_noise, sphere_noise

__all__ = [
    "AnchorState",
    "Attempts",
    "AverageState",
    "CorrelatedState",
    "ImportanceDraw",
    "NoiseState",
    "Release",
    "ScaledState",
    "Selective",
    "SelectiveState",
    "Spherical",
    "angle_between",
    "anisotropic_clipping",
    "ball_noise",
    "boxed_angles",
    "clip_per_example",
    "correlated_noise",
    "discrete_gaussian",
    "discrete_laplace",
    "fresh_key",
    "from_spherical",
    "gaussian_noise",
    "importance_inclusion",
    "importance_mean",
    "importance_normaliser",
    "importance_rate",
    "periodic_average",
    "randomized_response",
    "recentred_clipping",
    "released",
    "scale_then_privatise",
    "select",
    "selective_update",
    "shrink_towards",
    "sphere_noise",
    "spherical_noise",
    "tangent_ball",
    "to_spherical",
]
