"""One value says how a run samples, clips and perturbs; training and accounting both read it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike

from dpjax import accounting as acc
from dpjax.correlation import BandedInverse, Toeplitz
from dpjax.sampling import realised_rate
from dpjax.training.arguments import whole

__all__ = ["Plan"]

# The reason under which `make_plan` sets aside a part of δ for arithmetic.
ARITHMETIC = "rounding of norms and sums beyond its bound"
# What every certificate of a run with Gaussian noise assumes.
SECRET_KEY = "the key of the run stays secret, and its stream passes for random"
GAUSSIAN_NOISE = (
    "the noise is Gaussian up to the generator's tail (1e-19 a number beyond |z| = 9.3) and up to "
    "rounding in its last bits"
)


# What a certificate of a run over users says of its "records".
OF_USERS = (
    "a record is all that one user contributes: the summed gradient of that user's records, "
    "clipped once"
)
UNITS = ("record", "user")

# The steps that training runs as they are priced.
_RUN = (
    acc.PoissonSampled,
    acc.TruncatedPoissonSampled,
    acc.RandomAllocation,
    acc.FixedBatchSampled,
    acc.Gaussian,
)


class Phase(NamedTuple):
    """Some steps in a row that are alike.

    Fields:
        step: the mechanism of one of them, or of one epoch of random allocation.
        steps: how many steps there are, in whole epochs of random allocation.
    """

    step: Any
    steps: int

    def uses(self, steps: Any) -> Any:
        """How many mechanisms the first `steps` steps begin: an epoch is paid when it begins."""
        return np.ceil(np.clip(steps, 0, self.steps) / length_of(self.step))


def length_of(step: Any) -> int:
    """Steps of training that one mechanism is: those of an epoch, for random allocation."""
    if isinstance(step, acc.CyclicPoissonCorrelated):
        return int(np.asarray(step.groups))
    several = acc.RandomAllocation | acc.CorrelatedGaussian
    return int(np.asarray(step.steps)) if isinstance(step, several) else 1


def kept_of(step: Any) -> int:
    """The most records that a batch which is cut may hold."""
    return int(np.asarray(step.capacity))


def noise_of(step: Any) -> float:
    """Noise standard deviation over clip norm, of one step."""
    return float(np.asarray(getattr(step, "mechanism", step).noise_multiplier))


def rate_of(step: Any) -> float:
    """Probability that a given record is drawn for one step."""
    if isinstance(step, acc.PoissonSampled | acc.TruncatedPoissonSampled):
        return float(np.asarray(step.rate))
    if isinstance(step, acc.FixedBatchSampled):
        return float(np.asarray(step.batch_size)) / float(np.asarray(step.population))
    if isinstance(step, acc.RandomAllocation):
        return float(np.asarray(step.chosen)) / float(np.asarray(step.steps))
    if isinstance(step, acc.CorrelatedGaussian):
        return 1.0 / _number(step.separation)
    if isinstance(step, acc.CyclicPoissonCorrelated):
        return _number(step.rate) / _number(step.groups)
    return 1.0


def _number(value: Any) -> float:
    return float(np.asarray(value))


CORRELATED = (acc.CorrelatedGaussian, acc.CyclicPoissonCorrelated)


def _used(phase: Phase, steps: Any) -> Any:
    """The mechanism of the first steps of a phase, one or several numbers of them."""
    if not isinstance(phase.step, acc.CorrelatedGaussian):
        uses = phase.uses(steps)
        return acc.Repeated(phase.step, int(uses) if np.ndim(uses) == 0 else uses)
    steps = np.clip(steps, 0, phase.steps)
    begun = dataclasses.replace(phase.step, steps=np.maximum(steps, 1.0))
    return acc.Repeated(begun, np.minimum(steps, 1.0))


@dataclass(frozen=True)
class Plan:
    """The mechanism that a run executes, and what has to be public to execute it.

    There is no second place for the noise multiplier, the sampling rate or the number of steps:
    `fit` takes them from `mechanism`, and so does the price.

    Fields:
        mechanism: `Repeated(step, steps)`, step being `PoissonSampled(Gaussian)`,
            `TruncatedPoissonSampled(Gaussian)`, `FixedBatchSampled(Gaussian)` or a bare `Gaussian`
            (every record in every step); `Repeated(RandomAllocation(Gaussian, t), epochs)`, which
            is t·epochs steps; or any composition of these, `Composed` and `Repeated` at will, run
            in that order; or `CorrelatedGaussian` (step t takes the records whose number is t
            modulo the separation) or `Repeated(CyclicPoissonCorrelated, rounds)` (a sample of
            those, modulo the groups).
        clip_norm: bound on a record's gradient norm, in units of the gradient.
        population: number of records, treated as public.
        delta: the δ at which the run is certified.
        adjacency: the neighbouring relation of the certificate.
        extra_delta: part of δ reserved for what the mechanism's formula does not see, by reason.
        correlation: the strategy of a `CorrelatedGaussian` whose inverse is banded: it draws noise
            of the same price in another way. None for every other run.
        unit: whose privacy is priced: of a "record", or of a "user" with all its records, who is
            then what `population` counts, and what `fit(users=…)` samples and clips.

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
    correlation: BandedInverse | None = None
    unit: str = "record"

    def __post_init__(self):
        positive("clip_norm", self.clip_norm)
        if self.population < 1:
            raise ValueError(f"population must be at least 1, got {self.population}")
        if self.unit not in UNITS:
            raise ValueError(f"unit must be 'record' or 'user', got {self.unit!r}")
        if not self.phases:
            raise ValueError(f"mechanism must have at least one step, got {self.mechanism}")
        for phase in self.phases:
            _check_step(phase.step, self.population)
        if self.correlation is not None:
            _check_same(self.correlation, self.mechanism)

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
        for phase in _unrolled(self.mechanism):
            if isinstance(phase.step, CORRELATED) and phase.step is not self._correlated:
                raise ValueError(
                    "mechanism must be one run where noise is correlated (CorrelatedGaussian, or "
                    "Repeated(CyclicPoissonCorrelated, rounds)), got it within others"
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
    def strategy(self) -> Toeplitz | BandedInverse | None:
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
        """Probability that a given record takes part in a step."""
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
            parts.append(_used(phase, steps - begun))
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
                done.append(_used(phase, left))
                left -= phase.steps
        return done[0] if len(done) == 1 else acc.Composed(tuple(done))

    def certify(
        self, *, steps: int | None = None, looks: int = 1, not_covered: Sequence[str] = ()
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
            assumptions=(SECRET_KEY, GAUSSIAN_NOISE, *((OF_USERS,) if self.unit == "user" else ())),
            declared={
                **({"unit": self.unit} if self.unit == "user" else {}),
                "records": self.population,
                # Those that are paid: of an epoch that was begun, all.
                "steps": sum(phase.steps for phase in _unrolled(run)),
                "clip_norm": self.clip_norm,
                **(
                    {
                        "batch_size": self.expected_batch_size,
                        "noise_multiplier": self.noise_multiplier,
                    }
                    if len(self.phases) == 1
                    else {}
                ),
            },
        )


def _unrolled(mechanism: Any) -> Iterator[Phase]:
    if isinstance(mechanism, acc.Composed):
        for part in mechanism.mechanisms:
            yield from _unrolled(part)
    elif isinstance(mechanism, acc.Repeated):
        times = int(np.asarray(mechanism.steps))
        inner = list(_unrolled(mechanism.mechanism))
        if len(inner) == 1:
            yield Phase(inner[0].step, inner[0].steps * times)
        else:
            for _ in range(times):
                yield from inner
    else:
        yield Phase(mechanism, length_of(mechanism))


def _check_step(step: Any, population: int) -> None:
    """Refuse a step that training does not run exactly."""
    if isinstance(step, CORRELATED):
        _check_correlated(step, population)
        return
    if not isinstance(step, _RUN):
        names = ", ".join(kind.__name__ for kind in _RUN[:-1])
        raise ValueError(f"the step must be {names} or {_RUN[-1].__name__}, got {step}")
    if not isinstance(getattr(step, "mechanism", step), acc.Gaussian):
        raise ValueError(f"the step must sample from a Gaussian mechanism, got {step}")
    counted = acc.FixedBatchSampled | acc.TruncatedPoissonSampled
    if isinstance(step, counted) and step.population != population:
        raise ValueError(
            f"the mechanism must sample from {population} records, got {step.population}"
        )
    drawn = acc.PoissonSampled | acc.TruncatedPoissonSampled
    if isinstance(step, drawn) and rate_of(step) != realised_rate(rate_of(step)):
        raise ValueError(
            "rate must be one that the sampler realises exactly, got "
            f"{step.rate}; price sampling.realised_rate(rate)"
        )


def _check_same(strategy: Any, run: Any) -> None:
    """Refuse a strategy that is not the one which the mechanism prices, to the last bit."""
    if not isinstance(strategy, BandedInverse) or not isinstance(run, acc.CorrelatedGaussian):
        raise ValueError(
            "correlation must be a BandedInverse, of a run that is one CorrelatedGaussian, got "
            f"{strategy!r} of {type(run).__name__}"
        )
    column = strategy.column(int(_number(run.steps)))
    if not np.array_equal(column, np.asarray(run.strategy)):
        raise ValueError(
            "correlation must be the strategy that the mechanism prices over all its steps, got "
            f"{strategy!r}"
        )


def _check_correlated(step: Any, population: int) -> None:
    cyclic = isinstance(step, acc.CorrelatedGaussian)
    groups = int(_number(step.separation if cyclic else step.groups))
    if groups > population:
        raise ValueError(
            f"the mechanism must have at most {population} groups, one a record, got {groups}"
        )
    passes = math.ceil(_number(step.steps) / groups) if cyclic else 0
    if cyclic and _number(step.participations) < passes:
        raise ValueError(
            f"participations must be as many as passes are run, {passes}, got {step.participations}"
        )
    if not cyclic and float(step.rate) != realised_rate(float(step.rate)):
        raise ValueError(
            "rate must be one that the sampler realises exactly, got "
            f"{step.rate}; price sampling.realised_rate(rate)"
        )


@functools.lru_cache(maxsize=4096)
def _spent(query: Any, run: acc.Mechanism, delta: float, adjacency: acc.Adjacency) -> float:
    return float(query(run, delta, adjacency=adjacency))


def positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a positive, finite number, got {value}")
