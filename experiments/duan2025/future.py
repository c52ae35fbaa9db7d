"""The paper's future work at equal proven (ε, δ): G3 under Adam, and in federated averaging.

Logistic regression of odd digits. A step releases a + (Σ clip_r(uᵢ − a) + σr·Z)/B: u is a record's
gradient, or what a client's local steps change, and `clip_and_sum` bounds what one of them adds. G3
takes the release before as a, DP-SGD takes 0; averaged DP-SGD averages with the releases before,
which costs nothing. All have the price of a Poisson-sampled Gaussian of multiplier σ.
"""

from __future__ import annotations

import functools
import math
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import accounting as acc
from dpjax import clip_and_sum, sampling
from dpjax._numerics.normal import normal
from experiments.comparison import certificate_line
from experiments.duan2025.logistic import odd_digits
from experiments.images import load_mnist
from experiments.protocol import Rows
from experiments.widening import Axis, Point, search

METHODS = ("DP", "averaged DP", "G3")
_CLIENT_IMAGES, _LOCAL_STEPS, _LOCAL_RATE = 100, 5, 0.5


class Size(NamedTuple):
    """What a step is made of: units (records or clients), expected batch, steps, δ, clip norm."""

    units: int
    batch: int
    steps: int
    delta: float
    clip_norm: float


class Numbers(NamedTuple):
    """What a run may vary without another program; `recentred` is 0 or 1."""

    rate: Any
    radius: Any
    decay: Any
    recentred: Any


SIZES = {
    "SGD": Size(60_000, 1_024, 100, 1e-5, 1.0),
    "Adam": Size(60_000, 1_024, 100, 1e-5, 1.0),
    "federated averaging": Size(600, 60, 40, 1e-4, 1.0),
}
_RATES = {
    "SGD": (1.0, 4.0, 16.0),
    "Adam": (0.01, 0.04, 0.16),
    "federated averaging": (0.5, 2.0, 8.0),
}


def axes_of(method: str, optimiser: str) -> list[Axis]:
    """What a method is tuned over: the rate, and G3's radius or the weight of a new release.

    >>> [[axis.name for axis in axes_of(name, "Adam")] for name in METHODS]
    [['rate'], ['rate', 'weight'], ['rate', 'radius']]
    """
    rate = Axis("rate", _RATES[optimiser])
    if method == "averaged DP":
        return [rate, Axis("weight", (0.25, 0.5), most=1.0)]
    return [rate, Axis("radius", (0.25, 0.5))] if method == "G3" else [rate]


def numbers_at(method: str, point: Point) -> Numbers:
    """The numbers of a run at a point of `axes_of`; a weight of 1 is DP-SGD.

    >>> numbers_at("averaged DP", (2.0, 0.25)), numbers_at("G3", (2.0, 0.5)).radius
    (Numbers(rate=2.0, radius=1.0, decay=0.75, recentred=0.0), 0.5)
    """
    if method == "averaged DP":
        return Numbers(point[0], 1.0, 1.0 - point[1], 0.0)
    if method == "G3":
        return Numbers(point[0], point[1], 0.0, 1.0)
    return Numbers(point[0], 1.0, 0.0, 0.0)


