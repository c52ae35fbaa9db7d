"""The named data sets: their files, where they come from, and the facts they are checked by."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from dpjax.data.published import (
    Table,
    adult,
    bank,
    bundled,
    csv_of,
    digits,
    images,
    vowpal,
)


class PublishedFile(NamedTuple):
    name: str
    url: str | None = None
    sha256: str | None = None  # of the decompressed bytes


class Source(NamedTuple):
    files: tuple[PublishedFile, ...]
    read: Callable[..., Table]
    facts: dict[str, object]


_BOSTON = [
    "CRIM",
    "ZN",
    "INDUS",
    "CHAS",
    "NOX",
    "RM",
    "AGE",
    "DIS",
    "RAD",
    "TAX",
    "PTRATIO",
    "B",
    "LSTAT",
    "MEDV",
]
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_BROWNLEE = "https://raw.githubusercontent.com/jbrownlee/Datasets/master/"


def _idx_files(base: str, *digests: str) -> tuple[PublishedFile, ...]:
    kinds = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        PublishedFile(f"{kind}-ubyte", f"{base}{kind}-ubyte.gz", digest)
        for kind, digest in zip(kinds, digests, strict=True)
    )


SOURCES: dict[str, Source] = {
    "digits": Source(
        (),
        digits,
        {"rows": 1_797, "columns": 65, "classes": 10, "largest class": 183},
    ),
    "breast-cancer": Source(
        (),
        bundled("load_breast_cancer", "diagnosis"),
        {"rows": 569, "columns": 31, "classes": 2, "largest class": 357},
    ),
    "adult": Source(
        (
            PublishedFile(
                "adult.data",
                _UCI + "adult/adult.data",
                "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            ),
            PublishedFile(
                "adult.test",
                _UCI + "adult/adult.test",
                "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            ),
        ),
        adult,
        {"rows": 32_561, "test rows": 16_281, "columns": 15, "classes": 2, "largest class": 24_720},
    ),
    "bank": Source(
        (
            PublishedFile(
                "bank.zip",
                _UCI + "00222/bank.zip",
                "99d7e8eb12401ed278b793984423915411ea8df099e1795f9fefe254f513fe5e",
            ),
        ),
        bank,
        {"rows": 45_211, "columns": 17, "classes": 2, "largest class": 39_922},
    ),
    "kddcup99": Source(
        (
            PublishedFile(
                "kddcup.data_10_percent",
                "https://ndownloader.figshare.com/files/5976042?name=kddcup.data_10_percent.gz",
                "f8c8267ebcd9c0ed1fd7d6277fe5bfff8732e9b7db8e61b873542b2a534b6f9a",
            ),
        ),
        lambda content: Table(
            csv_of(content, [*(f"x{i}" for i in range(41)), "label"]), None, "label"
        ),
        {"rows": 494_021, "columns": 42, "classes": 23, "largest class": 280_790},
    ),
    "mnist": Source(
        _idx_files(
            _MNIST,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        images,
        {
            "rows": 60_000,
            "test rows": 10_000,
            "columns": 785,
            "classes": 10,
            "largest class": 6_742,
        },
    ),
    "fashion-mnist": Source(
        _idx_files(
            _FASHION,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        images,
        {
            "rows": 60_000,
            "test rows": 10_000,
            "columns": 785,
            "classes": 10,
            "largest class": 6_000,
        },
    ),
    "sonar": Source(
        (
            PublishedFile(
                "sonar.all-data",
                _UCI + "undocumented/connectionist-bench/sonar/sonar.all-data",
                "e90434cdbf00fcf93ffa911fe447ae25606979658e60f1d32e155c3b5240234d",
            ),
        ),
        lambda content: Table(
            csv_of(content, [*(f"x{i}" for i in range(60)), "label"]), None, "label"
        ),
        {"rows": 208, "columns": 61, "classes": 2, "largest class": 111},
    ),
    "boston": Source(
        (
            PublishedFile(
                "housing.data",
                _UCI + "housing/housing.data",
                "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a",
            ),
        ),
        lambda content: Table(
            pd.read_csv(io.BytesIO(content), names=_BOSTON, sep=r"\s+"), None, "MEDV"
        ),
        {"rows": 506, "columns": 14},
    ),
    "admission": Source(
        (PublishedFile("Admission_Predict_Ver1.1.csv"),),
        lambda content: Table(csv_of(content).rename(columns=str.strip), None, "Chance of Admit"),
        {"rows": 500, "columns": 9},
    ),
    "swedish-auto": Source(
        (
            PublishedFile(
                "auto-insurance.csv",
                _BROWNLEE + "auto-insurance.csv",
                "d9e3760422d50a8b68176cc233c8b8889badc017f38a1551f2f4ec3efcd9ebe4",
            ),
        ),
        lambda content: Table(csv_of(content, ["claims", "payment"]), None, "payment"),
        {"rows": 63, "columns": 2},
    ),
    "swedish-motor": Source(
        (PublishedFile("SwedishMotorInsurance.csv"),),
        lambda content: Table(csv_of(content), None, "Payment"),
        {"rows": 2_182, "columns": 7},
    ),
    "rcv1-vw-small": Source(
        (PublishedFile("rcv1_small.dat"), PublishedFile("rcv1_small_test.data")),
        vowpal,
        {"rows": 1_000, "test rows": 500, "classes": 2, "largest class": 541},
    ),
}
