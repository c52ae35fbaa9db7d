"""One value says how a run samples, clips and perturbs; training and accounting both read it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import ArrayLike

from dpjax import accounting as acc
from dpjax import sampling

__all__ = ["Plan", "make_plan"]

# The share of δ that `make_plan` sets aside for arithmetic, and the reason it is filed under.
ARITHMETIC = "rounding of norms and sums beyond its bound"
_SHARE = 1e-3


@dataclass(frozen=True)
class Plan:
    """The mechanism that a run executes, and what has to be public to execute it.

    There is no second place for the noise multiplier, the sampling rate or the number of steps:
    `fit` takes them from `mechanism`, and so does the price.

    Fields:
        mechanism: `Repeated(step, steps)`, step being `PoissonSampled(Gaussian)`,
            `FixedBatchSampled(Gaussian)` or a bare `Gaussian` (every record in every step).
        clip_norm: bound on a record's gradient norm, in units of the gradient.
        population: number of records, treated as public.
        delta: the δ at which the run is certified.
        adjacency: the neighbouring relation of the certificate.
        extra_delta: part of δ reserved for what the mechanism's formula does not see, by reason.

    Example:
        >>> step = acc.PoissonSampled(acc.Gaussian(2.0), rate=0.25)
        >>> plan = Plan(acc.Repeated(step, 100), clip_norm=1.0, population=400, delta=1e-5)
        >>> plan.expected_batch_size, plan.noise_multiplier, plan.steps
        (100.0, 2.0, 100)
    """

    mechanism: acc.Repeated
    clip_norm: float
    population: int
    delta: float
    adjacency: acc.Adjacency = acc.Adjacency.ADD_REMOVE
    extra_delta: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self):
        _positive("clip_norm", self.clip_norm)
        if self.population < 1:
            raise ValueError(f"population must be at least 1, got {self.population}")
        step = self.step
        if not isinstance(step, acc.PoissonSampled | acc.FixedBatchSampled | acc.Gaussian):
            raise ValueError(
                f"the step must be PoissonSampled, FixedBatchSampled or Gaussian, got {step}"
            )
        if not isinstance(getattr(step, "mechanism", step), acc.Gaussian):
            raise ValueError(f"the step must sample from a Gaussian mechanism, got {step}")
        if isinstance(step, acc.FixedBatchSampled) and step.population != self.population:
            raise ValueError(
                f"the mechanism must sample from {self.population} records, got {step.population}"
            )
        if isinstance(step, acc.PoissonSampled) and self.rate != sampling.realised_rate(self.rate):
            raise ValueError(
                "rate must be one that the sampler realises exactly, got "
                f"{step.rate}; price sampling.realised_rate(rate)"
            )

    @property
    def step(self) -> Any:
        """The mechanism of one step."""
        return self.mechanism.mechanism

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(np.asarray(self.mechanism.steps))

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation over clip norm."""
        return float(np.asarray(getattr(self.step, "mechanism", self.step).noise_multiplier))

    @property
    def rate(self) -> float:
        """Probability that a given record takes part in a step."""
        if isinstance(self.step, acc.PoissonSampled):
            return float(np.asarray(self.step.rate))
        if isinstance(self.step, acc.FixedBatchSampled):
            return float(np.asarray(self.step.batch_size)) / self.population
        return 1.0

    @property
    def expected_batch_size(self) -> float:
        """The public constant that every noisy sum is divided by."""
        return self.rate * self.population

    def epsilon(self, steps: ArrayLike | None = None) -> Any:
        """ε at the plan's δ, after all steps or after each of `steps`, in one query.

        Example:
            >>> plan = make_plan(400, noise_multiplier=2.0, delta=1e-5, steps=100, batch_size=100)
            >>> bool((plan.epsilon([1, 10, 100])[1:] > plan.epsilon([1, 10, 100])[:-1]).all())
            True
        """
        count = self.mechanism.steps if steps is None else np.asarray(steps, dtype=np.float64)
        remaining = self.delta - sum(self.extra_delta.values())
        run = acc.Repeated(self.step, count)  # pyrefly: ignore
        return acc.epsilon(run, remaining, adjacency=self.adjacency)

    def spent(self, steps: int) -> float:
        """ε after so many steps, remembered: a run asks for every row of its metrics.

        Example:
            >>> plan = make_plan(400, noise_multiplier=2.0, delta=1e-5, steps=100, batch_size=100)
            >>> plan.spent(0), plan.spent(100) == plan.epsilon()
            (0.0, True)
        """
        if steps == 0:
            return 0.0
        remaining = self.delta - sum(self.extra_delta.values())
        run: Any = acc.Repeated(self.step, steps)
        try:
            return _spent(acc.epsilon, run, remaining, self.adjacency)
        except TypeError:  # a field that is an array has no hash
            return float(acc.epsilon(run, remaining, adjacency=self.adjacency))

    def certify(self, *, not_covered: Sequence[str] = ()) -> acc.Certificate:
        """The certificate of the whole run.

        Example:
            >>> plan = make_plan(400, noise_multiplier=2.0, delta=1e-5, steps=100, batch_size=100)
            >>> plan.certify().epsilon == plan.epsilon()
            True
        """
        return acc.certify(
            self.mechanism,
            self.delta,
            adjacency=self.adjacency,
            extra_delta=self.extra_delta,
            not_covered=not_covered,
            assumptions=(
                "the key of the run stays secret, and its stream passes for random",
                "the noise is Gaussian up to the generator's tail (1e-19 a number beyond "
                "|z| = 9.3) and up to rounding in its last bits",
            ),
            declared={
                "records": self.population,
                "batch_size": self.expected_batch_size,
                "steps": self.steps,
                "noise_multiplier": self.noise_multiplier,
                "clip_norm": self.clip_norm,
            },
        )


