"""Image data sets: MNIST from idx files, CIFAR-10 from a tar of JPEG files."""

from __future__ import annotations

import gzip
import io
import pathlib
import tarfile
from typing import NamedTuple

import numpy as np

CIFAR_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


class Images(NamedTuple):
    """Images as float32 [rows, height, width, channels] in [−1, 1]; int32 labels."""

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_mnist(data: pathlib.Path, name: str = "mnist") -> Images:
    """MNIST or Fashion-MNIST from `data/name/*-ubyte.gz`."""
    folder = data / name
    parts = []
    for split in ("train", "t10k"):
        pixels = _idx(folder / f"{split}-images-idx3-ubyte.gz")[..., None]
        # Constants known before the data were seen, not statistics of the private training set.
        parts.append((pixels.astype(np.float32) / 255.0 - 0.5) / 0.5)
        parts.append(_idx(folder / f"{split}-labels-idx1-ubyte.gz").astype(np.int32))
    return Images(*parts)


def _idx(file: pathlib.Path) -> np.ndarray:
    """An array in idx format: two zero bytes, type, number of axes, big-endian sizes, data."""
    with gzip.open(file) as stream:
        raw = stream.read()
    if raw[:3] != b"\0\0\x08":
        raise ValueError(f"{file.name} does not start like an idx file of unsigned bytes")
    shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def load_cifar10_jpeg(data: pathlib.Path, *, limit: int | None = None) -> Images:
    """CIFAR-10 as re-encoded in JPEG: lossy (mean error 5.8 of 255), so not the original data set.

    Args:
        data: folder that holds cifar10-jpeg/cifar10-images-jpeg.tar.xz.
        limit: images per class and split, the first ones by number; None takes all.
    """
    from PIL import Image

    file = data / "cifar10-jpeg" / "cifar10-images-jpeg.tar.xz"
    found: dict[str, list] = {"train": [], "test": []}
    with tarfile.open(file) as archive:
        for member in archive:
            split, _, rest = member.name.partition("/")
            label, _, image = rest.partition("/")
            if split not in found or not image.endswith(".jpg"):
                continue
            index = int(image.removesuffix(".jpg"))
            if limit is not None and index >= limit:
                continue
            stream = archive.extractfile(member)
            if stream is not None:
                pixels = np.asarray(Image.open(io.BytesIO(stream.read())), np.uint8)
                found[split].append((index, CIFAR_CLASSES.index(label), pixels))
    parts = []
    for split in ("train", "test"):
        # Classes take turns, so that any prefix is balanced.
        rows = sorted(found[split], key=lambda row: row[:2])
        parts.append(np.stack([r[2] for r in rows]).astype(np.float32) / 127.5 - 1.0)
        parts.append(np.array([r[1] for r in rows], np.int32))
    return Images(*parts)
