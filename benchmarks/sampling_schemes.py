"""What each way of sampling costs for the same noise: the picture of docs/sampling.md.

    python -m benchmarks.sampling_schemes [picture.png]
    python -m benchmarks.sampling_schemes --with-replacement

A run of 10,000 records, 100 steps an epoch, a hundred records a step: ε at δ = 1e-6 after some
epochs, for σ = 1. Prints the table as Markdown; takes some ten seconds of processor time. With
`--with-replacement` it prints what docs/sampling.md says of such draws: σ = 1, 256 of 60,000
records, 2,000 steps, δ = 1e-6.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np

from dpjax import accounting as acc
from dpjax.accounting.loss_distribution.grid import epsilon_bound
from dpjax.accounting.loss_distribution.step import Pair
from dpjax.accounting.pairs.count_law import Binomial, merge_weights, relative_weight_error
from dpjax.accounting.pairs.fixed_batches import Symmetrised
from dpjax.accounting.pairs.revealed import labelled

RECORDS, LENGTH, SIGMA, DELTA = 10_000, 100, 1.0, 1e-6
SIZE = RECORDS // LENGTH
CUT = SIZE + 30
EPOCHS = (1, 2, 5, 10, 20, 50)
# A way to sample has the colour that it has in the notebook on sampling.
_COLOURS = {
    "Poisson": "C0",
    "shuffled or cyclic": "C1",
    "random allocation": "C2",
    "Poisson cut": "C3",
    "fixed": "C4",
}


def schemes() -> dict[str, tuple[acc.Mechanism, acc.Adjacency, int]]:
    """One epoch's mechanism, the relation it is priced under, and how often an epoch uses it."""
    noise = acc.Gaussian(SIGMA)
    added, replaced = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE
    rate = 1 / LENGTH
    fixed = acc.FixedBatchSampled(noise, SIZE, RECORDS)
    cut = acc.TruncatedPoissonSampled(noise, rate, RECORDS, CUT)
    return {
        "shuffled or cyclic": (acc.Shuffled(noise, LENGTH), added, 1),
        f"Poisson cut at {CUT}": (cut, added, LENGTH),
        "random allocation": (acc.RandomAllocation(noise, LENGTH), added, 1),
        "Poisson": (acc.PoissonSampled(noise, rate), added, LENGTH),
        "fixed, replace-one": (fixed, replaced, LENGTH),
        "Poisson, replace-one": (acc.PoissonSampled(noise, rate), replaced, LENGTH),
    }


def costs() -> dict[str, list[float]]:
    """ε of every scheme after each number of epochs."""
    return {
        name: [
            float(np.asarray(acc.epsilon(acc.Repeated(step, uses * e), DELTA, adjacency=relation)))
            for e in EPOCHS
        ]
        for name, (step, relation, uses) in schemes().items()
    }


def table(found: dict[str, list[float]]) -> str:
    """The costs as a table in Markdown."""
    head = [
        "| scheme | " + " | ".join(f"{e} epochs" for e in EPOCHS) + " |",
        "|---" * (len(EPOCHS) + 1) + "|",
    ]
    rows = [f"| {n} | " + " | ".join(f"{v:.3f}" for v in row) + " |" for n, row in found.items()]
    return "\n".join([*head, *rows])


def draw(found: dict[str, list[float]], path: pathlib.Path) -> None:
    """ε against epochs, one line a scheme, its name at its end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from dpjax import plotting

    pyplot.rcParams.update(plotting.style())
    figure, axes = pyplot.subplots(figsize=(7.2, 4.6))
    for name, row in found.items():
        dashed = "replace-one" in name
        colour = _COLOURS[name.split(",")[0].split(" cut")[0] + " cut" * ("cut" in name)]
        axes.plot(EPOCHS, row, "--" if dashed else "-", color=colour, marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="epochs", ylabel=f"ε at δ = {DELTA:g}")
    axes.set_xticks(EPOCHS, [str(e) for e in EPOCHS])
    axes.minorticks_off()
    axes.set_yticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"])
    axes.set_title(f"σ = {SIGMA:g}, {RECORDS:,} records, {LENGTH} steps an epoch")
    order = np.argsort([-row[-1] for row in found.values()])
    handles, names = axes.get_legend_handles_labels()
    axes.legend([handles[i] for i in order], [names[i] for i in order])
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def with_replacement(
    sigma: float = 1.0, size: int = 256, records: int = 60_000, steps: int = 2_000
) -> dict[str, float]:
    """ε at δ = 1e-6 of draws with replacement, and of a batch without, one record replaced."""
    noise, relation = acc.Gaussian(sigma), acc.Adjacency.REPLACE_ONE
    drawn = acc.Repeated(acc.WithReplacement(noise, size, records), steps)
    fixed = acc.Repeated(acc.FixedBatchSampled(noise, size, records), steps)
    law = Binomial(float(size), 1.0 / records)
    (j, weight), mu = merge_weights(law, True), 2.0 / sigma
    # The theorem alone releases the number of copies, however large ε is.
    alone = labelled(Symmetrised(), mu, j, weight, relative_weight_error(law), 11.0)
    theorem = epsilon_bound([Pair(alone, 1, mu, 1.0, steps)], DELTA, upper=True)
    low, high = acc.epsilon_interval(drawn, DELTA, adjacency=relation)
    return {
        "Balle, Barthe and Gaboardi 2018, Theorem 10": theorem,
        "price": float(np.asarray(high)),
        "lower end": float(np.asarray(low)),
        "without replacement": float(np.asarray(acc.epsilon(fixed, DELTA, adjacency=relation))),
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--with-replacement"]:
        for name, cost in with_replacement().items():
            print(f"{name}: {cost:.3f}")
        sys.exit()
    prices = costs()
    print(table(prices))
    if len(sys.argv) > 1:
        draw(prices, pathlib.Path(sys.argv[1]))
