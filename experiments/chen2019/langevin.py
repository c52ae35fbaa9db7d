"""Footnote 3: noisy SGLD at the noise that its own proof asks for, in one pass over a9a.

Feldman, Mironov, Talwar and Thakurta (2018): a record a step, w ← w − η(∇fᵢ(w) + Z), Z ~ N(0, σ²I),
η ≤ 2/L, stopped after a secret number of steps, uniform in n/2 … n (their Stop-PNSGD).
"""

from __future__ import annotations

import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import erm
from dpjax._numerics.normal import normal
from experiments.chen2019 import records
from experiments.protocol import Rows

_DELTA, _BLOCK = 1e-8, 64


def cell(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Accuracy and objective at one ε, the step size chosen on rows that are not reported."""
    found = records.task(settings["data"], data, settings["seeds"])
    problem = records.problem(settings["task"], found.train, 1.0)
    epsilon, repeats = settings["epsilon"], settings["repeats"]
    noise, order = iteration_noise_of_2018(
        problem.n, problem.gradient_bound, epsilon=epsilon, delta=_DELTA
    )
    sizes = [share * 2.0 / problem.smoothness for share in settings["share of 2/L"]]
    keys = jax.random.split(jax.random.key(settings["seeds"]), (len(sizes), 2 * repeats))
    params = np.stack([one_pass(problem, k, s, noise) for k, s in zip(keys, sizes, strict=True)])
    chosen = np.array(
        [[_share(problem, w, found.choose) for w in some[:repeats]] for some in params]
    )
    best = int(np.argmax(chosen.mean(1)))
    kept = params[best, repeats:]
    accuracies = np.array([_share(problem, w, found.report) for w in kept])
    objectives = np.array([float(problem.objective(jnp.asarray(w))) for w in kept])
    signs = np.where(np.asarray(found.report[1]) > 0, 1, -1)
    return [
        {
            "data set": settings["data"],
            "task": settings["task"],
            "epsilon": epsilon,
            "order": order,
            "noise a step over R": noise / problem.gradient_bound,
            "step size": sizes[best],
            "accuracy": float(accuracies.mean()),
            "over the noise": float(accuracies.std(ddof=1) / math.sqrt(repeats)),
            "majority": float(max(np.mean(signs == 1), np.mean(signs == -1))),
            "objective": float(objectives.mean()),
            "objective at the start": float(problem.objective(problem.zeros())),
            "runs": repeats,
        }
    ]


@jax.jit
def one_pass(problem: erm.Problem, keys: jax.Array, step_size, noise) -> jax.Array:
    """The last iterate of a run a key; the records in their order, a secret number of them."""
    n, dtype = problem.n, problem.dtype

    def one_run(key):
        stop_key, noise_key = jax.random.split(key)
        last = jax.random.randint(stop_key, (), n // 2, n + 1)

        def some(params, number):
            shape = (_BLOCK, problem.dimension)
            shakes = noise * normal(jax.random.fold_in(noise_key, number), shape, dtype)
            times = number * _BLOCK + jnp.arange(_BLOCK)
            which = jnp.minimum(times, n - 1)

            def one(params, given):
                t, row, label, shake = given
                slope = problem.loss.slope((row @ params)[None], label[None])[0]
                moved = params - step_size * (slope * row + problem.l2 * params + shake)
                return jnp.where(t < last, moved, params), None

            given = (times, problem.features[which], problem.labels[which], shakes)
            return jax.lax.scan(one, params, given)[0], None

        return jax.lax.scan(some, problem.zeros(), jnp.arange(-(-n // _BLOCK)))[0]

    return jax.vmap(one_run)(keys)


def _share(problem: erm.Problem, params: np.ndarray, rows: tuple) -> float:
    return float(problem.accuracy(jnp.asarray(params), *rows))


def iteration_noise_of_2018(
    n: int, gradient_bound: float, *, epsilon: float, delta: float
) -> tuple[float, float]:
    """(σ, α) of one pass that stops in its second half (Feldman et al. 2018, Stop-PNSGD).

    Order α costs 4αR² ln n/(nσ²) where σ ≥ R√(2α(α − 1)), and the conversion of 2017 ln(1/δ)/(α −
    1): the second term alone sets the order, and so the noise of every step, where ε is small.
    """

    def noise(order: float) -> float:
        left = epsilon - math.log(1.0 / delta) / (order - 1.0)
        spread = 4.0 * order * math.log(n) / (n * left) if left > 0 else math.inf
        return gradient_bound * math.sqrt(max(spread, 2.0 * order * (order - 1.0)))

    orders = 1.0 + math.log(1.0 / delta) / epsilon * (1.0 + np.geomspace(1e-6, 1e3, 4_001))
    found = [noise(float(order)) for order in orders]
    best = int(np.argmin(found))
    return found[best], float(orders[best])
