"""Noise in balls and on angles."""
