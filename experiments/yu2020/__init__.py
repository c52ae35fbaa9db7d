"""Yu, Zhang, Chen, Yin and Liu 2020: gradient perturbation is underrated."""

from experiments.yu2020.accuracy import baseline, mnist, table4
from experiments.yu2020.figures import bound, convex, figure1, table2

TARGETS = {
    "table2": table2,
    "figure1": figure1,
    "baseline": baseline,
    "table4": table4,
    "mnist": mnist,
    "bound": bound,
    "convex": convex,
}
