"""Tholeti and Kalyani 2021: differentially private perturbed gradient descent."""

from experiments.tholeti2021.figures import figure2, theorem1, theorem2

TARGETS = {"figure2": figure2, "theorem1": theorem1, "theorem2": theorem2}
