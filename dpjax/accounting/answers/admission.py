"""What a query is asked with: checked where it is concrete, priced as +inf where it is traced."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax._numerics import checks
from dpjax._numerics.scope import is_traced, plain_rules
from dpjax.accounting.mechanisms.checked import admit, invalid, repaired, together
from dpjax.accounting.mechanisms.users import unwrapped

PROBABILITY = checks.Range(0.0, 1.0, open_low=True, open_high=True)
RATES = checks.Range(0.0, 1.0)
EPSILONS = checks.Range(0.0, infinite=True)
ORDERS = checks.Range(infinite=True)


def admitted(run: Any, name: str, given: Any, allowed: checks.Range) -> tuple[Any, Any, Any]:
    """The run and the argument to ask the methods about, and which settings `settled` overrules.

    A trace cannot raise: what a constructor would refuse is replaced by a number that the methods
    can answer, and marked.

    Raises:
        TypeError, ValueError: naming the argument or field.
    """
    admit(run)
    given = checks.number(name, given, allowed)
    if np.ndim(given) and allowed not in (ORDERS, RATES):
        together(run, **{name: given})
    if not is_traced(run, given):
        return unwrapped(run), given, False
    bad = invalid(run)
    if is_traced(given):
        with plain_rules():
            good = allowed.holds(given)
            given = jnp.where(good, given, allowed.example())
            # Of a list of orders or rates each is its own answer.
            bad = jnp.expand_dims(bad, -1) | ~good if allowed in (ORDERS, RATES) else bad | ~good
    elif allowed in (ORDERS, RATES):
        bad = jnp.expand_dims(bad, -1)
    return unwrapped(repaired(run)), given, bad


def settled(answer: Any, bad: Any, worst: float) -> Any:
    """The answer, and the worst one where the question was none."""
    if bad is False:
        return answer
    with plain_rules():
        return jnp.where(bad, worst, answer)
