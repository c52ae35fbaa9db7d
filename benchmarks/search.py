"""When a private search pays: `python -m benchmarks.search --data FOLDER [--repeats 5]`.

Logistic regression on Adult (public ranges and categories, rows of norm at most 1), trained on all
rows of the training part and on a tenth of them, at one budget (ε, δ = 1e-6), price included:

* the default setting by itself, with the noise of one run;
* a badly chosen setting by itself (learning rate 0.05);
* `training.search` over six settings around the default, Poisson with mean 10;
* the same with the badly chosen setting as the default, of which half the runs are then.

A tenth of the training rows is held out for the search's score, a count with noise of standard
deviation 24/ε, about a tenth of what a run may spend; the single runs train on these rows too.
Accuracy in percent on the test rows, mean over the repeats and its standard error. Results go to
benchmarks/results/search.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib

import jax
import numpy as np
import optax

import dpjax
from dpjax import training
from experiments import data_sets

RESULTS = pathlib.Path(__file__).parent / "results"
DELTA, STEPS, SHARE = 1e-6, 200, 0.1
GOOD, BAD = (4.0, 0.5), (0.05, 0.5)  # learning rate, clip norm
AROUND = [GOOD, *(s for s in itertools.product((1.0, 4.0, 16.0), (0.25, 0.5)) if s != GOOD)]


def batch_size(records: int) -> int:
    return min(max(records // 16, 250), records)


def fit(setting, plan, key, model, rows):
    rate, clip_norm = setting
    plan = dataclasses.replace(plan, clip_norm=clip_norm)
    loss = training.cross_entropy(model)
    data = rows.features, rows.labels
    return training.fit(
        loss, model.init(key), data, plan, optimizer=optax.sgd(rate), key=key, log_every=STEPS
    ).params


def plan_of(records: int, **how):
    return training.make_plan(
        records, delta=DELTA, steps=STEPS, batch_size=batch_size(records), **how
    )


def cut(rows, first: int, last: int):
    return data_sets.DataSet(rows.name, rows.features[first:last], rows.labels[first:last])


def accuracies(split, records: int, epsilon: float, seed: int) -> dict[str, float]:
    """Of each way, in percent on the test rows."""
    model = training.logistic(features=split.train.features.shape[1])
    test = training.accuracy(model, split.test.features, split.test.labels)
    key = jax.random.key(seed)
    every, held = cut(split.train, 0, records), int(SHARE * records)
    kept, held_out = cut(every, held, records), cut(every, 0, held)
    right = training.accuracy(model, held_out.features, held_out.labels)
    alone = plan_of(records, epsilon=epsilon)
    found = {}
    for name, setting in {"default alone": GOOD, "bad setting alone": BAD}.items():
        found[name] = test(fit(setting, alone, key, model, every))
    nothing = jax.tree.map(lambda leaf: 0 * leaf, model.init(key))  # says 0, the larger class
    for name, space in {"search": AROUND, "search from the bad setting": [BAD, *AROUND]}.items():
        best = training.search(
            space,
            lambda setting, plan, key: fit(setting, plan, key, model, kept),
            plan=lambda noise: plan_of(records - held, noise_multiplier=noise),
            budget=(epsilon, DELTA),
            score=lambda params: held * right(params),
            score_noise=24 / epsilon,
            nothing=nothing,
            key=key,
        )
        found[name] = test(best.result)
    return {name: 100 * value for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder that holds adult/")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=1.0)
    arguments = parser.parse_args()
    split = data_sets.split(data_sets.adult(arguments.data), seed=0)
    lines = [
        f"# A private search on Adult, ε = {arguments.epsilon:g}, δ = {DELTA:g}",
        "",
        f"dpjax {dpjax.__version__}, jax {jax.__version__}; {arguments.repeats} repeats; test "
        "accuracy in percent, price included (`python -m benchmarks.search`).",
        "",
    ]
    for records in (len(split.train.labels), len(split.train.labels) // 10):
        rows = [
            accuracies(split, records, arguments.epsilon, seed) for seed in range(arguments.repeats)
        ]
        lines += [f"| {records:,} training records | accuracy | standard error |", "|---|---|---|"]
        for name in rows[0]:
            values = np.array([row[name] for row in rows])
            error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
            lines.append(f"| {name} | {values.mean():.2f} | {error:.2f} |")
        lines.append("")
        print("\n".join(lines), flush=True)
    (RESULTS / "search.md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
