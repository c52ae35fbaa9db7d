"""The console of the commands that show tables and bars."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from dpjax.cli.texts import show_plainly


class PlainConsole(Console):
    """A console whose texts and cells are shown plainly, and are no markup."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False)

    def render_str(self, text: str, **of_rich: object) -> Text:
        """A text as rich renders it, without what a terminal would obey."""
        return super().render_str(show_plainly(text), **of_rich)  # pyrefly: ignore
