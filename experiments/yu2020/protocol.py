"""The protocol of yu2020: accuracies, curvatures and the bound by expected curvature."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from experiments.edges import Tried, labelled
from experiments.protocol import Column, Table

# Every method, and the neighbouring relation of its budget.
METHODS = (
    "DP-GD",
    "DP-GD, add/remove",
    "DP-SGD",
    "DP-SGD, add/remove",
    "AMP",
    "Out-SGD",
)
REGRESSIONS = ("admission", "sonar", "boston", "swedish-motor")
_COLUMNS = "every column over its maximum, rows as they are; AMP and Out-SGD cut rows to norm 1"
_PUBLISHED = {
    "data": "Adult 45,220 × 104; MNIST 65,000 × 784; real-sim 72,309; RCV1 50,000; 80 % to train",
    "encoding": "Iyengar et al.'s: columns over their maximum, rows not normalised",
    "methods": "non-private, AMP, Out-SGD, DP-SGD (moments), DP-GD (Rényi)",
    "grid": "T: 50, 200, 800 / η: 0.1, 1, 5 (×2 for DP-SGD, halved midway; ×2 if sparse) / "
    "C: 1 (0.5 if sparse) / sampling 0.1 / δ = 1/n² / l2 = 1e-4",
    "folds": "chosen on the rows reported",
    "repeats": "20",
    "seeds": "not said",
}
_FURTHER = _PUBLISHED | {
    "data": "all 7 of Iyengar et al., 4 shown: KDDCup99 70,000 × 114 is not one of them (nor are "
    "Covertype and Gisette)"
}
# A cell chooses among settings on one half of the rows held back and reports the other half.
_TABLE4 = Column(
    data=("Adult",),
    encoding=_COLUMNS,
    methods=METHODS,
    grid={
        "epsilon": (0.05, 0.1, 0.2, 0.5, 1.0),
        "steps": (50, 200),
        "step size": (1.0, 5.0),
        "ridge": (1.0, 3.0, 10.0, 30.0),
        "passes": (1, 5),
        "output step size": (0.1, 1.0),
        "draws to choose": (3,),
    },
    folds=1,
    repeats=5,
    seeds=(0,),
    together=("steps", "step size", "ridge", "passes", "output step size"),
)
_WIDENED = {
    "steps": (50, 200),
    "step size": (1.0, 5.0),
    "ridge": (1.0, 3.0, 10.0),
    "passes": (1, 5),
    "output step size": (0.1, 0.3),
    "draws to choose": (5,),
}
# Replace-one alone, and the paper's 20 runs of each split.
_ADULT = dataclasses.replace(
    _TABLE4,
    methods=("DP-GD", "DP-SGD", "AMP", "Out-SGD"),
    grid={"epsilon": (0.05, 0.1, 0.2, 0.5, 1.0), **_WIDENED},
    repeats=20,
)
_KDDCUP99 = dataclasses.replace(
    _ADULT, data=("KDDCup99",), grid={**_ADULT.grid, "epsilon": (0.1, 1.0)}
)
_SPARSE = dataclasses.replace(
    _ADULT,
    data=("real-sim", "rcv1"),
    encoding="the file as LIBSVM publishes it, rows of norm 1; of RCV1 50,000 rows drawn",
    grid={"epsilon": (0.1,), "clip norm": (0.5,), **_WIDENED, "step size": (2.0, 10.0)},
)
_FULL_GRID = {
    **_TABLE4.grid,
    "epsilon": (0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
    "steps": (50, 200, 800),
    "step size": (0.1, 1.0, 5.0),
    "ridge": (0.3, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 100.0),
    "passes": (1, 5, 20),
    "output step size": (0.1, 0.3, 1.0),
}
_BASELINE = Column(
    data=("Adult",),
    encoding="every column over its maximum, rows as they are",
    methods=("non-private", "majority"),
    grid={},
    folds=1,
    repeats=1,
    seeds=(0, 1, 2, 3, 4),
    together=("methods",),
)

# Table 2 and Figure 1 are of whole data sets; nothing is chosen, and only Figure 1 simulates.
_CURVATURES = Column(
    data=REGRESSIONS,
    encoding="admission: columns from 0 to 1; the others: columns over their maximum",
    methods=(),
    grid={},
    folds=0,
    repeats=1,
    seeds=(),
)
_CURVATURES_PUBLISHED = {
    "data": "Graduate Admission, Sonar, Boston Housing, Swedish Motor",
    "encoding": "said to be min-max normalised; three of four are columns over their maximum",
    "methods": "none",
    "grid": "σ, in a plot",
    "folds": "none",
    "repeats": "not said",
    "seeds": "none",
}
_BOUND = Column(
    data=("Adult",),
    encoding="numbers over their ranges, rows of norm 1",
    methods=("DP-GD",),
    grid={"epsilon": (0.1, 1.0), "steps": (400,)},
    folds=0,
    repeats=20,
    seeds=(0,),
)

_BOUND_DRAWN = dataclasses.replace(
    _BOUND,
    data=("logistic regression",),
    encoding="3 columns drawn at random, rows of norm 1, no intercept",
    grid={"records": (100_000, 400_000), "epsilon": (0.25, 1.0, 4.0), "steps": (400,)},
)

_SLOPES = Column(
    data=("logistic regression",),
    encoding="drawn: unit rows and labels of a logistic model",
    methods=("objective", "output", "DP-GD", "DP-SGD"),
    grid={
        "records": (2_000, 8_000, 32_000),
        "dimension": (5, 20),
        "epsilon": (0.5, 2.0),
        "delta": (1e-9,),
        "l2": (0.3,),
        "draws to choose": (20,),
    },
    folds=0,
    repeats=100,
    seeds=(0,),
    together=("methods",),
)

# Theorem 2 in batches, where its bound says something, and with one record a step as printed.
_BATCHES = Column(
    data=("logistic regression", "dot product"),
    encoding="3 columns drawn at random, rows of norm 1, no intercept; a ball of radius 4 (0.5)",
    methods=("DP-SGD",),
    grid={"records": (10_000,), "batch": (100,), "steps": (100_000,), "epsilon": (1.0,)},
    folds=0,
    repeats=5,
    seeds=(0,),
)
_ONE_BY_ONE = dataclasses.replace(
    _BATCHES,
    data=("dot product",),
    grid={"records": (250,), "batch": (1,), "steps": ("n²ε²",), "epsilon": (2.0, 4.0, 8.0)},
)
_ADULT_BATCHES = dataclasses.replace(
    _BOUND,
    encoding=_BOUND.encoding + "; a ball of radius 10",
    methods=("DP-SGD",),
    grid={"records": (45_222,), "batch": (4_522.2,), "steps": (400,), "epsilon": (0.1, 1.0)},
    repeats=5,
)
_ROOT = dataclasses.replace(
    _BATCHES,
    grid={"records": (250, 2_000), "batch": (1,), "steps": ("nε/√p",), "epsilon": (2.0, 8.0)},
)
_PATHS = Column(
    data=REGRESSIONS,
    encoding=_CURVATURES.encoding,
    methods=("plain", "heavy ball", "accelerated", "accelerated, restarted"),
    grid={"steps": (200,), "epsilon": (1.0,)},
    folds=0,
    repeats=1,
    seeds=(),
    together=("methods",),
)
_RESTRICTED = Column(
    data=("least squares of rank 10",),
    encoding="40 columns of rank 10 drawn, rows of norm 1; a ball of radius 3",
    methods=("DP-GD",),
    grid={"records": (20_000,), "epsilon": (0.5, 2.0, 8.0)},
    folds=0,
    repeats=20,
    seeds=(0,),
)
_WIDENED_CODE = (
    *(f"experiments.yu2020.{name}" for name in ("cells", "records", "methods")),
    "experiments.widening",
    "experiments.comparison",
)
_THEOREM = dict.fromkeys(_PUBLISHED, "a theorem without a run")

TABLES = (
    Table(
        name="table2",
        about="smallest and average eigenvalue of the Hessian of linear regression",
        published=_CURVATURES_PUBLISHED | {"grid": "none"},
        small=_CURVATURES,
        full=_CURVATURES,
        compute="experiments.yu2020.curvature:extremes",
    ),
    Table(
        name="figure1",
        about="expected curvature against the noise in the iterate, by Equation 5 and simulated",
        published=_CURVATURES_PUBLISHED,
        small=dataclasses.replace(_CURVATURES, grid={"points": (25,)}),
        full=dataclasses.replace(_CURVATURES, grid={"points": (60,)}),
        compute="experiments.yu2020.curvature:expected",
    ),
    Table(
        name="bound",
        about="excess risk of DP-GD beside Theorem 1's bound by ν and by μ",
        published=_THEOREM,
        small=_BOUND,
        full=dataclasses.replace(
            _BOUND, grid={"epsilon": (0.1, 1.0), "steps": (2_000,)}, repeats=100
        ),
        compute="experiments.yu2020.bound:excess_risk",
        code=("experiments.data_sets", "experiments.yu2020.stochastic"),
    ),
    Table(
        name="bounddrawn",
        about="the same on records that are drawn: μ small, ν tens of times as large",
        published=_THEOREM,
        small=_BOUND_DRAWN,
        full=dataclasses.replace(
            _BOUND_DRAWN,
            grid={**_BOUND_DRAWN.grid, "records": (100_000, 400_000, 1_000_000)},
            repeats=100,
        ),
        compute="experiments.yu2020.bound:excess_risk",
        code=("experiments.data_sets", "experiments.yu2020.stochastic"),
    ),
    Table(
        name="slopes",
        about="Table 1 as slopes: the least excess risk of four ways of perturbing by n, p and ε; "
        "steps of length 1/β but for DP-SGD, whose rate and first step are tuned",
        published=_THEOREM | {"methods": "objective, output, DP-GD, DP-SGD; bounds, no run"},
        small=_SLOPES,
        full=dataclasses.replace(
            _SLOPES,
            grid={**_SLOPES.grid, "records": (2_000, 8_000, 32_000, 128_000)},
            seeds=(0, 1, 2),
        ),
        compute="experiments.yu2020.utility_rates:cell",
        code=(
            "experiments.chourasia2021.lower_bound",
            "experiments.yu2020.methods",
            "experiments.widening",
        ),
    ),
    Table(
        name="convex",
        about="excess risk of DP-GD's averaged iterate beside Theorem 1's bound for ν = 0",
        published=_THEOREM,
        small=dataclasses.replace(_BOUND, grid={"epsilon": (0.05, 0.1)}),
        full=dataclasses.replace(_BOUND, grid={"epsilon": (0.05, 0.1, 0.5, 1.0)}, repeats=100),
        compute="experiments.yu2020.convex:averaged",
        code=("experiments.data_sets",),
    ),
    Table(
        name="theorem2",
        about="excess risk of DP-SGD with Theorem 2's step sizes beside its bound, in batches",
        published=_THEOREM | {"grid": "T = n²ε², one record a step"},
        small=_BATCHES,
        full=dataclasses.replace(
            _BATCHES, grid={**_BATCHES.grid, "epsilon": (0.25, 0.5, 1.0, 2.0)}, repeats=20
        ),
        compute="experiments.yu2020.stochastic:theorem2",
    ),
    Table(
        name="algorithm2",
        about="the same with one record a step and T = n²ε², as Theorem 2 is printed",
        published=_THEOREM | {"grid": "T = n²ε², one record a step"},
        small=_ONE_BY_ONE,
        full=dataclasses.replace(
            _ONE_BY_ONE,
            data=("logistic regression", "dot product"),
            grid={**_ONE_BY_ONE.grid, "records": (250, 500)},
            repeats=20,
        ),
        compute="experiments.yu2020.stochastic:theorem2",
    ),
    Table(
        name="algorithm2root",
        about="the same with T = nε/√p, the remark after Theorem 2",
        published=_THEOREM | {"grid": "T = nε/√p, one record a step"},
        small=_ROOT,
        full=dataclasses.replace(
            _ROOT, grid={**_ROOT.grid, "records": (250, 2_000, 16_000)}, repeats=20
        ),
        compute="experiments.yu2020.stochastic:theorem2",
    ),
    Table(
        name="restricted",
        about="Theorem 1 where μ = 0 < ν: least squares with columns that depend on each other",
        published=_THEOREM,
        small=_RESTRICTED,
        full=dataclasses.replace(
            _RESTRICTED, grid={**_RESTRICTED.grid, "records": (20_000, 100_000)}, repeats=100
        ),
        compute="experiments.yu2020.paths:restricted",
    ),
    Table(
        name="paths",
        about="the smallest ν along four descents, with and without the noise of (1, 1/n²)",
        published=_THEOREM | {"methods": "said of gradient perturbation, output and objective"},
        small=_PATHS,
        full=dataclasses.replace(
            _PATHS, grid={"steps": (50, 200, 800), "epsilon": (0.1, 1.0, 10.0)}
        ),
        compute="experiments.yu2020.paths:along",
        code=("experiments.yu2020.curvature",),
    ),
    Table(
        name="theorem2adult",
        about="the same on Adult, at the sampling rate and the number of steps of Section 4",
        published=_THEOREM | {"grid": "T = n²ε², one record a step"},
        small=_ADULT_BATCHES,
        full=dataclasses.replace(
            _ADULT_BATCHES, grid={**_ADULT_BATCHES.grid, "steps": (800,)}, repeats=20
        ),
        compute="experiments.yu2020.stochastic:theorem2",
        code=("experiments.data_sets",),
    ),
    Table(
        name="baseline",
        about="what no privacy and what the most frequent class reach",
        published=_PUBLISHED | {"methods": "non-private", "grid": "l2 = 1e-4", "repeats": "1"},
        small=_BASELINE,
        full=dataclasses.replace(_BASELINE, seeds=tuple(range(10))),
        compute="experiments.yu2020.cells:baseline",
        code=("experiments.yu2020.records",),
    ),
    Table(
        name="baseline_mnist",
        about="the same with ten classes",
        published=_PUBLISHED | {"methods": "non-private", "grid": "l2 = 1e-4", "repeats": "1"},
        small=dataclasses.replace(_BASELINE, data=("MNIST",)),
        full=dataclasses.replace(_BASELINE, data=("MNIST",), seeds=tuple(range(10))),
        compute="experiments.yu2020.cells:baseline",
        code=("experiments.yu2020.records",),
    ),
    Table(
        name="table4",
        about="accuracy against ε at equal (ε, 1/n²), replace-one unless a method says add/remove",
        published=_PUBLISHED,
        small=_TABLE4,
        full=dataclasses.replace(_TABLE4, grid=_FULL_GRID, repeats=20),
        compute="experiments.yu2020.cells:private",
        code=("experiments.yu2020.records", "experiments.yu2020.methods"),
    ),
    Table(
        name="adult",
        about="the replace-one rows of the same by 20 runs on several splits, each grid widened "
        "until the best is inside",
        published=_PUBLISHED,
        small=dataclasses.replace(_ADULT, seeds=tuple(range(5))),
        full=dataclasses.replace(_ADULT, seeds=tuple(range(10))),
        compute="experiments.yu2020.wider_grid:private",
        code=_WIDENED_CODE,
    ),
    Table(
        name="sparse_baseline",
        about="what no privacy and the most frequent class reach on real-sim and RCV1",
        published=_PUBLISHED | {"methods": "non-private", "grid": "l2 = 1e-4", "repeats": "1"},
        small=dataclasses.replace(_BASELINE, data=_SPARSE.data, seeds=(0,)),
        full=dataclasses.replace(_BASELINE, data=_SPARSE.data, seeds=tuple(range(10))),
        compute="experiments.yu2020.sparse_records:baseline",
        code=("experiments.data_sets", "experiments.yu2020.cells"),
        needs="libsvm/{data}*",
    ),
    Table(
        name="sparse",
        about="accuracy at ε = 0.1 on real-sim and RCV1, on files of the user's own",
        published=_PUBLISHED,
        small=_SPARSE,
        full=dataclasses.replace(_SPARSE, seeds=tuple(range(10))),
        compute="experiments.yu2020.sparse_records:private",
        code=("experiments.data_sets", "experiments.yu2020.wider_grid", *_WIDENED_CODE),
        needs="libsvm/{data}*",
    ),
    Table(
        name="mnist",
        about="accuracy against ε of ten classes: softmax regression, or a classifier a class",
        published=_PUBLISHED,
        # One draw a setting: ten classes take that much longer.
        small=dataclasses.replace(
            _TABLE4,
            data=("MNIST",),
            grid={**_TABLE4.grid, "epsilon": (0.05, 0.1, 0.5, 1.0), "draws to choose": (1,)},
        ),
        full=dataclasses.replace(_TABLE4, data=("MNIST",), grid=_FULL_GRID, repeats=20),
        compute="experiments.yu2020.cells:private",
        code=("experiments.yu2020.records", "experiments.yu2020.methods"),
    ),
    Table(
        name="baseline_kddcup99",
        about="what no privacy and the most frequent class reach on one of the data sets that "
        "footnote 4 speaks of",
        published=_FURTHER | {"methods": "non-private", "grid": "l2 = 1e-4", "repeats": "1"},
        small=dataclasses.replace(_BASELINE, data=("KDDCup99",), seeds=(0,)),
        full=dataclasses.replace(_BASELINE, data=("KDDCup99",), seeds=tuple(range(10))),
        compute="experiments.yu2020.cells:baseline",
        code=("experiments.yu2020.records",),
    ),
    Table(
        name="kddcup99",
        about="accuracy against ε on it, the third of the seven data sets that is at hand whole",
        published=_FURTHER,
        small=dataclasses.replace(
            _TABLE4, data=("KDDCup99",), grid={**_TABLE4.grid, "epsilon": (0.1, 1.0)}
        ),
        full=dataclasses.replace(_TABLE4, data=("KDDCup99",), grid=_FULL_GRID, repeats=20),
        compute="experiments.yu2020.cells:private",
        code=("experiments.yu2020.records", "experiments.yu2020.methods"),
    ),
    Table(
        name="kddcup99_inside",
        about="the replace-one rows of the same by 20 runs, each grid widened until the best is "
        "inside",
        published=_FURTHER,
        small=_KDDCUP99,
        full=dataclasses.replace(_KDDCUP99, seeds=tuple(range(10))),
        compute="experiments.yu2020.wider_grid:private",
        code=_WIDENED_CODE,
    ),
)


def _grid(row: Mapping) -> dict[str, Tried]:
    """What a row of accuracies was chosen among, by the small column."""
    grid, found, name = _TABLE4.grid, labelled(row["setting"]), row["method"].partition(", ")[0]
    if name == "AMP":  # a ridge below the least is not private
        return {"ridge": Tried(found["ridge"], grid["ridge"], least=1.0)}
    if name == "Out-SGD":
        sizes = Tried(found["step_size"], grid["output step size"])
        return {"passes": Tried(found["passes"], grid["passes"], least=1.0), "step size": sizes}
    sizes = [size * (2.0 if name == "DP-SGD" else 1.0) for size in grid["step size"]]
    steps = Tried(found["steps"], grid["steps"])
    return {"steps": steps, "step size": Tried(found["step_size"], sizes)}


CHOSEN = {"table4": _grid, "mnist": _grid, "kddcup99": _grid}
