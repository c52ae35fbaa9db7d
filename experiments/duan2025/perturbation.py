"""Cells of Figures 1, 3 and 4: errors of a perturbed gradient against σ, d, B and β."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import transforms
from experiments.duan2025.angles import angle_between, direction_error
from experiments.duan2025.gradients import collect
from experiments.duan2025.methods import CLIP_NORM
from experiments.protocol import Rows

RADII = (0.25, 0.5, 1.0)
SHRINKAGES = (0.1, 0.25, 0.5, 0.75)


@functools.partial(jax.jit, static_argnames=("batch_size",))
def _errors(key, batch, previous, *, sigma, batch_size, betas):
    """Errors {method: (θ, g, angle²)} of one perturbation of a batch's average.

    All methods see the same clipped gradients; DP-SGD and the recentred mechanism have the same
    proven guarantee, that of a Gaussian release with noise multiplier σ. The anchor is the noisy
    average of the previous batch.
    """
    clip = transforms.clip_per_example(CLIP_NORM)
    average, before = (clip.update(b, clip.init(b[0]))[0] / batch_size for b in (batch, previous))
    anchor_key, plain_key, centred_key, spherical_key = jax.random.split(key, 4)
    std = CLIP_NORM * sigma / batch_size

    def gaussian(key, mean):
        tx = transforms.gaussian_noise(std, key)
        return tx.update(mean, tx.init(mean))[0]

    def recentred(key, radius):
        bound = radius * CLIP_NORM
        tx = transforms.recentred_clipping(bound, radius * std, batch_size, key)
        return tx.update(batch, tx.init(average)._replace(anchor=anchor))[0]

    def spherical(key, beta):
        tx = transforms.spherical_noise(
            sigma, CLIP_NORM / batch_size, batch_size, beta, key, unsafe_no_dp=True
        )
        return tx.update(average, tx.init(average))[0]

    anchor, plain = gaussian(anchor_key, before), gaussian(plain_key, average)
    released = {"DP": plain, "anchor": anchor}
    for weight in SHRINKAGES:
        released[f"shrunk {weight:g}"] = weight * plain + (1.0 - weight) * anchor
    for radius, noise_key in zip(RADII, jax.random.split(centred_key, len(RADII)), strict=True):
        released[f"G3 {radius:g}"] = recentred(noise_key, radius)
    keys = jax.random.split(spherical_key, len(betas))
    for i in range(len(betas)):
        released[f"GeoDP #{i}"] = spherical(keys[i], betas[i])
    return {
        name: jnp.stack(
            [
                direction_error(value, average),
                jnp.sum((value - average) ** 2),
                angle_between(value, average) ** 2,
            ]
        )
        for name, value in released.items()
    }


def cell(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Errors of every method at one noise multiplier, dimension and batch size."""
    sigma, dimension, batch_size = settings["sigma, d, B"]
    gradients = collect(data, settings["images per class"], settings["epochs"], settings["pool"])
    rng, betas, repeats = np.random.default_rng(0), settings["beta"], settings["repeats"]
    sums: dict[str, np.ndarray] = {}
    for repeat in range(repeats):
        coordinates = np.sort(rng.permutation(gradients.shape[1])[:dimension])
        drawn = rng.permutation(len(gradients))[: 2 * batch_size]
        found = _errors(
            jax.random.key(repeat),
            *(jnp.asarray(gradients[np.ix_(part, coordinates)]) for part in
              (drawn[:batch_size], drawn[-batch_size:])),
            sigma=jnp.float32(sigma),
            batch_size=batch_size,
            betas=jnp.asarray(betas, jnp.float32),
        )  # fmt: skip
        for name, value in found.items():
            sums[name] = sums.get(name, 0.0) + np.asarray(value, np.float64) / repeats
    names = {f"GeoDP #{i}": f"GeoDP {beta:g}" for i, beta in enumerate(betas)}
    return [
        {
            "sigma": sigma,
            "d": dimension,
            "B": batch_size,
            "method": names.get(name, name),
            "theta_mse": float(theta),
            "gradient_mse": float(gradient),
            "angle_squared": float(angle),
        }
        for name, (theta, gradient, angle) in sums.items()
    ]


def summary(rows: Rows) -> Rows:
    """One row a setting: DP, the best sound rival, G3 and GeoDP side by side (angle², radians²)."""
    settings = sorted({(r["sigma"], r["d"], r["B"]) for r in rows})
    out: Rows = []
    for sigma, d, batch in settings:
        found = {
            r["method"]: r["angle_squared"]
            for r in rows
            if (r["sigma"], r["d"], r["B"]) == (sigma, d, batch)
        }
        free = [found[f"shrunk {w:g}"] for w in SHRINKAGES]
        out.append(
            {
                "σ": sigma,
                "d": d,
                "B": batch,
                "DP": found["DP"],
                "anchor alone": found["anchor"],
                "shrunk (best)": min(free),
                "G3 (best radius)": min(found[f"G3 {r:g}"] for r in RADII),
                **{f"GeoDP β={b:g} (no DP)": found.get(f"GeoDP {b:g}") for b in (0.01, 0.1, 1.0)},
            }
        )
    return out
