"""The tables of `benchmarks.tables`, each with what of it is public.

Public are the names of the columns, which of them hold numbers and in which range (chosen by what a
column means, in round numbers, without a look at the records), the classes, and the categories, as
a codebook would list them: they are those of the whole file, which is generous to whoever is given
them. A table is drawn anew for every key: which records are trained on, or the simulated records.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import io
import json
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from scipy.special import expit

from benchmarks import private_tables

MOST_HELD_OUT = 10_000
LEAST_DELTA = 1e-5


@dataclasses.dataclass(frozen=True)
class Public:
    """What whoever trains may know without asking the records."""

    target: str
    ranges: dict[str, tuple[float, float]]  # of the columns of numbers
    categories: dict[str, list[str]]  # of the other columns
    classes: list[str]  # of the target; none of a number
    target_range: tuple[float, float] | None = None
    delta: float = LEAST_DELTA


class Parts:
    """Records to train on and records held out, and what of them is public."""

    def __init__(self, train: pd.DataFrame, held: pd.DataFrame, public: Public):
        self.train = train.reset_index(drop=True)
        self.held = held.iloc[:MOST_HELD_OUT].reset_index(drop=True)
        # A δ of 1 / records would allow to publish one of them.
        delta = min(LEAST_DELTA, 1 / (10 * len(train)))
        self.public = dataclasses.replace(public, delta=delta)

    def write(self, folder: pathlib.Path) -> None:
        """Two CSV files and a JSON file; the last one written says that all are there."""
        folder.mkdir(parents=True, exist_ok=True)
        self.train.to_csv(folder / "train.csv", index=False)
        self.held.to_csv(folder / "held.csv", index=False)
        (folder / "public.json").write_text(json.dumps(dataclasses.asdict(self.public)))


@dataclasses.dataclass(frozen=True)
class Table:
    """A table by name: which file it needs, and how it is drawn for a key."""

    name: str
    draw: Callable[[pathlib.Path, int], Parts]
    file: str | None = None  # below the folder of data; None where the records are simulated
    epsilons: tuple[float, ...] | None = None  # instead of those of the run

    @property
    def slug(self) -> str:
        """The name as that of a folder."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.name.lower())


def describe(
    frame: pd.DataFrame,
    target: str,
    ranges: dict[str, tuple[float, float]],
    target_range: tuple[float, float] | None = None,
) -> Public:
    """What is public of a frame whose other columns hold texts."""
    texts = [name for name in frame.columns if name not in ranges and name != target]
    listed = {name: sorted(frame[name].astype(str).unique()) for name in texts}
    classes = [] if target_range else sorted(frame[target].astype(str).unique())
    return Public(target, ranges, listed, classes, target_range)


def split(
    frame: pd.DataFrame, public: Public, size: int, key: int, most: int = MOST_HELD_OUT
) -> Parts:
    """So many records drawn by the key to train on, and others."""
    order = np.random.default_rng(key).permutation(len(frame))
    held = order[size : size + most]
    return Parts(frame.iloc[order[:size]], frame.iloc[held], public)


# --- real records --------------------------------------------------------------------------------

_BANK_RANGES = {
    "age": (18.0, 100.0), "balance": (-10_000.0, 100_000.0), "day": (1.0, 31.0),
    "duration": (0.0, 3_600.0), "campaign": (1.0, 50.0), "pdays": (-1.0, 1_000.0),
    "previous": (0.0, 50.0),
}  # fmt: skip


@functools.lru_cache(maxsize=1)
def _bank(folder: pathlib.Path) -> tuple[pd.DataFrame, Public]:
    """All of Bank Marketing, its numbers as numbers."""
    train, held, _ = private_tables.read_bank(folder)
    frame = pd.concat([train, held], ignore_index=True)
    frame = frame.astype(dict.fromkeys(_BANK_RANGES, float))
    return frame, describe(frame, "y", _BANK_RANGES)


