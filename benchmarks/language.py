"""A character transformer, all of it and by low-rank adapters: private beside non-private.

`python -m benchmarks.language` trains both for equal steps at equal batch size on the text of
Python's standard library, and writes the losses, and the time and memory of a step as ratios.
`--step-only` compiles one step of the size asked for, and prints what the compiler says of its
memory beside the plain gradient's: nothing is run. `--layers 14 --width 768 --context 256 --batch 8
--step-only` has 100 million parameters; `--layers 12 --width 264 --context 128` has 10 million.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
import sysconfig
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import gradients, training, transforms

_SYMBOLS = 128


def text(characters: int) -> np.ndarray:
    """The beginning of the standard library, as ASCII codes."""
    found = []
    for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")):
        found += list(path.read_bytes())
        if len(found) >= characters:
            break
    codes = np.asarray(found[:characters], np.int32)
    return np.where(codes < _SYMBOLS, codes, 32)


def init(key, layers: int, width: int, context: int) -> dict[str, Any]:
    """The parameters; the blocks' are stacked, as a loop over them takes them."""
    keys = iter(jax.random.split(key, 8))

    def normal(*shape):
        return jax.random.normal(next(keys), shape) / math.sqrt(shape[-2])

    block = {
        "qkv": {"kernel": normal(layers, width, 3 * width)},
        "out": {"kernel": normal(layers, width, width)},
        "up": {"kernel": normal(layers, width, 4 * width)},
        "down": {"kernel": normal(layers, 4 * width, width) / math.sqrt(layers)},
    }
    return {
        "embed": normal(_SYMBOLS, width) / 4,
        "place": normal(context, width) / 4,
        "blocks": block,
        "head": {"kernel": normal(width, _SYMBOLS)},
    }


def unstacked(params: dict[str, Any]) -> dict[str, Any]:
    """The same model with its blocks one by one, as adapters take them."""
    layers = len(params["blocks"]["out"]["kernel"])
    blocks = [jax.tree.map(lambda leaf, i=i: leaf[i], params["blocks"]) for i in range(layers)]
    return {**params, "blocks": blocks}


