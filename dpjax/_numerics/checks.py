"""Validation of arguments: raises for concrete values, gives a mask of validity for traced ones."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple, SupportsIndex, TypeGuard, TypeVar, overload

import jax
import numpy as np

from dpjax._numerics.arrays import Numbers, namespace

Tracer = jax.core.Tracer  # looked up once: jax.core is slow at it
RealNumbers = jax.Array | np.ndarray | np.floating | np.integer | float  # one number or an array
AnyNumber = TypeVar("AnyNumber", bound=RealNumbers)  # comes out as it went in
Item = TypeVar("Item")
_LARGEST = 1.7e308  # ints beyond have no float64


class Range(NamedTuple):
    """The numbers an argument or a field may be. NaN never is.

    Fields:
        low, high: the ends; `open_low`, `open_high`: whether they are excluded.
        whole: whole numbers only.
        infinite: whether +inf is allowed.
    """

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    whole: bool = False
    infinite: bool = False

    def __str__(self) -> str:
        kind = "a number" if self.infinite else "a finite number"
        kind = "a whole number" if self.whole else kind
        if self.low > -math.inf and self.high < math.inf:
            ends = f"{'(' if self.open_low else '['}{self.low:g}, {self.high:g}"
            return f"{'a whole number ' * self.whole}in {ends}{')' if self.open_high else ']'}"
        if self.low > -math.inf:
            return f"{kind} {'>' if self.open_low else '>='} {self.low:g}"
        if self.high < math.inf:
            return f"{kind} {'<' if self.open_high else '<='} {self.high:g}"
        return kind

    @overload
    def holds(self, x: float) -> bool: ...
    @overload
    def holds(self, x: np.ndarray) -> np.ndarray: ...
    @overload
    def holds(self, x: Numbers) -> Numbers: ...
    def holds(self, x: float | np.ndarray | Numbers) -> bool | np.ndarray | Numbers:
        """Which of the numbers are in the range; NaN is in none."""
        good = (x > self.low) if self.open_low else (x >= self.low)
        good = good & ((x < self.high) if self.open_high else (x <= self.high))
        if not self.infinite:
            good = good & (x < math.inf) & (x > -math.inf)
        return good & (x == namespace(x).floor(x)) if self.whole else good

    def example(self) -> float:
        """A number of the range."""
        return next(x for x in (1.0, 0.5, self.low, self.low + 1, self.high) if self.holds(x))


# Clip norms whose squares float32 holds. Of a smaller one the squared norms vanish, and with them
# digits of every sum; above a larger one norms are infinite, and no record takes part.
CLIP_NORMS = Range(1e-18, 1e19)
POSITIVE = Range(0.0, open_low=True)
BELOW_ONE = Range(0.0, 1.0, open_high=True)


def render(value: object) -> str:
    """A value for an error message, whatever it is."""
    if isinstance(value, int) and abs(value) > 10**20:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value.item() if isinstance(value, np.generic) else value)
    except Exception:  # an error message must not fail for what it reports
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _flat(values: object) -> list[object]:
    if isinstance(values, list | tuple):
        return [leaf for value in values for leaf in _flat(value)]
    return [values]


@overload
def number(name: str, value: list | tuple, allowed: Range) -> np.ndarray: ...
@overload
def number(name: str, value: AnyNumber, allowed: Range) -> AnyNumber: ...
@overload
def number(name: str, value: object, allowed: Range) -> RealNumbers: ...
def number(name: str, value: object, allowed: Range) -> RealNumbers | np.generic:
    """The value, if it is a number or an array of numbers, all of them allowed.

    Numbers are Python's int and float and the real numeric types of NumPy and JAX, alone or in an
    array; a list or tuple of numbers becomes a float64 array. What else converts to float (bool,
    Fraction, Decimal, tensors of other libraries) is refused rather than guessed. Of a traced
    value the type alone is checked; see `Range.holds` for its values.
    """
    if type(value) is float and allowed.holds(value):
        return value  # the commonest case

    def wrong_kind() -> TypeError:
        return TypeError(f"{name} must be a number or an array of numbers, got {render(value)}")

    if isinstance(value, list | tuple):
        for leaf in _flat(value):
            number(name, leaf, Range(infinite=True))
        try:
            value = np.asarray(value, np.float64)
        except Exception:  # ragged, or of traced values
            raise wrong_kind() from None
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        if not any(jax.dtypes.issubdtype(value.dtype, kind) for kind in (np.floating, np.integer)):
            raise wrong_kind()
        if isinstance(value, Tracer):
            return value
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_kind()
    elif abs(value) > _LARGEST and isinstance(value, int):
        raise ValueError(f"{name} must be {allowed}, got {render(value)}")
    numbers = np.asarray(value, np.float64)
    good = allowed.holds(numbers)
    if np.all(good):
        return value
    first = value if numbers.ndim == 0 and not hasattr(value, "dtype") else numbers[~good].flat[0]
    raise ValueError(f"{name} must be {allowed}, got {render(first)}")


def one_number(name: str, value: object, allowed: Range) -> float:
    """The value as a float, if it is one number that is allowed."""
    scalar(name, value, allowed)
    if isinstance(value, Tracer):
        raise ValueError(f"{name} must be a number, got a traced one")
    return float(np.asarray(value, np.float64))


_ANY = Range(infinite=True)


def scalar(name: str, value: object, allowed: Range = _ANY) -> None:
    """Raises unless `value` is one number that is allowed; of a traced one its type is checked."""
    # An array would broadcast against the records or the numbers of a gradient: each with a clip
    # norm or a noise of its own, where the price knows of one.
    if np.ndim(number(name, value, allowed)):
        raise ValueError(f"{name} must be one number, got {render(value)}")


def positive(name: str, value: object, allow_zero: bool = False) -> None:
    """Raises unless `value` is one number, positive (or zero, if allowed) and finite."""
    if not isinstance(value, float):  # NaN gets the message below
        scalar(name, value)
        if isinstance(value, Tracer):
            return
    # In the widest floats that JAX computes with: as float32, 1e39 is infinite, and 1e-39 loses
    # digits or is 0. NumPy: under a trace even constants of jax.numpy are traced.
    array, known = np.asarray(value), np.finfo(jax.dtypes.canonicalize_dtype(np.float64))
    inside = (array >= known.tiny) & (array <= known.max)
    if not np.all(inside | (array == 0) if allow_zero else inside):
        least = "zero or positive" if allow_zero else "positive"
        raise ValueError(f"{name} must be {least} and finite as {known.dtype}, got {value!r}")


def whole(
    name: str, value: SupportsIndex, low: float = 1, most: float = math.inf, kind: str = ""
) -> int:
    """The value as an int from `low` to `most`; `kind` says in words what is allowed."""
    try:
        if isinstance(value, bool | np.bool_):  # an index to Python
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be {kind or 'a whole number'}, got {value!r}") from None
    if not low <= count <= most:
        limit = f"at least {low}" if count < low else f"at most {most}"
        raise ValueError(f"{name} must be {kind or limit}, got {render(count)}")
    return count


def items(name: str, values: Iterable[Item], kind: str) -> list[Item]:
    """The items of a collection as a list; `kind` says in words what it must be."""
    try:
        if isinstance(values, str | bytes):  # an iterable of letters to Python
            raise TypeError
        each = iter(values)
    except TypeError:
        raise TypeError(f"{name} must be {kind}, got {render(values)}") from None
    return list(each)


def unmasked(name: str, values: object) -> None:
    """Refuses NumPy's masked cells: whoever takes a plain array reads what lies under the mask."""
    if isinstance(values, np.ma.MaskedArray) and (hidden := int(np.ma.count_masked(values))):
        raise ValueError(
            f"{name} must have every value, got a masked array in which {hidden} of "
            f"{values.size} are hidden: fill them in, or leave those records out"
        )


