"""The picture of a run is a picture, and shows what it is given."""

from __future__ import annotations

import matplotlib.image
import numpy as np
import pytest

from dpjax import plotting


@pytest.mark.parametrize("rows", [1, 2, 30])
def test_the_picture_is_drawn_for_any_number_of_rows(tmp_path, rows):
    metrics = {
        "step": np.arange(rows),
        "epsilon": np.linspace(0, 2, rows),
        "test_accuracy": np.linspace(0.1, 0.9, rows),
    }
    path = plotting.plot_training(
        metrics, tmp_path / "run.png", title="a run", delta=1e-5, reference=0.95, budget=2.0
    )
    pixels = matplotlib.image.imread(path)
    assert pixels.shape[0] > 600
    assert pixels.std() > 0.02  # not blank
    bare = matplotlib.image.imread(plotting.plot_training(metrics, tmp_path / "bare.png"))
    assert bare.shape == pixels.shape
    assert (bare != pixels).any()
