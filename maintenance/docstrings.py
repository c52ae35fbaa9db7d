"""Extension of the documentation's build: the sections of our docstrings, as Griffe knows them."""

from __future__ import annotations

import re
from typing import Any

import griffe

from maintenance.pages import fenced

_NAMES = {"Example": "Examples", "Fields": "Attributes"}
_SECTION = re.compile(r"^(Example|Fields):$", re.M)


class Sections(griffe.Extension):
    """Renames sections, and fences the examples that stand outside of them."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """As Griffe calls it for every module, class and function."""
        if not obj.is_alias and obj.docstring is not None:
            text = _SECTION.sub(lambda found: f"{_NAMES[found[1]]}:", obj.docstring.value)
            obj.docstring.value = fenced(text)
