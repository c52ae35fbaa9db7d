"""A character transformer, all of it and by low-rank adapters: private beside non-private.

`python -m benchmarks.language` trains both for equal steps at equal batch size on the text of
Python's standard library, or of another folder, cut into records of `--context` characters, and
prints the losses on held-out records, and the time and memory of a step as ratios. Adapters are of
the model that was trained on the other half of the text without privacy. `--step-only` compiles one
step of the size asked for, and prints what the compiler says of its memory beside the plain
gradient's, that of `vmap` and those of jax_privacy where it is installed: nothing is run.
`--layers 14 --width 768 --heads 12 --context 256 --batch 8 --step-only` has 100 million parameters;
`--layers 4 --width 456` has 10 million.
"""

from __future__ import annotations

import argparse
import importlib.util
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

_SYMBOLS, _HELD_OUT = 128, 1024


def text(folder: pathlib.Path, characters: int) -> np.ndarray:
    """The beginning of the Python files in a folder, but installed packages, as ASCII codes."""
    found, length = [], 0
    for path in sorted(folder.rglob("*.py")):
        if length < characters and "site-packages" not in path.parts:
            found.append(np.frombuffer(path.read_bytes(), np.uint8))
            length += len(found[-1])
    if length < characters:
        raise ValueError(f"text must hold {characters} characters, got {length}")
    codes = np.concatenate(found)[:characters].astype(np.int32)
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


def gradients_of(of_record, clip_norm: float, peers: bool = False):
    """Steps (own, held, batch, key) -> mean gradient of `own`, beside parameters that are held.

    The plain gradient of the mean, and clipped sums with noise over the batch size: ours, and if
    asked for that of `vmap` of `grad` and those of jax_privacy where it is installed.
    """

    def plain(own, held, batch, key):
        del key
        return jax.grad(lambda p: jnp.mean(jax.vmap(of_record, (None, None, 0))(p, held, batch)))(
            own
        )

    def noisy(total, batch, key):
        noise = transforms.gaussian_noise(1.0, jax.random.key(0))
        noisy, _ = noise.update(total, transforms.NoiseState(key, jnp.int32(0)))
        return jax.tree.map(lambda leaf: leaf / len(batch), noisy)

    def private(own, held, batch, key, pieces: Any = "auto"):
        clipped = gradients.clipped_grad(
            lambda p, t: of_record(p, held, t), clip_norm, "ghost", microbatch_size=pieces
        )
        return noisy(clipped(own, batch).sum, batch, key)

    def by_vmap(own, held, batch, key):
        each = jax.vmap(jax.grad(of_record), (None, None, 0))(own, held, batch)
        factors = jnp.minimum(1.0, clip_norm / jax.vmap(optax.global_norm)(each))
        total = jax.tree.map(lambda leaf: jnp.tensordot(factors, leaf, 1), each)
        return noisy(total, batch, key)

    found = {"plain": plain, "private": private}
    if peers:
        found["private, pieces of 1"] = partial(private, pieces=1)
        found["vmap"] = by_vmap
    if peers and importlib.util.find_spec("jax_privacy"):
        from jax_privacy import clipping

        def peer(own, held, batch, key, pieces):
            clipped = clipping.clipped_grad(
                lambda p, t: of_record(p, held, t),
                l2_clip_norm=clip_norm,
                keep_batch_dim=False,
                microbatch_size=pieces,
            )
            return noisy(clipped(own, batch), batch, key)

        found["jax_privacy"] = partial(peer, pieces=None)
        found["jax_privacy, pieces of 1"] = partial(peer, pieces=1)
    return found


def memory(step, *given) -> tuple[Any, int]:
    """The compiled step, and the bytes that it holds beside its arguments at its peak."""
    compiled = jax.jit(step).lower(*given).compile()
    found: Any = compiled.memory_analysis()
    return compiled, found.temp_size_in_bytes + found.output_size_in_bytes


def step_memory(of_record, own, held, batch) -> dict[str, float]:
    """Bytes of every library's step beside its arguments, compiled and not run."""
    key = jax.random.key(0)
    steps = gradients_of(of_record, 1.0, peers=True)
    return {name: memory(step, own, held, batch, key)[1] for name, step in steps.items()}


def step_cost(of_record, own, held, batch, rounds: int) -> dict[str, float]:
    """Ratios of memory and of time, private over plain."""
    given, programs, bytes_of = (own, held, batch, jax.random.key(0)), {}, {}
    for name, step in gradients_of(of_record, 1.0).items():
        programs[name], bytes_of[name] = memory(step, *given)
    found = {f"{name} MB": bytes_of[name] / 2**20 for name in bytes_of}
    found["memory"] = bytes_of["private"] / bytes_of["plain"]
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds + 1):  # in turn, so that a busy machine is busy for both
        for name, program in programs.items():
            began = time.process_time()
            jax.block_until_ready(program(*given))
            taken[name].append(time.process_time() - began)
    seconds = {name: statistics.median(times[1:]) for name, times in taken.items()}
    found |= {f"{name} s": value for name, value in seconds.items()}
    found["time"] = seconds["private"] / seconds["plain"]
    return found


