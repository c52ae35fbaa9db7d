"""Rényi curves and their conversion."""
