"""Where a run keeps its key, its notes and its state; and the store of one that keeps nothing."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

from dpjax._numerics.namespace import AnyTree
from dpjax._numerics.typing import PRNGKey


class RunStore(abc.ABC):
    """Where a run keeps its key, its notes and its state."""

    @abc.abstractmethod
    def bind(
        self, fresh: PRNGKey, identity: Callable[[PRNGKey], Mapping[str, Any]], *, resume: bool
    ) -> PRNGKey:
        """The run's key: the stored one when resuming, else `fresh`."""

    @abc.abstractmethod
    def noted(self, what: str, now: bool) -> bool:
        """Whether this holds now or held in an earlier session of the run."""

    @abc.abstractmethod
    def save(self, step: int, state: AnyTree) -> None:
        """Save a state; returns once it is whole."""

    @abc.abstractmethod
    def latest(self, like: AnyTree) -> tuple[int, AnyTree] | None:
        """The newest whole (step, state), placed as `like`; or None."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let another run use the place."""


class NoFolder(RunStore):
    """The store of a run without a folder, which keeps nothing."""

    def bind(
        self, fresh: PRNGKey, identity: Callable[[PRNGKey], Mapping[str, Any]], *, resume: bool
    ) -> PRNGKey:
        return fresh

    def noted(self, what: str, now: bool) -> bool:
        return now

    def save(self, step: int, state: AnyTree) -> None:
        pass

    def latest(self, like: AnyTree) -> tuple[int, AnyTree] | None:
        return None

    def close(self) -> None:
        pass
