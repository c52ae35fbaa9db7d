"""The category of dpjax's own warnings, which tells them from those of the libraries below it."""

from __future__ import annotations


class DpjaxWarning(UserWarning):
    """Something that dpjax was asked for is allowed, and probably not meant."""


class OldNameWarning(DpjaxWarning, DeprecationWarning):
    """An argument was given by the name that it had before."""
