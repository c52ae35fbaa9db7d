"""The protocol of tholeti2021's figure and of its two theorems."""

from __future__ import annotations

import dataclasses

from experiments.protocol import Column, Table

_NO_RUN = {"data": "none", "encoding": "none", "folds": "none", "repeats": "none", "seeds": "none"}
# Which records a step sees, and whether noise from the unit ball joins: Algorithm 1 is the first.
METHODS = ("one record, ball", "one record", "all records, ball", "all records")

_FIGURE2 = Column(
    data=(),
    encoding="none: a formula and its simulation",
    methods=("ball",),
    grid={"dimension": (1, 2, 5, 10, 50, 100, 1000), "points": (25,), "samples": (50_000,)},
    folds=0,
    repeats=1,
    seeds=(),
)
_THEOREM1 = Column(
    data=(),
    encoding="none: a formula",
    methods=("ball", "Gaussian"),
    grid={
        "records and steps": (
            (1_000, 1_000),
            (10_000, 10_000),
            (60_000, 600),
            (60_000, 6_000),
            (60_000, 60_000),
        ),
        "dimension": (10, 1_000),
        "price": ("best",),
    },
    folds=0,
    repeats=1,
    seeds=(),
    together=("methods", "dimension"),
)
_THEOREM2 = Column(
    data=("rank-1 factorisation",),
    encoding="1,600 records: the entries of a 40 × 40 matrix with eigenvalues 1, 1/2, 1/4, 0, …",
    methods=METHODS,
    grid={
        "step size": (0.00125, 0.0025, 0.005, 0.01),
        "radius": (1.0,),
        "time": (30.0,),
    },
    folds=0,
    repeats=4,
    seeds=(0,),
)

TABLES = (
    Table(
        name="figure2",
        about="δ of one step against sensitivity and dimension",
        published=_NO_RUN | {"methods": "unit ball, Eq. 6", "grid": "several d; Δ in [0, 2]"},
        small=_FIGURE2,
        full=dataclasses.replace(
            _FIGURE2, grid={**_FIGURE2.grid, "points": (100,), "samples": (400_000,)}
        ),
        compute="experiments.tholeti2021.privacy:one_step",
    ),
    Table(
        name="theorem1",
        about="total δ against n and T, and the Gaussian noise that costs as much",
        published=_NO_RUN | {"methods": "unit ball, Eq. 7", "grid": "none"},
        small=_THEOREM1,
        full=dataclasses.replace(
            _THEOREM1,
            grid={
                **_THEOREM1.grid,
                "records and steps": tuple(
                    (n, t * n // 100) for n in (1_000, 10_000, 60_000) for t in (1, 10, 100)
                ),
            },
        ),
        compute="experiments.tholeti2021.privacy:whole_run",
    ),
    Table(
        name="theorem2",
        about="from a strict saddle to a minimum: distance and steps against the step size η",
        published=_NO_RUN
        | {
            "methods": "Algorithm 1: one record a step and noise from the unit ball; no run",
            "grid": "none: Õ(√η)-close to a local minimum within Õ(η⁻²) steps, likely",
        },
        small=_THEOREM2,
        full=dataclasses.replace(
            _THEOREM2,
            repeats=50,
            seeds=(0, 1, 2),
            grid={**_THEOREM2.grid, "step size": (0.000625, 0.00125, 0.0025, 0.005, 0.01, 0.02)},
        ),
        compute="experiments.tholeti2021.landscape:cell",
    ),
)
