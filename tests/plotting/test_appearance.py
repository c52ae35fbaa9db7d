"""One look for all pictures, and nothing of it left behind."""

from __future__ import annotations

import resource

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import accounting as acc
from dpjax import plotting
from dpjax.accounting.answers.risks import bound_success


def test_a_picture_leaves_the_settings_as_they_were(tmp_path):
    before = dict(matplotlib.rcParams)
    metrics = {name: np.arange(3.0) / 4 for name in ("step", "epsilon", "test_accuracy")}
    plotting.plot_training(metrics, tmp_path / "run.png", reference=0.9, budget=1.0)
    with pytest.raises(ValueError, match="shape"):
        plotting.plot_sweep([1.0], [0.1], np.ones((2, 2)), tmp_path / "x.png")
    assert dict(matplotlib.rcParams) == before


def test_a_full_disk_leaves_the_picture_that_was_there(tmp_path):
    path = tmp_path / "run.png"
    path.write_bytes(b"old")
    metrics = {name: np.arange(3.0) / 4 for name in ("step", "epsilon", "test_accuracy")}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*run\.png'"):
            plotting.plot_training(metrics, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [(other.name, other.read_bytes()) for other in tmp_path.iterdir()] == [
        ("run.png", b"old")
    ]


def test_a_line_of_reference_has_its_words_at_the_end_that_is_asked_for():
    axes = Figure().subplots()
    axes.set_xlim(3, 5)
    plotting.reference_line(axes, 0.5, "left")
    plotting.reference_line(axes, 0.75, "right", at="right")
    places = {text.get_text(): (text.get_ha(), text.xy) for text in axes.texts}
    assert places == {"left": ("left", (0.015, 0.5)), "right": ("right", (0.985, 0.75))}
    with pytest.raises(ValueError, match="at must be 'left' or 'right', got 'top'"):
        plotting.reference_line(axes, 0.5, "x", at="top")


def test_a_picture_without_a_known_format_is_refused_before_it_is_computed(tmp_path):
    certificate, nothing = acc.certify(acc.Gaussian(4.0), 1e-5), {}
    for draw in (
        lambda path: plotting.plot_training(nothing, path),
        lambda path: plotting.plot_privacy(nothing, path, steps=[]),
        lambda path: plotting.plot_attack(certificate, path),
        lambda path: plotting.plot_sweep([], [], np.ones(0), path),
    ):
        for name in ("a", "a.gif"):
            with pytest.raises(ValueError, match=r"path must end in \.png, .*, got .*a(\.gif)?$"):
                draw(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_an_attack_on_the_best_of_several_runs_asks_the_own_profile_alone(tmp_path, monkeypatch):
    best = acc.BestOf(acc.Repeated(acc.Gaussian(8.0), 4), 3.0, distribution="poisson")
    certificate = acc.certify(best, 1e-5, method="selection")
    monkeypatch.setattr(acc, "tradeoff", None)  # of which a Rényi curve for each ε is asked
    drawn, plot = [], Axes.plot

    def watched(axes, x, y, **look):
        drawn.append(np.asarray(y))
        return plot(axes, x, y, **look)

    monkeypatch.setattr(Axes, "plot", watched)
    plotting.plot_attack(certificate, tmp_path / "attack.png")
    found, rates = drawn
    alone = [bound_success(certificate.epsilon, 1e-5, rate) for rate in rates.tolist()]
    assert np.all(rates <= found)
    assert np.all(found <= alone)
    middle = rates.searchsorted(0.1)
    assert found[middle] < 0.8 * alone[middle]  # the (ε, δ) of the certificate say much less
