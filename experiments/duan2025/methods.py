"""The rows of Tables II and III, the mechanisms with a proof beside them, and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from dpjax import gradients

CLIP_NORM = 0.1


class Method(NamedTuple):
    """How a step is made.

    Attributes:
        noise: "none", "gaussian" (DP-SGD), "geodp" (Algorithm 1 as published: no guarantee) or
            "recentred" (clipping around the previous release, G3).
        strategy: how per-example gradients are clipped.
        bounding_factor: GeoDP's β.
        average: whether a release is averaged with the ones before it, which costs no privacy.
        selective: "" or how the steps of a selective update are counted, "accepted" or "attempts".
        importance: sampling in proportion to the clipped norms of the last refresh.
    """

    noise: Literal["none", "gaussian", "geodp", "recentred"] = "gaussian"
    strategy: gradients.Strategy = gradients.Flat()
    bounding_factor: float = 1.0
    average: bool = False
    selective: Literal["", "accepted", "attempts"] = ""
    importance: bool = False

    @property
    def by_fit(self) -> bool:
        """Whether `dpjax.training.fit` can express it; the others go through `loop`."""
        return self.noise != "recentred" and not self.selective and not self.importance


class Setting(NamedTuple):
    """What is chosen for a method by accuracy on held-out rows.

    Attributes:
        rate: the learning rate. radius: G3's, over the clip norm. decay: weight of the releases
            before in an averaged one.
    """

    rate: float
    radius: float = 1.0
    decay: float = 0.0

    @property
    def words(self) -> str:
        parts = [f"rate {self.rate:g}"]
        parts += [f"radius {self.radius:g}C"] if self.radius != 1.0 else []
        parts += [f"decay {self.decay:g}"] if self.decay else []
        return ", ".join(parts)


_AUTO_S, _PSAC = gradients.Automatic(), gradients.PerSampleAdaptive()
_FREE, _G3, _SHRUNK = "noise-free, clipped", "G3", "averaged DP"
_BASES = {"DP": Method()} | {
    f"GeoDP β={beta:g}": Method("geodp", bounding_factor=beta) for beta in (0.1, 0.5, 1.0)
}
_ADDED: dict[str, dict[str, Any]] = {
    "": {},
    "+IS": {"importance": True},
    "+SUR": {"selective": "accepted"},
    "+SUR by attempts": {"selective": "attempts"},
    "+AUTO-S": {"strategy": _AUTO_S},
    "+PSAC": {"strategy": _PSAC},
    "+SUR+PSAC": {"selective": "accepted", "strategy": _PSAC},
    "+SUR+PSAC by attempts": {"selective": "attempts", "strategy": _PSAC},
}
METHODS: Mapping[str, Method] = {
    _FREE: Method("none"),
    **{
        # "GeoDP+IS β=0.1", as the paper writes it.
        " ".join([base.split(" ")[0] + added, *base.split(" ")[1:]]): method._replace(**options)
        for base, method in _BASES.items()
        for added, options in _ADDED.items()
    },
    _SHRUNK: Method(average=True),
    _G3: Method("recentred"),
}
