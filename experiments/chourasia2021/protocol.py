"""The protocol of chourasia2021's figure and of its two theorems on utility."""

from __future__ import annotations

import dataclasses

from experiments.protocol import Column, Table

NOISES = ("composition", "published (Theorem 3)", "shifted interpolation")
BOUNDS = (
    "composition",
    "tracing diffusion (e^{-ληK/2})",
    "tracing diffusion, as printed (e^{-ηK/2})",
    "tracing diffusion, best γ(t)",
    "numerical solution, γ = 1/2",
    "numerical solution, best γ(t)",
    "shifted interpolation",
    "exact, quadratic of curvature λ",
    "lower bound (λ = 1)",
)
TABLE1_METHODS = (
    "noisy GD, published (Theorem 3)",
    "noisy GD, shifted interpolation",
    "noisy SGD, a record a step",
    "output perturbation",
    "objective perturbation",
)
_THEORY = {"data": "none", "encoding": "none", "folds": "none", "repeats": "none", "seeds": "none"}

_FIGURE1 = Column(
    data=(),
    encoding="none: a formula",
    methods=BOUNDS,
    grid={"strong convexity": (0.5, 1.0, 2.0, 4.0), "points": (40,), "steps up to": (2_000,)},
    folds=0,
    repeats=1,
    seeds=(),
    together=("methods",),
)
_THEOREM3 = Column(
    data=("Adult",),
    encoding="one-hot categories, numbers in [0, 1], rows of unit norm",
    methods=NOISES,
    grid={"l2": (0.1,), "epsilon": (1.0,), "delta": (1e-5,), "points": (8,)},
    folds=0,
    repeats=20,
    seeds=(0,),
)
_THEOREM4 = Column(
    data=("logistic regression", "linear loss"),
    encoding="drawn: unit rows and labels of a logistic model; corners ±1/√d of a cube",
    methods=NOISES,
    grid={
        "records": (1_000, 5_000, 25_000),
        "dimension": (5, 20, 80),
        "epsilon": (0.25, 1.0),
        "delta": (1e-6,),
        "l2": (0.1,),
    },
    folds=0,
    repeats=40,
    seeds=(0,),
    together=("methods",),
)
_TABLE1 = Column(
    data=("logistic regression",),
    encoding="drawn: unit rows and labels of a logistic model",
    methods=TABLE1_METHODS,
    grid={
        "records": (1_000, 2_000, 4_000, 8_000, 16_000),
        "dimension": (5,),
        "epsilon": (1.0,),
        "delta": (1e-6,),
        "l2": (0.3,),
    },
    folds=0,
    repeats=20,
    seeds=(0, 1, 2, 3),
    together=("methods",),
)

TABLES = (
    Table(
        name="figure1",
        about="Rényi privacy of the last iterate against steps",
        published=_THEORY
        | {
            "methods": "composition, Theorem 1",
            "grid": "λ: 1 and others; α = 30, S = 4, n = 5,000, σ = 0.02, η = 0.02, β = 4",
        },
        small=_FIGURE1,
        full=dataclasses.replace(_FIGURE1, grid={**_FIGURE1.grid, "points": (120,)}),
        compute="experiments.chourasia2021.dynamics:cell",
    ),
    Table(
        name="theorem3",
        about="excess risk on records of people against gradients computed",
        published=_THEORY
        | {
            "methods": "noisy GD at the theorem's noise, step size and K*; a bound, no run",
            "grid": "none",
        },
        small=_THEOREM3,
        full=dataclasses.replace(_THEOREM3, repeats=100, grid={**_THEOREM3.grid, "points": (16,)}),
        compute="experiments.chourasia2021.utility:cell",
        code=("experiments.data_sets",),
    ),
    Table(
        name="theorem4",
        about="excess risk of noisy GD at K* against the lower bound's rate d/(ε²n²)",
        published=_THEORY
        | {
            "methods": "noisy GD (Theorem 3) against every private algorithm (Theorem 4); no run",
            "grid": "none; δ = o(1/n), 1-Lipschitz, 1-strongly convex for the lower bound",
        },
        small=_THEOREM4,
        full=dataclasses.replace(
            _THEOREM4,
            repeats=200,
            grid={**_THEOREM4.grid, "records": (1_000, 5_000, 25_000, 125_000)},
            seeds=(0, 1, 2),
        ),
        compute="experiments.chourasia2021.lower_bound:cell",
        code=("experiments.chourasia2021.utility",),
    ),
    Table(
        name="table1",
        about="gradients until the excess risk of noisy GD at K*, and the least risk, by n",
        published=_THEORY
        | {
            "methods": "noisy GD, noisy SGD, objective and output perturbation; bounds, no run",
            "grid": "none",
        },
        small=_TABLE1,
        full=dataclasses.replace(
            _TABLE1,
            grid={
                **_TABLE1.grid,
                "records": (1_000, 2_000, 4_000, 8_000, 16_000),
                "dimension": (5, 20),
            },
            seeds=(0, 1, 2, 3),
        ),
        compute="experiments.chourasia2021.complexity:cell",
        code=("experiments.chourasia2021.utility", "experiments.chourasia2021.lower_bound"),
    ),
)
