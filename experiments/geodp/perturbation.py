"""Figures 1, 3 and 4: errors of a perturbed gradient against σ, d, B and β."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
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


def _select(rows, measure, method, **fixed):
    some = [r for r in rows if r["method"] == method and all(r[k] == v for k, v in fixed.items())]
    return some, [r[measure] for r in some]


def _panel(axis, rows, x, beta, title, **fixed):
    """The paper's four curves, and the sound geometric mechanism at DP's guarantee."""
    best = _best_g3(rows)
    curves = [
        ("DP", "theta_mse", "k", "o", "DP, θ"),
        (f"GeoDP {beta:g}", "theta_mse", "tab:red", "s", "GeoDP, θ"),
        ("G3", "theta_mse", "tab:purple", "^", "G3 (sound), θ"),
        ("DP", "gradient_mse", "tab:blue", "o", "DP, g"),
        (f"GeoDP {beta:g}", "gradient_mse", "tab:green", "s", "GeoDP, g"),
        ("G3", "gradient_mse", "tab:pink", "^", "G3 (sound), g"),
    ]
    for method, measure, colour, marker, label in curves:
        some, values = _select(best if method == "G3" else rows, measure, method, **fixed)
        order = np.argsort([r[x] for r in some])
        style = "-" if measure == "theta_mse" else "--"
        axis.plot(
            [some[i][x] for i in order],
            [values[i] for i in order],
            style,
            marker=marker,
            color=colour,
            ms=4,
            lw=1.2,
            label=label,
        )
    axis.set(xscale="log", yscale="log", xlabel={"sigma": "σ"}.get(x, x), title=title)
    axis.title.set_fontsize(9)
    axis.minorticks_off()
    axis.grid(alpha=0.3)


def _best_g3(rows: Rows) -> Rows:
    """G3 at the radius with the smallest gradient error in each setting."""
    groups: dict[tuple, list] = {}
    for r in rows:
        if r["method"].startswith("G3"):
            groups.setdefault((r["sigma"], r["d"], r["B"]), []).append(r)
    return [{**min(g, key=lambda r: r["gradient_mse"]), "method": "G3"} for g in groups.values()]


def figure1(run: Run) -> Sequence[pathlib.Path]:
    """Figure 1: errors of directions and of gradients against the noise multiplier, β = 1."""
    rows = table(run)
    d, batch = _middle(rows)
    figure, axis = plt.subplots(figsize=(5.6, 4.2))
    _panel(axis, rows, "sigma", 1.0, f"d = {d:,}, B = {batch:,}, β = 1", d=d, B=batch)
    axis.set_ylabel("mean squared error")
    axis.legend(fontsize=8)
    return [run.save_figure("figure1", figure)]


def figure3(run: Run) -> Sequence[pathlib.Path]:
    """Figure 3: the same against σ, d and B (rows) for β = 1, 0.1 and 0.01 (columns)."""
    rows = table(run)
    d, batch = _middle(rows)
    large_b = _batch_of_dimensions(rows)
    wide_d = max(r["d"] for r in rows if r["sigma"] == 8.0 and r["B"] == min(_values(rows, "B")))
    layout = (
        ("sigma", f"d = {d:,}, B = {batch:,}", {"d": d, "B": batch}),
        ("d", f"σ = 8, B = {large_b:,}", {"sigma": 8.0, "B": large_b}),
        ("B", f"d = {wide_d:,}, σ = 8", {"sigma": 8.0, "d": wide_d}),
    )
    figure, axes = plt.subplots(3, 3, figsize=(12, 10.5))
    for row, (x, title, fixed) in zip(axes, layout, strict=True):
        for axis, beta in zip(row, reversed(BETAS), strict=True):
            _panel(axis, rows, x, beta, f"{title}, β = {beta:g}", **fixed)
        row[0].set_ylabel("mean squared error")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    return [
        run.save_table("perturbation", rows),
        run.save_table("perturbation_summary", summary(rows)),
        run.save_figure("figure3", figure),
    ]


def figure4(run: Run) -> Sequence[pathlib.Path]:
    """Figure 4: errors against the bounding factor; DP-SGD and G3 do not depend on it."""
    rows = table(run)
    batch = _batch_of_dimensions(rows)
    some = {r["d"] for r in rows if r["sigma"] == 8.0 and r["B"] == batch}
    dims = sorted(some, reverse=True)[:3]
    figure, axes = plt.subplots(1, len(dims), figsize=(4.2 * len(dims), 3.8), squeeze=False)
    best = _best_g3(rows)
    for axis, d in zip(axes[0], dims, strict=True):
        fixed = {"sigma": 8.0, "d": d, "B": batch}
        for measure, style, name in (("theta_mse", "-", "θ"), ("gradient_mse", "--", "g")):
            curve = [_select(rows, measure, f"GeoDP {b:g}", **fixed)[1][-1] for b in FIGURE4_BETAS]
            axis.plot(FIGURE4_BETAS, curve, "s" + style, color="tab:red", label=f"GeoDP, {name}")
            for method, colour, source in (("DP", "k", rows), ("G3", "tab:purple", best)):
                level = _select(source, measure, method, **fixed)[1][-1]
                axis.axhline(level, ls=style, color=colour, label=f"{method}, {name}")
        axis.set(yscale="log", xlabel="bounding factor β", title=f"d = {d:,}, σ = 8, B = {batch:,}")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("mean squared error")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    return [run.save_figure("figure4", figure)]


def _values(rows: Rows, column: str) -> list:
    return sorted({r[column] for r in rows})


def _middle(rows: Rows) -> tuple[int, int]:
    """The d and B at which σ is varied."""
    some = next(r for r in rows if r["sigma"] != 8.0)
    return some["d"], some["B"]


def _batch_of_dimensions(rows: Rows) -> int:
    """The B at which d is varied."""
    smallest = min(_values(rows, "d"))
    return max(r["B"] for r in rows if r["sigma"] == 8.0 and r["d"] == smallest)
