"""Features that learn nothing from records, and therefore cost no ε."""

from dpjax.features.wavelets import scattering

__all__ = ["scattering"]
