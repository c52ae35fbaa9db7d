"""Pictures of training runs and of privacy guarantees."""

from dpjax._extras import extra

with extra("plot"):
    import matplotlib  # noqa: F401

from dpjax.plotting.pictures import (
    plot_attack,
    plot_privacy,
    plot_sweep,
    plot_training,
    reference_line,
    style,
)

__all__ = ["plot_attack", "plot_privacy", "plot_sweep", "plot_training", "reference_line", "style"]
