"""Tholeti and Kalyani 2021: on the differentially private nature of perturbed gradient descent."""

from experiments.tholeti2021.privacy import figure2, saddle, theorem1

TARGETS = {"figure2": figure2, "theorem1": theorem1, "saddle": saddle}
