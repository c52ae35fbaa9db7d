"""Public cells of a number whose range is declared, beside its line.

A range that is declared is public, and so is what follows from it alone: its eighths, and powers of
four of its width around the end or the inside that is nearest to 0, where amounts crowd. No record
is read, no ε is spent, and a record is in one cell, as of a released number (`private_table`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpjax.data.schema import Column

# Chosen in docs/decisions/private-tables.md.
_PARTS, _POWERS = 8, 4.0 ** -np.arange(2, 8)
# Below this many records times ε noise drowns the weights of cells, and the line stands alone.
_LEAST_SHARE = 300.0


def pays(records: int, epsilon: float) -> bool:
    """Whether a declared number has cells: of at least 300 records times ε.

    Example:
        >>> pays(1_000, 1.0), pays(1_000, 0.1)
        (True, False)
    """
    return records * epsilon >= _LEAST_SHARE


def divide(column: Column, line_weight: float) -> Column:
    """The column with cells of its range beside its line.

        low + (high − low) j/8 for j = 1, …, 7,   z ± (high − low) 4^{−k} for k = 2, …, 7,   z

    within the range, where z is the number of it that is nearest to 0; z alone is a cell where it
    is an end, as a zero of amounts is. Of a scale that is not linear it is the eighths of the
    scaled range: it says already where the numbers are. A range that is too narrow for a number to
    lie within has none.

    Args:
        column: a number with a range and without cuts.
        line_weight: as of `Column`.

    Guarantee:
        A function of what is declared.

    Example:
        >>> divide(Column("gain", range=(0.0, 1024.0)), 0.9).cuts[:5]
        (0.0, 0.0625, 0.25, 1.0, 4.0)
    """
    assert column.range is not None
    low, high = map(float, column.range)  # whole numbers of any size are declared too
    even = np.arange(1, _PARTS) / _PARTS
    if column.scale != "linear":
        first, last = column.scale_numbers(np.array([low, high]))
        scaled = first + (last - first) * even
        is_log = column.scale == "log"
        cuts = np.expm1(scaled) if is_log else column.centre + column.width * np.sinh(scaled)
    else:
        zero, width = min(max(0.0, low), high), high - low
        # A cell ends with its cut: that of the upper end alone begins behind the number before.
        own = np.nextafter(high, low) if zero == high else zero
        cuts = np.concatenate([low + width * even, zero + width * _POWERS, zero - width * _POWERS])
        cuts = np.append(cuts, own)
    cuts = np.unique(cuts[(low <= cuts) & (cuts < high)])
    if len(cuts) == 0:  # back from its scale all fell out of a range of a few roundings
        return column
    return replace(column, cuts=tuple(cuts.tolist()), line_weight=line_weight)
