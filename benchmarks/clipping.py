"""The price of per-example clipping, side by side: `python -m benchmarks.clipping`.

Every method runs on the same models, data and machine, in interleaved rounds; the figure is the
median. Ratios are to JAX's own non-private step with the same noise added in the same run. Memory
is what XLA allots to the compiled step beyond its arguments and results. Peers that are not
installed, or that a model is too large for (over `--limit` MB), are left out and say so.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax._numerics.normal import normal_like

CLIP, SIGMA, RATE = 1.0, 1.0, 0.1
LOOP = 4  # steps, with --loop


class Task(NamedTuple):
    """A model with its data: `loss(params, example)`, and the same over a batch."""

    name: str
    loss: Any
    params: Any
    batch: Any
    records: int


class Perceptron(nn.Module):
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        for width in self.widths[:-1]:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.widths[-1])(x)


class ConvNet(nn.Module):
    """The two-convolution network of the DP-SGD tutorials for MNIST (Papernot et al.)."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(16, (8, 8), strides=2, padding="SAME")(x))
        x = nn.max_pool(x, (2, 2), strides=(1, 1))
        x = nn.relu(nn.Conv(32, (4, 4), strides=2, padding="VALID")(x))
        x = nn.max_pool(x, (2, 2), strides=(1, 1))
        return nn.Dense(10)(nn.relu(nn.Dense(32)(x.reshape(*x.shape[:-3], -1))))


class SmallKernels(nn.Module):
    """Three convolutions of 3 × 3, each followed by a pooling, for pictures of 32 × 32."""

    @nn.compact
    def __call__(self, x):
        for width in (16, 32, 64):
            x = nn.max_pool(nn.relu(nn.Conv(width, (3, 3))(x)), (2, 2), strides=(2, 2))
        return nn.Dense(10)(x.reshape(*x.shape[:-3], -1))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x))
        y = nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x))
        return x + nn.Dense(x.shape[-1])(nn.gelu(y))


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(256)(x) + self.param("position", nn.initializers.normal(0.02), (64, 256))
        for _ in range(4):
            x = Block()(x)
        return nn.Dense(10)(nn.LayerNorm()(x).mean(-2))


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.RNN(nn.OptimizedLSTMCell(128))(x)[..., -1, :])


class Embedding(nn.Module):
    @nn.compact
    def __call__(self, t):
        return nn.Dense(2)(nn.Embed(10_000, 64)(t).mean(-2))


