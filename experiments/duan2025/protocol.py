"""The protocol of duan2025: directions, privacy, Figure 5, Tables II and III, run time."""

from __future__ import annotations

import dataclasses

from experiments.protocol import Column, Table

BETAS = (0.01, 0.1, 1.0)
FIGURE4_BETAS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
_SIGMAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
_DIMENSIONS = (500, 1_000, 2_000, 5_000, 10_000, 20_000)
_BATCHES = (512, 1_024, 2_048, 4_096, 8_192, 16_384)
_NO_DATA = {"data": "none", "encoding": "none", "folds": "none", "repeats": "none", "seeds": "none"}


def _grid(batches: tuple[int, ...]) -> tuple[tuple[float, int, int], ...]:
    """The (σ, d, B) of Figures 1, 3 and 4."""
    found = {(s, 5_000, 2_048) for s in _SIGMAS} | {(8.0, d, 4_096) for d in _DIMENSIONS}
    return tuple(sorted(found | {(8.0, 10_000, b) for b in batches}))


_PRIVACY = Column(
    data=(),
    encoding="two batches of 2,048 gradients that differ in one record",
    methods=("GeoDP",),
    grid={"d": (2, 10, 1_000), "beta": (1.0, 0.1), "sigma": _SIGMAS, "trials": (100_000,)},
    folds=0,
    repeats=1,
    seeds=(),
    together=("sigma",),
)
_PERTURBATION = Column(
    data=("gradients on CIFAR-10 (JPEG)",),
    encoding="20,000 of 31,340 coordinates; pixels in [−1, 1]",
    methods=("DP", "anchor", "shrunk", "G3", "GeoDP"),
    grid={
        "sigma, d, B": _grid(_BATCHES[:4]),
        "beta": tuple(sorted({*BETAS, *FIGURE4_BETAS})),
        "images per class": (1_000,),
        "epochs": (2,),
        "pool": (8_192,),
    },
    folds=0,
    repeats=3,
    seeds=(),
    together=("methods", "beta"),
)
_FREE, _DP, _GEO = "noise-free, clipped", "DP", "GeoDP β=1"
_CURVES = (
    ("a", _FREE, 0.0, 4_096),
    *(("a", m, 1.0, b) for b in (2_048, 4_096) for m in (_DP, _GEO, "G3")),
    ("b", _FREE, 0.0, 2_048),
    *(("b", m, 10.0, 2_048) for m in (_DP, _GEO, "GeoDP β=0.5", "G3")),
    ("c", _FREE, 0.0, 256),
    *(("c", m, s, 256) for s in (0.01, 0.1) for m in (_DP, _GEO, "G3")),
)
_FIGURE5 = Column(
    data=("MNIST",),
    encoding="odd against even digits, pixels in [0, 1]",
    methods=(),
    grid={
        "curves": _CURVES,
        "rates": (0.1, 0.25, 0.5, 1.0),
        "iterations": (350,),
        "iterations between points": (25,),
        "train images": (60_000,),
    },
    folds=0,
    repeats=1,
    seeds=(0,),
    together=("rates",),
)
# Every curve of DP-SGD and GeoDP at the best of its step sizes by the seed of _FIGURE5.
_AT_BEST = (
    *((("a", m, 1.0, b), 0.25) for m, b in ((_DP, 2_048), (_DP, 4_096), (_GEO, 4_096))),
    (("a", _GEO, 1.0, 2_048), 0.5),
    *((("b", m, 10.0, 2_048), r) for m, r in ((_DP, 0.25), (_GEO, 0.25), ("GeoDP β=0.5", 0.5))),
    *((("c", m, s, 256), 0.25) for s in (0.01, 0.1) for m in (_DP, _GEO)),
)
_SEEDS5 = dataclasses.replace(
    _FIGURE5,
    grid={"curve, rate": _AT_BEST, "iterations": (350,), "train images": (60_000,)},
    seeds=((1,), (2,), (3,)),
    together=(),
)
_PUBLISHED_TRAINING = {
    "encoding": "not said",
    "folds": "none",
    "repeats": "100",
    "seeds": "not said",
}
_TABLE2 = Column(
    data=("MNIST",),
    encoding="pixels in [−1, 1]",
    methods=tuple(f"{name}, B=16384" for name in (_DP, "GeoDP β=0.1", "G3", "averaged DP", _FREE)),
    grid={
        "sigma": (10.0,),
        "divisor": (16,),
        "rates": (48.0, 96.0),
        "records priced": (60_000,),
        "train images": (60_000,),
        "test images": (10_000,),
    },
    folds=1,
    repeats=1,
    seeds=tuple(range(10)),
    together=("rates", "seeds"),
)
_ADDONS = dataclasses.replace(
    _TABLE2,
    methods=(
        *(f"DP+{name}, B=16384" for name in ("AUTO-S", "PSAC", "IS", "SUR", "SUR by attempts")),
        *(f"DP+SUR+PSAC{count}, B=16384" for count in ("", " by attempts")),
        *(f"GeoDP+{n} β=0.1, B=16384" for n in ("AUTO-S", "PSAC", "IS", "SUR", "SUR+PSAC")),
        *(f"{name}, B=8192" for name in (_DP, "GeoDP β=0.1", "GeoDP β=0.5")),
    ),
    grid={**_TABLE2.grid, "rates": (24.0, 48.0)},
    seeds=(0, 1, 2),
)
# A selective update keeps what passes a noisy test on the batch's mean: smaller batches leave the
# noise of the mean as it is, and vary more from one attempt to the next.
_SELECTIVE = dataclasses.replace(
    _ADDONS,
    methods=("DP, B=16384", "DP+SUR, B=16384", "DP+SUR by attempts, B=16384"),
    grid={**_ADDONS.grid, "divisor": (64,)},
)
_QUIET = dataclasses.replace(
    _TABLE2,
    methods=("DP, B=16384", "GeoDP β=0.1, B=16384"),
    grid={**_TABLE2.grid, "sigma": (1.0,), "divisor": (1,)},
    seeds=(0, 1, 2),
)
_NOISE_FREE = Column(
    data=("MNIST", "CIFAR-10"),
    encoding="pixels in [−1, 1]; of CIFAR-10 the JPEG copy",
    methods=(),
    grid={
        "batch size": (64,),
        "epochs": (20,),
        "rates": (0.025, 0.05),
        "train images": (60_000,),
        "test images": (10_000,),
    },
    folds=1,
    repeats=1,
    seeds=(0,),
    together=("rates", "seeds"),
)
_TABLE3 = Column(
    data=("CIFAR-10",),
    encoding="the JPEG copy, pixels in [−1, 1]",
    methods=("DP, B=16384", "GeoDP β=0.1, B=16384"),
    grid={
        "sigma": (0.1,),
        "divisor": (1,),
        "rates": (48.0, 96.0),
        "records priced": (50_000,),
        "train images": (50_000,),
        "test images": (10_000,),
    },
    folds=1,
    repeats=1,
    seeds=(0, 1, 2),
    together=("rates", "seeds"),
)
_FIGURE6 = Column(
    data=(),
    encoding="none: one vector",
    methods=("DP", "GeoDP"),
    grid={
        "d": (*(m * 10**k for k in range(3, 7) for m in (1, 2, 5)), 10_000_000),
        "B": (16, 64, 256),
    },
    folds=0,
    repeats=25,
    seeds=(),
    together=("methods", "B"),
)
_FUTURE = Column(
    data=("MNIST",),
    encoding="odd against even digits, pixels in [0, 1]; a client holds 100 images of the file",
    methods=("DP", "averaged DP", "G3"),
    grid={"optimiser": ("SGD", "Adam", "federated averaging"), "epsilon": (1.0,)},
    folds=1,
    repeats=1,
    seeds=tuple(range(20)),
    together=("seeds",),
)
_CODE = tuple(f"experiments.duan2025.{n}" for n in ("training", "loop", "methods", "models"))
_TUNED_CODE = (
    *_CODE,
    *(f"experiments.duan2025.{n}" for n in ("deep", "logistic", "prices")),
    *("experiments.images", "experiments.widening"),
)
_MNIST = _PUBLISHED_TRAINING | {
    "data": "MNIST, 60,000 images",
    "methods": "DP, GeoDP, with IS, SUR, AUTO-S, PSAC, SUR+PSAC",
}

