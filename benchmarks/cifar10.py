"""CIFAR-10 at ε = 3 and 8 by a wide residual network, after De et al. 2022.

    python -m benchmarks.cifar10 [--epsilon 3 8] [--folder FOLDER]     one GPU, hours
    python -m benchmarks.cifar10 --small                               a CPU, minutes

WRN-16-4 with GroupNorm in 16 groups and standardised weights, batches of 4,096 expected records of
which each is the mean of 16 augmented copies (flips and shifts by up to 4 pixels), clip norm 1, SGD
without momentum at rate 2, and an exponential average of the parameters with decay 0.9999 and a
warm-up. Steps and rate are of the size that the paper reports and were not tuned here; the noise
is what the accountant finds for ε, δ = 1e-5 and these steps. `--small` is a network of 10 layers
and a quarter of the width on 16 × 16 pixels, for 20 steps of 128 records of 2 copies: it shows that
the recipe learns, and no more.

A run adds its row to benchmarks/results/cifar10.md. The data are ../shared/data/cifar10-jpeg, which
is CIFAR-10 compressed with loss: accuracy on it is not accuracy on the original.

References:
  De, Berrada, Hayes, Smith and Balle 2022, "Unlocking high-accuracy differentially private image
  classification through scale"; Zagoruyko and Komodakis 2016, "Wide residual networks"; Qiao et al.
  2019, "Micro-batch training with batch-channel normalization and weight standardization".
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import pathlib
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import training
from experiments.images import Images, load_cifar10_jpeg

RESULTS = pathlib.Path(__file__).parent / "results" / "cifar10.md"
DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
DELTA, CLIP, GROUPS, DECAY = 1e-5, 1.0, 16, 0.9999


class Setting(NamedTuple):
    """A network and a run.

    Fields:
        layers: 6n + 4 for n blocks of each of the three sizes.
        width: multiple of 16, 32 and 64 channels.
        batch: records expected in a step.
        copies: augmented copies of each record.
        rate: of gradient descent.
        steps: for a budget ε.
        capacity: records worked on at once.
        side: pixels along a side; 32, or 16 for means of 2 × 2 pixels.
    """

    layers: int
    width: int
    batch: int
    copies: int
    rate: float
    steps: dict[float, int]
    capacity: int
    side: int = 32


FULL = Setting(16, 4, 4096, 16, 2.0, {3.0: 1_500, 8.0: 2_500}, 128)
SMALL = Setting(10, 1, 128, 2, 2.0, {3.0: 20, 8.0: 20}, 16, 16)


# ------------------------------------------------------------------------------ the network


def strides_of(setting: Setting) -> list[tuple[int, int]]:
    """(channels, stride) of every block."""
    blocks = (setting.layers - 4) // 6
    return [
        (16 * setting.width << size, 2 if size and not block else 1)
        for size, block in itertools.product(range(3), range(blocks))
    ]


def init(key: Any, setting: Setting) -> dict[str, Any]:
    """The parameters."""
    keys = (jax.random.fold_in(key, n) for n in itertools.count())

    def conv(size, inner, outer):
        shape = (size, size, inner, outer)
        weight = jax.random.normal(next(keys), shape) / math.sqrt(size * size * inner)
        return {"weight": weight, "gain": jnp.ones(outer), "bias": jnp.zeros(outer)}

    def norm(channels):
        return {"scale": jnp.ones(channels), "shift": jnp.zeros(channels)}

    blocks, inner = [], 16
    for number, (outer, _) in enumerate(strides_of(setting)):
        block = {"one": conv(3, inner, outer), "two": conv(3, outer, outer)}
        block |= {"norm one": norm(inner), "norm two": norm(outer)}
        if number % ((setting.layers - 4) // 6) == 0:
            block |= {"short": conv(1, inner, outer), "norm short": norm(inner)}
        blocks.append(block)
        inner = outer
    head = {
        "kernel": jax.random.normal(next(keys), (inner, 10)) / math.sqrt(inner),
        "bias": jnp.zeros(10),
    }
    return {"first": conv(3, 3, 16), "blocks": blocks, "last": norm(inner), "head": head}


def convolved(x, p, stride: int = 1):
    """By weights of mean 0 and variance gain² / (numbers that enter an output)."""
    weight = p["weight"]
    centred = weight - weight.mean((0, 1, 2), keepdims=True)
    squares = jnp.square(centred).sum((0, 1, 2), keepdims=True)
    weight = centred * jax.lax.rsqrt(jnp.maximum(squares, 1e-4)) * p["gain"]
    layout = ("NHWC", "HWIO", "NHWC")
    args = (x[None], weight, (stride, stride), "SAME")
    return jax.lax.conv_general_dilated(*args, dimension_numbers=layout)[0] + p["bias"]


def activated(x, p):
    """The positive part, then GroupNorm."""
    grouped = jax.nn.relu(x).reshape(-1, GROUPS, x.shape[-1] // GROUPS)
    centred = grouped - grouped.mean((0, 2), keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean((0, 2), keepdims=True) + 1e-5)
    return scaled.reshape(x.shape) * p["scale"] + p["shift"]


def logits_of(params, image, setting: Setting):
    """Of one image [side, side, 3]."""
    x = convolved(image, params["first"])
    for p, (_, stride) in zip(params["blocks"], strides_of(setting), strict=True):
        short = x
        if "short" in p:
            short = convolved(activated(x, p["norm short"]), p["short"], stride)
        y = convolved(activated(x, p["norm one"]), p["one"], stride)
        x = short + convolved(activated(y, p["norm two"]), p["two"])
    mean = activated(x, params["last"]).mean((0, 1))
    return mean @ params["head"]["kernel"] + params["head"]["bias"]


def loss_of(setting: Setting):
    """The cross-entropy of one record (image, label)."""

    def loss(params, example):
        logits = logits_of(params, example[0], setting)
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    return loss


def augment(example, key):
    """Flipped or not, and shifted by up to an eighth of its side, the border mirrored."""
    image, label = example
    shift = image.shape[0] // 8
    for_flip, for_shift = jax.random.split(key)
    image = jnp.where(jax.random.bernoulli(for_flip), image[:, ::-1], image)
    padded = jnp.pad(image, [(shift, shift), (shift, shift), (0, 0)], mode="reflect")
    row, column = jax.random.randint(for_shift, (2,), 0, 2 * shift + 1)
    start = (row, column, jnp.zeros_like(row))
    return jax.lax.dynamic_slice(padded, start, image.shape), label


# ------------------------------------------------------------------------------ one run


class Found(NamedTuple):
    """Of one run.

    Fields:
        last: accuracy in per cent of the last parameters.
        average: of their average.
        epsilon: spent.
        noise_multiplier: noise over clip norm.
        parameters: how many.
        seconds: of wall time.
        processor: of processor time, all threads.
    """

    last: float
    average: float
    epsilon: float
    noise_multiplier: float
    parameters: int
    seconds: float
    processor: float


def weight_of(step):
    """Of the parameters after `step` in their average: a decay that warms up from 2/11."""
    return jnp.maximum(1 - DECAY, 9 / (10 + jnp.asarray(step, jnp.float32)))


def pooled(images: np.ndarray, side: int) -> np.ndarray:
    """Means over squares of pixels, [rows, side, side, 3]."""
    rows, size = len(images), images.shape[1] // side
    return images.reshape(rows, side, size, side, size, 3).mean((2, 4))


def accuracy(params, images: np.ndarray, labels: np.ndarray, setting: Setting) -> float:
    """In per cent."""
    batch = 250
    predict = jax.jit(
        lambda params, x: jnp.argmax(
            jax.vmap(functools.partial(logits_of, setting=setting), (None, 0))(params, x), axis=-1
        )
    )
    found = [
        np.asarray(predict(params, images[i : i + batch])) == labels[i : i + batch]
        for i in range(0, len(images) - batch + 1, batch)
    ]
    return 100 * float(np.mean(found))


def trained(
    setting: Setting, images: Images, epsilon: float, steps: int, seed: int, folder: str | None
) -> Found:
    """One private run, and its accuracy on the test images."""
    began, processor = time.perf_counter(), time.process_time()
    plan = training.make_plan(
        len(images.images),
        epsilon=epsilon,
        delta=DELTA,
        steps=steps,
        batch_size=setting.batch,
        clip_norm=CLIP,
    )
    for_init, key = jax.random.split(jax.random.key(seed))
    params = init(for_init, setting)
    found = training.fit(
        training.augmented(loss_of(setting), augment, setting.copies),
        params,
        (images.images, images.labels),
        plan,
        optimizer=optax.sgd(setting.rate),
        key=key,
        loss_takes_key=True,
        capacity=setting.capacity,
        average=weight_of,
        folder=folder,
        resume=folder is not None,
        on_log=lambda row: print(training.progress_line(row), flush=True),
    )
    seconds = time.perf_counter() - began, time.process_time() - processor
    test = images.test_images, images.test_labels, setting
    return Found(
        accuracy(found.params, *test),
        accuracy(found.average, *test),
        plan.spent(plan.steps),
        plan.noise_multiplier,
        sum(leaf.size for leaf in jax.tree.leaves(params)),
        *seconds,
    )


# ------------------------------------------------------------------------------ the table

HEAD = (
    "# CIFAR-10 (JPEG) at a budget, after De et al. 2022\n\n"
    "Written by `python -m benchmarks.cifar10`: δ = 1e-5, add/remove, Poisson batches, clip norm "
    "1, no tuning. Accuracy on so many test images, balanced, with its standard error, of the "
    "last parameters and of their average; guessing has 10 %.\n\n"
    "| network, parameters | ε | accuracy, % | of the average, % | tests | steps | batch, copies | "
    "rate | noise multiplier | device | wall, processor s |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def shown(per_cent: float, images: int) -> str:
    """With the standard error of a share of independent images."""
    share = per_cent / 100
    return f"{per_cent:.2f} ± {100 * math.sqrt(share * (1 - share) / images):.2f}"


def row(setting: Setting, epsilon: float, steps: int, seed: int, found: Found, tests: int) -> str:
    cells = [
        f"WRN-{setting.layers}-{setting.width} on {setting.side} × {setting.side} pixels, "
        f"{found.parameters:,}, seed {seed}",
        f"{epsilon:g}",
        shown(found.last, tests),
        shown(found.average, tests),
        f"{tests:,}",
        f"{steps:,}",
        f"{setting.batch:,}, {setting.copies}",
        f"{setting.rate:g}",
        f"{found.noise_multiplier:.3f}",
        jax.devices()[0].device_kind,
        f"{found.seconds:,.0f}, {found.processor:,.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def written(text: str, new: str) -> str:
    """The page with a row more, or anew where it has one of that network, seed and ε."""

    def named(line: str) -> list[str]:
        return line.split("|")[1:3]

    rows = [line for line in text.split("\n")[len(HEAD.split("\n")) :] if line.startswith("|")]
    return "\n".join([HEAD, *(r for r in rows if named(r) != named(new)), new, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[3.0, 8.0], choices=[3.0, 8.0])
    parser.add_argument("--small", action="store_true", help="a short run on a CPU")
    for name in ("steps", "batch", "capacity"):
        parser.add_argument(f"--{name}", type=int, help="instead of the setting's")
    parser.add_argument("--tests", type=int, default=10_000, help="test images to predict")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="for checkpoints: a run that was ended goes on from there")
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="holds cifar10-jpeg/")
    options = parser.parse_args()
    if not (options.data / "cifar10-jpeg").is_dir():
        print(f"skipped: {options.data / 'cifar10-jpeg'} is absent")
        return
    setting = SMALL if options.small else FULL
    setting = setting._replace(
        batch=options.batch or setting.batch, capacity=options.capacity or setting.capacity
    )
    images = load_cifar10_jpeg(options.data)
    images = images._replace(
        images=pooled(images.images, setting.side),
        test_images=pooled(images.test_images, setting.side)[: options.tests],
        test_labels=images.test_labels[: options.tests],
    )
    for epsilon in options.epsilon:
        steps = options.steps or setting.steps[epsilon]
        folder = None if options.folder is None else f"{options.folder}/{epsilon:g}"
        found = trained(setting, images, epsilon, steps, options.seed, folder)
        new = row(setting, epsilon, steps, options.seed, found, len(images.test_images))
        print(new, flush=True)
        before = RESULTS.read_text() if RESULTS.exists() else HEAD
        RESULTS.write_text(written(before, new))


if __name__ == "__main__":
    main()
