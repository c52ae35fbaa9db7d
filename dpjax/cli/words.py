"""Words and numbers on a screen: sentences with a label, at any width, and upper bounds."""

from __future__ import annotations

import decimal
import math
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDEST = 100  # longer lines are hard to read
_COLOURS = {
    "Protected": "green",
    "Against": "green",
    "How well": "green",
    "Only if": "yellow",
    "Not covered": "yellow",
    "REFUSED": "red",
}


def rounded_up(value: float) -> str:
    """A positive number at six digits, rounded up: what is shown of an upper bound is one too.

    Example:
        >>> rounded_up(3.0000004), rounded_up(0.1234561), rounded_up(0.5), rounded_up(math.inf)
        ('3.00001', '0.123457', '0.5', 'inf')
    """
    if not 0 < value < math.inf:
        return f"{value:g}"
    up = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING).create_decimal(value)
    return f"{float(up):.6g}"


def show_labelled(console: Console, text: str) -> None:
    """Print lines `Label: a sentence.` wrapped under their label; the console knows of colours.

    Example:
        >>> from rich.console import Console
        >>> show_labelled(Console(width=24), "Against: whoever sees what was released.")
        Against: whoever sees
          what was released.
    """
    from rich.text import Text

    width = max(min(console.width, WIDEST), 20)
    for line in text.split("\n"):
        label, colon, _ = line.partition(": ")
        style = f"bold {_COLOURS.get(label, '')}".strip()
        wrapped = textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False) or [""]
        for number, part in enumerate(wrapped):
            shown = Text(part)
            if colon and number == 0:
                shown.stylize(style, 0, min(len(label) + 1, len(part)))
            console.print(shown, soft_wrap=True, highlight=False)
