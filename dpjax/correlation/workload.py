"""The error that correlated noise leaves in training: what is made of the releases, as a map."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics.checks import Range, choice, items, one_number, render
from dpjax._numerics.scope import float64_scope
from dpjax._numerics.toeplitz import solve
from dpjax.correlation.banded import Banded
from dpjax.correlation.strategies import CorrelationStrategy, Toeplitz, coefficients
from dpjax.correlation.tree import Tree


@dataclass(frozen=True)
class Workload:
    """The iterates of gradient descent as a linear map A of its gradients, one row a step.

    With momentum β and rates ηᵤ the parameters have moved, after step t, by

        (AG)ₜ = Σ_{u ≤ t} ηᵤ Σ_{s ≤ u} β^{u−s} Gₛ :

    prefix sums where β = 0 and η = 1. Noise σC⁻¹z in G is noise σAC⁻¹z in the iterates.

    Fields:
        steps: number of steps.
        momentum: β in [0, 1).
        rates: learning rates, one a step, or () for 1 throughout.

    Example:
        >>> from dpjax.correlation import Workload, identity
        >>> f"{Workload(100).error(identity(), kind='max'):.4f}"
        '10.0000'

    References:
        Denisov et al. 2022; Choquette-Choo et al. 2023.
    """

    steps: int
    momentum: float = 0.0
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        steps = int(one_number("steps", self.steps, Range(1.0, whole=True)))
        momentum = one_number("momentum", self.momentum, Range(0.0, 1.0, open_high=True))
        rates = self.rates
        if not isinstance(rates, np.ndarray):
            rates = items("rates", rates, "numbers, one a step, or ()")
        found = coefficients("rates", rates, Range(0.0))
        if len(found) not in (0, steps):
            raise ValueError(f"rates must be one a step, {steps}, got {len(found)}")
        for name, value in {"steps": steps, "momentum": momentum, "rates": found}.items():
            object.__setattr__(self, name, value)

    def errors(self, strategy: CorrelationStrategy) -> Float[np.ndarray, " steps"]:
        """The standard deviation of each iterate's noise for σ = 1, that is ‖(AC⁻¹)ₜ‖."""
        if not isinstance(strategy, CorrelationStrategy):
            raise TypeError(f"strategy must be one of dpjax.correlation, got {render(strategy)}")
        if isinstance(strategy, Tree):
            return np.sqrt(_tree_errors2(self))
        if isinstance(strategy, Banded):
            # B = AC⁻¹ from BC = A, column by column from the last one on
            left = np.linalg.solve(strategy.matrix(self.steps).T, self.matrix().T)
            return np.linalg.norm(left, axis=0)
        banded = isinstance(strategy, Toeplitz)
        column = strategy.coefficients if banded else strategy.inverse(self.steps)
        with float64_scope():
            given = np.asarray(column[: self.steps])
            return np.sqrt(np.asarray(_compile(self, not banded)(given)))

    def matrix(self) -> Float[np.ndarray, "steps steps"]:
        """A itself, for strategies of any form."""
        apart = np.subtract.outer(np.arange(self.steps), np.arange(self.steps))
        buffer = np.where(apart >= 0, self.momentum ** np.maximum(apart, 0.0), 0.0)
        rates = np.asarray(self.rates or (1.0,) * self.steps)
        return np.cumsum(rates[:, None] * buffer, axis=0)

    def error(
        self,
        strategy: CorrelationStrategy,
        *,
        separation: int | None = None,
        participations: float = math.inf,
        kind: str = "mean",
        cyclic: bool = False,
    ) -> float:
        """The error at σ = the sensitivity, so at equal privacy for all strategies.

        Args:
            strategy: the matrix C.
            separation: fewest steps from one use of a record to its next; one use without it.
            participations: how often a record is used at most.
            kind: "mean", the root of the mean over the steps of the squared errors, or "max", the
                largest of the errors.
            cyclic: whether records return after `separation` steps exactly, as batches in a fixed
                order do: less for a `Banded` whose bands reach into a record's next use.

        Raises:
            ValueError: another kind, or counts that `Toeplitz.sensitivity` refuses.

        Guarantee:
            The noise multiplier of a budget is this sensitivity times that of one Gaussian
            release: two strategies' errors at one (ε, δ) are in the ratio of these numbers.

        Example:
            >>> from dpjax.correlation import identity, square_root
            >>> work = Workload(1000)
            >>> [f"{work.error(c, kind='max'):.3f}" for c in (identity(), square_root(1000))]
            ['31.623', '3.265']
        """
        choice("kind", kind, ("mean", "max"))
        apart = self.steps if separation is None else separation
        errors = self.errors(strategy)
        size = float(np.max(errors)) if kind == "max" else math.sqrt(float(np.mean(errors**2)))
        if cyclic and isinstance(strategy, Banded):
            return size * float(strategy.cyclic_sensitivities(self.steps, apart)[-1])
        return size * strategy.sensitivity(self.steps, apart, participations)