def normalised(x):
    """Layer normalisation without parameters."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)


def block_of(x, p, heads: int):
    """Causal attention and a perceptron of one record, [positions, width]."""
    length, width = x.shape
    qkv = (normalised(x) @ p["qkv"]["kernel"]).reshape(length, 3, heads, width // heads)
    q, k, v = (qkv[:, i] for i in range(3))
    scores = jnp.einsum("thd,shd->hts", q, k) / math.sqrt(width // heads)
    causal = jnp.tril(jnp.ones((length, length), bool))[None]
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    mixed = jnp.einsum("hts,shd->thd", weights, v).reshape(length, width)
    x = x + mixed @ p["out"]["kernel"]
    return x + jax.nn.gelu(normalised(x) @ p["up"]["kernel"]) @ p["down"]["kernel"]


def loss(params, tokens, heads: int = 4, remember: bool = True):
    """The mean of −log p(next character) over one record, [positions + 1] characters."""
    x = params["embed"][tokens[:-1]] + params["place"]
    step = partial(block_of, heads=heads)
    step = step if remember else jax.checkpoint(step)
    if isinstance(params["blocks"], list):
        for block in params["blocks"]:
            x = step(x, block)
    else:
        x, _ = jax.lax.scan(lambda x, block: (step(x, block), None), x, params["blocks"])
    logits = jax.nn.log_softmax(normalised(x) @ params["head"]["kernel"])
    return -jnp.mean(jnp.take_along_axis(logits, tokens[1:, None], axis=1))


def gradients_of(of_record, clip_norm: float):
    """(plain mean gradient, clipped sum with noise) of a batch, over its size."""

    def plain(params, batch, key):
        del key
        return jax.grad(lambda p: jnp.mean(jax.vmap(of_record, (None, 0))(p, batch)))(params)

    clipped = gradients.clipped_grad(of_record, clip_norm, "ghost")

    def private(params, batch, key):
        total = clipped(params, batch).sum
        noise = transforms.gaussian_noise(1.0, jax.random.key(0))
        noisy, _ = noise.update(total, transforms.NoiseState(key, jnp.int32(0)))
        return jax.tree.map(lambda leaf: leaf / len(batch), noisy)

    return {"plain": plain, "private": private}


def memory(step, *given) -> tuple[Any, int]:
    """The compiled step, and the bytes that it holds beside its arguments at its peak."""
    compiled = jax.jit(step).lower(*given).compile()
    found = compiled.memory_analysis()
    return compiled, found.temp_size_in_bytes + found.output_size_in_bytes


def step_cost(of_record, params, batch, rounds: int) -> dict[str, float]:
    """Ratios of memory and of time, private over plain; time only with rounds to measure."""
    key, programs, held = jax.random.key(0), {}, {}
    for name, step in gradients_of(of_record, 1.0).items():
        programs[name], held[name] = memory(step, params, batch, key)
    found = {f"{name} MB": held[name] / 2**20 for name in held}
    found["memory"] = held["private"] / held["plain"]
    if rounds:
        taken: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(rounds + 1):  # in turn, so that a busy machine is busy for both
            for name, program in programs.items():
                began = time.process_time()
                jax.block_until_ready(program(params, batch, key))
                taken[name].append(time.process_time() - began)
        seconds = {name: statistics.median(times[1:]) for name, times in taken.items()}
        found |= {f"{name} s": value for name, value in seconds.items()}
        found["time"] = seconds["private"] / seconds["plain"]
    return found


def non_private(of_record, params, data, steps: int, batch: int, optimizer):
    """The same steps without clipping or noise."""
    rows = np.random.default_rng(0).integers(0, len(data), (steps, batch))

    @jax.jit
    def run(params, data):
        def step(carry, index):
            value = lambda p: jnp.mean(jax.vmap(of_record, (None, 0))(p, data[index]))  # noqa: E731
            updates, state = optimizer.update(jax.grad(value)(carry[0]), carry[1], carry[0])
            return (optax.apply_updates(carry[0], updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), jnp.asarray(rows))[0][0]

    return run(params, data)


def trained(of_record, params, data, held_out, options) -> dict[str, float]:
    """The loss on held-out text before, without privacy, and at ε."""
    mean = jax.jit(lambda p: jnp.mean(jax.vmap(of_record, (None, 0))(p, held_out)))
    plan = training.make_plan(
        len(data), epsilon=options.epsilon, delta=1e-6, steps=options.steps,
        batch_size=options.batch, clip_norm=options.clip_norm,
    )  # fmt: skip
    optimizer = optax.adam(options.learning_rate)
    found = training.fit(
        of_record, params, data, plan, optimizer=optimizer, key=jax.random.key(1),
        method="ghost", capacity=options.batch,
    ).params  # fmt: skip
    free = non_private(of_record, params, data, options.steps, options.batch, optimizer)
    losses = {"at first": params, "non-private": free, "private": found}
    return {name: float(mean(p)) for name, p in losses.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (
        ("layers", 2), ("width", 64), ("context", 32), ("heads", 4), ("batch", 64), ("steps", 200),
        ("records", 4000), ("rank", 8), ("rounds", 5),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in (("epsilon", 3.0), ("learning-rate", 3e-3), ("clip-norm", 1.0)):
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument("--step-only", action="store_true", help="compile one step, run nothing")
    options = parser.parse_args()
    size = options.layers, options.width, options.context
    if options.step_only:
        shapes = jax.eval_shape(partial(init, layers=size[0], width=size[1], context=size[2]),
                                jax.random.key(0))  # fmt: skip
        count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
        batch = jax.ShapeDtypeStruct((options.batch, options.context + 1), np.int32)
        of_record = partial(loss, heads=options.heads)
        print(f"{count / 1e6:.1f}M parameters, batch {options.batch}, {options.context} positions")
        for name, value in step_cost(of_record, shapes, batch, 0).items():
            print(f"{name}: {value:.3g}")
        return
    window = options.context + 1
    codes = text((options.records + 256) * window).reshape(-1, window)
    codes = np.random.default_rng(0).permutation(codes)
    data, held_out = codes[:-256], codes[-256:]
    params = init(jax.random.key(0), *size)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(f"{count / 1e6:.2f}M parameters, {len(data)} records, {options}")
    of_record = partial(loss, heads=options.heads)
    rows = {"all": (of_record, params, data)}
    # Adapters start from a model that has seen the other half of the text without privacy.
    base = non_private(
        of_record, params, data[::2], 2 * options.steps, options.batch,
        optax.adam(options.learning_rate),
    )  # fmt: skip
    adapters, merge = training.lora(unstacked(base), options.rank, key=jax.random.key(2))
    frozen = unstacked(base)
    rows["adapters"] = (lambda own, t: of_record(merge(own, frozen), t), adapters, data[1::2])
    for name, (of_part, start, own) in rows.items():
        found = trained(of_part, start, own, held_out, options)
        cost = step_cost(of_part, start, jnp.asarray(own[: options.batch]), options.rounds)
        shown = ", ".join(f"{key} {value:.3g}" for key, value in (found | cost).items())
        print(f"{name}: {shown}, loss over non-private "
              f"{found['private'] / found['non-private']:.3f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
