"""One value says how a run samples, clips and perturbs; training and accounting both read it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import ArrayLike

from dpjax import accounting as acc
from dpjax._numerics.checks import CLIP_NORMS, one_number
from dpjax.correlation import BandedInverse, Toeplitz, Tree
from dpjax.gradients import AdaptiveQuantile
from dpjax.training.adaptive import check_noise, in_numbers
from dpjax.training.arguments import whole
from dpjax.training.declared import assumptions_of, declared_of
from dpjax.training.phases import (
    CORRELATED,
    Phase,
    check_same,
    check_step,
    mechanism_of,
    noise_of,
    rate_of,
    unrolled,
)

__all__ = ["Plan"]

# The reason under which `make_plan` sets aside a part of δ for arithmetic.
ARITHMETIC = "rounding of norms and sums beyond its bound"
UNITS = ("record", "user")


@dataclass(frozen=True)
class Plan:
    """The mechanism that a run executes, and what has to be public to execute it.

    There is no second place for the noise multiplier, the sampling rate or the number of steps:
    `fit` takes them from `mechanism`, and so does the price.

    Fields:
        mechanism: `Repeated(step, steps)`, step being `PoissonSampled(Gaussian)`,
            `TruncatedPoissonSampled(Gaussian)`, `FixedBatchSampled(Gaussian)`,
            `WithReplacement(Gaussian)` or a bare `Gaussian` (every record in every step);
            `Repeated(RandomAllocation(Gaussian, t), epochs)`, which is t·epochs steps; or any
            composition of these, `Composed` and `Repeated` at will, run in that order; or
            `CorrelatedGaussian` or `MatrixGaussian` (step t takes the records whose number is t
            modulo the separation) or `Repeated(CyclicPoissonCorrelated, rounds)` (a sample of
            those, modulo the groups).
        clip_norm: bound on a record's gradient norm, in units of the gradient.
        population: number of records, treated as public.
        delta: the δ at which the run is certified.
        adjacency: the neighbouring relation of the certificate.
        extra_delta: part of δ reserved for what the mechanism's formula does not see, by reason.
        correlation: the strategy of a `CorrelatedGaussian` whose inverse is banded: it draws noise
            of the same price in another way; or the `Tree` of a `MatrixGaussian`. None for every
            other run.
        unit: whose privacy is priced: of a "record", or of a "user" with all its records, who is
            then what `population` counts, and what `fit(users=…)` samples and clips.
        adaptive: moves the clip norm with a quantile of the gradients' norms, from `clip_norm` on.
            Every step's Gaussian is then the sum and a noisy count together: `mechanism` prices
            both, and `fit` adds to the sum the noise `adaptive.gradient_noise(noise_multiplier)`.

    Example:
        >>> step = acc.PoissonSampled(acc.Gaussian(2.0), rate=0.25)
        >>> plan = Plan(acc.Repeated(step, 100), clip_norm=1.0, population=400, delta=1e-5)
        >>> plan.expected_batch_size, plan.noise_multiplier, plan.steps
        (100.0, 2.0, 100)
    """

    mechanism: acc.Mechanism
    clip_norm: float
    population: int
    delta: float
    adjacency: acc.Adjacency = acc.Adjacency.ADD_REMOVE
    extra_delta: Mapping[str, float] = field(default_factory=dict)
    correlation: BandedInverse | Tree | None = None
    unit: str = "record"
    adaptive: AdaptiveQuantile | None = None

    def __post_init__(self):
        one_number("clip_norm", self.clip_norm, CLIP_NORMS)
        if self.population < 1:
            raise ValueError(f"population must be at least 1, got {self.population}")
        if self.unit not in UNITS:
            raise ValueError(f"unit must be 'record' or 'user', got {self.unit!r}")
        if not self.phases:
            raise ValueError(f"mechanism must have at least one step, got {self.mechanism}")
        for phase in self.phases:
            check_step(phase.step, self.population)
        if self.correlation is not None or isinstance(self.mechanism, acc.MatrixGaussian):
            check_same(self.correlation, self.mechanism)
        if self.adaptive is not None:
            # Of Python's own numbers, whose text says them to the last bit.
            object.__setattr__(self, "adaptive", in_numbers(self.adaptive))
            if self.strategy is not None:
                raise ValueError(
                    "adaptive must be None where noise is correlated: the count of a step has no "
                    f"price there, got {self.adaptive}"
                )
        multipliers = [noise_of(phase.step) for phase in self.phases]
        check_noise(multipliers, self.clip_norm, self.adaptive)

    @functools.cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The steps in the order in which they run, equal ones in a row together.

        Example:
            >>> step = acc.Gaussian(2.0)
            >>> run = acc.Composed((acc.Repeated(step, 3), step, acc.Gaussian(1.0)))
            >>> [phase.steps for phase in Plan(run, 1.0, 100, 1e-5).phases]
            [4, 1]
        """
        found: list[Phase] = []
        for phase in unrolled(self.mechanism):
            if isinstance(phase.step, CORRELATED) and phase.step is not self._correlated:
                raise ValueError(
                    "mechanism must be one run where noise is correlated (CorrelatedGaussian, "
                    "MatrixGaussian or Repeated(CyclicPoissonCorrelated, rounds)), got it within "
                    "others"
                )
            if found and found[-1].step == phase.step:
                phase = Phase(phase.step, found.pop().steps + phase.steps)
            if phase.steps:
                found.append(phase)
        return tuple(found)

    @property
    def _correlated(self) -> Any:
        """The mechanism whose noise is correlated over the whole run, or None."""
        run: Any = self.mechanism
        inner = run.mechanism if isinstance(run, acc.Repeated) else run
        alone = isinstance(inner, acc.CyclicPoissonCorrelated) or inner is run
        return inner if alone and isinstance(inner, CORRELATED) else None

    @property
    def strategy(self) -> Toeplitz | BandedInverse | Tree | None:
        """The strategy that correlates the noise over the steps, None where it is fresh.

        Example:
            >>> run = acc.CorrelatedGaussian(2.0, [1.0, 0.5], steps=100, separation=4)
            >>> Plan(run, clip_norm=1.0, population=400, delta=1e-5).strategy
            Toeplitz(coefficients=(1.0, 0.5))
        """
        found = self._correlated
        if self.correlation is not None or found is None:
            return self.correlation
        return Toeplitz(tuple(np.asarray(found.strategy).tolist()))

    @property
    def step(self) -> Any:
        """The mechanism of one step, of a plan whose steps are all the same."""
        if len(self.phases) != 1:
            raise ValueError(
                f"the plan must have one kind of step, got {len(self.phases)}: read plan.phases"
            )
        return self.phases[0].step

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum(phase.steps for phase in self.phases)

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation over clip norm."""
        return noise_of(self.step)

    @property
    def rate(self) -> float:
        """How often a given record takes part in a step on average: of most, its probability."""
        return rate_of(self.step)

    @property
    def expected_batch_size(self) -> float:
        """The public constant that every noisy sum is divided by."""
        return self.rate * self.population

    def epsilon(self, steps: ArrayLike | None = None) -> Any:
        """ε at the plan's δ, after all steps or after each of `steps`, in one query.

        Example:
            >>> from dpjax.training import make_plan
            >>> plan = make_plan(400, noise_multiplier=2.0, delta=1e-5, steps=100, batch_size=100)
            >>> bool((plan.epsilon([1, 10, 100])[1:] > plan.epsilon([1, 10, 100])[:-1]).all())
            True
        """
        run = self.mechanism if steps is None else self._first(np.asarray(steps, np.float64))
        remaining = self.delta - sum(self.extra_delta.values())
        return acc.epsilon(run, remaining, adjacency=self.adjacency)

    def _first(self, steps: Any) -> Any:
        """The mechanism of the first `steps` steps, one or several numbers of them."""
        parts, begun = [], 0
        for phase in self.phases:
            parts.append(mechanism_of(phase, steps - begun))
            begun += phase.steps
        return parts[0] if len(parts) == 1 else acc.Composed(tuple(parts))

    def spent(self, steps: int) -> float:
        """ε after so many steps, remembered: a run asks for every row of its metrics.

        Example:
            >>> from dpjax.training import make_plan
            >>> plan = make_plan(400, noise_multiplier=2.0, delta=1e-5, steps=100, batch_size=100)
            >>> plan.spent(0), plan.spent(100) == plan.epsilon()
            (0.0, True)
        """
        if steps == 0:
            return 0.0
        remaining = self.delta - sum(self.extra_delta.values())
        run = self._begun(steps)
        try:
            return _spent(acc.epsilon, run, remaining, self.adjacency)
        except TypeError:  # a field that is an array has no hash
            return float(acc.epsilon(run, remaining, adjacency=self.adjacency))

    def _begun(self, steps: int) -> Any:
        """The mechanism of the first steps, without the phases that were not begun."""
        done, left = [], steps
        for phase in self.phases:
            if left > 0:
                done.append(mechanism_of(phase, left))
                left -= phase.steps
        return done[0] if len(done) == 1 else acc.Composed(tuple(done))

    def certify(
        self,
        *,
        steps: int | None = None,
        looks: int = 1,
        not_covered: Sequence[str] = (),
        declared: Mapping[str, float | str] | None = None,
    ) -> acc.Certificate:
        """The certificate of the whole run, or of its first steps where it stopped early.

        Where what was released decided when to stop, ε of the steps taken at the plan's δ is too
        small: of all moments, the one that gives most away may have been chosen. At δ / looks it
        holds: with T the step at which the run stops, εₖ that of k steps at δ / looks, every event
        E and neighbouring data sets,

            P(E) ≤ Σₖ e^εₖ · Q(E and T = k) + δ,

        by the union over the moments, each of which post-processes the steps before it. It is an
        ex-post guarantee: ε belongs to the moment at which the run stopped. What could have been
        spent at most is the certificate of the whole plan.

        Args:
            steps: how many were taken; None for all.
            looks: at how many moments what was released could have ended the run; 1 where nothing
                of the records decided.
            not_covered: further lines on what ε does not cover.
            declared: further public facts of the run, such as its learning rate.

        Raises:
            ValueError: `steps` beyond the plan's, `looks` below 1.

        Example:
            >>> from dpjax.training import make_plan
            >>> plan = make_plan(400, noise_multiplier=2.0, delta=1e-5, steps=100, batch_size=100)
            >>> plan.certify().epsilon == plan.epsilon()
            True
            >>> known, chosen = plan.certify(steps=50), plan.certify(steps=50, looks=40)
            >>> plan.spent(50) == known.epsilon < chosen.epsilon < plan.epsilon()
            True

        References:
            Ligett, Neel, Roth, Waggoner and Wu 2017, "Accuracy first: selecting a differential
            privacy level for accuracy-constrained ERM", Definition 2.3 (ex-post privacy).
        """
        taken = self.steps if steps is None else whole("steps", steps, high=self.steps)
        looks = whole("looks", looks)
        extra = dict(self.extra_delta)
        if looks > 1:
            remaining = self.delta - sum(extra.values())
            # What is left must not exceed δ / looks by the rounding of these sums.
            share = remaining - remaining / looks + 4 * math.ulp(self.delta)
            extra[f"stopping at one of {looks} moments by what was released"] = share
        run = self.mechanism if taken == self.steps else self._begun(taken)
        return acc.certify(
            run,
            self.delta,
            adjacency=self.adjacency,
            extra_delta=extra,
            not_covered=not_covered,
            assumptions=assumptions_of(self),
            declared={**(declared or {}), **declared_of(self, run)},
        )


@functools.lru_cache(maxsize=4096)
def _spent(query: Any, run: acc.Mechanism, delta: float, adjacency: acc.Adjacency) -> float:
    return float(query(run, delta, adjacency=adjacency))
