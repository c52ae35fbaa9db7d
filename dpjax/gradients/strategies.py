"""Strategies of clipping: the factor for a gradient of some norm, and the sensitivity it buys."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import KeyPath
from jaxtyping import Array, Bool, Float, PyTree

from dpjax._numerics.checks import Range, one_number
from dpjax._numerics.normal import normal
from dpjax._numerics.typing import Number, Params, PRNGKey


def path_name(path: KeyPath) -> str:
    """A leaf's path in a tree as one text, such as "dense_0/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def values_of_leaves(name: str, prefix: PyTree, params: Params, of: str) -> list:
    """The value of every leaf of `params`, from a tree like it or a prefix of it."""
    try:
        found = jax.tree.map(lambda x, part: jax.tree.map(lambda _: x, part), prefix, params)
    except ValueError as error:
        raise ValueError(
            f"{name} must be a tree of {of} like params or a prefix of it, got "
            f"{jax.tree.structure(prefix)}"
        ) from error
    return jax.tree.leaves(found)


def _round_down(factors: Array) -> Array:
    # Two units in the last place cover the square root, the division and the product that follow,
    # so that the scaled gradient's norm stays at or below the bound.
    return factors * (1 - 2 * float(jnp.finfo(factors.dtype).eps))


@dataclasses.dataclass(frozen=True)
class Strategy:
    """Base of all clipping strategies: one group, sensitivity C (added record) or 2C (exchanged).

    A strategy turns the squared norms of the groups of parameters into finite factors ≥ 0, with
    which the groups are multiplied: the norm never exceeds the clip norm. A factor of a strategy
    that normalises is above 1 where the gradient is smaller than the clip norm.

    Example:
        >>> from dpjax.gradients import Flat
        >>> Flat().sensitivity(1.5, "add-remove"), Flat().sensitivity(1.5, "replace-one")
        (1.5, 3.0)
    """

    def bind(self, params: Params) -> Strategy:
        """This strategy with what depends on the structure of `params` worked out."""
        del params
        return self

    def groups(self, params: Params) -> tuple[int, ...]:
        """The group of every leaf of `params`, in flattening order."""
        return (0,) * len(jax.tree.leaves(params))

    def factors(
        self, squared_norms: Float[Array, "groups batch"], clip_norm: Float[Array, ""]
    ) -> Float[Array, "groups batch"]:
        """The factor of every group and record, given the squared norms of the gradients."""
        raise NotImplementedError

    def sensitivity(self, clip_norm: Number, adjacency: str = "add-remove") -> Number:
        """The most that one record moves the sum, in l2 norm: C, or 2C under "replace-one"."""
        text = getattr(adjacency, "name", str(adjacency))
        name = "_".join(re.split(r"[-_ ]+", text.strip().upper()))
        if name not in ("ADD_REMOVE", "REPLACE_ONE"):
            raise ValueError(f"adjacency must be 'add-remove' or 'replace-one', got {adjacency!r}")
        # The triangle inequality: an exchange is a removal and an addition.
        return 2 * clip_norm if name == "REPLACE_ONE" else clip_norm


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Flat(Strategy):
    """Clip the whole gradient: g · min(1, C/‖g‖) (Abadi et al. 2016, Algorithm 1).

    Example:
        >>> import jax.numpy as jnp
        >>> Flat().factors(jnp.array([[4.0, 0.25]]), jnp.float32(1.0)).round(4).tolist()
        [[0.5, 1.0]]
    """

    def factors(self, squared_norms: Float[Array, "groups batch"], clip_norm: Float[Array, ""]):
        return _round_down(_shrink(jnp.sqrt(squared_norms), clip_norm))


