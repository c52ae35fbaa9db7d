"""Runs that are dominated by Gaussian pairs and their mixtures."""