def cell(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Accuracy of a method under an optimiser, its setting chosen at the first seed.

    Each grid is widened until the best setting is inside.
    """
    method, optimiser = settings["methods"], settings["optimiser"]
    size = SIZES[optimiser]
    units, choose, report = _data(optimiser, size.units, data)
    rate = sampling.realised_rate(size.batch / size.units)

    def price(sigma):
        return acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), size.steps)

    sigma = float(acc.calibrate(price, epsilon=settings["epsilon"], delta=size.delta))
    seeds, made = settings["seeds"], {}

    def scores(points: list[Point]) -> list[float]:
        for point in points:
            numbers = numbers_at(method, point)
            made[point] = train(optimiser, size, units, numbers, sigma, seeds[0])
        return [_accuracy(made[point], choose) for point in points]

    found = search(axes_of(method, optimiser), scores)
    numbers = numbers_at(method, found.best)
    certificate = certificate_line(
        price(sigma), size.delta, adjacency=acc.Adjacency.ADD_REMOVE, records=size.units,
        method=f"{method}, {optimiser}", data="MNIST, odd digits", target=settings["epsilon"],
        not_covered=["the setting, chosen by accuracy on held-out rows"],
    )  # fmt: skip
    rows = []
    for seed in seeds:
        params = made[found.best]
        if seed != seeds[0]:
            params = train(optimiser, size, units, numbers, sigma, seed)
        rows.append(
            {
                "optimiser": optimiser,
                "method": method,
                "epsilon": settings["epsilon"],
                "units": size.units,
                "σ": sigma,
                "seed": seed,
                "accuracy %": 100 * _accuracy(params, report),
                "rate": numbers.rate,
                "radius over C": numbers.radius,
                "decay": numbers.decay,
                "edge": found.edge,
                "settings tried": len(found.tried),
                "certificate": certificate,
            }
        )
    return rows


def train(optimiser: str, size: Size, units, numbers: Numbers, sigma: float, seed: int):
    """Parameters after a run; one program for all methods of an optimiser."""
    given = Numbers(*(jnp.float32(n) for n in numbers))
    return _compiled(optimiser, size)(units, given, jnp.float32(sigma), jax.random.key(seed))


@functools.lru_cache
def _compiled(optimiser: str, size: Size):
    capacity = min(size.batch + math.ceil(6 * math.sqrt(size.batch)), size.units)
    sampled = {"population": size.units, "rate": size.batch / size.units, "capacity": capacity}
    federated = optimiser == "federated averaging"

    def change(params, unit):
        """A record's gradient; of a client, what its local steps change, downhill negated."""
        if not federated:
            return jax.grad(loss)(params, unit)
        local = params
        for _ in range(_LOCAL_STEPS):
            local = local - _LOCAL_RATE * jax.grad(loss)(local, unit)
        return params - local

    @jax.jit
    def run(units, numbers: Numbers, sigma, key):
        tx = optax.adam(numbers.rate) if optimiser == "Adam" else optax.sgd(numbers.rate)
        params = jnp.zeros(units[0].shape[-1])
        bound = numbers.radius * size.clip_norm

        def step(carry, number):
            params, state, before = carry
            which, shake = jax.random.split(jax.random.fold_in(key, number))
            rows, mask = sampling.poisson(which, 0, **sampled)
            anchor = numbers.recentred * before
            part = clip_and_sum(lambda unit: change(params, unit) - anchor, size.clip_norm)
            total = part(jax.tree.map(lambda x: x[rows], units), mask, clip_norm=bound).sum
            noisy = total + sigma * bound * normal(shake, total.shape, total.dtype)
            release = anchor + noisy / size.batch
            # Averaging is of what has left already.
            release = numbers.decay * before + (1.0 - numbers.decay) * release
            updates, state = tx.update(release, state, params)
            return (optax.apply_updates(params, updates), state, release), None

        start = (params, tx.init(params), jnp.zeros_like(params))
        return jax.lax.scan(step, start, jnp.arange(size.steps))[0][0]

    return run


def loss(params: jax.Array, unit) -> jax.Array:
    """Logistic loss of a record, or its mean over a client's records; labels ±1."""
    features, signs = unit
    return jnp.mean(jax.nn.softplus(-signs * (features @ params)))


@functools.lru_cache(maxsize=2)
def _data(optimiser: str, count: int, data: pathlib.Path):
    """Units, and the halves of the test rows that choose and that are reported."""
    images = odd_digits(load_mnist(data))

    def rows(pixels, labels):
        flat = np.asarray(pixels, np.float32).reshape(len(labels), -1)
        ones = np.ones((len(labels), 1), np.float32)
        return np.concatenate([flat, ones], 1), 2.0 * np.asarray(labels, np.float32) - 1.0

    features, signs = rows(images.images, images.labels)
    if optimiser == "federated averaging":
        # A client holds consecutive images of the file, in its order.
        kept = count * _CLIENT_IMAGES
        features = features[:kept].reshape(count, _CLIENT_IMAGES, -1)
        signs = signs[:kept].reshape(count, _CLIENT_IMAGES)
    units = jnp.asarray(features[:count]), jnp.asarray(signs[:count])
    tests = rows(images.test_images, images.test_labels)
    order = np.random.default_rng(0).permutation(len(tests[1]))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    return units, *(tuple(part[half] for part in tests) for half in halves)


def _accuracy(params, rows) -> float:
    features, signs = rows
    return float(np.mean((features @ np.asarray(params) > 0) == (signs > 0)))
