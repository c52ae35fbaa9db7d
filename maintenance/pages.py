"""Hook of the documentation's build: examples as typed at a prompt."""

from __future__ import annotations

import re

# From a line that starts with >>> to the next empty one, outside of fences.
_BLOCK = re.compile(r"^>>> .*(?:\n(?!\n|```).+)*", re.M)
_PROMPTED = re.compile(r"^```python(?=\n>>> )")
_FENCES = re.compile(r"(^```.*?^```$)", re.M | re.S)


def fenced(text: str) -> str:
    """The text with a fence around every example that has none, and prompts told from code.

    Example:
        >>> fenced("a\\n\\n>>> 1\\n1\\n\\nb")
        'a\\n\\n```pycon\\n>>> 1\\n1\\n```\\n\\nb'
    """
    parts = _FENCES.split(text)
    return "".join(
        _PROMPTED.sub("```pycon", part)
        if part.startswith("```")
        else _BLOCK.sub(lambda f: f"```pycon\n{f[0]}\n```", part)
        for part in parts
    )


def on_page_markdown(markdown: str, **_: object) -> str:
    """As MkDocs calls it for every page."""
    return fenced(markdown)