def bank(folder: pathlib.Path, key: int) -> Parts:
    """Four fifths of Bank Marketing, drawn by the key."""
    frame, public = _bank(folder)
    return split(frame, public, len(frame) * 4 // 5, key)


def bank_eight_times(folder: pathlib.Path, key: int) -> Parts:
    """Eight copies of every training record of Bank, whose numbers are moved a little.

    Each number is moved by noise of a twentieth of its column's standard deviation, rounded to a
    whole number and kept in its range. Eight copies of a person are eight records here.
    """
    parts = bank(folder, key)
    draws = np.random.default_rng([key, 8])
    train = pd.concat([parts.train] * 8, ignore_index=True)
    for name, (low, high) in _BANK_RANGES.items():
        moved = draws.normal(scale=train[name].std() / 20, size=len(train))
        train[name] = (train[name] + moved).round().clip(low, high)
    order = draws.permutation(len(train))
    return Parts(train.iloc[order], parts.held, parts.public)


@functools.lru_cache(maxsize=1)
def _adult(folder: pathlib.Path) -> tuple[pd.DataFrame, pd.DataFrame, Public]:
    """Adult's own two files, and its published schema."""
    train, held, schema = private_tables.read_adult(folder)
    ranges = {column.name: column.range for column in schema.columns if column.range}
    frames = [part.astype(dict.fromkeys(ranges, float)) for part in (train, held)]
    return *frames, describe(pd.concat(frames), "income", ranges)


def adult(folder: pathlib.Path, key: int, size: int | None = None) -> Parts:
    """Records of Adult's training file, by the key; held out is the start of its test file."""
    train, held, public = _adult(folder)
    order = np.random.default_rng(key).permutation(len(train))[:size]
    return Parts(train.iloc[order], held, public)


def adult_age(folder: pathlib.Path, key: int) -> Parts:
    """A regression: the age by the other columns and the income."""
    train, held, public = _adult(folder)
    ranges = {name: ends for name, ends in public.ranges.items() if name != "age"}
    both = pd.concat([train, held])
    order = np.random.default_rng(key).permutation(len(train))
    return Parts(train.iloc[order], held, describe(both, "age", ranges, (17.0, 90.0)))


_MARRIED = {
    "Married-civ-spouse": "married", "Married-AF-spouse": "married", "Never-married": "never",
    "Married-spouse-absent": "formerly", "Separated": "formerly", "Divorced": "formerly",
    "Widowed": "formerly",
}  # fmt: skip


def adult_marriage(folder: pathlib.Path, key: int) -> Parts:
    """Three classes: married, never married, formerly; without the column that gives it away."""
    train, held, public = _adult(folder)
    frames = [
        part.assign(marriage=part["marital-status"].map(_MARRIED)).drop(
            columns=["marital-status", "relationship"]
        )
        for part in (train, held)
    ]
    order = np.random.default_rng(key).permutation(len(train))
    described = describe(pd.concat(frames), "marriage", public.ranges)
    return Parts(frames[0].iloc[order], frames[1], described)


# The columns of kddcup99 in the order of its documentation; texts have no range.
_COUNT, _SHARE, _FLAG = (0.0, 512.0), (0.0, 1.0), (0.0, 1.0)
_KDD_COLUMNS: dict[str, tuple[float, float] | None] = {
    "duration": (0.0, 60_000.0), "protocol_type": None, "service": None, "flag": None,
    "src_bytes": (0.0, 10_000.0), "dst_bytes": (0.0, 10_000.0), "land": _FLAG,
    "wrong_fragment": (0.0, 3.0), "urgent": (0.0, 3.0), "hot": (0.0, 50.0),
    "num_failed_logins": (0.0, 5.0), "logged_in": _FLAG, "num_compromised": (0.0, 100.0),
    "root_shell": _FLAG, "su_attempted": (0.0, 2.0), "num_root": (0.0, 100.0),
    "num_file_creations": (0.0, 50.0), "num_shells": (0.0, 5.0),
    "num_access_files": (0.0, 10.0), "num_outbound_cmds": _FLAG, "is_host_login": _FLAG,
    "is_guest_login": _FLAG, "count": _COUNT, "srv_count": _COUNT, "serror_rate": _SHARE,
    "srv_serror_rate": _SHARE, "rerror_rate": _SHARE, "srv_rerror_rate": _SHARE,
    "same_srv_rate": _SHARE, "diff_srv_rate": _SHARE, "srv_diff_host_rate": _SHARE,
    "dst_host_count": (0.0, 255.0), "dst_host_srv_count": (0.0, 255.0),
    "dst_host_same_srv_rate": _SHARE, "dst_host_diff_srv_rate": _SHARE,
    "dst_host_same_src_port_rate": _SHARE, "dst_host_srv_diff_host_rate": _SHARE,
    "dst_host_serror_rate": _SHARE, "dst_host_srv_serror_rate": _SHARE,
    "dst_host_rerror_rate": _SHARE, "dst_host_srv_rerror_rate": _SHARE,
}  # fmt: skip


@functools.lru_cache(maxsize=1)
def _kddcup(folder: pathlib.Path) -> tuple[pd.DataFrame, Public]:
    """The tenth of kddcup99: normal connections and attacks."""
    ranges = {name: ends for name, ends in _KDD_COLUMNS.items() if ends}
    content = gzip.decompress((folder / "kddcup99" / "kddcup.data_10_percent.gz").read_bytes())
    names = [*_KDD_COLUMNS, "attack"]
    frame = pd.read_csv(io.BytesIO(content), header=None, names=names)
    frame = frame.astype(dict.fromkeys(ranges, float))
    frame["attack"] = np.where(frame["attack"] == "normal.", "no", "yes")
    return frame, describe(frame, "attack", ranges)


def kddcup(folder: pathlib.Path, key: int) -> Parts:
    """10,000 connections with 41 columns."""
    frame, public = _kddcup(folder)
    return split(frame, public, 10_000, key)


def swedish_motor(folder: pathlib.Path, key: int) -> Parts:
    """1,500 groups of insured cars: whether there was a claim; its payment is left out."""
    frame = pd.read_csv(folder / "swedish-motor" / "SwedishMotorInsurance.csv")
    frame["claim"] = np.where(frame["Claims"] > 0, "yes", "no")
    frame = frame.drop(columns=["Claims", "Payment"])
    texts = ["Kilometres", "Zone", "Bonus", "Make"]
    frame[texts] = frame[texts].astype(int).astype(str)
    return split(frame, describe(frame, "claim", {"Insured": (0.0, 150_000.0)}), 1_500, key)


def admission(folder: pathlib.Path, key: int) -> Parts:
    """300 applicants: a chance of admission of three quarters or more, by their own judgement."""
    frame = pd.read_csv(folder / "admission" / "Admission_Predict_Ver1.1.csv")
    frame = frame.rename(columns=str.strip).drop(columns="Serial No.")
    frame["likely"] = np.where(frame.pop("Chance of Admit") >= 0.75, "yes", "no")
    ranges = {
        "GRE Score": (260.0, 340.0), "TOEFL Score": (0.0, 120.0), "University Rating": (1.0, 5.0),
        "SOP": (1.0, 5.0), "LOR": (1.0, 5.0), "CGPA": (0.0, 10.0), "Research": (0.0, 1.0),
    }  # fmt: skip
    frame = frame.astype(dict.fromkeys(ranges, float))
    return split(frame, describe(frame, "likely", ranges), 300, key)


def bank_balance(folder: pathlib.Path, key: int) -> Parts:
    """A regression: the balance of an account by the other columns; a few are very rich."""
    frame, public = _bank(folder)
    ranges = {name: ends for name, ends in public.ranges.items() if name != "balance"}
    ends = _BANK_RANGES["balance"]
    frame = frame.assign(balance=frame["balance"].clip(*ends))
    return split(frame, describe(frame, "balance", ranges, ends), len(frame) * 4 // 5, key)


def kddcup_hosts(folder: pathlib.Path, key: int) -> Parts:
    """A regression: connections to one host of the last hundred, by the other columns."""
    frame, public = _kddcup(folder)
    name = "dst_host_srv_count"
    ranges = {one: ends for one, ends in public.ranges.items() if one != name}
    return split(frame, describe(frame, name, ranges, public.ranges[name]), 10_000, key)


def swedish_claims(folder: pathlib.Path, key: int) -> Parts:
    """A regression of a skewed number: the claims of a group of cars; its payment is left out."""
    frame = pd.read_csv(folder / "swedish-motor" / "SwedishMotorInsurance.csv")
    frame = frame.drop(columns=["Payment"])
    texts = ["Kilometres", "Zone", "Bonus", "Make"]
    frame[texts] = frame[texts].astype(int).astype(str)
    frame["Claims"] = frame["Claims"].astype(float)
    ranges = {"Insured": (0.0, 150_000.0)}
    return split(frame, describe(frame, "Claims", ranges, (0.0, 5_000.0)), 1_500, key)


# Chosen after the defaults were fixed, without a run on them before.

_PULLOVER, _COAT = 2, 4


@functools.lru_cache(maxsize=1)
def _clothes(folder: pathlib.Path) -> tuple[pd.DataFrame, pd.DataFrame, Public]:
    """Pullovers and coats of Fashion-MNIST, as the mean of every square of 4 × 4 pixels."""
    frames = []
    for part in ("train", "t10k"):
        files = [
            gzip.decompress((folder / "fashion-mnist" / f"{part}-{what}-ubyte.gz").read_bytes())
            for what in ("images-idx3", "labels-idx1")
        ]
        pixels = np.frombuffer(files[0], np.uint8, offset=16).reshape(-1, 7, 4, 7, 4)
        labels = np.frombuffer(files[1], np.uint8, offset=8)
        chosen = (labels == _PULLOVER) | (labels == _COAT)
        means = pixels[chosen].mean(axis=(2, 4)).reshape(-1, 49)
        frame = pd.DataFrame(means, columns=[f"p{number}" for number in range(49)])
        frame["kind"] = np.where(labels[chosen] == _COAT, "coat", "pullover")
        frames.append(frame)
    ranges = {f"p{number}": (0.0, 255.0) for number in range(49)}
    return *frames, describe(frames[0], "kind", ranges)


def clothes(folder: pathlib.Path, key: int) -> Parts:
    """12,000 pictures with 49 columns of numbers; its own test pictures are held out."""
    train, held, public = _clothes(folder)
    order = np.random.default_rng(key).permutation(len(train))
    return Parts(train.iloc[order], held, public)


def boston(folder: pathlib.Path, key: int) -> Parts:
    """400 districts of Boston: a median price of 20,000 dollars or more."""
    ranges = {
        "crime": (0.0, 100.0), "zoned": (0.0, 100.0), "industry": (0.0, 30.0),
        "river": (0.0, 1.0), "nox": (0.0, 1.0), "dwelling": (1.0, 10.0), "old": (0.0, 100.0),
        "distance": (0.0, 15.0), "highway": (1.0, 24.0), "tax": (100.0, 800.0),
        "pupils": (10.0, 25.0), "b": (0.0, 400.0), "poor": (0.0, 40.0),
    }  # fmt: skip
    file = folder / "boston" / "housing.data"
    frame = pd.read_csv(file, sep=r"\s+", header=None, names=[*ranges, "price"])
    frame = frame.astype(dict.fromkeys(ranges, float))
    frame["dear"] = np.where(frame.pop("price") >= 20, "yes", "no")
    return split(frame, describe(frame, "dear", ranges), 400, key)


# --- simulated records ---------------------------------------------------------------------------


def two_parts(frame: pd.DataFrame, size: int, target: str, ranges: dict) -> Parts:
    """The first so many records of a simulated frame to train on."""
    return Parts(frame.iloc[:size], frame.iloc[size:], describe(frame, target, ranges))


def sines(folder: pathlib.Path, key: int, size: int = 20_000) -> Parts:
    """Ten uniform numbers; the log-odds are a sum of sines of the first six of them."""
    draws = np.random.default_rng([key, 1])
    x = draws.uniform(-1.0, 1.0, (size + MOST_HELD_OUT, 10))
    odds = 2.5 * np.sin(np.pi * x[:, :6] * np.array([1.0, 1.5, 2.0, 1.0, 1.5, 2.0])).sum(axis=1)
    frame = pd.DataFrame(x.round(4), columns=[f"x{number}" for number in range(10)])
    frame["y"] = np.where(draws.random(len(frame)) < expit(odds), "yes", "no")
    return two_parts(frame, size, "y", {f"x{number}": (-1.0, 1.0) for number in range(10)})


def sines_number(folder: pathlib.Path, key: int, size: int = 20_000) -> Parts:
    """A regression: ten uniform numbers, a sum of sines of the first six, and normal noise of 1."""
    draws = np.random.default_rng([key, 4])
    x = draws.uniform(-1.0, 1.0, (size + MOST_HELD_OUT, 10))
    waves = np.sin(np.pi * x[:, :6] * np.array([1.0, 1.5, 2.0, 1.0, 1.5, 2.0])).sum(axis=1)
    frame = pd.DataFrame(x.round(4), columns=[f"x{number}" for number in range(10)])
    frame["y"] = (waves + draws.standard_normal(len(frame))).round(4).clip(-10.0, 10.0)
    ranges = {f"x{number}": (-1.0, 1.0) for number in range(10)}
    public = describe(frame, "y", ranges, (-10.0, 10.0))
    return Parts(frame.iloc[:size], frame.iloc[size:], public)


def rare(folder: pathlib.Path, key: int, size: int = 15_000) -> Parts:
    """One record in fifty is positive; four normal numbers, two skewed ones and two categories."""
    draws = np.random.default_rng([key, 2])
    count = size + MOST_HELD_OUT
    normal = draws.standard_normal((count, 4))
    skewed = draws.lognormal(3.0, 1.0, (count, 2))
    kind = draws.choice(["a", "b", "c", "d"], count, p=[0.5, 0.3, 0.15, 0.05])
    place = draws.choice(["n", "e", "s", "w"], count)
    odds = normal[:, 0] - 0.8 * normal[:, 1] + 0.7 * (np.log(skewed[:, 0]) - 3.0)
    odds += np.select([kind == "d", kind == "c"], [1.5, 0.5], 0.0)
    odds += 0.4 * (place == "n")
    # The constant that leaves one in fifty, by bisection.
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expit(odds + middle).mean() < 0.02 else (low, middle)
    frame = pd.DataFrame(normal.round(4), columns=["n0", "n1", "n2", "n3"])
    frame[["s0", "s1"]] = skewed.round(2)
    frame["kind"], frame["place"] = kind, place
    frame["y"] = np.where(draws.random(count) < expit(odds + low), "yes", "no")
    ranges = {f"n{number}": (-5.0, 5.0) for number in range(4)}
    return two_parts(frame, size, "y", ranges | {"s0": (0.0, 1_000.0), "s1": (0.0, 1_000.0)})


def thirty_categories(folder: pathlib.Path, key: int, size: int = 20_000) -> Parts:
    """Six columns of thirty categories with falling shares, each with an effect, and two numbers.

    The effects are those of the table, the same for every key.
    """
    effects = np.random.default_rng(30).normal(scale=0.8, size=(6, 30))
    draws = np.random.default_rng([key, 3])
    count = size + MOST_HELD_OUT
    shares = 1 / np.arange(1, 31) ** 0.7
    codes = draws.choice(30, (count, 6), p=shares / shares.sum())
    numbers = draws.uniform(0.0, 1.0, (count, 2))
    odds = effects[np.arange(6), codes].sum(axis=1) + 2 * numbers[:, 0] - 1
    frame = pd.DataFrame(numbers.round(4), columns=["u0", "u1"])
    for column in range(6):
        frame[f"c{column}"] = np.char.add("k", codes[:, column].astype(str))
    frame["y"] = np.where(draws.random(count) < expit(odds), "yes", "no")
    return two_parts(frame, size, "y", {"u0": (0.0, 1.0), "u1": (0.0, 1.0)})


_ADULT, _BANK = "adult/adult.data.gz", "bank/bank.zip"
TABLES: Sequence[Table] = (
    Table("Bank", bank, _BANK),
    Table("Adult", adult, _ADULT),
    Table("Adult, 2,000 rows", functools.partial(adult, size=2_000), _ADULT),
    Table("Adult, 500 rows", functools.partial(adult, size=500), _ADULT),
    Table("kddcup99, 10,000 rows", kddcup, "kddcup99/kddcup.data_10_percent.gz"),
    Table("swedish-motor, 1,500", swedish_motor, "swedish-motor/SwedishMotorInsurance.csv"),
    Table("sines, 20,000", sines),
    Table("2 % positive, 15,000", rare),
    Table("admission, 300 rows", admission, "admission/Admission_Predict_Ver1.1.csv"),
    Table("Adult, marriage (3 classes)", adult_marriage, _ADULT),
    Table("30 categories, 20,000", thirty_categories),
    Table("Bank × 8", bank_eight_times, _BANK, (0.1, 16.0)),
    Table("clothes, 49 columns", clothes, "fashion-mnist/train-images-idx3-ubyte.gz"),
    Table("Boston, 400 rows", boston, "boston/housing.data"),
)
# Of targets that are numbers.
NUMBERS: Sequence[Table] = (
    Table("Adult, age", adult_age, _ADULT),
    Table("Bank, balance", bank_balance, _BANK),
    Table("kddcup99, hosts", kddcup_hosts, "kddcup99/kddcup.data_10_percent.gz"),
    Table("swedish-motor, claims", swedish_claims, "swedish-motor/SwedishMotorInsurance.csv"),
    Table("sines, a number", sines_number),
)
