"""Figures 1, 3 and 4: errors of a perturbed gradient against σ, d, B and β."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._numerics.normal import normal
from experiments.common import Rows, Run, track
from experiments.geodp.angles import angle_between, direction_error
from experiments.geodp.gradients import collect
from experiments.geodp.published import geodp

CLIP_NORM = 0.1
SIGMAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
DIMENSIONS = (500, 1_000, 2_000, 5_000, 10_000, 20_000)
BATCHES = (512, 1_024, 2_048, 4_096, 8_192, 16_384)
BETAS = (0.01, 0.1, 1.0)
FIGURE4_BETAS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
ALL_BETAS = tuple(sorted({*BETAS, *FIGURE4_BETAS}))
RADII = (0.25, 0.5, 1.0)
SHRINKAGES = (0.1, 0.25, 0.5, 0.75)


@partial(jax.jit, static_argnames=("batch_size",))
def _errors(key, batch, previous, *, sigma, batch_size, betas):
    """Errors {method: (θ, g, angle²)} of one perturbation of a batch's average.

    All methods see the same clipped gradients; DP-SGD and the recentred mechanism have the same
    proven guarantee, that of a Gaussian release with noise multiplier σ. The anchor is the noisy
    average of the previous batch.
    """
    average, anchor_average = (jnp.sum(b, axis=0) / batch_size for b in (batch, previous))
    anchor_key, plain_key, centred_key, spherical_key = jax.random.split(key, 4)
    std = CLIP_NORM * sigma / batch_size
    anchor = anchor_average + std * normal(anchor_key, average.shape)
    plain = average + std * normal(plain_key, average.shape)
    released = {"DP": plain, "anchor": anchor}
    for weight in SHRINKAGES:
        released[f"shrunk {weight:g}"] = weight * plain + (1.0 - weight) * anchor
    for radius, noise_key in zip(RADII, jax.random.split(centred_key, len(RADII)), strict=True):
        centred = batch - anchor[None]
        norms = jnp.linalg.norm(centred, axis=1, keepdims=True)
        centred = centred * jnp.minimum(1.0, radius * CLIP_NORM / norms)
        mean = jnp.sum(centred, axis=0) / batch_size
        released[f"G3 {radius:g}"] = anchor + mean + radius * std * normal(noise_key, mean.shape)
    geometric = jax.vmap(lambda beta, k: geodp(sigma, CLIP_NORM, batch_size, beta)(k, average))
    spherical = geometric(betas, jax.random.split(spherical_key, len(betas)))
    released |= {f"GeoDP #{i}": value for i, value in enumerate(spherical)}
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


def _measure(gradients, settings, repeats) -> Rows:
    rng, rows = np.random.default_rng(0), []
    for sigma, dimension, batch_size, betas in track(settings, "perturbations"):
        sums: dict[str, np.ndarray] = {}
        for repeat in range(repeats):
            coordinates = np.sort(rng.permutation(gradients.shape[1])[:dimension])
            drawn = rng.permutation(len(gradients))[: 2 * batch_size]
            worlds = [
                _clip(gradients[np.ix_(rows_, coordinates)])
                for rows_ in (drawn[:batch_size], drawn[-batch_size:])
            ]
            found = _errors(
                jax.random.key(repeat),
                *worlds,
                sigma=jnp.float32(sigma),
                batch_size=batch_size,
                betas=jnp.asarray(betas, jnp.float32),
            )
            names = {f"GeoDP #{i}": f"GeoDP {beta:g}" for i, beta in enumerate(betas)}
            for name, value in found.items():
                name = names.get(name, name)
                sums[name] = sums.get(name, 0.0) + np.asarray(value, np.float64) / repeats
        for name, (theta, gradient, angle) in sums.items():
            rows.append(
                {
                    "sigma": sigma,
                    "d": dimension,
                    "B": batch_size,
                    "method": name,
                    "theta_mse": theta,
                    "gradient_mse": gradient,
                    "angle_squared": angle,
                }
            )
    return rows


def _clip(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * np.minimum(1.0, CLIP_NORM / np.maximum(norms, 1e-30))


def table(run: Run) -> Rows:
    """Errors of every method on the grids of Figures 1, 3 and 4."""
    batches = run.choose(BATCHES[:4], BATCHES, (16, 32))
    dimensions = run.choose(DIMENSIONS, DIMENSIONS, (50, 100))
    sigmas = run.choose(SIGMAS, SIGMAS, (1.0, 10.0))
    middle = run.choose((5_000, 2_048, 10_000, 4_096), (5_000, 2_048, 10_000, 4_096), (50, 16) * 2)
    grid = {(s, middle[0], middle[1], ALL_BETAS) for s in sigmas}
    grid |= {(8.0, d, middle[3], ALL_BETAS) for d in dimensions}
    grid |= {(8.0, middle[2], b, ALL_BETAS) for b in batches}
    # All settings carry the β of Figures 3 and 4, so that one shape is compiled once.
    settings = {
        "grid": sorted(grid),
        "repeats": run.choose(3, 100, 2),
    }
    return run.rows(
        f"perturbation-{run.size}",
        settings,
        lambda: _measure(collect(run), settings["grid"], settings["repeats"]),
        # A jitted function has no source of its own: its Python function does.
        code=(_measure, _errors.__wrapped__, _clip, direction_error, angle_between),
    )


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
                **{f"GeoDP β={b:g} (no DP)": found.get(f"GeoDP {b:g}") for b in BETAS},
            }
        )
    return out
