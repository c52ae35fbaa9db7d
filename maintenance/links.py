"""Links that work wherever a page is shown, and the badge and install cell of every notebook."""

from __future__ import annotations

import json
import pathlib
import re

from maintenance import project

_LINK = re.compile(r"(\]\()([^)\s#]*)(#[^)\s]*)?(\))")
_PICTURES = (".png", ".svg", ".jpg")
_BADGE = re.compile(r"\[!\[Open in Colab\].*")
_COLAB = "https://colab.research.google.com"


def absolute(text: str) -> str:
    """A page of the root folder whose links to files of the repository name their address.

    An address of before, `https://…/blob/main/PATH`, is brought up to date where PATH exists.
    """

    def whole(found: re.Match) -> str:
        target, part = found[2], found[3] or ""
        path = re.sub(r"^https?://\S+?/(?:blob|raw)/main/", "", target)
        if not path or not (project.ROOT / path).exists():
            return found[0]
        kind = "raw" if path.endswith(_PICTURES) else "blob"
        return f"{found[1]}{project.address()}/{kind}/main/{path}{part}{found[4]}"

    return _LINK.sub(whole, text)


def badge(name: str) -> str:
    """The line that opens a notebook of `notebooks/` in Colab."""
    where = f"{_COLAB}/github/{project.owner_and_name()}/blob/main/notebooks/{name}"
    return f"[![Open in Colab]({_COLAB}/assets/colab-badge.svg)]({where})"


def install_cell() -> str:
    """The first code of a notebook. What Colab brings stays as it is: jax, flax and their plugin.

    pip replaces no package that is listed as a constraint, and fails by name if dpjax needs another
    version of one.
    """
    name = project.stated()["name"]
    return f"""\
# Installs {name} in Colab, whose own packages stay as they are; elsewhere this cell does nothing.
import sys

if "google.colab" in sys.modules:
    !pip list --format=freeze --disable-pip-version-check > installed.txt
    !pip install -q -c installed.txt '{name}[all] @ git+{project.address()}'"""


def notebook(path: pathlib.Path) -> str:
    """The text of a notebook with its badge and its install cell as they should be."""
    content = json.loads(path.read_text(encoding="utf-8"))
    opening, first = content["cells"][0], content["cells"][1]
    text = "".join(opening["source"])
    if not _BADGE.search(text) or first["cell_type"] != "code":
        raise ValueError(f"{path.name} must open with a badge and the install cell, got neither")
    opening["source"] = _BADGE.sub(lambda _: badge(path.name), text).splitlines(keepends=True)
    first["source"] = install_cell().splitlines(keepends=True)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def citation() -> str:
    """CITATION.cff, from the facts of the project."""
    stated = project.stated()
    return f"""\
cff-version: 1.2.0
message: If dpjax helps your work, please cite it, and the paper of the bound that you used.
type: software
title: "{stated["name"]}: {stated["description"].rstrip(".")}"
authors:
  - name: {stated["authors"][0]["name"]}
version: {stated["version"]}
license: {stated["license"]}
repository-code: {project.address()}
keywords:
{chr(10).join(f"  - {word}" for word in stated["keywords"])}
"""
