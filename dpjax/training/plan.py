"""`Plan`: the mechanism of a run, what has to be public to execute it, and its certificate."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import jax
import numpy as np
from jaxtyping import ArrayLike

from dpjax import accounting as acc
from dpjax._numerics.checks import Range, Tracer, choice, one_number, render
from dpjax._numerics.warning import DpjaxWarning
from dpjax.accounting.answers.query import Answer
from dpjax.correlation import Banded, Toeplitz, Tree
from dpjax.correlation.strategies import CorrelationStrategy
from dpjax.gradients import AdaptiveQuantile
from dpjax.training.options import as_python_numbers, check_clip_norm, check_integer, check_noise
from dpjax.training.schemes import Scheme, find_scheme

if TYPE_CHECKING:
    from dpjax.training.search import Selection

# The reason under which `make_plan` sets aside a part of δ for arithmetic.
ARITHMETIC = acc.Disclosure("rounding", "rounding of norms and sums beyond its bound")
DELTAS = Range(0.0, 1.0, open_low=True, open_high=True)


class NoiseRounding(NamedTuple):
    """What a run of a plan adds to its noise for the rounding of sums, and what that rests on."""

    slack: float  # the noise is 1 + slack times the plan's
    divided: bool  # whether batches go by the records' places on several devices


class Phase(NamedTuple):
    """Some steps in a row that are alike."""

    step: acc.Mechanism  # the mechanism of one of them, or of one epoch of random allocation
    steps: int  # how many steps there are, in whole epochs of random allocation

    @property
    def scheme(self) -> Scheme:
        """How its records are drawn."""
        return find_scheme(self.step)


def iterate_phases(mechanism: acc.Mechanism) -> Iterator[Phase]:
    """The phases of a composition in the order in which they run."""
    if isinstance(mechanism, acc.Composed):
        for part in mechanism.mechanisms:
            yield from iterate_phases(part)
    elif isinstance(mechanism, acc.Repeated):
        times = int(np.asarray(mechanism.steps))
        inner = list(iterate_phases(mechanism.mechanism))
        if len(inner) == 1:
            yield Phase(inner[0].step, inner[0].steps * times)
        else:
            for _ in range(times):
                yield from inner
    else:
        yield Phase(mechanism, find_scheme(mechanism).length)


@dataclass(frozen=True)
class Plan:
    """The mechanism that a run executes, and what has to be public to execute it.

    Noise multiplier, sampling rate and number of steps are those of `mechanism`, for `fit` and for
    the price. Clip norm and noise multipliers may be traced, for `training_step`: a step with
    numbers that a plan would refuse then releases NaN.

    Fields:
        mechanism: `Repeated(step, steps)`, step being `PoissonSampled(Gaussian)`,
            `TruncatedPoissonSampled(Gaussian)`, `FixedBatchSampled(Gaussian)`,
            `WithReplacement(Gaussian)` or a bare `Gaussian` (every record in every step);
            `Repeated(RandomAllocation(Gaussian, t), epochs)`, which is t·epochs steps; or any
            composition of these, `Composed` and `Repeated` at will, run in that order; or
            `CorrelatedGaussian` or `MatrixGaussian` (step t takes the records whose number is t
            modulo the separation) or `Repeated(CyclicPoissonCorrelated, rounds)` (a sample of
            those, modulo the groups); or `RandomAllocationCorrelated`.
        clip_norm: bound on a record's gradient norm, in units of the gradient.
        population: number of records, treated as public.
        delta: the δ at which the run is certified.
        adjacency: the neighbouring relation of the certificate.
        extra_delta: part of δ reserved for what the mechanism's formula does not see, by reason.
        correlation: the `BandedInverse` or `BufferedToeplitz` of a `CorrelatedGaussian`: it draws
            noise of the same price in another way; or the `Tree` or `Banded` of a `MatrixGaussian`;
            or that of a `RandomAllocationCorrelated`. None for every other run.
        unit: whose privacy is priced: of a "record", or of a "user" or "person" with all its
            records, who is then what `population` counts, and what `fit(users=…)` samples and
            clips.
        adaptive: moves the clip norm with a quantile of the gradients' norms, from `clip_norm` on.
            Every step's Gaussian is then the sum and a noisy count together: `mechanism` prices
            both, and `fit` adds to the sum the noise `adaptive.gradient_noise(noise_multiplier)`.
        preceding: what was released of the same records before the first step, such as a table's
            encoding: `fit` does not run it, and every price is of both together. Of a user it must
            have used at most one record, as the certificate then says.
        selection: set by `search`, whose runs execute the plan: every price is then of all of them.

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
    correlation: CorrelationStrategy | None = None
    unit: str = "record"
    adaptive: AdaptiveQuantile | None = None
    preceding: acc.Mechanism | None = None
    selection: Selection | None = None

    # No field: whether `make_plan` was given an ε, and has warned of it.
    _named_budget = False

    def __post_init__(self):
        if not isinstance(self.mechanism, acc.Mechanism):
            raise TypeError(
                "mechanism must be a mechanism, such as Repeated(PoissonSampled(Gaussian(1.0), "
                f"rate), steps), got {render(self.mechanism)}"
            )
        if not isinstance(self.adjacency, str):
            raise TypeError(
                f"adjacency must be one of {[str(a) for a in acc.Adjacency]}, got "
                f"{render(self.adjacency)}"
            )
        if not isinstance(self.preceding, acc.Mechanism | None):
            raise TypeError(f"preceding must be a mechanism or None, got {render(self.preceding)}")
        choice("unit", self.unit, ("record", "user", "person"))
        delta = one_number("delta", self.delta, DELTAS)
        fields = {
            "clip_norm": check_clip_norm(self.clip_norm),
            "population": check_integer("population", self.population),
            "delta": delta,
            "adjacency": acc.Adjacency(self.adjacency),
            "extra_delta": reserve_delta(delta, self.extra_delta),
            "unit": str(self.unit),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        try:
            self._check_phases()
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
            raise ValueError(
                "plan must hold numbers where nothing but clip_norm and noise multipliers may be "
                "traced, got another one traced"
            ) from error

    def _check_phases(self) -> None:
        """Refuse steps, a strategy or an adaptive clip norm that is not run as it is priced."""
        if not self.phases:
            raise ValueError(f"mechanism must have at least one step, got {self.mechanism}")
        for phase in self.phases:
            phase.scheme.check(self.population)
        find_scheme(self.mechanism).check_correlation(self.correlation)
        if self.adaptive is not None:
            # Python's own numbers say themselves to the last bit in their text.
            object.__setattr__(self, "adaptive", as_python_numbers(self.adaptive))
            if self.is_traced:
                raise ValueError(
                    "adaptive must be None where clip_norm or the noise multiplier is traced, got "
                    f"{self.adaptive}"
                )
            if self.strategy is not None:
                raise ValueError(
                    "adaptive must be None where noise is correlated: the count of a step has no "
                    f"price there, got {self.adaptive}"
                )
        if not self.is_traced:  # else `training_step` looks at each value
            multipliers = [phase.scheme.noise_multiplier for phase in self.phases]
            check_noise(multipliers, self.clip_norm, self.adaptive)

    @functools.cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The steps in the order in which they run, equal ones in a row together."""
        found: list[Phase] = []
        for phase in iterate_phases(self.mechanism):  # equal neighbours become one
            if phase.scheme.correlated and phase.step is not self._correlated_mechanism:
                raise ValueError(
                    "mechanism must be one run where noise is correlated (CorrelatedGaussian, "
                    "MatrixGaussian, RandomAllocationCorrelated or "
                    "Repeated(CyclicPoissonCorrelated, rounds)), got it within others"
                )
            if found and _is_same_step(found[-1].step, phase.step):
                phase = Phase(phase.step, found.pop().steps + phase.steps)
            if phase.steps:
                found.append(phase)
        return tuple(found)

    @functools.cached_property
    def keys(self) -> list[tuple[str, bool]]:
        """The name of each key that a run of this plan was given, and whether it was drawn.

        `fit` adds to it; a certificate made afterwards lists a key given by hand, and names the
        noise, so that `acc.certify` of several certificates finds two of one noise.
        """
        return []

    @functools.cached_property
    def rounding(self) -> list[NoiseRounding]:
        """What each kind of run of this plan added to its noise; `fit` adds to it."""
        return []

    @property
    def rounding_slack(self) -> float | None:
        """How much more noise than it says runs of this plan had, as a share; None before one.

        It allows for the rounding of sums, see `gradients.rounding_slack`, and is one number for
        every capacity, number of devices and dtype.

        Example:
            >>> step = acc.PoissonSampled(acc.Gaussian(2.0), rate=0.25)
            >>> Plan(acc.Repeated(step, 9), clip_norm=1.0, population=9, delta=1e-5).rounding_slack
        """
        return max((own.slack for own in self.rounding), default=None)

    @property
    def _correlated_mechanism(self) -> acc.Mechanism | None:
        """The mechanism whose noise is correlated over the whole run, or None."""
        run = self.mechanism
        inner = run.mechanism if isinstance(run, acc.Repeated) else run
        scheme = find_scheme(inner)
        return inner if scheme.correlated and (scheme.repeats or inner is run) else None

    @property
    def strategy(self) -> CorrelationStrategy | None:
        """The strategy that correlates the noise over the steps, None where it is fresh."""
        found = self._correlated_mechanism
        if self.correlation is not None or found is None:
            return self.correlation
        return Toeplitz(tuple(find_scheme(found).read_numbers("strategy").tolist()))

    @property
    def step(self) -> acc.Mechanism:
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
        return find_scheme(self.step).noise_multiplier

    @property
    def rate(self) -> float:
        """How often a given record takes part in a step on average: of most, its probability."""
        return find_scheme(self.step).rate

    @property
    def is_traced(self) -> bool:
        """Whether the clip norm or a noise multiplier is traced, as in a sweep by `jax.vmap`."""
        numbers = (self.clip_norm, *(phase.scheme.noise_multiplier for phase in self.phases))
        return any(isinstance(number, Tracer) for number in numbers)

    @property
    def expected_batch_size(self) -> float:
        """The public constant that every noisy sum is divided by."""
        return self.rate * self.population

    def noise_std(self, step: int, *, clip_norm: float | None = None) -> float:
        """The standard deviation of the noise in step `step`'s mean gradient, in every coordinate:

            noise multiplier of the sum × clip norm / expected batch size

        what an optimiser sees, for a learning rate or a preconditioner that allows for it. Of
        correlated noise it is that of one step's alone. `fit` adds `rounding_slack` times it more,
        up to two thousandths.

        Args:
            step: from 0, as in the state of `training_step`; below `steps`.
            clip_norm: of that step, where it is adaptive; by default the first one's.

        Returns:
            The standard deviation, of traced numbers where the plan has them.

        Raises:
            ValueError: no such step; a clip norm where the plan has one of its own.

        Example:
            >>> step = acc.PoissonSampled(acc.Gaussian(2.0), rate=0.25)
            >>> plan = Plan(acc.Repeated(step, 100), clip_norm=1.0, population=400, delta=1e-5)
            >>> plan.noise_std(0)  # 2 · 1 / 100
            0.02
        """
        step = check_integer("step", step, low=0, high=self.steps - 1)
        if clip_norm is None:
            clip_norm = self.clip_norm
        elif self.adaptive is None:
            raise ValueError(
                f"clip_norm must be None where it is not adaptive, got {render(clip_norm)}"
            )
        ends = np.cumsum([phase.steps for phase in self.phases])
        scheme = self.phases[int(np.searchsorted(ends, step, side="right"))].scheme
        multiplier = scheme.noise_multiplier
        if self.adaptive is not None:
            multiplier = self.adaptive.gradient_noise(multiplier)
        if self.strategy is not None:
            multiplier = multiplier * _noise_of_strategy(self.strategy, step)
        return multiplier * clip_norm / (scheme.rate * self.population)

    def epsilon(self, steps: ArrayLike | None = None) -> Answer:
        """ε at the plan's δ, after all steps or after each of `steps`, in one query."""
        run = self.mechanism if steps is None else self._price_first(np.asarray(steps, np.float64))
        run, how = self.compose(run), {"adjacency": self.adjacency, "method": self.method}
        return acc.epsilon(run, self._remaining_delta, **how)

    @overload
    def compose(self, run: acc.Mechanism) -> acc.Mechanism: ...
    @overload
    def compose(self, run: acc.Mechanism | None) -> acc.Mechanism | None: ...
    def compose(self, run: acc.Mechanism | None) -> acc.Mechanism | None:
        """The steps, None if none were taken, with what was released before and by other runs."""
        # Adaptive composition: the steps may depend on what was released before, and are priced as
        # if it were given; a selection's own price is of all runs, of which one is released.
        run = run if run is None or self.selection is None else self.selection.price(run)
        parts = [part for part in (self.preceding, run) if part is not None]
        return acc.Composed(tuple(parts)) if len(parts) == 2 else (*parts, None)[0]

    @property
    def method(self) -> str:
        """The name of the bound that prices it."""
        own, run = self.selection, self.compose(self.mechanism)
        return "best" if own is None else own.find_method(run, self.adjacency)

    @property
    def _remaining_delta(self) -> float:
        """What the reserved parts leave of δ for the mechanism."""
        return self.delta - sum(self.extra_delta.values())

    def spent(self, steps: int, delta: float | None = None) -> float:
        """ε after so many steps, at another δ if given; remembered, as every row asks for it."""
        run = self.compose(self._price_first(steps) if steps else None)
        if run is None:  # nothing was released
            return 0.0
        delta = self._remaining_delta if delta is None else delta
        query = acc.epsilon, run, delta, self.adjacency, self.method if steps else "best"
        try:
            return _price(*query)
        except TypeError:  # a field that is an array has no hash
            return _price.__wrapped__(*query)

    def _price_first(self, steps: int | np.ndarray) -> acc.Mechanism:
        """The mechanism of the first steps, of one number of them without the phases not begun."""
        parts, before = [], 0
        for phase in self.phases:
            if np.ndim(steps) or steps > before or not parts:
                parts.append(phase.scheme.price_first(steps - before, phase.steps))
            before += phase.steps
        return parts[0] if len(parts) == 1 else acc.Composed(tuple(parts))

    def certify(
        self,
        *,
        steps: int | None = None,
        looks: int = 1,
        not_covered: Sequence[str] = (),
        assumptions: Sequence[str] = (),
        declared: Mapping[str, float | str] | None = None,
    ) -> acc.Certificate:
        """The certificate of the whole run, or of its first steps where it stopped early.

        Where what was released decided when to stop, ε of the steps taken holds at δ / looks, by
        the union over the moments: with T the step at which the run stops, εₖ that of k steps at
        δ / looks, every event E and neighbouring data sets,

            P(E) ≤ Σₖ e^εₖ · Q(E and T = k) + δ.

        It is an ex-post guarantee: ε belongs to the moment at which the run stopped. What could
        have been spent at most is the certificate of the whole plan.

        Warns where ε is above 10, of what it permits, unless `make_plan` was given it.

        Args:
            steps: how many were taken; None for all.
            looks: at how many moments what was released could have ended the run; 1 where nothing
                of the records decided.
            not_covered: further lines on what ε does not cover.
            assumptions: further ones than those of every run.
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
        if self.is_traced:
            raise ValueError(
                "plan must hold numbers to be certified, got traced ones: plan.epsilon() takes them"
            )
        taken = self.steps if steps is None else check_integer("steps", steps, high=self.steps)
        looks = check_integer("looks", looks)
        extra = dict(self.extra_delta)
        if looks > 1:
            remaining = self._remaining_delta
            # What is left must not exceed δ / looks by the rounding of these sums.
            share = remaining - remaining / looks + 4 * math.ulp(self.delta)  # what is set aside
            # This code keeps the certificate out of compositions, see `acc.certify`.
            extra |= {
                acc.Disclosure(
                    "stopped-by-release",
                    f"stopping at one of {looks} moments by what was released",
                ): share
            }
        run = self.mechanism if taken == self.steps else self._price_first(taken)
        own_facts, own_assumptions = describe_plan(self)
        facts: dict[str, Any] = {**(declared or {}), **own_facts}
        # The steps that are paid: of an epoch that was begun, all.
        paid = sum(phase.steps for phase in iterate_phases(run))
        # Beside other releases, whose own they are not; in a search norms may differ.
        own = "" if self.preceding is self.selection is None else "training_"
        facts |= {"records": self.population, f"{own}steps": paid}
        facts |= {"clip_norm": self.clip_norm} if self.selection is None else {}
        if len(self.phases) == 1:
            facts["batch_size"] = self.expected_batch_size
            facts[f"{own}noise_multiplier"] = self.noise_multiplier
        if self.rounding_slack is not None:
            facts["rounding_slack"] = self.rounding_slack
        if self.keys:
            facts["noise"] = " ".join(name for name, _ in self.keys)
        by_hand = [BY_HAND] if any(not drawn for _, drawn in self.keys) else []
        certificate = acc.certify(
            self.compose(run),
            self.delta,
            adjacency=self.adjacency,
            method=self.method,
            extra_delta=extra,
            not_covered=tuple(dict.fromkeys([*not_covered, *by_hand])),
            assumptions=(*own_assumptions, *assumptions),
            declared=facts,
        )
        if not self._named_budget:
            warn_of_large_epsilon(certificate.epsilon, self.unit, stacklevel=2)
        return certificate


def _noise_of_strategy(strategy: CorrelationStrategy, step: int) -> float:
    """The standard deviation of (C⁻¹z) at a step, where that of z is 1."""
    if isinstance(strategy, Tree):
        # Its own block's noise, and that of each block that it is made of: one for each of the last
        # digits of `step` that are 1.
        return math.sqrt(1 + (~step & (step + 1)).bit_length() - 1)
    if isinstance(strategy, Banded):
        return float(np.linalg.norm(strategy.inverse_row(step)))
    return float(np.linalg.norm(strategy.inverse(step + 1)))


def describe_plan(plan: Plan) -> tuple[dict[str, int | str], list[str]]:
    """What every certificate of the plan's runs declares of unit and clip norm, and assumes."""
    facts: dict[str, int | str] = {"unit": plan.unit} if plan.unit != "record" else {}
    facts |= {"adaptive": repr(plan.adaptive)} if plan.adaptive is not None else {}
    before = plan.preceding is not None
    of_users = [OF_USERS] + [ONE_RECORD] * before if plan.unit != "record" else []
    assumptions = [line.reword(line.replace("user", plan.unit)) for line in of_users]
    assumptions += [ADAPTIVE] * (plan.adaptive is not None)
    more, rests = ({}, []) if plan.selection is None else plan.selection.describe()
    own = [SECRET_KEY, GAUSSIAN_NOISE, SAME_ANYWHERE, *_describe_places(plan)]
    return facts | more, [*own, *assumptions, *rests]


def _describe_places(plan: Plan) -> list[str]:
    """What the bound on rounding rests on where a record is removed."""
    if plan.adjacency != acc.Adjacency.ADD_REMOVE:
        return []  # one place holds another record
    divided = any(own.divided for own in plan.rounding)
    if divided or any(phase.scheme.keeps_places for phase in plan.phases):
        return [EMPTY_PLACE]
    return [] if plan.rounding else [IF_DIVIDED]


def warn_of_large_epsilon(epsilon: float, unit: str, stacklevel: int) -> None:
    """Warn of an ε above 10."""
    if epsilon > 10:
        warnings.warn(
            f"epsilon should be at most 10, got {epsilon:g}: it lets an outcome be e^{epsilon:g} "
            f"times as likely with a {unit} as without, which rules almost no attack out",
            DpjaxWarning,
            stacklevel=stacklevel + 1,
        )


def reserve_delta(delta: float, *parts: Mapping[str, float]) -> dict[str, float]:
    """The parts of δ that are reserved, by reason, which leave something of it."""
    found: dict[str, float] = {}
    for part in parts:
        if not isinstance(part, Mapping):
            raise TypeError(f"extra_delta must be a table, reason: number, got {render(part)}")
        for reason, value in part.items():
            reason = reason if isinstance(reason, acc.Disclosure) else str(reason)
            found[reason] = one_number(f"extra_delta[{reason!r}]", value, Range(0.0, 1.0))
    if sum(found.values()) >= delta:
        raise ValueError(
            f"delta must exceed the {sum(found.values()):.3g} reserved for {', '.join(found)}, got "
            f"{delta}"
        )
    return found


def _is_same_step(one: acc.Mechanism, other: acc.Mechanism) -> bool:
    """Whether two steps are alike; traced numbers that are not one are taken for different."""
    try:
        return one == other
    except jax.errors.ConcretizationTypeError:
        return False


@functools.lru_cache(maxsize=4096)
def _price(
    query: Callable[..., Answer],
    run: acc.Mechanism,
    delta: float,
    adjacency: acc.Adjacency,
    method: str,
) -> float:
    return float(query(run, delta, adjacency=adjacency, method=method))


# What every certificate of a run with Gaussian noise assumes.
SECRET_KEY = acc.Disclosure(
    "key-secret", "the key of the run stays secret, and its stream passes for random"
)
GAUSSIAN_NOISE = acc.Disclosure(
    "computation",
    "the noise is Gaussian up to the generator's tail (1e-19 a number beyond |z| = 9.3) and up to "
    "rounding in its last bits",
)
# What `gradients.rounding_slack(in_place=True)` rests on, which sets how much noise `fit` adds.
SAME_ANYWHERE = acc.Disclosure(
    "computation",
    "what is computed of a record is the same at every place of a batch, whatever the records "
    "beside it are",
)
# Where batches are not in a random order, see `training.order`.
EMPTY_PLACE = acc.Disclosure(
    "computation",
    "who is removed leaves an empty place among the records: the bound on what the rounding of a "
    "sum adds to its sensitivity lets nobody else move up",
)
IF_DIVIDED = EMPTY_PLACE.reword("where records are divided over several devices, " + EMPTY_PLACE)
# What a certificate of a run over users says of its "records".
OF_USERS = acc.Disclosure(
    "unit",
    "a record is all that one user contributes: the summed gradient of that user's records, "
    "clipped once",
)
ONE_RECORD = acc.Disclosure(
    "unit",
    "what was released before the first step was computed from at most one record of each user, "
    "chosen without looking at those of others",
)
# What a certificate of a run with an adaptive clip norm says of its Gaussians.
ADAPTIVE = acc.Disclosure(
    "computation",
    "every step releases the clipped sum and a count of the records below the clip norm, with "
    "noise multipliers a and b: one Gaussian of noise multiplier (1/a² + 1/b²)^(−1/2), as stated",
)
BY_HAND = acc.Disclosure(
    "key-by-hand",
    "the noise comes from a key or a seed given by hand: who guesses it, or has another model "
    "trained with it, can subtract it",
)


# What a run assumes of which nothing else is learned from the records.
NOTHING_CHOSEN = (
    acc.Disclosure(
        "nothing-chosen",
        "no setting was chosen, and no run picked among several, by looking at results on the same "
        "records, but as the mechanism prices it",
    ),
    acc.Disclosure(
        "duration-unseen",
        "how long the run took, and the checkpoint folder of an unfinished run, were seen by "
        "nobody whom ε is to protect against",
    ),
)


def treat_as_public(records: int, unit: str = "record") -> acc.Disclosure:
    """The sentence that the number of records, or of other units, is public."""
    return acc.Disclosure(
        "records-public", f"the number of training {unit}s ({records}) is treated as public"
    )


def default_disclosures(
    records: int, *, seeded: bool, unit: str = "record"
) -> list[acc.Disclosure]:
    """What the ε of no training run covers, for the `not_covered` of its certificate."""
    lines = [
        treat_as_public(records, unit),
        acc.Disclosure(
            "settings-chosen",
            "choosing settings, or among several runs, by looking at results on the same records",
        ),
    ]
    if seeded:
        lines.append(BY_HAND)
    return lines