def representable(name: str, values: np.ndarray | np.generic | jax.Array, dtype: np.dtype) -> None:
    """Refuses whole numbers that the dtype does not hold: two would become one, or another."""
    integers = np.issubdtype(values.dtype, np.integer) and np.issubdtype(dtype, np.integer)
    if not integers or np.can_cast(values.dtype, dtype) or not values.size:
        return
    held = np.iinfo(dtype)
    for one in (int(values.min()), int(values.max())):
        if not held.min <= one <= held.max:
            raise ValueError(
                f"{name} must have whole numbers from {held.min} to {held.max}, as JAX keeps them "
                f"in {held.dtype}, got {one}: number them anew (np.unique with return_inverse), or "
                "set jax_enable_x64"
            )


def choice(name: str, value: object, options: Sequence[str]) -> str:
    """The value, if it is one of the options."""
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name} must be one of {[str(o) for o in options]}, got {render(value)}")
    return value


def is_from_package(value: object, package: str, name: str) -> bool:
    """Whether a value, or a class, is of a class of that name, without importing its package."""
    kind = value if isinstance(value, type) else type(value)
    return any(c.__name__ == name and c.__module__.startswith(package) for c in kind.__mro__)


def is_array(leaf: object) -> TypeGuard[jax.Array]:
    """Whether a leaf of a tree is an array, whatever library's, or the shape of one."""
    return all(getattr(leaf, name, None) is not None for name in ("dtype", "shape"))
