"""The privacy pictures show every mechanism, and refuse what they cannot show."""

import numpy as np
import pytest
from matplotlib.image import imread
from scipy.stats import norm

from dpjax import accounting as acc
from dpjax.plotting import pictures, plot_privacy, plot_sweep


def test_privacy_picture(tmp_path):
    mechanisms = {
        "Gaussian": acc.Gaussian(8.0),
        "shuffled": acc.Shuffled(acc.Gaussian(4.0), 20),
        "ball": acc.UniformBall(1e-9, 10),
    }
    path = plot_privacy(mechanisms, tmp_path / "curve.png", steps=[1, 10, 100], title="three")
    picture = imread(path)
    assert picture.shape[1] > 1500
    colours = {tuple(np.round(c * 255).astype(int)[:3]) for c in picture[::2, ::2].reshape(-1, 4)}
    for drawn in ((0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)):
        assert drawn in colours


def test_all_panels_are_of_the_relation_that_is_asked_for(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(pictures, "save_picture", lambda figure, path: kept.append(figure))
    out, step, steps = tmp_path / "curve.png", acc.Gaussian(4.0), [1, 10]
    for adjacency in acc.Adjacency:
        plot_privacy({"one": step}, out, steps=steps, delta=1e-5, adjacency=adjacency)
        lines = [panel.lines[0].get_xydata() for panel in kept.pop().axes]
        # A replaced record is two moves: of n releases μ is √n/4, or twice that.
        root = np.sqrt(10) / 4 * (2 if adjacency == acc.Adjacency.REPLACE_ONE else 1)
        renyi, trade, growth = (np.asarray(line, float).T for line in lines)
        np.testing.assert_allclose(renyi[1], (renyi[0] + 1) * root**2 / 2, rtol=1e-6)
        missed = norm.cdf(norm.ppf(1 - trade[0]) - root)
        np.testing.assert_allclose(trade[1], missed, rtol=1e-6, atol=1e-9)
        mu, epsilon = root * np.sqrt(growth[0] / 10), growth[1]
        spent = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        np.testing.assert_allclose(spent, 1e-5, rtol=1e-6)


def test_sweep_picture(tmp_path):
    noises, rates = np.geomspace(0.5, 4, 8), np.geomspace(1e-3, 1e-1, 6)
    cost = rates[:, None] / noises[None, :] * 50
    cost[-1, 0] = np.inf  # white
    picture = imread(plot_sweep(noises, rates, cost, tmp_path / "sweep.png", title="grid"))
    assert picture.shape[0] > 700


def test_a_colour_is_the_same_epsilon_in_every_sweep(tmp_path):
    # One corner costs less, or more, than ε = 1 in the middle.
    noises, rates, found = np.geomspace(0.5, 4, 8), np.geomspace(1e-3, 1e-1, 6), []
    for corner in (0.2, 20.0):
        cost = np.ones((6, 8))
        cost[-1, -1] = corner
        picture = imread(plot_sweep(noises, rates, cost, tmp_path / "x.png", contours=()))
        height, width = picture.shape[:2]
        found.append(picture[height // 2, int(0.4 * width)])
    assert np.array_equal(found[0], found[1])
    assert not np.allclose(found[0][:3], 1.0)


def test_axes_are_the_same_in_every_sweep_and_wider_only_for_what_lies_outside(tmp_path):
    def strip(low, high):
        noises, rates = np.geomspace(low, high, 5), np.geomspace(1e-3, 1e-1, 4)
        cost = np.ones((4, 5))
        picture = imread(plot_sweep(noises, rates, cost, tmp_path / "x.png", contours=()))
        return picture[int(0.93 * len(picture)) :], picture[len(picture) // 2]

    (axis, across), (same, other) = strip(0.5, 4.0), strip(1.0, 8.0)
    assert np.array_equal(axis, same)  # ticks and labels
    assert not np.array_equal(across, other)  # what is priced
    wider = strip(0.5, 300.0)[0]
    assert wider.shape != axis.shape or not np.array_equal(axis, wider)


def test_bad_input_is_named(tmp_path):
    with pytest.raises(ValueError, match="increasing"):
        plot_privacy({"one": acc.Gaussian(1.0)}, tmp_path / "x.png", steps=[3, 1])
    with pytest.raises(ValueError, match="shape"):
        plot_sweep([1.0, 2.0], [0.1], np.ones((2, 1)), tmp_path / "x.png")
    with pytest.raises(ValueError, match="finite"):
        plot_sweep([1.0], [0.1], np.full((1, 1), np.inf), tmp_path / "x.png")
