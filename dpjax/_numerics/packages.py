"""Classes of libraries that need not be installed, told by their names."""

from __future__ import annotations

from typing import Any


def is_from_package(value: Any, package: str, name: str) -> bool:
    """Whether a value, or a class, is of a class of that name, without importing its package."""
    kind = value if isinstance(value, type) else type(value)
    return any(c.__name__ == name and c.__module__.startswith(package) for c in kind.__mro__)
