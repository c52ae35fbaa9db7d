"""How many records a budget needs: `python -m benchmarks.sample_sizes --data FOLDER`.

The defaults of `dpjax train` (logistic regression by the rule for tables) at δ = 1e-5 under
add/remove, on random subsets of Adult's training rows, by a private table and by the public schema
of experiments/adult. Accuracy is of Adult's own test file:
mean and standard deviation over as many subsets, each with a key of its own. Beside them the same
model without privacy. Results go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import pathlib

import jax
import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks import private_tables
from dpjax import data

SIZES = (1_000, 3_000, 10_000, 32_561)
EPSILONS = (0.5, 1.0, 3.0, 8.0)


def without_privacy(rows, schema: data.Schema) -> float:
    """Test accuracy of logistic regression without noise on the schema's features, in %."""
    names = [name for name in rows[0].columns if name != schema.target]
    table = data.PrivateTable(tuple(names), schema, len(rows[0]), stddev=3.0, range_cells=True)
    complete = table.release(rows[0], jax.random.key(0))  # all is declared: nothing is looked for
    train, test = (data.encode_released(part, complete) for part in rows)
    model = LogisticRegression(max_iter=2_000).fit(train.features, train.labels)
    return 100 * float(model.score(test.features, test.labels))


def shown(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument(
        "--out", type=pathlib.Path, default=private_tables.RESULTS / "sample_sizes.md"
    )
    arguments = parser.parse_args()
    rows, test, schema = private_tables.read_adult(arguments.data)
    most = 100 * float(test["income"].value_counts(normalize=True).max())
    head = ["records", "the table", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)]
    lines = ["# Test accuracy on Adult by records and ε, in %", ""]
    lines += [f"{arguments.seeds} subsets a line; the larger class has {most:.1f} %.", ""]
    lines += [f"| {' | '.join([*head, 'without privacy'])} |", "|---" * (len(head) + 1) + "|"]
    print("\n".join(lines), flush=True)
    for size in arguments.sizes:
        subsets = [
            rows.iloc[np.random.default_rng(seed).permutation(len(rows))[:size]].reset_index(
                drop=True
            )
            for seed in range(arguments.seeds)
        ]
        bare = shown([without_privacy((subset, test), schema) for subset in subsets])
        for name, encoding in (("private", "bins-and-line"), ("public schema", None)):
            cells = [
                shown(
                    [
                        private_tables.one_run(
                            (subset, test), schema, "income", epsilon, encoding, seed
                        )[0]
                        for seed, subset in enumerate(subsets)
                    ]
                )
                for epsilon in EPSILONS
            ]
            lines.append(f"| {' | '.join([f'{size:,}', name, *cells, bare])} |")
            print(lines[-1], flush=True)
    arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
