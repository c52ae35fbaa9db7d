"""Pictures of training runs and of privacy guarantees."""

from dpjax.plotting.training import plot_training

__all__ = ["plot_training"]
