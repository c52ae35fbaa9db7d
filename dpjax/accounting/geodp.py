"""Geometric perturbation: what the sound mechanisms cost, and what GeoDP as published really costs.

The sound ones clip each record's contribution around an anchor that is a function of earlier noisy
outputs and public data, so that their sensitivity is bounded whatever the other records are. They
join the accountant as Gaussian pairs: they compose, and amplify by sampling, like `Gaussian`.

GeoDP (Duan et al. 2025) perturbs the angles of the *averaged* gradient. Replacing one record turns
an average of norm r by up to 2C/(Br), and in the last coordinates by 2C/(B‖(g_{d−1}, g_d)‖),
neither of which is bounded, while the noise is √(d+2)βπσ/B regardless. `published_geodp_mu` gives
the exact GDP parameter on neighbours of your choice; `epsilon` of a run that contains it is +inf.
"""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics import checks, float64
from dpjax._numerics.arrays import JAX, NUMPY, Numbers, namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.mechanisms.base import walk
from dpjax.accounting.mechanisms.geometric import GeoDP
from dpjax.accounting.method import Method
from dpjax.accounting.typing import Answer

Gradient = Float[ArrayLike, "d"]


def _contains_geodp(run: Mechanism, adjacency: Adjacency) -> bool:
    return any(isinstance(step, GeoDP) for step in walk(run))


def _everywhere(value: float, own: int = 0):
    """The same answer, which bounds nothing, for every setting of the sweep.

    `own` axes of what is given belong to one setting.
    """

    def answer(run: Mechanism, given: Numbers, adjacency: Adjacency) -> Answer:
        lead = np.shape(given)[: np.ndim(given) - own]
        shape = np.broadcast_shapes(lead, *(np.shape(leaf) for leaf in jax.tree.leaves(run)))
        shape += np.shape(given)[len(lead) :]
        xp = JAX if float64.is_traced(run, given) else NUMPY
        return float64.to_float(xp.full(shape, value))

    return answer


def angles(vector: Array) -> Array:
    """θ_i = atan2(‖(g_{i+1}, …, g_d)‖, g_i) and θ_{d−1} = atan2(g_d, g_{d−1}), as GeoDP takes them.

    References:
        Duan et al. 2025, Section V-A, Equations 25 and 26.
    """
    xp = namespace(vector)
    squares = xp.cumsum(xp.square(vector)[::-1])[::-1]  # tails Σ_{j≥i} g_j²
    rest = xp.sqrt(squares[1:])
    return xp.append(xp.arctan2(rest[:-1], vector[:-2]), xp.arctan2(vector[-1], vector[-2]))


def _published_mu(average: Array, neighbour: Array, clip: Array, setting: Array) -> Array:
    xp = namespace(average, neighbour, clip, setting)
    noise, factor, batch = setting[0], setting[1], setting[2]
    dimension = average.shape[0]
    turn = angles(average) - angles(neighbour)  # what the release of angles sees
    azimuth = xp.mod(turn[-1:] + np.pi, 2 * np.pi) - np.pi  # of a circle
    turn = xp.concatenate([turn[:-1], azimuth])
    # √(d+2)·βπσ/B, the noise the paper adds to angles
    angle_std = np.sqrt(dimension + 2.0) * factor * np.pi * noise / batch
    # what the release of the norm sees
    stretch = xp.norm(average) - xp.norm(neighbour)
    return xp.sqrt(xp.sum(xp.square(turn)) / angle_std**2 + (stretch * batch / (clip * noise)) ** 2)


def published_geodp_mu(
    average: Gradient,
    neighbour: Gradient,
    *,
    noise_multiplier: float,
    bounding_factor: float,
    batch_size: int,
    clip_norm: float = 1.0,
) -> float:
    """Exact GDP parameter of GeoDP as published, on two neighbouring averaged gradients.

    μ² = ‖θ − θ'‖²/(√(d+2)βπσ/B)² + (‖g‖ − ‖g'‖)²/(Cσ/B)², its two Gaussian releases; the released
    vector is a function of them that loses nothing while the noisy norm is positive and the angles
    stay inside the chart. The published claim is μ = 1/σ.

    Args:
        average, neighbour: the clipped averaged gradients of two neighbouring batches, shape [d].
            The caller sees to it that they differ by one record: ‖g − g'‖ ≤ 2C/B (replace) or C/B
            (add).
        noise_multiplier, bounding_factor, batch_size, clip_norm: σ, β, B and C.

    Returns:
        μ; `gaussian_dp.delta(μ, ε)` and `gaussian_dp.epsilon(μ, δ)` give the true δ and ε.

    Raises:
        ValueError: not two vectors of one length, or a constant that is not positive.

    Example:
        >>> from dpjax.accounting.gaussian import gaussian_dp
        >>> from dpjax.accounting import geodp
        >>> mu = geodp.published_geodp_mu([1.0, 1 / 2048], [1.0, -1 / 2048],
        ...     noise_multiplier=1.0, bounding_factor=0.1, batch_size=2048)
        >>> round(mu, 3), round(gaussian_dp.epsilon(mu, 1e-5), 1)
        (3.183, 18.0)

    References:
        Duan et al. 2025, Algorithm 1.
    """
    first, second = (
        np.asarray(checks.number(name, value, checks.Range()), np.float64)
        for name, value in (("average", average), ("neighbour", neighbour))
    )
    if first.ndim != 1 or first.shape != second.shape or first.size < 2:
        raise ValueError(
            "average and neighbour must be vectors of one length d >= 2, "
            f"got shapes {first.shape} and {second.shape}"
        )
    positive = checks.Range(0.0, open_low=True)
    names = ("noise_multiplier", "bounding_factor", "batch_size", "clip_norm")
    values = (noise_multiplier, bounding_factor, batch_size, clip_norm)
    *rest, clip_norm = map(checks.one_number, names, values, [positive] * 4)
    setting = np.array(rest)
    found = float64.evaluate(_published_mu, (first, second, clip_norm, setting), (1, 1, 0, 1))
    return float(found)


GEODP_METHODS = (
    Method(
        "no_guarantee",
        rank=0.0,
        supports=_contains_geodp,
        needs=(GeoDP,),
        epsilon=_everywhere(np.inf),
        delta=_everywhere(1.0),
        rdp=_everywhere(np.inf, own=1),
        describe="GeoDP as published has no differential-privacy guarantee: the angle of an "
        "averaged gradient has unbounded sensitivity",
    ),
)
