"""What duan2025 states as Theorems 1 to 4, Lemmas 1 and 2 and Corollaries 1 and 2, as functions.

Theorem 1 is an identity and holds. The densities of Theorems 2 and 3 are no densities as printed:
the exponent has B² where the variance of an average has B. Lemma 1 holds and says nothing, since a
factor β towards 0 is noise towards none; Theorem 4 fails at β = 1 and DP-SGD's step size, by
`geodp_distance` against `dp_distance`. Lemma 2 bounds δ' from below by more than from above.
Corollary 1 is as true of GeoDP; Corollary 2 holds where every gradient is longer than the clip
norm, and not of the batch size. The counterexamples, and Examples 1 to 3, are in the tests.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float


def theorem1(
    gradient: Float[np.ndarray, " d"],
    noise: Float[np.ndarray, " d"],
    to_optimum: Float[np.ndarray, " d"],
    *,
    step_size: float,
    clip_norm: float,
    batch_size: int,
) -> float:
    """Theorem 1: how much farther noise takes a step of SGD from w⋆, in squared distance.

    `η²(2C/B ⟨n, g⟩ + C²‖n‖²/B²) + (2ηC/B) ⟨n, w⋆ − w⟩`, n of standard deviation σ.

    Args:
        gradient: the average clipped gradient g. noise: n. to_optimum: w⋆ − w.

    >>> theorem1(np.array([1.0]), np.array([2.0]), np.array([0.0]), step_size=1.0, clip_norm=1.0,
    ...          batch_size=2)
    3.0
    """
    size = clip_norm / batch_size
    first = 2.0 * size * noise @ gradient + size**2 * noise @ noise
    return float(step_size**2 * first + 2.0 * step_size * size * noise @ to_optimum)


def theorem1_mean(
    *, dimension: int, noise_multiplier: float, step_size: float, clip_norm: float, batch_size: int
) -> float:
    """Its expectation, η²C²σ²d/B²: Item B and the first half of Item A have mean 0.

    >>> theorem1_mean(dimension=4, noise_multiplier=1.0, step_size=0.5, clip_norm=1.0, batch_size=2)
    0.25
    """
    return dimension * (step_size * clip_norm * noise_multiplier / batch_size) ** 2


def away_from_optimum(
    *, dimension: int, noise_multiplier: float, step_size: float, clip_norm: float, batch_size: int
) -> dict[str, float]:
    """Corollary 1: E‖w − w⋆‖² one step after w⋆, where the gradient is 0, by the way of perturbing.

    DP-SGD moves by `η²C²σ²d/B²`. GeoDP moves, too, by `η²C²σ²/B²`, the noise of the length: neither
    stays at the optimum.

    >>> away_from_optimum(dimension=4, noise_multiplier=1.0, step_size=0.5, clip_norm=1.0,
    ...                   batch_size=2)
    {'DP': 0.25, 'GeoDP': 0.0625}
    """
    one = (step_size * clip_norm * noise_multiplier / batch_size) ** 2
    return {"DP": dimension * one, "GeoDP": one}


def noise_across(
    norms: Float[np.ndarray, " B"], *, clip_norm: float, dimension: int, noise_multiplier: float
) -> float:
    """Corollary 2: squared noise across an average over its square, of parallel gradients.

    `(d − 1)(Cσ)²/(Σ min(‖gᵢ‖, C))²`, the squared tangent of the angle on average. Where every
    gradient is longer than C it is `(d − 1)(σ/B)²`: no clip norm changes it, as the corollary has
    it, and the batch does. Where they are shorter, a smaller clip norm makes it smaller.

    >>> [noise_across(np.full(10, 3.0), clip_norm=c, dimension=101, noise_multiplier=1.0)
    ...  for c in (1.0, 2.0, 6.0)]
    [1.0, 1.0, 4.0]
    """
    summed = np.minimum(norms, clip_norm).sum()
    return float((dimension - 1) * (clip_norm * noise_multiplier / summed) ** 2)


def averaged_density(
    x: Float[np.ndarray, " n"],
    *,
    mean: float,
    variance: float,
    batch_size: int,
    printed: bool = False,
) -> Float[np.ndarray, " n"]:
    """Theorems 2 and 3: limiting density of the average of B values; as printed, or N(mean, v/B).

    Printed is `√(B/2πv) exp(−B²(x − mean)²/2v)`, whose integral is 1/√B.

    >>> float(averaged_density(np.zeros(1), mean=0.0, variance=1.0, batch_size=1)[0])
    0.3989422804014327
    """
    power = 2 if printed else 1
    inside = -(batch_size**power) * np.square(x - mean) / (2.0 * variance)
    return math.sqrt(batch_size / (2.0 * math.pi * variance)) * np.exp(inside)


def geodp_angle_error(
    *, bounding_factor: float, noise_multiplier: float, batch_size: int, dimension: int
) -> float:
    """MSE of one angle under GeoDP, (d + 2)(βπσ/B)², as Lemma 1 takes it: before any wrap.

    >>> round(geodp_angle_error(bounding_factor=1.0, noise_multiplier=1.0, batch_size=10,
    ...                         dimension=2), 6)
    0.394784
    """
    std = math.sqrt(dimension + 2) * bounding_factor * math.pi * noise_multiplier / batch_size
    return std**2


def lemma1_factor(
    angle_error: float, *, noise_multiplier: float, batch_size: int, dimension: int
) -> float:
    """Lemma 1: below this β GeoDP's angles have a smaller MSE than `angle_error`, DP's.

    It is positive for every positive error, which is the lemma; it is proportional to the noise
    that is left out, which is what the lemma does not say.

    >>> lemma1_factor(0.0, noise_multiplier=1.0, batch_size=10, dimension=2)
    0.0
    """
    whole = geodp_angle_error(
        bounding_factor=1.0,
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
        dimension=dimension,
    )
    return math.sqrt(angle_error / whole)


def lemma2_bounds(bounding_factor: float, covered: float) -> tuple[float, float]:
    """Lemma 2: (1 − ∫f over the box, 1 − β), between which δ' is said to lie.

    Args:
        covered: the probability that averaged angles fall into [0, 2βπ] × [0, βπ]^(d−2).

    >>> lemma2_bounds(0.5, 0.25)
    (0.75, 0.5)
    """
    return 1.0 - covered, 1.0 - bounding_factor


def dp_distance(
    gradient: Float[np.ndarray, " d"],
    to_optimum: Float[np.ndarray, " d"],
    *,
    noise_multiplier: float,
    step_size: float,
    clip_norm: float,
    batch_size: int,
) -> float:
    """E‖w* − w⋆‖² of one step of DP-SGD, which Theorem 4 says GeoDP is below.

    >>> dp_distance(np.array([1.0]), np.array([-1.0]), noise_multiplier=0.0, step_size=1.0,
    ...             clip_norm=1.0, batch_size=1)
    0.0
    """
    plain = step_size * gradient + to_optimum
    added = theorem1_mean(
        dimension=gradient.size,
        noise_multiplier=noise_multiplier,
        step_size=step_size,
        clip_norm=clip_norm,
        batch_size=batch_size,
    )
    return float(plain @ plain) + added


def geodp_distance(
    gradient: Float[np.ndarray, " d"],
    to_optimum: Float[np.ndarray, " d"],
    *,
    bounding_factor: float,
    noise_multiplier: float,
    step_size: float,
    clip_norm: float,
    batch_size: int,
) -> float:
    """E‖w − w⋆‖² after one step of GeoDP, Theorem 4's other side, in closed form.

    The noise on an angle of variance s² takes its sine and its cosine to e^{−s²/2} times what they
    are, on average, and the angles' noises are independent: coordinate k, a product over k angles
    (the last one over d − 1), comes out e^{−k s²/2} times as long. The norm adds C²σ²/B².

    >>> geodp_distance(np.array([1.0, 0.0]), np.array([-1.0, 0.0]), bounding_factor=1.0,
    ...                noise_multiplier=0.0, step_size=1.0, clip_norm=1.0, batch_size=1)
    0.0
    """
    dimension = gradient.size
    variance = geodp_angle_error(
        bounding_factor=bounding_factor,
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
        dimension=dimension,
    )
    angles = np.minimum(np.arange(1, dimension + 1), dimension - 1)
    mean = gradient * np.exp(-0.5 * variance * angles)
    squared = gradient @ gradient + (clip_norm * noise_multiplier / batch_size) ** 2
    return float(
        step_size**2 * squared + 2.0 * step_size * mean @ to_optimum + to_optimum @ to_optimum
    )
