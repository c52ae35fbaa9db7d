"""Libraries outside the core come with an extra of dpjax; a missing one says which."""

from __future__ import annotations


class extra:
    """Imports in this block belong to an extra: where one fails, the error names the extra.

    Example:
        >>> with extra("data"):
        ...     import no_such_library
        Traceback (most recent call last):
        ...
        ImportError: No module named 'no_such_library'; install it with: pip install "dpjax[data]"
    """

    def __init__(self, name: str):
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ImportError):  # any other error passes as it is
            advice = f'install it with: pip install "dpjax[{self._name}]"'
            raise ImportError(f"{error}; {advice}", name=error.name) from error
