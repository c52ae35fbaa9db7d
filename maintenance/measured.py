"""Tables that pages of `docs/` show and that were measured elsewhere: experiments and benchmarks.

A page marks the place, `<!-- from FILE # HEADING -->` … `<!-- /from -->`; the tables under that
heading of the file (or above its first heading of this level, where none is named) are written
between the marks, with what they were measured on.
"""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Callable

from maintenance import project

_PLACE = re.compile(r"(<!-- from (\S+?\.md)(?: # (.+?))? -->\n).*?(<!-- /from -->)", re.S)
_MACHINE = re.compile(r"^<!-- (?:\w+: )?(.*jax .*) -->$", re.M)


def section(text: str, heading: str | None) -> str:
    """The part of a page under `## heading`, or what stands above its first `##`.

    Raises:
        ValueError: a page without that heading.

    Example:
        >>> section("a\\n## One\\nb\\n## Two\\nc", "One")
        'b'
    """
    opening, *parts = re.split(r"^## ", text, flags=re.M)
    if heading is None:
        return opening.strip()
    for part in parts:
        name, _, rest = part.partition("\n")
        if name.strip() == heading:
            return rest.strip()
    raise ValueError(f"heading must be one of the page's, got {heading!r}")


def tables(text: str) -> str:
    """The tables of a text, and in italics what they were measured on.

    Raises:
        ValueError: a text without a table.

    Example:
        >>> tables("words\\n| a |\\n|---|\\n| 1 |\\nwords\\n<!-- x: jax 0.7 -->")
        '| a |\\n|---|\\n| 1 |\\n\\n*Measured on: jax 0.7.*'
    """
    found = re.findall(r"(?:^\|.*$\n?)+", text, re.M)
    if not found:
        raise ValueError(f"text must hold a table, got {text[:60]!r}")
    parts = [table.strip() for table in found]
    parts += [f"*Measured on: {machine}.*" for machine in _MACHINE.findall(text)]
    return "\n\n".join(parts)


def page(text: str) -> str:
    """The text of a page with its marked places filled from the files that they name.

    A file that is not there (a distribution of the source holds no results) leaves them as they
    are.
    """

    def filled(found: re.Match) -> str:
        file = project.ROOT / found[2]
        if not file.exists():
            return found[0]
        content = tables(section(file.read_text(encoding="utf-8"), found[3]))
        return f"{found[1]}\n{content}\n\n{found[4]}"

    return _PLACE.sub(filled, text)


def pages() -> dict[pathlib.Path, Callable[[], str]]:
    """Every page of `docs/` with such a place, and what makes its text as it should be."""
    texts = {
        file: file.read_text(encoding="utf-8")
        for file in sorted((project.ROOT / "docs").rglob("*.md"))
    }
    return {
        file: functools.partial(page, text) for file, text in texts.items() if _PLACE.search(text)
    }
