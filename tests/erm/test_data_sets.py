"""The papers' data sets have the published sizes, and rows of unit norm."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import data_sets


@pytest.mark.parametrize(
    ("load", "shape", "positives"),
    [(data_sets.adult, (45_222, 104), 11_208), (data_sets.bank, (45_211, 32), 5_289)],
)
def test_published_counts_and_unit_rows(load, shape, positives, data_dir):
    data = load(data_dir)
    assert data.features.shape == shape
    assert data.labels.sum() == positives
    np.testing.assert_allclose(np.linalg.norm(data.features, axis=1), 1.0, rtol=1e-5)
    train, test = data_sets.split(data, seed=0)
    assert len(train.labels) + len(test.labels) == shape[0]
    assert len(train.labels) == int(0.8 * shape[0])


def test_other_counts_are_refused():
    with pytest.raises(ValueError, match="published file"):
        data_sets._check("X", (3, 2), (4, 2), np.array([1, 0, 0]), 1)
