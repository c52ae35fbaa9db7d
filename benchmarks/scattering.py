"""Scattering features of small grey images: fixed wavelets, nothing learned, so free of any cost.

Two layers of moduli of Morlet wavelets at two scales and eight angles, averaged and sampled at
every fourth pixel: 81 channels, of which each image's own groups are normalised.

References:
  Bruna, Mallat 2013, "Invariant scattering convolution networks"; Oyallon, Mallat 2015; Tramèr,
  Boneh 2021, "Differentially private learning needs better features".
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

SCALES, ANGLES = 2, 8
GROUPS = 27


def _gabor(side: int, sigma: float, angle: float, frequency: float, slant: float) -> np.ndarray:
    """A Gaussian along `angle` times a wave, on a torus, by its periods."""
    found = np.zeros((side, side), complex)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    curve = turn @ np.diag([1.0, slant**2]) @ turn.T / (2 * sigma**2)
    for shift_x in range(-2, 3):
        for shift_y in range(-2, 3):
            x, y = np.mgrid[
                shift_x * side : (shift_x + 1) * side, shift_y * side : (shift_y + 1) * side
            ]
            bell = curve[0, 0] * x * x + (curve[0, 1] + curve[1, 0]) * x * y + curve[1, 1] * y * y
            wave = frequency * (x * np.cos(angle) + y * np.sin(angle))
            found += np.exp(-bell + 1j * wave)
    return found / (2 * np.pi * sigma**2 / slant)


def _morlet(side: int, scale: int, angle: float) -> np.ndarray:
    """A wave in a Gaussian, less what makes its mean zero; its Fourier transform, real."""
    sigma, slant = 0.8 * 2**scale, 4.0 / ANGLES
    wave = _gabor(side, sigma, angle, 3 / 4 * np.pi / 2**scale, slant)
    bell = _gabor(side, sigma, angle, 0.0, slant)
    return np.real(np.fft.fft2(wave - wave.sum() / bell.sum() * bell))


@functools.cache
def _filters(side: int, margin: int) -> tuple[np.ndarray, np.ndarray]:
    """Wavelets [scales, angles, side, side] in Fourier space, and averages [side/4, side]."""
    angles = [(ANGLES - ANGLES // 2 - 1 - k) * np.pi / ANGLES for k in range(ANGLES)]
    whole = side + 2 * margin
    waves = np.stack([np.stack([_morlet(whole, j, a) for a in angles]) for j in range(SCALES)])
    places = margin + 4 * np.arange(side // 4)
    gap = np.arange(whole) - places[:, None]
    sigma = 0.8 * 2 ** (SCALES - 1)
    bell = np.exp(-(gap**2) / (2 * sigma**2))
    return waves.astype(np.float32), (bell / bell.sum(1, keepdims=True)).astype(np.float32)


@functools.partial(jax.jit, static_argnames="margin")
def _scatter(images: jax.Array, waves: jax.Array, low: jax.Array, margin: int) -> jax.Array:
    """[batch, side, side] -> [batch, channels, side/4, side/4]."""
    padded = jnp.pad(images, [(0, 0), (margin, margin), (margin, margin)], mode="reflect")
    spectrum = jnp.fft.fft2(padded)[:, None]
    first = [jnp.abs(jnp.fft.ifft2(spectrum * waves[j])) for j in range(SCALES)]
    second = jnp.abs(jnp.fft.ifft2(jnp.fft.fft2(first[0])[:, :, None] * waves[1]))
    second = second.reshape(len(images), -1, *padded.shape[1:])
    channels = jnp.concatenate([padded[:, None], *first, second], axis=1)
    return jnp.einsum("ri,bcij,sj->bcrs", low, channels, low)


@jax.jit
def _normalised(features: jax.Array) -> jax.Array:
    """Mean 0 and variance 1 in every group of channels of every image, by itself."""
    shape = features.shape
    grouped = features.reshape(shape[0], GROUPS, -1)
    centred = grouped - grouped.mean(-1, keepdims=True)
    scaled = centred / jnp.sqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)
    return scaled.reshape(shape[0], -1)


def features(images: np.ndarray, *, batch: int = 100) -> np.ndarray:
    """Features [records, 3969] of images [records, 28, 28] in [0, 1]."""
    margin = 6
    waves, low = _filters(images.shape[1], margin)
    parts = [
        np.asarray(_normalised(_scatter(images[i : i + batch], waves, low, margin)))
        for i in range(0, len(images), batch)
    ]
    return np.concatenate(parts)
