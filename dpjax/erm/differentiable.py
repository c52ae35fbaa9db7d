"""Any per-record loss as a problem, for solvers that need neither convexity nor constants."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from dpjax._numerics.namespace import Values
from dpjax.erm._features import EXACT, row_clip_factors, vector_norms
from dpjax.erm.problems import Objective


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["examples"],
    meta_fields=["loss", "shape", "l2", "radius"],
)
@dataclasses.dataclass(frozen=True)
class DifferentiableProblem(Objective):
    """`F(w) = (1/n) Σᵢ loss(w, exampleᵢ) + (l2/2)‖w‖²` for any differentiable loss.

    It promises no convexity, no smoothness and no bounded gradient: use it with solvers that clip
    (`dp_gd`, `dp_sgd`, `perturbed_gd`) and with the curvature tools.

    Example:
        >>> loss = lambda w, x: (w - x) @ (w - x) / 2
        >>> problem = differentiable_problem(loss, jnp.ones((4, 2)), (2,))
        >>> problem.gradient(jnp.zeros(2)).tolist()
        [-1.0, -1.0]
    """

    examples: PyTree[Array]
    loss: Callable
    shape: tuple[int, ...]
    l2: float = 0.0
    radius: float = math.inf

    @property
    def n(self) -> int:
        """Number of records: public."""
        return jax.tree.leaves(self.examples)[0].shape[0]

    @property
    def dtype(self):
        """Float type of the examples, and so of the parameters."""
        return jnp.result_type(*jax.tree.leaves(self.examples), float)

    @property
    def gradient_bound(self) -> float:
        """Unknown: infinite."""
        return math.inf

    def losses(self, params: Array) -> Float[Array, " n"]:
        """Loss of every record, regulariser excluded."""
        return jax.vmap(self.loss, in_axes=(None, 0))(params, self.examples)

    def gradient(self, params: Array) -> Array:
        """∇F(w), nothing clipped."""
        return jax.grad(self.objective)(params)

    def gradient_sum(
        self, params: Array, *, clip_norm: Values | None = None, weights: Array | None = None
    ) -> Array:
        """Σᵢ weightᵢ · clip(∇ℓᵢ), by one gradient per record."""
        gradients = jax.vmap(jax.grad(self.loss), in_axes=(None, 0))(params, self.examples)
        flat = gradients.reshape(self.n, -1)
        # A record with a NaN contributes nothing, as everywhere.
        flat = jnp.where(jnp.all(jnp.isfinite(flat), axis=1)[:, None], flat, 0.0)
        factors = jnp.ones(self.n, flat.dtype) if weights is None else weights
        if clip_norm is not None:
            factors = factors * row_clip_factors(vector_norms(flat), clip_norm)
        return jnp.matmul(factors, flat, precision=EXACT).reshape(self.shape)

    def batch(self, indices: Array) -> DifferentiableProblem:
        """The same problem on the records `indices`."""
        chosen = jax.tree.map(lambda leaf: leaf[indices], self.examples)
        return dataclasses.replace(self, examples=chosen)


def differentiable_problem(
    loss: Callable,
    examples: PyTree[Array],
    shape: tuple[int, ...],
    *,
    l2: float = 0.0,
    radius: float = math.inf,
) -> DifferentiableProblem:
    """A problem from `loss(params, example) -> scalar` and a pytree of examples, leading axis n.

    Example:
        >>> saddle = differentiable_problem(
        ...     lambda w, z: w[0] ** 2 / 2 - w[1] ** 2 / 2 + w[1] ** 4 / 4 + z @ w,
        ...     jnp.zeros((3, 2)), (2,))
        >>> saddle.gradient(jnp.zeros(2)).tolist()
        [0.0, 0.0]
    """
    if not l2 >= 0:
        raise ValueError(f"l2 must be at least 0, got {l2}")
    if not radius > 0:
        raise ValueError(f"radius must be positive, got {radius}")
    return DifferentiableProblem(examples, loss, tuple(shape), float(l2), float(radius))
