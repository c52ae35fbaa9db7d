"""Sentences with a label, on a screen of any width, with colour where it is wanted."""

from __future__ import annotations

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
