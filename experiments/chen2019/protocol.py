"""The protocol of chen2019: accuracies and objectives, processing time, and the noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from experiments.chen2019.methods import ADDED_2019, AS_2019, METHODS
from experiments.chen2019.records import TASKS
from experiments.edges import Tried, labelled
from experiments.protocol import Column, Table

_ROWS = (
    "a9a: Adult as 123 binary columns; Bank: columns over their ranges; a constant added, then "
    "rows of norm 1 for all but non-private, DP-AGD and SGD-MA, which clip gradients"
)
_PUBLISHED = {
    "data": "Adult 48,842 × 124, Bank 45,211 × 33, IPUMS-US 40,000 × 58, IPUMS-BR 38,000 × 53",
    "encoding": "one-hot, numbers in [0, 1], rows of norm 1 where a method needs it",
    "methods": "RSGD-AR, ObjPert, OutPert-GD, DP-AGD, SGD-MA, NSGD, non-private, majority",
    "grid": "δ: 1e-8 / l2: 0.001 / batch: 4,000, of SGD-MA √n / the rest is not said",
    "folds": "5, chosen on the rows reported or not is not said",
    "repeats": "20 × 5 folds",
    "seeds": "not said",
}
# Eight settings a method; a cell chooses among them on one half of the rows held back and reports
# the other half. The steps are shares of 2/(L + μ), up to the largest that contracts and past it.
_SMALL = Column(
    data=("a9a", "Bank"),
    encoding=_ROWS,
    methods=METHODS,
    grid={
        "task": TASKS[:1],
        "epsilon": (0.05, 0.2, 1.0),
        "batch": (4000,),
        "epochs": (40, 200),
        "restarts": (2, 4),
        "step share": (0.125, 0.4, 1.0, 1.05),
        "step share of RSGD-AR": (0.4, 1.05),
        "ridge": (1.0, 1.7, 3.0, 5.5, 10.0, 17.0, 30.0, 55.0),
        "full steps": (20, 50, 200, 800),
        "planned steps": (15, 30, 60, 120),
        "clip norm": (1.0, 3.0),
        "sampled steps": (100, 400),
        "step size": (0.5, 1.0, 2.0, 4.0),
        "draws to choose": (12,),
    },
    folds=1,
    repeats=20,
    seeds=(0,),
    together=(
        "epsilon", "epochs", "restarts", "step share", "step share of RSGD-AR", "ridge",
        "full steps", "planned steps", "clip norm", "sampled steps", "step size",
    ),
)  # fmt: skip
_FULL = dataclasses.replace(
    _SMALL,
    grid={
        **_SMALL.grid,
        "epsilon": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
        "batch": (1000, 4000),
        "epochs": (20, 40, 100, 200),
        "restarts": (2, 4, 10, 20),
        "step share": (0.05, 0.125, 0.4, 1.0, 1.05),
        "step share of RSGD-AR": (0.125, 0.4, 1.0, 1.05),
        "sampled steps": (100, 400, 1000, 4000),
        "step size": (0.3, 1.0, 3.0, 6.0),
    },
    seeds=tuple(range(10)),
)
_CODE = (
    "experiments.chen2019.records",
    "experiments.chen2019.methods",
    "experiments.chen2019.routes",
    "experiments.comparison",
)
_BASELINE = Column(
    data=("a9a", "Bank"),
    encoding=_ROWS,
    methods=("non-private", "non-private, unit rows", "majority"),
    grid={"task": TASKS},
    folds=1,
    repeats=1,
    seeds=(0,),
    together=("methods",),
)


def _svm(column: Column) -> Column:
    return dataclasses.replace(column, grid={**column.grid, "task": TASKS[1:]})


_WIDENED = dataclasses.replace(
    _SMALL,
    methods=("RSGD-AR", "RSGD (no averaging)"),
    grid={
        "task": TASKS,
        "epsilon": (0.05, 0.2, 1.0),
        "batch": (4000,),
        "epochs": (40, 200),
        "restarts": (2, 4),
        "step share": (0.4, 1.05),
        "step share of RSGD-AR": (0.4, 1.05),
        "draws to choose": (12,),
    },
    seeds=tuple(range(5)),
    together=("epsilon", "epochs", "restarts", "step share", "step share of RSGD-AR"),
)
_TIME = Column(
    data=("KDDCup99",),
    encoding="one-hot, numbers in [0, 1], rows of norm 1; drawn of the 494,021 rows of the 10 % "
    "subset, as the whole set is not at hand",
    methods=("RSGD-AR", "NSGD", "ObjPert", "OutPert-GD", "DP-AGD", "SGD-MA"),
    grid={"rows": (50_000, 100_000, 150_000, 200_000, 250_000), "epsilon": (0.5,)},
    folds=0,
    repeats=1,
    seeds=(0,),
)
_NOISE = Column(
    data=(),
    encoding="none: σ follows from 39,073 rows in batches of 4,000, L = 0.251, μ = 0.001, δ = 1e-8",
    methods=(),
    grid={
        "step size, epochs": ((1.0, 10), (0.1, 10), (1.0, 20), (4.0, 10), (4.0, 50)),
        "epsilon": (0.05, 0.1, 0.5, 1.0),
    },
    folds=0,
    repeats=1,
    seeds=(),
    together=("epsilon",),
)
_SGLD = Column(
    data=("a9a",),
    encoding="a9a: Adult as 123 binary columns and a constant, rows of norm 1",
    methods=(),
    grid={
        "task": TASKS[:1],
        "epsilon": (0.5, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0),
        "share of 2/L": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 1e-1),
    },
    folds=1,
    repeats=10,
    seeds=(0,),
    together=("share of 2/L",),
)

TABLES = (
    Table(
        name="baseline",
        about="what no privacy and the most frequent class reach",
        published=_PUBLISHED | {"methods": "non-private, majority", "grid": "l2: 0.001"},
        small=_BASELINE,
        full=dataclasses.replace(_BASELINE, seeds=tuple(range(10))),
        compute="experiments.chen2019.cells:baseline",
        code=("experiments.chen2019.records",),
    ),
    Table(
        name="figure1",
        about="logistic regression: accuracy and objective against ε, replace-one unless said",
        published=_PUBLISHED,
        small=_SMALL,
        full=_FULL,
        compute="experiments.chen2019.cells:private",
        code=_CODE,
    ),
    Table(
        name="figure2",
        about="huberised SVM, h = 0.5: accuracy and objective against ε, replace-one unless said",
        published=_PUBLISHED,
        small=_svm(_SMALL),
        full=_svm(_FULL),
        compute="experiments.chen2019.cells:private",
        code=_CODE,
    ),
    Table(
        name="widened",
        about="RSGD-AR and permuted SGD without averaging, each grid widened until the best is "
        "inside",
        published=_PUBLISHED | {"methods": "RSGD-AR"},
        small=_WIDENED,
        full=dataclasses.replace(_WIDENED, seeds=tuple(range(20))),
        compute="experiments.chen2019.wider_grid:private",
        code=("experiments.chen2019.cells", *_CODE, "experiments.widening"),
    ),
    Table(
        name="figure3",
        about="processor seconds of a fit, its calibration apart, against the number of rows",
        published={
            "data": "KDDCup99, 4,898,431 × 120",
            "encoding": _PUBLISHED["encoding"],
            "methods": "RSGD-AR, ObjPert, OutPert-GD, DP-AGD, SGD-MA",
            "grid": "rows: 50k, 100k, 150k, 200k, 250k / δ: 1e-12 / settings not said",
            "folds": "none",
            "repeats": "not said",
            "seeds": "not said",
        },
        small=_TIME,
        full=dataclasses.replace(_TIME, repeats=5),
        compute="experiments.chen2019.timing:seconds",
        code=("experiments.chen2019.methods",),
    ),
    Table(
        name="sgld",
        about="noisy SGLD at the noise that its own proof asks for (footnote 3), against ε",
        published=_PUBLISHED | {"methods": "noisy SGLD: said to diverge, no number", "grid": "–"},
        small=_SGLD,
        full=dataclasses.replace(
            _SGLD, data=("a9a", "Bank"), grid={**_SGLD.grid, "task": TASKS}, repeats=100
        ),
        compute="experiments.chen2019.langevin:cell",
        code=("experiments.chen2019.records",),
    ),
    Table(
        name="noise",
        about="σ of RSGD-AR by the published route, a better conversion, and the direct mixture",
        published={
            "data": "none",
            "encoding": "none",
            "methods": "none",
            "grid": "not in the paper",
            "folds": "none",
            "repeats": "none",
            "seeds": "none",
        },
        small=_NOISE,
        full=_NOISE,
        compute="experiments.chen2019.prices:routes",
        code=("experiments.chen2019.routes",),
    ),
)


def _on_extracts(table: Table) -> Table:
    """A table on the user's own extracts of IPUMS-US and -BR."""
    own = {
        "data": ("IPUMS-US", "IPUMS-BR"),
        "encoding": "text one-hot, numbers in [0, 1], a constant; rows of norm 1 as above",
    }
    return dataclasses.replace(
        table,
        name=f"{table.name}_ipums",
        about=f"{table.about}; on one's own extracts of IPUMS",
        small=dataclasses.replace(table.small, **own),
        full=dataclasses.replace(table.full, **own),
        needs="ipums/{data}.*",
    )


