"""Small data sets shared by the solver tests."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from dpjax import erm


def make_rows(n: int = 203, d: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of norm about one, and labels in {0, 1} that a linear rule explains to 90 %."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) / np.sqrt(d)
    labels = (rows @ rng.normal(size=d) + 0.2 * rng.normal(size=n) > 0).astype(int)
    return rows.astype(np.float32), labels


@pytest.fixture(scope="session")
def rows() -> tuple[np.ndarray, np.ndarray]:
    return make_rows()


@pytest.fixture(scope="session")
def logistic(rows) -> erm.Problem:
    return erm.logistic_regression(*rows, l2=0.05)


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(7)
