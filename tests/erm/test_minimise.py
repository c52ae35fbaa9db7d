"""The minimiser of a tilted problem is reached, also where few rows have curvature."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import erm
from dpjax.erm.minimise import in_float64, minimise


@pytest.mark.parametrize(
    ("sizes", "l2", "tilt", "width"),
    [((5, 8, 12), 1e-4, 0.05, 0.5), ((30, 30), 1e-5, 0.02, 0.05)],
)
def test_a_huberised_hinge_of_categories(sizes, l2, tilt, width):
    """Far out no row has curvature, and a whole step of Newton's goes over the minimum and back."""
    n, rng = 1_000, np.random.default_rng(0)
    columns = []
    for size in sizes:
        share = 1 / np.arange(1.0, size + 1) ** 2
        columns.append(rng.choice(size, n, p=share / share.sum()))
    rows = np.concatenate(
        [np.eye(size)[cells] for size, cells in zip(sizes, columns, strict=True)], axis=1
    ) / np.sqrt(len(sizes))
    labels = columns[0] + 0.3 * columns[1] + rng.normal(size=n) > 2
    problem = erm.huber_svm(
        rows.astype(np.float32), labels, l2=l2, intercept=1.0, feature_norm=1.5, width=width
    )
    for seed in range(6):
        way = np.random.default_rng(seed).normal(size=problem.shape)
        linear = jnp.asarray(tilt * way / np.linalg.norm(way), jnp.float32)
        assert in_float64(minimise, problem, linear, 0.0, 5e-11)[1] <= 1e-10
