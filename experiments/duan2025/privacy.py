"""What GeoDP as published protects: audits on neighbours, beside the claim and the truth."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax import audit, transforms
from dpjax._numerics.scope import enable_x64
from dpjax.accounting import geodp
from experiments.duan2025.angles import angles, wrap
from experiments.protocol import Rows

BATCH_SIZE, CLIP_NORM, DELTA = 2_048, 0.1, 1e-5
SIGMAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
# What the paper prints for these noise multipliers (Section VI-B); it fits 4.845/√σ.
PRINTED = dict(zip(SIGMAS, (484.5, 153.2, 48.5, 15.3, 4.9, 1.5), strict=True))
KINDS = {
    "aligned": "all gradients agree, norm C (the best case)",
    "tenth": "average of norm C/10, all coordinates alike",
    "pole": "last two coordinates small, norm C",
}


def neighbours(kind: str, dimension: int, angle_std: float) -> tuple[np.ndarray, np.ndarray]:
    """Two batches [B, d] of gradients of norm at most C that differ in the last record.

    The other B − 1 records agree; the last one is +C or −C along a direction perpendicular to
    them, in the plane of the last two coordinates, whose angle is the most exposed one.
    """
    common, moved = np.zeros(dimension), np.zeros(dimension)
    if kind == "aligned" or (kind == "pole" and dimension == 2):
        common[-2], moved[-1] = 1.0, 1.0
    elif kind == "tenth":
        common[:] = 0.1 / math.sqrt(dimension)
        moved[-2:] = -math.sqrt(0.5), math.sqrt(0.5)
    else:
        # Eight noise deviations from the pole: close, but too far for noise to cross it unseen.
        tail = math.sin(min(8.0 * angle_std, math.pi / 2))
        common[0], common[-2], moved[-1] = math.sqrt(1.0 - tail**2), tail, 1.0
    batch = np.tile(common, (BATCH_SIZE, 1))
    return tuple(
        CLIP_NORM * np.concatenate([batch[:-1], sign * moved[None]]) for sign in (1.0, -1.0)
    )


def attack(key, world):
    """The likelihood ratio of the perturbed norm and angles, recovered from the released vector.

    A world is (clipped sum, (σ, β), midpoint, difference); the last two describe both worlds.
    """
    total, (sigma, beta), middle, shift = world
    tx = transforms.spherical_noise(sigma, CLIP_NORM, BATCH_SIZE, beta, key, unsafe_no_dp=True)
    released = tx.update(total, tx.init(total))[0] / BATCH_SIZE
    turned = wrap(angles(released) - middle[1])
    lengthened = jnp.linalg.norm(released) - middle[0]
    angle_std = noise_std(total.size, beta, sigma)
    norm_std = CLIP_NORM * sigma / BATCH_SIZE
    return (turned @ shift[1]) / angle_std**2 + lengthened * shift[0] / norm_std**2


def noise_std(dimension: int, beta: float, sigma: float) -> float:
    """Standard deviation of the noise on every angle in Algorithm 1."""
    return math.sqrt(dimension + 2) * beta * math.pi * sigma / BATCH_SIZE


def _coordinates(centres):
    """Midpoint and difference of (norm, angles) of the two averages."""
    norms = [jnp.linalg.norm(centre) for centre in centres]
    turn = wrap(angles(centres[1]) - angles(centres[0]))
    middle = (norms[0] + norms[1]) / 2, wrap(angles(centres[0]) + turn / 2)
    return middle, (norms[1] - norms[0], turn)


def cell(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """All noise multipliers and neighbours of one dimension and bounding factor."""
    del data
    d, beta = settings["d"], settings["beta"]
    trials = settings["trials"] if d <= 100 else max(settings["trials"] // 20, 100)
    rows: Rows = []
    for sigma in settings["sigma"]:
        for kind in KINDS:
            if kind == "pole" and d == 2:
                continue
            # float64: at σ = 1e-4 the noise on an angle is below what float32 resolves.
            with enable_x64(True):
                worlds = neighbours(kind, d, noise_std(d, beta, sigma))
                clip = transforms.clip_per_example(CLIP_NORM)
                totals = [clip.update(jnp.asarray(w), clip.init(None))[0] for w in worlds]
                known = jnp.array([sigma, beta]), *_coordinates([t / BATCH_SIZE for t in totals])
                scores = audit.run_trials(
                    attack,
                    *((total, *known) for total in totals),
                    key=jax.random.key(0),
                    trials=trials,
                    chunk_size=2_000 if d <= 100 else 200,
                )
            rows.append(_row(d, beta, sigma, kind, worlds, scores))
    return rows


def _row(d, beta, sigma, kind, worlds, scores) -> dict[str, Any]:
    by = audit.distinguishing_bound, audit.gaussian_bound, audit.normal_shift_bound
    bounds = [bound(*scores, delta=DELTA).epsilon for bound in by]
    mu = geodp.published_geodp_mu(
        *(world.mean(axis=0) for world in worlds),
        noise_multiplier=sigma,
        clip_norm=CLIP_NORM,
        batch_size=BATCH_SIZE,
        bounding_factor=beta,
    )
    return {
        "d": d,
        "beta": beta,
        "sigma": sigma,
        "neighbours": kind,
        "claimed": acc.epsilon(acc.Gaussian(sigma), delta=DELTA),
        "printed": PRINTED.get(sigma, math.nan),
        "threshold": bounds[0],
        "gaussian_fit": bounds[1],
        "normal_shift": bounds[2],
        "exact_mu": float(mu),
        "exact": acc.epsilon(acc.Gaussian(1.0 / float(mu)), delta=DELTA),
        "runs_per_world": scores[0].size,
    }
