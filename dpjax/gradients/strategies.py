"""How a per-example gradient of a given norm is scaled down, and what sensitivity that buys."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpjax._numerics.checks import Range, one_number
from dpjax.gradients.arguments import path_name, spread


def _is_replacement(adjacency: Any) -> bool:
    name = getattr(adjacency, "name", str(adjacency)).upper().replace("-", "_")
    if name not in ("ADD_REMOVE", "REPLACE_ONE"):
        raise ValueError(f"adjacency must be 'add-remove' or 'replace-one', got {adjacency!r}")
    return name == "REPLACE_ONE"


def _round_down(factors: Array) -> Array:
    # Two units in the last place cover the square root, the division and the product that follow,
    # so that the scaled gradient's norm stays at or below the bound.
    return factors * (1 - 2 * float(jnp.finfo(factors.dtype).eps))


@dataclasses.dataclass(frozen=True)
class Strategy:
    """Base of all clipping strategies: one group, sensitivity C (added record) or 2C (exchanged).

    A strategy turns the squared norms of the groups of parameters into factors in [0, 1]; the
    clipped gradient is the gradient with each group multiplied by its factor. Its norm never
    exceeds the clip norm.

    Example:
        >>> from dpjax.gradients import Flat
        >>> Flat().sensitivity(1.5, "add-remove"), Flat().sensitivity(1.5, "replace-one")
        (1.5, 3.0)
    """

    def groups(self, params: Any) -> tuple[int, ...]:
        """The group of every leaf of `params`, in flattening order."""
        return (0,) * len(jax.tree.leaves(params))

    def factors(
        self, squared_norms: Float[Array, "groups batch"], clip_norm: Float[Array, ""]
    ) -> Float[Array, "groups batch"]:
        """The factor of every group and record, given the squared norms of the gradients."""
        raise NotImplementedError

    def sensitivity(self, clip_norm: Any, adjacency: Any = "add-remove") -> Any:
        """The most that one record moves the clipped sum, in l2 norm.

        Args:
            clip_norm: the bound C.
            adjacency: "add-remove" (one record more or less: C) or "replace-one" (one record
                exchanged: 2C), or the accountant's `Adjacency`.
        """
        return 2 * clip_norm if _is_replacement(adjacency) else clip_norm


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Flat(Strategy):
    """Clip the whole gradient: g · min(1, C/‖g‖) (Abadi et al. 2016, Algorithm 1).

    Example:
        >>> import jax.numpy as jnp
        >>> Flat().factors(jnp.array([[4.0, 0.25]]), jnp.float32(1.0)).round(4).tolist()
        [[0.5, 1.0]]
    """

    def factors(self, squared_norms, clip_norm):
        return _round_down(_shrink(jnp.sqrt(squared_norms), clip_norm))


def _shrink(norms: Array, clip_norm: Array) -> Array:
    # The comparison, not the quotient, decides at norm 0 and at clip norms beyond every norm.
    exceeds = norms > clip_norm
    return jnp.where(exceeds, clip_norm / jnp.where(exceeds, norms, jnp.ones_like(norms)), 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Automatic(Strategy):
    """Normalise every gradient: C·g / (‖g‖ + γ), whose norm is below C (AUTO-S).

    Bu, Wang, Zha and Karypis 2023, "Automatic clipping", equation (4.1), with the clip norm kept
    as the scale.

    Args:
        gamma: the stability constant γ > 0, in units of the gradient's norm.

    Example:
        >>> import jax.numpy as jnp
        >>> factors = Automatic(gamma=1.0).factors(jnp.array([[9.0, 0.0]]), jnp.float32(1.0))
        >>> [f"{factor:.3f}" for factor in factors[0]]
        ['0.250', '1.000']
    """

    gamma: Any = 0.01

    def __post_init__(self):
        require_positive("gamma", self.gamma)

    def factors(self, squared_norms, clip_norm):
        gamma = jnp.asarray(self.gamma, squared_norms.dtype)
        return _round_down(clip_norm / (jnp.sqrt(squared_norms) + gamma))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PerSampleAdaptive(Strategy):
    """Weigh by a non-monotone function of the norm: C·g / (‖g‖ + r/(‖g‖ + r)) (DP-PSAC).

    Xia, Shen, Yao, Fu, Xu, Xu and Fu 2023, "Differentially private learning with per-sample
    adaptive clipping", equation (6). The clipped norm is below C; small gradients are not blown up
    as much as by `Automatic`.

    Args:
        r: the constant r > 0, in units of the gradient's norm.

    Example:
        >>> import jax.numpy as jnp
        >>> factor = PerSampleAdaptive(r=0.1).factors(jnp.array([[0.01]]), jnp.float32(1.0))
        >>> f"{0.1 * factor[0, 0]:.4f}"  # the norm 0.1 becomes 1/6
        '0.1667'
    """

    r: Any = 0.1

    def __post_init__(self):
        require_positive("r", self.r)

    def factors(self, squared_norms, clip_norm):
        norms = jnp.sqrt(squared_norms)
        r = jnp.asarray(self.r, squared_norms.dtype)
        return _round_down(clip_norm / (norms + r / (norms + r)))


@dataclasses.dataclass(frozen=True)
class PerGroup(Strategy):
    """Clip every group of parameters on its own: group k to C·wₖ/√Σw².

    The groups' bounds add up in squares to C², so that the whole clipped gradient's norm is at
    most C and the sensitivities are those of flat clipping (McMahan et al. 2018, §3).

    Args:
        label: a function (path, leaf) -> str naming a leaf's group, with the path as a string such
            as "dense_0/kernel", or a tree of names that is the parameters' or a prefix of it, as
            `optax.multi_transform` takes. By default a leaf belongs to the layer that holds it:
            its path without the last part (leaves at the root stand for themselves).
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
        """The clip norm at which every group named is clipped to its weight: √Σw².

        Example:
            >>> PerGroup(weights={"body": 0.6, "head": 0.8}).clip_norm
            1.0
        """
        if not self.weights:
            raise ValueError("weights must name the norm of every group, got none")
        return math.sqrt(math.fsum(weight * weight for weight in self.weights.values()))

    def _names(self, params: Any) -> tuple[list[str], tuple[int, ...]]:
        leaves = jax.tree_util.tree_flatten_with_path(params)[0]
        if self.label is None:
            labels = [path_name(path[:-1] or path) for path, _ in leaves]
        elif callable(self.label):
            labels = [self.label(path_name(path), leaf) for path, leaf in leaves]
        else:
            labels = spread("label", self.label, params, of="names")
        names = list(dict.fromkeys(labels))
        unknown = set(self.weights or {}) - set(names)
        if unknown:
            raise ValueError(f"weights must name groups ({names}), got {sorted(unknown)}")
        return names, tuple(names.index(name) for name in labels)

    def groups(self, params):
        return self._names(params)[1]

    def bounds(self, params: Any, clip_norm: float) -> Float[Array, " groups"]:
        """The clip norm of every group."""
        return clip_norm * jnp.asarray(self._shares(params))

    def _shares(self, params: Any) -> list[float]:
        positive = Range(0.0, open_low=True)
        given = ((self.weights or {}).get(name, 1.0) for name in self._names(params)[0])
        weights = [one_number("weights", weight, positive) for weight in given]
        total = math.hypot(*weights)
        return [w / total for w in weights]

    def bind(self, params: Any) -> Strategy:
        """This strategy with the bounds of the groups of `params` worked out."""
        return _Bounded(tuple(self._shares(params)), self.groups(params))


@dataclasses.dataclass(frozen=True)
class _Bounded(Strategy):
    shares: tuple[float, ...]
    members: tuple[int, ...]

    def groups(self, params):
        return self.members

    def factors(self, squared_norms, clip_norm):
        bounds = clip_norm * jnp.asarray(self.shares, squared_norms.dtype)
        return _round_down(_shrink(jnp.sqrt(squared_norms), bounds[:, None]))


def require_positive(name: str, value: Any) -> None:
    """Refuses a Python number that is not positive and finite; traced values pass."""
    if isinstance(value, int | float) and not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a positive, finite number, got {value!r}")
