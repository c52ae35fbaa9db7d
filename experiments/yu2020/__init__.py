"""Yu, Zhang, Chen, Yin and Liu 2020: gradient perturbation is underrated."""

from experiments.yu2020.accuracy import (
    baseline,
    baseline_kddcup99,
    baseline_mnist,
    kddcup99,
    mnist,
    table4,
)
from experiments.yu2020.figures import (
    algorithm2,
    algorithm2root,
    bound,
    convex,
    figure1,
    paths,
    restricted,
    table2,
    theorem2,
    theorem2adult,
)

TARGETS = {
    "table2": table2,
    "figure1": figure1,
    "baseline": baseline,
    "baseline_mnist": baseline_mnist,
    "table4": table4,
    "mnist": mnist,
    "bound": bound,
    "convex": convex,
    "theorem2": theorem2,
    "algorithm2": algorithm2,
    "algorithm2root": algorithm2root,
    "restricted": restricted,
    "paths": paths,
    "theorem2adult": theorem2adult,
    "baseline_kddcup99": baseline_kddcup99,
    "kddcup99": kddcup99,
}