def make_plan(
    population: int,
    *,
    delta: float,
    steps: int,
    batch_size: int,
    clip_norm: float = 1.0,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    adjacency: acc.Adjacency = acc.Adjacency.ADD_REMOVE,
    extra_delta: Mapping[str, float] | None = None,
) -> Plan:
    """A Poisson-sampled plan: its noise given, or calibrated to a budget (ε, δ).

    Args:
        population: number of records, treated as public.
        delta: in (0, 1); below 1/population, or the guarantee allows publishing one record whole.
        steps: number of steps.
        batch_size: expected records a step; all of them if equal to `population`.
        clip_norm: bound on a record's gradient norm.
        epsilon: the budget to calibrate the noise to; or
        noise_multiplier: noise standard deviation over clip norm.
        adjacency: the neighbouring relation.
        extra_delta: further parts of δ to reserve, by reason; a thousandth of δ is always reserved
            for arithmetic.

    Raises:
        ValueError: an argument out of range, or a budget that no noise can keep.

    Example:
        >>> plan = make_plan(400, epsilon=2.0, delta=1e-5, steps=100, batch_size=100)
        >>> 1.99 < plan.epsilon() <= 2.0
        True
    """
    if population < 1:
        raise ValueError(f"population must be at least 1, got {population}")
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("give either epsilon, a budget, or noise_multiplier, the noise itself")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if not 1 <= batch_size <= population:
        raise ValueError(
            f"batch_size must be between 1 and {population}, all the records, got {batch_size}"
        )
    _positive("clip_norm", clip_norm)
    extra = {ARITHMETIC: _SHARE * delta, **(extra_delta or {})}
    if sum(extra.values()) >= delta:
        raise ValueError(
            f"delta must exceed the {sum(extra.values()):.3g} reserved for "
            f"{', '.join(extra)}, got {delta}"
        )
    rate = sampling.realised_rate(batch_size / population)

    def run(noise: float) -> acc.Repeated:
        step: Any = acc.Gaussian(noise)  # pyrefly: ignore
        if rate < 1:
            step = acc.PoissonSampled(step, rate)  # pyrefly: ignore
        return acc.Repeated(step, steps)  # pyrefly: ignore

    if noise_multiplier is None:
        assert epsilon is not None
        _positive("epsilon", epsilon)
        found = acc.calibrate(
            run, epsilon=epsilon, delta=delta - sum(extra.values()), adjacency=adjacency
        )
        noise_multiplier = float(np.asarray(found))
    return Plan(run(noise_multiplier), clip_norm, population, delta, adjacency, extra)


@functools.lru_cache(maxsize=4096)
def _spent(query: Any, run: acc.Mechanism, delta: float, adjacency: acc.Adjacency) -> float:
    return float(query(run, delta, adjacency=adjacency))


def _positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a positive, finite number, got {value}")
