"""What every mechanism is: a frozen pytree that knows its meaning and the range of its numbers.

Numeric fields are pytree leaves: numbers, arrays (a sweep: fields broadcast against each other) or
tracers. Values are checked when a mechanism is built by its constructor. JAX builds mechanisms too,
of placeholders, of gradients, of traced values: that way nothing is checked, and a query checks the
run that it is asked about (`validate`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, dataclass_transform

import jax
import numpy as np

from dpjax._argument_names import suggests_argument_names
from dpjax._numerics import checks
from dpjax._numerics.scope import is_traced, plain_rules
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.pairs.protocol import Release
from dpjax.accounting.typing import Mask
from dpjax.accounting.typing import Real as Real

TIERS = ("proven", "conditional", "none")  # strongest first
FIXED_IN_ADVANCE = (
    "every noise level, rate and number of steps was fixed before any output was seen"
)
FRESH_NOISE = "the noise is Gaussian, fresh at every step, and drawn independently of the data"

_UNDECLARED = (
    "{kind} costs no more than its class states, which declares neither its tier nor what it rests "
    "on"
)

Kind = TypeVar("Kind", bound="Mechanism")
_Class = TypeVar("_Class", bound="type[Mechanism]")
_REGISTRY: dict[str, type[Mechanism]] = {}  # by the name that certificates write


def number_field(
    low: float = 0.0,
    high: float = math.inf,
    *,
    open_low: bool = False,
    whole: bool = False,
    infinite: bool = False,
    components: bool = False,
    default: Any = dataclasses.MISSING,
) -> Any:
    """A numeric field: the numbers it may hold are said once, for the constructor and for traces.

    Args:
        low, high, open_low, whole, infinite: see `checks.Range`.
        components: whether its last axis belongs to one setting, as the weights of a mixture.
        default: as of a dataclass's field.
    """
    allowed = checks.Range(low, high, open_low, False, whole, infinite)
    return dataclasses.field(default=default, metadata={"range": allowed, "axes": int(components)})


def choice_field(*options: str, default: str) -> Any:
    """A field that is one of a few words."""
    return dataclasses.field(default=default, metadata={"options": options})


class FieldRelation(NamedTuple):
    """What must hold between fields, beyond each one's range.

    Fields:
        fields: their names, the one to blame first.
        holds: a mask over the settings.
        must: what the first must be, for the message.
        example: a value of all these fields (of an array of components: their sum) that holds.
    """

    fields: tuple[str, ...]
    holds: Mask
    must: str
    example: float = 1.0


class Mechanism:
    """A kind of release; a subclass says what leaves, what that rests on, and how firmly.

    `tier` is the kind's own: "proven" (nothing is assumed of the data or the loss beyond what the
    code enforces), "conditional" (convexity, smoothness, a guarantee taken on trust), or "none". A
    class that declares neither its tier nor what it rests on is conditional on its author's word.
    `released` says what leaves, with its fields in braces, and `rests_on` the assumptions, one
    sentence each, with {relation} for the adjacency. `release` is the pair of distributions that it
    is priced by where that is known: a `pairs.protocol.Release`.

    Example:
        >>> from dpjax import accounting as acc
        >>> isinstance(acc.Gaussian(1.0), Mechanism)
        True
    """

    tier: ClassVar[str] = "proven"
    release: ClassVar[Release | None] = None
    released: ClassVar[str] = ""
    rests_on: ClassVar[tuple[str, ...]] = ()
    _ranges: ClassVar[dict[str, checks.Range]] = {}
    component_axes: ClassVar[dict[str, int]] = {}
    _choices: ClassVar[dict[str, tuple[str, ...]]] = {}
    _flags: ClassVar[tuple[str, ...]] = ()
    _parts: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, *_: object, **__: object) -> Self:
        # What is inherited from another kind, such as its number of leaves, may not hold of it.
        if "_ranges" not in vars(cls):
            raise TypeError(
                f"{cls.__name__} must be made a mechanism by acc.register_mechanism, got a class "
                "that is not"
            )
        return object.__new__(cls)

    def __post_init__(self) -> None:
        kind = type(self).__name__
        for name, allowed in self._ranges.items():
            value = getattr(self, name)
            checked = checks.number(f"{kind}.{name}", value, allowed)
            if checked is not value:  # an array was made of a list, or a float of an integer
                keep(self, name, checked)
        for name, options in self._choices.items():
            checks.choice(f"{kind}.{name}", getattr(self, name), options)
        for name in self._flags:
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(f"{kind}.{name} must be True or False, got {checks.render(value)}")
        for name in self._parts:
            value = getattr(self, name)
            if not isinstance(value, Mechanism):
                raise TypeError(
                    f"{kind}.{name} must be a mechanism, such as Gaussian(1.1), "
                    f"got {checks.render(value)}"
                )
        arrays = any(type(getattr(self, name)) not in (int, float) for name in self._ranges)
        if arrays or any(self.component_axes.values()):
            _broadcast(self)
        with plain_rules() if arrays else contextlib.nullcontext():
            for relation in self.relations():
                if not isinstance(relation.holds, checks.Tracer) and not np.all(relation.holds):
                    name = relation.fields[0]
                    value = checks.render(getattr(self, name))
                    raise ValueError(f"{kind}.{name} must be {relation.must}, got {value}")

    def _values(self) -> tuple[Field, ...]:
        return tuple(getattr(self, f.name) for f in dataclasses.fields(self))  # pyrefly: ignore

    def __eq__(self, other: object) -> bool:
        """Whether both are of one kind, with the same numbers; arrays have the same entries."""
        if not isinstance(other, Mechanism) or type(other) is not type(self):
            return NotImplemented
        return all(map(_same, self._values(), other._values()))

    def __hash__(self) -> int:
        return hash(self._values())

    def parts(self) -> tuple[Mechanism, ...]:
        """The mechanisms this one is made of."""
        return tuple(getattr(self, name) for name in self._parts)

    def relations(self) -> tuple[FieldRelation, ...]:
        """What must hold between the fields, beyond each one's range."""
        return ()

    def for_group(self, records: Real) -> Mechanism | None:
        """What neighbours by so many records of a user meet, where that is a kind of release."""
        return None

    def own_steps(self) -> Real:
        """How many releases or steps of training this is, its parts' own not counted."""
        named = (name for name in ("steps", "groups", "batches") if name in self._ranges)
        return next((getattr(self, name) for name in named), 1.0)

    def has_several_releases(self) -> bool:
        """Whether more than one output is priced together, its parts' own not counted."""
        return bool(np.any(np.asarray(self.own_steps()) > 1))

    def describe(self) -> str:
        """What is released, in words."""
        fields = dataclasses.fields(self)  # pyrefly: ignore
        shown = {f.name: text(getattr(self, f.name)) for f in fields}
        listed = ", ".join(f"{name} = {value}" for name, value in shown.items())
        return self.released.format_map(shown) or f"{type(self).__name__} ({listed})"

    def assumptions(self, adjacency: Adjacency) -> tuple[str, ...]:
        """What this mechanism rests on, one sentence each; its parts' own are not repeated."""
        relation = Adjacency(adjacency).value
        return tuple(sentence.format(relation=relation) for sentence in self.rests_on)


