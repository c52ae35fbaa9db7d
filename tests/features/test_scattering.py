"""The scattering transform against a direct convolution and against kymatio."""

from __future__ import annotations

import json
import pathlib

import jax
import numpy as np
import pytest

from dpjax.features import scattering

KYMATIO = json.loads((pathlib.Path(__file__).parent / "kymatio.json").read_text())


def drawn():
    """The image of which kymatio's numbers are."""
    y, x = np.mgrid[:32, :32] / 32
    disc = np.hypot(x - 0.4, y - 0.6) < 0.2
    return (0.5 + 0.3 * np.sin(9 * x + 4 * y) + 0.2 * disc).astype(np.float32)


def test_it_is_kymatio_s_away_from_the_edges():
    """kymatio samples between its layers, and continues an image by fewer pixels."""
    found = np.asarray(scattering(drawn()[None]))[0]
    there = np.asarray(KYMATIO["values"])
    here = np.stack([found[tuple(place)] for place in KYMATIO["places"]])
    for first, last, most in ((0, 1, 1e-4), (1, 9, 1e-3), (9, 17, 0.01), (17, 81, 0.01)):
        gap = np.linalg.norm((here - there)[:, first:last])
        assert gap < most * np.linalg.norm(there[:, first:last])


def convolve(image, kernel):
    """A convolution on a torus, term by term."""
    found = np.zeros(image.shape, complex)
    for down in range(image.shape[0]):
        for along in range(image.shape[1]):
            found += kernel[down, along] * np.roll(image, (down, along), axis=(0, 1))
    return found


def gabor(shape, spread, slant, turn, frequency):
    """A wave along a direction in a Gaussian, of distances on a torus."""
    found = np.zeros(shape, complex)
    for period_down in range(-3, 4):
        for period_along in range(-3, 4):
            for down in range(shape[0]):
                x = down + period_down * shape[0]
                y = np.arange(shape[1]) + period_along * shape[1]
                # In the direction of the wave, and across it.
                along, across = (
                    x * np.cos(turn) + y * np.sin(turn),
                    y * np.cos(turn) - x * np.sin(turn),
                )
                bell = np.exp(-(along**2 + (slant * across) ** 2) / (2 * spread**2))
                found[down] += bell * np.exp(1j * frequency * along)
    return found * slant / (2 * np.pi * spread**2)


def morlet(shape, scale, turn, angles):
    spread, slant = 0.8 * 2**scale, 4 / angles
    wave = gabor(shape, spread, slant, turn, 0.75 * np.pi / 2**scale)
    bell = gabor(shape, spread, slant, turn, 0.0)
    return wave - bell * wave.sum() / bell.sum()


@pytest.mark.parametrize(("scales", "angles"), [(1, 4), (2, 3)])
def test_it_is_moduli_of_direct_convolutions(scales, angles):
    image = np.random.default_rng(0).random((9, 12))
    margin, step = 3 * 2 ** (scales - 1), 2**scales
    padded = np.pad(image, margin, mode="reflect")
    turns = [(angles - angles // 2 - 1 - k) * np.pi / angles for k in range(angles)]
    waves = [[morlet(padded.shape, j, turn, angles) for turn in turns] for j in range(scales)]
    first = [[np.abs(convolve(padded, wave)) for wave in row] for row in waves]
    maps = [padded, *(one for row in first for one in row)]
    for j in range(scales):
        for one in first[j]:
            maps += [np.abs(convolve(one, wave)) for k in range(j + 1, scales) for wave in waves[k]]
    spread = 0.8 * 2 ** (scales - 1)
    expected = np.zeros((9 // step, 12 // step, len(maps)))
    y, x = np.mgrid[: padded.shape[0], : padded.shape[1]]
    for row in range(9 // step):
        for column in range(12 // step):
            far = (y - margin - step * row) ** 2 + (x - margin - step * column) ** 2
            bell = np.exp(-far / (2 * spread**2))
            expected[row, column] = [np.sum(bell * one) / np.sum(bell) for one in maps]
    found = np.asarray(scattering(image[None], scales=scales, angles=angles))[0]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_every_image_and_every_colour_is_transformed_by_itself():
    images = np.random.default_rng(0).random((70, 10, 8, 3)).astype(np.float32)  # of two pieces
    together = np.asarray(jax.jit(scattering)(images))
    assert together.shape == (70, 2, 2, 3 * 81)
    grey = np.asarray(scattering(images[66:67, :, :, 1]))
    np.testing.assert_allclose(together[66, :, :, 81:162], grey[0], atol=1e-5)
    # What is constant has no waves: the average alone is left.
    flat = np.asarray(scattering(np.full((1, 8, 8), 0.25)))
    np.testing.assert_allclose(flat[..., 0], 0.25, atol=1e-6)
    np.testing.assert_allclose(flat[..., 1:], 0.0, atol=1e-5)


def test_what_is_no_image_is_refused():
    for shape in ((28, 28), (2, 28, 28, 3, 1), (2, 28, 6), (2, 6, 28, 1)):
        with pytest.raises(ValueError, match=r"images must be .* at least 7 pixels a side at scal"):
            scattering(np.zeros(shape))
    for wrong in ({"scales": 0}, {"scales": 7}, {"angles": 1}):
        with pytest.raises(ValueError, match=rf"{next(iter(wrong))} must be"):
            scattering(np.zeros((1, 28, 28)), **wrong)
