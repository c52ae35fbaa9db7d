"""The facts that pyproject.toml states, and nothing else does."""

from __future__ import annotations

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]


def stated() -> dict:
    """The `[project]` table."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def address() -> str:
    """Where the repository is, without a slash at the end."""
    return stated()["urls"]["Repository"]


def owner_and_name() -> str:
    """The last two parts of the address, as Colab wants them."""
    return "/".join(address().split("/")[-2:])


def replaced(text: str, name: str, new: str) -> str:
    """The text with what stands between `<!-- name -->` and `<!-- /name -->` replaced."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
    if len(re.findall(pattern, text, re.S)) != 1:
        raise ValueError(f"the text must hold one pair of marks {name!r}, got another number")
    return re.sub(pattern, lambda found: f"{found[1]}{new}\n{found[2]}", text, flags=re.S)
