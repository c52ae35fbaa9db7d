"""The scattering transform of images: fixed wavelets, of which nothing is learned."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics.checks import whole

_AT_ONCE = 64  # images whose spectra are in memory together
_ACROSS = 0.8  # of a wavelet's Gaussian, in pixels at the finest scale
_WAVE = 0.75 * math.pi  # radians a pixel at the finest scale


class _Filters(NamedTuple):
    """Wavelets of one size of images in Fourier space, and the averages along both axes."""

    waves: np.ndarray  # complex64, real numbers [scales, angles, padded height, padded width]
    down: np.ndarray  # float32 [height / 2^scales, padded height]
    along: np.ndarray  # float32 [width / 2^scales, padded width]


def scattering(
    images: Float[ArrayLike, "records height width ..."], *, scales: int = 2, angles: int = 8
) -> Float[Array, "records rows columns channels"]:
    """The scattering transform of depth 2 of every image, by itself.

        x∗φ,  |x∗ψ(j, θ)|∗φ,  ||x∗ψ(j, θ)|∗ψ(k, θ')|∗φ  for j < k,

    with Morlet wavelets ψ of the scales 2ʲ and of angles θ, and a Gaussian average φ of the largest
    scale, taken at every 2^scales-th pixel. A linear model on it is a strong private classifier of
    small images: it has what a first layer of convolutions learns, and learns none of it.

    Args:
        images: [records, height, width] of grey images, or [records, height, width, colours], of
            which each colour is transformed by itself. Sides of at least 3·2^(scales − 1) + 1 and
            2^scales pixels.
        scales: J, 1 to 6.
        angles: L, at least 2.

    Returns:
        [records, ⌊height/2ᴶ⌋, ⌊width/2ᴶ⌋, colours·(1 + JL + L²J(J − 1)/2)], float32: of an image of
        28 × 28 at J = 2 and L = 8 it is 7 × 7 × 81 = 3,969 numbers. Of several colours those of the
        first come first.

    Raises:
        ValueError: images of another shape or too small, or a number out of range.

    Guarantee:
        A function of each image alone, of which no parameter was learned: it costs no ε, of
        whatever data, and a record's features do not depend on other records. Images are continued
        by reflection at their edges. It takes 1 + JL Fourier transforms of the padded image and one
        more for each pair of wavelets, 81 at the defaults, about 1 ms a grey image of 28 × 28 on
        one core, and works on 64 images at a time.

    Example:
        >>> images = np.zeros((2, 28, 28), np.float32)
        >>> scattering(images).shape, scattering(np.zeros((1, 32, 32, 3))).shape
        ((2, 7, 7, 81), (1, 8, 8, 243))

    References:
        Bruna and Mallat 2013, "Invariant scattering convolution networks"; Oyallon and Mallat 2015,
        "Deep roto-translation scattering for object classification"; Tramèr and Boneh 2021,
        "Differentially private learning needs better features (or much more data)"; filters as in
        Andreux et al. 2020, "Kymatio: scattering transforms in Python".
    """
    scales, angles = whole("scales", scales, most=6), whole("angles", angles, low=2)
    x = jnp.asarray(images, jnp.float32)
    margin = 3 * 2 ** (scales - 1)
    least = max(margin + 1, 2**scales)
    if x.ndim not in (3, 4) or min(x.shape[1:3]) < least:
        raise ValueError(
            "images must be [records, height, width] or [records, height, width, colours], of at "
            f"least {least} pixels a side at scales = {scales}, got shape {x.shape}"
        )
    filters = _make_filters(x.shape[1], x.shape[2], scales, angles, margin)
    planes = x[..., None] if x.ndim == 3 else x
    records, height, width, colours = planes.shape
    planes = jnp.moveaxis(planes, -1, 1).reshape(-1, height, width)
    found = jax.lax.map(
        functools.partial(_scatter, filters=filters, margin=margin), planes, batch_size=_AT_ONCE
    )
    rows, columns, channels = found.shape[1:]
    found = found.reshape(records, colours, rows, columns, channels)
    return jnp.moveaxis(found, 1, 3).reshape(records, rows, columns, colours * channels)


def _scatter(image: jax.Array, filters: _Filters, margin: int) -> jax.Array:
    """[height, width] -> [rows, columns, channels]."""
    padded = jnp.pad(image, margin, mode="reflect")
    first = _moduli(padded, filters.waves)  # [scales, angles, ...]
    parts = [padded[None], first.reshape(-1, *padded.shape)]
    # A modulus of scale 2ʲ varies more slowly than that: finer wavelets would find nothing.
    for j in range(len(filters.waves) - 1):
        second = jax.vmap(lambda one, j=j: _moduli(one, filters.waves[j + 1 :]))(first[j])
        parts.append(second.reshape(-1, *padded.shape))
    return jnp.einsum("ri,cij,sj->rsc", filters.down, jnp.concatenate(parts), filters.along)


def _moduli(image: jax.Array, waves: np.ndarray) -> jax.Array:
    """The moduli of an image's convolutions with wavelets, on a torus."""
    return jnp.abs(jnp.fft.ifft2(jnp.fft.fft2(image)[None, None] * waves))


@functools.lru_cache(maxsize=16)
def _make_filters(height: int, width: int, scales: int, angles: int, margin: int) -> _Filters:
    """All wavelets of one size of images; functions of public numbers."""
    shape = height + 2 * margin, width + 2 * margin
    turns = [(angles - angles // 2 - 1 - k) * math.pi / angles for k in range(angles)]
    waves = [[_make_morlet(shape, j, turn, angles) for turn in turns] for j in range(scales)]
    down, along = (_make_averages(side, scales, margin) for side in (height, width))
    return _Filters(np.asarray(waves, np.complex64), down, along)


def _make_morlet(shape: tuple[int, int], scale: int, turn: float, angles: int) -> np.ndarray:
    """A wave in a Gaussian, less what makes its mean zero: its Fourier transform, which is real."""
    wave = _make_gabor(shape, scale, turn, angles, _WAVE / 2**scale)
    bell = _make_gabor(shape, scale, turn, angles, 0.0)
    return np.real(np.fft.fft2(wave - wave.sum() / bell.sum() * bell))


def _make_gabor(
    shape: tuple[int, int], scale: int, turn: float, angles: int, frequency: float
) -> np.ndarray:
    """A wave in a Gaussian that is longer across it, on a torus: the sum over its periods."""
    spread, slant = _ACROSS * 2**scale, 4.0 / angles
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    curve = rotation @ np.diag([1.0, slant**2]) @ rotation.T / (2 * spread**2)
    found = np.zeros(shape, complex)
    for down in range(-2, 3):
        for along in range(-2, 3):
            x = np.arange(shape[0])[:, None] + down * shape[0]
            y = np.arange(shape[1])[None, :] + along * shape[1]
            bell = curve[0, 0] * x * x + 2 * curve[0, 1] * x * y + curve[1, 1] * y * y
            wave = frequency * (x * math.cos(turn) + y * math.sin(turn))
            found += np.exp(-bell + 1j * wave)
    return found * slant / (2 * math.pi * spread**2)


def _make_averages(side: int, scales: int, margin: int) -> np.ndarray:
    """Gaussian weights around every 2^scales-th pixel of a padded side, of sum 1."""
    step = 2**scales
    places = margin + step * np.arange(side // step)
    gaps = np.arange(side + 2 * margin) - places[:, None]
    bell = np.exp(-(gaps**2) / (2 * (_ACROSS * step / 2) ** 2))
    return (bell / bell.sum(axis=1, keepdims=True)).astype(np.float32)