def task(name: str, model: nn.Module, x: Any, classes: int) -> Task:
    records = x.shape[0]
    y = jax.random.randint(jax.random.key(1), (records,), 0, classes)
    params = model.init(jax.random.key(2), x[0])

    def loss(params, example):
        logits = model.apply(params, example[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    return Task(name, loss, params, (x, y), records)


def tasks() -> list[Task]:
    x = functools.partial(jax.random.normal, jax.random.key(0))
    words = jax.random.randint(jax.random.key(3), (256, 64), 0, 10_000)
    return [
        task("logistic 105→2", Perceptron((2,)), x((4096, 105)), 2),
        task("softmax 784→10", Perceptron((10,)), x((4096, 784)), 10),
        task("perceptron 784-1024-1024-10", Perceptron((1024, 1024, 10)), x((256, 784)), 10),
        task("CNN, 2 convolutions", ConvNet(), x((512, 28, 28, 1)), 10),
        task("CNN, 3 convolutions", SmallKernels(), x((256, 32, 32, 3)), 10),
        task("transformer, 4 blocks", Transformer(), x((64, 64, 16)), 10),
        task("LSTM 28×28→128", Recurrent(), x((256, 28, 28)), 10),
        task("embedding 10,000×64", Embedding(), words, 2),
    ]


def finish(params, total, key, records, noise):
    """The rest of a private step: noise, average, descent."""
    if noise:
        total = jax.tree.map(lambda g, z: g + SIGMA * CLIP * z, total, normal_like(key, total))
    return jax.tree.map(lambda p, g: p - RATE * g / records, params, total)


def steps(t: Task) -> dict[str, Any]:
    """step(params, batch, key) of every JAX method."""

    def plain(noise):
        def step(params, batch, key):
            def mean(params):
                return jax.vmap(t.loss, (None, 0))(params, batch).sum()

            return finish(params, jax.grad(mean)(params), key, t.records, noise)

        return step

    def ours(method):
        def step(params, batch, key):
            total = dpjax.clipped_grad(t.loss, CLIP, method)(params, batch).sum
            return finish(params, total, key, t.records, True)

        return step

    def vmap_of_grad(params, batch, key):
        grads = jax.vmap(jax.grad(t.loss), (None, 0))(params, batch)
        norms = jax.vmap(optax.global_norm)(grads)
        factors = jnp.minimum(1.0, CLIP / norms)
        total = jax.tree.map(lambda g: jax.vmap(jnp.multiply)(factors, g).sum(0), grads)
        return finish(params, total, key, t.records, True)

    def optax_aggregate(params, batch, key):
        grads = jax.vmap(jax.grad(t.loss), (None, 0))(params, batch)
        aggregate = optax.contrib.differentially_private_aggregate(CLIP, SIGMA, key)
        mean, _ = aggregate.update(grads, aggregate.init(params))
        return jax.tree.map(lambda p, g: p - RATE * g, params, mean)

    methods = {
        "non-private": plain(False),
        "non-private + noise": plain(True),
        "dpjax ghost": ours("ghost"),
        "dpjax auto": ours("auto"),
        "dpjax vmap": ours("vmap"),
        "vmap of grad": vmap_of_grad,
        "optax aggregate": optax_aggregate,
    }
    if importlib.util.find_spec("jax_privacy"):
        from jax_privacy import clipping

        def jax_privacy_step(microbatch_size):
            def step(params, batch, key):
                clipped = clipping.clipped_grad(
                    t.loss,
                    argnums=0,
                    batch_argnums=1,
                    keep_batch_dim=False,
                    l2_clip_norm=CLIP,
                    microbatch_size=microbatch_size,
                )
                return finish(params, clipped(params, batch), key, t.records, True)

            return step

        methods["jax_privacy"] = jax_privacy_step(None)
        methods["jax_privacy, microbatch 32"] = jax_privacy_step(32)
    return methods


class Measured(NamedTuple):
    """Median seconds of a step, and megabytes of temporaries; None where not measured."""

    seconds: float | None
    megabytes: float | None
    note: str = ""


def looped(step: Any) -> Any:
    """Steps in one loop, as `fit` takes them, and as many keys."""

    def run(params, batch, key):
        def body(params, key):
            return step(params, batch, key), None

        return jax.lax.scan(body, params, jax.random.split(key, LOOP))[0]

    return run


def measure(
    t: Task, rounds: int, limit: float, time_limit: float, in_a_loop: bool = False
) -> dict[str, Measured]:
    compiled, results = {}, {}
    key = jax.random.key(0)
    for name, step in steps(t).items():
        step = looped(step) if in_a_loop else step
        program = jax.jit(step).lower(t.params, t.batch, key).compile()
        megabytes = program.memory_analysis().temp_size_in_bytes / 1e6
        if megabytes > limit:
            results[name] = Measured(None, megabytes, "not run")
            continue
        compiled[name] = (
            lambda program=program: jax.block_until_ready(program(t.params, t.batch, key)),
            megabytes,
        )
    turns = dict.fromkeys(compiled, LOOP if in_a_loop else 1)
    for name, run in torch_steps(t).items():
        compiled[name] = (run, None)
    seconds_of: dict[str, float] = {}
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for number in range(rounds + 1):
        for name, (run, _) in compiled.items():
            if sum(times[name]) > time_limit:
                continue
            if seconds_of.get(name, 0.0) < 0.3:
                run()  # the caches are the previous method's: quick steps get a run to warm up
            start = time.perf_counter()
            run()
            seconds_of[name] = time.perf_counter() - start
            if number or seconds_of[name] > time_limit:  # the first round compiles and allocates
                times[name].append(seconds_of[name])
    for name, (_, megabytes) in compiled.items():
        results[name] = Measured(statistics.median(times[name]) / turns.get(name, 1), megabytes)
    return results


def torch_steps(t: Task) -> dict[str, Callable[[], Any]]:
    """Opacus's hooks and ghost clipping on the same model, where it is installed."""
    if not importlib.util.find_spec("opacus"):
        return {}
    from benchmarks import torch_models

    x, y = (np.asarray(a) for a in t.batch)
    return torch_models.steps(t.name, x, y, CLIP, SIGMA, RATE)


def table(results: dict[str, dict[str, Measured]]) -> str:
    names = list(dict.fromkeys(name for row in results.values() for name in row))
    lines = ["| model | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for model, row in results.items():
        base = row["non-private + noise"].seconds
        cells = []
        for name in names:
            m = row.get(name)
            if m is None:
                cells.append("—")
            elif m.seconds is None:
                cells.append(f"{m.note} ({m.megabytes:,.0f} MB)")
            else:
                memory = "" if m.megabytes is None else f", {m.megabytes:,.0f} MB"
                cells.append(f"{m.seconds / base:.2f}× ({1e3 * m.seconds:.3g} ms{memory})")
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=4000.0, help="MB of temporaries at most")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds a method at most")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--loop", action="store_true", help="steps in a loop, as in a run")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    name = "clipping_loop.md" if options.loop else "clipping.md"
    out = options.out or pathlib.Path(__file__).parent / "results" / name
    out.parent.mkdir(exist_ok=True)
    device, results = jax.devices()[0], {}
    for t in tasks():
        if options.only not in t.name:
            continue
        results[t.name] = measure(
            t, options.rounds, options.limit, options.time_limit, options.loop
        )
        print(table({t.name: results[t.name]}), flush=True)
        out.write_text(
            "# Per-example clipping: multiples of the non-private step with noise\n\n"
            f"{f'A step of {LOOP} in a loop, as in a run. ' if options.loop else ''}"
            f"Device: {device.device_kind} ({device.platform}), {len(os.sched_getaffinity(0))} of "
            f"{os.cpu_count()} cores; jax {jax.__version__}; median of at most {options.rounds} "
            f"interleaved rounds; load average {os.getloadavg()[0]:.1f} at the end. Made by "
            f"`python -m benchmarks.clipping {' '.join(sys.argv[1:])}`.\n\n{table(results)}\n"
        )
    print(f"written to {out}")


if __name__ == "__main__":
    main()
