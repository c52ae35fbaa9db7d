"""Noise on the integers and randomised choices, drawn exactly: by whole numbers, on the host.

No logarithm, exponential or float enters a draw: e^{−γ} of a rational γ is a game of fair coins,
and every float that is passed in is the rational number that it is. The bits are those of JAX's
generator for the key, one stream a call. Nothing of this runs under a trace. There is no sampler of
Laplace noise on real numbers: in floating point its gaps tell what it was added to (Mironov 2012).
Round to a public grid, and add `discrete_laplace`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float, Int

from dpjax._argument_names import accepts_old_names, suggests_argument_names
from dpjax._numerics import checks
from dpjax._numerics.typing import PRNGKey

_WORDS_AT_A_TIME = 4096  # words of 32 bits drawn at once


class _ExactSampler:
    """Uniform whole numbers and rational chances from a key's bits."""

    def __init__(self, key: PRNGKey) -> None:
        if isinstance(key, jax.core.Tracer):
            raise TypeError(f"key must be a concrete key, got {checks.render(key)}")
        # 32 bits by name: the default has 64 where JAX's default floats have.
        draw = functools.partial(jax.random.bits, shape=(_WORDS_AT_A_TIME,), dtype=jnp.uint32)
        blocks = (draw(jax.random.fold_in(key, block)) for block in itertools.count())
        self._words = (word for block in blocks for word in np.asarray(block).tolist())

    def below(self, n: int) -> int:
        """Uniform in {0, …, n − 1}, by rejection."""
        size = (n - 1).bit_length()
        while True:
            found = 0
            for _ in range(-(-size // 32)):
                found = found << 32 | next(self._words)
            found >>= -size % 32  # the bits that are too many
            if found < n:
                return found

    def chance(self, part: int, whole: int) -> bool:
        """True with probability part/whole."""
        common = math.gcd(part, whole)  # in lowest terms as few bits as can be are drawn
        return self.below(whole // common) < part // common

    def exp(self, part: int, whole: int = 1) -> bool:
        """True with probability e^{−γ}, γ = part/whole >= 0."""
        # Canonne, Kamath and Steinke 2020, Algorithm 1: e^{−γ} = Σₖ (−γ)ᵏ/k!, as coins of chance
        # γ/1, γ/2, … that are tossed until the first 0, after an odd number of tosses. By whole
        # numbers: `Fraction` would take most of the time.
        while part > whole:
            if not self.exp(1):
                return False
            part -= whole  # e^{−γ} = e^{−1}·e^{−(γ−1)}
        k = 1
        while self.chance(part, whole * k):
            k += 1
        return k % 2 == 1

    def laplace(self, scale: Fraction) -> int:
        """P(k) ∝ e^{−|k|/scale}."""
        # Algorithm 2: u + t·v is geometric with parameter 1 − e^{−1/t}; −0 is drawn again.
        t, s = scale.numerator, scale.denominator
        while True:
            u = self.below(t)
            if not self.exp(u, t):
                continue
            v = 0
            while self.exp(1):
                v += 1
            size, negative = (u + t * v) // s, self.below(2)
            if size or not negative:
                return -size if negative else size

    def gaussian(self, sigma: Fraction) -> int:
        """P(k) ∝ e^{−k²/2σ²}, by rejection from the Laplace law of scale ⌊σ⌋ + 1 (Algorithm 3)."""
        scale = Fraction(sigma.__floor__() + 1)
        t, square = scale.numerator, sigma * sigma
        n, d = square.numerator, square.denominator
        while True:
            k = self.laplace(scale)
            # (|k| − σ²/t)²/2σ² with σ² = n/d
            if self.exp((abs(k) * d * t - n) ** 2, 2 * n * d * t * t):
                return k


def _rational(name: str, value: object) -> Fraction:
    return Fraction(checks.one_number(name, value, checks.Range(0.0, open_low=True)))


def _draw(
    key: PRNGKey,
    draw: Callable[[_ExactSampler, Fraction], int],
    name: str,
    scale: object,
    shape: Sequence[int],
) -> np.ndarray:
    """As many numbers of one law, a method of the sampler, as the shape has."""
    coins, exact, size = _ExactSampler(key), _rational(name, scale), int(np.prod(shape, dtype=int))
    return np.array([draw(coins, exact) for _ in range(size)], np.int64).reshape(tuple(shape))


@suggests_argument_names
def discrete_laplace(
    key: PRNGKey, scale: float, shape: Sequence[int] = ()
) -> Int[np.ndarray, "..."]:
    """Noise on the integers with P(k) ∝ e^{−|k|/scale}, exactly; int64 on the host.

    Args:
        key: a JAX key, used once.
        scale: noise_multiplier·sensitivity of `accounting.DiscreteLaplace`, > 0.
        shape: of what is returned.

    Example:
        >>> import jax
        >>> discrete_laplace(jax.random.key(0), 3.0, (4,)).dtype
        dtype('int64')

    References:
        Canonne, Kamath, Steinke 2020, Algorithm 2.
    """
    return _draw(key, _ExactSampler.laplace, "scale", scale, shape)


@accepts_old_names(stddev="noise_std")
def discrete_gaussian(
    key: PRNGKey, noise_std: float, shape: Sequence[int] = ()
) -> Int[np.ndarray, "..."]:
    """Noise on the integers with P(k) ∝ e^{−k²/(2·noise_std²)}, exactly; int64 on the host.

    Args:
        key: a JAX key, used once.
        noise_std: noise_multiplier·sensitivity of `accounting.DiscreteGaussian`, > 0.
        shape: of what is returned.

    Example:
        >>> import jax
        >>> discrete_gaussian(jax.random.key(0), 3.0, (4,)).shape
        (4,)

    References:
        Canonne, Kamath, Steinke 2020, Algorithm 3.
    """
    return _draw(key, _ExactSampler.gaussian, "noise_std", noise_std, shape)


@suggests_argument_names
def randomized_response(
    key: PRNGKey, values: Int[ArrayLike, "..."], epsilon: float, categories: int
) -> Int[np.ndarray, "..."]:
    """Each value kept with probability e^ε/(e^ε + categories − 1), otherwise another, exactly.

    Args:
        key: a JAX key, used once.
        values: whole numbers in [0, categories).
        epsilon, categories: as of `accounting.RandomizedResponse`.

    Returns:
        The reports, int64 of the shape of the values, on the host.

    Example:
        >>> import jax
        >>> randomized_response(jax.random.key(0), [0, 1, 2], 50.0, 3).tolist()
        [0, 1, 2]
    """
    gamma = Fraction(checks.one_number("epsilon", epsilon, checks.Range(0.0)))
    k = int(checks.one_number("categories", categories, checks.Range(2.0, whole=True)))
    checks.number("values", values, checks.Range(0.0, k - 1.0, whole=True))
    coins = _ExactSampler(key)

    def report(value: int) -> int:
        while True:  # all alike at first, and what is not the value is kept with e^{−ε}
            found = coins.below(k)
            if found == value or coins.exp(*gamma.as_integer_ratio()):
                return found

    given = np.asarray(values, np.int64)
    return np.array([report(int(v)) for v in given.ravel()], np.int64).reshape(given.shape)


@suggests_argument_names
def select(
    key: PRNGKey,
    scores: Float[ArrayLike, " candidates"],
    epsilon: float,
    sensitivity: float,
    *,
    monotone: bool = False,
    permute_and_flip: bool = False,
) -> int:
    """The place of a candidate by the exponential mechanism, or by permute-and-flip, exactly.

    Args:
        key: a JAX key, used once.
        scores: one a candidate, the higher the better.
        epsilon, monotone, permute_and_flip: as of `accounting.Exponential`.
        sensitivity: how far adding or removing one record moves any score, > 0.

    Example:
        >>> import jax
        >>> select(jax.random.key(0), [0.0, 90.0, 1.0], epsilon=2.0, sensitivity=1.0)
        1

    References:
        McKenna and Sheldon 2020, "Permute-and-flip".
    """
    checks.number("scores", scores, checks.Range())
    exact = [Fraction(float(score)) for score in np.ravel(np.asarray(scores, np.float64))]
    if not exact:
        raise ValueError("scores must be of at least one candidate, got none")
    scale = Fraction(checks.one_number("epsilon", epsilon, checks.Range(0.0)))
    scale /= _rational("sensitivity", sensitivity) * (1 if monotone else 2)
    best, coins = max(exact), _ExactSampler(key)
    left = list(range(len(exact)))
    while True:
        place = coins.below(len(left))
        behind = scale * (best - exact[left[place]])
        if coins.exp(*behind.as_integer_ratio()):
            return left[place]
        if permute_and_flip:
            left.pop(place)  # each is flipped once
