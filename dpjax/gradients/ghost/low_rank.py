"""A matrix plus a product of two thin ones, whose gradients the ghost method knows.

With W = W₀ + A·B and a record's gradient by W given as Σₜ xₜ ⊗ yₜ, its gradient by A is
Σₜ xₜ ⊗ B·yₜ and by B Σₜ Aᵀ·xₜ ⊗ yₜ (the chain rule): no gradient of W's size is ever formed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpjax.gradients.ghost.rules import OuterProducts
from dpjax.gradients.per_example import norms_dtype

_NAME = "_dpjax_low_rank_sum"


def _dpjax_low_rank_sum(base: Array, a: Array, b: Array) -> Array:
    dtype = norms_dtype((base, a, b))
    a, b = a.astype(dtype), b.astype(dtype)
    product = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
    return (base.astype(dtype) + product.reshape(base.shape)).astype(base.dtype)


_compiled = jax.jit(_dpjax_low_rank_sum)


def low_rank_sum(
    base: Float[Array, "..."],
    a: Float[Array, "*layers rows rank"],
    b: Float[Array, "*layers rank columns"],
) -> Float[Array, "..."]:
    """base + (a @ b) in base's shape, where the ghost method clips a and b without copies.

    Args:
        base: with rows · columns entries, its leading dimensions those of `a`; not trained.
        a, b: the factors; with an axis of layers before, where `base` has one, one a layer. Layers
            are clipped without copies where `jax.lax.scan` loops over them.

    Example:
        >>> low_rank_sum(jnp.ones((2, 2)), jnp.ones((2, 1)), jnp.ones((1, 2))).tolist()
        [[2.0, 2.0], [2.0, 2.0]]
    """
    return _compiled(base, a, b)


def is_low_rank_sum(eqn: Any) -> bool:
    """Whether an equation is a call of `low_rank_sum`."""
    return eqn.params.get("name") == _NAME and len(eqn.ins) == 3


@dataclasses.dataclass(frozen=True)
class Side:
    """One factor of a low-rank sum: how its outer products follow from those of the sum."""

    left: bool  # whether it is the left factor
    other: int  # the index of the other one among the parameters
    rank: int

    def products(self, of_sum: OuterProducts, leaves: Sequence[Any]) -> OuterProducts:
        """The outer products of this factor."""
        other = leaves[self.other]
        if self.left:
            return OuterProducts(of_sum.rows, _times(of_sum.columns, other.swapaxes(-1, -2)))
        return OuterProducts(_times(of_sum.rows, other), of_sum.columns)

    def sizes(self, of_sum: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """(g, t, k, n) of this factor."""
        g, t, k, n = of_sum
        return (g, t, k, self.rank) if self.left else (g, t, self.rank, n)


def _times(vectors: Array, matrix: Array) -> Array:
    """Every block's vectors times the matrix of its layer."""
    dtype = norms_dtype((vectors, matrix))
    return jnp.einsum(
        "bgtn,gnr->bgtr",
        vectors.astype(dtype),
        matrix.reshape(-1, *matrix.shape[-2:]).astype(dtype),
        precision=jax.lax.Precision.HIGHEST,
    )


def find_sides(
    pair: tuple[int, int], sites: Sequence[Any], shape: tuple[int, ...]
) -> tuple[Side, Side] | None:
    """The sides of a sum's two factors, or None where a use of it is not a plain matrix product."""
    # Where the factors have an axis of layers, a use is one of a loop over these.
    layers, rows = len(shape) - 2, shape[-2]
    for site in sites:
        view, sizes = site.view, [stop - start for start, stop in site.view.box]
        whole = view
        while whole.parent is not None:
            whole = whole.parent
        cut = next(c for c in range(layers, len(sizes) + 1) if math.prod(sizes[layers:c]) >= rows)
        dimensions = tuple(range(len(sizes)))
        layout = ("outer", (), dimensions[layers:cut], dimensions[cut:])
        sliced = layers <= 1 and len(view.scans) == layers
        if not sliced or view.box != whole.box or site.rule.layout != layout:
            return None
    return Side(True, pair[1], shape[-1]), Side(False, pair[0], shape[-1])