def _shrink(norms: Array, clip_norm: Array) -> Array:
    # The comparison, not the quotient, decides at norm 0 and at clip norms beyond every norm.
    exceeds = norms > clip_norm
    return jnp.where(exceeds, clip_norm / jnp.where(exceeds, norms, jnp.ones_like(norms)), 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Automatic(Strategy):
    """Normalise every gradient: C·g / (‖g‖ + γ), whose norm is below C (AUTO-S).

    Args:
        gamma: the stability constant γ > 0, in units of the gradient's norm.

    Example:
        >>> import jax.numpy as jnp
        >>> factors = Automatic(gamma=1.0).factors(jnp.array([[9.0, 0.0]]), jnp.float32(1.0))
        >>> [f"{factor:.3f}" for factor in factors[0]]
        ['0.250', '1.000']

    References:
        Bu, Wang, Zha and Karypis 2023, "Automatic clipping", equation (4.1), with the clip norm
        kept as the scale.
    """

    gamma: Number = 0.01

    def __post_init__(self):
        require_positive("gamma", self.gamma)

    def factors(self, squared_norms: Float[Array, "groups batch"], clip_norm: Float[Array, ""]):
        # ‖g‖/(‖g‖ + γ) < 1.
        gamma = jnp.asarray(self.gamma, squared_norms.dtype)
        return _round_down(clip_norm / (jnp.sqrt(squared_norms) + gamma))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PerSampleAdaptive(Strategy):
    """Weigh by a non-monotone function of the norm: C·g / (‖g‖ + r/(‖g‖ + r)) (DP-PSAC).

    The clipped norm is below C; small gradients are not blown up as much as by `Automatic`.

    Args:
        r: the constant r > 0, in units of the gradient's norm.

    Example:
        >>> import jax.numpy as jnp
        >>> factor = PerSampleAdaptive(r=0.1).factors(jnp.array([[0.01]]), jnp.float32(1.0))
        >>> f"{0.1 * factor[0, 0]:.4f}"  # the norm 0.1 becomes 1/6
        '0.1667'

    References:
        Xia et al. 2023, "Differentially private learning with per-sample adaptive clipping", (6).
    """

    r: Number = 0.1

    def __post_init__(self):
        require_positive("r", self.r)

    def factors(self, squared_norms: Float[Array, "groups batch"], clip_norm: Float[Array, ""]):
        # ‖g‖/(‖g‖ + r/(‖g‖ + r)) < 1.
        norms = jnp.sqrt(squared_norms)
        r = jnp.asarray(self.r, squared_norms.dtype)
        return _round_down(clip_norm / (norms + r / (norms + r)))


@dataclasses.dataclass(frozen=True)
class PerGroup(Strategy):
    """Clip every group of parameters on its own: group k to C·wₖ/√Σw².

    The groups' bounds add up in squares to C²: sensitivities are those of flat clipping (McMahan et
    al. 2018, §3).

    Args:
        label: a function (path, leaf) -> str naming a leaf's group by its path, such as
            "dense_0/kernel", or a tree of names that is the parameters' or a prefix of it. By
            default a leaf belongs to the layer that holds it: its path without the last part
            (leaves at the root stand for themselves).
        weights: the relative bound of each group by name; groups not named weigh 1. Norms of your
            own are weights under the clip norm that `PerGroup.clip_norm` says.

    Example:
        >>> import jax.numpy as jnp
        >>> params = {"a": {"w": jnp.ones(2), "b": jnp.ones(1)}, "z": {"w": jnp.ones(3)}}
        >>> PerGroup().groups(params)
        (0, 0, 1)
        >>> [f"{bound:.3f}" for bound in PerGroup(weights={"z": 3.0}).bounds(params, 1.0)]
        ['0.316', '0.949']
    """

    label: Callable[[str, Any], str] | Any | None = None
    weights: Mapping[str, float] | None = None

    @property
    def clip_norm(self) -> float:
        """The clip norm at which every group named is clipped to its weight: √Σw²."""
        if not self.weights:
            raise ValueError("weights must name the norm of every group, got none")
        return math.sqrt(math.fsum(weight * weight for weight in self.weights.values()))

    def _names(self, params: Params) -> tuple[list[str], tuple[int, ...]]:
        leaves = jax.tree_util.tree_flatten_with_path(params)[0]
        if self.label is None:
            labels = [path_name(path[:-1] or path) for path, _ in leaves]
        elif callable(self.label):
            labels = [self.label(path_name(path), leaf) for path, leaf in leaves]
        else:
            labels = values_of_leaves("label", self.label, params, of="names")
        names = list(dict.fromkeys(labels))
        unknown = set(self.weights or {}) - set(names)
        if unknown:
            raise ValueError(f"weights must name groups ({names}), got {sorted(unknown)}")
        return names, tuple(names.index(name) for name in labels)

    def groups(self, params: Params):
        return self._names(params)[1]

    def bounds(self, params: Params, clip_norm: float) -> Float[Array, " groups"]:
        """The clip norm of every group."""
        return clip_norm * jnp.asarray(self._shares(params))

    def _shares(self, params: Params) -> list[float]:
        positive = Range(0.0, open_low=True)
        given = ((self.weights or {}).get(name, 1.0) for name in self._names(params)[0])
        weights = [one_number("weights", weight, positive) for weight in given]
        total = math.hypot(*weights)  # √Σw², without overflow
        return [w / total for w in weights]

    def bind(self, params: Params) -> Strategy:
        """This strategy with the bounds of the groups of `params` worked out."""
        return _GroupBounds(tuple(self._shares(params)), self.groups(params))


@dataclasses.dataclass(frozen=True)
class _GroupBounds(Strategy):
    """`PerGroup` with the shares and the members of its groups worked out."""

    shares: tuple[float, ...]
    members: tuple[int, ...]

    def groups(self, params: Params):
        return self.members

    def factors(self, squared_norms: Float[Array, "groups batch"], clip_norm: Float[Array, ""]):
        # Σₖ (C·shareₖ)² = C², as Σ share² = 1.
        bounds = clip_norm * jnp.asarray(self.shares, squared_norms.dtype)
        return _round_down(_shrink(jnp.sqrt(squared_norms), bounds[:, None]))


def require_positive(name: str, value: object) -> None:
    """Refuses a Python number that is not positive and finite; traced values pass."""
    if isinstance(value, int | float) and not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a positive, finite number, got {value!r}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AdaptiveQuantile(Flat):
    """Flat clipping at a clip norm that tracks a quantile of the norms (Andrew et al. 2021).

    After every step C ← C·exp(−η·(b̃ − γ)), where b̃ = ½ + (Σᵢ (1[‖gᵢ‖ ≤ C] − ½) + N(0, σ_b²)) / m
    estimates the fraction of records with norm at most C; m is the expected, public batch size.

    Args:
        count_noise: σ_b > 0, the standard deviation of the noise on the count, in records.
        batch_size: m, the expected number of records in a batch.
        quantile: γ in (0, 1).
        learning_rate: η > 0, of the logarithm of the clip norm.

    Raises:
        ValueError: an argument out of range, or too little noise on the count for what is asked.

    Guarantee:
        The count is a second release about the same records: adding or removing one moves it by ½,
        exchanging one by 1, half of what the sum moves by, divided by C. A step is therefore a
        Gaussian mechanism of noise multiplier z = (σ⁻² + (2σ_b)⁻²)^(−1/2) under both adjacencies,
        where σ is that of the sum (Theorem 1). Price z and add noise of σ: `gradient_noise` turns
        the one into the other.

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

    count_noise: float
    batch_size: float
    quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self):
        for name in ("count_noise", "batch_size", "learning_rate"):
            require_positive(name, getattr(self, name))
        if isinstance(self.quantile, int | float) and not 0 < self.quantile < 1:
            raise ValueError(f"quantile must be in (0, 1), got {self.quantile!r}")

    def noise_multiplier(self, gradient_noise: float) -> float:
        """z, the noise multiplier to account for, from σ, that of the noise added to the sum."""
        return (gradient_noise**-2 + (2 * self.count_noise) ** -2) ** -0.5

    def gradient_noise(self, noise_multiplier: float) -> float:
        """σ, the noise multiplier to add to the sum, so that sum and count together have z."""
        # 1/σ² = 1/z² − 1/(2σ_b)²: squares of inverse noise multipliers add up over releases.
        own = 2 * self.count_noise  # the count moves by ½
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
        clip_norm: Number,
        norms: Float[Array, " batch"],
        mask: Bool[Array, " batch"],
        key: PRNGKey,
    ) -> Float[Array, ""]:
        """The next step's clip norm from this step's norms; draws the count's noise from `key`."""
        inside = jnp.where(norms <= clip_norm, 0.5, -0.5)
        count = jnp.sum(jnp.where(mask, inside, 0.0)).astype(norms.dtype)
        return self.moved(clip_norm, count, key)

    def moved(self, clip_norm: Number, count: Float[Array, ""], key: PRNGKey) -> Float[Array, ""]:
        """The next step's clip norm from Σᵢ (1[‖gᵢ‖ ≤ C] − ½), which is released with noise."""
        noisy = count + self.count_noise * normal(key, (), count.dtype)  # the release
        fraction = 0.5 + noisy / self.batch_size
        return clip_norm * jnp.exp(-self.learning_rate * (fraction - self.quantile))
