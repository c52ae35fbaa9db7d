"""Optax transformations that clip, perturb and average; none of them knows what privacy costs."""

from dpjax._numerics.normal import fresh_key as fresh_key
from dpjax.transforms.average import AverageState as AverageState
from dpjax.transforms.average import periodic_average as periodic_average
from dpjax.transforms.clip import clip_per_example as clip_per_example
from dpjax.transforms.coordinates import Spherical as Spherical
from dpjax.transforms.coordinates import from_spherical as from_spherical
from dpjax.transforms.coordinates import to_spherical as to_spherical
from dpjax.transforms.noise import NoiseState as NoiseState
from dpjax.transforms.noise import ball_noise as ball_noise
from dpjax.transforms.noise import gaussian_noise as gaussian_noise
from dpjax.transforms.noise import sphere_noise as sphere_noise
from dpjax.transforms.spherical import spherical_noise as spherical_noise

__all__ = [
    "AverageState",
    "NoiseState",
    "Spherical",
    "ball_noise",
    "clip_per_example",
    "fresh_key",
    "from_spherical",
    "gaussian_noise",
    "periodic_average",
    "sphere_noise",
    "spherical_noise",
    "to_spherical",
]