TABLES += tuple(_on_extracts(table) for table in TABLES[:3])

# Two over the smoothness and the strong convexity: the step size that "step share" is a share of.
_LONGEST = {"logistic": 2.0 / (0.25 + 2 * 0.001), "svm": 2.0 / (1.0 + 2 * 0.001)}
_SMOOTHNESS = {"logistic": 0.25 + 0.001, "svm": 1.0 + 0.001}


def _grid(row: Mapping) -> dict[str, Tried]:
    """What a row of Figures 1 and 2 was chosen among, by the small column."""
    grid, found = _SMALL.grid, labelled(row["setting"])
    name = row["method"].removesuffix(ADDED_2019).removesuffix(AS_2019)
    longest = _LONGEST[row["task"]]
    if name == "ObjPert":  # a ridge below the least is not private
        return {"ridge": Tried(found["ridge"], grid["ridge"], least=1.0)}
    if name == "OutPert-GD":  # its price rests on steps that contract
        most = 1.0 / _SMOOTHNESS[row["task"]] if AS_2019 in row["method"] else longest
        sizes = Tried(found["step_size"], (1.0, most), most=most)
        return {"steps": Tried(found["steps"], grid["full steps"]), "step size": sizes}
    if name == "DP-AGD":
        steps = Tried(found["planned_steps"], grid["planned steps"])
        return {"steps": steps, "clip norm": Tried(found["clip_norm"], grid["clip norm"])}
    if name == "SGD-MA":
        steps = Tried(found["steps"], grid["sampled steps"])
        return {"steps": steps, "step size": Tried(found["step_size"], grid["step size"])}
    own = name == "RSGD-AR"
    shares = grid["step share of RSGD-AR" if own else "step share"]
    # A longer step does not contract, which is what the algorithm's sensitivity rests on.
    sizes = Tried(found["step_size"], [longest * share for share in shares], most=longest)
    tried = {"epochs": Tried(found["epochs"], grid["epochs"]), "step size": sizes}
    if own:
        tried["restarts"] = Tried(found["restarts"], grid["restarts"], least=1.0)
    return tried


def _grid_of_sgld(row: Mapping) -> dict[str, Tried]:
    """What a row of footnote 3 was chosen among."""
    sizes = [2.0 / _SMOOTHNESS[row["task"]] * share for share in _SGLD.grid["share of 2/L"]]
    return {"step size": Tried(row["step size"], sizes)}


CHOSEN = {
    "figure1": _grid,
    "figure2": _grid,
    "figure1_ipums": _grid,
    "figure2_ipums": _grid,
    "sgld": _grid_of_sgld,
}
