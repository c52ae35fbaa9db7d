"""One release whose profile is known in closed form, and its Rényi curve."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array

from dpjax._numerics.arrays import namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.mechanisms.users import unwrapped
from dpjax.accounting.method import Method, ask, asked
from dpjax.accounting.pairs.table import RELEASES

_UP = 1.0 + 1e-12  # values
_ULPS = 1.0 + 1e-14  # what is asked at, a few units of roundoff off


def _has(part: str) -> Any:
    def able(run: Mechanism, adjacency: Adjacency) -> bool:
        release = RELEASES.get(type(run))
        return hasattr(release, part) and release.numbers(run, adjacency) is not None  # pyrefly: ignore

    return able


def _ask_release(part: str, run: Mechanism, adjacency: Adjacency, given: Array) -> Array:
    # A user's records in a release of a closed form are the same release at other numbers.
    run = unwrapped(run)
    release = RELEASES[type(run)]
    return getattr(release, part)(*release.numbers(run, adjacency), given)  # pyrefly: ignore


def _epsilon(run: Mechanism, adjacency: Adjacency, delta: Array) -> Array:
    xp: Any = namespace(run, delta)
    # A unit of roundoff of δ may be many of a small ε.
    value = _ask_release("epsilon", run, adjacency, delta * (1 - 1e-14))
    return xp.maximum(value * _UP, 0.0)


def _lower(run: Mechanism, adjacency: Adjacency, delta: Array) -> Array:
    xp: Any = namespace(run, delta)
    value = _ask_release("epsilon", run, adjacency, xp.minimum(delta * (1 + 1e-13), 1.0))
    return xp.maximum(value / _UP, 0.0)


def _epsilon_lower(run: Mechanism, delta: Any, adjacency: Adjacency) -> Any:
    """Of the release's own pair, where some neighbours attain it: the profile is exact."""
    found = asked(_lower, "down")(run, delta, adjacency)
    return found if RELEASES[type(unwrapped(run))].tight else namespace(found).zeros_like(found)


def _delta(run: Mechanism, adjacency: Adjacency, epsilon: Array) -> Array:
    xp: Any = namespace(run, epsilon)
    value = _ask_release("delta", run, adjacency, xp.minimum(epsilon, 1e300) / _ULPS)
    return xp.clip(value * _UP, 0.0, 1.0)


def _divergence(run: Mechanism, adjacency: Adjacency, orders: Array) -> Array:
    xp: Any = namespace(run, orders)
    good = (orders > 1) & (orders < xp.inf)
    value = _ask_release("divergence", run, adjacency, xp.where(good, orders, 2.0))
    value = value * (1 + 1e-9) + xp.where(value > 0, 1e-15, 0.0)
    # Beyond what any conversion can use, and NaN.
    return xp.where(good & (value < 1e200), value, xp.inf)


def curve(run: Mechanism, orders: Any, adjacency: Adjacency) -> Any:
    """The Rényi curve of one release, shape S + [k]."""
    return ask(_divergence, run, adjacency, orders, ndims=(1,))


has_curve = _has("divergence")

METHODS = (
    Method(
        "closed_form",
        rank=4.0,
        tight=True,
        supports=_has("epsilon"),
        epsilon=asked(_epsilon),
        delta=asked(_delta),
        epsilon_lower=_epsilon_lower,
        describe="the exact profile of one release",
    ),
)
