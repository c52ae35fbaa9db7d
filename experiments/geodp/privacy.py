"""What GeoDP as published protects: audits on neighbours, beside the claim and the truth."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from dpjax import accounting as acc
from dpjax import audit
from dpjax._numerics.scope import enable_x64
from dpjax.accounting.geometric import angles as spherical
from experiments.common import Rows, Run, track
from experiments.geodp.angles import angles, wrap
from experiments.geodp.published import geodp

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

    A world is (batch, (σ, β), midpoint, difference); the last two describe both worlds.
    """
    batch, (sigma, beta), middle, shift = world
    clip = jnp.minimum(1.0, CLIP_NORM / jnp.linalg.norm(batch, axis=1))
    average = jnp.sum(batch * clip[:, None], axis=0) / BATCH_SIZE
    released = geodp(sigma, CLIP_NORM, BATCH_SIZE, beta)(key, average)
    turned = wrap(angles(released) - middle[1])
    lengthened = jnp.linalg.norm(released) - middle[0]
    angle_std = noise_std(batch.shape[1], beta, sigma)
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


def _rows(d: int, betas, sigmas, trials) -> Rows:
    rows: Rows = []
    grid = [
        (beta, sigma, kind)
        for beta in betas
        for sigma in sigmas
        for kind in KINDS
        if not (kind == "pole" and d == 2)
    ]
    for beta, sigma, kind in track(grid, f"audits of GeoDP, d = {d}"):
        # float64: at σ = 1e-4 the noise on an angle is below what float32 resolves.
        with enable_x64(True):
            worlds = neighbours(kind, d, noise_std(d, beta, sigma))
            centres = [jnp.asarray(world).mean(axis=0) for world in worlds]
            known = jnp.array([sigma, beta]), *_coordinates(centres)
            scores = audit.run_trials(
                attack,
                *((jnp.asarray(world), *known) for world in worlds),
                key=jax.random.key(0),
                trials=trials if d <= 100 else max(trials // 20, 100),
                chunk_size=2_000 if d <= 100 else 200,
            )
        bounds = [
            bound(*scores, delta=DELTA)
            for bound in (
                audit.distinguishing_bound,
                audit.gaussian_bound,
                audit.normal_shift_bound,
            )
        ]
        mu = spherical.published_geodp_mu(
            *(world.mean(axis=0) for world in worlds),
            noise_multiplier=sigma,
            clip_norm=CLIP_NORM,
            batch_size=BATCH_SIZE,
            bounding_factor=beta,
        )
        rows.append(
            {
                "d": d,
                "beta": beta,
                "sigma": sigma,
                "neighbours": kind,
                "claimed": acc.epsilon(acc.Gaussian(sigma), delta=DELTA),
                "printed": PRINTED.get(sigma, math.nan),
                "threshold": bounds[0].epsilon,
                "gaussian_fit": bounds[1].epsilon,
                "normal_shift": bounds[2].epsilon,
                "exact_mu": float(mu),
                "exact": acc.epsilon(acc.Gaussian(1.0 / float(mu)), delta=DELTA),
                "runs_per_world": scores[0].size,
            }
        )
    return rows


def table(run: Run) -> Rows:
    """All audits of this run's grid."""
    settings = {
        "dimensions": run.choose([2, 10, 1_000], [2, 10, 1_000], [2]),
        "betas": run.choose([1.0, 0.1], [1.0, 0.1], [0.1]),
        "sigmas": run.choose(list(SIGMAS), list(SIGMAS), [1.0]),
        "trials": run.choose(100_000, 1_000_000, 20_000),
    }
    code = (_rows, neighbours, attack, noise_std, _coordinates, angles)
    dimensions = settings.pop("dimensions")
    return [
        row
        for d in dimensions
        for row in run.rows(
            f"privacy-{run.size}-{d}", settings, lambda d=d: _rows(d, **settings), code=code
        )
    ]


def privacy(run: Run) -> Sequence[pathlib.Path]:
    """Figure and table: claimed, empirical and exact ε of GeoDP as published."""
    rows = table(run)
    return [run.save_table("privacy", rows), run.save_figure("privacy", _plot(rows))]


def _plot(rows: Rows):
    dimensions = sorted({row["d"] for row in rows})
    figure, axes = plt.subplots(
        1, len(dimensions), figsize=(4.6 * len(dimensions), 4.4), sharey=True, squeeze=False
    )
    colours = dict(zip(KINDS, ("tab:blue", "tab:orange", "tab:red"), strict=True))
    for axis, d in zip(axes[0], dimensions, strict=True):
        here = [row for row in rows if row["d"] == d]
        sigmas = sorted({row["sigma"] for row in here})
        claimed = {row["sigma"]: row["claimed"] for row in here}
        axis.plot(sigmas, [claimed[s] for s in sigmas], "k-", lw=2.5, label="claimed")
        for kind, colour in colours.items():
            for beta, line, marker in ((0.1, "-", "o"), (1.0, ":", "s")):
                some = [r for r in here if r["neighbours"] == kind and r["beta"] == beta]
                if not some:
                    continue
                x = [r["sigma"] for r in some]
                label = f"{kind}, β = {beta:g}"
                axis.plot(x, [max(r["exact"], 1e-3) for r in some], line, color=colour, lw=1)
                axis.plot(
                    x,
                    [max(r["normal_shift"], 1e-3) for r in some],
                    marker,
                    color=colour,
                    mfc=colour if beta == 0.1 else "white",
                    ms=6,
                    label=label,
                )
        axis.set(xscale="log", yscale="log", xlabel="noise multiplier σ", title=f"d = {d:,}")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel(f"ε at δ = {DELTA:g}, replace-one")
    axes[0][-1].legend(fontsize=8, title="points: audit, 99.9 %; lines: exact", title_fontsize=8)
    figure.suptitle("GeoDP as published: claimed privacy and measured privacy loss, B = 2,048")
    figure.tight_layout()
    return figure