def check_workload(workload: Workload) -> Workload:
    """The workload; refuses what is none."""
    if not isinstance(workload, Workload):
        raise TypeError(
            f"workload must be a dpjax.correlation.Workload, got {render(workload)}: "
            "Workload(steps) is that of prefix sums"
        )
    return workload


def squared_errors(
    work: Workload, column: Float[Array, " m"], *, inverse: bool = False
) -> Float[Array, " steps"]:
    """‖(AC⁻¹)ₜ‖² for every step t, differentiable in the first column of C, or of C⁻¹."""
    steps = work.steps
    # The first column of MC⁻¹, M the momentum's matrix, whose own inverse has two diagonals.
    if inverse:
        padded = jnp.pad(column, (0, steps - column.shape[0]))
        moved = solve(jnp.asarray([1.0, -work.momentum]), padded) if work.momentum else padded
    else:
        moved = solve(column, jnp.asarray(work.momentum ** np.arange(steps)))
    if not work.rates:
        return jnp.cumsum(jnp.cumsum(moved) ** 2)
    # Row t of A C⁻¹ is row t − 1 plus η_t times row t of MC⁻¹, which is `moved` backwards.
    padded = jnp.concatenate([moved[::-1], jnp.zeros(steps, moved.dtype)])

    @jax.checkpoint
    def row(sums: Array, step: Array):
        rate, number = step
        sums = sums + rate * lax.dynamic_slice(padded, (steps - 1 - number,), (steps,))
        return sums, jnp.sum(sums * sums)

    given = (jnp.asarray(np.asarray(work.rates)), jnp.arange(steps))
    return lax.scan(row, jnp.zeros_like(moved), given)[1]


def _tree_errors2(work: Workload) -> Float[np.ndarray, " steps"]:
    """‖(AC⁻¹)ₜ‖² of a `Tree`, exact but for rounding."""
    # The block that ends at E is in the prefix sums E, …, E + 2ʰ − 1, h the height of the block, so
    # its z enters iterate t with weight a_{t, E−1} − a_{t, E−1+2ʰ}.
    steps = work.steps
    ends = np.arange(1, steps + 1)
    until = np.minimum(ends - 1 + (ends & -ends), steps)
    rates, row, found = work.rates or (1.0,) * steps, np.zeros(steps + 1), []
    for step, rate in enumerate(rates):
        row[: step + 1] += rate * work.momentum ** np.arange(step, -1, -1.0)
        found.append(np.sum((row[:-1] - row[until]) ** 2))  # independent z: squares add up
    return np.asarray(found)


@functools.lru_cache(maxsize=16)
def _compile(work: Workload, inverse: bool) -> Callable[[ArrayLike], Array]:
    return jax.jit(functools.partial(squared_errors, work, inverse=inverse))
