"""Wall time to an accuracy on MNIST at ε = 1, of one library, in the interpreter that has it.

    PYTHON -m benchmarks.end_to_end_libraries LIBRARY FEATURES [--seed 0]

Called by `benchmarks.end_to_end`. FEATURES is a folder of four arrays. Every library trains the
same linear model on the same features in Poisson batches, with the same rate, momentum, clip norm,
number of steps and budget; the noise is what its own accountant finds for them. The clock starts
when the features are in memory and the libraries are imported, and stops at the first look, after
every fifth step, where the test accuracy is at the target: calibration and compilation count.
Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

EPSILON, DELTA, TARGET = 1.0, 1e-5, 96.5
BATCH, EPOCHS, CLIP, RATE, MOMENTUM, EVERY = 4_000, 20, 0.1, 4.0, 0.9, 5
PIECES = 1_000  # records at once, where a library takes such a number


class Data(NamedTuple):
    """Features [records, width] and labels [records], to train on and to test."""

    train: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray


class Clock:
    """Wall and processor seconds to the target, and what was seen on the way."""

    def __init__(self) -> None:
        self.began = time.perf_counter(), time.process_time()
        self.found: dict[str, Any] = {"seconds": None, "processor": None, "looks": []}

    def ready(self, noise_multiplier: float) -> None:
        """The noise is known."""
        self.found["calibrated"] = time.perf_counter() - self.began[0]
        self.found["noise_multiplier"] = noise_multiplier

    def look(self, step: int, accuracy: float) -> bool:
        """Whether the target is reached; the time is taken where it first is."""
        self.found["looks"].append([step, round(accuracy, 2)])
        if accuracy < TARGET:
            return False
        self.found["seconds"] = time.perf_counter() - self.began[0]
        self.found["processor"] = time.process_time() - self.began[1]
        self.found |= {"step": step, "accuracy": accuracy}
        return True


def with_dpjax(data: Data, seed: int) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import optax

    from dpjax import training

    clock = Clock()
    steps = EPOCHS * len(data.train) // BATCH
    settings: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "steps": steps}
    plan = training.make_plan(len(data.train), batch_size=BATCH, clip_norm=CLIP, **settings)
    clock.ready(plan.noise_multiplier)
    test = jnp.asarray(data.test), jnp.asarray(data.test_labels)

    def loss(params, example):
        logits = example[0] @ params["w"] + params["b"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    @jax.jit
    def accuracy(params):
        return jnp.mean(jnp.argmax(test[0] @ params["w"] + params["b"], -1) == test[1])

    training.fit(
        loss,
        {"w": jnp.zeros((data.train.shape[1], 10)), "b": jnp.zeros(10)},
        (data.train, data.labels),
        plan,
        optimizer=optax.sgd(RATE, momentum=MOMENTUM),
        key=jax.random.key(seed),
        capacity=PIECES,
        log_every=EVERY,
        evaluate=lambda params: {"accuracy": 100 * float(accuracy(params))},
        stop_when=lambda row: clock.look(int(row["step"]), row["accuracy"]),
    )
    return clock.found


def with_jax_privacy(data: Data, seed: int, pieces: int | None = None) -> dict[str, Any]:
    """As in its examples: batches are padded to multiples of a size, and a step is compiled."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax_privacy import batch_selection, clipping, noise_addition
    from jax_privacy.accounting import accountants, analysis, calibrate

    clock = Clock()
    records, width = data.train.shape
    steps = EPOCHS * records // BATCH
    noise = calibrate.calibrate_noise_multiplier(
        target_epsilon=EPSILON,
        accountant=analysis.DpsgdTrainingAccountant(accountants.PldAccountantConfig()),
        batch_sizes=BATCH,
        num_updates=steps,
        num_samples=records,
        target_delta=DELTA,
    )
    clock.ready(noise)
    rows = jnp.asarray(data.train), jnp.asarray(data.labels)
    test = jnp.asarray(data.test), jnp.asarray(data.test_labels)

    def loss(params, x, y):
        logits = x @ params["w"] + params["b"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)

    gradient = clipping.clipped_grad(
        loss,
        l2_clip_norm=CLIP,
        normalize_by=BATCH,
        batch_argnums=(1, 2),
        keep_batch_dim=False,
        microbatch_size=pieces,
    )
    privatizer = noise_addition.gaussian_privatizer(
        stddev=gradient.sensitivity() * noise, prng_key=jax.random.key(seed)
    )
    optimizer = optax.sgd(RATE, momentum=MOMENTUM)

    @jax.jit
    def step(params, index, state, noise_state):
        padding = index == -1
        x, y = (leaf[index] for leaf in rows)
        noisy, noise_state = privatizer.update(
            gradient(params, x, y, is_padding_example=padding), noise_state
        )
        updates, state = optimizer.update(noisy, state)
        return optax.apply_updates(params, updates), state, noise_state

    @jax.jit
    def accuracy(params):
        return jnp.mean(jnp.argmax(test[0] @ params["w"] + params["b"], -1) == test[1])

    params = {"w": jnp.zeros((width, 10)), "b": jnp.zeros(10)}
    state, noise_state = optimizer.init(params), privatizer.init(params)
    sampler = batch_selection.CyclicPoissonSampling(BATCH / records, steps)
    for number, drawn in enumerate(sampler.batch_iterator(records, rng=seed), 1):
        index = batch_selection.pad_to_multiple_of(drawn, pieces or 500)
        params, state, noise_state = step(params, index, state, noise_state)
        look = number % EVERY == 0
        if look and clock.look(number, 100 * float(accuracy(params))):
            break
    return clock.found


