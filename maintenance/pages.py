"""Hooks of the documentation's build: examples as typed at a prompt, and addresses of before."""

from __future__ import annotations

import pathlib
import re
from typing import Any

# Pages that are part of another page now, and where.
MOVED = {
    "accounting-families": "accounting-bounds.html#hidden-state-only-the-last-iterate-leaves",
    "audit": "pitfalls.html#audits-does-the-code-keep-the-promise",
    "correlated-noise": "noise.html#correlated-noise",
    "install": "index.html#install",
    "recipes": "index.html#a-model-of-your-own",
    "transforms": "clipping.html#a-chain",
}

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


def on_post_build(config: Any, **_: object) -> None:
    """As MkDocs calls it at the end: the address of a page that moved leads to where it is now."""
    for name, target in MOVED.items():
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={target}">'
        (pathlib.Path(config["site_dir"]) / f"{name}.html").write_text(page, encoding="utf-8")