def non_private(of_record, own, held, data, options):
    """The same steps without clipping or noise, on batches of the same size."""
    rows = np.random.default_rng(0).integers(0, len(data), (options.steps, options.batch))
    optimizer = optax.adam(options.learning_rate)

    @jax.jit
    def step(own, state, held, batch):
        value = lambda p: jnp.mean(jax.vmap(of_record, (None, None, 0))(p, held, batch))  # noqa: E731
        updates, state = optimizer.update(jax.grad(value)(own), state, own)
        return optax.apply_updates(own, updates), state

    state = optimizer.init(own)
    for index in rows:
        own, state = step(own, state, held, data[index])
    return own


def private(of_record, own, held, data, options):
    """The parameters at ε, and the noise multiplier."""
    plan = training.make_plan(
        len(data),
        epsilon=options.epsilon,
        delta=options.delta,
        steps=options.steps,
        batch_size=options.batch,
        clip_norm=options.clip_norm,
    )
    found = training.fit(
        lambda params, tokens: of_record(params["own"], params["held"], tokens),
        {"own": own, "held": held},
        data,
        plan,
        optimizer=optax.adam(options.learning_rate),
        key=jax.random.key(1),
        method="ghost",
        capacity=options.capacity,
        trainable={"own": True, "held": False},
        log_every=max(1, options.steps // 4),
        on_log=lambda row: print(training.progress_line(row), flush=True),
    )
    return found.params["own"], plan.noise_multiplier


def held_out_loss(of_record, own, held, data) -> float:
    """The mean over held-out records."""
    mean = jax.jit(lambda p, h, t: jnp.mean(jax.vmap(of_record, (None, None, 0))(p, h, t)))
    parts = [float(mean(own, held, part)) for part in np.split(data, 8)]
    return float(np.mean(parts))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, value in (
        ("layers", 2), ("width", 64), ("context", 32), ("heads", 4), ("batch", 64), ("steps", 200),
        ("records", 4000), ("rank", 8), ("rounds", 5), ("capacity", None),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in (
        ("epsilon", 3.0), ("delta", 1e-7), ("learning-rate", 1e-3), ("clip-norm", 1.0),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument("--step-only", action="store_true", help="compile one step, run nothing")
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    parser.add_argument("--text", type=pathlib.Path, default=library, help="a folder of *.py files")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    size = options.layers, options.width, options.context
    layers, heads = options.layers, options.heads
    whole = lambda own, held, tokens: loss({**own, **held}, tokens, heads)  # noqa: E731
    if options.step_only:
        shapes = jax.eval_shape(partial(init, layers=layers, width=size[1], context=size[2]),
                                jax.random.key(0))  # fmt: skip
        count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
        batch = jax.ShapeDtypeStruct((options.batch, options.context + 1), np.int32)
        print(f"{count / 1e6:.1f}M parameters, batch {options.batch}, {options.context} positions")
        found = step_memory(whole, shapes, {}, batch)
        for name, value in found.items():
            print(f"{name}: {value / 1e9:.2f} GB, {value / found['plain']:.2f} × plain", flush=True)
        return
    window = options.context + 1
    codes = text(options.text, (options.records + _HELD_OUT) * window).reshape(-1, window)
    codes = np.random.default_rng(0).permutation(codes)
    data, held_out = codes[:-_HELD_OUT], codes[-_HELD_OUT:]
    params = init(jax.random.key(0), *size)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(f"{count / 1e6:.2f}M parameters, {len(data):,} records, {options}", flush=True)

    def report(name, of_record, own, held, free, data):
        """Prints one row; `free`: the parameters after the same steps without privacy."""
        cost = step_cost(of_record, own, held, jnp.asarray(data[: options.batch]), options.rounds)
        print(name, ", ".join(f"{key} {value:.3g}" for key, value in cost.items()), flush=True)
        found, noise = private(of_record, own, held, data, options)
        losses = {
            which: held_out_loss(of_record, p, held, held_out)
            for which, p in (("at first", own), ("non-private", free), ("private", found))
        }
        shown = ", ".join(f"{which} {value:.4f}" for which, value in losses.items())
        ratio = losses["private"] / losses["non-private"]
        print(
            f"{name}: noise multiplier {noise:.3f}, held-out loss {shown}, ratio {ratio:.3f}",
            flush=True,
        )

    # One half for the whole model; adapters of what is trained there without privacy on the other.
    base = non_private(whole, params, {}, data[::2], options)
    report("all", whole, params, {}, base, data[::2])
    adapters, merge = training.lora(unstacked(base), options.rank, key=jax.random.key(2))
    adapted = lambda own, held, tokens: loss(merge(own, held), tokens, heads)  # noqa: E731
    held = unstacked(base)
    free = non_private(adapted, adapters, held, data[1::2], options)
    report("adapters", adapted, adapters, held, free, data[1::2])


if __name__ == "__main__":
    main()
