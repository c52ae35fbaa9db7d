"""`python -m maintenance`: write what files take from one place.

`python -m maintenance house` counts what makes the package hard to read, see `house.py`.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from collections.abc import Callable

from maintenance import architecture, extension_points, house, links, measured, project


def guide() -> str:
    """CONTRIBUTING.md with the picture of the packages and the table of what extends them."""
    text = (project.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = project.replaced(text, "packages", architecture.mermaid())
    return links.absolute(project.replaced(text, "extension points", extension_points.table()))


def linked(name: str) -> str:
    """A page of the root with links that work from anywhere."""
    return links.absolute((project.ROOT / name).read_text(encoding="utf-8"))


def written() -> dict[pathlib.Path, Callable[[], str]]:
    """Every file that holds something of this, and what makes its text as it should be."""
    root = project.ROOT
    texts: dict[pathlib.Path, Callable[[], str]] = {
        root / "CONTRIBUTING.md": guide,
        root / "CITATION.cff": links.citation,
    }
    for name in ("README.md", "SECURITY.md"):
        texts[root / name] = functools.partial(linked, name)
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        texts[path] = functools.partial(links.notebook, path)
    return texts | measured.pages()


def main() -> None:
    """Write the files that differ, and name them."""
    for path, make in written().items():
        text = make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(project.ROOT)}")


if __name__ == "__main__":
    house.main(sys.argv[2:]) if sys.argv[1:2] == ["house"] else main()
