"""Numbers as they are shown: in few digits, and upper bounds still where they are bounds."""

from __future__ import annotations

import decimal
import math


def format_rounded_up(value: float, digits: int = 6) -> str:
    """A number at so many digits, rounded up: what is read of an upper bound is one too.

    Example:
        >>> [format_rounded_up(x) for x in (3.0000004, 0.1234561, 0.1, math.inf)]
        ['3.00001', '0.123457', '0.1', 'inf']
        >>> format_rounded_up(1.2341, 4), format_rounded_up(1e-5)
        ('1.235', '1e-05')
    """
    if not 0 < value < math.inf:
        return f"{value:g}"
    # The shortest text that is read as this number, not its binary digits: 0.1 is 0.1.
    up = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{float(up.create_decimal(repr(float(value)))):.{digits}g}"


def format_plain(value: float, digits: int) -> str:
    """A number at so many digits, without an exponent where it is neither large nor small.

    Example:
        >>> format_plain(3057.4, 4), format_plain(1733.2, 2), format_plain(0.01234, 2)
        ('3,057', '1,700', '0.012')
        >>> format_plain(1.5e12, 2), format_plain(0.0, 2)
        ('1.5e+12', '0')
    """
    rounded = float(f"{value:.{digits}g}")
    if not 1e-4 <= abs(rounded) < 1e7:
        return f"{value:.{digits}g}"
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(decimals, 0)}f}"
