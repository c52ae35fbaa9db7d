"""Features that learn nothing from records, and therefore cost no ε."""

from dpjax.features.scattering import scattering

__all__ = ["scattering"]
