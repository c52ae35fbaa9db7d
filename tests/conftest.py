"""Shared test settings: eight fake CPU devices, strict dtypes, and the reference values."""

from __future__ import annotations

import json
import os
import pathlib

# Before jax is imported: sharding tests need several devices; nothing may look for an accelerator.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)

# Compilation makes the first example of a property slow; noise in timing is not a failure.
hypothesis.settings.register_profile("dpjax", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.load_profile("dpjax")

_SHARED = pathlib.Path(
    os.environ.get("DPJAX_SHARED", pathlib.Path(__file__).resolve().parents[2] / "shared")
)


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """The folder of real data sets (`DPJAX_SHARED/data`); tests skip visibly without it."""
    folder = _SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder}; set DPJAX_SHARED to the folder above it")
    return folder


@pytest.fixture(scope="session")
def oracles() -> dict[str, list[dict]]:
    """Reference values by quantity: {quantity: [{id, params, value, digits, source}, ...]}."""
    file = _SHARED / "oracles.json"
    if not file.is_file():
        pytest.skip(
            f"reference values not found at {file}; set DPJAX_SHARED to the folder above it"
        )
    grouped: dict[str, list[dict]] = {}
    for row in json.loads(file.read_text()):
        grouped.setdefault(row["quantity"], []).append(row)
    return grouped


@pytest.fixture
def lenient_promotion():
    """Third-party code (flax, optax, …) need not obey our strict promotion; ask for this there."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
