"""Hook of the documentation's build: examples as typed at a prompt, and what a search prefers."""

from __future__ import annotations

import re
from typing import Any

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


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """As MkDocs calls it for every page.

    A search shows what answers a reader before the reference, the papers and the decisions, which
    are in folders.
    """
    if "/" in page.file.src_uri:
        page.meta["search"] = {"boost": 0.2}
    return fenced(markdown)
