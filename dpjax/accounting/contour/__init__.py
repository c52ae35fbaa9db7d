"""Tight answers by contour integration."""
