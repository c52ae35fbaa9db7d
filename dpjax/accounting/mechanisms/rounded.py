"""What a release costs a user of several records: its numbers times theirs, rounded either way."""

from __future__ import annotations

import numpy as np

from dpjax._numerics.arrays import Numbers, namespace
from dpjax.accounting.mechanisms.base import Field, Kind, Real, build


def unit_roundoff(value: Real) -> float:
    """The unit roundoff that a value is computed with: a trace's own, or float64's."""
    return float(np.finfo(getattr(value, "dtype", np.float64)).eps)


def times_up(value: Real, times: Real) -> Numbers:
    """A product rounded up, and exact for a user of one record."""
    xp = namespace(value, times)
    found = value * times  # a product is off by half a unit
    return xp.where(times == 1, value, found * (1 + unit_roundoff(found)))


def over_down(value: Real, times: Real) -> Numbers:
    """A quotient rounded down, and exact for a user of one record."""
    xp = namespace(value, times)
    found = value / times  # a quotient likewise
    return xp.where(times == 1, value, found * (1 - unit_roundoff(found)))


def with_fields(step: Kind, **fields: Field) -> Kind:
    """The same kind of release with other numbers."""
    return build(type(step), {**vars(step), **fields})
