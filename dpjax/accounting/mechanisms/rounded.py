"""What a release costs a user of several records: its numbers times theirs, rounded either way."""

from __future__ import annotations

import numpy as np

from dpjax._numerics.arrays import Numbers, namespace
from dpjax.accounting.mechanisms.base import (
    Field,
    Kind,
    Real,
    build,
)


def _eps(value: Real) -> float:
    """The unit roundoff that a value is computed with: a trace's own, or float64's."""
    return float(np.finfo(getattr(value, "dtype", np.float64)).eps)


def _more(value: Real, times: Real) -> Numbers:
    """A product rounded up, and exact for a user of one record."""
    xp = namespace(value, times)
    found = value * times  # a product is off by half a unit
    return xp.where(times == 1, value, found * (1 + _eps(found)))


def _less(value: Real, times: Real) -> Numbers:
    """A quotient rounded down, and exact for a user of one record."""
    xp = namespace(value, times)
    found = value / times  # a quotient likewise
    return xp.where(times == 1, value, found * (1 - _eps(found)))


def _changed(step: Kind, **fields: Field) -> Kind:
    """The same kind of release with other numbers."""
    return build(type(step), {**vars(step), **fields})