# What a field may hold: a number, a word or a flag, a part or several.
Field = Real | str | bool | Mechanism | tuple[Mechanism, ...]
_NO_NUMBER = (str, Mechanism, tuple)


def _same(one: Field, other: Field) -> bool:
    if one is other:  # traced numbers and NaN too
        return True
    if isinstance(one, _NO_NUMBER) or isinstance(other, _NO_NUMBER):
        return type(one) is type(other) and bool(one == other)
    return np.array_equal(one, other) if np.shape(one) or np.shape(other) else bool(one == other)


def _broadcast(step: Mechanism) -> None:
    """Fields of one mechanism are one sweep, and those of components have as many each."""
    kind = type(step).__name__
    fronts, tails = {}, {}
    for name, axes in step.component_axes.items():
        shape = np.shape(getattr(step, name))
        if len(shape) < axes:
            value = checks.render(getattr(step, name))
            raise ValueError(f"{kind}.{name} must be an array of components, got {value}")
        fronts[name] = shape[: len(shape) - axes]
        if axes:
            tails[name] = shape[len(shape) - axes :]
    try:
        np.broadcast_shapes(*fronts.values())
        good = len(set(tails.values())) <= 1
    except ValueError:
        good = False
    if not good:
        shapes = {name: np.shape(getattr(step, name)) for name in step.component_axes}
        raise ValueError(f"the fields of {kind} must broadcast together, got shapes {shapes}")


