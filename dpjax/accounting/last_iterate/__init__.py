"""Runs of which only the last iterate is released."""
