"""Optax transformations that clip, perturb and average; none of them knows what privacy costs."""

from dpjax._numerics.normal import fresh_key as fresh_key
from dpjax.transforms.average import AverageState as AverageState
from dpjax.transforms.average import periodic_average as periodic_average
from dpjax.transforms.clip import clip_per_example as clip_per_example
from dpjax.transforms.coordinates import Spherical as Spherical
from dpjax.transforms.coordinates import from_spherical as from_spherical
from dpjax.transforms.coordinates import to_spherical as to_spherical
from dpjax.transforms.correlated import CorrelatedState as CorrelatedState
from dpjax.transforms.correlated import correlated_noise as correlated_noise
from dpjax.transforms.directions import boxed_angles as boxed_angles
from dpjax.transforms.directions import tangent_ball as tangent_ball
from dpjax.transforms.geometric import AnchorState as AnchorState
from dpjax.transforms.geometric import Release as Release
from dpjax.transforms.geometric import angle_between as angle_between
from dpjax.transforms.geometric import anisotropic_clipping as anisotropic_clipping
from dpjax.transforms.geometric import recentred_clipping as recentred_clipping
from dpjax.transforms.geometric import shrink_towards as shrink_towards
from dpjax.transforms.importance import ImportanceDraw as ImportanceDraw
from dpjax.transforms.importance import importance_inclusion as importance_inclusion
from dpjax.transforms.importance import importance_mean as importance_mean
from dpjax.transforms.importance import importance_normaliser as importance_normaliser
from dpjax.transforms.importance import importance_rate as importance_rate
from dpjax.transforms.noise import NoiseState as NoiseState
from dpjax.transforms.noise import ball_noise as ball_noise
from dpjax.transforms.noise import gaussian_noise as gaussian_noise
from dpjax.transforms.noise import sphere_noise as sphere_noise
from dpjax.transforms.released import released as released
from dpjax.transforms.selective import Attempts as Attempts
from dpjax.transforms.selective import Selective as Selective
from dpjax.transforms.selective import SelectiveState as SelectiveState
from dpjax.transforms.selective import selective_update as selective_update
from dpjax.transforms.spherical import spherical_noise as spherical_noise
from dpjax.transforms.whole_numbers import discrete_gaussian as discrete_gaussian
from dpjax.transforms.whole_numbers import discrete_laplace as discrete_laplace
from dpjax.transforms.whole_numbers import randomized_response as randomized_response
from dpjax.transforms.whole_numbers import select as select

__all__ = [
    "AnchorState",
    "Attempts",
    "AverageState",
    "CorrelatedState",
    "ImportanceDraw",
    "NoiseState",
    "Release",
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
    "select",
    "selective_update",
    "shrink_towards",
    "sphere_noise",
    "spherical_noise",
    "tangent_ball",
    "to_spherical",
]