@dataclass_transform(frozen_default=True, field_specifiers=(number_field, choice_field))
def register_mechanism(cls: _Class) -> _Class:
    """Make a class a mechanism: a frozen dataclass, a pytree, and known by name to certificates.

    Fields annotated `Mechanism` are parts, `bool` and `str` are static, all others are numbers:
    `number(…)` says of which range, without it any finite number.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.registered_mechanisms()["Gaussian"] is acc.Gaussian
        True
    """
    cls = dataclasses.dataclass(frozen=True, eq=False)(cls)  # pyrefly: ignore
    fields = dataclasses.fields(cls)  # pyrefly: ignore
    static = tuple(f.name for f in fields if f.type in ("bool", "str", bool, str))
    leaves = tuple(f.name for f in fields if f.name not in static)
    parts = tuple(f.name for f in fields if "Mechanism" in str(f.type))
    numbers = [f for f in fields if f.name in leaves and f.name not in parts]
    cls.release = vars(cls).get("release")  # what it would inherit may not hold of it
    if not isinstance(cls.release, Release | None):
        raise TypeError(
            f"{cls.__name__}.release must be an instance of a class made from "
            f"pairs.protocol.Release, got {type(cls.release).__name__}"
        )
    if not _declares_trust(cls):
        cls.tier = max(cls.tier, "conditional", key=TIERS.index)
        cls.rests_on = (*cls.rests_on, _UNDECLARED.format(kind=cls.__name__))
    cls._parts = tuple(f.name for f in fields if f.name in parts and "tuple" not in str(f.type))
    cls._ranges = {f.name: f.metadata.get("range", checks.Range()) for f in numbers}
    cls.component_axes = {f.name: f.metadata.get("axes", 0) for f in numbers}
    cls._flags = tuple(f.name for f in fields if f.type in ("bool", bool))
    cls._choices = {f.name: f.metadata["options"] for f in fields if "options" in f.metadata}

    def flatten(run: Mechanism) -> tuple:
        return [getattr(run, n) for n in leaves], tuple(getattr(run, n) for n in static)

    def with_keys(run: Mechanism) -> tuple:
        children, aux = flatten(run)
        keys = [jax.tree_util.GetAttrKey(n) for n in leaves]
        return list(zip(keys, children, strict=True)), aux

    def unflatten(aux: tuple, children: Sequence[Field]) -> Mechanism:
        fields = dict(zip(leaves, children, strict=True))
        fields.update(zip(static, aux, strict=True))
        return build(cls, fields)

    jax.tree_util.register_pytree_with_keys(cls, with_keys, unflatten, flatten)  # pyrefly: ignore
    _REGISTRY[cls.__name__] = suggests_argument_names(cls)
    return cls


def _declares_trust(cls: type) -> bool:
    """Whether a class says itself how firm its price is, or what it rests on.

    What it inherits from another kind of mechanism is said of that one.
    """
    for base in cls.__mro__:
        if base is not cls and "_ranges" in vars(base):  # a kind of its own, or all kinds' base
            return False
        if any(name in vars(base) for name in ("tier", "rests_on")):
            return True
    return False


def registered_mechanisms() -> dict[str, type[Mechanism]]:
    """Every kind of mechanism by name, as certificates write it.

    Example:
        >>> "PoissonSampled" in registered_mechanisms()
        True
    """
    return dict(_REGISTRY)


def build(kind: type[Kind], fields: Mapping[str, Field]) -> Kind:
    """A mechanism of these fields as they are, unchecked: for placeholders and traced values."""
    run = object.__new__(kind)
    for name, value in fields.items():
        keep(run, name, value)
    return run


def keep(run: Mechanism, name: str, value: Field) -> None:
    """Set a field of a frozen mechanism while it is being made."""
    object.__setattr__(run, name, value)


def map_axes(run: Kind) -> Kind:
    """The run with the number of axes of components in the place of every number."""
    found: dict[str, Field] = {f.name: getattr(run, f.name) for f in dataclasses.fields(run)}  # pyrefly: ignore
    for name, value in found.items():
        if isinstance(value, tuple):
            found[name] = tuple(map(map_axes, value))
        elif isinstance(value, Mechanism):
            found[name] = map_axes(value)
    return build(type(run), {**found, **run.component_axes})


def walk(run: Mechanism) -> Iterator[Mechanism]:
    """The mechanism and all it is made of, outermost first."""
    stack = [run]
    while stack:
        step = stack.pop()
        yield step
        stack.extend(reversed(step.parts()))  # depth first, without recursion: runs may nest deeply


# --- the meaning of a whole run -----------------------------------------------------------------


def all_assumptions(run: Mechanism, adjacency: Adjacency) -> tuple[str, ...]:
    """What a run rests on: the assumptions of everything it is made of, each once.

    The price of several releases composes mechanisms that are given: a later output may depend on
    earlier ones, a later noise level may not (it would need a filter: Rogers et al. 2016).
    """
    public = (
        "the number of records is public"
        if adjacency is Adjacency.REPLACE_ONE
        else "constants such as expected batch size and steps are public"
    )
    found = (sentence for step in walk(run) for sentence in step.assumptions(adjacency))
    fixed = (FIXED_IN_ADVANCE,) if any(s.has_several_releases() for s in walk(run)) else ()
    return tuple(dict.fromkeys((*found, *fixed, public)))


def weakest_tier(run: Mechanism) -> str:
    """The tier of a run: the weakest of everything it is made of."""
    return max((step.tier for step in walk(run)), key=TIERS.index)


def text(value: Real | str | bool | Mechanism) -> str:
    """A field's value in words: six digits of a number, the shape of a sweep."""
    if isinstance(value, Mechanism):
        return value.describe()
    if isinstance(value, str | bool):
        return str(value)
    if np.ndim(value) == 0 and not is_traced(value):
        value = float(value)
        return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
    return f"an array of shape {np.shape(value)}"
