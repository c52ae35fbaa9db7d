"""Numerical ground that knows nothing of privacy: the float64 scope and safe random numbers."""
