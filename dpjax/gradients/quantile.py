"""A clip norm that follows a quantile of the gradients' norms, estimated privately."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dpjax._numerics.normal import normal
from dpjax.gradients.strategies import Flat, require_positive


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AdaptiveQuantile(Flat):
    """Flat clipping at a clip norm that tracks a quantile of the norms (Andrew et al. 2021).

    After every step the clip norm moves by C ← C·exp(−η·(b̃ − γ)), where b̃ estimates the fraction
    of records with norm at most C: b̃ = ½ + (Σᵢ (1[‖gᵢ‖ ≤ C] − ½) + N(0, σ_b²)) / m, with m the
    expected, public batch size.

    The count is a second release about the same records: one record more or less moves it by ½,
    one record exchanged by 1, half of what it moves the sum divided by C (1 and 2). A step is
    therefore a Gaussian mechanism of noise multiplier z = (σ⁻² + (2σ_b)⁻²)^(−1/2) under both
    adjacencies, where σ is the noise multiplier of the sum (Andrew et al. 2021, Theorem 1). Price z
    and add noise of σ: `gradient_noise` turns the one into the other.

    Args:
        count_noise: σ_b > 0, the standard deviation of the noise on the count, in records.
        batch_size: m, the expected number of records in a batch.
        quantile: γ in (0, 1).
        learning_rate: η > 0, of the logarithm of the clip norm.

    Raises:
        ValueError: if an argument is out of its range, or the count's noise is too small for the
            noise multiplier asked for.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> adapt = AdaptiveQuantile(count_noise=10.0, batch_size=4)
        >>> sigma = adapt.gradient_noise(1.0)  # noise of 1.00125 on the sum, priced as 1.0
        >>> f"{sigma:.5f} {adapt.noise_multiplier(sigma):.5f}"
        '1.00125 1.00000'
        >>> tame = AdaptiveQuantile(count_noise=1e-6, batch_size=4)
        >>> norms, mask = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.ones(4, bool)
        >>> f"{tame.next_clip_norm(8.0, norms, mask, jax.random.key(0)):.4f}"  # 8·exp(−0.2·½)
        '7.2387'
    """

    count_noise: Any
    batch_size: Any
    quantile: Any = 0.5
    learning_rate: Any = 0.2

    def __post_init__(self):
        require_positive("count_noise", self.count_noise)
        require_positive("batch_size", self.batch_size)
        require_positive("learning_rate", self.learning_rate)
        if isinstance(self.quantile, int | float) and not 0 < self.quantile < 1:
            raise ValueError(f"quantile must be in (0, 1), got {self.quantile!r}")

    def noise_multiplier(self, gradient_noise: float) -> float:
        """z, the noise multiplier to account for, from σ, that of the noise added to the sum."""
        return (gradient_noise**-2 + (2 * self.count_noise) ** -2) ** -0.5

    def gradient_noise(self, noise_multiplier: float) -> float:
        """σ, the noise multiplier to add to the sum, so that sum and count together have z."""
        own = 2 * self.count_noise
        if not noise_multiplier < own:
            raise ValueError(
                f"count_noise must exceed noise_multiplier / 2 = {noise_multiplier / 2!r}, got "
                f"{self.count_noise!r}: the count alone costs more than is allowed"
            )
        # The difference of the squares as a product: of near numbers it is exact (Sterbenz).
        left = ((own - noise_multiplier) / own) * (1 + noise_multiplier / own)
        return noise_multiplier / left**0.5

    def next_clip_norm(
        self,
        clip_norm: Any,
        norms: Float[Array, " batch"],
        mask: Bool[Array, " batch"],
        key: PRNGKeyArray,
    ) -> Float[Array, ""]:
        """The next step's clip norm from this step's norms; draws the count's noise from `key`."""
        inside = jnp.where(norms <= clip_norm, 0.5, -0.5)
        count = jnp.sum(jnp.where(mask, inside, 0.0)).astype(norms.dtype)
        return self.moved(clip_norm, count, key)

    def moved(self, clip_norm: Any, count: Float[Array, ""], key: PRNGKeyArray) -> Float[Array, ""]:
        """The next step's clip norm from Σᵢ (1[‖gᵢ‖ ≤ C] − ½), which is released with noise."""
        noisy = count + self.count_noise * normal(key, (), count.dtype)
        fraction = 0.5 + noisy / self.batch_size
        return clip_norm * jnp.exp(-self.learning_rate * (fraction - self.quantile))
