"""Are a run's numbers allowed? Refused where they are concrete, masked where they are traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpjax._numerics import checks
from dpjax._numerics.scope import is_traced, plain_rules
from dpjax.accounting.mechanisms.base import Kind, Mechanism, build, walk
from dpjax.accounting.typing import Real as Real


def validate(run: Mechanism) -> None:
    """Check everything a run is made of, as its constructors would.

    Raises:
        TypeError, ValueError: naming the field, its value and what is allowed.
    """
    if not isinstance(run, Mechanism):
        raise TypeError(f"run must be a mechanism, such as Gaussian(1.1), got {checks.render(run)}")
    for step in walk(run):
        step.__post_init__()
    check_broadcast(run)


def check_broadcast(run: Mechanism, **given: Real) -> None:
    """Refuse fields and arguments whose sweeps do not broadcast against each other.

    Raises:
        ValueError: naming the shapes.
    """
    shapes = {np.shape(value) for value in given.values()}
    for step in walk(run):
        for name, axes in step.component_axes.items():
            value = getattr(step, name)
            if type(value) is not float:  # a float broadcasts with anything
                shape = np.shape(value)
                shapes.add(shape[: len(shape) - axes])
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        names = " and ".join(["run", *given])
        raise ValueError(f"{names} must broadcast together, got shapes {sorted(shapes)}") from None


def _traced_fields(step: Mechanism) -> Iterator[tuple[str, Array]]:
    """Names of traced numbers, and where they are in their range."""
    for name, allowed in step._ranges.items():
        if is_traced(getattr(step, name)):
            yield name, allowed.holds(getattr(step, name))


def invalid(run: Mechanism) -> Array | bool:
    """Which settings of a traced run have a number that no constructor would take.

    Their price is +inf: a trace cannot raise. What is not traced has been checked.
    """
    bad: Array | bool = False
    with plain_rules():
        for step in walk(run):
            for name, good in _traced_fields(step):
                bad = bad | ~jnp.all(good, axis=tuple(range(-step.component_axes[name], 0)))
            for relation in step.relations():
                if is_traced(relation.holds):
                    bad = bad | ~jnp.asarray(relation.holds)
    return bad


def replace_invalid(run: Kind) -> Kind:
    """The run with an allowed number wherever `invalid` finds a traced one that is not.

    The bounds are asked about this run, so that no loop or callback meets a NaN.
    """
    if not is_traced(run):
        return run
    values = {f.name: getattr(run, f.name) for f in dataclasses.fields(run)}  # pyrefly: ignore
    with plain_rules():
        for name, good in _traced_fields(run):
            values[name] = jnp.where(good, values[name], run._ranges[name].example())
        for relation in build(type(run), values).relations():  # asked of the mended ranges
            for name in relation.fields if is_traced(relation.holds) else ():
                value, good = jnp.asarray(values[name]), relation.holds
                if run.component_axes[name]:
                    shares = relation.example / value.shape[-1]
                    values[name] = jnp.where(good[..., None], value, shares)
                else:
                    values[name] = jnp.where(good, value, relation.example)
    for name, value in values.items():
        if isinstance(value, Mechanism):
            values[name] = replace_invalid(value)
        elif isinstance(value, tuple):
            values[name] = tuple(replace_invalid(part) for part in value)
    return build(type(run), values)
