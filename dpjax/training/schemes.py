"""The sampling schemes that training runs exactly as they are priced, one class each.

A new scheme is one subclass of `Scheme`, listed in `SCHEMES`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Hashable
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from dpjax import accounting as acc
from dpjax import sampling
from dpjax._numerics.checks import Tracer
from dpjax._numerics.namespace import Values
from dpjax._numerics.typing import PRNGKey, StepNumber
from dpjax.correlation import Banded, BandedInverse, BufferedToeplitz, Toeplitz, Tree
from dpjax.correlation.strategies import CorrelationStrategy
from dpjax.sampling import realised_rate

if TYPE_CHECKING:
    from dpjax.training.draws import SamplerShape


OneStep = TypeVar("OneStep", bound=acc.Mechanism)


class Scheme(Generic[OneStep]):
    """How the records of a step are drawn; itself it stands for what training does not run."""

    name: ClassVar[str]  # of `make_plan(sampling=...)`
    correlated: ClassVar[bool] = False  # noise depends on that of earlier steps
    repeats: ClassVar[bool] = False  # of correlated noise: a run repeats the mechanism
    by_flags: ClassVar[bool] = True  # a draw is a set of records: one flag a record says it all
    # Whether a draw goes by the places of the data, or in an order that is random already.
    keeps_places: ClassVar[bool] = False
    in_epochs: ClassVar[bool] = False  # a run is whole epochs of steps
    mechanism: OneStep
    length: int = 1  # steps of training that one mechanism covers
    groups: int = 1  # batches that take turns

    rate: float = 1.0  # the expected number of times that a given record is drawn for one step

    def __init__(self, mechanism: OneStep):
        self.mechanism = mechanism

    def read_numbers(self, field: str) -> np.ndarray:
        """A field of the mechanism, which must not be traced."""
        return np.asarray(getattr(self.mechanism, field))

    def read(self, field: str) -> float:
        """A field of the mechanism that is one number, which must not be traced."""
        return float(self.read_numbers(field))

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation over clip norm, of one step; it may be traced."""
        owner = getattr(self.mechanism, "mechanism", self.mechanism)
        found = operator.attrgetter("noise_multiplier")(owner)
        return cast(float, found) if isinstance(found, Tracer) else float(np.asarray(found))

    def check(self, population: int) -> None:
        """Refuse a step that training does not run exactly."""
        if type(self) is Scheme:
            *names, last = (k.__name__ for k, scheme in SCHEMES.items() if not scheme.correlated)
            raise ValueError(f"the step must be {', '.join(names)} or {last}, got {self.mechanism}")
        if not isinstance(getattr(self.mechanism, "mechanism", self.mechanism), acc.Gaussian):
            raise ValueError(
                f"the step must sample from a Gaussian mechanism, got {self.mechanism}"
            )
        counted = getattr(self.mechanism, "population", population)
        if counted != population:
            raise ValueError(f"the mechanism must sample from {population} records, got {counted}")

    def _check_rate(self) -> None:
        if self.read("rate") != realised_rate(self.read("rate")):
            raise ValueError(
                "rate must be one that the sampler realises exactly, got "
                f"{self.read_numbers('rate')}; price sampling.realised_rate(rate)"
            )

    def _check_groups(self, population: int) -> None:
        if self.groups > population:
            raise ValueError(
                f"the mechanism must have at most {population} groups, one a record, got "
                f"{self.groups}"
            )

    def check_correlation(self, strategy: CorrelationStrategy | None) -> None:
        """Refuse a strategy that is not the one which the mechanism prices, to the last bit."""
        if strategy is not None:
            raise ValueError(
                "correlation must be a BandedInverse or a BufferedToeplitz, of a run that is one "
                f"CorrelatedGaussian, got {strategy!r} of {type(self.mechanism).__name__}"
            )

    def price_first(self, steps: ArrayLike, most: int) -> acc.Mechanism:
        """The mechanism of the first `steps` of `most` steps: an epoch is paid when it begins."""
        uses = np.ceil(np.clip(steps, 0, most) / self.length)
        return acc.Repeated(self.mechanism, int(uses) if np.ndim(uses) == 0 else uses)

    def max_size(self, rows: int, population: int, failure: float) -> int:
        """Records of a step among `rows` of all; more have at most the probability `failure`."""
        return rows

    def program_key(self, population: int) -> tuple[Hashable, ...]:
        """What phases have to share for one `draw` to serve them all."""
        return (type(self),)

    def draw(
        self, run: SamplerShape, key: PRNGKey, step: StepNumber, number: Array | None
    ) -> tuple[Array, Array]:
        """The records of a step of phase `number` (None where all are alike), as `run` wants."""
        raise NotImplementedError

    @classmethod
    def epoch(cls, population: int, size: int) -> int:
        """Steps of training that one mechanism of this batch size would cover."""
        return 1

    @classmethod
    def price(
        cls,
        noise: Values,
        size: int,
        population: int,
        steps: int,
        capacity: int | None,
        strategy: CorrelationStrategy | None,
    ) -> acc.Mechanism:
        """The mechanism of so many steps with batches of this expected size."""
        one = cls.step(acc.Gaussian(noise), size, population, capacity)
        return acc.Repeated(one, steps // cls.epoch(population, size))

    @classmethod
    def step(
        cls, gaussian: acc.Gaussian, size: int, population: int, capacity: int | None
    ) -> acc.Mechanism:
        """The mechanism that a run of independent noise repeats."""
        return gaussian


class Poisson(Scheme):
    """Every record takes part on its own, with one probability."""

    name = "poisson"

    def __init__(self, mechanism: acc.Mechanism):
        super().__init__(mechanism)
        self.rate = self.read("rate")

    def check(self, population: int):
        super().check(population)
        self._check_rate()

    def max_size(self, rows: int, population: int, failure: float):
        return _binomial_bound(rows, self.rate, failure)

    def draw(
        self, run: SamplerShape, key: PRNGKey, step: StepNumber, number: Array | None
    ) -> tuple[Array, Array]:
        n = run.population
        if number is None:
            return run.collect(sampling.poisson_inclusion(key, step, population=n, rate=self.rate))
        # Phases that differ in their rate alone share a program.
        words = run.list_values(self, lambda one: sampling.largest_word(one.rate))
        return run.collect(sampling.inclusion_up_to(key, step, n, run.choose(words, number)))

    @classmethod
    def step(
        cls, gaussian: acc.Gaussian, size: int, population: int, capacity: int | None
    ) -> acc.Mechanism:
        rate = realised_rate(size / population)
        return acc.PoissonSampled(gaussian, rate) if rate < 1 else gaussian


class TruncatedPoisson(Poisson):
    """A Poisson draw, of which a uniform choice is kept where it exceeds the capacity."""

    name = "truncated-poisson"

    def __init__(self, mechanism: acc.Mechanism):
        super().__init__(mechanism)
        self.kept = int(self.read("capacity"))

    def max_size(self, rows: int, population: int, failure: float):
        return min(self.kept, rows, _binomial_bound(rows, self.rate, failure))

    def program_key(self, population: int):
        return type(self), self.rate, min(self.kept, population)

    def draw(
        self, run: SamplerShape, key: PRNGKey, step: StepNumber, number: Array | None
    ) -> tuple[Array, Array]:
        n, kept = run.population, min(self.kept, run.population)
        batch = sampling.truncated_poisson(key, step, population=n, rate=self.rate, capacity=kept)
        return run.draw_first(batch.indices, jnp.sum(batch.mask, dtype=jnp.int32))

    @classmethod
    def step(
        cls, gaussian: acc.Gaussian, size: int, population: int, capacity: int | None
    ) -> acc.Mechanism:
        rate = realised_rate(size / population)
        assert capacity is not None, "which `make_plan` asks for"
        return acc.TruncatedPoissonSampled(gaussian, rate, population, capacity)


class RandomAllocationScheme(Scheme):
    """A record takes part in some steps of every epoch, drawn at random."""

    name = "random-allocation"
    in_epochs = True

    def __init__(self, mechanism: acc.Mechanism):
        super().__init__(mechanism)
        self.length, self.chosen = int(self.read("steps")), int(self.read("chosen"))
        self.rate = self.chosen / self.length

    def max_size(self, rows: int, population: int, failure: float):
        # The records of one step are independent; what depends on one another are a record's steps.
        return _binomial_bound(rows, self.rate, failure)

    def program_key(self, population: int):
        return type(self), self.length, self.chosen

    def draw(
        self, run: SamplerShape, key: PRNGKey, step: StepNumber, number: Array | None
    ) -> tuple[Array, Array]:
        sizes = {"population": run.population, "steps": self.length, "chosen": self.chosen}
        # An epoch's choices are a function of the epoch's number in the run.
        begins = [0, *np.cumsum([phase.steps for phase in run.phases])[:-1].tolist()]
        epochs = [
            phase.steps // phase.scheme.length * isinstance(phase.scheme, RandomAllocationScheme)
            for phase in run.phases
        ]
        earlier = [0, *np.cumsum(epochs)[:-1].tolist()]
        since = jnp.asarray(step, jnp.int32) - run.choose(begins, number)
        epoch = run.choose(earlier, number) + since // self.length
        within = since % self.length
        return run.collect(sampling.allocation_inclusion(key, epoch, within, **sizes))

    @classmethod
    def epoch(cls, population: int, size: int):
        return max(1, math.ceil(population / max(size, 1)))

    @classmethod
    def step(
        cls, gaussian: acc.Gaussian, size: int, population: int, capacity: int | None
    ) -> acc.Mechanism:
        return acc.RandomAllocation(gaussian, math.ceil(population / size))


class FixedBatch(Scheme):
    """A uniform batch of exactly one size, without replacement."""

    name = "fixed"
    keeps_places = True

    def __init__(self, mechanism: acc.Mechanism):
        super().__init__(mechanism)
        self.size = int(self.read("batch_size"))
        self.rate = self.read("batch_size") / self.read("population")

    def check(self, population: int):
        super().check(population)
        if self.size < 1:
            raise ValueError(
                f"batch_size must be at least 1, got {self.read_numbers('batch_size')}"
            )

    def max_size(self, rows: int, population: int, failure: float):
        # P(≥ k) ≤ exp(−batch·KL(k/batch, rows/population)) for k above the mean, as for draws with
        # replacement (Hoeffding 1963, Theorems 1 and 4).
        batch, share = round(self.rate * population), rows / population
        most = min(batch, rows)
        for k in range(int(batch * share) + 1, most + 1):
            part = k / batch
            rest = (1 - part) * math.log((1 - part) / (1 - share)) if part < 1 else 0.0
            if batch * (part * math.log(part / share) + rest) >= -math.log(failure):
                return k - 1
        return most

    def draw(
        self, run: SamplerShape, key: PRNGKey, step: StepNumber, number: Array | None
    ) -> tuple[Array, Array]:
        # The first records of a uniform order are a uniform batch, whatever their number; so is any
        # prefix of independent, equally distributed draws.
        draw = sampling.fixed_batch if self.by_flags else sampling.with_replacement
        sizes = run.list_values(self, lambda one: one.size)
        batch = draw(key, step, population=run.population, batch_size=max(sizes))
        return run.draw_first(batch.indices, run.choose(sizes, number))

    @classmethod
    def step(
        cls, gaussian: acc.Gaussian, size: int, population: int, capacity: int | None
    ) -> acc.Mechanism:
        return acc.FixedBatchSampled(gaussian, size, population)


class WithReplacementScheme(FixedBatch):
    """Independent uniform draws; a record drawn k times occupies k slots."""

    name = "with-replacement"
    by_flags = False

    def max_size(self, rows: int, population: int, failure: float):
        return self.size

    @classmethod
    def step(
        cls, gaussian: acc.Gaussian, size: int, population: int, capacity: int | None
    ) -> acc.Mechanism:
        return acc.WithReplacement(gaussian, size, population)


class FullBatch(Scheme):
    """Every record takes part in every step."""

    name = "full"

    def draw(
        self, run: SamplerShape, key: PRNGKey, step: StepNumber, number: Array | None
    ) -> tuple[Array, Array]:
        return run.draw_first(jnp.arange(run.population, dtype=jnp.int32), run.population)


_Uses = acc.CorrelatedGaussian | acc.MatrixGaussian | acc.MinSeparatedCorrelated


class Cyclic(Scheme[_Uses]):
    """Correlated noise over batches in the order of the data, without amplification."""

    name = "cyclic"
    correlated = keeps_places = True

    def __init__(self, mechanism: _Uses):
        super().__init__(mechanism)
        self.length, self.groups = int(self.read("steps")), int(self.read("separation"))
        self.rate = 1.0 / self.read("separation")

    def check(self, population: int):
        self._check_groups(population)
        passes = math.ceil(self.read("steps") / self.groups)
        if self.read("participations") < passes:
            raise ValueError(
                f"participations must be as many as passes are run, {passes}, got "
                f"{self.read_numbers('participations')}"
            )

    def check_correlation(self, strategy: CorrelationStrategy | None):
        if strategy is None:
            return
        if not isinstance(strategy, BandedInverse | BufferedToeplitz):
            return super().check_correlation(strategy)
        priced = self.read_numbers("strategy")
        self._check_same(strategy, np.array_equal(strategy.column(self.length), priced))

    def _check_same(self, strategy: CorrelationStrategy, same: bool, why: str = "") -> None:
        if not same:
            raise ValueError(
                "correlation must be the strategy that the mechanism prices over all its steps, "
                f"got {strategy!r}{why}"
            )

    def price_first(self, steps: ArrayLike, most: int) -> acc.Mechanism:
        steps = np.clip(steps, 0, most)
        # The first steps of correlated noise are the same mechanism with fewer rows: it depends on
        # no later one. Of no step it is repeated no times.
        begun = dataclasses.replace(self.mechanism, steps=np.maximum(steps, 1.0))
        return acc.Repeated(begun, np.minimum(steps, 1.0))

    def max_size(self, rows: int, population: int, failure: float):
        return -(-rows // self.groups)

    def draw(
        self, run: SamplerShape, key: PRNGKey, step: StepNumber, number: Array | None
    ) -> tuple[Array, Array]:
        n, batches = run.population, self.groups
        first = jnp.asarray(step, jnp.int32) % batches
        # The last of ⌈n / batches⌉ places may be beyond the data: it is not among the first.
        indices = first + batches * jnp.arange(-(-n // batches), dtype=jnp.int32)
        return run.draw_first(indices, (n - first + batches - 1) // batches)

    @classmethod
    def price(
        cls,
        noise: Values,
        size: int,
        population: int,
        steps: int,
        capacity: int | None,
        strategy: CorrelationStrategy | None,
    ) -> acc.Mechanism:
        batches = _count_equal_batches(size, population)
        if isinstance(strategy, Banded) and strategy.bands > batches:
            known = strategy.cyclic_sensitivities(steps, batches)
            return acc.CyclicMatrixGaussian(noise, known, steps, batches)
        if isinstance(strategy, Tree | Banded):
            known = strategy.sensitivities(steps, batches)
            return acc.MatrixGaussian(noise, known, steps, batches)
        return acc.CorrelatedGaussian(noise, strategy, steps, batches)  # pyrefly: ignore


class MinSeparated(Cyclic):
    """Correlated noise over random batches in which no record returns too soon, unamplified."""

    name = "min-separated"

    def __init__(self, mechanism: _Uses):
        super().__init__(mechanism)
        self.rate = self.read("rate")

    def check(self, population: int):
        if not 0 < self.rate * self.groups <= 1 + 1e-9:  # a quotient's rounding
            raise ValueError(
                f"rate must be above 0 and at most 1/{self.groups}, one over the separation, got "
                f"{self.rate}"
            )

    def max_size(self, rows: int, population: int, failure: float):
        return _binomial_bound(rows, self.rate, failure)  # records are independent

    def draw(
        self, run: SamplerShape, key: PRNGKey, step: StepNumber, number: Array | None
    ) -> tuple[Array, Array]:
        sizes = {"population": run.population, "separation": self.groups}
        return run.collect(sampling.min_separated_inclusion(key, step, rate=self.rate, **sizes))

    @classmethod
    def price(
        cls,
        noise: Values,
        size: int,
        population: int,
        steps: int,
        capacity: int | None,
        strategy: CorrelationStrategy | None,
    ) -> acc.Mechanism:
        if isinstance(strategy, Tree | Banded):
            raise ValueError(
                "correlation must have coefficients for min-separated sampling, as a tree and a "
                f"matrix of columns of their own have not, got {strategy!r}"
            )
        # Nothing is gained by a shorter one: the price is of as many uses as fit.
        separation, rate = population // size, size / population
        return acc.MinSeparatedCorrelated(noise, strategy, steps, separation, rate)  # pyrefly: ignore


class CyclicMatrix(Cyclic):
    """Cyclic batches under a strategy of which the mechanism knows the sensitivities alone."""

    def check_correlation(self, strategy: CorrelationStrategy | None):
        if not isinstance(strategy, Tree | Banded):
            raise ValueError(
                "correlation must be a Tree or a Banded for a run that is one MatrixGaussian, "
                f"whose sensitivities do not say how to draw its noise, got {strategy!r}"
            )
        known = self._find_sensitivities(strategy)
        priced = self.read_numbers("sensitivities")
        self._check_same(strategy, np.array_equal(known, priced), " of other sensitivities")

    def _find_sensitivities(self, strategy: Tree | Banded) -> np.ndarray:
        """Those of the mechanism's steps, separation and participations."""
        sizes = (self.read(field) for field in ("steps", "separation", "participations"))
        return strategy.sensitivities(*sizes)  # pyrefly: ignore


class CyclicOrder(CyclicMatrix):
    """Cyclic batches under a matrix that is priced for their order and no other."""

    def _find_sensitivities(self, strategy: Tree | Banded) -> np.ndarray:
        if not isinstance(strategy, Banded):
            raise ValueError(
                "correlation must be a Banded for a run that is one CyclicMatrixGaussian, got "
                f"{strategy!r}"
            )
        sizes = (self.read(field) for field in ("steps", "separation", "participations"))
        return strategy.cyclic_sensitivities(*sizes)  # pyrefly: ignore


class CyclicPoisson(Scheme):
    """Correlated noise over Poisson samples of the group whose turn it is."""

    name = "cyclic-poisson"
    correlated = repeats = keeps_places = True

    def __init__(self, mechanism: acc.Mechanism):
        super().__init__(mechanism)
        self.length = self.groups = int(self.read("groups"))
        self.rate = self.read("rate") / self.read("groups")

    def check(self, population: int):
        self._check_groups(population)
        self._check_rate()

    def max_size(self, rows: int, population: int, failure: float):
        # Every `groups`-th of `rows` neighbours is in the group whose turn it is: ⌈rows/groups⌉.
        return _binomial_bound(-(-rows // self.groups), self.read("rate"), failure)

    def draw(
        self, run: SamplerShape, key: PRNGKey, step: StepNumber, number: Array | None
    ) -> tuple[Array, Array]:
        n, rate = run.population, self.read("rate")
        inclusion = sampling.poisson_inclusion(key, step, population=n, rate=rate)
        group = jnp.arange(n, dtype=jnp.int32) % self.groups
        return run.collect(inclusion & (group == jnp.asarray(step, jnp.int32) % self.groups))

    @classmethod
    def price(
        cls,
        noise: Values,
        size: int,
        population: int,
        steps: int,
        capacity: int | None,
        strategy: CorrelationStrategy | None,
    ) -> acc.Mechanism:
        if not isinstance(strategy, Toeplitz):
            raise ValueError(
                "correlation must be a Toeplitz for cyclic-poisson sampling: of a tree, of buffers "
                "or where C⁻¹ is banded, C has no bands, and no amplification is known, got "
                f"{strategy!r}"
            )
        groups = strategy.bands
        if size * groups > population:
            raise ValueError(
                f"batch_size must be at most {population // groups}, the records of one of "
                f"{groups} groups, got {size}"
            )
        rate = realised_rate(size * groups / population)
        one = acc.CyclicPoissonCorrelated(noise, strategy, groups, rate)  # pyrefly: ignore
        return acc.Repeated(one, math.ceil(steps / groups))


class BallsInBins(Scheme):
    """Correlated noise over bins of records, each record in a bin at random, one for all epochs."""

    name = "balls-in-bins"
    correlated = in_epochs = True
    redrawn: ClassVar[bool] = False

    def __init__(self, mechanism: acc.Mechanism):
        super().__init__(mechanism)
        self.bins, self.epochs = int(self.read("bins")), int(self.read("epochs"))
        self.length, self.rate = self.bins * self.epochs, 1.0 / self.bins

    def check(self, population: int):
        pass  # any number of bins will do

    def check_correlation(self, strategy: CorrelationStrategy | None):
        if strategy is None:
            raise ValueError(
                "correlation must be a strategy for a run that is one RandomAllocationCorrelated, "
                "whose overlaps do not say how to draw its noise, got None"
            )
        known = _find_overlaps(strategy, self.bins, self.epochs, self.mechanism.redrawn)
        if not np.array_equal(known.overlaps, np.asarray(self.mechanism.overlaps)):
            raise ValueError(
                "correlation must be the strategy that the mechanism prices over all its steps, "
                f"got {strategy!r} of other overlaps"
            )

    def price_first(self, steps: ArrayLike, most: int) -> acc.Mechanism:
        # An epoch is paid when it begins; the least overlaps are those of the whole run.
        begun = np.ceil(np.clip(steps, 0, most) / self.bins)
        some = {"epochs": np.maximum(begun, 1.0), "least_own": 0.0, "least_shared": 0.0}
        some = {} if np.all(begun == self.epochs) else some
        return acc.Repeated(dataclasses.replace(self.mechanism, **some), np.minimum(begun, 1.0))

    def max_size(self, rows: int, population: int, failure: float):
        # The records of one step are independent; what depends on one another are a record's steps.
        return _binomial_bound(rows, self.rate, failure)

    def program_key(self, population: int):
        return type(self), self.bins, self.mechanism.redrawn

    def draw(
        self, run: SamplerShape, key: PRNGKey, step: StepNumber, number: Array | None
    ) -> tuple[Array, Array]:
        step = jnp.asarray(step, jnp.int32)
        # The choices are a function of the epoch's number: of one number they are the same.
        epoch = step // self.bins if self.mechanism.redrawn else jnp.zeros_like(step)
        sizes = {"population": run.population, "steps": self.bins}
        return run.collect(sampling.allocation_inclusion(key, epoch, step % self.bins, **sizes))

    @classmethod
    def epoch(cls, population: int, size: int):
        return RandomAllocationScheme.epoch(population, size)

    @classmethod
    def price(
        cls,
        noise: Values,
        size: int,
        population: int,
        steps: int,
        capacity: int | None,
        strategy: CorrelationStrategy | None,
    ) -> acc.Mechanism:
        assert strategy is not None, "which `make_plan` asks for"
        bins = cls.epoch(population, size)
        one = _find_overlaps(strategy, bins, steps // bins, cls.redrawn)
        return dataclasses.replace(one, noise_multiplier=noise)


class RedrawnBins(BallsInBins):
    """The same with bins drawn afresh in every epoch: random allocation with a strategy."""

    name = RandomAllocationScheme.name
    redrawn = True


@functools.lru_cache(maxsize=16)
def _find_overlaps(
    strategy: CorrelationStrategy, bins: int, epochs: int, redrawn: bool
) -> acc.RandomAllocationCorrelated:
    """The mechanism of a strategy for a noise multiplier of 1; a search asks for it often."""
    return acc.RandomAllocationCorrelated(1.0, strategy, bins, epochs, redrawn=redrawn)  # pyrefly: ignore


SCHEMES: dict[type, type[Scheme]] = {
    acc.PoissonSampled: Poisson,
    acc.TruncatedPoissonSampled: TruncatedPoisson,
    acc.RandomAllocation: RandomAllocationScheme,
    acc.FixedBatchSampled: FixedBatch,
    acc.WithReplacement: WithReplacementScheme,
    acc.Gaussian: FullBatch,
    acc.CorrelatedGaussian: Cyclic,
    acc.MatrixGaussian: CyclicMatrix,
    acc.CyclicMatrixGaussian: CyclicOrder,
    acc.MinSeparatedCorrelated: MinSeparated,
    acc.CyclicPoissonCorrelated: CyclicPoisson,
    acc.RandomAllocationCorrelated: BallsInBins,
}

# What `make_plan(sampling=...)` may say.
BY_NAME = {scheme.name: scheme for scheme in SCHEMES.values()}


def choose_scheme(sampling: str, strategy: CorrelationStrategy | None) -> type[Scheme]:
    """The scheme of a name: random allocation has one without a strategy, and one with it."""
    scheme = BY_NAME[sampling]
    return scheme if strategy is None or scheme is not RandomAllocationScheme else RedrawnBins


def find_scheme(mechanism: acc.Mechanism) -> Scheme:
    """The scheme of a step's mechanism; `Scheme` itself, which runs nothing, of any other."""
    return SCHEMES.get(type(mechanism), Scheme)(mechanism)


def _binomial_bound(rows: int, rate: float, failure: float) -> int:
    """A bound on a binomial number, exceeded with at most the probability `failure`."""
    # At ε = 0 the capacity's factor 1 + e^ε is two: it is exceeded with at most failure / 2.
    return sampling.poisson_capacity(rows, rate, steps=1, delta=failure, epsilon=0.0)


def _count_equal_batches(size: int, population: int) -> int:
    """The number of batches of that size, up to one record, that a pass consists of."""
    fewest, most = population // size, -(-population // size)
    for batches in (fewest, most):
        if population // batches <= size <= -(-population // batches):
            return batches
    sizes = sorted({-(-population // batches) for batches in (fewest, most)})
    raise ValueError(
        f"batch_size must divide the {population} records into batches equal up to one record "
        f"(such as {' or '.join(map(str, sizes))}) for cyclic sampling, got {size}"
    )