TABLES = (
    Table(
        name="privacy",
        about="ε of one release of GeoDP: claimed, audited, exact",
        published=_NO_DATA | {"methods": "GeoDP, Theorem 5", "grid": "a claim without a run"},
        small=_PRIVACY,
        full=dataclasses.replace(_PRIVACY, grid={**_PRIVACY.grid, "trials": (1_000_000,)}),
        compute="experiments.duan2025.privacy:cell",
        code=("experiments.duan2025.angles",),
    ),
    Table(
        name="perturbation",
        about="Figures 1, 3 and 4: errors of directions and gradients of one release",
        published={
            "data": "450,000 gradients of nine epochs on CIFAR-10, B = 1",
            "encoding": "20,000 coordinates",
            "methods": "DP, GeoDP",
            "grid": "σ: 1e-4 … 10 / d: 500 … 20,000 / B: 512 … 16,384 / β: 0.01 … 1 / C: 0.1",
            "folds": "none",
            "repeats": "100",
            "seeds": "not said",
        },
        small=_PERTURBATION,
        full=dataclasses.replace(
            _PERTURBATION,
            repeats=100,
            grid={
                **_PERTURBATION.grid,
                "sigma, d, B": _grid(_BATCHES),
                "images per class": (5_000,),
                "epochs": (9,),
                "pool": (32_768,),
            },
        ),
        compute="experiments.duan2025.perturbation:cell",
        code=tuple(
            f"experiments.duan2025.{name}" for name in ("gradients", "angles", "models", "methods")
        ),
    ),
    Table(
        name="figure5",
        about="training loss of logistic regression, where the noise-free loss does not rise",
        published=_PUBLISHED_TRAINING
        | {
            "data": "MNIST, d = 785; the binary task is not named",
            "methods": "no noise, DP, GeoDP",
            "grid": "σ: 0.01, 0.1, 1, 10 / B: 256, 2,048, 4,096 / β: 0.5, 1 / step size: not said",
        },
        small=_FIGURE5,
        full=dataclasses.replace(
            _FIGURE5,
            seeds=(0, 1, 2),
            grid={
                **_FIGURE5.grid,
                "iterations between points": (10,),
            },
        ),
        compute="experiments.duan2025.logistic:curve",
        code=(*_CODE, "experiments.images"),
    ),
    Table(
        name="figure5seeds",
        about="the ends of Figure 5's curves of DP-SGD and GeoDP by further seeds, each at its own "
        "best step size",
        published=_PUBLISHED_TRAINING
        | {
            "data": "MNIST, d = 785; the binary task is not named",
            "methods": "DP, GeoDP",
            "grid": "as figure5",
        },
        small=_SEEDS5,
        full=dataclasses.replace(_SEEDS5, seeds=tuple((seed,) for seed in range(1, 101))),
        compute="experiments.duan2025.tuned:repeated",
        code=_TUNED_CODE,
    ),
    Table(
        name="noise_free",
        about="the networks of Tables II and III without noise and without clipping",
        published=_PUBLISHED_TRAINING
        | {"data": "MNIST, CIFAR-10", "methods": "noise-free", "grid": "20 epochs"},
        small=_NOISE_FREE,
        full=dataclasses.replace(_NOISE_FREE, seeds=tuple(range(10))),
        compute="experiments.duan2025.tuned:noise_free",
        code=_TUNED_CODE,
    ),
    Table(
        name="table2",
        about="Table II at σ = 10, batches of B/16: DP-SGD and GeoDP; G3 and averaged DP-SGD at "
        "DP-SGD's price; the network without noise",
        published=_MNIST | {"grid": "σ: 10 / B: 8,192, 16,384 / 20 epochs / rate: not said"},
        small=_TABLE2,
        full=dataclasses.replace(_TABLE2, grid={**_TABLE2.grid, "divisor": (16, 4, 1)}),
        compute="experiments.duan2025.tuned:private",
        code=_TUNED_CODE,
    ),
    Table(
        name="addons",
        about="Table II at σ = 10, batches of B/16: IS, SUR, AUTO-S, PSAC and B = 8,192",
        published=_MNIST | {"grid": "σ: 10 / B: 8,192, 16,384 / 20 epochs / rate: not said"},
        small=_ADDONS,
        full=dataclasses.replace(
            _ADDONS, grid={**_ADDONS.grid, "divisor": (16, 4, 1)}, seeds=_TABLE2.seeds
        ),
        compute="experiments.duan2025.tuned:private",
        code=_TUNED_CODE,
    ),
    Table(
        name="selective",
        about="Table II at σ = 10, batches of B/64: SUR, counted by accepted and attempted steps",
        published=_MNIST | {"grid": "σ: 10 / B: 8,192, 16,384 / 20 epochs / rate: not said"},
        small=_SELECTIVE,
        full=dataclasses.replace(_SELECTIVE, seeds=_TABLE2.seeds),
        compute="experiments.duan2025.tuned:private",
        code=_TUNED_CODE,
    ),
    Table(
        name="quiet",
        about="Table II at σ = 1, whole batches",
        published=_MNIST | {"grid": "σ: 1 / B: 8,192, 16,384 / 20 epochs / rate: not said"},
        small=_QUIET,
        full=dataclasses.replace(
            _QUIET, methods=(*_QUIET.methods, *_ADDONS.methods), seeds=_TABLE2.seeds
        ),
        compute="experiments.duan2025.tuned:private",
        code=_TUNED_CODE,
    ),
    Table(
        name="table3",
        about="Table III at σ = 0.1, whole batches: a ResNet on CIFAR-10",
        published=_PUBLISHED_TRAINING
        | {
            "data": "CIFAR-10, 50,000 images",
            "methods": "DP, GeoDP, with IS, SUR, AUTO-S, PSAC, SUR+PSAC",
            "grid": "σ: 0.1, 0.01 / B: 8,192, 16,384 / 20 epochs / rate: not said",
        },
        small=_TABLE3,
        full=dataclasses.replace(
            _TABLE3,
            methods=(*_TABLE3.methods, "GeoDP β=1, B=16384", *_ADDONS.methods),
            grid={**_TABLE3.grid, "sigma": (0.1, 0.01)},
            seeds=_TABLE2.seeds,
        ),
        compute="experiments.duan2025.tuned:private",
        code=_TUNED_CODE,
    ),
    Table(
        name="future",
        about="future work: G3 under SGD, Adam and federated averaging at equal proven (ε, δ), "
        "each grid widened until the best is inside",
        published=_NO_DATA | {"methods": "said to be future work", "grid": "none"},
        small=_FUTURE,
        full=dataclasses.replace(
            _FUTURE,
            grid={**_FUTURE.grid, "epsilon": (0.5, 1.0, 2.0, 4.0, 8.0)},
            seeds=tuple(range(100)),
        ),
        compute="experiments.duan2025.future:cell",
        code=("experiments.duan2025.logistic", "experiments.images", "experiments.widening"),
    ),
    Table(
        name="figure6",
        about="processor seconds of a perturbation against dimension and batch size",
        published=_NO_DATA
        | {"methods": "DP, GeoDP", "grid": "d: 1,250 … 320,000 / B in a plot", "repeats": "500"},
        small=_FIGURE6,
        full=dataclasses.replace(
            _FIGURE6,
            grid={**_FIGURE6.grid, "B": (16, 64, 256, 1_024)},
            repeats=500,
        ),
        compute="experiments.duan2025.runtime:cell",
        code=("experiments.duan2025.methods",),
    ),
)