def with_opacus(data: Data, seed: int, mode: str = "hooks") -> dict[str, Any]:
    import warnings

    import torch
    from opacus import PrivacyEngine
    from torch import nn

    warnings.filterwarnings("ignore")
    clock = Clock()
    torch.manual_seed(seed)
    rows = torch.from_numpy(data.train), torch.from_numpy(data.labels).long()
    test = torch.from_numpy(data.test), torch.from_numpy(data.test_labels).long()
    model = nn.Linear(data.train.shape[1], 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM)
    dataset = torch.utils.data.TensorDataset(*rows)
    criterion = nn.CrossEntropyLoss()
    found = PrivacyEngine().make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=torch.utils.data.DataLoader(dataset, batch_size=BATCH),
        criterion=criterion,
        target_epsilon=EPSILON,
        target_delta=DELTA,
        epochs=EPOCHS,
        max_grad_norm=CLIP,
        grad_sample_mode=mode,
    )
    if mode == "ghost":
        private, optimizer, criterion, loader = found
    else:
        private, optimizer, loader = found
    clock.ready(optimizer.noise_multiplier)
    number = 0
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(private(x), y).backward()
            optimizer.step()
            number += 1
            if number % EVERY:
                continue
            with torch.no_grad():
                right = (model(test[0]).argmax(-1) == test[1]).float().mean()
            if clock.look(number, 100 * float(right)):
                return clock.found
    return clock.found


LIBRARIES: dict[str, Callable[[Data, int], dict[str, Any]]] = {
    "dpjax": with_dpjax,
    "jax_privacy": with_jax_privacy,
    "jax_privacy, pieces of 500": lambda data, seed: with_jax_privacy(data, seed, 500),
    "Opacus, hooks": with_opacus,
    "Opacus, ghost": lambda data, seed: with_opacus(data, seed, "ghost"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library", choices=list(LIBRARIES))
    parser.add_argument("features", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data = Data(*(np.load(options.features / f"{name}.npy") for name in Data._fields))
    print(json.dumps(LIBRARIES[options.library](data, options.seed)))


if __name__ == "__main__":
    main()
