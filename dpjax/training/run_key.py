"""The key of a run: the one that was given, a fresh one, or the one that it began with."""

from __future__ import annotations

import pathlib
import warnings

import jax
import numpy as np
from jax.sharding import Mesh

from dpjax._numerics.normal import fresh_key
from dpjax._numerics.typing import PRNGKey
from dpjax._numerics.warning import DpjaxWarning
from dpjax.training import devices, options


def choose_key(key: PRNGKey | None, process_mesh: Mesh | None = None) -> PRNGKey:
    """The key that was given, or a fresh one; that of the leader on all processes."""
    options.check_key(key)
    key = fresh_key() if key is None else key
    return key if process_mesh is None else devices.broadcast_key(process_mesh, key)


def is_used(given: PRNGKey | None, key: PRNGKey, folder: str | pathlib.Path | None) -> bool:
    """Whether a run's key was given by hand; a warning where it began with another than that."""
    if given is None:
        return False
    same = jax.random.key_impl(given) == jax.random.key_impl(key) and np.array_equal(
        jax.random.key_data(given), jax.random.key_data(key)
    )
    if not same:
        warnings.warn(
            f"key is not used: the run in {folder} goes on with the key that it began with, which "
            "is stored there; leave key out where resume=True, or choose another folder for a run "
            "with this one",
            DpjaxWarning,
            stacklevel=5,  # the caller of `fit`, whose decorator stands between
        )
    return same
