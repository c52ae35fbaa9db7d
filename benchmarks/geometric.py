"""Geometric perturbation: what it costs in time, and what it gains in direction.

    python -m benchmarks.geometric [--full] [--only time|direction]

Two parts, each a CSV, the first a PNG as well, under benchmarks/results/:
  time         one step of plain Gaussian noise, GeoDP as published, and recentred clipping against
               the dimension (1k to 1M; --full: 10M) and the batch size: Duan et al. 2025, Figure 6.
  direction    mean squared angle between the released and the true mean gradient for the four
               mechanisms that hold and their rivals, all at μ = 1 a step (one record exchanged).
Run it with one idle core at least; each figure is a minimum over alternating calls.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.noise import alternate
from dpjax import transforms
from dpjax._numerics.normal import normal

RESULTS = pathlib.Path(__file__).parent / "results"


def write(name: str, columns: tuple[str, ...], rows: list) -> None:
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / name).open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(columns)
        writer.writerows(rows)
    print((RESULTS / name).read_text())


# --- time ---


def one_step(name: str, batch: int):
    """update(gradients [batch, d]) -> released gradient, under jit, from per-example gradients."""
    key = jax.random.key(0)
    if name == "recentred":
        return transforms.recentred_clipping(1.0, 0.01, batch, key)
    noise = {
        "plain": lambda: transforms.gaussian_noise(1.0, key),
        "geodp": lambda: transforms.spherical_noise(1.0, 1.0, batch, 0.1, key, unsafe_no_dp=True),
    }[name]()
    clip = transforms.clip_per_example(1.0)

    class Chain:
        init = staticmethod(noise.init)

        @staticmethod
        def update(g, state):
            total, _ = clip.update(g, None)
            return noise.update(total, state)

    return Chain


def _with_jax_noise(key, total):
    """What most code does, and what a user of another library compares with."""
    return total + jax.random.normal(key, total.shape)


def time_table(dimensions: list[int], batches: list[int], repeats: int) -> list:
    rows = []
    rng = np.random.default_rng(0)
    for d in dimensions:
        total = jnp.asarray(rng.standard_normal(d).astype(np.float32))
        key = jax.random.key(0)
        plain = transforms.gaussian_noise(1.0, key)
        geodp = transforms.spherical_noise(1.0, 1.0, 2048, 0.1, key, unsafe_no_dp=True)
        state = plain.init(total)
        calls = [functools.partial(jax.jit(tx.update), total, state) for tx in (plain, geodp)]
        calls.append(functools.partial(jax.jit(_with_jax_noise), key, total))
        a, b, c = (x[0] for x in alternate(calls, repeats))
        times = (f"{a * 1e3:.4f}", f"{b * 1e3:.4f}", "", f"{c * 1e3:.4f}")
        rows.append(("perturbation alone", d, *times, f"{b / a:.2f}"))
        for batch in batches:
            if batch * d > 3e8:
                continue
            g = jnp.asarray(rng.standard_normal((batch, d), np.float32))
            calls = []
            for name in ("plain", "geodp", "recentred"):
                tx = one_step(name, batch)
                calls.append(functools.partial(jax.jit(tx.update), g, tx.init(total)))
            timed = [x[0] for x in alternate(calls, max(3, repeats // 3))]
            rows.append(
                (
                    f"batch {batch}",
                    d,
                    *(f"{x * 1e3:.4f}" for x in timed),
                    "",
                    f"{timed[1] / timed[0]:.2f}",
                )
            )
    return rows


def plot_time(rows: list) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10.5, 4.2), sharey=True, layout="constrained")
    alone = [r for r in rows if r[0] == "perturbation alone"]
    d = [r[1] for r in alone]
    for column, style, label in (
        (3, "s-C1", "GeoDP as published, in O(d)"),
        (5, "v-C7", "Gaussian noise of jax.random.normal"),
        (2, "o-C0", "Gaussian noise of dpjax"),
    ):
        axes[0].loglog(d, [float(r[column]) for r in alone], style, ms=5, label=label)
    axes[0].set(
        title="Perturbing the clipped sum", xlabel="dimension", ylabel="processor milliseconds"
    )
    labels = {"geodp": "GeoDP", "recentred": "recentred (G3)", "plain": "Gaussian"}
    columns = {"geodp": (3, "C1"), "recentred": (4, "C2"), "plain": (2, "C0")}
    batches = sorted({r[0] for r in rows if r[0].startswith("batch")}, key=lambda x: int(x[6:]))
    for style, batch in zip(("-", "--", ":"), batches, strict=False):
        chosen = [r for r in rows if r[0] == batch]
        for name, (column, colour) in columns.items():
            axes[1].loglog(
                [r[1] for r in chosen], [float(r[column]) for r in chosen], style, color=colour,
                marker=".", label=f"{labels[name]}, {batch}",
            )  # fmt: skip
    axes[1].set(title="Clipping and perturbing per-example gradients", xlabel="dimension")
    for ax in axes:
        ax.minorticks_off()
        ax.grid(alpha=0.3)
        ax.legend(fontsize=8, frameon=False)
    figure.suptitle(
        "GeoDP's noise takes longer than Gaussian noise, hardly where a batch is clipped",
        fontsize=10,
    )
    figure.savefig(RESULTS / "geometric-time.png", dpi=150)


# --- direction ---

CELLS = [(2, 0.1, 0.05), (10, 0.5, 0.3), (100, 0.1, 0.05), (100, 0.5, 0.3), (100, 1.0, 0.3),
         (1000, 0.1, 0.3), (1000, 1.0, 0.3), (100, 3.0, 0.3), (1000, 3.0, 0.3)]  # fmt: skip
RIVALS = ("plain", "anchor only", "shrunk", "James-Stein")
MECHANISMS = ("boxed (G1)", "tangent (G2)", "recentred (G3)", "anisotropic (G4)")
CLIPS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.5)


def direction_errors(d: int, spread: float, anchor_angle: float, trials: int, batch: int = 256):
    """{method: mean squared angle to the true mean direction}, each with its best clip radius.

    Per-example gradients are e₁ + spread·(normal, across e₁, of expected length 1): norm about
    √(1 + spread²). The anchor is at `anchor_angle` from e₁ and public. Every method spends μ = 1
    under exchange of one record; tuning the radius is free, and free for everyone.
    """
    mean = jnp.zeros(d).at[0].set(1.0)

    def scene(key):
        k_grad, k_anchor, k_noise = jax.random.split(key, 3)
        z = normal(k_grad, (batch, d)).at[:, 0].set(0)
        g = mean[None] + spread / math.sqrt(max(d - 1, 1)) * z
        turn = normal(k_anchor, (d,)).at[0].set(0)
        turn = turn / jnp.linalg.norm(turn)
        return g, math.cos(anchor_angle) * mean + math.sin(anchor_angle) * turn, k_noise

    def mechanism(name, r, key):
        if name == "boxed (G1)":
            beta = jnp.minimum(r / math.pi * 2, 1.0)
            std = jnp.sqrt(d + 2.0) * beta * math.pi / batch
            return transforms.boxed_angles(beta, std, batch, d, 1.0, 0.0, key)
        if name == "tangent (G2)":
            return transforms.tangent_ball(r, 2 * r / batch, batch, 1.0, 0.0, key)
        if name == "recentred (G3)":
            return transforms.recentred_clipping(r, 2 * r / batch, batch, key)
        s = math.sqrt(2) * 2 / batch  # μ² = 1/2 for each part
        return transforms.anisotropic_clipping(1.0, r, s * 1.0, s * r, batch, key)

    def squared_angle(v):
        return transforms.angle_between(v, mean) ** 2

    @functools.partial(jax.jit, static_argnames="name")
    def run(name, r, keys):
        def one(key):
            g, anchor, k = scene(key)
            if name == "plain":
                clip, _ = transforms.clip_per_example(r).update(g, None)
                noisy = clip / batch + 2 * r / batch * normal(k, (d,))
                shrunk = transforms.shrink_towards(noisy, anchor * r, 2 * r / batch)
                weights = jnp.linspace(0, 1, 21)
                mixed = jax.vmap(lambda w: squared_angle(noisy + w * (anchor * r - noisy)))(weights)
                return squared_angle(noisy), squared_angle(anchor), mixed, squared_angle(shrunk)
            tx = mechanism(name, r, k)
            state = tx.init(mean)._replace(anchor=anchor)
            return squared_angle(tx.update(g, state)[0])

        return jax.tree.map(lambda x: jnp.mean(x, axis=0), jax.lax.map(one, keys))

    keys = lambda: jax.random.split(jax.random.key(d), trials)  # noqa: E731
    best = {}
    plain = [run("plain", r, keys()) for r in CLIPS]
    best["plain"] = min(float(x[0]) for x in plain)
    best["anchor only"] = float(plain[0][1])
    best["shrunk"] = min(float(jnp.min(x[2])) for x in plain)
    best["James-Stein"] = min(float(x[3]) for x in plain)
    for name in MECHANISMS:
        best[name] = min(float(run(name, r, keys())) for r in CLIPS)
    return best


def direction_table(trials: int, cells: list = CELLS) -> list:
    rows = []
    for d, spread, angle in cells:
        best = direction_errors(d, spread, angle, trials)
        rival = min(best[name] for name in RIVALS)
        gain = rival / best["recentred (G3)"]
        rows.append(
            (d, spread, angle, *(f"{best[n]:.2e}" for n in (*RIVALS, *MECHANISMS)), f"{gain:.2f}")
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="10M dimensions, more trials")
    parser.add_argument("--only", choices=("time", "direction"))
    options = parser.parse_args()
    if options.only != "direction":
        dimensions = [1_000, 10_000, 100_000, 1_000_000] + [10_000_000] * options.full
        rows = time_table(dimensions, [16, 64], 30 if options.full else 15)
        columns = ("what", "dimension", "plain_ms", "geodp_ms", "recentred_ms", "jax_normal_ms",
                   "geodp_over_plain")  # fmt: skip
        write("geometric-time.csv", columns, rows)
        plot_time(rows)
    if options.only != "time":
        rows = direction_table(40 if options.full else 12)
        columns = ("dimension", "spread", "anchor_angle", *RIVALS, *MECHANISMS, "gain_of_recentred")
        write("geometric-direction.csv", columns, rows)


if __name__ == "__main__":
    main()
