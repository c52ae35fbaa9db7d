"""Images at a budget: a private linear model on scattering features, beside the published.

    python -m benchmarks.image_accuracy [--seeds 3] [--only fashion-mnist ...]

Writes benchmarks/results/image_accuracy.md from ../shared/data; says so where that is absent.
Batch, rate, momentum and clip norm are the first that were tried, after Tramèr and Boneh 2021, on
55,000 training images with 5,000 to look at; nothing was tuned, and the test images chose nothing.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import training
from dpjax.features import scattering
from experiments.images import Images, load_cifar10_jpeg, load_mnist

RESULTS = pathlib.Path(__file__).parent / "results"
DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
DELTA, BATCH, CLIP, MOMENTUM = 1e-5, 4096, 0.1, 0.9
GROUPS = 27  # of the 81 channels of a colour
AT_ONCE = 500  # images whose features are made in one call


class Setting(NamedTuple):
    """One row: a data set, a budget, the published accuracy, and the run.

    Fields:
        name: of the data set.
        epsilon: ε of the run.
        published: in per cent: Tramèr and Boneh 2021, of a linear model on scattering features or
            of a convolutional network on them, whichever was better; None: not at this ε.
        epochs, rate: of the run.
    """

    name: str
    epsilon: float
    published: float | None
    epochs: int
    rate: float


SETTINGS = (
    Setting("mnist", 1.0, None, 20, 4.0),
    Setting("mnist", 3.0, 98.7, 40, 4.0),
    Setting("fashion-mnist", 3.0, 89.7, 40, 4.0),
    Setting("cifar10", 3.0, 69.3, 40, 4.0),
)


def load(name: str) -> Images:
    """The images of a data set."""
    return load_cifar10_jpeg(DATA) if name == "cifar10" else load_mnist(DATA, name)


def features(pixels: np.ndarray) -> np.ndarray:
    """Normalised scattering features [records, features] of images in [−1, 1], colours last."""
    colours = pixels.shape[-1]

    @jax.jit
    def transform(images):
        found = scattering((images + 1) / 2)
        normalise = jax.vmap(lambda x: training.group_normalise(x, GROUPS * colours))
        return normalise(found).reshape(len(images), -1)

    parts = (pixels[i : i + AT_ONCE] for i in range(0, len(pixels), AT_ONCE))
    return np.concatenate([np.asarray(transform(part)) for part in parts])


def loss(params, example):
    logits = example[0] @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])


def trained(setting: Setting, data, key, batch: int = BATCH):
    """What `fit` found in one private run on (features, labels), and the plan."""
    rows, width = data[0].shape
    plan = training.make_plan(
        rows,
        epsilon=setting.epsilon,
        delta=DELTA,
        epochs=setting.epochs,
        batch_size=batch,
        clip_norm=CLIP,
    )
    params = {"w": jnp.zeros((width, 10)), "b": jnp.zeros(10)}
    optimizer = optax.sgd(setting.rate, momentum=MOMENTUM)
    decay = max(0.0, 1 - 10 / plan.steps)  # of about a tenth of the steps
    average = training.exponential_average(decay)
    found = training.fit(
        loss,
        params,
        data,
        plan,
        optimizer=optimizer,
        key=key,
        capacity=min(1024, 2 * batch),
        average=average,
    )
    return found, plan


def accuracy(params, data) -> float:
    """In per cent."""
    predicted = jnp.argmax(data[0] @ params["w"] + params["b"], axis=-1)
    return 100 * float(jnp.mean(predicted == data[1]))


def measure(setting: Setting, train, test, seeds: int, batch: int = BATCH) -> list[str]:
    """The cells of one row: accuracies over seeds, and the seconds of a run."""
    last, averaged, seconds, plan = [], [], [], None
    for seed in range(seeds):
        began = time.perf_counter()
        found, plan = trained(setting, train, jax.random.key(seed), batch)
        seconds.append(time.perf_counter() - began)
        last.append(accuracy(found.params, test))
        averaged.append(accuracy(found.average, test))
    assert plan is not None
    published = "–" if setting.published is None else f"{setting.published:g}"
    return [
        setting.name,
        f"{setting.epsilon:g}",
        published,
        f"{np.mean(last):.2f}",
        f"{np.mean(averaged):.2f}",
        f"{np.min(averaged):.2f}",
        f"{setting.epochs}",
        f"{setting.rate:g}",
        f"{plan.noise_multiplier:.3f}",
        f"{np.median(seconds):.0f}",
    ]


COLUMNS = (
    "data",
    "ε",
    "published, %",
    "last parameters, %",
    "average, %",
    "its least, %",
    "epochs",
    "rate",
    "noise multiplier",
    "a run, s",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    names = list(dict.fromkeys(setting.name for setting in SETTINGS))
    # CIFAR-10 takes 3 GB of features: `benchmarks.device` runs it.
    parser.add_argument("--only", nargs="+", choices=names, default=names[:2])
    options = parser.parse_args()
    lines = [
        "# Images at a budget",
        "",
        "Written by `python -m benchmarks.image_accuracy`: a linear model on the features of "
        f"`dpjax.features.scattering`, normalised in {GROUPS} groups a colour, δ = {DELTA:g}, "
        f"add/remove, Poisson batches of {BATCH:,} expected, clip norm {CLIP}, momentum "
        f"{MOMENTUM}, {options.seeds} seeds, on {jax.devices()[0].device_kind}. The average is "
        "`exponential_average` of about a tenth of the steps, of the same runs. Published: Tramèr "
        "and Boneh 2021, at ε = 3 and the same δ.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    for name in options.only:
        folder = DATA / ("cifar10-jpeg" if name == "cifar10" else name)
        if not folder.is_dir():
            print(f"skipped: ../shared/data/{folder.name} is absent")
            continue
        images = load(name)
        began = time.perf_counter()
        train = jnp.asarray(features(images.images)), jnp.asarray(images.labels)
        test = features(images.test_images), images.test_labels
        print(f"features of {name}: {time.perf_counter() - began:.0f} s", flush=True)
        for setting in (s for s in SETTINGS if s.name == name):
            lines.append(f"| {' | '.join(measure(setting, train, test, options.seeds))} |")
            print(lines[-1], flush=True)
    (RESULTS / "image_accuracy.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
