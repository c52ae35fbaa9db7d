"""`python -m maintenance`: write what files take from one place.

`python -m maintenance house` counts what makes the package hard to read, see `house.py`.
"""

from __future__ import annotations

import functools
import pathlib
import sys

from maintenance import architecture, extension_points, house, links, measured, project


@functools.cache
def written() -> dict[pathlib.Path, str]:
    """Every file that holds something of this, and its text as it should be."""
    root = project.ROOT
    guide = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    guide = project.replaced(guide, "packages", architecture.mermaid())
    guide = project.replaced(guide, "extension points", extension_points.table())
    texts = {
        root / "CONTRIBUTING.md": links.absolute(guide),
        root / "CITATION.cff": links.citation(),
    }
    for name in ("README.md", "SECURITY.md"):
        texts[root / name] = links.absolute((root / name).read_text(encoding="utf-8"))
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        texts[path] = links.notebook(path)
    return texts | measured.pages()


def main() -> None:
    """Write the files that differ, and name them."""
    for path, text in written().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(project.ROOT)}")


if __name__ == "__main__":
    house.main(sys.argv[2:]) if sys.argv[1:2] == ["house"] else main()
