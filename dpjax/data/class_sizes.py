"""How large a class must be for the noise of a table's look at the classes to show it."""

from __future__ import annotations

import math
from collections.abc import Callable

from dpjax.data.private_table import PrivateTable

_SIZES = 0.2, 0.05, 0.01  # shares of the records that are spoken of where they are hidden
_MARGIN = 2.0  # deviations above the threshold: such a class is seen with a probability of 97 %
_MOST_EPSILON, _MOST_RECORDS = 64.0, 2**32


def find_least_class(table: PrivateTable) -> int:
    """The number of records from which on a class is seen, but with a probability of 3 %."""
    stddev = table.target_stddev or table.stddev
    return table.class_threshold + math.ceil(_MARGIN * stddev)


def describe_seen(
    table: PrivateTable, epsilon: float, make: Callable[[float, int], PrivateTable]
) -> str:
    """Say from which number of records on a class is seen, and what a smaller one would take.

    Args:
        table: whose classes are found with noise.
        epsilon: the budget that it is a part of.
        make: from a budget and a number of records to the table that it would be.
    """
    least, records = find_least_class(table), table.records
    text = f"a class of at least {least:,} of the {records:,} records is seen"
    further = []
    for size in _SIZES:
        if size * records >= least:
            continue
        enough = _find_least(lambda e, s=size: _shows(make(e, records), s), epsilon, _MOST_EPSILON)
        count = _find_least(
            lambda n, s=size: _shows(make(epsilon, math.ceil(n)), s), records, _MOST_RECORDS
        )
        ways = [] if enough is None else [f"ε = {float(f'{enough:.2g}'):g}"]
        ways += [] if count is None else [f"{int(float(f'{count:.2g}')):,} records"]
        if ways:
            further.append(f"one of {size:.0%} of them from {' or '.join(ways)} on")
    return "; ".join([text, *further])


def _shows(table: PrivateTable, size: float) -> bool:
    return size * table.records >= find_least_class(table)


def _find_least(holds: Callable[[float], bool], low: float, high: float) -> float | None:
    """The least number from which on it holds, to 2 % and rounded up in its second digit."""
    above = low
    while not holds(above):  # more of either lowers the noise, in parts of the records
        low, above = above, 2 * above
        if low > high:
            return None
    while above > 1.02 * low:
        middle = math.sqrt(low * above)
        low, above = (low, middle) if holds(middle) else (middle, above)
    digit = 10.0 ** (math.floor(math.log10(above)) - 1)
    return math.ceil(above / digit) * digit
