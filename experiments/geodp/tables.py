"""What Tables II and III list, what the paper prints there, and the sound mechanisms beside it."""

from __future__ import annotations

from typing import NamedTuple

from dpjax import gradients
from experiments.geodp.training import Method

_AUTO_S, _PSAC = gradients.Automatic(), gradients.PerSampleAdaptive()
SMALL, LARGE = 8_192, 16_384


class Row(NamedTuple):
    """A row of a table: what is run, at which batch size, and the accuracies the paper prints."""

    method: Method
    batch_size: int
    published: tuple[float, float]


class Table(NamedTuple):
    """A table of the paper, and the noise at which its sound mechanisms are compared.

    Attributes:
        name: of its file.
        sigmas: the paper's two noise multipliers.
        noise_free: the paper's accuracy without noise, in percent.
        records: size of the training set that prices are for.
        rows: as printed.
        real: a noise multiplier at which DP-SGD protects something.
        seeds: runs of every row in the smaller grid.
        rates: learning rates that are tried without noise in the smaller grid.
    """

    name: str
    sigmas: tuple[float, float]
    noise_free: float
    records: int
    rows: tuple[Row, ...]
    real: float
    seeds: int
    rates: tuple[float, ...]


_VARIANTS = (
    ("", {}),
    ("+IS", {"importance": True}),
    ("+SUR", {"selective": True}),
    ("+AUTO-S", {"strategy": _AUTO_S}),
    ("+PSAC", {"strategy": _PSAC}),
    ("+SUR+PSAC", {"selective": True, "strategy": _PSAC}),
)


def recentred(radius: float, suffix: str = "", **options) -> Method:
    """G3: clipping around the previous release, which has DP-SGD's price at equal σ."""
    return Method(f"G3{suffix} r={radius:g}C", "recentred", radius=radius, **options)


# The rows that keep their promise: what the paper's plain rows combine, plain noise averaged with
# the previous release (free post-processing), and G3.
SOUND = (
    *(Method(f"DP{suffix}", **options) for suffix, options in _VARIANTS),
    Method("DP, half the last release", shrink=0.5),
    recentred(0.5),
    recentred(1.0),
    recentred(0.5, "+PSAC", strategy=_PSAC),
    recentred(0.5, "+SUR+PSAC", selective=True, strategy=_PSAC),
)


# Rows that the smaller grid leaves out; of GeoDP's combinations it keeps the paper's best.
ONLY_FULL = ("GeoDP+IS β=0.1", "GeoDP+SUR β=0.1", "GeoDP+AUTO-S β=0.1", "GeoDP+PSAC β=0.1")
ONLY_FULL_EQUAL = ("DP+IS", "DP+AUTO-S")


def _rows(dp, geodp) -> tuple[Row, ...]:
    """Both tables list the same variants; `dp`, `geodp` give the published accuracies in order."""
    rows = [Row(Method("DP"), SMALL, dp[0])]
    for (suffix, options), published in zip(_VARIANTS, dp[1:], strict=True):
        rows.append(Row(Method(f"DP{suffix}", **options), LARGE, published))
    for beta, batch, published in geodp[:3]:
        method = Method(f"GeoDP β={beta:g}", "geodp", bounding_factor=beta)
        rows.append(Row(method, batch, published))
    for (suffix, options), published in zip(_VARIANTS[1:], geodp[3:], strict=True):
        method = Method(f"GeoDP{suffix} β=0.1", "geodp", bounding_factor=0.1, **options)
        rows.append(Row(method, LARGE, published))
    return tuple(rows)


TABLE2 = Table(
    "table2",
    (10.0, 1.0),
    99.11,
    60_000,
    _rows(
        (
            (87.93, 94.25),
            (88.12, 95.52),
            (88.43, 95.63),
            (88.47, 95.75),
            (88.40, 95.71),
            (88.48, 95.83),
            (89.83, 96.91),
        ),
        (
            (0.1, SMALL, (90.31, 96.47)),
            (0.1, LARGE, (93.58, 98.04)),
            (0.5, SMALL, (53.80, 60.31)),
            (93.60, 98.13),
            (93.68, 98.22),
            (93.64, 98.17),
            (94.13, 98.24),
            (95.27, 98.69),
        ),
    ),
    10.0,
    2,
    (12.0, 24.0, 48.0),
)
TABLE3 = Table(
    "table3",
    (0.1, 0.01),
    67.43,
    50_000,
    _rows(
        (
            (59.39, 63.27),
            (60.12, 63.84),
            (60.27, 64.07),
            (61.73, 64.83),
            (60.51, 63.91),
            (61.30, 64.71),
            (62.91, 65.60),
        ),
        (
            (1.0, SMALL, (61.47, 65.93)),
            (1.0, LARGE, (63.38, 66.51)),
            (0.1, LARGE, (65.47, 67.35)),
            (65.51, 67.35),
            (65.53, 67.36),
            (65.58, 67.37),
            (65.58, 67.38),
            (66.03, 67.40),
        ),
    ),
    10.0,
    1,
    (18.0, 36.0),
)
