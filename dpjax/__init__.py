"""dpjax: differentially private training from pure JAX functions, priced exactly.

Submodules load on first use, so that pricing a mechanism never waits for the training libraries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what `__getattr__` loads later, for editors and type checkers
    from dpjax import accounting as accounting
    from dpjax import audit as audit
    from dpjax import correlation as correlation
    from dpjax import data as data
    from dpjax import effects as effects
    from dpjax import erm as erm
    from dpjax import estimators as estimators
    from dpjax import features as features
    from dpjax import gradients as gradients
    from dpjax import plotting as plotting
    from dpjax import sampling as sampling
    from dpjax import training as training
    from dpjax import transforms as transforms
    from dpjax.gradients import ClippedGradient as ClippedGradient
    from dpjax.gradients import clip_and_sum as clip_and_sum
    from dpjax.gradients import clipped_grad as clipped_grad
    from dpjax.gradients import explain_clipping as explain_clipping

__version__ = "0.1.0"

_PACKAGES = (
    "accounting",
    "audit",
    "correlation",
    "data",
    "effects",
    "erm",
    "estimators",
    "features",
    "gradients",
    "plotting",
    "sampling",
    "training",
    "transforms",
)
_DEFINED_IN = {  # names of the top, and where each is defined
    "ClippedGradient": "gradients",
    "clip_and_sum": "gradients",
    "clipped_grad": "gradients",
    "explain_clipping": "gradients",
}
__all__ = ["__version__", *_PACKAGES, *_DEFINED_IN]


def __getattr__(name: str):
    if name in _PACKAGES:
        return importlib.import_module(f"dpjax.{name}")  # an attribute from then on
    if name in _DEFINED_IN:
        return getattr(importlib.import_module(f"dpjax.{_DEFINED_IN[name]}"), name)
    raise AttributeError(f"module 'dpjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
