"""Pictures of privacy guarantees, of training runs and of models, all drawn in one style."""

from dpjax._extras import extra

with extra("plot"):
    import matplotlib as matplotlib  # every file of the package draws with it

from dpjax.plotting.effects import plot_effects
from dpjax.plotting.look import reference_line, style
from dpjax.plotting.pictures import (
    plot_attack,
    plot_bounds,
    plot_privacy,
    plot_sweep,
    plot_training,
)

__all__ = [
    "plot_attack",
    "plot_bounds",
    "plot_effects",
    "plot_privacy",
    "plot_sweep",
    "plot_training",
    "reference_line",
    "style",
]
