"""The picture of a run is a picture, and shows what it is given."""

from __future__ import annotations

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from dpjax import plotting
from dpjax.plotting import pictures


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


def _texts_over_lines(figure: Figure) -> list[str]:
    """What is written in a figure where a line of any panel runs."""
    figure.draw_without_rendering()
    lines = [line for axes in figure.axes for line in axes.lines]
    paths = [line.get_transform().transform_path(line.get_path()) for line in lines]
    texts = [text for axes in figure.axes for text in axes.texts]
    texts += [text for axes in figure.axes if axes.get_legend() for text in axes.get_legend().texts]
    return [
        text.get_text()
        for text in texts
        if any(path.intersects_bbox(text.get_window_extent(), filled=False) for path in paths)
    ]


_STEPS = np.arange(0, 201, 10)


@pytest.mark.parametrize(
    "accuracy",
    [
        0.1 + 0.84 * (1 - np.exp(-_STEPS / 30)),
        np.full(_STEPS.size, 0.761),
        0.95 + 0.002 * np.sin(_STEPS / 20),
        0.7 + 0.1 * np.sin(_STEPS / 10),
        0.5 + 0.002 * _STEPS,
        np.ones(_STEPS.size),
        0.02 + 0.01 * np.sin(_STEPS / 10),
    ],
    ids=["usual", "constant", "nearly constant", "noisy", "steep end", "perfect", "near zero"],
)
@pytest.mark.parametrize("last", [20, 200, 1_000])
@pytest.mark.parametrize("reference", [None, 0.71, 1.0])
@pytest.mark.at_length(every=8)
def test_no_word_lies_on_a_line_and_ticks_are_few_and_differ(
    tmp_path, monkeypatch, accuracy, reference, last
):
    drawn = []
    monkeypatch.setattr(pictures, "save_picture", lambda figure, path: drawn.append(figure))
    steps = _STEPS * last // 200
    metrics = {"step": steps, "epsilon": 3 * (steps / last) ** 2, "test_accuracy": accuracy}
    plotting.plot_training(metrics, tmp_path / "run.png", reference=reference, budget=3.0)
    assert not _texts_over_lines(drawn[0])
    for axes in drawn[0].axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            shown = [tick.label1.get_text() for tick in axis.get_major_ticks()
                     if low <= tick.get_loc() <= high and tick.label1.get_visible()]  # fmt: skip
            assert len(shown) == len(set(shown)) <= 5, shown
    for tick in drawn[0].axes[0].yaxis.get_major_ticks():  # a label says where it stands
        share = float(tick.label1.get_text().rstrip("%")) / 100
        assert share == pytest.approx(tick.get_loc(), abs=1e-9)


def test_a_long_title_is_within_the_picture(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(pictures, "save_picture", lambda figure, path: drawn.append(figure))
    metrics = {"step": _STEPS, "epsilon": _STEPS / 200, "test_accuracy": _STEPS / 400}
    title = f"logistic on {'a_name_of_many_letters_' * 5}.csv: ε = 1 at δ = 1e-05 (add-remove)"
    plotting.plot_training(metrics, tmp_path / "run.png", title=title)
    drawn[0].draw_without_rendering()
    words = drawn[0].get_suptitle()
    assert words.replace("\n", "").replace(" ", "") == title.replace(" ", "")
    assert drawn[0].texts[0].get_window_extent().x1 <= drawn[0].bbox.x1


def test_a_word_on_a_line_is_found():
    axes = Figure().subplots()
    axes.plot([0, 1], [0, 1])
    axes.text(0.5, 0.5, "on it", ha="center", va="center")
    axes.text(0.1, 0.9, "beside it")
    assert _texts_over_lines(axes.figure) == ["on it"]
