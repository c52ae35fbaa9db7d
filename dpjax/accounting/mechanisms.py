"""The vocabulary: one frozen pytree for every kind of release.

A mechanism says what is released and nothing of how it is priced. Numeric fields are pytree leaves:
they may be numbers, arrays (a sweep: fields broadcast against each other) or tracers. Concrete
values are checked when the mechanism is built. Fields that hold one value per component of a single
release say so in their shape, as in `RandomizedSensitivity`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeVar, dataclass_transform

import jax
import numpy as np
from jaxtyping import ArrayLike, Float

_Class = TypeVar("_Class", bound=type)
_REGISTRY: dict[str, type] = {}


@dataclass_transform(frozen_default=True)
def register_mechanism(cls: _Class) -> _Class:
    """Make a class a mechanism: a frozen dataclass, a pytree, and known by name to certificates.

    Fields annotated `bool` or `str` are static; all others are leaves or nested mechanisms.

    >>> from dpjax import accounting as acc
    >>> acc.registered_mechanisms()["Gaussian"] is acc.Gaussian
    True
    """
    cls = dataclasses.dataclass(frozen=True)(cls)  # pyrefly: ignore
    static = [f.name for f in dataclasses.fields(cls) if str(f.type) in ("bool", "str")]
    data = [f.name for f in dataclasses.fields(cls) if f.name not in static]
    jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=static)
    _REGISTRY[cls.__name__] = cls
    return cls


def registered_mechanisms() -> dict[str, type]:
    """Every kind of mechanism by name, as certificates write it.

    >>> "PoissonSampled" in registered_mechanisms()
    True
    """
    return dict(_REGISTRY)


class Mechanism:
    """Base of all mechanisms; see the subclasses.

    >>> isinstance(Gaussian(1.0), Mechanism)
    True
    """


_Integer = (int, np.integer)


def check_number(
    owner: object,
    name: str,
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    whole: bool = False,
    finite: bool = True,
) -> None:
    """Check a field's concrete value; tracers and pytree placeholders pass.

    Raises:
        TypeError: not a number. ValueError: NaN, or outside the range that is named.

    >>> Gaussian(-1.0)
    Traceback (most recent call last):
    ValueError: Gaussian.noise_multiplier must be a finite number >= 0, got -1.0
    """
    value = getattr(owner, name)
    kind = type(owner).__name__
    if isinstance(value, str):
        raise TypeError(
            f"{kind}.{name} must be a number or an array of numbers, got the text {value!r}"
        )
    if isinstance(value, list | tuple):
        try:
            value = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            return
        object.__setattr__(owner, name, value)
    if type(value) is float and low < value <= min(high, 1e300) and not whole:
        return  # the commonest case, without arrays
    if isinstance(value, jax.core.Tracer) or not isinstance(
        value, int | float | np.generic | np.ndarray | jax.Array
    ):
        return
    try:
        numbers = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return
    good = (np.isfinite(numbers) | (not finite)) & (numbers <= high)
    good &= (numbers > low) if open_low else (numbers >= low)
    if whole:
        good &= numbers == np.floor(numbers)
    if np.all(good):
        return
    what = "a whole number" if whole else "a finite number"
    bounds = f"{'>' if open_low else '>='} {low:g}" + (
        f" and <= {high:g}" if high < math.inf else ""
    )
    shown = value if numbers.ndim == 0 else numbers[~good].ravel()[0]
    raise ValueError(f"{kind}.{name} must be {what} {bounds}, got {shown}")


def _check_mechanism(owner: object, name: str) -> None:
    value = getattr(owner, name)
    if isinstance(value, int | float | str | np.ndarray):
        raise TypeError(
            f"{type(owner).__name__}.{name} must be a mechanism, such as Gaussian(1.1), "
            f"got {value!r}"
        )


@register_mechanism
class Gaussian(Mechanism):
    """A sum of contributions clipped to norm C, plus N(0, (noise_multiplier·C)² I).

    Released: `Σ_i clip_C(x_i) + noise_multiplier · C · Z`. One record moves the sum by at most C
    under ADD_REMOVE and by at most 2C under REPLACE_ONE, so it is (1/noise_multiplier)-GDP and
    (2/noise_multiplier)-GDP (Dong, Roth and Su 2022, Theorem 2.7). Dividing the sum by a *public*
    constant (the expected batch size) changes nothing; dividing by the realised batch size is not
    covered.

    Fields:
        noise_multiplier: noise standard deviation over clip norm, >= 0 (0 is no privacy: ε = +inf).

    >>> from dpjax import accounting as acc
    >>> round(acc.epsilon(acc.Gaussian(10.0), delta=1e-5, method="rdp"), 3)
    0.375
    """

    noise_multiplier: Float[ArrayLike, "..."]

    def __post_init__(self) -> None:
        check_number(self, "noise_multiplier", 0.0)


@register_mechanism
class UniformBall(Mechanism):
    """A vector plus noise uniform in a ball (Tholeti and Kalyani 2021).

    Densities of neighbours overlap or not, nothing in between: ε > 0 buys nothing, and δ is the
    total variation distance `I_{Δ²/4}(1/2, (d+1)/2)` at every ε, Δ the displacement.

    Fields:
        displacement: sensitivity over the ball's radius, >= 0. Sensitivity is that of the adjacency
            asked for (2C for replacing a record of a clipped sum, C for adding one): the caller's
            duty, since the mechanism does not know a clip norm.
        dimension: of the released vector, a whole number >= 1.

    >>> from dpjax import accounting as acc
    >>> acc.UniformBall(displacement=0.01, dimension=10).dimension
    10
    """

    displacement: Float[ArrayLike, "..."]
    dimension: Float[ArrayLike, "..."]

    def __post_init__(self) -> None:
        check_number(self, "displacement", 0.0)
        check_number(self, "dimension", 1.0, whole=True)


@register_mechanism
class PoissonSampled(Mechanism):
    """The mechanism applied to a random subset: each record takes part independently with `rate`.

    Worst pairs for `Gaussian` inside (unit clip norm): under ADD_REMOVE
    `(1−q)N(0,σ²) + qN(1,σ²)` against `N(0,σ²)`, both directions; under REPLACE_ONE
    `(1−q)N(0,σ²) + qN(1,σ²)` against `(1−q)N(0,σ²) + qN(−1,σ²)`. The subset must be secret, and the
    sum divided by a constant, never by the realised batch size.

    Fields:
        mechanism: what is done with the subset.
        rate: probability that a record takes part, in [0, 1].

    >>> from dpjax import accounting as acc
    >>> acc.PoissonSampled(acc.Gaussian(1.1), rate=0.01).rate
    0.01
    """

    mechanism: Mechanism
    rate: Float[ArrayLike, "..."]

    def __post_init__(self) -> None:
        _check_mechanism(self, "mechanism")
        check_number(self, "rate", 0.0, 1.0)


@register_mechanism
class FixedBatchSampled(Mechanism):
    """The mechanism applied to a uniform batch of fixed size, drawn without replacement.

    REPLACE_ONE only: adding a record changes the law of every other record's presence. The worst
    pair is `(1−q)N(0,σ²) + qN(2,σ²)` against `N(0,σ²)` and its reverse, q = batch_size/population,
    which is strictly worse than Poisson sampling's replace-one pair, so the one never stands in for
    the other.

    Fields:
        mechanism: what is done with the batch.
        batch_size: records in a batch, a whole number in [0, population].
        population: records in the data set (public), a whole number >= 1.

    >>> from dpjax import accounting as acc
    >>> acc.FixedBatchSampled(acc.Gaussian(4.0), batch_size=256, population=60_000).population
    60000
    """

    mechanism: Mechanism
    batch_size: Float[ArrayLike, "..."]
    population: Float[ArrayLike, "..."]

    def __post_init__(self) -> None:
        _check_mechanism(self, "mechanism")
        check_number(self, "batch_size", 0.0, whole=True)
        check_number(self, "population", 1.0, whole=True)
        if all(
            isinstance(v, int | float | np.ndarray) for v in (self.batch_size, self.population)
        ) and np.any(np.asarray(self.batch_size) > np.asarray(self.population)):
            raise ValueError(
                "FixedBatchSampled.batch_size must be at most the population "
                f"({self.population}), got {self.batch_size}"
            )


@register_mechanism
class Shuffled(Mechanism):
    """One pass over the data in `batches` disjoint batches, in the order of one secret permutation.

    Every record takes part in exactly one of the pass's releases, so a pass costs what one release
    of the mechanism costs. No amplification by subsampling may be claimed. Several passes, over the
    same or a fresh permutation, are `Repeated(Shuffled(...), steps=passes)`. Under ADD_REMOVE the
    record's slot must stay empty (a padded batch) rather than shift the others.

    Fields:
        mechanism: what is done with each batch.
        batches: releases in one pass, a whole number >= 1.

    >>> from dpjax import accounting as acc
    >>> acc.Shuffled(acc.Gaussian(4.0), batches=20).batches
    20
    """

    mechanism: Mechanism
    batches: Float[ArrayLike, "..."]

    def __post_init__(self) -> None:
        _check_mechanism(self, "mechanism")
        check_number(self, "batches", 1.0, whole=True)


@register_mechanism
class Repeated(Mechanism):
    """The mechanism used `steps` times on the same data, each use may depend on earlier outputs.

    Fields:
        mechanism: one step.
        steps: number of uses, a whole number >= 0.

    >>> from dpjax import accounting as acc
    >>> acc.Repeated(acc.Gaussian(4.0), steps=100).steps
    100
    """

    mechanism: Mechanism
    steps: Float[ArrayLike, "..."]

    def __post_init__(self) -> None:
        _check_mechanism(self, "mechanism")
        check_number(self, "steps", 0.0, whole=True)


@register_mechanism
class Composed(Mechanism):
    """Several mechanisms on the same data, each may depend on the outputs before it.

    Fields:
        mechanisms: a tuple of mechanisms, possibly empty (nothing released).

    >>> from dpjax import accounting as acc
    >>> len(acc.Composed((acc.Gaussian(4.0), acc.Gaussian(8.0))).mechanisms)
    2
    """

    mechanisms: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        if isinstance(self.mechanisms, Mechanism):
            raise TypeError(
                "Composed.mechanisms must be a tuple of mechanisms; write Composed((m,)) for one"
            )
        if isinstance(self.mechanisms, list):
            object.__setattr__(self, "mechanisms", tuple(self.mechanisms))
